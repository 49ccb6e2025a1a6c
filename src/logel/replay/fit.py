"""From passages under many fates to weights: where to look, when to stop, how sure to be."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from logel.replay.course import Passage, StepShare
from logel.replay.fates import MISFIT, Replay
from logel.replay.search import best_scale
from logel.types import Float

logger = logging.getLogger(__name__)

# Steps of the first round, before all are asked; candidates' distance from the first centre there,
# relative to its length.
_EARLY, _WIDE = 12, 0.15
# Share of a step's movement that a candidate's distance from the centre makes, once effects are
# known; and the most it may be, relative to the weights' length, where effects are small.
_EFFECT, _FARTHEST = 0.3, 0.3
# Fates of the rounds on the way; the most rounds over all steps; those before which other scales of
# the reward are tried.
_FEW, _ROUNDS, _RESCALED = 4, 7, (0, 1)
# The most that a round shifts the centre by: in shares of the movement, and of its length. Below
# the last, or what is chance, it has arrived.
_MOST, _LONGEST, _ARRIVED = 0.5, 0.5, 0.05
# Replayed steps, times fates, that final passages have together, unless there are so many.
_ENOUGH_STEPS, _PASSAGES = 150, (2, 4)
# A passage whose centre was farther from the answer than so many of its spreads (squared, per
# weight) does not count.
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
        """What is left unexplained, over what other fates would change."""
        return float(np.median([step.unexplained / (step.scatter + MISFIT) for step in self.steps]))


def fit_replay(replay: Replay, centre: Float, n_fates: int) -> ReplayFit:
    """Fit weights from a guess (q,), in units of the features' scale.

    Gauss and Newton: over the first steps, which tell the rough direction, then over all, until
    rounds say no more than chance; then again under other fates, put together.
    """
    m = len(replay.course)
    centre, root, trace = _approached(replay, centre)
    passages: list[Passage] = []
    least, most = _PASSAGES
    for _ in range(most):
        passages.append(replay.passed(centre, root, n_fates, m))
        trace.append(_loss(passages[-1]))
        found, _ = solved([one for one in passages if one.distance(centre) < _NEAR])
        near = [one for one in passages if one.distance(found) < _NEAR]
        if len(near) >= least and len(near) * m * n_fates >= _ENOUGH_STEPS:
            break
        centre = centre + (found - centre) / max(1.0, passages[-1].distance(found) / _NEAR) ** 0.5
        root = _root(passages[-1], centre, replay.usual)
    logger.info("replay: %d of %d passages are near", len(near), len(passages))
    found, covariance = solved(near or passages[-1:])
    logger.info("replay: unexplained, passage by passage: %s", np.exp(trace).round(4))
    return ReplayFit(
        weights=found / replay.scale,
        covariance=covariance / np.outer(replay.scale, replay.scale),
        freedom=max(m - 1, 1),
        steps=passages[-1].steps,
        trace=np.array(trace),
    )


def _approached(replay: Replay, centre: Float) -> tuple[Float, Float, list[float]]:
    """A centre near the answer, a root of the candidates' covariance there, and the way's trace."""
    m, q = len(replay.course), len(centre)
    root = _WIDE * float(np.linalg.norm(centre)) / np.sqrt(q) * np.eye(q)
    trace: list[float] = []
    for number, n_steps in enumerate([min(_EARLY, m), *[m] * _ROUNDS]):
        if number in _RESCALED:
            factor = best_scale(replay, centre)
            centre, root = factor * centre, factor * root
        passage = replay.passed(centre, root, _FEW, n_steps)
        trace.append(_loss(passage))
        found, covariance = solved([passage])
        shift = found - centre
        effect = np.sqrt(float(shift @ _information(passage, replay.usual) @ shift))
        length = float(np.linalg.norm(shift) / np.linalg.norm(centre))
        chance = float(shift @ np.linalg.solve(covariance, shift)) / q
        centre = centre + shift / max(1.0, effect / _MOST, length / _LONGEST)
        root = _root(passage, centre, replay.usual)
        logger.info("replay: %s, shifted by %.3f, %.2f", centre.round(3), effect, chance)
        if number > 1 and (effect < _ARRIVED or chance < 1.0):
            break
    return centre, root, trace


def _information(passage: Passage, usual: float) -> Float:
    """Share of a step's squared movement that weights make, on average, (q, q)."""
    parts = [step.gram / (step.moved**2 + usual) for step in passage.steps]
    return np.asarray(np.mean(parts, axis=0))


def _root(passage: Passage, centre: Float, usual: float) -> Float:
    """Candidates that differ by about as much of the movement in all directions."""
    values, vectors = np.linalg.eigh(_information(passage, usual))
    longest = (_FARTHEST * np.linalg.norm(centre)) ** 2
    variances = np.minimum(_EFFECT**2 / np.maximum(values, 1e-300), longest) / len(centre)
    return np.asarray(vectors * np.sqrt(variances))


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
    # The candidates' own spread is a prior that is far too wide to matter, but keeps this solvable.
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
