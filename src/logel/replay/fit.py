"""From movements under many fates to weights: where to look, when to stop, how sure to be.

Gauss and Newton, all rounds under the same fates, so that one round can be held against another.
Effects of the weights take many candidates and change slowly: they are measured rarely, and between
rounds that replay their centre alone they are corrected by what they foretold wrongly (Broyden).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from logel.replay.course import StepShare, excess
from logel.replay.fates import Replay
from logel.replay.search import best_scale, searched
from logel.replay.view import View
from logel.types import Float

logger = logging.getLogger(__name__)

# Steps of the first round, and by how much the next ones see farther. Critics are carried along:
# the more steps, the narrower the funnel around the answer. Each length leads into the next one.
_EARLY, _FARTHER = 6, 1.6
# Candidates' distance from the first centre, relative to its length.
_WIDE = 0.15
# Scales that are tried on so many steps: the first ones, which the search sees, say little of it.
_SCALES, _SCALED = (0.25, 0.4, 0.63, 1.0, 1.6, 2.5), 10
# Where more than this times chance is left of the first steps, the way goes on from better places:
# after more rounds, and at the very beginning from other guesses.
_WELL, _EXTRA, _BEGINNINGS = 2.5, 3, 3
# The most other centres that are tried over all steps, and how often effects are measured there.
_TRIED, _MEASURED = 6, 2
# Where the next centre would be this near, in shares of the movement, it has arrived; or a little
# farther but within what is chance (squared, per weight). Effects measured farther away than the
# last are measured again first.
_ARRIVED, _NEAR, _CHANCE, _AWAY = 0.01, 0.1, 0.5, 0.25
# By how much a round must explain steps better, in logs of what is left, for another to follow.
_GAIN = 0.03


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
    def left(self) -> Float:
        """Share of every step's movement that the weights leave, (m,)."""
        return np.array([step.unexplained for step in self.steps])

    @property
    def explained(self) -> float:
        """Share of all squared movement."""
        sizes = np.array([step.moved**2 for step in self.steps])
        return float(1 - (sizes * self.left).sum() / sizes.sum())

    @property
    def excess(self) -> float:
        """What is left unexplained, over what other fates would change.

        Of all steps; or half of it of the first ones, where chance has not added up as yet: later
        on it may hide that the weights are wrong. (Half, since few steps vary.)
        """
        return max(excess(self.steps), 0.5 * excess(self.steps[:_EARLY]))


def fit_replay(
    replay: Replay, centre: Float, n_fates: int, beginnings: int = _BEGINNINGS
) -> ReplayFit:
    """Fit weights from a guess (q,), in units of the features' scale.

    Over the first steps, which tell the rough direction, then over all.

    Args:
        replay: Of the learner.
        centre: The guess.
        n_fates: Under which it is replayed.
        beginnings: The guess and others that are tried if it does not lead to a good answer.
    """
    m = len(replay.course)
    best, weights, trace = _gone_on(
        replay, *_approached(replay, centre, n_fates, beginnings), n_fates
    )
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


def _gone_on(
    replay: Replay, centre: Float, root: Float, trace: list[float], n_fates: int
) -> tuple[View, Float, list[float]]:
    """The best view over all steps, from a centre near the answer; weights, and the way's trace."""
    m = len(replay.course)
    best = _measured(replay, centre, root, n_fates, m)
    trace, n_measured = [*trace, best.loss], 1
    last = len(trace) + _TRIED
    while True:
        weights, worth_a_try = _seen_from(best, n_measured)
        if worth_a_try and len(trace) < last:
            here = _better(replay, best, n_fates, m, trace) or best
            gained, best, weights = best.loss - here.loss, here, here.centre
            if gained > _GAIN:
                continue
        if not _stale(best, n_measured):
            break
        best, n_measured = _measured_here(replay, best), n_measured + 1
    return best, weights, trace


def _seen_from(best: View, n_measured: int) -> tuple[Float, bool]:
    """Weights as one view has them, and whether going where it points is worth a try."""
    arrived, within = _near(best)
    # A shift that is within chance is, only if effects are known where it begins.
    worth_a_try = not arrived and not (within and _stale(best, n_measured))
    return best.found if arrived else best.centre, worth_a_try


