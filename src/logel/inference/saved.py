"""Answers as JSON files: written whole, and read with every shape checked. Files are strangers'."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from logel.data.limits import parse_json, parsing, read_plain
from logel.errors import FormatError, LogelError, TooLargeError, one_line
from logel.types import Float

_Answer = TypeVar("_Answer")


def plain(value: Any) -> Any:
    """Arrays to lists, non-finite numbers to null."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    if isinstance(value, np.integer):
        return int(value)
    return value


def read_json(text: str | bytes, make: Callable[[Any], _Answer], what: str) -> _Answer:
    """An answer out of JSON; anything that is not one raises FormatError."""
    data = text.encode() if isinstance(text, str) else text
    try:
        with parsing(f"the {what}"):
            return make(parse_json(data, f"the {what}"))
    except FormatError:
        raise
    except LogelError as error:
        raise FormatError(f"the {what} is corrupted or truncated: {one_line(error)}") from None


def check_format(raw: Any, name: str, version: int, what: str) -> None:
    """Refuse other formats, and versions to come."""
    if not isinstance(raw, dict) or raw.get("format") != name:
        raise FormatError(f"this is not a logel {what}")
    found = raw["format_version"]
    if type(found) is not int or found < 1:
        raise ValueError(f"format_version must be a positive integer, not {found!r:.40}")
    if found > version:
        raise FormatError(
            f"the {what} has format version {found}, but this logel reads up to "
            f"{version}: upgrade logel"
        )


def load_json(
    path: str | PathLike[str], make: Callable[[str | bytes], _Answer], what: str
) -> _Answer:
    """An answer out of a file; errors name the file."""
    file = Path(path)
    data = read_plain(file, what=what)
    try:
        return make(data)
    except TooLargeError as error:
        raise TooLargeError(f"{file}: {error}") from None
    except FormatError as error:
        raise FormatError(f"{file}: {error}") from None


def array(values: Any, shape: tuple[int, ...]) -> Float:
    """An array of a known shape; null becomes not-a-number."""
    found = np.array(values, dtype=float)
    # Of no rows nobody can say how wide they are.
    if found.shape != shape and not found.size == math.prod(shape) == 0:
        raise ValueError(f"expected shape {shape}, not {found.shape}")
    found = found.reshape(shape)
    return found


def finite(what: str, values: Any, shape: tuple[int, ...]) -> Float:
    """The same, where null has no place."""
    found = array(values, shape)
    if not np.isfinite(found).all():
        raise ValueError(f"{what} must be numbers")
    return found


def optional(values: Any, shape: tuple[int, ...]) -> Float | None:
    """The same, or None for null."""
    return None if values is None else array(values, shape)


def whole(what: str, value: Any) -> int:
    """A count; one that no computation can use is none."""
    found = int(value)
    if abs(found) > 2**53:
        raise ValueError(f"{what} must lie within 2**53")
    return found
