"""What no named feature explains, by replay: elements of the dictionary as further candidates.

The learner's own update runs under the named reward, and under that reward with a little of every
element. Where the learner went beyond what the named reward makes of it is held against what the
elements would have changed. Other critics and other orders of minibatches would have led elsewhere,
too, and farther from step to step: how far is what chance looks like.
"""

from __future__ import annotations

import logging

import numpy as np

from logel.errors import OptionError
from logel.inference.dictionary import Widened
from logel.inference.method import Method
from logel.inference.replayed import course_of, learners_of
from logel.inference.single import Heard, judged
from logel.inference.watched import Watched
from logel.replay.fates import Replay
from logel.replay.learner import Learner
from logel.replay.search import best_scale
from logel.types import Float

logger = logging.getLogger(__name__)
# Fates that stand for chance, and steps on which the scale of the reward is chosen, among these
# times the named weights' length (one, in units of the features).
_FATES, _STEPS = 6, 10
_SCALES = (0.1, 0.3, 1.0, 3.0, 10.0)


def hear_replay(
    watched: Watched,
    wide: Widened,
    method: Method,
    parameters: Float,
    weights: Float,
    learner: Learner | None,
) -> Heard:
    """The dictionary under the learner's own update, around the named reward.

    Args:
        watched: The history with named features.
        wide: The same with the dictionary.
        method: How many steps are replayed.
        parameters: Of every stage's policy, (m + 1, d).
        weights: Of the named features, (q,).
        learner: The update, if it is not one that the history names.
    """
    if not np.any(weights):
        raise OptionError("the estimate's weights are all zero: nothing can be replayed with them")
    course = course_of(wide, method, parameters)
    plain = course_of(watched, method, parameters)
    learners = [learner] if learner is not None else learners_of(watched, course)[0]
    best, least, centre = learners[0], np.inf, weights
    for one in learners:
        replay = Replay(plain, one, seed=watched.seed, progress=watched.report)
        start = weights * replay.scale
        first = start / np.linalg.norm(start)
        n = min(_STEPS, len(course))
        scaled = best_scale(replay, first, _SCALES, n) * first
        off = np.stack(plain.observed[:n]) - replay.middles(scaled, 2, n).mean(axis=1)
        if (loss := float((off**2).sum())) < least:
            best, least, centre = one, loss, scaled
    return _heard(Replay(course, best, seed=watched.seed, progress=watched.report), centre)


def _heard(replay: Replay, named: Float) -> Heard:
    """What the steps say of every element around a named reward, in units of the features."""
    q, m = len(named), len(replay.course)
    size = float(np.linalg.norm(named))
    centre = np.append(named, np.zeros(len(replay.scale) - q))
    middles = replay.middles(centre, _FATES, m)
    effects = replay.effects(centre, size / len(centre) ** 0.5 * np.eye(len(centre)), m)
    observed = np.stack(replay.course.observed[:m])
    # Steps count alike, however far the learner went in them.
    roots = 1 / np.sqrt((observed**2).sum(axis=1) + replay.usual)
    effects = effects * replay.scale[:, None] * roots[:, None, None]

    def pulls(went: Float, middle: Float) -> Float:
        return np.einsum("tpd,td->tp", effects, (went - middle) * roots[:, None])

    fates = range(_FATES)
    chance = [pulls(middles[:, r], np.delete(middles, r, axis=1).mean(axis=1)) for r in fates]
    singles = judged(
        np.einsum("tpd,trd->tpr", effects, effects),
        pulls(observed, middles.mean(axis=1)),
        np.eye(q),
        chance=np.stack(chance),
        seed=replay.seed,
    )
    return Heard(singles, "replay", float(np.linalg.norm(named / replay.scale[:q])))
