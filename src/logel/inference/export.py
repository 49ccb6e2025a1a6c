"""Estimates for other people's tools: a pandas table, arviz posterior draws, a notebook's cell.

An `estimate` is a `RewardEstimate`, which offers these as methods and therefore knows this module.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from logel.data.notebook import escaped
from logel.errors import MissingExtraError, OptionError
from logel.types import Float

if TYPE_CHECKING:
    import pandas as pd

_MOST_ROWS = 100


def to_frame(estimate: Any, level: float) -> pd.DataFrame:
    """See `RewardEstimate.to_frame`."""
    pd = _pandas()
    ends = estimate.interval(level)
    return pd.DataFrame(
        {
            "feature": list(estimate.feature_names),
            "weight": estimate.weights,
            "std_err": estimate.standard_errors,
            "low": ends[:, 0],
            "high": ends[:, 1],
            "probability_positive": estimate.probability_positive(),
        }
    )


def rows_of_learners(estimates: Mapping[str, Any], level: float) -> pd.DataFrame:
    """The tables of several estimates below each other, with a column that says whose."""
    pd = _pandas()
    frames = {name: to_frame(one, level) for name, one in estimates.items()}
    for name, frame in frames.items():
        frame.insert(0, "learner", name)
    return pd.concat(list(frames.values()), ignore_index=True)


def shares_to_frame(estimate: Any) -> pd.DataFrame:
    """See `RewardEstimate.learners_to_frame`."""
    pd = _pandas()
    columns = (
        *("learner", "n_steps", "rule", "gain", "share", "agreement", "decisive"),
        *("feature", "weight", "low", "high", "without"),
    )
    rows = [
        (
            *(one.name, one.n_steps, one.rule, one.gain, one.share, one.agreement, one.decisive),
            *(name, one.weights[j], one.low[j], one.high[j], one.without[j]),
        )
        for one in estimate.learners
        for j, name in enumerate(estimate.feature_names)
    ]
    return pd.DataFrame(rows, columns=list(columns))


def frame_of_contrast(contrast: Any, level: float) -> pd.DataFrame:
    """See `Contrast.to_frame`."""
    pd = _pandas()
    ends = contrast.interval(level)
    first, second = contrast.sides
    return pd.DataFrame(
        {
            "feature": list(contrast.feature_names),
            "first": first,
            "second": second,
            "difference": contrast.weights,
            "std_err": contrast.standard_errors,
            "low": ends[:, 0],
            "high": ends[:, 1],
            "probability_exceeds": contrast.probability_exceeds(),
        }
    )


def _pandas() -> Any:
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtraError("pandas", "report") from None
    return pd


def posterior_draws(estimate: Any, n_draws: int, seed: int) -> Float:
    """The estimate's own draws, or seeded ones that agree with its intervals, shape (n, q)."""
    if estimate.draws is not None:
        return estimate.draws
    if n_draws < 1:
        raise OptionError(f"n_draws must be at least 1, but is {n_draws}")
    if estimate.covariance is None or not np.isfinite(estimate.covariance).all():
        raise OptionError(
            "the estimate has no intervals to draw from: infer with intervals=True, from more "
            "episodes"
        )
    rng = np.random.default_rng(seed)
    values, vectors = np.linalg.eigh(estimate.covariance)
    root = vectors * np.sqrt(np.clip(values, 0, None))
    noise = rng.standard_normal((n_draws, len(values))) @ root.T
    freedom = estimate.degrees_of_freedom
    if freedom > 0:
        noise /= np.sqrt(rng.chisquare(freedom, (n_draws, 1)) / freedom)
    return np.asarray(estimate.weights + noise)


def to_inference_data(estimate: Any, n_draws: int, seed: int) -> Any:
    """See `RewardEstimate.to_inference_data`."""
    try:
        with warnings.catch_warnings():
            # It announces its next version when imported.
            warnings.simplefilter("ignore", FutureWarning)
            import arviz
    except ImportError:
        raise MissingExtraError("arviz", "arviz") from None
    draws = posterior_draws(estimate, n_draws, seed)
    return arviz.from_dict(
        posterior={"weights": draws[None]},
        coords={"feature": list(estimate.feature_names)},
        dims={"weights": ["feature"]},
        posterior_attrs={
            "method": estimate.method,
            "scale": estimate.scale,
            "status": estimate.status.name,
            "verdict": str(estimate.verdict),
            "inference_library": "logel",
        },
    )


def to_html(estimate: Any, level: float = 0.95) -> str:
    """A small table for notebooks: verdict, weights with intervals, status, notes.

    Names come from files, so everything is escaped; colours are the notebook's own.
    """
    ends, positive = estimate.interval(level), estimate.probability_positive()
    order = np.sort(np.argsort(-np.abs(estimate.weights), kind="stable")[:_MOST_ROWS])
    cell = 'style="text-align:right;padding:2px 12px 2px 0;font-variant-numeric:tabular-nums"'
    name = 'style="text-align:left;padding:2px 12px 2px 0;font-weight:600"'
    headers = ("weight", f"{100 * level:g}% interval", "P(weight &gt; 0)")
    rows = [
        f"<tr><th {name}>feature</th>" + "".join(f"<th {cell}>{h}</th>" for h in headers) + "</tr>"
    ]
    for j in order:
        low, high = ends[j]
        interval = f"{low:+.3g} to {high:+.3g}" if np.isfinite(ends[j]).all() else "unknown"
        chance = f"{100 * positive[j]:.1f}%" if np.isfinite(positive[j]) else "unknown"
        values = (f"{estimate.weights[j]:+.3g}", interval, chance)
        rows.append(
            f"<tr><th {name}>{escaped(estimate.feature_names[j])}</th>"
            + "".join(f"<td {cell}>{value}</td>" for value in values)
            + "</tr>"
        )
    hidden = len(estimate.weights) - len(order)
    remarks = [f"status: {estimate.status.value}", *estimate.gauge.describe()]
    remarks += [*estimate.notes, *([f"{hidden} smaller weights are not shown"] if hidden else [])]
    lines = "".join(f'<div style="opacity:.75">{escaped(text)}</div>' for text in remarks)
    return (
        f'<div style="max-width:60em"><div><b>Reward weights</b> ({escaped(estimate.scale)}, '
        f"{len(estimate.learning_rates)} steps)</div>"
        f"<div><b>{estimate.verdict.finding.value}</b>: {escaped(estimate.verdict.reason)}</div>"
        f'<table style="border-collapse:collapse">{"".join(rows)}</table>{lines}</div>'
    )
