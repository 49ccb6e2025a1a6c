"""Tempering against posteriors whose draws and evidence are known exactly."""

from __future__ import annotations

import numpy as np
import pytest

from logel.inference.temper import temper


def test_a_gaussian_posterior_and_its_evidence_by_hand() -> None:
    """Standard normal prior times N(x; mean, noise): mean, variance and evidence in closed form."""
    mean, noise = np.array([1.0, -2.0, 0.5]), np.array([0.1, 0.5, 2.0])

    def log_likelihood(points: np.ndarray) -> np.ndarray:
        return -0.5 * ((points - mean) ** 2 / noise + np.log(2 * np.pi * noise)).sum(axis=1)

    found = temper(log_likelihood, 3, 3000, np.random.default_rng(0))
    spread = noise / (1 + noise)
    assert found.draws.mean(axis=0) == pytest.approx(mean / (1 + noise), abs=0.06)
    assert found.draws.var(axis=0) == pytest.approx(spread, rel=0.15)
    evidence = -0.5 * (mean**2 / (1 + noise) + np.log(2 * np.pi * (1 + noise))).sum()
    assert found.log_evidence == pytest.approx(evidence, abs=0.15)
    assert found.log_likelihood == pytest.approx(log_likelihood(found.draws))


def test_both_of_two_modes_are_found_with_their_shares() -> None:
    def log_likelihood(points: np.ndarray) -> np.ndarray:
        right = -0.5 * (points[:, 0] - 2.0) ** 2 / 0.01
        left = np.log(3.0) - 0.5 * (points[:, 0] + 2.0) ** 2 / 0.01
        return np.logaddexp(right, left)

    found = temper(log_likelihood, 1, 4000, np.random.default_rng(1))
    assert (found.draws[:, 0] < 0).mean() == pytest.approx(0.75, abs=0.05)
    assert np.abs(np.abs(found.draws[:, 0]) - 2.0).max() < 0.5


def test_a_likelihood_that_says_nothing_leaves_the_prior() -> None:
    found = temper(lambda points: np.full(len(points), 7.0), 2, 500, np.random.default_rng(2))
    assert found.log_evidence == pytest.approx(7.0)
    assert found.draws.std() == pytest.approx(1.0, abs=0.1)


def test_equal_seeds_give_equal_draws() -> None:
    def log_likelihood(points: np.ndarray) -> np.ndarray:
        return -10 * (points**2).sum(axis=1)

    one, two = (temper(log_likelihood, 2, 50, np.random.default_rng(3)).draws for _ in range(2))
    np.testing.assert_array_equal(one, two)
