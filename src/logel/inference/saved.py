"""Answers as JSON files: written whole, and read with every shape checked. Files are strangers'."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from logel.errors import FormatError
from logel.types import Float

_MAX_BYTES = 256 * 2**20
# What reading JSON of the wrong shape, or bent numbers, raises.
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError)
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
    try:
        return make(json.loads(text))
    except FormatError:
        raise
    except _MALFORMED as error:
        raise FormatError(f"the {what} is corrupted or truncated: {error}") from None


def check_format(raw: Any, name: str, version: int, what: str) -> None:
    """Refuse other formats, and versions to come."""
    if not isinstance(raw, dict) or raw.get("format") != name:
        raise FormatError(f"this is not a logel {what}")
    if raw["format_version"] > version:
        raise FormatError(
            f"the {what} has format version {raw['format_version']}, but this logel reads up to "
            f"{version}: upgrade logel"
        )


def load_json(
    path: str | PathLike[str], make: Callable[[str | bytes], _Answer], what: str
) -> _Answer:
    """An answer out of a file; errors name the file."""
    file = Path(path)
    if not file.is_file():
        raise FormatError(f"there is no {what} at {file}")
    if file.stat().st_size > _MAX_BYTES:
        raise FormatError(f"{file} is larger than any {what}")
    try:
        return make(file.read_bytes())
    except FormatError as error:
        raise FormatError(f"{file}: {error}") from None


def array(values: Any, shape: tuple[int, ...]) -> Float:
    """An array of a known shape; null becomes not-a-number."""
    found = np.array(values, dtype=float).reshape(shape)
    if found.size != np.size(values):
        raise ValueError(f"expected shape {shape}")
    return found


def optional(values: Any, shape: tuple[int, ...]) -> Float | None:
    """The same, or None for null."""
    return None if values is None else array(values, shape)
