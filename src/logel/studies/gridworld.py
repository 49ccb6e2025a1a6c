"""The paper's gridworld studies: known parameters, four learners, learning curves.

The true reward is used to let the learner learn and to score what observers recover; no observer
sees it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from logel.baselines.girl import girl
from logel.data.history import LearningHistory
from logel.envs.tabular import optimal_policy
from logel.errors import OptionError
from logel.inference.gauge import direction_error
from logel.inference.infer import METHODS, infer_reward
from logel.learners.tabular import LEARNERS, GPOMDPLearner
from logel.studies import plots
from logel.studies.claims import Claim, judge
from logel.studies.measures import World, family, mean_returns, plan_with_lfl, world
from logel.studies.run.tasks import Row, Task
from logel.studies.study import Study
from logel.types import Float

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BATCHES = (5, 10, 20, 30, 40, 50)
STEPS = (2, 4, 6, 8, 10)
LONG, SHORT = (2, 4, 6, 8, 10, 12, 20, 30), (2, 4, 6, 8, 10, 12)
STAGES = {"gpomdp": LONG, "qlearning": LONG, "spi": SHORT, "svi": SHORT}
KNOWN_OBSERVERS = ("default", "paper", "authors")
OBSERVERS = ("default", "paper", "lfl", "girl", "learner")
# A reward counts as recovered when planning for it loses at most this share of what there is to
# win over acting at random.
RECOVERED = 0.1
TITLES = {
    "gpomdp": "G(PO)MDP",
    "qlearning": "Q-learning",
    "spi": "Soft policy iteration",
    "svi": "Soft value iteration",
}


def score(where: World, observer: str, history: LearningHistory, seed: int) -> Row:
    """Let an observer infer, plan for what it found, and score the plan under the true reward."""
    error_raw = error = float("nan")
    if observer == "learner":
        planned = _policy(where, history[-1].parameters)
    elif observer == "lfl":
        planned = plan_with_lfl(where.mdp, history, seed)
    else:
        weights = _weights(where, observer, history, seed)
        planned = optimal_policy(where.mdp, weights)[0]
        error_raw = direction_error(weights, where.weights)
        # One-hot areas: adding a constant to all weights changes nothing.
        error = direction_error(weights - weights.mean(), where.weights - where.weights.mean())
    value = where.value(planned)
    return {"value": value, "regret": where.regret(value), "error_raw": error_raw, "error": error}


def _weights(where: World, observer: str, history: LearningHistory, seed: int) -> Float:
    policy, gamma = family(where.mdp), where.mdp.gamma
    if observer == "girl":
        return girl(history, policy, gamma=gamma, use_parameters=False).weights
    if observer not in ("default", *METHODS):
        raise OptionError(f"unknown observer {observer!r}")
    return infer_reward(
        history,
        policy,
        gamma=gamma,
        method=observer,
        use_parameters=history.learning_rates is not None,
        intervals=False,
        seed=seed,
    ).weights


def _policy(where: World, parameters: Float | None) -> Float:
    """A recorded policy as a table (S, A)."""
    assert parameters is not None
    return family(where.mdp).probabilities(parameters, np.arange(where.mdp.n_states))


def _world_of(task: Task) -> World:
    return world(task.text("map"), task.text("weights"))


# --- known parameters -----------------------------------------------------------------------------


def run_known(task: Task) -> list[Row]:
    """The observer sees parameters and rates, and episodes of its own."""
    where, x = _world_of(task), task.integer("x")
    batch, steps = (x, 1) if task.setting["part"] == "batch" else (5, x)
    seed = task.seed_sequence(ignoring=("observer",))
    seen = {"n_episodes": batch, "parameters": True, "learning_rates": True}
    history = where.observe(GPOMDPLearner(), steps, seed, **seen)
    return [score(where, task.text("observer"), history, task.seed)]


def known_claims(table: pd.DataFrame) -> Iterator[Claim]:
    """The error falls with the batch, and with the number of steps."""
    for observer, rows in table.groupby("observer", sort=False):
        for part, what in (("batch", "batch size"), ("steps", "learning steps")):
            wide = rows[rows.part == part].pivot(index="seed", columns="x", values="error")
            first, last = wide.columns.min(), wide.columns.max()
            yield judge(
                f"the weights' error falls with the {what}",
                wide[first] - wide[last],
                statistic=f"error at {first} minus error at {last}",
                above=0.0,
                observer=str(observer),
            )


def known_figure(table: pd.DataFrame) -> Figure:
    """Value and weight error against batch size (one step) and against steps (batch 5)."""
    figure = plots.new_figure(11, 3.6)
    panels = figure.subplots(1, 4)
    parts = (
        ("batch", "one step", "observer's batch"),
        ("steps", "5 episodes a stage", "learning steps"),
    )
    measures = (("value", "value of the planned policy"), ("error", "error of unit weights"))
    for axes, ((part, title, x), (measure, y)) in zip(
        panels, product(parts, measures), strict=True
    ):
        plots.observer_bands(axes, table[table.part == part], "x", measure)
        plots.tidy(axes, title=title, x=x, y=y)
    plots.runs_legend(figure, panels[0], table)
    return figure


KNOWN = Study(
    "gridworld-known",
    # One step and a growing batch; five episodes and a growing number of steps.
    [
        {"part": ["batch"], "x": BATCHES, "observer": KNOWN_OBSERVERS},
        {"part": ["steps"], "x": STEPS, "observer": KNOWN_OBSERVERS},
    ],
    run_known,
    known_claims,
    known_figure,
    observers=KNOWN_OBSERVERS,
    own_world=True,
)


# --- four learners --------------------------------------------------------------------------------


def run_learners(task: Task) -> list[Row]:
    """One learner, watched for more and more steps from trajectories alone."""
    where, learner, observer = _world_of(task), task.text("learner"), task.text("observer")
    steps, seed = STAGES[learner], task.seed_sequence(ignoring=("observer",))
    history = where.observe(LEARNERS[learner](), max(steps), seed, parameters=True)
    return [
        {"steps": m, **score(where, observer, history.slice(0, m + 1), task.seed)} for m in steps
    ]


def learners_claims(table: pd.DataFrame) -> Iterator[Claim]:
    """Which observers recover which learners, and how many stages they need."""
    regret = {
        (str(learner), str(observer)): rows.pivot(index="seed", columns="steps", values="regret")
        for (learner, observer), rows in table.groupby(["learner", "observer"], sort=False)
    }
    ours = [key for key in product(LEARNERS, ("paper", "default")) if key in regret]
    # The paper's claims first.
    ours.sort(key=lambda key: key[1] != "paper")
    for learner, observer in ours:
        yield judge(
            f"LOGEL recovers the reward of the {learner} learner",
            **_at_the_end(regret[learner, observer]),
            below=RECOVERED,
            observer=observer,
        )
    if ("gpomdp", "lfl") in regret:
        yield judge(
            "LfL does not recover the reward of the gpomdp learner",
            **_at_the_end(regret["gpomdp", "lfl"]),
            above=RECOVERED,
            observer="lfl",
            source="paper",
        )
    for learner, observer in ours:
        if learner in ("qlearning", "svi") and (learner, "lfl") in regret:
            yield judge(
                f"LfL needs more stages than LOGEL for the {learner} learner",
                _stages_needed(regret[learner, "lfl"]) - _stages_needed(regret[learner, observer]),
                statistic=f"steps until regret stays below {RECOVERED:g}: LfL's minus LOGEL's",
                above=0.0,
                observer=observer,
            )


def _at_the_end(wide: pd.DataFrame) -> dict[str, Any]:
    last = wide.columns.max()
    return {"values": wide[last], "statistic": f"relative regret after {last} steps"}


def _stages_needed(wide: pd.DataFrame) -> Float:
    """Steps from which on each run's regret stays small; past the last when it never does."""
    columns = np.array(sorted(wide.columns))
    bad = wide[columns].to_numpy() > RECOVERED
    last_bad = np.where(bad.any(axis=1), len(columns) - 1 - bad[:, ::-1].argmax(axis=1), -1)
    spacing = columns[-1] - columns[-2]
    return np.append(columns, columns[-1] + spacing)[last_bad + 1].astype(float)


