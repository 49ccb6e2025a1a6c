"""LunarLander: reward features that see how a landing ends.

    HistoryRecorder("history", FEATURES["LunarLander-v3"])    # while SB3 trains

The true reward stands apart, at the end: studies score with it, no inference sees it.
"""

from __future__ import annotations

import numpy as np

from logel.rewards.features import FunctionFeatures, RewardFeatures
from logel.types import Array, Float

# Numbers of the engines, and columns of the observation.
_MAIN, _SIDE = 2, (1, 3)
_PLACE, _VELOCITY, _ANGLE, _MOTION, _LEGS = (0, 1), (2, 3), 4, (2, 3, 5), (6, 7)
# About a standard deviation of each feature while a beginner learns, so that weights compare: steps
# change places and angles by hundredths, the main engine burns half of the time, and one step in a
# hundred ends an episode.
_UNITS = (0.01, 0.03, 0.01, 0.2, 0.5, 0.1)


def _potentials(observations: Array) -> Float:
    """Nearness to the pad, slowness, uprightness and legs on the ground, shape (N, 4)."""
    seen = observations.astype(np.float64)
    return np.stack(
        [
            -np.hypot(*seen[:, _PLACE].T),
            -np.hypot(*seen[:, _VELOCITY].T),
            -np.abs(seen[:, _ANGLE]),
            seen[:, _LEGS].sum(axis=1),
        ],
        axis=1,
    )


def _lander(
    observations: Array, actions: Array, next_observations: Array, terminated: Array
) -> Float:
    gained = _potentials(next_observations) - _potentials(observations)
    # A side engine burns a tenth.
    fuel = (actions == _MAIN) + 0.1 * np.isin(actions, _SIDE)
    # A body at rest is put to sleep by Box2D, and then has no velocity at all.
    rests = (next_observations[:, _MOTION] == 0).all(axis=1)
    ending = np.where(rests, 1.0, -1.0) * terminated
    # The step that ends an episode is paid for the ending alone.
    going = np.column_stack([gained, fuel]) * ~terminated.astype(bool)[:, None]
    return np.column_stack([going, ending]) / _UNITS


def lunar_lander_features() -> FunctionFeatures:
    """What LunarLander-v3 pays for, each in units of about a standard deviation.

    How much nearer to the pad, slower and more upright than a step before; legs that touched down;
    fuel; and the ending: at rest, or (negative) crashed or flown out of sight.

    Both endings are one feature because a beginner crashes hundreds of times before the first
    landing, and both engines because what side engines cost is too little to be seen.
    """
    names = ("nearer", "slower", "upright", "legs", "fuel", "ending")
    return FunctionFeatures(_lander, names)


FEATURES: dict[str, RewardFeatures] = {"LunarLander-v3": lunar_lander_features()}
"""The reward features of each environment, by its Gymnasium name."""

LANDER_TRUE_WEIGHTS = (1.0, 3.0, 1.0, 2.0, -0.15, 10.0)
"""What LunarLander-v3 pays for its features; the last: 100 points won, or lost."""
