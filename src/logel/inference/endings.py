"""Steps that are paid alike and ends that are paid alike: collinear under discounting.

Where an episode ends, a step's pay that stops is worth what an end's pay would be. A reward of `c`
for the end and of `(1 - gamma) c` for every step before it sums up to the same whatever happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from logel.data.limits import listed
from logel.data.stage import Stage
from logel.types import Float

# Share of the features' size that counts as rounding.
_ROUNDING = 1e-6
_NUMBERS = {1: "it", 2: "one of the two", 3: "one of the three", 4: "one of the four"}


@dataclass
class _Rows:
    """Sums over rows of features."""

    count: int = 0
    total: Float = field(default_factory=lambda: np.zeros(0))
    products: Float = field(default_factory=lambda: np.zeros((0, 0)))

    def add(self, rows: Float) -> None:
        """Include rows (N, q)."""
        if self.count == 0:
            q = rows.shape[1]
            self.total, self.products = np.zeros(q), np.zeros((q, q))
        self.count += len(rows)
        self.total = self.total + np.ones(len(rows)) @ rows
        self.products = self.products + rows.T @ rows

    def level(self, direction: Float) -> float | None:
        """What every row is paid, None if rows are paid differently."""
        if self.count == 0:
            return None
        size = float(direction @ self.products @ direction) / self.count
        mean = float(direction @ self.total) / self.count
        return mean if size - mean**2 <= _ROUNDING * max(size, 1e-300) else None


class Endings:
    """Streams stages into what steps that end an episode for good, and all others, are paid."""

    def __init__(self) -> None:
        self._going, self._ending = _Rows(), _Rows()

    def add(self, stage: Stage) -> None:
        """Include a stage with features."""
        assert stage.features is not None
        paid = stage.features.astype(float)
        last = (stage.starts + stage.lengths - 1)[stage.terminated]
        going = np.ones(len(paid), dtype=bool)
        going[last] = False
        self._ending.add(paid[last])
        self._going.add(paid[going] if len(last) else paid)

    def reason(self, direction: Float, names: Sequence[str]) -> str | None:
        """Why a silent direction is silent, if it pays steps alike and ends alike; else None."""
        if not (self._going.level(direction) and self._ending.level(direction)):
            return None
        used = np.abs(direction) > _ROUNDING * np.abs(direction).max()
        # An end's feature is paid to no other step.
        at_end = used & (np.diagonal(self._going.products) == 0)
        if not at_end.any() or (at_end == used).all():
            return None
        all_names = _all([names[j] for j in np.flatnonzero(used).tolist()])
        ending = [names[j] for j in np.flatnonzero(at_end).tolist()]
        where = _NUMBERS.get(len(ending), "one of them")
        return (
            f"{all_names} are collinear under discounting, because every episode that ends does so "
            f"in {where} ({_all(ending)})"
        )


def _all(names: Sequence[str]) -> str:
    return listed(names, most=len(names))
