"""A study's table boiled down to Markdown: means with 98% intervals, and the claims."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from logel.studies.claims import Claim, mean_interval

MEASURES = (
    "value",
    "return",
    "regret",
    "error",
    "error_raw",
    "coverage",
    "width",
    "significant",
    "bound",
    "attainable",
    "reduction",
)
# Columns that describe the run rather than what is compared.
_IGNORED = {"study", "seed", "map", "weights", "status", "learner_model", "best_value"}


def markdown_table(table: pd.DataFrame) -> str:
    """Mean and 98% interval of every measure, one line per setting."""
    measures = [name for name in MEASURES if name in table and table[name].notna().any()]
    keys = [name for name in table if name not in _IGNORED and name not in measures]
    if "stage" in keys:
        # A learning curve is summarised by its two ends.
        last = table.groupby("learner")["stage"].transform("max")
        table = table[(table.stage == 0) | (table.stage == last)]
    lines = [_line([*keys, *measures]), _line(["---"] * (len(keys) + len(measures)))]
    for setting, rows in table.groupby(keys, sort=False):
        cells = [str(value) for value in setting]
        cells += [_cell(rows[name].dropna().tolist()) for name in measures]
        lines.append(_line(cells))
    return "\n".join(lines) + "\n"


def markdown_claims(claims: Sequence[Claim]) -> str:
    """The claims with their verdicts, one line each."""
    lines = [
        _line(["claim", "source", "observer", "statistic", "mean [98% interval]", "verdict"]),
        _line(["---"] * 6),
    ]
    for c in claims:
        number = f"{c.value:.3g} [{c.low:.3g}, {c.high:.3g}], wanted {c.wanted} {c.threshold:.3g}"
        lines.append(
            _line([c.claim, c.source, c.observer, c.statistic, number, f"**{c.verdict}**"])
        )
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[object]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _cell(values: list[float]) -> str:
    if not values:
        return ""
    mean, low, high = mean_interval(values)
    return f"{mean:.3g} ± {(high - low) / 2:.2g}"
