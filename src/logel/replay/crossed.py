"""Products of movements on disjoint halves of episodes, in units of what the halves differ by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from logel.types import Float

# Of the largest variance of the noise: what counts in every direction. Less would be known from
# more draws; movements of few draws lie in no other direction than theirs.
_FLOOR, _RANK = 0.02, 40
# Variance of the noise of a step's direction below which it does not count for more: some steps
# are hardly noisy, and all else would drown in them.
_LEAST = 0.1
# The most that a round may shift the weights by, relative to their length.
_MOST = 0.8
# Precision that weights are guessed small with: what no step tells has a deviation of .7, relative
# to the others' length. And that of the log of the reward's scale.
SMALL, SCALE_PRECISION = 2.0, 2.0


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
    """Of columns X = (movement at the centre, effects) and the observed steps, by step.

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

    def turned(self, turn: Float) -> Moments:
        """Of columns that are linear combinations (c, c) of ours."""
        return Moments(turn @ self.gram @ turn.T, self.pull @ turn.T)

    @property
    def total(self) -> tuple[Float, Float]:
        """Sums over steps."""
        return self.gram.sum(axis=0), self.pull.sum(axis=0)

    @property
    def curvature(self) -> Float:
        """Of effects across the movement at the centre, (q, q), in units of what is explained."""
        gram = positive(self.total[0])
        across = gram[1:, 1:] - np.outer(gram[1:, 0], gram[0, 1:]) / gram[0, 0]
        return np.asarray(self.length**2 * across)

    @property
    def length(self) -> float:
        """Of the steps along the movement at the centre."""
        gram, pull = self.total
        return float(np.clip(pull[0] / max(float(gram[0, 0]), 1e-300), 0.0, 2.0))

    @property
    def scores(self) -> Float:
        """What every step says about the effects at the centre, (m, q)."""
        return self.length * (self.pull - self.length * self.gram[:, 0])[:, 1:]

    @property
    def knowledge(self) -> float:
        """By how much curvature is information: steps say so by how they disagree."""
        scores = self.scores
        # At the centre itself they need not sum to nothing.
        apart = scores - scores.mean(axis=0)
        power = float((apart**2).sum()) * len(scores) / max(len(scores) - 1, 1)
        return float(np.clip(np.trace(self.curvature) / max(power, 1e-300), 0.1, 1e6))


def positive(gram: Float) -> Float:
    """Crossed products of noise may be negative: what they do not tell, they do not exclude."""
    values, vectors = np.linalg.eigh(gram)
    floor = 1e-3 * max(float(values[-1]), 1e-300)
    return np.asarray((vectors * np.maximum(values, floor)) @ vectors.T)


def best_shift(moments: Moments, start: Float | None = None) -> Float:
    """The shift (q,) whose movements explain the steps best, of whatever length they are.

    With columns (movement at the centre, effects), maximises the correlation of the steps with
    columns @ (1, shift); of weights that explain as much, the smallest are taken.
    """
    gram, pull = moments.total
    gram, q, know = positive(gram), len(pull) - 1, moments.knowledge
    size = float(gram[0, 0])

    def lost(shift: Float) -> float:
        x = np.concatenate([[1.0], shift])
        moved = float(x @ gram @ x)
        gained = know * max(float(pull @ x), 0.0) ** 2 / moved
        small = SMALL * (1 + float(shift[:-1] @ shift[:-1])) * size / moved
        return 0.5 * (small + SCALE_PRECISION * float(shift[-1] ** 2) - gained)

    starts = [np.zeros(q) if start is None else start]
    linear = np.linalg.solve(gram, pull)
    if start is None and linear[0] > 0:
        shift = linear[1:] / linear[0]
        starts.append(shift * min(1.0, _MOST / max(float(np.linalg.norm(shift)), 1e-300)))
    found = [minimize(lost, one, method="L-BFGS-B", bounds=[(-_MOST, _MOST)] * q) for one in starts]
    return np.asarray(min(found, key=lambda one: float(one.fun)).x)
