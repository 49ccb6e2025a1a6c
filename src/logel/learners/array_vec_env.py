"""Many copies of a world that moves in arrays, as one vector environment of SB3's."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from logel.envs.audit import AuditWorld
from logel.errors import MissingExtraError, OptionError
from logel.types import Array, Float

try:
    from stable_baselines3.common.vec_env import VecEnv
except ImportError as error:
    raise MissingExtraError("stable-baselines3", "sb3") from error


class ArrayVecEnv(VecEnv):
    """Copies of a world that all step in one call of NumPy, and pay `features @ weights`.

    Infos are those of `DummyVecEnv` around `Monitor` and a time limit: `TimeLimit.truncated`, and
    at an episode's end `terminal_observation` and `episode` with its return and length.

    Args:
        world: Which one.
        weights: What its features pay, shape (q,).
        n_envs: Copies.
    """

    def __init__(self, world: AuditWorld, weights: Float, n_envs: int) -> None:
        if np.shape(weights) != (len(world.features.names),):
            raise OptionError(
                f"{world.name} has {len(world.features.names)} features, but weights have shape "
                f"{np.shape(weights)}"
            )
        self.world, self.weights = world, np.asarray(weights, dtype=float)
        # Asked for by the base class.
        self.render_mode = None
        dynamics = world.dynamics
        super().__init__(n_envs, dynamics.observation_space, dynamics.action_space)
        self._rng = np.random.default_rng()
        self._states = dynamics.start(n_envs, self._rng)
        self._actions: Array = np.zeros(n_envs)
        self._returns, self._lengths = np.zeros(n_envs), np.zeros(n_envs, dtype=np.int64)
        self._began = time.perf_counter()

    def reset(self) -> Array:
        """Begin an episode in every copy; a seed given before counts once, as in `DummyVecEnv`."""
        if self._seeds[0] is not None:
            self._rng = np.random.default_rng(self._seeds[0])
        self._states = self.world.dynamics.start(self.num_envs, self._rng)
        self._returns[:], self._lengths[:] = 0.0, 0
        self._reset_seeds()
        self._reset_options()
        return self.world.dynamics.show(self._states)

    def step_async(self, actions: Array) -> None:
        """Remember what is to be done."""
        self._actions = actions

    def step_wait(self) -> tuple[Array, Array, Array, list[dict[str, Any]]]:
        """Do it, and begin anew where an episode ended."""
        dynamics, actions = self.world.dynamics, self._actions
        before = dynamics.show(self._states)
        self._states, terminated = dynamics.step(self._states, actions)
        after = dynamics.show(self._states)
        rewards = self.world.features(before, actions, after) @ self.weights
        self._returns += rewards
        self._lengths += 1
        truncated = (self._lengths >= self.world.horizon) & ~terminated
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": cut} for cut in truncated.tolist()]
        dones = terminated | truncated
        if dones.any():
            after = self._begin_anew(np.flatnonzero(dones), after, infos)
        return after, rewards.astype(np.float32), dones, infos

    def _begin_anew(self, ended: Array, after: Array, infos: list[dict[str, Any]]) -> Array:
        for i in ended.tolist():
            infos[i]["terminal_observation"] = after[i].copy()
            infos[i]["episode"] = {
                "r": float(self._returns[i]),
                "l": int(self._lengths[i]),
                "t": time.perf_counter() - self._began,
            }
        # Dynamics may hand out what they hold.
        self._states = self._states.copy()
        self._states[ended] = self.world.dynamics.start(len(ended), self._rng)
        self._returns[ended], self._lengths[ended] = 0.0, 0
        return self.world.dynamics.show(self._states)

    def close(self) -> None:
        """Nothing is held."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """The same for every copy."""
        return [getattr(self, attr_name)] * len(self._copies(indices))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refused: the copies are one."""
        raise OptionError(f"copies of {self.world.name} have no attributes of their own to set")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **named: Any) -> Any:
        """Refused: the copies are one."""
        raise OptionError(f"copies of {self.world.name} have no methods of their own")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """No."""
        return [False] * len(self._copies(indices))

    def _copies(self, indices: int | Iterable[int] | None) -> Sequence[int]:
        return list(self._get_indices(indices))
