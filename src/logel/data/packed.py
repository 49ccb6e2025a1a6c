"""Arrays that grow by rows, for what is kept of every stage of a long history."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from logel.types import Array

# Room beyond what is needed, as a share of it, so that rows are seldom moved.
_ROOM = 0.25


class Packed:
    """Rows of one shape, side by side; a list of small arrays takes a hundred bytes more of each.

    What `rows` gave stays as it was when more are added.
    """

    def __init__(self) -> None:
        self._room: Array = np.zeros(0)
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def add(self, rows: npt.ArrayLike) -> None:
        """Put rows, shape (n, ...), behind those that are there."""
        new = np.asarray(rows)
        end, dtype = self._n + len(new), new.dtype
        if self._n:
            dtype = np.result_type(self._room, new)
        if end > len(self._room) or dtype != self._room.dtype:
            room = np.empty((end + int(_ROOM * end), *new.shape[1:]), dtype)
            if self._n:
                room[: self._n] = self.rows
            self._room = room
        self._room[self._n : end] = new
        self._n = end

    @property
    def rows(self) -> Array:
        """All rows so far, shape (n, ...); not a copy."""
        return self._room[: self._n]
