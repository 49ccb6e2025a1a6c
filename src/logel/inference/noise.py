"""How well each movement is known, as a metric for the solver.

A movement's covariance has up to three parts:

* the two cloned policies it joins: F[t]^-1 + F[t+1]^-1, F being the information in a stage's data;
* noise of the learner's and our own gradients, shaped as the update rule passes it on: P F P / N
  (P the rule's preconditioner; a score's covariance is F / N, whatever it is multiplied with);
* anything else, the same for all parameters.

The metric is its inverse. Families with a dense information matrix get all three; networks the
first alone, with information as low rank plus diagonal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg

from logel.inference.steps import Steps, compress, compress_grams
from logel.policies.fisher import Fisher
from logel.types import Float

# Products with a network's information that its sketch takes: a few dozen directions carry most
# of it, and each costs a pass over the stage.
SKETCH_RANK = 40


class Metric(ABC):
    """Inverse covariance of one movement."""

    log_determinant: float
    """Of the covariance; 0 where its scale means nothing."""

    @abstractmethod
    def compress(self, delta: Float, design: Float) -> Steps:
        """Steps of one metric, from delta (n, d) and design (n, d, q)."""

    @abstractmethod
    def grams(self, columns: Float) -> Float:
        """Products columns' M columns, shape (..., k, k) for columns (..., d, k)."""


@dataclass(frozen=True)
class IdentityMetric(Metric):
    """All parameters alike, as in the paper."""

    log_determinant: float = 0.0

    def compress(self, delta: Float, design: Float) -> Steps:
        """Steps of one metric, from delta (n, d) and design (n, d, q)."""
        return compress(delta, design, may_rest=True)

    def grams(self, columns: Float) -> Float:
        """Products columns' M columns, shape (..., k, k) for columns (..., d, k)."""
        return np.asarray(np.swapaxes(columns, -1, -2) @ columns)


@dataclass(frozen=True, eq=False)
class DenseMetric(Metric):
    """From a covariance in full, shape (d, d), positive definite."""

    covariance: Float

    @cached_property
    def _root(self) -> Float:
        return np.asarray(np.linalg.cholesky((self.covariance + self.covariance.T) / 2))

    @cached_property
    def log_determinant(self) -> float:  # type: ignore[override]
        """Of the covariance."""
        return 2 * float(np.log(np.diagonal(self._root)).sum())

    def _whiten(self, columns: Float) -> Float:
        flat = np.moveaxis(columns, -2, 0).reshape(len(self._root), -1)
        white = scipy.linalg.solve_triangular(self._root, flat, lower=True)
        moved = (columns.shape[-2], *columns.shape[:-2], columns.shape[-1])
        return np.moveaxis(white.reshape(moved), 0, -2)

    def compress(self, delta: Float, design: Float) -> Steps:
        """Steps of one metric, from delta (n, d) and design (n, d, q)."""
        white = self._whiten(np.concatenate([design, delta[:, :, None]], axis=2))
        return compress(white[:, :, -1], white[:, :, :-1], may_rest=True)

    def grams(self, columns: Float) -> Float:
        """Products columns' M columns, shape (..., k, k) for columns (..., d, k)."""
        white = self._whiten(columns)
        return np.asarray(np.swapaxes(white, -1, -2) @ white)


@dataclass(frozen=True, eq=False)
class LowRank:
    """The symmetric matrix  U diag(values) U' + diag(diagonal)."""

    vectors: Float  # U, shape (d, k)
    values: Float  # shape (k,), positive
    diagonal: Float  # shape (d,), positive

    def matvec(self, columns: Float) -> Float:
        """Product with columns, shape (d, k)."""
        low = self.vectors @ (self.values[:, None] * (self.vectors.T @ columns))
        return np.asarray(self.diagonal[:, None] * columns + low)

    def solve(self, columns: Float) -> Float:
        """Product of the inverse with columns, shape (d, k)."""
        scaled = columns / self.diagonal[:, None]
        if len(self.values) == 0:
            return np.asarray(scaled)
        thin = self.vectors / self.diagonal[:, None]
        small = np.diag(1 / self.values) + self.vectors.T @ thin
        return np.asarray(scaled - thin @ np.linalg.solve(small, self.vectors.T @ scaled))

    def __add__(self, other: LowRank) -> LowRank:
        return LowRank(
            np.concatenate([self.vectors, other.vectors], axis=1),
            np.concatenate([self.values, other.values]),
            self.diagonal + other.diagonal,
        )


