"""Reward features of single steps: how an environment reports what a reward may be made of.

Write one function of `(observation, action, next_observation, info)` that returns a vector, name
its entries, and wrap the environment:

    def effort_and_speed(observation, action, next_observation, info):
        return [np.square(action).sum(), info["x_velocity"]]

    features = StepFeatures(effort_and_speed, ("effort", "speed"))
    env = with_features(gymnasium.make("HalfCheetah-v5"), features)

Every step's `info["features"]` then holds the vector; the recorder writes it down, and
`LinearReward(weights)` pays it. The recorder and `LinearReward` also take the features themselves,
for environments that are not wrapped. Features that need no `info` are better written as
`logel.rewards.features.RewardFeatures`, which work on many transitions at once.
"""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from logel.rewards.features import StepFeatures


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
        info["features"] = self.features(self._observation, action, following, info)
        self._observation = np.array(following)
        return following, reward, terminated, truncated, info


def with_features(env: gymnasium.Env[Any, Any], features: StepFeatures) -> FeatureWrapper:
    """The environment, reporting the features of every step in `info["features"]`."""
    return FeatureWrapper(env, features)
