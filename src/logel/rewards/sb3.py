"""A recovered reward for Stable-Baselines3: a vector environment that pays it.

venv = VecRewardReplacement(DummyVecEnv([...]), LinearReward.from_estimate(est, features))
model = PPO("MlpPolicy", VecNormalize(venv))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logel.data.facts import call_with_facts
from logel.errors import MissingExtraError, OptionError
from logel.rewards.linear import LinearReward
from logel.rewards.normaliser import Normaliser
from logel.types import Array, Float

try:
    from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, unwrap_vec_normalize
except ImportError as error:
    raise MissingExtraError("stable-baselines3", "sb3") from error

TransitionReward = Callable[..., npt.ArrayLike]
"""Maps (observations, actions, next_observations), each with N rows, to rewards (N,).

It may ask for more, see `logel.data.facts`.
"""


class VecRewardReplacement(VecEnvWrapper):
    """Pays a reward of transitions instead of the environments' own.

    All environments are paid in one call per step. At an episode's end the reward sees its last
    state, not the first of the next episode. Each step's `infos[i]["true_reward"]` keeps the
    environment's own reward; when an episode ends, `infos[i]["true_return"]` is their sum, and
    `infos[i]["learned_return"]` that of what was paid.

    Args:
        venv: Environments with their own observations: normalise outside of this wrapper.
        reward: A `LinearReward` (one without feature function is paid for `info["features"]`),
            or any function of (observations, actions, next_observations).
    """

    def __init__(self, venv: VecEnv, reward: LinearReward | TransitionReward) -> None:
        if unwrap_vec_normalize(venv) is not None:
            raise OptionError(
                "the replaced reward needs the environment's own observations and reward: put "
                "VecNormalize around VecRewardReplacement, not inside"
            )
        super().__init__(venv)
        self.reward = reward
        self._observations = self._actions = np.zeros(0)
        self._times = np.zeros(self.num_envs, dtype=int)
        # Sums since each episode began: of true rewards, and of what was paid.
        self._returns = np.zeros((2, self.num_envs))

    def reset(self) -> Array:
        """Reset all environments."""
        observations = self.venv.reset()
        assert isinstance(observations, np.ndarray)
        self._observations = observations.copy()
        self._times[:] = 0
        self._returns[:] = 0.0
        return observations

    def step_async(self, actions: Array) -> None:
        """Start a step, remembering the actions."""
        self._actions = actions
        self.venv.step_async(actions)

    def step_wait(self) -> tuple[Array, Array, Array, list[dict[str, Any]]]:
        """Finish a step, paid by the replacement."""
        observations, true, dones, infos = self.venv.step_wait()
        assert isinstance(observations, np.ndarray)
        paid = self._pay(observations, dones, infos)
        self._returns += true, paid
        for i, info in enumerate(infos):
            info["true_reward"] = float(true[i])
            if dones[i]:
                info["true_return"], info["learned_return"] = self._returns[:, i].tolist()
        self._returns[:, dones] = 0.0
        self._times = np.where(dones, 0, self._times + 1)
        self._observations = observations.copy()
        return observations, paid.astype(np.float32), dones, infos

    def _pay(self, observations: Array, dones: Array, infos: list[dict[str, Any]]) -> Float:
        following = observations.copy()
        for i in np.flatnonzero(dones):
            following[i] = infos[i]["terminal_observation"]
        truncated = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos])
        facts = {"terminated": dones & ~truncated, "truncated": truncated, "times": self._times}
        steps = (self._observations, self._actions, following)
        if isinstance(self.reward, LinearReward):
            return self.reward.of_steps(*steps, infos, **facts)
        paid = np.asarray(call_with_facts(self.reward, *steps, **facts), dtype=float)
        if paid.shape != (self.num_envs,):
            raise OptionError(
                f"the reward must give one number for each of {self.num_envs} transitions, but "
                f"gave shape {paid.shape}"
            )
        return paid


@dataclass(frozen=True, eq=False)
class NormalisedReward:
    """A reward learnt from normalised observations (T-REX, LfL), fed with an environment's own.

    Attributes:
        reward: Maps normalised (observations, actions, next_observations) to (N,).
        normaliser: Normalises observations.
    """

    reward: TransitionReward
    normaliser: Normaliser

    @classmethod
    def from_notes(cls, reward: TransitionReward, notes: Mapping[str, Any]) -> NormalisedReward:
        """With the statistics in the notes of a recorded stage, usually `history.notes[-1]`."""
        return cls(reward, Normaliser.from_notes(notes))

    def __call__(
        self, observations: Array, actions: Array, next_observations: Array, **facts: Array
    ) -> Float:
        """Rewards of N transitions, shape (N,); facts as in `logel.data.facts`."""
        before, after = self.normaliser(observations), self.normaliser(next_observations)
        paid = call_with_facts(self.reward, before, actions, after, **facts)
        return np.asarray(paid, dtype=float)
