"""What the data can and cannot say: gauge directions, and how much of the movement is explained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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


@dataclass
class FeatureMoments:
    """Streamed moments of the features, to find combinations that never vary.

    Attributes:
        count: Rows seen.
        mean: Of every feature, shape (q,).
        scatter: Sums of products of deviations from the mean, shape (q, q).
        any_terminated: Whether any episode terminated.
        low: Smallest value of every feature.
        high: Largest value.
        origin: Mean of the first stage: a point not far from any, known from the beginning.
    """

    count: int = 0
    mean: Float | None = None
    scatter: Float | None = None
    any_terminated: bool = False
    low: Float | None = None
    high: Float | None = None
    origin: Float | None = None

    def add(self, stage: Stage) -> None:
        """Include a stage's features (Chan's parallel update, stable for large offsets)."""
        assert stage.features is not None
        x = stage.features.astype(float)
        mean = x.mean(axis=0)
        scatter = (x - mean).T @ (x - mean)
        if self.mean is None or self.scatter is None:
            self.mean, self.scatter, self.origin = mean, scatter, mean
        else:
            shift = mean - self.mean
            share = len(x) / (self.count + len(x))
            self.scatter += scatter + np.outer(shift, shift) * self.count * share
            self.mean = self.mean + shift * share
        self.low = x.min(axis=0) if self.low is None else np.minimum(self.low, x.min(axis=0))
        self.high = x.max(axis=0) if self.high is None else np.maximum(self.high, x.max(axis=0))
        self.count += len(x)
        self.any_terminated |= bool(stage.terminated.any())

    @property
    def largest(self) -> Float:
        """Largest size of every feature, shape (q,)."""
        assert self.low is not None and self.high is not None
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @property
    def spread(self) -> Float:
        """Standard deviation of every feature, shape (q,); 0 where it is rounding."""
        assert self.mean is not None and self.scatter is not None
        spread = np.sqrt(np.diagonal(self.scatter) / self.count)
        return np.where(spread <= 1e-9 * np.abs(self.mean), 0.0, spread)

    @property
    def scale(self) -> Float:
        """A unit for every feature, shape (q,): its spread, its size if constant, 1 if zero."""
        size = np.where(self.largest > 0, self.largest, 1.0)
        return np.where(self.spread > 0, self.spread, size)

    def ranges(self) -> Float:
        """Range of every feature, shape (q,); its size where it is constant."""
        assert self.low is not None and self.high is not None
        constant = np.where(self.largest > 0, self.largest, 1.0)
        return np.where(self.high > self.low, self.high - self.low, constant)

    def constant_directions(self) -> tuple[Float, str]:
        """Directions whose feature never varies (rows), and the reason in words.

        A constant feature says nothing as long as episodes cannot be ended: all policies collect
        the same. Once some terminate, it pays for lasting longer, and only a combination that is
        always zero stays silent.
        """
        assert self.mean is not None
        rows = self._level_directions()
        if not self.any_terminated:
            return rows, "it is constant along every trajectory"
        # What does not vary is zero if its mean is: seen from the mean, combinations of large
        # features that nearly cancel are not taken for zero.
        level = rows @ self.mean
        level[np.abs(level) <= 1e-9 * np.abs(rows) @ self.largest] = 0.0
        if level.any():
            rows = np.linalg.svd(level[None])[2][1:] @ rows
        return rows, "it is zero along every trajectory"

    def _level_directions(self) -> Float:
        """Directions whose feature never varies, orthonormal rows."""
        assert self.scatter is not None
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
        their own, and those of every value they add up to.

        Args:
            beyond: Ranges of a feature that its mean must be from zero to be taken off.
        """
        assert self.mean is not None
        if self.any_terminated:
            return None
        return np.where(np.abs(self.mean) > beyond * self.ranges(), self.mean, 0.0)

    def offset_notes(self, names: Sequence[str], *, centred: bool) -> tuple[str, ...]:
        """A warning where features lie so far from zero that estimates suffer."""
        assert self.mean is not None
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


def find_gauge(jacobians: Sequence[StageJacobian], learning_rates: Float, exact: Gauge) -> Gauge:
    """Add to what no data can tell what these data can hardly tell.

    In the directions that are identified, the stacked, rate-scaled Jacobians are compared with
    their sampling noise (the spread over groups of episodes): a direction whose squared size is
    what noise alone would give is weak.

    Args:
        jacobians: Of every step.
        learning_rates: Of every step, or ones.
        exact: What no data can tell, see `GaugeSums`.
    """
    basis = exact.identified
    if basis.shape[1] == 0 or min(len(j.groups) for j in jacobians) < 3:
        return exact
    means = [rate * j.mean @ basis for rate, j in zip(learning_rates, jacobians, strict=True)]
    size = sum(mean.T @ mean for mean in means)
    noise = sum(
        rate**2 * basis.T @ j.covariance() @ basis
        for rate, j in zip(learning_rates, jacobians, strict=True)
    )

    def spread(direction: Float) -> float:
        return _relative_spread(jacobians, learning_rates, direction)

    return replace(exact, weak=_noise_directions(size, noise, spread, basis))


