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
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from logel.data.columns import Column, Origin, Table, join_stages
from logel.data.limits import (
    CellCount,
    FilePath,
    Limits,
    check_plain_file,
    optional,
    parsing,
    read_plain,
    shown,
)
from logel.data.store import write_atomically
from logel.errors import FormatError, HistoryError, OptionError
from logel.types import Progress

if TYPE_CHECKING:
    import pandas as pd

# The first bytes of gzip, bzip2, xz, zip and zstandard.
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"PK\x03\x04", b"\x28\xb5\x2f\xfd")
_MISSING = ["", "NA", "NaN", "nan", "null", "None"]
_TRUE, _FALSE = ["True", "true", "TRUE"], ["False", "false", "FALSE"]
# No name and no list in a Parquet file's own description of itself needs more bytes or entries.
_THRIFT_LIMIT = 2**24


def read_tables(
    file_format: str,
    paths: Sequence[FilePath] | FilePath,
    stages: FilePath | None,
    ignore: Sequence[str],
    limits: Limits | None,
    progress: Progress | None,
) -> tuple[Table, Table | None]:
    """The steps, and the second table if there is one; see `LearningHistory.from_csv`."""
    read = _READERS[file_format]
    cells = CellCount(limits)
    sources = [paths] if isinstance(paths, str | PathLike) else list(paths)
    if not sources:
        raise OptionError("name at least one file to import")
    tables = []
    for source in sources:
        tables.append(read(Path(source), ignore, cells))
        if progress is not None:
            progress("reading", len(tables), len(sources))
    # A single file without stages would be a history of one stage: more likely a forgotten column.
    steps = tables[0] if len(tables) == 1 else join_stages(tables)
    return steps, None if stages is None else read(Path(stages), (), cells)


def check_new_file(path: Path) -> None:
    """Refuse a path where something would be overwritten."""
    if path.exists():
        raise FormatError(f"{path} already exists: choose another path or remove it first")


def write_frame(frame: pd.DataFrame, path: FilePath, file_format: str) -> Path:
    """Write a table to a new file, all of it or nothing."""
    target = Path(path)
    check_new_file(target)
    if not target.parent.is_dir():
        raise FormatError(f"cannot write {target}: there is no folder {target.parent}")
    _arrow()
    if file_format == "parquet":
        write_atomically(target, frame.to_parquet(engine="pyarrow", index=False))
        return target
    for name in frame:
        if set(str(name)) & {"\n", "\r"}:
            raise HistoryError(f"the name {name!r} has a line break, which CSV cannot hold")
    # Short decimals of a 32-bit float name another 64-bit one: widen before writing.
    wide = {name: np.float64 for name, kind in frame.dtypes.items() if kind == np.float32}
    write_atomically(target, frame.astype(wide).to_csv(index=False).encode())
    return target


# --- CSV ------------------------------------------------------------------------------------


def _read_csv(path: Path, ignore: Sequence[str], cells: CellCount) -> Table:
    check_plain_file(path, cells.limits)
    data = read_plain(path)
    if data.startswith(_COMPRESSED):
        raise FormatError(f"{path} is compressed: unpack it first")
    data = data.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n")
    if not data.isascii():
        with parsing(path, told="not UTF-8"):
            data.decode()
    n_lines = _check_lines(path, data, cells.limits)
    header, _, body = data.partition(b"\n")
    names = _header(path, header, cells.limits)
    kept = [name for name in names if name not in ignore]
    cells.add((n_lines - 1) * len(names), path)
    if not body:
        return Table({name: Column.of(np.zeros(0)) for name in kept}, (Origin(str(path), 0),))
    found = _parse_csv(path, body, names, kept, cells.limits)
    return _table(found, kept, Origin(str(path), found.num_rows, word="line", first=2))


def _parse_csv(
    path: Path, body: bytes, names: Sequence[str], kept: Sequence[str], limits: Limits
) -> Any:
    arrow_csv = _arrow("csv")
    bad_rows: list[Any] = []

    def note(row: Any) -> str:
        bad_rows.append(row)
        return "skip"

    with _parsing(path):
        found = arrow_csv.read_csv(
            _arrow().BufferReader(body),
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
    return found


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
    _check_distinct(names, f"{path}, line 1")
    if len(names) == 1 and (split := [mark for mark in ";\t|" if mark in names[0]]):
        raise FormatError(f"{path}, line 1: is split by {split[0]!r}; save it with commas")
    return names


# --- Parquet --------------------------------------------------------------------------------


def _read_parquet(path: Path, ignore: Sequence[str], cells: CellCount) -> Table:
    check_plain_file(path, cells.limits)
    with _parsing(path), _arrow().OSFile(os.fspath(path)) as source:
        file = _arrow("parquet").ParquetFile(
            source,
            thrift_string_size_limit=_THRIFT_LIMIT,
            thrift_container_size_limit=_THRIFT_LIMIT,
        )
        n_rows = _check_declared(path, file.metadata, cells)
        schema = file.schema_arrow
        _check_distinct(schema.names, path)
        names = [name for name in schema.names if name not in ignore]
        for name in names:
            if not _is_number(kind := schema.field(name).type):
                raise HistoryError(
                    f"{path}, column {shown(name)}: must be numbers, but has type "
                    f"{shown(kind)}; leave it out with ignore={[shown(name)]} if it is no data"
                )
        found = file.read(columns=names, use_threads=False)
    if found.num_rows != n_rows:
        raise FormatError(f"{path} declares {n_rows} rows, but holds {found.num_rows}")
    return _table(found, names, Origin(str(path), n_rows))


def _check_declared(path: Path, declared: Any, cells: CellCount) -> int:
    """Number of rows a file claims to hold, if that and all other sizes are within the limits."""
    cells.limits.check("columns", declared.num_columns, path)
    groups = [declared.row_group(k) for k in range(declared.num_row_groups)]
    n_rows = max(0, declared.num_rows)
    cells.add(max([n_rows, *(g.num_rows for g in groups)]) * declared.num_columns, path)
    unpacked = sum(max(0, group.total_byte_size) for group in groups)
    cells.limits.check("file_bytes", unpacked, f"{path}, unpacked,")
    return n_rows


# --- both -----------------------------------------------------------------------------------


def _check_distinct(names: Iterable[str], where: object) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise FormatError(f"{where}: the column {shown(twice[0])!r} is there twice")


def _table(found: Any, names: Sequence[str], origin: Origin) -> Table:
    return Table({name: _column(found.column(name), name, origin) for name in names}, (origin,))


def _column(chunked: Any, name: str, origin: Origin) -> Column:
    """An Arrow column as numbers; a text that is no number is named with its row."""
    types, kind = _arrow().types, chunked.type
    missing = np.asarray(chunked.is_null().to_numpy(), dtype=bool)
    if types.is_null(kind):
        return Column.of(np.zeros(len(chunked)), missing)
    if not _is_number(kind):
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


def _is_number(kind: Any) -> bool:
    types = _arrow().types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


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
    return optional("pyarrow" if part is None else f"pyarrow.{part}", "tables")


def _parsing(path: Path) -> AbstractContextManager[None]:
    errors = (_arrow().ArrowException, OSError, MemoryError)
    return parsing(path, *errors, told="not what its name says")


_READERS = {"csv": _read_csv, "parquet": _read_parquet}
