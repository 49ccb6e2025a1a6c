"""Reward features phi(s, a, s'): the vocabulary in which a reward is expressed.

A feature set is any object with `names` that maps a batch of transitions to a table (N, q); the
classes here cover the paper's experiments and compose. To add one, write a frozen dataclass with
`names` and `__call__`; nothing needs to be registered. One that asks for `terminated`, `truncated`
or `times` by these names gets them too (`logel.data.facts`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from logel.data.facts import call_with_facts
from logel.data.history import LearningHistory
from logel.data.stage import Stage
from logel.errors import LogelError, OptionError, one_line
from logel.types import Array, FeatureFunction, Float

Rows = Sequence[Any] | Array
Infos = Sequence[dict[str, Any]]


class RewardFeatures(Protocol):
    """Anything that computes named features of transitions, vectorised over rows."""

    @property
    def names(self) -> tuple[str, ...]:
        """One name per feature."""

    def __call__(self, observations: Array, actions: Array, next_observations: Array, /) -> Float:
        """Features, shape (N, q), of N transitions."""


class AskingFeatures(Protocol):
    """The same for functions that must be told how steps end (`logel.data.facts`)."""

    @property
    def names(self) -> tuple[str, ...]:
        """One name per feature."""

    def __call__(
        self, observations: Array, actions: Array, next_observations: Array, /, terminated: Array
    ) -> Float:
        """Features, shape (N, q), of N transitions."""


@dataclass(frozen=True, eq=False)
class OneHotAreas:
    """One indicator per area of a discrete world, of the state *arrived at*.

    Attributes:
        areas: Area index of every state, shape (n_states,).
        names: One name per area.
    """

    areas: Array
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        areas = np.asarray(self.areas)
        if areas.min() < 0 or areas.max() >= len(self.names):
            raise OptionError(f"areas must lie in 0..{len(self.names) - 1}, one name for each")

    def __call__(self, observations: Array, actions: Array, next_observations: Array, /) -> Float:
        """Features, shape (N, q), of N transitions."""
        return np.eye(len(self.names))[np.asarray(self.areas)[next_observations]]


@dataclass(frozen=True)
class RBFGrid:
    """Gaussian bumps on a regular grid over some coordinates of the next observation.

    Attributes:
        low: Lower edge of the grid in every coordinate.
        high: Upper edge.
        points: Number of centres along each coordinate.
        columns: Which coordinates of the observation span the grid.
        variance: Of each bump; by default the squared spacing of the centres.
    """

    low: float
    high: float
    points: int
    columns: tuple[int, ...]
    variance: float | None = None

    @cached_property
    def centres(self) -> Float:
        """Shape (points ** n_columns, n_columns)."""
        axis = np.linspace(self.low, self.high, self.points)
        mesh = np.meshgrid(*[axis] * len(self.columns), indexing="ij")
        return np.stack(mesh, axis=-1).reshape(-1, len(self.columns))

    @property
    def names(self) -> tuple[str, ...]:
        """Each bump is named after its centre."""
        return tuple(f"rbf({', '.join(f'{x:+.3g}' for x in c)})" for c in self.centres)

    def __call__(self, observations: Array, actions: Array, next_observations: Array, /) -> Float:
        """Features, shape (N, q), of N transitions."""
        spacing = (self.high - self.low) / (self.points - 1)
        variance = spacing**2 if self.variance is None else self.variance
        offsets = np.asarray(next_observations)[:, None, list(self.columns)] - self.centres
        return np.asarray(np.exp(-0.5 * (offsets**2).sum(axis=-1) / variance))


@dataclass(frozen=True)
class ActionCost:
    """Squared norm of a continuous action."""

    names: tuple[str, ...] = ("|action|^2",)

    def __call__(self, observations: Array, actions: Array, next_observations: Array, /) -> Float:
        """Features, shape (N, q), of N transitions."""
        flat = np.asarray(actions, dtype=np.float64).reshape(len(actions), -1)
        return np.asarray((flat**2).sum(axis=1, keepdims=True))


@dataclass(frozen=True)
class Ended:
    """1 where a step ends its episode for good, 0 elsewhere; a time limit does not count.

        Concatenate((Ended("crashed", lambda last: last[:, 1] < 0.0), ActionCost()))

    Attributes:
        name: What such an end is called.
        where: Which last observations count, booleans (N,) from (N, ...); None: all.
    """

    name: str = "ended"
    where: Callable[[Array], Array] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The one name."""
        return (self.name,)

    def __call__(
        self, observations: Array, actions: Array, next_observations: Array, /, terminated: Array
    ) -> Float:
        """Features, shape (N, 1), of N transitions."""
        counted = np.asarray(terminated, dtype=bool)
        if self.where is not None:
            counted = counted & np.asarray(self.where(np.asarray(next_observations)), dtype=bool)
        return counted.astype(np.float64)[:, None]


