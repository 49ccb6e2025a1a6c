"""Tables of numbers with missing entries, which know where each row came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from logel.errors import HistoryError
from logel.types import Array


def shown(name: object, most: int = 60) -> str:
    """A stranger's text, short and without control characters, fit for a message."""
    text = "".join(c if c.isprintable() else "?" for c in str(name)[: most + 1])
    return text if len(text) <= most else f"{text[:most]}..."


@dataclass(frozen=True, eq=False)
class Column:
    """Numbers and which of them are missing; both have shape (n_rows,)."""

    values: Array
    missing: Array

    @classmethod
    def of(cls, values: Array, missing: Array | None = None) -> Column:
        """Whole numbers as 64-bit integers, floats as they are; NaN counts as missing."""
        absent = np.zeros(len(values), dtype=bool) if missing is None else missing
        if values.dtype.kind == "f":
            kind = np.float32 if values.dtype == np.float32 else np.float64
            values = values.astype(kind, copy=False)
            absent = absent | np.isnan(values)
        elif values.dtype != bool:
            if values.dtype == np.uint64 and values.max(initial=0) > np.iinfo(np.int64).max:
                raise ValueError(f"must fit in 64-bit integers, but reaches {values.max()}")
            values = values.astype(np.int64, copy=False)
        return cls(values, absent)

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
    """Named columns of the same length.

    Attributes:
        columns: By name, in the order of the table.
        origins: Where the rows came from, in order.
    """

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

    def refuse(self, rows: Array, column: str, what: str) -> NoReturn:
        """Raise for the first of some rows (a mask); `{value}` in `what` is filled in."""
        row = int(np.argmax(rows))
        value = self.columns[column].values[row] if column in self.columns else None
        raise HistoryError(
            f"{self.place(row)}, column {shown(column)}: {what.replace('{value}', str(value))}"
        )

    def complete(self, name: str) -> Array:
        """A column without missing or infinite entries."""
        column = self.columns[name]
        if column.missing.any():
            self.refuse(column.missing, name, "is missing (empty or NaN), but every row needs it")
        self.check_finite(name)
        return column.values

    def check_finite(self, name: str) -> None:
        """Refuse infinities among the entries that are there."""
        column = self.columns[name]
        wild = np.isinf(column.values) & ~column.missing
        if wild.any():
            self.refuse(wild, name, "must be finite, but is {value}")

    def labels(self, name: str) -> Array:
        """A column of whole numbers, none missing."""
        column = self.columns[name]
        if column.values.dtype.kind != "i" and not column.missing.all():
            self.refuse(~column.missing, name, f"must be whole numbers, but holds {column.kind}")
        return self.complete(name)

    def stack(self, names: Sequence[str], shape: tuple[int, ...]) -> Array:
        """Columns side by side, shape (n_rows, *shape): integers if all are, else floats."""
        columns = [self.columns[name] for name in names]
        kinds = [np.dtype(np.int64) if c.values.dtype == bool else c.values.dtype for c in columns]
        kind = np.result_type(*kinds)
        for name, column in zip(names, columns, strict=True):
            if kind.kind == "f" and column.values.dtype.kind == "i":
                large = (column.values > 2**53) | (column.values < -(2**53))
                if large.any():
                    self.refuse(
                        large, name, "{value} does not fit in a float like the columns beside it"
                    )
        rows = np.stack([column.values.astype(kind) for column in columns], axis=1)
        rows[np.stack([column.missing for column in columns], axis=1)] = 0
        return rows.reshape(self.n_rows, *shape)


def join(tables: Sequence[Table], *, column: str | None = None) -> Table:
    """Tables one below the other; they must have the same columns.

    Args:
        tables: At least one.
        column: A column to add, holding the number of the table each row came from. A table that
            has it already must hold just that number.
    """
    if column is not None:
        tables = [_numbered(table, column, t) for t, table in enumerate(tables)]
    first = tables[0]
    for table in tables[1:]:
        lacking, extra = first.columns.keys() - table.columns, table.columns.keys() - first.columns
        if lacking or extra:
            raise HistoryError(
                f"{table.name} must have the columns of {first.name}, but "
                + " and ".join(
                    f"{verb} {', '.join(map(shown, sorted(names)[:5]))}"
                    for verb, names in (("lacks", lacking), ("adds", extra))
                    if names
                )
            )
    return Table(
        {name: _join_columns([table.columns[name] for table in tables]) for name in first.columns},
        tuple(origin for table in tables for origin in table.origins),
    )


def _join_columns(columns: Sequence[Column]) -> Column:
    if len(columns) == 1:
        return columns[0]
    values = [column.values for column in columns]
    if len({v.dtype.kind for v in values}) > 1:
        # A file whose only entry is empty says nothing about the type of the column.
        values = [
            v[:0] if column.missing.all() else v for v, column in zip(values, columns, strict=True)
        ]
        kind = np.result_type(*[v.dtype for v in values if len(v)] or [np.dtype(np.float64)])
        values = [column.values.astype(kind) for column in columns]
    return Column(np.concatenate(values), np.concatenate([column.missing for column in columns]))


def _numbered(table: Table, column: str, number: int) -> Table:
    if column in table.columns:
        found = table.labels(column)
        if (found != number).any():
            table.refuse(
                found != number,
                column,
                f"{{value}}, but this is file {number} of the {column}s, counted from 0; put all "
                "in one file, or one in each",
            )
        return table
    numbers = Column.of(np.full(table.n_rows, number))
    return Table({column: numbers, **table.columns}, table.origins)
