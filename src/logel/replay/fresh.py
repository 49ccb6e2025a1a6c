"""Replay where the learner's own episodes were not seen: checkpoints that somebody rolled out.

The learner went where its own episodes led it, and we have others of the same policies: both its
movements and ours have noise. What disjoint halves of the episodes differ by tells what the noise
is like, and movements are compared in units of it: some learners jitter along a few directions.

First answer: movements are nearly odd and linear in the direction of the reward, so replays of
rewards all over the sphere give weights at once, from all steps; products are those of disjoint
halves, since noise multiplied with itself looks like an effect. Then Gauss and Newton from there,
on all episodes: halves are twice as noisy. Steps that are not explained count for less.

How sure: what pairs of neighbouring steps disagree about, and what the two halves of the episodes
would have made of it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from logel.replay.batch import Batch
from logel.replay.course import Course, StepShare
from logel.replay.crossed import Metric, Moments, positive
from logel.replay.fit import ReplayFit
from logel.replay.learner import Learner
from logel.replay.movement import Movement, spread_rows
from logel.replay.streams import Streams
from logel.types import Array, Float, Progress

logger = logging.getLogger(__name__)

# Rounds, and the distance of a round's candidates from their centre, relative to its length: where
# the centre is not yet known, and later on.
_ROUNDS, _WIDE, _NARROW = 4, 0.3, 0.15
# The farthest that a round may go, and how little curvature there is at least, of the mean one.
_FARTHEST, _FLAT = 0.5, 0.02
# Squared distance of two movements of length one at which a step counts half.
_FAR = 0.3
# Steps left out together: what a critic has not learnt at one step it lacks at the next one too.
_TOGETHER = 2
# Factor of the reward's scale that is tried up and down.
_SCALE = np.log(2.0)
# How much farther off answers were than this says, squared, on runs it was made with.
_INFLATED = 4.0
# Not a half but all episodes.
_WHOLE = 2
# Steps turned round by chance: how well they are explained is the measure of what is.
_TURNED, _LEVEL = 400, 0.99


@dataclass(frozen=True, eq=False)
class FreshFit:
    """Weights found from other episodes than the learner's.

    Attributes:
        fit: Weights and steps.
        convincing: Whether the steps are explained better than steps turned round by chance.
    """

    fit: ReplayFit
    convincing: bool


class FreshReplay:
    """Candidate rewards replayed over a whole course, on halves of its episodes.

    Args:
        course: What is replayed.
        learner: The update.
        rollout: Environments and steps of the learner's rollouts, if known; else it is taken to
            have seen whole episodes, as many steps as we have.
        seed: Of halves, critics and orders.
        progress: Called with (what, done, total).
    """

    def __init__(
        self,
        course: Course,
        learner: Learner,
        *,
        rollout: tuple[int, int] | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        self.course, self.learner = together(course), learner
        self.rollout, self.seed = rollout, seed
        self.scale = _sizes(course.batches)
        self.observed = np.stack(self.course.observed)
        self.moved: list[Float] = []
        self._progress = progress or (lambda what, done, total: None)
        self.rounds = 0

    def replayed(self, weights: Float) -> Float:
        """Movements (K, 2, m, D) of weights (K, q), in units of the scale, on two halves.

        All weights see the same halves, critics and random numbers.
        """
        self.rounds += 1
        moved = self._on(weights, self.rounds, (0, 1))
        self.moved.append(moved)
        return moved

    def whole(self, weights: Float) -> Float:
        """Movements (K, m, D) on all episodes, with random numbers that are always the same."""
        return self._on(weights, 0, (_WHOLE,))[:, 0]

    def _on(self, weights: Float, number: int, parts: Sequence[int]) -> Float:
        course = self.course
        chance = np.random.default_rng([self.seed, number, 2])
        copies = [_Part(self, weights / self.scale, number, k) for k in parts]
        moved = np.empty((len(weights), len(parts), *self.observed.shape))
        for t, batch in enumerate(course.batches):
            order = chance.permutation(batch.stage.n_episodes)
            for k, copy in enumerate(copies):
                # A single episode cannot be halved.
                whole = copy.part == _WHOLE or len(order) == 1
                episodes = order if whole else order[copy.part :: 2]
                moved[:, k, t] = copy.step(t, np.sort(episodes))
            self._progress("replaying", t + 1, len(course))
        return moved

    def metric(self) -> Metric:
        """From what halves differed by in all rounds so far."""
        return Metric.of(np.concatenate(self.moved))


class _Part:
    """Copies of the learner that see one half of every stage's episodes, or all of them."""

    def __init__(self, replay: FreshReplay, weights: Float, number: int, part: int) -> None:
        self.part = part
        self.course, self.learner, self.n = replay.course, replay.learner, len(weights)
        self.rng = [np.random.default_rng([replay.seed, number, part])]
        self.chance = np.random.default_rng([replay.seed, number, part, 1])
        first = self.learner.initial(self.rng)
        self.state = self.learner.chosen(first, np.zeros(self.n, dtype=int))
        self.weights = torch.as_tensor(weights)
        self.streams = None if replay.rollout is None else Streams(*replay.rollout)

    def step(self, t: int, episodes: Array) -> Float:
        """Movements (K, D) by the updates that follow stage t."""
        course, batch = self.course, self.course.batches[t]
        parameters = torch.as_tensor(course.parameters[t]).to(batch.inputs).repeat(self.n, 1)
        with torch.no_grad():
            for number in range(course.n_updates):
                seen = self._drawn(batch, episodes)
                # The first of several updates may be one whose episodes were seen.
                seen = batch if course.own and number == 0 else seen
                rewards = self.weights.to(seen.features) @ seen.features.T
                parameters, self.state = self.learner.update(
                    parameters, self.state, seen, rewards, self.rng
                )
            return course.movements[t].to(parameters)

    def _drawn(self, batch: Batch, episodes: Array) -> Batch:
        streams = self.streams or Streams(1, len(batch))
        stage = streams.rollout(batch.stage, episodes, self.chance)
        policy = self.course.movements[0].policy
        return Batch.of(stage, policy, batch.notes, dtype=batch.inputs.dtype)


