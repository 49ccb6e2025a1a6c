"""One round of the smoother in products, for states too many to be put into matrices.

(Rules that go through values alone need neither; see `by_values`.)

With K the prior covariance of the path and H the root of the information in the actions, all that a
round wants to know is about A = 1 + H K H (a column per stage and coordinate):

    path      H x = A^-1 H (prior mean + K score)                               a linear system
    evidence  log det A                                                         a number
    variances tr A^-1 H K' H for the parts K' of K from process noise and start  two numbers

K times a column is one sweep through time backward and one forward, a few sparse products per
stage. Were every state of a table on its own, A would be L L' (`Chains`), and it nearly is:
eigenvalues of W = L^-1 A L^-T lie between a half and three under rules that fit, so conjugate
gradients are done in about ten products. Parameters are a border of few columns, eliminated
exactly. The path, the weights and their covariance therefore are those of the dense smoother, to
the tolerance of the conjugate gradients.

The two traces and log det W are sums of z' f(W) z over columns z of fixed random signs
(Hutchinson), each on a team of states far from each other; the same products give f = log by
Lanczos' quadrature. Only what coupling adds to the chains is estimated: the chains' own part is
exact, and random walks have no other. Nor is it in the directions in which W is furthest from one,
which a block power iteration follows from round to round; signs are for what lies across them
(Hutch++: Meyer, Musco, Musco and Woodruff, 2021). The signs being the same in all rounds, for all
rules of a size, evidence settles, and errors of differences are smaller than their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh_tridiagonal

from logel.inference.chains import Chains
from logel.inference.rounds import Products, Round, Variances
from logel.rules.rule import Rule
from logel.types import Float
from logel.worlds.products import Linearised

# Signs drawn: coupling's share of log det A, one to twenty nats at a thousand parameters, is known
# to about half a nat.
N_PROBES = 16
# Directions followed from round to round in which coupling is strongest; only what lies across them
# is left to the signs. Of the coupling of gradient rules they hold nine tenths.
N_MODES = 24
# In the first rounds of a fit, far from where evidence means anything, few signs will do.
_FAR_ROUNDS, _FAR_PROBES = 3, 8
# Residuals at which conjugate gradients end: of path and border, moves being small differences of
# large numbers; the same where only replicates are weighed; of signs, whose own noise is larger.
_EXACT, _FINE, _ROUGH = 1e-10, 1e-7, 1e-3
# Rounds that still are far from anything, where steps blow up, take the most: of path and border,
# and of signs, whose logarithms need no more.
_MOST_PRODUCTS, _MOST_OF_SIGNS = 120, 30


class _Path:
    """Products with the prior covariance of a linearised path."""

    def __init__(self, found: Linearised, variances: Variances) -> None:
        self.found, self.variances = found, variances

    def back(self, columns: Float) -> Float:
        """What later stages say, carried back: columns (m + 1, S, B, k)."""
        result = columns.copy()
        for t in range(len(columns) - 2, -1, -1):
            result[t] += self.found.transition.transposed(t, result[t + 1])
        return result

    def onward(self, first: Float, then: Callable[[int], Float | float], n: int) -> Float:
        """The path from a first state (S, B, k) with something added at every step."""
        result = np.empty((n, *first.shape))
        result[0] = first
        for t in range(n - 1):
            result[t + 1] = self.found.transition.times(t, result[t]) + then(t)
        return result

    def covariance(self, carried: Float) -> Float:
        """Prior covariance times columns that were carried back."""
        noise, variance = self.found.noise, self.variances.noise
        return self.onward(
            self.variances.start * carried[0],
            lambda t: variance * noise.times(t, carried[t + 1]),
            len(carried),
        )

    def parts(self, left: Float, right: Float) -> tuple[Float, Float]:
        """Of columns carried back, left' K' right: K' from process noise, and from the start."""
        noise = [
            (left[t + 1] * self.found.noise.times(t, right[t + 1])).sum(axis=(0, 1))
            for t in range(len(left) - 1)
        ]
        start = self.variances.start * (left[0] * right[0]).sum(axis=(0, 1))
        return self.variances.noise * np.sum(noise, axis=0), start


