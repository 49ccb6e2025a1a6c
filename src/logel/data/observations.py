"""What an observation may be: numbers of states, vectors, images, or several of these by name.

Observations of several parts (Gymnasium's Dict) are structured arrays: one row per step, one field
per part, `observations["camera"]`. They are cut, stacked and copied like any other array. Images,
bytes of at least two dimensions, stay bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from logel.errors import HistoryError
from logel.types import Array, Float

Part = tuple[str, tuple[int, ...], str]
"""A named part of an observation: its name, the shape and the type of one step's values."""

_MOST_PARTS, _LONGEST_NAME = 100, 100
_TYPES = ("uint8", "int64", "float32", "float64")


def storable(array: Array) -> Array:
    """Images as bytes, floats as 32-bit or 64-bit ones, whole numbers and flags as 64-bit ones."""
    if array.dtype == np.uint8 and array.ndim > 2:
        return array
    if array.dtype.kind == "f":
        return array.astype(np.float32 if array.dtype == np.float32 else np.float64, copy=False)
    if array.dtype == np.uint64 and array.max(initial=0) > np.iinfo(np.int64).max:
        raise HistoryError(f"must fit in 64-bit integers, but reaches {array.max()}")
    return array.astype(np.int64, copy=False)


def by_name(values: npt.ArrayLike | Mapping[str, Any]) -> dict[str, Array] | None:
    """The parts of observations that have names, or None: arrays by name, or a structured one."""
    if isinstance(values, Mapping):
        return {str(name): np.asarray(part) for name, part in values.items()}
    if isinstance(values, np.ndarray) and values.dtype.names is not None:
        return {name: values[name] for name in values.dtype.names}
    return None


def together(parts: Mapping[str, Array]) -> Array:
    """Parts with as many rows each as one structured array, in the order of their names."""
    names = _checked_names(parts)
    rows = {len(part) if part.ndim else -1 for part in parts.values()}
    if len(rows) > 1 or -1 in rows:
        raise HistoryError(f"need as many rows in every part, but have {sorted(rows)}")
    kind = np.dtype([(n, parts[n].dtype, parts[n].shape[1:]) for n in names])
    result = np.empty(rows.pop(), kind)
    for name in names:
        result[name] = parts[name]
    return result


def _checked_names(parts: Mapping[str, Array]) -> list[str]:
    if not 0 < len(parts) <= _MOST_PARTS:
        raise HistoryError(f"must have 1 to {_MOST_PARTS} parts, not {len(parts)}")
    for name in parts:
        if not (0 < len(name) <= _LONGEST_NAME and name.isprintable() and "/" not in name):
            raise HistoryError(f"have a part called {name!r:.80}: use short, printable names")
    return sorted(parts)


def parts_of(observations: Array) -> tuple[Part, ...] | None:
    """The parts that observations have; an image is one without a name, and numbers have none."""
    kind = observations.dtype
    if kind.names is None:
        image = kind == np.uint8
        return (("", observations.shape[1:], kind.name),) if image else None
    return tuple((name, kind[name].shape, kind[name].base.name) for name in kind.names)


def check_plain(parts: tuple[Part, ...] | None, where: str) -> None:
    """Refuse observations of named parts where there is no room for them."""
    if parts is not None and parts[0][0]:
        raise HistoryError(
            f"{where} have no room for observations of several parts ({in_words(parts)}): save the "
            "history as a folder"
        )


def in_words(parts: tuple[Part, ...]) -> str:
    """What observations of parts are like."""
    told = {"uint8": "bytes", "int64": "whole numbers"}
    return "; ".join(
        f"{name + ': ' if name else ''}{told.get(kind, 'floats')}"
        f"{', ' if shape else ''}{' x '.join(map(str, shape))}"
        for name, shape, kind in parts
    )


def parsed_parts(raw: Any) -> tuple[Part, ...] | None:
    """Named parts out of JSON; null where there are none."""
    if raw is None:
        return None
    parts = tuple((str(name), tuple(int(n) for n in shape), str(kind)) for name, shape, kind in raw)
    if any(kind not in _TYPES for _, _, kind in parts):
        raise ValueError(f"parts of observations must be of {', '.join(_TYPES)}")
    return parts


def width(observations: Array) -> int:
    """Numbers in one observation."""
    parts = parts_of(observations)
    shapes = [observations.shape[1:]] if parts is None else [shape for _, shape, _ in parts]
    return sum(int(np.prod(shape, dtype=int)) for shape in shapes)


def as_numbers(observations: Array) -> Float:
    """Observations as numbers, shape (N, o): parts side by side, in the order of their names."""
    parts = by_name(observations)
    if parts is None:
        return observations.reshape(len(observations), width(observations)).astype(float)
    return np.concatenate([as_numbers(part) for part in parts.values()], axis=1)
