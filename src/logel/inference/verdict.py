"""The verdict: found, partly determined or not shown, and why. It is decided here alone.

Summary, notebook, report, JSON and command line ask, and none of them judges by itself. A verdict
is never stored: it follows from status, intervals and gauge, also of an estimate out of a file.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from logel.data.limits import listed
from logel.inference.status import Status
from logel.types import Flags, Float

LEVEL = 0.95
"""Of the intervals that verdicts are about."""

# A weight that is surely smaller than this, beside what the largest sure one surely is, does not
# matter: its sign may stay open.
_SMALL = 0.1
# A feature this much inside the gauge has no identified part worth naming.
_WHOLLY = 0.99
# Above this, a random direction is so close to any other that the cosine is no evidence.
_TELLING = 0.5
_TRUSTED = (Status.OK, Status.RANK_DEFICIENT)
_DOUBTS = {
    Status.UNEXPLAINED: "no reward made of these features explains how the learner moved better "
    "than wanting nothing does",
    Status.REVERSIBLE: "the learner loses most of what it had decided: one that wants the "
    "opposite, read backwards, looks the same",
    Status.INCOMPLETE: "something that these features do not tell moves the learner at every step",
    Status.OUT_OF_SCALE: "weights or intervals are no usable numbers",
    Status.NOT_CONVERGED: "the fit stopped before it converged",
    Status.RATES_AT_BOUND: "the learner did not move the way any reward made of these features "
    "would move it",
    Status.CONTROL_FAILED: "a control fails",
}
# Of a learner whose own update was replayed, where that says something else.
_REPLAY_DOUBTS = {
    Status.UNEXPLAINED: "replaying the learner's own update explains too little of how it moved",
    Status.NOT_CONVERGED: "replaying the learner's own update got stuck before it came to where "
    "the learner went",
}


class Finding(enum.Enum):
    """What an answer amounts to.

    FOUND: The status can be trusted, every direction of the weights is identified, and every weight
        has a sure sign or is surely small.
    PARTLY: The status can be trusted and some signs are sure, but not all is known.
    NOT_SHOWN: The status warns, no interval excludes zero, or there are none.
    """

    FOUND = "found"
    PARTLY = "partly determined"
    NOT_SHOWN = "not shown"


class Verdict(NamedTuple):
    """A finding, and the reason for it in a sentence."""

    finding: Finding
    reason: str

    @property
    def shown(self) -> bool:
        """Whether the answer says anything that may be relied on."""
        return self.finding is not Finding.NOT_SHOWN

    def __str__(self) -> str:
        return f"{self.finding.value}: {self.reason}"

    def to_plain(self) -> dict[str, str]:
        """Plain values, of which JSON is made."""
        return {"finding": self.finding.value, "reason": self.reason}


class Signs(NamedTuple):
    """Features by what can be said of their weights, largest first; every one is in exactly one.

    Surely positive; surely negative; surely small, whatever the sign; an interval that contains
    zero, or none that can be trusted; not identified.
    """

    paid: tuple[int, ...]
    pays: tuple[int, ...]
    small: tuple[int, ...]
    open: tuple[int, ...]
    silent: tuple[int, ...]

    @property
    def sure(self) -> tuple[int, ...]:
        """Those with a sure sign."""
        return (*self.paid, *self.pays)

    def word(self, feature: int) -> str:
        """The group of one feature."""
        return next(name for name, group in self._asdict().items() if feature in group)


def doubt_of(estimate: Any) -> str:
    """Why no weight of an estimate is to be trusted; empty if its status gives no reason."""
    if estimate.status in _TRUSTED:
        return ""
    words = _DOUBTS | (_REPLAY_DOUBTS if is_replay(estimate) else {})
    return words.get(estimate.status, estimate.status.value)


def is_replay(estimate: Any) -> bool:
    """Whether the answer comes from the learner's own update, or was sought there."""
    return estimate.fit.rule == "replay" or estimate.config.get("coordinates") == "replay"


def signs_of(answer: Any, *, doubt: str) -> Signs:
    """Sort the features of an estimate or contrast by their intervals.

    Under a doubt no sign is sure. Nor is one that contradicts its own weight, or whose interval has
    no width although more than one direction is told: such numbers are no measurements.
    """
    weights, silent = answer.weights, (answer.gauge.directions**2).sum(axis=0) > _WHOLLY
    ends = answer.interval(LEVEL)
    alone = len(weights) - answer.gauge.n <= 1
    usable = np.isfinite(ends).all(axis=1) & (alone | (ends[:, 1] > ends[:, 0])) & ~silent
    usable &= not doubt
    paid = usable & (ends[:, 0] > 0) & (weights > 0)
    pays = usable & (ends[:, 1] < 0) & (weights < 0)
    small = usable & ~(paid | pays) & _surely_small(ends, paid | pays)
    order = np.argsort(-np.abs(weights), kind="stable")
    groups = (paid, pays, small, ~(silent | paid | pays | small), silent)
    return Signs(*(tuple(int(j) for j in order if group[j]) for group in groups))