class _Solved(NamedTuple):
    """What conjugate gradients found."""

    columns: Float  # W^-1 times the columns
    logs: Float  # z' log(W) z of every sign column z


class _System:
    """A round's linear system, whitened: columns have shape (m + 1, S, B, k)."""

    def __init__(self, seen: _Seen, found: Linearised, variances: Variances, prior: Float) -> None:
        self.seen, self.path = seen, _Path(found, variances)
        self.coupled = found.transition.coupled or bool(found.noise.rows)
        self.n, self.s, self.b, _ = seen.roots.shape
        self.chains = Chains(
            seen.roots,
            found.transition.blocks(),
            variances.noise * found.noise.own(),
            variances.start,
        )
        # What one deviation of each parameter does to the path.
        design = (found.design * np.sqrt(prior)).reshape(-1, self.s, self.b, len(prior))
        nothing = np.zeros((self.s, self.b, len(prior)))
        self.effect = self.path.onward(nothing, lambda t: design[t], self.n)

    def product(self, columns: Float) -> Float:
        """W times columns."""
        inner = self.chains.turned(columns)
        spread = self.path.covariance(self.path.back(self.seen.times(inner)))
        return self.chains.whiten(inner + self.seen.times(spread))

    def carried(self, columns: Float) -> Float:
        """Whitened columns carried back through the path."""
        return self.path.back(self.seen.times(self.chains.turned(columns)))

    def sharpened(self, modes: Float, solved: Float) -> Float:
        """Modes closer to where W is furthest from one, either way; `solved` is W^-1 times them."""
        turned = self.product(modes) + solved - 2 * modes
        if not np.isfinite(turned).all():
            return modes  # a round that blew up tells nothing of the next one
        return np.linalg.qr(turned.reshape(-1, modes.shape[3]))[0].reshape(modes.shape)

    def solve(
        self, targets: Float, signs: Float, *, tolerance: float = _EXACT
    ) -> tuple[Float, Float, Float, Float]:
        """W^-1 times targets, border and signs; the border; and signs' logarithms of W."""
        border = self.chains.whiten(self.seen.times(self.effect))
        columns = np.concatenate([targets, border, signs], axis=3)
        tolerances = np.full(columns.shape[3], _ROUGH)
        tolerances[: targets.shape[3] + border.shape[3]] = tolerance
        found = _Solved(columns, np.zeros(signs.shape[3]))
        if self.coupled:
            found = _conjugate_gradients(self.product, columns, tolerances, signs.shape[3])
        k = targets.shape[3]
        return found.columns[..., :k], border, found.columns[..., k:], found.logs


