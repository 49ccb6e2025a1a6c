"""The paper's reward, learner by learner: what each observer makes of few and of many steps.

Beside the measured errors stands the Cramer-Rao bound, and the value that an efficient unbiased
estimator would reach on average: where that is below the target, no unbiased estimator gets there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pandas as pd

from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.envs.tabular import optimal_policy, start_value, uniform_policy
from logel.learners.tabular import LEARNERS, observe
from logel.studies.accuracy import OBSERVERS, judge_tabular
from logel.studies.claims import Claim, judge
from logel.studies.information_bound import cramer_rao
from logel.studies.run.tasks import Row, Task, grid

STEPS = {
    "gpomdp": (3, 5, 10, 30),
    "qlearning": (3, 5, 10, 30),
    "svi": (3, 5, 10),
    "spi": (3, 5, 10),
}
TARGET = 3.0
# Where the mean value is asked to reach the target.
TARGETS = (("gpomdp", 30), ("qlearning", 10), ("svi", 10), ("spi", 10))


def tasks(options: dict[str, str], observers: Sequence[str], seeds: range) -> list[Task]:
    """Every learner, number of steps, observer and seed."""
    chosen = [o for o in OBSERVERS if o in observers]
    return [
        task
        for learner, steps in STEPS.items()
        for task in grid(
            "accuracy-paper",
            {"learner": [learner], "steps": list(steps), "observer": chosen},
            seeds=seeds,
        )
    ]


def run(task: Task) -> list[Row]:
    """One learner with the paper's reward, seen by one observer."""
    mdp = gridworld_mdp()
    truth = np.asarray(grid_weights(mdp.feature_names))
    learner, steps = str(task.setting["learner"]), int(str(task.setting["steps"]))
    history = observe(
        mdp,
        LEARNERS[learner](),
        weights=truth,
        n_steps=steps,
        # The same learner, watched for longer.
        seed=task.seed_sequence(ignoring=("observer", "steps")),
    )
    row = judge_tabular(mdp, history, str(task.setting["observer"]), truth, task.seed)
    best = start_value(mdp, optimal_policy(mdp, truth)[0], weights=truth)
    spread = best - start_value(mdp, uniform_policy(mdp), weights=truth)
    value = best - float(str(row["regret"])) * spread
    bound, attainable = at_the_bound(learner, steps)
    return [{"value": value, **row, "bound": bound, "attainable": attainable}]


@cache
def at_the_bound(learner: str, steps: int) -> tuple[float, float]:
    """Least direction error, and the mean value an efficient unbiased estimator would reach."""
    mdp = gridworld_mdp()
    truth = np.asarray(grid_weights(mdp.feature_names))
    bound = cramer_rao(mdp, truth, learner=learner, n_steps=steps)
    draws = bound.draw(200, np.random.default_rng(0))
    values = [start_value(mdp, optimal_policy(mdp, w)[0], weights=truth) for w in draws]
    return bound.direction, float(np.mean(values))


def claims(table: pd.DataFrame) -> list[Claim]:
    """The default's value reaches the target where it is asked to."""
    found = []
    for learner, steps in TARGETS:
        rows = table[
            (table.learner == learner) & (table.steps == steps) & (table.observer == "default")
        ]
        if rows.empty:
            continue
        found.append(
            judge(
                f"{learner} at m = {steps}: value at least {TARGET}",
                rows["value"].tolist(),
                statistic="value of the policy optimal for the recovered weights",
                threshold=TARGET,
                wanted="above",
                observer="default",
                source="logel",
            )
        )
    return found
