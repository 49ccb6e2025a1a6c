"""Tables as pandas data frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from logel.data.columns import Column, Origin, Table
from logel.data.limits import optional
from logel.errors import HistoryError

if TYPE_CHECKING:
    import pandas as pd


def frame_of_table(table: Table) -> pd.DataFrame:
    """Plain types; pandas' nullable ones only for whole numbers and flags that are missing."""
    pandas = optional("pandas", "tables")
    frame: dict[str, Any] = {}
    for name, column in table.columns.items():
        values, missing = column.values, column.missing
        if not missing.any():
            frame[name] = values
        elif values.dtype.kind == "f":
            frame[name] = np.where(missing, values.dtype.type(np.nan), values)
        elif values.dtype == bool:
            frame[name] = pandas.arrays.BooleanArray(values, missing)
        else:
            frame[name] = pandas.arrays.IntegerArray(values, missing)
    made: pd.DataFrame = pandas.DataFrame(frame)
    return made


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
