"""Reward features of Gymnasium's worlds of numbered states: FrozenLake and Taxi."""

from __future__ import annotations

import numpy as np

from logel.rewards.features import Concatenate, Ended, FunctionFeatures, RewardFeatures
from logel.types import Array, Float

# Numbers of the taxi's actions, and of the place of a passenger who rides.
_PICK_UP, _DROP, _RIDING = 4, 5, 4
# Row and column of the four stands.
_STANDS = np.array([(0, 0), (0, 4), (4, 0), (4, 3)])


def frozen_lake_features(n_states: int = 16) -> Concatenate:
    """1 on arriving at the goal, the last state; 1 on falling into a hole.

    Steps are left out: paying them is, under discounting, the same as paying both ends alike.
    """
    goal = n_states - 1
    return Concatenate(
        (
            Ended("goal", lambda last: last == goal),
            Ended("hole", lambda last: last != goal),
        )
    )


def _taxi(observations: Array, actions: Array, next_observations: Array) -> Float:
    state, action = np.asarray(observations, dtype=int), np.asarray(actions, dtype=int)
    row, column, place, wanted = np.unravel_index(state, (5, 5, 5, 4))
    here = np.stack([row, column], axis=1)
    waits = place < _RIDING
    met = waits & (here == _STANDS[np.where(waits, place, 0)]).all(axis=1)
    at_stand = (here[:, None] == _STANDS).all(axis=2)
    rides = place == _RIDING
    delivered = (action == _DROP) & rides & at_stand[np.arange(len(state)), wanted]
    forbidden = (action == _PICK_UP) & ~met
    forbidden |= (action == _DROP) & ~(rides & at_stand.any(axis=1))
    return np.stack([~(delivered | forbidden), delivered, forbidden], axis=1).astype(np.float64)


def taxi_features() -> FunctionFeatures:
    """1 for an ordinary step, for bringing the passenger home, and for a forbidden stop."""
    return FunctionFeatures(_taxi, ("step", "delivered", "forbidden"))


FEATURES: dict[str, RewardFeatures] = {
    "FrozenLake-v1": frozen_lake_features(),
    "FrozenLake8x8-v1": frozen_lake_features(64),
    "Taxi-v3": taxi_features(),
    "Taxi-v4": taxi_features(),
}
"""The reward features of each environment, by its Gymnasium name."""

TRUE_WEIGHTS: dict[str, tuple[float, ...]] = {
    "FrozenLake-v1": (1.0, 0.0),
    "FrozenLake8x8-v1": (1.0, 0.0),
    "Taxi-v4": (-1.0, 20.0, -10.0),
}
"""What environments pay for their features."""
