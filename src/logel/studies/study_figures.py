"""The figures of the gridworld studies, from their tidy tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from logel.studies.claims import mean_interval
from logel.studies.plots import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    new_figure,
    tidy,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "default": BLUE,
    "paper": ORANGE,
    "authors": PURPLE,
    "lfl": GREEN,
    "girl": RED,
    "learner": GREY,
}
LABELS = {
    "default": "logel (default)",
    "paper": "LOGEL, as in the paper",
    "authors": "LOGEL, as in the authors' code",
    "lfl": "LfL",
    "girl": "GIRL on the last stage",
    "learner": "the learner itself",
}
TITLES = {
    "gpomdp": "G(PO)MDP",
    "qlearning": "Q-learning",
    "spi": "Soft policy iteration",
    "svi": "Soft value iteration",
}


def band(axes: Axes, rows: pd.DataFrame, x: str, y: str, *, color: str, label: str) -> None:
    """Mean over runs with its 98% band."""
    places = sorted(rows[x].unique())
    stats = np.array([mean_interval(rows.loc[rows[x] == place, y]) for place in places])
    axes.plot(
        places, stats[:, 0], marker="o", markersize=3, linewidth=1.4, color=color, label=label
    )
    if np.isfinite(stats).all():
        axes.fill_between(places, stats[:, 1], stats[:, 2], color=color, alpha=0.18, linewidth=0)


def _legend(figure: Figure, axes: Axes, note: str) -> None:
    """One legend below all panels, titled with the number of runs."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=len(labels),
        fontsize=8,
        frameon=False,
        title=note,
        title_fontsize=8,
    )


def known_figure(table: pd.DataFrame) -> Figure:
    """Value and weight error against batch size (one step) and against steps (batch 5)."""
    figure = new_figure(11, 3.6)
    panels = figure.subplots(1, 4)
    runs = table.seed.nunique()
    measures = (("value", "value of the planned policy"), ("error", "error of unit weights"))
    for p, (part, x) in enumerate((("batch", "observer's batch"), ("steps", "learning steps"))):
        for k, (measure, label) in enumerate(measures):
            axes = panels[2 * p + k]
            for observer, rows in table[table.part == part].groupby("observer", sort=False):
                name = str(observer)
                band(axes, rows, "x", measure, color=COLOURS[name], label=LABELS[name])
            tidy(axes, title="one step" if part == "batch" else "5 episodes a stage", x=x, y=label)
    _legend(figure, panels[0], f"{runs} runs, mean and 98% band")
    return figure


def learners_figure(table: pd.DataFrame) -> Figure:
    """Relative regret against the number of watched steps, one panel per learner."""
    figure = new_figure(11, 3.6)
    names = [name for name in TITLES if name in set(table.learner)]
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axes, learner in zip(panels, names, strict=True):
        for observer, rows in table[table.learner == learner].groupby("observer", sort=False):
            name = str(observer)
            band(axes, rows, "steps", "regret", color=COLOURS[name], label=LABELS[name])
        axes.axhline(0, color="black", linewidth=0.8)
        axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
        axes.set_ylim(-0.15, 2.2)
        tidy(axes, title=TITLES[learner], x="steps watched")
    panels[0].set_ylabel("relative regret\n(0 best, 1 random)", fontsize=9)
    _legend(figure, panels[0], f"{table.seed.nunique()} runs, mean and 98% band")
    return figure


def curves_figure(table: pd.DataFrame) -> Figure:
    """Discounted return of each learner, stage by stage, sampled and exact."""
    figure = new_figure(11, 3.4)
    names = [name for name in TITLES if name in set(table.learner)]
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for axes, learner in zip(panels, names, strict=True):
        rows = table[table.learner == learner]
        band(axes, rows, "stage", "return", color=RED, label="return of 50 episodes x 20 steps")
        band(axes, rows, "stage", "value", color=GREY, label="exact value, no horizon")
        axes.axhline(rows.best_value.iloc[0], color="black", linewidth=0.8, linestyle=":")
        tidy(axes, title=TITLES[learner], x="stage")
    panels[0].set_ylabel("discounted return", fontsize=9)
    note = f"{table.seed.nunique()} runs, mean and 98% band; dotted: the optimum"
    _legend(figure, panels[0], note)
    return figure