def _surely_small(ends: Float, sure: Flags) -> Flags:
    """Weights that are at most a tenth of what the largest sure one is at least."""
    sizes = np.abs(ends)
    least = float(sizes[sure].min(axis=1).max()) if sure.any() else 0.0
    return np.asarray(sizes.max(axis=1) <= _SMALL * least)


def verdict_of(estimate: Any) -> Verdict:
    """The verdict on a `RewardEstimate`."""
    further = []
    if estimate.status is Status.RANK_DEFICIENT and not estimate.gauge.n:
        further.append("some directions of the weights are not determined")
    if at_chance(estimate):
        further.append("single steps are predicted no better than by a random direction")
    if against := [one.name for one in estimate.learners if one.contradicts]:
        further.append(f"{listed(against)} contradict{'s' * (len(against) == 1)} the others")
    return verdict_on(estimate, doubt=doubt_of(estimate), further=further)


def verdict_on(answer: Any, *, doubt: str, further: Sequence[str] = ()) -> Verdict:
    """The verdict on weights, or differences of weights, with intervals and a gauge.

    Args:
        answer: An estimate or a contrast.
        doubt: Why nothing of it is to be trusted, if so.
        further: What else keeps it from being found, as parts of a sentence.
    """
    if doubt:
        return Verdict(Finding.NOT_SHOWN, doubt)
    if not np.isfinite(answer.interval(LEVEL)).any():
        reason = "without intervals nobody can tell how sure the weights are"
        return Verdict(Finding.NOT_SHOWN, reason)
    signs = signs_of(answer, doubt=doubt)
    if not signs.sure:
        reason = "no weight's 95% interval tells its sign"
        return Verdict(Finding.NOT_SHOWN, reason)
    left = [*_left_open(answer, signs), *further]
    told = f"the sign of {_named(answer, signs.sure)} is sure"
    if signs.small:
        told += f", {_named(answer, signs.small)} surely small"
    if left:
        return Verdict(Finding.PARTLY, f"{told}, but {'; '.join(left)}")
    return Verdict(Finding.FOUND, told)


def _left_open(answer: Any, signs: Signs) -> list[str]:
    """What intervals and gauge leave open, as parts of a sentence."""
    gauge, left = answer.gauge, []
    if signs.open:
        left.append(f"that of {_named(answer, signs.open)} is open")
    for rows, how in ((gauge.directions, "not"), (gauge.weak, "hardly")):
        if len(rows):
            what = "a combination" if len(rows) == 1 else f"{len(rows)} combinations"
            left.append(f"{what} of weights {'is' if len(rows) == 1 else 'are'} {how} identified")
    return left


def _named(answer: Any, features: Sequence[int]) -> str:
    largest_first = sorted(features, key=lambda j: -abs(answer.weights[j]))
    return listed(answer.feature_names[j] for j in largest_first)


def at_chance(estimate: Any) -> bool:
    """Whether single steps are predicted no better than by a random direction."""
    median = median_cosine(estimate)
    return median is not None and median <= estimate.fit.chance


def median_cosine(estimate: Any) -> float | None:
    """Of predicted and observed movement, or None where that is no evidence.

    With few parameters even chance comes close, and cosines say nothing either way.
    """
    cosines = estimate.fit.cosines[np.isfinite(estimate.fit.cosines)]
    if len(cosines) == 0 or not estimate.fit.chance <= _TELLING:
        return None
    return float(np.median(cosines))


def median_explained(estimate: Any) -> float | None:
    """Share of the median step that is explained; None where that is no share.

    Below zero the prediction is further from the movement than standing still. That is the rule
    where single steps are mostly noise of the observation, and says nothing of the weights.
    """
    explained = estimate.fit.explained[np.isfinite(estimate.fit.explained)]
    median = float(np.median(explained)) if len(explained) else 0.0
    return median if median > 0 else None


def beside_walk(estimate: Any) -> str:
    """What to know of evidence over a random walk where that is not evidence of a reward."""
    if estimate.status is not Status.UNEXPLAINED or max(estimate.models.values(), default=0.0) <= 0:
        return ""
    return ", beside which another account without a reward does as well"
