"""What the data can and cannot say: gauge directions, and how much of the movement is explained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from logel.data.stage import Stage
from logel.errors import IdentificationError
from logel.types import Float

if TYPE_CHECKING:
    # Importing it would load torch, which reading an estimate has no use for.
    from logel.worlds.own_episodes import StageJacobian

# Chosen so that a true gauge direction escapes detection about once in a thousand histories.
_NOISE_SIGMAS = 3.0
# Spreads from zero beyond which a feature's offset is worth a warning: three digits are lost.
_FAR = 1e3
# Ranges of a feature from zero at which its level is an accident of its units.
FAR_LEVEL = 10.0


@dataclass(frozen=True, eq=False)
class Gauge:
    """Directions of weight space that no data (`directions`) or not these data (`weak`) identify.

    Attributes:
        feature_names: q names.
        directions: Orthonormal rows, shape (k, q): combinations without any effect. Estimated
            weights have no component along them.
        reasons: Why each of these has no effect; one string stands for all of them.
        weak: Orthonormal rows, shape (j, q): combinations whose estimated effect on the parameters
            is no larger than its own sampling noise. Weights along them are kept, but are mostly
            noise: more episodes would tell.
    """

    feature_names: tuple[str, ...]
    directions: Float
    reasons: Sequence[str]
    weak: Float

    def __post_init__(self) -> None:
        if isinstance(self.reasons, str):
            object.__setattr__(self, "reasons", (self.reasons,) * len(self.directions))

    @property
    def identified(self) -> Float:
        """Orthonormal basis of the identified subspace, columns, shape (q, q - k)."""
        q = len(self.feature_names)
        if len(self.directions) == 0:
            return np.eye(q)
        return np.asarray(np.linalg.svd(self.directions, full_matrices=True)[2][self.n :].T)

    @property
    def n(self) -> int:
        """Number k of directions that are not identified."""
        return len(self.directions)

    def project(self, weights: npt.ArrayLike) -> Float:
        """The part of the weights the data can speak about: their minimum-norm representative."""
        w = np.asarray(weights, dtype=float)
        return np.asarray(w - self.directions.T @ (self.directions @ w))

    def describe(self) -> list[str]:
        """One sentence per direction, by feature name."""
        none = [
            f"{_combination(row, self.feature_names)} is not identified: {reason}"
            for row, reason in zip(self.directions, self.reasons, strict=True)
        ]
        return none + [
            f"{_combination(row, self.feature_names)} is hardly identified: its effect cannot be "
            "told from the sampling noise of the Jacobians"
            for row in self.weak
        ]


def _combination(row: Float, names: Sequence[str]) -> str:
    scaled = row / row[np.argmax(np.abs(row))]
    terms = [(c, n) for c, n in zip(scaled, names, strict=True) if abs(c) > 0.05]
    if len(terms) == 1:
        return f"the weight of {terms[0][1]}"
    if all(abs(c - 1) < 0.01 for c, _ in terms):
        return "adding the same amount to " + ", ".join(n for _, n in terms)
    return "the combination " + " ".join(f"{c:+.2g} {n}" for c, n in terms)


class FeatureMoments:
    """Streamed moments of the features, to find combinations that never vary.

    Attributes:
        count: Rows seen; before the first, arrays are empty.
        mean: Of every feature, shape (q,).
        scatter: Sums of products of deviations from the mean, shape (q, q).
        any_terminated: Whether any episode terminated.
        low: Smallest value of every feature.
        high: Largest value.
        origin: Mean of the first stage: a point not far from any, known from the beginning.
    """

    def __init__(self) -> None:
        self.count, self.any_terminated = 0, False
        self.mean = self.scatter = self.low = self.high = self.origin = np.zeros(0)

    def add(self, stage: Stage) -> None:
        """Include a stage's features (Chan's parallel update, stable for large offsets)."""
        assert stage.features is not None
        # Few long columns are summed many times faster than many short rows.
        x = np.array(stage.features.T, dtype=float, order="C")
        mean, low, high = x.mean(axis=1), x.min(axis=1), x.max(axis=1)
        x -= mean[:, None]
        scatter = x @ x.T
        if self.count == 0:
            self.mean, self.scatter, self.origin = mean, scatter, mean
            self.low, self.high = low, high
        else:
            shift = mean - self.mean
            share = stage.n_steps / (self.count + stage.n_steps)
            self.scatter += scatter + np.outer(shift, shift) * self.count * share
            self.mean = self.mean + shift * share
            self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)
        self.count += stage.n_steps
        self.any_terminated |= bool(stage.terminated.any())

    @property
    def largest(self) -> Float:
        """Largest size of every feature, shape (q,)."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @property
    def spread(self) -> Float:
        """Standard deviation of every feature, shape (q,); 0 where it is rounding."""
        spread = np.sqrt(np.diagonal(self.scatter) / self.count)
        return np.where(spread <= 1e-9 * np.abs(self.mean), 0.0, spread)

    @property
    def scale(self) -> Float:
        """A unit for every feature, shape (q,): its spread, its size if constant, 1 if zero."""
        return np.where(self.spread > 0, self.spread, self._size)

    def ranges(self) -> Float:
        """Range of every feature, shape (q,); its size where it is constant."""
        return np.where(self.high > self.low, self.high - self.low, self._size)

    @property
    def _size(self) -> Float:
        return np.where(self.largest > 0, self.largest, 1.0)

    def constant_directions(self) -> Float:
        """Directions whose feature never varies, orthonormal rows.

        A constant feature says nothing as long as episodes cannot be ended: all policies collect
        the same. Once some terminate, it pays for lasting longer, and only a combination that is
        always zero stays silent.
        """
        rows = self._level_directions()
        if not self.any_terminated:
            return rows
        # What does not vary is zero if its mean is: seen from the mean, combinations of large
        # features that nearly cancel are not taken for zero.
        level = rows @ self.mean
        level[np.abs(level) <= 1e-9 * np.abs(rows) @ self.largest] = 0.0
        if level.any():
            rows = np.linalg.svd(level[None])[2][1:] @ rows
        return rows

    def _level_directions(self) -> Float:
        # Features that are constant by themselves come first: whatever their size, each is a
        # direction of its own. The rest are compared in units of their spread.
        silent = self.spread == 0
        alone = np.eye(len(silent))[silent]
        scale = self.spread[~silent]
        together = self.scatter[np.ix_(~silent, ~silent)] / self.count / np.outer(scale, scale)
        values, vectors = np.linalg.eigh(together)
        null = np.zeros((int((values <= 1e-12 * len(silent)).sum()), len(silent)))
        null[:, ~silent] = (vectors[:, : len(null)] / scale[:, None]).T
        null /= np.maximum(np.linalg.norm(null, axis=1, keepdims=True), np.finfo(float).tiny)
        return orthonormal_rows(np.concatenate([alone, null]))

    def offset(self, *, beyond: float = 0.0) -> Float | None:
        """What can be taken off the features without any effect, shape (q,), or None.

        Where no episode terminates a constant is silent, and features far from zero lose digits:
        their own, and those of every value they add up to. Means less than `beyond` ranges of the
        feature from zero stay.
        """
        if self.any_terminated:
            return None
        return np.where(np.abs(self.mean) > beyond * self.ranges(), self.mean, 0.0)

    def offset_notes(self, names: Sequence[str], *, centred: bool) -> tuple[str, ...]:
        """A warning where features lie so far from zero that estimates suffer."""
        if centred and not self.any_terminated:
            return ()
        varying = self.spread > 0
        far = varying & (np.abs(self.mean) > _FAR * np.where(varying, self.spread, 1.0))
        if not far.any():
            return ()
        listed = ", ".join(name for name, is_far in zip(names, far, strict=True) if is_far)
        return (
            f"features far from zero for how much they vary ({listed}) cost accuracy: subtract a "
            "constant from them"
            + (", and add a feature that is one to stand for it" if self.any_terminated else ""),
        )


