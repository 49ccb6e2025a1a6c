"""What an estimate says, in plain words: the finding, the doubts, what to do next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from logel.inference.estimate import RewardEstimate
from logel.inference.regress import Status
from logel.report.safe_text import clean, listed, number
from logel.types import Float

# A feature this much inside the gauge has no identified part worth naming.
_WHOLLY = 0.99
_TERM = 0.05
# Above this, a random direction is so close to any other that the cosine is no evidence.
_TELLING = 0.5
_TRIED = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Verdicts:
    """Features by what their intervals allow to say; every feature is in exactly one.

    Attributes:
        paid: Weight surely positive.
        pays: Weight surely negative.
        open: The interval contains zero, or there is none.
        silent: The data cannot speak about the weight at all.
    """

    paid: tuple[int, ...]
    pays: tuple[int, ...]
    open: tuple[int, ...]
    silent: tuple[int, ...]

    def word(self, feature: int) -> str:
        """The verdict on one feature."""
        for name in ("paid", "pays", "silent"):
            if feature in getattr(self, name):
                return name
        return "open"


def verdicts(estimate: RewardEstimate, level: float = 0.95) -> Verdicts:
    """Sort the features, largest weight first, by their intervals at a level."""
    inside = (estimate.gauge.directions**2).sum(axis=0)
    ends = estimate.interval(level)
    groups: dict[str, list[int]] = {"paid": [], "pays": [], "open": [], "silent": []}
    for j in np.argsort(-np.abs(estimate.weights), kind="stable"):
        low, high = ends[j]
        word = "open"
        if inside[j] > _WHOLLY:
            word = "silent"
        elif low > 0:
            word = "paid"
        elif high < 0:
            word = "pays"
        groups[word].append(int(j))
    return Verdicts(**{name: tuple(members) for name, members in groups.items()})


def headline(estimate: RewardEstimate) -> str:
    """What was found, in one sentence."""
    found = verdicts(estimate)
    names = estimate.feature_names

    def of(members: tuple[int, ...]) -> str:
        return listed(names[j] for j in members)

    if estimate.status is Status.UNEXPLAINED:
        return (
            "No reward made of these features explains how the learner moved better than chance "
            "does, so the weights below should not be trusted."
        )
    if estimate.status is Status.RATES_AT_BOUND:
        return (
            "The learner did not move the way any reward made of these features would move it, so "
            "the weights below should not be trusted."
        )
    if is_doubtful(estimate):
        return (
            "The recovered reward points where the learner went no better than a random direction "
            "would, so the weights below should not be trusted."
        )
    if not np.isfinite(estimate.interval(0.95)).any():
        top = int(np.abs(estimate.weights).argmax())
        sign = "paid for" if estimate.weights[top] > 0 else "paying for"
        return (
            f"The learner looks as if it were {sign} {clean(names[top], longest=60)} most, but "
            "without intervals nobody can tell how sure that is."
        )
    parts = []
    if found.paid:
        parts.append(f"is paid for {of(found.paid)}")
    if found.pays:
        parts.append(f"pays for {of(found.pays)}")
    if not parts:
        return "These data do not tell the sign of any single weight yet."
    sentence = "The learner " + " and ".join(parts)
    if found.open:
        sentence += f"; the sign of {of(found.open)} is still open"
    if found.silent:
        sentence += f"; nothing can be said about {of(found.silent)}"
    return sentence + "."


def qualifier(estimate: RewardEstimate) -> str:
    """How the weights are to be read: scale and gauge, in one or two sentences."""
    words = []
    if estimate.scale == "unit norm":
        words.append(
            "Weights have unit length: their size relative to each other means something, their "
            "absolute size does not."
        )
    else:
        words.append("Weights carry their own scale, since the learning rates were known.")
    shared = [row for row in estimate.gauge.directions if _is_common_level(row)]
    if shared:
        members = [
            name
            for name, c in zip(estimate.feature_names, shared[0], strict=True)
            if abs(c) > _TERM * np.abs(shared[0]).max()
        ]
        words.append(
            f"Only differences between {listed(members, most=6)} can be seen, so each weight is "
            "to be read against their average."
        )
    return " ".join(words)


def _terms(row: Float) -> Float:
    scaled = np.asarray(row / row[np.abs(row).argmax()])
    return np.where(np.abs(scaled) > _TERM, scaled, 0.0)


def _is_common_level(row: Float) -> bool:
    terms = _terms(row)
    used = terms[terms != 0]
    return len(used) > 1 and bool((np.abs(used - 1) < 0.01).all())


def simple_combination(row: Float) -> bool:
    """Whether a direction is one feature, or the common level of some: a sentence says it all."""
    return int((_terms(row) != 0).sum()) == 1 or _is_common_level(row)


def is_doubtful(estimate: RewardEstimate) -> bool:
    """Whether the predicted movement is no closer to the observed than chance would have it.

    With few parameters even chance comes close, and the cosines say nothing either way.
    """
    cosines = estimate.fit.cosines[np.isfinite(estimate.fit.cosines)]
    if len(cosines) == 0 or estimate.fit.chance > _TELLING:
        return False
    return bool(np.median(cosines) <= estimate.fit.chance)


def status_mood(estimate: RewardEstimate) -> str:
    """How worried to be: good, fair or bad."""
    if estimate.status not in (Status.OK, Status.RANK_DEFICIENT) or is_doubtful(estimate):
        return "bad"
    return "good" if estimate.status is Status.OK and not estimate.notes else "fair"


STATUS_NAMES = {
    Status.OK: "Solved",
    Status.RANK_DEFICIENT: "Solved in part",
    Status.UNEXPLAINED: "Not explained",
    Status.NOT_CONVERGED: "Not converged",
    Status.RATES_AT_BOUND: "Not explained",
}


def status_advice(estimate: RewardEstimate) -> str:
    """The status's sentence, with what it means for the reader."""
    advice = {
        Status.OK: "The solve converged, and the design determines every direction of the weights.",
        Status.RANK_DEFICIENT: "That leaves the identified part as it is; the rest is named below.",
        Status.UNEXPLAINED: "Treat this page as a negative result.",
        Status.NOT_CONVERGED: "Run the inference again with more iterations before using it.",
        Status.RATES_AT_BOUND: "Treat this page as a negative result.",
    }[estimate.status]
    if is_doubtful(estimate):
        advice = "But the movement it predicts is not the learner's: treat it as a negative result."
    elif estimate.status is Status.OK and estimate.notes:
        advice += " Mind the warnings."
    if estimate.status is Status.OK:
        return advice
    sentence = estimate.status.value
    return f"{sentence[0].upper()}{sentence[1:]}. {advice}"


