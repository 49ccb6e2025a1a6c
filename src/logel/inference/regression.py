"""All steps of parameters solved together: noise levels, noise subtracted or not, and spread."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from logel.inference.method import Method
from logel.inference.more_data import Planning
from logel.inference.regress import Solution, evidence_ridge, objective, solve
from logel.inference.spread import (
    Spread,
    recentred,
    spread_of,
    student_draws,
    unexplained_covariance,
)
from logel.inference.steps import Steps
from logel.rules.rates import Rates
from logel.types import Float


def solve_steps(
    steps: Steps,
    rates: Float | None,
    method: Method,
    *,
    ridge: float | None = None,
    tolerance: float = 1e-13,
) -> tuple[Solution, float]:
    """Weights and rates of compressed steps as a method wants them, and the ridge that was used."""
    shared = method.rates is Rates.SHARED
    if ridge is None and isinstance(method.ridge, str):
        # Rates move little once the ridge is about right.
        assumed = np.ones(steps.n_steps) if rates is None else rates
        for _ in range(1 if shared or rates is not None else 3):
            ridge = evidence_ridge(steps, assumed)
            assumed = solve_steps(steps, rates, method, ridge=ridge)[0].learning_rates
    penalty = float(method.ridge or 0.0) if ridge is None else ridge
    solution = solve(
        steps,
        rates,
        ridge=penalty,
        nonnegative=method.nonnegative,
        shared_rate=shared,
        epsilon=method.epsilon,
        max_iterations=method.max_iterations,
        tolerance=tolerance,
    )
    return solution, penalty


def normalised(weights: Float, *, known: bool) -> tuple[Float, float]:
    """Unit weights, unless known rates give them a scale; and the size they had."""
    size = float(np.linalg.norm(weights))
    if known or size == 0:
        return weights, 1.0
    return weights / size, size


@dataclass(frozen=True, eq=False)
class Regression:
    """All steps solved at one noise level.

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
    ) -> Regression:
        """Solve the steps, which carry their noise if groups of episodes show it."""
        noise = steps.noise
        if not method.debias:
            steps = replace(steps, noise=None)
        solution, ridge = solve_steps(steps, rates, method)
        return cls(steps, noise, log_determinants, basis, solution, ridge, level)

    def uncorrected(self, rates: Float | None, method: Method) -> Regression:
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

    def normalised(self, *, known: bool) -> tuple[Float, float]:
        """The weights in their scale, and what they were divided by."""
        return normalised(self.weights, known=known)

    def noise_note(self) -> str:
        """What became of the Jacobians' noise."""
        if self.noise is None:
            return "Jacobian noise was not subtracted: every stage needs at least three episodes"
        if self.steps.noise is None:
            return (
                "the noise of the Jacobians was not subtracted: the weights would have spread more "
                "than they gained; intervals allow for the bias that remains"
            )
        if self.solution.share >= 1:
            return "the noise of the Jacobians was subtracted in full"
        return (
            f"only {self.solution.share:.0%} of the noise of the Jacobians could be subtracted in "
            "the noisiest direction of the weights: more episodes would tell"
        )


def less_error(
    corrected: Regression,
    corrected_replicates: Float,
    plain: Regression,
    plain_replicates: Float,
    method: Method,
    *,
    known: bool,
) -> tuple[Regression, Float, Float]:
    """Choose between weights with noise subtracted, and without, by their expected error.

    The corrected weights count as unbiased. The others are biased by the difference, as far as
    that exceeds its own sampling noise. Both errors are rough, and the corrected weights' is the
    rougher: they have to promise half of the other's.

    Returns:
        The choice, its replicates, and the bias it is taken to have.
    """
    leave_out = method.uncertainty == "jackknife"
    gap = plain.normalised(known=known)[0] - corrected.normalised(known=known)[0]
    noise = np.trace(spread_of(plain_replicates - corrected_replicates, leave_out=leave_out))
    squared = float(gap @ gap)
    bias = gap * np.sqrt(max(0.0, 1 - noise / squared)) if squared > 0 else gap
    error = np.trace(spread_of(plain_replicates, leave_out=leave_out)) + bias @ bias
    if 2 * np.trace(spread_of(corrected_replicates, leave_out=leave_out)) <= error:
        return corrected, corrected_replicates, np.zeros_like(bias)
    return plain, plain_replicates, bias


def spread_from(
    found: Regression, replicates: Float, bias: Float, method: Method, seed: int, *, known: bool
) -> Spread:
    """Uncertainty from replicates, remaining bias, and movement that stays unexplained."""
    weights, size = found.normalised(known=known)
    leave_out = method.uncertainty == "jackknife"
    sampling = spread_of(replicates, leave_out=leave_out)
    draws = None if leave_out else recentred(replicates, weights, unit=not known)
    learner = np.zeros_like(sampling)
    if method.process_noise and found.noise is not None:
        plain = replace(found.steps, noise=None)
        left = unexplained_covariance(plain, found.noise, found.solution, found.ridge)
        # Normalising removes what points along the weights themselves.
        turn = found.basis
        if not known:
            turn = (turn - np.outer(weights, weights @ turn)) / size
        learner = turn @ left @ turn.T
    extra = np.outer(bias, bias) + learner
    if draws is not None and extra.any():
        rng = np.random.default_rng([seed, 0, 1])
        noise = student_draws(np.zeros(len(weights)), extra, 0, len(draws), rng)
        draws = recentred(draws + noise, weights, unit=not known)
    freedom = len(replicates) - 1 if leave_out else 0
    planning = Planning.of(sampling + np.outer(bias, bias), learner)
    return Spread(sampling + extra, freedom, draws, planning)