def learners_figure(table: pd.DataFrame) -> Figure:
    """Relative regret against the number of watched steps, one panel per learner."""
    figure = plots.new_figure(11, 3.6)
    panels = _learner_panels(figure, table, sharey=True)
    for learner, axes in panels.items():
        plots.observer_bands(axes, table[table.learner == learner], "steps", "regret")
        plots.rule(axes, 0)
        plots.rule(axes, 1, dotted=True)
        axes.set_ylim(-0.15, 2.2)
        plots.tidy(axes, title=TITLES[learner], x="steps watched")
    first = next(iter(panels.values()))
    first.set_ylabel("relative regret\n(0 best, 1 random)", fontsize=9)
    plots.runs_legend(figure, first, table)
    return figure


def _learner_panels(figure: Figure, table: pd.DataFrame, *, sharey: bool) -> dict[str, Axes]:
    names = [name for name in TITLES if name in set(table.learner)]
    panels = figure.subplots(1, len(names), sharey=sharey, squeeze=False)[0]
    return dict(zip(names, panels, strict=True))


LEARNING = Study(
    "gridworld-learners",
    # All numbers of stages are inside one task.
    [{"learner": list(LEARNERS), "observer": OBSERVERS}],
    run_learners,
    learners_claims,
    learners_figure,
    observers=OBSERVERS,
    own_world=True,
)


