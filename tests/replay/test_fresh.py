"""Replay on other episodes than the learner's: streams by hand, products, what is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from logel.data.stage import Stage
from logel.policies.gaussian import LinearGaussian
from logel.replay.batch import Batch
from logel.replay.course import Course
from logel.replay.crossed import Metric, Moments
from logel.replay.fresh import FreshFit, FreshReplay, fit_fresh
from logel.replay.learner import OneByOne
from logel.replay.movement import Movement
from logel.replay.streams import Streams
from logel.types import Float

# --- streams ----------------------------------------------------------------------------------


def numbered(lengths: list[int], terminated: list[bool]) -> Stage:
    """Observations are rows' numbers; last ones are 100 times the episode's."""
    n = sum(lengths)
    return Stage(
        observations=np.arange(n, dtype=float)[:, None],
        actions=np.zeros((n, 1)),
        lengths=np.array(lengths),
        terminated=np.array(terminated),
        last_observations=100.0 * np.arange(1, len(lengths) + 1)[:, None],
        features=np.arange(n, dtype=float)[:, None],
    )


def test_rollouts_go_on_where_the_last_one_ended() -> None:
    stage, rng = numbered([3], [True]), np.random.default_rng(1000)
    streams = Streams(1, 2)
    first = streams.rollout(stage, np.array([0]), rng)
    np.testing.assert_array_equal(first.observations[:, 0], [0, 1])
    # Cut short: it goes on, to the row that follows.
    assert not first.terminated.any()
    np.testing.assert_array_equal(first.last_observations, [[2.0]])
    second = streams.rollout(stage, np.array([0]), rng)
    np.testing.assert_array_equal(second.observations[:, 0], [2, 0])
    np.testing.assert_array_equal(second.lengths, [1, 1])
    np.testing.assert_array_equal(second.terminated, [True, False])
    np.testing.assert_array_equal(second.last_observations, [[100.0], [1.0]])
    assert second.features is not None
    np.testing.assert_array_equal(second.features[:, 0], [2, 0])


def test_all_episodes_of_a_half_are_seen_equally_often_and_no_others() -> None:
    stage = numbered([4, 4, 4, 4, 4, 4], [False] * 6)
    found = Streams(6, 4).rollout(stage, np.array([1, 3, 4]), np.random.default_rng(1000))
    episodes, counts = np.unique(found.observations[:, 0] // 4, return_counts=True)
    np.testing.assert_array_equal(episodes, [1, 3, 4])
    np.testing.assert_array_equal(counts, [8, 8, 8])
    assert not found.terminated.any()


def test_where_no_episode_lasted_as_long_a_new_one_begins() -> None:
    streams, rng = Streams(1, 3), np.random.default_rng(1000)
    streams.rollout(numbered([5], [False]), np.array([0]), rng)
    short = streams.rollout(numbered([2, 2], [False, False]), np.array([0, 1]), rng)
    np.testing.assert_array_equal(short.lengths, [2, 1])


# --- products of halves -----------------------------------------------------------------------


def test_crossed_products_have_no_noise_in_them() -> None:
    rng = np.random.default_rng(1000)
    m, r, n = 6, 4, 4000
    means, steps = rng.standard_normal((3, m, r)), rng.standard_normal((m, r))
    noisy = means[:, None] + rng.standard_normal((n, 3, 2, m, r))
    found = [Moments.of(one, steps) for one in noisy]
    expected = np.einsum("itr,jtr->ij", means, means)
    grams = np.array([one.gram.sum(axis=0) for one in found])
    error = grams.std(axis=0) / np.sqrt(n)
    assert (np.abs(grams.mean(axis=0) - expected) < 5 * error).all()
    # Multiplied with themselves, 4 directions of 6 steps would have added all their noise.
    assert (50 * np.diag(error) < 24).all()
    pulls = np.array([one.pull.sum(axis=0) for one in found])
    wanted = np.einsum("itr,tr->i", means, steps)
    assert (np.abs(pulls.mean(axis=0) - wanted) < 5 * pulls.std(axis=0) / np.sqrt(n)).all()


def test_noise_has_unit_variance_where_there_is_much_and_less_elsewhere() -> None:
    rng = np.random.default_rng(1000)
    m, n = 8, 500
    sizes, loud = np.array([3.0, 1.0, 0.0]), np.geomspace(0.1, 10, m)[:, None]
    moved = rng.standard_normal((n, 2, m, 3)) * sizes * loud
    metric = Metric.of([moved])
    noise = metric.seen(0.5 * (moved[:, 0] - moved[:, 1]))
    # Two directions have noise, the third none; neighbouring steps are smoothed together.
    np.testing.assert_allclose(metric.variance, [1 / 1.1, 1 / (1 + 0.1 * 9), 0], atol=0.05)
    assert abs(metric.expected - metric.variance.sum()) < 1e-6
    power = (noise**2).sum(axis=2).mean(axis=0) / metric.expected
    assert (power > 0.5).all() and (power < 2.0).all()


# --- a learner whose answer is known ----------------------------------------------------------

POLICY = LinearGaussian(2, 1, sigma=0.5)
TRUTH = np.array([0.6, -0.1, 2.0])
SCALE = np.array([1.0, 5.0, 0.2])


def linear(
    theta: Float, state: Any, stage: Stage, rewards: Float, rng: np.random.Generator
) -> tuple[Float, Any]:
    """Parameters go where rewarded observations are: linear in the rewards."""
    return theta + 0.1 * rewards @ stage.observations / len(rewards), state


def episodes(signal: Float, noise: float, rng: np.random.Generator) -> Stage:
    """Twenty episodes of four times, whose features go with the observations as `signal` says."""
    observations = np.tile([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], (20, 1))
    features = (observations @ signal + noise * rng.standard_normal((80, 3))) * SCALE
    return Stage(
        observations=observations,
        actions=np.zeros((80, 1)),
        lengths=np.full(20, 4),
        terminated=np.full(20, True),
        last_observations=np.zeros((20, 2)),
        features=features,
    )


def course_of(n_steps: int, noise: float, seed: int = 1000, n_updates: int = 1) -> Course:
    """The learner's own episodes are not those of the course."""
    rng = np.random.default_rng(seed)
    theta = np.zeros(2)
    path, batches, movements = [theta], [], []
    for _ in range(n_steps):
        signal = rng.standard_normal((2, 3))
        seen = episodes(signal, noise, rng)
        batches.append(Batch.of(seen, POLICY, dtype=torch.float64))
        movements.append(Movement.at(seen, POLICY, theta))
        for _ in range(n_updates):
            own = episodes(signal, noise, rng)
            assert own.features is not None
            theta, _ = linear(theta, None, own, own.features @ TRUTH, rng)
        path.append(theta)
    return Course(batches, np.stack(path), movements, own=False, n_updates=n_updates)


