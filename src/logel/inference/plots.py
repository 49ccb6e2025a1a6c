"""The figure of an estimate: what it found, how well that explains the learning, how fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logel.data.plots import BLUE, GREY, panels, rule, tidy
from logel.types import Float

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Features that fit on an axis.
_MOST_WEIGHTS = 25


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
