"""What an estimate says, in plain words: the finding, the doubts, what to do next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from logel.inference.estimate import RewardEstimate
from logel.inference.status import Status
from logel.report.safe_text import clean, listed, number
from logel.types import Float

# A feature this much inside the gauge has no identified part worth naming.
_WHOLLY = 0.99
# A coefficient this small, beside the largest of a combination, is not worth naming.
_TERM = 0.05
# Above this, a random direction is so close to any other that the cosine is no evidence.
_TELLING = 0.5
# Features that a headline gives with their weights.
_MOST_SIZED = 3
# Multiples of the stages that are tried to settle a sign; nobody records more than the last.
_TRIED = (2, 4, 8, 16, 32, 64)
# Combinations to advise on, or to name: a page is read by people.
_MOST_COMBINATIONS = 6


class StatusWords(NamedTuple):
    """A status in two words, what it means, why not to trust the weights, and what to do next."""

    name: str
    advice: str
    doubt: str = ""
    step: str = ""


_NEGATIVE = "Treat this page as a negative result."
STATUS_WORDS = {
    Status.OK: StatusWords(
        "Solved", "The solve converged, and the design determines every direction of the weights."
    ),
    Status.RANK_DEFICIENT: StatusWords(
        "Solved in part", "That leaves the identified part as it is; the rest is named below."
    ),
    Status.UNEXPLAINED: StatusWords(
        "Not explained",
        _NEGATIVE,
        "No reward made of these features explains how the learner moved better than chance does",
        "Watch more stages or more episodes, and ask whether the features can express what the "
        "learner might want; then infer again.",
    ),
    Status.OUT_OF_SCALE: StatusWords(
        "Out of scale",
        _NEGATIVE,
        "Weights or intervals are no usable numbers",
        "Bring the column that the notes name to about unit size; then infer again.",
    ),
    Status.OTHER_EPISODES: StatusWords(
        "Other episodes",
        "Take the weights as a hint, and no interval at its word.",
        "The learner followed a critic that learnt from other episodes than these",
        "Record the learner's own episodes, every update; then infer again.",
    ),
    Status.NOT_CONVERGED: StatusWords(
        "Not converged",
        "Run the inference again with more iterations before using it.",
        step="Infer again with a larger max_iterations (joint fits: more rounds in heats).",
    ),
    Status.RATES_AT_BOUND: StatusWords(
        "Not explained",
        _NEGATIVE,
        "The learner did not move the way any reward made of these features would move it",
        "Try another learner model, or other features: none of these moves it.",
    ),
}


# Of a learner whose own update was replayed, where that says something else.
_REPLAY_WORDS = {
    Status.UNEXPLAINED: StatusWords(
        "Not explained",
        _NEGATIVE,
        "Replaying the learner's own update explains too little of how it moved",
        "Check that the learner's settings in the history are those it had, and ask whether the "
        "features can express what it might want; then infer again.",
    ),
    Status.NOT_CONVERGED: StatusWords(
        "Stuck",
        "The replayed update leaves more unexplained than another order of minibatches would.",
        "Replaying the learner's own update got stuck before it came to where the learner went",
        "Infer again with another seed, or with more fates: Method.named('replay', n_fates=8).",
    ),
}


def status_words(estimate: RewardEstimate) -> StatusWords:
    """The status in words that go with what was done."""
    usual = STATUS_WORDS[estimate.status]
    return _REPLAY_WORDS.get(estimate.status, usual) if is_replay(estimate) else usual


def is_replay(estimate: RewardEstimate) -> bool:
    """Whether the answer comes from the learner's own update, or was sought there."""
    return estimate.fit.rule == "replay" or estimate.config.get("coordinates") == "replay"


class Verdicts(NamedTuple):
    """Features by what can be said of their weights; every feature is in exactly one.

    Surely positive; surely negative; an interval that contains zero, or none; not identified.
    """

    paid: tuple[int, ...]
    pays: tuple[int, ...]
    open: tuple[int, ...]
    silent: tuple[int, ...]

    def word(self, feature: int) -> str:
        """The verdict on one feature."""
        return next(name for name, group in self._asdict().items() if feature in group)


def verdicts(estimate: RewardEstimate, level: float = 0.95) -> Verdicts:
    """Sort the features, largest weight first, by their intervals at a level."""
    low, high = estimate.interval(level).T
    silent = (estimate.gauge.directions**2).sum(axis=0) > _WHOLLY
    paid, pays = ~silent & (low > 0), ~silent & (high < 0) & ~(low > 0)
    order = np.argsort(-np.abs(estimate.weights), kind="stable")
    groups = (paid, pays, ~(silent | paid | pays), silent)
    return Verdicts(*(tuple(int(j) for j in order if group[j]) for group in groups))


