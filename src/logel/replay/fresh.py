"""Replay where the learner's own episodes were not seen: checkpoints that somebody rolled out.

The learner went where its own episodes led it, and we have others of the same policies. A step is
then y = mean(w) + noise, and a replayed one, on episodes A, is p_A = mean(w) + other noise. Noise
multiplied with itself looks like an effect, so every product is one of disjoint halves of the
episodes: y p_A, y p_B and p_A p_B, never p_A p_A. What halves differ by tells what the noise is
like, and movements are compared in units of it: some learners jitter along a few directions.

First answer: movements are nearly odd and linear in the direction of the reward, so replays of
rewards all over the sphere give weights at once, from all steps. Then Gauss and Newton around it,
each round with other halves. Steps are the unit of resampling: their noise is independent.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from logel.replay.batch import Batch
from logel.replay.course import Course, StepShare
from logel.replay.crossed import (
    SCALE_PRECISION,
    SMALL,
    Metric,
    Moments,
    best_shift,
    positive,
    unit_movements,
)
from logel.replay.fit import ReplayFit
from logel.replay.learner import Learner
from logel.replay.movement import Movement, spread_rows
from logel.replay.streams import Streams
from logel.types import Array, Float, Progress

logger = logging.getLogger(__name__)

# Spread of the candidates around the centre, relative to its length, round by round; and how far a
# round's centre may be from another for it to count half there.
_SPREADS, _NEAR = (0.4, 0.3, 0.3, 0.2, 0.2, 0.2), 0.4
# Factor of the reward's scale that is tried up and down.
_SCALE = np.log(2.0)
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
        course, number = self.course, self.rounds
        self.rounds += 1
        chance = np.random.default_rng([self.seed, number, 2])
        halves = [_Half(self, weights / self.scale, number, k) for k in (0, 1)]
        moved = np.empty((len(weights), 2, *self.observed.shape))
        for t, batch in enumerate(course.batches):
            order = chance.permutation(batch.stage.n_episodes)
            for k, half in enumerate(halves):
                # A single episode cannot be halved.
                episodes = order[k::2] if len(order) > 1 else order
                moved[:, k, t] = half.step(t, np.sort(episodes))
            self._progress("replaying", t + 1, len(course))
        self.moved.append(moved)
        return moved

    def metric(self) -> Metric:
        """From what halves differed by in all rounds so far."""
        return Metric.of(np.concatenate(self.moved))


class _Half:
    """Copies of the learner that see one half of every stage's episodes."""

    def __init__(self, replay: FreshReplay, weights: Float, number: int, half: int) -> None:
        self.course, self.learner, self.n = replay.course, replay.learner, len(weights)
        self.rng = [np.random.default_rng([replay.seed, number, half])]
        self.chance = np.random.default_rng([replay.seed, number, half, 1])
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
    """Coordinates around a centre: q - 1 across it and the log of the length."""

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

    def columns(self, moved: Float, spread: float) -> Float:
        """Movement at the centre and effects of the coordinates, (q + 1, 2, m, D)."""
        up, down = np.split(moved[3:], 2)
        length = (moved[1:2] - moved[2:3]) / (2 * _SCALE)
        return np.concatenate([moved[:1], (up - down) / (2 * spread), length])

    def to(self, shift: Float) -> Float:
        """Weights at given coordinates."""
        size = np.linalg.norm(self.centre)
        turned = self.centre / size + shift[:-1] @ self.across
        return np.asarray(turned / np.linalg.norm(turned) * size * np.exp(shift[-1]))

    def coordinates(self, weights: Float) -> Float:
        """Of given weights; infinite for those on the other side."""
        size = np.linalg.norm(self.centre)
        along = float(weights @ self.centre) / size
        if along <= 0:
            return np.full(len(weights), np.inf)
        length = np.log(np.linalg.norm(weights) / size)
        return np.append(self.across @ weights / along, length)

    def seen_from(self, other: _Chart) -> Float:
        """What makes our columns those of another chart, (q + 1, q + 1): movements are linear."""
        here, q = self.coordinates(other.centre), len(self.centre)
        tiny = 1e-4 * np.eye(q)
        turned = [self.coordinates(other.to(e)) - self.coordinates(other.to(-e)) for e in tiny]
        result = np.zeros((q + 1, q + 1))
        result[0] = np.append(1.0, here)
        result[1:, 1:] = np.stack(turned) / 2e-4
        return result


@dataclass(frozen=True, eq=False)
class _Round:
    """Candidates around a centre, and their movements (2q + 1, 2, m, D)."""

    chart: _Chart
    spread: float
    moved: Float

    @classmethod
    def around(cls, replay: FreshReplay, chart: _Chart, spread: float) -> _Round:
        return cls(chart, spread, replay.replayed(chart.candidates(spread)))

    def moments(self, observed: Float, metric: Metric, chart: _Chart) -> tuple[Moments, float]:
        """In another chart, and how much they count there."""
        away = self.chart.coordinates(chart.centre)
        if not np.isfinite(away).all():
            away = np.full(len(away), 1e3)
            turn = np.eye(len(away) + 1)
        else:
            turn = self.chart.seen_from(chart)
        own = Moments.of(self.chart.columns(metric.seen(self.moved), self.spread), observed, metric)
        return own.turned(turn), float(1 / (1 + (np.linalg.norm(away) / _NEAR) ** 4))


