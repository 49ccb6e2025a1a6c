"""Candidate rewards under the same fates, along a history.

A fate is all that is chance in a learner's life: the critic it began with and the orders of its
minibatches. All candidates go through each fate, so that what candidates of one fate differ by is
their rewards' doing, and what one candidate's fates differ by is chance: what might as well have
moved the learner elsewhere.
"""

from __future__ import annotations

import numpy as np
import torch

from logel.replay.course import Course, Passage, StepFit
from logel.replay.learner import Learner
from logel.types import Float, Progress

# Share of a movement that no learner's update is asked to explain (rounding, states not compared).
MISFIT = 0.01
# The part of it that weights might be mistaken for, and the directions over which it spreads:
# policies move smoothly, not in every state by itself.
_ROUNDING, _DIRECTIONS = 0.003, 10
# Of the scatter, what is taken to go along all of those: few fates show few directions.
_UNSEEN = 0.5


class Replay:
    """A course that candidate rewards go along; weights in units of the features' scale.

    Args:
        course: What is replayed.
        learner: The update.
        seed: Of candidates and fates.
        progress: Called with (what, done, total).
    """

    def __init__(
        self,
        course: Course,
        learner: Learner,
        *,
        seed: int,
        progress: Progress | None = None,
    ) -> None:
        self.course, self.learner, self.seed = course, learner, seed
        self.scale = course.scale
        # Of a policy that hardly moves any more, a share says little.
        self.usual = 0.1 * float(np.median([x @ x for x in course.observed]))
        self.progress = progress or (lambda what, done, total: None)
        self._passes = 0

    def next_number(self) -> int:
        """Of a passage or comparison: each has random numbers of its own."""
        self._passes += 1
        return self._passes - 1

    def passed(self, centre: Float, root: Float, n_fates: int, n_steps: int) -> Passage:
        """Go along the first steps with candidates around a centre.

        Args:
            centre: (q,).
            root: Of the candidates' covariance, (q, q).
            n_fates: How many; at least two.
            n_steps: How many of the first steps.
        """
        q = len(centre)
        fates = Fates(self, q + 2, n_fates)
        places = np.stack([simplex(q, fates.chance) for _ in range(n_fates)], axis=1)
        # Turned by chance in each fate, and round in every other one: nothing is favoured.
        places[:, 1::2] *= -1
        weights = centre + np.concatenate([np.zeros((1, n_fates, q)), places @ root.T])
        inverse, steps = np.linalg.inv(root), []
        for t in range(n_steps):
            moved = fates.moved(t, weights)
            effects = np.einsum("krq,krd->rqd", places, moved[1:] - moved[1:].mean(0)) / (q + 1)
            effects = np.einsum("pq,rpd->rqd", inverse, effects)
            steps.append(self._said(t, moved[0], effects.mean(axis=0)))
            self.progress("replaying", t + 1, n_steps)
        return Passage(centre, root, steps)

    def _said(self, t: int, middles: Float, effect: Float) -> StepFit:
        """What movements at the centre (R, D) and mean effects (q, D) say."""
        observed, n = self.course.observed[t], len(middles)
        size, middle = max(float(observed @ observed), 1e-300), middles.mean(axis=0)
        left, apart = observed - middle, middles - middle
        scatter, gram = float((apart**2).sum()) / (n - 1), effect @ effect.T
        chance = apart @ effect.T
        # What differs between fates differs between the learner's and their mean.
        noise = (1 + 1 / n) * chance.T @ chance / (n - 1)
        spread = _ROUNDING * (size + self.usual) + _UNSEEN * scatter
        noise += spread / _DIRECTIONS * gram
        noise += 1e-9 * np.trace(noise) * np.eye(len(noise))
        length = float(np.linalg.norm(middle))
        return StepFit(
            gram=gram,
            pull=effect @ left,
            noise=noise,
            unexplained=float(left @ left) / size,
            scatter=scatter / size,
            cosine=float(middle @ observed / max(length * np.sqrt(size), 1e-300)),
            moved=float(np.sqrt(size)),
            predicted=length,
        )


class Fates:
    """The state of K candidates under R fates, on their way."""

    def __init__(self, replay: Replay, n_candidates: int, n_fates: int) -> None:
        number = replay.next_number()
        self.course, self.learner, self.scale = replay.course, replay.learner, replay.scale
        self.n_fates = n_fates
        self.chance = np.random.default_rng([replay.seed, number, n_fates])
        # Candidate k under fate r is copy k * R + r, and copies take generators in turn.
        self.rng = [np.random.default_rng([replay.seed, number, r]) for r in range(n_fates)]
        first = self.learner.initial(self.rng)
        self.state = self.learner.chosen(first, np.tile(np.arange(n_fates), n_candidates))

    def moved(self, t: int, weights: Float) -> Float:
        """Movements (K, R, D) by the update that follows stage t, for weights (K, R or 1, q)."""
        batch, n = self.course.batches[t], len(weights)
        raw = np.repeat(weights / self.scale, self.n_fates // weights.shape[1], axis=1)
        paid = torch.as_tensor(raw.reshape(n * self.n_fates, -1)).to(batch.features)
        theta = torch.as_tensor(self.course.parameters[t]).to(batch.inputs)
        with torch.no_grad():
            parameters, self.state = self.learner.update(
                theta.repeat(len(paid), 1), self.state, batch, paid @ batch.features.T, self.rng
            )
            found = self.course.movements[t].to(parameters)
        return found.reshape(n, self.n_fates, -1)


def simplex(q: int, rng: np.random.Generator) -> Float:
    """Places (q + 1, q) of mean zero and unit covariance, all equally far apart, turned by chance.

    The fewest candidates that tell q effects and a middle apart.
    """
    turn = np.linalg.qr(rng.standard_normal((q, q)))[0]
    corners = np.linalg.svd(np.eye(q + 1) - 1 / (q + 1))[0][:, :q]
    return np.asarray(np.sqrt(q + 1) * corners @ turn)
