"""Forest plots: every learner's weights with intervals, and what they say together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from logel.data.limits import listed
from logel.inference.contrast import Contrast
from logel.inference.estimate import RewardEstimate
from logel.inference.group import GroupEstimate
from logel.inference.verdict import signs_of
from logel.report.page_parts import assemble, figure, section, table
from logel.report.safe_text import clean, escape, fixed, number, plain
from logel.types import Array, Float

Data = dict[str, Any]
# What a page can show, and a reader compare.
MOST_FEATURES, MOST_LEARNERS, _MOST_TOLD = 12, 40, 30
_TITLE = "How two groups differ"


def forest_data(estimate: RewardEstimate, group: GroupEstimate | None) -> Data | None:
    """Of learners that share weights, or of a group; None for one learner alone."""
    if not estimate.learners:
        return None
    shown = np.sort(np.argsort(-np.abs(estimate.weights), kind="stable")[:MOST_FEATURES])
    singles = estimate.learners[:MOST_LEARNERS]
    rows = {one.name: (one.weights, np.stack([one.low, one.high], axis=1)) for one in singles}
    whole = "shared by all"
    if group is not None:
        rows = {
            n: (e.weights, e.interval()) for n, e in list(group.learners.items())[:MOST_LEARNERS]
        }
        whole = "group mean"
    together = {whole: (estimate.weights, estimate.interval())}
    return {
        "blocks": blocks(estimate.feature_names, shown, rows, together),
        "unit": "weight (unit norm)",
        "pooled": group is not None,
        "spread": None if group is None else [group.spread, *group.spread_interval()],
        "hidden": [
            max(len(estimate.learners) - MOST_LEARNERS, 0),
            max(len(estimate.weights) - MOST_FEATURES, 0),
        ],
        "shares": [
            (
                clean(one.name, longest=60),
                str(one.n_steps),
                clean(one.rule, longest=40),
                f"{100 * one.share:.0f}%",
                fixed(one.agreement, 1),
                "contradicts" if one.contradicts else "decides" if one.decisive else "",
            )
            for one in singles
        ],
    }


def blocks(
    names: Sequence[str],
    shown: Array,
    singles: Mapping[str, tuple[Float, Float]],
    together: Mapping[str, tuple[Float, Float]],
) -> list[Data]:
    """One block per feature: single rows, then those of all together."""
    return [
        {
            "name": clean(names[j], longest=80),
            "rows": [
                {
                    "name": clean(name, longest=60),
                    "weight": float(weights[j]),
                    "low": float(ends[j, 0]),
                    "high": float(ends[j, 1]),
                    "whole": part is together,
                }
                for part in (singles, together)
                for name, (weights, ends) in part.items()
            ],
        }
        for j in shown
    ]


def forest_figures(forest: Data) -> list[str]:
    """The plot, and the table of everyone's part."""
    singles = "single learners, drawn towards the mean as far as their own histories leave room"
    if not forest["pooled"]:
        singles = "every learner's own history alone"
    caption = f"Lines are 95% intervals: thin ones of {singles}, diamonds of all together."
    if forest["spread"]:
        middle, low, high = map(number, forest["spread"])
        caption += (
            f" Single learners' weights stray by {middle} of the mean's length (95% interval "
            f"{low} to {high})."
        )
    learners, features = forest["hidden"]
    if learners or features:
        caption += f" Not shown: {learners} learners and {features} smaller weights."
    told = (
        "Agreement: by how many nats the others' weights predict a learner better than weights in "
        "any direction would."
    )
    headers = ["learner", "steps", "rule", "share of the evidence", "agreement", ""]
    return [
        forest_plot(forest, "Learner by learner", caption),
        f'<p class="lead">{escape(told)}</p>',
        table(headers, forest["shares"], caption="Every learner's part"),
    ]


