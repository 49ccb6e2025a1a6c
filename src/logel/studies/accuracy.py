"""How good are the estimates? Measured where the truth is known, on the paper's map.

Rewards drawn at random, the paper's reward, and learners whose parameters are known. Beside the
measured errors stands the Cramer-Rao bound, and the value that an efficient unbiased estimator
would reach on average: where that is below a target, no unbiased estimator gets there. No observer
sees the true reward, the true transitions or the learner's random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from logel.envs.tabular import optimal_policy
from logel.learners.tabular import LEARNERS, GPOMDPLearner, observe
from logel.studies import plots
from logel.studies.claims import Claim, judge
from logel.studies.information_bound import cramer_rao
from logel.studies.measures import judge_tabular, world
from logel.studies.run.tasks import Row, Task
from logel.studies.study import Study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

OBSERVERS = ("default", "paper", "lfl")
QUALITY = {"regret": "relative regret", "error": "direction error", "coverage": "coverage"}
# Learner and steps, with the mean regret asked of the default (None: only to be reported).
RANDOM_CASES: dict[tuple[str, int], float | None] = {
    ("gpomdp", 10): 0.10,
    ("gpomdp", 30): 0.05,
    ("qlearning", 5): None,
    ("qlearning", 10): 0.10,
    ("svi", 5): None,
    ("svi", 10): 0.10,
    ("spi", 3): None,
    ("spi", 5): 0.05,
}


# --- random rewards -------------------------------------------------------------------------------


def run_random(task: Task) -> list[Row]:
    """One learner with a random reward, the same for every observer, on the paper's map."""
    mdp, learner = world().mdp, LEARNERS[task.text("learner")]()
    truth = task.rng(ignoring=("observer",)).standard_normal(mdp.n_features)
    seed, steps = task.seed_sequence(ignoring=("observer",)), task.integer("steps")
    history = observe(mdp, learner, weights=truth, n_steps=steps, seed=seed)
    return [judge_tabular(mdp, history, task.text("observer"), truth, task.seed)]


def random_claims(table: pd.DataFrame) -> Iterator[Claim]:
    """The default's regret is small, and smaller than that of the better of the others."""
    for (learner, steps), target in RANDOM_CASES.items():
        case = table[(table.learner == learner) & (table.steps == steps)]
        wide = case.pivot(index="seed", columns="observer", values="regret")
        if "default" not in wide:
            continue
        where = f"{learner} at m = {steps}"
        if target is not None:
            statistic = "mean relative regret"
            yield judge(f"regret for {where}", wide["default"], statistic=statistic, below=target)
        if others := [name for name in ("paper", "lfl") if name in wide]:
            better = wide[others].mean().idxmin()
            yield judge(
                f"better than {better} for {where}",
                wide[better] - wide["default"],
                statistic=f"regret of {better} minus regret of default",
                above=0.0,
            )


RANDOM = Study(
    "accuracy-random",
    [{"learner": [learner], "steps": [m], "observer": OBSERVERS} for learner, m in RANDOM_CASES],
    run_random,
    random_claims,
    partial(plots.case_bars, cases=["learner", "steps"], measures=QUALITY),
    observers=OBSERVERS,
)


# --- the paper's reward ---------------------------------------------------------------------------


PAPER_STEPS = {
    "gpomdp": (3, 5, 10, 30),
    "qlearning": (3, 5, 10, 30),
    "svi": (3, 5, 10),
    "spi": (3, 5, 10),
}
TARGET = 3.0
# Where the mean value is asked to reach the target.
PAPER_TARGETS = (("gpomdp", 30), ("qlearning", 10), ("svi", 10), ("spi", 10))


def run_paper(task: Task) -> list[Row]:
    """One learner with the paper's reward, seen by one observer."""
    where, learner, steps = world(), task.text("learner"), task.integer("steps")
    # The same learner, watched for longer.
    seed = task.seed_sequence(ignoring=("observer", "steps"))
    history = where.observe(LEARNERS[learner](), steps, seed)
    row = judge_tabular(where.mdp, history, task.text("observer"), where.weights, task.seed)
    value = where.best - float(str(row["regret"])) * (where.best - where.uniform)
    bound, attainable = at_the_bound(learner, steps)
    return [{"value": value, **row, "bound": bound, "attainable": attainable}]


@cache
def at_the_bound(learner: str, steps: int) -> tuple[float, float]:
    """Least direction error, and the mean value an efficient unbiased estimator would reach."""
    where = world()
    bound = cramer_rao(where.mdp, where.weights, learner=learner, n_steps=steps)
    draws = bound.draw(200, np.random.default_rng(0))
    values = [where.value(optimal_policy(where.mdp, weights)[0]) for weights in draws]
    return bound.direction, float(np.mean(values))


