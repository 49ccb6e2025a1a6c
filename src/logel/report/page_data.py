"""From an estimate, and the history behind it, to the plain values that a page shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from logel.data.history import LearningHistory
from logel.errors import OptionError
from logel.inference.estimate import RewardEstimate
from logel.inference.verdict import beside_walk, median_explained
from logel.report.page_course import course_data
from logel.report.page_stages import StageViews, stage_views
from logel.report.page_words import (
    combinations,
    gauge_sentences,
    headline,
    next_steps,
    qualifier,
    sentence,
    signs,
    verdict_mood,
    verdict_sentence,
)
from logel.report.reward_maps import rbf_map, world_map
from logel.report.safe_text import clean
from logel.types import Array, FeatureFunction

_LEVELS = (0.5, 0.8, 0.95)
# What a phone can still show, and a reader take in.
_MOST_WEIGHTS, _MOST_POINTS, _MOST_NOTES, _MOST_COMBINATIONS, _MOST_CHOICES = 300, 400, 40, 12, 200


def page_data(
    estimate: RewardEstimate,
    history: LearningHistory | None = None,
    *,
    features: FeatureFunction | None = None,
) -> dict[str, Any]:
    """Everything on the page of an estimate; for the arguments see `estimate_page`."""
    views = None if history is None else stage_views(estimate, history, features=features)
    warnings = [clean(note, longest=600) for note in estimate.notes[:_MOST_NOTES]]
    if history is not None and views is not None:
        warnings += _mismatches(estimate, history, views, computed=features is not None)
    names = [clean(name, longest=80) for name in estimate.feature_names]
    # In their own order.
    shown = np.sort(np.argsort(-np.abs(estimate.weights), kind="stable")[:_MOST_WEIGHTS])
    if len(shown) < len(estimate.weights):
        warnings.append(
            f"Only the {len(shown)} largest of {len(estimate.weights)} weights are on this page."
        )
    return {
        "headline": headline(estimate),
        "qualifier": qualifier(estimate),
        "verdict": {
            "name": sentence(estimate.verdict.finding.value),
            **estimate.verdict.to_plain(),
            "mood": verdict_mood(estimate),
            "sentence": verdict_sentence(estimate),
        },
        "status": estimate.status.name,
        "facts": _facts(estimate, views),
        "names": names,
        "weights": _weights(estimate, shown),
        "gauge": _gauge(estimate, shown),
        **_fit(estimate),
        "planning": _planning(estimate, shown),
        "map": _map(names, estimate.weights, views),
        "stages": views and views.shown,
        "gamma": views and views.gamma,
        "warnings": warnings,
        "next": next_steps(estimate),
        "config": _lines(_flat(estimate.config)),
        "versions": _lines(list(estimate.versions.items())[:40]),
        "method": clean(estimate.method),
    }


def _lines(pairs: Iterable[tuple[str, Any]]) -> list[tuple[str, str]]:
    return [(clean(key), clean(value)) for key, value in pairs]


def _mismatches(
    estimate: RewardEstimate, history: LearningHistory, views: StageViews, *, computed: bool
) -> list[str]:
    """Signs that the history is not the one the estimate was made from, or not shown whole."""
    found = []
    names, m = history.feature_names, len(estimate.learning_rates)
    if names is not None and not computed and tuple(names) != tuple(estimate.feature_names):
        raise OptionError(
            f"the history's features are {clean(', '.join(names))}, but the estimate's "
            f"{clean(', '.join(estimate.feature_names))}: give the history it was made from"
        )
    if history.n_steps != m:
        found.append(
            f"The history has {history.n_steps} steps, but the estimate was made from {m}: "
            "this may not be the history behind it."
        )
    if not history.complete:
        found.append("The history's recording was interrupted; these are the stages it has.")
    shown, n_stages = len(views.shown["stages"]), views.shown["n_stages"]
    if shown < n_stages:
        found.append(f"Only {shown} of the {n_stages} stages are shown.")
    return found


def _facts(estimate: RewardEstimate, views: StageViews | None) -> list[tuple[str, str]]:
    sure = len(signs(estimate).sure)
    facts = [
        ("signs that are sure (95%)", f"{sure} of {len(estimate.weights)}"),
        ("steps watched", str(len(estimate.learning_rates))),
    ]
    if views is not None:
        few, many = min(views.shown["episodes"]), max(views.shown["episodes"])
        facts.append(("episodes per stage", str(few) if few == many else f"{few} to {many}"))
    explained = median_explained(estimate)
    cosines = estimate.fit.cosines[np.isfinite(estimate.fit.cosines)]
    if len(cosines):
        facts.append(
            (f"median cosine (chance {estimate.fit.chance:.2f})", f"{np.median(cosines):.2f}")
        )
    if explained is not None:
        facts.append(("movement explained, median", f"{100 * explained:.0f}%"))
    return facts


def _weights(estimate: RewardEstimate, shown: Array) -> dict[str, Any]:
    found = signs(estimate)
    return {
        "index": shown,
        "weight": estimate.weights[shown],
        "error": estimate.standard_errors[shown],
        "positive": estimate.probability_positive()[shown],
        "verdict": [found.word(int(j)) for j in shown],
        "intervals": {f"{100 * level:.0f}": estimate.interval(level)[shown] for level in _LEVELS},
        "unit": "unit norm" if estimate.scale == "unit norm" else "reward per feature unit",
    }


def _gauge(estimate: RewardEstimate, shown: Array) -> dict[str, Any]:
    gauge = estimate.gauge
    rows = np.concatenate([gauge.directions, gauge.weak])[:_MOST_COMBINATIONS]
    sizes = np.maximum(np.abs(rows).max(axis=1, keepdims=True), 1e-300)
    signs = np.sign(np.take_along_axis(rows, np.abs(rows).argmax(axis=1)[:, None], axis=1))
    return {
        "sentences": gauge_sentences(estimate),
        "rows": (rows * signs / sizes)[:, shown],
        "none": min(len(gauge.directions), _MOST_COMBINATIONS),
        "plot": not all(found.simple for found in combinations(rows, estimate)),
        "rank": estimate.rank,
        "condition": estimate.condition,
    }


def _fit(estimate: RewardEstimate) -> dict[str, Any]:
    """How well the reward explains the learning, step by step and model by model."""
    fit, held_out, trace = estimate.fit, estimate.held_out, estimate.objective_trace
    known = held_out is not None and np.isfinite(held_out).any()
    kept = np.unique(np.linspace(0, max(len(trace) - 1, 0), _MOST_POINTS).round().astype(int))
    kept = kept[: len(trace)]
    models = sorted(estimate.models.items(), key=lambda item: -item[1])[:20]
    return {
        "steps": {
            "rates": estimate.learning_rates[:_MOST_POINTS],
            "explained": fit.explained[:_MOST_POINTS],
            "cosines": fit.cosines[:_MOST_POINTS],
            "chance": fit.chance,
        },
        "course": course_data(estimate),
        "held_out": None if held_out is None or not known else held_out[:_MOST_POINTS],
        "trace": {"update": kept + 1, "value": trace[kept]},
        "models": [(clean(name, longest=40), gain) for name, gain in models],
        "beside_walk": beside_walk(estimate),
    }


def _planning(estimate: RewardEstimate, shown: Array) -> dict[str, Any] | None:
    now = np.diff(estimate.interval(0.95), axis=1)[:, 0]
    episodes = estimate.expected_widths(2.0)
    if not np.isfinite(episodes).any():
        return None
    stages = estimate.expected_widths(1.0, 2.0)
    return {"now": now[shown], "episodes": episodes[shown], "stages": stages[shown]}


def _map(names: list[str], weights: Array, views: StageViews | None) -> dict[str, Any] | None:
    drawn = rbf_map(names, weights)
    if drawn is None and views is not None and views.world is not None:
        drawn = world_map(views.world, weights, names)
    if drawn is None:
        return None
    # Colours show no more than three digits.
    return {**vars(drawn), "values": np.vectorize(lambda x: float(f"{x:.3g}"))(drawn.values)}


def _flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested choices as lines `outer.inner`, not too many and not too deep."""
    lines: list[tuple[str, Any]] = []
    for key, value in list(config.items())[:_MOST_CHOICES]:
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and prefix.count(".") < 4:
            lines += _flat(value, f"{name}.")
        else:
            lines.append((name, value))
    return lines[:_MOST_CHOICES]