def together(course: Course) -> Course:
    """The same course, all movements seen at the same states: noise can be pooled over steps."""
    if not len(course):
        return course
    policy = course.movements[0].policy
    states = spread_rows(np.concatenate([batch.stage.observations for batch in course.batches]))
    movements = [
        Movement.among(states, policy, parameters) for parameters in course.parameters[:-1]
    ]
    return replace(course, movements=movements)


def _sizes(batches: Sequence[Batch]) -> Float:
    """How large features get, but for one of a thousand values, (q,).

    A weight nobody can know is best guessed small: in units of what it could pay at most.
    """
    rows = np.concatenate([np.abs(batch.features.double().cpu().numpy()) for batch in batches])
    sizes = np.quantile(rows, 0.999, axis=0)
    return np.where(sizes > 0, sizes, 1.0)


@dataclass(frozen=True, eq=False)
class _Chart:
    """Coordinates around a centre: q - 1 across it."""

    centre: Float
    across: Float

    @classmethod
    def at(cls, centre: Float, rng: np.random.Generator) -> _Chart:
        q = len(centre)
        drawn = np.column_stack([centre, rng.standard_normal((q, q - 1))])
        return cls(centre, np.linalg.qr(drawn)[0][:, 1:].T)

    def candidates(self, spread: float) -> Float:
        """The centre, two lengths, and pairs on both sides of it, (2q + 1, q)."""
        away = spread * np.linalg.norm(self.centre) * self.across
        scaled = self.centre * np.exp([[_SCALE], [-_SCALE]])
        return np.concatenate([self.centre[None], scaled, self.centre + away, self.centre - away])

    def effects(self, seen: Float, spread: float) -> Float:
        """Of the coordinates, (q - 1, m, r), from movements (2q + 1, m, r) of the candidates."""
        up, down = np.split(seen[3:], 2)
        return (up - down) / (2 * spread)

    def to(self, shift: Float) -> Float:
        """Weights at given coordinates, of the same length."""
        size = np.linalg.norm(self.centre)
        turned = self.centre / size + shift @ self.across
        return np.asarray(turned / np.linalg.norm(turned) * size)


