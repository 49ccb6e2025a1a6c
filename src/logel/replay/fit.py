"""From an ensemble's passages to weights: which passages, when to stop, how sure to be."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from logel.replay.ensemble import MISFIT, Ensemble, Passage, StepShare
from logel.types import Float

logger = logging.getLogger(__name__)

# Steps that starts are compared on, and those of the search.
_FIRST, _EARLY = 3, 5
# Scales of the reward that are tried: it enters through gradient clipping and the critic's pace.
_SCALES = (0.1, 0.3, 1.0, 3.0)
# Directions tried beside the given starts; rounds of the search; how far its members are spread at
# first and at last; by how much a step must be explained better for a round to count.
_RANDOM, _ROUNDS, _WIDE, _NARROW, _BETTER = 4, 8, 0.4, 0.09, 0.03
_DAMPING = (1e-3, 0.1, 1.0)
# Spread of the members in the first passage and in later ones, relative to the weights' length.
_FIRST_SPREAD, _LAST_SPREAD = 0.15, 0.1
# Early steps over which members move, before all steps are asked with members that keep still.
_MOVING_STEPS = 12
# Replayed steps that passages must have together, unless there are so many passages, and the most
# that are made: every one has critics and orders of its own, which count less the more there are
# (on development seeds three passages of 13 steps had three quarters of one's error).
_ENOUGH_STEPS, _ENOUGH, _MOST = 36, 3, 6
# One whose centre was farther from the answer than so many of its spreads (squared, per weight)
# does not count; nor does a centre move farther at once.
_NEAR = 2.0


@dataclass(frozen=True, eq=False)
class ReplayFit:
    """Weights found by replay, in the given features.

    Attributes:
        weights: (q,), with the scale that the replayed updates had.
        covariance: (q, q).
        freedom: Degrees of freedom of the covariance.
        steps: What every step said at the end, in units of the features' scale.
        trace: Mean log of what was left unexplained, passage by passage.
    """

    weights: Float
    covariance: Float
    freedom: int
    steps: Sequence[StepShare]
    trace: Float

    @property
    def explained(self) -> float:
        """Share of all squared movement."""
        sizes = np.array([step.moved**2 for step in self.steps])
        left = np.array([step.unexplained for step in self.steps])
        return float(1 - (sizes * left).sum() / sizes.sum())

    @property
    def excess(self) -> float:
        """What is left unexplained, over what other minibatches and critics would change."""
        return float(np.median([step.unexplained / (step.scatter + MISFIT) for step in self.steps]))


def fit_replay(ensemble: Ensemble, centre: Float) -> ReplayFit:
    """Fit weights from a good guess (q,), in units of the features' scale.

    Each passage says where the weights are as far as its own random numbers let it; those that
    began near enough are put together.
    """
    m = len(ensemble.course)
    first = _spread(centre, _FIRST_SPREAD)
    # A quarter of it keeps the regressions of later steps solvable.
    moving = ensemble.passed(centre, first, narrowest=0.25 * _FIRST_SPREAD, n_steps=_MOVING_STEPS)
    centre, passages = moving.centre, []
    for _ in range(_MOST):
        passages.append(ensemble.passed(centre, _spread(centre, _LAST_SPREAD), moving=False))
        found, _ = solved([one for one in passages if one.distance(centre) < _NEAR])
        near = [one for one in passages if one.distance(found) < _NEAR]
        if len(near) >= _ENOUGH or len(near) * m >= _ENOUGH_STEPS:
            break
        centre = centre + (found - centre) / max(1.0, passages[-1].distance(found) / _NEAR) ** 0.5
    logger.info("replay: %d of %d passages are near", len(near), len(passages))
    found, covariance = solved(near or passages[-1:])
    trace = np.array([_loss(passage) for passage in [moving, *passages]])
    logger.info("replay: unexplained, passage by passage: %s", np.exp(trace).round(4))
    return ReplayFit(
        weights=found / ensemble.scale,
        covariance=covariance / np.outer(ensemble.scale, ensemble.scale),
        freedom=max(m - 1, 1),
        steps=passages[-1].steps,
        trace=trace,
    )


def searched(ensemble: Ensemble, starts: Float) -> tuple[Float, float]:
    """Weights that explain the first steps well, and their loss per step.

    Levenberg and Marquardt, from several starts: guesses (C, q) of the direction, in units of the
    features' scale, and random ones.

    The steps of one round are compared with the same random numbers, and only what explains the
    steps better is taken.
    """
    n_steps = min(_EARLY, len(ensemble.course))
    q = starts.shape[1]
    rng = np.random.default_rng([ensemble.seed, 11])
    random = rng.standard_normal((_RANDOM, q))
    random /= np.linalg.norm(random, axis=1, keepdims=True)
    first = np.concatenate([starts, random])
    tried = ensemble.compared(np.concatenate([s * first for s in _SCALES]), min(_FIRST, n_steps))
    centre, proposals, spread = tried.best, np.zeros((0, q)), _WIDE
    for _ in range(_ROUNDS):
        # Pairs on both sides, along the axes of a random turn.
        turn = np.linalg.qr(rng.standard_normal((q, q)))[0] * spread * np.linalg.norm(centre)
        scales = centre * np.array([[0.6], [1.6]])
        members = np.concatenate([centre[None], proposals, scales, centre + turn, centre - turn])
        tried = ensemble.compared(members, n_steps)
        logger.info("replay: losses %.3f -> %.3f", tried.losses[0], tried.losses.min())
        better = tried.losses[0] - tried.losses.min()
        centre = tried.best
        proposals = tried.proposals(ensemble.course.observed, ensemble.usual, _DAMPING)
        if better < _BETTER * n_steps:
            spread = 0.5 * spread
            if spread < _NARROW:
                break
    return centre, float(tried.losses.min()) / n_steps


def _spread(centre: Float, spread: float) -> Float:
    return np.asarray((spread * np.linalg.norm(centre)) ** 2 * np.eye(len(centre)))


def _loss(passage: Passage) -> float:
    return float(np.mean(np.log([step.unexplained + 1e-12 for step in passage.steps])))


def solved(passages: Sequence[Passage]) -> tuple[Float, Float]:
    """Weights that passages together speak for, in units of the features' scale; covariance."""
    found, covariance = _jointly(passages)
    if len(passages) > 1:
        # Passages see the same steps: what they differ by is our own chance, which steps that are
        # left out in turn do not show.
        apart = np.stack([_jointly([one])[0] for one in passages]) - found
        covariance = covariance + apart.T @ apart / (len(passages) * (len(passages) - 1))
    return found, covariance