@dataclass
class JacobianMoments:
    """Streamed sums over Jacobians that tell which effects stand out of their sampling noise.

    Attributes:
        size: Sum of the squared, rate-scaled Jacobians, shape (q, q).
        noise: Its expected value were there only noise, shape (q, q).
        squared_variances: Sum over stages and parameters of the outer squares of their noise
            covariances, as vectors of the k = q (q + 1) / 2 different entries, shape (k, k).
        n_groups: Fewest groups of episodes of any stage.
    """

    size: Float
    noise: Float
    squared_variances: Float
    n_groups: int

    @classmethod
    def empty(cls, q: int) -> JacobianMoments:
        """Nothing seen yet."""
        k = q * (q + 1) // 2
        return cls(np.zeros((q, q)), np.zeros((q, q)), np.zeros((k, k)), np.iinfo(np.int64).max)

    def add(self, jacobian: StageJacobian, rate: float) -> None:
        """Include a stage's Jacobian."""
        g = len(jacobian.groups)
        self.n_groups = min(self.n_groups, g)
        self.size += rate**2 * jacobian.mean.T @ jacobian.mean
        if g < 3:
            return
        self.noise += rate**2 * jacobian.covariance()
        weights = rate**2 * jacobian.group_weights**2 * g / (g - 1)
        errors = jacobian.groups - jacobian.mean
        upper, lower = np.triu_indices(errors.shape[2])
        entries = np.einsum("g,gdk,gdk->dk", weights, errors[:, :, upper], errors[:, :, lower])
        self.squared_variances += entries.T @ entries

    def weak_directions(self, basis: Float) -> Float:
        """Directions, rows (j, q), whose squared size is what noise alone would give.

        They are sought among the combinations of the columns of a basis, shape (q, k).
        """
        if basis.shape[1] == 0 or self.n_groups < 3:
            return np.zeros((0, len(basis)))
        size, noise = basis.T @ self.size @ basis, basis.T @ self.noise @ basis
        scale = np.sqrt(np.diagonal(size))
        if not (scale > 0).all():
            return basis[:, scale == 0].T
        size, noise = size / np.outer(scale, scale), noise / np.outer(scale, scale)
        relative, back = _whitened(size, noise)
        ratios, vectors = np.linalg.eigh(relative)
        directions = [basis @ vector for vector in (back @ vectors / scale[:, None]).T]
        found = [
            direction
            for ratio, direction in zip(ratios, directions, strict=True)
            if ratio <= 1 + _NOISE_SIGMAS * self._spread(direction)
        ]
        return orthonormal_rows(np.array(found).reshape(-1, len(basis)))

    def _spread(self, direction: Float) -> float:
        """How far, relative to its mean, noise alone varies along a direction."""
        total = float(direction @ self.noise @ direction)
        if total == 0:
            return 0.0
        upper, lower = np.triu_indices(len(direction))
        pairs = direction[upper] * direction[lower] * np.where(upper == lower, 1.0, 2.0)
        # Of nearly equal columns, rounding may leave less than nothing.
        concentration = max(float(pairs @ self.squared_variances @ pairs), 0.0) / total**2
        return float(np.sqrt(2 * concentration * (1 + 1 / (self.n_groups - 1))))


