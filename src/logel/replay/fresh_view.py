"""What replayed steps say about the weights, all in units of the steps' noise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from logel.replay.crossed import Metric, crossed
from logel.types import Float

# The farthest that a round may go: across, and in logs of the length; and the squared way, per
# weight and in units of what is chance, that is not worth another round.
_FARTHEST, _LONGER, _SHORT = 0.5, 0.7, 0.1
# Where more than this times what noise leaves is left, no round is the last before its time.
_GOOD = 1.5
# How much curvature there is at least, of the mean one; and of the length, in squared units of it.
_FLAT, _KNOWN = 0.02, 2.0
# How much wider intervals are than linear theory says, squared: effects and the units of noise are
# estimates.
_INFLATED = 2.0
# How much less must be left at another length to go there at once.
_BETTER = 0.1
# Steps of which this many times the usual is left count half.
_FAR = 3.0
# Share of the effects' squares that is no noise, at least.
_RELIABLE = 0.2
# Noise of a prediction, over the usual one, is no smaller.
_TINY = 1e-6


@dataclass(frozen=True, eq=False)
class Seen:
    """Candidates' movements in units of noise.

    Attributes:
        halves: (K, 2, m, r).
        off: What they leave of the observed steps, (K, m, r).
        shares: How much every step counts, (m,).
        metric: The units.
    """

    halves: Float
    off: Float
    shares: Float
    metric: Metric

    @classmethod
    def of(cls, moved: Float, metric: Metric, observed: Float, centre: int | None = None) -> Seen:
        """Of movements (K, 2, m, D); steps that the centre or the best leaves count less."""
        halves = metric.seen(moved)
        off = metric.seen(observed) - halves.mean(axis=1)
        left = squares(off)
        usual = left.min(axis=0) if centre is None else left[centre]
        return cls(halves, off, 1 / (1 + usual / (_FAR * np.median(usual) + 1e-300)), metric)

    @cached_property
    def noise(self) -> Float:
        """Squared noise of the candidates' own predictions, over the usual one, (K,)."""
        apart = squares(0.5 * (self.halves[:, 0] - self.halves[:, 1])) @ self.shares
        return np.asarray(apart / (self.shares.sum() * self.metric.expected) + _TINY)

    @cached_property
    def left(self) -> Float:
        """What candidates leave over what noise would, (K,): the learner's and their own."""
        left = squares(self.off) @ self.shares
        return np.asarray(left / (2 * self.noise) / (self.shares.sum() * self.metric.expected))

    @property
    def losses(self) -> Float:
        """Twice the negative log-density of what is left, per direction, (K,).

        To choose among rewards far apart: to claim much noise explains anything, and has its price.
        """
        return np.asarray(self.left + np.log(self.noise))


@dataclass(frozen=True, eq=False)
class View:
    """The steps from one centre, in q coordinates: q - 1 across it, and the log of its length.

    Attributes:
        centre: (q,).
        across: (q - 1, q), as long as the centre.
        corners: In these coordinates, (q, q - 1).
        seen: Of the centre, of it twice and half as long, and of the corners.
    """

    centre: Float
    across: Float
    corners: Float
    seen: Seen

    def effects(self, values: Float) -> Float:
        """Of the coordinates, (q, ...), from what the candidates (q + 3, ...) have."""
        across = np.tensordot(np.linalg.pinv(self.corners), values[3:], axes=1)
        longer = (values[1] - values[2]) / (2 * np.log(2.0))
        return np.concatenate([across, longer[None]])

    @cached_property
    def columns(self) -> Float:
        """Effects on both halves, (q, 2, m, r)."""
        return self.effects(self.seen.halves)

    @cached_property
    def curvature(self) -> Float:
        """(q, q), with what is flat held."""
        middle, q = self.columns.mean(axis=1), len(self.centre)
        gram = np.einsum("itr,jtr,t->ij", middle, middle, self.seen.shares)
        held = np.full(q, _FLAT * np.trace(gram[:-1, :-1]) / max(q - 1, 1))
        held[-1] = _KNOWN * self.seen.shares.mean()
        return np.asarray(gram + np.diag(held) + 1e-12 * np.eye(q))

    @cached_property
    def shift(self) -> Float:
        """Where the steps pull, (q,); rewards must not be preferred for quiet predictions."""
        middle, seen = self.columns.mean(axis=1), self.seen
        pull = np.einsum("itr,tr,t->i", middle, seen.off[0], seen.shares)
        # What is left has the prediction's own noise in it, which grows as the claim does: half of
        # the price of noise is paid already.
        chance = seen.noise[0] * seen.shares.sum() * seen.metric.expected
        pull += self.effects(np.log(seen.noise)) * (seen.left[0] - 0.5) * chance
        found = np.linalg.solve(self.curvature, pull)
        here, longer, shorter = seen.losses[:3]
        if min(longer, shorter) < here - _BETTER:
            found[-1] = _LONGER if longer < shorter else -_LONGER
        return np.asarray(found)

    def ahead(self, share: float) -> Float:
        """A share of the way that the steps pull, no farther than is seen."""
        across = self.shift[:-1]
        across = share * across * min(1.0, _FARTHEST / max(float(np.linalg.norm(across)), 1e-300))
        size, length = np.linalg.norm(self.centre), share * self.shift[-1]
        turned = self.centre + across @ self.across
        turned = turned * size / np.linalg.norm(turned)
        return np.asarray(turned * np.exp(np.clip(length, -_LONGER, _LONGER)))

    @property
    def arrived(self) -> bool:
        """Whether another round would tell no more than chance does."""
        away = float(self.shift @ np.linalg.pinv(self.covariance) @ self.shift)
        return bool(self.seen.left[0] < _GOOD and away < _SHORT * len(self.shift))

    @cached_property
    def covariance(self) -> Float:
        """Of the shift, (q, q)."""
        seen, middle = self.seen, self.columns.mean(axis=1)
        noise = np.einsum("itr,jtr,t,r->ij", middle, middle, seen.shares**2, seen.metric.variance)
        # What is left has our noise and the learner's; or more, where something is wrong.
        noise *= 2 * seen.noise[0] * max(1.0, seen.left[0]) * _INFLATED
        gram = np.einsum("itr,jtr,t->ij", middle, middle, seen.shares)
        held = self.curvature - gram
        values, vectors = np.linalg.eigh(self.curvature)
        root = (vectors * np.sqrt(values)) @ vectors.T
        inverse = (vectors / np.sqrt(values)) @ vectors.T
        known = np.einsum("tij,t->ij", crossed(self.columns), seen.shares) + held
        shares, turn = np.linalg.eigh(inverse @ known @ inverse)
        known = root @ (turn * np.clip(shares, _RELIABLE, 1.0)) @ turn.T @ root
        back = np.linalg.pinv(known)
        return np.asarray(back @ noise @ back)


def squares(rows: Float) -> Float:
    """Squared lengths of rows."""
    return np.asarray((rows**2).sum(axis=-1))