def fit_fresh(replay: FreshReplay, guess: Float) -> FreshFit:
    """Fit weights; the guess (q,), in the given features, is one of the first candidates."""
    rng = np.random.default_rng([replay.seed, 13])
    chart = _Chart.at(first_answer(replay, guess * replay.scale, rng), rng)
    rounds: list[_Round] = []
    for spread in _SPREADS:
        rounds.append(_Round.around(replay, chart, spread))
        centre = chart.to(best_shift(_together(replay, chart, rounds)))
        chart = _Chart.at(centre, rng)
        logger.info("replay on fresh episodes: %s", (centre / np.linalg.norm(centre)).round(3))
    return _last(replay, chart, rounds)


def _together(replay: FreshReplay, chart: _Chart, rounds: Sequence[_Round]) -> Moments:
    """Mean of all rounds, those near a chart's centre."""
    parts, shares = _apart(replay, chart, rounds)
    return Moments(
        np.average([one.gram for one in parts], axis=0, weights=shares),
        np.average([one.pull for one in parts], axis=0, weights=shares),
    )


def _apart(
    replay: FreshReplay, chart: _Chart, rounds: Sequence[_Round]
) -> tuple[list[Moments], Float]:
    """What every round says in a chart, and how much it counts."""
    metric = replay.metric()
    observed = metric.seen(replay.observed)
    found = [one.moments(observed, metric, chart) for one in rounds]
    return [one for one, _ in found], np.array([share for _, share in found])


def _between(replay: FreshReplay, chart: _Chart, rounds: Sequence[_Round]) -> Float:
    """Covariance (q, q) of the shifts that rounds would have made by themselves.

    Their halves differ, the episodes do not: half of a half's noise stays, however many there are.
    """
    parts, shares = _apart(replay, chart, rounds)
    shifts = np.stack([best_shift(one) for one in parts])
    spread = shifts - np.average(shifts, axis=0, weights=shares)
    return np.asarray(0.5 * (spread.T * shares) @ spread / shares.sum())


def first_answer(replay: FreshReplay, guess: Float, rng: np.random.Generator) -> Float:
    """Weights (q,), in units of the scale, from rewards all over the sphere."""
    q = len(replay.scale)
    turns = [np.linalg.qr(rng.standard_normal((q, q)))[0] for _ in range(2)]
    size = np.linalg.norm(guess)
    given = guess[None] / size if size > 0 else np.zeros((0, q))
    places = np.concatenate([given, turns[0], -turns[1]])
    gram, pull = _sphere(replay, places)
    # Directions that few movements tell of must not take over.
    found = np.linalg.solve(gram + 0.1 * np.trace(gram) / q * np.eye(q), pull)
    size = np.linalg.norm(found)
    return np.asarray(found / size) if size > 0 else places[0]


def _sphere(replay: FreshReplay, places: Float) -> tuple[Float, Float]:
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
    return gram, pull / metric.weight.sum()


def _last(replay: FreshReplay, chart: _Chart, rounds: Sequence[_Round]) -> FreshFit:
    """What all rounds say together, and how sure that is."""
    moments = _together(replay, chart, rounds)
    m, weights = len(replay.course), chart.to(best_shift(moments))
    directions = np.column_stack([np.linalg.norm(chart.centre) * chart.across.T, weights])
    directions /= replay.scale[:, None]
    known = _spread(moments) + _between(replay, chart, rounds)
    covariance = directions @ known @ directions.T
    weights = weights / replay.scale
    steps = _steps(replay, rounds[-1].moved[0])
    trace = np.array([np.mean(np.log([step.unexplained + 1e-12 for step in steps]))])
    fit = ReplayFit(weights, covariance, max(m - 1, 1), steps, trace)
    return FreshFit(fit, _convincing(moments, replay.seed))


def _spread(moments: Moments) -> Float:
    """Covariance of the shift: what steps disagree about, or how little is known beforehand."""
    scores = moments.scores
    m, q = scores.shape
    apart = scores - scores.mean(axis=0)
    meat = moments.knowledge**2 * apart.T @ apart * m / max(m - 1, 1)
    prior = np.diag([SMALL] * (q - 1) + [SCALE_PRECISION])
    inverse = np.linalg.inv(moments.knowledge * moments.curvature + prior)
    return np.asarray(inverse @ (meat + prior) @ inverse)


def _steps(replay: FreshReplay, middle: Float) -> list[StepShare]:
    """For the report: how much of each step's direction the centre explains; middle (2, m, D)."""
    metric = replay.metric()
    mean, seen = unit_movements(metric.seen(middle).mean(axis=0)), metric.seen(replay.observed)
    lengths = np.linalg.norm(middle.mean(axis=0), axis=1)
    cosines = (mean * seen).sum(axis=1)
    return [
        StepShare(
            unexplained=float(1 - max(cosines[t], 0.0) ** 2),
            scatter=float(1 / metric.weight[t]),
            cosine=float(cosines[t]),
            moved=float(np.linalg.norm(replay.observed[t])),
            predicted=float(lengths[t]),
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
