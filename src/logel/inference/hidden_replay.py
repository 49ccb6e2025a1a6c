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
from logel.replay.course import Course
from logel.replay.fates import Replay
from logel.replay.fit import fit_replay
from logel.replay.learner import Learner
from logel.replay.search import best_scale
from logel.types import Float

logger = logging.getLogger(__name__)
# Fates that stand for chance, and steps on which the scale of the reward is chosen, among these
# times the named weights' length (one, in units of the features).
_FATES, _STEPS = 6, 10
_SCALES = (0.1, 0.3, 1.0, 3.0, 10.0)
# Elements that are tried in full, as far as their effects say and half as far; the most that is, in
# lengths of the named reward; and what keeps it from more.
_TRIED, _PARTS, _LONGEST, _RIDGE = 8, (1.0, 0.5), 2.0, 0.01


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
    """Elements around a named reward, in units of the features: all a little, the best in full."""
    around = _Around.measured(replay, named)
    singles = judged(
        around.information, around.pulls, np.eye(len(named)), chance=around.chance, seed=replay.seed
    )
    tried = np.argsort(-singles.odds, kind="stable")[:_TRIED]
    rewards = np.stack([around.reward(int(j), part, len(named)) for j in tried for part in _PARTS])
    losses = around.losses(replay, rewards).reshape(len(tried), len(_PARTS), -1)
    totals = np.log(losses + around.chance_left + TOLERATED).mean(axis=2)
    best = int(np.argmin(totals.min(axis=1)))
    element, q = int(tried[best]), len(named)
    start = rewards.reshape(len(tried), len(_PARTS), -1)[best, int(np.argmin(totals[best]))]
    kept = [*range(q), q + element]
    fit = fit_replay(
        Replay(
            _narrowed(replay.course, kept),
            replay.learner,
            seed=replay.seed,
            progress=replay.progress,
            run=replay.run,
        ),
        start[kept],
        _FATES,
    )
    left = np.array([step.unexplained for step in fit.steps])

    def odds(left: Float) -> Float:
        """Log odds of an element by what it leaves of every step, (..., m)."""
        m = left.shape[-1]
        chance = around.chance_left + TOLERATED
        ratio = (around.named_left + chance) / (np.minimum(left, around.named_left) + chance)
        # Chance counts as one more history, in which nothing is hidden.
        return np.asarray(0.5 * (2 * m - 1) * np.log(ratio).mean(axis=-1) - 0.5 * np.log(m))

    all_odds = np.minimum(singles.odds, float(odds(losses[best]).max()))
    all_odds[tried] = odds(losses).max(axis=1)
    all_odds[element] = max(float(all_odds[element]), float(odds(left)))
    amounts, errors = singles.amounts.copy(), singles.errors.copy()
    amounts[element], errors[element] = fit.weights[q], fit.covariance[q, q] ** 0.5
    gain = float(logsumexp(all_odds) - np.log(len(all_odds)))
    medians = np.median(around.named_left), np.median(left)
    logger.info("unexplained: %.3f named, %.3f with one more", *medians)
    if len(replay.course) < ENOUGH_STEPS:
        gain = min(gain, 0.0)
    singles = replace(singles, odds=all_odds, amounts=amounts, errors=errors, gain=gain)
    return Heard(singles, "replay", float(np.linalg.norm(fit.weights[:q])))


def _narrowed(course: Course, kept: list[int]) -> Course:
    """The course with some of the features."""
    batches = [replace(batch, features=batch.features[:, kept]) for batch in course.batches]
    return replace(course, batches=batches)


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

    def reward(self, element: int, part: float, q: int) -> Float:
        """Named weights and one element as the effects say, or part of the way, (q + k,)."""
        kept = [*range(q), q + element]
        total = self.information.sum(axis=0)[np.ix_(kept, kept)]
        # Rewards of any length move a learner about alike: the way is short of infinite.
        total = total + _RIDGE * np.diag(np.diag(total))
        found = self.centre.copy()
        shift = np.linalg.solve(total, self.pulls.sum(axis=0)[kept]) * self.scale[kept]
        longest = _LONGEST * float(np.linalg.norm(self.centre))
        shift *= min(1.0, longest / max(float(np.linalg.norm(shift)), 1e-300))
        found[kept] += part * shift
        return found

    def losses(self, replay: Replay, rewards: Float) -> Float:
        """Share of every step's movement that rewards (c, q + k) leave, (c, m)."""
        copies, m = np.repeat(rewards, 2, axis=0), len(replay.course)
        left = np.zeros((len(rewards), m))
        passed = replay.passed(copies, [0, 1] * len(rewards), m, "trying elements")
        for t, (moved, observed) in enumerate(zip(passed, replay.course.observed, strict=True)):
            off = moved.reshape(len(rewards), 2, -1).mean(axis=1) - observed
            left[:, t] = (off**2).sum(axis=1) / (observed @ observed + replay.usual)
        return left