def smooth(
    model: Rule,
    states: Float,
    parameters: Float,
    middle: Float,
    prior: Float,
    found: Linearised,
    variances: Variances,
    *,
    n_probes: int = N_PROBES,
    modes: Float | None = None,
) -> tuple[Round, Float | None]:
    """See the module; arguments are those of `Algebra.smooth`, and the modes of the last round."""
    seen = _Seen.of(model, states)
    system = _System(seen, found, variances, prior)
    path, chains, effect = system.path, system.chains, system.effect
    n, s, b, p = effect.shape
    # Where the path would be without any data, and with as much pull as there is here.
    gap = found.following - states[1:] + found.design @ (middle - parameters)
    gap = gap.reshape(n - 1, s, b, 1)
    mean = path.onward(-states[0].reshape(s, b, 1), lambda t: gap[t], n)
    expected = mean + path.covariance(path.back(seen.score)) + effect @ _inner(effect, seen.score)
    signs = _signs(model, min(n_probes, s) if system.coupled else 0)
    if modes is not None:
        signs = np.concatenate([signs - _along(modes, signs), modes], axis=3)
    # What only weighs replicates need not be exact.
    tolerance = _EXACT if n_probes else _FINE
    target = chains.whiten(seen.times(expected))
    answer, border, rest, logs = system.solve(target, signs, tolerance=tolerance)
    bordered, tried = rest[..., :p], rest[..., p:]
    core = np.eye(p) + _inner(border, bordered)
    inverse = np.linalg.inv((core + core.T) / 2)
    answer = answer - bordered @ (inverse @ _inner(border, answer))
    left = seen.score - seen.times(chains.turned(answer))
    shift = _inner(effect, left)
    moved = mean + path.covariance(path.back(left)) + effect @ shift
    # How many components of the process noise, and of the first state, the data determine; what
    # goes for the parameters is not theirs.
    mixed = system.carried(bordered)
    taken = path.parts(mixed @ inverse, mixed)
    noise_freedom = chains.noise_freedom - float(taken[0].sum())
    start_freedom = chains.start_freedom - float(taken[1].sum())
    log_determinant = chains.log_determinant + float(np.linalg.slogdet(core)[1])
    if signs.shape[3]:
        more = path.parts(system.carried(tried), system.carried(signs))
        apart = _Path(found.apart(), variances)
        own = apart.back(seen.times(chains.turned(signs)))
        less = apart.parts(own, own)
        noise_freedom += float((more[0] - less[0]).sum())
        start_freedom += float((more[1] - less[1]).sum())
        log_determinant += float(logs.sum())
        if modes is not None:
            modes = system.sharpened(modes, tried[..., -modes.shape[3] :])
    deviations = np.sqrt(prior)
    found_round = Round(
        state_moves=moved[..., 0].reshape(n, -1),
        parameter_moves=middle - parameters + deviations * shift[:, 0],
        parameter_covariance=deviations[:, None] * inverse * deviations,
        start_variance=variances.start * (s * b - start_freedom),
        log_determinant=log_determinant,
        noise_freedom=noise_freedom,
    )
    return found_round, modes


def first_modes(model: Rule) -> Float:
    """Any orthonormal columns (m + 1, S, B, k), drawn apart from the signs."""
    n, s, width = model.n_stages, model.world.n_blocks, model.block_width
    size = n * s * width
    drawn = np.random.default_rng(1).standard_normal((size, min(N_MODES, size)))
    return np.linalg.qr(drawn)[0].reshape(n, s, width, -1)


def _along(modes: Float, columns: Float) -> Float:
    """What of the columns lies along the modes."""
    return modes @ _inner(modes, columns)


def _signs(model: Rule, k: int) -> Float:
    """Columns (m + 1, S, B, k), the same in every round: each has the signs of a few states.

    What these have to do with one another is the error, so they are chosen far from each other.
    """
    n, s, width = model.n_stages, model.world.n_blocks, model.block_width
    if k == 0:
        return np.zeros((n, s, width, 0))
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(n, s, width))
    return signs[..., None] * (model.world.spread_out(k)[:, None, None] == np.arange(k)).reshape(
        1, s, 1, k
    )


@dataclass(frozen=True, eq=False)
class _Seen:
    """What actions say about a path."""

    roots: Float  # symmetric roots of the information, shape (m + 1, S, B, B)
    score: Float  # shape (m + 1, S, B, 1)

    @classmethod
    def of(cls, model: Rule, states: Float) -> _Seen:
        """About the states (m + 1, D)."""
        seen = [model.observe(t, state) for t, state in enumerate(states)]
        factor = np.stack([one.factor for one in seen])
        values, vectors = np.linalg.eigh(factor @ np.swapaxes(factor, 2, 3))
        roots = vectors * np.sqrt(np.clip(values, 0, None))[..., None, :]
        score = np.stack([one.score for one in seen]).reshape(*factor.shape[:3], 1)
        return cls(roots @ np.swapaxes(vectors, 2, 3), score)

    def times(self, columns: Float) -> Float:
        """Roots times columns (m + 1, S, B, k)."""
        return np.matmul(self.roots, columns)


def _inner(left: Float, right: Float) -> Float:
    """Products of all columns with all, shape (k, l)."""
    return np.asarray(left.reshape(-1, left.shape[3]).T @ right.reshape(-1, right.shape[3]))


