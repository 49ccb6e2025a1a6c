"""Reward features of Gymnasium's CartPole: what a reward of balancing a pole may be made of.

recorder = HistoryRecorder("history", FEATURES["CartPole-v1"])    # while SB3 trains
"""

from __future__ import annotations

import numpy as np

from logel.rewards.features import FunctionFeatures, RewardFeatures
from logel.types import Array, Float

# Where an episode of CartPole-v1 ends: metres from the centre, radians from upright.
TRACK = 2.4
LEAN = 12 * 2 * np.pi / 360
# Metres per second that a cart hardly exceeds.
FAST = 2.0


def _cartpole(observations: Array, actions: Array, next_observations: Array) -> Float:
    position, velocity, angle = np.abs(next_observations[:, :3]).T
    alive = (position <= TRACK) & (angle <= LEAN)
    return np.stack([alive, angle / LEAN, velocity / FAST], axis=1).astype(np.float64)


def cartpole_features() -> FunctionFeatures:
    """1 while the pole stands, its lean (1: it falls), the cart's speed (1: fast).

    Distance from the centre is left out: a push changes it so late, and so little, that dozens of
    short episodes say next to nothing about it.
    """
    return FunctionFeatures(_cartpole, ("alive", "lean", "speed"))


FEATURES: dict[str, RewardFeatures] = {"CartPole-v1": cartpole_features()}
"""The reward features of each environment, by its Gymnasium name."""
