"""Worlds that no choice of the estimator was made on: random ones, linear policies, control.

Random stochastic worlds of 10 to 60 states with tabular policies and with linear softmax policies
over random state features, and a point mass with quadratic costs under a linear Gaussian policy,
where best policy and Jacobian are known in closed form. Learners follow vanilla, normalised and
natural gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from logel.envs import lqr
from logel.envs.parametric import FeaturisedMDP, LinearControl
from logel.envs.tabular import random_mdp, relative_regret
from logel.inference.infer import infer_reward
from logel.learners.gradient_ascent import GradientAscent, observe_parametric
from logel.learners.tabular import GPOMDPLearner, NaturalGradientAscent, TabularLearner, observe
from logel.studies import plots
from logel.studies.accuracy import OBSERVERS, QUALITY
from logel.studies.claims import Claim, judge
from logel.studies.measures import judge_estimate, judge_tabular, random_linear_world
from logel.studies.run.tasks import Row, Task
from logel.studies.study import Study
from logel.types import Float

if TYPE_CHECKING:
    import pandas as pd

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


def run(task: Task) -> list[Row]:
    """One learner with a random reward in one of the worlds."""
    kind, observer, learner = task.text("world"), task.text("observer"), task.text("learner")
    rng = task.rng(ignoring=("observer", "learner"))
    seed = task.seed_sequence(ignoring=("observer",))
    if kind in TABULAR:
        s, a, q = TABULAR[kind]
        mdp = random_mdp(rng, n_states=s, n_actions=a, n_features=q, gamma=0.9, branching=4)
        truth = rng.standard_normal(q)
        teacher = TABULAR_LEARNERS[learner]
        history = observe(mdp, teacher, weights=truth, n_steps=STEPS, seed=seed)
        return [judge_tabular(mdp, history, observer, truth, task.seed)]
    where: FeaturisedMDP | LinearControl
    if kind == "linear":
        where, truth = random_linear_world(rng, n_states=30, n_features=5)
        ascent, episodes = LINEAR_LEARNERS[learner], 50
    else:
        where = LinearControl(lqr.point_mass(), sigma=0.3)
        # Costs of both signs would have no best policy.
        truth = 0.05 + np.abs(rng.standard_normal(len(where.feature_names)))
        ascent, episodes = CONTROL_LEARNERS[learner], 200
    history = observe_parametric(
        where, ascent, weights=truth, n_steps=STEPS, n_episodes=episodes, seed=seed
    )
    found = infer_reward(history, where.policy, gamma=where.gamma, method=observer, seed=task.seed)
    return [{"regret": _regret(where, found.weights, truth), **judge_estimate(found, truth)}]


def _regret(where: FeaturisedMDP | LinearControl, weights: Float, truth: Float) -> float:
    if isinstance(where, FeaturisedMDP):
        return relative_regret(where.mdp, weights, true_weights=truth)
    return min(float(lqr.relative_regret(where.problem, weights, true_weights=truth)), WORST)


def claims(table: pd.DataFrame) -> Iterator[Claim]:
    """The default beats the paper's way in worlds it was not made on."""
    for (where, learner), rows in table.groupby(["world", "learner"], sort=False):
        for measure in ("regret", "error"):
            wide = rows.pivot(index="seed", columns="observer", values=measure)
            if {"default", "paper"} <= set(wide.columns):
                yield judge(
                    f"smaller {measure} than the paper's way: {learner} learner, {where} world",
                    wide["paper"] - wide["default"],
                    statistic=f"{measure} of paper minus {measure} of default",
                    above=0.0,
                )


STUDY = Study(
    "accuracy-worlds",
    [
        {
            "world": kinds,
            "learner": ["vanilla", "normalised", "natural"],
            "steps": [STEPS],
            "observer": who,
        }
        # LfL needs a tabular policy.
        for kinds, who in (
            (list(TABULAR), OBSERVERS),
            (["linear", "control"], ("default", "paper")),
        )
    ],
    run,
    claims,
    partial(plots.case_bars, cases=["world", "learner"], measures=QUALITY),
    observers=OBSERVERS,
)
