"""Strengths chosen by evidence: the ridge on the weights, and how freely learning rates vary.

Both are type-II maximum likelihood on the compressed steps, so they cost nothing in d.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import scipy.optimize

from logel.errors import Choice
from logel.inference.regress import (
    Solution,
    Steps,
    objective,
    solve,
    solve_learning_rates,
    solve_weights,
    without_noise,
)
from logel.types import Float

# Powers p of the schedules rate[t] ~ (1 + t)^p, and how far single rates may stray from one, as a
# share of the typical rate. Shrinkage needs no finer choice.
_POWERS = np.linspace(-3.0, 1.0, 33)
_STRAYS = np.array([0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6])


class RateShrinkage(Choice):
    """What the learning rates of single steps are drawn towards, as far as the evidence wants.

    NONE: nothing; every step has its own rate.
    SHARED: one rate for all steps.
    SCHEDULE: a power of time, (1 + t)^p.
    """

    NONE = "none"
    SHARED = "shared"
    SCHEDULE = "schedule"


def log_evidence(steps: Steps, learning_rates: Float, ridge: npt.ArrayLike) -> Float:
    """Log marginal likelihood of the movements for given ridges, up to a constant; same shape.

    The model: whitened movements are normal around rate * design @ weights with variance s^2, the
    weights normal around zero with variance s^2 / ridge; the weights are integrated out and s^2 is
    put where the likelihood is largest.
    """
    matrix, target = _system(steps, learning_rates)
    left, singular, _ = np.linalg.svd(matrix, full_matrices=False)
    found = (left.T @ target) ** 2
    n = steps.n_steps * steps.n_parameters
    total = float(steps.squared_movement.sum())
    # Subtracted noise may leave the design explaining more than there is.
    total = max(total, float(found.sum()) * (1 + 1e-9))
    strength = np.asarray(ridge, dtype=float)[..., None]
    squared = singular**2
    rest = total - (found * squared / (squared + strength)).sum(axis=-1)
    return np.asarray(-0.5 * (n * np.log(rest / n) + np.log1p(squared / strength).sum(axis=-1)))


def evidence_ridge(steps: Steps, learning_rates: Float) -> float:
    """The ridge with the largest evidence."""
    matrix, _ = _system(steps, learning_rates)
    top = float(np.linalg.norm(matrix, 2)) ** 2
    if top == 0:
        return 0.0
    grid = np.log(top) + np.linspace(np.log(1e-10), np.log(1e4), 57)
    values = log_evidence(steps, learning_rates, np.exp(grid))
    best = int(np.argmax(values))
    around = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    found = scipy.optimize.minimize_scalar(
        lambda x: -float(log_evidence(steps, learning_rates, np.exp(x))),
        bounds=around,
        method="bounded",
        options={"xatol": 1e-6},
    )
    return float(np.exp(found.x))


def _system(steps: Steps, learning_rates: Float) -> tuple[Float, Float]:
    if steps.noise is not None:
        return without_noise(steps, learning_rates)[:2]
    merged = steps.merged(learning_rates)
    return merged.design[0], merged.delta[0]


def shrunk_rates(
    steps: Steps, weights: Float, *, towards: RateShrinkage, epsilon: float, variance: float
) -> Float:
    """Rates of all steps, each drawn to the schedule by how badly it is known by itself.

    Args:
        steps: The compressed steps.
        weights: Shape (q,).
        towards: SHARED or SCHEDULE.
        epsilon: Lower bound of every rate.
        variance: Of the whitened movements around their prediction.
    """
    alone = solve_learning_rates(steps, weights, epsilon=-np.inf)
    curvature = ((steps.design @ weights) ** 2).sum(axis=1)
    known = curvature > 0
    if not known.any():
        return np.ones(steps.n_steps)
    alone = np.where(known, alone, 0.0)
    errors = np.where(known, variance / np.where(known, curvature, 1.0), np.inf)
    time = 1.0 + np.arange(steps.n_steps)
    powers = _POWERS if towards is RateShrinkage.SCHEDULE else np.zeros(1)
    typical = float(np.abs(np.average(alone, weights=np.where(known, curvature, 0.0))))
    shape = time ** powers[:, None, None]
    # Axes: power, stray, step.
    total = errors + (_STRAYS[:, None] * typical) ** 2
    precision = np.where(np.isfinite(total), 1 / np.maximum(total, 1e-300), 0.0)
    level = (precision * shape * alone).sum(axis=2) / (precision * shape**2).sum(axis=2)
    centre = np.maximum(level, 0.0)[:, :, None] * shape
    logs = np.where(precision > 0, np.log(np.maximum(precision, 1e-300)), 0.0)
    fit = (logs - precision * (alone - centre) ** 2).sum(axis=2) / 2
    power, stray = np.unravel_index(int(np.argmax(fit)), fit.shape)
    pull = errors / np.where(np.isfinite(errors), total[stray], 1.0)
    pull = np.where(np.isfinite(errors), pull, 1.0)
    return np.maximum(epsilon, pull * centre[power, stray] + (1 - pull) * alone)


def solve_shrunk(
    steps: Steps,
    *,
    towards: RateShrinkage,
    ridge: float,
    nonnegative: bool,
    epsilon: float,
    max_iterations: int,
    tolerance: float,
) -> Solution:
    """Weights and rates, alternating the weights' closed form with `shrunk_rates`.

    The rates average one. There is no single objective behind the alternation (the schedule's
    fit is part of it), so the trace holds the value at the end alone.
    """
    start = solve(steps, ridge=ridge, nonnegative=nonnegative, shared_rate=True, epsilon=epsilon)
    weights, rates = start.weights, np.ones(steps.n_steps)
    freedom = max(steps.n_steps * (steps.n_parameters - 1) - steps.n_features, 1)
    for iteration in range(1, min(max_iterations, 100) + 1):  # noqa: B007 - reported below
        before = weights
        variance = objective(steps, weights, rates) / freedom
        rates = shrunk_rates(steps, weights, towards=towards, epsilon=epsilon, variance=variance)
        rates = rates / rates.mean()
        weights, _ = solve_weights(steps, rates, ridge=ridge, nonnegative=nonnegative)
        size = np.linalg.norm(weights) * np.linalg.norm(before)
        if size == 0 or 1 - weights @ before / size <= max(tolerance, 1e-12):
            break
    end = solve(steps, rates, ridge=ridge, nonnegative=nonnegative)
    return replace(end, iterations=iteration)
