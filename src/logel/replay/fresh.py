"""Replay where the learner's own episodes were not seen: checkpoints that somebody rolled out.

The learner went where its own episodes led it, and we have others of the same policies. With the
true reward its step and ours are two draws of one distribution: what is left has twice the noise of
one batch. That noise is large but lies in few directions, and what halves of the episodes differ by
tells which: movements are compared in units of it, so that quiet directions say most.

Our prediction is noisy as well, and how noisy depends on the reward. Plain least squares would
prefer rewards whose predictions are quiet, whether they are right or not. So what a reward leaves
is divided by what it may leave: by the learner's noise and that of the reward's own prediction.
Where both are known this has its minimum at the truth, however large the noise is (total least
squares), and the minimum is about one: a fit knows whether it has arrived.

Movements are nearly odd and linear in the direction of the reward: replays of rewards all over the
sphere give a first answer, others around it a better one, Gauss and Newton the rest. Effects of the
weights are noisy, too: for how sure one can be, their size is that of products of two halves.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from logel.replay.batch import Batch
from logel.replay.course import Course, StepShare
from logel.replay.crossed import Metric, Moments, crossed
from logel.replay.fates import simplex
from logel.replay.fit import ReplayFit
from logel.replay.learner import Learner
from logel.replay.movement import Movement, spread_rows
from logel.replay.streams import Streams
from logel.types import Array, Float, Progress

logger = logging.getLogger(__name__)

# Length of the first rewards, in units of the features' scale, and factors of it that are tried.
_LENGTH, _LENGTHS = 0.4, (2.0, 0.4)
# First answers of resampled steps that are tried, too.
_OTHERS = 8
# The most rounds; distance of their candidates from the centre, relative to its length.
_ROUNDS, _WIDE, _NARROW = 5, 0.4, 0.3
# The farthest that a round may go: across, and in logs of the length; and the squared way, per
# weight and in units of what is chance, that is not worth another round.
_FARTHEST, _LONGER, _SHORT = 0.5, 0.7, 0.1
# Where more than this times what noise leaves is left, no round is the last before its time.
_GOOD = 1.5
# How much curvature there is at least, of the mean one; and of the length, in squared units of it.
_FLAT, _KNOWN = 0.02, 2.0
# How much wider intervals are than linear theory says, squared: effects and the units of noise are
# estimates.
_INFLATED = 2.0
# How much less must be left at another length to go there at once.
_BETTER = 0.1
# Steps of which this many times the usual is left count half.
_FAR = 3.0
# Share of the effects' squares that is no noise, at least.
_RELIABLE = 0.2
# Steps turned round by chance: how well they are explained is the measure of what is.
_TURNED, _LEVEL = 400, 0.99


@dataclass(frozen=True, eq=False)
class FreshFit:
    """Weights found from other episodes than the learner's.

    Attributes:
        fit: Weights and steps.
        convincing: Whether the steps are explained better than steps turned round by chance.
        left: What is left unexplained over what noise leaves: about one where all is well.
    """

    fit: ReplayFit
    convincing: bool
    left: float


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
        self.scale = course.scale
        self.observed = np.stack(self.course.observed)
        self._progress = progress or (lambda what, done, total: None)

    def replayed(self, weights: Float, number: int) -> Float:
        """Movements (K, 2, m, D) of weights (K, q), in units of the scale, on two halves.

        All weights see the same halves, critics and random numbers, those of the given number.
        """
        course = self.course
        chance = np.random.default_rng([self.seed, number, 2])
        copies = [_Half(self, weights / self.scale, number, k) for k in (0, 1)]
        moved = np.empty((len(weights), 2, *self.observed.shape))
        for t, batch in enumerate(course.batches):
            order = chance.permutation(batch.stage.n_episodes)
            for k, copy in enumerate(copies):
                # A single episode cannot be halved.
                episodes = order[k::2] if len(order) > 1 else order
                moved[:, k, t] = copy.step(t, np.sort(episodes))
            self._progress("replaying", t + 1, len(course))
        return moved


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


@dataclass(frozen=True, eq=False)
class _Round:
    """Candidates that were replayed with the same random numbers.

    Attributes:
        weights: (K, q).
        moved: Movements (K, 2, m, D) on two halves.
    """

    weights: Float
    moved: Float

    @classmethod
    def of(cls, replay: FreshReplay, weights: Float, number: int) -> _Round:
        """Replay them."""
        return cls(weights, replay.replayed(weights, number))

    def losses(self, metric: Metric, observed: Float) -> Float:
        """How badly each candidate explains the steps, (K,)."""
        return _Seen.of(self, metric, observed).losses


@dataclass(frozen=True, eq=False)
class _Seen:
    """Candidates' movements in units of noise.

    Attributes:
        halves: (K, 2, m, r).
        off: What they leave of the observed steps, (K, m, r).
        shares: How much every step counts, (m,).
        metric: The units.
    """

    halves: Float
    off: Float
    shares: Float
    metric: Metric

    @classmethod
    def of(cls, one: _Round, metric: Metric, observed: Float, centre: int | None = None) -> _Seen:
        """As one of them leaves it, steps of which much is left count less; or the best of all."""
        halves = metric.seen(one.moved)
        off = metric.seen(observed) - halves.mean(axis=1)
        squares = _squares(off)
        usual = squares.min(axis=0) if centre is None else squares[centre]
        return cls(halves, off, 1 / (1 + usual / (_FAR * np.median(usual) + 1e-300)), metric)

    @cached_property
    def noise(self) -> Float:
        """Squared noise of the candidates' own predictions, over the usual one, (K,)."""
        apart = _squares(0.5 * (self.halves[:, 0] - self.halves[:, 1])) @ self.shares
        return np.asarray(apart / (self.shares.sum() * self.metric.expected) + _TINY)

    @cached_property
    def left(self) -> Float:
        """What candidates leave over what noise would, (K,): the learner's and their own."""
        squares = _squares(self.off) @ self.shares
        return np.asarray(
            squares / (2 * self.noise) / (self.shares.sum() * self.metric.expected)
        )

    @property
    def losses(self) -> Float:
        """Twice the negative log-density of what is left, per direction, (K,).

        To choose among rewards far apart: to claim much noise explains anything, and has its price.
        """
        return np.asarray(self.left + np.log(self.noise))


