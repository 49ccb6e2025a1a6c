"""The paper's Reacher study: what a PPO agent that learns to reach wants. See `mujoco`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from logel.inference.estimate import RewardEstimate
from logel.studies import mujoco, plots
from logel.studies.claims import Claim, judge
from logel.studies.measures import weight_rows
from logel.studies.run.tasks import Row, Task
from logel.types import Float

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The bumps of the reward are a grid of this spacing, in metres.
PEAK_WITHIN = 0.1


def run(task: Task) -> list[Row]:
    """Learner or observer on Reacher."""
    return mujoco.run(task, "Reacher-v5", _estimate_rows)


def _estimate_rows(estimate: RewardEstimate) -> list[Row]:
    ends = estimate.interval(0.95)
    rows = weight_rows(estimate.feature_names, estimate.weights, ends, None)
    peak = float(np.linalg.norm(heat_map(estimate.weights)[1]))
    return [*rows, {**mujoco.fit_row(estimate), "peak distance": peak}]


def heat_map(weights: Float, n: int = 81) -> tuple[Float, Float]:
    """Reacher's reward over the vector from target to fingertip, (n, n), and its peak in metres."""
    from logel.envs.mujoco import reacher_bumps

    bumps = reacher_bumps((0, 1))
    axis = np.linspace(bumps.low, bumps.high, n)
    places = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    values = bumps(places, np.zeros((len(places), 1)), places) @ weights[: len(bumps.names)]
    return values.reshape(n, n), places[int(np.argmax(values))]


def claims(table: pd.DataFrame) -> Iterator[Claim]:
    """The paper's claims about Reacher, and ours."""
    yield from mujoco.agent_claims(table)
    for name in ("paper", "default"):
        fits = mujoco.fits(table, name)
        if fits.empty:
            continue
        yield judge(
            "the recovered reward peaks at the target",
            fits["peak distance"],
            statistic="distance of the heat map's peak from the target, in metres",
            below=PEAK_WITHIN,
            observer=name,
            source="logel",
        )
        learner, observer = mujoco.curves(table, "learner"), mujoco.curves(table, name)
        common = learner.columns.intersection(observer.columns)
        yield judge(
            "learns slower than the learner",
            (learner[common].mean(axis=1) - observer[common].mean(axis=1)).dropna(),
            statistic="learner's mean score minus the observer's, over the learner's updates",
            above=0.0,
            observer=name,
            source="paper",
        )
    yield from mujoco.score_claim(
        table, "T-REX fails", "trex", below=mujoco.FAILURE, source="paper"
    )


def figure(table: pd.DataFrame) -> Figure:
    """Learning curves, and the recovered reward over the fingertip's offset."""
    drawn = plots.new_figure(13, 4.3)
    left, *maps = drawn.subplots(1, 3, width_ratios=[1.35, 1, 1])
    mujoco.draw_curves(left, table, "Reacher", columns=2)
    for axes, name in zip(maps, ("default", "paper"), strict=True):
        rows = mujoco.weights(table, name)
        if len(rows):
            _draw_map(drawn, axes, rows, plots.LABELS[name])
        else:
            axes.set_axis_off()
    return drawn


def _draw_map(drawn: Figure, axes: Axes, rows: pd.DataFrame, label: str) -> None:
    """The mean over runs of the recovered reward, and where each run's peaks."""
    weights = [part.weight.to_numpy() for _, part in rows.groupby("seed")]
    maps, peaks = zip(*map(heat_map, weights), strict=True)
    reach = 0.2
    extent = (-reach, reach, -reach, reach)
    image = axes.imshow(np.mean(maps, axis=0).T, origin="lower", extent=extent, cmap="viridis")
    drawn.colorbar(image, ax=axes, shrink=0.85, label="reward of the offset")
    x, y = np.array(peaks).T
    axes.scatter(x, y, marker="x", color="white", s=24, linewidths=1.2, label="peaks of runs")
    axes.plot(0, 0, marker="+", color="red", markersize=12, markeredgewidth=1.6, label="target")
    axes.legend(fontsize=7, loc="upper right", framealpha=0.6)
    cost = float(np.mean([each[-1] for each in weights]))
    title = f"{label}; |action|$^2$: {cost:.2f}"
    plots.tidy(axes, title=title, x="fingertip - target, x [m]", y="y [m]")
    ticks = np.linspace(-reach, reach, 5)
    axes.set_xticks(ticks)
    axes.set_yticks(ticks)
    axes.grid(visible=False)


STUDY = mujoco.study("reacher", run=run, claims=claims, figure=figure)
