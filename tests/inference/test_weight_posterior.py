"""The weights' posterior, their scale integrated out, against numerical integration."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from logel.inference.weight_posterior import (
    weight_posterior,
)

CASES = {
    "determined": (np.array([[9.0, 2.0], [2.0, 6.0]]), np.array([20.0, -9.0])),
    "weak": (np.array([[1.0, 0.3], [0.3, 0.8]]), np.array([1.2, 0.4])),
    "one strong": (np.array([[60.0, 5.0], [5.0, 1.5]]), np.array([50.0, 6.0])),
}


def given_scale(information: Any, linear: Any, scale: float) -> tuple[Any, Any]:
    """Mean and covariance of the weights under a fixed prior scale."""
    covariance = np.linalg.inv(information + np.eye(len(linear)) / scale)
    return covariance @ linear, covariance


@cache
def integrated(name: str) -> tuple[Any, Any]:
    """Mean and covariance by integration over the plane, the scale integrated out by hand.

    With a flat prior on sigma, int sigma^-2 exp(-r^2 / 2 sigma^2) dsigma is proportional to 1 / r,
    which cancels the r of polar coordinates.
    """
    information, linear = CASES[name]
    r = np.linspace(0, 14, 4001)[:, None] + 1e-9
    angle = np.linspace(0, 2 * np.pi, 720, endpoint=False)
    w = np.stack([r * np.cos(angle), r * np.sin(angle)], axis=-1)
    logs = w @ linear - 0.5 * np.einsum("...i,ij,...j", w, information, w)
    density = np.exp(logs - logs.max())
    density /= density.sum()
    mean = np.einsum("ra,rai->i", density, w)
    return mean, np.einsum("ra,rai,raj->ij", density, w - mean, w - mean)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("scale", [0.5, 4.0, 300.0])
def test_the_posterior_of_the_weights_equals_numerical_integration(name: str, scale: float) -> None:
    # Whatever the scale the fit happened to end with: it is taken out again.
    found = weight_posterior(*given_scale(*CASES[name], scale), scale)
    mean, covariance = integrated(name)
    deviation = np.sqrt(np.diagonal(covariance))
    assert (np.abs(found.mean - mean) < 0.03 * deviation).all()
    assert found.shares.sum() == pytest.approx(1.0)
    draws = found.draw(40_000, np.random.default_rng(4))
    assert draws.shape == (40_000, 2)
    # Four standard errors of the mean, beside the grid's truncation.
    assert (np.abs(draws.mean(axis=0) - mean) < 0.05 * deviation).all()
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.05 * deviation.max() ** 2)


def test_a_single_weight_is_hardly_shrunk() -> None:
    # With one weight a flat prior on sigma is a flat prior on the weight: the likelihood stays.
    found = weight_posterior(*given_scale(np.array([[30.0]]), np.array([45.0]), 2.0), 2.0)
    assert found.mean[0] == pytest.approx(1.5, rel=0.015)
    draws = found.draw(20_000, np.random.default_rng(5))
    assert draws.std() == pytest.approx(30**-0.5, rel=0.03)


def test_the_fitted_scale_follows_the_size_of_the_weights() -> None:
    information, linear = CASES["determined"]
    base = weight_posterior(*given_scale(information, linear, 1.0), 1.0)
    # Other units: weights ten times as large, information a hundredth.
    larger = weight_posterior(*given_scale(information / 100, linear / 10, 100.0), 100.0)
    np.testing.assert_allclose(larger.mean, 10 * base.mean, rtol=1e-8)
    assert larger.scale == pytest.approx(100 * base.scale, rel=1e-8)
    weights = np.linalg.solve(information, linear)
    assert 0.3 < base.scale / (weights @ weights / 2) < 10


def test_well_determined_weights_are_drawn_from_their_likelihood() -> None:
    # Three weights: in the plane the axes may happen to be their own transpose.
    root = np.random.default_rng(7).normal(size=(3, 3))
    information = 1e3 * (root @ root.T + np.eye(3))
    weights = np.array([1.0, -2.0, 0.5])
    found = weight_posterior(*given_scale(information, information @ weights, 3.0), 3.0)
    np.testing.assert_allclose(found.mean, weights, atol=1e-3)
    draws = found.draw(40_000, np.random.default_rng(8))
    np.testing.assert_allclose(draws.mean(axis=0), weights, atol=2e-3)
    covariance = np.linalg.inv(information)
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.03 * np.trace(covariance))


def test_draws_come_from_the_generator() -> None:
    found = weight_posterior(*given_scale(*CASES["weak"], 1.0), 1.0)
    first, second = (found.draw(5, np.random.default_rng(6)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
