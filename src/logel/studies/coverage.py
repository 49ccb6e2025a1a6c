"""Do 95% intervals contain the truth 95 times in 100? Many histories, known and cloned parameters.

Two worlds: the paper's map with a tabular policy, and random stochastic worlds seen through random
state features by a linear softmax policy. True weights are drawn from a normal; the learner follows
sampled gradients; the observer has 50 episodes a stage.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from logel.data.history import LearningHistory
from logel.envs.gridworld import gridworld_mdp
from logel.envs.parametric import FeaturisedMDP
from logel.envs.tabular import random_mdp
from logel.inference.gauge import direction_error
from logel.inference.infer import infer_reward
from logel.learners.gradient_ascent import GradientAscent, observe_parametric
from logel.learners.tabular import GPOMDPLearner, observe
from logel.policies.base import Policy
from logel.policies.softmax import TabularSoftmax
from logel.studies.accuracy import judge_intervals
from logel.studies.claims import Claim, judge
from logel.studies.run.tasks import Row, Scalar, Task, grid

STEPS = {"gridworld": 30, "random": 15}


def tasks(options: dict[str, str], observers: Sequence[str], seeds: range) -> list[Task]:
    """Both worlds, parameters known and hidden."""
    return [
        task
        for world, steps in STEPS.items()
        for task in grid(
            "accuracy-coverage",
            _settings(world, steps),
            seeds=seeds,
        )
    ]


def _settings(world: str, steps: int) -> dict[str, Sequence[Scalar]]:
    return {"world": [world], "known": [False, True], "steps": [steps], "observer": ["default"]}


def run(task: Task) -> list[Row]:
    """One history, one estimate, its intervals held against the truth."""
    history, policy, gamma, truth = _watched(task)
    estimate = infer_reward(history, policy, gamma=gamma, seed=task.seed)
    error = direction_error(estimate.weights, truth, estimate.gauge)
    row = judge_intervals(estimate, truth)
    return [{"error": error, **row, "status": estimate.status.name}]


def _watched(task: Task) -> tuple[LearningHistory, Policy, float, np.ndarray]:
    rng = task.rng(ignoring=("known",))
    seed = task.seed_sequence(ignoring=("known",))
    known, steps = bool(task.setting["known"]), int(str(task.setting["steps"]))
    if task.setting["world"] == "gridworld":
        mdp = gridworld_mdp()
        truth = rng.standard_normal(mdp.n_features)
        history = observe(
            mdp, GPOMDPLearner(), weights=truth, n_steps=steps, seed=seed, parameters=known
        )
        return history, TabularSoftmax(mdp.n_states, mdp.n_actions), mdp.gamma, truth
    mdp = random_mdp(rng, n_states=20, n_actions=3, n_features=4, gamma=0.9, branching=4)
    world = FeaturisedMDP(mdp, rng.standard_normal((mdp.n_states, 6)))
    truth = rng.standard_normal(mdp.n_features)
    history = observe_parametric(
        world,
        GradientAscent(learning_rate=1.0),
        weights=truth,
        n_steps=steps,
        seed=seed,
        parameters=known,
    )
    return history, world.policy, world.gamma, truth


def claims(table: pd.DataFrame) -> list[Claim]:
    """Coverage between 92 and 98 in 100, in every setting."""
    found = []
    for (world, known), rows in table.groupby(["world", "known"], sort=False):
        which = f"{world}, parameters {'known' if known else 'hidden'}"
        for wanted, threshold in (("above", 0.92), ("below", 0.98)):
            found.append(
                judge(
                    f"{which}: coverage {wanted} {threshold:g}",
                    rows["coverage"].tolist(),
                    statistic="share of weights inside their 95% interval",
                    threshold=threshold,
                    wanted=wanted,
                    observer="default",
                    source="logel",
                )
            )
    return found
