"""From movements under many fates to weights: where to look, when to stop, how sure to be.

Gauss and Newton, all rounds under the same fates, so that one round can be held against another.
Effects of the weights take many candidates and change slowly: they are measured rarely, and between
rounds that replay their centre alone they are corrected by what they foretold wrongly (Broyden).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from logel.replay.course import StepShare
from logel.replay.fates import Replay
from logel.replay.search import best_scale
from logel.replay.view import View
from logel.types import Float

logger = logging.getLogger(__name__)

# Steps of the first round, before all are asked; candidates' distance from the first centre there,
# relative to its length.
_EARLY, _WIDE = 12, 0.15
# Scales that are tried on the first steps, and later on all.
_FAR, _CLOSE = (0.15, 0.25, 0.4, 0.63, 1.0, 1.6, 2.5), (0.4, 0.63, 1.0, 1.6, 2.5)
# The most rounds over all steps, and of these with effects measured.
_ROUNDS, _MEASURED = 10, 3
# Share of a movement of which nobody asks how much of it is chance.
_LEAST = 0.001
# Where the next centre would be so near, in shares of the movement or in what is chance (squared,
# per weight), it has arrived; effects measured farther away than that are measured again first.
_ARRIVED, _CHANCE, _AWAY = 0.01, 0.2, 0.25


@dataclass(frozen=True, eq=False)
class ReplayFit:
    """Weights found by replay, in the given features.

    Attributes:
        weights: (q,), with the scale that the replayed updates had.
        covariance: (q, q).
        freedom: Degrees of freedom of the covariance.
        steps: What every step said at the end.
        trace: Mean log of what was left unexplained, round by round.
        misfit: Share of the movement that neither weights nor chance explain.
    """

    weights: Float
    covariance: Float
    freedom: int
    steps: Sequence[StepShare]
    trace: Float
    misfit: float = 0.0

    @property
    def explained(self) -> float:
        """Share of all squared movement."""
        sizes = np.array([step.moved**2 for step in self.steps])
        left = np.array([step.unexplained for step in self.steps])
        return float(1 - (sizes * left).sum() / sizes.sum())

    @property
    def excess(self) -> float:
        """What is left unexplained, over what other fates would change."""
        shares = [step.unexplained / (step.scatter + _LEAST) for step in self.steps]
        return float(np.median(shares))


def fit_replay(replay: Replay, centre: Float, n_fates: int) -> ReplayFit:
    """Fit weights from a guess (q,), in units of the features' scale.

    Over the first steps, which tell the rough direction, then over all.
    """
    m = len(replay.course)
    centre, root, trace = _approached(replay, centre, n_fates)
    best = _measured(replay, centre, root, n_fates, m)
    trace, n_measured, weights = [*trace, best.loss], 1, best.found
    for _ in range(_ROUNDS):
        effect, chance = best.distance(best.found)
        logger.info("replay: %s, off by %.3f, %.2f", best.found.round(3), effect, chance)
        weights = best.found
        if effect > _ARRIVED and chance > _CHANCE:
            better = _better(replay, best, n_fates, m, trace)
            if better is not None:
                best = better
                continue
            weights = best.centre
        if n_measured == _MEASURED or best.distance(best.measured_at)[0] < _AWAY:
            break
        best = _measured(replay, weights, best.root(weights), n_fates, m)
        n_measured += 1
        trace.append(best.loss)
    logger.info("replay: unexplained, round by round: %s", np.exp(trace).round(4))
    # The last shift was foretold and not tried, or tried and no better.
    shift = best.found - best.centre
    return ReplayFit(
        weights=weights / replay.scale,
        covariance=(best.covariance + np.outer(shift, shift))
        / np.outer(replay.scale, replay.scale),
        freedom=max(m - 1, 1),
        steps=best.shares,
        trace=np.array(trace),
        misfit=best.misfit,
    )


def _approached(replay: Replay, centre: Float, n_fates: int) -> tuple[Float, Float, list[float]]:
    """A centre nearer the answer, a root of the candidates' covariance there, the way's trace."""
    n_steps, q = min(_EARLY, len(replay.course)), len(centre)
    centre = best_scale(replay, centre, _FAR, n_steps) * centre
    wide = _WIDE * float(np.linalg.norm(centre)) / np.sqrt(q) * np.eye(q)
    view = _measured(replay, centre, wide, n_fates, n_steps)
    centre = view.towards_found()
    factor = best_scale(replay, centre, _CLOSE, len(replay.course))
    return factor * centre, factor * view.root(centre), [view.loss]


def _measured(replay: Replay, centre: Float, root: Float, n_fates: int, n_steps: int) -> View:
    """A view whose effects are those at its centre."""
    middles = replay.middles(centre, n_fates, n_steps)
    effects = replay.effects(centre, root, n_steps)
    return View(replay.course.observed, replay.usual, centre, centre, middles, effects)


def _better(
    replay: Replay, best: View, n_fates: int, n_steps: int, trace: list[float]
) -> View | None:
    """Try what the best view foretells, half as far if that was too far; None if neither helps."""
    centre = best.towards_found()
    for _ in range(2):
        here = best.corrected(centre, replay.middles(centre, n_fates, n_steps))
        trace.append(here.loss)
        if here.loss < best.loss:
            return here
        best, centre = best.learning_from(here), 0.5 * (centre + best.centre)
    return None
