"""Figures: what an estimate found, how well that explains the learning, what controls say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logel.data.plots import BLUE, GREY, ORANGE, panels, rule, tidy
from logel.types import Float

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Features that fit on an axis.
_MOST_WEIGHTS = 25
# Features that have a panel each in the figure of controls.
_MOST_PANELS = 4


def plot_estimate(estimate: Any, axes: Any = None, *, level: float = 0.95) -> list[Axes]:
    """Weights with intervals, explained movement, learning rates; see `RewardEstimate.plot`."""
    weights, movement, rates = panels(axes, 3)
    _weights(weights, estimate, level)
    _movement(movement, estimate)
    rates.plot(_steps(estimate.learning_rates), estimate.learning_rates, marker=".", color=BLUE)
    rates.set_ylim(bottom=0)
    tidy(rates, title="How fast", x="step", y="learning rate")
    return [weights, movement, rates]


def _weights(axes: Axes, estimate: Any, level: float) -> None:
    order = np.argsort(-np.abs(estimate.weights), kind="stable")[:_MOST_WEIGHTS][::-1]
    at, found, ends = np.arange(len(order)), estimate.weights[order], estimate.interval(level)
    if np.isfinite(ends).all():
        axes.hlines(at, *ends[order].T, color=BLUE, linewidth=2)
    axes.plot(found, at, "o", color=BLUE)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(at, [estimate.feature_names[j] for j in order])
    unit = "unit length" if estimate.scale == "unit norm" else "reward per unit"
    tidy(axes, title="What it wants", x=f"weight ({unit}), {100 * level:g}% interval")


def _movement(axes: Axes, estimate: Any) -> None:
    shares = np.clip(estimate.fit.explained, 0.0, 1.0)
    axes.bar(_steps(shares), 100 * np.nan_to_num(shares), color=GREY)
    axes.set_ylim(0, 100)
    rule(axes, 0)
    tidy(axes, title="Does that explain it?", x="step", y="movement explained, %")


def _steps(values: Float) -> Any:
    return np.arange(len(values))


def plot_checks(checks: Any, axes: Any = None) -> list[Axes]:
    """The largest weights in every inference of the controls; see `EstimateChecks.plot`.

    Grey are inferences whose weights are not to be trusted, orange those of controls that fail.
    """
    rows, whole = _inferences(checks), checks.estimate
    shown = np.argsort(-np.abs(whole.weights), kind="stable")[:_MOST_PANELS]
    made = panels(axes, len(shown))
    if axes is None:
        figure: Any = made[0].figure
        figure.set_size_inches(3.6 * len(shown), max(3.2, 0.25 * len(rows)))
    at = -np.arange(len(rows))
    for k, (panel, j) in enumerate(zip(made, shown, strict=True)):
        for y, (_, weights, low, high, colour) in zip(at, rows, strict=True):
            panel.plot([low[j], high[j]], [y, y], color=colour, linewidth=2)
            panel.plot(weights[j], y, "o", color=colour, markersize=4)
        panel.axvline(0, color="black", linewidth=0.8)
        panel.set_yticks(at, [name for name, *_ in rows] if k == 0 else [""] * len(rows))
        tidy(panel, title=whole.feature_names[j], x="weight, 95% interval")
    return made


def _inferences(checks: Any) -> list[tuple[str, Float, Float, Float, str]]:
    """Name, weights, both ends and colour of every inference, the estimate itself first."""
    whole = checks.estimate
    colour = BLUE if whole.verdict.shown else GREY
    rows = [("as it is", whole.weights, *whole.interval().T, colour)]
    for control, (_, outcome, _) in zip(checks.controls, checks.rows(), strict=True):
        colour = ORANGE if outcome == "failed" else BLUE
        rows += [
            (one.name, one.weights, one.low, one.high, GREY if one.doubt else colour)
            for one in control.variants
        ]
    return rows