def _whitened(size: Float, noise: Float) -> tuple[Float, Float]:
    """`size` in coordinates where `noise` is the identity, and the map back."""
    values, vectors = np.linalg.eigh(noise)
    floor = 1e-12 * max(float(values.max()), np.finfo(float).eps * float(np.trace(size)))
    back = vectors / np.sqrt(np.maximum(values, floor))
    return back.T @ size @ back, back


def orthonormal_rows(rows: Float, *, tolerance: float = 1e-9) -> Float:
    """Orthonormal rows that span the given ones, up to a relative size taken for rounding."""
    if len(rows) == 0:
        return rows
    _, singular, right = np.linalg.svd(rows, full_matrices=False)
    return np.asarray(right[singular > tolerance * singular.max()])


@dataclass(frozen=True, eq=False)
class Fit:
    """How well rates and weights explain the movement, step by step.

    Attributes:
        explained: Share of the squared movement explained, shape (m,); can be negative. NaN for
            a step without movement.
        cosines: Cosine between movement and prediction, shape (m,).
        chance: Typical size of the cosine if the movement were random, fitted as it was.
        moved: Length of the observed movement, shape (m,), or None when it was not kept. For
            "replay" the root of twice the policies' divergence, else in the rule's coordinates.
        predicted: Length of the predicted movement, shape (m,), in the same units; None likewise.
        noise: Share of the squared movement that the learner's own chance (another order of
            minibatches, another critic) would have changed, shape (m,); None when it is not known.
        rule: How the reward was taken to move the policy; empty when nobody said.
    """

    explained: Float
    cosines: Float
    chance: float
    moved: Float | None = None
    predicted: Float | None = None
    noise: Float | None = None
    rule: str = ""


