"""How far the weights would move if other episodes had been seen.

Groups of episodes get other weights, what was made of them is made again, and the weights are
solved again. The same episodes feed clones and designs, so weighing them alike in both keeps the
correlation between the two.

* Jackknife: each group is left out of every stage in turn.
* Bootstrap: in every stage by itself, groups are drawn with replacement.

It accounts for the sampling noise of the observed episodes. It does not see noise that the
episodes do not show, such as a learner whose own gradient estimates are noisy: what a fit leaves
unexplained beyond the episodes' noise does (`unexplained_covariance`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from logel.inference.more_data import Planning
from logel.inference.regress import Solution
from logel.inference.steps import Steps
from logel.types import Float


@dataclass(frozen=True, eq=False)
class Spread:
    """What is known of the uncertainty of weights.

    Attributes:
        covariance: Of the weights once they are normalised, (q, q); None where draws tell.
        freedom: Degrees of freedom of the covariance.
        draws: Of the weights in any scale, shape (n, q), or None.
        planning: What more data would do to the covariance of the normalised weights.
    """

    covariance: Float | None = None
    freedom: int = 0
    draws: Float | None = None
    planning: Planning | None = None


def jackknife_weights(n_groups: int) -> Float:
    """Each group left out in turn, shape (n_groups, n_groups)."""
    return 1 - np.eye(n_groups)


def bootstrap_weights(n_groups: int, n_draws: int, rng: np.random.Generator) -> Float:
    """Weights of n_draws resamples, shape (n_draws, n_groups).

    One group fewer is drawn than there are, and each counts for a little more: so the spread over
    draws estimates the variance without bias however few the groups (Rao and Wu's rescaling).
    """
    counts = rng.multinomial(n_groups - 1, np.full(n_groups, 1 / n_groups), size=n_draws)
    return np.asarray(counts * n_groups / (n_groups - 1), dtype=float)


def spread_of(replicates: Float, *, leave_out: bool = True) -> Float:
    """Covariance (q, q) from the weights of all replicates, shape (n, q).

    `leave_out`: each replicate is without one group (the jackknife), not a resample.
    """
    spread = replicates - np.mean(replicates, axis=0)
    n = len(replicates)
    factor = (n - 1) / n if leave_out else 1 / (n - 1)
    return np.asarray(factor * spread.T @ spread)


def variances(replicates: Float) -> Float:
    """Jackknife variance of each feature's column, summed over the basis, shape (q,)."""
    if len(replicates) < 2:
        return np.full(replicates.shape[-1], np.nan)
    spread = replicates - replicates.mean(axis=0)
    total = (spread**2).sum(axis=(0, 1))
    return np.where(total > 0, total, np.nan)


def recentred(replicates: Float, weights: Float, *, unit: bool) -> Float:
    """Draws around the estimate from bootstrap replicates, shape (n, q).

    Resampling adds noise to noise, so replicates are off by the estimate's own bias once more:
    their middle is moved back to where the estimate is.
    """
    draws = replicates - replicates.mean(axis=0) + weights
    return unit_rows(draws) if unit else draws


def unit_rows(draws: Float) -> Float:
    """Directions of draws, shape (n, q)."""
    norms = np.linalg.norm(draws, axis=1, keepdims=True)
    return np.asarray(draws / np.where(norms > 0, norms, 1.0))


def student_draws(
    mean: Float, covariance: Float, freedom: int, n: int, rng: np.random.Generator
) -> Float:
    """Draws from a multivariate Student distribution (normal for no freedom), shape (n, q)."""
    values, vectors = np.linalg.eigh(covariance)
    noise = rng.standard_normal((n, len(values))) * np.sqrt(np.clip(values, 0, None)) @ vectors.T
    if freedom > 0:
        noise = noise / np.sqrt(rng.chisquare(freedom, (n, 1)) / freedom)
    return np.asarray(mean + noise)


def unexplained_covariance(steps: Steps, noise: Float, solution: Solution, ridge: float) -> Float:
    """Covariance of the weights from movement that neither weights nor episodes' noise explain.

    Taken to be spread like the inverse metric, with the variance the residuals leave once the
    noise expected in them is subtracted. Rates count as given.

    Args:
        steps: The compressed steps.
        noise: Expected noise of their Gram matrices, shape (m, q + 1, q + 1).
        solution: In the steps' own coordinates.
        ridge: The penalty it was solved with.

    Returns:
        Shape (q, q), before any normalisation.
    """
    residual = contrasted(steps.grams(), solution.weights, solution.learning_rates)
    expected = contrasted(noise, solution.weights, solution.learning_rates)
    freedom = max(steps.n_steps * steps.n_parameters - steps.n_features, 1)
    variance = max(float((residual - expected).sum()), 0.0) / freedom
    scaled_design = solution.learning_rates[:, None, None] * steps.design
    normal = np.einsum("mri,mrj->ij", scaled_design, scaled_design)
    inverse = np.linalg.pinv(normal + ridge * np.eye(len(normal)), hermitian=True)
    return np.asarray(variance * inverse @ normal @ inverse)


def contrasted(grams: Float, weights: Float, rates: Float) -> Float:
    """Squares of delta - rate * design @ weights from Gram matrices (m, q + 1, q + 1), (m,)."""
    contrast = np.concatenate([-rates[:, None] * weights, np.ones((len(grams), 1))], axis=1)
    return np.einsum("mi,mij,mj->m", contrast, grams, contrast)
