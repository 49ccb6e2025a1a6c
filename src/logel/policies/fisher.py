"""Fisher information of a policy's parameters, in the form each family can afford.

The information is that of the whole data set (a sum over steps, not a mean), so its inverse is the
covariance of the maximum-likelihood parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse.linalg

from logel.errors import PolicyError
from logel.types import Float

# Order up to which a matrix known by its products is written out where these do not suffice.
_LARGEST_DENSE = 2000


class Fisher(ABC):
    """A symmetric positive semi-definite matrix of order d.

    Attributes:
        dense_affordable: Whether matrices of order d are within reach.
        tabular: Whether parameters belong to single states, of which some may not be visited.
    """

    n_parameters: int
    dense_affordable: ClassVar[bool] = True
    tabular: ClassVar[bool] = False

    @abstractmethod
    def matvec(self, vectors: Float) -> Float:
        """Product with vectors, shape (d,) or (d, k)."""

    @abstractmethod
    def diagonal(self, most: int | None = None) -> Float:
        """Shape (d,); told from about so many rows of the data where all take long."""

    @abstractmethod
    def solve(self, vectors: Float, *, ridge: float = 0.0) -> Float:
        """Solution x of (F + ridge I) x = vectors, shape (d,) or (d, k)."""

    def dense(self) -> Float:
        """The whole matrix, shape (d, d)."""
        return self.matvec(np.eye(self.n_parameters))


@dataclass(frozen=True, eq=False)
class DenseFisher(Fisher):
    """Stored in full, shape (d, d)."""

    matrix: Float

    @property
    def n_parameters(self) -> int:  # type: ignore[override]
        """Number d of parameters."""
        return len(self.matrix)

    def matvec(self, vectors: Float) -> Float:
        """Product with vectors, shape (d,) or (d, k)."""
        return np.asarray(self.matrix @ vectors)

    def diagonal(self, most: int | None = None) -> Float:
        """Shape (d,)."""
        return np.diagonal(self.matrix).copy()

    def solve(self, vectors: Float, *, ridge: float = 0.0) -> Float:
        """Solution x of (F + ridge I) x = vectors; the minimum-norm one if singular."""
        matrix = self.matrix + ridge * np.eye(self.n_parameters)
        try:
            return np.asarray(scipy.linalg.cho_solve(scipy.linalg.cho_factor(matrix), vectors))
        except np.linalg.LinAlgError:
            return np.asarray(np.linalg.pinv(matrix, hermitian=True) @ vectors)


@dataclass(frozen=True, eq=False)
class BlockFisher(Fisher):
    """Block-diagonal with equal blocks: one block per state of a tabular policy.

    Where states have parameters in different numbers, blocks are as large as the largest needs;
    rows and columns of no parameter are zero, and `free` has the places of the others.
    """

    tabular: ClassVar[bool] = True
    blocks: Float  # shape (n_blocks, k, k), d = n_blocks * k unless only some places are free
    free: npt.NDArray[np.int64] | None = None  # places of the parameters in (n_blocks * k,), or all

    @property
    def n_parameters(self) -> int:  # type: ignore[override]
        """Number d of parameters."""
        whole = self.blocks.shape[0] * self.blocks.shape[1]
        return whole if self.free is None else len(self.free)

    def matvec(self, vectors: Float) -> Float:
        """Product with vectors, shape (d,) or (d, k)."""
        return self._joined(self.blocks @ self._split(vectors), vectors.shape)

    def diagonal(self, most: int | None = None) -> Float:
        """Shape (d,)."""
        diagonal = np.einsum("skk->sk", self.blocks).reshape(-1)
        return diagonal if self.free is None else diagonal[self.free]

    def solve(self, vectors: Float, *, ridge: float = 0.0) -> Float:
        """Solution x of (F + ridge I) x = vectors; the minimum-norm one if singular."""
        if ridge > 0:
            blocks = self.blocks + ridge * np.eye(self.blocks.shape[1])
            solved = np.asarray(np.linalg.solve(blocks, self._split(vectors)), dtype=float)
            return self._joined(solved, vectors.shape)
        inverse = np.linalg.pinv(self.blocks, hermitian=True)
        return self._joined(inverse @ self._split(vectors), vectors.shape)

    def dense(self) -> Float:
        """The whole matrix, shape (d, d)."""
        whole = np.asarray(scipy.linalg.block_diag(*self.blocks))
        return whole if self.free is None else whole[np.ix_(self.free, self.free)]

    def _split(self, vectors: Float) -> Float:
        if self.free is not None:
            whole = np.zeros((self.blocks.shape[0] * self.blocks.shape[1], *vectors.shape[1:]))
            whole[self.free] = vectors
            vectors = whole
        return vectors.reshape(*self.blocks.shape[:2], -1)

    def _joined(self, parts: Float, shape: tuple[int, ...]) -> Float:
        if self.free is not None:
            parts = parts.reshape(-1, parts.shape[2])[self.free]
        return np.asarray(parts.reshape(shape))


@dataclass(frozen=True, eq=False)
class ProductFisher(Fisher):
    """Known through its products with vectors, for networks whose d x d matrix is out of reach."""

    dense_affordable: ClassVar[bool] = False
    n_parameters: int
    product: Callable[[Float], Float]  # maps (d,) to (d,)
    # Computes the diagonal, shape (d,), from about so many rows, or from all.
    make_diagonal: Callable[[int | None], Float]

    def matvec(self, vectors: Float) -> Float:
        """Product with vectors, shape (d,) or (d, k)."""
        if vectors.ndim == 1:
            return self.product(vectors)
        return np.stack([self.product(column) for column in vectors.T], axis=1)

    def diagonal(self, most: int | None = None) -> Float:
        """Shape (d,)."""
        return self.make_diagonal(most)

    def solve(self, vectors: Float, *, ridge: float = 0.0) -> Float:
        """Solution x of (F + ridge I) x = vectors by conjugate gradients, Jacobi-preconditioned.

        Where they do not converge (F is singular, or nearly so), the minimum-norm solution.
        """
        d = self.n_parameters
        operator = scipy.sparse.linalg.LinearOperator(
            (d, d), matvec=lambda v: self.product(v.reshape(-1)) + ridge * v.reshape(-1)
        )
        scale = self.diagonal() + ridge
        scale[scale <= 0] = 1.0
        inverse = scipy.sparse.linalg.LinearOperator((d, d), matvec=lambda v: v.reshape(-1) / scale)
        solved = []
        for column in vectors.reshape(d, -1).T:
            found, failed = scipy.sparse.linalg.cg(operator, column, rtol=1e-8, M=inverse)
            if failed:
                return self._minimum_norm(vectors, ridge)
            solved.append(found)
        return np.stack(solved, axis=1).reshape(vectors.shape)

    def _minimum_norm(self, vectors: Float, ridge: float) -> Float:
        d = self.n_parameters
        matrix = self.dense() + ridge * np.eye(d) if d <= _LARGEST_DENSE else np.full(1, np.nan)
        if not np.isfinite(matrix).all():
            raise PolicyError(
                f"the data do not tell the policy's {d} parameters apart: "
                "conjugate gradients did not converge on their Fisher information. Give a larger "
                "prior_strength, or bring observations to about unit size"
            )
        # Directions with less than 1e-10 of the largest information are what stopped the search.
        return np.asarray(np.linalg.pinv(matrix, rcond=1e-10, hermitian=True) @ vectors)
