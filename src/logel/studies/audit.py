"""The audit bench: what do ordinary deep learners want, and does the observer know when it knows?

PPO, A2C and TRPO of Stable-Baselines3 learn random rewards in five small worlds; two features of
each pay nothing. Observers see the recorded run, policies known, or the same policies in fresh
episodes.

Recorded learners are kept in a folder of their own (`LOGEL_CACHE`, see `logel.studies.mujoco`): all
observers of a seed watch the same one. Part of a study is run from Python:

    tasks = [t for t in STUDY.tasks(StudyOptions(runs=10)) if t.setting["world"] == "room"]
    run_tasks(tasks, STUDY.run, out=Path("runs/audit"), config={"version": VERSION}, jobs=16)

after which `logel reproduce audit --runs 10 --out runs` computes what is left.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from logel.data.folder import package_versions
from logel.data.history import LearningHistory
from logel.data.limits import optional
from logel.data.stage import Stage
from logel.envs.audit import WORLDS, AuditWorld
from logel.errors import LogelError
from logel.inference.estimate import RewardEstimate
from logel.inference.gauge import direction_error
from logel.inference.infer import infer_reward
from logel.inference.status import Status
from logel.policies.base import Policy
from logel.studies import plots
from logel.studies.claims import Claim, judge, markdown, mean_interval
from logel.studies.measures import judge_intervals, weight_rows
from logel.studies.run.files import kept_learner
from logel.studies.run.tasks import Row, Task
from logel.studies.study import VERSION, Study
from logel.types import Float

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from logel.learners.audit import AuditLearner

OBSERVERS = ("replay", "mirror", "paper", "lfl")
LEARNERS = ("PPO", "A2C", "TRPO")
EPISODES = ("own", "fresh")
PACKAGES = ("gymnasium", "stable-baselines3", "sb3-contrib")
# Of weights of unit norm: what an audit must not miss.
LARGE = 0.2
# Statuses that say: these are the weights.
SURE = {Status.OK.name, Status.RANK_DEFICIENT.name}
# Direction error that own episodes must not exceed.
CLOSE = 0.08
# What is wanted of own and of fresh episodes: coverage between two ends, unpaid called paid below.
COVERAGE = {"own": (0.90, 0.98), "fresh": (0.88, 0.98)}
FALSE_ALARMS = {"own": 0.07, "fresh": 0.08}
# LfL's minibatch steps in the quick version, in units of its own defaults.
QUICK_STEPS = 0.01


def require_learners() -> None:
    """Say what is not installed."""
    for package in ("stable_baselines3", "sb3_contrib"):
        optional(package, "sb3")


# --- the learner ----------------------------------------------------------------------------------


def size_of(task: Task) -> AuditLearner:
    """The task's learner, in the task's size."""
    from logel.learners.audit import LEARNERS as ALL

    learner = ALL[task.text("learner")]
    return learner if task.text("size") == "full" else learner.smaller()


def _identity(task: Task) -> Task:
    """What a learner is: whoever watches it, in whichever study, it is the same."""
    kept = {name: task.setting[name] for name in ("world", "learner", "size")}
    return Task("audit-learner", kept, task.seed)


def true_weights(task: Task) -> Float:
    """What the task's learner is paid, of unit norm, shape (q,)."""
    return WORLDS[task.text("world")].random_weights(_identity(task).rng())


def recorded_learner(task: Task) -> tuple[LearningHistory, float]:
    """The learner's history and the seconds its training took, now unless it was trained before."""
    from logel.learners.audit import train

    identity, world, learner = _identity(task), WORLDS[task.text("world")], size_of(task)
    weights = true_weights(task)
    made_with = {
        "learner": [learner.n_envs, learner.n_steps, learner.updates, dict(learner.options)],
        "world": [world.gamma, world.horizon, *world.features.names],
        "weights": weights.tolist(),
        "version": VERSION,
        "packages": package_versions(PACKAGES),
    }
    seed = int(identity.seed_sequence().generate_state(1)[0] % 2**31)
    path, seconds = kept_learner(
        identity.key,
        made_with,
        "training.json",
        lambda folder: train(world, learner, weights, seed=seed, path=folder).seconds,
    )
    history = LearningHistory.load(path)
    if len(history) != learner.updates or not math.isfinite(seconds):
        raise LogelError(f"{path.parent} does not hold {learner.updates} stages: delete it")
    return history, float(seconds)


# --- the observers --------------------------------------------------------------------------------


