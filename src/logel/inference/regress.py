"""Weights and learning rates from movements: closed forms and their alternation.

The problem, for steps t = 0..m-1 (NumPy and SciPy only; no trajectory ever enters here):

    minimise  sum_t || delta[t] - alpha[t] * design[t] @ weights ||^2_{M[t]}  + ridge ||weights||^2
    subject to alpha[t] >= epsilon

Identification: (alpha, weights) and (c alpha, weights / c) fit equally well, so with unknown rates
only the direction of the weights means something; the sign is fixed by alpha >= epsilon. Here the
scale is pinned by making the rates average one; callers normalise as they like.

Everything works on each step's triangular factor: an orthogonal change of coordinates takes a
step's (d, q + 1) numbers to (q + 1, q + 1) and leaves every residual norm as it is, so the
alternation costs nothing in d.

Noise in the design biases the closed forms: its square adds to the normal equations, and what it
shares with the movements to their right-hand side. Steps that carry an estimate of both (`noise`)
have it subtracted, as far as the equations stay positive definite.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.optimize

from logel.errors import IdentificationError, OptionError
from logel.types import Float

# Subtracting noise leaves at least this share of the normal equations in every direction: beyond
# it, an estimate would be mostly the error of the noise's own estimate.
NOISE_MARGIN = 0.1


class Status(enum.Enum):
    """How a solve ended; each value is a sentence that says what to do."""

    OK = "solved"
    RANK_DEFICIENT = (
        "solved, but some directions of the weights are not determined: the minimum-norm weights "
        "are given; see the gauge report"
    )
    UNEXPLAINED = (
        "solved, but a random walk explains the movement as well as any reward: do not trust these "
        "weights; watch more stages or episodes, or check features and learner"
    )
    NOT_CONVERGED = (
        "stopped before convergence: increase max_iterations (joint fits: the rounds in heats)"
    )
    RATES_AT_BOUND = (
        "solved, but every learning rate sits at its lower bound: the movement does not follow any "
        "reward of this form; check the learner model and the features"
    )


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a history in compressed form.

    Attributes:
        design: Triangular factors, shape (m, r, q) with r <= q + 1.
        delta: Matching movements, shape (m, r).
        n_parameters: The original d.
        squared_movement: ||delta[t]||^2 in the metric, shape (m,).
        noise: What sampling noise is expected to add to the Gram matrices of [design, delta],
            shape (m, q + 1, q + 1), for the closed forms to subtract; None to take the design as
            it is.
    """

    design: Float
    delta: Float
    n_parameters: int
    squared_movement: Float
    noise: Float | None = None

    @property
    def n_steps(self) -> int:
        """Number m of steps."""
        return self.design.shape[0]

    @property
    def n_features(self) -> int:
        """Number q of features."""
        return self.design.shape[2]

    def grams(self) -> Float:
        """Gram matrices of [design, delta] in the metric, shape (m, q + 1, q + 1)."""
        both = np.concatenate([self.design, self.delta[:, :, None]], axis=2)
        return np.asarray(np.swapaxes(both, 1, 2) @ both)

    def projected(self, basis: Float) -> Steps:
        """The same steps for weights `basis @ coordinates`; basis of shape (q, k)."""
        noise = None
        if self.noise is not None:
            wide = scipy.linalg.block_diag(basis, np.eye(1))
            noise = wide.T @ self.noise @ wide
        return replace(self, design=self.design @ basis, noise=noise)

    def take(self, steps: npt.NDArray[np.int64]) -> Steps:
        """Some of the steps, by index."""
        return replace(
            self,
            design=self.design[steps],
            delta=self.delta[steps],
            squared_movement=self.squared_movement[steps],
            noise=None if self.noise is None else self.noise[steps],
        )

    def merged(self, learning_rates: Float) -> Steps:
        """One step that stands for all of them at the given rates (at rate one)."""
        both = np.concatenate(
            [learning_rates[:, None, None] * self.design, self.delta[:, :, None]], axis=2
        )
        factor = np.asarray(np.linalg.qr(both.reshape(-1, both.shape[2]), mode="r"), dtype=float)
        noise = None
        if self.noise is not None:
            scale = np.repeat(learning_rates[:, None], both.shape[2], axis=1)
            scale[:, -1] = 1.0
            noise = (scale[:, :, None] * scale[:, None, :] * self.noise).sum(axis=0)[None]
        return Steps(
            design=factor[None, :, :-1],
            delta=factor[None, :, -1],
            n_parameters=self.n_parameters * self.n_steps,
            squared_movement=self.squared_movement.sum()[None],
            noise=noise,
        )


