"""Weights, rates and their uncertainty from movements in function space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy import special

from logel.inference.gauge import Gauge
from logel.inference.method import MirrorMethod
from logel.inference.more_data import Planning
from logel.inference.movement import Movement
from logel.inference.regress import Solution, compress, solve
from logel.inference.shrinkage import evidence_ridge
from logel.rules.rates import (
    Rates,
    Schedule,
    StepMoments,
    known_schedules,
    posterior,
    schedules,
    weigh,
)
from logel.types import Float

# Share of the design's squared size, in any direction, that may be taken off as sampling noise:
# beyond it the correction would mostly amplify noise.
_MOST_NOISE = 0.75
# Weights from which their own spread can be told well enough to shrink them by it.
_MANY_WEIGHTS = 10
# Schedules less probable than this, in units of the most probable, are left out.
_NEGLIGIBLE = 0.01


class _Solved(NamedTuple):
    """Weights that carry the scale of `rates`, before normalising, with the normal equations."""

    weights: Float
    rates: Float
    solution: Solution
    square: Float
    corrected: Float
    inner: Float


@dataclass(frozen=True, eq=False)
class Answer:
    """Weights with their uncertainty.

    Attributes:
        raw: Weights that go with rates of mean one (or with the known ones), shape (q,).
        rates: Shape (m,).
        sampling: Covariance of `raw` due to the episodes seen, (q, q), or None with fewer than
            three groups.
        learner: The same due to movement that no reward explains, beyond sampling noise, and to
            what is not known of the rates.
        degrees_of_freedom: Of the sampling covariance.
        solution: The least-squares solution, before the noise correction.
        chance: Probability that unrelated movement is explained as well as this one.
        free: Whether only the direction of the weights is known.
    """

    raw: Float
    rates: Float
    sampling: Float | None
    learner: Float
    degrees_of_freedom: int
    solution: Solution
    chance: float
    free: bool

    @property
    def scale(self) -> float:
        """What the raw weights are divided by, and the rates multiplied."""
        size = float(np.linalg.norm(self.raw))
        return size if self.free and size > 0 else 1.0

    def draws(self, n: int, rng: np.random.Generator) -> Float | None:
        """Directions from a Student distribution of the raw weights, shape (n, q).

        A direction's sign is uncertain where the whole vector is: no linearisation shows that.
        """
        if self.sampling is None or not self.free:
            return None
        values, vectors = np.linalg.eigh(self.sampling + self.learner)
        noise = rng.standard_normal((n, len(values))) * np.sqrt(np.clip(values, 0, None))
        freedom = self.degrees_of_freedom
        noise = noise / np.sqrt(rng.chisquare(freedom, (n, 1)) / freedom)
        drawn = self.raw + noise @ vectors.T
        norms = np.linalg.norm(drawn, axis=1, keepdims=True)
        return np.asarray(drawn / np.where(norms > 0, norms, 1.0))

    @property
    def planning(self) -> Planning | None:
        """More episodes leave the learner's own noise as it is; more stages average both."""
        if self.sampling is None:
            return None
        change = np.eye(len(self.raw))
        if self.free:
            unit = self.raw / self.scale
            change = (change - np.outer(unit, unit)) / self.scale
        sampling, learner = (change @ c @ change.T for c in (self.sampling, self.learner))
        return Planning(sampling + learner, sampling / 2 + learner, (sampling + learner) / 2)


