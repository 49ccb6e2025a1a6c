"""Candidate rewards under the same fates, along a history.

A fate is all that is chance in a learner's life: the critic it began with and the orders of its
minibatches. All candidates go through each fate, so that what candidates of one fate differ by is
their rewards' doing, and what one candidate's fates differ by is chance: what might as well have
moved the learner elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

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
        fates, weights, moved = Fates(self, range(n_fates)), np.tile(centre, (n_fates, 1)), []
        for t in range(n_steps):
            moved.append(fates.moved(t, weights))
            self.progress("replaying", t + 1, n_steps)
        return np.stack(moved)

    def effects(
        self, centre: Float, root: Float, n_steps: int, n_fates: int = 0
    ) -> tuple[Float, Float]:
        """What weights change about the movements around a centre, (m, q, D).

        Beside it what `middles` tells for so many fates: side by side all of it is cheaper.

        Args:
            centre: (q,).
            root: Of the covariance (q, q) that candidates around it have.
            n_steps: How many of the first steps.
            n_fates: Of the centre itself.
        """
        q = len(centre)
        places = simplex(q, np.random.default_rng([self.seed, self.next_number()]))
        # Turned by chance, and the other way round under the other fate.
        places = np.concatenate([places, -places])
        sides = np.repeat(np.arange(_SIDES), q + 1)
        weights = centre + np.concatenate([places @ root.T, np.zeros((n_fates, q))])
        fates = Fates(self, [*sides, *range(n_fates)])
        inverse, middles, found = np.linalg.inv(root), [], []
        for t in range(n_steps):
            moved, middle = np.split(fates.moved(t, weights), [len(places)])
            for side in range(_SIDES):
                moved[sides == side] -= moved[sides == side].mean(axis=0)
            found.append(inverse.T @ (places.T @ moved) / len(places))
            middles.append(middle)
            self.progress("replaying candidates", t + 1, n_steps)
        return np.stack(found), np.stack(middles)


class Fates:
    """The state of copies on their way, each under one of the fates.

    Args:
        replay: What they go along.
        which: The fate of every copy, by number.
        number: Of the set that these fates are of.
    """

    def __init__(self, replay: Replay, which: Sequence[int], number: int = 0) -> None:
        self.course, self.learner, self.scale = replay.course, replay.learner, replay.scale
        distinct, own = np.unique(which, return_inverse=True)
        rng = [np.random.default_rng([replay.seed, number, int(r)]) for r in distinct]
        self.state = self.learner.chosen(self.learner.initial(rng), own)
        # Copies that all have one fate share its generator.
        self.rng = rng if len(rng) == 1 else [deepcopy(rng[k]) for k in own]

    def moved(self, t: int, weights: Float) -> Float:
        """Movements (n, D) by the update that follows stage t, for each copy's weights (n, q)."""
        batch = self.course.batches[t]
        paid = torch.as_tensor(weights / self.scale).to(batch.features)
        theta = torch.as_tensor(self.course.parameters[t]).to(batch.inputs)
        with torch.no_grad():
            parameters, self.state = self.learner.update(
                theta.repeat(len(paid), 1), self.state, batch, paid @ batch.features.T, self.rng
            )
            return self.course.movements[t].to(parameters)


def simplex(q: int, rng: np.random.Generator) -> Float:
    """Places (q + 1, q) of mean zero and unit covariance, all equally far apart, turned by chance.

    The fewest candidates that tell q effects and a middle apart.
    """
    turn = np.linalg.qr(rng.standard_normal((q, q)))[0]
    corners = np.linalg.svd(np.eye(q + 1) - 1 / (q + 1))[0][:, :q]
    return np.asarray(np.sqrt(q + 1) * corners @ turn)