@dataclass(frozen=True, eq=False)
class Solution:
    """Weights and rates with what the solver saw.

    Attributes:
        weights: Shape (q,).
        learning_rates: Shape (m,).
        objective_trace: Value of the objective after every block update.
        rank: Numerical rank of the stacked, rate-scaled design.
        condition: Ratio of its largest to its smallest non-zero singular value.
        singular_values: Of the stacked, rate-scaled design, shape (min(rows, q),).
        iterations: Alternations made (0 when the rates were known).
        status: How it ended.
        share: Smallest share, over directions of the weights, of the steps' noise that could be
            subtracted; 1 when all of it was, or there was none to subtract.
    """

    weights: Float
    learning_rates: Float
    objective_trace: Float
    rank: int
    condition: float
    singular_values: Float
    iterations: int
    status: Status
    share: float = 1.0


def compress(
    delta: Float, design: Float, *, metric: Float | None = None, may_rest: bool = False
) -> Steps:
    """Bring each step to triangular form.

    Args:
        delta: Movements, shape (m, d).
        design: Shape (m, d, q).
        metric: How well delta is known, per step: None for the identity, (m, d) for a diagonal,
            (m, d, d) for a positive semi-definite matrix.
        may_rest: Accept steps none of which moves.
    """
    delta, design = np.asarray(delta, dtype=float), np.asarray(design, dtype=float)
    if delta.ndim != 2 or design.ndim != 3 or design.shape[:2] != delta.shape:
        raise OptionError(
            f"delta must be (m, d) and design (m, d, q), but are {delta.shape} and {design.shape}"
        )
    if not (np.isfinite(delta).all() and np.isfinite(design).all()):
        raise OptionError("delta and design must be finite")
    both = np.concatenate([design, delta[:, :, None]], axis=2)
    if metric is not None:
        both = _whiten(both, np.asarray(metric, dtype=float))
    squared = (both[:, :, -1] ** 2).sum(axis=1)
    if not (may_rest or (squared > 0).any()):
        raise IdentificationError(
            "the parameters do not move between stages: there is nothing to explain"
        )
    factor = np.asarray(np.linalg.qr(both, mode="r"), dtype=float)
    return Steps(
        design=factor[:, :, :-1],
        delta=factor[:, :, -1],
        n_parameters=delta.shape[1],
        squared_movement=squared,
    )


def compress_grams(grams: Float, *, n_parameters: int) -> Steps:
    """Steps known through their Gram matrices of [design, delta] in the metric.

    For metrics that can be multiplied with but have no root within reach. Half the digits of
    `compress` remain.

    Args:
        grams: Shape (m, q + 1, q + 1), positive semi-definite.
        n_parameters: The number d behind them.
    """
    scale = np.sqrt(np.maximum(np.einsum("mii->mi", grams), 0.0))
    safe = np.where(scale > 0, scale, 1.0)
    values, vectors = np.linalg.eigh(grams / safe[:, :, None] / safe[:, None, :])
    roots = np.sqrt(np.clip(values, 0, None))[:, :, None] * np.swapaxes(vectors, 1, 2)
    factor = np.asarray(np.linalg.qr(roots * scale[:, None, :], mode="r"), dtype=float)
    return Steps(
        design=factor[:, :, :-1],
        delta=factor[:, :, -1],
        n_parameters=n_parameters,
        squared_movement=scale[:, -1] ** 2,
    )


def _whiten(both: Float, metric: Float) -> Float:
    """Multiply every step by a square root of its metric."""
    if metric.shape == both.shape[:2]:
        if (metric < 0).any():
            raise OptionError("a diagonal metric must not be negative")
        return np.sqrt(metric)[:, :, None] * both
    if metric.shape == (*both.shape[:2], both.shape[1]):
        values, vectors = np.linalg.eigh(metric)
        floor = -1e-8 * np.abs(values).max(initial=0.0)
        if (values < floor).any():
            raise OptionError("the metric must be positive semi-definite")
        roots = np.sqrt(np.clip(values, 0, None))
        return roots[:, :, None] * (np.swapaxes(vectors, 1, 2) @ both)
    raise OptionError(
        f"metric must be (m, d) or (m, d, d) for delta {both.shape[:2]}: {metric.shape}"
    )


