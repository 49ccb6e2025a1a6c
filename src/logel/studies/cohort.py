"""Many learners watched a little: are they better together, and are their intervals honest?

Every group lives in a random world of its own; its learners differ in kind (sampled policy
gradients, soft value and soft policy iteration), in how strongly they answer to a reward, and are
watched for five steps of eight short episodes. *Shared*: eight learners with one weight vector, two
such groups per run. *Contrast*: two groups of six, single learners around each group's mean; in
even runs both groups have the same mean, in odd ones another. Errors alone are those of each
learner's own history in the world that all of them tell about.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from logel.data.history import LearningHistory
from logel.envs.tabular import TabularMDP, random_mdp
from logel.inference.contrast import Contrast
from logel.inference.direction import unit
from logel.inference.gauge import direction_error
from logel.inference.group import GroupEstimate
from logel.inference.infer import infer_group, infer_reward
from logel.learners.tabular import (
    GPOMDPLearner,
    SoftPolicyIteration,
    SoftValueIteration,
    TabularLearner,
    observe,
)
from logel.studies import plots
from logel.studies.claims import Claim, judge
from logel.studies.measures import Seed, family, judge_intervals
from logel.studies.run.tasks import Row, Task
from logel.studies.study import Study
from logel.types import Float

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# Learners that share their weights, and those of either group that is compared.
_SHARED, _COMPARED = 8, 6
# Of single learners' weights around a mean of unit length, and of another group's mean around one.
_SPREAD, _APART = 0.35, 0.7
_KINDS: tuple[TabularLearner, ...] = (
    GPOMDPLearner(learning_rate=0.5, horizon=10),
    SoftValueIteration(),
    SoftPolicyIteration(temperature=1.0),
)


def watched_group(
    mdp: TabularMDP, weights: Float, rng: np.random.Generator, seed: Seed
) -> list[LearningHistory]:
    """Learners of changing kind, one for each row of the weights (n, q)."""
    seeds = np.random.SeedSequence(seed) if isinstance(seed, int) else seed
    sizes = np.exp(0.3 * rng.standard_normal(len(weights)))
    watched = {"n_steps": 5, "n_episodes": 8, "horizon": 10}
    return [
        observe(mdp, _KINDS[i % len(_KINDS)], weights=size * w, seed=own, **watched)  # type: ignore[arg-type]
        for i, (w, size, own) in enumerate(
            zip(weights, sizes, seeds.spawn(len(sizes)), strict=True)
        )
    ]


def run(task: Task) -> list[Row]:
    """Two groups with shared weights, or two groups around their means."""
    rng = task.rng()
    seeds = task.seed_sequence().spawn(2)
    if task.text("case") == "shared":
        return [_shared(task, seed, rng) for seed in seeds]
    return _compared(task, seeds, rng)


def _world(rng: np.random.Generator) -> TabularMDP:
    return random_mdp(rng, n_states=8, n_actions=3, n_features=4, gamma=0.9, branching=3)


def _shared(task: Task, seed: np.random.SeedSequence, rng: np.random.Generator) -> Row:
    mdp = _world(rng)
    truth = unit(rng.standard_normal(mdp.n_features))
    histories = watched_group(mdp, np.tile(truth, (_SHARED, 1)), rng, seed)
    estimate = infer_reward(histories, family(mdp), gamma=mdp.gamma, seed=task.seed)
    found = judge_intervals(estimate, truth)
    alone = [direction_error(one.weights, truth, estimate.gauge) for one in estimate.learners]
    return {
        "error": direction_error(estimate.weights, truth, estimate.gauge),
        "alone": float(np.mean(alone)),
        "coverage": found["coverage"],
        "width": found["width"],
        "contradicting": sum(one.contradicts for one in estimate.learners),
        "status": estimate.status.name,
    }


def _compared(
    task: Task, seeds: list[np.random.SeedSequence], rng: np.random.Generator
) -> list[Row]:
    mdp, differs = _world(rng), task.seed % 2 == 1
    first = unit(rng.standard_normal(mdp.n_features))
    means = first, unit(first + differs * _APART * rng.standard_normal(len(first)))
    groups, rows = [], []
    for mean, seed in zip(means, seeds, strict=True):
        weights = mean + _SPREAD * rng.standard_normal((_COMPARED, len(mean)))
        histories = watched_group(mdp, weights, rng, seed)
        groups.append(infer_group(histories, family(mdp), gamma=mdp.gamma, seed=task.seed))
        rows.append({"differs": differs, **_pooled(groups[-1], weights, mean)})
    contrast = Contrast.of(*groups, seed=task.seed)
    low, high = contrast.interval(0.95).T
    true = contrast.gauge.project(means[0] - means[1])
    rows[0]["contrast_coverage"] = float(((low <= true) & (true <= high)).mean())
    rows[0]["significant"] = float(((low > 0) | (high < 0)).mean())
    return rows


def _pooled(group: GroupEstimate, weights: Float, mean: Float) -> Row:
    """A group's mean, its spread, its single learners held against the truth."""
    judged = [
        (direction_error(e.weights, w, e.gauge), float(str(judge_intervals(e, w)["coverage"])))
        for e, w in zip(group.learners.values(), weights, strict=True)
    ]
    alone = [
        direction_error(one.weights, w, group.mean.gauge)
        for one, w in zip(group.mean.learners, weights, strict=True)
    ]
    low, high = group.spread_interval()
    found = judge_intervals(group.mean, mean)
    return {
        "error": direction_error(group.mean.weights, mean, group.mean.gauge),
        "coverage": found["coverage"],
        "width": found["width"],
        "single_error": float(np.mean([error for error, _ in judged])),
        "alone": float(np.mean(alone)),
        "single_coverage": float(np.mean([coverage for _, coverage in judged])),
        "spread": group.spread,
        "spread_coverage": float(low <= _SPREAD <= high),
        "contrast_coverage": None,
        "significant": None,
        "status": group.mean.status.name,
    }


