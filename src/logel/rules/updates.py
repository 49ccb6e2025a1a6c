"""How a learner's gradient becomes its update, for any policy family: design = P @ Jacobian.

* gradient: P is the identity.
* natural: P = (F / N)^-1, F the information in the stage's N steps.
* adam: P = diag(1 / root of the running second moment of the gradient), which depends on the
  weights and is refreshed with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from logel.errors import Choice
from logel.inference.regress import Solution, Steps
from logel.policies.fisher import Fisher
from logel.types import Float
from logel.worlds.own_episodes import StageJacobian

# Adam's memory of squared gradients, its usual setting; with its usual correction for the start.
_MEMORY = 0.999


class Learner(Choice):
    """The update rule; AUTO chooses by held-out prediction."""

    GRADIENT = "gradient"
    NATURAL = "natural"
    ADAM = "adam"
    AUTO = "auto"


def natural(jacobian: StageJacobian, fisher: Fisher, *, n_rows: int, ridge: float) -> StageJacobian:
    """The Jacobian premultiplied by the inverse of the mean information of a row."""
    columns = np.concatenate([jacobian.mean[None], jacobian.groups])
    flat = np.moveaxis(columns, 1, 0).reshape(columns.shape[1], -1)
    solved = n_rows * fisher.solve(flat, ridge=ridge)
    both = np.moveaxis(solved.reshape(len(flat), len(columns), -1), 0, 1)
    return replace(jacobian, mean=both[0], groups=both[1:])


def adam(jacobians: Sequence[StageJacobian], weights: Float) -> list[tuple[StageJacobian, Float]]:
    """Jacobians divided by the root of the running second moment of jacobian @ weights.

    Each comes with that root, shape (d,).
    """
    moment = np.zeros(len(jacobians[0].mean))
    result = []
    for t, jacobian in enumerate(jacobians):
        moment = _MEMORY * moment + (1 - _MEMORY) * (jacobian.mean @ weights) ** 2
        size = np.sqrt(moment / (1 - _MEMORY ** (t + 1)))
        # A parameter whose gradient was never seen must not blow up when it is.
        scale = size + 1e-3 * max(float(np.sqrt((size**2).mean())), 1e-300)
        column = scale[:, None]
        scaled = replace(jacobian, mean=jacobian.mean / column, groups=jacobian.groups / column)
        result.append((scaled, scale))
    return result


@dataclass(frozen=True, eq=False)
class Candidate:
    """The steps under one update rule.

    Attributes:
        steps: Compressed in the rule's metric.
        log_determinants: Of the movements' covariances in that metric, shape (m,).
    """

    steps: Steps
    log_determinants: Float


def held_out_gains(
    candidates: Mapping[str, Candidate], solve: Callable[[Steps], Solution], *, n_folds: int = 5
) -> dict[str, float]:
    """Log-likelihood of held-out steps under each rule, relative to a learner that wants nothing.

    Blocks of consecutive steps are left out in turn; weights and noise level come from the others.
    A held-out step's rate is one if all steps share it; otherwise it is fitted, and costs a nat.

    Args:
        candidates: Update rules by name, in the same history.
        solve: Weights and rates from some of the steps.
        n_folds: Number of blocks, at most.
    """
    gains, nulls = {}, {}
    for name, candidate in candidates.items():
        steps = candidate.steps
        fold = np.arange(steps.n_steps) * min(n_folds, steps.n_steps) // steps.n_steps
        gain = null = 0.0
        for held_out in np.unique(fold):
            train = steps.take(np.flatnonzero(fold != held_out))
            test = steps.take(np.flatnonzero(fold == held_out))
            logs = candidate.log_determinants[fold == held_out]
            solution = solve(train)
            shared = bool((solution.learning_rates == 1).all())
            fitted = _squared_residuals(train, solution.weights, solution.learning_rates)
            gain += _log_density(
                _squared_residuals(
                    test, solution.weights, np.ones(test.n_steps) if shared else None
                ),
                fitted,
                steps.n_parameters,
                logs,
            )
            gain -= 0.0 if shared else test.n_steps
            null += _log_density(
                (test.delta**2).sum(axis=1), (train.delta**2).sum(axis=1), steps.n_parameters, logs
            )
        gains[name], nulls[name] = gain, null
    best = max(nulls.values())
    order = sorted(gains, key=lambda name: -gains[name])
    return {name: gains[name] - best for name in order}


def _squared_residuals(steps: Steps, weights: Float, rates: Float | None) -> Float:
    predicted = steps.design @ weights
    if rates is None:
        curvature = np.maximum((predicted**2).sum(axis=1), np.finfo(float).tiny)
        rates = np.maximum((predicted * steps.delta).sum(axis=1), 0.0) / curvature
    return np.asarray(((steps.delta - rates[:, None] * predicted) ** 2).sum(axis=1))


def _log_density(squared: Float, trained: Float, d: int, log_determinants: Float) -> float:
    """Of normal residuals whose variance is that of the training steps."""
    variance = max(float(trained.mean()) / d, np.finfo(float).tiny)
    logs = d * np.log(2 * np.pi * variance) + log_determinants
    return float(-0.5 * (logs + squared / variance).sum())