def paper_claims(table: pd.DataFrame) -> Iterator[Claim]:
    """The default's value reaches the target where it is asked to."""
    ours = table[table.observer == "default"]
    for learner, steps in PAPER_TARGETS:
        rows = ours[(ours.learner == learner) & (ours.steps == steps)]
        if len(rows):
            yield judge(
                f"{learner} at m = {steps}: value at least {TARGET}",
                rows["value"],
                statistic="value of the policy optimal for the recovered weights",
                above=TARGET,
            )


PAPER = Study(
    "accuracy-paper",
    [
        {"learner": [learner], "steps": steps, "observer": OBSERVERS}
        for learner, steps in PAPER_STEPS.items()
    ],
    run_paper,
    paper_claims,
    partial(
        plots.case_bars,
        cases=["learner", "steps"],
        measures={
            "value": "value (best 3.189)",
            "error": "direction error",
            "coverage": "coverage",
        },
    ),
    observers=OBSERVERS,
)


# --- known parameters -----------------------------------------------------------------------------


def run_known(task: Task) -> list[Row]:
    """The paper's reward, five episodes a stage; the observer sees parameters and rates."""
    where, seed = world(), task.seed_sequence(ignoring=("observer",))
    learner = GPOMDPLearner(exact=task.setting["gradient"] == "exact")
    seen = {"n_episodes": 5, "parameters": True, "learning_rates": True}
    history = where.observe(learner, task.integer("steps"), seed, **seen)
    return [judge_tabular(where.mdp, history, task.text("observer"), where.weights, task.seed)]


def known_claims(table: pd.DataFrame) -> Iterator[Claim]:
    """The default's error keeps falling, to at most .05 at 40 stages."""
    for gradient, rows in table[table.observer == "default"].groupby("gradient", sort=False):
        wide = rows.pivot(index="seed", columns="steps", values="error")
        yield judge(
            f"{gradient} gradients: the error keeps falling",
            wide[10] - wide[160],
            statistic="error at 10 minus error at 160 steps",
            above=0.0,
        )
        yield judge(
            f"{gradient} gradients: at most .05 at 40 stages",
            wide[40],
            statistic="direction error at 40 steps",
            below=0.05,
        )


def known_figure(table: pd.DataFrame) -> Figure:
    """Direction error against the number of stages, exact and sampled gradients."""
    figure = plots.new_figure(8, 3.6)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (gradient, rows) in zip(panels, table.groupby("gradient", sort=True), strict=True):
        plots.observer_bands(axes, rows, "steps", "error")
        axes.set_xscale("log")
        axes.set_ylim(0, 1.6)
        plots.tidy(axes, title=f"{gradient} gradients", x="steps watched", y="direction error")
    plots.runs_legend(figure, panels[0], table)
    return figure


KNOWN = Study(
    "accuracy-known",
    [
        {
            "gradient": ["exact", "sampled"],
            "steps": [10, 20, 40, 80, 160],
            "observer": ["default", "paper"],
        }
    ],
    run_known,
    known_claims,
    known_figure,
    observers=("default", "paper"),
)


# --- the Cramer-Rao bound -------------------------------------------------------------------------


def run_bound(task: Task) -> list[Row]:
    """Direction error of the default, with the least any unbiased estimator could have."""
    where, steps = world(), task.integer("steps")
    history = where.observe(GPOMDPLearner(exact=True), steps, task.seed_sequence())
    row = judge_tabular(where.mdp, history, "default", where.weights, task.seed)
    bound = cramer_rao(where.mdp, where.weights, learner="gpomdp", n_steps=steps)
    return [{**row, "bound": bound.direction}]


def bound_claims(table: pd.DataFrame) -> Iterator[Claim]:
    """Root-mean-square direction error within 1.3 times the bound at m = 30."""
    rows = table[table.steps == 30]
    yield judge(
        "exact gradients, m = 30: squared direction error within 1.3^2 of the bound's",
        rows["error"] ** 2,
        statistic="squared direction error",
        below=float((1.3 * rows["bound"].iloc[0]) ** 2),
    )


BOUND = Study(
    "accuracy-bound",
    [{"steps": [10, 30], "observer": ["default"]}],
    run_bound,
    bound_claims,
    partial(plots.case_bars, cases=["steps"], measures={"error": "direction error"}),
)
