"""Linear-quadratic control: random worlds of two to six dimensions, gains that start anywhere.

Each history has a world, two or three features (costs of random directions of the state, and
effort), a reward, a learner and a first gain of its own. Where the first gain is zero, effort has
no gradient to begin with.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from logel.data.history import LearningHistory
from logel.envs import lqr
from logel.envs.parametric import LinearControl
from logel.errors import HistoryError, OptionError
from logel.inference.infer import infer_reward
from logel.learners.gradient_ascent import GradientAscent, observe_parametric
from logel.studies import plots
from logel.studies.claims import Claim, judge
from logel.studies.measures import judge_estimate
from logel.studies.run.tasks import Row, Task
from logel.studies.study import Study
from logel.types import Float

if TYPE_CHECKING:
    import pandas as pd

STEPS, EPISODES, EXPLORATION = 10, 50, 0.3
# Of the way from the first gain to the best one: length of the first step of an exact learner.
FIRST_STEP = 0.15


def run(task: Task) -> list[Row]:
    """One history, one estimate, its intervals held against the truth."""
    hidden = ("known",)  # the same learner, whether its parameters are known or hidden
    world, history, truth = watched(task, task.rng(ignoring=hidden))
    found = infer_reward(history, world.policy, gamma=world.gamma, seed=task.seed)
    regret = float(lqr.relative_regret(world.problem, found.weights, true_weights=truth))
    size = {"dimensions": world.problem.n_states, "features": world.problem.n_features}
    # A reward that wants ever larger actions has no best policy.
    said = any(note.startswith("left open") for note in found.notes)
    judged = judge_estimate(found, truth)
    return [{"regret": min(regret, 2.0), **size, **judged, "left_open": float(said)}]


def watched(task: Task, rng: np.random.Generator) -> tuple[LinearControl, LearningHistory, Float]:
    """A random world, its learner's history, and the true weights."""
    n, q = int(rng.integers(2, 7)), int(rng.integers(2, 4))
    problem = lqr.random_lqr(rng, n_states=n, n_actions=1 + (n > 3), n_features=q)
    world = LinearControl(problem, sigma=EXPLORATION)
    truth = 0.1 + np.abs(rng.standard_normal(q))
    truth /= np.linalg.norm(truth)
    start = np.zeros(world.policy.n_parameters)
    if task.setting["gain"] == "anywhere":
        start = stable_gain(problem, rng).T.reshape(-1)
    best = lqr.optimal_stationary_gain(problem, truth)
    assert best is not None  # both costs are positive
    natural = task.text("learner") == "natural"
    slope = world.jacobian(start) @ truth
    slope = world.fisher(start).solve(slope) if natural else slope
    rate = FIRST_STEP * float(np.linalg.norm(best.T.reshape(-1) - start) / np.linalg.norm(slope))
    seed = task.seed_sequence(ignoring=("known",))
    while True:
        learner = GradientAscent(rate, direction=task.text("learner"), n_episodes=EPISODES)
        try:
            history = observe_parametric(
                world,
                learner,
                weights=truth,
                n_steps=STEPS,
                n_episodes=EPISODES,
                initial=start,
                seed=seed,
                parameters=bool(task.setting["known"]),
            )
        except (OptionError, HistoryError):  # it diverged
            rate /= 2
        else:
            return world, history, truth


def stable_gain(problem: lqr.LQRProblem, rng: np.random.Generator) -> Float:
    """A random gain under which states do not grow, shape (k, n)."""
    while True:
        gain = rng.uniform(0.1, 1.0) * rng.standard_normal(problem.control.T.shape)
        closed = problem.dynamics + problem.control @ gain
        if np.abs(np.linalg.eigvals(closed)).max() < 1:
            return np.asarray(gain)


def claims(table: pd.DataFrame) -> Iterator[Claim]:
    """Coverage between 90 and 98 in 100, over all histories."""
    statistic = "share of weights inside their 95% interval"
    which, values = "all histories: coverage", table["coverage"]
    yield judge(f"{which} above 0.90", values, statistic=statistic, above=0.90)
    yield judge(f"{which} below 0.98", values, statistic=statistic, below=0.98)


STUDY = Study(
    "accuracy-control",
    [
        {
            "gain": ["anywhere", "zero"],
            "learner": ["vanilla", "natural"],
            "known": [False, True],
            "observer": ["default"],
        }
    ],
    run,
    claims,
    partial(
        plots.case_bars,
        cases=["gain", "learner", "known"],
        measures={"coverage": "coverage", "width": "median width", "error": "direction error"},
    ),
)
