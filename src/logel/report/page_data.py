"""From an estimate, and the history behind it, to the plain values that a page shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from logel.data.history import LearningHistory
from logel.errors import OptionError
from logel.inference.estimate import RewardEstimate
from logel.report.page_stages import StageViews, stage_views
from logel.report.page_words import (
    STATUS_NAMES,
    gauge_sentences,
    headline,
    next_steps,
    qualifier,
    simple_combination,
    status_advice,
    status_mood,
)
from logel.report.page_words import verdicts as sorted_features
from logel.report.reward_maps import RewardMap, rbf_map, world_map
from logel.report.safe_text import clean
from logel.types import FeatureFunction, Float

LEVELS = (0.5, 0.8, 0.95)
MOST_WEIGHTS = 300
MOST_POINTS = 400
_MOST_NOTES = 40


def page_data(
    estimate: RewardEstimate,
    history: LearningHistory | None = None,
    *,
    features: FeatureFunction | None = None,
    reward_map: RewardMap | None = None,
) -> dict[str, Any]:
    """Everything on the page of an estimate.

    Args:
        estimate: The estimate.
        history: The history it was made from, for the stages and the map.
        features: Computes the features, where the history carries none.
        reward_map: A drawing of the reward; found from names and history by default.
    """
    views = None if history is None else stage_views(estimate, history, features=features)
    drawn = reward_map if reward_map is not None else _find_map(estimate, views)
    warnings = [clean(note, longest=600) for note in estimate.notes[:_MOST_NOTES]]
    if history is not None:
        warnings += _mismatches(estimate, history, views, computed=features is not None)
    shown = _shown(estimate.weights)
    if len(shown) < len(estimate.weights):
        warnings.append(
            f"Only the {len(shown)} largest of {len(estimate.weights)} weights are on this page."
        )
    return {
        "headline": headline(estimate),
        "qualifier": qualifier(estimate),
        "status": {
            "name": STATUS_NAMES[estimate.status],
            "code": estimate.status.name,
            "mood": status_mood(estimate),
            "sentence": status_advice(estimate),
        },
        "facts": _facts(estimate, views),
        "names": [clean(name, longest=80) for name in estimate.feature_names],
        "weights": _weights(estimate, shown),
        "gauge": _gauge(estimate, shown),
        "steps": {
            "rates": estimate.learning_rates[:MOST_POINTS],
            "explained": estimate.fit.explained[:MOST_POINTS],
            "cosines": estimate.fit.cosines[:MOST_POINTS],
            "chance": estimate.fit.chance,
        },
        "held_out": _held_out(estimate),
        "trace": _thinned(estimate.objective_trace),
        "models": _models(estimate),
        "planning": _planning(estimate, shown),
        "map": None if drawn is None else _map(drawn),
        "stages": None if views is None else views.to_plain(),
        "gamma": None if views is None else views.gamma,
        "warnings": warnings,
        "next": next_steps(estimate),
        "config": [(clean(k), clean(v)) for k, v in _flat(estimate.config)],
        "versions": [(clean(k), clean(v)) for k, v in list(estimate.versions.items())[:40]],
        "method": clean(estimate.method),
    }


def _find_map(estimate: RewardEstimate, views: StageViews | None) -> RewardMap | None:
    names = [clean(name, longest=80) for name in estimate.feature_names]
    found = rbf_map(names, estimate.weights)
    if found is None and views is not None and views.world is not None:
        found = world_map(views.world, estimate.weights, names)
    return found


def _mismatches(
    estimate: RewardEstimate,
    history: LearningHistory,
    views: StageViews | None,
    *,
    computed: bool,
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
    if views is not None and len(views.stages) < views.n_stages:
        found.append(f"Only {len(views.stages)} of the {views.n_stages} stages are shown.")
    return found


def _facts(estimate: RewardEstimate, views: StageViews | None) -> list[tuple[str, str]]:
    facts = [
        ("features", str(len(estimate.weights))),
        ("steps watched", str(len(estimate.learning_rates))),
    ]
    if views is not None:
        few, many = min(views.episodes), max(views.episodes)
        facts.append(("episodes per stage", str(few) if few == many else f"{few} to {many}"))
    explained = estimate.fit.explained[np.isfinite(estimate.fit.explained)]
    cosines = estimate.fit.cosines[np.isfinite(estimate.fit.cosines)]
    if len(cosines):
        facts.append(
            (f"median cosine (chance {estimate.fit.chance:.2f})", f"{np.median(cosines):.2f}")
        )
    if len(explained) and np.median(explained) > 0:
        facts.append(("movement explained, median", f"{100 * np.median(explained):.0f}%"))
    return facts


def _shown(weights: Float) -> Float:
    """Indices of the features on the page, in their own order."""
    return np.sort(np.argsort(-np.abs(weights), kind="stable")[:MOST_WEIGHTS])


def _weights(estimate: RewardEstimate, shown: Any) -> dict[str, Any]:
    found = sorted_features(estimate)
    return {
        "index": shown,
        "weight": estimate.weights[shown],
        "error": estimate.standard_errors[shown],
        "positive": estimate.probability_positive()[shown],
        "verdict": [found.word(int(j)) for j in shown],
        "intervals": {f"{100 * level:.0f}": estimate.interval(level)[shown] for level in LEVELS},
        "unit": "unit norm" if estimate.scale == "unit norm" else "reward per feature unit",
    }


def _gauge(estimate: RewardEstimate, shown: Any) -> dict[str, Any]:
    gauge = estimate.gauge
    rows = np.concatenate([gauge.directions, gauge.weak])[:12]
    sizes = np.maximum(np.abs(rows).max(axis=1, keepdims=True), 1e-300)
    signs = np.sign(np.take_along_axis(rows, np.abs(rows).argmax(axis=1)[:, None], axis=1))
    return {
        "sentences": gauge_sentences(estimate),
        "rows": (rows * signs / sizes)[:, shown],
        "none": min(len(gauge.directions), 12),
        "plot": not all(simple_combination(row) for row in rows),
        "rank": estimate.rank,
        "condition": estimate.condition,
    }


def _held_out(estimate: RewardEstimate) -> Float | None:
    held_out = estimate.held_out
    if held_out is None or not np.isfinite(held_out).any():
        return None
    return held_out[:MOST_POINTS]


def _thinned(trace: Float) -> dict[str, Any]:
    kept = np.unique(np.linspace(0, max(len(trace) - 1, 0), MOST_POINTS).round().astype(int))
    kept = kept[: len(trace)]
    return {"update": kept + 1, "value": trace[kept]}


def _models(estimate: RewardEstimate) -> list[tuple[str, float]]:
    order = sorted(estimate.models.items(), key=lambda item: -item[1])
    return [(clean(name, longest=40), gain) for name, gain in order[:20]]


def _planning(estimate: RewardEstimate, shown: Any) -> dict[str, Any] | None:
    now = np.diff(estimate.interval(0.95), axis=1)[:, 0]
    episodes = estimate.expected_widths(2.0)
    if not np.isfinite(episodes).any():
        return None
    stages = estimate.expected_widths(1.0, 2.0)
    return {"now": now[shown], "episodes": episodes[shown], "stages": stages[shown]}


def _map(drawn: RewardMap) -> dict[str, Any]:
    return {
        "values": np.vectorize(lambda x: float(f"{x:.3g}"))(drawn.values),
        "labels": drawn.labels,
        "moves": drawn.moves,
        "caption": drawn.caption,
        "x": drawn.x,
        "y": drawn.y,
        "extent": drawn.extent,
    }


def _flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested choices as lines `outer.inner`; at most 200 of them."""
    lines: list[tuple[str, Any]] = []
    for key, value in list(config.items())[:200]:
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and prefix.count(".") < 4:
            lines += _flat(value, f"{name}.")
        else:
            lines.append((name, value))
    return lines[:200]
