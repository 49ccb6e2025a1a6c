"""A first look at a history, before any inference: what is in it, and what looks wrong.

Everything is a sum or a quantile per stage, so a history that does not fit in memory can be
inspected. Nothing here estimates a reward.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from logel.data.contents import Contents
from logel.data.observations import in_words
from logel.data.stage import Signature, Stage
from logel.types import Array

# A value this many times the central 98% away from the median is more likely a mistake than a tail.
_OUTLIER = 1000.0
# A combination of standardised features with less variance than this is constant up to rounding.
_COLLINEAR = 1e-10
# Below this many standard errors a change of the mean features is no sign of learning.
_NOTICEABLE = 2.0
# Between features whose spreads are further apart, what is 1 to one is rounding to the other.
_SCALES_APART = 1e6


@dataclass(frozen=True)
class StageOverview:
    """One stage in numbers.

    Attributes:
        episodes: Number of episodes.
        steps: Number of steps.
        lengths: Shortest, mean and longest episode.
        terminated: Share of episodes the environment ended.
        last_observations: Whether the state after the last action was seen.
        feature_means: Mean of every feature over the steps, or None.
        mean_return: Mean return, if the recording noted it.
        movement: How far the policy moved since the stage before; None if unknown or first.
            Infinite when features that never vary inside a stage differ between the two.
    """

    episodes: int
    steps: int
    lengths: tuple[int, float, int]
    terminated: float
    last_observations: bool
    feature_means: tuple[float, ...] | None
    mean_return: float | None
    movement: float | None


@dataclass(frozen=True)
class HistoryOverview:
    """What is in a history, stage by stage, and what looks wrong.

    Attributes:
        observations: Kind and shape of the observations, in words.
        actions: Kind and shape of the actions, in words.
        feature_names: q names, or None when no features were recorded.
        n_parameters: Number of policy parameters, or None when they are unknown.
        learning_rates_known: Whether learning rates were recorded.
        complete: Whether the recording ended normally.
        own_episodes: Whether the learner learnt from these very episodes; None: not said.
        movement: What the stages' `movement` measures.
        stages: One overview per stage.
        problems: Sentences; none if nothing looks wrong.
        metadata: What the recording noted.
    """

    observations: str
    actions: str
    feature_names: tuple[str, ...] | None
    n_parameters: int | None
    learning_rates_known: bool
    complete: bool
    own_episodes: bool | None
    movement: str
    stages: tuple[StageOverview, ...]
    problems: tuple[str, ...]
    metadata: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; an infinite movement, or what is not a number, becomes None."""
        return {name: _plain(value) for name, value in asdict(self).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _Moments:
    """Running means and products of the features of all stages, about the first stage's mean."""

    def __init__(self, q: int) -> None:
        self.count, self.sum, self.products = 0, np.zeros(q), np.zeros((q, q))
        self.low, self.high = np.full(q, np.inf), np.full(q, -np.inf)
        self.centre: Array | None = None

    def add(self, features: Array) -> None:
        values = features.astype(np.float64)
        self.low = np.minimum(self.low, values.min(axis=0))
        self.high = np.maximum(self.high, values.max(axis=0))
        if self.centre is None:
            self.centre = values.mean(axis=0)
        values = values - self.centre
        self.count += len(values)
        self.sum += values.sum(axis=0)
        self.products += values.T @ values

    def covariance(self) -> Array:
        mean = self.sum / self.count
        return self.products / self.count - np.outer(mean, mean)


def inspect_history(history: Contents) -> HistoryOverview:
    """Look at every stage once."""
    names = _names(history)
    moments = _Moments(len(names or ()))
    stages: list[StageOverview] = []
    outliers: list[str] = []
    whole = {"observations": True, "actions": True}
    before: Stage | None = None
    for t, stage in enumerate(history):
        if stage.features is not None:
            moments.add(stage.features)
        outliers += _outliers(stage, t, names)
        whole = {part: so_far and _whole(getattr(stage, part)) for part, so_far in whole.items()}
        stages.append(_stage_overview(history, stage, t, before))
        before = stage
    n_parameters = None if before is None else before.n_parameters
    return HistoryOverview(
        observations=_describe(history.signature, "observation"),
        actions=_describe(history.signature, "action"),
        feature_names=names,
        n_parameters=n_parameters,
        learning_rates_known=history.learning_rates is not None,
        complete=history.complete,
        own_episodes=history.own_episodes,
        movement=_measured(parameters=n_parameters is not None, features=names is not None),
        stages=tuple(stages),
        problems=(
            *_stage_problems(history, stages, known=n_parameters is not None),
            *([] if names is None else _feature_problems(moments, names)),
            *outliers,
            *_kind_problems(whole),
        ),
        metadata=dict(history.metadata),
    )


def _measured(*, parameters: bool, features: bool) -> str:
    if parameters:
        return "distance between consecutive parameters"
    if features:
        return "largest change of a feature's mean total per episode, in standard errors"
    return "unknown: neither parameters nor features are recorded"


def _names(history: Contents) -> tuple[str, ...] | None:
    q = history.signature.n_features
    if q is None:
        return None
    return history.feature_names or tuple(f"feature {k}" for k in range(q))


def _describe(signature: Signature, part: str) -> str:
    if part == "observation" and signature.observation_parts is not None:
        return in_words(signature.observation_parts)
    discrete = getattr(signature, f"discrete_{part}s")
    shape: tuple[int, ...] = getattr(signature, f"{part}_shape")
    kind = "whole numbers" if discrete else "floats"
    return kind if shape == () else f"{kind}, {' x '.join(map(str, shape))} each"


def _stage_overview(
    history: Contents, stage: Stage, index: int, before: Stage | None
) -> StageOverview:
    lengths = stage.lengths
    return StageOverview(
        episodes=stage.n_episodes,
        steps=stage.n_steps,
        lengths=(int(lengths.min()), float(lengths.mean()), int(lengths.max())),
        terminated=float(stage.terminated.mean()),
        last_observations=stage.last_observations is not None,
        feature_means=None
        if stage.features is None
        else tuple(float(x) for x in stage.features.mean(axis=0, dtype=np.float64)),
        mean_return=_mean_return(history, index),
        movement=None if before is None else _movement(before, stage),
    )


def _mean_return(history: Contents, index: int) -> float | None:
    """What a recorder noted of the stage, or an import of all stages; both may hold anything."""
    noted = history.notes[index].get("mean_return") if history.notes else None
    returns = history.metadata.get("mean_returns")
    if noted is None and isinstance(returns, list) and len(returns) == len(history):
        noted = returns[index]
    if isinstance(noted, bool) or not isinstance(noted, int | float):
        return None
    try:
        return float(noted)
    except OverflowError:
        return None


def _movement(before: Stage, after: Stage) -> float | None:
    if before.parameters is not None and after.parameters is not None:
        return float(np.linalg.norm(after.parameters - before.parameters))
    if before.features is None or after.features is None:
        return None
    if min(before.n_episodes, after.n_episodes) < 2:
        return None
    totals = [
        np.add.reduceat(features.astype(np.float64), starts, axis=0)
        for features, starts in ((before.features, before.starts), (after.features, after.starts))
    ]
    change = totals[1].mean(axis=0) - totals[0].mean(axis=0)
    error = np.sqrt(sum(t.var(axis=0, ddof=1) / len(t) for t in totals))
    moved = np.abs(change) > 0
    if (moved & (error == 0)).any():
        return float("inf")
    return float(np.max(np.abs(change[moved]) / error[moved], initial=0.0))


# --- what looks wrong -----------------------------------------------------------------------


def _stage_problems(
    history: Contents, stages: Sequence[StageOverview], *, known: bool
) -> list[str]:
    single = _have(stage.episodes == 1 for stage in stages)
    unseen = _have(not stage.last_observations for stage in stages)
    still = _have(known and stage.movement == 0 for stage in stages)
    problems = {
        "the recording was interrupted: later stages may be missing": not history.complete,
        "there is one stage only: learning is seen between stages, so record more": len(stages) < 2,
        f"{single} a single episode: nothing tells how much chance there is in it": single,
        f"{unseen} no last observations: features that look at the next state cannot be computed "
        "there": unseen,
        f"{still} the parameters of the stage before: the learner did not move": still,
        "no step changes the mean features by more than chance would (all below "
        f"{_NOTICEABLE:g} standard errors): record more episodes, or stages further apart": (
            not known and _only_chance(stages)
        ),
        "no features are recorded: pass features=... when you infer a reward": (
            history.signature.n_features is None
        ),
    }
    return [problem for problem, found in problems.items() if found]


def _only_chance(stages: Sequence[StageOverview]) -> bool:
    sizes = [stage.movement for stage in stages if stage.movement is not None]
    return bool(sizes) and max(sizes) < _NOTICEABLE


def _feature_problems(moments: _Moments, names: Sequence[str]) -> list[str]:
    constant = moments.low == moments.high
    problems = [
        f"feature {name!r} is {low:g} in every step: its weight cannot be found"
        for name, low, same in zip(names, moments.low, constant, strict=True)
        if same
    ]
    varying = np.flatnonzero(~constant)
    covariance = moments.covariance()[np.ix_(varying, varying)]
    deviations = np.sqrt(np.clip(np.diag(covariance), 0, None))
    if len(varying) and deviations.min() > 0:
        problems += _collinear(covariance, deviations, [names[int(k)] for k in varying])
        if deviations.max() > _SCALES_APART * deviations.min():
            wide, narrow = (
                names[int(varying[pick(deviations)])] for pick in (np.argmax, np.argmin)
            )
            problems.append(
                f"feature {wide!r} varies {deviations.max() / deviations.min():.0e} times as much "
                f"as {narrow!r}: bring features to similar scales"
            )
    return problems


def _collinear(covariance: Array, deviations: Array, names: Sequence[str]) -> list[str]:
    correlation = covariance / np.outer(deviations, deviations)
    values, vectors = np.linalg.eigh(correlation)
    n = int((values < _COLLINEAR).sum())
    if n == 0:
        return []
    space = vectors[:, :n]
    involved = [name for name, row in zip(names, space, strict=True) if np.linalg.norm(row) > 1e-4]
    if n > 1:
        return [
            f"{n} combinations of the features {', '.join(involved)} are the same in every step: "
            "only the other combinations of their weights can be found"
        ]
    weights = space[:, 0] / deviations
    weights = weights / weights[np.argmax(np.abs(weights))]
    terms = [f"{w:+.3g} {name}" for w, name in zip(weights, names, strict=True) if abs(w) > 1e-4]
    return [
        f"{' '.join(terms)} is the same in every step: the weights of {', '.join(involved)} can be "
        "found up to a common shift along it"
    ]


def _outliers(stage: Stage, index: int, names: Sequence[str] | None) -> list[str]:
    """One sentence for the wildest entry of observations, actions and features each."""
    problems = []
    for part in ("observation", "action", "feature"):
        values = getattr(stage, f"{part}s")
        if values is None or values.dtype.kind != "f" or len(values) < 100:
            continue
        table = values.reshape(len(values), -1).astype(np.float64)
        low, middle, high = np.quantile(table, (0.01, 0.5, 0.99), axis=0)
        spread = high - low
        ratio = np.abs(table - middle) / np.where(spread > 0, spread, np.inf)
        row, column = (int(i) for i in np.unravel_index(np.argmax(ratio), ratio.shape))
        if ratio[row, column] > _OUTLIER:
            episode = int(np.searchsorted(stage.starts, row, side="right")) - 1
            called = repr(names[column]) if part == "feature" and names else str(column)
            problems.append(
                f"stage {index}, episode {episode}, time {row - stage.starts[episode]}: {part} "
                f"{called} is {table[row, column]:g}, while 98% of its values lie between "
                f"{low[column]:g} and {high[column]:g}"
            )
    return problems


def _whole(values: Array) -> bool:
    return values.dtype.kind == "f" and values.ndim == 1 and bool((values == np.rint(values)).all())


def _kind_problems(whole: Mapping[str, bool]) -> list[str]:
    return [
        f"{part} are floats, but all of them are whole: if they are choices, store them as integers"
        for part, always in whole.items()
        if always
    ]


def _have(flags: Iterable[bool], most: int = 6) -> str:
    """In words: stage 3 has; stages 0, 1 and 4 have; stages 0, 1, 2, 3, 4 and 17 more have."""
    numbers = [str(t) for t, flag in enumerate(flags) if flag]
    if len(numbers) < 2:
        return "".join(f"stage {number} has" for number in numbers)
    if len(numbers) > most:
        numbers[most - 1 :] = [f"{len(numbers) - most + 1} more"]
    return f"stages {', '.join(numbers[:-1])} and {numbers[-1]} have"
