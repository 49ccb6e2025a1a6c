"""Weights of single learners around a group's mean: how far they stray, and partial pooling.

    w[i] = c[i] (mu + tau * normal),    |mu| = 1,    c[i] > 0

The mean's length is the unit, sizes c are every learner's own, and the spread tau is the same in
all directions of the identified weights, in units of the features' ranges. With h and H of
`logel.inference.direction`, in the eigenvectors of H (eigenvalues e), the evidence of one learner
given its size is a product over directions of

    (1 + s)^(-1/2) exp( (c h mu - c^2 e mu^2 / 2 + tau^2 c^2 h^2 / 2) / (1 + s) )

with s = tau^2 c^2 e,

and the size is integrated out by quadrature, under the prior it has for shared weights. What is
left, mean and spread, is drawn by tempering, so that intervals know how little a few learners tell
about their spread. Single learners' weights follow from every draw.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp, ndtr

from logel.inference.direction import Stack, unit
from logel.inference.temper import temper
from logel.types import Float

# The spread is half Cauchy before anything is seen: as likely below as above this share of the
# mean's length, per direction.
_MEDIAN_SPREAD = 0.5
# Nodes of the quadrature over sizes: around the likeliest, and everywhere.
_NEAR, _FAR = np.linspace(-3.2, 3.2, 9), np.linspace(0.0, 1.0, 8)
# Numbers held at once.
_AT_ONCE = 2**21


@dataclass(frozen=True, eq=False)
class Group:
    """Draws of mean, spread and single learners.

    Attributes:
        means: Directions of the group's mean, shape (p, k).
        spreads: tau, shape (p,).
        singles: Directions of every learner's weights, (n, p, k).
        log_evidence: Of weights around a mean, relative to directions of everyone's own.
        by_learner: Log evidence of every learner at the draws, (p, n).
    """

    means: Float
    spreads: Float
    singles: Float
    log_evidence: float
    by_learner: Float


def spread_of_normal(z: Float) -> Float:
    """The spread that a standard normal stands for: half Cauchy."""
    return np.asarray(_MEDIAN_SPREAD * np.tan(np.pi / 2 * np.clip(ndtr(z), 1e-4, 1 - 1e-3)))


def fit_group(stack: Stack, n_draws: int, rng: np.random.Generator) -> Group:
    """Mean, spread and single learners of a group."""
    k, evidence = stack.linear.shape[2], _Marginal.of(stack)
    found = temper(lambda points: evidence.by_learner(*_split(points)).sum(1), k + 1, n_draws, rng)
    means, spreads = _split(found.draws)
    return Group(
        means=means,
        spreads=spreads,
        singles=evidence.singles(means, spreads, rng),
        log_evidence=found.log_evidence,
        by_learner=evidence.by_learner(means, spreads),
    )


def by_learner(stack: Stack, means: Float, spreads: Float) -> Float:
    """Log evidence of every learner, (p, n), for means (p, k) and spreads (p,)."""
    return _Marginal.of(stack).by_learner(means, spreads)


def _split(points: Float) -> tuple[Float, Float]:
    return unit(points[:, :-1]), spread_of_normal(points[:, -1])


@dataclass(frozen=True, eq=False)
class _Marginal:
    """The evidence about mean and spread, sizes and single weights integrated out."""

    stack: Stack
    values: Float  # eigenvalues of the information, (n, R, k)
    axes: Float  # eigenvectors, columns, (n, R, k, k)
    along: Float  # h in them, (n, R, k)

    @classmethod
    def of(cls, stack: Stack) -> _Marginal:
        values, axes = np.linalg.eigh(stack.information)
        along = np.einsum("irkl,irk->irl", axes, stack.linear)
        return cls(stack, np.maximum(values, 0.0), axes, along)

    def by_learner(self, means: Float, spreads: Float) -> Float:
        """Log evidence of every learner, (p, n), for means (p, k) and spreads (p,)."""
        size = self.values.size * (len(_NEAR) + len(_FAR))
        parts = np.array_split(np.arange(len(means)), max(1, len(means) * size // _AT_ONCE))
        found = [logsumexp(self._nodes(means[p], spreads[p])[1], axis=(2, 3)) for p in parts]
        return np.logaddexp(np.concatenate(found), self.stack.log_chances)

    def _nodes(self, means: Float, spreads: Float) -> tuple[Float, Float]:
        """Sizes at the nodes, and their share of the log evidence, both (p, n, R, nodes)."""
        mu, tau = self._turned(means), spreads[:, None, None]
        seen = np.sqrt((self.values * mu**2).sum(axis=-1))
        x, log_weights = self._grid((self.along * mu).sum(axis=-1) / seen, tau)
        c = x / seen[..., None]
        square, loose = c**2, (tau[..., None] * c) ** 2
        total = log_weights + self.stack.log_shares[..., None]
        for j in range(mu.shape[-1]):
            e, h, m = (a[..., j, None] for a in (self.values, self.along, mu))
            room = 1 + loose * e
            inner = c * (h * m) - square * (e * m**2 / 2) + loose * (h**2 / 2)
            total += inner / room - np.log(room) / 2
        return c, total

    def _turned(self, means: Float) -> Float:
        """Means (p, k) in every account's eigenvectors, (p, n, R, k)."""
        return np.asarray(np.einsum("irkl,pk->pirl", self.axes, means))

    def _grid(self, t: Float, tau: Float) -> tuple[Float, Float]:
        """Nodes x and logs of their weights, (p, n, R, nodes), with the prior dx / (1 + x).

        That prior is flat in y = log(1 + x). Around x = t the evidence is as wide as noise and
        spread make it; some nodes are there, others everywhere.
        """
        middle = np.log1p(np.maximum(t, 0.0))
        width = np.minimum(np.sqrt(np.exp(-2 * middle) + tau**2), 1.0)
        near = middle[..., None] + width[..., None] * _NEAR
        far = np.log1p(self._farthest)[..., None] * _FAR
        both = np.concatenate([near, np.broadcast_to(far, (*t.shape, len(_FAR)))], axis=-1)
        y = np.sort(np.maximum(both, 0.0), axis=-1)
        gaps = np.diff(y, axis=-1) / 2
        weights = np.pad(gaps, [(0, 0)] * t.ndim + [(0, 1)]) + np.pad(
            gaps, [(0, 0)] * t.ndim + [(1, 0)]
        )
        return np.expm1(y), np.log(np.maximum(weights, 1e-300))

    @property
    def _farthest(self) -> Float:
        """Sizes, in units of what is seen, beyond which nothing is likely, (n, R)."""
        whole = (self.along**2 / np.maximum(self.values, 1e-300)).sum(axis=-1)
        return np.asarray(10 * (np.sqrt(whole) + 3))

    def singles(self, means: Float, spreads: Float, rng: np.random.Generator) -> Float:
        """Directions of every learner's weights, one for each draw, shape (n, p, k)."""
        parts = np.array_split(np.arange(len(means)), max(1, len(means) // 100))
        found = [self._singles(means[p], spreads[p], rng) for p in parts]
        return np.concatenate(found, axis=1)

    def _singles(self, means: Float, spreads: Float, rng: np.random.Generator) -> Float:
        c, logs = self._nodes(means, spreads)
        p, n, accounts, nodes = logs.shape
        nothing = np.broadcast_to(self.stack.log_chances[:, None], (p, n, 1))
        logs = np.concatenate([logs.reshape(p, n, -1), nothing], axis=2)
        chosen = (logs + rng.gumbel(size=logs.shape)).argmax(axis=2)
        # Who learnt nothing says nothing: its size is zero, whatever the account.
        sizes = np.concatenate([c.reshape(p, n, -1), np.zeros((p, n, 1))], axis=2)
        size = np.take_along_axis(sizes, chosen[..., None], axis=2)
        account = np.minimum(chosen // nodes, accounts - 1)
        who = np.arange(n)
        e, h, axes = (a[who, account] for a in (self.values, self.along, self.axes))
        mu = self._turned(means)[np.arange(p)[:, None], who, account]
        tau = spreads[:, None, None]
        loose = 1 + (tau * size) ** 2 * e
        v = (mu + tau**2 * size * h) / loose
        v = v + tau / np.sqrt(loose) * rng.standard_normal(v.shape)
        return unit(np.einsum("pikl,pil->ipk", axes, v))
