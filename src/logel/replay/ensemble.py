"""Weights whose replayed updates lead where the learner went: an ensemble goes along the history.

Every member has reward weights of its own and a critic that it has trained on them so far. At each
stage all members make the learner's update from the recorded policy; a regression of where they got
to on their weights says how weights move policies there (a derivative as wide as the ensemble) and
what moves them besides: other minibatches, other critics, chaos. Where the learner really went then
tells where the weights must be, each stage as much as it can: a stage whose members scatter for
other reasons says little. The members are moved and drawn together, keep their critics, and go on:
so early stages come first, wide differences first, and no random numbers are compared but common
ones. Members whose critics predict badly take over those of better ones, as in a particle filter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from logel.replay.batch import Batch
from logel.replay.learner import Learner
from logel.replay.movement import Movement
from logel.types import Array, Float, Progress

# Share of a movement that no learner's update is asked to explain (rounding, states not compared).
MISFIT = 0.01
# Directions over which such misfit spreads: policies move smoothly, not in every state by itself.
_DIRECTIONS = 10
# Of the weights' length: the most that one stage may move them.
_LONGEST = 0.5
# Of what one stage says, while members move: the way there is not linear.
_BELIEVED = 0.3


@dataclass(frozen=True, eq=False)
class Course:
    """What is replayed: m steps of a learner.

    Attributes:
        batches: Of the stages before each step.
        parameters: Policies' parameters, (m + 1, d).
        movements: From each stage's policy.
        observed: Where the learner went, one row per step.
        own: Whether the learner learnt from these very episodes.
        n_updates: Updates from a stage to the next.
    """

    batches: Sequence[Batch]
    parameters: Float
    movements: Sequence[Movement]
    own: bool = True
    n_updates: int = 1
    observed: Sequence[Float] = field(init=False)

    def __post_init__(self) -> None:
        rows = torch.as_tensor(self.parameters)
        seen = [move.to(rows[t + 1 : t + 2])[0] for t, move in enumerate(self.movements)]
        object.__setattr__(self, "observed", seen)

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def scale(self) -> Float:
        """Deviation of each feature over all steps (its size, if it is constant), (q,)."""
        rows = np.concatenate([batch.features.double().cpu().numpy() for batch in self.batches])
        deviation, size = rows.std(axis=0), np.abs(rows).mean(axis=0)
        # What hardly varies is a constant with rounding.
        return np.where(deviation > 1e-9 * size, deviation, np.where(size > 0, size, 1.0))


@dataclass(frozen=True, eq=False, kw_only=True)
class StepShare:
    """How well one step is explained.

    Attributes:
        unexplained: Share of the squared movement that the centre leaves.
        scatter: Share that members differ by for other reasons than their weights.
        cosine: Between the movement at the centre and the observed one.
        moved: Length of the observed movement.
        predicted: Length of the movement at the centre.
    """

    unexplained: float
    scatter: float
    cosine: float
    moved: float
    predicted: float


@dataclass(frozen=True, eq=False, kw_only=True)
class StepFit(StepShare):
    """What one step says about the weights, in a linear model around the ensemble's centre.

    Attributes:
        gram: Effects of the weights on the movement, multiplied with themselves, (q, q).
        pull: Those effects times what the centre leaves unexplained, (q,).
        noise: Covariance of `pull`, (q, q).
    """

    gram: Float
    pull: Float
    noise: Float

    @property
    def gain(self) -> Float:
        """What turns a pull into information: gram / noise, (q, q)."""
        return np.asarray(np.linalg.solve(self.noise, self.gram).T, dtype=float)


@dataclass(frozen=True, eq=False)
class Passage:
    """One way along the history.

    Attributes:
        centre: Where it ended, (q,).
        precision: How well that is known, or how narrow members were that kept their weights.
        steps: What each step says.
    """

    centre: Float
    precision: Float
    steps: list[StepFit]

    def distance(self, weights: Float) -> float:
        """Squared distance of weights from the centre, in spreads, per weight."""
        off = weights - self.centre
        return float(off @ self.precision @ off) / len(off)


class Ensemble:
    """Members that go along a course; weights in units of the features' scale.

    Args:
        course: What is replayed.
        learner: The update.
        n_members: How many.
        seed: Of members, critics and orders.
        progress: Called with (what, done, total).
    """

    def __init__(
        self,
        course: Course,
        learner: Learner,
        *,
        n_members: int,
        seed: int,
        progress: Progress | None = None,
    ) -> None:
        self.course, self.learner, self.n_members, self.seed = course, learner, n_members, seed
        self.scale = course.scale
        # Of a policy that hardly moves any more, a share says little.
        self.usual = 0.1 * float(np.median([x @ x for x in course.observed]))
        self._progress = progress or (lambda what, done, total: None)
        self._passes = 0

    def next_number(self) -> int:
        """Of a passage or comparison: each has random numbers of its own."""
        self._passes += 1
        return self._passes - 1

    def passed(
        self,
        centre: Float,
        covariance: Float,
        *,
        moving: bool = True,
        narrowest: float = 0.03,
        n_steps: int | None = None,
    ) -> Passage:
        """Go along the steps, from members spread like a covariance around a centre.

        Args:
            centre: (q,).
            covariance: (q, q).
            moving: Whether members follow what the steps say; else they keep their weights, and
                all steps speak of the same centre.
            narrowest: Of the weights' length: the least spread of members that move.
            n_steps: How many of the first steps; by default all.
        """
        members = _Members(self, self.n_members)
        members.place(centre, covariance)
        steps, total = [], min(n_steps or len(self.course), len(self.course))
        for t in range(total):
            step = members.taken(t)
            steps.append(step)
            if moving:
                members.move(step, narrowest)
            self._progress("replaying", t + 1, total)
        return Passage(members.centre, members.precision, steps)

    def compared(self, weights: Float, n_steps: int) -> Comparison:
        """Replay the first steps with given weights (K, q), all with the same random numbers."""
        members = _Members(self, len(weights), common=True)
        losses, moved = np.zeros(len(weights)), []
        for t in range(n_steps):
            observed = self.course.observed[t]
            moved.append(members.replayed(t, weights))
            losses += np.log1p(self._share(moved[-1], observed) / (3 * MISFIT))
            self._progress("first guesses", t + 1, n_steps)
        return Comparison(weights, losses, moved)

    def _share(self, moved: Float, observed: Float) -> Float:
        """Of the squared movement: what is left unexplained."""
        return ((moved - observed) ** 2).sum(axis=-1) / (observed @ observed + self.usual)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Weights that were tried with the same random numbers.

    Attributes:
        weights: (K, q).
        losses: How badly they explain the steps, (K,).
        moved: Movements (K, D) of every step.
    """

    weights: Float
    losses: Float
    moved: list[Float]

    @property
    def best(self) -> Float:
        """The weights that explain the steps best."""
        return np.asarray(self.weights[int(np.argmin(self.losses))])

    def proposals(self, observed: Sequence[Float], usual: float, damping: Sequence[float]) -> Float:
        """Where a regression around the best says better ones are, one row per damping.

        Members near the best count more: the way between far ones is not straight.
        """
        centre = self.best
        places = self.weights - centre
        n, q = places.shape
        distance = np.linalg.norm(places, axis=1)
        # Twice as many as there are effects get full weight.
        near = np.sort(distance)[min(2 * q, n - 1)] + 1e-300
        weight = 1 / (1 + (distance / near) ** 4)
        gram, pull = np.zeros((q, q)), np.zeros(q)
        for moved, seen in zip(self.moved, observed, strict=False):
            fit = _regressed(moved, places, weight, ridge=1e-8)
            left = seen - moved[int(np.argmin(self.losses))]
            size = seen @ seen + usual
            # As the loss has it: what is explained badly counts less.
            trust = 1 / (3 * MISFIT * size + left @ left)
            gram += trust * fit.gram
            pull += trust * fit.effects @ left
        scale = np.diag(np.diag(gram) + 1e-9 * np.trace(gram))
        shifts = np.stack([np.linalg.solve(gram + one * scale, pull) for one in damping])
        length = np.linalg.norm(shifts, axis=1) / np.linalg.norm(centre)
        return np.asarray(centre + shifts / np.maximum(length, 1.0)[:, None])


