"""Whether an answer depends on how a learner's episodes were cut into stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from logel.data.history import LearningHistory
from logel.errors import OptionError
from logel.inference.estimate import RewardEstimate
from logel.inference.infer import infer_reward
from logel.inference.verdict import doubt_of
from logel.policies.base import Policy
from logel.types import Flags, Float


def check_windows(
    history: LearningHistory,
    policy: Policy,
    *,
    gamma: float,
    others: Sequence[int] | None = None,
    **options: Any,
) -> RewardEstimate:
    """Recover the reward, and again with other windows; a note says whether that matters.

    Weights depend on the windows where neither answer lies in the other's 95% interval; the answer
    does, too, if it is one with some windows and none with others.

    Args:
        history: One learner's episodes in order; their policies' parameters are not used.
        policy: See `infer_reward`, which gets all other arguments as well.
        gamma: The learner's discount factor.
        others: Other numbers of windows; by default half as many and twice as many.
        options: Further arguments of `infer_reward`.
    """
    if options.get("intervals") is False:
        raise OptionError("windows are compared by their intervals: leave out intervals=False")
    options = {**options, "use_parameters": False}
    estimate = infer_reward(history, policy, gamma=gamma, **options)
    found = [
        (n, infer_reward(history.with_windows(n), policy, gamma=gamma, **options))
        for n in _numbers(history, others)
    ]
    note = "; ".join(_compared(estimate, other, n) for n, other in found)
    said = f"other windows than these {len(history)}: {note or 'there are too few episodes'}"
    return replace(estimate, notes=(*estimate.notes, said))


def _numbers(history: LearningHistory, others: Sequence[int] | None) -> list[int]:
    """Numbers of windows to try."""
    now = len(history)
    if others is not None:
        if bad := [n for n in others if n < 2 or n == now]:
            raise OptionError(f"other windows are at least 2 and not the {now} there are: {bad}")
        return list(others)
    most = sum(stage.n_episodes for stage in history)
    return [n for n in (now // 2, 2 * now) if 2 <= n <= most and n != now]


def _compared(one: RewardEstimate, two: RewardEstimate, n: int) -> str:
    """In words, what becomes of the first answer with so many windows."""
    if doubt_of(one) != doubt_of(two):
        return f"with {n} the answer depends on it: {doubt_of(two) or 'it can be trusted'}"
    apart = _outside(one, two.weights) & _outside(two, one.weights)
    names = [name for name, far in zip(one.feature_names, apart, strict=True) if far]
    if names:
        return f"with {n} the answer depends on it, in the weight of {', '.join(names)}"
    size = np.linalg.norm(one.weights) * np.linalg.norm(two.weights)
    return f"with {n} the same within intervals (cosine {one.weights @ two.weights / size:.2f})"


def _outside(estimate: RewardEstimate, weights: Float) -> Flags:
    low, high = estimate.interval(0.95).T
    return np.asarray((weights < low) | (weights > high))
