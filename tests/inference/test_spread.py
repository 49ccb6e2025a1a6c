"""Replicates, noise corrections and spreads against explicit formulas and simulations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logel.inference.noise import DenseMetric, IdentityMetric
from logel.inference.regress import NOISE_MARGIN, solve, solve_weights, without_noise
from logel.inference.spread import (
    NoiseParts,
    StageSample,
    bootstrap_weights,
    jackknife_weights,
    recentred,
    spread_of,
    step_between,
    unexplained_covariance,
)
from logel.inference.steps import Steps, compress, joined
from logel.worlds.own_episodes import StageJacobian

seeds = st.integers(0, 2**32 - 1)


def sample(
    rng: np.random.Generator, *, g: int = 5, d: int = 4, q: int = 2, cloned: bool = True
) -> StageSample:
    groups = rng.normal(size=(g, d, q))
    jacobian = StageJacobian(
        mean=groups.mean(axis=0),
        groups=groups,
        group_weights=np.full(g, 1 / g),
        score_sums=np.zeros((g, d)),
    )
    influence = None
    if cloned:
        influence = rng.normal(size=(g, d)) / g
    return StageSample(rng.normal(size=d), jacobian, influence)


@given(seed=seeds, cloned=st.booleans(), g=st.integers(3, 7))
def test_the_noise_is_what_the_jackknife_corrects(seed: int, cloned: bool, g: int) -> None:
    # For a quadratic the jackknife removes the bias exactly: G A - (G - 1) mean of A without g.
    rng = np.random.default_rng(seed)
    before, after = (sample(rng, g=g, cloned=cloned) for _ in range(2))
    if cloned:
        # The correction is about the mean; leave no overall shift to it.
        before, after = (
            replace(s, influence=s.influence - s.influence.mean(axis=0))  # type: ignore[operator, union-attr]
            for s in (before, after)
        )
    root = rng.normal(size=(4, 6))
    metric = DenseMetric(root @ root.T + np.eye(4))
    parts = NoiseParts.of(before, after, metric)
    whole = step_between(before, after, metric, basis=np.eye(2), parts=parts)
    # Leaving a group out moves the parameters by its influence over (G - 1) / G.
    kept = (g - 1) / g
    moved = [
        replace(s, influence=None if s.influence is None else s.influence / kept)
        for s in (before, after)
    ]
    without = [
        step_between(moved[0], moved[1], metric, basis=np.eye(2), weights=(w, w)).grams()[0]
        for w in jackknife_weights(g)
    ]
    corrected = g * whole.grams()[0] - (g - 1) * np.mean(without, axis=0)
    assert whole.noise is not None
    expected = whole.grams()[0] - whole.noise[0]
    if cloned:
        # Left out together, the two stages' groups also pair up by chance in the last entry.
        errors = [s.errors()[:, :, -1:] for s in (before, after)]
        pairs = np.concatenate([before.errors()[:, :, :-1], -errors[0]], axis=2)
        white = np.linalg.inv(metric.covariance)
        cross = np.einsum("gdi,de,gek->ik", pairs, white, errors[1]) / (g * (g - 1))
        expected[:, -1] -= cross[:, 0]
        expected[-1, :] -= cross[:, 0]
    np.testing.assert_allclose(corrected, expected, atol=1e-8 * np.abs(expected).max())


def test_replicates_expect_the_noise_they_have() -> None:
    rng = np.random.default_rng(0)
    g, metric = 6, IdentityMetric()
    excess = []
    for _ in range(400):
        # The true design is zero: all of a Gram matrix is noise.
        before, after = (sample(rng, g=g, cloned=False) for _ in range(2))
        parts = NoiseParts.of(before, after, metric)
        weights = bootstrap_weights(g, 1, rng)[0]
        step = step_between(
            before, after, metric, basis=np.eye(2), weights=(weights, weights), parts=parts
        )
        assert step.noise is not None
        excess.append((step.grams() - step.noise)[0, :2, :2])
    mean, error = np.mean(excess, axis=0), np.std(excess, axis=0) / 20
    assert (np.abs(mean) < 4 * error).all()


def test_subtracting_noise_removes_the_bias_of_the_weights() -> None:
    rng = np.random.default_rng(1)
    truth, found = np.array([1.0, -1.0]), []
    for subtract in (False, True):
        errors = []
        for m in (20, 2000):
            true = rng.normal(size=(m, 6, 2)) * [1.0, 0.5]
            noisy = true + 0.7 * rng.normal(size=true.shape)
            steps = compress(true @ truth, noisy)
            noise = np.zeros((m, 3, 3))
            noise[:, :2, :2] = 0.49 * 6 * np.eye(2)
            steps = replace(steps, noise=noise if subtract else None)
            errors.append(np.linalg.norm(solve(steps, shared_rate=True).weights - truth))
        found.append(errors)
    (_, floor), (early, late) = found
    assert floor > 0.4 and late < 0.1 < 0.3 * floor and late < early


@given(seed=seeds, factor=st.floats(0.0, 50.0))
def test_subtracting_keeps_the_equations_definite(seed: int, factor: float) -> None:
    rng = np.random.default_rng(seed)
    steps = compress(rng.normal(size=(3, 5)), rng.normal(size=(3, 5, 2)))
    root = rng.normal(size=(3, 3))
    noise = np.broadcast_to(factor * root @ root.T, (3, 3, 3)).copy()
    steps = replace(steps, noise=noise)
    rates = np.array([1.0, 2.0, 0.5])
    matrix, target, share = without_noise(steps, rates)
    scale = rates[:, None, None] * steps.design
    normal = np.einsum("mri,mrj->ij", scale, scale)
    taken = np.einsum("m,mij->ij", rates**2, noise[:, :2, :2])
    generalised = np.linalg.eigvals(np.linalg.solve(normal, matrix.T @ matrix)).real
    assert generalised.min() >= NOISE_MARGIN - 1e-8
    assert 0 < share <= 1
    if share == 1:
        np.testing.assert_allclose(
            matrix.T @ matrix, normal - taken, atol=1e-8 * np.abs(normal).max()
        )
        right = np.einsum("mri,mr->i", scale, steps.delta)
        right -= np.einsum("m,mi->i", rates, noise[:, :2, 2])
        np.testing.assert_allclose(matrix.T @ target, right, atol=1e-7 * np.abs(right).max())
    weights, _ = solve_weights(steps, rates, nonnegative=True)
    assert (weights >= 0).all()
    assert np.isfinite(solve(steps, epsilon=0.1, max_iterations=20).learning_rates).all()


def test_merged_steps_stand_for_all_of_them() -> None:
    rng = np.random.default_rng(2)
    steps = compress(rng.normal(size=(4, 6)), rng.normal(size=(4, 6, 3)))
    steps = replace(steps, noise=np.broadcast_to(0.01 * np.eye(4), (4, 4, 4)).copy())
    rates = rng.uniform(0.5, 2, size=4)
    merged = steps.merged(rates)
    one, two = solve(steps, rates), solve(merged, np.ones(1))
    np.testing.assert_allclose(one.weights, two.weights, rtol=1e-10)
    assert merged.n_parameters == 24 and one.share == two.share == 1
    basis = np.linalg.qr(rng.normal(size=(3, 2)))[0]
    assert merged.projected(basis).noise.shape == (1, 3, 3)  # type: ignore[union-attr]
    assert steps.take(np.array([1, 3])).n_steps == 2


def test_bootstrap_and_jackknife_agree() -> None:
    # The mean of g groups: its variance is known, and both must find it.
    rng = np.random.default_rng(3)
    g, claims = 12, []
    for _ in range(200):
        groups = rng.normal(size=(g, 2)) * [1.0, 2.0]
        left_out = jackknife_weights(g) @ groups / (g - 1)
        weights = bootstrap_weights(g, 100, rng)
        drawn = weights @ groups / weights.sum(axis=1, keepdims=True)
        claims.append(
            [
                np.diagonal(spread_of(left_out, leave_out=True)),
                np.diagonal(spread_of(drawn, leave_out=False)),
            ]
        )
    jackknife, bootstrap = np.mean(claims, axis=0)
    np.testing.assert_allclose(jackknife, np.array([1.0, 4.0]) / g, rtol=0.1)
    np.testing.assert_allclose(bootstrap, np.array([1.0, 4.0]) / g, rtol=0.1)


def test_draws_lie_around_the_estimate() -> None:
    rng = np.random.default_rng(4)
    weights = np.array([0.6, 0.8])
    replicates = weights + 0.3 + 0.01 * rng.normal(size=(50, 2))
    draws = recentred(replicates, weights, unit=True)
    np.testing.assert_allclose(np.linalg.norm(draws, axis=1), 1)
    np.testing.assert_allclose(draws.mean(axis=0), weights, atol=0.01)
    np.testing.assert_allclose(recentred(replicates, weights, unit=False).mean(axis=0), weights)


def test_unexplained_movement_gives_the_spread_of_least_squares() -> None:
    rng = np.random.default_rng(5)
    truth, found, claims = np.array([1.0, 2.0]), [], []
    design = rng.normal(size=(3, 10, 2))
    for _ in range(300):
        steps = compress(design @ truth + 0.5 * rng.normal(size=(3, 10)), design)
        solution = solve(steps, shared_rate=True)
        found.append(solution.weights)
        claims.append(unexplained_covariance(steps, np.zeros((3, 3, 3)), solution, 0.0))
    np.testing.assert_allclose(np.mean(claims, axis=0), np.cov(np.array(found).T), atol=2.5e-3)
    # Noise that accounts for the residuals leaves nothing unexplained.
    accounted = np.zeros((3, 3, 3))
    accounted[:, 2, 2] = 100.0
    assert not unexplained_covariance(steps, accounted, solution, 0.0).any()


def test_reweighting_by_ones_changes_nothing() -> None:
    rng = np.random.default_rng(6)
    one = sample(rng)
    parameters, design = one.reweighted(np.ones(5))
    np.testing.assert_array_equal(parameters, one.parameters)
    np.testing.assert_allclose(design, one.design.mean)
    steps = [
        step_between(sample(rng), sample(rng), IdentityMetric(), basis=np.eye(2)) for _ in range(3)
    ]
    together = joined(steps)
    assert isinstance(together, Steps) and together.n_steps == 3
    assert together.noise is None and together.n_parameters == 4
    assert spread_of(rng.normal(size=(4, 2)), leave_out=True).shape == (2, 2)
    assert bootstrap_weights(4, 3, rng).sum(axis=1) == pytest.approx(4)