def forest_plot(forest: Data, title: str, caption: str) -> str:
    """The card with weights and intervals, feature by feature."""
    rows = [
        (block["name"], row["name"], number(row["weight"]), number(row["low"]), number(row["high"]))
        for block in forest["blocks"]
        for row in block["rows"]
    ]
    whole = [
        f"{block['name']} {number(row['weight'])} ({number(row['low'])} to {number(row['high'])})"
        for block in forest["blocks"]
        for row in block["rows"]
        if row["whole"]
    ]
    each = [f"{name} of {whose} {weight}" for name, whose, weight, *_ in rows]
    told, spoken = ("All together", whole) if whole else ("Weights", each)
    return figure(
        "forest",
        title,
        caption,
        alt=f"{told}: {'; '.join(spoken[:_MOST_TOLD])}.",
        headers=["feature", "whose", "weight", "low", "high"],
        rows=rows,
        told="Weights with 95% intervals",
        look="wide",
    )


def contrast_page(contrast: Contrast) -> str:
    """The page of a contrast, as HTML."""
    data = plain(_contrast_data(contrast))
    forest = data["forest"]
    one, other = data["groups"]
    caption = (
        f"Lines are 95% intervals of both groups' weights; diamonds are their difference, {one} "
        f"minus {other}. Weights have unit norm: a group that wants everything twice as much is no "
        "other group."
    )
    headers = ["feature", one, other, "difference", "95% interval", f"P({one} > {other})"]
    lead = f'<p class="lead">{escape(data["qualifier"], longest=2000)}</p>'
    notes = "".join(f"<li>{escape(line, longest=1000)}</li>" for line in data["warnings"])
    body = [
        f'<header class="hero"><p class="eyebrow">{escape(_TITLE)}</p>'
        f"<h1>{escape(data['headline'], longest=2000)}</h1>{lead}</header>",
        section(
            "warnings", "Warnings", "", [f'<ol class="warnings">{notes}</ol>'] if notes else []
        ),
        section(
            "contrast",
            "Weight by weight",
            "",
            [
                forest_plot(forest, f"{one} and {other}", caption),
                table(headers, data["rows"], caption="Differences of weights"),
            ],
        ),
    ]
    return assemble(title=_TITLE, body="\n".join(part for part in body if part), data=data)


def _contrast_data(contrast: Contrast) -> Data:
    ends, chances = contrast.interval(), contrast.probability_exceeds()
    one, other = (clean(name, longest=60) for name in contrast.names)
    sides = {
        name: (e.weights, e.interval())
        for name, e in zip((one, other), (contrast.first, contrast.second), strict=True)
    }
    shown = np.sort(np.argsort(-np.abs(contrast.weights), kind="stable")[:MOST_FEATURES])
    names = [clean(name, longest=80) for name in contrast.feature_names]
    rows = [
        (
            names[j],
            *(fixed(float(side[j])) for side in contrast.sides),
            fixed(float(contrast.weights[j])),
            f"{fixed(float(ends[j, 0]))} to {fixed(float(ends[j, 1]))}",
            f"{100 * chances[j]:.1f}%",
        )
        for j in range(len(names))
    ]
    return {
        "headline": _headline(one, other, contrast),
        "verdict": contrast.verdict.to_plain(),
        "qualifier": "Every weight is compared by itself, at 95%: of twenty weights that do not "
        "differ, one is called different in the mean.",
        "groups": [one, other],
        "rows": rows,
        "warnings": [clean(note, longest=600) for note in contrast.notes],
        "forest": {
            "blocks": blocks(
                contrast.feature_names, shown, sides, {"difference": (contrast.weights, ends)}
            ),
            "unit": "weight, and difference of weights (unit norm)",
        },
    }


def _headline(one: str, other: str, contrast: Contrast) -> str:
    verdict = contrast.verdict
    if not verdict.shown:
        return f"These data show no difference between {one} and {other}: {verdict.reason}."
    found, names = signs_of(contrast, doubt=""), contrast.feature_names
    parts = [
        f"{words} {listed(names[j] for j in group)}"
        for words, group in (("more of", found.paid), ("less of", found.pays))
        if group
    ]
    return f"Beside {other}, {one} wants {' and '.join(parts)}."
