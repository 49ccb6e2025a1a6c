"""Numbers too large to compute with, and arithmetic that broke down: told by column and size."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from logel.data.stage import Stage
from logel.errors import HistoryError, IdentificationError, LogelError, one_line
from logel.types import Array, Float

# Sums of fourth powers stay within doubles, and squares within the single precision of networks.
_LARGEST = 1e18
# Fourth powers of features, and what is divided by them, stay within doubles, too.
_SMALLEST = 1e-60
_PARTS = {"observations": "observation", "actions": "action", "features": "feature"}
_BROKEN = (np.linalg.LinAlgError, torch.linalg.LinAlgError, ArithmeticError)  # type: ignore[attr-defined]
# Of the ValueErrors only those are about numbers.
_NOT_NUMBERS = re.compile(r"\b(inf|infs|nan|nans|infinite|non-finite)\b", re.IGNORECASE)


def _digest(stage: Stage) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    for array in (stage.lengths, stage.observations, stage.actions):
        found.update(np.ascontiguousarray(array).data)
    return found.digest()


class Extremes:
    """The largest size of every column of numbers over the stages, and whether stages differ."""

    def __init__(self, names: Sequence[str] | None = None) -> None:
        self._names = names
        self._sizes: dict[str, Float] = {}
        self._first, self._n_stages = b"", 0
        self._differs = False

    def add(self, stage: Stage) -> None:
        """Include a stage; refuse what no sum of squares could hold."""
        self._n_stages += 1
        if not self._differs:  # once two differ, no more need be compared
            digest = _digest(stage)
            self._first = self._first or digest
            self._differs = digest != self._first
        for part in _PARTS:
            for values in (getattr(stage, part), stage.last_observations):
                if values is None or values.dtype.kind != "f":
                    continue
                if values is stage.last_observations and part != "observations":
                    continue
                # Few long columns are gone through many times faster than many short rows.
                columns = np.ascontiguousarray(values.reshape(len(values), -1).T)
                self._add(part, np.maximum(columns.max(axis=1), -columns.min(axis=1)))

    def check(self) -> None:
        """Refuse features that all stages together show to be too small to compute with."""
        for k, size in enumerate(self._sizes.get("features", ())):
            if 0 < size < _SMALLEST:
                raise HistoryError(
                    f"{self._column('features', k)} never exceeds {size:.3g}, too little to "
                    "compute with: multiply it, so that its values are about 1"
                )

    def _add(self, part: str, sizes: Array) -> None:
        self._sizes[part] = np.maximum(self._sizes.get(part, 0.0), sizes.astype(float))
        if (sizes > _LARGEST).any():
            k = int(np.argmax(sizes))
            raise HistoryError(
                f"{self._column(part, k)} reaches {sizes[k]:.3g}, too much to compute with: divide "
                "it, so that its values are about 1"
            )

    def _column(self, part: str, k: int) -> str:
        # Features that are computed are not those that a history names.
        named = part == "features" and self._names is not None and k < len(self._names)
        return f"feature {self._names[k]!r}" if named and self._names else f"{_PARTS[part]} {k}"

    @property
    def all_alike(self) -> bool:
        """Whether every stage shows the very same."""
        return self._n_stages > 1 and not self._differs

    def furthest(self) -> str:
        """The column furthest from unit size, in a sentence that says what to do."""
        columns = [
            (abs(np.log(size)), self._column(part, k), size)
            for part, sizes in self._sizes.items()
            for k, size in enumerate(sizes)
            if size > 0
        ]
        if not columns:
            return "observations, actions and features hold no scale that could be at fault"
        _, name, size = max(columns)
        return f"{name} is furthest from unit size, it reaches {size:.3g}: rescale it to about 1"


@contextmanager
def in_words(furthest: Callable[[], str]) -> Iterator[None]:
    """Arithmetic that breaks down inside becomes a sentence that names the likely column."""
    try:
        yield
    except LogelError:
        raise
    except (*_BROKEN, ValueError) as error:
        if not isinstance(error, _BROKEN) and not _NOT_NUMBERS.search(str(error)):
            raise
        raise IdentificationError(
            f"the arithmetic broke down ({one_line(error)}): {furthest()}"
        ) from error
