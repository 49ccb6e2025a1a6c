"""Strengths by evidence against brute force, and rates drawn to a schedule."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from logel.inference.shrinkage import (
    RateShrinkage,
    evidence_ridge,
    log_evidence,
    shrunk_rates,
    solve_shrunk,
)

from logel.inference.regress import solve
from logel.inference.steps import Steps, compress

seeds = st.integers(0, 2**32 - 1)


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


@pytest.mark.parametrize("towards", ["shared", "schedule"])
def test_exact_rates_are_left_alone(towards: str) -> None:
    rng = np.random.default_rng(1)
    rates = rng.uniform(0.5, 2, size=6)
    steps, _, _, weights = simulated(rng, rates, noise=0.0)
    found = shrunk_rates(
        steps, weights, towards=RateShrinkage(towards), epsilon=1e-6, variance=1e-20
    )
    np.testing.assert_allclose(found, rates, rtol=1e-6)


@pytest.mark.parametrize(("towards", "power"), [("shared", 0.0), ("schedule", -1.0)])
def test_noisy_rates_come_closer_to_their_schedule(towards: str, power: float) -> None:
    alone, shrunk = [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        rates = (1.0 + np.arange(12)) ** power
        steps, _, _, weights = simulated(rng, rates, noise=1.5)
        free = solve(steps)
        drawn = solve_shrunk(
            steps,
            towards=RateShrinkage(towards),
            ridge=0.0,
            nonnegative=False,
            epsilon=1e-6,
            max_iterations=100,
            tolerance=1e-8,
        )
        target = rates / rates.mean()
        alone.append(np.sum((free.learning_rates - target) ** 2))
        shrunk.append(np.sum((drawn.learning_rates - target) ** 2))
        assert drawn.learning_rates.mean() == pytest.approx(1.0)
        assert drawn.weights @ weights > 0
    assert scipy.stats.wilcoxon(shrunk, alone, alternative="less").pvalue < 1e-3


def test_a_step_that_says_nothing_takes_the_schedule() -> None:
    rng = np.random.default_rng(2)
    steps, _, design, weights = simulated(rng, np.ones(5), noise=0.01)
    design = np.concatenate([steps.design[:4], 0 * steps.design[:1]])
    silent = Steps(design, steps.delta, steps.n_parameters, steps.squared_movement)
    rates = shrunk_rates(silent, weights, towards=RateShrinkage.SHARED, epsilon=1e-6, variance=1e-4)
    assert rates[4] == pytest.approx(1.0, abs=0.05)
