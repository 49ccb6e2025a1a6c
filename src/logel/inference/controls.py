"""Controls of an estimate: what else is inferred beside it, and what each answer means.

A control re-runs the inference where the answer ought to be gone, or to be the same. Outcomes
follow from the weights and intervals that came out; like verdicts they are never stored.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from logel.data.contents import View
from logel.data.history import LearningHistory
from logel.data.limits import listed
from logel.data.stage import Stage, StageSource
from logel.data.windows import Cut
from logel.errors import LogelError, OptionError, one_line
from logel.inference.contrast import Contrast
from logel.inference.estimate import RewardEstimate
from logel.inference.null import CONVINCING
from logel.inference.verdict import LEVEL, doubt_of, signs_of
from logel.rewards.features import feature_names, featured
from logel.types import Array, FeatureFunction, Flags, Float

# Decoys are wanted if an interval excludes zero that would do so by accident once in a hundred
# checks, however many decoys there are.
_BY_ACCIDENT = 0.01
# Orders of the stages that are tried, and stages that are left out, at most.
_SHUFFLES, _MOST_LEFT_OUT = 3, 12
# Draws of an order before any will do.
_TRIES = 200


class Outcome(enum.Enum):
    """What a control says; the value is the word for it."""

    PASSED = "passed"
    FAILED = "failed"
    SILENT = "says nothing"


@dataclass(frozen=True, eq=False)
class Variant:
    """What one inference of a control gave.

    Attributes:
        name: What was changed.
        doubt: Why its weights are not to be trusted, or why there are none; empty if they are.
        weights: Shape (q,), or (q + decoys,); not-a-number where there is no answer.
        low: Lower ends of their 95% intervals (of decoys: at the level that allows for several).
        high: Upper ends.
        gain: Log evidence of the best rule over a random walk, in nats; not-a-number where the
            method has none.
    """

    name: str
    doubt: str
    weights: Float
    low: Float
    high: Float
    gain: float = np.nan

    @property
    def shown(self) -> bool:
        """Whether it may be trusted and tells any sign."""
        return not self.doubt and bool(self.sure.any())

    @property
    def sure(self) -> Float:
        """Signs that are sure, whatever the doubt: +1, -1, else 0."""
        return np.asarray((self.low > 0) * 1.0 - (self.high < 0))


class Asked(NamedTuple):
    """What is inferred again, and how; `wanted` are keys of `KINDS`."""

    history: LearningHistory
    gamma: float
    features: FeatureFunction | None
    use_parameters: bool
    wanted: Sequence[str]
    quick: bool
    n_decoys: int
    windows: Sequence[int] | None
    seed: int

    def trials(self) -> dict[str, list[Trial]]:
        """Which inferences are to be made, control by control; none that has nothing to try."""
        every = {name: list(KINDS[name].trials(self)) for name in self.wanted}
        return {name: trials for name, trials in every.items() if trials}


# An inference to be made: its name, the history, and what else is asked otherwise.
Trial = tuple[str, LearningHistory, Mapping[str, Any]]
Found = tuple[Outcome, str]


class Kind(NamedTuple):
    """A control: its title, which inferences it needs, what they say, and whether it is dear."""

    title: str
    trials: Callable[[Asked], Iterator[Trial]]
    judge: Callable[[RewardEstimate, Sequence[Variant]], Found]
    dear: bool = False


def rearranged(history: LearningHistory, order: Sequence[int]) -> LearningHistory:
    """Some of the stages in an order of their own, with what is known of them and of the steps."""
    rates, forwards = history.learning_rates, all(a < b for a, b in pairwise(order))
    if rates is not None:
        # What leads from one stage to another are all steps between.
        reached = np.concatenate([[0.0], np.cumsum(rates)])[list(order)]
        rates = np.abs(np.diff(reached))
    whole = forwards and len(order) == len(history)
    return replace(
        history,
        source=View(history.source, order),
        learning_rates=rates,
        notes=tuple(history.notes[t] for t in order) if history.notes else (),
        # Nobody learns a step that is no step of theirs from any episodes.
        own_episodes=history.own_episodes if whole or not history.own_episodes else None,
    )


# --- where no reward should be found ---------------------------------------------------------


def _reversed(asked: Asked) -> Iterator[Trial]:
    order = range(len(asked.history))[::-1]
    yield "stages reversed", rearranged(asked.history, order), {}


def _shuffled(asked: Asked) -> Iterator[Trial]:
    rng = np.random.default_rng([asked.seed, 41])
    for k in range(1 if asked.quick else _SHUFFLES):
        order = _aimless(len(asked.history), rng)
        yield f"stages shuffled, {k + 1}", rearranged(asked.history, order), {}


def _aimless(n: int, rng: np.random.Generator) -> list[int]:
    """An order with as many steps forwards as backwards, so that it leads nowhere."""
    for _ in range(_TRIES):
        order = rng.permutation(n)
        if abs(np.sign(np.diff(order)).sum()) <= 1:
            break
    return [int(t) for t in order]


def _not_the_same(whole: RewardEstimate, variants: Sequence[Variant]) -> Found:
    """Whether histories that lead elsewhere are said to want the same."""
    sure = _sure(whole)
    if not sure.any():
        return Outcome.SILENT, "the estimate claims no sign that could be lost"
    claimed = [(one, names) for one in variants if (names := _claimed(whole, sure, one))]
    if 2 * len(claimed) <= len(variants):
        shown = sum(one.shown for one in variants)
        what = f"another reward is shown in {shown} of {len(variants)} runs"
        return Outcome.PASSED, what if shown else "no reward is shown"
    found = f"the sign of {listed(claimed[0][1])} is found as surely"
    gain, other = _gain(whole), float(np.max([one.gain for one, _ in claimed]))
    if not gain - other > CONVINCING:
        return Outcome.FAILED, found
    told = f"{found}, but the order that happened explains more"
    return Outcome.PASSED, f"{told}: {gain:+.0f} nats against {other:+.0f}"


def _gain(estimate: RewardEstimate) -> float:
    """Evidence of the best rule over a random walk, where the method has any."""
    return max(estimate.models.values(), default=np.nan)


def _claimed(whole: RewardEstimate, sure: Float, variant: Variant) -> list[str]:
    """Sure signs that a variant surely has, too, if it points the same way on the whole."""
    if variant.doubt or not variant.weights @ whole.weights > 0:
        return []
    same = (sure != 0) & (variant.sure == sure)
    return [name for name, is_same in zip(whole.feature_names, same, strict=True) if is_same]


def _decoys(asked: Asked) -> Iterator[Trial]:
    history, features, n = asked.history, asked.features, asked.n_decoys
    first = featured(history[0], features, 0)
    assert first.features is not None
    names = feature_names(history, features, first.features.shape[1])
    waves = _Waves.over(history, n, np.random.default_rng([asked.seed, 43]))
    source = _Decoyed(history.source, features, waves)
    made = [f"decoy {k + 1}" for k in range(n)]
    if set(made) & set(names):
        made = [f"{name} of the check" for name in made]
    decoyed = replace(
        history,
        source=source,
        signature=source[0].signature,
        feature_names=(*names, *made),
    )
    yield "decoys", decoyed, {"features": None}


class _Waves(NamedTuple):
    """Random functions of observation and action: the cosine of a random phase.

    Where numbers are real, waves are about as long as the numbers spread; integers are names, and
    their phases have nothing in common.
    """

    frequencies: Float
    shift: Float

    @classmethod
    def over(cls, history: LearningHistory, n: int, rng: np.random.Generator) -> _Waves:
        """Drawn to the measure of the first stage and the last."""
        rows = np.concatenate([_numbers(history[t]) for t in (0, len(history) - 1)])
        spread = rows.std(axis=0)
        shared = np.sqrt(max(int((spread > 0).sum()), 1))
        usual = 2.0 / (shared * np.where(spread > 0, spread, np.inf))
        whole = (rows == np.round(rows)).all(axis=0)
        size = np.where(whole, 2 * np.pi * rng.random((n, rows.shape[1])), usual)
        signs = np.where(whole, 1.0, rng.standard_normal((n, rows.shape[1])))
        return cls(size * signs, 2 * np.pi * rng.random(n))

    def __call__(self, stage: Stage) -> Float:
        return np.asarray(np.cos(_numbers(stage) @ self.frequencies.T + self.shift))


def _numbers(stage: Stage) -> Float:
    """Observation and action of every row, as numbers."""
    parts = stage.observations, stage.actions
    return np.concatenate([np.asarray(p, dtype=float).reshape(len(p), -1) for p in parts], axis=1)


@dataclass(frozen=True)
class _Decoyed:
    """Stages with further features."""

    source: StageSource
    features: FeatureFunction | None
    waves: _Waves

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int, /) -> Stage:
        stage = featured(self.source[index], self.features, index)
        assert stage.features is not None
        return replace(stage, features=np.hstack([stage.features, self.waves(stage)]))


def _unwanted(whole: RewardEstimate, variants: Sequence[Variant]) -> Found:
    """Whether what the learner cannot want is left alone."""
    (found,), q = variants, len(whole.weights)
    low, high = found.low[q:], found.high[q:]
    if found.doubt:
        return Outcome.SILENT, f"beside decoys nothing is shown: {found.doubt}"
    # Of no width: inside the gauge. As wide as the largest weight is long: nothing is known.
    reach = np.abs([low, high]).max(axis=0)
    if not ((reach > 0) & (reach < np.abs(whole.weights).max())).any():
        return Outcome.SILENT, "the data do not tell whether decoys are wanted"
    told = listed(
        f"{w:+.2f} ({a:+.2f} to {b:+.2f})"
        for w, a, b in zip(found.weights[q:], low, high, strict=True)
    )
    if ((low > 0) | (high < 0)).any():
        return Outcome.FAILED, f"a decoy is wanted: {told}"
    return Outcome.PASSED, f"decoys are not wanted: {told}"


# --- where the same should be found ----------------------------------------------------------


def _halves(asked: Asked) -> Iterator[Trial]:
    n = len(asked.history)
    yield "first half", asked.history.slice(0, n // 2 + 1), {}
    yield "second half", asked.history.slice(n // 2), {}


def _alike(whole: RewardEstimate, variants: Sequence[Variant]) -> Found:
    """Whether both halves can have the same weights, in what both can tell.

    Halves may be too short for their status. Then a difference counts where signs turn round, each
    sure in its half.
    """
    one, two, difference = variants
    if not (one.sure.any() or two.sure.any()) or not np.isfinite(difference.low).all():
        return Outcome.SILENT, "halves tell no sign"
    apart = difference.sure != 0
    if difference.doubt:
        apart &= one.sure * two.sure < 0
    if apart.any():
        return Outcome.FAILED, f"the halves contradict each other in {_names(whole, apart)}"
    return Outcome.PASSED, "the halves do not contradict each other"


def _other_gammas(asked: Asked) -> Iterator[Trial]:
    """Half the horizon, and twice."""
    reach = 1 - asked.gamma
    for gamma in sorted({max(1 - 2 * reach, 0.0), 1 - reach / 2} - {asked.gamma}):
        yield f"gamma {gamma:.4g}", asked.history, {"gamma": gamma}


def _without_a_stage(asked: Asked) -> Iterator[Trial]:
    n = len(asked.history)
    for t in np.unique(np.linspace(0, n - 1, _MOST_LEFT_OUT).round().astype(int)):
        order = [i for i in range(n) if i != t]
        yield f"without stage {t}", rearranged(asked.history, order), {}


def _in_windows(asked: Asked) -> Iterator[Trial]:
    """Episodes that were cut into windows, cut otherwise."""
    by = asked.history.metadata.get("cut_by")
    if asked.windows is None and by is None:
        return
    by = Cut.TRIALS if by == Cut.TRIALS else Cut.EPISODES
    for n in _numbers_of_windows(asked.history, asked.windows):
        yield f"{n} windows", asked.history.with_windows(n, by=by), {"use_parameters": False}


def _numbers_of_windows(history: LearningHistory, others: Sequence[int] | None) -> Sequence[int]:
    """As asked, else half as many and twice as many as far as there are episodes."""
    now = len(history)
    if others is None:
        most = sum(stage.n_episodes for stage in history)
        return [n for n in (now // 2, 2 * now) if 2 <= n <= most and n != now]
    if bad := [n for n in others if n < 2 or n == now]:
        raise OptionError(f"other windows are at least 2 and not the {now} there are: {bad}")
    return others


def _the_same(whole: RewardEstimate, variants: Sequence[Variant]) -> Found:
    """Whether the same data cut otherwise give weights within each other's intervals."""
    told = [one for one in variants if not one.doubt and np.isfinite(one.low).all()]
    if not (_sure(whole).any() and told):
        return Outcome.SILENT, "nothing is shown that could differ"
    low, high = whole.interval(LEVEL).T
    for one in told:
        outside = (one.weights < low) | (one.weights > high)
        apart = outside & ((whole.weights < one.low) | (whole.weights > one.high))
        if apart.any():
            return (
                Outcome.FAILED,
                f"with {one.name} the weight of {_names(whole, apart)} is another",
            )
    return Outcome.PASSED, f"the same within intervals with {listed(one.name for one in told)}"


