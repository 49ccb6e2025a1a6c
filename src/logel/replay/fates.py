"""Candidate rewards under the same fates, along a history.

A fate is all that is chance in a learner's life: the critic it began with and the orders of its
minibatches. All candidates go through each fate, so that what candidates of one fate differ by is
their rewards' doing, and what one candidate's fates differ by is chance: what might as well have
moved the learner elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cached_property, partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from logel.data.cache import Arrays, Cache, UnknownPartError, digest
from logel.replay.course import Course
from logel.replay.learner import Learner
from logel.types import Float, Progress
from logel.workers import SERIAL, Executor, Work

logger = logging.getLogger(__name__)

# Fates under which effects are measured: bends cancel between the two sides of a pair.
_SIDES = 2


class Replay:
    """A course that candidate rewards go along; weights in units of the features' scale.

    Args:
        course: What is replayed.
        learner: The update.
        seed: Of candidates and fates.
        progress: Called with (what, done, total).
        run: What sends copies along it, several groups of them at a time if it can.
    """

    def __init__(
        self,
        course: Course,
        learner: Learner,
        *,
        seed: int,
        progress: Progress | None = None,
        run: Executor = SERIAL,
    ) -> None:
        self.course, self.learner, self.seed, self.run = course, learner, seed, run
        self.scale = course.scale
        # Of a policy that hardly moves any more, a share says little.
        self.usual = 0.1 * float(np.median([x @ x for x in course.observed]))
        self.progress = progress or (lambda what, done, total: None)
        self._drawn = 0
        self._fixed = _Fixed(course, learner, self.scale, seed)

    @cached_property
    def _digest(self) -> str | None:
        """Of all that copies have in common; None if some of it is not ours to know."""
        try:
            return digest(self._fixed)
        except UnknownPartError as error:
            logger.info("not kept: %s", error)
            return None

    def next_number(self) -> int:
        """Of fates that nothing else goes through; those of number 0 are the fit's."""
        self._drawn += 1
        return self._drawn

    def passed(
        self, weights: Float, which: Sequence[int], n_steps: int, what: str, number: int = 0
    ) -> Float:
        """Movements (n_steps, K, D) of copies with weights (K, q) on their way.

        Copies go in groups that do not depend on how many workers there are.

        Args:
            weights: Of each copy.
            which: The fate of each.
            n_steps: How many of the first steps.
            what: Is to be reported.
            number: Of the set that the fates are of.
        """
        fewest = self.learner.together(self.course.batches[0])
        n_groups = min(len(weights), max(1, int(len(weights) // fewest)))
        groups = np.array_split(np.arange(len(weights)), n_groups)
        fates = np.asarray(which)
        items = [(weights[g], fates[g], n_steps, number) for g in groups]
        # Alone, a group tells of every step.
        tell = partial(self.progress, what) if n_groups == 1 and self.run.here else None
        work, found = partial(_passed, tell=tell), []
        if self.run.cache is not None:
            work = partial(_kept, self.run.cache, self._digest, work)
        for moved in self.run.map(work, items, self._fixed):
            found.append(moved)
            self.progress(what, n_steps * len(found), n_steps * n_groups)
        return np.concatenate(found, axis=1)

    def middles(self, centre: Float, n_fates: int, n_steps: int) -> Float:
        """Movements (m, R, D) under the fit's fates, of weights (q,), over the first steps."""
        return self.passed(np.tile(centre, (n_fates, 1)), range(n_fates), n_steps, "replaying")

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
        which = [*sides, *range(n_fates)]
        moved = self.passed(weights, which, n_steps, "replaying candidates")
        moved, middles = np.split(moved, [len(places)], axis=1)
        inverse, found = np.linalg.inv(root), []
        for one in moved:
            for side in range(_SIDES):
                one[sides == side] -= one[sides == side].mean(axis=0)
            found.append(inverse.T @ (places.T @ one) / len(places))
        return np.stack(found), middles


class _Fixed(NamedTuple):
    """What all copies have in common."""

    course: Course
    learner: Learner
    scale: Float
    seed: int


def _kept(cache: Cache, known: str | None, work: Work, fixed: _Fixed, item: Any) -> Float:
    """What `work` gives, or gave before."""
    if known is None:
        return cast(Float, work(fixed, item))
    shape = (item[2], len(item[0]), len(fixed.course.observed[0]))

    def sound(kept: Arrays) -> bool:
        moved = kept.get("moved")
        return moved is not None and moved.shape == shape and bool(np.isfinite(moved).all())

    kept = cache.kept(("replayed", known, *item), lambda: {"moved": work(fixed, item)}, sound)
    return np.array(kept["moved"])


def _passed(
    fixed: _Fixed, item: tuple[Float, Float, int, int], *, tell: Callable[[int, int], None] | None
) -> Float:
    """Movements (n_steps, n, D) of a group of copies."""
    weights, which, n_steps, number = item
    fates, moved = Fates(fixed, which, number), []
    for t in range(n_steps):
        moved.append(fates.moved(t, weights))
        if tell is not None:
            tell(t + 1, n_steps)
    return np.stack(moved)


class Fates:
    """The state of copies on their way, each under one of the fates.

    Args:
        replay: What they go along.
        which: The fate of every copy, by number.
        number: Of the set that these fates are of.
    """

    def __init__(
        self, replay: Replay | _Fixed, which: Sequence[int] | Float, number: int = 0
    ) -> None:
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
