"""How much of a stranger's file is believed before it is read, and how its faults are told."""

from __future__ import annotations

import codecs
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

from logel.errors import (
    FormatError,
    LogelError,
    MissingExtraError,
    OptionError,
    TooLargeError,
    one_line,
)

FilePath = str | PathLike[str]
MEMORY = "LOGEL_MEMORY"
"""Environment variable that sets the budget of `ask_memory`."""

_BUDGET_BYTES = 2**30
_MOST_NESTED = 100
# Files may claim numbers of hundreds of digits.
_MOST_SAID = 2**70
_CELL_BYTES = 8
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
# What parsers raise about nonsense; some of them know more (see `parsing`).
MALFORMED = (
    *(KeyError, TypeError, ValueError, AttributeError, IndexError),
    *(OverflowError, RecursionError, MemoryError),
)
# Bytes that Python needs at most for what follows each of these characters in JSON: a table with
# one key, a list, the next entry of either, a key's place, half a text.
_JSON_BYTES = {b"{": 240, b"[": 96, b",": 40, b":": 60, b'"': 40}
# The bytes, the text they are and what becomes of it are held together; one rare character makes
# the latter two four bytes wide.
_JSON_PLAIN, _JSON_WIDE = 3, 9


def memory_budget() -> int:
    """Bytes that one thing read from a file may take: 1 GiB, or what LOGEL_MEMORY says ("8G")."""
    said = os.environ.get(MEMORY, "").strip()
    if not said:
        return _BUDGET_BYTES
    found = re.fullmatch(r"(\d{1,15})\s*([kmgt]?)(i?b)?", said.lower())
    if found is None or int(found[1]) < 1:
        raise OptionError(f"{MEMORY} is an amount of memory such as 8G, but says {said!r:.40}")
    return int(found[1]) * _UNITS[found[2]]


def ask_memory(n_bytes: int, what: object) -> None:
    """Refuse what would take more memory than the budget, before any of it is taken.

    What is asked for is an estimate, of the right order; a process may hold several such things.
    """
    if n_bytes > (budget := memory_budget()):
        asked = min(n_bytes, _MOST_SAID)
        raise TooLargeError(
            f"{what} would take {asked >> 20:,} MiB of memory, more than the budget of "
            f"{budget >> 20:,}: if that is meant, set {MEMORY}, for example to "
            f"{-(-asked // 2**30)}G"
        )


def read_plain(path: Path, *, follow_links: bool = True, what: str = "file") -> bytes:
    """All bytes of a plain file within the budget; opening one never waits."""
    links = 0 if follow_links else getattr(os, "O_NOFOLLOW", 0)
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | links)
    except OSError:
        raise FormatError(f"there is no {what} at {path}, or it cannot be read") from None
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode):
        os.close(descriptor)
        raise FormatError(f"{path} is missing or not a plain file")
    with os.fdopen(descriptor, "rb") as file:
        ask_memory(about.st_size, path)
        return file.read(about.st_size)


def ask_memory_of_json(data: bytes, where: object) -> None:
    """Ask for what JSON may become: a few bytes of it can take thirty times more."""
    found = sum(n * data.count(mark) for mark, n in _JSON_BYTES.items())
    text = _JSON_PLAIN if data.isascii() and b"\\u" not in data else _JSON_WIDE
    ask_memory(text * len(data) + found, where)


def parse_json(data: bytes, where: object) -> Any:
    """What JSON says, if that fits in the budget."""
    ask_memory_of_json(data, where)
    with parsing(where):
        # Left to itself it would try other encodings, and load what reads them.
        found = json.loads(data.removeprefix(codecs.BOM_UTF8).decode())
        if data.count(b"[") + data.count(b"{") > _MOST_NESTED:
            _check_nesting(found)
        return found