def solve_weights(
    steps: Steps, learning_rates: Float, *, ridge: float = 0.0, nonnegative: bool = False
) -> tuple[Float, Float]:
    """Best weights for given rates: the paper's closed form, its ridge version, or non-negative.

    Solved by orthogonal factorisation of the stacked steps; rank-deficient systems get their
    minimum-norm solution.

    Returns:
        The weights, shape (q,), and the singular values of the stacked design.
    """
    if ridge < 0:
        raise OptionError(f"ridge must not be negative, but is {ridge}")
    if steps.noise is None:
        matrix = (learning_rates[:, None, None] * steps.design).reshape(-1, steps.n_features)
        target = steps.delta.reshape(-1)
    else:
        matrix, target, _ = without_noise(steps, learning_rates)
    if ridge == 0 and not nonnegative:
        # The factorisation that solves the system also gives its singular values.
        found = scipy.linalg.lstsq(matrix, target, cond=_tolerance(matrix.shape))
        return np.asarray(found[0]), np.asarray(found[3])
    singular = np.asarray(np.linalg.svd(matrix, compute_uv=False), dtype=float)
    if ridge > 0:
        matrix = np.concatenate([matrix, np.sqrt(ridge) * np.eye(steps.n_features)])
        target = np.concatenate([target, np.zeros(steps.n_features)])
    if nonnegative:
        return scipy.optimize.nnls(matrix, target)[0], singular
    return np.asarray(scipy.linalg.lstsq(matrix, target)[0]), singular


def without_noise(steps: Steps, learning_rates: Float) -> tuple[Float, Float, float]:
    """A design and target whose normal equations lack the noise, and the smallest share taken.

    In the directions u with u' A u = 1 and u' N u = x (A the normal equations, N their noise),
    subtracting leaves 1 - x. Where that falls below the margin, only as much is subtracted, from
    both sides of the equations, as reaches it.
    """
    assert steps.noise is not None
    merged = steps.merged(learning_rates)
    assert merged.noise is not None
    q = steps.n_features
    design, delta, noise = merged.design[0], merged.delta[0], merged.noise[0]
    left, singular, right = np.linalg.svd(design, full_matrices=False)
    kept = singular > _tolerance(design.shape) * singular.max(initial=0.0)
    left, singular, right = left[:, kept], singular[kept], right[kept]
    back = right.T / singular
    size, turn = np.linalg.eigh(back.T @ noise[:q, :q] @ back)
    share = (1 - NOISE_MARGIN) / np.maximum(size, 1 - NOISE_MARGIN)
    remaining = 1 - share * size
    moved = turn.T @ (left.T @ delta) - share * (turn.T @ (back.T @ noise[:q, q]))
    matrix = np.sqrt(remaining)[:, None] * (turn.T * singular) @ right
    return matrix, moved / np.sqrt(remaining), float(share.min(initial=1.0))


def solve_learning_rates(
    steps: Steps, weights: Float, *, epsilon: float, mean: float | None = None
) -> Float:
    """Best rates for given weights, at least epsilon: the paper's learning-rate lemma.

    A step whose prediction vanishes says nothing about its rate, which is then set to epsilon.

    Args:
        steps: The compressed steps.
        weights: Shape (q,).
        epsilon: Lower bound of every rate.
        mean: If given, minimise subject to the rates having this average. Needed with a ridge,
            which would otherwise be dodged by shrinking the weights and raising the rates. Steps
            that say nothing then take up what the others leave.
    """
    predicted = steps.design @ weights
    curvature = (predicted**2).sum(axis=1)
    inner = (predicted * steps.delta).sum(axis=1)
    if steps.noise is not None:
        noise = steps.noise[:, :, :-1] @ weights
        size, most = noise[:, :-1] @ weights, (1 - NOISE_MARGIN) * curvature
        share = np.where(size > most, most / np.where(size > most, size, 1.0), 1.0)
        curvature, inner = curvature - share * size, inner - share * noise[:, -1]
    moved = curvature > 0
    rates = np.full(steps.n_steps, epsilon)
    if not moved.any():
        return rates
    rates[moved] = np.maximum(epsilon, inner[moved] / curvature[moved])
    if mean is None:
        return rates
    left = mean * steps.n_steps - rates[moved].sum()
    n_still = int((~moved).sum())
    if n_still and left >= n_still * epsilon:
        rates[~moved] = left / n_still
        return rates
    total = mean * steps.n_steps - n_still * epsilon
    rates[moved] = _rates_summing_to(total, inner[moved], curvature[moved], epsilon)
    return rates


def _rates_summing_to(total: float, inner: Float, curvature: Float, epsilon: float) -> Float:
    """Minimise sum_t curvature * rate^2 - 2 inner * rate with a given sum, at least epsilon.

    At the minimum every rate is max(epsilon, (inner + multiplier) / curvature). The multipliers at
    which rates leave their bound cut the line into pieces; the sum is linear on each.
    """
    leaves = epsilon * curvature - inner
    order = np.argsort(leaves)
    n_at_bound = len(order) - 1 - np.arange(len(order))
    best, slope = np.cumsum((inner / curvature)[order]), np.cumsum(1 / curvature[order])
    multiplier = (total - n_at_bound * epsilon - best) / slope
    piece = int(np.argmax(multiplier <= np.append(leaves[order][1:], np.inf)))
    return np.asarray(np.maximum(epsilon, (inner + multiplier[piece]) / curvature))


