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
from scipy.optimize import minimize

from logel.replay.batch import Batch, discounted_sums
from logel.replay.ensemble import Course, StepFit
from logel.replay.fit import ReplayFit
from logel.replay.learner import Learner
from logel.replay.movement import Movement, spread_rows
from logel.replay.streams import Streams
from logel.types import Array, Float, Progress

logger = logging.getLogger(__name__)

# Spread of the candidates around the centre, relative to its length, round by round; the last ones
# are all of the same centre, and their mean is what counts.
_SPREADS, _LAST_SPREAD, _LAST_ROUNDS = (0.4, 0.3, 0.2), 0.2, 3
# Factor of the reward's scale that is tried up and down.
_SCALE = np.log(2.0)
# Of the largest variance of the noise: what counts in every direction. Less would be known from
# more draws; movements of few draws lie in no other direction than theirs.
_FLOOR, _RANK = 0.02, 40
# Deviation of what a round may shift the weights by, and the most it may, relative to their length.
_PRIOR, _MOST = 0.7, 0.8
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
        gamma: Discount factor, for the scale of features.
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
        gamma: float,
        rollout: tuple[int, int] | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        self.course, self.learner = together(course), learner
        self.rollout, self.seed = rollout, seed
        self.scale = _scale(course.batches, gamma)
        self.observed = np.stack(self.course.observed)
        self.noise: list[Float] = []
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
        self.noise.append(moved[:, 0] - moved[:, 1])
        return moved

    def metric(self) -> Metric:
        """From what halves differed by in all rounds so far."""
        return Metric.of(np.concatenate(self.noise))


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
                # The first of several updates may be one whose episodes were seen.
                seen = batch if course.own and number == 0 else self._drawn(batch, episodes)
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


def _scale(batches: Sequence[Batch], gamma: float) -> Float:
    """Deviation of every feature's discounted sum of what is to come, (q,).

    What hardly varies from step to step may yet decide, where episodes end sooner or later.
    """
    variance, size = 0.0, 0.0
    for batch in batches:
        features = batch.features.double().T.clone()
        mean = features.mean(dim=1, keepdim=True)
        # Where an episode was cut, things go on as usual.
        features[:, batch.ends] += gamma / (1 - gamma) * mean * batch.goes_on.double()
        grid = features.new_zeros((len(features), batch.shape[0] * batch.shape[1]))
        grid[:, batch.cells] = features
        sums = discounted_sums(grid.view(-1, *batch.shape), gamma).flatten(1)[:, batch.cells]
        variance = variance + sums.var(dim=1, correction=0).cpu().numpy()
        size = size + sums.abs().mean(dim=1).cpu().numpy()
    deviation, size = np.sqrt(variance / len(batches)), size / len(batches)
    return np.where(deviation > 1e-6 * size, deviation, np.where(size > 0, size, 1.0))


@dataclass(frozen=True, eq=False)
class Metric:
    """Units in which noise is the same in every direction.

    Attributes:
        basis: (D, r).
        noise: Mean square of a learner's noise along a direction of the basis, by step, (m,).
    """

    basis: Float
    noise: Float

    @classmethod
    def of(cls, differences: Float) -> Metric:
        """From differences (n, m, D) between halves.

        The noise of a half has twice the variance of the whole's, a difference four times.
        """
        n, m, width = differences.shape
        power = (differences**2).sum(axis=(0, 2)) / n + 1e-300
        rows = (differences / np.sqrt(power)[:, None]).reshape(n * m, width)
        values, vectors = np.linalg.eigh(rows.T @ rows / (n * m))
        values, vectors = values[::-1][:_RANK], vectors[:, ::-1][:, :_RANK]
        basis = vectors / np.sqrt(np.maximum(values, 0) + _FLOOR * values[0] + 1e-300)
        seen = ((differences @ basis) ** 2).sum(axis=(0, 2)) / n
        return cls(basis, seen / 4 / basis.shape[1] + 1e-300)


