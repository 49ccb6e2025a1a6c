"""What came out of a study: machine-checked claims, and the table boiled down to Markdown."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import scipy.stats
from rich.table import Table

from logel.data.store import write_atomically

if TYPE_CHECKING:
    import pandas as pd

# A one-sided error of one in a hundred: a study makes dozens of claims, few may fail by chance.
LEVEL = 0.98
HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
# In the order of the columns.
MEASURES = (
    *("value", "return", "regret", "error", "error_raw", "coverage", "width"),
    *("significant", "bound", "attainable", "reduction"),
)
# Columns that describe the run rather than what is compared.
_IGNORED = {"study", "seed", "map", "weights", "status", "learner_model", "best_value"}


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper (or of ours) held against the numbers of one observer.

    The statistic is given in words, with its mean over runs and the ends of its 98% interval;
    it is wanted "above" or "below" the threshold.
    """

    claim: str
    source: str
    observer: str
    statistic: str
    value: float
    low: float
    high: float
    threshold: float
    wanted: str
    runs: int

    @property
    def verdict(self) -> str:
        """Holds or does not when the whole interval says so; undecided otherwise."""
        above, below = self.low > self.threshold, self.high < self.threshold
        if not above and not below:
            # A statistic without any spread sits exactly where it is.
            return FAILS if self.low == self.high == self.threshold else UNDECIDED
        return HOLDS if (self.wanted == "above") == above else FAILS


def mean_interval(values: npt.ArrayLike, level: float = LEVEL) -> tuple[float, float, float]:
    """Mean over runs and the ends of its Student-t interval."""
    array = np.asarray(values, dtype=float)
    mean = float(array.mean()) if len(array) else math.nan
    if len(array) < 2:
        return mean, -math.inf, math.inf
    reach = float(scipy.stats.t.ppf(0.5 + level / 2, len(array) - 1))
    reach *= float(array.std(ddof=1)) / math.sqrt(len(array))
    return mean, mean - reach, mean + reach


def share_interval(outcomes: Sequence[bool], level: float = LEVEL) -> tuple[float, float, float]:
    """Share of runs in which something happened and the ends of its exact binomial interval.

    Runs that all agree have no spread, and yet say little about the next ones when they are few.
    """
    if not outcomes:
        return math.nan, 0.0, 1.0
    test = scipy.stats.binomtest(sum(outcomes), len(outcomes))
    low, high = test.proportion_ci(level, method="exact")
    return float(test.statistic), float(low), float(high)


def judge(
    claim: str,
    values: Iterable[float],
    *,
    statistic: str,
    above: float = math.nan,
    below: float | None = None,
    observer: str = "default",
    source: str | None = None,
) -> Claim:
    """Hold a claim against one value per run; runs that failed (NaN) are left out.

    Truth values are judged by the share of true ones. The mean is wanted either above or below a
    threshold. What is said of the observer "paper" is taken from the paper, the rest is ours,
    unless `source` says otherwise.
    """
    wanted, threshold = ("above", above) if below is None else ("below", below)
    source = source or ("paper" if observer == "paper" else "logel")
    found = [value for value in values if not math.isnan(value)]
    mean, low, high = _interval(found)
    return Claim(claim, source, observer, statistic, mean, low, high, threshold, wanted, len(found))


def _interval(values: list[float]) -> tuple[float, float, float]:
    outcomes = [value for value in values if isinstance(value, bool)]
    all_outcomes = bool(values) and len(outcomes) == len(values)
    return share_interval(outcomes) if all_outcomes else mean_interval(values)


def claims_table(claims: Iterable[Claim]) -> Table:
    """The claims as a table for the terminal."""
    table = Table(title="Claims", title_justify="left")
    table.add_column("claim", ratio=3)
    table.add_column("statistic", ratio=3)
    table.add_column("mean [98% interval]", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    colours = {HOLDS: "green", FAILS: "red", UNDECIDED: "yellow"}
    for c in claims:
        table.add_row(
            f"{c.observer}: {c.claim}",
            f"{c.statistic}, {c.wanted} {c.threshold:g}",
            rf"{c.value:.3g} \[{c.low:.3g}, {c.high:.3g}]",
            f"[{colours[c.verdict]}]{c.verdict}[/]",
        )
    return table


def write_claims(claims: Sequence[Claim], path: Path) -> None:
    """Write the claims with their verdicts as JSON; an interval without end becomes null."""
    rows = [{**asdict(c), "verdict": c.verdict} for c in claims]
    for row in rows:
        for key in ("value", "low", "high"):
            row[key] = row[key] if math.isfinite(row[key]) else None
    write_atomically(path, (json.dumps(rows, indent=1, allow_nan=False) + "\n").encode())


def markdown(header: Sequence[str], lines: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    every = [header, ["---"] * len(header), *lines]
    return "".join("| " + " | ".join(map(str, cells)) + " |\n" for cells in every)


def markdown_table(table: pd.DataFrame) -> str:
    """Mean and 98% interval of every measure, one line per setting."""
    measures = [name for name in MEASURES if name in table and table[name].notna().any()]
    keys = [str(name) for name in table if name not in {*_IGNORED, *measures}]
    if "stage" in keys:
        # A learning curve is summarised by its two ends.
        last = table.groupby("learner")["stage"].transform("max")
        table = table[(table.stage == 0) | (table.stage == last)]
    return markdown(
        [*keys, *measures],
        (
            [*setting, *(_cell(rows[name].dropna().tolist()) for name in measures)]
            for setting, rows in table.groupby(keys, sort=False)
        ),
    )


def markdown_claims(claims: Iterable[Claim]) -> str:
    """The claims with their verdicts, one line each."""
    return markdown(
        ["claim", "source", "observer", "statistic", "mean [98% interval]", "verdict"],
        (
            [
                c.claim,
                c.source,
                c.observer,
                c.statistic,
                f"{c.value:.3g} [{c.low:.3g}, {c.high:.3g}], wanted {c.wanted} {c.threshold:.3g}",
                f"**{c.verdict}**",
            ]
            for c in claims
        ),
    )


def _cell(values: list[float]) -> str:
    if not values:
        return ""
    mean, low, high = mean_interval(values)
    return f"{mean:.3g} ± {(high - low) / 2:.2g}"