def objective(steps: Steps, weights: Float, learning_rates: Float, *, ridge: float = 0.0) -> float:
    """The value being minimised."""
    residual = steps.delta - learning_rates[:, None] * (steps.design @ weights)
    return float((residual**2).sum() + ridge * weights @ weights)


def solve(
    steps: Steps,
    learning_rates: Float | None = None,
    *,
    ridge: float = 0.0,
    nonnegative: bool = False,
    shared_rate: bool = False,
    epsilon: float = 1e-6,
    max_iterations: int = 2000,
    tolerance: float = 1e-13,
) -> Solution:
    """Weights and learning rates.

    Args:
        steps: The compressed steps.
        learning_rates: Shape (m,) when known: one closed form, and the weights carry their scale.
            None alternates the two closed forms from equal rates.
        ridge: Strength of the penalty on the weights; 0 for none.
        nonnegative: Constrain the weights to be non-negative.
        shared_rate: Assume one rate for all steps (then known up to scale: one closed form).
        epsilon: Lower bound of the rates, in units of the equal ones the alternation starts from.
        max_iterations: Limit on alternations.
        tolerance: Stop when the relative change of the direction of the weights is below this.
    """
    if epsilon <= 0:
        raise OptionError(f"epsilon must be positive, but is {epsilon}")
    if max_iterations < 1:
        raise OptionError(f"max_iterations must be at least 1, but is {max_iterations}")
    if learning_rates is not None or shared_rate:
        rates = np.ones(steps.n_steps) if learning_rates is None else np.asarray(learning_rates)
        if rates.shape != (steps.n_steps,):
            raise OptionError(f"there are {steps.n_steps} steps, but {rates.shape} learning rates")
        weights, singular = solve_weights(steps, rates, ridge=ridge, nonnegative=nonnegative)
        trace = [objective(steps, weights, rates, ridge=ridge)]
        return _solution(steps, weights, rates, trace, singular, 0, converged=True)

    rates = np.ones(steps.n_steps)
    weights, singular = solve_weights(steps, rates, ridge=ridge, nonnegative=nonnegative)
    trace = [objective(steps, weights, rates, ridge=ridge)]
    converged = False
    for iteration in range(1, max_iterations + 1):  # noqa: B007 - reported below
        before = weights
        # Without a ridge, scale moves freely between rates and weights: nothing to hold it to.
        mean = 1.0 if ridge > 0 else None
        rates = solve_learning_rates(steps, weights, epsilon=epsilon, mean=mean)
        if steps.noise is not None:
            # With noise subtracted no objective holds the scale: it would drift.
            rates = rates / rates.mean()
        trace.append(objective(steps, weights, rates, ridge=ridge))
        weights, singular = solve_weights(steps, rates, ridge=ridge, nonnegative=nonnegative)
        trace.append(objective(steps, weights, rates, ridge=ridge))
        size = np.linalg.norm(weights) * np.linalg.norm(before)
        if size == 0 or np.linalg.norm(
            weights / np.linalg.norm(weights) - before / np.linalg.norm(before)
        ) <= tolerance * np.sqrt(len(weights)):
            converged = True
            break
    at_bound = bool((rates <= epsilon).all())
    if ridge == 0:
        scale = float(rates.mean())
        rates, weights, singular = rates / scale, weights * scale, singular / scale
    return _solution(
        steps, weights, rates, trace, singular, iteration, converged=converged, at_bound=at_bound
    )


def _solution(
    steps: Steps,
    weights: Float,
    rates: Float,
    trace: list[float],
    singular: Float,
    iterations: int,
    *,
    converged: bool,
    at_bound: bool = False,
) -> Solution:
    rows = steps.design.shape[0] * steps.design.shape[1]
    top = singular.max(initial=0.0)
    rank = int((singular > _tolerance((rows, steps.n_features)) * top).sum())
    condition = float(top / singular[rank - 1]) if rank else float("inf")
    status = Status.OK
    if not converged:
        status = Status.NOT_CONVERGED
    elif at_bound:
        status = Status.RATES_AT_BOUND
    elif rank < steps.n_features:
        status = Status.RANK_DEFICIENT
    share = 1.0 if steps.noise is None else without_noise(steps, rates)[2]
    return Solution(
        weights, rates, np.array(trace), rank, condition, singular, iterations, status, share
    )


def _tolerance(shape: tuple[int, ...]) -> float:
    """Relative size below which a singular value is rounding error."""
    return float(max(shape) * np.finfo(float).eps * 10)
