"""What an estimate says, in plain words: the finding, the doubts, what to do next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from logel.data.limits import listed
from logel.inference.estimate import RewardEstimate
from logel.inference.status import Status
from logel.inference.verdict import (
    Finding,
    Signs,
    doubt_of,
    is_replay,
    median_cosine,
    signs_of,
)
from logel.report.safe_text import clean, number
from logel.types import Float

# A coefficient this small, beside the largest of a combination, is not worth naming.
_TERM = 0.05
# Features that a headline gives with their weights.
_MOST_SIZED = 3
# Multiples of the stages that are tried to settle a sign; nobody records more than the last.
_TRIED = (2, 4, 8, 16, 32, 64)
# Combinations to advise on, or to name: a page is read by people.
_MOST_COMBINATIONS = 6


# What to do about a status, and about that of a learner whose own update was replayed.
_STEPS = {
    Status.UNEXPLAINED: "Watch more stages or more episodes, and ask whether the features can "
    "express what the learner might want; then infer again.",
    Status.REVERSIBLE: "Check the order of the stages. If it is right, watch the learner go on "
    "until it has decided something of its own; then infer again.",
    Status.INCOMPLETE: "Add features of what it might want beside these, or try another learner "
    "model.",
    Status.OUT_OF_SCALE: "Bring the column that the notes name to about unit size; then infer "
    "again.",
    Status.NOT_CONVERGED: "Infer again with a larger max_iterations (joint fits: more rounds in "
    "heats).",
    Status.RATES_AT_BOUND: "Try another learner model, or other features: none of these moves it.",
    Status.CONTROL_FAILED: "Ask what the control says of features, gamma and learner before these "
    "weights are used.",
}
_REPLAY_STEPS = {
    Status.UNEXPLAINED: "Check that the learner's settings in the history are those it had, and "
    "ask whether the features can express what it might want; then infer again.",
    Status.NOT_CONVERGED: "Infer again with another seed, or with more fates: "
    "Method.named('replay', n_fates=8).",
}
_MOODS = {Finding.FOUND: "good", Finding.PARTLY: "fair", Finding.NOT_SHOWN: "bad"}
_ADVICE = {
    Finding.FOUND: "",
    Finding.PARTLY: " Read only what is sure.",
    Finding.NOT_SHOWN: " Treat this page as a negative result.",
}


def signs(estimate: RewardEstimate) -> Signs:
    """Features by what can be said of their weights."""
    return signs_of(estimate, doubt=doubt_of(estimate))


def headline(estimate: RewardEstimate) -> str:
    """What was found, in one sentence."""
    verdict = estimate.verdict
    if verdict.shown:
        return _signs(estimate)
    return f"{sentence(verdict.reason)}, so the weights below should not be trusted."


def sentence(text: str) -> str:
    """With a capital letter."""
    return f"{text[:1].upper()}{text[1:]}"


def _signs(estimate: RewardEstimate) -> str:
    """Which weights are surely positive or negative, and about which nobody can tell."""
    found, names = signs(estimate), estimate.feature_names
    paid, pays = _sized(estimate, found.paid), _sized(estimate, found.pays)
    many = bool(estimate.learners)
    told = [f"{'are' if many else 'is'} paid for {paid}"] if found.paid else []
    told += [f"{'pay' if many else 'pays'} for {pays}"] if found.pays else []
    parts = [f"{'These learners' if many else 'The learner'} {' and '.join(told)}"]
    for group, words in (
        (found.small, "the weight of {} is surely small"),
        (found.open, "the sign of {} is still open"),
        (found.silent, "nothing can be said about {}"),
    ):
        parts += [words.format(listed(names[j] for j in group))] if group else []
    return f"{'; '.join(parts)}."


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


def verdict_mood(estimate: RewardEstimate) -> str:
    """How worried to be: good, fair or bad."""
    return _MOODS[estimate.verdict.finding]


def verdict_sentence(estimate: RewardEstimate) -> str:
    """The verdict's reason, with what it means for the reader."""
    finding, reason = estimate.verdict
    warned = " Mind the warnings." if estimate.notes and finding is not Finding.NOT_SHOWN else ""
    return f"{sentence(reason)}.{_ADVICE[finding]}{warned}"


def next_steps(estimate: RewardEstimate) -> list[str]:
    """What to do next, most pressing first."""
    gauge = estimate.gauge
    rows, reasons = gauge.directions[:_MOST_COMBINATIONS], gauge.reasons[:_MOST_COMBINATIONS]
    unidentified = zip(combinations(rows, estimate), reasons, strict=True)
    pressing = _STEPS | (_REPLAY_STEPS if is_replay(estimate) else {})
    steps = [
        pressing.get(estimate.status, ""),
        *(found.step(clean(reason)) for found, reason in unidentified),
        *_weak_steps(estimate),
        _cosine_step(estimate),
        *_planning_steps(estimate),
    ]
    if estimate.covariance is None and estimate.draws is None:
        steps.append("Infer again with intervals=True to learn how sure these weights are.")
    if estimate.verdict.shown:
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
    median, chance = median_cosine(estimate), estimate.fit.chance
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
    found = signs(estimate)

    def widest(members: Sequence[int]) -> list[int]:
        return sorted((j for j in members if 0 < now[j] < np.inf), key=lambda j: -now[j])

    chosen, what = widest(found.open)[:2], "whose sign is still open"
    if not chosen:
        chosen, what = widest(found.sure)[:1], "the widest of all"
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
