"""Draws from a posterior under a standard normal prior, by tempering: no tuning, several modes.

Particles start as draws of the prior. The likelihood is raised to a power that grows from zero to
one; at every power particles are resampled by what the likelihood gained, and moved by Metropolis
steps as wide as they are spread. The gains add up to the evidence, the prior mean of the likelihood
(Del Moral, Doucet and Jasra, 2006).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from logel.types import Float

# Share of the particles that count after a power is raised: fewer would tire them out, more would
# take more powers.
_ALIVE = 0.5
# Metropolis moves at every power, and of the end, where all particles should be fresh.
_MOVES, _LAST_MOVES = 5, 12
# Beyond which the likelihood is taken not to be one.
_MOST_POWERS = 200


class Tempered(NamedTuple):
    """Equally likely draws (n, size), their log likelihood (n,), and the log evidence."""

    draws: Float
    log_likelihood: Float
    log_evidence: float


def temper(
    log_likelihood: Callable[[Float], Float], size: int, n: int, rng: np.random.Generator
) -> Tempered:
    """Draw from a posterior whose prior is standard normal.

    Args:
        log_likelihood: Maps points (n, size) to numbers (n,); finite.
        size: Number of unknowns.
        n: Number of draws.
        rng: Of everything random here.
    """
    points = rng.standard_normal((n, size))
    values = log_likelihood(points)
    power, evidence, reach = 0.0, 0.0, 1.0
    for _ in range(_MOST_POWERS):
        raised = _next_power(values, power)
        logs = (raised - power) * values
        evidence += float(logsumexp(logs)) - float(np.log(n))
        chosen = _resampled(np.exp(logs - logs.max()), rng)
        points, values, power = points[chosen], values[chosen], raised
        root = _root(points)
        for _ in range(_LAST_MOVES if power == 1 else _MOVES):
            tried = points + reach * rng.standard_normal(points.shape) @ root.T
            found = log_likelihood(tried)
            gain = power * (found - values) + ((points**2).sum(1) - (tried**2).sum(1)) / 2
            taken = np.log(rng.random(n)) < gain
            points = np.where(taken[:, None], tried, points)
            values = np.where(taken, found, values)
            # A quarter of wide moves taken is about the best there is.
            reach *= float(np.exp(taken.mean() - 0.25))
        if power == 1:
            break
    return Tempered(points, values, evidence)


def _next_power(values: Float, power: float) -> float:
    """The power at which `_ALIVE` of the particles would count, at most one."""

    def alive(raised: float) -> float:
        logs = (raised - power) * (values - values.max())
        weights = np.exp(logs)
        return float(weights.sum() ** 2 / (weights**2).sum()) / len(values)

    if alive(1.0) >= _ALIVE:
        return 1.0
    low, high = power, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if alive(middle) >= _ALIVE else (low, middle)
    # Rounding must not stop the climb.
    return min(max(low, power + 1e-9), 1.0)


def _resampled(weights: Float, rng: np.random.Generator) -> np.ndarray:
    """Indices drawn in proportion to weights, as evenly as possible."""
    n = len(weights)
    edges = np.cumsum(weights / weights.sum())
    found = np.searchsorted(edges, (np.arange(n) + rng.random()) / n)
    return np.minimum(found, n - 1)


def _root(points: Float) -> Float:
    """A root of the particles' covariance, of a size that Metropolis moves are best of."""
    size = points.shape[1]
    covariance = np.cov(points.T).reshape(size, size) * 2.4**2 / size
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.clip(values, 1e-14, None)))
