"""LunarLander: what a PPO agent of Stable-Baselines3 that learns to land is paid for.

Six features, of which the environment's own reward is a linear function, endings included. Weights
are told and compared times the features' deviation in the run, of unit norm: shares of what makes
the reward vary.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.stats

from logel.data.folder import package_versions
from logel.data.history import LearningHistory
from logel.data.limits import optional
from logel.envs.box2d import FEATURES, LANDER_TRUE_WEIGHTS
from logel.inference.estimate import RewardEstimate
from logel.inference.infer import infer_reward
from logel.policies.networks import MLPCategorical
from logel.studies import plots
from logel.studies.claims import Claim, judge, markdown
from logel.studies.measures import weight_rows
from logel.studies.run.files import kept_learner
from logel.studies.run.tasks import Row, Task
from logel.studies.study import VERSION, Study
from logel.types import Float

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

WORLD = "LunarLander-v3"
PACKAGES = ("gymnasium", "stable-baselines3", "box2d")
# Sizes are in an order only if one is so many times the other: two of them are nearly equal.
DIFFERENT = 1.25


def require_lander() -> None:
    """Say what is not installed."""
    optional("stable_baselines3", "sb3")
    optional("Box2D", "box2d")


def run(task: Task) -> list[Row]:
    """One learner, now unless it was trained before, and what its history says about it."""
    import torch

    from logel.learners.lunar_lander import Lander

    torch.set_num_threads(1)
    quick = {"n_envs": 4, "n_steps": 128, "total": 4_000}
    lander = Lander() if task.text("size") == "full" else Lander(**quick)
    made_with = {
        "settings": asdict(lander),
        "features": list(FEATURES[WORLD].names),
        "version": VERSION,
        "packages": package_versions(PACKAGES),
    }
    path, training = kept_learner(
        f"lunarlander-{task.seed}",
        made_with,
        "training.json",
        lambda folder: lander.train(folder, seed=task.seed),
    )
    history, started = LearningHistory.load(path), time.process_time()
    policy = MLPCategorical(8, 4, hidden=(64, 64))
    estimate = infer_reward(history, policy, gamma=lander.gamma, seed=task.seed)
    seconds = time.process_time() - started
    rows = judged(estimate, _deviations(history))
    rows[0] |= {"seconds": seconds, "training_seconds": training, "stages": len(history)}
    returns = [note.get("mean_return") for note in history.notes]
    return [{**rows[0], "first": returns[0], "last": returns[-1]}, *rows[1:]]


def _deviations(history: LearningHistory) -> Float:
    tables = [stage.features for stage in history if stage.features is not None]
    return np.asarray(np.concatenate(tables).std(axis=0))


def judged(estimate: RewardEstimate, deviations: Float) -> list[Row]:
    """What was found, against what is paid: the whole, then one row for each weight."""
    truth = np.array(LANDER_TRUE_WEIGHTS) * deviations
    found, ends = estimate.weights * deviations, estimate.interval(0.95) * deviations[:, None]
    truth, size = truth / np.linalg.norm(truth), np.linalg.norm(found)
    found, ends = found / size, ends / size
    low, high = ends.T
    whole: Row = {
        "part": "fit",
        "signs": float((np.sign(found) == np.sign(truth)).mean()),
        "sure": float(np.where(truth > 0, low > 0, high < 0).mean()),
        "order": float(scipy.stats.spearmanr(np.abs(found), np.abs(truth)).statistic),
        "pairs": _right_pairs(np.abs(found), np.abs(truth)),
        "coverage": float(((low <= truth) & (truth <= high)).mean()),
        "error": float(np.linalg.norm(found - truth)),
        "explained": float(np.nanmedian(estimate.fit.explained)),
        "status": estimate.status.name,
    }
    return [whole, *weight_rows(estimate.feature_names, found, ends, truth)]


def _right_pairs(found: Float, truth: Float) -> float:
    """Share of pairs of sizes in the right order, among those that truly differ."""
    larger = truth[:, None] > DIFFERENT * truth
    return float((found[:, None] > found)[larger].mean())


def claims(table: pd.DataFrame) -> Iterator[Claim]:
    """Signs and order must be right."""
    fits = table[table.part == "fit"]
    yield judge("signs are right", fits.signs, statistic="share of right signs", above=0.99)
    statistic = "share of pairs of sizes in the right order"
    yield judge("and the order", fits.pairs, statistic=statistic, above=0.99)
    statistic = "coverage of 95% intervals"
    yield judge("and the intervals", fits.coverage, statistic=statistic, above=0.8)


def summary(table: pd.DataFrame) -> str:
    """One line a run, and the weights, as Markdown."""
    fits, weights = table[table.part == "fit"], table[table.part == "weight"]
    names = ("signs", "sure", "order", "pairs", "coverage", "error", "explained", "first", "last")
    columns = ("seed", *names, "seconds", "training_seconds", "status")
    whole = markdown(columns, ([_shown(row[c]) for c in columns] for _, row in fits.iterrows()))
    lines = (
        [row.seed, row.feature, *(f"{row[c]:+.3f}" for c in ("truth", "weight", "low", "high"))]
        for _, row in weights.iterrows()
    )
    return f"{whole}\n{markdown(('seed', 'feature', 'truth', 'found', 'low', 'high'), lines)}"


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def figure(table: pd.DataFrame) -> Figure:
    """Every run's weights with their intervals, beside the true ones."""
    weights = table[table.part == "weight"]
    drawn = plots.new_figure(8, 3.6)
    axes, names, seeds = drawn.subplots(), list(dict.fromkeys(weights.feature)), weights.seed
    for k, (seed, rows) in enumerate(weights.groupby("seed")):
        at = np.arange(len(names)) + 0.15 * (k - (seeds.nunique() - 1) / 2)
        reach = np.abs(rows[["low", "high"]].to_numpy().T - rows.weight.to_numpy())
        axes.errorbar(at, rows.weight, yerr=reach, fmt="o", markersize=3, label=f"seed {seed}")
        axes.scatter(at, rows.truth, marker="_", color="black", label=None if k else "true")
    plots.rule(axes, 0.0)
    axes.set_xticks(range(len(names)), names)
    axes.legend(fontsize=8, frameon=False)
    plots.tidy(axes, title="Weight times deviation, of unit norm, with 95% intervals")
    return drawn


STUDY = Study(
    name="lunarlander",
    cases=({},),
    run=run,
    claims=claims,
    figure=figure,
    quick=True,
    summary=summary,
    packages=PACKAGES,
    require=require_lander,
)
