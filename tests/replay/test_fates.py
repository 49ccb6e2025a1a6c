"""Candidates under fates along a course, and the arithmetic below, against loops and by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from logel.data.stage import Stage
from logel.inference.spread import student_draws, unit_rows
from logel.policies.gaussian import LinearGaussian
from logel.replay.batch import Batch, discounted_sums
from logel.replay.course import Course
from logel.replay.fates import Fates, Replay, simplex
from logel.replay.fit import fit_replay, lengths
from logel.replay.learner import OneByOne
from logel.replay.movement import Movement
from logel.replay.search import best_scale, compared, searched
from logel.types import Float

# --- arithmetic ------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 40),
    st.floats(0, 1),
    st.integers(0, 2**32 - 1),
)
def test_discounted_sums_are_those_of_a_loop(n: int, times: int, factor: float, seed: int) -> None:
    values = np.random.default_rng(seed).standard_normal((n, times))
    expected = np.zeros_like(values)
    following = np.zeros(n)
    for t in reversed(range(times)):
        following = values[:, t] + factor * following
        expected[:, t] = following
    given_values = torch.as_tensor(values)
    found = discounted_sums(given_values, factor)
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-12 * times)
    np.testing.assert_array_equal(given_values.numpy(), values)


POLICY = LinearGaussian(2, 1, sigma=0.5)


def stage_of(lengths: list[int], terminated: list[bool], rng: np.random.Generator) -> Stage:
    n = sum(lengths)
    return Stage(
        observations=rng.standard_normal((n, 2)),
        actions=rng.standard_normal((n, 1)),
        lengths=np.array(lengths),
        terminated=np.array(terminated),
        last_observations=rng.standard_normal((len(lengths), 2)),
        features=rng.standard_normal((n, 3)) * [1.0, 5.0, 0.2],
    )


def test_advantages_by_hand() -> None:
    rng = np.random.default_rng(1000)
    # The first episode ended for good; the second was cut, and its critic says what was to come.
    batch = Batch.of(stage_of([2, 1], [True, False], rng), POLICY, dtype=torch.float64)
    rewards = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    values = torch.tensor([[10.0, 20.0, 30.0]], dtype=torch.float64)
    last = torch.tensor([[1000.0, 40.0]], dtype=torch.float64)
    found = batch.advantages(rewards, values, last, gamma=0.5, trace=0.5)
    # Surprises: 1 + 20 / 2 - 10 = 1; 2 + 0 - 20 = -18; 3 + 40 / 2 - 30 = -7.
    np.testing.assert_allclose(found.numpy(), [[1 - 18 / 4, -18.0, -7.0]])


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=6),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(0, 2**32 - 1),
)
def test_advantages_are_those_of_a_loop(
    episodes: list[tuple[int, bool]], gamma: float, trace: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    lengths, ended = [n for n, _ in episodes], [over for _, over in episodes]
    batch = Batch.of(stage_of(lengths, ended, rng), POLICY, dtype=torch.float64)
    n, e = sum(lengths), len(lengths)
    rewards, values, last = (rng.standard_normal((2, size)) for size in (n, n, e))
    expected = np.zeros((2, n))
    stop = n
    for i in reversed(range(e)):
        carried = np.zeros(2)
        after = np.zeros(2) if ended[i] else last[:, i]
        for t in reversed(range(stop - lengths[i], stop)):
            carried = rewards[:, t] + gamma * after - values[:, t] + gamma * trace * carried
            expected[:, t], after = carried, values[:, t]
        stop -= lengths[i]
    tensors = (torch.as_tensor(one) for one in (rewards, values, last))
    found = batch.advantages(*tensors, gamma=gamma, trace=trace)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-11)


@given(st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_corners_of_a_simplex_are_like_a_standard_normal_exactly(q: int, seed: int) -> None:
    places = simplex(q, np.random.default_rng(seed))
    assert places.shape == (q + 1, q)
    np.testing.assert_allclose(places.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(places.T @ places / (q + 1), np.eye(q), atol=1e-12)
    # All equally far from the centre.
    np.testing.assert_allclose(np.linalg.norm(places, axis=1), q**0.5)


# --- a learner whose answer is known -----------------------------------------------------------

TRUTH = np.array([0.6, -0.1, 2.0])
DIRECTION = TRUTH / np.linalg.norm(TRUTH)


def linear(
    theta: Float, state: Any, stage: Stage, rewards: Float, rng: np.random.Generator
) -> tuple[Float, Any]:
    """Parameters go where rewarded observations are: linear in the rewards."""
    return theta + 0.1 * rewards @ stage.observations / len(rewards), state


def noisy(
    theta: Float, state: Any, stage: Stage, rewards: Float, rng: np.random.Generator
) -> tuple[Float, Any]:
    """The same from nine tenths of the times, by chance, as minibatches are."""
    rows = rng.choice(len(rewards), len(rewards) * 9 // 10, replace=False)
    return theta + 0.1 * rewards[rows] @ stage.observations[rows] / len(rows), state


def course_of(function: Any, n_steps: int, seed: int = 1000) -> Course:
    rng = np.random.default_rng(seed)
    theta = np.zeros(2)
    path, batches, movements = [theta], [], []
    for _ in range(n_steps):
        stage = stage_of([40, 40], [True, False], rng)
        assert stage.features is not None
        batches.append(Batch.of(stage, POLICY))
        movements.append(Movement.at(stage, POLICY, theta))
        theta, _ = function(theta, None, stage, stage.features @ TRUTH, rng)
        path.append(theta)
    return Course(batches, np.stack(path), movements)


def cosine(one: Float, other: Float) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def test_a_linear_learners_weights_are_found_exactly() -> None:
    course = course_of(linear, 12)
    replay = Replay(course, OneByOne(linear), seed=1000)
    np.testing.assert_allclose(replay.scale, [1.0, 5.0, 0.2], rtol=0.1)
    centre, _ = searched(replay, np.full((1, 3), 3**-0.5))
    fit = fit_replay(replay, centre, 4)
    # Rewards enter as they are, so even their size is known.
    np.testing.assert_allclose(fit.weights, TRUTH, rtol=1e-3)
    assert fit.explained > 1 - 1e-6
    assert all(step.cosine > 1 - 1e-6 for step in fit.steps)
    assert np.linalg.norm(course.observed[0]) == pytest.approx(fit.steps[0].moved)


def test_learners_with_minibatches_are_found_within_their_intervals() -> None:
    cosines, held, scatter = [], [], []
    for seed in range(1000, 1010):
        course = course_of(noisy, 20, seed)
        replay = Replay(course, OneByOne(noisy), seed=seed)
        centre, _ = searched(replay, np.full((1, 3), 3**-0.5))
        fit = fit_replay(replay, centre, 4)
        cosines.append(cosine(fit.weights * replay.scale, TRUTH * replay.scale))
        # Only the direction is claimed: how much a learner is paid enters weakly or not at all.
        rng = np.random.default_rng(seed)
        drawn = unit_rows(student_draws(fit.weights, fit.covariance, fit.freedom, 2000, rng))
        low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
        held.append((low <= DIRECTION) & (high >= DIRECTION))
        sizes = np.array([step.moved**2 for step in fit.steps])
        scatter.append(sizes @ [step.scatter for step in fit.steps] / sizes.sum())
    # The tenth left out brings a ninth of the whole's variance.
    assert np.mean(scatter) == pytest.approx(1 / 9, rel=0.25)
    # Forty numbers with a ninth of noise for three weights: an error of .09 in the direction.
    assert np.median(cosines) > 0.99
    # Of thirty, one or two outside are expected, more than four hardly ever.
    assert np.sum(held) >= 26


def test_the_same_seed_gives_the_same_weights() -> None:
    course = course_of(noisy, 6)
    one, two, other = (
        fit_replay(Replay(course, OneByOne(noisy), seed=seed), TRUTH, 4).weights
        for seed in (1000, 1000, 1001)
    )
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, other)


def test_the_true_weights_lose_nothing_and_others_do() -> None:
    course = course_of(linear, 4)
    replay = Replay(course, OneByOne(linear), seed=1000)
    scaled = TRUTH * replay.scale
    found = compared(replay, np.stack([-scaled, scaled, 2 * scaled]), 4)
    assert found.losses[1] < 1e-4
    np.testing.assert_array_equal(np.argsort(found.losses), [1, 2, 0])
    np.testing.assert_array_equal(found.best, scaled)


def test_constant_features_are_scaled_by_their_size() -> None:
    rng = np.random.default_rng(1000)
    features = np.column_stack([np.full(5, -3.0), np.zeros(5), [0.0, 2.0, 0.0, 2.0, 1.0]])
    stage = replace(stage_of([5], [True], rng), features=features, parameters=np.zeros(2))
    movement = Movement.at(stage, POLICY, np.zeros(2))
    course = Course([Batch.of(stage, POLICY)], np.zeros((2, 2)), [movement])
    np.testing.assert_allclose(course.scale, [3.0, 1.0, np.sqrt(0.8)], rtol=1e-6)


def test_candidates_of_a_fate_share_its_chance_and_fates_do_not() -> None:
    course = course_of(noisy, 2)
    replay = Replay(course, OneByOne(noisy), seed=1000)
    fates = Fates(replay, [0, 1, 2, 3] * 3)
    scaled = TRUTH * replay.scale
    for t in range(2):
        weights = np.repeat([scaled, scaled, 2 * scaled], 4, axis=0)
        moved = fates.moved(t, weights).reshape(3, 4, -1)
        np.testing.assert_array_equal(moved[0], moved[1])
        # Linear in the rewards, under the same rows: twice as far.
        np.testing.assert_allclose(moved[2], 2 * moved[0], rtol=1e-4, atol=1e-7)
        assert len(np.unique(moved[0].round(12), axis=0)) == 4


def test_each_fate_may_have_weights_of_its_own() -> None:
    course = course_of(linear, 1)
    replay = Replay(course, OneByOne(linear), seed=1000)
    scaled = TRUTH * replay.scale
    sizes = np.array([1.0, -1.0, 0.5])
    moved = Fates(replay, range(3)).moved(0, sizes[:, None] * scaled)
    np.testing.assert_allclose(moved, sizes[:, None] * course.observed[0], rtol=1e-4, atol=1e-7)


def test_effects_are_derivatives() -> None:
    course = course_of(linear, 3)
    replay = Replay(course, OneByOne(linear), seed=1000)
    centre, root = np.array([1.0, -2.0, 0.5]), np.diag([0.1, 0.3, 0.05])
    (effects, beside), middles = replay.effects(centre, root, 2, 4), replay.middles(centre, 2, 3)
    assert effects.shape[:2] == (2, 3)
    assert beside.shape[:2] == (2, 4)
    assert middles.shape[:2] == (3, 2)
    for t in range(2):
        unit = Fates(replay, [0] * 3).moved(t, np.eye(3))
        np.testing.assert_allclose(effects[t], unit, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(middles[t], np.stack([centre @ unit] * 2), rtol=1e-4, atol=1e-6)


def test_a_centre_beside_candidates_meets_the_fates_that_it_meets_alone() -> None:
    replay = Replay(course_of(noisy, 3), OneByOne(noisy), seed=1000)
    centre = TRUTH * replay.scale
    _, beside = replay.effects(centre, np.eye(3), 3, 4)
    np.testing.assert_array_equal(beside, replay.middles(centre, 4, 3))


def bent(
    theta: Float, state: Any, stage: Stage, rewards: Float, rng: np.random.Generator
) -> tuple[Float, Any]:
    """Parameters go as far as the square of what was paid, beside what is linear in it."""
    away = 0.1 * rewards @ stage.observations / len(rewards)
    return theta + away + 10 * away**2, state


def test_bends_cancel_between_the_two_sides_of_a_pair() -> None:
    course = course_of(bent, 2)
    replay = Replay(course, OneByOne(bent), seed=1000)
    centre = np.array([0.5, -0.3, 1.0])
    found = [replay.effects(centre, width * np.eye(3), 2)[0] for width in (0.01, 0.5)]
    # A parabola's slope at the middle is the same however far apart the two sides are.
    np.testing.assert_allclose(found[0], found[1], rtol=2e-2, atol=2e-4)


@pytest.mark.parametrize(
    ("n_steps", "before"),
    [(5, [5]), (6, [6]), (13, [6]), (16, [6, 10]), (20, [6, 10]), (40, [6, 10, 16])],
)
def test_no_length_is_nearly_the_whole(n_steps: int, before: list[int]) -> None:
    assert lengths(n_steps) == before


def test_a_wrong_scale_is_mended_and_a_right_one_left() -> None:
    course = course_of(linear, 4)
    replay = Replay(course, OneByOne(linear), seed=1000)
    scaled = TRUTH * replay.scale
    factors = (0.25, 1.0, 4.0)
    assert best_scale(replay, scaled, factors, 4) == 1.0
    assert best_scale(replay, 4 * scaled, factors, 4) == 0.25
    assert best_scale(replay, 0.25 * scaled, factors, 2) == 4.0