def _approached(
    replay: Replay, centre: Float, n_fates: int, beginnings: int
) -> tuple[Float, Float, list[float]]:
    """A centre nearer the answer, a root of the candidates' covariance there, the way's trace."""
    first, *further = [*lengths(len(replay.course)), len(replay.course)]
    trace: list[float] = []
    view, scaled = _begun(replay, centre, n_fates, first, trace, beginnings), False
    for n_steps in further:
        centre = view.towards_found()
        root = view.root(centre)
        if not scaled and (n_steps >= _SCALED or n_steps == further[-1]):
            factor, scaled = best_scale(replay, centre, _SCALES, min(n_steps, _SCALED)), True
            centre, root = factor * centre, factor * root
        if n_steps < further[-1]:
            view = _settled(replay, _measured(replay, centre, root, n_fates, n_steps), trace)
    return centre, root, trace


def _begun(
    replay: Replay,
    centre: Float,
    n_fates: int,
    n_steps: int,
    trace: list[float],
    beginnings: int,
) -> View:
    """The first steps explained: on them right and wrong beginnings are told apart cheaply."""
    best: View | None = None
    for left in reversed(range(beginnings)):
        root = _WIDE * float(np.linalg.norm(centre)) / np.sqrt(len(centre)) * np.eye(len(centre))
        view = _settled(replay, _measured(replay, centre, root, n_fates, n_steps), trace)
        if best is None or view.loss < best.loss:
            best = view
        if excess(best.shares) < _WELL or not left:
            break
        start = best.found / np.linalg.norm(best.found)
        centre, _ = searched(replay, start[None])
    assert best is not None
    return best


def _settled(replay: Replay, view: View, trace: list[float]) -> View:
    """The view from where a few rounds lead, while more is left than chance."""
    n_steps, n_fates = view.middles.shape[:2]
    trace.append(view.loss)
    for _ in range(_EXTRA):
        left = excess(view.shares)
        logger.info("replay: %d steps, %s, excess %.1f", n_steps, view.centre.round(3), left)
        better = None if left < _WELL else _better(replay, view, n_fates, n_steps, trace)
        if better is None:
            break
        view = better
    return view


def lengths(n_steps: int) -> list[int]:
    """How many steps are asked before all of them are: not nearly all, which costs as much."""
    found = [_EARLY]
    while round(found[-1] * _FARTHER) * _FARTHER <= n_steps:
        found.append(round(found[-1] * _FARTHER))
    return [n for n in found if n < n_steps] or [n_steps]


def _measured(replay: Replay, centre: Float, root: Float, n_fates: int, n_steps: int) -> View:
    """A view whose effects are those at its centre."""
    effects, middles = replay.effects(centre, root, n_steps, n_fates)
    return View(replay.course.observed, replay.usual, centre, centre, middles, effects)


def _near(view: View) -> tuple[bool, bool]:
    """Whether a centre has arrived, and whether what is left of the way is within chance."""
    effect, chance = view.distance(view.found)
    logger.info("replay: %s, off by %.3f, %.2f", view.found.round(3), effect, chance)
    within = chance <= _CHANCE
    return effect <= _ARRIVED or (within and effect <= _NEAR), within


def _stale(view: View, n_measured: int) -> bool:
    """Whether effects were measured far away, and may be once more."""
    return n_measured < _MEASURED and view.distance(view.measured_at)[0] >= _AWAY


def _measured_here(replay: Replay, view: View) -> View:
    """The same view with effects that are those at its centre."""
    effects, _ = replay.effects(view.centre, view.root(view.centre), len(view.middles))
    return replace(view, measured_at=view.centre, effects=effects)


def _better(
    replay: Replay, best: View, n_fates: int, n_steps: int, trace: list[float]
) -> View | None:
    """Try what the best view foretells, half as far if that was too far; None if neither helps."""
    for _ in range(2):
        centre = best.towards_found()
        here = best.corrected(centre, replay.middles(centre, n_fates, n_steps))
        trace.append(here.loss)
        if here.loss < best.loss:
            return here
        best = best.learning_from(here)
    return None
