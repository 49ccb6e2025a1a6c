"""What a learner's history says of the direction of its weights, and how several say it together.

Unknown learning rates and temperatures make weights known up to a positive factor, another one for
every learner. So learners are compared, and put together, by the *direction* of their weights. For
one account of a history (a rule) the evidence about the weights w is Gaussian to second order,

    log L(w) = h @ w - w @ H @ w / 2 + constant,

and of the direction u alone, the size c = x / sqrt(u @ H @ u) being integrated out,

    L(u) = integral of exp(x t - x^2 / 2) dx / (1 + x),    t = h @ u / sqrt(u @ H @ u).

The prior of x, the size in units of what can be seen of it, is flat where it is not visible and
flat in its logarithm where it is. As L(u) depends on t alone and grows with it, and as t is largest
in the mean at the true direction, many learners that are each seen badly do not add up to an answer
of their own.

Directions are uniform beforehand. So evidence multiplies, and no prior counts twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.special import chdtri, logsumexp

from logel.inference.temper import temper
from logel.types import Float

# Particles that find an account's mean over all directions, which weighs it against others.
_MEAN_DRAWS = 400
# Accounts less likely than this are not worth the time.
_NEGLIGIBLE = 1e-2
# Relative variances below which a covariance says that nothing is known, not that all is.
_SILENT = 1e-10
# Gaussians that stand for a Student distribution, and freedom beyond which one is enough.
_GAUSSIANS, _MANY = 5, 60
# Of what is seen in the direction seen best: less is nothing, and nothing cannot be divided by.
_UNSEEN = 1e-9


class Account(NamedTuple):
    """One way to read a history.

    Attributes:
        rule: How the reward moves the policy.
        share: Its probability among the accounts of this history.
        linear: h above, shape (k,).
        information: H above, shape (k, k).
    """

    rule: str
    share: float
    linear: Float
    information: Float

    @classmethod
    def of(cls, rule: str, share: float, mean: Float, covariance: Float) -> Account:
        """From weights and their covariance."""
        symmetric = (covariance + covariance.T) / 2
        information = np.linalg.pinv(symmetric, rcond=_SILENT, hermitian=True)
        return cls(rule, share, information @ mean, np.asarray(information, dtype=float))

    def widened(self, covariance: Float) -> Account:
        """With another source of error, of covariance (k, k)."""
        kept = np.linalg.inv(np.eye(len(self.linear)) + self.information @ covariance)
        information = kept @ self.information
        return self._replace(
            linear=kept @ self.linear, information=(information + information.T) / 2
        )

    def through(self, matrix: Float) -> Account:
        """In other coordinates z, of which those of the account are `matrix @ z`."""
        return self._replace(
            linear=matrix.T @ self.linear, information=matrix.T @ self.information @ matrix
        )


def student_accounts(rule: str, mean: Float, covariance: Float, freedom: int) -> list[Account]:
    """Weights whose covariance was estimated with few degrees of freedom, as likely Gaussians."""
    if freedom <= 0 or freedom > _MANY:
        return [Account.of(rule, 1.0, mean, covariance)]
    middles = (np.arange(_GAUSSIANS) + 0.5) / _GAUSSIANS
    factors = freedom / chdtri(freedom, 1 - middles)
    return [Account.of(rule, 1 / _GAUSSIANS, mean, f * covariance) for f in factors]


@dataclass(frozen=True, eq=False)
class Evidence:
    """What one learner's history says of its weights.

    Attributes:
        accounts: Ways to read it, the likeliest first.
        chance: Probability that it learnt nothing: then any direction is as likely as any other.
        moved: Weights of the likeliest account without each group of the episodes that the world
            is pooled from, minus those with all, shape (g, k).
        basis: Takes these coordinates to the weights, shape (q, k).
    """

    accounts: tuple[Account, ...]
    chance: float
    moved: Float
    basis: Float

    @property
    def world_noise(self) -> Float:
        """Covariance (k, k) due to what is not known of the world."""
        spread = self.moved - self.moved.mean(axis=0) if len(self.moved) else self.moved
        n = max(len(self.moved), 1)
        return np.asarray((n - 1) / n * spread.T @ spread)

    def through(self, matrix: Float, inverse: Float) -> Evidence:
        """In other coordinates z: these are `matrix @ z`, and z is `inverse` times these."""
        return Evidence(
            tuple(account.through(matrix) for account in self.accounts),
            self.chance,
            self.moved @ inverse.T,
            self.basis @ matrix,
        )

    def widened(self) -> Evidence:
        """With the world's noise in every account."""
        noise = self.world_noise
        wide = tuple(account.widened(noise) for account in self.accounts)
        return replace(self, accounts=wide, moved=self.moved[:0])


