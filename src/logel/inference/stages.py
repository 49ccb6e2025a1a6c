"""What remains of a stage in parameter space, and the step between two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from logel.data.limits import ask_memory
from logel.data.stage import Stage
from logel.inference.arrow import SOME_ROWS
from logel.inference.method import Method
from logel.inference.noise import (
    CLONED_LEVELS,
    KNOWN_LEVELS,
    IdentityMetric,
    LowRank,
    LowRankMetric,
    Metric,
    NoiseLevel,
    dense_metric,
    sketch,
)
from logel.inference.steps import Steps, joined
from logel.policies.base import Policy
from logel.policies.cloning import Clone
from logel.policies.fisher import Fisher
from logel.types import Array, Float
from logel.worlds.own_episodes import StageJacobian, stage_jacobian


@dataclass(frozen=True, eq=False)
class StageSample:
    """One stage as its episodes show it: parameters and design, and each group's part in them.

    Attributes:
        parameters: Shape (d,).
        design: Jacobian by groups of episodes.
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
        design = self.design
        change = (weights - 1) * design.group_weights
        mean = (design.mean + np.tensordot(change, design.groups, 1)) / (1 + change.sum())
        return self.moved(weights), mean

    def moved(self, weights: Float) -> Float:
        """The parameters alone, shape (d,)."""
        if self.influence is None:
            return self.parameters
        return self.parameters + (weights - 1) @ self.influence

    def shares(self, weights: Float) -> Float:
        """Share of each group in a reweighted sample, shape (g,)."""
        shares = self.design.group_weights
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
    if not clone.fisher.dense_affordable:
        return np.asarray(scores / (clone.fisher.diagonal() + ridge))
    return np.asarray(clone.fisher.solve(scores.T, ridge=ridge).T)


@dataclass(frozen=True, eq=False)
class StageRecord:
    """What remains of a stage once it is cloned and its Jacobian estimated.

    Attributes:
        sample: Parameters and Jacobian, by groups of episodes.
        fisher: Information about the parameters in the stage's data; None if nothing needs it.
        n_rows: Number of environment steps behind it.
        clone: None when the parameters are known.
        strength: Precision of the cloning prior.
        seen: Some of its observations.
    """

    sample: StageSample
    fisher: Fisher | None
    n_rows: int
    clone: Clone | None
    strength: float
    seen: Array

    @property
    def dense(self) -> bool:
        """Whether matrices of order d are within reach."""
        return self.fisher is not None and self.fisher.dense_affordable

    @cached_property
    def covariance(self) -> Float:
        """Of the cloned parameters, shape (d, d)."""
        assert self.fisher is not None
        d = len(self.sample.parameters)
        ask_memory(2 * 8 * d**2, f"the covariance of {d} parameters (method paper needs none)")
        return self.fisher.solve(np.eye(d), ridge=self.strength)

    @cached_property
    def information(self) -> LowRank:
        """Of the cloned parameters, prior included."""
        assert self.fisher is not None
        return sketch(self.fisher, ridge=self.strength)


def record_stage(
    stage: Stage,
    policy: Policy,
    parameters: Float,
    cloned: Clone | None,
    method: Method,
    *,
    gamma: float,
    n_groups: int,
) -> StageRecord:
    """Estimate the Jacobian of a stage with features, and keep what the steps need.

    With fewer than three groups of episodes nothing can be said about single ones.
    """
    jacobian = stage_jacobian(
        policy,
        parameters,
        stage,
        gamma=gamma,
        estimator=method.estimator,
        baseline=method.baseline,
        n_groups=max(n_groups, 1),
    )
    fisher = None if cloned is None else cloned.fisher
    if fisher is None and method.metric == "noise":
        fisher = policy.fisher(policy.tensor(parameters), policy.prepare(stage)[0])
    strength, influence = method.clone.prior_strength, None
    if cloned is not None and n_groups > 2:
        leave_out = method.uncertainty == "jackknife"
        influence = influences(cloned, jacobian, strength=strength, leave_out=leave_out)
    sample = StageSample(parameters, jacobian, influence)
    seen = stage.observations[:SOME_ROWS].copy()
    return StageRecord(sample, fisher, stage.n_steps, cloned, strength, seen)


def step_metrics(before: StageRecord, after: StageRecord, method: Method) -> list[Metric]:
    """The metric of one step, or one for every noise level to choose from."""
    known = before.clone is None
    if method.metric == "identity" or (known and (method.metric == "fisher" or not before.dense)):
        return [IdentityMetric()]
    if not before.dense:
        return [LowRankMetric(before.information, after.information)]
    assert before.fisher is not None
    clones = None if known else before.covariance + after.covariance
    gradient = before.fisher.dense() / before.n_rows
    d = len(before.sample.parameters)
    return [dense_metric(clones, gradient, level, d) for level in _levels(method, known=known)]


def _levels(method: Method, *, known: bool) -> tuple[NoiseLevel, ...]:
    """What a dense metric may be made of."""
    if method.metric == "fisher":
        return (NoiseLevel(),)
    return KNOWN_LEVELS if known else CLONED_LEVELS


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


Weights = tuple[Float, Float]
"""Of the groups of the two stages that a step joins, in one replicate of their episodes."""
# Replicates whose designs are held at once: all ten of a jackknife, a few of a bootstrap's.
_AT_ONCE = 16


def step_between(
    before: StageSample, after: StageSample, metric: Metric, *, parts: NoiseParts | None = None
) -> Steps:
    """The compressed step between two stages; given their parts, with the noise it expects."""
    step = metric.compress((after.parameters - before.parameters)[None], before.design.mean[None])
    if parts is None:
        return step
    noise = parts.total(before.design.group_weights, after.design.group_weights)
    return replace(step, noise=noise[None])


def replicated_steps(
    before: StageSample,
    after: StageSample,
    metrics: Sequence[Metric],
    *,
    weights: Sequence[Weights],
    parts: Sequence[NoiseParts | None],
) -> list[Steps]:
    """The step in all replicates, for each metric (and its parts): as many entries as weights."""
    found: list[list[Steps]] = [[] for _ in metrics]
    for i in range(0, len(weights), _AT_ONCE):
        block = weights[i : i + _AT_ONCE]
        starts, designs = zip(*(before.reweighted(first) for first, _ in block), strict=True)
        delta = np.stack([after.moved(second) for _, second in block]) - np.stack(starts)
        design = np.stack(designs)
        shares = [(before.shares(first), after.shares(second)) for first, second in block]
        for mine, metric, part in zip(found, metrics, parts, strict=True):
            noise = None if part is None else np.stack([part.total(*both) for both in shares])
            mine.append(replace(metric.compress(delta, design), noise=noise))
    return [joined(mine) for mine in found]
