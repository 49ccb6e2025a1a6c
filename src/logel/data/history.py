"""The learning history of one learner, and the ways it comes in and goes out.

Shapes follow the glossary of the documentation: an episode has T times, a stage N steps in all
(the sum of its episodes' T), a history m + 1 stages and therefore m steps between stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy.typing as npt

from logel.data.arrays import stages_of_arrays
from logel.data.beside import contents_of_files, write_tables
from logel.data.contents import Contents
from logel.data.folder import read_folder, write_folder
from logel.data.frames import frame_of_stages, frame_of_steps, table_of_frame
from logel.data.limits import FilePath, Limits
from logel.data.minari import read_minari, write_minari
from logel.data.notebook import history_html, history_line
from logel.data.plots import plot_history
from logel.data.stage import Episode
from logel.data.tables import contents_of_tables
from logel.data.windows import Cut, windows_of
from logel.types import Progress

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class LearningHistory(Contents):
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
        own_episodes: Whether every step was learnt from the very episodes kept here, all of them
            and no others; their noise is then something the learner followed. None: not said.
    """

    def __repr__(self) -> str:
        return history_line(self)

    def _repr_html_(self) -> str:
        return history_html(self)

    def plot(self, axes: Any = None) -> list[Any]:
        """Draw features, lengths of episodes and returns by stage, as far as they are known.

        Needs the extra `report`. Without axes a new figure of pyplot's is made; returns the axes.
        """
        return plot_history(self, axes)

    @classmethod
    def _of(cls, contents: Contents) -> Self:
        return cls(**vars(contents))

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
        own_episodes: bool | None = None,
        action_masks: npt.ArrayLike | None = None,
    ) -> Self:
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
            own_episodes: Whether every step was learnt from the very episodes given here.
            action_masks: Which actions were legal in every row, booleans (N, n_actions), if not
                all were.
        """
        rows = (observations, actions, stages, episodes, features, terminated, last_observations)
        return cls.from_stages(
            stages_of_arrays(*rows, parameters, action_masks),
            learning_rates=learning_rates,
            feature_names=feature_names,
            metadata=metadata,
            own_episodes=own_episodes,
        )

    @classmethod
    def from_sessions(
        cls,
        episodes: Sequence[Episode],
        *,
        windows: int,
        by: Cut | str = Cut.EPISODES,
        times: npt.ArrayLike | None = None,
        feature_names: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        own_episodes: bool | None = None,
    ) -> Self:
        """Build a history from one learner's episodes, in order, that belong to no stages.

        They are cut into windows, none of them empty, which serve as stages. Whether an answer
        depends on how they are cut, `logel.check_estimate` says.

        Args:
            episodes: Bouts, trials or sessions, in the order in which they happened.
            windows: How many windows.
            by: What windows have in common: their number of "episodes"; of "trials" (actions),
                where episodes are cut at the end of a window; or their span of "time", where
                windows without an episode are left out.
            times: When each episode began, shape (n_episodes,), in any unit; for "time" only.
            feature_names: q names.
            metadata: Anything worth keeping about the run, JSON-serialisable.
            own_episodes: Whether the learner learnt from these very episodes, all of them and no
                others. None: not said.
        """
        cut = windows_of(episodes, windows, by=by, times=times)
        # That other windows could be tried is worth knowing.
        noted = {**(metadata or {}), "cut_by": Cut(by).value}
        return cls.from_episodes(
            cut, feature_names=feature_names, metadata=noted, own_episodes=own_episodes
        )

    def with_windows(self, windows: int, *, by: Cut | str = Cut.EPISODES) -> Self:
        """The same episodes in another number of stages, without what was known of the old ones.

        By "episodes" or "trials"; see `from_sessions`.
        """
        episodes = [episode for stage in self for episode in stage.episodes]
        cut = windows_of(episodes, windows, by=by)
        made = type(self).from_episodes(
            cut,
            feature_names=self.feature_names,
            metadata=self.metadata,
            own_episodes=self.own_episodes,
        )
        return replace(made, complete=self.complete)

    @classmethod
    def from_dataframe(
        cls,
        frame: pd.DataFrame,
        *,
        stages: pd.DataFrame | None = None,
        ignore: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> Self:
        """Build a history from a pandas table of steps; see `from_csv` for the arguments."""
        steps = table_of_frame(frame, "the frame", ignore)
        second = None if stages is None else table_of_frame(stages, "the table of stages")
        return cls._of(contents_of_tables(steps, second, metadata))

    def to_dataframe(self) -> pd.DataFrame:
        """All steps as a pandas table, the inverse of `from_dataframe`."""
        return frame_of_steps(self)

    def stages_to_dataframe(self) -> pd.DataFrame | None:
        """Learning rates and parameters, one row per stage; None when neither is known."""
        return frame_of_stages(self)

    @classmethod
    def from_csv(
        cls,
        paths: Sequence[FilePath] | FilePath,
        *,
        stages: FilePath | None = None,
        ignore: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Read CSV files: one with a column `stage`, or several, one per stage.

        What `to_csv` wrote beside a single table is read with it.

        Args:
            paths: One row per step, in the order of stage, episode and time; `logel.data.tables`
                lists the columns.
            stages: A second table, one row per stage: stage, learning_rate, parameter_0, ...
            ignore: Columns to leave out.
            metadata: Anything worth keeping about the run, JSON-serialisable.
            limits: How large the files may be.
            progress: Called after every file.
        """
        rest = (stages, ignore, metadata, limits, progress)
        return cls._of(contents_of_files("csv", paths, *rest))

    @classmethod
    def from_parquet(
        cls,
        paths: Sequence[FilePath] | FilePath,
        *,
        stages: FilePath | None = None,
        ignore: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Read Parquet files; like `from_csv`, with the types the files declare."""
        rest = (stages, ignore, metadata, limits, progress)
        return cls._of(contents_of_files("parquet", paths, *rest))

    def to_csv(self, path: FilePath) -> list[Path]:
        """Write all steps to a new CSV file, and what is no step beside it; return their paths.

        `steps.csv` gets `steps-stages.csv`, with parameters and learning rates if they are known,
        and `steps.csv.about.json`, with metadata and notes: `from_csv("steps.csv")` reads all.
        """
        return write_tables(self, path, "csv")

    def to_parquet(self, path: FilePath) -> list[Path]:
        """Write all steps to a new Parquet file, and the rest beside it, as `to_csv` does."""
        return write_tables(self, path, "parquet")

    @classmethod
    def from_minari(
        cls,
        datasets: Sequence[Any],
        *,
        metadata: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Read Minari datasets, one per stage, in the order of learning.

        Only episodes are read: no environment is built from a dataset's metadata.

        Args:
            datasets: Folders, which are read without Minari, or datasets opened with it.
            metadata: Anything worth keeping about the run, JSON-serialisable.
            limits: How large the files may be.
            progress: Called after every dataset.
        """
        return cls._of(read_minari(datasets, metadata or {}, limits, progress))

    def to_minari(self, folder: FilePath, *, progress: Progress | None = None) -> list[Path]:
        """Write one Minari dataset per stage into a new folder, and return their folders.

        Features go to `infos["features"]`; rewards, which a history does not know, are NaN.
        Below ~/.minari/datasets, `minari.load_dataset("FOLDER/stage-00000-v0")` finds them.
        `progress` is called after every dataset.
        """
        return write_minari(self, folder, progress)

    def save(self, path: FilePath, *, progress: Progress | None = None) -> None:
        """Write the history to a new folder, which appears when everything is written.

        `logel.data.folder` describes the format; `progress` is called after every stage.
        """
        write_folder(self, path, progress)

    @classmethod
    def load(cls, path: FilePath) -> Self:
        """Open a folder written by `save` or by a recorder; reads no stage data yet."""
        return cls._of(read_folder(path))
