"""Sure only when right: every method held against learners of whom nothing must be believed.

Policies that drift at random, real learners read backwards or in the wrong order, and learners of
another reward than the features tell; beside them real learners, of whom something should be
found. Small worlds drawn anew in every run; every method sees the same history.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from logel.data.history import LearningHistory
from logel.data.stage import Stage
from logel.envs.tabular import TabularMDP, random_mdp
from logel.inference.infer import infer_reward
from logel.inference.method import Method
from logel.inference.status import Status
from logel.learners.gradient_ascent import (
    GradientAscent,
    ParameterWalk,
    ParametricLearner,
    observe_parametric,
)
from logel.learners.tabular import (
    GPOMDPLearner,
    NaturalGradientAscent,
    QLearner,
    RandomWalk,
    SoftPolicyIteration,
    SoftValueIteration,
    TabularLearner,
    observe,
)
from logel.policies.base import Policy
from logel.policies.cloning import CloneConfig
from logel.policies.gaussian import LinearGaussian
from logel.policies.networks import MLPCategorical, MLPGaussian
from logel.policies.softmax import LinearSoftmax, TabularSoftmax
from logel.studies import plots
from logel.studies.claims import Claim, judge
from logel.studies.measures import judge_estimate
from logel.studies.run.tasks import Row, Task
from logel.studies.study import Study
from logel.types import Array, Float

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# Features that are told, and as many that are not; steps, episodes of a stage, times of each.
TOLD, STEPS, EPISODES, HORIZON, GAMMA = 3, 10, 20, 10, 0.9
# Length of a learner's first step in its parameters.
FIRST_STEP = 0.2
# Iterations of a network's clone.
_CLONING = 6
TABLE_LEARNERS: dict[str, TabularLearner] = {
    "gradient": GPOMDPLearner(learning_rate=1.0, horizon=HORIZON),
    "natural": NaturalGradientAscent(learning_rate=0.2),
    "q-learning": QLearner(n_steps=200),
    "soft-value": SoftValueIteration(),
    "soft-policy": SoftPolicyIteration(),
}
ASCENTS = {"gradient": "vanilla", "natural": "natural", "adam": "adam"}
FAMILIES = ("table", "linear-softmax", "linear-gaussian", "network-softmax", "network-gaussian")
METHODS = ("joint", "two-step", "mirror", "paper")
WALKS = ("steady", "fading")


class _Case(NamedTuple):
    """A history and how to read it."""

    history: LearningHistory
    policy: Policy
    truth: Float


# --- worlds ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Line:
    """A mass on a line that a force pushes; features are waves of where it is and of the force.

    With a table of transitions instead it is a random world whose states show as points.

    Attributes:
        policy: The learner's family.
        mdp: The random world, or None for the line.
        shown: What is observed of every state of the random world.
        waves: Frequencies and phases of the line's features, shape (3, q).
    """

    policy: Policy
    mdp: TabularMDP | None
    shown: Float
    waves: Float
    gamma: float = GAMMA
    feature_names: tuple[str, ...] = tuple(f"feature {i}" for i in range(2 * TOLD))

    def sample(self, parameters: Float, *, rng: np.random.Generator, n_episodes: int) -> Stage:
        """Episodes of a policy."""
        state = self._start(rng, n_episodes)
        seen, taken, features = [], [], []
        for _ in range(HORIZON):
            seen.append(self._show(state))
            taken.append(self.policy.sample(parameters, seen[-1], rng))
            state, found = self._move(state, taken[-1], rng)
            features.append(found)
        return Stage(
            observations=_by_episode(seen),
            actions=_by_episode(taken),
            lengths=np.full(n_episodes, HORIZON),
            terminated=np.zeros(n_episodes, dtype=bool),
            last_observations=self._show(state),
            features=_by_episode(features),
        )

    def _start(self, rng: np.random.Generator, n: int) -> Array:
        if self.mdp is not None:
            return rng.choice(self.mdp.n_states, n, p=self.mdp.initial)
        return rng.uniform(-1, 1, n)

    def _show(self, state: Array) -> Float:
        return self.shown[state] if self.mdp is not None else state[:, None]

    def _move(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Float]:
        """The next state and the features on the way."""
        if self.mdp is not None:
            chances = self.mdp.transitions[state, action].cumsum(axis=1)
            following = (rng.random(len(state))[:, None] * chances[:, -1:] >= chances).sum(axis=1)
            return following, self.mdp.features[state, action, following]
        force = action.reshape(len(state), -1)[:, 0]
        following = np.clip(
            0.7 * state + 0.5 * force + 0.1 * rng.standard_normal(len(state)), -3, 3
        )
        by_place, by_force, phase = self.waves
        return following, np.sin(following[:, None] * by_place + force[:, None] * by_force + phase)


def _by_episode(rows: list[Array]) -> Array:
    """Times of all episodes (T lists of n rows), episode after episode."""
    stacked = np.stack(rows)
    return stacked.swapaxes(0, 1).reshape(-1, *stacked.shape[2:])


def cubic(observations: Array) -> Float:
    """Powers of a number up to the third, shape (N, 4)."""
    x = np.asarray(observations, dtype=float).reshape(-1, 1)
    return np.concatenate([np.ones_like(x), x, (x**2 - 1) / 2, (x**3 - 3 * x) / 6], axis=1)


def _world(family: str, rng: np.random.Generator) -> _Line:
    """A random world for a family that is no table."""
    families: dict[str, Policy] = {
        "linear-softmax": LinearSoftmax(4, 3),
        "network-softmax": MLPCategorical(4, 3, hidden=(5,)),
        "linear-gaussian": LinearGaussian(4, 1, sigma=0.5, feature_map=cubic),
        "network-gaussian": MLPGaussian(1, 1, hidden=(5,), sigma=0.5),
    }
    mdp = _table(rng) if family.endswith("softmax") else None
    shown = rng.standard_normal((8, 4))
    waves = np.stack([rng.normal(0, 2, 2 * TOLD), rng.normal(0, 1, 2 * TOLD), rng.uniform(0, 6, 6)])
    return _Line(families[family], mdp, shown, waves)


def _table(rng: np.random.Generator) -> TabularMDP:
    return random_mdp(rng, n_states=8, n_actions=3, n_features=2 * TOLD, gamma=GAMMA, branching=3)


# --- learners -------------------------------------------------------------------------------------


def watched(task: Task) -> _Case:
    """One learner as it is seen, and what it wants of the features that are told."""
    kind, table = task.text("kind"), task.text("family") == "table"
    rng, seed = task.rng(ignoring=("known", "kind")), task.seed_sequence(ignoring=("known",))
    # Every kind of learner in turn; what is outside the features is wanted by plain gradients.
    learners = list(TABLE_LEARNERS if table else ASCENTS)
    learner = learners[task.seed % len(learners)] if kind in ("backwards", "real") else "gradient"
    learner = kind if kind in WALKS else learner
    truth = rng.standard_normal(2 * TOLD)
    truth[:TOLD] *= kind != "outside"
    truth[TOLD:] *= kind == "outside"
    see = _see_table if table else _see_other
    history, policy = see(task, learner, truth, rng, seed)
    order = np.arange(len(history))
    if kind == "backwards":
        order = order[::-1]
    elif kind == "shuffled":
        order = np.random.default_rng(seed.spawn(1)[0]).permutation(order)
    known = bool(task.setting["known"])
    stages = [_told(history[int(t)], known=known) for t in order]
    history = LearningHistory.from_stages(stages, feature_names=history.feature_names[:TOLD])  # type: ignore[index]
    return _Case(history, policy, truth[:TOLD])


def _see_table(
    task: Task, learner: str, truth: Float, rng: np.random.Generator, seed: np.random.SeedSequence
) -> tuple[LearningHistory, Policy]:
    mdp = _table(rng)
    walks: dict[str, TabularLearner] = {w: RandomWalk(fading=w == "fading") for w in WALKS}
    history = observe(
        mdp,
        (walks | TABLE_LEARNERS)[learner],
        weights=truth / np.linalg.norm(truth),
        n_steps=STEPS,
        n_episodes=EPISODES,
        horizon=HORIZON,
        seed=seed,
        parameters=True,
    )
    return history, TabularSoftmax(mdp.n_states, mdp.n_actions)


def _see_other(
    task: Task, learner: str, truth: Float, rng: np.random.Generator, seed: np.random.SeedSequence
) -> tuple[LearningHistory, Policy]:
    world = _world(task.text("family"), rng)
    d = world.policy.n_parameters
    start = world.policy.initial(rng)
    # A walk's steps are as long as a learner's.
    teacher: ParametricLearner = ParameterWalk(FIRST_STEP / np.sqrt(d), fading=learner == "fading")
    if learner not in WALKS:
        ascent = GradientAscent(direction=ASCENTS[learner])
        first = ascent.gradient(world, start, truth, rng)  # type: ignore[arg-type]
        size = np.sqrt(d) if learner == "adam" else np.linalg.norm(first)
        teacher = replace(ascent, learning_rate=FIRST_STEP / float(size))
    history = observe_parametric(
        world,  # type: ignore[arg-type]
        teacher,
        weights=truth,
        n_steps=STEPS,
        n_episodes=EPISODES,
        initial=start,
        seed=seed,
        parameters=True,
    )
    return history, world.policy


def _told(stage: Stage, *, known: bool) -> Stage:
    """A stage as the observer sees it: without some features, perhaps without parameters."""
    assert stage.features is not None
    parameters = stage.parameters if known else None
    return replace(stage, features=stage.features[:, :TOLD], parameters=parameters)


# --- the study ------------------------------------------------------------------------------------


def run(task: Task) -> list[Row]:
    """One learner, seen by every method."""
    case, networks = watched(task), task.text("family").startswith("network")
    rows: list[Row] = []
    for name in METHODS:
        if networks and name == "joint":
            continue
        method = Method.named(name)
        if networks and not task.setting["known"]:
            # Well-trained clones are not what is asked about here, and take most of the time.
            method = replace(method, clone=CloneConfig(max_iterations=_CLONING))
        estimate = infer_reward(
            case.history, case.policy, gamma=GAMMA, method=method, seed=task.seed
        )
        # Of a learner that wants none of these features only significance and status are of use.
        row = judge_estimate(estimate, case.truth if case.truth.any() else np.ones(TOLD))
        warns = estimate.status not in (Status.OK, Status.RANK_DEFICIENT)
        rows.append({"method": name, "warns": warns, **row})
    return rows


def cells(table: pd.DataFrame) -> pd.DataFrame:
    """Share of warnings and of significant weights by cell, and how many runs it has."""
    table = table.assign(warns=table.warns.astype(float))
    groups = table.groupby(["family", "known", "kind", "method"], sort=False)
    return groups.agg(
        runs=("seed", "size"),
        warns=("warns", "mean"),
        significant=("significant", "mean"),
        error=("error", "mean"),
        coverage=("coverage", "mean"),
    ).reset_index()


def claims(table: pd.DataFrame) -> Iterator[Claim]:
    """No cell of learners of whom nothing must be believed believes in anything."""
    for (family, known, kind, method), rows in table.groupby(
        ["family", "known", "kind", "method"], sort=False
    ):
        which = f"{family}, {'known' if known else 'cloned'}, {kind}, {method}"
        if kind == "real":
            continue
        yield judge(
            f"{which}: few weights called significant",
            rows.significant,
            statistic="share of weights whose 95% interval excludes zero",
            below=0.07,
        )
        yield judge(
            f"{which}: says so",
            [bool(w) for w in rows.warns],
            statistic="share of runs whose status warns",
            above=0.93,
        )


def summary(table: pd.DataFrame) -> str:
    """One line per family, known or not, and kind; a cell of every method.

    Warnings and significant weights; for real learners warnings, error and coverage.
    """
    found = cells(table)
    methods = list(dict.fromkeys(found.method))
    lines = [
        "Share of runs that warn / share of weights called significant; for real learners share "
        "that warns / direction error / coverage.\n",
        f"| family | parameters | learner | runs | {' | '.join(methods)} |",
        "|" + "---|" * (4 + len(methods)),
    ]
    for (family, known, kind), rows in found.groupby(["family", "known", "kind"], sort=False):
        by_method = rows.set_index("method")
        said = [_cell(by_method.loc[m], str(kind)) if m in by_method.index else "" for m in methods]
        seen = "known" if known else "cloned"
        lines.append(f"| {family} | {seen} | {kind} | {rows.runs.max()} | {' | '.join(said)} |")
    return "\n".join(lines) + "\n"


def _cell(row: pd.Series, kind: str) -> str:
    if kind == "real":
        return f"{row.warns:.2f} / {row.error:.2f} / {row.coverage:.2f}"
    return f"{row.warns:.2f} / {row.significant:.2f}"


def figure(table: pd.DataFrame) -> Figure:
    """Every cell a point: warnings, and weights called significant."""
    found = cells(table)
    found = found.assign(
        cell=found.family + found.known.map({True: ", known", False: ", cloned"}),
    )
    drawn = plots.new_figure(11, 4.6)
    panels = drawn.subplots(1, 2, sharey=True)
    places = {cell: i for i, cell in enumerate(dict.fromkeys(found.cell))}
    nothing = found[found.kind != "real"]
    kinds = list(dict.fromkeys(nothing.kind))
    for axes, measure, wanted, title in (
        (panels[0], "warns", 0.93, "share of runs that warn"),
        (panels[1], "significant", 0.07, "share of weights called significant"),
    ):
        for k, kind in enumerate(kinds):
            rows = nothing[nothing.kind == kind]
            height = rows.cell.map(places) + 0.14 * (k - (len(kinds) - 1) / 2)
            axes.scatter(rows[measure], height, s=18, alpha=0.7, label=kind)
        axes.axvline(wanted, color="0.4", lw=1, ls=":")
        axes.set_yticks(list(places.values()), list(places))
        plots.tidy(axes, title=title)
    panels[1].legend(frameon=False, fontsize=8)
    return drawn


KINDS = (*WALKS, "backwards", "shuffled", "outside", "real")
STUDY = Study(
    "nulls",
    [{"family": list(FAMILIES), "known": [True, False], "kind": list(KINDS)}],
    run,
    claims,
    figure,
    summary=summary,
)
