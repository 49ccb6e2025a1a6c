"""What a learning history holds: its stages, fetched one at a time, and what is known of them.

Readers of files return it and writers take it; `logel.data.history` adds the ways in and out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from logel.data.limits import ask_memory, memory_budget
from logel.data.packed import Packed
from logel.data.stage import (
    Episode,
    Signature,
    Stage,
    StageSource,
    check_parameters,
    check_stage,
    frozen,
    named,
)
from logel.errors import HistoryError
from logel.types import Array, Progress


@dataclass(frozen=True, eq=False)
class Contents:
    """A learning history without its ways in and out; `LearningHistory` describes the fields."""

    source: StageSource = field(repr=False)
    signature: Signature
    learning_rates: Array | None = None
    feature_names: tuple[str, ...] | None = None
    complete: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[Mapping[str, Any], ...] = ()
    own_episodes: bool | None = None

    def __post_init__(self) -> None:
        if self.notes and len(self.notes) != len(self):
            raise HistoryError(
                f"notes must have one entry for each of the {len(self)} stages, but have "
                f"{len(self.notes)}"
            )
        check_own_episodes(self.own_episodes)
        if self.learning_rates is not None:
            rates = _checked_rates(self.learning_rates, len(self))
            object.__setattr__(self, "learning_rates", rates)
        if self.feature_names is not None:
            names = tuple(str(name) for name in self.feature_names)
            check_feature_names(names, self.signature.n_features)
            object.__setattr__(self, "feature_names", names)

    @property
    def gamma(self) -> float | None:
        """The learner's discount factor as it was recorded, or None."""
        told = self.metadata.get("gamma")
        sound = isinstance(told, int | float) and not isinstance(told, bool) and 0 <= told < 1
        return float(told) if sound else None  # type: ignore[arg-type]

    @classmethod
    def from_episodes(
        cls,
        stages: Sequence[Sequence[Episode]],
        *,
        parameters: npt.ArrayLike | None = None,
        learning_rates: npt.ArrayLike | None = None,
        feature_names: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        own_episodes: bool | None = None,
    ) -> Self:
        """Build a history in memory.

        Args:
            stages: One list of episodes per stage, in the order of learning.
            parameters: Policy parameters of every stage, shape (m + 1, d), if known.
            learning_rates: Learning rate of every step, shape (m,), if known.
            feature_names: q names; "feature 0", ... are used in reports when missing.
            metadata: Anything worth keeping about the run, JSON-serialisable.
            own_episodes: Whether every step was learnt from the very episodes given here, all of
                them and no others. None: not said.
        """
        rows = parameter_rows(parameters, len(stages))
        packed = []
        for t, (episodes, row) in enumerate(zip(stages, rows, strict=True)):
            with named(f"stage {t}"):
                if isinstance(episodes, Episode):
                    raise HistoryError(
                        "is a single episode: pass one list of episodes per stage, or episodes "
                        "that belong to no stages to LearningHistory.from_sessions"
                    )
                packed.append(Stage.from_episodes(episodes, row))
        return cls.from_stages(
            packed,
            learning_rates=learning_rates,
            feature_names=feature_names,
            metadata=metadata,
            own_episodes=own_episodes,
        )

    @classmethod
    def from_stages(
        cls,
        stages: Sequence[Stage],
        *,
        learning_rates: npt.ArrayLike | None = None,
        feature_names: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        own_episodes: bool | None = None,
    ) -> Self:
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
            metadata=dict(metadata or {}),
            own_episodes=own_episodes,
        )

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
        found = ParameterRows()
        for stage in self:
            found.add(stage)
            if stage.parameters is None:
                return None
        return found.rows

    def slice(self, start: int, stop: int | None = None) -> Self:
        """The history of stages start..stop - 1, still read on demand."""
        indices = range(len(self))[start:stop]
        if len(indices) == 0:
            raise HistoryError(f"stages {start}:{stop} of {len(self)} leave none")
        rates = self.learning_rates
        return replace(
            self,
            source=View(self.source, indices),
            # The rate of a step is kept only if both of its stages are.
            learning_rates=None if rates is None else rates[indices[0] : indices[-1]],
            notes=self.notes[start:stop],
        )