# Which column bounds a measure.
BOUNDS = {"error": "bound", "value": "attainable"}


def case_bars(table: pd.DataFrame, cases: list[str], measures: dict[str, str]) -> Figure:
    """Bars per case and observer, one panel per measure, with 98% intervals."""
    figure = new_figure(11, 3.6)
    panels = figure.subplots(1, len(measures), squeeze=False)[0]
    labels = table[cases].astype(str).agg(", ".join, axis=1)
    names = list(dict.fromkeys(labels))
    observers = [name for name in COLOURS if name in set(table.observer)]
    width = 0.8 / len(observers)
    for axes, (measure, label) in zip(panels, measures.items(), strict=True):
        for k, observer in enumerate(observers):
            chosen = table.observer == observer
            stats = np.array(
                [mean_interval(table.loc[chosen & (labels == n), measure].dropna()) for n in names]
            )
            if not np.isfinite(stats[:, 0]).any():
                continue
            at = np.arange(len(names)) + (k - (len(observers) - 1) / 2) * width
            axes.bar(at, stats[:, 0], width, color=COLOURS[observer], label=LABELS[observer])
            reach = np.nan_to_num(np.abs(stats[:, 1:].T - stats[:, 0]), posinf=0.0)
            axes.errorbar(at, stats[:, 0], yerr=reach, fmt="none", ecolor="black", capsize=2)
        if measure in BOUNDS and BOUNDS[measure] in table:
            # What no unbiased estimator beats; it does not depend on the run.
            bound = [table.loc[labels == n, BOUNDS[measure]].iloc[0] for n in names]
            low, high = axes.get_ylim()
            axes.hlines(bound, np.arange(len(names)) - 0.45, np.arange(len(names)) + 0.45,
                        color="black", linestyle=":", label="Cramer-Rao bound")  # fmt: skip
            axes.set_ylim(low, high)
        axes.set_xticks(np.arange(len(names)), names, rotation=30, ha="right")
        tidy(axes, title=label)
    _legend(figure, panels[0], f"{table.seed.nunique()} runs, mean and 98% interval")
    return figure


def accuracy_known_figure(table: pd.DataFrame) -> Figure:
    """Direction error against the number of stages, exact and sampled gradients."""
    figure = new_figure(8, 3.6)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (gradient, part) in zip(panels, table.groupby("gradient", sort=True), strict=True):
        for observer, rows in part.groupby("observer", sort=False):
            name = str(observer)
            band(axes, rows, "steps", "error", color=COLOURS[name], label=LABELS[name])
        axes.set_xscale("log")
        axes.set_ylim(0, 1.6)
        tidy(axes, title=f"{gradient} gradients", x="steps watched", y="direction error")
    _legend(figure, panels[0], f"{table.seed.nunique()} runs, mean and 98% band")
    return figure


def jacobian_figure(table: pd.DataFrame) -> Figure:
    """How many times smaller the squared error of each estimator of the Jacobians is."""
    figure = new_figure(8, 3.6)
    axes = figure.subplots()
    worlds = list(dict.fromkeys(table.world))
    estimators = [name for name in dict.fromkeys(table.estimator) if name != "none"]
    width = 0.8 / len(estimators)
    for k, estimator in enumerate(estimators):
        logs = [
            mean_interval(
                np.log(table[(table.estimator == estimator) & (table.world == world)].reduction)
            )
            for world in worlds
        ]
        means, low, high = np.exp(np.nan_to_num(np.array(logs))).T
        at = np.arange(len(worlds)) + (k - (len(estimators) - 1) / 2) * width
        axes.bar(at, means, width, label=estimator)
        axes.errorbar(at, means, yerr=[means - low, high - means], fmt="none", ecolor="black")
    axes.set_yscale("log")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(np.arange(len(worlds)), worlds)
    tidy(axes, title="Squared error of the Jacobian: own G(PO)MDP over estimator")
    _legend(figure, axes, f"{table.seed.nunique()} runs, geometric mean and 98% interval")
    return figure
