"""The recovered reward in use: a function of transitions, and an environment that pays it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.utils import RecordConstructorArgs

from logel.errors import OptionError
from logel.inference.estimate import RewardEstimate
from logel.rewards.features import StepFeatures
from logel.types import Array, FeatureFunction, Float


@dataclass(frozen=True, eq=False)
class LinearReward:
    """A reward linear in features.

    Attributes:
        weights: Shape (q,).
        features: Maps (observations, actions, next_observations) to (N, q), or `StepFeatures`,
            which also look at each step's `info`. None when the environment itself reports each
            step's features in `info["features"]`.
    """

    weights: Float
    features: FeatureFunction | StepFeatures | None = None

    def __post_init__(self) -> None:
        weights = np.array(self.weights, dtype=float)
        if weights.ndim != 1 or not np.isfinite(weights).all():
            raise OptionError(f"weights must be finite and flat, but are {weights}")
        weights.setflags(write=False)
        object.__setattr__(self, "weights", weights)

    @classmethod
    def from_estimate(
        cls, estimate: RewardEstimate, features: FeatureFunction | StepFeatures | None = None
    ) -> LinearReward:
        """The reward an estimate stands for."""
        return cls(estimate.weights, features)

    def __call__(self, observations: Array, actions: Array, next_observations: Array) -> Float:
        """Rewards of N transitions, shape (N,)."""
        if self.features is None:
            raise OptionError("this reward has no feature function: pass features=")
        if isinstance(self.features, StepFeatures):
            raise OptionError(
                "this reward looks at each step's info: wrap an environment with it instead"
            )
        table = np.asarray(self.features(observations, actions, next_observations), dtype=float)
        return self.from_features(table)

    def from_features(self, features: npt.ArrayLike) -> Float:
        """Rewards from features, shape (N,) for (N, q)."""
        table = np.asarray(features, dtype=float)
        if table.shape[-1] != len(self.weights):
            raise OptionError(
                f"there are {len(self.weights)} weights, but {table.shape[-1]} features"
            )
        return np.asarray(table @ self.weights)

    def wrap(self, env: gymnasium.Env[Any, Any]) -> RewardReplacement:
        """An environment that pays this reward; the true one is kept in `info["true_reward"]`."""
        return RewardReplacement(env, self)


class RewardReplacement(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Pays a `LinearReward` instead of the environment's own reward."""

    def __init__(self, env: gymnasium.Env[Any, Any], reward: LinearReward) -> None:
        # Recorded so that Gymnasium can build the wrapped environment again from its spec.
        RecordConstructorArgs.__init__(self, reward=reward)
        gymnasium.Wrapper.__init__(self, env)
        self.reward = reward
        self._observation: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset, remembering the first observation."""
        observation, info = self.env.reset(seed=seed, options=options)
        # A copy: environments may hand out one array and overwrite it in the next step.
        self._observation = np.array(observation)
        return observation, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """One step, paid by the replacement."""
        following, true_reward, terminated, truncated, info = self.env.step(action)
        if self.reward.features is None:
            if "features" not in info:
                raise OptionError(
                    'the environment reports no info["features"]: give a feature function'
                )
            paid = float(self.reward.from_features(info["features"]))
        elif isinstance(self.reward.features, StepFeatures):
            values = self.reward.features(self._observation, action, following, info)
            paid = float(self.reward.from_features(values))
        else:
            batch = (np.asarray(x)[None] for x in (self._observation, action, following))
            paid = float(self.reward(*batch)[0])
        self._observation = np.array(following)
        return following, paid, terminated, truncated, {**info, "true_reward": true_reward}
