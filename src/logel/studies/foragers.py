"""Foragers: which of many simulated animals in a maze are thirsty, by watching each of them learn.

Half of the animals are paid for water, at one of 64 ends of a binary tree; all like ends and
dislike turning back, each in its own measure, and each learns in its own way at its own rate. Every
animal is read by itself, forwards and backwards in time: what is unlearnt looks like no reward.

Rows keep the mean and the covariance of each animal's draws, so that groups can be compared from
them; `watched` makes an animal's history again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import scipy.stats

from logel.data.history import LearningHistory
from logel.envs.tree_maze import TreeMaze
from logel.inference.estimate import RewardEstimate
from logel.inference.infer import infer_reward
from logel.inference.status import Status
from logel.learners.forager import Forager, forager
from logel.policies.softmax import TabularSoftmax
from logel.studies import plots
from logel.studies.claims import Claim, judge, markdown
from logel.studies.run.tasks import Row, Task
from logel.studies.study import Study
from logel.types import Float
from logel.worlds.known import KnownWorld

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# Bouts of an animal, and the windows they are cut into.
SIZES = {"full": (6, 240, 8), "quick": (4, 240, 8)}


def maze_of(size: str) -> TreeMaze:
    """The maze: 127 nodes, or 31 in the quick version."""
    return TreeMaze(SIZES[size][0])


def watched(seed: int, size: str) -> tuple[Forager, LearningHistory]:
    """An animal, thirsty if its seed is even, and what is seen of it."""
    maze, (_, n_bouts, windows) = maze_of(size), SIZES[size]
    rng = np.random.default_rng(np.random.SeedSequence([seed, 127]))
    animal = forager(rng, thirsty=seed % 2 == 0)
    bouts = animal.bouts(maze, n_bouts, rng)
    made = LearningHistory.from_sessions(bouts, windows=windows, feature_names=maze.names)
    return animal, made


def backwards(history: LearningHistory) -> LearningHistory:
    """The same windows, the last one first."""
    return LearningHistory.from_stages(
        [history[t] for t in reversed(range(len(history)))], feature_names=history.feature_names
    )


def read(history: LearningHistory, size: str, *, gamma: float, seed: int) -> RewardEstimate:
    """What the default says of one animal, the maze being known."""
    maze = maze_of(size)
    return infer_reward(
        history,
        TabularSoftmax(maze.n_nodes, 3, legal=maze.legal),
        gamma=gamma,
        world=KnownWorld(maze.successors, terminal=[maze.port]),
        seed=seed,
    )


def run(task: Task) -> list[Row]:
    """One animal, read forwards or backwards."""
    size, way = task.text("size"), task.text("time")
    animal, history = watched(task.seed, size)
    started = time.process_time()
    seen = history if way == "forwards" else backwards(history)
    estimate = read(seen, size, gamma=animal.gamma, seed=task.seed)
    return [
        {
            "thirsty": animal.weights[0] > 0,
            "kind": animal.kind,
            "rate": animal.rate,
            "drinks": sum(float(np.asarray(stage.features)[:, 0].sum()) for stage in history),
            **row_of(estimate),
            "seconds": time.process_time() - started,
        }
    ]


def row_of(estimate: RewardEstimate) -> Row:
    """What is kept of one animal's estimate: the water weight, and moments of all draws."""
    draws = estimate.draws
    assert draws is not None
    low, high = estimate.interval(0.95)[0]
    row: Row = {
        "water": float(draws[:, 0].mean()),
        "positive": float((draws[:, 0] > 0).mean()),
        "weight": float(estimate.weights[0]),
        "low": float(low),
        "high": float(high),
        "status": estimate.status.name,
        "rule": next(iter(estimate.models), ""),
    }
    mean, covariance = draws.mean(axis=0), np.cov(draws.T)
    names = estimate.feature_names
    for i, name in enumerate(names):
        row[f"mean {name}"] = float(mean[i])
        for j in range(i + 1):
            row[f"covariance {name}, {names[j]}"] = float(covariance[i, j])
    return row