def headline(estimate: RewardEstimate) -> str:
    """What was found, in one sentence."""
    doubt = status_words(estimate).doubt
    if not doubt and is_doubtful(estimate):
        doubt = (
            "The recovered reward points where the learner went no better than a random direction "
            "would"
        )
    if doubt:
        return f"{doubt}, so the weights below should not be trusted."
    if not np.isfinite(estimate.interval(0.95)).any():
        top = int(np.abs(estimate.weights).argmax())
        sign = "paid for" if estimate.weights[top] > 0 else "paying for"
        return (
            f"The learner looks as if it were {sign} "
            f"{clean(estimate.feature_names[top], longest=60)} most, but without intervals nobody "
            "can tell how sure that is."
        )
    return _signs(estimate)


def _signs(estimate: RewardEstimate) -> str:
    """Which weights are surely positive or negative, and about which nobody can tell."""
    found, names = verdicts(estimate), estimate.feature_names
    paid, pays = _sized(estimate, found.paid), _sized(estimate, found.pays)
    still_open, silent = (listed(names[j] for j in group) for group in (found.open, found.silent))
    signs = [f"is paid for {paid}"] if found.paid else []
    signs += [f"pays for {pays}"] if found.pays else []
    if not signs:
        return "These data do not tell the sign of any single weight yet."
    sentence = f"The learner {' and '.join(signs)}"
    if found.open:
        sentence += f"; the sign of {still_open} is still open"
    if found.silent:
        sentence += f"; nothing can be said about {silent}"
    return f"{sentence}."


def _sized(estimate: RewardEstimate, group: Sequence[int]) -> str:
    """Names of features, with weights and intervals as long as there are few."""
    names, ends = estimate.feature_names, estimate.interval(0.95)
    if len(group) > _MOST_SIZED:
        return listed(names[j] for j in group)
    return listed(
        f"{clean(names[j], longest=30)} ({number(estimate.weights[j])}, 95% "
        f"{number(ends[j, 0])} to {number(ends[j, 1])})"
        for j in group
    )


def qualifier(estimate: RewardEstimate) -> str:
    """How the weights are to be read: scale and gauge, in one or two sentences."""
    words = "Weights carry their own scale, since the learning rates were known."
    if estimate.scale == "unit norm":
        words = (
            "Weights have unit length: their size relative to each other means something, their "
            "absolute size does not."
        )
    shared = [c for c in combinations(estimate.gauge.directions, estimate) if c.common_level]
    if shared:
        words += (
            f" Only differences between {listed(shared[0].members, most=6)} can be seen, so each "
            "weight is to be read against their average."
        )
    return words


class Combination(NamedTuple):
    """A combination of weights that the data cannot tell, and how to speak of it.

    Its features with a coefficient worth naming, as they come and largest first; and whether it
    adds the same amount to each of several weights.
    """

    members: Sequence[str]
    largest: Sequence[str]
    common_level: bool

    @property
    def simple(self) -> bool:
        """Whether a sentence says it all: one feature, or the common level of some."""
        return len(self.members) == 1 or self.common_level

    def phrase(self) -> str:
        """The combination as part of a sentence."""
        if len(self.members) == 1:
            return f"the weight of {listed(self.members)}"
        if self.common_level:
            return f"the common level of {listed(self.members, most=6)}"
        return f"a combination of {listed(self.largest, most=5)}"

    def step(self, reason: str) -> str:
        """What to do about it."""
        names = listed(self.members)
        if len(self.members) == 1:
            return (
                f"Leave out {names}, or watch the learner where it varies: its weight is not "
                f"identified ({reason})."
            )
        if len(self.members) == 2:
            return (
                f"{names} cannot be told apart ({reason}): drop one of them, or watch the learner "
                "where they differ."
            )
        if self.common_level:
            return (
                f"Compare rewards only through differences between {listed(self.members, most=6)}, "
                "or drop one of them as the reference: their common level is not identified "
                f"({reason})."
            )
        return (
            f"One combination of {names} is not identified ({reason}): drop one of them, or watch "
            "the learner where they vary by themselves."
        )


def combinations(rows: Iterable[Float], estimate: RewardEstimate) -> list[Combination]:
    """The directions of a gauge, one per row."""
    found = []
    for row in rows:
        scaled = row / row[np.abs(row).argmax()]
        used = np.flatnonzero(np.abs(scaled) > _TERM)
        # Directions are found from sampled features, to about a percent.
        level = len(used) > 1 and bool((np.abs(scaled[used] - 1) < 0.01).all())
        order = np.argsort(-np.abs(row), kind="stable")[: len(used)]
        members, largest = ([estimate.feature_names[j] for j in js] for js in (used, order))
        found.append(Combination(members, largest, level))
    return found


def gauge_sentences(estimate: RewardEstimate) -> list[str]:
    """What is not identified, and what hardly, one short sentence for each direction."""
    gauge, most = estimate.gauge, _MOST_COMBINATIONS
    told = [
        f"Not identified: {found.phrase()}; {clean(reason)}."
        for found, reason in zip(
            combinations(gauge.directions, estimate), gauge.reasons, strict=True
        )
    ]
    told += [
        f"Hardly identified: {found.phrase()}; its effect cannot be told from the sampling noise "
        "of the Jacobians."
        for found in combinations(gauge.weak, estimate)
    ]
    if len(told) > most:
        told = [*told[: most - 1], f"And {len(told) - most + 1} more such combinations."]
    return told


