"""Tables of steps as pandas data frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from logel.data.columns import Column, Origin, Table
from logel.data.history import LearningHistory
from logel.data.table_writing import table_of_history, table_of_stages
from logel.data.tables import history_from_table
from logel.errors import HistoryError, MissingExtraError

if TYPE_CHECKING:
    import pandas as pd


def history_from_frame(
    frame: pd.DataFrame,
    *,
    stages: pd.DataFrame | None = None,
    ignore: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
) -> LearningHistory:
    """See `LearningHistory.from_dataframe`."""
    return history_from_table(
        table_of_frame(frame, ignore=ignore),
        stages=None if stages is None else table_of_frame(stages, name="the table of stages"),
        metadata=metadata,
    )


def frame_of_history(history: LearningHistory) -> pd.DataFrame:
    """See `LearningHistory.to_dataframe`."""
    return frame_of_table(table_of_history(history))


def frame_of_stages(history: LearningHistory) -> pd.DataFrame | None:
    """See `LearningHistory.stages_to_dataframe`."""
    table = table_of_stages(history)
    return None if table is None else frame_of_table(table)


def frame_of_table(table: Table) -> pd.DataFrame:
    """Plain types; pandas' nullable ones only for whole numbers and flags that are missing."""
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtraError("pandas", "tables") from None
    frame: dict[str, Any] = {}
    for name, column in table.columns.items():
        values, missing = column.values, column.missing
        if not missing.any():
            frame[name] = values
        elif values.dtype.kind == "f":
            frame[name] = np.where(missing, values.dtype.type(np.nan), values)
        elif values.dtype == bool:
            frame[name] = pd.arrays.BooleanArray(values, missing)
        else:
            frame[name] = pd.arrays.IntegerArray(values, missing)
    return pd.DataFrame(frame)


def table_of_frame(
    frame: pd.DataFrame, *, name: str = "the frame", ignore: Sequence[str] = ()
) -> Table:
    """A pandas frame as numbers and missing entries; refuses objects and texts."""
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtraError("pandas", "tables") from None
    if not isinstance(frame, pd.DataFrame):
        raise HistoryError(f"{name} must be a pandas DataFrame, not {type(frame).__name__}")
    columns: dict[str, Column] = {}
    for k, label in enumerate(frame.columns):
        if label in ignore:
            continue
        if not isinstance(label, str) or label in columns:
            told = "is there twice" if label in columns else "is not a text"
            raise HistoryError(f"{name}: the column name {label!r:.80} {told}")
        series = frame.iloc[:, k]
        plain = getattr(series.dtype, "numpy_dtype", series.dtype)
        if not isinstance(plain, np.dtype) or plain.kind not in "buif":
            raise HistoryError(
                f"{name}, column {label}: must be numbers, but has type {series.dtype}; convert "
                'it, for example with .astype("Int64") for whole numbers with missing entries'
            )
        missing = series.isna().to_numpy(dtype=bool)
        try:
            values = series.fillna(False if plain.kind == "b" else 0) if missing.any() else series
            columns[label] = Column.of(values.to_numpy(dtype=plain), missing)
        except (TypeError, ValueError) as error:
            raise HistoryError(f"{name}, column {label}: {error}") from None
    return Table(columns, (Origin(name, len(frame)),))
