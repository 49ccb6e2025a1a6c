"""Replicates and spreads against explicit formulas and simulations."""

from __future__ import annotations

import numpy as np
import pytest

from logel.inference.regress import solve
from logel.inference.spread import (
    bootstrap_weights,
    jackknife_weights,
    recentred,
    spread_of,
    unexplained_covariance,
)
from logel.inference.steps import compress


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
    assert weights.sum(axis=1).max() == pytest.approx(g)
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
