"""How much closer to the truth are pooled Jacobians than a stage's own?

The relative error of each estimator's Jacobians at the true parameters, against the exact ones, on
the paper's map, in a random world with a linear softmax policy, and for the point mass. The stage's
own G(PO)MDP without baseline is the yardstick: `reduction` is its mean squared error over that of
the estimator.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from logel.data.history import LearningHistory
from logel.envs import lqr
from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.envs.parametric import FeaturisedMDP, LinearControl, ParametricWorld
from logel.envs.tabular import feature_jacobian, random_mdp
from logel.learners.gradient_ascent import GradientAscent, observe_parametric
from logel.learners.tabular import GPOMDPLearner, observe
from logel.policies.base import Policy
from logel.policies.softmax import LinearSoftmax, TabularSoftmax
from logel.studies.claims import Claim, judge
from logel.studies.run.tasks import Row, Task, grid
from logel.types import Float
from logel.worlds.linear import distinct_observations, linear_world
from logel.worlds.own_episodes import Baseline, stage_jacobian
from logel.worlds.pooled import sampled_world
from logel.worlds.table import pool_world

WORLDS = ("gridworld", "linear", "control")
N_STEPS = 10
HORIZON = 20


def tasks(options: dict[str, str], observers: Sequence[str], seeds: range) -> list[Task]:
    """One task per world and seed; every estimator sees the same stages."""
    return grid("accuracy-jacobians", {"world": list(WORLDS)}, seeds=seeds)


def run(task: Task) -> list[Row]:
    """All estimators on the stages of one learner."""
    history, policy, gamma, exact = _watched(task)
    parameters = history.parameters()
    assert parameters is not None
    found = {
        baseline.value: np.stack(
            [
                stage_jacobian(policy, theta, stage, gamma=gamma, baseline=baseline).mean
                for theta, stage in zip(parameters[:-1], history, strict=False)
            ]
        )
        for baseline in Baseline
    }
    found["pooled"] = _pooled(history, policy, gamma, parameters[:-1].astype(float))
    # Each feature in units of its own exact Jacobian.
    size = np.linalg.norm(exact, axis=(0, 1))
    size = np.where(size > 0, size, 1.0)
    squared = {
        name: float((((estimate - exact) / size) ** 2).sum(axis=(0, 1)).mean())
        for name, estimate in found.items()
    }
    return [
        {"estimator": name, "error": float(np.sqrt(value)), "reduction": squared["none"] / value}
        for name, value in squared.items()
    ]


def _pooled(history: LearningHistory, policy: Policy, gamma: float, states: Float) -> Float:
    if isinstance(policy, TabularSoftmax):
        world = pool_world(history, policy, gamma=gamma)
        return world.flow(states).jacobian
    if isinstance(policy, LinearSoftmax):
        observations = distinct_observations(history)
        assert observations is not None
        linear = linear_world(history, policy, observations, gamma=gamma)
        return linear.gradient(states, np.zeros(linear.n_features)).design
    sampled = sampled_world(history, policy, gamma=gamma).at(states)
    assert sampled.anchored is not None
    return sampled.anchored.design


def _watched(task: Task) -> tuple[LearningHistory, Policy, float, Float]:
    """A learner's stages with parameters, and the exact Jacobians at them."""
    rng, seed = task.rng(), task.seed_sequence()
    if task.setting["world"] == "gridworld":
        mdp = gridworld_mdp()
        history = observe(
            mdp,
            GPOMDPLearner(),
            weights=np.asarray(grid_weights(mdp.feature_names)),
            n_steps=N_STEPS,
            seed=seed,
            parameters=True,
        )
        thetas = history.parameters()
        assert thetas is not None
        exact = [feature_jacobian(mdp, theta, horizon=HORIZON) for theta in thetas[:-1]]
        policy = TabularSoftmax(mdp.n_states, mdp.n_actions)
        return history, policy, mdp.gamma, np.stack(exact)
    world: ParametricWorld
    learner = GradientAscent(learning_rate=0.002)
    weights = np.array([1.0, 0.3, 0.2])
    if task.setting["world"] == "linear":
        mdp = random_mdp(rng, n_states=30, n_actions=3, n_features=3, gamma=0.9, branching=4)
        world = FeaturisedMDP(mdp, rng.standard_normal((30, 6)), HORIZON)
        learner = GradientAscent(learning_rate=1.0)
    else:
        world = LinearControl(lqr.point_mass(), sigma=0.3)
    history = observe_parametric(
        world, learner, weights=weights, n_steps=N_STEPS, seed=seed, parameters=True
    )
    thetas = history.parameters()
    assert thetas is not None
    exact = [world.jacobian(theta) for theta in thetas[:-1]]
    return history, world.policy, world.gamma, np.stack(exact)


def claims(table: pd.DataFrame) -> list[Claim]:
    """Pooling reduces the squared error by more than any baseline does."""
    found = []
    for world, rows in table.groupby("world", sort=False):
        wide = rows.pivot(index="seed", columns="estimator", values="reduction")
        best = wide.drop(columns=["pooled", "none"]).median().idxmax()
        found.append(
            judge(
                f"{world}: pooled Jacobians are closer than the best baseline's ({best})",
                np.log(wide["pooled"] / wide[best]).tolist(),
                statistic="log ratio of the reductions of squared error",
                threshold=0.0,
                wanted="above",
                observer="pooled",
                source="logel",
            )
        )
    return found