class _Members:
    """The state of an ensemble on its way."""

    centre: Float
    precision: Float

    def __init__(self, ensemble: Ensemble, n: int, *, common: bool = False) -> None:
        """`common`: all members begin with the same critic and see the same random numbers."""
        self.ensemble, self.n, self.common = ensemble, n, common
        number = ensemble.next_number()
        seeds = range(1 if common else n)
        self.rng = [np.random.default_rng([ensemble.seed, number, k]) for k in seeds]
        self.chance = np.random.default_rng([ensemble.seed, number, n])
        self.state = ensemble.learner.initial(self.rng)
        if common:
            self.state = ensemble.learner.chosen(self.state, np.zeros(n, dtype=int))

    def place(self, centre: Float, covariance: Float) -> None:
        """Spread the members like a covariance around a centre."""
        self.centre = centre
        self.places = _standard(self.n, len(centre), self.chance)
        self.root = np.linalg.cholesky(covariance)
        self.precision = np.asarray(np.linalg.inv(covariance), dtype=float)

    def replayed(self, t: int, weights: Float) -> Float:
        """Movements of all members by the update that follows stage t; they carry on from it."""
        course, learner = self.ensemble.course, self.ensemble.learner
        batch = course.batches[t]
        theta = torch.as_tensor(course.parameters[t]).to(batch.inputs)
        parameters = theta.repeat(self.n, 1)
        raw = torch.as_tensor(weights / self.ensemble.scale).to(batch.features)
        rewards = raw @ batch.features.T
        with torch.no_grad():
            after, self.state = learner.update(parameters, self.state, batch, rewards, self.rng)
            return course.movements[t].to(after)

    def taken(self, t: int) -> StepFit:
        """Let all members make the step, and see what it says about the centre."""
        observed = self.ensemble.course.observed[t]
        size = max(float(observed @ observed), 1e-300)
        floor = self.ensemble.usual
        moved = self.replayed(t, self.centre + self.places @ self.root.T)
        # Members that came near say more about the way from here to there.
        near = 1 / (MISFIT + ((moved - observed) ** 2).sum(axis=1) / size)
        fit = _regressed(moved, self.places, near)
        left = observed - fit.middle
        gram, along = fit.gram, fit.rest @ fit.effects.T
        # What differs between members differs between learner and centre.
        noise = (1 + 1 / self.n) * along.T @ along / fit.freedom
        noise += MISFIT * (size + floor) / _DIRECTIONS * gram
        noise += 1e-9 * np.trace(noise) * np.eye(len(noise))
        back = np.linalg.inv(self.root)
        step = StepFit(
            gram=back.T @ gram @ back,
            pull=back.T @ (fit.effects @ left),
            noise=back.T @ noise @ back,
            unexplained=float(left @ left) / size,
            scatter=float((fit.rest**2).sum() / fit.freedom) / size,
            cosine=float(
                fit.middle @ observed / max(np.linalg.norm(fit.middle) * np.sqrt(size), 1e-300)
            ),
            moved=float(np.sqrt(size)),
            predicted=float(np.linalg.norm(fit.middle)),
        )
        self._take_over(fit, left, gram, noise, size)
        return step

    def move(self, step: StepFit, narrowest: float) -> None:
        """Follow what a step says, and draw together as it tells more."""
        gain, n = step.gain, np.linalg.norm(self.centre)
        information = gain @ step.gram
        self.precision = self.precision + _BELIEVED * 0.5 * (information + information.T)
        shift = np.linalg.solve(self.precision, _BELIEVED * gain @ step.pull)
        shift = shift / max(1.0, float(np.linalg.norm(shift) / (_LONGEST * n)))
        self.centre = self.centre + shift
        floor = (narrowest * np.linalg.norm(self.centre)) ** 2
        covariance = np.linalg.inv(self.precision) + floor * np.eye(len(shift))
        self.root = np.linalg.cholesky(covariance)

    def _take_over(
        self, fit: _Regression, left: Float, gram: Float, noise: Float, size: float
    ) -> None:
        """Members with bad critics get those of better ones.

        Bad is what a member would have left unexplained had its weights been the likely ones.
        """
        gain = np.linalg.solve(noise, gram).T
        likely = np.linalg.solve(np.eye(len(gram)) + gain @ gram, gain @ (fit.effects @ left))
        unexplained = ((left - likely @ fit.effects - fit.rest) ** 2).sum(axis=1) / size
        width = 2 * MISFIT + 0.5 * np.median(unexplained)
        chance = np.exp(-0.5 * (unexplained - unexplained.min()) / width)
        self.state = self.ensemble.learner.chosen(self.state, _survivors(chance, self.chance))


