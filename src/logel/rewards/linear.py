"""The recovered reward in use: a function of transitions, and an environment that pays it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt

from logel.data.facts import call_with_facts
from logel.errors import OptionError
from logel.rewards.features import Infos, Rows, StepFeatures
from logel.rewards.gymnasium import RewardReplacement
from logel.types import Array, FeatureFunction, Float


class Weighted(Protocol):
    """Whatever found the weights of a reward, such as a `RewardEstimate`."""

    @property
    def weights(self) -> Float:
        """Shape (q,)."""


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
        cls, estimate: Weighted, features: FeatureFunction | StepFeatures | None = None
    ) -> LinearReward:
        """The reward an estimate stands for."""
        return cls(estimate.weights, features)

    def __call__(
        self, observations: Array, actions: Array, next_observations: Array, **facts: Array
    ) -> Float:
        """Rewards of N transitions, shape (N,); facts as in `logel.data.facts`."""
        if self.features is None:
            raise OptionError("this reward has no feature function: pass features=")
        if isinstance(self.features, StepFeatures):
            raise OptionError(
                "this reward looks at each step's info: wrap an environment with it instead"
            )
        arrays = (observations, actions, next_observations)
        return self.from_features(call_with_facts(self.features, *arrays, **facts))

    def from_features(self, features: npt.ArrayLike) -> Float:
        """Rewards from features, shape (N,) for (N, q)."""
        table = np.asarray(features, dtype=float)
        if table.shape[-1] != len(self.weights):
            raise OptionError(
                f"there are {len(self.weights)} weights, but {table.shape[-1]} features"
            )
        return np.asarray(table @ self.weights)

    def of_steps(
        self, before: Rows, actions: Rows, after: Rows, infos: Infos, **facts: Array
    ) -> Float:
        """Rewards of N steps of environments, shape (N,); `infos` may hold their features."""
        if self.features is None:
            if any("features" not in info for info in infos):
                raise OptionError(
                    'the environment reports no info["features"]: give a feature function, or '
                    "wrap the environment with with_features"
                )
            return self.from_features([info["features"] for info in infos])
        if isinstance(self.features, StepFeatures):
            return self.from_features(self.features.rows(before, actions, after, infos))
        return self(*(np.asarray(part) for part in (before, actions, after)), **facts)

    def wrap(self, env: gymnasium.Env[Any, Any]) -> RewardReplacement:
        """An environment that pays this reward; the true one is kept in `info["true_reward"]`."""
        return RewardReplacement(env, self.of_steps)
