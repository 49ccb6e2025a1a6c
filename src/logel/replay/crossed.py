"""Movements in units of their own noise, and products in which noise does not meet itself.

A movement that is replayed on one half of the episodes and on the other differs by noise alone: the
difference of the halves is as noisy as their mean, and as a replay on all episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from logel.types import Float

# Of the largest variance of the noise: what counts in every direction. Less would be known from
# more draws; movements of few draws lie in no other direction than theirs.
_FLOOR, _RANK = 0.1, 40
# Share of a squared movement that is noise at least, whatever the halves say.
_LEAST = 0.01
# A step's noise is that of few draws: its neighbours tell, too.
_KERNEL = np.array([0.25, 0.5, 0.25])
# Share of the mean curvature that is added in every direction.
_RIDGE = 0.1


@dataclass(frozen=True, eq=False)
class Metric:
    """Directions of movements, in units in which noise has variance one at most.

    Attributes:
        basis: (D, r).
        deviation: Of every step's noise, (m,).
        variance: What is expected along each direction, (r,).
    """

    basis: Float
    deviation: Float
    variance: Float

    @classmethod
    def of(cls, rounds: Sequence[Float]) -> Metric:
        """From movements (K, 2, m, D) on two halves, of some rounds."""
        apart = np.concatenate([0.5 * (moved[:, 0] - moved[:, 1]) for moved in rounds])
        power = (apart**2).sum(axis=2).mean(axis=0) + 1e-300
        rows = (apart / np.sqrt(power)[:, None]).reshape(-1, apart.shape[2])
        values, vectors = np.linalg.eigh(rows.T @ rows / len(rows))
        values, vectors = np.maximum(values[::-1][:_RANK], 0.0), vectors[:, ::-1][:, :_RANK]
        stretched = values + _FLOOR * values[0] + 1e-12
        basis, variance = vectors / np.sqrt(stretched), values / stretched
        noise = ((apart @ basis) ** 2).sum(axis=2).mean(axis=0)
        sizes = [((moved @ basis) ** 2).sum(axis=3).mean(axis=(0, 1)) for moved in rounds]
        size = np.mean(sizes, axis=0)
        smooth = np.pad(np.log(np.maximum(noise, _LEAST * size) + 1e-300), 1, mode="edge")
        smooth = np.convolve(smooth, _KERNEL, mode="valid")
        return cls(basis, np.exp(0.5 * smooth) / np.sqrt(max(variance.sum(), 1.0)), variance)

    @property
    def expected(self) -> float:
        """Squared length of one step's noise."""
        return max(float(self.variance.sum()), 1.0)

    def seen(self, moved: Float) -> Float:
        """Movements (..., m, D) as (..., m, r)."""
        return np.asarray(moved @ self.basis / self.deviation[:, None])


@dataclass(frozen=True, eq=False)
class Moments:
    """Of columns (effects of the weights) and the observed steps, by step.

    Attributes:
        gram: Of one half's columns with the other's, (m, c, c).
        pull: Of columns with the observed steps, (m, c).
    """

    gram: Float
    pull: Float

    @classmethod
    def of(cls, columns: Float, observed: Float) -> Moments:
        """From columns (c, 2, m, r) and steps (m, r) as a metric sees them."""
        pull = np.einsum("itr,tr->ti", columns.mean(axis=1), observed)
        return cls(crossed(columns), pull)

    def held(self, counts: Float) -> Float:
        """Gram (c, c) of steps, each so many times; directions that few tell of are held."""
        gram = positive(np.tensordot(counts, self.gram, axes=1))
        return np.asarray(gram + _RIDGE * np.trace(gram) / len(gram) * np.eye(len(gram)))

    def answer(self, counts: Float) -> Float:
        """Weights (c,) that steps ask for, each counted so many times."""
        return np.asarray(np.linalg.solve(self.held(counts), counts @ self.pull))


def crossed(columns: Float) -> Float:
    """Products (m, c, c) of one half's columns with the other's, of columns (c, 2, m, r)."""
    gram = np.einsum("itr,jtr->tij", columns[:, 0], columns[:, 1])
    return 0.5 * (gram + gram.transpose(0, 2, 1))


def positive(gram: Float) -> Float:
    """Crossed products of noise may be negative: what they do not tell, they do not exclude."""
    values, vectors = np.linalg.eigh(gram)
    floor = 1e-3 * max(float(values[-1]), 1e-300)
    return np.asarray((vectors * np.maximum(values, floor)) @ vectors.T)
