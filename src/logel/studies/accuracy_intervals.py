"""Are the intervals honest? Many histories, and learners that learn nothing.

Do 95% intervals contain the truth 95 times in 100, and does the estimate say so when a policy only
drifts at random? Two worlds: the paper's map with a tabular policy, and random stochastic worlds
seen through random state features by a linear softmax policy, with parameters known and hidden.
True weights are drawn from a normal; the observer has 50 episodes a stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from logel.data.history import LearningHistory
from logel.inference.infer import infer_reward
from logel.inference.status import Status
from logel.learners.gradient_ascent import (
    GradientAscent,
    ParameterWalk,
    ParametricLearner,
    observe_parametric,
)
from logel.learners.tabular import GPOMDPLearner, RandomWalk, TabularLearner, observe
from logel.policies.base import Policy
from logel.studies import plots
from logel.studies.claims import Claim, judge
from logel.studies.measures import (
    Seed,
    family,
    judge_estimate,
    judge_intervals,
    judge_tabular,
    random_linear_world,
    world,
)
from logel.studies.run.tasks import Row, Task
from logel.studies.study import Study
from logel.types import Float

if TYPE_CHECKING:
    import pandas as pd

# For the paper's map, and for the random worlds.
Learners = tuple[TabularLearner, ParametricLearner]


def watched(
    task: Task, rng: np.random.Generator, seed: Seed, learners: Learners
) -> tuple[LearningHistory, Policy, float, Float]:
    """One of the learners in the world it is for; its policies, gamma and true weights."""
    known, steps = bool(task.setting["known"]), task.integer("steps")
    on_map, elsewhere = learners
    if task.setting["world"] == "gridworld":
        mdp = world().mdp
        truth = rng.standard_normal(mdp.n_features)
        history = observe(mdp, on_map, weights=truth, n_steps=steps, seed=seed, parameters=known)
        return history, family(mdp), mdp.gamma, truth
    where, truth = random_linear_world(rng, n_states=20, n_features=4)
    history = observe_parametric(
        where, elsewhere, weights=truth, n_steps=steps, seed=seed, parameters=known
    )
    return history, where.policy, where.gamma, truth


# --- coverage -------------------------------------------------------------------------------------


def run_coverage(task: Task) -> list[Row]:
    """One history, one estimate, its intervals held against the truth."""
    history, policy, gamma, truth = watched_learner(task)
    estimate = infer_reward(history, policy, gamma=gamma, seed=task.seed)
    row = judge_estimate(estimate, truth)
    status = row.pop("status")  # the last column
    return [{**row, "status": status}]


def watched_learner(task: Task) -> tuple[LearningHistory, Policy, float, Float]:
    """The same learner with sampled gradients, whether its parameters are known or hidden."""
    rng, seed = task.rng(ignoring=("known",)), task.seed_sequence(ignoring=("known",))
    return watched(task, rng, seed, (GPOMDPLearner(), GradientAscent(learning_rate=1.0)))


def coverage_claims(table: pd.DataFrame) -> Iterator[Claim]:
    """Coverage between 92 and 98 in 100, in every setting."""
    statistic = "share of weights inside their 95% interval"
    for (where, known), rows in table.groupby(["world", "known"], sort=False):
        which = f"{where}, parameters {'known' if known else 'hidden'}: coverage"
        yield judge(f"{which} above 0.92", rows["coverage"], statistic=statistic, above=0.92)
        yield judge(f"{which} below 0.98", rows["coverage"], statistic=statistic, below=0.98)


COVERAGE = Study(
    "accuracy-coverage",
    [
        {"world": [where], "known": [False, True], "steps": [steps], "observer": ["default"]}
        for where, steps in (("gridworld", 30), ("random", 15))
    ],
    run_coverage,
    coverage_claims,
    partial(
        plots.case_bars,
        cases=["world", "known"],
        measures={"coverage": "coverage", "width": "median width", "error": "direction error"},
    ),
)


# --- a learner that learns nothing ----------------------------------------------------------------


def run_null(task: Task) -> list[Row]:
    """A policy that drifts at random, watched as if it learnt."""
    fading, on_map = task.setting["walk"] == "fading", task.setting["world"] == "gridworld"
    drift = RandomWalk(fading=fading), ParameterWalk(step=0.2, fading=fading)
    rng = task.rng(ignoring=("observer",) if on_map else ())
    history, policy, gamma, truth = watched(task, rng, task.seed_sequence(), drift)
    if on_map:
        return [judge_tabular(world().mdp, history, "default", truth, task.seed)]
    estimate = infer_reward(history, policy, gamma=gamma, seed=task.seed)
    return [{"status": estimate.status.name, **judge_intervals(estimate, truth)}]


def null_claims(table: pd.DataFrame) -> Iterator[Claim]:
    """Nothing is found where there is nothing, and the estimate says so."""
    for (where, walk, known), rows in table.groupby(["world", "walk", "known"], sort=False):
        which = f"{where}, {walk} random walk, parameters {'known' if known else 'hidden'}"
        yield judge(
            f"{which}: few weights called significant",
            rows["significant"],
            statistic="share of weights whose 95% interval excludes zero",
            below=0.10,
        )
        yield judge(
            f"{which}: the status warns",
            rows["status"] == Status.UNEXPLAINED.name,
            statistic="share of estimates with status UNEXPLAINED",
            above=0.9,
        )


NULL = Study(
    "accuracy-null",
    [
        {
            "world": ["gridworld", "linear"],
            "walk": ["steady", "fading"],
            "known": [False, True],
            "steps": [10],
            "observer": ["default"],
        }
    ],
    run_null,
    null_claims,
    partial(
        plots.case_bars,
        cases=["world", "walk", "known"],
        measures={"significant": "weights called significant"},
    ),
)
