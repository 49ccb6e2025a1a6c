"""From stages to one update rule's account of all steps.

The parts the two-step inference and the streaming observer share: what remains of a stage once it
is cloned, the steps between stages in a metric, their solution, and its spread over replicates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from logel.data.stage import Stage
from logel.inference.gauge import Gauge, check_identified
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
from logel.inference.regress import Solution, Steps, objective, solve
from logel.inference.shrinkage import RateShrinkage, evidence_ridge, solve_shrunk
from logel.inference.spread import (
    StageSample,
    bootstrap_weights,
    influences,
    jackknife_weights,
    joined,
    recentred,
    spread_of,
    unexplained_covariance,
)
from logel.policies.base import Policy
from logel.policies.cloning import Clone
from logel.policies.fisher import Fisher, ProductFisher
from logel.rules.updates import Candidate, Learner, held_out_gains, natural
from logel.types import Float, Progress
from logel.worlds.own_episodes import StageJacobian, stage_jacobian


@dataclass(frozen=True, eq=False)
class StageRecord:
    """What remains of a stage once it is cloned and its Jacobian estimated.

    Attributes:
        parameters: Shape (d,).
        jacobian: By groups of episodes.
        fisher: Information about the parameters in the stage's data; None if nothing needs it.
        n_rows: Number of environment steps behind it.
        clone: None when the parameters are known.
        strength: Precision of the cloning prior.
    """

    parameters: Float
    jacobian: StageJacobian
    fisher: Fisher | None
    n_rows: int
    clone: Clone | None
    strength: float

    @property
    def dense(self) -> bool:
        """Whether matrices of order d are within reach."""
        return self.fisher is not None and not isinstance(self.fisher, ProductFisher)

    @cached_property
    def covariance(self) -> Float:
        """Of the cloned parameters, shape (d, d)."""
        assert self.fisher is not None
        return self.fisher.solve(np.eye(len(self.parameters)), ridge=self.strength)

    @cached_property
    def information(self) -> LowRank:
        """Of the cloned parameters, prior included."""
        assert self.fisher is not None
        return sketch(self.fisher, ridge=self.strength)

    def sample(self, design: StageJacobian, method: Method, n_groups: int) -> StageSample:
        """The stage by groups of episodes, with the design an update rule makes of it.

        With fewer than three groups nothing can be said about single ones.
        """
        if n_groups < 3:
            return StageSample(self.parameters, design)
        design = design.regrouped(n_groups)
        if self.clone is None:
            return StageSample(self.parameters, design)
        leave_out = method.uncertainty == "jackknife"
        influence = influences(self.clone, design, strength=self.strength, leave_out=leave_out)
        return StageSample(self.parameters, design, influence)


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
    """Estimate the Jacobian of a stage with features, and keep what the steps need."""
    jacobian = stage_jacobian(
        policy,
        parameters,
        stage,
        gamma=gamma,
        estimator=method.estimator,
        baseline=method.baseline,
        n_groups=n_groups,
    )
    fisher = None if cloned is None else cloned.fisher
    if fisher is None and (method.metric == "noise" or method.learner is not Learner.GRADIENT):
        fisher = policy.fisher(policy.tensor(parameters), policy.prepare(stage)[0])
    return StageRecord(
        parameters, jacobian, fisher, stage.n_steps, cloned, method.clone.prior_strength
    )


@dataclass(frozen=True, eq=False)
class Update:
    """A stage's Jacobian as an update rule takes it, and the shape of the noise it passes on.

    Attributes:
        design: P @ Jacobian, by groups of episodes.
        noise: P F P / N, shape (d, d); None where that is out of reach.
    """

    design: StageJacobian
    noise: Float | None


def stage_update(record: StageRecord, learner: Learner) -> Update:
    """The update of one stage by itself: gradient or natural gradient."""
    per_row = None
    if record.dense:
        assert record.fisher is not None
        per_row = record.fisher.dense() / record.n_rows
    if learner is not Learner.NATURAL:
        return Update(record.jacobian, per_row)
    assert record.fisher is not None
    design = natural(record.jacobian, record.fisher, n_rows=record.n_rows, ridge=record.strength)
    if per_row is not None:
        inverse = record.n_rows * record.covariance
        per_row = inverse @ per_row @ inverse
    return Update(design, per_row)


def step_metrics(
    before: StageRecord, after: StageRecord, update: Update, method: Method
) -> list[Metric]:
    """The metric of one step, or one for every noise level to choose from."""
    known = before.clone is None
    if method.metric == "identity" or (known and (method.metric == "fisher" or not before.dense)):
        return [IdentityMetric()]
    if not before.dense:
        return [LowRankMetric(before.information, after.information)]
    clones = None if known else before.covariance + after.covariance
    levels = noise_levels(method, known=known)
    return [dense_metric(clones, update.noise, level, len(before.parameters)) for level in levels]


def noise_levels(method: Method, *, known: bool) -> tuple[NoiseLevel, ...]:
    """What a dense metric may be made of."""
    if method.metric == "fisher":
        return (NoiseLevel(),)
    return KNOWN_LEVELS if known else CLONED_LEVELS


def solve_steps(
    steps: Steps,
    rates: Float | None,
    method: Method,
    *,
    ridge: float | None = None,
    tolerance: float = 1e-13,
) -> tuple[Solution, float]:
    """Weights and rates of compressed steps, and the ridge that was used."""
    if ridge is None and isinstance(method.ridge, str):
        # Rates move little once the ridge is about right.
        assumed = np.ones(steps.n_steps) if rates is None else rates
        for _ in range(1 if method.shared_rate or rates is not None else 3):
            ridge = evidence_ridge(steps, assumed)
            assumed = solve_steps(steps, rates, method, ridge=ridge)[0].learning_rates
    penalty = float(method.ridge) if ridge is None else ridge
    shrink = method.rate_shrinkage
    if rates is None and not method.shared_rate and shrink is not RateShrinkage.NONE:
        return solve_shrunk(
            steps,
            towards=RateShrinkage(shrink),
            ridge=penalty,
            nonnegative=method.nonnegative,
            epsilon=method.epsilon,
            max_iterations=method.max_iterations,
            tolerance=tolerance,
        ), penalty
    return solve(
        steps,
        rates,
        ridge=penalty,
        nonnegative=method.nonnegative,
        shared_rate=method.shared_rate,
        epsilon=method.epsilon,
        max_iterations=method.max_iterations,
        tolerance=tolerance,
    ), penalty


@dataclass(frozen=True, eq=False)
class Account:
    """One update rule's account of all steps, at one noise level.

    Attributes:
        steps: Compressed, in the coordinates of `basis`; with noise if it is to be subtracted.
        noise: Expected noise of the steps' Gram matrices, (m, k + 1, k + 1), or None.
        log_determinants: Of the movements' covariances, shape (m,).
        basis: Columns of weight space, shape (q, k).
        solution: In the coordinates of `basis`.
        ridge: The penalty it was solved with.
        level: Index of the noise level.
    """

    steps: Steps
    noise: Float | None
    log_determinants: Float
    basis: Float
    solution: Solution
    ridge: float
    level: int = 0

    @classmethod
    def of(
        cls,
        steps: Steps,
        log_determinants: Float,
        basis: Float,
        rates: Float | None,
        method: Method,
        level: int = 0,
    ) -> Account:
        """Solve the steps, which carry their noise if groups of episodes show it."""
        noise = steps.noise
        if not method.debias:
            steps = replace(steps, noise=None)
        solution, ridge = solve_steps(steps, rates, method)
        return cls(steps, noise, log_determinants, basis, solution, ridge, level)

    def uncorrected(self, rates: Float | None, method: Method) -> Account:
        """The same steps solved without subtracting their noise."""
        steps = replace(self.steps, noise=None)
        solution, ridge = solve_steps(steps, rates, method)
        return replace(self, steps=steps, solution=solution, ridge=ridge)

    @property
    def log_likelihood(self) -> float:
        """Of the movements at the solution, the scale of the covariance put where it is largest."""
        n = self.steps.n_steps * self.steps.n_parameters
        plain = replace(self.steps, noise=None)
        rest = objective(plain, self.solution.weights, self.solution.learning_rates)
        return float(-0.5 * (n * np.log(max(rest, 1e-300) / n) + self.log_determinants.sum()))

    @property
    def weights(self) -> Float:
        """Of the features, not normalised."""
        return np.asarray(self.basis @ self.solution.weights)

    def candidate(self, rates: Float | None) -> Candidate:
        """The steps for held-out comparison; known rates go into the design."""
        steps = self.steps
        if rates is not None:
            steps = replace(steps, design=rates[:, None, None] * steps.design)
        return Candidate(replace(steps, noise=None), self.log_determinants)


def best_level(accounts: Sequence[Account]) -> Account:
    """The noise level under which the movements are most likely."""
    if len(accounts) == 1:
        return accounts[0]
    return max(accounts, key=lambda account: account.log_likelihood)


def gains_over_nothing(
    accounts: Mapping[str, Account], rates: Float | None, method: Method
) -> dict[str, float]:
    """Held-out log-likelihood of every update rule, relative to a learner that wants nothing."""
    candidates = {name: account.candidate(rates) for name, account in accounts.items()}
    if min(candidate.steps.n_steps for candidate in candidates.values()) < 2:
        return {}
    inner = method if rates is None else replace(method, shared_rate=True)
    return held_out_gains(candidates, lambda steps: solve_steps(steps, None, inner)[0])


def replicate_weights(method: Method, n_groups: int, t: int, seed: int) -> Float:
    """Weights of the groups of stage t in every replicate, shape (n, n_groups)."""
    if method.uncertainty == "jackknife":
        return jackknife_weights(n_groups)
    # Stages are resampled by themselves, unless their episodes also serve their neighbours.
    stream = [seed, t] if method.neighbours == 0 else [seed]
    return bootstrap_weights(n_groups, method.n_draws, np.random.default_rng(stream))


def replicated(
    steps: Sequence[Sequence[Steps]],
    account: Account,
    rates: Float | None,
    method: Method,
    *,
    known: bool,
    own_rates: Float | None = None,
    report: Progress | None = None,
) -> Settled:
    """Solve every replicate's steps as the estimate was.

    Args:
        steps: Of every replicate, in the coordinates of the account's basis; with noise if the
            method may subtract it.
        account: Of the episodes as they are.
        rates: Those of the steps, if they are not to be found.
        method: The method; "auto" has the choice between subtracting noise or not.
        known: Whether rates are known, and give the weights a scale.
        own_rates: Known rates of the account's steps, if they are not those of the replicates'.
        report: Called with (what, done, total).
    """

    def solved(account: Account, *, plain: bool) -> Float:
        found = []
        for mine in steps:
            together = joined(mine)
            if plain:
                together = replace(together, noise=None)
            again, _ = solve_steps(together, rates, method, ridge=account.ridge, tolerance=1e-8)
            found.append(normalised(account.basis @ again.weights, known=known)[0])
            if report is not None:
                report("intervals", len(found), len(steps))
        return np.stack(found)

    nothing = np.zeros(len(account.basis))
    first = Settled(account, solved(account, plain=False), nothing)
    if method.debias != "auto" or account.steps.noise is None:
        return first
    folded = rates is not None and len(rates) != account.steps.n_steps
    plain = account.uncorrected(own_rates if folded else rates, method)
    return settled(first, plain, solved(plain, plain=True), method, known=known)


def normalised(weights: Float, *, known: bool) -> tuple[Float, float]:
    """Unit weights, unless known rates give them a scale; and the size they had."""
    size = float(np.linalg.norm(weights))
    if known or size == 0:
        return weights, 1.0
    return weights / size, size


@dataclass(frozen=True, eq=False)
class Settled:
    """An account with its replicates, and what bias it is taken to have.

    Attributes:
        account: The account.
        replicates: Normalised weights of every replicate, shape (n, q).
        bias: Of the normalised weights, as far as it can be told from noise, shape (q,).
    """

    account: Account
    replicates: Float
    bias: Float

    @classmethod
    def alone(cls, account: Account) -> Settled:
        """Without replicates."""
        q = len(account.basis)
        return cls(account, np.zeros((0, q)), np.zeros(q))


def settled(
    corrected: Settled, account: Account, replicates: Float, method: Method, *, known: bool
) -> Settled:
    """Choose between an account with noise subtracted, and one without, by their expected error.

    The corrected weights count as unbiased. The others are biased by the difference, as far as
    that exceeds its own sampling noise. Both errors are rough, and the corrected weights' is the
    rougher: they have to promise half of the other's.
    """
    leave_out = method.uncertainty == "jackknife"
    first, second = (normalised(a.weights, known=known)[0] for a in (corrected.account, account))
    gap = second - first
    noise = np.trace(spread_of(replicates - corrected.replicates, leave_out=leave_out))
    squared = float(gap @ gap)
    bias = gap * np.sqrt(max(0.0, 1 - noise / squared)) if squared > 0 else gap
    error = np.trace(spread_of(replicates, leave_out=leave_out)) + bias @ bias
    if 2 * np.trace(spread_of(corrected.replicates, leave_out=leave_out)) <= error:
        return corrected
    return Settled(account, replicates, bias)


@dataclass(frozen=True, eq=False)
class Spread:
    """Uncertainty of the weights: covariance (q, q), its degrees of freedom, draws (n, q)."""

    covariance: Float
    degrees_of_freedom: int
    draws: Float | None


def spread_from(found: Settled, rates: Float | None, method: Method, seed: int) -> Spread:
    """Uncertainty from replicates, remaining bias, and movement that stays unexplained."""
    known, account, replicates = rates is not None, found.account, found.replicates
    weights, size = normalised(account.weights, known=known)
    leave_out = method.uncertainty == "jackknife"
    covariance = spread_of(replicates, leave_out=leave_out)
    draws = None if leave_out else recentred(replicates, weights, unit=not known)
    extra = np.outer(found.bias, found.bias)
    if method.process_noise and account.noise is not None:
        plain = replace(account.steps, noise=None)
        left = unexplained_covariance(plain, account.noise, account.solution, account.ridge)
        # Normalising removes what points along the weights themselves.
        turn = account.basis
        if not known:
            turn = (turn - np.outer(weights, weights @ turn)) / size
        extra = extra + turn @ left @ turn.T
    if extra.any():
        covariance = covariance + extra
        if draws is not None:
            values, vectors = np.linalg.eigh(extra)
            rng = np.random.default_rng([seed, 0, 1])
            noise = rng.standard_normal(draws.shape) * np.sqrt(np.clip(values, 0, None))
            draws = recentred(draws + noise @ vectors.T, weights, unit=not known)
    return Spread(covariance, len(replicates) - 1 if leave_out else 0, draws)


def basis_of(gauge: Gauge, method: Method) -> Float:
    """Where to solve: the identified subspace, so that no weight is spent without effect."""
    check_identified(gauge)
    # Non-negativity is about the features themselves: a rotated basis would lose it.
    return np.eye(len(gauge.feature_names)) if method.nonnegative else gauge.identified
