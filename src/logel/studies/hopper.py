"""The paper's Hopper study: what a PPO agent that learns to hop wants. See `mujoco`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from logel.inference.estimate import RewardEstimate
from logel.studies import mujoco, plots
from logel.studies.claims import Claim, judge
from logel.studies.measures import weight_rows
from logel.studies.run.tasks import Row, Task

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def run(task: Task) -> list[Row]:
    """Learner or observer on Hopper."""
    return mujoco.run(task, "Hopper-v5", _estimate_rows)


def _estimate_rows(estimate: RewardEstimate) -> list[Row]:
    from logel.envs.mujoco import hopper_true_weights

    ends, truth = estimate.interval(0.95), hopper_true_weights(unit=True)
    rows = weight_rows(estimate.feature_names, estimate.weights, ends, truth)
    return [*rows, mujoco.fit_row(estimate)]


def claims(table: pd.DataFrame) -> Iterator[Claim]:
    """The paper's claims about Hopper, and ours."""
    yield from mujoco.agent_claims(table)
    half = mujoco.FAILURE
    yield from mujoco.score_claim(table, "LfL fails", "lfl", below=half, source="paper")
    yield from mujoco.score_claim(table, "T-REX is decent", "trex", above=half, source="paper")
    for name in ("default", "paper"):
        rows = mujoco.weights(table, name)
        if rows.empty:
            continue
        yield judge(
            "moving forward is paid",
            rows[rows.feature == "distance"].low > 0,
            statistic="share of runs with an interval above zero",
            above=0.9,
            observer=name,
            source="logel",
        )
        inside = (rows.low <= rows.truth) & (rows.truth <= rows.high)
        yield judge(
            "intervals are honest",
            inside.groupby(rows.seed).all(),
            statistic="share of runs whose three intervals contain the truth",
            above=0.8,
            observer=name,
            source="logel",
        )


def figure(table: pd.DataFrame) -> Figure:
    """Learning curves, and the recovered weights run by run."""
    drawn = plots.new_figure(11, 3.9)
    left, right = drawn.subplots(1, 2, width_ratios=[1.25, 1])
    mujoco.draw_curves(left, table, "Hopper", columns=3)
    _draw_weights(right, table)
    return drawn


def _draw_weights(axes: Axes, table: pd.DataFrame) -> None:
    """Each run's weights, of unit norm, with their intervals."""
    found = {name: mujoco.weights(table, name) for name in ("default", "paper")}
    truths: dict[str, float] = {}
    for rows in found.values():
        truths |= dict(zip(rows.feature.tolist(), rows.truth.tolist(), strict=True))
    for k, (feature, truth) in enumerate(truths.items()):
        for offset, name in ((-0.2, "default"), (0.2, "paper")):
            rows = found[name][found[name].feature == feature]
            if len(rows):
                label = plots.LABELS[name] if k == 0 else None
                _draw_runs(axes, rows, sorted(table.seed.unique()), k + offset, name, label)
        axes.hlines(truth, k - 0.4, k + 0.4, color="black", linewidth=1.2)
    axes.hlines([], 0, 0, color="black", linewidth=1.2, label="true weight")
    plots.hundredths_scale(axes, signed=True)
    axes.set_xticks(range(len(truths)), list(truths))
    mujoco.legend_below(axes, 3)
    plots.tidy(axes, title="Weights of unit norm, 95% intervals, one per run")


def _draw_runs(
    axes: Axes, rows: pd.DataFrame, seeds: list[int], at: float, name: str, label: str | None
) -> None:
    rows = rows.set_index("seed").reindex(seeds)
    axes.errorbar(
        at + np.linspace(-0.15, 0.15, len(seeds)),
        rows.weight,
        yerr=np.abs(rows[["low", "high"]].to_numpy().T - rows.weight.to_numpy()),
        fmt="o",
        markersize=3,
        linewidth=1,
        color=plots.COLOURS[name],
        label=label,
    )


STUDY = mujoco.study("hopper", run=run, claims=claims, figure=figure)