@dataclass(frozen=True, eq=False)
class Moments:
    """Of columns X = (movement at the centre, effects) and the observed steps, by step.

    Attributes:
        gram: Of one half's columns with the other's, (m, c, c).
        pull: Of columns with the observed steps, (m, c).
    """

    gram: Float
    pull: Float

    @classmethod
    def of(cls, columns: Float, observed: Float, metric: Metric) -> Moments:
        """From columns (c, 2, m, D)."""
        x, y = columns @ metric.basis, observed @ metric.basis
        weight = _trust(x[0], y, metric.noise)
        gram = np.einsum("t,itr,jtr->tij", weight, x[:, 0], x[:, 1])
        pull = np.einsum("t,itr,tr->ti", weight, x.mean(axis=1), y)
        return cls(0.5 * (gram + gram.transpose(0, 2, 1)), pull)

    def without(self, step: int) -> tuple[Float, Float]:
        """Sums over all other steps."""
        gram, pull = self.total
        return gram - self.gram[step], pull - self.pull[step]

    @property
    def total(self) -> tuple[Float, Float]:
        """Sums over steps."""
        return self.gram.sum(axis=0), self.pull.sum(axis=0)


def _trust(moved: Float, observed: Float, noise: Float) -> Float:
    """Of every step: one over what is left unexplained, which is never less than noise.

    A learner's first step is often a sign, and hardly noisy: all else would drown in it.
    """
    weight = 1 / noise
    mean = moved.mean(axis=0)
    for _ in range(3):
        crossed = np.einsum("t,tr,tr->", weight, *moved)
        length = np.einsum("t,tr,tr->", weight, mean, observed) / max(crossed, 1e-300)
        left = ((observed - np.clip(length, 0, 2) * mean) ** 2).mean(axis=1)
        usual = np.mean(left / noise) * noise
        weight = 1 / (0.5 * noise + 0.5 * np.maximum(left, noise) + 0.02 * usual)
    return np.asarray(weight)


def _positive(gram: Float) -> Float:
    """Crossed products of noise may be negative: what they do not tell, they do not exclude."""
    values, vectors = np.linalg.eigh(gram)
    floor = 1e-3 * max(float(values[-1]), 1e-300)
    return np.asarray((vectors * np.maximum(values, floor)) @ vectors.T)


def best_shift(gram: Float, pull: Float, start: Float | None = None) -> Float:
    """The shift (q,) whose movements explain the steps best, of whatever length they are.

    With columns (movement at the centre, effects), maximises the correlation of the steps with
    columns @ (1, shift).
    """
    gram, q = _positive(gram), len(pull) - 1

    def lost(shift: Float) -> float:
        x = np.concatenate([[1.0], shift])
        return float(
            -0.5 * max(pull @ x, 0) ** 2 / (x @ gram @ x) + 0.5 * (shift @ shift) / _PRIOR**2
        )

    starts = [np.zeros(q) if start is None else start]
    linear = np.linalg.solve(gram, pull)
    if start is None and linear[0] > 0:
        shift = linear[1:] / linear[0]
        starts.append(shift * min(1.0, _MOST / max(np.linalg.norm(shift), 1e-300)))
    found = [minimize(lost, one, method="L-BFGS-B", bounds=[(-_MOST, _MOST)] * q) for one in starts]
    return np.asarray(min(found, key=lambda one: one.fun).x)


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
        middle = np.concatenate([moved[:1], up, down]).mean(axis=0)
        length = (moved[1] - moved[2]) / (2 * _SCALE)
        return np.concatenate([middle[None], (up - down) / (2 * spread), length[None]])

    def to(self, shift: Float) -> Float:
        """Weights at given coordinates."""
        size = np.linalg.norm(self.centre)
        turned = self.centre / size + shift[:-1] @ self.across
        return np.asarray(turned / np.linalg.norm(turned) * size * np.exp(shift[-1]))


def fit_fresh(replay: FreshReplay, guess: Float) -> FreshFit:
    """Fit weights; the guess (q,), in the given features, is one of the first candidates."""
    rng = np.random.default_rng([replay.seed, 13])
    centre = first_answer(replay, guess * replay.scale, rng)
    for spread in _SPREADS:
        chart = _Chart.at(centre, rng)
        columns = chart.columns(replay.replayed(chart.candidates(spread)), spread)
        moments = Moments.of(columns, replay.observed, replay.metric())
        centre = chart.to(best_shift(*moments.total))
        logger.info("replay on fresh episodes: %s", (centre / np.linalg.norm(centre)).round(3))
    return _last(replay, _Chart.at(centre, rng))