_TINY = 1e-6


@dataclass(frozen=True, eq=False)
class _View:
    """The steps from one centre, in q coordinates: q - 1 across it, and the log of its length.

    Attributes:
        one: The centre, two lengths, and the corners of a simplex around it.
        across: (q - 1, q), as long as the centre.
        corners: In these coordinates, (q, q - 1).
        seen: In units of noise.
    """

    one: _Round
    across: Float
    corners: Float
    seen: _Seen

    @property
    def centre(self) -> Float:
        """(q,)."""
        return np.asarray(self.one.weights[0])

    def effects(self, values: Float) -> Float:
        """Of the coordinates, (q, ...), from what the candidates (2q + 1, ...) have."""
        across = np.tensordot(np.linalg.pinv(self.corners), values[3:], axes=1)
        longer = (values[1] - values[2]) / (2 * np.log(2.0))
        return np.concatenate([across, longer[None]])

    @cached_property
    def columns(self) -> Float:
        """Effects on both halves, (q, 2, m, r)."""
        return self.effects(self.seen.halves)

    @cached_property
    def curvature(self) -> Float:
        """(q, q), with what is flat held."""
        middle, q = self.columns.mean(axis=1), len(self.centre)
        gram = np.einsum("itr,jtr,t->ij", middle, middle, self.seen.shares)
        held = np.full(q, _FLAT * np.trace(gram[:-1, :-1]) / max(q - 1, 1))
        held[-1] = _KNOWN * self.seen.shares.mean()
        return np.asarray(gram + np.diag(held) + 1e-12 * np.eye(q))

    @cached_property
    def shift(self) -> Float:
        """Where the steps pull, (q,); rewards must not be preferred for quiet predictions."""
        middle, seen = self.columns.mean(axis=1), self.seen
        pull = np.einsum("itr,tr,t->i", middle, seen.off[0], seen.shares)
        # What is left has the prediction's own noise in it, which grows as the claim does: half of
        # the price of noise is paid already.
        chance = seen.noise[0] * seen.shares.sum() * seen.metric.expected
        pull += self.effects(np.log(seen.noise)) * (seen.left[0] - 0.5) * chance
        found = np.linalg.solve(self.curvature, pull)
        here, longer, shorter = seen.losses[:3]
        if min(longer, shorter) < here - _BETTER:
            found[-1] = _LONGER if longer < shorter else -_LONGER
        return np.asarray(found)

    def ahead(self, share: float) -> Float:
        """A share of the way that the steps pull, no farther than is seen."""
        across = self.shift[:-1]
        across = share * across * min(1.0, _FARTHEST / max(float(np.linalg.norm(across)), 1e-300))
        size, length = np.linalg.norm(self.centre), share * self.shift[-1]
        turned = self.centre + across @ self.across
        turned = turned * size / np.linalg.norm(turned)
        return np.asarray(turned * np.exp(np.clip(length, -_LONGER, _LONGER)))

    @property
    def arrived(self) -> bool:
        """Whether another round would tell no more than chance does."""
        squared = float(self.shift @ np.linalg.pinv(self.covariance) @ self.shift)
        return bool(self.seen.left[0] < _GOOD and squared < _SHORT * len(self.shift))

    @cached_property
    def covariance(self) -> Float:
        """Of the shift, (q, q)."""
        seen, middle = self.seen, self.columns.mean(axis=1)
        noise = np.einsum(
            "itr,jtr,t,r->ij", middle, middle, seen.shares**2, seen.metric.variance
        )
        # What is left has our noise and the learner's; or more, where something is wrong.
        noise *= 2 * seen.noise[0] * max(1.0, seen.left[0]) * _INFLATED
        gram = np.einsum("itr,jtr,t->ij", middle, middle, seen.shares)
        held = self.curvature - gram
        values, vectors = np.linalg.eigh(self.curvature)
        root = (vectors * np.sqrt(values)) @ vectors.T
        inverse = (vectors / np.sqrt(values)) @ vectors.T
        known = np.einsum("tij,t->ij", crossed(self.columns), seen.shares) + held
        shares, turn = np.linalg.eigh(inverse @ known @ inverse)
        known = root @ (turn * np.clip(shares, _RELIABLE, 1.0)) @ turn.T @ root
        back = np.linalg.pinv(known)
        return np.asarray(back @ noise @ back)