def _not_turned(whole: RewardEstimate, variants: Sequence[Variant]) -> Found:
    """Whether sure signs stay what they are, as far as the others are sure."""
    sure = _sure(whole)
    told = [one for one in variants if not one.doubt]
    if not (sure.any() and told):
        return Outcome.SILENT, "nothing is shown that could differ"
    turned = {
        one.name: _names(whole, sure * one.sure < 0) for one in told if (sure * one.sure < 0).any()
    }
    if turned:
        said = "; ".join(f"with {name} that of {names}" for name, names in turned.items())
        return Outcome.FAILED, f"sure signs turn round: {said}"
    return Outcome.PASSED, f"no sure sign turns round in {len(told)} of {len(variants)} runs"


def _not_hanging(whole: RewardEstimate, variants: Sequence[Variant]) -> Found:
    """Whether no sure sign hangs on a single stage; weights alone count, as in halves."""
    sure = _sure(whole)
    told = [one for one in variants if np.isfinite(one.weights).all()]
    if not (sure.any() and told):
        return Outcome.SILENT, "nothing is shown that could hang on a stage"
    lost = {
        one.name: _names(whole, sure * one.weights < 0)
        for one in told
        if (sure * one.weights < 0).any()
    }
    if lost:
        said = "; ".join(f"{name} that of {names}" for name, names in list(lost.items())[:4])
        return Outcome.FAILED, f"sure signs hang on single stages: {said}"
    return Outcome.PASSED, f"no sure sign turns round, whichever of {len(told)} stages is left out"