@dataclass(frozen=True, eq=False)
class _View:
    """The steps from one centre; all movements are of length one, in the metric.

    Attributes:
        chart: Around the centre.
        spread: Of the candidates, relative to its length.
        observed: Steps (m, r).
        seen: Of the candidates, (2q + 1, m, r).
    """

    chart: _Chart
    spread: float
    observed: Float
    seen: Float

    @property
    def losses(self) -> Float:
        """At the candidates, (2q + 1,)."""
        return np.asarray(np.log1p(_squares(self.observed - self.seen) / _FAR).sum(axis=1))

    def normal(self, seen: Float, shares: Float) -> tuple[Float, Float]:
        """Curvature (m, q - 1, q - 1) and pull (m, q - 1), step by step."""
        effects = self.chart.effects(seen, self.spread)
        gram = np.einsum("itr,jtr,t->tij", effects, effects, shares)
        return gram, np.einsum("itr,tr,t->ti", effects, self.observed - seen[0], shares)

    @property
    def shares(self) -> Float:
        """How much every step counts, (m,)."""
        return np.asarray(1 / (_FAR + _squares(self.observed - self.seen[0])))

    def shift(self) -> Float:
        """Where the steps pull, no farther than is seen."""
        found = _solved(*self.normal(self.seen, self.shares))
        return np.asarray(found * min(1.0, _FARTHEST / max(float(np.linalg.norm(found)), 1e-300)))

    def ahead(self, share: float) -> Float:
        """A share of the way to the best centre, (q,), of the best length that was tried."""
        lengths = np.array([1.0, np.exp(_SCALE), np.exp(-_SCALE)])
        return self.chart.to(share * self.shift()) * lengths[int(np.argmin(self.losses[:3]))]


def _squares(rows: Float) -> Float:
    return np.asarray((rows**2).sum(axis=-1))


def _solved(gram: Float, pull: Float) -> Float:
    """The shift (q - 1,) that steps agree on."""
    total = gram.sum(axis=0)
    flat = _FLAT * np.trace(total) / len(total) * np.eye(len(total))
    return np.asarray(np.linalg.solve(total + flat, pull.sum(axis=0)))


def fit_fresh(replay: FreshReplay, guess: Float) -> FreshFit:
    """Fit weights; the guess (q,), in the given features, is one of the first candidates."""
    rng = np.random.default_rng([replay.seed, 13])
    centre, moments = first_answer(replay, guess * replay.scale, rng)
    metric = replay.metric()
    here = _view(replay, metric, centre, _WIDE, rng)
    share, trace = 1.0, [here.losses[0]]
    for _ in range(_ROUNDS - 1):
        there = _view(replay, metric, here.ahead(share), _NARROW, rng)
        trace.append(there.losses[0])
        better = there.losses[0] < here.losses[0]
        here, share = (there, 1.0) if better else (here, share / 2)
        logger.info("replay on fresh episodes: %s", here.chart.centre.round(3))
    return _last(replay, metric, here, np.array(trace), _convincing(moments, replay.seed))


def _view(
    replay: FreshReplay, metric: Metric, centre: Float, spread: float, rng: np.random.Generator
) -> _View:
    chart = _Chart.at(centre, rng)
    seen = metric.seen(replay.whole(chart.candidates(spread)))
    return _View(chart, spread, metric.seen(replay.observed), seen)


def first_answer(
    replay: FreshReplay, guess: Float, rng: np.random.Generator
) -> tuple[Float, Moments]:
    """Weights (q,), in units of the scale, from rewards all over the sphere; and their products."""
    q = len(replay.scale)
    turns = [np.linalg.qr(rng.standard_normal((q, q)))[0] for _ in range(2)]
    size = np.linalg.norm(guess)
    given = guess[None] / size if size > 0 else np.zeros((0, q))
    places = np.concatenate([given, turns[0], -turns[1]])
    moments, gram, pull = _sphere(replay, places)
    # Directions that few movements tell of must not take over.
    found = np.linalg.solve(gram + 0.1 * np.trace(gram) / q * np.eye(q), pull)
    size = np.linalg.norm(found)
    return np.asarray(found / size) if size > 0 else places[0], moments


