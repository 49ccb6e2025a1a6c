"""Reward features of single steps: how an environment reports what a reward may be made of.

Write one function of `(observation, action, next_observation, info)` that returns a vector, name
its entries, and wrap the environment:

    def effort_and_speed(observation, action, next_observation, info):
        return [np.square(action).sum(), info["x_velocity"]]

    features = StepFeatures(effort_and_speed, ("effort", "speed"))
    env = with_features(gymnasium.make("HalfCheetah-v5"), features)

Every step's `info["features"]` then holds the vector; the recorder writes it down, and
`LinearReward(weights)` pays it. Features that need no `info` are better written as
`logel.features.RewardFeatures`, which work on many transitions at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.utils import RecordConstructorArgs

from logel.errors import OptionError

Float = npt.NDArray[np.float64]
StepFunction = Callable[[Any, Any, Any, dict[str, Any]], npt.ArrayLike]


@dataclass(frozen=True)
class StepFeatures:
    """Features of one step at a time, which may look at the step's `info`.

    Attributes:
        function: Maps (observation, action, next_observation, info) of one step to q numbers.
            Observations are the environment's own, the action is the one it received.
        names: One name per feature.
    """

    function: StepFunction
    names: tuple[str, ...]

    def __call__(
        self, observation: Any, action: Any, next_observation: Any, info: dict[str, Any], /
    ) -> Float:
        """Features of one step, shape (q,)."""
        values = np.asarray(self.function(observation, action, next_observation, info), dtype=float)
        if values.shape != (len(self.names),):
            raise OptionError(
                f"the feature function must return {len(self.names)} numbers "
                f"({', '.join(self.names)}), but returned shape {values.shape}"
            )
        return values


class FeatureWrapper(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Reports each step's reward features in `info["features"]`; changes nothing else."""

    def __init__(self, env: gymnasium.Env[Any, Any], features: StepFeatures) -> None:
        RecordConstructorArgs.__init__(self, features=features)
        gymnasium.Wrapper.__init__(self, env)
        self.features = features
        self._observation: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset, remembering the first observation and telling the features' names."""
        observation, info = self.env.reset(seed=seed, options=options)
        # A copy: environments may hand out one array and overwrite it in the next step.
        self._observation = np.array(observation)
        return observation, {**info, "feature_names": self.features.names}

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """One step, with its features."""
        following, reward, terminated, truncated, info = self.env.step(action)
        values = self.features(self._observation, action, following, info)
        self._observation = np.array(following)
        return following, reward, terminated, truncated, {**info, "features": values}


def with_features(env: gymnasium.Env[Any, Any], features: StepFeatures) -> FeatureWrapper:
    """The environment, reporting the features of every step in `info["features"]`."""
    return FeatureWrapper(env, features)