def _median_cosine(estimate: RewardEstimate) -> float | None:
    """Of predicted and observed movement, or None where that is no evidence.

    With few parameters even chance comes close, and cosines say nothing either way.
    """
    cosines = estimate.fit.cosines[np.isfinite(estimate.fit.cosines)]
    if len(cosines) == 0 or estimate.fit.chance > _TELLING:
        return None
    return float(np.median(cosines))


def is_doubtful(estimate: RewardEstimate) -> bool:
    """Whether the predicted movement is no closer to the observed than chance would have it."""
    median = _median_cosine(estimate)
    return median is not None and median <= estimate.fit.chance


def status_mood(estimate: RewardEstimate) -> str:
    """How worried to be: good, fair or bad."""
    if estimate.status not in (Status.OK, Status.RANK_DEFICIENT) or is_doubtful(estimate):
        return "bad"
    return "good" if estimate.status is Status.OK and not estimate.notes else "fair"


def status_advice(estimate: RewardEstimate) -> str:
    """The status's sentence, with what it means for the reader."""
    advice = status_words(estimate).advice
    if is_doubtful(estimate):
        advice = "But the movement it predicts is not the learner's: treat it as a negative result."
    elif estimate.status is Status.OK and estimate.notes:
        advice += " Mind the warnings."
    if estimate.status is Status.OK:
        return advice
    if estimate.status is Status.NOT_CONVERGED and is_replay(estimate):
        return advice
    sentence = estimate.status.value
    return f"{sentence[0].upper()}{sentence[1:]}. {advice}"


def next_steps(estimate: RewardEstimate) -> list[str]:
    """What to do next, most pressing first."""
    gauge = estimate.gauge
    rows, reasons = gauge.directions[:_MOST_COMBINATIONS], gauge.reasons[:_MOST_COMBINATIONS]
    unidentified = zip(combinations(rows, estimate), reasons, strict=True)
    steps = [
        status_words(estimate).step,
        *(found.step(clean(reason)) for found, reason in unidentified),
        *_weak_steps(estimate),
        _cosine_step(estimate),
        *_planning_steps(estimate),
    ]
    if estimate.covariance is None and estimate.draws is None:
        steps.append("Infer again with intervals=True to learn how sure these weights are.")
    found = verdicts(estimate)
    if status_mood(estimate) != "bad" and (found.paid or found.pays):
        steps.append(
            "Put the reward to the test: train a fresh agent on it with "
            "LinearReward.from_estimate(estimate, features).wrap(env), and compare it with the "
            "learner."
        )
    return [step for step in steps if step]


def _weak_steps(estimate: RewardEstimate) -> list[str]:
    weak = estimate.gauge.weak
    if len(weak) > 2:
        return [
            f"{len(weak)} combinations of weights cannot be told from sampling noise: collect more "
            "episodes, or describe the reward with fewer or coarser features."
        ]
    return [
        f"Collect more episodes before reading anything into {found.phrase()}: its effect cannot "
        "yet be told from sampling noise."
        for found in combinations(weak, estimate)
    ]


def _cosine_step(estimate: RewardEstimate) -> str:
    median, chance = _median_cosine(estimate), estimate.fit.chance
    if median is None or median >= 2 * chance:
        return ""
    return (
        "The predicted movement points where the learner went hardly better than chance (median "
        f"cosine {number(median)}, chance {number(chance)}): compare learner models, or add the "
        "feature that is missing."
    )


def _planning_steps(estimate: RewardEstimate) -> list[str]:
    """How much the widest undecided interval would gain from more data."""
    if estimate.planning is None:
        return []
    now = np.diff(estimate.interval(0.95), axis=1)[:, 0]
    episodes, stages = estimate.expected_widths(2.0), estimate.expected_widths(1.0, 2.0)
    found = verdicts(estimate)

    def widest(members: Sequence[int]) -> list[int]:
        return sorted((j for j in members if 0 < now[j] < np.inf), key=lambda j: -now[j])

    chosen, what = widest(found.open)[:2], "whose sign is still open"
    if not chosen:
        chosen, what = widest((*found.paid, *found.pays))[:1], "the widest of all"
    steps = []
    for j in chosen:
        if np.isfinite([episodes[j], stages[j]]).all():
            name = clean(estimate.feature_names[j], longest=60)
            steps.append(
                f"Twice the episodes would narrow the 95% interval of {name} ({what}) from "
                f"{number(now[j], 2)} to about {number(episodes[j], 2)} wide, twice the stages to "
                f"about {number(stages[j], 2)}.{_needed(estimate, j) if j in found.open else ''}"
            )
    return steps


def _needed(estimate: RewardEstimate, j: int) -> str:
    """How many times the stages would settle a sign, were the weight what it is estimated to be."""
    for times in _TRIED:
        widths = estimate.expected_widths(1.0, float(times))
        if widths[j] / 2 < abs(estimate.weights[j]):
            return f" About {times} times the stages would settle its sign, were the estimate true."
    return " If its weight is as small as estimated, its sign may never be told: it may not matter."
