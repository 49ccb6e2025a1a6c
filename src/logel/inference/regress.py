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

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.optimize

from logel.errors import OptionError
from logel.inference.status import Status
from logel.inference.steps import Steps
from logel.types import Float


class Margin(NamedTuple):
    """How much of the normal equations must stay, in every direction, when noise is taken out.

    Beyond it, an estimate would be mostly the error of the noise's own estimate.

    Attributes:
        left: That share.
        both_sides: Whether what noise shares with the movement is capped along with its square.
            Not so where it was shrunk by its own noise already.
    """

    left: float
    both_sides: bool


PARAMETER_MARGIN = Margin(0.1, both_sides=True)
FUNCTION_MARGIN = Margin(0.25, both_sides=False)


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


def solve_weights(
    steps: Steps,
    learning_rates: Float,
    *,
    ridge: float = 0.0,
    nonnegative: bool = False,
    margin: Margin = PARAMETER_MARGIN,
) -> tuple[Float, Float]:
    """Best weights for given rates: the paper's closed form, its ridge version, or non-negative.

    Solved by orthogonal factorisation of the stacked steps; rank-deficient systems get their
    minimum-norm solution.

    Returns:
        The weights, shape (q,), and the singular values of the stacked design.
    """
    if ridge < 0:
        raise OptionError(f"ridge must not be negative, but is {ridge}")
    matrix, target = _system(steps, learning_rates, margin=margin)
    if ridge == 0 and not nonnegative:
        # The factorisation that solves the system also gives its singular values.
        found = scipy.linalg.lstsq(matrix, target, cond=_tolerance(matrix.shape))
        return np.asarray(found[0]), np.asarray(found[3])
    # The penalty is no part of what the design tells.
    singular = np.asarray(np.linalg.svd(matrix, compute_uv=False), dtype=float)
    matrix, target = _system(steps, learning_rates, ridge=ridge, margin=margin)
    if nonnegative:
        return scipy.optimize.nnls(matrix, target)[0], singular
    return np.asarray(scipy.linalg.lstsq(matrix, target)[0]), singular


def _system(
    steps: Steps, learning_rates: Float, *, ridge: float = 0.0, margin: Margin = PARAMETER_MARGIN
) -> tuple[Float, Float]:
    """The stacked design at given rates and its target, noise taken out, penalty below."""
    if steps.noise is not None:
        return without_noise(steps, learning_rates, ridge=ridge, margin=margin)[:2]
    matrix = (learning_rates[:, None, None] * steps.design).reshape(-1, steps.n_features)
    return _ridged(matrix, steps.delta.reshape(-1), ridge)


def _ridged(matrix: Float, target: Float, ridge: float) -> tuple[Float, Float]:
    if ridge == 0:
        return matrix, target
    q = matrix.shape[1]
    penalty = np.sqrt(ridge) * np.eye(q)
    return np.concatenate([matrix, penalty]), np.concatenate([target, np.zeros(q)])


class Cleaned(NamedTuple):
    """Normal equations once noise is taken out of them.

    Attributes:
        matrix: Shape (k, q): its square is what is left of the design's.
        target: Shape (k,).
        share: Smallest share, over directions of the weights, of the noise that was taken out.
    """

    matrix: Float
    target: Float
    share: float


def without_noise(
    steps: Steps, learning_rates: Float, *, ridge: float = 0.0, margin: Margin = PARAMETER_MARGIN
) -> Cleaned:
    """A design and target whose normal equations (with a ridge) lack the steps' noise.

    In the directions u with u' A u = 1 and u' N u = x (A the normal equations, N their noise),
    subtracting leaves 1 - x. Where that falls below the margin, only as much is subtracted as
    reaches it.
    """
    merged = steps.merged(learning_rates)
    assert merged.noise is not None
    q = steps.n_features
    design, delta, noise = merged.design[0], merged.delta[0], merged.noise[0]
    design, delta = _ridged(design, delta, ridge)
    left, singular, right = np.linalg.svd(design, full_matrices=False)
    kept = singular > _tolerance(design.shape) * singular.max(initial=0.0)
    left, singular, right = left[:, kept], singular[kept], right[kept]
    back = right.T / singular
    size, turn = np.linalg.eigh(back.T @ noise[:q, :q] @ back)
    most = 1 - margin.left
    share = most / np.maximum(size, most)
    remaining = 1 - share * size
    common = share if margin.both_sides else 1.0
    moved = turn.T @ (left.T @ delta) - common * (turn.T @ (back.T @ noise[:q, q]))
    matrix = np.sqrt(remaining)[:, None] * (turn.T * singular) @ right
    return Cleaned(matrix, moved / np.sqrt(remaining), float(share.min(initial=1.0)))


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
        size, most = noise[:, :-1] @ weights, (1 - PARAMETER_MARGIN.left) * curvature
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
    rates = np.ones(steps.n_steps) if learning_rates is None else np.asarray(learning_rates)
    if rates.shape != (steps.n_steps,):
        raise OptionError(f"there are {steps.n_steps} steps, but {rates.shape} learning rates")
    weights, singular = solve_weights(steps, rates, ridge=ridge, nonnegative=nonnegative)
    trace = [objective(steps, weights, rates, ridge=ridge)]
    if learning_rates is not None or shared_rate:
        return _solution(steps, weights, rates, trace, singular, 0, Status.OK)
    status = Status.NOT_CONVERGED
    for iteration in range(1, max_iterations + 1):  # noqa: B007 - reported below
        before = weights
        rates = _next_rates(steps, weights, epsilon, ridge)
        trace.append(objective(steps, weights, rates, ridge=ridge))
        weights, singular = solve_weights(steps, rates, ridge=ridge, nonnegative=nonnegative)
        trace.append(objective(steps, weights, rates, ridge=ridge))
        if _same_direction(weights, before, tolerance * np.sqrt(len(weights))):
            status = Status.OK
            break
    # Rates held to a mean, or divided by theirs, hide that each by itself would be at its bound.
    alone = solve_learning_rates(steps, weights, epsilon=epsilon)
    if status is Status.OK and bool((alone <= epsilon).all()):
        status = Status.RATES_AT_BOUND
    if ridge == 0:
        scale = float(rates.mean())
        rates, weights, singular = rates / scale, weights * scale, singular / scale
    return _solution(steps, weights, rates, trace, singular, iteration, status)