def _check_nesting(found: Any) -> None:
    """Refuse what goes so deep that no function that calls itself could follow."""
    level: list[Any] = [found] if isinstance(found, dict | list) else []
    for _ in range(_MOST_NESTED):
        inside = (v.values() if isinstance(v, dict) else v for v in level)
        level = [one for values in inside for one in values if isinstance(one, dict | list)]
        if not level:
            return
    raise ValueError(f"it is nested more than {_MOST_NESTED} deep")


def read_json(path: Path, *, follow_links: bool = True, what: str = "file") -> Any:
    """What a file of JSON says."""
    return parse_json(read_plain(path, follow_links=follow_links, what=what), path)


@dataclass(frozen=True)
class Limits:
    """Sizes above which a file is refused before its data are read; raise them for large data.

    What a file says about its own size costs nothing to claim: a few hundred bytes of Parquet or
    HDF5 can declare more rows than fit in any memory.

    Attributes:
        file_bytes: Size of one file.
        line_bytes: Length of one line of a CSV file.
        columns: Number of columns of a table.
        cells: Numbers in all files of an import together (8 bytes each in memory).
        episodes: Episodes of one Minari dataset.
        metadata_bytes: Size of a dataset's JSON metadata.
    """

    file_bytes: int = 4 * 2**30
    line_bytes: int = 2**20
    columns: int = 20_000
    cells: int = 2**28
    episodes: int = 10**6
    metadata_bytes: int = 64 * 2**20

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 1:
                raise OptionError(f"the limit on {field.name} must be positive, but is {value}")

    def check(self, name: str, value: int, where: object) -> None:
        """Raise FormatError if a file (`where`) declares more than the limit called `name`."""
        limit = getattr(self, name)
        if value > limit:
            what = name.replace("_", " ")
            raise FormatError(
                f"{where} declares {value} {what}, more than the limit of {limit}: if that is "
                f"meant, pass limits=Limits({name}=...)"
            )


class CellCount:
    """Numbers read so far by one import, over all of its files."""

    def __init__(self, limits: Limits | None) -> None:
        self.limits = limits or Limits()
        # Whoever gives limits of their own has thought of memory.
        self._within_budget = limits is None
        self._used = 0

    def add(self, cells: int, where: object) -> None:
        """Count what a file declares before it is read; refuse what is too much in all."""
        together = f"{where}, with all that was read before it," if self._used else where
        self._used += cells
        self.limits.check("cells", self._used, together)
        if self._within_budget:
            ask_memory(_CELL_BYTES * self._used, together)


def check_plain_file(path: Path, limits: Limits, *, follow_links: bool = True) -> None:
    """Refuse devices, pipes, folders, oversized files and (unless followed) symbolic links."""
    if (path.is_symlink() and not follow_links) or not path.is_file():
        raise FormatError(f"{path} is missing or not a plain file")
    limits.check("file_bytes", path.stat().st_size, path)


@contextmanager
def parsing(path: object, *more: type[Exception], told: str = "truncated") -> Iterator[None]:
    """Turn what a parser says (`more`: its own exceptions) into one sentence naming the file."""
    malformed: tuple[type[Exception], ...] = (*MALFORMED, *more)
    try:
        yield
    except LogelError:
        raise
    except malformed as error:
        raise FormatError(f"{path} is corrupted or {told}: {one_line(error)}") from None


def shown(name: object, most: int = 60) -> str:
    """A stranger's text, short and without control characters, fit for a message."""
    text = "".join(c if c.isprintable() else "?" for c in str(name)[: most + 1])
    return text if len(text) <= most else f"{text[:most]}..."


def listed(names: Iterable[object], *, most: int = 4) -> str:
    """Names as a phrase: `a, b and c`, or `a, b and 7 more`."""
    every = list(names)
    cut = most - 1 if len(every) > most else len(every)
    told = [shown(name) for name in every[:cut]]
    if len(every) > most:
        told.append(f"{len(every) - cut} more")
    if len(told) < 2:
        return "".join(told)
    return f"{', '.join(told[:-1])} and {told[-1]}"


def optional(module: str, extra: str) -> Any:
    """A module of a package that only an extra installs."""
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtraError(module.partition(".")[0], extra) from None
