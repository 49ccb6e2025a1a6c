"""Several estimates side by side on one page: where they agree, and where not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from logel.data.limits import listed
from logel.errors import OptionError
from logel.inference.estimate import RewardEstimate
from logel.inference.verdict import Signs
from logel.report.page_forest import MOST_FEATURES, MOST_LEARNERS, blocks, forest_plot
from logel.report.page_parts import assemble, section, table
from logel.report.page_words import headline, sentence, signs
from logel.report.safe_text import clean, escape, number, plain

_TITLE = "Several answers side by side"
_WORDS = {
    "paid": "paid for",
    "pays": "costs",
    "small": "small",
    "open": "open",
    "silent": "not identified",
}


def compare_page(estimates: Mapping[str, RewardEstimate]) -> str:
    """The page of several estimates by name, as HTML."""
    if not 2 <= len(estimates) <= MOST_LEARNERS:
        raise OptionError(f"a page compares 2 to {MOST_LEARNERS} estimates, not {len(estimates)}")
    (first, one), *others = estimates.items()
    for name, other in others:
        if tuple(other.feature_names) != tuple(one.feature_names):
            raise OptionError(
                f"{first} is about {', '.join(one.feature_names[:4])}, but {name} about "
                f"{', '.join(other.feature_names[:4])}: compare estimates of the same features"
            )
    data = plain(_data(estimates))
    caption = "Dots are the weights of each estimate, lines their 95% intervals."
    body = [
        f'<header class="hero"><p class="eyebrow">{escape(_TITLE)}</p>'
        f"<h1>{escape(data['headline'], longest=2000)}</h1></header>",
        section(
            "compared",
            "Weight by weight",
            "",
            [
                forest_plot(data["forest"], "Estimate by estimate", caption),
                table(["feature", *data["names"]], data["verdicts"], caption="Weights at 95%"),
            ],
        ),
        section(
            "answers",
            "What each says",
            "",
            [table(["estimate", "verdict", "in words"], data["answers"], caption="Every answer")],
        ),
    ]
    return assemble(title=_TITLE, body="\n".join(body), data=data)


def _data(estimates: Mapping[str, RewardEstimate]) -> dict[str, Any]:
    every, names = list(estimates.values()), [clean(n, longest=60) for n in estimates]
    features = [clean(name, longest=80) for name in every[0].feature_names]
    sizes = np.max([np.abs(e.weights) for e in every], axis=0)
    shown = np.sort(np.argsort(-sizes, kind="stable")[:MOST_FEATURES])
    rows = {n: (e.weights, e.interval(0.95)) for n, e in zip(names, every, strict=True)}
    found = [signs(e) for e in every]
    words = [_words(found, j) for j in range(len(features))]
    weights = np.array([e.weights for e in every]).T
    cells = [
        (name, *map(_cell, said, row))
        for name, said, row in zip(features, words, weights, strict=True)
    ]
    return {
        "headline": _headline(dict(zip(features, map(frozenset, words), strict=True))),
        "names": names,
        "forest": {"blocks": blocks(every[0].feature_names, shown, rows, {}), "unit": "weight"},
        "verdicts": cells,
        "answers": list(map(_answer, names, every)),
    }


def _words(found: Sequence[Signs], feature: int) -> list[str]:
    return [_WORDS[one.word(feature)] for one in found]


def _answer(name: str, estimate: RewardEstimate) -> tuple[str, str, str]:
    return name, sentence(estimate.verdict.finding.value), headline(estimate)


def _cell(word: str, weight: float) -> str:
    return f"{word} ({number(weight, 2)})"


def _headline(said: Mapping[str, frozenset[str]]) -> str:
    """Which signs all give alike, and which they give differently."""
    signs = {_WORDS["paid"], _WORDS["pays"]}
    kinds = {name: _agreement(words, signs) for name, words in said.items()}
    parts = []
    for kind, phrase in (
        ("alike", "all agree on the sign of"),
        ("against", "they contradict each other on"),
        ("some", "only some are sure about"),
    ):
        members = [name for name, found in kinds.items() if found == kind]
        parts += [f"{phrase} {listed(members)}"] if members else []
    sentence = "; ".join(parts) or "none of them is sure about any sign"
    return f"{sentence[0].upper()}{sentence[1:]}."


def _agreement(words: frozenset[str], signs: set[str]) -> str:
    if signs <= words:
        return "against"
    if not words & signs:
        return "open"
    return "alike" if len(words) == 1 else "some"
