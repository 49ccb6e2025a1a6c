"""How much closer to the truth are pooled Jacobians than a stage's own?

The relative error of each estimator's Jacobians at the true parameters, against the exact ones, on
the paper's map, in a random world with a linear softmax policy, and for the point mass. The stage's
own G(PO)MDP without baseline is the yardstick: `reduction` is its mean squared error over that of
the estimator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from logel.data.history import LearningHistory
from logel.envs import lqr
from logel.envs.parametric import LinearControl, ParametricWorld
from logel.envs.tabular import feature_jacobian
from logel.learners.gradient_ascent import GradientAscent, observe_parametric
from logel.learners.tabular import GPOMDPLearner
from logel.policies.base import Policy
from logel.studies import plots
from logel.studies.claims import Claim, judge, mean_interval
from logel.studies.measures import family, random_linear_world, world
from logel.studies.run.tasks import Row, Task
from logel.studies.study import Study
from logel.types import Float
from logel.worlds.choose import pooler
from logel.worlds.own_episodes import Baseline, stage_jacobian

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

N_STEPS = 10
HORIZON = 20


def run(task: Task) -> list[Row]:
    """All estimators on the same stages of one learner."""
    history, policy, gamma, exact_at = _watched(task)
    parameters = history.parameters()
    assert parameters is not None
    # The last stage has no step after it, and so no use for its Jacobian.
    thetas = parameters[:-1]
    exact = np.stack([exact_at(theta) for theta in thetas])
    found = {
        baseline.value: np.stack(
            [
                stage_jacobian(policy, theta, stage, gamma=gamma, baseline=baseline).mean
                for theta, stage in zip(thetas, history, strict=False)
            ]
        )
        for baseline in Baseline
    }
    found["pooled"] = _pooled(history, policy, gamma, thetas.astype(float))
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
    world = pooler(history, policy, gamma=gamma)(history).at(states)
    return world.gradient(states, np.zeros(world.n_features)).design


def _watched(task: Task) -> tuple[LearningHistory, Policy, float, Callable[[Float], Float]]:
    """A learner's stages with parameters, and the exact Jacobian at any."""
    seed = task.seed_sequence()
    if task.setting["world"] == "gridworld":
        paper = world()
        history = paper.observe(GPOMDPLearner(), N_STEPS, seed, parameters=True)

        def exact(theta: Float) -> Float:
            return feature_jacobian(paper.mdp, theta, horizon=HORIZON)

        return history, family(paper.mdp), paper.mdp.gamma, exact
    where: ParametricWorld = LinearControl(lqr.point_mass(), sigma=0.3)
    learner = GradientAscent(learning_rate=0.002)
    if task.setting["world"] == "linear":
        where, _ = random_linear_world(task.rng(), n_states=30, n_features=3)
        learner = GradientAscent(learning_rate=1.0)
    weights = np.array([1.0, 0.3, 0.2])
    history = observe_parametric(
        where, learner, weights=weights, n_steps=N_STEPS, seed=seed, parameters=True
    )
    return history, where.policy, where.gamma, where.jacobian


def claims(table: pd.DataFrame) -> Iterator[Claim]:
    """Pooling reduces the squared error by more than any baseline does."""
    for where, rows in table.groupby("world", sort=False):
        wide = rows.pivot(index="seed", columns="estimator", values="reduction")
        best = wide.drop(columns=["pooled", "none"]).median().idxmax()
        yield judge(
            f"{where}: pooled Jacobians are closer than the best baseline's ({best})",
            np.log(wide["pooled"] / wide[best]),
            statistic="log ratio of the reductions of squared error",
            above=0.0,
            observer="pooled",
        )


def figure(table: pd.DataFrame) -> Figure:
    """How many times smaller the squared error of each estimator of the Jacobians is."""
    drawn = plots.new_figure(8, 3.6)
    axes = drawn.subplots()
    worlds = list(dict.fromkeys(table.world))
    estimators = [name for name in dict.fromkeys(table.estimator) if name != "none"]
    for k, name in enumerate(estimators):
        rows = table[table.estimator == name]
        logs = [mean_interval(np.log(rows[rows.world == where].reduction)) for where in worlds]
        middle, *ends = np.exp(np.array(logs)).T
        plots.bars(axes, k, len(estimators), middle, np.array(ends), label=name, capsize=None)
    axes.set_yscale("log")
    plots.rule(axes, 1)
    axes.set_xticks(np.arange(len(worlds)), worlds)
    plots.tidy(axes, title="Squared error of the Jacobian: own G(PO)MDP over estimator")
    plots.runs_legend(drawn, axes, table, "geometric mean and 98% interval")
    return drawn


STUDY = Study(
    "accuracy-jacobians", [{"world": ["gridworld", "linear", "control"]}], run, claims, figure
)
