"""The solver against the paper's formulas, SciPy's optimisers, and exact learning paths."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.envs.tabular import feature_jacobian, random_mdp
from logel.errors import OptionError
from logel.inference.gauge import direction_error
from logel.inference.regress import (
    FUNCTION_MARGIN,
    PARAMETER_MARGIN,
    Margin,
    evidence_ridge,
    log_evidence,
    objective,
    solve,
    solve_learning_rates,
    solve_weights,
    without_noise,
)
from logel.inference.status import Status
from logel.inference.steps import Steps, compress

seeds = st.integers(0, 2**32 - 1)


def problem(
    seed: int, *, m: int = 4, d: int = 7, q: int = 3, noise: float = 0.1
) -> tuple[Any, Any, Any, Any]:
    """Movements, designs, weights and rates of a well-conditioned random problem."""
    rng = np.random.default_rng(seed)
    design, weights, rates = rng.normal(size=(m, d, q)), rng.normal(size=q), 0.5 + rng.random(m)
    delta = rates[:, None] * (design @ weights) + noise * rng.normal(size=(m, d))
    return delta, design, weights, rates


def naive_objective(delta: Any, design: Any, w: Any, rates: Any, ridge: float = 0.0) -> float:
    total = sum(
        float(((delta[t] - rates[t] * design[t] @ w) ** 2).sum()) for t in range(len(delta))
    )
    return total + ridge * float(w @ w)


def metrics_for(delta: Any, seed: int = 0) -> Any:
    root = np.random.default_rng(seed).normal(size=(*delta.shape, delta.shape[1]))
    return root @ np.swapaxes(root, 1, 2)


# --- exact learning paths -------------------------------------------------------------------


def exact_path(mdp: Any, truth: Any, rates: Any) -> tuple[Any, Any]:
    """Movements and Jacobians of gradient ascent with exact gradients."""
    theta, delta, design = np.zeros(mdp.n_parameters), [], []
    for rate in rates:
        design.append(feature_jacobian(mdp, theta, horizon=20))
        delta.append(rate * design[-1] @ truth)
        theta = theta + delta[-1]
    return np.stack(delta), np.stack(design)


RATES = 0.02 * (1.5 + np.sin(np.arange(8)))


def test_exact_gridworld_path_with_known_rates() -> None:
    mdp = gridworld_mdp()
    truth = grid_weights(mdp.feature_names)
    delta, design = exact_path(mdp, truth, RATES)
    found = solve(compress(delta, design), RATES)
    # One-hot features sum to one: the common level is not identified, the rest is.
    assert found.rank == 4 and found.status is Status.RANK_DEFICIENT
    np.testing.assert_allclose(found.weights, truth - truth.mean(), atol=1e-10)
    assert found.iterations == 0


def test_exact_gridworld_path_with_unknown_rates() -> None:
    mdp = gridworld_mdp()
    truth = grid_weights(mdp.feature_names)
    delta, design = exact_path(mdp, truth, RATES)
    found = solve(compress(delta, design))
    assert direction_error(found.weights, truth - truth.mean()) < 1e-8
    np.testing.assert_allclose(found.learning_rates, RATES / RATES.mean(), rtol=1e-7)
    assert found.learning_rates.mean() == pytest.approx(1.0)
    scaled = found.weights * np.linalg.norm(truth - truth.mean()) / np.linalg.norm(found.weights)
    np.testing.assert_allclose(scaled, truth - truth.mean(), atol=1e-7)


@pytest.mark.parametrize("seed", range(5))
def test_exact_paths_in_random_worlds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mdp = random_mdp(rng, n_states=4, n_actions=3, n_features=3)
    truth, rates = rng.normal(size=3), 0.2 + rng.random(6)
    delta, design = exact_path(mdp, truth, rates)
    steps = compress(delta, design)
    known = solve(steps, rates)
    np.testing.assert_allclose(known.weights, truth, atol=1e-10)
    assert known.status is Status.OK and known.rank == 3
    unknown = solve(steps)
    assert direction_error(unknown.weights, truth) < 1e-8
    assert unknown.status is Status.OK


def test_a_shared_rate_needs_no_alternation() -> None:
    mdp = gridworld_mdp()
    truth = grid_weights(mdp.feature_names)
    delta, design = exact_path(mdp, truth, np.full(6, 0.05))
    found = solve(compress(delta, design), shared_rate=True)
    assert found.iterations == 0
    np.testing.assert_array_equal(found.learning_rates, 1.0)
    np.testing.assert_allclose(found.weights, 0.05 * (truth - truth.mean()), atol=1e-11)


# --- closed forms ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ridge", [0.0, 0.7])
def test_weights_equal_the_papers_normal_equations(seed: int, ridge: float) -> None:
    delta, design, _, rates = problem(seed)
    gram = sum(a**2 * p.T @ p for a, p in zip(rates, design, strict=True))
    right = sum(a * p.T @ x for a, p, x in zip(rates, design, delta, strict=True))
    expected = np.linalg.solve(gram + ridge * np.eye(3), right)
    steps = compress(delta, design)
    found, singular = solve_weights(steps, rates, ridge=ridge)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    stacked = (rates[:, None, None] * design).reshape(-1, 3)
    np.testing.assert_allclose(singular, np.linalg.svd(stacked, compute_uv=False))
    np.testing.assert_allclose(solve(steps, rates, ridge=ridge).weights, expected, rtol=1e-9)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ridge", [0.0, 2.0])
def test_weights_equal_the_normal_equations_in_a_metric(seed: int, ridge: float) -> None:
    delta, design, _, rates = problem(seed)
    metric = metrics_for(delta, seed)
    gram = sum(a**2 * p.T @ M @ p for a, p, M in zip(rates, design, metric, strict=True))
    right = sum(a * p.T @ M @ x for a, p, M, x in zip(rates, design, metric, delta, strict=True))
    expected = np.linalg.solve(gram + ridge * np.eye(3), right)
    found, _ = solve_weights(compress(delta, design, metric=metric), rates, ridge=ridge)
    np.testing.assert_allclose(found, expected, rtol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_the_learning_rate_lemma_by_brute_force(seed: int) -> None:
    delta, design, weights, _ = problem(seed, noise=3.0)
    metric = metrics_for(delta, seed)
    weights = weights if seed else -weights  # also a case where rates sit at the bound
    rates = solve_learning_rates(compress(delta, design, metric=metric), weights, epsilon=0.05)
    grid = np.linspace(0.05, 6, 20_001)
    for t in range(len(delta)):
        residual = delta[t] - grid[:, None] * (design[t] @ weights)
        values = np.einsum("gi,ij,gj->g", residual, metric[t], residual)
        assert rates[t] == pytest.approx(grid[values.argmin()], abs=3e-4)
    if seed == 0:
        assert (rates == 0.05).any()


@pytest.mark.parametrize("seed", range(6))
def test_rates_with_a_given_mean_against_scipy(seed: int) -> None:
    delta, design, weights, _ = problem(seed, noise=2.0, m=5)
    steps, epsilon = compress(delta, design), 0.05
    found = solve_learning_rates(steps, weights, epsilon=epsilon, mean=1.0)
    assert found.mean() == pytest.approx(1.0, abs=1e-12)
    assert (found >= epsilon).all()
    best = scipy.optimize.minimize(
        lambda rates: objective(steps, weights, rates),
        np.ones(5),
        bounds=[(epsilon, None)] * 5,
        constraints={"type": "eq", "fun": lambda rates: rates.mean() - 1.0},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    np.testing.assert_allclose(found, best.x, atol=2e-5)
    assert objective(steps, weights, found) <= best.fun * (1 + 1e-9)


@given(
    st.integers(0, 10_000),
    st.integers(1, 6),
    st.sampled_from([1e-9, 1e-3, 1.0, 1e4]),
    st.sampled_from([1e-6, 0.01, 0.3]),
)
@settings(max_examples=60)
def test_rates_with_a_given_mean_at_any_scale(
    seed: int, m: int, scale: float, epsilon: float
) -> None:
    # The optimum is unchanged when all movements and predictions are multiplied by a factor, and
    # it satisfies the Karush-Kuhn-Tucker conditions: one multiplier for all free rates.
    delta, design, weights, _ = problem(seed, noise=2.0, m=m)
    steps = compress(scale * delta, scale * design)
    found = solve_learning_rates(steps, weights, epsilon=epsilon, mean=1.0)
    reference = solve_learning_rates(compress(delta, design), weights, epsilon=epsilon, mean=1.0)
    np.testing.assert_allclose(found, reference, rtol=1e-9)
    assert found.mean() == pytest.approx(1.0, abs=1e-9)
    predicted = design @ weights
    slope = (found[:, None] * predicted**2 - predicted * delta).sum(axis=1)
    free = found > epsilon * (1 + 1e-9)
    assert free.any()
    tolerance = 1e-8 * np.abs((predicted * delta).sum(axis=1)).max() + 1e-12
    assert np.ptp(slope[free]) <= tolerance
    assert (slope[~free] >= slope[free].min() - tolerance).all()


def test_steps_that_predict_nothing_leave_the_others_at_their_best() -> None:
    delta, design, weights, _ = problem(1, m=3)
    design[1] = 0.0
    steps = compress(delta, design)
    free = solve_learning_rates(steps, weights, epsilon=1e-3)
    assert free[1] == 1e-3
    for mean in (0.3, 1.0, 5.0):
        held = solve_learning_rates(steps, weights, epsilon=1e-3, mean=mean)
        assert held.mean() == pytest.approx(mean) and (held >= 1e-3).all()
        if mean == 5.0:
            np.testing.assert_allclose(held[[0, 2]], free[[0, 2]])
    silent = solve_learning_rates(steps, np.zeros(3), epsilon=1e-3, mean=1.0)
    np.testing.assert_array_equal(silent, 1e-3)


# --- alternation ----------------------------------------------------------------------------


@st.composite
def hard_problems(draw: st.DrawFn) -> Steps:
    """Noisy, sparse, wide, badly scaled: whatever a history may bring."""
    m, d, q = (draw(st.integers(1, n)) for n in (5, 6, 4))
    rng = np.random.default_rng(draw(st.integers(0, 100_000)))
    design = rng.normal(size=(m, d, q)) * 10.0 ** rng.integers(-2, 3, size=(1, 1, q))
    design *= rng.random((m, 1, 1)) > draw(st.sampled_from([0.0, 0.3]))
    design *= rng.random((m, d, q)) > draw(st.sampled_from([0.0, 0.4]))
    delta = design @ rng.normal(size=q) + draw(st.sampled_from([1e-3, 1.0, 30.0])) * rng.normal(
        size=(m, d)
    )
    return compress(delta * draw(st.sampled_from([1e-6, 1.0, 1e3])), design)


@given(hard_problems(), st.sampled_from([0.0, 1e-3, 1.0, 100.0]), st.booleans())
@settings(max_examples=150)
def test_the_objective_never_increases(steps: Steps, ridge: float, nonnegative: bool) -> None:
    found = solve(steps, ridge=ridge, nonnegative=nonnegative, max_iterations=60)
    trace = found.objective_trace
    slack = 1e-9 * float(steps.squared_movement.sum())
    assert (np.diff(trace) <= slack).all()
    # The trace ends at what is returned, and rates average one.
    assert objective(steps, found.weights, found.learning_rates, ridge=ridge) == pytest.approx(
        trace[-1], rel=1e-7, abs=slack
    )
    if nonnegative:
        assert (found.weights >= 0).all()
    if found.status not in (Status.RATES_AT_BOUND, Status.NOT_CONVERGED):
        assert found.learning_rates.mean() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_the_alternation_ends_in_a_stationary_point(seed: int, ridge: float) -> None:
    delta, design, _, _ = problem(seed, noise=0.3)
    steps = compress(delta, design)
    found = solve(steps, ridge=ridge)
    assert found.status is Status.OK
    again, _ = solve_weights(steps, found.learning_rates, ridge=ridge)
    np.testing.assert_allclose(again, found.weights, rtol=1e-7)
    mean = 1.0 if ridge else None
    rates = solve_learning_rates(steps, found.weights, epsilon=1e-6, mean=mean)
    np.testing.assert_allclose(rates, found.learning_rates, rtol=1e-7)
    # No better point from random starts nearby.
    rng = np.random.default_rng(seed)
    for _ in range(50):
        w = found.weights + 1e-3 * rng.normal(size=3)
        a = found.learning_rates + 1e-3 * rng.normal(size=4)
        a /= a.mean()
        assert objective(steps, w, a, ridge=ridge) >= found.objective_trace[-1] - 1e-12


def test_a_large_ridge_shrinks_the_weights_instead_of_moving_scale_to_the_rates() -> None:
    delta, design, _, _ = problem(0)
    steps = compress(delta, design)
    sizes = [np.linalg.norm(solve(steps, ridge=r).weights) for r in (0.0, 1.0, 10.0, 1e3, 1e6)]
    assert (np.diff(sizes) < 0).all() and sizes[-1] < 1e-3


def test_movement_against_every_reward_is_called_so() -> None:
    # Only costs, weights constrained to be non-negative: no reward of this form fits.
    design = np.ones((3, 2, 2)) + np.arange(2)
    steps = compress(-np.ones((3, 2)), design)
    for ridge in (0.0, 0.1):
        found = solve(steps, nonnegative=True, ridge=ridge)
        np.testing.assert_array_equal(found.weights, 0.0)
        assert found.status is Status.RATES_AT_BOUND
        assert np.isfinite(found.learning_rates).all()


@pytest.mark.parametrize("ridge", [0.0, 0.1])
@pytest.mark.parametrize("noisy", [False, True])
def test_rates_at_their_bound_are_seen_through_noise_and_ridge(noisy: bool, ridge: float) -> None:
    # Rates that are held to a mean, or divided by theirs, stand at one, whatever they would be.
    rng = np.random.default_rng(0)
    design = np.abs(rng.normal(size=(4, 6, 2)))
    noise = np.broadcast_to(0.01 * np.eye(3), (4, 3, 3)).copy() if noisy else None
    for sign, expected in ((-1.0, Status.RATES_AT_BOUND), (1.0, Status.OK)):
        steps = replace(compress(sign * design.sum(axis=2), design), noise=noise)
        found = solve(steps, nonnegative=True, ridge=ridge)
        assert found.status is expected
        assert found.weights.any() == (sign > 0)


def test_too_few_iterations_are_admitted() -> None:
    delta, design, _, _ = problem(0, noise=1.0)
    found = solve(compress(delta, design), max_iterations=1)
    assert found.status is Status.NOT_CONVERGED and found.iterations == 1
    assert "max_iterations" in found.status.value


# --- degenerate systems ---------------------------------------------------------------------


def test_singular_systems_get_the_minimum_norm_solution() -> None:
    # Constructed: two identical features, one silent one.
    rng = np.random.default_rng(0)
    column = rng.normal(size=(3, 6, 1))
    design = np.concatenate([column, column, np.zeros_like(column)], axis=2)
    delta = 2.0 * column[:, :, 0]
    found = solve(compress(delta, design), np.ones(3))
    np.testing.assert_allclose(found.weights, [1.0, 1.0, 0.0], atol=1e-12)
    assert found.rank == 1 and found.status is Status.RANK_DEFICIENT
    assert found.condition == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(4))
def test_wide_systems_get_the_minimum_norm_solution(seed: int) -> None:
    rng = np.random.default_rng(seed)
    design, delta = rng.normal(size=(1, 3, 8)), rng.normal(size=(1, 3))
    found = solve(compress(delta, design), np.array([0.5]))
    np.testing.assert_allclose(
        found.weights, np.linalg.pinv(0.5 * design[0]) @ delta[0], atol=1e-10
    )
    assert found.rank == 3 and found.status is Status.RANK_DEFICIENT
    assert found.objective_trace[-1] < 1e-20


def test_a_prescribed_spectrum_is_reported() -> None:
    # Data built from a known SVD, as in scikit-learn's ridge tests.
    rng = np.random.default_rng(1)
    left = np.linalg.qr(rng.normal(size=(12, 3)))[0]
    right = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    values = np.array([5.0, 1.0, 1e-3])
    design = (left * values @ right.T).reshape(2, 6, 3)
    weights = np.array([1.0, -2.0, 3.0])
    found = solve(compress(design @ weights, design), np.ones(2))
    np.testing.assert_allclose(found.singular_values, values, rtol=1e-9)
    assert found.condition == pytest.approx(5e3, rel=1e-8) and found.rank == 3
    np.testing.assert_allclose(found.weights, weights, atol=1e-9)
    # Ridge shrinks along the singular directions by s^2 / (s^2 + ridge).
    shrunk, _ = solve_weights(compress(design @ weights, design), np.ones(2), ridge=0.5)
    expected = right @ ((values**2 / (values**2 + 0.5)) * (right.T @ weights))
    np.testing.assert_allclose(shrunk, expected, atol=1e-10)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_non_negative_weights_against_scipy(seed: int, ridge: float) -> None:
    delta, design, _, rates = problem(seed, noise=1.0)
    matrix = np.concatenate([(rates[:, None, None] * design).reshape(-1, 3)])
    target = delta.reshape(-1)
    if ridge:
        matrix = np.concatenate([matrix, np.sqrt(ridge) * np.eye(3)])
        target = np.concatenate([target, np.zeros(3)])
    expected = scipy.optimize.nnls(matrix, target)[0]
    found = solve(compress(delta, design), rates, ridge=ridge, nonnegative=True)
    np.testing.assert_allclose(found.weights, expected, atol=1e-9)


# --- noise taken out ------------------------------------------------------------------------


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


@pytest.mark.parametrize("margin", [PARAMETER_MARGIN, FUNCTION_MARGIN], ids=["both", "square"])
@given(seed=seeds, factor=st.floats(0.0, 50.0))
def test_subtracting_keeps_the_equations_definite(margin: Margin, seed: int, factor: float) -> None:
    rng = np.random.default_rng(seed)
    steps = compress(rng.normal(size=(3, 5)), rng.normal(size=(3, 5, 2)))
    root = rng.normal(size=(3, 3))
    noise = np.broadcast_to(factor * root @ root.T, (3, 3, 3)).copy()
    steps = replace(steps, noise=noise)
    rates = np.array([1.0, 2.0, 0.5])
    matrix, target, share = without_noise(steps, rates, margin=margin)
    scale = rates[:, None, None] * steps.design
    normal = np.einsum("mri,mrj->ij", scale, scale)
    taken = np.einsum("m,mij->ij", rates**2, noise[:, :2, :2])
    generalised = np.linalg.eigvals(np.linalg.solve(normal, matrix.T @ matrix)).real
    assert generalised.min() >= margin.left - 1e-8
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


# --- strength by evidence --------------------------------------------------------------------


def simulated(
    rng: np.random.Generator, rates: np.ndarray, *, d: int = 12, q: int = 3, noise: float = 0.3
) -> tuple[Steps, np.ndarray, np.ndarray, np.ndarray]:
    design, weights = rng.normal(size=(len(rates), d, q)), rng.normal(size=q)
    delta = rates[:, None] * (design @ weights) + noise * rng.normal(size=(len(rates), d))
    return compress(delta, design), delta, design, weights


@given(seed=seeds, ridge=st.floats(1e-3, 1e3))
def test_evidence_is_the_marginal_likelihood(seed: int, ridge: float) -> None:
    rng = np.random.default_rng(seed)
    rates = rng.uniform(0.5, 2, size=3)
    steps, delta, design, _ = simulated(rng, rates, d=5)
    x, y = (rates[:, None, None] * design).reshape(15, 3), delta.reshape(15)
    shape = np.eye(15) + x @ x.T / ridge
    # The scale of the noise where the likelihood is largest, by its closed form.
    scale = y @ np.linalg.solve(shape, y) / 15
    brute = scipy.stats.multivariate_normal(np.zeros(15), scale * shape).logpdf(y)
    constant = -0.5 * 15 * (1 + np.log(2 * np.pi))
    assert log_evidence(steps, rates, ridge) + constant == pytest.approx(brute, abs=1e-6)


def test_the_evidence_ridge_is_the_best_of_a_fine_grid() -> None:
    rng = np.random.default_rng(0)
    steps, *_ = simulated(rng, np.ones(4), noise=2.0)
    grid = np.exp(np.linspace(-12, 12, 4001))
    best = grid[np.argmax(log_evidence(steps, np.ones(4), grid))]
    assert evidence_ridge(steps, np.ones(4)) == pytest.approx(best, rel=0.01)


def test_the_evidence_ridge_lowers_the_error_of_noisy_weights() -> None:
    errors = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        steps, _, _, weights = simulated(rng, np.ones(1), d=8, q=6, noise=3.0)
        ridge = evidence_ridge(steps, np.ones(1))
        found = [solve(steps, np.ones(1), ridge=r).weights for r in (0.0, ridge)]
        errors.append([np.sum((f - weights) ** 2) for f in found])
    plain, shrunk = np.array(errors).T
    assert scipy.stats.wilcoxon(shrunk, plain, alternative="less").pvalue < 1e-3


# --- errors ---------------------------------------------------------------------------------


def test_malformed_options_are_refused() -> None:
    delta, design, _, _ = problem(0)
    steps = compress(delta, design)
    with pytest.raises(OptionError, match="ridge must not be negative, but is -1"):
        solve(steps, ridge=-1.0)
    with pytest.raises(OptionError, match="epsilon must be positive, but is 0"):
        solve(steps, epsilon=0.0)
    with pytest.raises(OptionError, match=r"4 steps, but \(3,\) learning rates"):
        solve(steps, np.ones(3))
