"""Posterior of the weights when the scale of their prior is not known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from logel.types import Float


@dataclass(frozen=True, eq=False)
class WeightPosterior:
    """Posterior of the weights with their prior scale integrated out: a mixture of Gaussians.

    A point estimate of the scale collapses when the weights are weakly determined. Instead, each
    scale of a grid counts with its evidence, under a flat prior on the standard deviation.

    Attributes:
        axes: Eigenvectors of the likelihood's information, columns, shape (q, q).
        means: Mean along each axis for every scale, shape (g, q).
        deviations: Standard deviation along each axis for every scale, shape (g, q).
        shares: Probability of every scale, shape (g,).
        scale: Geometric mean of the scale (a variance).
    """

    axes: Float
    means: Float
    deviations: Float
    shares: Float
    scale: float

    @property
    def mean(self) -> Float:
        """Posterior mean, shape (q,): optimal to plan with, since values are linear in it."""
        return np.asarray(self.axes @ (self.shares @ self.means))

    def draw(self, n: int, rng: np.random.Generator) -> Float:
        """Independent draws of the weights, shape (n, q)."""
        chosen = rng.choice(len(self.shares), size=n, p=self.shares)
        noise = rng.standard_normal((n, self.means.shape[1]))
        return np.asarray((self.means[chosen] + noise * self.deviations[chosen]) @ self.axes.T)


def weight_posterior(weights: Float, covariance: Float, scale: float) -> WeightPosterior:
    """Integrate out the weights' prior scale.

    Args:
        weights: Posterior mean under a prior of variance `scale`, shape (q,).
        covariance: Posterior covariance under it, shape (q, q).
        scale: That prior variance.
    """
    precision, axes = np.linalg.eigh(np.linalg.inv((covariance + covariance.T) / 2))
    information = np.maximum(precision - 1 / scale, 1e-9 * precision.max())
    linear = precision * (axes.T @ weights)
    largest = max(float((linear**2 / information**2).max()), 1 / float(information.max()))
    grid = np.geomspace(1e-2 / float(information.max()), 1e3 * largest, 80)[:, None]
    total = information + 1 / grid
    evidence = 0.5 * (linear**2 / total - np.log1p(grid * information)).sum(axis=1)
    logs = evidence + 0.5 * np.log(grid[:, 0])
    shares = np.exp(logs - logs.max())
    shares /= shares.sum()
    return WeightPosterior(
        axes=axes,
        means=linear / total,
        deviations=1 / np.sqrt(total),
        shares=shares,
        scale=float(np.exp(shares @ np.log(grid[:, 0]))),
    )
