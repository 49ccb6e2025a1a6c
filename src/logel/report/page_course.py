"""Where the learner went, and where its update goes with the weights found: data, words, figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from logel.inference.estimate import RewardEstimate
from logel.inference.gauge import Fit
from logel.inference.null import ENOUGH_STEPS
from logel.inference.status import Status
from logel.report.page_parts import figure
from logel.report.page_words import verdict_mood
from logel.report.safe_text import NOTHING, clean, escape, number
from logel.types import Float

Data = dict[str, Any]
# Steps that a page can show.
_MOST_STEPS = 400


class Ending(NamedTuple):
    """How a replay ended, in a word or two and in a sentence; what it means says the verdict."""

    name: str
    sentence: str


def replay_ending(estimate: RewardEstimate) -> Ending | None:
    """How replay ended, or None if the learner was not replayed."""
    fit = estimate.fit
    if fit.rule != "replay":
        if not fit.rule or estimate.config.get("coordinates") != "replay":
            return None
        return Ending(
            "Fell back",
            "Replaying the learner's own update explained too little of its movement: the weights, "
            f"and the predictions here, are those of the rule '{clean(fit.rule, longest=40)}'.",
        )
    sizes = _sizes(fit)
    if estimate.status is Status.UNEXPLAINED:
        n = int(np.isfinite(sizes).sum())
        why = f"{n} steps are too few to tell a reward from a random walk."
        if n >= ENOUGH_STEPS:
            why = "No weights lead the learner's own update to where the learner went."
        return Ending("Not explained", why)
    told = _told(fit, sizes)
    if estimate.status is Status.NOT_CONVERGED:
        return Ending("Stuck", f"Better weights may exist: {told}")
    return Ending("Replayed", told[:1].upper() + told[1:])


def _sizes(fit: Fit) -> Float:
    """Squared lengths of the steps with a known share; NaN elsewhere."""
    if fit.moved is None:
        return np.full(len(fit.explained), np.nan)
    return np.where(np.isfinite(fit.explained), fit.moved**2, np.nan)


def _told(fit: Fit, sizes: Float) -> str:
    """What all steps together leave, against what chance leaves."""
    total = np.nansum(sizes)
    if not 0 < total < np.inf:
        return "how much of the movement is explained was not kept."
    explained = max(1 - float(np.nansum(sizes * (1 - fit.explained)) / total), 0.0)
    told = f"the update explains {_percent(explained)} of the squared movement"
    if fit.noise is None:
        return f"{told}."
    noise = float(np.nansum(sizes * fit.noise) / total)
    return f"{told}; another order of minibatches would change {_percent(noise)}."


def _percent(share: float | None) -> str:
    return NOTHING if share is None else f"{100 * share:.{1 if abs(share) < 0.02 else 0}f}%"


def course_data(estimate: RewardEstimate) -> Data | None:
    """What the figure shows, step by step; None where lengths were not kept."""
    fit = estimate.fit
    if fit.moved is None or fit.predicted is None:
        return None
    seen = np.flatnonzero(np.isfinite(fit.moved) & np.isfinite(fit.predicted))
    if len(seen) == 0:
        return None
    n = min(int(seen[-1]) + 1, _MOST_STEPS)
    ending = replay_ending(estimate)
    return {
        "moved": fit.moved[:n],
        "predicted": fit.predicted[:n],
        "cosines": fit.cosines[:n],
        "explained": fit.explained[:n],
        "noise": None if fit.noise is None else fit.noise[:n],
        "replayed": fit.rule == "replay",
        "rule": clean(fit.rule, longest=40),
        "n_steps": len(fit.moved),
        "ending": None if ending is None else [verdict_mood(estimate), *ending],
    }


def course_figure(course: Data) -> str:
    """The figure, with its words and table."""
    n, replayed = len(course["moved"]), course["replayed"]
    goes = "its update goes" if replayed else "the rule goes"
    noise = course["noise"] or [None] * n
    rows = zip(
        range(n),
        (number(x) for x in course["moved"]),
        (number(x) for x in course["predicted"]),
        (number(x) for x in course["cosines"]),
        (_percent(x) for x in course["explained"]),
        (_percent(x) for x in noise),
        strict=True,
    )
    return figure(
        "course",
        f"Where the learner went, and where {goes} with these weights",
        _caption(course),
        alt=_alt(course),
        headers=["step", "moved", "predicted", "cosine", "explained", "changed by chance"],
        rows=rows,
        told="Movement and prediction by step",
        controls=_said(course["ending"]),
        look="wide",
    )


def _said(ending: list[str] | None) -> str:
    if ending is None:
        return ""
    mood, name, sentence = ending
    return (
        f'<p class="status {escape(mood)}"><b>{escape(name)}</b> '
        f"<span>{escape(sentence, longest=600)}</span></p>"
    )


def _caption(course: Data) -> str:
    mover = "the rule" if course["rule"] == "" else f"the rule '{course['rule']}'"
    if course["replayed"]:
        mover = "its own update"
    words = (
        f"Bars are how far the learner's policy moved at each step, lines how far {mover} takes it "
        "if paid with these weights. "
    )
    if course["noise"] is None:
        words += (
            "Below, how much of the squared movement that explains; noise of the observation "
            "counts as unexplained, and arrowheads are predictions worse than none."
        )
    else:
        words += (
            "Below, how much of the movement that explains; the band is what another order of "
            "minibatches would have changed anyway."
        )
    shown, n = len(course["moved"]), course["n_steps"]
    if shown < n:
        words += f" These are the first {shown} of {n} steps."
    return words


def _alt(course: Data) -> str:
    parts = [
        f"{len(course['moved'])} steps",
        _range("length moved", course["moved"], number),
        _range("length predicted", course["predicted"], number),
        _range("explained", course["explained"], _percent),
        _range("chance would change", course["noise"] or (), _percent),
    ]
    return "; ".join(part for part in parts if part) + "."


def _range(name: str, values: Sequence[float | None], form: Callable[[float], str]) -> str:
    known = sorted(x for x in values if x is not None)
    if not known:
        return ""
    low, middle, high = (form(known[i]) for i in (0, len(known) // 2, -1))
    return f"{name} {low} to {high}, median {middle}"
