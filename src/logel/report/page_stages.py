"""What a report shows of a history: stage by stage, what the learner collects, visits and does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from logel.data.history import LearningHistory
from logel.data.stage import Stage
from logel.errors import OptionError
from logel.inference.estimate import RewardEstimate
from logel.report.reward_maps import DiscreteWorld, discrete_world, visits_and_policy
from logel.types import FeatureFunction, Float

# A page shows at most this many stages and features, evenly spaced and largest weights first, and
# this many action frequencies: a long history must not make a page that no phone can open.
MOST_STAGES = 200
MOST_FEATURES = 40
MOST_FREQUENCIES = 80_000


@dataclass(frozen=True, eq=False)
class StageViews:
    """One row per shown stage; see `to_plain` for what the page reads.

    Attributes:
        stages: Numbers of the stages shown.
        n_stages: Number of stages there are.
        episodes: Episodes of each stage.
        steps: Environment steps of each stage.
        gamma: Discount factor of returns and expectations.
        features: Which features are shown, by index.
        expectations: Mean discounted sum of every shown feature, (k, features); None if unknown.
        expectation_errors: Standard errors of these.
        returns: Mean discounted recovered return, (k,); None if unknown.
        return_errors: Standard errors of these.
        visits: Share of the time in each state, (k, S); None if the world is not discrete.
        policies: Action frequencies, (k, S, A).
        movement: Size of the move from each shown stage to the next, (k - 1,).
        movement_noise: What sampling alone would give, (k - 1,), or None.
        movement_name: What `movement` measures.
        world: The discrete world, if there is one.
    """

    stages: tuple[int, ...]
    n_stages: int
    episodes: tuple[int, ...]
    steps: tuple[int, ...]
    gamma: float
    features: tuple[int, ...]
    expectations: Float | None
    expectation_errors: Float | None
    returns: Float | None
    return_errors: Float | None
    visits: Float | None
    policies: Float | None
    movement: Float
    movement_noise: Float | None
    movement_name: str
    world: DiscreteWorld | None

    def to_plain(self) -> dict[str, Any]:
        """The fields that the page's script reads."""
        names = (
            "stages n_stages episodes features expectations expectation_errors returns "
            "return_errors visits movement movement_noise movement_name"
        )
        found: dict[str, Any] = {name: getattr(self, name) for name in names.split()}
        if self.policies is not None:
            # Two digits of a frequency are all that an arrow can show.
            found["policies"] = np.round(self.policies, 2)
        return found


def stage_views(
    estimate: RewardEstimate,
    history: LearningHistory,
    *,
    features: FeatureFunction | None = None,
) -> StageViews:
    """Read a history once more, one stage in memory at a time."""
    q = len(estimate.feature_names)
    recorded = history.signature.n_features
    if features is None and recorded is not None and recorded != q:
        raise OptionError(
            f"the estimate has {q} features, but the history {recorded}: "
            "give the history that the estimate was made from"
        )
    world = discrete_world(history, features=features)
    gamma = discount(estimate.config, history.metadata)
    chosen = _shown_stages(len(history), world)
    order = np.argsort(-np.abs(estimate.weights), kind="stable")[:MOST_FEATURES]
    shown = tuple(sorted(int(j) for j in order))
    gathered: list[dict[str, Any]] = []
    for t in chosen:
        stage = history[t]
        if features is not None:
            stage = stage.with_features(features)
        gathered.append(_look(stage, estimate.weights, shown, gamma, world))

    def column(name: str) -> Float | None:
        values = [row[name] for row in gathered]
        return None if any(value is None for value in values) else np.array(values)

    views = StageViews(
        stages=tuple(chosen),
        n_stages=len(history),
        episodes=tuple(row["episodes"] for row in gathered),
        steps=tuple(row["steps"] for row in gathered),
        gamma=gamma,
        features=shown,
        expectations=column("expectations"),
        expectation_errors=column("expectation_errors"),
        returns=column("returns"),
        return_errors=column("return_errors"),
        visits=column("visits"),
        policies=column("policies"),
        movement=np.zeros(0),
        movement_noise=None,
        movement_name="",
        world=world,
    )
    return _with_movement(views, column("parameters"))


def discount(config: Mapping[str, Any], metadata: Mapping[str, Any]) -> float:
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
    stage: Stage,
    weights: Float,
    shown: tuple[int, ...],
    gamma: float,
    world: DiscreteWorld | None,
) -> dict[str, Any]:
    """Everything the page needs of one stage."""
    found: dict[str, Any] = dict.fromkeys(
        ("expectations", "expectation_errors", "returns", "return_errors", "visits", "policies")
    )
    found |= {"episodes": stage.n_episodes, "steps": stage.n_steps, "parameters": stage.parameters}
    if stage.features is not None:
        discounted = gamma ** stage.times[:, None] * stage.features
        sums = np.add.reduceat(discounted, stage.starts, axis=0)
        returns = sums @ weights
        found["expectations"] = sums.mean(axis=0)[list(shown)]
        found["expectation_errors"] = _standard_error(sums)[list(shown)]
        found["returns"], found["return_errors"] = returns.mean(), _standard_error(returns)
    if world is not None:
        found["visits"], found["policies"] = visits_and_policy(stage, world)
    return found


def _standard_error(rows: Float) -> Any:
    if len(rows) < 2:
        return np.full(rows.shape[1:], np.nan)
    return rows.std(axis=0, ddof=1) / np.sqrt(len(rows))


def _with_movement(views: StageViews, parameters: Float | None) -> StageViews:
    """How far the learner moved from one shown stage to the next, by the best measure at hand."""
    if views.visits is not None and views.policies is not None:
        counts = views.visits * np.array(views.steps)[:, None]
        moved, noise = policy_distance(views.policies, counts)
        name = "share of actions that changed"
        return replace(views, movement=moved, movement_noise=noise, movement_name=name)
    if parameters is not None and parameters.ndim == 2:
        moved = np.linalg.norm(np.diff(parameters, axis=0), axis=1)
        return replace(views, movement=moved, movement_name="length of the parameter step")
    if views.expectations is not None and views.expectation_errors is not None:
        errors = views.expectation_errors
        moved = np.linalg.norm(np.diff(views.expectations, axis=0), axis=1)
        noise = np.sqrt((errors[1:] ** 2 + errors[:-1] ** 2).sum(axis=1))
        name = "change of the feature expectations"
        return replace(views, movement=moved, movement_noise=noise, movement_name=name)
    return views


def policy_distance(policies: Float, counts: Float) -> tuple[Float, Float]:
    """Total variation between successive policies, and what sampling alone would give.

    Both are means over the states seen at both stages, weighted by the smaller of the two counts.

    Args:
        policies: Action frequencies, shape (k, S, A); NaN in states that were not seen.
        counts: Visits of every state, shape (k, S).

    Returns:
        Two arrays of shape (k - 1,).
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
