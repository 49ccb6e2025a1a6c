"""What groups of episodes say about a step, against explicit formulas and simulations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from logel.inference.noise import DenseMetric, IdentityMetric
from logel.inference.spread import bootstrap_weights, jackknife_weights
from logel.inference.stages import NoiseParts, StageSample, replicated_steps, step_between
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
    whole = step_between(before, after, metric, parts=parts)
    # Leaving a group out moves the parameters by its influence over (G - 1) / G.
    kept = (g - 1) / g
    moved = [
        replace(s, influence=None if s.influence is None else s.influence / kept)
        for s in (before, after)
    ]
    weights = [(w, w) for w in jackknife_weights(g)]
    (kept_steps,) = replicated_steps(*moved, [metric], weights=weights, parts=[None])
    without = kept_steps.grams()
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
        (step,) = replicated_steps(
            before, after, [metric], weights=[(weights, weights)], parts=[parts]
        )
        assert step.noise is not None
        excess.append((step.grams() - step.noise)[0, :2, :2])
    mean, error = np.mean(excess, axis=0), np.std(excess, axis=0) / 20
    assert (np.abs(mean) < 4 * error).all()


def test_reweighting_by_ones_changes_nothing() -> None:
    rng = np.random.default_rng(6)
    one = sample(rng)
    parameters, design = one.reweighted(np.ones(5))
    np.testing.assert_array_equal(parameters, one.parameters)
    np.testing.assert_allclose(design, one.design.mean)
    steps = [step_between(sample(rng), sample(rng), IdentityMetric()) for _ in range(3)]
    together = joined(steps)
    assert isinstance(together, Steps) and together.n_steps == 3
    assert together.noise is None and together.n_parameters == 4


def test_many_replicates_of_a_step_are_those_of_one_after_the_other() -> None:
    rng = np.random.default_rng(7)
    before, after = sample(rng, g=6, cloned=True), sample(rng, g=6, cloned=True)
    metrics = [IdentityMetric(), DenseMetric(np.diag([1.0, 2.0, 3.0, 4.0]))]
    parts = [NoiseParts.of(before, after, metric) for metric in metrics]
    # More than are held at once.
    drawn = [bootstrap_weights(6, 40, rng) for _ in range(2)]
    weights = list(zip(*drawn, strict=True))
    together = replicated_steps(before, after, metrics, weights=weights, parts=parts)
    for r in (0, 15, 16, 39):
        alone = replicated_steps(before, after, metrics, weights=[weights[r]], parts=parts)
        for all_of_them, one in zip(together, alone, strict=True):
            np.testing.assert_allclose(
                all_of_them.part(slice(r, r + 1)).grams(), one.grams(), atol=1e-12
            )
            assert all_of_them.noise is not None and one.noise is not None
            np.testing.assert_allclose(all_of_them.noise[r], one.noise[0], atol=1e-12)


def test_folding_replicates_is_merging_the_steps_of_each() -> None:
    rng = np.random.default_rng(8)
    first, second = (
        replace(
            compress(rng.normal(size=(3, 2)), rng.normal(size=(3, 2, 4))),
            noise=rng.normal(size=(3, 5, 5)),
        )
        for _ in range(2)
    )
    folded = first.at_rate(0.5).beside(second.at_rate(2.0))
    for r in range(3):
        one = slice(r, r + 1)
        merged = joined([first.part(one), second.part(one)]).merged(np.array([0.5, 2.0]))
        np.testing.assert_allclose(folded.part(one).grams(), merged.grams(), atol=1e-12)
        assert folded.noise is not None and merged.noise is not None
        np.testing.assert_allclose(folded.noise[r], merged.noise[0], atol=1e-12)
    assert folded.n_parameters == 4