def first_answer(replay: FreshReplay, guess: Float, rng: np.random.Generator) -> Float:
    """Weights (q,) of unit length from rewards all over the sphere."""
    q = len(replay.scale)
    turns = [np.linalg.qr(rng.standard_normal((q, q)))[0] for _ in range(2)]
    size = np.linalg.norm(guess)
    given = guess[None] / size if size > 0 else np.zeros((0, q))
    places = np.concatenate([given, turns[0], -turns[1]])
    moved = replay.replayed(places)
    columns = np.einsum("qk,khtd->qhtd", np.linalg.pinv(places), moved)
    metric = replay.metric()
    # Steps count by their noise and size: what the best explains is not known yet.
    x, y = columns @ metric.basis, replay.observed @ metric.basis
    weight = 1 / (metric.noise + (y**2).mean(axis=1))
    gram = np.einsum("t,itr,jtr->ij", weight, x[:, 0], x[:, 1])
    pull = np.einsum("t,itr,tr->i", weight, x.mean(axis=1), y)
    gram = _positive(0.5 * (gram + gram.T))
    # Directions that few movements tell of must not take over.
    gram += 0.05 * np.trace(gram) / q * np.eye(q)
    found = np.linalg.solve(gram, pull)
    size = np.linalg.norm(found)
    return np.asarray(found / size) if size > 0 else places[0]


def _last(replay: FreshReplay, chart: _Chart) -> FreshFit:
    """The mean of several rounds around the same centre, and how sure it is."""
    columns = []
    for _ in range(_LAST_ROUNDS):
        moved = replay.replayed(chart.candidates(_LAST_SPREAD))
        columns.append(chart.columns(moved, _LAST_SPREAD))
    metric = replay.metric()
    parts = [Moments.of(one, replay.observed, metric) for one in columns]
    moments = Moments(
        np.mean([one.gram for one in parts], axis=0), np.mean([one.pull for one in parts], axis=0)
    )
    shift = best_shift(*moments.total)
    weights = chart.to(shift) / replay.scale
    m = len(replay.course)
    without = np.stack(
        [chart.to(best_shift(*moments.without(t), start=shift)) / replay.scale for t in range(m)]
    )
    size = np.linalg.norm(weights)
    without *= size / np.linalg.norm(without, axis=1, keepdims=True)
    spread = without - without.mean(axis=0)
    covariance = (m - 1) / m * spread.T @ spread
    middle = np.mean([one[0] for one in columns], axis=0)
    steps = [_said(moments, t, middle[:, t], replay.observed[t], metric) for t in range(m)]
    trace = np.array([np.mean(np.log([step.unexplained + 1e-12 for step in steps]))])
    fit = ReplayFit(weights, covariance, max(m - 1, 1), steps, trace)
    return FreshFit(fit, _convincing(moments, replay.seed))


def _said(moments: Moments, t: int, middle: Float, observed: Float, metric: Metric) -> StepFit:
    """One step for the report: lengths and shares in units of its noise."""
    p, y = middle @ metric.basis, observed @ metric.basis
    mean, size = p.mean(axis=0), max(float(y @ y), 1e-300)
    left = float((y - mean) @ (y - mean))
    return StepFit(
        gram=moments.gram[t],
        pull=moments.pull[t],
        noise=_positive(moments.gram[t]),
        unexplained=left / size,
        scatter=float(metric.noise[t]) * len(y) / size,
        cosine=float(mean @ y / max(np.linalg.norm(mean) * np.sqrt(size), 1e-300)),
        moved=float(np.sqrt(observed @ observed)),
    )


def _convincing(moments: Moments, seed: int) -> bool:
    """Whether the steps are explained better than if each had gone back or forth by chance."""
    gram, pull = moments.total
    inverse = np.linalg.inv(_positive(gram))
    signs = np.random.default_rng([seed, 17]).choice([-1.0, 1.0], (_TURNED, len(moments.pull)))
    turned = signs @ moments.pull
    gained = np.einsum("ni,ij,nj->n", turned, inverse, turned)
    return bool(pull @ inverse @ pull > np.quantile(gained, _LEVEL))