def _sure(whole: RewardEstimate) -> Float:
    """Signs that are sure, by the rule of the verdict: +1, -1, else 0."""
    signs, result = signs_of(whole, doubt=doubt_of(whole)), np.zeros(len(whole.weights))
    result[list(signs.paid)], result[list(signs.pays)] = 1.0, -1.0
    return result


def _names(whole: RewardEstimate, which: Flags | Array) -> str:
    return listed(whole.feature_names[j] for j in np.flatnonzero(which))


KINDS: Mapping[str, Kind] = {
    "reversed": Kind("Stages reversed", _reversed, _not_the_same),
    "shuffled": Kind("Stages shuffled", _shuffled, _not_the_same),
    "decoys": Kind("Decoys", _decoys, _unwanted),
    "halves": Kind("Halves", _halves, _alike),
    "gammas": Kind("Other gammas", _other_gammas, _not_turned, dear=True),
    "windows": Kind("Other windows", _in_windows, _the_same, dear=True),
    "stages": Kind("Without a stage", _without_a_stage, _not_hanging, dear=True),
}


def variants_of(
    kind: str, whole: RewardEstimate, found: Mapping[str, RewardEstimate | str], n_decoys: int
) -> tuple[Variant, ...]:
    """What the inferences of a control gave, by name; a reason for those that could not be made."""
    n = len(whole.weights) + n_decoys * (kind == "decoys")
    made = []
    for name, one in found.items():
        if isinstance(one, str):
            made.append(_nothing(name, one, n))
        elif KINDS[kind].dear and one.gauge.n != whole.gauge.n:
            # Minimum-norm weights of different gauges are different weights.
            made.append(_nothing(name, "other combinations of weights are identified there", n))
        else:
            made.append(_variant(name, one, n_decoys * (kind == "decoys")))
    if kind == "halves":
        one, two = found.values()
        made.append(_difference(one, two, n))
    return tuple(made)


