"""The figures of the MuJoCo studies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from logel.studies.mujoco import heat_map
from logel.studies.mujoco_claims import weights
from logel.studies.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, new_figure, tidy
from logel.studies.study_figures import band

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABELS = {
    "learner": ("the learner", GREY),
    "default": ("logel (default)", BLUE),
    "paper": ("LOGEL, as in the paper", ORANGE),
    "lfl": ("LfL", GREEN),
    "trex": ("T-REX", PURPLE),
}


def hopper_figure(table: pd.DataFrame) -> Figure:
    """Learning curves, and the recovered weights run by run."""
    figure = new_figure(11, 3.9)
    left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
    _curves(left, table, "Hopper")
    _weights(right, table)
    return figure


def reacher_figure(table: pd.DataFrame) -> Figure:
    """Learning curves, and the recovered reward over the fingertip's offset."""
    figure = new_figure(13, 4.3)
    left, *maps = figure.subplots(1, 3, width_ratios=[1.35, 1, 1])
    _curves(left, table, "Reacher", columns=2)
    for axes, name in zip(maps, ("default", "paper"), strict=True):
        _map(figure, axes, table, name)
    return figure


def _curves(axes: Axes, table: pd.DataFrame, environment: str, *, columns: int = 3) -> None:
    rows = table[table.part == "curve"]
    counts = rows.groupby("observer").seed.nunique()
    most = int(counts.max())
    for name, (label, colour) in LABELS.items():
        part = rows[rows.observer == name]
        if len(part):
            fewer = f" (runs: {counts[name]})" if counts[name] < most else ""
            band(axes, part, "update", "score", color=colour, label=label + fewer)
    # Bands of few runs are wide beyond measure: what matters is where the means are.
    means = rows.groupby(["observer", "update"]).score.mean()
    axes.set_ylim(min(-1.0, means.min() - 0.5), max(2.0, means.max() + 0.5))
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.axhline(0.0, color="black", linewidth=0.8, linestyle=":")
    # Curves go everywhere: the legend stands below them.
    axes.legend(
        fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=columns, frameon=False
    )
    axes.locator_params(axis="x", integer=True)
    runs = f"{most} run" + "s" * (most > 1)
    tidy(
        axes,
        title=f"{environment}: agents on recovered rewards",
        x="update",
        y=f"normalised score ({runs}, 98% bands)",
    )


def _weights(axes: Axes, table: pd.DataFrame) -> None:
    """Each run's weights, of unit norm, with their intervals."""
    truths: dict[str, float] = {}
    for name in ("default", "paper"):
        rows = weights(table, name)
        truths |= dict(zip(rows.feature.tolist(), rows.truth.tolist(), strict=True))
    seeds = sorted(table.seed.unique())
    for k, (feature, truth) in enumerate(truths.items()):
        for offset, name in ((-0.2, "default"), (0.2, "paper")):
            rows = weights(table, name)
            if rows.empty:
                continue
            rows = rows[rows.feature == feature].set_index("seed").reindex(seeds)
            at = k + offset + np.linspace(-0.15, 0.15, len(seeds))
            reach = np.abs(rows[["low", "high"]].to_numpy().T - rows.weight.to_numpy())
            label, colour = LABELS[name]
            axes.errorbar(
                at,
                rows.weight,
                yerr=reach,
                fmt="o",
                markersize=3,
                linewidth=1,
                color=colour,
                label=label if k == 0 else None,
            )
        axes.hlines(truth, k - 0.4, k + 0.4, color="black", linewidth=1.2)
    axes.hlines([], 0, 0, color="black", linewidth=1.2, label="true weight")
    # One weight is near 1, the others near 0: linear up to a hundredth, logarithmic beyond.
    axes.set_yscale("symlog", linthresh=0.01)
    axes.set_yticks(
        [-1, -0.1, -0.01, 0, 0.01, 0.1, 1], ["-1", "-.1", "-.01", "0", ".01", ".1", "1"]
    )
    axes.set_xticks(range(len(truths)), list(truths))
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=3, frameon=False)
    tidy(axes, title="Weights of unit norm, 95% intervals, one per run")


def _map(figure: Figure, axes: Axes, table: pd.DataFrame, name: str) -> None:
    """The mean over runs of the recovered reward, and where each run's peaks."""
    rows = weights(table, name)
    tables = [part.weight.to_numpy() for _, part in rows.groupby("seed")]
    if not tables:
        axes.set_axis_off()
        return
    found = [heat_map(each) for each in tables]
    values = np.mean([values for values, _ in found], axis=0)
    reach = 0.2
    image = axes.imshow(
        values.T, origin="lower", extent=(-reach, reach, -reach, reach), cmap="viridis"
    )
    figure.colorbar(image, ax=axes, shrink=0.85, label="reward of the offset")
    peaks = np.array([peak for _, peak in found])
    axes.scatter(
        peaks[:, 0],
        peaks[:, 1],
        marker="x",
        color="white",
        s=24,
        linewidths=1.2,
        label="peaks of runs",
    )
    axes.plot(0, 0, marker="+", color="red", markersize=12, markeredgewidth=1.6, label="target")
    axes.legend(fontsize=7, loc="upper right", framealpha=0.6)
    cost = float(np.mean([each[-1] for each in tables]))
    tidy(
        axes,
        title=f"{LABELS[name][0]}; |action|$^2$: {cost:.2f}",
        x="fingertip - target, x [m]",
        y="y [m]",
    )
    ticks = np.linspace(-reach, reach, 5)
    axes.set_xticks(ticks)
    axes.set_yticks(ticks)
    axes.grid(visible=False)
