"""How good are the estimates? Measured where the truth is known, on rewards drawn at random.

Two measures: *direction error*, the distance between unit weight vectors in the identified
subspace, and *relative regret*, the share of what planning could win over acting at random that is
lost by planning for the recovered reward. No observer sees the true reward, the true transitions or
the learner's random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from logel.baselines.lfl import lfl
from logel.diagnostics import direction_error
from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.envs.tabular import TabularMDP, policy_regret, random_mdp, relative_regret
from logel.experiments.claims import Claim, judge
from logel.experiments.gridworld import plan
from logel.experiments.tasks import Row, Scalar, Task, grid
from logel.history import LearningHistory
from logel.infer import infer_reward
from logel.learner_models import GradientLearner
from logel.learners.tabular import (
    LEARNERS,
    GPOMDPLearner,
    NaturalGradientAscent,
    RandomWalk,
    TabularLearner,
    observe,
)
from logel.policies import TabularSoftmax
from logel.solve import Status
from logel.world_model import TabularWorld

Float = npt.NDArray[np.float64]
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


def _weights(task: Task, mdp: TabularMDP) -> Float:
    """True weights drawn from a normal, the same for every observer."""
    return task.rng(ignoring=("observer",)).standard_normal(mdp.n_features)


def _judge_estimate(
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
        unit = estimate.gauge.project(truth)
        if estimate.scale == "unit norm":
            unit = unit / np.linalg.norm(unit)
        ends = estimate.interval(0.95)
        row["coverage"] = float(((ends[:, 0] <= unit) & (unit <= ends[:, 1])).mean())
        row["width"] = float(np.median(ends[:, 1] - ends[:, 0]))
        row["significant"] = float(((ends[:, 0] > 0) | (ends[:, 1] < 0)).mean())
        row["learner_model"] = next(iter(estimate.models), "")
    return row


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
    truth = _weights(task, mdp)
    history = observe(
        mdp,
        LEARNERS[str(task.setting["learner"])](),
        weights=truth,
        n_steps=int(str(task.setting["steps"])),
        seed=task.seed_sequence(ignoring=("observer",)),
    )
    return [_judge_estimate(mdp, history, str(task.setting["observer"]), truth, task.seed)]


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
    return [_judge_estimate(mdp, history, str(task.setting["observer"]), truth, task.seed)]


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
        "walk": ["steady", "fading"],
        "known": [False, True],
        "steps": [10],
        "observer": ["default"],
    }
    return grid("accuracy-null", settings, seeds=seeds)


def run_null(task: Task) -> list[Row]:
    """A policy that drifts at random, watched as if it learnt."""
    mdp = gridworld_mdp()
    truth = _weights(task, mdp)
    history = observe(
        mdp,
        RandomWalk(fading=task.setting["walk"] == "fading"),
        weights=truth,
        n_steps=int(str(task.setting["steps"])),
        seed=task.seed_sequence(),
        parameters=bool(task.setting["known"]),
    )
    return [_judge_estimate(mdp, history, "default", truth, task.seed)]


def null_claims(table: pd.DataFrame) -> list[Claim]:
    """Nothing is found where there is nothing, and the estimate says so."""
    claims = []
    for (walk, known), rows in table.groupby(["walk", "known"], sort=False):
        which = f"{walk} random walk, parameters {'known' if known else 'hidden'}"
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
                (rows["status"] == Status.UNEXPLAINED.name).astype(float).tolist(),
                statistic="share of estimates with status UNEXPLAINED",
                threshold=0.9,
                wanted="above",
                observer="default",
                source="logel",
            )
        )
    return claims


# --- other worlds ---------------------------------------------------------------------------------


WORLDS = {"small": (10, 3, 3), "medium": (25, 4, 5), "large": (60, 4, 8)}
WORLD_LEARNERS: dict[str, TabularLearner] = {
    "vanilla": GPOMDPLearner(learning_rate=1.0),
    "normalised": GPOMDPLearner(learning_rate=0.3, schedule="normalised"),
    "natural": NaturalGradientAscent(learning_rate=0.2),
}


def worlds_tasks(options: dict[str, str], observers: Sequence[str], seeds: range) -> list[Task]:
    """Random stochastic worlds that no choice of the estimator was made on."""
    chosen = [o for o in OBSERVERS if o in observers]
    settings: dict[str, Sequence[Scalar]] = {
        "world": list(WORLDS),
        "learner": list(WORLD_LEARNERS),
        "steps": [15],
        "observer": chosen,
    }
    return grid("accuracy-worlds", settings, seeds=seeds)


def run_worlds(task: Task) -> list[Row]:
    """One learner in a random world with a random reward; 50 episodes of 20 steps a stage."""
    rng = task.rng(ignoring=("observer", "learner"))
    n_states, n_actions, n_features = WORLDS[str(task.setting["world"])]
    mdp = random_mdp(
        rng, n_states=n_states, n_actions=n_actions, n_features=n_features, gamma=0.9, branching=4
    )
    truth = rng.standard_normal(n_features)
    history = observe(
        mdp,
        WORLD_LEARNERS[str(task.setting["learner"])],
        weights=truth,
        n_steps=int(str(task.setting["steps"])),
        seed=task.seed_sequence(ignoring=("observer",)),
    )
    return [_judge_estimate(mdp, history, str(task.setting["observer"]), truth, task.seed)]


def worlds_claims(table: pd.DataFrame) -> list[Claim]:
    """The default beats the paper's way in worlds it was not made on."""
    claims = []
    for (world, learner), rows in table.groupby(["world", "learner"], sort=False):
        wide = rows.pivot(index="seed", columns="observer", values="regret")
        if not {"default", "paper"} <= set(wide.columns):
            continue
        claims.append(
            judge(
                f"better than the paper's way: {learner} learner, {world} world",
                (wide["paper"] - wide["default"]).tolist(),
                statistic="regret of paper minus regret of default",
                threshold=0.0,
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
    row = _judge_estimate(mdp, history, "default", truth, task.seed)
    return [{**row, "bound": cramer_rao_direction(mdp, truth, learner=learner, n_steps=steps)}]


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


def exact_world(mdp: TabularMDP, *, horizon: int) -> TabularWorld:
    """The true world in the form of a pooled one, with nothing observed in it."""
    return TabularWorld(
        transitions=np.asarray(mdp.transitions),
        features=np.asarray(mdp.expected_features),
        initial=np.asarray(mdp.initial),
        gamma=mdp.gamma,
        horizon=horizon,
        counts=np.zeros((1, mdp.n_states, mdp.n_actions)),
        episode_sums=(np.zeros((1, mdp.n_states, mdp.n_actions, mdp.n_features)),),
    )


def cramer_rao_direction(
    mdp: TabularMDP,
    weights: Float,
    *,
    learner: GPOMDPLearner,
    n_steps: int,
    n_episodes: int = 50,
    horizon: int = 20,
) -> float:
    """Least root-mean-square direction error of an unbiased estimator, from trajectories.

    The learner follows exact gradients at one unknown rate from an unknown first policy: the path
    is a function of the first policy's parameters and of rate times weights, whose information is
    summed over the stages with the sensitivities of the path.
    """
    model = GradientLearner(exact_world(mdp, horizon=horizon))
    q, d = mdp.n_features, model.state_dim
    scaled = np.concatenate([learner.learning_rate * weights, np.zeros(1)])
    state = np.zeros((1, d))
    sensitivity = np.concatenate([np.eye(d), np.zeros((d, q))], axis=1)
    information = np.zeros((d + q, d + q))
    for _ in range(n_steps + 1):
        policy = model.policies(state)[0]
        visits = n_episodes * _undiscounted_visits(mdp, policy, horizon)
        free = policy[:, :-1]
        blocks = np.einsum("sa,ab->sab", free, np.eye(free.shape[1]))
        blocks = visits[:, None, None] * (blocks - free[:, :, None] * free[:, None, :])
        fisher = np.zeros((d, d))
        width = free.shape[1]
        for s, block in enumerate(blocks):
            fisher[s * width : (s + 1) * width, s * width : (s + 1) * width] = block
        information += sensitivity.T @ fisher @ sensitivity
        step = model.predict(state, scaled)
        sensitivity = step.transition[0] @ sensitivity
        sensitivity[:, d:] += step.design[0][:, :q]
        state = step.following
    covariance = np.linalg.pinv(information, rcond=1e-12, hermitian=True)[d:, d:]
    identified = np.eye(q) - np.full((q, q), 1 / q)
    truth = identified @ weights
    unit = truth / np.linalg.norm(truth)
    across = identified - np.outer(unit, unit)
    size = learner.learning_rate * float(np.linalg.norm(truth))
    return float(np.sqrt(np.trace(across @ covariance @ across)) / size)


def _undiscounted_visits(mdp: TabularMDP, policy: Float, horizon: int) -> Float:
    """Expected number of times each state is acted in, over one episode."""
    kernel = np.einsum("sa,sat->st", policy, mdp.transitions)
    here, total = np.asarray(mdp.initial), np.zeros(mdp.n_states)
    for _ in range(horizon):
        total = total + here
        here = here @ kernel
    return total