# --- learning curves ------------------------------------------------------------------------------


def run_curves(task: Task) -> list[Row]:
    """Sampled discounted return of every stage (50 episodes), and the policy's exact value."""
    where, learner = _world_of(task), task.text("learner")
    steps, seed = max(STAGES[learner]), task.seed_sequence()
    history = where.observe(LEARNERS[learner](), steps, seed, parameters=True)
    returns = mean_returns(history, where.weights, where.mdp.gamma)
    return [
        {
            "stage": t,
            "return": float(returns[t]),
            "value": where.value(_policy(where, stage.parameters)),
            "best_value": where.best,
        }
        for t, stage in enumerate(history)
    ]


def curves_claims(table: pd.DataFrame) -> Iterator[Claim]:
    """Every learner improves."""
    for learner, rows in table.groupby("learner", sort=False):
        wide = rows.pivot(index="seed", columns="stage", values="return")
        last = wide.columns.max()
        yield judge(
            f"the {learner} learner's return rises",
            wide[last] - wide[0],
            statistic=f"return at stage {last} minus at stage 0",
            above=0.0,
            observer="none",
            source="paper",
        )


def curves_figure(table: pd.DataFrame) -> Figure:
    """Discounted return of each learner, stage by stage, sampled and exact."""
    figure = plots.new_figure(11, 3.4)
    panels = _learner_panels(figure, table, sharey=False)
    series = (
        ("return", plots.RED, "return of 50 episodes x 20 steps"),
        ("value", plots.GREY, "exact value, no horizon"),
    )
    for learner, axes in panels.items():
        rows = table[table.learner == learner]
        for measure, color, label in series:
            plots.band(axes, rows, "stage", measure, color=color, label=label)
        plots.rule(axes, rows.best_value.iloc[0], dotted=True)
        plots.tidy(axes, title=TITLES[learner], x="stage")
    first = next(iter(panels.values()))
    first.set_ylabel("discounted return", fontsize=9)
    plots.runs_legend(figure, first, table, "mean and 98% band; dotted: the optimum")
    return figure


CURVES = Study(
    "gridworld-curves",
    [{"learner": list(LEARNERS)}],
    run_curves,
    curves_claims,
    curves_figure,
    own_world=True,
)
