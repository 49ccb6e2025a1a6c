"""What the figures of all studies share; matplotlib is loaded when the first one is drawn."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from logel.data.limits import optional
from logel.data.plots import (
    BLUE as BLUE,
)
from logel.data.plots import (
    GREEN as GREEN,
)
from logel.data.plots import (
    GREY as GREY,
)
from logel.data.plots import (
    ORANGE as ORANGE,
)
from logel.data.plots import (
    PURPLE as PURPLE,
)
from logel.data.plots import (
    RED as RED,
)
from logel.data.plots import (
    rule as rule,
)
from logel.data.plots import (
    tidy as tidy,
)
from logel.data.store import write_atomically
from logel.errors import OptionError
from logel.studies.claims import mean_interval
from logel.types import Float

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# No study has two observers of one colour.
COLOURS = {
    "default": BLUE,
    "replay": BLUE,
    "paper": ORANGE,
    "authors": PURPLE,
    "lfl": GREEN,
    "girl": RED,
    "learner": GREY,
    "trex": PURPLE,
    "mirror": PURPLE,
}
LABELS = {
    "default": "logel (default)",
    "replay": "replay",
    "mirror": "mirror",
    "paper": "LOGEL, as in the paper",
    "authors": "LOGEL, as in the authors' code",
    "lfl": "LfL",
    "girl": "GIRL on the last stage",
    "learner": "the learner itself",
    "trex": "T-REX",
}
# What would make equal figures differ: dates, and the version of matplotlib.
_METADATA = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
_BAND = "mean and 98% band"


def require_matplotlib() -> None:
    """Say that figures cannot be drawn now rather than after hours of work."""
    optional("matplotlib", "report")


def new_figure(width: float, height: float) -> Figure:
    """A figure in the house look."""
    require_matplotlib()
    # Without pyplot, which keeps figures alive and may open windows.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained")


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
    import matplotlib

    kind, drawn = picture_format(path), io.BytesIO()
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "logel", "svg.fonttype": "none"}):
        figure.savefig(drawn, format=kind, metadata=_METADATA[kind])
    content = drawn.getvalue()
    write_atomically(path, _renumbered(content) if kind == "svg" else content)


def _renumbered(svg: bytes) -> bytes:
    """The same picture with the names matplotlib makes of hashes numbered as they come.

    Clipping rectangles are named by all their digits, of which the layout's solver does not always
    find the same last ones.
    """
    names = dict.fromkeys(re.findall(rb'id="([a-zA-Z][0-9a-f]{10})"', svg))
    numbers = {name: b"%s%d" % (name[:1], at) for at, name in enumerate(names)}
    return re.sub(
        rb'(id="|#)([a-zA-Z][0-9a-f]{10})(?=["\)])',
        lambda found: found[1] + numbers.get(found[2], found[2]),
        svg,
    )


def hundredths_scale(axes: Axes, *, signed: bool = False) -> None:
    """For weights of which one is near 1 and most near 0: logarithmic beyond a hundredth."""
    axes.set_yscale("symlog", linthresh=0.01)
    ticks = {"-1": -1, "-.1": -0.1, "-.01": -0.01, "0": 0, ".01": 0.01, ".1": 0.1, "1": 1}
    shown = {name: tick for name, tick in ticks.items() if signed or tick >= 0}
    axes.set_yticks(list(shown.values()), list(shown))


def band(axes: Axes, rows: pd.DataFrame, x: str, y: str, *, color: str, label: str) -> None:
    """Mean over runs with its 98% band."""
    places = sorted(rows[x].unique())
    stats = np.array([mean_interval(rows.loc[rows[x] == place, y]) for place in places])
    axes.plot(
        places, stats[:, 0], marker="o", markersize=3, linewidth=1.4, color=color, label=label
    )
    if np.isfinite(stats).all():
        axes.fill_between(places, stats[:, 1], stats[:, 2], color=color, alpha=0.18, linewidth=0)


def observer_bands(axes: Axes, table: pd.DataFrame, x: str, y: str) -> None:
    """One band for each observer of a table."""
    for observer, rows in table.groupby("observer", sort=False):
        name = str(observer)
        band(axes, rows, x, y, color=COLOURS[name], label=LABELS[name])


def bars(
    axes: Axes,
    k: int,
    n: int,
    middle: Float,
    ends: Float | None = None,
    *,
    label: str,
    color: str | None = None,
    capsize: float | None = 2,
) -> None:
    """The k-th of n series of bars that stand side by side, with whiskers to their ends (2, N)."""
    # A fifth of the room is left between groups.
    width = 0.8 / n
    at = np.arange(len(middle)) + (k - (n - 1) / 2) * width
    axes.bar(at, middle, width, color=color, label=label)
    if ends is not None:
        reach = np.nan_to_num(np.abs(ends - middle), posinf=0.0)
        axes.errorbar(at, middle, yerr=reach, fmt="none", ecolor="black", capsize=capsize)


def runs_legend(figure: Figure, axes: Axes, table: pd.DataFrame, note: str = _BAND) -> None:
    """One legend below all panels, titled with the number of runs."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=len(labels),
        fontsize=8,
        frameon=False,
        title=f"{table.seed.nunique()} runs, {note}",
        title_fontsize=8,
    )


