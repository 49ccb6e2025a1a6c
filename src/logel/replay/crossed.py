"""Products of movements on disjoint halves of episodes, in units of what the halves differ by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from logel.types import Float

# Of the largest variance of the noise: what counts in every direction. Less would be known from
# more draws; movements of few draws lie in no other direction than theirs.
_FLOOR, _RANK = 0.02, 40
# Variance of the noise of a step's direction below which it does not count for more: some steps
# are hardly noisy, and all else would drown in them.
_LEAST = 0.1


@dataclass(frozen=True, eq=False)
class Metric:
    """Directions of movements, in units in which noise is the same along all of them.

    Lengths are left out: gradients that are clipped together with a critic's, or divided by what
    they used to be, give every step a length of its own that tells nothing about the reward.

    Attributes:
        basis: (D, r).
        weight: Of every step, (m,): one over the variance of its noise.
    """

    basis: Float
    weight: Float

    @classmethod
    def of(cls, moved: Float) -> Metric:
        """From movements (n, 2, m, D) on two halves."""
        n, _, m, width = moved.shape
        sizes = np.linalg.norm(moved, axis=-1).prod(axis=1) ** 0.5
        apart = (moved[:, 0] - moved[:, 1]) / (sizes[..., None] + 1e-300)
        power = (apart**2).sum(axis=(0, 2)) / n + 1e-300
        rows = (apart / np.sqrt(power)[:, None]).reshape(n * m, width)
        values, vectors = np.linalg.eigh(rows.T @ rows / (n * m))
        values, vectors = values[::-1][:_RANK], vectors[:, ::-1][:, :_RANK]
        basis = vectors / np.sqrt(np.maximum(values, 0) + _FLOOR * values[0] + 1e-12)
        both = unit_movements(moved @ basis)
        noise = 0.5 * ((both[:, 0] - both[:, 1]) ** 2).sum(axis=-1).mean(axis=0)
        return cls(basis, 1 / np.clip(noise, _LEAST, 1.0))

    def seen(self, moved: Float) -> Float:
        """Movements (..., D) as unit vectors (..., r)."""
        return unit_movements(moved @ self.basis)


def unit_movements(moved: Float) -> Float:
    """Of length one, or none."""
    return np.asarray(moved / (np.linalg.norm(moved, axis=-1, keepdims=True) + 1e-300))


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
    def of(cls, columns: Float, observed: Float, metric: Metric) -> Moments:
        """From columns (c, 2, m, r) and steps (m, r) as the metric sees them."""
        gram = np.einsum("t,itr,jtr->tij", metric.weight, columns[:, 0], columns[:, 1])
        pull = np.einsum("t,itr,tr->ti", metric.weight, columns.mean(axis=1), observed)
        return cls(0.5 * (gram + gram.transpose(0, 2, 1)), pull)

    @property
    def total(self) -> tuple[Float, Float]:
        """Sums over steps."""
        return self.gram.sum(axis=0), self.pull.sum(axis=0)


def positive(gram: Float) -> Float:
    """Crossed products of noise may be negative: what they do not tell, they do not exclude."""
    values, vectors = np.linalg.eigh(gram)
    floor = 1e-3 * max(float(values[-1]), 1e-300)
    return np.asarray((vectors * np.maximum(values, floor)) @ vectors.T)