def claims(table: pd.DataFrame) -> Iterator[Claim]:
    """Errors at most half, coverage as promised, few false differences."""
    shared, compared = (table[table.case == case] for case in ("shared", "contrast"))
    if len(shared):
        yield judge(
            "eight together err at most half as much as each alone",
            shared["error"] - shared["alone"] / 2,
            statistic="direction error together minus half of the mean alone",
            below=0.0,
        )
        yield from _within("shared weights", shared["coverage"], 0.90, 0.98)
    if len(compared):
        yield from _within("a group's mean", compared["coverage"], 0.90, 0.98)
        yield from _within("single learners of a group", compared["single_coverage"], 0.90, 0.98)
        yield from _within("contrasts", compared["contrast_coverage"].dropna(), 0.92, 0.98)
        yield judge(
            "few false differences",
            compared[~compared["differs"].astype(bool)]["significant"],
            statistic="share of weights called different where means are the same",
            below=0.07,
        )


def _within(what: str, values: pd.Series, low: float, high: float) -> Iterator[Claim]:
    statistic = "share of numbers inside their 95% interval"
    yield judge(f"{what}: coverage above {low:.2f}", values, statistic=statistic, above=low)
    yield judge(f"{what}: coverage below {high:.2f}", values, statistic=statistic, below=high)


def summary(table: pd.DataFrame) -> str:
    """Means over runs of everything that was measured, as Markdown."""
    lines = ["| case | runs | measure | mean |", "|---|---|---|---|"]
    for case, rows in table.groupby("case", sort=False):
        for name in rows.columns.drop(["study", "case", "seed", "status"]):
            values = rows[name].dropna()
            if len(values) and name != "differs":
                lines.append(
                    f"| {case} | {len(values)} | {name} | {values.astype(float).mean():.3f} |"
                )
    compared = table[table.case == "contrast"]
    for differs, rows in compared.groupby("differs"):
        share = rows["significant"].mean()
        means = "other means" if differs else "the same mean"
        lines.append(f"| contrast, {means} | {len(rows)} | significant | {share:.3f} |")
    return "\n".join(lines) + "\n"


def figure(table: pd.DataFrame) -> Figure:
    """Errors together against errors alone; coverage of everything that has intervals."""
    drawn = plots.new_figure(8.5, 3.8)
    left, right = drawn.subplots(1, 2)
    shared = table[table.case == "shared"]
    left.plot(shared["alone"], shared["error"], "o", markersize=3, alpha=0.5)
    most = float(table["alone"].max()) * 1.05
    left.plot([0, most], [0, most / 2], color="black", linewidth=0.8)
    title = "Eight learners, one reward"
    plots.tidy(left, title=title, x="mean direction error alone", y="direction error together")
    columns = [
        ("shared", "coverage", "shared"),
        ("contrast", "coverage", "group's mean"),
        ("contrast", "single_coverage", "single, pooled"),
        ("contrast", "contrast_coverage", "contrast"),
    ]
    for k, (case, column, _) in enumerate(columns):
        rows = table[table.case == case]
        if len(rows):
            right.bar([k], [rows[column].mean()], width=0.6, color="#4c78a8")
    right.set_xticks(range(len(columns)), [label for *_, label in columns], fontsize=8)
    right.set_ylim(0.8, 1.0)
    for level in (0.90, 0.95, 0.98):
        plots.rule(right, level, dotted=level != 0.95)
    plots.tidy(right, title="Coverage of 95% intervals", y="share inside")
    return drawn


STUDY = Study(
    "cohort",
    [{"case": ["shared", "contrast"]}],
    run,
    claims,
    figure,
    summary=summary,
)