# Which column bounds a measure: what no unbiased estimator beats. It does not depend on the run.
_BOUNDS = {"error": "bound", "value": "attainable"}


# Where shares should be: 95% intervals cover, and call one weight of twenty of nothing paid.
WANTED = {"coverage": 0.95, "significant": 0.05}


# Shares go no further.
_BETWEEN = dict.fromkeys(WANTED, (0.0, 1.0))


def in_words(case: str, value: object) -> str:
    """A value of a case as a reader says it: `10 steps`, `parameters hidden`."""
    if case == "known":
        return f"parameters {'known' if value else 'hidden'}"
    if case in ("steps", "episodes", "learners", "roads"):
        return f"{value} {case}"
    if isinstance(value, bool | np.bool_):
        return case.replace("_", " ") if value else f"not {case.replace('_', ' ')}"
    return str(value)


def case_bars(table: pd.DataFrame, *, cases: Sequence[str], measures: Mapping[str, str]) -> Figure:
    """Bars per case and observer, one panel per measure, with 98% intervals."""
    figure = new_figure(11, 3.6)
    panels = figure.subplots(1, len(measures), squeeze=False)[0]
    words = table[list(cases)].apply(lambda column: column.map(partial(in_words, column.name)))
    labels = words.agg(", ".join, axis=1)
    groups = {name: table[labels == name] for name in dict.fromkeys(labels)}
    for axes, (measure, title) in zip(panels, measures.items(), strict=True):
        _case_panel(axes, list(groups.values()), measure)
        axes.set_xticks(np.arange(len(groups)), list(groups), rotation=30, ha="right")
        tidy(axes, title=title)
        _wanted_line(axes, measure)
    runs_legend(figure, panels[0], table, "mean and 98% interval")
    return figure


def _wanted_line(axes: Axes, measure: str) -> None:
    if measure in WANTED:
        rule(axes, WANTED[measure], dotted=True)
        axes.set_ylim(bottom=0)


def _case_panel(axes: Axes, groups: Sequence[pd.DataFrame], measure: str) -> None:
    present = set().union(*(rows.observer for rows in groups))
    observers = [name for name in COLOURS if name in present]
    for k, name in enumerate(observers):
        found = [rows.loc[rows.observer == name, measure].dropna() for rows in groups]
        middle, *ends = np.array(list(map(mean_interval, found))).T
        ends = np.clip(ends, *_BETWEEN.get(measure, (None, None)))
        if np.isfinite(middle).any():
            label, color = LABELS[name], COLOURS[name]
            bars(axes, k, len(observers), middle, np.array(ends), label=label, color=color)
    if (bound := _BOUNDS.get(measure)) in groups[0]:
        low, high = axes.get_ylim()
        at = np.arange(len(groups))
        values = [rows[bound].iloc[0] for rows in groups]
        axes.hlines(values, at - 0.45, at + 0.45, "black", ":", label="Cramer-Rao bound")
        axes.set_ylim(low, high)