def _noise_directions(
    size: Float, noise: Float, spread: Callable[[Float], float], basis: Float
) -> npt.NDArray[np.float64]:
    """Directions in which `size`, (k, k) in the given basis, is no larger than `noise`.

    `spread` tells how far, relative to its mean, noise alone varies along a direction.
    """
    scale = np.sqrt(np.diagonal(size))
    if not (scale > 0).all():
        silent = np.flatnonzero(scale == 0)
        return basis[:, silent].T
    size, noise = size / np.outer(scale, scale), noise / np.outer(scale, scale)
    relative, back = _whitened(size, noise)
    ratio, vectors = np.linalg.eigh(relative)
    vectors = back @ vectors / scale[:, None]
    found = []
    for value, vector in zip(ratio, vectors.T, strict=True):
        direction = basis @ vector
        if value <= 1 + _NOISE_SIGMAS * spread(direction):
            found.append(direction)
    return orthonormal_rows(np.array(found).reshape(-1, len(basis)))


@dataclass
class JacobianMoments:
    """Streamed sums over Jacobians that `find_gauge` would need all of them for.

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
        """As `find_gauge` would find them, rows, shape (j, q)."""
        if basis.shape[1] == 0 or self.n_groups < 3:
            return np.zeros((0, basis.shape[0]))
        upper, lower = np.triu_indices(len(self.size))

        def spread(direction: Float) -> float:
            pairs = direction[upper] * direction[lower] * np.where(upper == lower, 1.0, 2.0)
            total = float(direction @ self.noise @ direction)
            if total == 0:
                return 0.0
            squared = float(pairs @ self.squared_variances @ pairs)
            return _noise_spread(squared / total**2, self.n_groups)

        return _noise_directions(
            basis.T @ self.size @ basis, basis.T @ self.noise @ basis, spread, basis
        )


def _whitened(size: Float, noise: Float) -> tuple[Float, Float]:
    """`size` in coordinates where `noise` is the identity, and the map back."""
    values, vectors = np.linalg.eigh(noise)
    floor = 1e-12 * max(float(values.max()), np.finfo(float).eps * float(np.trace(size)))
    back = vectors / np.sqrt(np.maximum(values, floor))
    return back.T @ size @ back, back


def _relative_spread(jacobians: Sequence[StageJacobian], rates: Float, direction: Float) -> float:
    """Standard deviation of (squared size / expected squared size) if there were only noise."""
    variances = []
    for rate, jacobian in zip(rates, jacobians, strict=True):
        errors = (jacobian.groups - jacobian.mean) @ direction
        g = len(errors)
        weights = jacobian.group_weights**2 * g / (g - 1)
        variances.append(rate**2 * (weights[:, None] * errors**2).sum(axis=0))
    variance = np.concatenate(variances)
    total = variance.sum()
    if total == 0:
        return 0.0
    groups = min(len(j.groups) for j in jacobians)
    return _noise_spread((variance**2).sum() / total**2, groups)


def _noise_spread(concentration: float, n_groups: int) -> float:
    """Of a sum of squares whose variances have this sum of squared shares."""
    return float(np.sqrt(2 * concentration * (1 + 1 / (n_groups - 1))))


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
    """

    explained: Float
    cosines: Float
    chance: float


def explain(
    delta: Float, design: Float, weights: Float, learning_rates: Float, *, fitted: int = 0
) -> Fit:
    """Compare movements (m, d) with their predictions, in which `fitted` weights were fitted."""
    m, d = delta.shape
    predicted = learning_rates[:, None] * (design @ weights)
    moved = (delta**2).sum(axis=1)
    size = np.sqrt(moved * (predicted**2).sum(axis=1))
    residual = ((delta - predicted) ** 2).sum(axis=1)
    return Fit(
        explained=np.where(moved > 0, 1 - residual / np.where(moved > 0, moved, 1.0), np.nan),
        cosines=(delta * predicted).sum(axis=1) / np.where(size > 0, size, np.inf),
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
    size = np.sqrt(moved * np.maximum(predicted, 0.0))
    residual = moved - 2 * inner + predicted
    return Fit(
        explained=np.where(moved > 0, 1 - residual / np.where(moved > 0, moved, 1.0), np.nan),
        cosines=inner / np.where(size > 0, size, np.inf),
        chance=_chance(len(grams), n_parameters, fitted),
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
