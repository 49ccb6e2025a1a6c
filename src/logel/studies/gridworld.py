"""The paper's gridworld studies: known parameters, four learners, learning curves.

Each study is a list of tasks, a function from a task to rows, the figure's panels and the claims.
The true reward is used to let the learner learn and to score what observers recover; no observer
sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd

from logel.baselines.girl import girl
from logel.baselines.lfl import lfl
from logel.data.history import LearningHistory
from logel.envs.gridworld import GridMap, grid_weights, gridworld_mdp, parse_weights
from logel.envs.tabular import TabularMDP, optimal_policy, start_value, uniform_policy
from logel.errors import OptionError
from logel.inference.gauge import direction_error
from logel.inference.infer import METHODS, infer_reward
from logel.learners.tabular import LEARNERS, GPOMDPLearner, observe
from logel.policies.softmax import TabularSoftmax
from logel.studies.claims import Claim, judge
from logel.studies.run.tasks import Row, Task, grid
from logel.types import Float

BATCHES = (5, 10, 20, 30, 40, 50)
STEPS = (2, 4, 6, 8, 10)
LONG, SHORT = (2, 4, 6, 8, 10, 12, 20, 30), (2, 4, 6, 8, 10, 12)
STAGES = {"gpomdp": LONG, "qlearning": LONG, "spi": SHORT, "svi": SHORT}
KNOWN_OBSERVERS = ("default", "paper", "authors")
OBSERVERS = ("default", "paper", "lfl", "girl", "learner")
# A reward counts as recovered when planning for it loses at most this share of what there is to
# win over acting at random.
RECOVERED = 0.1


@dataclass(frozen=True)
class World:
    """A gridworld with its true reward, and what is needed to score a recovered one."""

    mdp: TabularMDP
    weights: Float
    best: float
    uniform: float

    @property
    def policy(self) -> TabularSoftmax:
        """The family of policies in this world."""
        return TabularSoftmax(self.mdp.n_states, self.mdp.n_actions)

    def value(self, policy: Float) -> float:
        """True value of a policy, (S, A), from the start."""
        return start_value(self.mdp, policy, weights=self.weights)

    def regret(self, value: float) -> float:
        """Share of the best value's advantage over acting at random that is lost."""
        return (self.best - value) / (self.best - self.uniform)


@cache
def world(map_text: str, weights: str) -> World:
    """The world of a task; `map_text` has its rows joined by '/', empty for the default."""
    map_ = GridMap.parse(map_text.replace("/", "\n")) if map_text else GridMap.parse()
    mdp = gridworld_mdp(map_)
    truth = np.asarray(grid_weights(mdp.feature_names, parse_weights(weights)))
    best = start_value(mdp, optimal_policy(mdp, truth)[0], weights=truth)
    uniform = start_value(mdp, uniform_policy(mdp), weights=truth)
    if best - uniform < 1e-9:
        raise OptionError("in this world every policy earns the same: nothing can be recovered")
    return World(mdp, truth, best, uniform)


def _world_of(task: Task) -> World:
    return world(str(task.setting["map"]), str(task.setting["weights"]))


def plan(mdp: TabularMDP, table: Float) -> Float:
    """Optimal policy for a reward table (S, A)."""
    single = TabularMDP(mdp.transitions, table[:, :, None], mdp.initial, mdp.gamma)
    return optimal_policy(single, np.ones(1))[0]


