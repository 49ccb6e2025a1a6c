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
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from logel.inference.null import ENOUGH_STEPS, step_signs
from logel.types import Float

# How much a hidden element may pay, in sizes of the named weights: each as likely as the others.
_AMOUNTS = (0.1, 0.3, 1.0, 3.0)
# Share of the squared movement that is never held for a hidden reward: what a counted world
# gets wrong is the same at all steps, and so is what steps that are not small do.
TOLERATED = 0.02
# Ways to turn the steps that are tried at once.
_WAYS = 1000
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
    information: Float,
    pulls: Float,
    named: Float,
    *,
    size: float = 1.0,
    chance: Float | None = None,
    moved: float = 0.0,
    seed: int = 0,
) -> Singles:
    """Judge every element.

    Args:
        information: Of the coordinates of named weights and elements, step by step or in all, in
            units of the noise (of steps only its shape matters), (m, p + k, p + k).
        pulls: What the steps say about them, (m, p + k): information times weights, and noise.
        named: Directions of the named weights to be reported on, in their coordinates, (r, p).
        size: Of the named weights, by which what an element pays is measured, if there are no
            single steps.
        chance: The same pulls as they might have been by chance alone, (c, m, p + k).
        moved: Squared movement of all steps, where nothing tells what chance would do.
        seed: Chooses ways to turn many steps.
    """
    p, m = named.shape[1], len(pulls)
    total = information.sum(axis=0)
    inverse = np.linalg.pinv(total[:p, :p], hermitian=True, rcond=1e-10)
    across = total[p:, :p] @ inverse
    before = np.maximum(np.diag(total)[p:], 1e-300)
    seen = before - np.einsum("kp,kp->k", across, total[p:, :p])
    told = seen > _LEFT * before

    def left(pulls: Float) -> Float:
        """Of every step once the named features have explained what they can, (m, k)."""
        explained = np.einsum("tij,j->ti", information[:, :, :p], inverse @ pulls.sum(0)[:p])
        rest = pulls - explained
        return np.asarray(np.where(told, rest[:, p:] - rest[:, :p] @ across.T, 0.0))

    seen = np.where(told, seen, 1.0)
    if m == 1:
        found = _in_all(left(pulls)[0], seen, (size * np.array(_AMOUNTS)) ** 2)
    else:
        # How much of what is seen of an element each step shows.
        shares = np.maximum(np.einsum("tkk->tk", information[:, p:, p:]), 1e-9 * before / m)
        others = None if chance is None else np.stack([left(one) for one in chance])
        shown = seen * shares / shares.sum(axis=0)
        found = _step_by_step(left(pulls), shown, others, TOLERATED * moved, seed)
    odds = np.where(told, found.odds, -np.inf)
    gains = logsumexp(odds, axis=1) - np.log(max(int(told.sum()), 1))
    gain = float(gains[0])
    if m > 1:
        turned = float(-np.log((gains >= gain - 1e-9).mean()))
        gain = min(gain, turned if m >= ENOUGH_STEPS else 0.0)
    lengths = np.sqrt(np.maximum(np.einsum("rp,pq,rq->r", named, total[:p, :p], named), 1e-300))
    return Singles(
        odds=odds[0],
        amounts=np.where(told, found.amounts, 0.0),
        errors=found.errors,
        raw=float(gains[0]),
        gain=gain,
        entangled=np.where(told, 1 - seen / before, 1.0),
        alike=total[p:, :p] @ named.T / lengths / np.sqrt(before)[:, None],
    )


class _Found(NamedTuple):
    """Log odds (s, k) as the steps are and turned in other ways, amounts and errors (k,)."""

    odds: Float
    amounts: Float
    errors: Float


def _in_all(pulls: Float, seen: Float, amounts: Float) -> _Found:
    """Of a posterior: pulls (k,) whose variance is what is seen."""
    each = [
        0.5 * (pulls**2 * a / (1 + a * seen) - np.log1p(a * seen)) - np.log(len(amounts))
        for a in amounts
    ]
    precision = seen + 1 / amounts[-1]
    return _Found(logsumexp(each, axis=0)[None], pulls / precision, 1 / np.sqrt(precision))


def _step_by_step(
    pulls: Float, seen: Float, chance: Float | None, tolerated: float, seed: int
) -> _Found:
    """Of steps with noise of an unknown size: pulls (m, k) regressed on what is seen (m, k).

    What is known of chance counts as one more history in which nothing is hidden: noise is no
    smaller than that, and better known.
    """
    m, total = len(pulls), seen.sum(axis=0)
    squares, freedom = (pulls**2 / seen).sum(axis=0) + tolerated, m - 1
    if chance is not None:
        squares = squares + (chance**2 / seen).sum(axis=1).mean(axis=0)
        freedom += m
    squares = np.maximum(squares, 1e-300)
    summed = np.concatenate([signs @ pulls for signs in step_signs(m, seed, _WAYS)])
    share = np.minimum(summed**2 / total / squares, 1 - 1e-12)
    # Schwarz's price of one weight, and the odds of a regression whose noise is unknown.
    odds = -0.5 * freedom * np.log1p(-share) - 0.5 * np.log(m)
    errors = np.sqrt(squares * (1 - share[0]) / freedom / total)
    return _Found(odds, summed[0] / total, errors)