@dataclass(frozen=True)
class FunctionFeatures:
    """A plain function with names for its columns; it may ask for facts (`logel.data.facts`)."""

    function: FeatureFunction
    names: tuple[str, ...]

    def __call__(
        self, observations: Array, actions: Array, next_observations: Array, /, **facts: Array
    ) -> Float:
        """Features, shape (N, q), of N transitions; facts as in `logel.data.facts`."""
        arrays = (observations, actions, next_observations)
        values = np.asarray(call_with_facts(self.function, *arrays, **facts), dtype=float)
        if values.size != len(actions) * len(self.names):
            raise OptionError(
                f"the feature function must return {len(self.names)} columns "
                f"({', '.join(self.names)}) for {len(actions)} transitions, but returned shape "
                f"{values.shape}"
            )
        return values.reshape(len(actions), len(self.names))


@dataclass(frozen=True)
class Concatenate:
    """Several feature sets side by side."""

    parts: tuple[RewardFeatures | AskingFeatures, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The parts' names, in order."""
        return tuple(name for part in self.parts for name in part.names)

    def __call__(
        self, observations: Array, actions: Array, next_observations: Array, /, **facts: Array
    ) -> Float:
        """Features, shape (N, q), of N transitions; facts as in `logel.data.facts`."""
        arrays = (observations, actions, next_observations)
        tables = [call_with_facts(part, *arrays, **facts) for part in self.parts]
        return np.concatenate(tables, axis=1)


@dataclass(frozen=True)
class StepFeatures:
    """Features of single steps of an environment, which may look at the step's `info`.

    Attributes:
        function: Maps (observation, action, next_observation, info) of one step to q numbers.
            Observations are the environment's own, the action is the one it received.
        names: One name per feature.
        batch: The same for N steps at once, if that is faster: maps (observations, actions,
            next_observations, infos) to (N, q).
    """

    function: Callable[[Any, Any, Any, dict[str, Any]], npt.ArrayLike]
    names: tuple[str, ...]
    batch: Callable[[Array, Array, Array, Infos], npt.ArrayLike] | None = None

    def __call__(
        self, observation: Any, action: Any, next_observation: Any, info: dict[str, Any], /
    ) -> Float:
        """Features of one step, shape (q,)."""
        values = np.asarray(self.function(observation, action, next_observation, info), dtype=float)
        if values.shape != (len(self.names),):
            raise OptionError(
                f"the feature function must return {len(self.names)} numbers "
                f"({', '.join(self.names)}), but returned shape {values.shape}"
            )
        return values

    def rows(self, before: Rows, actions: Rows, after: Rows, infos: Infos) -> Float:
        """Features of N steps, shape (N, q), from what was observed before and after each."""
        if self.batch is None:
            steps = zip(before, actions, after, infos, strict=True)
            return np.array([self(*step) for step in steps])
        arrays = np.asarray(before), np.asarray(actions), np.asarray(after)
        values = np.asarray(self.batch(*arrays, infos))
        if values.shape != (len(infos), len(self.names)):
            raise OptionError(
                f"the feature function must return {len(self.names)} numbers for each of "
                f"{len(infos)} steps, but returned shape {values.shape}"
            )
        return values


def feature_names(history: LearningHistory, features: Any, n_features: int) -> tuple[str, ...]:
    """Names from the callable, else from the history, else numbered."""
    names, recorded = getattr(features, "names", None), history.feature_names
    # A bare callable takes the history's names if they can be its own.
    if names is None and recorded and (features is None or len(recorded) == n_features):
        names = recorded
    if names is None:
        return tuple(f"feature {j}" for j in range(n_features))
    if len(names) != n_features:
        raise OptionError(f"there are {n_features} features, but {len(names)} names: {list(names)}")
    return tuple(names)


def featured(stage: Stage, features: Any, index: int, offset: Float | None = None) -> Stage:
    """The stage with features: recorded ones, or computed when a callable is given.

    Errors name the stage by its index; the offset, shape (q,), is subtracted.
    """
    if isinstance(features, StepFeatures):
        raise OptionError(
            f"the features {', '.join(features.names)} look at each step's info, which a history "
            "does not hold: record them while the learner learns, or write a function of "
            "(observations, actions, next_observations)"
        )
    if features is not None:
        stage = _with_computed(stage, features, index)
    if stage.features is None:
        raise OptionError(
            f"stage {index} has no recorded features: pass features=, a callable of "
            "(observations, actions, next_observations), or --features module:function on the "
            "command line"
        )
    if offset is None:
        return stage
    return replace(stage, features=stage.features.astype(float) - offset)


def _with_computed(stage: Stage, features: Any, index: int) -> Stage:
    """With features of a function, which may be made for another world than the history's."""
    try:
        return stage.with_features(features)
    except LogelError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        told = ", ".join(getattr(features, "names", ())) or getattr(features, "__name__", "given")
        shapes = [_shape(stage.observations, "observations"), _shape(stage.actions, "actions")]
        raise OptionError(
            f"stage {index}: the features {told} cannot be computed from "
            f"{' and '.join(shapes)} ({one_line(error)}): take features that are "
            "made for this history"
        ) from error


def _shape(values: Array, what: str) -> str:
    """What one step's observation or action looks like."""
    width = values.shape[1:]
    if width:
        return f"{what} of shape {width}"
    return f"{what} that are {'whole' if values.dtype.kind in 'iu' else 'single'} numbers"
