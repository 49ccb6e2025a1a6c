"""How much of a stranger's file is believed before it is read, and how its faults are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

from logel.errors import FormatError, LogelError, MissingExtraError, OptionError

FilePath = str | PathLike[str]

# What parsers raise about nonsense; some of them know more (see `parsing`).
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)


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
        self._used = 0

    def add(self, cells: int, where: object) -> None:
        """Count what a file declares before it is read; refuse what is too much in all."""
        together = f"{where}, with all that was read before it," if self._used else where
        self._used += cells
        self.limits.check("cells", self._used, together)


def check_plain_file(path: Path, limits: Limits, *, follow_links: bool = True) -> None:
    """Refuse devices, pipes, folders, oversized files and (unless followed) symbolic links."""
    if (path.is_symlink() and not follow_links) or not path.is_file():
        raise FormatError(f"{path} is missing or not a plain file")
    limits.check("file_bytes", path.stat().st_size, path)


@contextmanager
def parsing(path: Path, *more: type[Exception], told: str = "truncated") -> Iterator[None]:
    """Turn what a parser says (`more`: its own exceptions) into one sentence naming the file."""
    malformed: tuple[type[Exception], ...] = (*_MALFORMED, *more)
    try:
        yield
    except LogelError:
        raise
    except malformed as error:
        # Parsers quote what they choke on: one line of it is enough.
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise FormatError(f"{path} is corrupted or {told}: {reason}") from None


def shown(name: object, most: int = 60) -> str:
    """A stranger's text, short and without control characters, fit for a message."""
    text = "".join(c if c.isprintable() else "?" for c in str(name)[: most + 1])
    return text if len(text) <= most else f"{text[:most]}..."


def optional(module: str, extra: str) -> Any:
    """A module of a package that only an extra installs."""
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtraError(module.partition(".")[0], extra) from None
