"""Reward features of well-known environments, and a set for those that are not.

FEATURES["FrozenLake-v1"]
generic_features(gymnasium.make("MyWorld-v0"))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from logel.envs.box2d import FEATURES as BOX2D
from logel.envs.classic_control import FEATURES as CLASSIC
from logel.envs.mujoco import FEATURES as MUJOCO
from logel.envs.toy_text import FEATURES as TOY_TEXT
from logel.errors import OptionError
from logel.rewards.features import (
    ActionCost,
    Concatenate,
    Ended,
    OneHotAreas,
    RewardFeatures,
    StepFeatures,
)
from logel.types import Array, Float

FEATURES: dict[str, RewardFeatures | StepFeatures] = {**CLASSIC, **TOY_TEXT, **BOX2D, **MUJOCO}
"""The reward features of each environment, by its Gymnasium name."""

# More features than this make intervals that say nothing.
_MOST_STATES, _MOST_COORDINATES = 64, 32


@dataclass(frozen=True)
class Coordinates:
    """Every number of the observation arrived at, and its square, in units of its bounds.

    Attributes:
        coordinates: What the numbers are called.
        middle: Of each one's bounds; 0 where it has none.
        half: Half their distance; 1 where it has none.
    """

    coordinates: tuple[str, ...]
    middle: tuple[float, ...]
    half: tuple[float, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The numbers, then their squares."""
        return (*self.coordinates, *(f"{name}^2" for name in self.coordinates))

    def __call__(self, observations: Array, actions: Array, next_observations: Array, /) -> Float:
        """Features, shape (N, q), of N transitions."""
        flat = np.asarray(next_observations, dtype=np.float64).reshape(len(actions), -1)
        if flat.shape[1] != len(self.middle):
            raise OptionError(
                f"these features are made for observations of {len(self.middle)} numbers, but "
                f"these have {flat.shape[1]}: take the features of the history's own environment"
            )
        scaled = (flat - self.middle) / self.half
        return np.concatenate([scaled, scaled**2], axis=1)


def generic_features(
    env: gymnasium.Env[Any, Any], *, names: Sequence[str] | None = None
) -> Concatenate:
    """A first vocabulary for any environment, from the names and bounds of what it shows.

    Numbered states: an indicator each. Vectors: every number and its square, in units of its
    bounds; the end; and the squared action where actions are vectors. Many of these are usually
    copies of each other: replace them by what the learner may care about once you know more.

    Args:
        env: Of which only the spaces are looked at.
        names: Of the numbers of an observation, or of the states; numbered by default.
    """
    space = env.observation_space
    if isinstance(space, spaces.Discrete) and space.start == 0 and space.n <= _MOST_STATES:
        told = _names(names, "state ", int(space.n))
        return Concatenate((OneHotAreas(np.arange(int(space.n)), told),))
    size = int(np.prod(space.shape or (0,)))
    if not isinstance(space, spaces.Box) or not 0 < size <= _MOST_COORDINATES:
        raise OptionError(
            f"there are no generic features for {space}: write your own (numbered states up to "
            f"{_MOST_STATES} and vectors up to {_MOST_COORDINATES} numbers have some)"
        )
    low, high = (np.asarray(x, dtype=np.float64).reshape(-1) for x in (space.low, space.high))
    # Bounds of the largest float are bounds in name only.
    bounded = (np.abs(low) < _HUGE) & (np.abs(high) < _HUGE) & (high > low)
    low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
    middle, half = (low + high) / 2, (high - low) / 2
    parts: list[Any] = [
        Coordinates(_names(names, "x", size), tuple(middle.tolist()), tuple(half.tolist()))
    ]
    if isinstance(env.action_space, spaces.Box):
        parts.append(ActionCost())
    return Concatenate((*parts, Ended()))


_HUGE = 1e30


def _names(given: Sequence[str] | None, stem: str, n: int) -> tuple[str, ...]:
    if given is None:
        return tuple(f"{stem}{i}" for i in range(n))
    if len(given) != n:
        raise OptionError(f"there are {n} numbers or states to name, but {len(given)} names")
    return tuple(given)
