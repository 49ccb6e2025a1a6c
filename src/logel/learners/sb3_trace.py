"""What happens in a rollout of Stable-Baselines3 that its buffer does not keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from logel.data.facts import call_with_facts
from logel.data.observations import storable, together
from logel.errors import MissingExtraError, OptionError
from logel.rewards.features import RewardFeatures, StepFeatures
from logel.types import Array

try:
    from stable_baselines3.common.vec_env import VecNormalize
except ImportError as error:
    raise MissingExtraError("stable-baselines3", "sb3") from error


def in_one(observations: Any, n_axes: int, *, single: bool = False) -> Array:
    """Observations in one array, those of a Dict by their names.

    Args:
        observations: An array, or arrays by name.
        n_axes: How many axes come first, those of times and environments.
        single: Whether double floats become single ones, which are all that a policy sees.
    """
    if isinstance(observations, Mapping):
        parts = {n: in_one(part, n_axes, single=single) for n, part in observations.items()}
        shape = next(iter(parts.values())).shape[:n_axes]
        flat = {n: storable(x.reshape(-1, *x.shape[n_axes:])) for n, x in parts.items()}
        return together(flat).reshape(shape)
    array = np.asarray(observations)
    return array.astype(np.float32) if single and array.dtype == np.float64 else array


class RawObservations:
    """What the environments said before `VecNormalize` changed it, terminal states included.

    Only the normaliser's inner environment knows an episode's last state exactly: undoing the
    normalisation would lose what was clipped.
    """

    def __init__(self, normaliser: VecNormalize) -> None:
        self.observations: Array = in_one(normaliser.get_original_obs(), 1)
        self.terminal: dict[int, Array] = {}
        self._venv = normaliser.venv
        self._step_wait = self._venv.step_wait
        self._venv.step_wait = self._watched  # type: ignore[method-assign]

    def _watched(self) -> Any:
        result = self._step_wait()
        observations, _, dones, infos = result
        self.observations = in_one(observations, 1)
        self.terminal = {int(i): _terminal(infos[i]) for i in np.flatnonzero(dones)}
        return result

    def remove(self) -> None:
        """Leave the environment as it was."""
        self._venv.step_wait = self._step_wait  # type: ignore[method-assign]


class Trace:
    """How the episodes of one rollout ended, and what its features are made of.

    Args:
        n_times: Times of the rollout.
        before: Observations at its start, shape (n, ...), the environments' own.
        features: As given to the recorder.
        ages: Steps that each environment's episode is old at its start, shape (n,).
    """

    def __init__(
        self,
        n_times: int,
        before: Array,
        features: RewardFeatures | StepFeatures | Literal["none"] | None,
        ages: Array,
    ) -> None:
        self.terminated = np.zeros((n_times, len(before)), dtype=bool)
        self.truncated = np.zeros_like(self.terminated)
        self._function, self._ages = features, ages.copy()
        self._terminal: dict[tuple[int, int], Array] = {}
        self._returns: list[float] = []
        self._time = 0
        self._table: Array | None = None
        # What the environments said and were told, which only a function of it needs.
        self._now = before.copy()
        shape = (n_times, *before.shape) if callable(features) else (0,)
        self._before = np.empty(shape, dtype=before.dtype)
        self._after = np.empty_like(self._before)
        self._taken: Array | None = None

    def step(self, local: Mapping[str, Any], tap: RawObservations | None) -> None:
        """Take down one time of all environments."""
        infos, t = local["infos"], self._time
        self._time += 1
        for i in np.flatnonzero(local["dones"]):
            self._end(t, int(i), infos[i])
        if self._function is None:
            self._store(t, [_reported(info) for info in infos])
        elif callable(self._function):
            taken = self._take_raw(t, local, tap)
            if isinstance(self._function, StepFeatures):
                self._store(t, self._function.rows(self._before[t], taken, self._after[t], infos))

    def _end(self, t: int, i: int, info: Mapping[str, Any]) -> None:
        self.truncated[t, i] = bool(info.get("TimeLimit.truncated", False))
        self.terminated[t, i] = not self.truncated[t, i]
        self._terminal[t, i] = _terminal(info)
        if "episode" in info:
            self._returns.append(float(info["episode"]["r"]))

    def _take_raw(self, t: int, local: Mapping[str, Any], tap: RawObservations | None) -> Array:
        self._before[t] = self._now
        following = in_one(local["new_obs"], 1) if tap is None else tap.observations
        self._now[:] = self._after[t] = following
        for i in np.flatnonzero(local["dones"]):
            # The observation shown is the next episode's first already.
            ended = _terminal(local["infos"][i]) if tap is None else tap.terminal[int(i)]
            self._after[t, i] = ended
        taken = np.asarray(local.get("clipped_actions", local["actions"]))
        if self._taken is None:
            self._taken = np.empty((len(self.terminated), *taken.shape), dtype=taken.dtype)
        self._taken[t] = taken
        return taken

    def _store(self, t: int, rows: Any) -> None:
        if self._table is None:
            self._table = np.empty((*self.terminated.shape, np.size(rows[0])))
        self._table[t] = rows

    def following(self, observations: Array, last: Any) -> Array:
        """The state each step led to, as the policy would have seen it."""
        end = in_one(last, 1)[None].astype(observations.dtype)
        result = np.concatenate([observations[1:], end])
        for (t, i), terminal in self._terminal.items():
            result[t, i] = terminal
        return result

    def continues(self) -> list[bool]:
        """For every environment, whether its last episode goes on after the rollout."""
        return [not ended for ended in (self.terminated[-1] | self.truncated[-1]).tolist()]

    def features(self) -> Array | None:
        """Features of every step, shape (T, n, q), or None."""
        if self._table is not None or self._taken is None:
            return self._table
        assert callable(self._function) and not isinstance(self._function, StepFeatures)
        parts = (self._before, self._taken, self._after)
        values = call_with_facts(
            self._function,
            *(x.reshape(-1, *x.shape[2:]) for x in parts),
            terminated=self.terminated.reshape(-1),
            truncated=self.truncated.reshape(-1),
            times=self._times().reshape(-1),
        )
        return np.asarray(values, dtype=float).reshape(*self.terminated.shape, -1)

    def _times(self) -> Array:
        """Steps since its episode began, of every step, shape (T, n)."""
        times, age = np.empty(self.terminated.shape, dtype=int), self._ages
        for t, ended in enumerate(self.terminated | self.truncated):
            times[t] = age
            age = np.where(ended, 0, age + 1)
        return times

    def returns(self) -> dict[str, Any]:
        """Mean return of the episodes that ended, if the environment reports it."""
        notes: dict[str, Any] = {"episodes_finished": len(self._terminal)}
        return {**notes, "mean_return": float(np.mean(self._returns))} if self._returns else notes


def _terminal(info: Mapping[str, Any]) -> Array:
    if "terminal_observation" not in info:
        raise OptionError(
            'an environment ended an episode without saying info["terminal_observation"]: use the '
            "vector environments of Stable-Baselines3"
        )
    last = info["terminal_observation"]
    if isinstance(last, Mapping):
        return np.asarray(in_one({name: np.asarray(x)[None] for name, x in last.items()}, 1)[0])
    return np.array(last)


def _reported(info: Mapping[str, Any]) -> Any:
    if "features" not in info:
        raise OptionError(
            'the environment reports no info["features"]: wrap it with with_features, pass '
            'features=, or record none with features="none"'
        )
    return info["features"]
