"""From an ensemble's passages to weights: which passages, when to stop, how sure to be."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from logel.replay.ensemble import MISFIT, Ensemble, Passage, StepFit
from logel.types import Float

logger = logging.getLogger(__name__)

# Steps that starts are compared on, and those of the search.
_FIRST, _EARLY = 3, 5
# Scales of the reward that are tried: it enters through gradient clipping and the critic's pace.
_SCALES = (0.1, 0.3, 1.0, 3.0)
# Directions tried beside the given starts; rounds of the search; how far its members are spread at
# first and at last; by how much a step must be explained better for a round to count.
_RANDOM, _ROUNDS, _WIDE, _NARROW, _BETTER = 4, 16, 0.4, 0.09, 0.03
_DAMPING = (1e-3, 0.1, 1.0)
# Spread of the members in the first and in the last passage, relative to the weights' length.
_FIRST_SPREAD, _LAST_SPREAD = 0.15, 0.1
# Moving passages at the last spread, and the squared shift, in standard errors per weight, that
# ends them.
_MOST_MORE, _SETTLED = 3, 2.0


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
    steps: list[StepFit]
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
    """Fit weights from a good guess (q,), in units of the features' scale."""
    m = len(ensemble.course)
    passages = [_moving(ensemble, centre, _FIRST_SPREAD)]
    for _ in range(_MOST_MORE):
        before = passages[-1].centre
        passages.append(_moving(ensemble, before, _LAST_SPREAD))
        shift = passages[-1].centre - before
        if shift @ passages[-1].precision @ shift < _SETTLED * len(shift):
            break
    centre = passages[-1].centre
    last = ensemble.passed(centre, _spread(centre, _LAST_SPREAD), moving=False)
    found, covariance = solved(last)
    weights = (last.centre + found) / ensemble.scale
    scaled = covariance / np.outer(ensemble.scale, ensemble.scale)
    trace = np.array([_loss(passage) for passage in [*passages, last]])
    logger.info("replay: unexplained, passage by passage: %s", np.exp(trace).round(4))
    return ReplayFit(weights, scaled, max(m - 1, 1), last.steps, trace)


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


def _moving(ensemble: Ensemble, centre: Float, spread: float) -> Passage:
    # A quarter of it keeps the regressions of later steps solvable.
    return ensemble.passed(centre, _spread(centre, spread), narrowest=0.25 * spread)


def _spread(centre: Float, spread: float) -> Float:
    return np.asarray((spread * np.linalg.norm(centre)) ** 2 * np.eye(len(centre)))


def _loss(passage: Passage) -> float:
    return float(np.mean(np.log([step.unexplained + 1e-12 for step in passage.steps])))


def solved(passage: Passage) -> tuple[Float, Float]:
    """Shift of the weights from a passage's centre, and its covariance."""
    gains = [step.gain for step in passage.steps]
    # The members' own spread is a prior that is far too wide to matter, but keeps this solvable.
    parts = [g @ s.gram for g, s in zip(gains, passage.steps, strict=True)]
    pulls = [g @ s.pull for g, s in zip(gains, passage.steps, strict=True)]
    total, pull = sum(parts) + 0.01 * passage.precision, sum(pulls)
    shift = np.linalg.solve(total, pull)
    m = len(parts)
    without = np.stack(
        [np.linalg.solve(total - part, pull - one) for part, one in zip(parts, pulls, strict=True)]
    )
    spread = without - without.mean(axis=0)
    inverse = np.linalg.inv(total)
    noise = sum(g @ s.noise @ g.T for g, s in zip(gains, passage.steps, strict=True))
    # What steps disagree about, each left out in turn, and what other minibatches and critics would
    # have changed in all of them: critics are carried along, so steps are not independent.
    covariance = (m - 1) / m * spread.T @ spread + inverse @ noise @ inverse.T
    return np.asarray(shift), np.asarray(covariance)
