"""What no named feature explains, by replay: elements of the dictionary as further candidates.

The learner's own update runs under the named reward, and under that reward with a little of every
element. Where the learner went beyond what the named reward makes of it is held against what the
elements would have changed. Other critics and other orders of minibatches would have led elsewhere,
too, and farther from step to step: how far is what chance looks like.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import logsumexp

from logel.errors import OptionError
from logel.inference.method import Method
from logel.inference.null import ENOUGH_STEPS
from logel.inference.replayed import course_of, learners_of, replay_of
from logel.inference.single import TOLERATED, Heard, judged
from logel.inference.watched import Watched
from logel.replay.fates import Replay
from logel.replay.fit import ReplayFit, fit_replay
from logel.replay.learner import Learner
from logel.replay.search import best_scale
from logel.types import Float

logger = logging.getLogger(__name__)
# Fates that stand for chance, and steps on which the scale of the reward is chosen, among these
# times the named weights' length (one, in units of the features).
_FATES, _STEPS = 6, 10
_SCALES = (0.1, 0.3, 1.0, 3.0, 10.0)
# Elements that are fitted over so many first steps, and how many over all; how far on the way that
# effects foretell fits begin, how far that is at most, in lengths of the named reward, and what
# keeps it from more.
_TRIED, _FIRST, _FINALISTS = 8, 8, 2
_PART, _LONGEST, _RIDGE = 0.1, 2.0, 0.01


def hear_replay(
    watched: Watched,
    wide: Watched,
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
        replay = replay_of(watched, plain, one, watched.seed)
        start = weights * replay.scale
        first = start / np.linalg.norm(start)
        n = min(_STEPS, len(course))
        scaled = best_scale(replay, first, _SCALES, n) * first
        off = np.stack(plain.observed[:n]) - replay.middles(scaled, 2, n).mean(axis=1)
        if (loss := float((off**2).sum())) < least:
            best, least, centre = one, loss, scaled
    return _heard(replay_of(watched, course, best, watched.seed), centre)


def _heard(replay: Replay, named: Float) -> Heard:
    """Elements around a named reward: all a little, the likeliest fitted, the best to the end."""
    q, around = len(named), _Around.measured(replay, named)
    singles = judged(
        around.information, around.pulls, np.eye(q), chance=around.chance, seed=replay.seed
    )
    # Far from the answer effects mislead, and weights of named features hide what is missing: which
    # element it is shows once both are fitted. The first steps tell, where critics hardly matter.
    likely = [int(j) for j in np.argsort(-singles.odds, kind="stable")[:_TRIED]]
    early = {j: _fitted(replay, around.begun(j, q), [*range(q), q + j], _FIRST) for j in likely}
    odds = np.full(len(singles.odds), -np.inf)
    odds[likely] = [around.odds(early[j].left) for j in likely]
    finalists = sorted(likely, key=lambda j: -odds[j])[:_FINALISTS]
    fits = {j: _fitted(replay, early[j].weights, [*range(q), q + j]) for j in finalists}
    odds[finalists] = [around.odds(fits[j].left) for j in finalists]
    best = max(finalists, key=lambda j: odds[j])
    # None that was not fitted is likelier than what was found.
    told = np.where(np.isfinite(odds), odds, singles.odds)
    odds = np.where(np.isin(np.arange(len(odds)), finalists), odds, np.minimum(told, odds[best]))
    gain = float(logsumexp(odds) - np.log(len(odds)))
    if gain > 0:
        # What is found on the way to an element may be better weights of the named features.
        alone = _fitted(replay, fits[best].weights[:q], list(range(q)))
        gain -= max(0.0, float(around.odds(alone.left)))
    if len(replay.course) < ENOUGH_STEPS:
        gain = min(gain, 0.0)
    amounts, errors = singles.amounts.copy(), singles.errors.copy()
    for j, fit in {**early, **fits}.items():
        amounts[j], errors[j] = fit.weights[q], fit.covariance[q, q] ** 0.5
    logger.info("unexplained: odds of elements %s", odds.round(1))
    singles = replace(singles, odds=odds, amounts=amounts, errors=errors, gain=gain)
    return Heard(singles, "replay", float(np.linalg.norm(fits[best].weights[:q])))


def _fitted(replay: Replay, start: Float, kept: list[int], n_steps: int | None = None) -> ReplayFit:
    """Weights of some of the features from a guess, over the first steps or all."""
    course = replay.course
    batches = [replace(one, features=one.features[:, kept]) for one in course.batches[:n_steps]]
    m = len(batches)
    course = replace(
        course,
        batches=batches,
        parameters=course.parameters[: m + 1],
        movements=course.movements[:m],
    )
    narrow = Replay(course, replay.learner, seed=replay.seed, progress=replay.progress)
    # Guesses here are as good as any, and wrong elements would try them all.
    return fit_replay(narrow, start * narrow.scale, _FATES, beginnings=1)


@dataclass(frozen=True, eq=False)
class _Around:
    """What named weights and elements change about the movements around a named reward.

    Attributes:
        centre: The named reward, in units of the features' scale, (q + k,).
        scale: Of the features, (q + k,).
        information: Effects multiplied with each other, in given features, (n, q + k, q + k).
        pulls: Effects times what the named reward leaves, (n, q + k).
        chance: The same of what one fate leaves of another, (c, n, q + k).
        named_left: Share of every step's movement that the named reward leaves, (m,).
        chance_left: Share that one fate leaves of another, (m,).
    """

    centre: Float
    scale: Float
    information: Float
    pulls: Float
    chance: Float
    named_left: Float
    chance_left: Float

    @classmethod
    def measured(cls, replay: Replay, named: Float) -> _Around:
        """By replaying it with a little of everything."""
        m = len(replay.course)
        n, size = min(m, _STEPS), float(np.linalg.norm(named))
        centre = np.append(named, np.zeros(len(replay.scale) - len(named)))
        middles = replay.middles(centre, _FATES, m)
        root = size / len(centre) ** 0.5 * np.eye(len(centre))
        effects, _ = replay.effects(centre, root, n)
        observed = np.stack(replay.course.observed[:m])
        # Steps count alike, however far the learner went in them.
        sizes = (observed**2).sum(axis=1) + replay.usual
        effects = effects * replay.scale[:, None] / np.sqrt(sizes[:n])[:, None, None]
        off = observed - middles.mean(axis=1)
        each = [middles[:, r] - np.delete(middles, r, axis=1).mean(axis=1) for r in range(_FATES)]

        def pulls(left: Float) -> Float:
            return np.einsum("tpd,td->tp", effects, left[:n] / np.sqrt(sizes[:n])[:, None])

        def share(left: Float) -> Float:
            return np.asarray((left**2).sum(axis=1) / sizes)

        return cls(
            centre=centre,
            scale=replay.scale,
            information=np.einsum("tpd,trd->tpr", effects, effects),
            pulls=pulls(off),
            chance=np.stack([pulls(one) for one in each]),
            named_left=share(off),
            chance_left=np.mean([share(one) for one in each], axis=0),
        )

    def odds(self, left: Float) -> Float:
        """Log odds, over the named reward, of what leaves these shares of the first steps, (m,)."""
        m = len(left)
        chance = self.chance_left[:m] + TOLERATED
        ratio = (self.named_left[:m] + chance) / (left + chance)
        # Chance counts as one more history, in which nothing is hidden.
        return np.asarray(0.5 * (2 * m - 1) * np.log(ratio).mean() - 0.5 * np.log(m))

    def begun(self, element: int, q: int) -> Float:
        """Named weights and one element, part of the way that effects foretell, (q + 1,)."""
        kept = [*range(q), q + element]
        total = self.information.sum(axis=0)[np.ix_(kept, kept)]
        # Rewards of any length move a learner about alike: the way is short of infinite.
        total = total + _RIDGE * np.diag(np.diag(total))
        shift = np.linalg.solve(total, self.pulls.sum(axis=0)[kept]) * self.scale[kept]
        longest = _LONGEST * float(np.linalg.norm(self.centre))
        shift *= min(1.0, longest / max(float(np.linalg.norm(shift)), 1e-300))
        return np.asarray((self.centre[kept] + _PART * shift) / self.scale[kept])