def fitted(course: Course, seed: int = 1000) -> FreshFit:
    replay = FreshReplay(course, OneByOne(linear), seed=seed)
    return fit_fresh(replay, np.ones(3))


def direction(weights: Float) -> Float:
    scaled = weights * SCALE
    return np.asarray(scaled / np.linalg.norm(scaled))


@pytest.mark.parametrize("n_updates", [1, 3])
def test_without_noise_the_direction_is_exact(n_updates: int) -> None:
    found = fitted(course_of(8, 0.0, n_updates=n_updates))
    np.testing.assert_allclose(direction(found.fit.weights), direction(TRUTH), atol=1e-5)
    assert found.convincing and found.fit.explained > 1 - 1e-4


def test_noise_is_not_taken_for_effects() -> None:
    errors, left, outside, convinced = [], [], 0, 0
    for seed in range(1000, 1006):
        fit = fitted(course_of(16, 2.0, seed), seed)
        found, truth = fit.fit.weights, TRUTH / np.linalg.norm(TRUTH)
        size = np.linalg.norm(found)
        # Of weights of length one.
        across = np.eye(3) - np.outer(found, found) / size**2
        deviation = np.sqrt(np.diag(across @ fit.fit.covariance @ across)) / size
        errors.append(np.linalg.norm(direction(found) - direction(TRUTH)))
        # Student's t of 15 degrees at 95%.
        outside += int((np.abs(found / size - truth) > 2.13 * deviation).sum())
        left.append(fit.left)
        convinced += fit.convincing
    # As much is left as noise leaves: about one.
    assert 0.7 < np.median(left) < 1.4
    assert np.median(errors) < 0.35
    # Of 18, one is expected outside and more than three hardly ever.
    assert outside <= 3
    assert convinced >= 5


def test_steps_that_go_back_and_forth_convince_nobody() -> None:
    convinced = 0
    for seed in range(1000, 1004):
        course = course_of(16, 2.0, seed)
        rng = np.random.default_rng(seed)
        moves = np.diff(course.parameters, axis=0) * rng.choice([-1.0, 1.0], (16, 1))
        path = np.concatenate([np.zeros((1, 2)), np.cumsum(moves, axis=0)])
        movements = [
            Movement.at(batch.stage, POLICY, theta)
            for batch, theta in zip(course.batches, path, strict=False)
        ]
        convinced += fitted(Course(course.batches, path, movements, own=False), seed).convincing
    assert convinced <= 1


def test_the_same_seed_gives_the_same_weights() -> None:
    course = course_of(5, 1.0)
    one, two, other = (fitted(course, seed).fit.weights for seed in (1000, 1000, 1001))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, other)
