"""Figures, drawn with matplotlib (the only module that imports it)."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from logel.data.folder import write_atomically
from logel.envs.gridworld import GridMap
from logel.errors import MissingExtraError, OptionError
from logel.types import Float

try:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure
except ImportError:  # pragma: no cover - depends on what is installed
    raise MissingExtraError("matplotlib", "report") from None

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from logel.studies.demo import DemoResult

# Okabe and Ito's palette: told apart by readers with any colour vision, and in print.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, GREY = "#CC79A7", "#56B4E9", "#7f7f7f"
# What would make equal figures differ: dates, and the version of matplotlib.
_METADATA = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
_ARROWS = {0: (0, 1), 1: (0, -1), 2: (-1, 0), 3: (1, 0)}


def new_figure(width: float, height: float) -> Figure:
    """A figure in the house look."""
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def tidy(axes: Axes, *, title: str, x: str = "", y: str = "") -> None:
    """Title and labels, a light grid, no box."""
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def picture_format(path: Path) -> str:
    """The format a picture's name asks for, PNG if it does not say."""
    found = path.suffix.lstrip(".").lower() or "png"
    if found not in _METADATA:
        raise OptionError(
            f"cannot draw {path}: choose a name that ends in .{', .'.join(_METADATA)}"
        )
    return found


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure; the format follows the suffix. Equal figures give equal bytes."""
    kind, drawn = picture_format(path), io.BytesIO()
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "logel", "svg.fonttype": "none"}):
        figure.savefig(drawn, format=kind, metadata=_METADATA[kind])
    write_atomically(path, drawn.getvalue())


def demo_figure(result: DemoResult) -> Figure:
    """The demo's picture: learning curve, weights, and the reward on the map."""
    figure = new_figure(11, 3.6)
    left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1.1, 1.1])
    left.plot(result.learner_returns, color=GREY, marker="o", markersize=3)
    tidy(left, title="What the observer watches", x="stage", y="learner's mean return")
    weight_bars(
        middle,
        result.estimate.feature_names,
        {"true": result.true_weights, "recovered": result.estimate.weights},
        result.estimate.interval(0.95),
    )
    reward_map(right, result.grid, result.estimate.weights, result.recovered_policy)
    right.set_title(
        f"Recovered reward and its best policy\n(earns {result.value:.2f} of "
        f"{result.best_value:.2f})",
        loc="left",
        fontsize=10,
        fontweight="bold",
    )
    return figure


def weight_bars(
    axes: Axes, names: tuple[str, ...], weights: dict[str, Float], interval: Float
) -> None:
    """True and recovered weights side by side, the recovered with its interval."""
    at = np.arange(len(names))
    for offset, (label, values), colour in zip(
        (-0.2, 0.2), weights.items(), (GREY, BLUE), strict=True
    ):
        axes.bar(at + offset, values, width=0.38, color=colour, label=label)
    recovered = list(weights.values())[-1]
    if np.isfinite(interval).all():
        reach = np.abs(interval.T - recovered)
        axes.errorbar(at + 0.2, recovered, yerr=reach, fmt="none", ecolor="black", capsize=3)
    axes.set_xticks(at, names)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.legend(fontsize=8, frameon=False)
    tidy(axes, title="Reward weights (unit length, 95% interval)")


def reward_map(axes: Axes, grid: GridMap, weights: Float, policy: Float) -> None:
    """The map coloured by reward, with an arrow for each state's best action."""
    rows, columns = grid.shape
    values = weights[grid.areas].reshape(rows, columns)
    limit = float(np.abs(values).max()) or 1.0
    image = axes.imshow(values, cmap="RdBu", vmin=-limit, vmax=limit)
    for state, action in enumerate(policy.argmax(axis=1)):
        row, column = divmod(state, columns)
        dx, dy = _ARROWS[int(action)]
        axes.annotate(
            "",
            xy=(column + 0.3 * dx, row + 0.3 * dy),
            xytext=(column - 0.3 * dx, row - 0.3 * dy),
            arrowprops={"arrowstyle": "->", "color": "black", "lw": 1.0},
        )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.figure.colorbar(image, ax=axes, shrink=0.8)
