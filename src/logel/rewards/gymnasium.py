"""Environments that tell the features of their steps, or pay a recovered reward.

    features = StepFeatures(lambda o, a, n, info: [info["x_velocity"]], ("speed",))
    env = with_features(gymnasium.make("HalfCheetah-v5"), features)

Every step's `info["features"]` then holds the vector; the recorder writes it down, and
`LinearReward(weights)` pays it. Both also take the features themselves, for environments that are
not wrapped.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from logel.data.facts import call_with_facts
from logel.rewards.features import StepFeatures

Outcome = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]


class _Remembering(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Keeps the observation before each step, which the environment does not hand out again."""

    def __init__(self, env: gymnasium.Env[Any, Any], **arguments: Any) -> None:
        # Recorded so that Gymnasium can build the wrapped environment again from its spec.
        RecordConstructorArgs.__init__(self, **arguments)
        gymnasium.Wrapper.__init__(self, env)
        self._observation: Any = None
        self._time = 0
        self._facts: dict[str, Any] = {}

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**kwargs)
        # A copy: environments may hand out one array and overwrite it in the next step.
        self._observation = np.array(observation)
        self._time = 0
        return observation, {**info, **self._facts}

    def step(self, action: Any) -> Outcome:
        outcome = self._told(action, self.env.step(action))
        self._observation = np.array(outcome[0])
        self._time += 1
        return outcome

    @abstractmethod
    def _told(self, action: Any, outcome: Outcome) -> Outcome:
        """What the wrapper makes of a step."""


class FeatureWrapper(_Remembering):
    """Reports each step's reward features in `info["features"]`; changes nothing else."""

    def __init__(self, env: gymnasium.Env[Any, Any], features: StepFeatures) -> None:
        super().__init__(env, features=features)
        self.features = features
        self._facts = {"feature_names": features.names}

    def _told(self, action: Any, outcome: Outcome) -> Outcome:
        info = outcome[-1]
        info["features"] = self.features(self._observation, action, outcome[0], info)
        return outcome


class RewardReplacement(_Remembering):
    """Pays a reward of N steps (see `LinearReward.of_steps`) instead of the environment's own."""

    def __init__(self, env: gymnasium.Env[Any, Any], reward: Callable[..., Any]) -> None:
        super().__init__(env, reward=reward)
        self.reward = reward

    def _told(self, action: Any, outcome: Outcome) -> Outcome:
        following, true, terminated, truncated, info = outcome
        facts = {"terminated": terminated, "truncated": truncated, "times": self._time}
        rows = ([self._observation], [action], [following], [info])
        told = {name: np.array([value]) for name, value in facts.items()}
        paid = float(call_with_facts(self.reward, *rows, **told)[0])
        return following, paid, terminated, truncated, {**info, "true_reward": true}


def with_features(env: gymnasium.Env[Any, Any], features: StepFeatures) -> FeatureWrapper:
    """The environment, reporting the features of every step in `info["features"]`."""
    return FeatureWrapper(env, features)