def _sphere(replay: FreshReplay, places: Float) -> tuple[Moments, Float, Float]:
    """Gram and pull of movements that are linear in the weights but for their length."""
    moved = replay.replayed(places)
    metric = replay.metric()
    seen, observed = metric.seen(moved), metric.seen(replay.observed)
    gram = np.eye(len(replay.scale))
    # Lengths are those of the gram, which is that of movements of such lengths.
    for _ in range(6):
        size = np.sqrt(np.einsum("ki,ij,kj->k", places, gram, places))
        columns = np.einsum("qk,khtr->qhtr", np.linalg.pinv(places) * size, seen)
        moments = Moments.of(columns, observed, metric)
        gram, pull = moments.total
        gram = positive(gram) / metric.weight.sum()
    return moments, gram, pull / metric.weight.sum()


def _last(
    replay: FreshReplay, metric: Metric, view: _View, trace: Float, convincing: bool
) -> FreshFit:
    """What is found from the last view, and how sure that is."""
    shift = view.shift()
    covariance = _covariance(replay, metric, view) + np.outer(shift, shift)
    centre = view.chart.centre
    directions = np.linalg.norm(centre) * view.chart.across.T / replay.scale[:, None]
    steps = _steps(replay, metric, view.seen[0])
    fit = ReplayFit(
        view.chart.to(shift) / replay.scale,
        directions @ covariance @ directions.T,
        max(len(replay.course) // _TOGETHER - 1, 1),
        steps,
        trace / len(steps),
    )
    return FreshFit(fit, convincing)


def _covariance(replay: FreshReplay, metric: Metric, view: _View) -> Float:
    """Of the shift, (q - 1, q - 1): pairs of steps that disagree, and halves that do."""
    gram, pull = view.normal(view.seen, view.shares)
    pair = np.arange(len(gram)) // _TOGETHER
    without = [_solved(gram[pair != p], pull[pair != p]) for p in range(pair[-1] + 1)]
    halves = metric.seen(replay.replayed(view.chart.candidates(view.spread)))
    found = [_solved(*view.normal(halves[:, k], view.shares)) for k in (0, 1)]
    apart = (found[0] - found[1]) / 2
    total = gram.sum(axis=0)
    total = total + _FLAT * np.trace(total) / len(total) * np.eye(len(total))
    # One difference tells its size, not its direction.
    size = float(apart @ total @ apart) / len(apart)
    spread = np.stack(without) - np.mean(without, axis=0)
    n = max(len(without), 2)
    return _INFLATED * (np.asarray((n - 1) / n * spread.T @ spread) + size * np.linalg.inv(total))


def _steps(replay: FreshReplay, metric: Metric, middle: Float) -> list[StepShare]:
    """For the report: how much of each step's direction the centre (m, r) explains."""
    seen = metric.seen(replay.observed)
    cosines = (middle * seen).sum(axis=1)
    return [
        StepShare(
            unexplained=float(1 - max(cosines[t], 0.0) ** 2),
            scatter=float(1 / metric.weight[t]),
            cosine=float(cosines[t]),
            moved=float(np.linalg.norm(replay.observed[t])),
            predicted=float(np.linalg.norm(replay.observed[t])),
        )
        for t in range(len(seen))
    ]


def _convincing(moments: Moments, seed: int) -> bool:
    """Whether the steps are explained better than if each had gone back or forth by chance."""
    gram, pull = moments.total
    gram = positive(gram)
    inverse = np.linalg.inv(gram + 0.1 * np.trace(gram) / len(gram) * np.eye(len(gram)))
    signs = np.random.default_rng([seed, 17]).choice([-1.0, 1.0], (_TURNED, len(moments.pull)))
    turned = signs @ moments.pull
    gained = np.einsum("ni,ij,nj->n", turned, inverse, turned)
    return bool(pull @ inverse @ pull > np.quantile(gained, _LEVEL))
