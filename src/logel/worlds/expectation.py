"""Expected values of what follows, as a product with the table of transitions.

Where an action leads is known for a few states, and what smoothing adds is the same for all others:
a table is a sparse matrix plus one number per row. Large tables are multiplied in that form.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from logel.types import Float

Numbers = npt.NDArray[np.floating[Any]]
"""Of single or double precision."""
# Below this many states a dense product is faster than any bookkeeping.
_SMALL = 64
# Share of entries above their row's smallest up to which the sparse product wins.
_SPARSE = 0.15


@dataclass(frozen=True, eq=False)
class Expectation:
    """Transitions P (R, S), R = S A, to be multiplied from both sides."""

    matrix: Numbers | sparse.csr_array  # above the floor, shape (R, S)
    turned: Numbers | sparse.csr_array  # its transpose
    floor: Numbers | None  # what every entry of a row has at least, shape (R, 1); None: nothing

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

    def ahead(self, values: Numbers) -> Float:
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

    def mixed(self, policy: Float) -> Expectation:
        """The table (S, S) of a policy's next states."""
        s, a = policy.shape
        if isinstance(self.matrix, np.ndarray):
            mixed = np.einsum("sa,sat->st", policy, self.matrix.reshape(s, a, s))
            return Expectation(mixed, mixed.T, None)
        rows = sparse.csr_array(
            (policy.ravel(), np.arange(s * a), np.arange(0, s * a + 1, a)), shape=(s, s * a)
        )
        matrix = rows @ self.matrix
        floor = None if self.floor is None else rows @ self.floor
        return Expectation(matrix, sparse.csr_array(matrix.T), floor)

    def to(self, precision: type[np.floating[Any]]) -> Expectation:
        """In another precision."""
        floor = None if self.floor is None else self.floor.astype(precision)
        matrix, turned = (x.astype(precision, copy=False) for x in (self.matrix, self.turned))
        return Expectation(matrix, turned, floor)

    @cached_property
    def pairs(self) -> Pairs:
        """Who follows whom."""
        s = self.matrix.shape[1]
        a = self.matrix.shape[0] // s
        if isinstance(self.matrix, np.ndarray):
            followers = np.broadcast_to(np.arange(s), (s, s))
            table = self.matrix
        else:
            seen = sparse.csr_array(
                (np.ones(s * a), np.arange(s * a), np.arange(0, s * a + 1, a)), shape=(s, s * a)
            ) @ abs(self.matrix)
            width = int(np.diff(seen.indptr).max())
            # States with fewer followers are given themselves, at no probability, to fill up.
            followers = np.repeat(np.arange(s)[:, None], width + 1, axis=1)
            for i in range(s):
                mine = seen.indices[seen.indptr[i] : seen.indptr[i + 1]]
                followers[i, : len(mine)] = mine
                followers[i, len(mine) : width] = i
            known = np.arange(width)[None] < np.diff(seen.indptr)[:, None]
            dense = self.matrix.toarray().reshape(s, a, s)
            table = np.take_along_axis(dense, followers[:, None, :width].repeat(a, 1), axis=2)
            floor = np.zeros((s, a, 1)) if self.floor is None else self.floor.reshape(s, a, 1)
            table = np.concatenate([table * known[:, None], floor], axis=2).reshape(s * a, -1)
            followers[:, width] = s
        return Pairs.of(followers, table)


@dataclass(frozen=True, eq=False)
class Pairs:
    """States and what they may lead to; what every entry has at least goes to "all states", S."""

    states: npt.NDArray[np.int64]  # of every pair, shape (n,)
    by_follower: tuple[npt.NDArray[np.int64], ...]  # pairs of every follower
    numbers: npt.NDArray[np.int64]  # pairs of every state, shape (S, width)
    table: Numbers  # probabilities of actions' followers, shape (S A, width)

    @classmethod
    def of(cls, followers: npt.NDArray[np.int64], table: Numbers) -> Pairs:
        """From each state's followers (S, width)."""
        s, width = followers.shape
        order = np.argsort(followers.ravel(), kind="stable")
        ends = np.searchsorted(followers.ravel()[order], np.arange(s + 2))
        by_follower = tuple(order[ends[i] : ends[i + 1]] for i in range(s + 1))
        states = np.repeat(np.arange(s), width)
        return cls(states, by_follower, np.arange(s * width).reshape(s, width), table)

    def mixed(self, policy: Float) -> Float:
        """Probabilities of followers under a policy, shape (S, width)."""
        return np.einsum("sa,saw->sw", policy, self.table.reshape(*policy.shape, -1))
