"""How far the weights would move if other episodes had been seen.

One mechanism for jackknife and bootstrap: groups of episodes get other weights, the cloned
parameters take one Newton step to where these would have put them, the Jacobians are averaged
again, and the weights are solved again. The same episodes feed cloning and Jacobians, so weighing
them alike in both keeps the correlation between the two.

* Jackknife: each group is left out of every stage in turn.
* Bootstrap: in every stage by itself, groups are drawn with replacement.

It accounts for the sampling noise of the observed episodes. It does not see noise that the
episodes do not show, such as a learner whose own gradient estimates are noisy: what a fit leaves
unexplained beyond the episodes' noise does (`unexplained_covariance`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from logel.inference.noise import Metric
from logel.inference.regress import Solution, Steps
from logel.policies.cloning import Clone
from logel.policies.fisher import ProductFisher
from logel.types import Float
from logel.worlds.own_episodes import StageJacobian


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


@dataclass(frozen=True, eq=False)
class StageSample:
    """One stage as its episodes show it: parameters and design, and each group's part in them.

    Attributes:
        parameters: Shape (d,).
        design: Jacobian, as the update rule takes it, by groups of episodes.
        influence: What one more unit of weight on a group does to the parameters, shape (g, d);
            None when they are known.
    """

    parameters: Float
    design: StageJacobian
    influence: Float | None = None

    @property
    def n_groups(self) -> int:
        """Number g of groups of episodes."""
        return len(self.design.group_weights)

    def reweighted(self, weights: Float) -> tuple[Float, Float]:
        """Parameters (d,) and design (d, q) if the groups had other weights, shape (g,)."""
        change, design = weights - 1, self.design
        parameters = self.parameters
        if self.influence is not None:
            parameters = parameters + change @ self.influence
        parts = design.group_weights[:, None, None] * design.groups
        total = 1 + change @ design.group_weights
        return parameters, (design.mean + np.tensordot(change, parts, 1)) / total

    def shares(self, weights: Float | None) -> Float:
        """Share of each group in a reweighted sample, shape (g,)."""
        shares = self.design.group_weights
        if weights is None:
            return shares
        return np.asarray(weights * shares / (weights @ shares))

    def errors(self) -> Float:
        """Deviation of each group's [design, parameters] from the whole, shape (g, d, q + 1)."""
        design = self.design
        moved = np.zeros((self.n_groups, len(self.parameters)))
        if self.influence is not None:
            moved = self.influence / design.group_weights[:, None]
            moved = moved - self.influence.sum(axis=0)
        return np.concatenate([design.groups - design.mean, moved[:, :, None]], axis=2)


def influences(clone: Clone, jacobian: StageJacobian, *, strength: float, leave_out: bool) -> Float:
    """Newton step of cloned parameters per unit weight of each group, shape (g, d).

    Networks take the diagonal of the information alone: a full step would need thousands of
    products with it, and leave the region in which it says anything.

    Args:
        clone: The stage's clone; its information is that of all groups.
        jacobian: Has the score of each group at the clone.
        strength: Precision of the cloning prior.
        leave_out: Whether the weights to come leave out one group each. The information is then
            about that of the kept ones.
    """
    kept = 1 - jacobian.group_weights if leave_out else np.ones(len(jacobian.group_weights))
    scores, ridge = jacobian.score_sums / kept[:, None], strength / float(kept.mean())
    if isinstance(clone.fisher, ProductFisher):
        return np.asarray(scores / (clone.fisher.diagonal() + ridge))
    return np.asarray(clone.fisher.solve(scores.T, ridge=ridge).T)