def score(where: World, observer: str, history: LearningHistory, seed: int) -> Row:
    """Let an observer infer, plan for what it found, and score the plan under the true reward."""
    mdp, policy = where.mdp, where.policy
    error_raw = error = float("nan")
    if observer == "learner":
        parameters = history[-1].parameters
        assert parameters is not None
        planned = policy.probabilities(parameters, np.arange(mdp.n_states))
    elif observer == "lfl":
        found = lfl(history, policy, gamma=mdp.gamma, use_parameters=False, seed=seed)
        planned = plan(mdp, found.table)
    else:
        if observer == "girl":
            weights = girl(history, policy, gamma=mdp.gamma, use_parameters=False).weights
        elif observer in ("default", *METHODS):
            weights = infer_reward(
                history,
                policy,
                gamma=mdp.gamma,
                method=observer,
                use_parameters=history.learning_rates is not None,
                intervals=False,
                seed=seed,
            ).weights
        else:
            raise OptionError(f"unknown observer {observer!r}")
        planned = optimal_policy(mdp, weights)[0]
        error_raw = direction_error(weights, where.weights)
        # One-hot areas: adding a constant to all weights changes nothing.
        error = direction_error(weights - weights.mean(), where.weights - where.weights.mean())
    value = where.value(planned)
    return {
        "value": value,
        "regret": where.regret(value),
        "error_raw": error_raw,
        "error": error,
    }


# --- known parameters -----------------------------------------------------------------------------


def known_tasks(options: dict[str, str], observers: Sequence[str], seeds: range) -> list[Task]:
    """One step and growing batch; batch 5 and growing number of steps."""
    chosen = [o for o in observers if o in KNOWN_OBSERVERS]
    shared = {**{k: [v] for k, v in options.items()}, "observer": chosen}
    return grid("gridworld-known", {**shared, "part": ["batch"], "x": BATCHES}, seeds=seeds) + grid(
        "gridworld-known", {**shared, "part": ["steps"], "x": STEPS}, seeds=seeds
    )


def run_known(task: Task) -> list[Row]:
    """The observer sees parameters and rates, and episodes of its own."""
    where = _world_of(task)
    x = int(str(task.setting["x"]))
    batch, steps = (x, 1) if task.setting["part"] == "batch" else (5, x)
    history = observe(
        where.mdp,
        GPOMDPLearner(),
        weights=where.weights,
        n_steps=steps,
        n_episodes=batch,
        seed=task.seed_sequence(ignoring=("observer",)),
        parameters=True,
        learning_rates=True,
    )
    return [score(where, str(task.setting["observer"]), history, task.seed)]


def known_claims(table: pd.DataFrame) -> list[Claim]:
    """The error falls with the batch, and with the number of steps."""
    claims = []
    for observer, rows in table.groupby("observer", sort=False):
        for part, what in (("batch", "batch size"), ("steps", "learning steps")):
            wide = rows[rows.part == part].pivot(index="seed", columns="x", values="error")
            first, last = wide.columns.min(), wide.columns.max()
            claims.append(
                judge(
                    f"the weights' error falls with the {what}",
                    (wide[first] - wide[last]).tolist(),
                    statistic=f"error at {first} minus error at {last}",
                    threshold=0.0,
                    wanted="above",
                    observer=str(observer),
                    source="paper" if observer == "paper" else "logel",
                )
            )
    return claims


# --- four learners --------------------------------------------------------------------------------


def learners_tasks(options: dict[str, str], observers: Sequence[str], seeds: range) -> list[Task]:
    """Every learner, observer and seed; all numbers of stages inside one task."""
    chosen = [o for o in observers if o in OBSERVERS]
    settings = {**{k: [v] for k, v in options.items()}, "learner": LEARNERS, "observer": chosen}
    return grid("gridworld-learners", settings, seeds=seeds)


def run_learners(task: Task) -> list[Row]:
    """One learner, watched for more and more steps from trajectories alone."""
    where = _world_of(task)
    learner = str(task.setting["learner"])
    history = observe(
        where.mdp,
        LEARNERS[learner](),
        weights=where.weights,
        n_steps=max(STAGES[learner]),
        seed=task.seed_sequence(ignoring=("observer",)),
        parameters=True,
    )
    observer = str(task.setting["observer"])
    return [
        {"steps": m, **score(where, observer, history.slice(0, m + 1), task.seed)}
        for m in STAGES[learner]
    ]


