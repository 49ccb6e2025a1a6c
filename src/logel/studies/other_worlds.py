"""Worlds that no choice of the estimator was made on: random ones, linear policies, control.

Random stochastic worlds of 10 to 60 states with tabular policies and with linear softmax policies
over random state features, and a point mass with quadratic costs under a linear Gaussian policy,
where best policy and Jacobian are known in closed form. Learners follow vanilla, normalised and
natural gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from logel.envs import lqr
from logel.envs.parametric import FeaturisedMDP, LinearControl
from logel.envs.tabular import random_mdp, relative_regret
from logel.inference.gauge import direction_error
from logel.inference.infer import infer_reward
from logel.learners.gradient_ascent import GradientAscent, observe_parametric
from logel.learners.tabular import (
    GPOMDPLearner,
    NaturalGradientAscent,
    TabularLearner,
    observe,
)
from logel.studies.accuracy import OBSERVERS, judge_intervals, judge_tabular
from logel.studies.claims import Claim, judge
from logel.studies.run.tasks import Row, Scalar, Task, grid

# States, actions and reward features.
TABULAR = {"small": (10, 3, 3), "medium": (25, 4, 5), "large": (60, 4, 8)}
TABULAR_LEARNERS: dict[str, TabularLearner] = {
    "vanilla": GPOMDPLearner(learning_rate=1.0),
    "normalised": GPOMDPLearner(learning_rate=0.3, schedule="normalised"),
    "natural": NaturalGradientAscent(learning_rate=0.2),
}
LINEAR_LEARNERS = {
    "vanilla": GradientAscent(learning_rate=1.0),
    "normalised": GradientAscent(learning_rate=0.3, schedule="normalised"),
    "natural": GradientAscent(learning_rate=0.3, direction="natural"),
}
CONTROL_LEARNERS = {
    "vanilla": GradientAscent(learning_rate=0.002, n_episodes=200),
    "normalised": GradientAscent(learning_rate=0.03, schedule="normalised", n_episodes=200),
    "natural": GradientAscent(learning_rate=0.03, direction="natural", n_episodes=200),
}
STEPS = 15
# A reward that wants ever larger actions has no best policy: its regret is counted as this.
WORST = 2.0


def tasks(options: dict[str, str], observers: Sequence[str], seeds: range) -> list[Task]:
    """All worlds and learners; LfL needs a tabular policy."""
    chosen = [o for o in OBSERVERS if o in observers]
    any_family = [o for o in chosen if o != "lfl"]
    cases: list[tuple[str, list[str], list[str]]] = [
        *((name, list(TABULAR_LEARNERS), chosen) for name in TABULAR),
        ("linear", list(LINEAR_LEARNERS), any_family),
        ("control", list(CONTROL_LEARNERS), any_family),
    ]
    found = []
    for world, learners, who in cases:
        settings: dict[str, Sequence[Scalar]] = {
            "world": [world],
            "learner": learners,
            "steps": [STEPS],
            "observer": who,
        }
        found += grid("accuracy-worlds", settings, seeds=seeds)
    return found


def run(task: Task) -> list[Row]:
    """One learner with a random reward in one of the worlds."""
    world = str(task.setting["world"])
    if world in TABULAR:
        return [_run_tabular(task, *TABULAR[world])]
    return [_run_linear(task) if world == "linear" else _run_control(task)]


def _run_tabular(task: Task, n_states: int, n_actions: int, n_features: int) -> Row:
    rng = task.rng(ignoring=("observer", "learner"))
    mdp = random_mdp(
        rng, n_states=n_states, n_actions=n_actions, n_features=n_features, gamma=0.9, branching=4
    )
    truth = rng.standard_normal(n_features)
    history = observe(
        mdp,
        TABULAR_LEARNERS[str(task.setting["learner"])],
        weights=truth,
        n_steps=STEPS,
        seed=task.seed_sequence(ignoring=("observer",)),
    )
    return judge_tabular(mdp, history, str(task.setting["observer"]), truth, task.seed)


def _run_linear(task: Task) -> Row:
    rng = task.rng(ignoring=("observer", "learner"))
    mdp = random_mdp(rng, n_states=30, n_actions=3, n_features=5, gamma=0.9, branching=4)
    world = FeaturisedMDP(mdp, rng.standard_normal((mdp.n_states, 6)))
    truth = rng.standard_normal(mdp.n_features)
    history = observe_parametric(
        world,
        LINEAR_LEARNERS[str(task.setting["learner"])],
        weights=truth,
        n_steps=STEPS,
        seed=task.seed_sequence(ignoring=("observer",)),
    )
    observer = str(task.setting["observer"])
    estimate = infer_reward(
        history, world.policy, gamma=world.gamma, method=observer, seed=task.seed
    )
    return {
        "regret": relative_regret(mdp, estimate.weights, true_weights=truth),
        "error": direction_error(estimate.weights, truth, estimate.gauge),
        "status": estimate.status.name,
        **judge_intervals(estimate, truth),
    }


def _run_control(task: Task) -> Row:
    rng = task.rng(ignoring=("observer", "learner"))
    world = LinearControl(lqr.point_mass(), sigma=0.3)
    # Costs of both signs would have no best policy.
    truth = 0.05 + np.abs(rng.standard_normal(len(world.feature_names)))
    history = observe_parametric(
        world,
        CONTROL_LEARNERS[str(task.setting["learner"])],
        weights=truth,
        n_steps=STEPS,
        n_episodes=200,
        seed=task.seed_sequence(ignoring=("observer",)),
    )
    observer = str(task.setting["observer"])
    estimate = infer_reward(
        history, world.policy, gamma=world.gamma, method=observer, seed=task.seed
    )
    regret = lqr.relative_regret(world.problem, estimate.weights, true_weights=truth)
    return {
        "regret": min(float(regret), WORST),
        "error": direction_error(estimate.weights, truth, estimate.gauge),
        "status": estimate.status.name,
        **judge_intervals(estimate, truth),
    }


def claims(table: pd.DataFrame) -> list[Claim]:
    """The default beats the paper's way in worlds it was not made on."""
    found = []
    for (world, learner), rows in table.groupby(["world", "learner"], sort=False):
        for measure in ("regret", "error"):
            wide = rows.pivot(index="seed", columns="observer", values=measure)
            if not {"default", "paper"} <= set(wide.columns):
                continue
            found.append(
                judge(
                    f"smaller {measure} than the paper's way: {learner} learner, {world} world",
                    (wide["paper"] - wide["default"]).tolist(),
                    statistic=f"{measure} of paper minus {measure} of default",
                    threshold=0.0,
                    wanted="above",
                    observer="default",
                    source="logel",
                )
            )
    return found
