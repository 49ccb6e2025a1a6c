"""The figures of the driving study."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from logel.envs.crossroad.driver import PARAMETER_NAMES, RuleDriver
from logel.envs.crossroad.world import FEATURE_NAMES, WEIGHTS, Crossroad
from logel.studies.crossroad import LEARNERS, PAPER_WEIGHTS, SAFE, fits, recovered
from logel.studies.plots import BLUE, GREEN, GREY, ORANGE, RED, new_figure, tidy
from logel.studies.study_figures import band
from logel.types import Float

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Frames at the start in which the ego vehicle is not yet in the picture.
_APPROACH = 6
COLOURS = {"cautious": BLUE, "hurried": RED, "random": GREY}


def crossroad_figure(table: pd.DataFrame) -> Figure:
    """Weights, learning curves and controls."""
    figure = new_figure(11, 6.2)
    (bars, other), (curve, crash), (control, last) = figure.subplots(
        2, 3, width_ratios=[1.2, 1, 1]
    ).T
    _weight_bars(bars, table, "cautious", WEIGHTS, paper=PAPER_WEIGHTS)
    hurried = LEARNERS["hurried"].weights
    assert hurried is not None
    _weight_bars(other, table, "hurried", hurried)
    for learner, colour in COLOURS.items():
        rows = table[(table.part == "stage") & (table.learner == learner)]
        band(crash, rows, "stage", "crash", color=colour, label=learner)
        if learner == "cautious":
            band(curve, rows, "stage", "return", color=colour, label=learner)
    crash.axhline(SAFE, color="black", linewidth=0.8, linestyle=":")
    crash.set_ylim(0, None)
    crash.legend(fontsize=8, frameon=False)
    seeds = table.seed.nunique()
    for axes in (curve, crash):
        axes.xaxis.get_major_locator().set_params(integer=True)
    tidy(curve, title="The cautious driver's return", x="updates", y="mean return")
    tidy(crash, title=f"Crash rate ({seeds} seeds, mean, 98% band)", x="updates")
    _controls(control, table, "forwards", "Explained movement")
    _controls(last, table, "backwards", "The same, read backwards")
    return figure


def _weight_bars(
    axes: Axes,
    table: pd.DataFrame,
    learner: str,
    truth: tuple[float, ...],
    *,
    paper: tuple[float, ...] | None = None,
) -> None:
    series: dict[str, tuple[Float, Float | None, str]] = {"real": (np.array(truth), None, GREY)}
    if paper is not None:
        series["the paper's"] = (np.array(paper), None, GREEN)
    for observer, colour in (("default", BLUE), ("paper", ORANGE)):
        weights = recovered(table, learner, observer).to_numpy()
        label = "logel (default)" if observer == "default" else "LOGEL, as in the paper"
        series[label] = (np.median(weights, axis=0), weights, colour)
    width = 0.8 / len(series)
    for k, (label, (middle, each, colour)) in enumerate(series.items()):
        at = np.arange(len(FEATURE_NAMES)) + (k - (len(series) - 1) / 2) * width
        axes.bar(at, middle, width, color=colour, label=label)
        if each is not None:
            reach = np.abs(np.quantile(each, [0, 1], axis=0) - middle)
            axes.errorbar(at, middle, yerr=reach, fmt="none", ecolor="black", capsize=2)
    # Most weights are near 0 and one near 1: linear up to a hundredth, logarithmic beyond.
    axes.set_yscale("symlog", linthresh=0.01)
    axes.set_yticks([0, 0.01, 0.1, 1], ["0", ".01", ".1", "1"])
    axes.set_xticks(np.arange(len(FEATURE_NAMES)), FEATURE_NAMES)
    axes.legend(fontsize=7, frameon=False, loc="upper center")
    tidy(axes, title=f"{learner.capitalize()}: weights, median and range")


def _controls(axes: Axes, table: pd.DataFrame, direction: str, title: str) -> None:
    for k, (learner, colour) in enumerate(COLOURS.items()):
        found = fits(table, learner, "default", direction)
        spread = np.linspace(-0.25, 0.25, len(found)) if len(found) > 1 else np.zeros(1)
        explained = found["explained"].to_numpy()
        chance = found["chance 95%"].to_numpy()
        axes.scatter(k + spread, explained, color=colour, s=22, zorder=3)
        axes.scatter(
            k + spread,
            chance,
            color="black",
            marker="_",
            s=40,
            label="95% point of chance" if k == 0 else None,
        )
    axes.set_xticks(range(len(COLOURS)), list(COLOURS))
    axes.set_ylim(0, None)
    axes.legend(fontsize=7, frameon=False)
    tidy(axes, title=title)


def strip_figure(table: pd.DataFrame, *, n_frames: int = 6) -> Figure:
    """The same traffic met by the cautious driver of the first seed before and after learning.

    The episode shown is the first one (seeds 0, 1, ...) in which the beginner crashes and the
    driver who has learnt arrives.
    """
    rows = table[(table.part == "stage") & (table.learner == "cautious")]
    rows = rows[rows.seed == rows.seed.min()].sort_values("stage")
    means = rows[[f"mean {k}" for k in range(len(PARAMETER_NAMES))]].to_numpy(dtype=float)
    drivers = [RuleDriver.from_parameters(means[t]) for t in (0, -1)]
    env = Crossroad(render_mode="rgb_array")
    try:
        for seed in range(200):
            outcomes = [_outcome(env, driver, seed) for driver in drivers]
            if outcomes[0] == "conflict" and outcomes[1] == "arrived":
                break
        films = [_film(env, driver, seed) for driver in drivers]
    finally:
        env.close()
    figure = new_figure(11, 4.2)
    labels = ("Before learning", f"After {int(rows.stage.max())} updates")
    panels = figure.subplots(2, n_frames)
    for line, (film, label) in enumerate(zip(films, labels, strict=True)):
        for k, at in enumerate(np.linspace(_APPROACH, len(film) - 1, n_frames).round().astype(int)):
            axes = panels[line, k]
            axes.imshow(film[at][100:320, 90:310])
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_title(f"{at * env.period:.1f} s", fontsize=8)
        panels[line, 0].set_ylabel(label, fontsize=9)
    return figure


def _outcome(env: Crossroad, driver: RuleDriver, seed: int) -> str:
    observation, _ = env.reset(seed=seed)
    while env.outcome == "driving":
        observation, *_ = env.step(driver.act(observation))
    return env.outcome


def _film(env: Crossroad, driver: RuleDriver, seed: int) -> list[npt.NDArray[np.uint8]]:
    observation, _ = env.reset(seed=seed)
    frames = [env.render()]
    while env.outcome == "driving":
        observation, *_ = env.step(driver.act(observation))
        frames.append(env.render())
    return [frame for frame in frames if frame is not None]
