"""Candidate rewards under the same fates, along a history.

A fate is all that is chance in a learner's life: the critic it began with and the orders of its
minibatches. All candidates go through each fate, so that what candidates of one fate differ by is
their rewards' doing, and what one candidate's fates differ by is chance: what might as well have
moved the learner elsewhere.
"""

from __future__ import annotations

import numpy as np
import torch

from logel.replay.course import Course
from logel.replay.learner import Learner
from logel.types import Float, Progress

# Fates under which effects are measured: bends cancel between the two sides of a pair.
_SIDES = 2


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
        self._drawn = 0

    def next_number(self) -> int:
        """Of fates that nothing else goes through; those of number 0 are the fit's."""
        self._drawn += 1
        return self._drawn

    def middles(self, centre: Float, n_fates: int, n_steps: int) -> Float:
        """Movements (m, R, D) under the fit's fates, of weights (q,), over the first steps."""
        fates, moved = Fates(self, 1, n_fates), []
        for t in range(n_steps):
            moved.append(fates.moved(t, centre[None, None])[0])
            self.progress("replaying", t + 1, n_steps)
        return np.stack(moved)

    def effects(self, centre: Float, root: Float, n_steps: int) -> Float:
        """What weights change about the movements around a centre, (m, q, D).

        Args:
            centre: (q,).
            root: Of the covariance (q, q) that candidates around it have.
            n_steps: How many of the first steps.
        """
        q = len(centre)
        fates = Fates(self, q + 1, _SIDES)
        places = simplex(q, np.random.default_rng([self.seed, self.next_number()]))
        # Turned by chance, and the other way round under the other fate.
        places = np.stack([places, -places], axis=1)
        weights, inverse, found = centre + places @ root.T, np.linalg.inv(root), []
        for t in range(n_steps):
            moved = fates.moved(t, weights)
            moved = moved - moved.mean(axis=0)
            slopes = np.einsum("krq,krd->qd", places, moved) / (_SIDES * (q + 1))
            found.append(inverse.T @ slopes)
            self.progress("replaying candidates", t + 1, n_steps)
        return np.stack(found)


class Fates:
    """The state of K candidates under R fates, on their way."""

    def __init__(self, replay: Replay, n_candidates: int, n_fates: int, number: int = 0) -> None:
        self.course, self.learner, self.scale = replay.course, replay.learner, replay.scale
        self.n_fates = n_fates
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