def next_steps(estimate: RewardEstimate) -> list[str]:
    """What to do next, most pressing first."""
    steps = []
    if estimate.status is Status.UNEXPLAINED:
        steps.append(
            "Watch more stages or more episodes, and ask whether the features can express what "
            "the learner might want; then infer again."
        )
    if estimate.status is Status.NOT_CONVERGED:
        steps.append("Infer again with a larger max_iterations (joint fits: more rounds in heats).")
    if estimate.status is Status.RATES_AT_BOUND:
        steps.append("Try another learner model, or other features: none of these moves it.")
    gauge = estimate.gauge
    told = list(zip(gauge.directions, gauge.reasons, strict=True))[:6]
    steps += [_gauge_step(row, reason, estimate) for row, reason in told]
    weak = estimate.gauge.weak
    if len(weak) > 2:
        steps.append(
            f"{len(weak)} combinations of weights cannot be told from sampling noise: collect more "
            "episodes, or describe the reward with fewer or coarser features."
        )
    for row in weak if len(weak) <= 2 else ():
        steps.append(
            f"Collect more episodes before reading anything into {_phrase(row, estimate)}: "
            "its effect cannot yet be told from sampling noise."
        )
    cosines = estimate.fit.cosines[np.isfinite(estimate.fit.cosines)]
    chance = estimate.fit.chance
    if len(cosines) and chance <= _TELLING and np.median(cosines) < 2 * chance:
        steps.append(
            f"The predicted movement points where the learner went hardly better than chance "
            f"(median cosine {number(float(np.median(cosines)))}, chance "
            f"{number(estimate.fit.chance)}): compare learner models, or add the feature that "
            "is missing."
        )
    steps += _planning_steps(estimate)
    if estimate.covariance is None and estimate.draws is None:
        steps.append("Infer again with intervals=True to learn how sure these weights are.")
    found = verdicts(estimate)
    if status_mood(estimate) != "bad" and (found.paid or found.pays):
        steps.append(
            "Put the reward to the test: train a fresh agent on it with "
            "LinearReward.from_estimate(estimate, features).wrap(env), and compare it with the "
            "learner."
        )
    return steps