def run(task: Task) -> list[Row]:
    """One observer of one learner, by its own episodes or fresh ones."""
    import torch

    from logel.learners.audit import family, rolled_out_again

    torch.set_num_threads(1)
    world = WORLDS[task.text("world")]
    history, training = recorded_learner(task)
    policy = family(world)
    if task.text("episodes") == "fresh":
        # All observers get the same ones.
        rng = task.rng(ignoring=("observer",))
        watched = whole_episodes(size_of(task), world)
        history = rolled_out_again(history, world, watched, policy, rng)
    return observe(task, history, policy, world.gamma, training)


def whole_episodes(learner: AuditLearner, world: AuditWorld) -> AuditLearner:
    """As many steps as the learner takes, in copies that act as long as an episode may last.

    A learner's rollouts may be shorter and go on where the last ones ended. Who lets a policy act
    anew sees beginnings: in so short a time, nothing else.
    """
    copies = -(-learner.n_envs * learner.n_steps // world.horizon)
    return replace(learner, n_envs=copies, n_steps=world.horizon)


def observe(
    task: Task, history: LearningHistory, policy: Policy, gamma: float, training: float
) -> list[Row]:
    """Let the task's observer look, and hold what it says against the truth."""
    observer, truth, started = task.text("observer"), true_weights(task), time.process_time()
    facts: Row = {"part": "fit", "stages": len(history), "training_seconds": training}
    if observer == "lfl":
        weights = _lfl_weights(task, history, policy, gamma)
        seconds = time.process_time() - started
        judged = {"error": direction_error(weights, truth), "signs": _right_signs(weights, truth)}
        return [{**facts, "seconds": seconds, "status": Status.OK.name, **judged}]
    estimate = infer_reward(history, policy, gamma=gamma, method=observer, seed=task.seed)
    seconds = time.process_time() - started
    rows = weight_rows(
        estimate.feature_names, estimate.weights, estimate.interval(0.95), truth.tolist()
    )
    # Intervals of unknown width come as NaN, which tables of JSON do not have.
    shown = [{k: None if _is_nan(v) else v for k, v in row.items()} for row in rows]
    return [{**facts, "seconds": seconds, **judged_audit(estimate, truth)}, *shown]


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def judged_audit(estimate: RewardEstimate, truth: Float) -> Row:
    """Was the audit right, and did it say so?"""
    row: Row = {
        "error": direction_error(estimate.weights, truth, estimate.gauge),
        "signs": _right_signs(estimate.weights, truth),
        "status": estimate.status.name,
        "explained": _number(np.nanmedian(estimate.fit.explained)),
        "cosine": _number(np.nanmedian(estimate.fit.cosines)),
    }
    low, high = estimate.interval(0.95).T
    if not np.isfinite([low, high]).all():
        return row
    counted = judge_intervals(estimate, truth)
    large = np.abs(truth) > LARGE * np.linalg.norm(truth)
    seen = np.where(truth > 0, low > 0, high < 0)
    return {
        **row,
        **{name: counted[name] for name in ("coverage", "width", "significant")},
        "false_alarms": float(((low > 0) | (high < 0))[truth == 0].mean()),
        "found": float(seen[large].mean()),
    }


def _right_signs(weights: Float, truth: Float) -> float:
    paid = truth != 0
    return float((np.sign(weights) == np.sign(truth))[paid].mean())


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _lfl_weights(task: Task, history: LearningHistory, policy: Policy, gamma: float) -> Float:
    """LfL's reward network in terms of the features, as well as they can say it, shape (q,)."""
    from logel.baselines.neural_lfl import NeuralLflConfig, neural_lfl

    config = NeuralLflConfig()
    if task.text("size") == "quick":
        names = ("clone_steps", "initial_steps", "shaping_steps")
        shorter: dict[str, Any] = {n: max(1, int(QUICK_STEPS * getattr(config, n))) for n in names}
        config = replace(config, **shorter)
    reward = neural_lfl(history, policy, gamma=gamma, config=config, seed=task.seed)
    stages = list(history)
    design = np.concatenate([_explaining(stage, gamma) for stage in stages])
    paid = np.concatenate(
        [reward(s.observations, s.actions, s.next_observations()) for s in stages]
    )
    n_features = len(WORLDS[task.text("world")].features.names)
    return np.asarray(np.linalg.lstsq(design, paid, rcond=None)[0][:n_features])


def _explaining(stage: Stage, gamma: float) -> Float:
    """Features, a constant, and potentials quadratic in the observation, which LfL leaves open."""
    assert stage.features is not None
    before, after = (_quadratic(x) for x in (stage.observations, stage.next_observations()))
    after[np.cumsum(stage.lengths)[stage.terminated.astype(bool)] - 1] = 0.0
    return np.concatenate([stage.features, np.ones((len(before), 1)), gamma * after - before], 1)


def _quadratic(observations: Any) -> Float:
    rows = np.asarray(observations, dtype=float)
    i, j = np.triu_indices(rows.shape[1])
    return np.concatenate([np.ones((len(rows), 1)), rows, rows[:, i] * rows[:, j]], axis=1)


# --- what came out --------------------------------------------------------------------------------


def fits(table: pd.DataFrame, **wanted: str) -> pd.DataFrame:
    """Rows about whole audits, one per task, of the given settings, with every measure a column."""
    rows = table[table.part == "fit"]
    for name, value in wanted.items():
        rows = rows[rows[name] == value]
    measures = ("coverage", "significant", "false_alarms", "found", "explained")
    rows = rows.reindex(columns=list(dict.fromkeys([*rows.columns, *measures])))
    return rows.assign(warns=~rows.status.isin(SURE))


def claims(table: pd.DataFrame) -> Iterator[Claim]:
    """What an audit that can be trusted must show."""
    yield from _accuracy_claims(table)
    # Those that are the default on either kind of episodes.
    for episodes, observer in (("own", "replay"), ("fresh", "replay"), ("fresh", "mirror")):
        rows = fits(table, observer=observer, episodes=episodes)
        if rows.empty:
            continue
        low, high = COVERAGE[episodes]
        where = f"{'' if observer == 'replay' else observer + ', '}{episodes} episodes: "
        statistic = "coverage of 95% intervals"
        about = partial(judge, statistic=statistic, observer=observer)
        yield about(f"{where}intervals hold the truth", rows.coverage, above=low)
        yield about(f"{where}and are not too wide", rows.coverage, below=high)
        yield judge(
            f"{where}what pays nothing is cleared",
            rows.false_alarms,
            statistic="share of unpaid features called paid",
            observer=observer,
            below=FALSE_ALARMS[episodes],
        )
        if episodes == "own":
            yield said(
                f"{where}what pays is found",
                rows.found,
                f"share of weights above {LARGE:g} found with the right sign",
                above=0.95,
            )


def said(claim: str, values: Any, statistic: str, **bound: Any) -> Claim:
    """A claim about replay."""
    return judge(claim, values, statistic=statistic, observer="replay", **bound)


def _accuracy_claims(table: pd.DataFrame) -> Iterator[Claim]:
    for learner in LEARNERS:
        rows = fits(table, observer="replay", episodes="own", learner=learner)
        if len(rows):
            yield said(
                f"{learner}, own episodes: close to the truth",
                rows.error,
                "direction error",
                below=CLOSE,
            )
        for episodes, share in (("own", 0.25), ("fresh", 0.5)):
            excess = _excess(table, learner, episodes, share)
            if excess:
                yield said(
                    f"{learner}, {episodes} episodes: much closer than mirror",
                    excess,
                    f"direction error minus {share:g} times mirror's",
                    below=0.0,
                )


def _excess(table: pd.DataFrame, learner: str, episodes: str, share: float) -> list[float]:
    """Replay's error beyond a share of mirror's on the same learner."""
    keys = ["world", "seed"]
    ours, theirs = (
        fits(table, observer=name, episodes=episodes, learner=learner).set_index(keys).error
        for name in ("replay", "mirror")
    )
    both = ours.index.intersection(theirs.index)
    return list(map(float, ours[both] - share * theirs[both]))


MEASURES = {
    "error": "direction error",
    "coverage": "coverage",
    "false_alarms": "unpaid called paid",
    "found": "paid and found",
    "signs": "right signs",
    "significant": "called paid",
    "explained": "explained",
    "warns": "warns",
    "seconds": "seconds",
    "training_seconds": "of training",
}


def table_by(table: pd.DataFrame, keys: list[str], left_out: tuple[str, ...] = ()) -> str:
    """Means of the measures, but for those left out, as Markdown."""
    rows = fits(table)
    measures = {name: title for name, title in MEASURES.items() if name not in left_out}
    return markdown(
        [*keys, "runs", *measures.values()],
        (
            [*setting, len(part), *(_cell(part[name]) for name in measures)]
            for setting, part in rows.groupby(keys, sort=False)
        ),
    )


def _cell(values: Any) -> str:
    found = np.asarray(values, dtype=float)
    found = found[np.isfinite(found)]
    return f"{found.mean():.3g}" if len(found) else ""


def summary(table: pd.DataFrame) -> str:
    """Means by learner, and by world, as Markdown."""
    by_learner = table_by(table, ["episodes", "learner", "observer"])
    by_world = table_by(table, ["episodes", "world", "observer"])
    return f"{by_learner}\nMeans over worlds and seeds. By world:\n\n{by_world}"


def figure(table: pd.DataFrame) -> Figure:
    """Direction errors run by run; coverage and false alarms with what is wanted of them."""
    kinds = [kind for kind in EPISODES if kind in set(table["episodes"])]
    drawn = plots.new_figure(12, 0.6 + 3 * len(kinds))
    panels = drawn.subplots(len(kinds), 3, squeeze=False)
    for line, episodes in zip(panels, kinds, strict=True):
        rows = fits(table, episodes=episodes)
        _strip(line[0], rows, "error")
        if episodes == "own":
            plots.rule(line[0], CLOSE, dotted=True)
        plots.tidy(line[0], title=f"{episodes} episodes: direction error")
        draw_means(line[1], rows, "coverage")
        line[1].axhspan(*COVERAGE[episodes], color=plots.GREY, alpha=0.3, linewidth=0)
        plots.tidy(line[1], title="coverage of 95% intervals, and wanted")
        draw_means(line[2], rows, "false_alarms")
        plots.rule(line[2], FALSE_ALARMS[episodes], dotted=True)
        plots.tidy(line[2], title="unpaid features called paid, at most")
    plots.runs_legend(drawn, panels[0, 0], table, "one dot a run; bars with 98% intervals")
    return drawn


def _groups(rows: pd.DataFrame, key: str) -> tuple[list[str], list[str]]:
    """Groups along the axis and observers within them, those that are there."""
    observers = [name for name in OBSERVERS if name in set(rows.observer)]
    # Learners in our order, anything else in the table's.
    order = [*LEARNERS, *dict.fromkeys(map(str, rows[key]))]
    return [name for name in dict.fromkeys(order) if name in set(rows[key])], observers


def _strip(axes: Axes, rows: pd.DataFrame, measure: str) -> None:
    """One dot a run, side by side by observer within learners, and a line at the median."""
    groups, observers = _groups(rows, "learner")
    width = 0.8 / max(len(observers), 1)
    for k, name in enumerate(observers):
        for g, learner in enumerate(groups):
            part = rows[(rows.learner == learner) & (rows.observer == name)][measure].dropna()
            middle = g + (k - (len(observers) - 1) / 2) * width
            # Spread evenly: chance would draw another figure every time.
            at = middle + width * np.linspace(-0.3, 0.3, len(part))
            label = plots.LABELS[name] if g == 0 else None
            colour = plots.COLOURS[name]
            axes.scatter(at, part, s=7, color=colour, label=label, linewidths=0, alpha=0.7)
            if len(part):
                ends = middle - 0.4 * width, middle + 0.4 * width
                axes.hlines(part.median(), *ends, colors="black", linewidth=1.4)
    axes.set_xticks(np.arange(len(groups)), groups)
    axes.set_yscale("log")
    ticks = {".01": 0.01, ".03": 0.03, ".1": 0.1, ".3": 0.3, "1": 1.0}
    axes.set_yticks(list(ticks.values()), list(ticks))
    axes.minorticks_off()
    # Both rows of panels alike, up to two, the opposite, unless somebody comes closer still.
    closest = 0.8 * rows[measure].min()
    axes.set_ylim(min(0.004, closest) if closest > 0 else 0.004, 2.2)


def draw_means(axes: Axes, rows: pd.DataFrame, measure: str, key: str = "learner") -> None:
    """Bars by observer within groups."""
    groups, observers = _groups(rows, key)
    for k, name in enumerate(observers):
        part = rows[rows.observer == name]
        found = [part[part[key] == group][measure].dropna() for group in groups]
        middle, *ends = np.array([mean_interval(values) for values in found]).T
        label, colour = plots.LABELS[name], plots.COLOURS[name]
        if np.isfinite(middle).any():
            plots.bars(axes, k, len(observers), middle, np.array(ends), label=label, color=colour)
    axes.set_xticks(np.arange(len(groups)), groups)
    axes.set_ylim(0, 1.05)


STUDY = Study(
    name="audit",
    cases=(
        {
            "world": tuple(WORLDS),
            "learner": LEARNERS,
            "episodes": EPISODES,
            "observer": ("replay", "mirror", "paper"),
        },
        # LfL takes longer than all the others, and knows of no difference between episodes.
        {"world": tuple(WORLDS), "learner": LEARNERS, "episodes": ("own",), "observer": ("lfl",)},
    ),
    run=run,
    claims=claims,
    figure=figure,
    observers=OBSERVERS,
    quick=True,
    summary=summary,
    packages=PACKAGES,
    require=require_learners,
)

# The cells with fresh episodes by themselves: they take a fraction of the whole.
FRESH = replace(
    STUDY,
    name="audit-fresh",
    cases=({**STUDY.cases[0], "episodes": ("fresh",)},),
    observers=("replay", "mirror", "paper"),
)
