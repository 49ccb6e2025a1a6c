"""The observed data: episodes, the stages they form, and the learning history of one learner.

Shapes follow the glossary of the documentation: an episode has T times, a stage N steps in all
(the sum of its episodes' T), a history m + 1 stages and therefore m steps between stages.

Stages hold their episodes packed end to end in a few arrays, because everything downstream is a
sum over steps; `Stage.episodes` gives the episodes back as views.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from logel.errors import HistoryError

if TYPE_CHECKING:
    from os import PathLike
    from pathlib import Path

    import pandas as pd

    from logel.data.limits import Limits
    from logel.progress import Progress

Array = npt.NDArray[Any]
FeatureFunction = Callable[[Array, Array, Array], npt.ArrayLike]
"""Maps (observations, actions, next_observations), each with N rows, to features (N, q)."""

OWN_EPISODES = "learnt_from_these_episodes"
"""Key of a history's metadata that says: every step was learnt from the very episodes kept here."""


def _frozen(values: npt.ArrayLike, what: str, *, real: bool = False) -> Array:
    """Copy to a read-only numeric array in a storable type; refuse NaN, infinity and objects."""
    try:
        array = np.array(values)
    except ValueError as error:
        raise HistoryError(f"{what} cannot be made an array: {error}") from None
    if array.dtype.kind in "bui" and not real:
        if array.dtype == np.uint64 and array.max(initial=0) > np.iinfo(np.int64).max:
            raise HistoryError(f"{what} must fit in 64-bit integers, but reach {array.max()}")
        array = array.astype(np.int64, copy=False)
    elif array.dtype.kind in "buif":
        kind = np.float32 if array.dtype == np.float32 else np.float64
        array = array.astype(kind, copy=False)
    else:
        raise HistoryError(f"{what} must be numbers, not {array.dtype}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise HistoryError(f"{what} must be finite, but entry {index} is {array[index]}")
    array.setflags(write=False)
    return array


@dataclass(frozen=True, eq=False)
class Episode:
    """One trajectory of a stage.

    Attributes:
        observations: Shape (T + 1, ...), or (T, ...) if the last state was not seen. Integers for
            discrete observations, floats otherwise; as the policy saw them.
        actions: Shape (T,) for discrete actions (integers) or (T, k) for continuous ones.
        features: Reward features phi(s, a, s') of every time, shape (T, q), or None when they
            are to be computed by a callable.
        terminated: Whether the environment ended the episode (an absorbing state: no more
            reward). False means truncated: the observer merely stopped looking.
    """

    observations: Array
    actions: Array
    features: Array | None = None
    terminated: bool = False

    def __post_init__(self) -> None:
        actions = _frozen(self.actions, "actions")
        observations = _frozen(self.observations, "observations")
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
            features = _frozen(self.features, "features", real=True)
            if features.ndim != 2 or len(features) != length or features.shape[1] == 0:
                raise HistoryError(
                    f"features must have shape ({length}, q) to go with {length} actions, but "
                    f"have {features.shape}"
                )
        object.__setattr__(self, "actions", actions)
        object.__setattr__(self, "observations", observations)
        object.__setattr__(self, "features", features)
        object.__setattr__(self, "terminated", bool(self.terminated))

    def __len__(self) -> int:
        return len(self.actions)


@dataclass(frozen=True)
class Signature:
    """What all episodes of a history share, so that stages can be checked as they arrive.

    Attributes:
        observation_shape: Shape of one observation.
        action_shape: Shape of one action.
        discrete_observations: Whether observations are integers.
        discrete_actions: Whether actions are integers.
        n_features: q, or None when no features were recorded.
    """

    observation_shape: tuple[int, ...]
    action_shape: tuple[int, ...]
    discrete_observations: bool
    discrete_actions: bool
    n_features: int | None

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
        observations: Observations in which an action was taken, shape (N, ...).
        actions: Shape (N,) or (N, k).
        lengths: Number of times of each episode, shape (n_episodes,); they sum to N.
        terminated: Shape (n_episodes,), whether the environment ended the episode.
        last_observations: The state each episode ended in, shape (n_episodes, ...), or None if
            it was not seen.
        features: Shape (N, q), or None.
        parameters: The policy's flat parameters, shape (d,), or None.
    """

    observations: Array
    actions: Array
    lengths: Array
    terminated: Array
    last_observations: Array | None = None
    features: Array | None = None
    parameters: Array | None = None

    def __post_init__(self) -> None:
        lengths = _frozen(self.lengths, "lengths")
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
        terminated = np.array(self.terminated, dtype=bool)
        terminated.setflags(write=False)
        rows: dict[str, tuple[Array | None, int]] = {
            "observations": (_frozen(self.observations, "observations"), int(lengths.sum())),
            "actions": (_frozen(self.actions, "actions"), int(lengths.sum())),
            "terminated": (terminated, len(lengths)),
            "last_observations": (None, len(lengths)),
            "features": (None, int(lengths.sum())),
            "parameters": (None, 0),
        }
        for name, real in (("last_observations", False), ("features", True), ("parameters", True)):
            value = getattr(self, name)
            if value is not None:
                rows[name] = (_frozen(value, name, real=real), rows[name][1])
        object.__setattr__(self, "lengths", lengths)
        for name, (array, expected) in rows.items():
            if (
                array is not None
                and name != "parameters"
                and (array.ndim == 0 or len(array) != expected)
            ):
                found = "a scalar" if array.ndim == 0 else f"{len(array)}"
                raise HistoryError(f"{name} must have {expected} rows, but has {found}")
            object.__setattr__(self, name, array)
        if self.terminated.ndim != 1:
            raise HistoryError(
                f"terminated must be flat, one entry per episode, but has {self.terminated.shape}"
            )
        if self.features is not None and (self.features.ndim != 2 or self.features.shape[1] == 0):
            raise HistoryError(f"features must have shape (N, q), but have {self.features.shape}")
        if self.parameters is not None and self.parameters.ndim != 1:
            raise HistoryError(
                f"parameters of a stage must be flat, but have shape {self.parameters.shape}"
            )
        last = self.last_observations
        if last is not None and last.shape[1:] != self.observations.shape[1:]:
            raise HistoryError(
                f"last observations have shape {last.shape[1:]}, but the others "
                f"{self.observations.shape[1:]}"
            )

    @classmethod
    def from_episodes(cls, episodes: Sequence[Episode], parameters: Array | None = None) -> Stage:
        """Pack episodes; they must agree in shapes, and all or none carry features."""
        if len(episodes) == 0:
            raise HistoryError("a stage needs at least one episode, but has none")
        first = _episode_signature(episodes[0])
        for n, episode in enumerate(episodes):
            if (signature := _episode_signature(episode)) != first:
                raise HistoryError(
                    f"episode {n} disagrees with episode 0: {signature.differences(first)}"
                )
        seen = [len(episode.observations) > len(episode) for episode in episodes]
        return cls(
            observations=np.concatenate([e.observations[: len(e)] for e in episodes]),
            actions=np.concatenate([e.actions for e in episodes]),
            lengths=np.array([len(e) for e in episodes]),
            terminated=np.array([e.terminated for e in episodes]),
            # A stage with one unseen last state is treated as one without: a half-known column
            # would make features computed from it depend on which episodes happen to be kept.
            last_observations=np.stack([e.observations[-1] for e in episodes])
            if all(seen)
            else None,
            features=None
            if first.n_features is None
            else np.concatenate([e.features for e in episodes if e.features is not None]),
            parameters=parameters,
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

    @property
    def signature(self) -> Signature:
        """Shapes and kinds, to be compared with those of other stages."""
        return Signature(
            observation_shape=self.observations.shape[1:],
            action_shape=self.actions.shape[1:],
            discrete_observations=self.observations.dtype.kind == "i",
            discrete_actions=self.actions.dtype.kind == "i",
            n_features=None if self.features is None else self.features.shape[1],
        )

    @property
    def episodes(self) -> Iterator[Episode]:
        """The episodes, one by one."""
        for n, (start, length) in enumerate(zip(self.starts, self.lengths, strict=True)):
            rows = slice(start, start + length)
            observations = self.observations[rows]
            if self.last_observations is not None:
                observations = np.concatenate([observations, self.last_observations[n : n + 1]])
            features = None if self.features is None else self.features[rows]
            yield Episode(observations, self.actions[rows], features, bool(self.terminated[n]))

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
        """The same stage with features computed by a callable in place of the recorded ones."""
        values = features(self.observations, self.actions, self.next_observations())
        return replace(self, features=np.asarray(values))

    def take(self, episodes: Array) -> Stage:
        """The stage restricted to some episodes, given by index, in that order (repeats allowed).

        The held-out and resampled stages of cloning and uncertainty are made this way.
        """
        episodes = np.asarray(episodes)
        lengths = self.lengths[episodes]
        offsets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        rows = np.repeat(self.starts[episodes], lengths) + offsets
        return Stage(
            observations=self.observations[rows],
            actions=self.actions[rows],
            lengths=lengths,
            terminated=self.terminated[episodes],
            last_observations=None
            if self.last_observations is None
            else self.last_observations[episodes],
            features=None if self.features is None else self.features[rows],
            parameters=self.parameters,
        )


def _episode_signature(episode: Episode) -> Signature:
    return Signature(
        observation_shape=episode.observations.shape[1:],
        action_shape=episode.actions.shape[1:],
        discrete_observations=episode.observations.dtype.kind == "i",
        discrete_actions=episode.actions.dtype.kind == "i",
        n_features=None if episode.features is None else episode.features.shape[1],
    )


class StageSource(Protocol):
    """Where the stages of a history come from: memory, or a folder read on demand."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Stage: ...


@dataclass(frozen=True, eq=False)
class LearningHistory:
    """Stages 0..m of one learner's training; stages are fetched one at a time.

    Use `from_episodes` or `load`; iterate to stream the stages.

    Attributes:
        source: The stages; indexing it may read a file.
        signature: What all stages share.
        learning_rates: Shape (m,), or None when unknown.
        feature_names: q names, or None when features were neither recorded nor named.
        complete: False for a history whose writer was interrupted.
        metadata: Facts about the recording (environment, learner, versions); never executed.
        notes: Facts about every stage (a recorder's: time steps, mean return, the observation
            normaliser's statistics), or empty when there are none; inference never reads them.
    """

    source: StageSource = field(repr=False)
    signature: Signature
    learning_rates: Array | None = None
    feature_names: tuple[str, ...] | None = None
    complete: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if self.notes and len(self.notes) != len(self):
            raise HistoryError(
                f"notes must have one entry for each of the {len(self)} stages, but have "
                f"{len(self.notes)}"
            )
        if self.learning_rates is not None:
            rates = _frozen(self.learning_rates, "learning rates", real=True)
            if rates.shape != (self.n_steps,):
                raise HistoryError(
                    f"learning_rates must have one entry for each of the {self.n_steps} steps "
                    f"between {len(self)} stages, but have shape {rates.shape}"
                )
            if (rates <= 0).any():
                step = int(np.argmax(rates <= 0))
                raise HistoryError(
                    f"learning rates must be positive, but step {step} has {rates[step]}"
                )
            object.__setattr__(self, "learning_rates", rates)
        if self.feature_names is not None:
            names = tuple(str(name) for name in self.feature_names)
            check_feature_names(names, self.signature.n_features)
            object.__setattr__(self, "feature_names", names)

    @classmethod
    def from_episodes(
        cls,
        stages: Sequence[Sequence[Episode]],
        *,
        parameters: npt.ArrayLike | None = None,
        learning_rates: npt.ArrayLike | None = None,
        feature_names: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> LearningHistory:
        """Build a history in memory.

        Args:
            stages: One list of episodes per stage, in the order of learning.
            parameters: Policy parameters of every stage, shape (m + 1, d), if known.
            learning_rates: Learning rate of every step, shape (m,), if known.
            feature_names: q names; "feature 0", ... are used in reports when missing.
            metadata: Anything worth keeping about the run, JSON-serialisable.
        """
        rows: Sequence[Array | None] = [None] * len(stages)
        if parameters is not None:
            table = _frozen(parameters, "parameters", real=True)
            if table.ndim != 2 or len(table) != len(stages):
                raise HistoryError(
                    f"parameters must have shape ({len(stages)}, d), one row per stage, but have "
                    f"{table.shape}"
                )
            rows = list(table)
        packed = []
        for t, (episodes, row) in enumerate(zip(stages, rows, strict=True)):
            try:
                packed.append(Stage.from_episodes(episodes, row))
            except HistoryError as error:
                raise HistoryError(f"stage {t}: {error}") from None
        return cls.from_stages(
            packed, learning_rates=learning_rates, feature_names=feature_names, metadata=metadata
        )

    @classmethod
    def from_stages(
        cls,
        stages: Sequence[Stage],
        *,
        learning_rates: npt.ArrayLike | None = None,
        feature_names: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> LearningHistory:
        """Build a history from packed stages; see `from_episodes` for the arguments."""
        if len(stages) == 0:
            raise HistoryError("a history needs at least one stage, but has none")
        first = stages[0]
        for t, stage in enumerate(stages):
            check_stage(stage, t, first.signature)
            check_parameters(stage, t, first.n_parameters)
        return cls(
            source=tuple(stages),
            signature=first.signature,
            learning_rates=None if learning_rates is None else np.asarray(learning_rates),
            feature_names=None if feature_names is None else tuple(feature_names),
            metadata={} if metadata is None else dict(metadata),
        )

    def __repr__(self) -> str:
        """One line, without reading a stage."""
        from logel.data.notebook import history_line

        return history_line(self)

    def _repr_html_(self) -> str:
        """The history in a notebook, without reading a stage."""
        from logel.data.notebook import history_html

        return history_html(self)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Stage:
        if not -len(self) <= index < len(self):
            raise IndexError(f"stage {index} of a history with {len(self)} stages")
        return self.source[index % len(self)]

    def __iter__(self) -> Iterator[Stage]:
        return (self.source[t] for t in range(len(self)))

    @property
    def n_steps(self) -> int:
        """Number m of moves from one stage to the next."""
        return len(self) - 1

    def parameters(self) -> Array | None:
        """Policy parameters of every stage, shape (m + 1, d), or None when unknown."""
        rows: list[Array] = []
        for t, stage in enumerate(self):
            check_parameters(stage, t, rows[0].size if rows else stage.n_parameters)
            if stage.parameters is None:
                return None
            rows.append(stage.parameters)
        return np.stack(rows)

    def slice(self, start: int, stop: int | None = None) -> LearningHistory:
        """The history of stages start..stop - 1, still read on demand."""
        indices = range(len(self))[start:stop]
        if len(indices) == 0:
            raise HistoryError(f"stages {start}:{stop} of {len(self)} leave none")
        rates = self.learning_rates
        return replace(
            self,
            source=_View(self.source, indices),
            learning_rates=None if rates is None else rates[indices[0] : indices[-1]],
            notes=self.notes[start:stop],
        )

    @classmethod
    def from_arrays(
        cls,
        observations: npt.ArrayLike,
        actions: npt.ArrayLike,
        *,
        stages: npt.ArrayLike,
        episodes: npt.ArrayLike,
        features: npt.ArrayLike | None = None,
        terminated: npt.ArrayLike | None = None,
        last_observations: npt.ArrayLike | None = None,
        parameters: npt.ArrayLike | None = None,
        learning_rates: npt.ArrayLike | None = None,
        feature_names: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> LearningHistory:
        """Build a history from flat arrays: one row per step, in the order of time.

        Args:
            observations: In which the action was taken, shape (N, ...).
            actions: Shape (N,) for discrete actions (integers) or (N, k).
            stages: Stage of every row, shape (N,): 0, 1, ..., never going back.
            episodes: Episode of every row, shape (N,): any number that tells the episodes of a
                stage apart; rows of an episode are consecutive.
            features: Shape (N, q), if recorded.
            terminated: Whether the environment ended the episode with this row, shape (N,); by
                default never.
            last_observations: The state each episode ended in, shape (n_episodes, ...), if seen.
            parameters: Policy parameters of every stage, shape (m + 1, d), if known.
            learning_rates: Learning rate of every step, shape (m,), if known.
            feature_names: q names.
            metadata: Anything worth keeping about the run, JSON-serialisable.
        """
        from logel.data.arrays import history_from_arrays

        return history_from_arrays(
            observations,
            actions,
            stages=stages,
            episodes=episodes,
            features=features,
            terminated=terminated,
            last_observations=last_observations,
            parameters=parameters,
            learning_rates=learning_rates,
            feature_names=feature_names,
            metadata=metadata,
        )

    @classmethod
    def from_dataframe(
        cls,
        frame: pd.DataFrame,
        *,
        stages: pd.DataFrame | None = None,
        ignore: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> LearningHistory:
        """Build a history from a pandas table of steps; `logel.data.tables` lists the columns.

        Args:
            frame: One row per step, in the order of stage, episode and time.
            stages: A second table, one row per stage: stage, learning_rate, parameter_0, ...
            ignore: Columns to leave out.
            metadata: Anything worth keeping about the run, JSON-serialisable.
        """
        from logel.data.frames import history_from_frame

        return history_from_frame(frame, stages=stages, ignore=ignore, metadata=metadata)

    def to_dataframe(self) -> pd.DataFrame:
        """All steps as a pandas table, the inverse of `from_dataframe`."""
        from logel.data.frames import frame_of_history

        return frame_of_history(self)

    def stages_to_dataframe(self) -> pd.DataFrame | None:
        """Learning rates and parameters, one row per stage; None when neither is known."""
        from logel.data.frames import frame_of_stages

        return frame_of_stages(self)

    @classmethod
    def from_csv(
        cls,
        paths: Sequence[str | PathLike[str]] | str | PathLike[str],
        *,
        stages: str | PathLike[str] | None = None,
        ignore: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
    ) -> LearningHistory:
        """Read CSV files: one with a column `stage`, or several, one per stage.

        Args:
            paths: The file or files; `logel.data.tables` lists the columns.
            stages: A second table, one row per stage: stage, learning_rate, parameter_0, ...
            ignore: Columns to leave out.
            metadata: Anything worth keeping about the run, JSON-serialisable.
            limits: How large the files may be.
        """
        from logel.data.table_files import history_from_files

        return history_from_files(
            paths,
            file_format="csv",
            stages=stages,
            ignore=ignore,
            metadata=metadata,
            limits=limits,
        )

    @classmethod
    def from_parquet(
        cls,
        paths: Sequence[str | PathLike[str]] | str | PathLike[str],
        *,
        stages: str | PathLike[str] | None = None,
        ignore: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
    ) -> LearningHistory:
        """Read Parquet files; like `from_csv`, with the types the files declare."""
        from logel.data.table_files import history_from_files

        return history_from_files(
            paths,
            file_format="parquet",
            stages=stages,
            ignore=ignore,
            metadata=metadata,
            limits=limits,
        )

    def to_csv(self, path: str | PathLike[str]) -> None:
        """Write all steps to a new CSV file; 32-bit floats come back as 64-bit ones."""
        from logel.data.table_files import save_table

        save_table(self, path, file_format="csv")

    def to_parquet(self, path: str | PathLike[str]) -> None:
        """Write all steps to a new Parquet file."""
        from logel.data.table_files import save_table

        save_table(self, path, file_format="parquet")

    @classmethod
    def from_minari(
        cls,
        datasets: Sequence[Any],
        *,
        metadata: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        progress: Progress | None = None,
    ) -> LearningHistory:
        """Read Minari datasets, one per stage, in the order of learning.

        Only episodes are read: no environment is built from a dataset's metadata.

        Args:
            datasets: Folders, which are read without Minari, or datasets opened with it.
            metadata: Anything worth keeping about the run, JSON-serialisable.
            limits: How large the files may be.
            progress: Called after every dataset.
        """
        from logel.data.minari import history_from_minari

        return history_from_minari(datasets, metadata=metadata, limits=limits, progress=progress)

    def to_minari(
        self, folder: str | PathLike[str], *, progress: Progress | None = None
    ) -> list[Path]:
        """Write one Minari dataset per stage into a new folder.

        Features go to `infos["features"]`; rewards, which a history does not know, are NaN.
        Below ~/.minari/datasets, `minari.load_dataset("FOLDER/stage-00000-v0")` finds them.

        Args:
            folder: A new folder.
            progress: Called after every dataset.

        Returns:
            The datasets' folders.
        """
        from logel.data.minari_writing import save_minari

        return save_minari(self, folder, progress=progress)

    def save(self, path: str | PathLike[str], *, progress: Progress | None = None) -> None:
        """Write the history to a new folder; see `logel.data.folder` for the format.

        Args:
            path: The folder; it appears when everything is written.
            progress: Called after every stage.
        """
        from logel.data.folder import save_history

        save_history(self, path, progress=progress)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> LearningHistory:
        """Open a folder written by `save` or by a recorder; reads no stage data yet."""
        from logel.data.folder import load_history

        return load_history(path)


@dataclass(frozen=True)
class _View:
    """A range of another source's stages."""

    source: StageSource
    indices: range

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int, /) -> Stage:
        return self.source[self.indices[index]]


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


def check_feature_names(names: Sequence[str], n_features: int | None) -> None:
    """Refuse names that do not go with the features, or that cannot tell them apart."""
    if n_features is not None and len(names) != n_features:
        raise HistoryError(f"there are {n_features} features, but {len(names)} feature_names")
    if len(set(names)) != len(names):
        raise HistoryError(f"feature_names must differ from each other: {list(names)}")
