"""The house look of figures, and that of a history; matplotlib is loaded when one is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logel.data.contents import Contents
from logel.data.inspection import HistoryOverview, inspect_history
from logel.data.limits import optional
from logel.errors import OptionError
from logel.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette: told apart by readers with any colour vision, and in print.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, GREY = "#CC79A7", "#7f7f7f"
# Lines that a reader can follow.
_MOST_LINES = 8


def tidy(axes: Axes, *, title: str, x: str = "", y: str = "") -> None:
    """Title and labels, a light grid, no box."""
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def rule(axes: Axes, at: float, *, dotted: bool = False) -> None:
    """A thin horizontal line to compare with."""
    axes.axhline(at, color="black", linewidth=0.8, linestyle=":" if dotted else "-")


def panels(given: Any, n: int) -> list[Axes]:
    """Axes to draw n panels in: those given, or those of a new figure of pyplot's."""
    if given is None:
        pyplot = optional("matplotlib.pyplot", "report")
        _, made = pyplot.subplots(1, n, figsize=(3.6 * n, 3.2), layout="constrained", squeeze=False)
        return list(made[0])
    flat = list(np.ravel(given))
    if len(flat) != n:
        raise OptionError(f"there are {n} panels to draw, but {len(flat)} axes: give as many")
    return flat


def plot_history(history: Contents, axes: Any = None) -> list[Axes]:
    """Mean features, lengths of episodes and returns, stage by stage, as far as they are known."""
    drawn = _courses(inspect_history(history))
    made = panels(axes, len(drawn))
    for one, (title, label, lines) in zip(made, drawn, strict=True):
        for name, values in lines.items():
            one.plot(values, marker=".", label=name, color=None if name else BLUE)
        if len(lines) > 1:
            one.legend(fontsize=7, frameon=False)
        tidy(one, title=title, x="stage", y=label)
    return made


def _courses(overview: HistoryOverview) -> list[tuple[str, str, dict[str, Array]]]:
    """Title, axis and lines by name of every panel."""
    stages = overview.stages
    drawn: list[tuple[str, str, dict[str, Array]]] = []
    if overview.feature_names is not None:
        means = np.array([stage.feature_means for stage in stages])
        # Those that change most.
        order = np.argsort(-np.ptp(means, axis=0), kind="stable")[:_MOST_LINES]
        lines = {overview.feature_names[j]: means[:, j] for j in order}
        drawn.append(("Features", "mean per step", lines))
    lengths = np.array([stage.lengths[1] for stage in stages])
    drawn.append(("Episodes", "mean length", {"": lengths}))
    returns = [stage.mean_return for stage in stages if stage.mean_return is not None]
    if len(returns) == len(stages):
        drawn.append(("What it was paid", "mean return noted", {"": np.array(returns)}))
    return drawn
