"""Tables of numbers with missing entries, which know where each row came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from logel.data.limits import shown
from logel.data.observations import storable
from logel.errors import HistoryError
from logel.types import Array


@dataclass(frozen=True, eq=False)
class Column:
    """Numbers and which of them are missing; both have shape (n_rows,)."""

    values: Array
    missing: Array

    @classmethod
    def of(cls, values: Array, missing: Array | None = None) -> Column:
        """Whole numbers as 64-bit integers, floats as they are; NaN counts as missing."""
        absent = np.zeros(len(values), dtype=bool) if missing is None else missing
        if values.dtype == bool:
            return cls(values, absent)
        return cls(storable(values), absent | np.isnan(values))

    @property
    def kind(self) -> str:
        """What the values are, in words."""
        names = {"b": "true or false", "i": "whole numbers", "f": "floats"}
        return names[self.values.dtype.kind]


@dataclass(frozen=True)
class Origin:
    """Where a run of rows came from: "row 0 of the frame", "line 2 of steps.csv"."""

    name: str
    n_rows: int
    word: str = "row"
    first: int = 0


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns of the same length, and where the rows came from."""

    columns: Mapping[str, Column]
    origins: tuple[Origin, ...]

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return sum(origin.n_rows for origin in self.origins)

    @property
    def name(self) -> str:
        """The files, for messages about no row in particular."""
        names = [origin.name for origin in self.origins]
        return names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]}"

    def place(self, row: int) -> str:
        """A row in words the user can look up."""
        for origin in self.origins:
            if row < origin.n_rows:
                return f"{origin.name}, {origin.word} {origin.first + row}"
            row -= origin.n_rows
        raise IndexError(row)

    def refuse(self, rows: Array, column: str, what: str) -> None:
        """Raise for the first of some rows (a mask), if any; `{value}` in `what` is filled in."""
        if rows.any():
            row = int(np.argmax(rows))
            told = what.replace("{value}", str(self.columns[column].values[row]))
            raise HistoryError(f"{self.place(row)}, column {shown(column)}: {told}")

    def complete(self, name: str) -> Array:
        """A column without missing or infinite entries."""
        missing = self.columns[name].missing
        self.refuse(missing, name, "is missing (empty or NaN), but every row needs it")
        return self.finite(name).values

    def finite(self, name: str) -> Column:
        """A column without infinities among the entries that are there."""
        column = self.columns[name]
        wild = np.isinf(column.values) & ~column.missing
        self.refuse(wild, name, "must be finite, but is {value}")
        return column

    def labels(self, name: str) -> Array:
        """A column of whole numbers, none missing."""
        column = self.columns[name]
        if column.values.dtype.kind != "i":
            self.refuse(~column.missing, name, f"must be whole numbers, but holds {column.kind}")
        # An empty column has no type of its own.
        return self.complete(name).astype(np.int64, copy=False)

    def stack(self, names: Sequence[str], shape: tuple[int, ...]) -> Array:
        """Columns side by side, shape (n_rows, *shape): integers if all are, else floats."""
        columns = [self.columns[name] for name in names]
        kind = np.result_type(*[np.int64 if c.values.dtype == bool else c.values for c in columns])
        rows = np.empty((self.n_rows, len(columns)), kind)
        for k, (name, column) in enumerate(zip(names, columns, strict=True)):
            values = column.values
            if kind.kind == "f" and values.dtype.kind == "i":
                # Beyond 2**53 a double skips whole numbers.
                large = (values > 2**53) | (values < -(2**53))
                told = "{value} does not fit in a float like the columns beside it"
                self.refuse(large, name, told)
            rows[:, k] = np.where(column.missing, 0, values)
        return rows.reshape(self.n_rows, *shape)


def join_stages(tables: Sequence[Table]) -> Table:
    """Tables one below the other, one per stage; they must have the same columns."""
    tables = [_numbered(table, t) for t, table in enumerate(tables)]
    first = tables[0]
    for table in tables[1:]:
        _check_columns(table, first)
    return Table(
        {name: _join_columns([table.columns[name] for table in tables]) for name in first.columns},
        tuple(origin for table in tables for origin in table.origins),
    )


def _check_columns(table: Table, first: Table) -> None:
    here, there = table.columns.keys(), first.columns.keys()
    differences = [
        f"{verb} {', '.join(map(shown, sorted(names)[:5]))}"
        for verb, names in (("lacks", there - here), ("adds", here - there))
        if names
    ]
    if differences:
        raise HistoryError(
            f"{table.name} must have the columns of {first.name}, but {' and '.join(differences)}"
        )


def _join_columns(columns: Sequence[Column]) -> Column:
    # A file whose only entries are empty says nothing about the type of the column.
    telling = [column.values for column in columns if not column.missing.all()]
    kind = np.result_type(*telling or [columns[0].values])
    return Column(
        np.concatenate([column.values.astype(kind, copy=False) for column in columns]),
        np.concatenate([column.missing for column in columns]),
    )


def _numbered(table: Table, number: int) -> Table:
    """With the number of its stage, which may be there already."""
    if "stage" in table.columns:
        told = f"this is file {number} of the stages, counted from 0"
        wrong = table.labels("stage") != number
        table.refuse(wrong, "stage", f"{{value}}, but {told}; put all in one file, or one in each")
        return table
    numbers = Column.of(np.full(table.n_rows, number))
    return Table({"stage": numbers, **table.columns}, table.origins)