@dataclass(frozen=True, eq=False)
class _Regression:
    """Movements as a linear function of places: middle, effects (q, D) and what is left (K, D)."""

    middle: Float
    effects: Float
    rest: Float
    freedom: int

    @property
    def gram(self) -> Float:
        return self.effects @ self.effects.T


def _regressed(moved: Float, places: Float, weight: Float, ridge: float = 0.0) -> _Regression:
    design = np.column_stack([np.ones(len(places)), places])
    weighted = design.T * weight
    square = weighted @ design
    square += ridge * np.diag(np.diag(square))
    coefficients: Float = np.asarray(np.linalg.solve(square, weighted @ moved))
    freedom = max(len(places) - design.shape[1], 1)
    return _Regression(coefficients[0], coefficients[1:], moved - design @ coefficients, freedom)


def _standard(n: int, q: int, rng: np.random.Generator) -> Float:
    """Places (n, q) of mean zero and unit covariance; each half of them as well, if it can be."""
    drawn = rng.standard_normal((n, q))
    for part in (drawn[::2], drawn[1::2]) if n // 2 > q + 1 else (drawn,):
        part -= part.mean(axis=0)
        root = np.linalg.cholesky(np.linalg.inv(part.T @ part / len(part)))
        part[:] = part @ root
    return drawn


def _survivors(chance: Float, rng: np.random.Generator) -> Array:
    """For every member, whose state it goes on with; those that survive keep their own."""
    n = len(chance)
    edges = np.cumsum(chance / chance.sum())
    copies = np.bincount(
        np.searchsorted(edges, (np.arange(n) + rng.random()) / n).clip(0, n - 1), minlength=n
    )
    result = np.arange(n)
    result[copies == 0] = np.repeat(np.arange(n), np.maximum(copies - 1, 0))
    return result
