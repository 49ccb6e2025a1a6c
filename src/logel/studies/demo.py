"""The demo: a learner in the gridworld, an observer that sees only its trajectories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from logel.data.history import LearningHistory
from logel.envs.gridworld import GridMap, grid_weights, gridworld_mdp
from logel.envs.tabular import optimal_policy, start_value, uniform_policy
from logel.inference.estimate import RewardEstimate
from logel.inference.gauge import direction_error
from logel.inference.infer import infer_reward
from logel.learners.tabular import GPOMDPLearner, observe
from logel.policies.softmax import TabularSoftmax
from logel.types import Float, Progress


@dataclass(frozen=True, eq=False)
class DemoResult:
    """What the demo shows.

    Attributes:
        grid: The map.
        estimate: The recovered reward.
        true_weights: Unit norm, in the identified subspace, shape (q,).
        recovered_policy: Optimal for the recovered reward, (S, A).
        value: Its value under the true reward.
        best_value: The best value possible.
        learner_value: Value of the learner's last policy.
        uniform_value: Value of acting at random.
        learner_returns: Mean discounted true return of the episodes of every stage, (m + 1,).
    """

    grid: GridMap
    estimate: RewardEstimate
    true_weights: Float
    recovered_policy: Float
    value: float
    best_value: float
    learner_value: float
    uniform_value: float
    learner_returns: Float

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
        }


def run_demo(*, n_steps: int, seed: int, progress: Progress | None = None) -> DemoResult:
    """Learn, watch, infer, plan.

    The learner's parameters are recorded only to draw its value; the observer does not use them.
    """
    grid = GridMap.parse()
    mdp = gridworld_mdp(grid)
    weights = grid_weights(mdp.feature_names)
    policy = TabularSoftmax(mdp.n_states, mdp.n_actions)
    history = observe(
        mdp,
        GPOMDPLearner(),
        weights=weights,
        n_steps=n_steps,
        seed=seed,
        parameters=True,
        progress=progress,
    )
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
        value=start_value(mdp, planned, weights=weights),
        best_value=start_value(mdp, optimal_policy(mdp, weights)[0], weights=weights),
        learner_value=start_value(mdp, learnt, weights=weights),
        uniform_value=start_value(mdp, uniform_policy(mdp), weights=weights),
        learner_returns=mean_returns(history, weights, mdp.gamma),
    )


def mean_returns(history: LearningHistory, weights: Float, gamma: float) -> Float:
    """Mean discounted return of the observed episodes of every stage, shape (m + 1,)."""
    returns = []
    for stage in history:
        assert stage.features is not None
        total = (gamma**stage.times * (stage.features @ weights)).sum()
        returns.append(total / stage.n_episodes)
    return np.array(returns)
