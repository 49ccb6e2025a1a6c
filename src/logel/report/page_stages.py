"""What a report shows of a history: stage by stage, what the learner collects, visits and does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from logel.data.history import LearningHistory
from logel.data.stage import Stage
from logel.errors import OptionError
from logel.inference.estimate import RewardEstimate
from logel.report.reward_maps import DiscreteWorld, discrete_world, visits_and_policy
from logel.types import Array, FeatureFunction, Float

# A page shows at most this many stages and features, evenly spaced and largest weights first, and
# this many action frequencies: a long history must not make a page that no phone can open.
MOST_STAGES = 200
MOST_FEATURES = 40
MOST_FREQUENCIES = 80_000
# What the page's script reads of every stage, where it is known.
_BY_STAGE = ("expectations", "expectation_errors", "returns", "return_errors", "visits")


@dataclass(frozen=True, eq=False)
class StageViews:
    """What the page's script reads of a history's stages (None: unknown), and the world."""

    shown: Mapping[str, Any]
    gamma: float
    world: DiscreteWorld | None


def stage_views(
    estimate: RewardEstimate, history: LearningHistory, *, features: FeatureFunction | None = None
) -> StageViews:
    """Read a history once more, one stage in memory at a time."""
    q, recorded = len(estimate.feature_names), history.signature.n_features
    if features is None and recorded not in (None, q):
        raise OptionError(
            f"the estimate has {q} features, but the history {recorded}: "
            "give the history that the estimate was made from"
        )
    world = discrete_world(history, features=features)
    gamma = _discount(estimate.config, history.metadata)
    stages = _shown_stages(len(history), world)
    chosen = np.sort(np.argsort(-np.abs(estimate.weights), kind="stable")[:MOST_FEATURES])
    rows = []
    for t in stages:
        stage = history[t] if features is None else history[t].with_features(features)
        rows.append(_look(stage, estimate.weights, chosen, gamma, world))
    columns = {name: _column([row[name] for row in rows]) for name in rows[0]}
    shown = {
        "stages": stages,
        "n_stages": len(history),
        "episodes": columns["episodes"],
        "features": chosen,
        **{name: columns[name] for name in _BY_STAGE},
        **_movement(columns),
    }
    if columns["policies"] is not None:
        # Two digits of a frequency are all that an arrow can show.
        shown["policies"] = np.round(columns["policies"], 2)
    return StageViews(shown, gamma, world)


def _column(values: list[Any]) -> Float | None:
    return None if any(value is None for value in values) else np.array(values)


def _discount(config: Mapping[str, Any], metadata: Mapping[str, Any]) -> float:
    """The discount factor of the inference, else of the recording, else none."""
    for source in (config, metadata):
        gamma = source.get("gamma")
        if isinstance(gamma, int | float) and not isinstance(gamma, bool) and 0 <= gamma <= 1:
            return float(gamma)
    return 1.0


def _shown_stages(n_stages: int, world: DiscreteWorld | None) -> list[int]:
    most = MOST_STAGES
    if world is not None:
        most = max(2, min(most, MOST_FREQUENCIES // (world.n_states * world.n_actions)))
    if n_stages <= most:
        return list(range(n_stages))
    return sorted({round(t) for t in np.linspace(0, n_stages - 1, most)})


def _look(
    stage: Stage, weights: Float, chosen: Array, gamma: float, world: DiscreteWorld | None
) -> dict[str, Any]:
    """Everything the page needs of one stage."""
    found: dict[str, Any] = dict.fromkeys((*_BY_STAGE, "policies"))
    found |= {"episodes": stage.n_episodes, "steps": stage.n_steps, "parameters": stage.parameters}
    if stage.features is not None:
        discounted = gamma ** stage.times[:, None] * stage.features
        sums = np.add.reduceat(discounted, stage.starts, axis=0)
        returns = sums @ weights
        found["expectations"] = sums.mean(axis=0)[chosen]
        found["expectation_errors"] = _standard_error(sums)[chosen]
        found["returns"], found["return_errors"] = returns.mean(), _standard_error(returns)
    if world is not None:
        found["visits"], found["policies"] = visits_and_policy(stage, world)
    return found


def _standard_error(rows: Float) -> Any:
    if len(rows) < 2:
        return np.full(rows.shape[1:], np.nan)
    return rows.std(axis=0, ddof=1) / np.sqrt(len(rows))


def _movement(columns: Mapping[str, Any]) -> dict[str, Any]:
    """How far the learner moved from each shown stage to the next, by the best measure at hand."""
    moved, noise, name = np.zeros(0), None, ""
    if columns["visits"] is not None:
        counts = columns["visits"] * columns["steps"][:, None]
        moved, noise = policy_distance(columns["policies"], counts)
        name = "share of actions that changed"
    elif columns["parameters"] is not None:
        moved, name = _lengths(columns["parameters"]), "length of the parameter step"
    elif columns["expectations"] is not None:
        squares = columns["expectation_errors"] ** 2
        noise = np.sqrt((squares[1:] + squares[:-1]).sum(axis=1))
        moved, name = _lengths(columns["expectations"]), "change of the feature expectations"
    return {"movement": moved, "movement_noise": noise, "movement_name": name}


def _lengths(rows: Float) -> Float:
    return np.asarray(np.linalg.norm(np.diff(rows, axis=0), axis=1))


def policy_distance(policies: Float, counts: Float) -> tuple[Float, Float]:
    """Total variation between successive policies, (k - 1,), and what sampling alone would give.

    Both are means over the states seen at both stages, weighted by the smaller of the two counts
    (k, S); action frequencies (k, S, A) are NaN in states that were not seen.
    """
    before, after = np.nan_to_num(policies[:-1]), np.nan_to_num(policies[1:])
    n, m = counts[:-1], counts[1:]
    weight = np.minimum(n, m)
    total = np.maximum(weight.sum(axis=1), 1e-12)
    distance = 0.5 * np.abs(after - before).sum(axis=2)
    pooled = (before * n[..., None] + after * m[..., None]) / np.maximum(n + m, 1)[..., None]
    with np.errstate(divide="ignore"):
        inverse = np.where(weight > 0, 1 / n + 1 / m, 0.0)
    # The mean absolute value of a centred normal is sqrt(2 / pi) of its standard deviation.
    spread = np.sqrt(2 / np.pi * pooled * (1 - pooled) * inverse[..., None]).sum(axis=2) / 2
    return (
        np.asarray((weight * distance).sum(axis=1) / total),
        np.asarray((weight * spread).sum(axis=1) / total),
    )
