"""Where a history's files lie: a folder of this machine; `logel.data.remote` adds addresses.

A place is asked for files by names of ours alone, never by one that a file made up.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from logel.data.limits import read_plain
from logel.data.store import append_line, check_new_folder, reserve, write_atomically
from logel.errors import FormatError


class Place(ABC):
    """Holds the files of one history; pickled, it says where they are and carries none of them."""

    @property
    def shared(self) -> bool:
        """Whether other processes find the same there."""
        return True

    @abstractmethod
    def where(self, name: str) -> str:
        """A file in words."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """All of a file within the memory budget; refused, with the reason, if there is none."""

    @abstractmethod
    def read_lines(self, name: str) -> bytes:
        """The same for a file that begins with its first line: nothing if there is none."""

    @abstractmethod
    def read_sized(self, name: str, n_bytes: int, told_by: str) -> bytes:
        """All of a file that must be plain, and as large as another file says."""

    @abstractmethod
    def check_new(self) -> None:
        """Refuse a place where something would be overwritten."""

    @abstractmethod
    def hold(self) -> Callable[[], None]:
        """Keep it for this process as far as others can be kept away; returns how to let go."""

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Write a new file, whole or not at all."""

    @abstractmethod
    def add_line(self, name: str, line: bytes) -> None:
        """Add a line to a file of lines, whole or not at all."""


@dataclass(frozen=True)
class Folder(Place):
    """A folder of this machine, or of a disk that several share."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def where(self, name: str) -> str:
        """Its path."""
        return str(self.path / name)

    def read(self, name: str) -> bytes:
        """All of a plain file."""
        for wrong, why in (
            (not self.path.exists(), "there is no such folder"),
            (not self.path.is_dir(), "it is a file, not a folder"),
            (not (self.path / name).is_file(), f"there is no {name} in it"),
        ):
            if wrong:
                raise FormatError(f"{self.path} is not a learning history: {why}")
        return read_plain(self.path / name)

    def read_lines(self, name: str) -> bytes:
        """All of a plain file, if there is one."""
        path = self.path / name
        return read_plain(path) if path.exists() else b""

    def read_sized(self, name: str, n_bytes: int, told_by: str) -> bytes:
        """All of a plain file; links are not followed."""
        path = self.path / name
        if path.is_symlink() or not path.is_file():
            raise FormatError(f"{path} is missing or not a plain file")
        check_size(path.stat().st_size, n_bytes, path, told_by)
        return read_plain(path, follow_links=False)

    def check_new(self) -> None:
        """An empty folder is as good as none."""
        check_new_folder(self.path)

    def hold(self) -> Callable[[], None]:
        """By a lock of the kernel's."""
        return partial(os.close, reserve(self.path))

    def write(self, name: str, data: bytes) -> None:
        """Under a temporary name, then renamed."""
        write_atomically(self.path / name, data, tidy=False)

    def add_line(self, name: str, line: bytes) -> None:
        """At the end of the file."""
        append_line(self.path / name, line)


def check_size(found: int, n_bytes: int, where: object, told_by: str) -> None:
    """Refuse a file of another size than another one says."""
    if found != n_bytes:
        raise FormatError(
            f"{where} is corrupted or truncated: it has {found} bytes, but {n_bytes} by {told_by}"
        )
