"""Histories as pandas data frames, and frames as tables of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from logel.data.columns import Column, Origin, Table
from logel.data.contents import Contents
from logel.data.limits import optional
from logel.data.observations import check_plain, parts_of
from logel.data.stage import Stage
from logel.data.tables import FEATURE, LEGAL, numbers
from logel.errors import HistoryError
from logel.types import Array

if TYPE_CHECKING:
    import pandas as pd


def frame_of_steps(history: Contents) -> pd.DataFrame:
    """The steps of a history, final observations included."""
    parts = [_frame_of_stage(stage, t, history.feature_names) for t, stage in enumerate(history)]
    made: pd.DataFrame = optional("pandas", "tables").concat(parts, ignore_index=True)
    return made


def frame_of_stages(history: Contents) -> pd.DataFrame | None:
    """Parameters and learning rates, one row per stage; None when neither is known."""
    parameters, rates = history.parameters(), history.learning_rates
    if parameters is None and rates is None:
        return None
    columns = {"stage": np.arange(len(history))}
    if rates is not None:
        columns["learning_rate"] = np.append(np.nan, rates)
    for k, values in enumerate(() if parameters is None else parameters.T):
        columns[f"parameter_{k}"] = values
    made: pd.DataFrame = optional("pandas", "tables").DataFrame(columns)
    return made


def _frame_of_stage(stage: Stage, index: int, names: Sequence[str] | None) -> pd.DataFrame:
    check_plain(parts_of(stage.observations), "tables of steps")
    pandas = optional("pandas", "tables")
    episodes = np.arange(stage.n_episodes)
    is_step = _with_last(stage, np.ones(stage.n_steps, dtype=bool), False)
    terminated = np.zeros(stage.n_steps, dtype=bool)
    terminated[stage.starts + stage.lengths - 1] = stage.terminated
    observations = _with_last(stage, stage.observations, stage.last_observations)
    steps = _named("action", stage.actions)
    if stage.features is not None:
        labels = numbers(stage.features.shape[1]) if names is None else names
        steps |= dict(zip([FEATURE + label for label in labels], stage.features.T, strict=True))
    if stage.action_masks is not None:
        steps |= {f"{LEGAL}{k}": column for k, column in enumerate(stage.action_masks.T)}
    frame = {
        "stage": np.full(len(is_step), index),
        "episode": _with_last(stage, np.repeat(episodes, stage.lengths), episodes),
        "time": _with_last(stage, stage.times, stage.lengths),
        **_named("observation", observations),
    }
    for name, values in {**steps, "terminated": terminated}.items():
        frame[name] = _with_last(stage, values, 0)
        if len(is_step) > stage.n_steps:
            # Only pandas' own types have room for missing whole numbers and flags.
            kind = {"i": "Int64", "b": "boolean"}.get(values.dtype.kind, values.dtype)
            frame[name] = pandas.Series(frame[name], dtype=kind).where(is_step)
    made: pd.DataFrame = pandas.DataFrame(frame)
    return made


def _with_last(stage: Stage, values: Array, last: Any) -> Array:
    """Values of the steps and, if last states were seen, one more row at the end of an episode."""
    if stage.last_observations is None:
        return values
    return np.insert(values, stage.starts + stage.lengths, last, axis=0)


def _named(kind: str, values: Array) -> dict[str, Any]:
    """One column per entry of an observation or action, with its index in its name."""
    return {
        "_".join([kind, *map(str, index)]): values[(slice(None), *index)]
        for index in np.ndindex(values.shape[1:])
    }


def table_of_frame(frame: pd.DataFrame, name: str, ignore: Sequence[str] = ()) -> Table:
    """A pandas frame as numbers and missing entries; refuses objects and texts."""
    if not isinstance(frame, optional("pandas", "tables").DataFrame):
        raise HistoryError(f"{name} must be a pandas DataFrame, not {type(frame).__name__}")
    columns: dict[str, Column] = {}
    for k, label in enumerate(frame.columns):
        if label in ignore:
            continue
        if not isinstance(label, str) or label in columns:
            told = "is there twice" if label in columns else "is not a text"
            raise HistoryError(f"{name}: the column name {label!r:.80} {told}")
        columns[label] = _column(frame.iloc[:, k], f"{name}, column {label}")
    return Table(columns, (Origin(name, len(frame)),))


def _column(series: pd.Series[Any], where: str) -> Column:
    plain = getattr(series.dtype, "numpy_dtype", series.dtype)
    if not isinstance(plain, np.dtype) or plain.kind not in "buif":
        raise HistoryError(
            f"{where}: must be numbers, but has type {series.dtype}; convert it, for example "
            'with .astype("Int64") for whole numbers with missing entries'
        )
    missing = series.isna().to_numpy(dtype=bool)
    try:
        values = series.fillna(False if plain.kind == "b" else 0) if missing.any() else series
        return Column.of(values.to_numpy(dtype=plain), missing)
    except (TypeError, ValueError) as error:
        raise HistoryError(f"{where}: {error}") from None
