"""Episodes, and the stages they form.

Stages hold their episodes packed end to end in a few arrays, because everything downstream is a
sum over steps; `Stage.episodes` gives the episodes back as views.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from logel.data.facts import call_with_facts
from logel.data.observations import Part, by_name, parts_of, storable, together
from logel.errors import HistoryError
from logel.types import Array, FeatureFunction, Flags


def frozen(values: npt.ArrayLike, what: str, *, real: bool = False) -> Array:
    """Copy to a read-only numeric array in a storable type; refuse NaN, infinity and objects."""
    try:
        array = np.array(values)
    except ValueError as error:
        raise HistoryError(f"{what} cannot be made an array: {error}") from None
    if array.dtype.kind not in "buif":
        raise HistoryError(f"{what} must be numbers, not {array.dtype}")
    with named(what, sep=" "):
        array = storable(array.astype(np.float64) if real and array.dtype.kind != "f" else array)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise HistoryError(f"{what} must be finite, but entry {index} is {array[index]}")
    array.setflags(write=False)
    return array


def seen(values: npt.ArrayLike | Mapping[str, Any], what: str) -> Array:
    """Observations, read-only; those of several parts, by name, become a structured array."""
    parts = by_name(values)
    if parts is None:
        return frozen(values, what)  # type: ignore[arg-type]
    with named(what, sep=" "):
        whole = together({name: frozen(part, repr(name)) for name, part in parts.items()})
    whole.setflags(write=False)
    return whole


@contextmanager
def named(where: str, sep: str = ": ") -> Iterator[None]:
    """Say where the data are that something is wrong with."""
    try:
        yield
    except HistoryError as error:
        raise HistoryError(f"{where}{sep}{error}") from None


def checked_masks(
    values: npt.ArrayLike, actions: Array, place: Callable[[int], str] = "time {}".format
) -> Flags:
    """Which actions were legal in every row, (T, n_actions), all of those taken among them.

    `place` names a row in words.
    """
    masks = np.array(values)
    if masks.dtype.kind in "iuf" and np.isin(masks, (0, 1)).all():
        masks = masks.astype(bool)
    if masks.dtype != bool or masks.ndim != 2 or len(masks) != len(actions):
        raise HistoryError(
            f"action_masks must be booleans of shape ({len(actions)}, n_actions), one row per "
            f"action, but are {masks.dtype} of shape {masks.shape}"
        )
    if actions.dtype.kind != "i" or actions.ndim != 1:
        raise HistoryError("action_masks need discrete actions, one whole number each")
    inside = (actions >= 0) & (actions < masks.shape[1])
    bad = ~inside
    bad[inside] = ~masks[inside, actions[inside]]
    if bad.any():
        row = int(np.argmax(bad))
        options = np.flatnonzero(masks[row]).tolist()
        raise HistoryError(
            f"{place(row)}: action {actions[row]} was taken, but by action_masks {options} were "
            "legal: correct the masks or the action"
        )
    masks.setflags(write=False)
    return masks


def taken(values: Array | None, rows: Array | slice) -> Array | None:
    """Some rows of what may not have been recorded."""
    return None if values is None else values[rows]


@dataclass(frozen=True, eq=False)
class Episode:
    """One trajectory of a stage.

    Attributes:
        observations: Shape (T + 1, ...), or (T, ...) if the last state was not seen. Integers for
            discrete observations, bytes for images, floats otherwise; as the policy saw them.
            Arrays by name for observations of several parts (Dict).
        actions: Shape (T,) for discrete actions (integers) or (T, k) for continuous ones.
        features: Reward features phi(s, a, s') of every time, shape (T, q), or None when they
            are to be computed by a callable.
        terminated: Whether the environment ended the episode (an absorbing state: no more
            reward). False means truncated: the observer merely stopped looking.
        action_masks: Which actions were legal at every time, booleans of shape (T, n_actions), or
            None: all were, or the policy family knows (`TabularSoftmax(..., legal=...)`).
    """

    observations: Array
    actions: Array
    features: Array | None = None
    terminated: bool = False
    action_masks: Flags | None = None

    def __post_init__(self) -> None:
        actions = frozen(self.actions, "actions")
        observations = seen(self.observations, "observations")
        if actions.ndim == 0 or observations.ndim == 0:
            raise HistoryError("observations and actions need a leading time axis")
        length = len(actions)
        if length == 0:
            raise HistoryError("an episode needs at least one action, but actions is empty")
        if len(observations) not in (length, length + 1):
            raise HistoryError(
                f"observations must have {length + 1} rows (or {length} if the last state was not "
                f"seen) to go with {length} actions, but have {len(observations)}"
            )
        features = None
        if self.features is not None:
            features = frozen(self.features, "features", real=True)
            if features.ndim != 2 or len(features) != length or features.shape[1] == 0:
                raise HistoryError(
                    f"features must have shape ({length}, q) to go with {length} actions, but "
                    f"have {features.shape}"
                )
        masks = None if self.action_masks is None else checked_masks(self.action_masks, actions)
        # Frozen for everyone else.
        self.__dict__.update(observations=observations, actions=actions, features=features)
        self.__dict__["action_masks"] = masks
        self.__dict__["terminated"] = bool(self.terminated)

    def __len__(self) -> int:
        return len(self.actions)


@dataclass(frozen=True)
class Signature:
    """What all episodes of a history share, so that stages can be checked as they arrive."""

    observation_shape: tuple[int, ...]
    action_shape: tuple[int, ...]
    discrete_observations: bool
    discrete_actions: bool
    n_features: int | None
    n_masked_actions: int | None = None
    observation_parts: tuple[Part, ...] | None = None

    @classmethod
    def of(cls, data: Episode | Stage) -> Signature:
        """What the arrays of an episode or of a stage look like."""
        return cls(
            observation_shape=data.observations.shape[1:],
            action_shape=data.actions.shape[1:],
            discrete_observations=data.observations.dtype.kind == "i",
            discrete_actions=data.actions.dtype.kind == "i",
            n_features=None if data.features is None else data.features.shape[1],
            n_masked_actions=None if data.action_masks is None else data.action_masks.shape[1],
            observation_parts=parts_of(data.observations),
        )

    def differences(self, other: Signature) -> str:
        """The fields that differ, with both values, for an error message."""
        return ", ".join(
            f"{name} {getattr(self, name)} instead of {getattr(other, name)}"
            for name in self.__dataclass_fields__
            if getattr(self, name) != getattr(other, name)
        )


@dataclass(frozen=True, eq=False)
class Stage:
    """The episodes sampled from one policy, packed, and that policy's parameters if known.

    Attributes:
        observations: Observations in which an action was taken, shape (N, ...); a structured array
            with a field for each part where they have several (`logel.data.observations`).
        actions: Shape (N,) or (N, k).
        lengths: Number of times of each episode, shape (n_episodes,); they sum to N.
        terminated: Shape (n_episodes,), whether the environment ended the episode.
        last_observations: The state each episode ended in, shape (n_episodes, ...), or None if
            it was not seen.
        features: Shape (N, q), or None.
        parameters: The policy's flat parameters, shape (d,), or None.
        action_masks: Which actions were legal, booleans of shape (N, n_actions), or None.
    """

    observations: Array
    actions: Array
    lengths: Array
    terminated: Array
    last_observations: Array | None = None
    features: Array | None = None
    parameters: Array | None = None
    action_masks: Flags | None = None

    def __post_init__(self) -> None:
        lengths = _checked_lengths(self.lengths)
        terminated = np.array(self.terminated, dtype=bool)
        terminated.setflags(write=False)
        self.__dict__.update(lengths=lengths, terminated=terminated)
        _check_rows(terminated, "terminated", len(lengths))
        n_steps = int(lengths.sum())
        rows = {"observations": n_steps, "actions": n_steps, "features": n_steps}
        for name in (*rows, "last_observations", "parameters"):
            value = getattr(self, name)
            if value is None and name not in ("observations", "actions"):
                continue
            array = _READERS.get(name, frozen)(value, name)
            if name != "parameters":
                _check_rows(array, name, rows.get(name, len(lengths)))
            self.__dict__[name] = array
        self._check_shapes()
        if self.action_masks is not None:
            masks = checked_masks(self.action_masks, self.actions, self.place)
            self.__dict__["action_masks"] = masks

    def _check_shapes(self) -> None:
        """Refuse rows of the wrong shape; their number is right."""
        for name, array in (("observations", self.observations), ("actions", self.actions)):
            if 0 in array.shape[1:]:
                raise HistoryError(f"{name} must hold numbers, but have shape {array.shape}")
        if self.terminated.ndim != 1:
            raise HistoryError(
                f"terminated must be flat, one entry per episode, but has {self.terminated.shape}"
            )
        _check_beside(self.features, self.parameters)
        if self.last_observations is not None:
            _check_last(self.last_observations, self.observations)

    @classmethod
    def from_episodes(cls, episodes: Sequence[Episode], parameters: Array | None = None) -> Stage:
        """Pack episodes; they must agree in shapes, and all or none carry features."""
        _check_alike(episodes)
        features = [e.features for e in episodes if e.features is not None]
        masks = [e.action_masks for e in episodes if e.action_masks is not None]
        return cls(
            observations=np.concatenate([e.observations[: len(e)] for e in episodes]),
            actions=np.concatenate([e.actions for e in episodes]),
            lengths=np.array([len(e) for e in episodes]),
            terminated=np.array([e.terminated for e in episodes]),
            last_observations=_last_observations(episodes),
            features=np.concatenate(features) if features else None,
            parameters=parameters,
            action_masks=np.concatenate(masks) if masks else None,
        )

    def __repr__(self) -> str:
        features = "no" if self.features is None else f"{self.features.shape[1]}"
        known = "unknown" if self.n_parameters is None else f"{self.n_parameters} known"
        return (
            f"Stage({self.n_episodes} episodes, {self.n_steps} steps; {features} features, "
            f"{known} parameters)"
        )

    @property
    def n_episodes(self) -> int:
        """Number of episodes."""
        return len(self.lengths)

    @property
    def n_steps(self) -> int:
        """Number of environment steps N, all episodes together."""
        return len(self.actions)

    @property
    def n_parameters(self) -> int | None:
        """Number d of policy parameters, or None when they are unknown."""
        return None if self.parameters is None else len(self.parameters)

    @cached_property
    def starts(self) -> Array:
        """Row at which each episode starts, shape (n_episodes,)."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def times(self) -> Array:
        """Time h of every row inside its episode, shape (N,)."""
        return np.arange(self.n_steps) - np.repeat(self.starts, self.lengths)

    def place(self, row: int) -> str:
        """A row in words: its episode and its time."""
        episode = int(np.searchsorted(self.starts, row, side="right")) - 1
        return f"episode {episode}, time {row - self.starts[episode]}"

    @property
    def signature(self) -> Signature:
        """Shapes and kinds, to be compared with those of other stages."""
        return Signature.of(self)

    @property
    def episodes(self) -> Iterator[Episode]:
        """The episodes, one by one."""
        for n, (start, length) in enumerate(zip(self.starts, self.lengths, strict=True)):
            rows = slice(start, start + length)
            observations = self.observations[rows]
            if self.last_observations is not None:
                observations = np.concatenate([observations, self.last_observations[n : n + 1]])
            features, ended = taken(self.features, rows), bool(self.terminated[n])
            masks = taken(self.action_masks, rows)
            yield Episode(observations, self.actions[rows], features, ended, masks)

    def next_observations(self) -> Array:
        """The state each step led to, shape (N, ...)."""
        if self.last_observations is None:
            raise HistoryError(
                "features that look at the next observation need every episode's last state: give "
                "observations of shape (T + 1, ...)"
            )
        following = np.roll(self.observations, -1, axis=0)
        following[self.starts + self.lengths - 1] = self.last_observations
        return following

    def with_features(self, features: FeatureFunction) -> Stage:
        """The same stage with features computed by a callable in place of the recorded ones.

        To one that asks (see `logel.data.facts`), an episode that was cut off, by whatever, counts
        as truncated, and times are those within the episodes as they are here. Where last states
        were not seen, features must not depend on them.
        """
        terminated = np.zeros(self.n_steps, dtype=bool)
        truncated = terminated.copy()
        ends = self.starts + self.lengths - 1
        terminated[ends], truncated[ends] = self.terminated, ~self.terminated
        facts = {"terminated": terminated, "truncated": truncated, "times": self.times}

        def computed(stage: Stage) -> Array:
            arrays = (self.observations, self.actions, stage.next_observations())
            return np.asarray(call_with_facts(features, *arrays, **facts))

        if self.last_observations is not None:
            return replace(self, features=computed(self))
        values, *others = (
            # Several guesses at what followed: none may make a difference.
            computed(replace(self, last_observations=np.roll(self.observations, k, axis=0)[ends]))
            for k in (0, 1, self.n_steps // 2)
        )
        if any(not np.array_equal(values, other) for other in others):
            self.next_observations()  # which says that they are needed
        return replace(self, features=values)

    def take(self, episodes: Array) -> Stage:
        """The stage restricted to some episodes, given by index, in that order (repeats allowed).

        The held-out and resampled stages of cloning and uncertainty are made this way.
        """
        episodes = np.asarray(episodes)
        lengths = self.lengths[episodes]
        offsets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        rows = np.repeat(self.starts[episodes], lengths) + offsets
        return replace(
            self,
            observations=self.observations[rows],
            actions=self.actions[rows],
            lengths=lengths,
            terminated=self.terminated[episodes],
            last_observations=taken(self.last_observations, episodes),
            features=taken(self.features, rows),
            action_masks=taken(self.action_masks, rows),
        )


_real = partial(frozen, real=True)
_READERS: dict[str, Callable[[Any, str], Array]] = {
    **dict.fromkeys(("observations", "last_observations"), seen),
    **dict.fromkeys(("features", "parameters"), _real),
}


def _check_beside(features: Array | None, parameters: Array | None) -> None:
    if features is not None and (features.ndim != 2 or features.shape[1] == 0):
        raise HistoryError(f"features must have shape (N, q), but have {features.shape}")
    if parameters is not None and parameters.ndim != 1:
        raise HistoryError(f"parameters of a stage must be flat, but have shape {parameters.shape}")


def _check_last(last: Array, others: Array) -> None:
    if last.shape[1:] != others.shape[1:]:
        raise HistoryError(
            f"last observations have shape {last.shape[1:]}, but the others {others.shape[1:]}"
        )
    if parts_of(last) != parts_of(others):
        raise HistoryError(f"last observations are {last.dtype}, but the others {others.dtype}")


def _last_observations(episodes: Sequence[Episode]) -> Array | None:
    # A stage with one unseen last state is treated as one without: a half-known column would
    # make features computed from it depend on which episodes happen to be kept.
    seen = all(len(episode.observations) > len(episode) for episode in episodes)
    return np.stack([episode.observations[-1] for episode in episodes]) if seen else None


class StageSource(Protocol):
    """Where the stages of a history come from: memory, or a folder read on demand."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Stage: ...


def _checked_lengths(values: npt.ArrayLike) -> Array:
    lengths = frozen(values, "lengths")
    if lengths.ndim != 1 or len(lengths) == 0:
        raise HistoryError("a stage needs at least one episode, but has none")
    if lengths.dtype.kind != "i":
        raise HistoryError(f"lengths must be whole numbers, not {lengths.dtype}")
    if (lengths < 1).any():
        episode = int(np.argmax(lengths < 1))
        raise HistoryError(f"episode {episode} needs at least one action, but has none")
    if lengths.max() > np.iinfo(np.int64).max // len(lengths):
        # Their sum would wrap around and could agree with the number of rows by accident.
        raise HistoryError(f"lengths must sum to the number of rows, but reach {lengths.max()}")
    return lengths


def _check_rows(array: Array, name: str, expected: int) -> None:
    found = "a scalar" if array.ndim == 0 else len(array)
    if found != expected:
        raise HistoryError(f"{name} must have {expected} rows, but has {found}")


def _check_alike(episodes: Sequence[Episode]) -> None:
    if len(episodes) == 0:
        raise HistoryError("a stage needs at least one episode, but has none")
    for n, episode in enumerate(episodes):
        if not isinstance(episode, Episode):
            raise HistoryError(
                f"episode {n} is a {type(episode).__name__}: make it one with "
                "Episode(observations, actions, features)"
            )
    first = Signature.of(episodes[0])
    for n, episode in enumerate(episodes):
        if (signature := Signature.of(episode)) != first:
            raise HistoryError(
                f"episode {n} disagrees with episode 0: {signature.differences(first)}"
            )


def check_stage(stage: Stage, index: int, signature: Signature) -> None:
    """Refuse a stage that does not look like the others of its history."""
    if stage.signature != signature:
        raise HistoryError(
            f"stage {index} disagrees with the history: {stage.signature.differences(signature)}"
        )


def check_parameters(stage: Stage, index: int, n_parameters: int | None) -> None:
    """Refuse a stage whose parameters are not like those of the history's first stage."""
    if stage.n_parameters != n_parameters:
        raise HistoryError(
            f"stage {index}: parameters must be like those of stage 0, but there are "
            f"{stage.n_parameters} instead of {n_parameters}"
        )
