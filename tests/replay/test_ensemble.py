"""An ensemble along a course, and the arithmetic under it, against loops and results by hand."""

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
from logel.replay.ensemble import Course, Ensemble, _standard, _survivors
from logel.replay.fit import fit_replay, searched
from logel.replay.learner import OneByOne
from logel.replay.movement import Movement
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


@pytest.mark.parametrize(("n", "q"), [(16, 5), (17, 3), (8, 5), (40, 1)])
def test_members_are_spread_like_a_standard_normal_exactly(n: int, q: int) -> None:
    places = _standard(n, q, np.random.default_rng(1000))
    # Few members cannot have both halves exact, but all of them together.
    for part in (places[::2], places[1::2]) if n // 2 > q + 1 else (places,):
        np.testing.assert_allclose(part.mean(axis=0), 0, atol=1e-12)
        np.testing.assert_allclose(part.T @ part / len(part), np.eye(q), atol=1e-10)


@given(
    st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=30),
    st.integers(0, 2**32 - 1),
)
def test_survivors_are_as_many_as_their_chance(chance: list[float], seed: int) -> None:
    share = np.array(chance) / np.sum(chance)
    n = len(share)
    found = _survivors(np.array(chance), np.random.default_rng(seed))
    copies = np.bincount(found, minlength=n)
    assert copies.sum() == n
    # Systematic resampling: whole parts are kept, only the rest is left to chance.
    assert (copies >= np.floor(n * share - 1e-9)).all()
    assert (copies <= np.ceil(n * share + 1e-9)).all()
    alive = np.flatnonzero(copies)
    np.testing.assert_array_equal(found[alive], alive)


def test_equals_all_survive_and_one_that_is_certain_takes_all() -> None:
    rng = np.random.default_rng(1000)
    np.testing.assert_array_equal(_survivors(np.full(7, 0.3), rng), np.arange(7))
    np.testing.assert_array_equal(_survivors(np.array([0, 0, 1.0, 0]), rng), [2, 2, 2, 2])


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
    ensemble = Ensemble(course, OneByOne(linear), n_members=16, seed=1000)
    np.testing.assert_allclose(ensemble.scale, [1.0, 5.0, 0.2], rtol=0.1)
    centre, _ = searched(ensemble, np.full((1, 3), 3**-0.5))
    fit = fit_replay(ensemble, centre)
    # Rewards enter as they are, so even their size is known.
    np.testing.assert_allclose(fit.weights, TRUTH, rtol=1e-3)
    assert fit.explained > 1 - 1e-6
    assert all(step.cosine > 1 - 1e-6 for step in fit.steps)
    assert np.linalg.norm(course.observed[0]) == pytest.approx(fit.steps[0].moved)


def test_learners_with_minibatches_are_found_within_their_intervals() -> None:
    cosines, held, scatter = [], [], []
    for seed in range(1000, 1010):
        course = course_of(noisy, 20, seed)
        ensemble = Ensemble(course, OneByOne(noisy), n_members=16, seed=seed)
        centre, _ = searched(ensemble, np.full((1, 3), 3**-0.5))
        fit = fit_replay(ensemble, centre)
        cosines.append(cosine(fit.weights * ensemble.scale, TRUTH * ensemble.scale))
        # Only the direction is claimed: how much a learner is paid enters weakly or not at all.
        rng = np.random.default_rng(seed)
        drawn = unit_rows(student_draws(fit.weights, fit.covariance, fit.freedom, 2000, rng))
        low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
        held.append((low <= DIRECTION) & (high >= DIRECTION))
        sizes = np.array([step.moved**2 for step in fit.steps])
        scatter.append(sizes @ [step.scatter for step in fit.steps] / sizes.sum())
    # The tenth left out brings a ninth of the whole's variance. Members that are far off count less
    # in the regression and scatter more around it: somewhat more than that, never less.
    assert 1 / 9 < np.mean(scatter) < 2 / 9
    # Forty numbers with a ninth of noise for three weights: an error of .09 in the direction.
    assert np.median(cosines) > 0.99
    # Of thirty, one or two outside are expected, more than four hardly ever.
    assert np.sum(held) >= 26


def test_the_same_seed_gives_the_same_weights() -> None:
    course = course_of(noisy, 6)
    one, two, other = (
        fit_replay(Ensemble(course, OneByOne(noisy), n_members=16, seed=seed), TRUTH).weights
        for seed in (1000, 1000, 1001)
    )
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, other)


def test_the_true_weights_lose_nothing_and_others_do() -> None:
    course = course_of(linear, 4)
    ensemble = Ensemble(course, OneByOne(linear), n_members=16, seed=1000)
    scaled = TRUTH * ensemble.scale
    found = ensemble.compared(np.stack([-scaled, scaled, 2 * scaled]), 4)
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