@dataclass(frozen=True, eq=False)
class NoiseParts:
    """What each group of episodes adds to the noise in one step's Gram matrix of [design, delta].

    Attributes:
        before: Of the step's first stage, shape (g, q + 1, q + 1).
        after: Of the second stage, which enters the movement alone, shape (g',).
    """

    before: Float
    after: Float

    @classmethod
    def of(cls, before: StageSample, after: StageSample, metric: Metric) -> NoiseParts:
        """From two neighbouring stages and the metric of the step between them."""
        errors = before.errors()
        errors[:, :, -1] *= -1
        moved = after.errors()[:, :, -1:]
        corner = np.zeros(len(moved))
        if after.influence is not None:
            corner = metric.grams(moved)[:, 0, 0]
        # Deviations from the mean of the sample are smaller than those from the true one.
        first, second = (1 - (s.design.group_weights**2).sum() for s in (before, after))
        return cls(metric.grams(errors) / first, corner / second)

    def total(self, before: Float, after: Float) -> Float:
        """Expected noise for these shares of the groups of both stages, shape (q + 1, q + 1)."""
        result = np.tensordot(before**2, self.before, 1)
        result[-1, -1] += after**2 @ self.after
        return np.asarray(result)


def step_between(
    before: StageSample,
    after: StageSample,
    metric: Metric,
    *,
    basis: Float,
    weights: tuple[Float, Float] | None = None,
    parts: NoiseParts | None = None,
) -> Steps:
    """The compressed step between two stages, seen through other weights of their episodes.

    Args:
        before: The earlier stage.
        after: The later one.
        metric: Of the movement between them.
        basis: Columns of weight space to solve in, shape (q, k).
        weights: Of the groups of both stages; None for the episodes as they are.
        parts: Given, the step carries the noise it expects.
    """
    start, design = before.parameters, before.design.mean
    end = after.parameters
    if weights is not None:
        start, design = before.reweighted(weights[0])
        end, _ = after.reweighted(weights[1])
    step = metric.compress(end - start, design @ basis)
    if parts is None:
        return step
    mine = (None, None) if weights is None else weights
    noise = parts.total(before.shares(mine[0]), after.shares(mine[1]))
    wide = np.zeros((basis.shape[0] + 1, basis.shape[1] + 1))
    wide[:-1, :-1], wide[-1, -1] = basis, 1.0
    return replace(step, noise=(wide.T @ noise @ wide)[None])


def joined(steps: Sequence[Steps]) -> Steps:
    """Several single steps as one object."""
    noise = [s.noise for s in steps if s.noise is not None]
    return Steps(
        design=np.concatenate([s.design for s in steps]),
        delta=np.concatenate([s.delta for s in steps]),
        n_parameters=steps[0].n_parameters,
        squared_movement=np.concatenate([s.squared_movement for s in steps]),
        noise=np.concatenate(noise) if noise else None,
    )


def spread_of(replicates: Float, *, leave_out: bool) -> Float:
    """Covariance (q, q) from the weights of all replicates, shape (n, q)."""
    spread = replicates - np.mean(replicates, axis=0)
    n = len(replicates)
    factor = (n - 1) / n if leave_out else 1 / (n - 1)
    return np.asarray(factor * spread.T @ spread)


def recentred(replicates: Float, weights: Float, *, unit: bool) -> Float:
    """Draws around the estimate from bootstrap replicates, shape (n, q).

    Resampling adds noise to noise, so replicates are off by the estimate's own bias once more:
    their middle is moved back to where the estimate is.
    """
    draws = replicates - replicates.mean(axis=0) + weights
    if not unit:
        return draws
    norms = np.linalg.norm(draws, axis=1, keepdims=True)
    return np.asarray(draws / np.where(norms > 0, norms, 1.0))


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
    scaled = -solution.learning_rates[:, None] * solution.weights
    contrast = np.concatenate([scaled, np.ones((steps.n_steps, 1))], axis=1)
    residual = np.einsum("mi,mij,mj->m", contrast, steps.grams(), contrast)
    expected = np.einsum("mi,mij,mj->m", contrast, noise, contrast)
    freedom = max(steps.n_steps * steps.n_parameters - steps.n_features, 1)
    variance = max(float((residual - expected).sum()), 0.0) / freedom
    scaled_design = solution.learning_rates[:, None, None] * steps.design
    normal = np.einsum("mri,mrj->ij", scaled_design, scaled_design)
    inverse = np.linalg.pinv(normal + ridge * np.eye(len(normal)), hermitian=True)
    return np.asarray(variance * inverse @ normal @ inverse)
