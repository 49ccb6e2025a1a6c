"""How good are the estimates? Measured where the truth is known, on rewards drawn at random.

Two measures: *direction error*, the distance between unit weight vectors in the identified
subspace, and *relative regret*, the share of what planning could win over acting at random that is
lost by planning for the recovered reward. No observer sees the true reward, the true transitions or
the learner's random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from logel.baselines.lfl import lfl
from logel.data.history import LearningHistory
from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.envs.parametric import FeaturisedMDP
from logel.envs.tabular import TabularMDP, policy_regret, random_mdp, relative_regret
from logel.inference.estimate import RewardEstimate
from logel.inference.gauge import direction_error
from logel.inference.infer import infer_reward
from logel.inference.status import Status
from logel.learners.gradient_ascent import ParameterWalk, observe_parametric
from logel.learners.tabular import (
    LEARNERS,
    GPOMDPLearner,
    RandomWalk,
    observe,
)
from logel.policies.softmax import TabularSoftmax
from logel.studies.claims import Claim, judge
from logel.studies.gridworld import plan
from logel.studies.information_bound import direction_bound
from logel.studies.run.tasks import Row, Scalar, Task, grid
from logel.types import Float

OBSERVERS = ("default", "paper", "lfl")
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
KNOWN_STEPS = (10, 20, 40, 80, 160)


def drawn_weights(task: Task, mdp: TabularMDP) -> Float:
    """True weights drawn from a normal, the same for every observer."""
    return task.rng(ignoring=("observer",)).standard_normal(mdp.n_features)


def judge_tabular(
    mdp: TabularMDP, history: LearningHistory, observer: str, truth: Float, seed: int
) -> Row:
    """Regret, direction error and, where there are intervals, their coverage and width."""
    policy = TabularSoftmax(mdp.n_states, mdp.n_actions)
    if observer == "lfl":
        found = lfl(history, policy, gamma=mdp.gamma, use_parameters=False, seed=seed)
        planned = plan(mdp, found.table)
        return {"regret": policy_regret(mdp, planned, true_weights=truth), "status": "OK"}
    estimate = infer_reward(
        history, policy, gamma=mdp.gamma, method=observer, seed=seed, intervals=observer != "paper"
    )
    row: Row = {
        "regret": relative_regret(mdp, estimate.weights, true_weights=truth),
        "error": direction_error(estimate.weights, truth, estimate.gauge),
        "status": estimate.status.name,
    }
    if observer != "paper":
        row.update(judge_intervals(estimate, truth))
    return row


def judge_intervals(estimate: RewardEstimate, truth: Float) -> Row:
    """Coverage, median width and significance of 95% intervals, and the learner model chosen."""
    unit = estimate.gauge.project(truth)
    if estimate.scale == "unit norm":
        unit = unit / np.linalg.norm(unit)
    ends = estimate.interval(0.95)
    return {
        "coverage": float(((ends[:, 0] <= unit) & (unit <= ends[:, 1])).mean()),
        "width": float(np.median(ends[:, 1] - ends[:, 0])),
        "significant": float(((ends[:, 0] > 0) | (ends[:, 1] < 0)).mean()),
        "learner_model": next(iter(estimate.models), ""),
    }


# --- random rewards -------------------------------------------------------------------------------


def random_tasks(options: dict[str, str], observers: Sequence[str], seeds: range) -> list[Task]:
    """Every case, observer and draw of the reward."""
    chosen = [o for o in OBSERVERS if o in observers]
    return [
        task
        for learner, steps in RANDOM_CASES
        for task in grid(
            "accuracy-random",
            {"learner": [learner], "steps": [steps], "observer": chosen},
            seeds=seeds,
        )
    ]


def run_random(task: Task) -> list[Row]:
    """One learner with a random reward on the paper's map."""
    mdp = gridworld_mdp()
    truth = drawn_weights(task, mdp)
    history = observe(
        mdp,
        LEARNERS[str(task.setting["learner"])](),
        weights=truth,
        n_steps=int(str(task.setting["steps"])),
        seed=task.seed_sequence(ignoring=("observer",)),
    )
    return [judge_tabular(mdp, history, str(task.setting["observer"]), truth, task.seed)]


def random_claims(table: pd.DataFrame) -> list[Claim]:
    """The default's regret is small, and at most half of the better of the others'."""
    claims = []
    for (learner, steps), target in RANDOM_CASES.items():
        case = table[(table.learner == learner) & (table.steps == steps)]
        wide = case.pivot(index="seed", columns="observer", values="regret")
        if "default" not in wide:
            continue
        where = f"{learner} at m = {steps}"
        if target is not None:
            claims.append(
                judge(
                    f"regret for {where}",
                    wide["default"].tolist(),
                    statistic="mean relative regret",
                    threshold=target,
                    wanted="below",
                    observer="default",
                    source="logel",
                )
            )
        others = [name for name in ("paper", "lfl") if name in wide]
        if not others:
            continue
        better = wide[others].mean().idxmin()
        claims.append(
            judge(
                f"better than {better} for {where}",
                (wide[better] - wide["default"]).tolist(),
                statistic=f"regret of {better} minus regret of default",
                threshold=0.0,
                wanted="above",
                observer="default",
                source="logel",
            )
        )
    return claims


# --- known parameters -----------------------------------------------------------------------------


def known_tasks(options: dict[str, str], observers: Sequence[str], seeds: range) -> list[Task]:
    """Five episodes a stage, ever more stages; learners with exact and with sampled gradients."""
    chosen = [o for o in ("default", "paper") if o in observers]
    settings: dict[str, Sequence[Scalar]] = {
        "gradient": ["exact", "sampled"],
        "steps": KNOWN_STEPS,
        "observer": chosen,
    }
    return grid("accuracy-known", settings, seeds=seeds)


