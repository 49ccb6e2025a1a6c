"""The demo: a learner in the gridworld, an observer that sees only its trajectories."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from logel.data.plots import BLUE, GREY, rule, tidy
from logel.envs.gridworld import GridMap
from logel.envs.tabular import optimal_policy
from logel.inference.estimate import RewardEstimate
from logel.inference.gauge import direction_error
from logel.inference.infer import infer_reward
from logel.learners.tabular import GPOMDPLearner
from logel.studies.measures import family, world
from logel.studies.plots import new_figure
from logel.types import Float, Progress

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Where actions (down, up, left, right) point; a picture's second axis grows downwards.
_ARROWS = {0: (0, 1), 1: (0, -1), 2: (-1, 0), 3: (1, 0)}


@dataclass(frozen=True, eq=False)
class DemoResult:
    """What the demo shows; values are those of policies under the true reward.

    The true weights have unit norm, in the identified subspace; `value` is that of the policy
    (S, A) that is optimal for the recovered reward. `visits` are what the observer sees: the share
    of steps that end in each area, by stage, shape (m + 1, q).
    """

    grid: GridMap
    estimate: RewardEstimate
    true_weights: Float
    recovered_policy: Float
    value: float
    best_value: float
    learner_value: float
    uniform_value: float
    visits: Float

    def to_dict(self) -> dict[str, Any]:
        """The result as plain values."""
        names = self.estimate.feature_names
        return {
            "true_weights": dict(zip(names, self.true_weights.tolist(), strict=True)),
            "recovered_weights": dict(zip(names, self.estimate.weights.tolist(), strict=True)),
            "interval_95": dict(zip(names, self.estimate.interval(0.95).tolist(), strict=True)),
            "direction_error": direction_error(self.estimate.weights, self.true_weights),
            "value": self.value,
            "best_value": self.best_value,
            "learner_value": self.learner_value,
            "uniform_value": self.uniform_value,
            "status": self.estimate.status.value,
            "verdict": self.estimate.verdict.to_plain(),
        }


def run_demo(*, n_steps: int, seed: int, progress: Progress | None = None) -> DemoResult:
    """Learn, watch, infer, plan.

    The learner's parameters are recorded only to draw its value; the observer does not use them.
    """
    where, grid = world(), GridMap.parse()
    mdp, weights, policy = where.mdp, where.weights, family(where.mdp)
    history = where.observe(GPOMDPLearner(), n_steps, seed, parameters=True, progress=progress)
    visits = [np.mean(s.features, axis=0) for s in history if s.features is not None]
    estimate = infer_reward(
        history, policy, gamma=mdp.gamma, use_parameters=False, seed=seed, progress=progress
    )
    planned, _ = optimal_policy(mdp, estimate.weights)
    last = history[-1].parameters
    assert last is not None
    learnt = policy.probabilities(last, np.arange(mdp.n_states))
    truth = estimate.gauge.project(weights)
    return DemoResult(
        grid=grid,
        estimate=estimate,
        true_weights=truth / np.linalg.norm(truth),
        recovered_policy=planned,
        value=where.value(planned),
        best_value=where.best,
        learner_value=where.value(learnt),
        uniform_value=where.uniform,
        visits=np.array(visits),
    )


def demo_figure(result: DemoResult) -> Figure:
    """The demo's picture: where the learner goes, weights, and the reward on the map."""
    figure = new_figure(11, 3.6)
    left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1.1, 1.1])
    _visit_lines(left, result)
    _weight_bars(middle, result)
    _reward_map(right, result)
    right.set_title(
        f"Recovered reward and its best policy\n(earns {result.value:.2f} of "
        f"{result.best_value:.2f})",
        loc="left",
        fontsize=10,
        fontweight="bold",
    )
    return figure


def _visit_lines(axes: Axes, result: DemoResult) -> None:
    """Where the learner spends its time, stage by stage: nothing here knows the true reward."""
    last, names = len(result.visits) - 1, result.estimate.feature_names
    # The area it goes to more and more, and the others, which it leaves.
    rises = int(np.argmax(result.visits[-1] - result.visits[0]))
    for j, shares in enumerate(result.visits.T):
        strong = {"color": BLUE, "linewidth": 2.0} if j == rises else {"color": GREY}
        axes.plot(100 * shares, **strong)
    heights = apart(100 * result.visits[-1], least=4.0)
    for j, name in enumerate(names):
        axes.annotate(
            name,
            (last, heights[j]),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=BLUE if j == rises else "black",
        )
    axes.set_xlim(0, 1.25 * last)
    axes.set_xticks(range(0, last + 1, max(last // 6, 1)))
    tidy(axes, title="What the observer watches", x="stage", y="steps that end in the area, %")


def apart(heights: Float, *, least: float) -> Float:
    """Heights of labels, moved up where they would lie on each other."""
    order, placed = np.argsort(heights), np.array(heights, dtype=float)
    for below, above in pairwise(order):
        placed[above] = max(placed[above], placed[below] + least)
    return placed


def _weight_bars(axes: Axes, result: DemoResult) -> None:
    """True and recovered weights side by side, the recovered with its interval."""
    names, recovered = result.estimate.feature_names, result.estimate.weights
    at, interval = np.arange(len(names)), result.estimate.interval(0.95)
    axes.bar(at - 0.2, result.true_weights, width=0.38, color=GREY, label="true")
    axes.bar(at + 0.2, recovered, width=0.38, color=BLUE, label="recovered")
    if np.isfinite(interval).all():
        reach = np.abs(interval.T - recovered)
        axes.errorbar(at + 0.2, recovered, yerr=reach, fmt="none", ecolor="black", capsize=3)
    axes.set_xticks(at, names)
    rule(axes, 0)
    axes.legend(fontsize=8, frameon=False)
    tidy(axes, title="Reward weights (unit length, 95% interval)")


def _reward_map(axes: Axes, result: DemoResult) -> None:
    """The map coloured by reward, with an arrow for each state's best action."""
    rows, columns = result.grid.shape
    values = result.estimate.weights[result.grid.areas].reshape(rows, columns)
    limit = float(np.abs(values).max()) or 1.0
    image = axes.imshow(values, cmap="RdBu", vmin=-limit, vmax=limit)
    for state, action in enumerate(result.recovered_policy.argmax(axis=1)):
        row, column = divmod(state, columns)
        dx, dy = _ARROWS[int(action)]
        axes.annotate(
            "",
            xy=(column + 0.3 * dx, row + 0.3 * dy),
            xytext=(column - 0.3 * dx, row - 0.3 * dy),
            arrowprops={"arrowstyle": "->", "color": "black", "lw": 1.0},
        )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.figure.colorbar(image, ax=axes, shrink=0.8)
