"""Tables of steps in CSV and Parquet files.

Files come from strangers. They are read as plain numbers: no compression, no texts, no nested or
extension types, and no more than `Limits` allows. Types come from the file (Parquet) or from how
the numbers are written (CSV: `1` is whole, `1.0` is not).
"""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from logel.data.columns import Column, Origin, Table, join, shown
from logel.data.folder import write_atomically
from logel.data.history import LearningHistory
from logel.data.limits import CellCount, Limits, check_plain_file
from logel.data.table_writing import table_of_history, table_of_stages
from logel.data.tables import history_from_table
from logel.errors import FormatError, HistoryError, MissingExtraError, OptionError
from logel.types import Progress

_FORMATS = ("csv", "parquet")
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"PK\x03\x04", b"\x28\xb5\x2f\xfd")
_MISSING = ["", "NA", "NaN", "nan", "null", "None"]
_TRUE, _FALSE = ["True", "true", "TRUE"], ["False", "false", "FALSE"]


def history_from_files(
    paths: Sequence[str | PathLike[str]] | str | PathLike[str],
    *,
    file_format: str,
    stages: str | PathLike[str] | None = None,
    ignore: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> LearningHistory:
    """See `LearningHistory.from_csv` and `from_parquet`."""
    if file_format not in _FORMATS:
        raise OptionError(f"the format of a table must be csv or parquet, not {file_format!r}")
    read = _read_csv if file_format == "csv" else _read_parquet
    limits = limits or Limits()
    sources = [paths] if isinstance(paths, str | PathLike) else list(paths)
    if not sources:
        raise OptionError("name at least one file to import")
    tables, cells = [], CellCount(limits)
    for source in sources:
        path = Path(source)
        check_plain_file(path, limits)
        tables.append(read(path, ignore, limits, cells))
        if progress is not None:
            progress("reading", len(tables), len(sources))
    # A single file without stages would be a history of one stage: more likely a forgotten column.
    steps = tables[0] if len(tables) == 1 else join(tables, column="stage")
    second = None
    if stages is not None:
        check_plain_file(Path(stages), limits)
        second = read(Path(stages), (), limits, cells)
    return history_from_table(steps, stages=second, metadata=metadata)


def save_table(history: LearningHistory, path: str | PathLike[str], *, file_format: str) -> Path:
    """See `LearningHistory.to_csv` and `to_parquet`."""
    _write(table_of_history(history), Path(path), file_format)
    return Path(path)


def save_stages(
    history: LearningHistory, path: str | PathLike[str], *, file_format: str
) -> Path | None:
    """Write what each stage has one of (parameters, learning rates), if any of it is known."""
    table = table_of_stages(history)
    if table is None:
        return None
    _write(table, Path(path), file_format)
    return Path(path)


def _write(table: Table, path: Path, file_format: str) -> None:
    if path.exists():
        raise FormatError(f"{path} already exists: choose another path or remove it first")
    if not path.parent.is_dir():
        raise FormatError(f"cannot write {path}: there is no folder {path.parent}")
    if file_format == "csv":
        data = _csv_bytes(table)
    elif file_format == "parquet":
        data = _parquet_bytes(table)
    else:
        raise OptionError(f"the format of a table must be csv or parquet, not {file_format!r}")
    write_atomically(path, data)


# --- CSV ------------------------------------------------------------------------------------


def _csv_bytes(table: Table) -> bytes:
    pa, arrow_csv = _arrow(), _arrow("csv")
    for name in table.columns:
        if set(name) & {"\n", "\r"}:
            raise HistoryError(f"the name {name!r} has a line break, which CSV cannot hold")
    columns = {name: _written(column) for name, column in table.columns.items()}
    buffer = io.BytesIO()
    arrow_csv.write_csv(pa.table(columns), buffer, arrow_csv.WriteOptions(quoting_style="needed"))
    return buffer.getvalue()


def _written(column: Column) -> Any:
    """A column in which floats look like floats, and 32-bit ones are written out in full."""
    pa = _arrow()
    values = column.values
    if values.dtype == np.float32:
        # Short decimals of a 32-bit float name another 64-bit one: widen before writing.
        values = values.astype(np.float64)
    array = _arrow_array(Column(values, column.missing))
    here = values[~column.missing]
    if values.dtype.kind != "f" or not (here == np.rint(here)).all():
        return array
    # Arrow writes 1.0 as 1, so a column of nothing else would come back as whole numbers.
    compute, text = _arrow("compute"), array.cast(pa.string())
    whole = compute.invert(compute.match_substring(text, "e"))
    return compute.if_else(whole, compute.binary_join_element_wise(text, ".0", ""), text)


def _read_csv(path: Path, ignore: Sequence[str], limits: Limits, cells: CellCount) -> Table:
    arrow_csv, pa = _arrow("csv"), _arrow()
    data = path.read_bytes()
    if data.startswith(_COMPRESSED):
        raise FormatError(f"{path} is compressed: unpack it first")
    data = data.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n")
    n_lines = _check_lines(path, data, limits)
    header, _, body = data.partition(b"\n")
    names = _header(path, header, limits)
    kept = [name for name in names if name not in ignore]
    cells.add((n_lines - 1) * len(names), path)
    bad_rows: list[Any] = []

    def note(row: Any) -> str:
        bad_rows.append(row)
        return "skip"

    if not body:
        return Table({name: Column.of(np.zeros(0)) for name in kept}, (_csv_origin(path, 0),))
    with _parsing(path):
        found = arrow_csv.read_csv(
            pa.BufferReader(body),
            read_options=arrow_csv.ReadOptions(
                column_names=names, use_threads=False, block_size=2 * limits.line_bytes
            ),
            parse_options=arrow_csv.ParseOptions(
                ignore_empty_lines=False, invalid_row_handler=note
            ),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=kept,
                null_values=_MISSING,
                true_values=_TRUE,
                false_values=_FALSE,
                strings_can_be_null=True,
            ),
        )
    if bad_rows:
        first = bad_rows[0]
        raise FormatError(
            f"{path}, line {first.number + 1}: has {first.actual_columns} fields, but the header "
            f"names {first.expected_columns}"
        )
    origin = _csv_origin(path, found.num_rows)
    return Table({name: _column(found.column(name), name, origin) for name in kept}, (origin,))