def run_known(task: Task) -> list[Row]:
    """The paper's reward; the observer sees parameters and rates."""
    mdp = gridworld_mdp()
    truth = np.asarray(grid_weights(mdp.feature_names))
    history = observe(
        mdp,
        GPOMDPLearner(exact=task.setting["gradient"] == "exact"),
        weights=truth,
        n_steps=int(str(task.setting["steps"])),
        n_episodes=5,
        seed=task.seed_sequence(ignoring=("observer",)),
        parameters=True,
        learning_rates=True,
    )
    return [judge_tabular(mdp, history, str(task.setting["observer"]), truth, task.seed)]


def known_claims(table: pd.DataFrame) -> list[Claim]:
    """The default's error keeps falling, to at most .05 at 40 stages."""
    claims = []
    for gradient, rows in table[table.observer == "default"].groupby("gradient", sort=False):
        wide = rows.pivot(index="seed", columns="steps", values="error")
        shared = {"observer": "default", "source": "logel"}
        claims.append(
            judge(
                f"{gradient} gradients: the error keeps falling",
                (wide[10] - wide[160]).tolist(),
                statistic="error at 10 minus error at 160 steps",
                threshold=0.0,
                wanted="above",
                **shared,
            )
        )
        claims.append(
            judge(
                f"{gradient} gradients: at most .05 at 40 stages",
                wide[40].tolist(),
                statistic="direction error at 40 steps",
                threshold=0.05,
                wanted="below",
                **shared,
            )
        )
    return claims


# --- a learner that learns nothing ----------------------------------------------------------------


def null_tasks(options: dict[str, str], observers: Sequence[str], seeds: range) -> list[Task]:
    """Random walks, steady and fading, with hidden and with known parameters."""
    settings: dict[str, Sequence[Scalar]] = {
        "world": ["gridworld", "linear"],
        "walk": ["steady", "fading"],
        "known": [False, True],
        "steps": [10],
        "observer": ["default"],
    }
    return grid("accuracy-null", settings, seeds=seeds)


def run_null(task: Task) -> list[Row]:
    """A policy that drifts at random, watched as if it learnt."""
    fading, known = task.setting["walk"] == "fading", bool(task.setting["known"])
    steps = int(str(task.setting["steps"]))
    if task.setting["world"] == "gridworld":
        mdp = gridworld_mdp()
        truth = drawn_weights(task, mdp)
        history = observe(
            mdp,
            RandomWalk(fading=fading),
            weights=truth,
            n_steps=steps,
            seed=task.seed_sequence(),
            parameters=known,
        )
        return [judge_tabular(mdp, history, "default", truth, task.seed)]
    rng = task.rng()
    mdp = random_mdp(rng, n_states=20, n_actions=3, n_features=4, gamma=0.9, branching=4)
    world = FeaturisedMDP(mdp, rng.standard_normal((mdp.n_states, 6)))
    truth = rng.standard_normal(mdp.n_features)
    history = observe_parametric(
        world,
        ParameterWalk(step=0.2, fading=fading),
        weights=truth,
        n_steps=steps,
        seed=task.seed_sequence(),
        parameters=known,
    )
    estimate = infer_reward(history, world.policy, gamma=world.gamma, seed=task.seed)
    return [{"status": estimate.status.name, **judge_intervals(estimate, truth)}]


def null_claims(table: pd.DataFrame) -> list[Claim]:
    """Nothing is found where there is nothing, and the estimate says so."""
    claims = []
    for (world, walk, known), rows in table.groupby(["world", "walk", "known"], sort=False):
        which = f"{world}, {walk} random walk, parameters {'known' if known else 'hidden'}"
        claims.append(
            judge(
                f"{which}: few weights called significant",
                rows["significant"].tolist(),
                statistic="share of weights whose 95% interval excludes zero",
                threshold=0.10,
                wanted="below",
                observer="default",
                source="logel",
            )
        )
        claims.append(
            judge(
                f"{which}: the status warns",
                (rows["status"] == Status.UNEXPLAINED.name).tolist(),
                statistic="share of estimates with status UNEXPLAINED",
                threshold=0.9,
                wanted="above",
                observer="default",
                source="logel",
            )
        )
    return claims


# --- the Cramer-Rao bound -------------------------------------------------------------------------


def bound_tasks(options: dict[str, str], observers: Sequence[str], seeds: range) -> list[Task]:
    """Exact gradients, the paper's reward."""
    return grid("accuracy-bound", {"steps": [10, 30], "observer": ["default"]}, seeds=seeds)


def run_bound(task: Task) -> list[Row]:
    """Direction error of the default, with the least any unbiased estimator could have."""
    mdp = gridworld_mdp()
    truth = np.asarray(grid_weights(mdp.feature_names))
    steps = int(str(task.setting["steps"]))
    learner = GPOMDPLearner(exact=True)
    history = observe(mdp, learner, weights=truth, n_steps=steps, seed=task.seed_sequence())
    row = judge_tabular(mdp, history, "default", truth, task.seed)
    return [{**row, "bound": direction_bound(mdp, truth, learner="gpomdp", n_steps=steps)}]


def bound_claims(table: pd.DataFrame) -> list[Claim]:
    """Root-mean-square direction error within 1.3 times the bound at m = 30."""
    rows = table[table.steps == 30]
    limit = float((1.3 * rows["bound"].iloc[0]) ** 2)
    return [
        judge(
            "exact gradients, m = 30: squared direction error within 1.3^2 of the bound's",
            (rows["error"] ** 2).tolist(),
            statistic="squared direction error",
            threshold=limit,
            wanted="below",
            observer="default",
            source="logel",
        )
    ]
