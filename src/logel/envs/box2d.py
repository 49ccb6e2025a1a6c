"""LunarLander: reward features that see how a landing ends.

    HistoryRecorder("history", FEATURES["LunarLander-v3"])    # while SB3 trains

The true reward stands apart, at the end: studies score with it, no inference sees it.
"""

from __future__ import annotations

import numpy as np

from logel.rewards.features import FunctionFeatures, RewardFeatures
from logel.types import Array, Float

# What the engines of the lander are numbered, and its columns of the observation.
LEFT, MAIN, RIGHT = 1, 2, 3
_PLACE, _VELOCITY, _ANGLE, _MOTION, _LEGS = (0, 1), (2, 3), 4, (2, 3, 5), (6, 7)


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


def _lunar_lander(
    observations: Array, actions: Array, next_observations: Array, terminated: Array
) -> Float:
    gained = _potentials(next_observations) - _potentials(observations)
    engines = np.stack([actions == MAIN, (actions == LEFT) | (actions == RIGHT)], axis=1)
    # A body at rest is put to sleep by Box2D, and then has no velocity at all.
    rests = (next_observations[:, _MOTION] == 0).all(axis=1)
    endings = np.stack([terminated & ~rests, terminated & rests], axis=1)
    # The step that ends an episode is paid for the ending alone.
    going = np.concatenate([gained, engines], axis=1) * ~terminated[:, None]
    return np.concatenate([going, endings], axis=1)


# About a standard deviation of each while a beginner learns, so that weights can be compared:
# steps change potentials by hundredths, engines burn half of the time, a step in a hundred ends.
_UNITS = (0.01, 0.03, 0.01, 0.2, 0.5, 0.5, 0.1, 0.1)


def _in_units(
    observations: Array, actions: Array, next_observations: Array, terminated: Array
) -> Float:
    return _lunar_lander(observations, actions, next_observations, terminated) / _UNITS


def lunar_lander_features() -> FunctionFeatures:
    """What LunarLander-v3 pays for, each in units of about a standard deviation.

    Nearer to the pad, slower, more upright than the step before; legs that touched down; the main
    and a side engine burning; a crash (or flying out of sight), and coming to rest.
    """
    names = ("nearer", "slower", "upright", "legs", "main", "side", "crashed", "landed")
    return FunctionFeatures(_in_units, names)


FEATURES: dict[str, RewardFeatures] = {"LunarLander-v3": lunar_lander_features()}
"""The reward features of each environment, by its Gymnasium name."""

LANDER_TRUE_WEIGHTS = (1.0, 3.0, 1.0, 2.0, -0.15, -0.015, -10.0, 10.0)
"""What LunarLander-v3 pays for its features; the last two: 100 points lost, or won."""