def solve_movement(
    movement: Movement, gauge: Gauge, rates: Float | None, method: MirrorMethod
) -> Answer:
    """Weights, rates and their uncertainty from steps in standard form.

    Every schedule that the rates may follow has its own answer, in which steps weigh by how well
    they are known; answers are averaged by the schedules' probabilities.
    """
    basis = gauge.identified
    if rates is None and method.rates is Rates.FREE:
        return _answer(movement, basis, None, method)
    n_steps = len(movement.delta)
    among = [Schedule(np.ones(n_steps), np.ones(n_steps), 1.0)]
    if rates is not None:
        among = known_schedules(rates)
    elif method.rates is not Rates.SHARED:
        among = schedules(n_steps)
    first = _answer(movement, basis, among[0].rates, method, uncertain=False)
    size = float(first.raw @ first.raw)
    if size == 0:
        return replace(_answer(movement, basis, among[0].rates, method), free=rates is None)
    moments = _step_moments(movement, basis, among[0].rates, first.raw, method)
    weighed = [weigh(moments, s, basis.shape[1] / size) for s in among]
    probabilities = posterior(weighed, among)
    likely = np.flatnonzero(probabilities > _NEGLIGIBLE * probabilities.max())
    shares = probabilities[likely] / probabilities[likely].sum()
    answers = [
        _answer(_reweighed(movement, weighed[i].precision), basis, among[i].rates, method)
        for i in likely
    ]
    return replace(_averaged(answers, shares), free=rates is None)


def _step_moments(
    movement: Movement, basis: Float, rates: Float, weights: Float, method: MirrorMethod
) -> StepMoments:
    """Products of every step; `weights` are a first answer, for the size of the design's noise."""
    design = movement.design @ basis
    n_coordinates = movement.rank / len(design)
    sampled = np.zeros(len(design))
    if movement.n_groups >= 3:
        again = movement.delta_without
        if method.debias:
            again = again - rates[:, None] * (movement.design_without @ weights)
        g = movement.n_groups
        sampled = (g - 1) / g * ((again - again.mean(axis=0)) ** 2).sum(axis=(0, 2))
    return StepMoments(
        squared=(movement.delta**2).sum(axis=1),
        inner=np.einsum("tki,tk->ti", design, movement.delta),
        gram=np.einsum("tki,tkj->tij", design, design),
        sampled=sampled / n_coordinates,
        n_coordinates=n_coordinates,
    )


def _reweighed(movement: Movement, precision: Float) -> Movement:
    """Steps in units of their noise; on average they stay as large as they are."""
    root = np.sqrt(precision / precision.mean())
    return replace(
        movement,
        delta=root[:, None] * movement.delta,
        design=root[:, None, None] * movement.design,
        delta_without=root[:, None] * movement.delta_without,
        design_without=root[:, None, None] * movement.design_without,
    )


def _averaged(answers: Sequence[Answer], shares: Float) -> Answer:
    """The mean of several answers; where they differ, nobody knows: that is uncertainty too."""
    raw = np.stack([a.raw for a in answers])
    mean = shares @ raw
    between = np.einsum("s,si,sj->ij", shares, raw - mean, raw - mean)
    sampled = [a.sampling for a in answers if a.sampling is not None]
    sampling = np.einsum("s,sij->ij", shares, np.stack(sampled)) if sampled else None
    likeliest = answers[int(np.argmax(shares))]
    return replace(
        likeliest,
        raw=mean,
        rates=shares @ np.stack([a.rates for a in answers]),
        sampling=sampling,
        learner=np.einsum("s,sij->ij", shares, np.stack([a.learner for a in answers])) + between,
        chance=float(shares @ [a.chance for a in answers]),
    )