def learners_claims(table: pd.DataFrame) -> list[Claim]:
    """Which observers recover which learners, and how many stages they need."""
    claims = []
    regret = {
        (learner, observer): rows.pivot(index="seed", columns="steps", values="regret")
        for (learner, observer), rows in table.groupby(["learner", "observer"], sort=False)
    }
    for observer in ("paper", "default"):
        for learner in LEARNERS:
            if (wide := regret.get((learner, observer))) is None:
                continue
            claims.append(
                judge(
                    f"LOGEL recovers the reward of the {learner} learner",
                    wide[wide.columns.max()].tolist(),
                    statistic=f"relative regret after {wide.columns.max()} steps",
                    threshold=RECOVERED,
                    wanted="below",
                    observer=observer,
                    source="paper" if observer == "paper" else "logel",
                )
            )
    if (wide := regret.get(("gpomdp", "lfl"))) is not None:
        claims.append(
            judge(
                "LfL does not recover the reward of the gpomdp learner",
                wide[wide.columns.max()].tolist(),
                statistic=f"relative regret after {wide.columns.max()} steps",
                threshold=RECOVERED,
                wanted="above",
                observer="lfl",
            )
        )
    for observer in ("paper", "default"):
        for learner in ("qlearning", "svi"):
            ours, theirs = regret.get((learner, observer)), regret.get((learner, "lfl"))
            if ours is None or theirs is None:
                continue
            claims.append(
                judge(
                    f"LfL needs more stages than LOGEL for the {learner} learner",
                    (_stages_needed(theirs) - _stages_needed(ours)).tolist(),
                    statistic=f"steps until regret stays below {RECOVERED:g}: LfL's minus LOGEL's",
                    threshold=0.0,
                    wanted="above",
                    observer=observer,
                    source="paper" if observer == "paper" else "logel",
                )
            )
    return claims


def _stages_needed(wide: pd.DataFrame) -> Float:
    """Steps from which on each run's regret stays small; past the last when it never does."""
    columns = np.array(sorted(wide.columns))
    bad = wide[columns].to_numpy() > RECOVERED
    last_bad = np.where(bad.any(axis=1), len(columns) - 1 - bad[:, ::-1].argmax(axis=1), -1)
    spacing = columns[-1] - columns[-2]
    return np.append(columns, columns[-1] + spacing)[last_bad + 1].astype(float)


# --- learning curves ------------------------------------------------------------------------------


def curves_tasks(options: dict[str, str], observers: Sequence[str], seeds: range) -> list[Task]:
    """Every learner and seed."""
    settings = {**{k: [v] for k, v in options.items()}, "learner": list(LEARNERS)}
    return grid("gridworld-curves", settings, seeds=seeds)


def run_curves(task: Task) -> list[Row]:
    """Sampled discounted return of every stage (50 episodes), and the policy's exact value."""
    where = _world_of(task)
    learner = str(task.setting["learner"])
    history = observe(
        where.mdp,
        LEARNERS[learner](),
        weights=where.weights,
        n_steps=max(STAGES[learner]),
        seed=task.seed_sequence(),
        parameters=True,
    )
    rows: list[Row] = []
    for t, stage in enumerate(history):
        assert stage.features is not None and stage.parameters is not None
        paid = where.mdp.gamma**stage.times * (stage.features @ where.weights)
        policy = where.policy.probabilities(stage.parameters, np.arange(where.mdp.n_states))
        rows.append(
            {
                "stage": t,
                "return": float(paid.sum() / stage.n_episodes),
                "value": where.value(policy),
                "best_value": where.best,
            }
        )
    return rows


def curves_claims(table: pd.DataFrame) -> list[Claim]:
    """Every learner improves."""
    claims = []
    for learner, rows in table.groupby("learner", sort=False):
        wide = rows.pivot(index="seed", columns="stage", values="return")
        claims.append(
            judge(
                f"the {learner} learner's return rises",
                (wide[wide.columns.max()] - wide[0]).tolist(),
                statistic=f"return at stage {wide.columns.max()} minus at stage 0",
                threshold=0.0,
                wanted="above",
                observer="none",
            )
        )
    return claims
