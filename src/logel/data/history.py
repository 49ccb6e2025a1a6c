"""The learning history of one learner.

Shapes follow the glossary of the documentation: an episode has T times, a stage N steps in all
(the sum of its episodes' T), a history m + 1 stages and therefore m steps between stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from logel.data.stage import Episode, Signature, Stage, check_parameters, check_stage, frozen
from logel.errors import HistoryError
from logel.types import Array

if TYPE_CHECKING:
    from os import PathLike
    from pathlib import Path

    import pandas as pd

    from logel.data.limits import Limits
    from logel.types import Progress

OWN_EPISODES = "learnt_from_these_episodes"
"""Key of a history's metadata that says: every step was learnt from the very episodes kept here."""


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
            rates = frozen(self.learning_rates, "learning rates", real=True)
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
            table = frozen(parameters, "parameters", real=True)
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


def check_feature_names(names: Sequence[str], n_features: int | None) -> None:
    """Refuse names that do not go with the features, or that cannot tell them apart."""
    if n_features is not None and len(names) != n_features:
        raise HistoryError(f"there are {n_features} features, but {len(names)} feature_names")
    if len(set(names)) != len(names):
        raise HistoryError(f"feature_names must differ from each other: {list(names)}")