def _answer(
    movement: Movement,
    basis: Float,
    rates: Float | None,
    method: MirrorMethod,
    *,
    uncertain: bool = True,
) -> Answer:
    """The answer for given rates, or (None) for one rate per step."""
    ridge = _penalty(movement, basis, rates, method)
    noise, cross = _sampling_moments(movement, basis, rates, ridge)
    if not method.debias:
        # The learner followed the advantages' noise; it did not follow the errors of clones.
        noise = np.zeros_like(noise)
    parts = (noise, cross, rates, method, ridge)
    found = _solve_once(movement.delta, movement.design @ basis, *parts)
    sampling, freedom = None, 0
    if movement.n_groups >= 3 and uncertain:
        g = movement.n_groups
        replicates = _replicates(movement, basis, *parts)
        spread = (replicates - replicates.mean(axis=0)) @ basis.T
        sampling, freedom = (g - 1) / g * spread.T @ spread, g - 1
    left, excess, chance = _unexplained(movement, basis, found)
    inverse = np.linalg.pinv(found.corrected)
    # What the penalty hides is as uncertain as the prior it stands for; the rest of the square is
    # the data's.
    hidden = left * ridge * inverse @ inverse
    seen = found.square - ridge * np.eye(len(found.square))
    return Answer(
        raw=basis @ found.weights,
        rates=found.rates,
        sampling=sampling,
        learner=basis @ (excess * inverse @ seen @ inverse + hidden) @ basis.T,
        degrees_of_freedom=freedom,
        solution=found.solution,
        chance=chance,
        free=True,
    )


def _penalty(movement: Movement, basis: Float, rates: Float | None, method: MirrorMethod) -> float:
    """The ridge, chosen if it is not given."""
    ridge = method.ridge
    if ridge is None:
        ridge = "evidence" if basis.shape[1] >= _MANY_WEIGHTS else 0.0
    if not isinstance(ridge, str):
        return float(ridge)
    assumed = np.ones(len(movement.delta)) if rates is None else rates
    return evidence_ridge(compress(movement.delta, movement.design @ basis), assumed)


def _sampling_moments(
    movement: Movement, basis: Float, rates: Float | None, ridge: float
) -> tuple[Float, Float]:
    """Expected products of the noise of design and design, (m, q, q), and delta, (m, q).

    Clones and advantages come from the same actions, so their errors go together. How much is
    itself estimated: the second is shrunk by the share that is no more than chance (James and
    Stein), in the metric of the normal equations.
    """
    g, (m, _, _) = movement.n_groups, movement.design.shape
    q = basis.shape[1]
    if g < 3:
        return np.zeros((m, q, q)), np.zeros((m, q))
    design = movement.design_without @ basis
    design = design - design.mean(axis=0)
    delta = movement.delta_without - movement.delta_without.mean(axis=0)
    noise = (g - 1) / g * np.einsum("gtki,gtkj->tij", design, design)
    products = (g - 1) * np.einsum("gtki,gtk->gti", design, delta)
    scaled = movement.design @ basis
    assumed = np.ones(m) if rates is None else rates
    square = np.einsum("t,tki,tkj->ij", assumed**2, scaled, scaled) + ridge * np.eye(q)
    total = np.einsum("t,gti->gi", assumed, products)
    mean, inverse = total.mean(axis=0), np.linalg.pinv(square, hermitian=True)
    size = float(mean @ inverse @ mean)
    spread = float(np.einsum("gi,ij,gj->", total - mean, inverse, total - mean)) / (g * (g - 1))
    kept = max(1.0 - spread / size, 0.0) if size > 0 else 0.0
    return noise, kept * products.mean(axis=0)


def _solve_once(
    delta: Float,
    design: Float,
    noise: Float,
    cross: Float,
    rates: Float | None,
    method: MirrorMethod,
    ridge: float,
    *,
    tolerance: float = 1e-13,
) -> _Solved:
    """Least squares, then with the expected share of noise taken out of its normal equations."""
    solution = solve(
        compress(delta, design),
        rates,
        ridge=ridge,
        epsilon=method.epsilon,
        max_iterations=method.max_iterations,
        tolerance=tolerance,
    )
    found = solution.learning_rates
    square, inner = _normal_equations(delta, design, cross, found, ridge)
    weights, corrected = _without_noise(square, inner, np.einsum("t,tij->ij", found**2, noise))
    if not noise.any() and not cross.any():
        # Nothing to take out: the orthogonal factorisation keeps more digits.
        weights = solution.weights
    return _Solved(weights, found, solution, square, corrected, inner)