def _squares(rows: Float) -> Float:
    return np.asarray((rows**2).sum(axis=-1))


def fit_fresh(replay: FreshReplay, guess: Float) -> FreshFit:
    """Fit weights; the guess (q,), in the given features, is one of the first candidates."""
    rng = np.random.default_rng([replay.seed, 13])
    centre, first = _first(replay, guess * replay.scale, rng)
    rounds: list[_Around] = []
    trace, best, share = [], 0, 1.0
    for k in range(_ROUNDS):
        rounds.append(_Around.replayed(replay, centre, _NARROW if k else _WIDE, rng))
        # What noise is like is known better with every round: all are seen again.
        metric = Metric.of([*first, *(one.candidates.moved for one in rounds)])
        seen = [one.seen(metric, replay.observed) for one in rounds]
        losses = [float(view.seen.losses[0]) for view in seen]
        better = losses[k] <= losses[best]
        best, share = (k, 1.0) if better else (best, 0.5 * share)
        trace.append(losses[best])
        logger.info("replay: %s leaves %s", centre.round(3), seen[k].seen.losses[:3].round(2))
        centre = seen[best].ahead(share)
        if better and seen[best].arrived:
            break
    return _found(replay, seen[best], best == len(rounds) - 1, trace)


@dataclass(frozen=True, eq=False)
class _Around:
    """What `_View` says, before it is seen in units of noise."""

    candidates: _Round
    across: Float
    corners: Float

    @classmethod
    def replayed(
        cls, replay: FreshReplay, centre: Float, spread: float, rng: np.random.Generator
    ) -> _Around:
        """Candidates around a centre; always with the same random numbers."""
        q = len(centre)
        drawn = np.column_stack([centre, rng.standard_normal((q, q - 1))])
        across = np.linalg.norm(centre) * np.linalg.qr(drawn)[0][:, 1:].T
        corners = spread * simplex(q - 1, rng)
        weights = np.concatenate([centre * np.array([[1.0], [2.0], [0.5]]), centre + corners @ across])
        return cls(_Round.of(replay, weights, 2), across, corners)

    def seen(self, metric: Metric, observed: Float) -> _View:
        """In units of noise."""
        seen = _Seen.of(self.candidates, metric, observed, 0)
        return _View(self.candidates, self.across, self.corners, seen)


