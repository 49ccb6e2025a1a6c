"""What the studies measure: the true reward scores what observers recover without seeing it.

*Direction error* is the distance between unit weight vectors in the identified subspace; *relative
regret* the share of what planning could win over acting at random that is lost by planning for the
recovered reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from logel.baselines.lfl import lfl
from logel.data.history import LearningHistory
from logel.envs.gridworld import GridMap, grid_weights, gridworld_mdp, parse_weights
from logel.envs.parametric import FeaturisedMDP
from logel.envs.tabular import (
    TabularMDP,
    optimal_policy,
    policy_regret,
    random_mdp,
    relative_regret,
    start_value,
    uniform_policy,
)
from logel.errors import OptionError
from logel.inference.estimate import RewardEstimate
from logel.inference.gauge import direction_error
from logel.inference.infer import infer_reward
from logel.learners.tabular import TabularLearner, observe
from logel.policies.softmax import TabularSoftmax
from logel.studies.run.tasks import Row
from logel.types import Float

Seed = int | np.random.SeedSequence


@dataclass(frozen=True)
class World:
    """A gridworld with its true reward, and what is needed to score a recovered one."""

    mdp: TabularMDP
    weights: Float
    best: float
    uniform: float

    def observe(
        self, learner: TabularLearner, n_steps: int, seed: Seed, **options: Any
    ) -> LearningHistory:
        """Let a learner learn the true reward; see `logel.learners.tabular.observe`."""
        return observe(
            self.mdp, learner, weights=self.weights, n_steps=n_steps, seed=seed, **options
        )

    def value(self, policy: Float) -> float:
        """True value of a policy, (S, A), from the start."""
        return start_value(self.mdp, policy, weights=self.weights)

    def regret(self, value: float) -> float:
        """Share of the best value's advantage over acting at random that is lost."""
        return (self.best - value) / (self.best - self.uniform)


@cache
def world(map_text: str = "", weights: str = "code") -> World:
    """The paper's world, or another: `map_text` has its rows joined by '/'."""
    map_ = GridMap.parse(map_text.replace("/", "\n")) if map_text else GridMap.parse()
    mdp = gridworld_mdp(map_)
    truth = np.asarray(grid_weights(mdp.feature_names, parse_weights(weights)))
    best = start_value(mdp, optimal_policy(mdp, truth)[0], weights=truth)
    uniform = start_value(mdp, uniform_policy(mdp), weights=truth)
    # Regrets divide by this difference.
    if best - uniform < 1e-9:
        raise OptionError("in this world every policy earns the same: nothing can be recovered")
    return World(mdp, truth, best, uniform)


def random_linear_world(
    rng: np.random.Generator, *, n_states: int, n_features: int
) -> tuple[FeaturisedMDP, Float]:
    """Random transitions seen by a linear policy through random features, and random weights."""
    mdp = random_mdp(
        rng, n_states=n_states, n_actions=3, n_features=n_features, gamma=0.9, branching=4
    )
    seen = FeaturisedMDP(mdp, rng.standard_normal((n_states, 6)))
    return seen, rng.standard_normal(n_features)


def family(mdp: TabularMDP) -> TabularSoftmax:
    """The policies in a world of tables."""
    return TabularSoftmax(mdp.n_states, mdp.n_actions)


def plan(mdp: TabularMDP, table: Float) -> Float:
    """Optimal policy for a reward table (S, A)."""
    single = TabularMDP(mdp.transitions, table[:, :, None], mdp.initial, mdp.gamma)
    return optimal_policy(single, np.ones(1))[0]


def plan_with_lfl(mdp: TabularMDP, history: LearningHistory, seed: int) -> Float:
    """Optimal policy for the reward that LfL recovers from trajectories alone."""
    found = lfl(history, family(mdp), gamma=mdp.gamma, use_parameters=False, seed=seed)
    return plan(mdp, found.table)


def judge_tabular(
    mdp: TabularMDP, history: LearningHistory, observer: str, truth: Float, seed: int
) -> Row:
    """Regret, direction error and, where there are intervals, their coverage and width."""
    if observer == "lfl":
        planned = plan_with_lfl(mdp, history, seed)
        return {"regret": policy_regret(mdp, planned, true_weights=truth), "status": "OK"}
    intervals = observer != "paper"
    estimate = infer_reward(
        history, family(mdp), gamma=mdp.gamma, method=observer, seed=seed, intervals=intervals
    )
    regret = relative_regret(mdp, estimate.weights, true_weights=truth)
    return {"regret": regret, **judge_estimate(estimate, truth, intervals=intervals)}


def judge_estimate(estimate: RewardEstimate, truth: Float, *, intervals: bool = True) -> Row:
    """Direction error, status and, if asked for, what `judge_intervals` says."""
    return {
        "error": direction_error(estimate.weights, truth, estimate.gauge),
        "status": estimate.status.name,
        **(judge_intervals(estimate, truth) if intervals else {}),
    }


def judge_intervals(estimate: RewardEstimate, truth: Float) -> Row:
    """Coverage, median width and significance of 95% intervals, and the learner model chosen."""
    unit = estimate.gauge.project(truth)
    if estimate.scale == "unit norm":
        unit = unit / np.linalg.norm(unit)
    low, high = estimate.interval(0.95).T
    return {
        "coverage": float(((low <= unit) & (unit <= high)).mean()),
        "width": float(np.median(high - low)),
        "significant": float(((low > 0) | (high < 0)).mean()),
        "learner_model": next(iter(estimate.models), ""),
    }


def weight_rows(
    names: Sequence[str], weights: Float, ends: Float, truth: Sequence[float] | Float | None
) -> list[Row]:
    """One row per weight with the ends (q, 2) of its interval, and the truth where there is one."""
    return [
        {
            "part": "weight",
            "feature": name,
            "weight": float(weight),
            "low": float(low),
            "high": float(high),
            "truth": None if truth is None else float(truth[k]),
        }
        for k, (name, weight, (low, high)) in enumerate(zip(names, weights, ends, strict=True))
    ]


def mean_returns(history: LearningHistory, weights: Float, gamma: float) -> Float:
    """Mean discounted return of the observed episodes of every stage, shape (m + 1,)."""
    returns = []
    for stage in history:
        assert stage.features is not None
        total = (gamma**stage.times * (stage.features @ weights)).sum()
        returns.append(total / stage.n_episodes)
    return np.array(returns)