def _next_rates(steps: Steps, weights: Float, epsilon: float, ridge: float) -> Float:
    """The rates' half of the alternation, with whatever keeps their scale from drifting."""
    # Without a ridge, scale moves freely between rates and weights: nothing to hold it to.
    mean = 1.0 if ridge > 0 else None
    rates = solve_learning_rates(steps, weights, epsilon=epsilon, mean=mean)
    # With noise subtracted no objective holds the scale: it would drift.
    return rates if steps.noise is None else rates / rates.mean()


def _same_direction(weights: Float, before: Float, tolerance: float) -> bool:
    sizes = np.linalg.norm(weights), np.linalg.norm(before)
    if 0 in sizes:
        return True
    return bool(np.linalg.norm(weights / sizes[0] - before / sizes[1]) <= tolerance)


def _solution(
    steps: Steps,
    weights: Float,
    rates: Float,
    trace: list[float],
    singular: Float,
    iterations: int,
    status: Status,
) -> Solution:
    rows = steps.design.shape[0] * steps.design.shape[1]
    top = singular.max(initial=0.0)
    rank = int((singular > _tolerance((rows, steps.n_features)) * top).sum())
    condition = float(top / singular[rank - 1]) if rank else float("inf")
    if status is Status.OK and rank < steps.n_features:
        status = Status.RANK_DEFICIENT
    share = 1.0 if steps.noise is None else without_noise(steps, rates).share
    return Solution(
        weights, rates, np.array(trace), rank, condition, singular, iterations, status, share
    )


def _tolerance(shape: tuple[int, ...]) -> float:
    """Relative size below which a singular value is rounding error."""
    return float(max(shape) * np.finfo(float).eps * 10)


def log_evidence(steps: Steps, learning_rates: Float, ridge: npt.ArrayLike) -> Float:
    """Log marginal likelihood of the movements for given ridges, up to a constant; same shape.

    The model: whitened movements are normal around rate * design @ weights with variance s^2, the
    weights normal around zero with variance s^2 / ridge; the weights are integrated out and s^2 is
    put where the likelihood is largest.
    """
    matrix, target = _system(steps, learning_rates)
    left, singular, _ = np.linalg.svd(matrix, full_matrices=False)
    found = (left.T @ target) ** 2
    n = steps.n_steps * steps.n_parameters
    total = float(steps.squared_movement.sum())
    # Subtracted noise may leave the design explaining more than there is.
    total = max(total, float(found.sum()) * (1 + 1e-9))
    strength = np.asarray(ridge, dtype=float)[..., None]
    squared = singular**2
    rest = total - (found * squared / (squared + strength)).sum(axis=-1)
    return np.asarray(-0.5 * (n * np.log(rest / n) + np.log1p(squared / strength).sum(axis=-1)))


def evidence_ridge(steps: Steps, learning_rates: Float) -> float:
    """The ridge with the largest evidence."""
    matrix, _ = _system(steps, learning_rates)
    top = float(np.linalg.norm(matrix, 2)) ** 2
    if top == 0:
        return 0.0
    grid = np.log(top) + np.linspace(np.log(1e-10), np.log(1e4), 57)
    values = log_evidence(steps, learning_rates, np.exp(grid))
    best = int(np.argmax(values))
    around = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    found = scipy.optimize.minimize_scalar(
        lambda x: -float(log_evidence(steps, learning_rates, np.exp(x))),
        bounds=around,
        method="bounded",
        options={"xatol": 1e-6},
    )
    return float(np.exp(found.x))