def _first(
    replay: FreshReplay, guess: Float, rng: np.random.Generator
) -> tuple[Float, list[Float]]:
    """Weights (q,), in units of the scale; and what was replayed on the way."""
    q = len(replay.scale)
    turn = np.linalg.qr(rng.standard_normal((q, q)))[0]
    sphere = _Round.of(replay, _LENGTH * np.concatenate([turn, -turn]), 1)
    metric = Metric.of([sphere.moved])
    up, down = np.split(metric.seen(sphere.moved), 2)
    columns = np.einsum("kq,khtr->qhtr", turn, 0.5 * (up - down))
    # Lengths are those of the learner's steps, which tell little of the reward.
    columns /= np.sqrt(_squares(columns).mean(axis=(0, 1)))[:, None] + 1e-300
    observed = metric.seen(replay.observed)
    moments = Moments.of(columns, observed / (np.sqrt(_squares(observed))[:, None] + 1e-300))
    m = len(moments.pull)
    counts = [np.ones(m), *rng.multinomial(m, np.full(m, 1 / m), _OTHERS)]
    answers = [moments.answer(one) for one in counts]
    tried = [_LENGTH * _unit(one) for one in (answers[0], guess, *answers[1:]) if np.any(one)]
    tried += [factor * one for factor in _LENGTHS for one in tried[:2]]
    second = _Round.of(replay, np.stack(tried), 2)
    replayed = [sphere.moved, second.moved]
    losses = second.losses(Metric.of(replayed), replay.observed)
    logger.info("replay on fresh episodes: losses of the first candidates %s", losses.round(2))
    return second.weights[int(np.argmin(losses))], replayed


def _unit(weights: Float) -> Float:
    size = np.linalg.norm(weights)
    return np.asarray(weights / size) if size > 0 else weights


def _found(
    replay: FreshReplay, view: _View, untried: bool, trace: Sequence[float]
) -> FreshFit:
    """What is found from the last view, and how sure that is."""
    covariance, shift = view.covariance, view.shift.copy()
    if not untried:
        # It was tried, and was no better.
        covariance = covariance + np.outer(shift, shift)
    weights = view.ahead(1.0) if untried else view.centre
    # How long they are is no part of the answer.
    covariance = covariance[:-1, :-1]
    directions = view.across.T / replay.scale[:, None]
    fit = ReplayFit(
        weights / replay.scale,
        directions @ covariance @ directions.T,
        max(len(replay.course) - 1, 1),
        _steps(replay, view),
        np.array(trace),
    )
    return FreshFit(fit, _convincing(replay, view), float(view.seen.left[0]))


def _steps(replay: FreshReplay, view: _View) -> list[StepShare]:
    """For the report: how much of each step the centre explains, in units of noise."""
    middle, observed = view.seen.halves[0].mean(axis=0), view.seen.metric.seen(replay.observed)
    sizes = _squares(observed) + 1e-300
    cosines = (middle * observed).sum(axis=1) / np.sqrt(sizes * (_squares(middle) + 1e-300))
    noise = 2 * view.seen.noise[0] * view.seen.metric.expected
    moved = np.linalg.norm(replay.observed, axis=1)
    predicted = np.linalg.norm(view.one.moved[0].mean(axis=0), axis=1)
    return [
        StepShare(
            unexplained=float(_squares(view.seen.off[0])[t] / sizes[t]),
            scatter=float(noise / sizes[t]),
            cosine=float(cosines[t]),
            moved=float(moved[t]),
            predicted=float(predicted[t]),
        )
        for t in range(len(moved))
    ]


def _convincing(replay: FreshReplay, view: _View) -> bool:
    """Whether the steps are explained better than if each had gone back or forth by chance."""
    root = np.sqrt(view.seen.shares)[:, None]
    columns = np.concatenate([view.seen.halves[:1], view.columns[:-1]])
    moments = Moments.of(columns * root, view.seen.metric.seen(replay.observed) * root)
    signs = np.random.default_rng([replay.seed, 17]).choice([-1.0, 1.0], (_TURNED, len(root)))
    pulls = np.concatenate([np.ones((1, len(root))), signs]) @ moments.pull
    gained = np.einsum("ni,ij,nj->n", pulls, np.linalg.inv(moments.held()), pulls)
    return bool(gained[0] > np.quantile(gained[1:], _LEVEL))
