"""Pieces of work that were done before, found again by what they were made of.

A file is named by a digest of all that decides what is in it: data, options, this code and the
libraries below it. So nothing is ever out of date, only of no use any more, and what was not used
for longest goes when the folder grows too large. Files hold numbers alone, are written whole or not
at all, and one that cannot be read, or does not hold what it should, is made again.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache, cached_property, partial
from pathlib import Path
from types import FunctionType, MappingProxyType
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from logel.data.limits import FilePath, read_plain
from logel.data.store import clear_stale, write_atomically
from logel.errors import FormatError, LogelError
from logel.types import Array

logger = logging.getLogger(__name__)
Arrays = Mapping[str, Array]
_SUFFIX, _DIGEST_BYTES = ".kept", 32
# What decides numbers beside this code.
_LIBRARIES = ("numpy", "scipy", "torch")


@dataclass(frozen=True)
class Cache:
    """A folder of results; several processes may use it at a time.

    Attributes:
        folder: Nobody else should be able to write there: what is kept is believed.
        most_bytes: The size from which on the least recently used go.
    """

    folder: Path
    most_bytes: int = 2 * 2**30

    @classmethod
    def at(cls, folder: FilePath) -> Cache:
        """In a folder, which is made if there is none."""
        found = cls(Path(folder).expanduser())
        found.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        clear_stale(found.folder)
        return found

    @classmethod
    def usual(cls) -> Cache:
        """Where the command line keeps results: `inferences` in `LOGEL_CACHE`."""
        return cls.at(Path(os.environ.get("LOGEL_CACHE", "~/.cache/logel")) / "inferences")

    def kept(
        self, made_of: Any, make: Callable[[], Arrays], sound: Callable[[Arrays], bool]
    ) -> Arrays:
        """What was made of this before, or is made now.

        Args:
            made_of: All that decides the result.
            make: Makes it.
            sound: Whether arrays can be such a result.
        """
        try:
            path = self.folder / (digest((code(), made_of)) + _SUFFIX)
        except UnknownPartError as error:
            logger.info("not kept: %s", error)
            return make()
        found = _read(path)
        if found is None or not sound(found):
            found = {name: np.ascontiguousarray(value) for name, value in make().items()}
            data = safetensors.numpy.save(dict(found))
            write_atomically(path, hashlib.sha256(data).digest() + data, tidy=False)
            self._trim()
        return found

    def _trim(self) -> None:
        """Remove what was not used for longest, if all is too large."""
        held = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                # Others may remove them, too.
                with suppress(OSError):
                    if entry.name.endswith(_SUFFIX):
                        about = entry.stat(follow_symlinks=False)
                        held.append((about.st_mtime_ns, about.st_size, entry.path))
        over = sum(size for _, size, _ in held) - self.most_bytes
        for _, size, name in sorted(held):
            if over <= 0:
                break
            with suppress(OSError):
                Path(name).unlink()
            over -= size


def _read(path: Path) -> Arrays | None:
    """What a file holds; None if there is none, or not a whole one."""
    try:
        data = read_plain(path, follow_links=False)
        if hashlib.sha256(memoryview(data)[_DIGEST_BYTES:]).digest() != data[:_DIGEST_BYTES]:
            return None
        found = safetensors.numpy.load(data[_DIGEST_BYTES:])
    except (FormatError, safetensors.SafetensorError, ValueError, KeyError):
        return None
    with suppress(OSError):
        os.utime(path)
    return found


@cache
def code() -> str:
    """A digest of this package's source and of the versions of what it computes with."""
    from importlib.metadata import version

    whole = hashlib.sha256()
    root = Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        whole.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    whole.update(" ".join(f"{name} {version(name)}" for name in _LIBRARIES).encode())
    return whole.hexdigest()


class UnknownPartError(LogelError):
    """Something of which nobody can say whether it is what it was: code of others."""


def digest(made_of: Any) -> str:
    """Of plain values, arrays, and objects of this package made of them."""
    whole = hashlib.sha256()
    _add(whole.update, made_of)
    return whole.hexdigest()


def _add(update: Callable[[bytes | memoryview], None], value: Any) -> None:
    """Include a value with its type, and how long it is, so that no two look alike."""
    kind = type(value)
    parts = _parts(value)
    if isinstance(parts, np.ndarray):
        update(f"{kind.__name__} {parts.dtype.str} {parts.shape}:".encode())
        update(np.ascontiguousarray(parts).reshape(-1).view(np.uint8).data)
    elif isinstance(parts, bytes):
        update(f"{kind.__qualname__} {len(parts)}:".encode() + parts)
    else:
        update(f"{kind.__module__}.{kind.__qualname__} {len(parts)}:".encode())
        for part in parts:
            _add(update, part)


def _parts(value: Any) -> Array | bytes | list[Any]:
    """What decides a value: an array, bytes, or other values."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return repr(value).encode()
    if kind is np.ndarray and not value.dtype.hasobject:
        return np.asarray(value)
    if kind in _BUILTINS:
        return _BUILTINS[kind](value)
    told = value if isinstance(value, FunctionType | type) else kind
    library = told.__module__.partition(".")[0]
    if library in _LIBRARIES:
        return _of_library(value)
    if library == "logel":
        return _of_ours(value, kind)
    raise UnknownPartError(f"it depends on {told.__module__}.{told.__qualname__}")


def _flat(value: Mapping[Any, Any]) -> list[Any]:
    return [part for item in value.items() for part in item]


_BUILTINS: Mapping[type, Callable[[Any], Any]] = {
    bytes: bytes,
    tuple: list,
    list: list,
    dict: _flat,
    MappingProxyType: _flat,
    partial: lambda value: [value.func, value.args, value.keywords],
}


def _of_library(value: Any) -> Array | bytes | list[Any]:
    """Tensors by their numbers, sparse matrices by their places, devices and types by name."""
    if isinstance(value, np.generic):
        return np.asarray(value)
    if hasattr(value, "detach"):
        return np.asarray(value.detach().cpu())
    if hasattr(value, "tocoo"):
        there = value.tocoo()
        return [there.shape, there.row, there.col, there.data]
    if type(value).__name__ in ("device", "dtype"):
        return repr(value).encode()
    raise UnknownPartError(f"it depends on {type(value).__module__}.{type(value).__qualname__}")


def _of_ours(value: Any, kind: type) -> bytes | list[Any]:
    """Of this package, whose code has a digest of its own."""
    if isinstance(value, FunctionType | type):
        return f"{value.__module__}.{value.__qualname__}".encode()
    if isinstance(value, Enum):
        return value.name.encode()
    if isinstance(value, tuple):
        return list(value)
    return _flat({name: getattr(value, name) for name in _names(value, kind)})


def _names(value: Any, kind: type) -> list[str]:
    """Of what an object holds, but for what it worked out."""
    if is_dataclass(value):
        return [f.name for f in fields(value)]
    return sorted(n for n in vars(value) if not isinstance(getattr(kind, n, None), cached_property))