def _members(row: Float, estimate: RewardEstimate) -> list[str]:
    used = _terms(row) != 0
    return [name for name, on in zip(estimate.feature_names, used, strict=True) if on]


def _phrase(row: Float, estimate: RewardEstimate) -> str:
    members = _members(row, estimate)
    if len(members) == 1:
        return f"the weight of {listed(members)}"
    if _is_common_level(row):
        return f"the common level of {listed(members, most=6)}"
    largest = np.argsort(-np.abs(row), kind="stable")[: len(members)]
    return f"a combination of {listed((estimate.feature_names[j] for j in largest), most=5)}"


def gauge_sentences(estimate: RewardEstimate, *, most: int = 6) -> list[str]:
    """What is not identified, and what hardly, one short sentence for each direction."""
    gauge = estimate.gauge
    told = [
        f"Not identified: {_phrase(row, estimate)}; {clean(reason)}."
        for row, reason in zip(gauge.directions, gauge.reasons, strict=True)
    ]
    told += [
        f"Hardly identified: {_phrase(row, estimate)}; its effect cannot be told from the sampling "
        "noise of the Jacobians."
        for row in gauge.weak
    ]
    if len(told) > most:
        told = [*told[: most - 1], f"And {len(told) - most + 1} more such combinations."]
    return told


def _gauge_step(row: Float, reason: str, estimate: RewardEstimate) -> str:
    members = _members(row, estimate)
    if len(members) == 1:
        return (
            f"Leave out {listed(members)}, or watch the learner where it varies: its weight is not "
            f"identified ({clean(reason)})."
        )
    if len(members) == 2:
        return (
            f"{listed(members)} cannot be told apart ({clean(reason)}): drop one of them, or watch "
            "the learner where they differ."
        )
    if _is_common_level(row):
        return (
            f"Compare rewards only through differences between {listed(members, most=6)}, or drop "
            f"one of them as the reference: their common level is not identified ({clean(reason)})."
        )
    return (
        f"One combination of {listed(members)} is not identified ({clean(reason)}): drop one of "
        "them, or watch the learner where they vary by themselves."
    )


def _planning_steps(estimate: RewardEstimate) -> list[str]:
    """How much the widest undecided interval would gain from more data."""
    if estimate.planning is None:
        return []
    now = np.diff(estimate.interval(0.95), axis=1)[:, 0]
    found = verdicts(estimate)
    candidates = [j for j in found.open if np.isfinite(now[j]) and now[j] > 0]
    what, most = "whose sign is still open", 2
    if not candidates:
        candidates = [j for j in (*found.paid, *found.pays) if np.isfinite(now[j]) and now[j] > 0]
        what, most = "the widest of all", 1
    steps = []
    for j in sorted(candidates, key=lambda j: -now[j])[:most]:
        more = estimate.expected_widths(2.0)[j], estimate.expected_widths(1.0, 2.0)[j]
        if not np.isfinite(more).all():
            continue
        name = clean(estimate.feature_names[j], longest=60)
        sentence = (
            f"Twice the episodes would narrow the 95% interval of {name} ({what}) from "
            f"{number(now[j], 2)} to about {number(more[0], 2)} wide, twice the stages to about "
            f"{number(more[1], 2)}."
        )
        if j in found.open:
            sentence += _needed(estimate, j)
        steps.append(sentence)
    return steps


def _needed(estimate: RewardEstimate, j: int) -> str:
    """How many times the stages would settle a sign, were the weight what it is estimated to be."""
    for times in _TRIED:
        widths = estimate.expected_widths(1.0, float(times))
        if widths[j] / 2 < abs(estimate.weights[j]):
            return f" About {times} times the stages would settle its sign, were the estimate true."
    return " If its weight is as small as estimated, its sign may never be told: it may not matter."