class ParameterRows:
    """Policy parameters of stages that are told one after the other."""

    def __init__(self) -> None:
        self._rows, self._n = Packed(), 0
        self._like: int | None = None

    def add(self, stage: Stage) -> None:
        """Include a stage; it must be like the first."""
        if self._n == 0:
            self._like = stage.n_parameters
        check_parameters(stage, self._n, self._like)
        self._n += 1
        if stage.parameters is not None:
            ask_memory(8 * self._n * stage.parameters.size, f"parameters of {self._n} stages")
            self._rows.add(stage.parameters[None])

    @property
    def rows(self) -> Array | None:
        """Of all stages so far, shape (n, d); None if they have none."""
        return self._rows.rows if len(self._rows) else None


def elsewhere(source: StageSource) -> StageSource | None:
    """The same stages for another process to read; None if they are in this one's memory alone."""
    told = getattr(source, "elsewhere", None)
    return None if told is None else told()


def stage_sizes(source: StageSource) -> list[float] | None:
    """Sizes of all stages relative to each other, if they are known without reading them."""
    if isinstance(source, tuple):
        return [float(stage.n_steps) for stage in source]
    told = getattr(source, "sizes", None)
    return None if told is None else told()


@dataclass(frozen=True)
class View:
    """Some of another source's stages, in an order of their own; every one fetched is told."""

    source: StageSource
    indices: Sequence[int]
    progress: Progress | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int, /) -> Stage:
        stage = self.source[self.indices[index]]
        if self.progress is not None:
            self.progress("reading", index + 1, len(self))
        return stage

    def sizes(self) -> list[float] | None:
        """See `stage_sizes`."""
        sizes = stage_sizes(self.source)
        return None if sizes is None else [sizes[t] for t in self.indices]

    def elsewhere(self) -> View | None:
        """See the function of that name; nobody is told there."""
        source = elsewhere(self.source)
        return None if source is None else View(source, self.indices)


# Share of the memory budget in which stages that were read stay at hand: reading one again takes
# less than a tenth of what is done with it, and long histories take no more memory than short ones.
_KEPT = 1 / 256
# What a stage takes beside its numbers.
_STAGE_BYTES = 2048


class Kept:
    """Another source's stages, which are read once as long as all that was read takes little."""

    def __init__(self, source: StageSource) -> None:
        self._source, self._stages = source, dict[int, Stage]()
        self._left = int(_KEPT * memory_budget())

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int, /) -> Stage:
        if (kept := self._stages.get(index)) is not None:
            return kept
        stage = self._source[index]
        arrays = (getattr(stage, f.name) for f in fields(stage))
        size = _STAGE_BYTES + sum(array.nbytes for array in arrays if array is not None)
        if size <= self._left:
            self._left -= size
            self._stages[index] = stage
        return stage

    def elsewhere(self) -> StageSource | None:
        """For another process to read, if it can."""
        return elsewhere(self._source)


def parameter_rows(parameters: npt.ArrayLike | None, n_stages: int) -> Sequence[Array | None]:
    """The parameters of every stage, out of a table with one row per stage."""
    if parameters is None:
        return [None] * n_stages
    table = frozen(parameters, "parameters", real=True)
    if table.ndim != 2 or len(table) != n_stages:
        raise HistoryError(
            f"parameters must have shape ({n_stages}, d), one row per stage, but have {table.shape}"
        )
    return list(table)


def check_feature_names(names: Sequence[str], n_features: int | None) -> None:
    """Refuse names that do not go with the features, or that cannot tell them apart."""
    if n_features is not None and len(names) != n_features:
        raise HistoryError(f"there are {n_features} features, but {len(names)} feature_names")
    check_printable(names)
    if len(set(names)) != len(names):
        raise HistoryError(f"feature_names must differ from each other: {list(names)}")


def check_printable(names: Sequence[str]) -> None:
    """Refuse names that would rewrite the terminal they are printed on."""
    if wild := [name for name in names if not name.isprintable()]:
        raise HistoryError(f"names must be printable, but {wild[0]!r:.80} has control characters")


def check_own_episodes(said: object) -> None:
    """Refuse anything but yes, no and not said: what an estimator does depends on it."""
    if said is not None and not isinstance(said, bool):
        raise HistoryError(f"own_episodes must be True, False or None, but is {said!r:.40}")


def _checked_rates(values: npt.ArrayLike, n_stages: int) -> Array:
    rates = frozen(values, "learning rates", real=True)
    if rates.shape != (n_stages - 1,):
        raise HistoryError(
            f"learning_rates must have one entry for each of the {n_stages - 1} steps between "
            f"{n_stages} stages, but have shape {rates.shape}"
        )
    if (rates <= 0).any():
        step = int(np.argmax(rates <= 0))
        raise HistoryError(f"learning rates must be positive, but step {step} has {rates[step]}")
    return rates