def _conjugate_gradients(
    product: Callable[[Float], Float], columns: Float, tolerances: Float, n_signs: int
) -> _Solved:
    """Solve for all columns in lockstep, each to its tolerance; the last ones are signs."""
    shape, k = columns.shape, columns.shape[3]
    residual = columns.reshape(-1, k).copy()
    solution = np.zeros_like(residual)
    size = (residual**2).sum(axis=0)
    first = size.copy()
    enough = first * tolerances**2
    # Lanczos' tridiagonal matrices; a column that is done has ones on its diagonal.
    diagonal, beside = np.ones((_MOST_PRODUCTS, k)), np.zeros((_MOST_PRODUCTS, k))
    kept = np.zeros(k)
    on = np.flatnonzero(size > enough)
    residual, found = residual[:, on], np.zeros((len(residual), len(on)))
    along = residual.copy()
    for i in range(_MOST_PRODUCTS):
        if len(on) == 0:
            break
        moved = product(along.reshape(*shape[:3], -1)).reshape(-1, len(on))
        step = size[on] / np.einsum("ik,ik->k", along, moved)
        found += step * along
        residual -= step * moved
        new = np.einsum("ik,ik->k", residual, residual)
        share = new / size[on]
        diagonal[i, on] = 1 / step + kept[on]
        kept[on], size[on] = share / step, new
        going = (new > enough[on]) & ((i + 1 < _MOST_OF_SIGNS) | (on < k - n_signs))
        beside[i, on] = np.where(going, np.sqrt(share) / step, 0.0)
        along *= share
        along += residual
        if not going.all():
            solution[:, on[~going]] = found[:, ~going]
            on, found, along, residual = (
                on[going],
                *(np.ascontiguousarray(x[:, going]) for x in (found, along, residual)),
            )
    solution[:, on] = found
    logs = [
        first[j] * _log_quadrature(diagonal[:, j], beside[:-1, j]) for j in range(k - n_signs, k)
    ]
    return _Solved(solution.reshape(shape), np.array(logs))


def _log_quadrature(diagonal: Float, beside: Float) -> float:
    """First entry of the logarithm of a tridiagonal matrix."""
    values, vectors = eigh_tridiagonal(diagonal, beside)
    return float(vectors[0] ** 2 @ np.log(np.maximum(values, 1e-12)))


class MatrixFree(Products):
    """In products; one for every fit."""

    def __init__(self, *, warm: bool = True) -> None:
        """A fit that is not `warm` still has to find to where evidence means anything."""
        self._modes: Float | None = None
        self._far = 0 if warm else _FAR_ROUNDS

    def smooth(
        self,
        model: Rule,
        states: Float,
        parameters: Float,
        middle: Float,
        prior: Float,
        found: Linearised,
        variances: Variances,
        *,
        rough: bool = False,
    ) -> Round:
        """One pass, linear around states (m + 1, D) and parameters (q + k,)."""
        asked = (model, states, parameters, middle, prior, found, variances)
        if rough:
            return smooth(*asked, n_probes=0)[0]
        if self._far > 0:
            self._far -= 1
            return smooth(*asked, n_probes=_FAR_PROBES)[0]
        if self._modes is None and not model.apart:
            self._modes = first_modes(model)
        round_, self._modes = smooth(*asked, modes=self._modes)
        return round_

    def covariance(
        self,
        model: Rule,
        states: Float,
        prior: Float,
        found: Linearised,
        variances: Variances,
        *,
        steps: npt.NDArray[np.int64],
        episodes: float,
    ) -> Float:
        """Of the parameters, if these steps were seen in that multiple of the episodes."""
        stages = np.minimum(np.arange(len(steps) + 1), len(states) - 1)
        seen = _Seen.of(model, states)
        seen = _Seen(np.sqrt(episodes) * seen.roots[stages], seen.score[stages])
        system = _System(seen, found.of(steps), variances, prior)
        nothing = np.zeros((*seen.score.shape[:3], 0))
        _, border, bordered, _ = system.solve(nothing, nothing)
        core = np.eye(len(prior)) + _inner(border, bordered)
        deviations = np.sqrt(prior)
        return np.asarray(deviations[:, None] * np.linalg.inv((core + core.T) / 2) * deviations)
