"""An in-process vector environment without the copies that training does not need."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from logel.errors import MissingExtraError
from logel.types import Array

try:
    from stable_baselines3.common.vec_env import DummyVecEnv
except ImportError as error:
    raise MissingExtraError("stable-baselines3", "sb3") from error


class LeanVecEnv(DummyVecEnv):
    """`DummyVecEnv` that counts returns itself and hands infos out as they are.

    `DummyVecEnv` copies every info deeply at every step, and `Monitor` adds a Python layer to
    each environment; here episodes' returns and lengths are summed for all environments at once
    and reported in `info["episode"]`, as `Monitor` does. Environments must return a new `info`
    dictionary at each step, which Gymnasium's do, and one array as observation.
    """

    def __init__(self, env_fns: Sequence[Callable[[], gymnasium.Env[Any, Any]]]) -> None:
        super().__init__(list(env_fns))
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, dtype=np.int64)
        self._start = time.perf_counter()

    def reset(self) -> Any:
        """Reset all environments."""
        self._returns[:] = 0.0
        self._lengths[:] = 0
        return super().reset()

    def step_wait(self) -> tuple[Array, Array, Array, list[dict[str, Any]]]:
        """Step all environments, resetting those whose episode ended."""
        observations: Array = self.buf_obs[None]  # type: ignore[index]  # the key of plain arrays
        rewards = np.empty(self.num_envs)
        dones = np.zeros(self.num_envs, dtype=bool)
        infos: list[dict[str, Any]] = []
        for i, env in enumerate(self.envs):
            observation, reward, terminated, truncated, info = env.step(self.actions[i])
            rewards[i] = reward
            info["TimeLimit.truncated"] = truncated and not terminated
            if terminated or truncated:
                dones[i] = True
                info["terminal_observation"] = observation
                observation, self.reset_infos[i] = env.reset()
            observations[i] = observation
            infos.append(info)
        self._returns += rewards
        self._lengths += 1
        for j in np.flatnonzero(dones):
            infos[j]["episode"] = {
                "r": float(self._returns[j]),
                "l": int(self._lengths[j]),
                "t": time.perf_counter() - self._start,
            }
        self._returns[dones] = 0.0
        self._lengths[dones] = 0
        return observations.copy(), rewards.astype(np.float32), dones, infos
