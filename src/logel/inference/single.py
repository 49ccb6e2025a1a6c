"""One reward more, which nobody named: how much better each of a dictionary explains the steps.

What is hidden is mostly one thing in one place. So the question is put to one element at a time:
how much likelier are the steps if the learner is paid for it as well, by an amount not known? A
dense prior over all elements would pay for each of them. Elements that say the same share the
probability, and that is what tells how well the place is known.

Where a fit has steps, they are the unit of evidence: an element whose pull does not repeat from
step to step is as uncertain as its pull varies, and the best of all is held against what it would
be if the steps that are left over had gone the other way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from logel.inference.null import ENOUGH_STEPS, step_signs
from logel.types import Float

# How much a hidden element may pay, in sizes of the named weights: each as likely as the others.
_AMOUNTS = (0.1, 0.3, 1.0, 3.0)
# Share of an element's information that named features must leave for it to be told.
_LEFT = 1e-6


@dataclass(frozen=True, eq=False)
class Singles:
    """What the steps say of every element by itself, beside the named features.

    Attributes:
        odds: Log odds of each element over none, (k,).
        amounts: What each pays if it alone is hidden, (k,), in units of the dictionary.
        errors: Standard deviation of that, (k,).
        raw: Log odds of any of them over none, as they stand.
        gain: The same, where there are steps held against steps that are turned round.
        entangled: Share of what each does to the learner that named features could do too, (k,).
        alike: Cosine of what each does and what every named direction does, (k, p).
    """

    odds: Float
    amounts: Float
    errors: Float
    raw: float
    gain: float
    entangled: Float
    alike: Float

    @property
    def shares(self) -> Float:
        """Probability of each, if there is one, (k,)."""
        return np.asarray(np.exp(self.odds - logsumexp(self.odds)))


@dataclass(frozen=True, eq=False)
class Heard:
    """What a method found of the dictionary.

    Attributes:
        singles: Element by element.
        rule: How the reward moves the policy, if something is hidden.
        size: Length of the named weights beside it, in the given features.
    """

    singles: Singles
    rule: str
    size: float


def judged(
    information: Float, pulls: Float, named: Float, *, size: float, seed: int = 0
) -> Singles:
    """Judge every element.

    Args:
        information: Of the coordinates of named weights and elements, step by step or in all, in
            units of the noise, (m, p + k, p + k).
        pulls: What the steps say about them, (m, p + k): information times weights, and noise.
        named: Directions of the named weights to be reported on, in their coordinates, (r, p).
        size: Of the named weights, by which what an element pays is measured.
        seed: Chooses ways to turn many steps.
    """
    p, m = named.shape[1], len(pulls)
    total, pull = information.sum(axis=0), pulls.sum(axis=0)
    inverse = np.linalg.pinv(total[:p, :p], hermitian=True, rcond=1e-10)
    across = total[p:, :p] @ inverse
    before = np.maximum(np.diag(total)[p:], 1e-300)
    seen = np.diag(total)[p:] - np.einsum("kp,kp->k", across, total[p:, :p])
    told = seen > _LEFT * before
    seen = np.where(told, seen, 0.0)
    # What is left of every step once the named features have explained what they can.
    left = pulls - np.einsum("tij,j->ti", information[:, :, :p], inverse @ pull[:p])
    residual = np.where(told, left[:, p:] - left[:, :p] @ across.T, 0.0)
    amounts = (size * np.array(_AMOUNTS)) ** 2
    signs = step_signs(m, seed) if m > 1 else np.ones((1, 1))
    # Turned steps change what the named features explain of them, which `across` has taken out.
    noise = _noise(seen, residual)
    odds = _log_odds(signs @ residual / noise, seen / noise, amounts)
    gains = logsumexp(odds, axis=1) - np.log(max(told.sum(), 1))
    raw = gain = float(gains[0])
    if m > 1:
        chance = (gains >= gains[0] - 1e-9).mean()
        gain = min(gain, float(-np.log(chance))) if m >= ENOUGH_STEPS else min(gain, 0.0)
    largest = amounts[-1]
    precision = seen / noise + 1 / largest
    lengths = np.sqrt(np.maximum(np.einsum("rp,pq,rq->r", named, total[:p, :p], named), 1e-300))
    return Singles(
        odds=odds[0],
        amounts=residual.sum(axis=0) / noise / precision,
        errors=1 / np.sqrt(precision),
        raw=raw,
        gain=gain,
        entangled=1 - seen / before,
        alike=total[p:, :p] @ named.T / lengths / np.sqrt(before)[:, None],
    )


def _noise(seen: Float, residual: Float) -> Float:
    """Variance of the pulls in units of what was taken for noise: more if steps disagree."""
    m = len(residual)
    if m == 1:
        return np.ones_like(seen)
    varying = (residual**2).sum(axis=0) * m / (m - 1)
    return np.asarray(np.maximum(varying / np.maximum(seen, 1e-300), 1.0))


def _log_odds(pulls: Float, seen: Float, amounts: Float) -> Float:
    """Log odds of every element over none, (s, k), for pulls (s, k) in units of their noise."""
    each = [
        0.5 * (pulls**2 * a / (1 + a * seen) - np.log1p(a * seen)) - np.log(len(amounts))
        for a in amounts
    ]
    return np.asarray(np.where(seen > 0, logsumexp(each, axis=0), -np.inf))