def _jointly(passages: Sequence[Passage]) -> tuple[Float, Float]:
    """The same, as if chance were the same in all passages."""
    q, m = len(passages[0].centre), len(passages[0].steps)
    parts, pulls, noise = np.zeros((m, q, q)), np.zeros((m, q)), np.zeros((q, q))
    for one in passages:
        for t, step in enumerate(one.steps):
            gain = step.gain
            parts[t] += gain @ step.gram
            pulls[t] += gain @ (step.pull + step.gram @ one.centre)
            noise += gain @ step.noise @ gain.T
    # The members' own spread is a prior that is far too wide to matter, but keeps this solvable.
    prior = 0.01 * sum(one.precision for one in passages)
    total = parts.sum(axis=0) + prior
    pull = pulls.sum(axis=0) + prior @ passages[-1].centre
    found = np.linalg.solve(total, pull)
    without = np.linalg.solve(total - parts, (pull - pulls)[:, :, None])[:, :, 0]
    spread = without - without.mean(axis=0)
    inverse = np.linalg.inv(total)
    # What steps disagree about, each left out in turn, and what other minibatches and critics would
    # have changed in all of them: critics are carried along, so steps are not independent. The
    # learner had one order and one critic, however often we replay others.
    noise = len(passages) * inverse @ noise @ inverse.T
    return np.asarray(found), np.asarray((m - 1) / m * spread.T @ spread + noise)