def _replicates(
    movement: Movement,
    basis: Float,
    noise: Float,
    cross: Float,
    rates: Float | None,
    method: MirrorMethod,
    ridge: float,
) -> Float:
    """Weights without each group of episodes in turn, shape (g, q)."""
    designs = movement.design_without @ basis
    if rates is None:
        parts = (noise, cross, rates, method, ridge)
        pairs = zip(movement.delta_without, designs, strict=True)
        return np.stack([_solve_once(d, x, *parts, tolerance=1e-8).weights for d, x in pairs])
    square, inner = _normal_equations(movement.delta_without, designs, cross, rates, ridge)
    return _without_noise(square, inner, np.einsum("t,tij->ij", rates**2, noise))[0]


def _normal_equations(
    delta: Float, design: Float, cross: Float, rates: Float, ridge: float
) -> tuple[Float, Float]:
    """Square (..., q, q) and inner product (..., q) of steps (..., m, k) and designs."""
    scaled = rates[:, None, None] * design
    flat = scaled.reshape(*scaled.shape[:-3], -1, scaled.shape[-1])
    across = np.swapaxes(flat, -1, -2)
    square = across @ flat + ridge * np.eye(design.shape[-1])
    inner = (across @ delta.reshape(*delta.shape[:-2], -1, 1))[..., 0]
    return square, inner - np.einsum("t,ti->i", rates, cross)


def _without_noise(square: Float, inner: Float, noise: Float) -> tuple[Float, Float]:
    """Weights once noise is taken out of the square, and what is left of that, shape (..., q, q).

    In coordinates where the design's squared size is one, noise is a share of it in every
    direction; capped, so that the corrected matrix is always positive definite.
    """
    values, vectors = np.linalg.eigh(square)
    least = 1e-12 * np.maximum(values[..., -1:], np.finfo(float).tiny)
    size = np.sqrt(np.where(values > least, values, 0.0))
    seen = size > 0
    back = vectors * (np.where(seen, 1.0, 0.0) / np.where(seen, size, 1.0))[..., None, :]
    forth = vectors * size[..., None, :]
    share = np.swapaxes(back, -1, -2) @ noise @ back
    parts, turned = np.linalg.eigh((share + np.swapaxes(share, -1, -2)) / 2)
    left = 1 - np.clip(parts, 0.0, _MOST_NOISE)
    first, second = back @ turned, forth @ turned
    inverse = (first / left[..., None, :]) @ np.swapaxes(first, -1, -2)
    corrected = (second * left[..., None, :]) @ np.swapaxes(second, -1, -2)
    return (inverse @ inner[..., None])[..., 0], corrected


def _unexplained(movement: Movement, basis: Float, found: _Solved) -> tuple[float, float, float]:
    """Variance per coordinate that no reward explains, that not even sampling noise, a test's p.

    The test asks whether movement without any relation to the advantages would be explained as
    well; it uses plain least squares, which is not biased when there is nothing to find.
    """
    scaled = found.rates[:, None, None] * (movement.design @ basis)
    freedom = max(movement.rank - basis.shape[1], 1)
    residual = movement.delta - scaled @ found.weights
    expected = 0.0
    if movement.n_groups >= 3:
        again = movement.delta_without - found.rates[:, None] * (
            movement.design_without @ (basis @ found.weights)
        )
        g = movement.n_groups
        expected = (g - 1) / g * float(((again - again.mean(axis=0)) ** 2).sum())
    squared = float((residual**2).sum())
    excess = max(squared - expected, 0.0) / freedom
    explained = float(found.inner @ np.linalg.pinv(found.square) @ found.inner)
    total = float((movement.delta**2).sum())
    rest = max(total - explained, 1e-12 * total)
    # Rounding may leave it a trifle below zero, where the distribution function is not defined.
    ratio = max(explained / basis.shape[1], 0.0) / (rest / freedom)
    return squared / freedom, excess, float(special.fdtrc(basis.shape[1], freedom, ratio))
