"""The first answer: rewards all over the sphere tried on the first steps, and better ones proposed.

Levenberg and Marquardt, all candidates of a round under the same fate. What explains the first
steps need not be what explains all, but it is near enough to begin with.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from logel.replay.fates import Replay, simplex
from logel.types import Float

logger = logging.getLogger(__name__)

# Share of a movement up to which steps count as explained.
_MISFIT = 0.01
# Steps that starts are compared on, and those of the search.
_FIRST, _EARLY = 3, 5
# Scales of the reward that are tried: it enters through gradient clipping and the critic's pace.
_SCALES = (0.1, 0.3, 1.0, 3.0)
# Rounds of the search; how far its members are spread at first and at last; by how much a step must
# be explained better for a round to count.
_ROUNDS, _WIDE, _NARROW, _BETTER = 3, 0.3, 0.1, 0.03
# Loss per step (of two hundredths unexplained) that chance leaves as well.
_EXPLAINED = 0.5
_DAMPING = (1e-3, 0.1, 1.0)
# Keeps the first regression from running off along what first steps hardly show.
_RIDGE = 0.03


def searched(replay: Replay, starts: Float) -> tuple[Float, float]:
    """Weights that explain the first steps well, and their loss per step.

    Rewards along the given starts (C, q), in units of the features' scale, and along axes turned by
    chance; what a regression on them says; then Levenberg and Marquardt from the best. Steps of one
    round are compared with the same random numbers, and only what explains them better is taken.
    """
    n_steps = min(_EARLY, len(replay.course))
    q = starts.shape[1]
    rng = np.random.default_rng([replay.seed, 11, replay.next_number()])
    first = np.concatenate([starts, np.linalg.qr(rng.standard_normal((q, q)))[0]])
    tried = compared(replay, np.concatenate([s * first for s in _SCALES]), min(_FIRST, n_steps))
    centre, proposals, spread = tried.best, tried.directions(replay, len(first)), _WIDE
    for _ in range(_ROUNDS):
        turn = simplex(q, rng) * spread * np.linalg.norm(centre) / np.sqrt(q)
        scales = centre * np.array([[0.6], [1.6]])
        tried = compared(
            replay, np.concatenate([centre[None], proposals, scales, centre + turn]), n_steps
        )
        logger.info("replay: losses %.3f -> %.3f", tried.losses[0], tried.losses.min())
        better = tried.losses[0] - tried.losses.min()
        centre = tried.best
        proposals = tried.proposals(replay.course.observed, replay.usual, _DAMPING)
        if tried.losses.min() < _EXPLAINED * n_steps:
            break
        if better < _BETTER * n_steps:
            spread = 0.5 * spread
            if spread < _NARROW:
                break
    return centre, float(tried.losses.min()) / n_steps


def best_scale(replay: Replay, centre: Float, factors: Sequence[float], n_steps: int) -> float:
    """The factor by which a reward explains steps best; one, if no other is clearly better.

    The very first steps say little about it: to them critics matter that nobody knows.
    """
    losses = compared(replay, np.multiply.outer(factors, centre), n_steps).losses
    logger.info("replay: losses by scale %s", losses.round(2))
    best, here = int(np.argmin(losses)), factors.index(1.0)
    better = losses[here] - losses[best] > _BETTER * n_steps
    return factors[best] if better else 1.0


def _loss(replay: Replay, t: int, moved: Float) -> Float:
    """How badly movements (..., D) explain a step."""
    observed = replay.course.observed[t]
    left = ((moved - observed) ** 2).sum(axis=-1)
    return np.asarray(np.log1p(left / (observed @ observed + replay.usual) / (3 * _MISFIT)))


def compared(replay: Replay, weights: Float, n_steps: int) -> Comparison:
    """Replay the first steps with given weights (K, q), all under one fate."""
    fate, losses = [0] * len(weights), np.zeros(len(weights))
    moved = replay.passed(weights, fate, n_steps, "first guesses", replay.next_number())
    for t, one in enumerate(moved):
        losses += _loss(replay, t, one)
    return Comparison(weights, losses, list(moved))


@dataclass(frozen=True, eq=False)
class Comparison:
    """Weights that were tried with the same random numbers.

    Attributes:
        weights: (K, q).
        losses: How badly they explain the steps, (K,).
        moved: Movements (K, D) of every step.
    """

    weights: Float
    losses: Float
    moved: list[Float]

    @property
    def best(self) -> Float:
        """The weights that explain the steps best."""
        return np.asarray(self.weights[int(np.argmin(self.losses))])

    def directions(self, replay: Replay, n: int) -> Float:
        """What blocks of n rewards of one length say by themselves, one row per block.

        Movements are nearly linear in the direction of the reward, and turn round with it.
        """
        found = []
        for block in np.split(np.arange(len(self.weights)), len(self.weights) // n):
            places = self.weights[block]
            size = np.linalg.norm(places[0])
            inverse, q = np.linalg.pinv(places / size), places.shape[1]
            gram, pull = np.zeros((q, q)), np.zeros(q)
            for seen, moved in zip(replay.course.observed, self.moved, strict=False):
                effects = inverse @ moved[block]
                scale = seen @ seen + replay.usual
                gram += effects @ effects.T / scale
                pull += effects @ seen / scale
            best = np.linalg.solve(gram + _RIDGE * np.trace(gram) / q * np.eye(q), pull)
            found.append(size * best / max(float(np.linalg.norm(best)), 1e-300))
        return np.stack(found)

    def proposals(self, observed: Sequence[Float], usual: float, damping: Sequence[float]) -> Float:
        """Where a regression around the best says better ones are, one row per damping.

        Members near the best count more: the way between far ones is not straight.
        """
        centre = self.best
        places = self.weights - centre
        n, q = places.shape
        distance = np.linalg.norm(places, axis=1)
        # Twice as many as there are effects get full weight.
        near = np.sort(distance)[min(2 * q, n - 1)] + 1e-300
        weight = 1 / (1 + (distance / near) ** 4)
        gram, pull = np.zeros((q, q)), np.zeros(q)
        for moved, seen in zip(self.moved, observed, strict=False):
            effects = _effects(moved, places, weight)
            left = seen - moved[int(np.argmin(self.losses))]
            size = seen @ seen + usual
            # As the loss has it: what is explained badly counts less.
            trust = 1 / (3 * _MISFIT * size + left @ left)
            gram += trust * effects @ effects.T
            pull += trust * effects @ left
        scale = np.diag(np.diag(gram) + 1e-9 * np.trace(gram))
        shifts = np.stack([np.linalg.solve(gram + one * scale, pull) for one in damping])
        length = np.linalg.norm(shifts, axis=1) / np.linalg.norm(centre)
        return np.asarray(centre + shifts / np.maximum(length, 1.0)[:, None])


def _effects(moved: Float, places: Float, weight: Float) -> Float:
    """Movements (K, D) as a linear function of places (K, q): its slopes (q, D)."""
    design = np.column_stack([np.ones(len(places)), places])
    weighted = design.T * weight
    square = weighted @ design
    square += 1e-8 * np.diag(np.diag(square))
    return np.asarray(np.linalg.solve(square, weighted @ moved))[1:]
