"""Replay where the learner's own episodes were not seen: checkpoints that somebody rolled out.

The learner went where its own episodes led it, and we have others of the same policies. With the
true reward its step and ours are two draws of one distribution: what is left has twice the noise of
one batch. That noise is large but lies in few directions, and what halves of the episodes differ by
tells which: movements are compared in units of it, so that quiet directions say most.

Our prediction is noisy as well, and how noisy depends on the reward. Plain least squares would
prefer rewards whose predictions are quiet, whether they are right or not. So the pull on the
weights has a term that makes up for it (as total least squares has): it is nothing at the truth,
however large the noise is. There about as much is left as noise leaves.

Movements are nearly odd and linear in the direction of the reward: replays of rewards all over the
sphere give a first answer, others around it a better one, Gauss and Newton the rest. Effects of the
weights are noisy, too: for how sure one can be, their size is that of products of two halves.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from logel.replay.batch import Batch
from logel.replay.course import Course, StepShare
from logel.replay.crossed import Metric, Moments
from logel.replay.fates import simplex
from logel.replay.fit import ReplayFit
from logel.replay.fresh_view import Seen, View, squares
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


def fit_fresh(replay: FreshReplay, guess: Float) -> FreshFit:
    """Fit weights; the guess (q,), in the given features, is one of the first candidates."""
    rng = np.random.default_rng([replay.seed, 13])
    centre, first = _first(replay, guess * replay.scale, rng)
    rounds: list[_Around] = []
    trace, best, share = [], 0, 1.0
    for k in range(_ROUNDS):
        rounds.append(_Around.replayed(replay, centre, _NARROW if k else _WIDE, rng))
        # What noise is like is known better with every round: all are seen again.
        metric = Metric.of([*first, *(one.moved for one in rounds)])
        seen = [one.seen(metric, replay.observed) for one in rounds]
        losses = [float(view.seen.losses[0]) for view in seen]
        better = losses[k] <= losses[best]
        best, share = (k, 1.0) if better else (best, 0.5 * share)
        trace.append(losses[best])
        logger.info("replay: %s leaves %s", centre.round(3), seen[k].seen.losses[:3].round(2))
        centre = seen[best].ahead(share)
        if better and seen[best].arrived:
            break
    return _found(replay, seen[best], rounds[best].moved[0], best == len(rounds) - 1, trace)


@dataclass(frozen=True, eq=False)
class _Around:
    """What a `View` sees, before there are units of noise.

    Attributes:
        moved: Movements (q + 3, 2, m, D) of the centre, two other lengths, and corners around it.
    """

    centre: Float
    across: Float
    corners: Float
    moved: Float

    @classmethod
    def replayed(
        cls, replay: FreshReplay, centre: Float, spread: float, rng: np.random.Generator
    ) -> _Around:
        """Candidates around a centre; always with the same random numbers."""
        q = len(centre)
        drawn = np.column_stack([centre, rng.standard_normal((q, q - 1))])
        across = np.linalg.norm(centre) * np.linalg.qr(drawn)[0][:, 1:].T
        corners = spread * simplex(q - 1, rng)
        lengths = centre * np.array([[1.0], [2.0], [0.5]])
        candidates = np.concatenate([lengths, centre + corners @ across])
        return cls(centre, across, corners, replay.replayed(candidates, 2))

    def seen(self, metric: Metric, observed: Float) -> View:
        """In units of noise."""
        seen = Seen.of(self.moved, metric, observed, 0)
        return View(self.centre, self.across, self.corners, seen)


def _first(
    replay: FreshReplay, guess: Float, rng: np.random.Generator
) -> tuple[Float, list[Float]]:
    """Weights (q,), in units of the scale; and what was replayed on the way."""
    q = len(replay.scale)
    turn = np.linalg.qr(rng.standard_normal((q, q)))[0]
    sphere = replay.replayed(_LENGTH * np.concatenate([turn, -turn]), 1)
    metric = Metric.of([sphere])
    up, down = np.split(metric.seen(sphere), 2)
    columns = np.einsum("kq,khtr->qhtr", turn, 0.5 * (up - down))
    # Lengths are those of the learner's steps, which tell little of the reward.
    columns /= np.sqrt(squares(columns).mean(axis=(0, 1)))[:, None] + 1e-300
    observed = metric.seen(replay.observed)
    moments = Moments.of(columns, observed / (np.sqrt(squares(observed))[:, None] + 1e-300))
    m = len(moments.pull)
    counts = [np.ones(m), *rng.multinomial(m, np.full(m, 1 / m), _OTHERS)]
    answers = [moments.answer(one) for one in counts]
    tried = [_LENGTH * _unit(one) for one in (answers[0], guess, *answers[1:]) if np.any(one)]
    tried += [factor * one for factor in _LENGTHS for one in tried[:2]]
    second = np.stack(tried)
    replayed = [sphere, replay.replayed(second, 2)]
    losses = Seen.of(replayed[1], Metric.of(replayed), replay.observed).losses
    logger.info("replay on fresh episodes: losses of the first candidates %s", losses.round(2))
    return second[int(np.argmin(losses))], replayed


def _unit(weights: Float) -> Float:
    size = np.linalg.norm(weights)
    return np.asarray(weights / size) if size > 0 else weights


def _found(
    replay: FreshReplay, view: View, middle: Float, untried: bool, trace: Sequence[float]
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
        _steps(replay, view, middle),
        np.array(trace),
    )
    return FreshFit(fit, _convincing(replay, view), float(view.seen.left[0]))


def _steps(replay: FreshReplay, view: View, halves: Float) -> list[StepShare]:
    """For the report: how much of each step the centre explains, in units of noise."""
    middle, observed = view.seen.halves[0].mean(axis=0), view.seen.metric.seen(replay.observed)
    sizes = squares(observed) + 1e-300
    cosines = (middle * observed).sum(axis=1) / np.sqrt(sizes * (squares(middle) + 1e-300))
    noise = 2 * view.seen.noise[0] * view.seen.metric.expected
    moved = np.linalg.norm(replay.observed, axis=1)
    predicted = np.linalg.norm(halves.mean(axis=0), axis=1)
    return [
        StepShare(
            unexplained=float(squares(view.seen.off[0])[t] / sizes[t]),
            scatter=float(noise / sizes[t]),
            cosine=float(cosines[t]),
            moved=float(moved[t]),
            predicted=float(predicted[t]),
        )
        for t in range(len(moved))
    ]


def _convincing(replay: FreshReplay, view: View) -> bool:
    """Whether the steps are explained better than if each had gone back or forth by chance."""
    root = np.sqrt(view.seen.shares)[:, None]
    columns = np.concatenate([view.seen.halves[:1], view.columns[:-1]])
    moments = Moments.of(columns * root, view.seen.metric.seen(replay.observed) * root)
    signs = np.random.default_rng([replay.seed, 17]).choice([-1.0, 1.0], (_TURNED, len(root)))
    pulls = np.concatenate([np.ones((1, len(root))), signs]) @ moments.pull
    gained = np.einsum("ni,ij,nj->n", pulls, np.linalg.inv(moments.held(np.ones(len(root)))), pulls)
    return bool(gained[0] > np.quantile(gained[1:], _LEVEL))