def sketch(fisher: Fisher, *, ridge: float, rank: int = SKETCH_RANK, seed: int = 0) -> LowRank:
    """Information as low rank plus diagonal, from `rank` products (Nystroem's approximation).

    The leading directions are those the products see; the diagonal makes up for what they miss, so
    that every parameter keeps its own information (plus `ridge`).
    """
    d = fisher.n_parameters
    rank = min(rank, d)
    rng = np.random.default_rng(seed)
    probes = np.linalg.qr(rng.standard_normal((d, rank)))[0]
    seen = fisher.matvec(probes)
    # A tiny multiple of the identity keeps the small system definite; it is taken off again.
    shift = np.sqrt(d) * np.finfo(float).eps * max(float(np.linalg.norm(seen)), 1e-300)
    seen = seen + shift * probes
    small = probes.T @ seen
    values, turn = np.linalg.eigh((small + small.T) / 2)
    kept = values > 1e-12 * max(float(values.max()), 1e-300)
    half = seen @ (turn[:, kept] / np.sqrt(values[kept]))
    vectors, singular, _ = np.linalg.svd(half, full_matrices=False)
    found = np.maximum(singular**2 - shift, 0.0)
    vectors, found = vectors[:, found > 0], found[found > 0]
    missed = np.maximum(fisher.diagonal() - (vectors**2) @ found, 0.0)
    return LowRank(vectors, found, missed + ridge)


@dataclass(frozen=True, eq=False)
class LowRankMetric(Metric):
    """(A^-1 + B^-1)^-1 = A (A + B)^-1 B for the information A, B of two cloned stages."""

    before: LowRank
    after: LowRank
    # Both determinants could be had, but no other covariance is compared with this one.
    log_determinant: float = 0.0

    def _matvec(self, columns: Float) -> Float:
        both = self.before + self.after
        return self.before.matvec(both.solve(self.after.matvec(columns)))

    def compress(self, delta: Float, design: Float) -> Steps:
        """Steps of one metric, from delta (n, d) and design (n, d, q)."""
        grams = self.grams(np.concatenate([design, delta[:, :, None]], axis=2))
        return compress_grams(grams, n_parameters=delta.shape[1])

    def grams(self, columns: Float) -> Float:
        """Products columns' M columns, shape (..., k, k) for columns (..., d, k)."""
        flat = columns.reshape(-1, *columns.shape[-2:])
        result = np.stack([block.T @ self._matvec(block) for block in flat])
        symmetric = (result + np.swapaxes(result, 1, 2)) / 2
        return symmetric.reshape(*columns.shape[:-2], columns.shape[-1], columns.shape[-1])


@dataclass(frozen=True)
class NoiseLevel:
    """Variances beside cloning's: of gradients (in units of a score's) and of anything else."""

    gradient: float = 0.0
    other: float = 0.0


CLONED_LEVELS = (
    NoiseLevel(),
    *(NoiseLevel(other=x) for x in (1e-4, 1e-3, 1e-2, 1e-1)),
    *(NoiseLevel(gradient=x) for x in (1e-3, 1e-2, 1e-1, 1.0)),
)
# Known parameters carry no noise of their own, and the scale of a metric does not matter.
KNOWN_LEVELS = (NoiseLevel(other=1.0), *(NoiseLevel(1.0, x) for x in (1.0, 1e-1, 1e-2, 1e-3)))


def dense_metric(
    clones: Float | None, gradient: Float | None, level: NoiseLevel, n_parameters: int
) -> Metric:
    """The metric of one step from the parts of its covariance, each (d, d).

    Cloning's is None for known parameters, the shape of the gradients' noise if it is not known.
    """
    covariance = level.other * np.eye(n_parameters)
    if clones is not None:
        covariance = covariance + clones
    if level.gradient > 0 and gradient is not None:
        covariance = covariance + level.gradient * gradient
    return DenseMetric(covariance)