def _variant(name: str, estimate: RewardEstimate, n_decoys: int) -> Variant:
    """What an inference gave; of decoys at the level that allows for all of them."""
    ends = estimate.interval(LEVEL)
    if n_decoys:
        ends = ends.copy()
        ends[-n_decoys:] = estimate.interval(1 - _BY_ACCIDENT / n_decoys)[-n_decoys:]
    low, high = ends.T
    return Variant(name, doubt_of(estimate), estimate.weights, low, high, _gain(estimate))


def _difference(one: RewardEstimate | str, two: RewardEstimate | str, n: int) -> Variant:
    """Of the halves' weights in what both can tell, at the level that allows for all of them."""
    name = "difference of the halves"
    if isinstance(one, str) or isinstance(two, str):
        return _nothing(name, "a half has no answer", n)
    try:
        contrast = Contrast.of(one, two, names=("first half", "second half"))
        low, high = contrast.interval(1 - _BY_ACCIDENT / n).T
    except LogelError as error:
        return _nothing(name, one_line(error), n)
    return Variant(name, contrast.doubt, contrast.weights, low, high)


def _nothing(name: str, why: str, n: int) -> Variant:
    nothing = np.full(n, np.nan)
    return Variant(name, why, nothing, nothing, nothing)


def check_options(options: Mapping[str, Any], n_decoys: int, wanted: Sequence[str]) -> None:
    """Refuse what controls cannot do without."""
    if unknown := [name for name in wanted if name not in KINDS]:
        raise OptionError(f"there is no control {unknown[0]!r}: choose of {', '.join(KINDS)}")
    if options.get("intervals") is False:
        raise OptionError("controls compare intervals: leave out intervals=False")
    if n_decoys < 1:
        raise OptionError(f"n_decoys must be at least 1, but is {n_decoys}")