def moments(row: Row, names: tuple[str, ...]) -> tuple[Float, Float]:
    """Mean (q,) and covariance (q, q) of an animal's draws, out of its row."""
    mean = np.array([float(str(row[f"mean {name}"])) for name in names])
    covariance = np.zeros((len(names),) * 2)
    for i, name in enumerate(names):
        for j in range(i + 1):
            value = float(str(row[f"covariance {name}, {names[j]}"]))
            covariance[i, j] = covariance[j, i] = value
    return mean, covariance


def claims(table: pd.DataFrame) -> Iterator[Claim]:
    """Who is thirsty shows; nothing shows backwards in time."""
    forwards, back = (table[table.time == way] for way in ("forwards", "backwards"))
    if forwards.thirsty.nunique() == 2:
        thirsty, others = (forwards[forwards.thirsty == t] for t in (True, False))
        yield judge(
            "water weights tell the thirsty from the others",
            [area(thirsty.water, others.water)],
            statistic="area under the curve, one number over all animals",
            above=0.95,
        )
        yield judge(
            "few of the others seem thirsty",
            [bool(value) for value in sure(others)],
            statistic="share of others with a surely positive water weight",
            below=0.07,
        )
    yield judge(
        "backwards in time nobody seems thirsty",
        [bool(value) for value in sure(back)],
        statistic="share of animals with a surely positive water weight",
        below=0.07,
    )


def area(ones: Float | pd.Series[float], others: Float | pd.Series[float]) -> float:
    """Chance that one of the first is above one of the second, ties counted half."""
    one, other = np.asarray(ones, dtype=float), np.asarray(others, dtype=float)
    return float(scipy.stats.mannwhitneyu(one, other).statistic) / (len(one) * len(other))


def sure(table: pd.DataFrame) -> pd.Series[bool]:
    """Whose water weight is positive in the whole interval, in an answer that holds."""
    return (table.low > 0) & (table.status == Status.OK.name)


def summary(table: pd.DataFrame) -> str:
    """Groups in numbers, then one line per animal, as Markdown."""
    lines = []
    for (way, thirsty), rows in table.groupby(["time", "thirsty"], sort=True):
        water = rows.water
        whole = (f"{water.mean():+.2f}", f"{water.min():+.2f}", f"{water.max():+.2f}")
        negative = int(((rows.high < 0) & (rows.status == Status.OK.name)).sum())
        told = (int(sure(rows).sum()), negative, int((rows.status == Status.OK.name).sum()))
        lines.append([way, "thirsty" if thirsty else "not", len(rows), *whole, *told])
    header = ("time", "animals", "n", "water: mean", "least", "most")
    groups = markdown((*header, "surely positive", "surely negative", "explained"), lines)
    columns = ("seed", "time", "thirsty", "kind", "drinks", "water", "low", "high", "rule")
    kept = (*columns, "status", "seconds")
    cells = ([_shown(row[name]) for name in kept] for _, row in table.iterrows())
    return f"{groups}\n{markdown(kept, cells)}"


def _shown(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def figure(table: pd.DataFrame) -> Figure:
    """Every animal's water weight with its interval, forwards and backwards."""
    drawn = plots.new_figure(10, 4)
    for axes, way in zip(drawn.subplots(1, 2, sharey=True), ("forwards", "backwards"), strict=True):
        rows = table[table.time == way].sort_values(["thirsty", "water"])
        for thirsty, label in ((False, "not thirsty"), (True, "thirsty")):
            at = np.flatnonzero(rows.thirsty == thirsty)
            some = rows.iloc[at]
            # The middle of the draws may lie outside an interval that reaches to a pole.
            ends = np.stack([some.water - some.low, some.high - some.water]).clip(min=0)
            axes.errorbar(at, some.water, yerr=ends, fmt="o", markersize=3, label=label)
        plots.rule(axes, 0.0)
        plots.tidy(axes, title=f"Water weight, {way} in time", x="animal")
        axes.legend(fontsize=8, frameon=False)
    return drawn


STUDY = Study(
    name="foragers",
    cases=({"time": ("forwards", "backwards")},),
    run=run,
    claims=claims,
    figure=figure,
    quick=True,
    summary=summary,
)