@dataclass(frozen=True, eq=False)
class Stack:
    """The evidence of n learners in arrays, R accounts each, in coordinates of k directions.

    Attributes:
        linear: Shape (n, R, k).
        information: Shape (n, R, k, k).
        log_shares: Of the accounts, relative to their means over all directions, (n, R).
        log_chances: Log probability that a learner learnt nothing, (n,).
        rules: Names of the accounts, n lists.
    """

    linear: Float
    information: Float
    log_shares: Float
    log_chances: Float
    rules: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, evidence: Sequence[Evidence], rng: np.random.Generator) -> Stack:
        """From every learner's own."""
        kept = [
            [a for a in one.accounts if a.share > _NEGLIGIBLE] or list(one.accounts[:1])
            for one in evidence
        ]
        n, most, k = len(kept), max(map(len, kept)), len(kept[0][0].linear)
        linear, information = np.zeros((n, most, k)), np.tile(np.eye(k), (n, most, 1, 1))
        shares, chances = np.full((n, most), -np.inf), np.array([e.chance for e in evidence])
        for i, accounts in enumerate(kept):
            total = sum(a.share for a in accounts)
            for r, account in enumerate(accounts):
                linear[i, r], information[i, r] = account.linear, _lifted(account.information)
                mean = _mean_over_directions(linear[i, r], information[i, r], rng)
                shares[i, r] = np.log(account.share / total) - mean
        with np.errstate(divide="ignore"):
            logs = np.log(np.clip(chances, 0.0, 1.0))
            shares = shares + np.log1p(-np.clip(chances, 0.0, 1.0))[:, None]
        return cls(linear, information, shares, logs, tuple(tuple(a.rule for a in k) for k in kept))

    def __len__(self) -> int:
        return len(self.linear)

    def take(self, members: Sequence[int]) -> Stack:
        """Some of the learners."""
        rows = np.asarray(members, dtype=int)
        return Stack(
            self.linear[rows],
            self.information[rows],
            self.log_shares[rows],
            self.log_chances[rows],
            tuple(self.rules[i] for i in rows),
        )

    def shifted(self, shifts: Float) -> Stack:
        """With every learner's weights moved, shape (n, k)."""
        extra = np.einsum("irkl,il->irk", self.information, shifts)
        return replace(self, linear=self.linear + extra)

    def by_account(self, directions: Float) -> Float:
        """Log of every account's evidence at directions (p, k), relative to its mean: (p, n, R)."""
        p, k = directions.shape
        b = directions @ self.linear.reshape(-1, k).T
        pushed = (directions @ self.information.reshape(-1, k).T).reshape(p, -1, k)
        a = np.einsum("pik,pk->pi", pushed, directions)
        logs = log_integral(b / np.sqrt(a)).reshape(p, *self.log_shares.shape)
        return np.asarray(logs + self.log_shares)

    def by_learner(self, directions: Float) -> Float:
        """Log evidence of every learner at directions (p, k), relative to its mean, (p, n)."""
        logs = logsumexp(self.by_account(directions), axis=2)
        return np.logaddexp(logs, self.log_chances)


def _lifted(information: Float) -> Float:
    """Information with a trace in every direction."""
    size = max(float(np.linalg.eigvalsh(information)[-1]), 1e-300)
    return information + _UNSEEN * size * np.eye(len(information))


def unit(points: Float) -> Float:
    """Directions of points (..., k)."""
    return np.asarray(points / np.maximum(np.linalg.norm(points, axis=-1, keepdims=True), 1e-300))


def _mean_over_directions(linear: Float, information: Float, rng: np.random.Generator) -> float:
    """Log of the mean of L(u) over all directions."""

    def log_likelihood(points: Float) -> Float:
        u = unit(points)
        return log_integral(u @ linear / np.sqrt(np.einsum("pk,kl,pl->p", u, information, u)))

    return temper(log_likelihood, len(linear), _MEAN_DRAWS, rng).log_evidence


def log_integral(t: Float) -> Float:
    """Log of the integral of exp(x t - x^2 / 2) dx / (1 + x) over x >= 0, for any t."""
    grid, values = _table()
    most = grid[-1]
    # Far out it is Laplace's approximation; on the other side the integral is about 1 / (1 - t).
    square = np.where(t > 0, t, 0.0) ** 2 / 2
    inner = np.interp(t, grid, values)
    large = values[-1] + np.log((1 + most) / (1 + np.maximum(t, most)))
    small = values[0] + np.log((1 - grid[0]) / (1 - np.minimum(t, grid[0])))
    return np.asarray(square + np.where(t > most, large, np.where(t < grid[0], small, inner)))


@cache
def _table() -> tuple[Float, Float]:
    """The same on a grid, without the square that dominates it on one side."""
    grid = np.linspace(-30.0, 60.0, 3001)
    nodes, weights = np.polynomial.legendre.leggauss(200)
    low = np.maximum(grid - 9.0, 0.0)
    high = np.where(grid < -3.0, 30.0 / np.abs(np.minimum(grid, -3.0)), np.maximum(grid, 0) + 9.0)
    x = low[:, None] + (high - low)[:, None] * (nodes + 1) / 2
    square = np.where(grid > 0, grid, 0.0)[:, None] ** 2 / 2
    values = np.exp(x * grid[:, None] - x**2 / 2 - square) / (1 + x)
    return grid, np.log(values @ weights * (high - low) / 2)
