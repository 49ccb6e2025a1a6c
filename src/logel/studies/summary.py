"""A study's table boiled down to Markdown: means with 98% intervals, and the claims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from logel.studies.claims import Claim, mean_interval

if TYPE_CHECKING:
    import pandas as pd

# In the order of the columns.
MEASURES = (
    *("value", "return", "regret", "error", "error_raw", "coverage", "width"),
    *("significant", "bound", "attainable", "reduction"),
)
# Columns that describe the run rather than what is compared.
_IGNORED = {"study", "seed", "map", "weights", "status", "learner_model", "best_value"}


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
