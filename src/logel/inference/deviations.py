"""Whether the deviations of a Gaussian learner's actions are what its family says of them.

A learner with fixed deviations is described by `sigma`; one that learns them is not. Where actions
are linear in state features, each stage's residuals say which it is, before anything is cloned.
"""

from __future__ import annotations

import numpy as np
from scipy.special import chdtrc

from logel.data.stage import Stage
from logel.policies.base import Policy
from logel.policies.gaussian import LinearGaussian
from logel.types import Array, Float

# One learner in twenty that learns its deviations is not told from one that does not.
_LEVEL = 0.05
# Standard errors, and share, from which on given deviations are called contradicted.
_ERRORS, _SHARE = 4.0, 0.1
_ROWS_AT_ONCE = 2**12
# Relative error below which deviations are known well enough to call them constant.
_SURE = 0.1


class Deviations:
    """Streams stages into the size of their actions' residuals."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy if isinstance(policy, LinearGaussian) else None
        self._variances: list[Float] = []
        self._freedom: list[int] = []

    def add(self, stage: Stage) -> None:
        """Include a stage, if its actions are linear in state features."""
        if self._policy is None:
            return
        x = np.asarray(self._policy.prepare_observations(stage.observations).cpu())
        actions = np.asarray(stage.actions, dtype=float).reshape(len(x), -1)
        freedom = len(x) - x.shape[1]
        if freedom < 1:
            return
        self._variances.append((_unexplained(x, actions) ** 2).sum(axis=0) / freedom)
        self._freedom.append(freedom)

    def notes(self) -> tuple[str, ...]:
        """What contradicts the family, in words; empty if nothing does."""
        if self._policy is None or len(self._variances) < 2:
            return ()
        logs, freedom = np.log(np.maximum(self._variances, 1e-300)), np.array(self._freedom)
        mean = freedom @ logs / freedom.sum()
        if self._policy.sigma is None:
            return _fixed_after_all(logs, freedom, mean)
        return _otherwise(mean, np.asarray(self._policy.sigma, float), np.sqrt(2 / freedom.sum()))


def _unexplained(x: Float, actions: Float) -> Float:
    """What is left of actions (N, k) by features (N, f), turned into few rows.

    The triangular factor of both, side by side, block by block: blocks stay in the cache.
    """
    width = x.shape[1] + actions.shape[1]
    triangle = np.zeros((0, width))
    for at in range(0, len(x), _ROWS_AT_ONCE):
        rows = np.concatenate([x[at : at + _ROWS_AT_ONCE], actions[at : at + _ROWS_AT_ONCE]], 1)
        triangle = np.asarray(np.linalg.qr(np.concatenate([triangle, rows]), mode="r"))
    return triangle[x.shape[1] :, x.shape[1] :]


def _fixed_after_all(logs: Float, freedom: Array, mean: Float) -> tuple[str, ...]:
    """Where log-variances (stages, k) are fitted though they do not change."""
    misfit = float((freedom[:, None] * (logs - mean) ** 2).sum() / 2)
    same = chdtrc((len(logs) - 1) * logs.shape[1], misfit) > _LEVEL
    if not same or np.sqrt(2 / freedom.min()) > _SURE:
        return ()
    shown = _shown(mean)
    return (
        f"the actions deviate alike in all stages (by {shown}): if the learner's deviation "
        f"is fixed, pass sigma={shown if len(mean) == 1 else f'({shown})'}, which tells "
        "more than fitting it",
    )


def _otherwise(mean: Float, sigma: Float, error: float) -> tuple[str, ...]:
    """Where the mean log-variances are not those of the given sigma."""
    given = 2 * np.log(np.broadcast_to(sigma, mean.shape))
    if not (np.abs(mean - given) > max(_ERRORS * error, _SHARE)).any():
        return ()
    return (
        f"the actions deviate by {_shown(mean)}, where sigma says {_shown(given)}: pass the "
        "learner's own sigma, or leave it out to have it fitted",
    )


def _shown(log_variances: Float) -> str:
    return ", ".join(f"{value:.3g}" for value in np.exp(log_variances / 2))
