"""Reward features of Gymnasium's classic control: poles, pendulums and cars on a hill.

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
# Largest torque on the pendulum, largest speed of the car.
TORQUE, CAR_SPEED = 2.0, 0.07


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


def _acrobot(
    observations: Array, actions: Array, next_observations: Array, terminated: Array
) -> Float:
    seen = next_observations.astype(np.float64)
    cos_both = seen[:, 0] * seen[:, 2] - seen[:, 1] * seen[:, 3]
    height = -seen[:, 0] - cos_both
    return np.stack([~terminated.astype(bool), height, np.abs(seen[:, 4:]).sum(axis=1)], axis=1)


def acrobot_features() -> FunctionFeatures:
    """1 until the tip is up, height of the tip (-2 to 2), sum of both joints' speeds."""
    return FunctionFeatures(_acrobot, ("waiting", "height", "speed"))


def _pendulum(observations: Array, actions: Array, next_observations: Array) -> Float:
    cosine, sine, speed = observations.astype(np.float64).T
    torque = np.clip(np.asarray(actions, dtype=np.float64).reshape(len(cosine)), -TORQUE, TORQUE)
    return np.stack([np.arctan2(sine, cosine) ** 2, speed**2, torque**2], axis=1)


def pendulum_features() -> FunctionFeatures:
    """Squares of the angle from upright and of the speed before the step, and of the torque."""
    return FunctionFeatures(_pendulum, ("angle^2", "speed^2", "torque^2"))


def _height(observations: Array) -> Float:
    """Of a car on the hill, 0 to 1."""
    return 0.5 * np.sin(3 * observations[:, 0].astype(np.float64)) + 0.5


def _mountain_car(observations: Array, actions: Array, next_observations: Array) -> Float:
    speed = np.abs(next_observations[:, 1]) / CAR_SPEED
    return np.stack([np.ones(len(speed)), _height(next_observations), speed], axis=1)


def mountain_car_features() -> FunctionFeatures:
    """1 in every step until the car is up, its height (0 to 1), its speed (1: the fastest)."""
    return FunctionFeatures(_mountain_car, ("step", "height", "speed"))


def _driven_car(
    observations: Array, actions: Array, next_observations: Array, terminated: Array
) -> Float:
    push = np.asarray(actions, dtype=np.float64).reshape(len(observations))
    return np.stack([terminated, push**2, _height(next_observations)], axis=1).astype(np.float64)


def mountain_car_continuous_features() -> FunctionFeatures:
    """1 when the car arrives, the squared push, the car's height (0 to 1)."""
    return FunctionFeatures(_driven_car, ("arrived", "|action|^2", "height"))


FEATURES: dict[str, RewardFeatures] = {
    "CartPole-v1": cartpole_features(),
    "Acrobot-v1": acrobot_features(),
    "Pendulum-v1": pendulum_features(),
    "MountainCar-v0": mountain_car_features(),
    "MountainCarContinuous-v0": mountain_car_continuous_features(),
}
"""The reward features of each environment, by its Gymnasium name."""

TRUE_WEIGHTS: dict[str, tuple[float, ...]] = {
    "Acrobot-v1": (-1.0, 0.0, 0.0),
    "Pendulum-v1": (-1.0, -0.1, -0.001),
    "MountainCar-v0": (-1.0, 0.0, 0.0),
    "MountainCarContinuous-v0": (100.0, -0.1, 0.0),
}
"""What environments pay for their features. CartPole also pays the step in which the pole falls."""