def _csv_origin(path: Path, n_rows: int) -> Origin:
    return Origin(str(path), n_rows, word="line", first=2)


def _check_lines(path: Path, data: bytes, limits: Limits) -> int:
    """Number of lines; none may be empty or absurdly long, so that rows are lines."""
    n_lines = 0
    for n_lines, line in enumerate(io.BytesIO(data), start=1):
        if len(line) > limits.line_bytes:
            limits.check("line_bytes", len(line), f"{path}, line {n_lines}:")
        if not line.strip():
            raise FormatError(f"{path}, line {n_lines}: is empty; remove it")
    if n_lines == 0:
        raise FormatError(f"{path} is empty: a first line with the names of the columns is needed")
    return n_lines


def _header(path: Path, line: bytes, limits: Limits) -> list[str]:
    try:
        names = next(csv.reader([line.decode().rstrip("\r")], strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise FormatError(f"{path}, line 1: not the names of columns: {error}") from None
    limits.check("columns", len(names), path)
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise FormatError(f"{path}, line 1: the column {shown(twice[0])!r} is there twice")
    if len(names) == 1 and (split := [mark for mark in ";\t|" if mark in names[0]]):
        raise FormatError(f"{path}, line 1: is split by {split[0]!r}; save it with commas")
    return names


# --- Parquet --------------------------------------------------------------------------------


def _parquet_bytes(table: Table) -> bytes:
    pa, parquet = _arrow(), _arrow("parquet")
    columns = {name: _arrow_array(column) for name, column in table.columns.items()}
    buffer = io.BytesIO()
    parquet.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def _read_parquet(path: Path, ignore: Sequence[str], limits: Limits, cells: CellCount) -> Table:
    pa, parquet = _arrow(), _arrow("parquet")
    with _parsing(path), pa.OSFile(os.fspath(path)) as source:
        file = parquet.ParquetFile(
            source, thrift_string_size_limit=2**24, thrift_container_size_limit=2**24
        )
        declared = file.metadata
        limits.check("columns", declared.num_columns, path)
        n_rows = max(0, declared.num_rows)
        groups = [declared.row_group(k) for k in range(declared.num_row_groups)]
        counts = [n_rows, *(group.num_rows for group in groups)]
        cells.add(max(counts) * declared.num_columns, path)
        unpacked = sum(max(0, group.total_byte_size) for group in groups)
        limits.check("file_bytes", unpacked, f"{path}, unpacked,")
        schema = file.schema_arrow
        names = [name for name in schema.names if name not in ignore]
        if len(set(schema.names)) != len(schema.names):
            twice = next(name for name, count in Counter(schema.names).items() if count > 1)
            raise FormatError(f"{path}: the column {shown(twice)!r} is there twice")
        for name in names:
            kind = schema.field(name).type
            types = pa.types
            if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
                raise HistoryError(
                    f"{path}, column {shown(name)}: must be numbers, but has type "
                    f"{shown(kind)}; leave it out with ignore={[shown(name)]} if it is no data"
                )
        found = file.read(columns=names, use_threads=False)
        if found.num_rows != n_rows:
            raise FormatError(f"{path} declares {n_rows} rows, but holds {found.num_rows}")
    origin = Origin(str(path), found.num_rows)
    return Table({name: _column(found.column(name), name, origin) for name in names}, (origin,))


# --- both -----------------------------------------------------------------------------------


def _column(chunked: Any, name: str, origin: Origin) -> Column:
    """An Arrow column as numbers; a text that is no number is named with its row."""
    pa = _arrow()
    types, kind = pa.types, chunked.type
    missing = np.asarray(chunked.is_null().to_numpy(), dtype=bool)
    if types.is_null(kind):
        return Column.of(np.zeros(len(chunked)), missing)
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        row, value = _first_text(chunked)
        raise HistoryError(
            f"{origin.name}, {origin.word} {origin.first + row}, column {shown(name)}: must be a "
            f"number, but is {value!r:.80}; leave out the column with ignore={[shown(name)]} if it "
            "is no data"
        )
    filled = chunked.fill_null(False if types.is_boolean(kind) else 0)
    try:
        return Column.of(filled.to_numpy(), missing)
    except ValueError as error:
        raise HistoryError(f"{origin.name}, column {shown(name)}: {error}") from None


def _arrow_array(column: Column) -> Any:
    missing = column.missing
    return _arrow().array(column.values, mask=missing if missing.any() else None)


def _first_text(chunked: Any) -> tuple[int, object]:
    """The first entry of a column that does not read as a number."""
    for row, entry in enumerate(chunked):
        value = entry.as_py()
        if value is None:
            continue
        try:
            float(value)
        except (TypeError, ValueError):
            return row, value
    return 0, chunked[0].as_py()


def _arrow(part: str | None = None) -> Any:
    from importlib import import_module

    try:
        return import_module("pyarrow" if part is None else f"pyarrow.{part}")
    except ImportError:
        raise MissingExtraError("pyarrow", "tables") from None


@contextmanager
def _parsing(path: Path) -> Iterator[None]:
    """Turn whatever a parser says about a malformed file into one sentence naming the file."""
    pa = _arrow()
    try:
        yield
    except (FormatError, HistoryError):
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError, OverflowError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise FormatError(f"{path} is corrupted or not what its name says: {reason}") from None