def explain(
    delta: Float, design: Float, weights: Float, learning_rates: Float, *, fitted: int = 0
) -> Fit:
    """Compare movements (m, d) with their predictions, in which `fitted` weights were fitted."""
    (m, d), predicted = delta.shape, learning_rates[:, None] * (design @ weights)
    return _fit(
        moved=(delta**2).sum(axis=1),
        predicted=(predicted**2).sum(axis=1),
        inner=(delta * predicted).sum(axis=1),
        residual=((delta - predicted) ** 2).sum(axis=1),
        chance=_chance(m, d, fitted),
    )


def explain_grams(
    grams: Float, weights: Float, learning_rates: Float, *, n_parameters: float, fitted: int = 0
) -> Fit:
    """The same from the steps' Gram matrices of [design, delta], shape (m, q + 1, q + 1)."""
    scaled = learning_rates[:, None] * weights
    moved = grams[:, -1, -1]
    predicted = np.einsum("mi,mij,mj->m", scaled, grams[:, :-1, :-1], scaled)
    inner = np.einsum("mi,mi->m", scaled, grams[:, :-1, -1])
    return _fit(
        moved=moved,
        predicted=np.maximum(predicted, 0.0),
        inner=inner,
        residual=moved - 2 * inner + predicted,
        chance=_chance(len(grams), n_parameters, fitted),
    )


def _fit(moved: Float, predicted: Float, inner: Float, residual: Float, chance: float) -> Fit:
    """From squared movements, predictions and residuals, and their inner products, all (m,)."""
    size = np.sqrt(moved * predicted)
    return Fit(
        explained=np.where(moved > 0, 1 - residual / np.where(moved > 0, moved, 1.0), np.nan),
        cosines=inner / np.where(size > 0, size, np.inf),
        chance=chance,
        moved=np.sqrt(np.maximum(moved, 0.0)),
        predicted=np.sqrt(np.maximum(predicted, 0.0)),
    )


def _chance(m: int, d: float, fitted: int) -> float:
    # A random direction has mean squared cosine 1 / d; fitting q weights to m steps adds the
    # q / m directions per step that they can follow.
    return float(np.sqrt(min((1 + fitted / m) / d, 1.0)))


def direction_error(
    weights: npt.ArrayLike, truth: npt.ArrayLike, gauge: Gauge | None = None
) -> float:
    """Distance between unit vectors, in the identified subspace if a gauge is given.

    0 is perfect, sqrt(2) orthogonal, 2 opposite; weights that vanish count as orthogonal.
    """
    pair = [np.asarray(w, dtype=float) for w in (weights, truth)]
    if gauge is not None:
        pair = [gauge.project(w) for w in pair]
    sizes = [np.linalg.norm(w) for w in pair]
    if min(sizes) == 0:
        return float(np.sqrt(2))
    return float(np.linalg.norm(pair[0] / sizes[0] - pair[1] / sizes[1]))


def check_identified(gauge: Gauge) -> None:
    """Refuse features of which no combination has any effect."""
    if gauge.n < len(gauge.feature_names):
        return
    if all("constant" in reason or "zero" in reason for reason in gauge.reasons):
        raise IdentificationError(
            "no direction of the weights is identified: every feature is constant; use others"
        )
    raise IdentificationError(
        "no direction of the weights is identified; use other features: "
        + "; ".join(gauge.describe())
    )


def check_movement(delta: Float) -> None:
    """Refuse a path on which nothing moves beyond what rounding leaves of a converged fit."""
    if not (np.abs(delta) > 1e-9).any():
        raise IdentificationError(
            "the policy's parameters do not move between stages: there is nothing to explain"
        )
