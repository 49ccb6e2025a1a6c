"""Expected values of what follows, as a product with the table of transitions.

Where an action leads is known for a few states, and what smoothing adds is the same for all others:
a table is a sparse matrix plus one number per row. Large tables are multiplied in that form.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from logel.types import Float

# Below this many states a dense product is faster than any bookkeeping.
_SMALL = 64
# Share of entries above their row's smallest up to which the sparse product wins.
_SPARSE = 0.15


@dataclass(frozen=True, eq=False)
class Expectation:
    """Transitions P (R, S), R = S A, to be multiplied from both sides."""

    matrix: Float | sparse.csr_array  # above the floor, shape (R, S)
    turned: Float | sparse.csr_array  # its transpose
    floor: Float | None  # what every entry of a row has at least, shape (R, 1); None: nothing

    @classmethod
    def of(cls, flat: Float) -> Expectation:
        """From a dense table, shape (R, S)."""
        if flat.shape[1] >= _SMALL:
            floor = flat.min(axis=1, keepdims=True)
            above = flat - floor
            if np.count_nonzero(above) <= _SPARSE * above.size:
                matrix = sparse.csr_array(above)
                return cls(matrix, sparse.csr_array(matrix.T), floor if floor.any() else None)
        return cls(flat, flat.T, None)

    @property
    def is_sparse(self) -> bool:
        """Whether products skip what is zero."""
        return not isinstance(self.matrix, np.ndarray)

    def ahead(self, values: Float) -> Float:
        """P @ values, shape (R, k), for values (S, k)."""
        result = np.asarray(self.matrix @ values)
        if self.floor is not None:
            result += self.floor * values.sum(axis=0)
        return result

    def back(self, columns: Float) -> Float:
        """P.T @ columns, shape (S, k), for columns (R, k)."""
        result = np.asarray(self.turned @ columns)
        if self.floor is not None:
            result += (self.floor * columns).sum(axis=0)
        return result
