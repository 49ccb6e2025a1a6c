"""The exact solvers against finite differences, brute force and simulation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from logel.envs.tabular import (
    TabularMDP,
    action_values,
    feature_action_values,
    feature_expectations,
    feature_jacobian,
    occupancy,
    optimal_policy,
    random_mdp,
    relative_regret,
    sample_episodes,
    softmax_policy,
    start_value,
    uniform_policy,
)
from logel.errors import OptionError, PolicyError

FloatArray = NDArray[np.float64]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[TabularMDP, FloatArray, FloatArray]:
    """A random world with softmax parameters and reward weights."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_states = draw(st.integers(1, 6))
    mdp = random_mdp(
        rng,
        n_states=n_states,
        n_actions=draw(st.integers(2, 4)),
        n_features=draw(st.integers(1, 3)),
        gamma=draw(st.sampled_from([0.0, 0.5, 0.9, 0.96])),
        branching=draw(st.integers(1, n_states)),
    )
    return mdp, rng.normal(size=mdp.n_parameters), rng.normal(size=mdp.n_features)


horizons = st.sampled_from([None, 1, 2, 7])
quick = settings(max_examples=40, deadline=None)


def policy_of(mdp: TabularMDP, theta: FloatArray) -> FloatArray:
    return softmax_policy(theta, n_states=mdp.n_states, n_actions=mdp.n_actions)


def central_differences(
    function: Callable[[FloatArray], FloatArray], at: FloatArray, step: float = 1e-5
) -> FloatArray:
    shifts = step * np.eye(len(at))
    return np.stack([(function(at + e) - function(at - e)) / (2 * step) for e in shifts])


@pytest.fixture
def mdp() -> TabularMDP:
    return random_mdp(
        np.random.default_rng(3), n_states=5, n_actions=3, n_features=2, gamma=0.9, branching=3
    )


def two_state_world() -> TabularMDP:
    """Action 0 stays, action 1 switches; the feature says whether state 1 is arrived at."""
    transitions = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])
    features = np.broadcast_to(np.array([[0.0], [1.0]]), (2, 2, 2, 1))
    return TabularMDP(transitions, features, np.array([1.0, 0.0]), 0.5, ("arrived",))


def test_two_state_world_by_hand() -> None:
    world = two_state_world()
    # Best: switch at once, then stay: 1 + 1/2 + 1/4 + ... = 2 from both states.
    policy, values = optimal_policy(world, [1.0])
    np.testing.assert_array_equal(policy, [[0.0, 1.0], [1.0, 0.0]])
    np.testing.assert_allclose(values, [2.0, 2.0])
    # The uniform policy arrives at state 1 half of the time: 1/2 * (1 + 1/2 + ...) = 1.
    assert start_value(world, uniform_policy(world), weights=[1.0]) == pytest.approx(1.0)
    np.testing.assert_array_equal(
        feature_expectations(world, uniform_policy(world), horizon=2), [0.75]
    )
    assert relative_regret(world, [1.0], true_weights=[3.0]) == 0.0
    assert relative_regret(world, [-1.0], true_weights=[3.0]) == pytest.approx(2.0)


@quick
@given(worlds(), horizons)
def test_jacobian_is_the_derivative_of_the_feature_expectations(
    world: tuple[TabularMDP, FloatArray, FloatArray], horizon: int | None
) -> None:
    mdp, theta, _ = world
    expected = central_differences(
        lambda x: feature_expectations(mdp, policy_of(mdp, x), horizon=horizon), theta
    )
    exact = feature_jacobian(mdp, theta, horizon=horizon)
    assert exact.shape == (mdp.n_parameters, mdp.n_features)
    np.testing.assert_allclose(exact, expected, atol=1e-6)


@quick
@given(worlds(), horizons)
def test_occupancy_sums_to_the_discounted_number_of_steps(
    world: tuple[TabularMDP, FloatArray, FloatArray], horizon: int | None
) -> None:
    mdp, theta, _ = world
    visits = occupancy(mdp, policy_of(mdp, theta), horizon=horizon)
    steps = 1.0 if horizon is None else 1.0 - mdp.gamma**horizon
    assert visits.min() >= -1e-12
    assert visits.sum() == pytest.approx(steps / (1.0 - mdp.gamma))


@quick
@given(worlds())
def test_values_features_and_occupancy_agree(
    world: tuple[TabularMDP, FloatArray, FloatArray],
) -> None:
    mdp, theta, weights = world
    policy = policy_of(mdp, theta)
    q_values = action_values(mdp, policy, weights=weights)
    successor = feature_action_values(mdp, policy)
    np.testing.assert_allclose(successor @ weights, q_values, atol=1e-10)
    collected = feature_expectations(mdp, policy) @ weights
    assert start_value(mdp, policy, weights=weights) == pytest.approx(collected)


def test_long_horizons_approach_the_infinite_one(mdp: TabularMDP) -> None:
    theta = np.random.default_rng(0).normal(size=mdp.n_parameters)
    policy = policy_of(mdp, theta)
    for function in (occupancy, feature_expectations):
        np.testing.assert_allclose(
            function(mdp, policy, horizon=400), function(mdp, policy), atol=1e-12
        )
    np.testing.assert_allclose(
        feature_jacobian(mdp, theta, horizon=400), feature_jacobian(mdp, theta), atol=1e-12
    )


def value_iteration(mdp: TabularMDP, weights: FloatArray) -> FloatArray:
    values = np.zeros(mdp.n_states)
    for _ in range(1000):
        values = (mdp.expected_features @ weights + mdp.gamma * mdp.transitions @ values).max(1)
    return values


@quick
@given(worlds())
def test_policy_iteration_equals_value_iteration(
    world: tuple[TabularMDP, FloatArray, FloatArray],
) -> None:
    mdp, _, weights = world
    policy, values = optimal_policy(mdp, weights)
    np.testing.assert_allclose(values, value_iteration(mdp, weights), atol=1e-9)
    np.testing.assert_array_equal(np.sort(policy, axis=1)[:, -1], 1.0)
    followed = (policy * action_values(mdp, policy, weights=weights)).sum(axis=1)
    np.testing.assert_allclose(followed, values, atol=1e-10)


def test_ties_go_to_the_lowest_action_at_any_scale() -> None:
    transitions = np.full((3, 4, 3), 1.0 / 3.0)
    features = np.zeros((3, 4, 1))
    features[:, [1, 3]] = 1.0  # actions 1 and 3 are equally good
    mdp = TabularMDP(transitions, features, np.full(3, 1.0 / 3.0), 0.9)
    for scale in (1e-12, 1.0, 1e12):
        policy, _ = optimal_policy(mdp, [scale])
        np.testing.assert_array_equal(policy.argmax(axis=1), 1)
    policy, values = optimal_policy(mdp, [0.0])
    np.testing.assert_array_equal(policy.argmax(axis=1), 0)
    np.testing.assert_array_equal(values, 0.0)
    assert relative_regret(mdp, [1.0], true_weights=[0.0]) == 0.0


@quick
@given(worlds())
def test_regret_ignores_scale_and_is_zero_for_the_truth(
    world: tuple[TabularMDP, FloatArray, FloatArray],
) -> None:
    mdp, _, weights = world
    assert relative_regret(mdp, 3.0 * weights, true_weights=weights) == pytest.approx(0.0, abs=1e-8)
    assert relative_regret(mdp, -weights, true_weights=weights) >= 0.0


def test_sampled_features_match_the_exact_expectations(mdp: TabularMDP) -> None:
    rng = np.random.default_rng(1)
    policy = policy_of(mdp, rng.normal(size=mdp.n_parameters))
    horizon = 12
    sample = sample_episodes(mdp, policy, rng=rng, n_episodes=20_000, horizon=horizon)
    returns = np.tensordot(sample.features, mdp.gamma ** np.arange(horizon), axes=(1, 0))
    error = returns.mean(axis=0) - feature_expectations(mdp, policy, horizon=horizon)
    standard_error = returns.std(axis=0, ddof=1) / np.sqrt(len(returns))
    assert (np.abs(error) < 4 * standard_error).all()


def test_sampled_visits_match_the_exact_occupancy(mdp: TabularMDP) -> None:
    rng = np.random.default_rng(2)
    policy = policy_of(mdp, rng.normal(size=mdp.n_parameters))
    sample = sample_episodes(mdp, policy, rng=rng, n_episodes=20_000, horizon=6)
    indicator = sample.states[:, :-1, None] == np.arange(mdp.n_states)
    discounted = (indicator * mdp.gamma ** np.arange(6)[:, None]).sum(axis=1)
    error = discounted.mean(axis=0) - occupancy(mdp, policy, horizon=6)
    assert (np.abs(error) < 4 * discounted.std(axis=0) / np.sqrt(20_000)).all()


def test_sampling_shapes_and_seeds(mdp: TabularMDP) -> None:
    def sample(seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64], FloatArray]:
        return sample_episodes(
            mdp,
            uniform_policy(mdp),
            rng=np.random.default_rng(seed),
            n_episodes=10,
            horizon=4,
        )

    states, actions, features = sample(0)
    assert states.shape == (10, 5)
    assert states.dtype == np.int64
    assert actions.shape == (10, 4)
    assert actions.dtype == np.int64
    assert features.shape == (10, 4, mdp.n_features)
    assert features.dtype == np.float64
    np.testing.assert_array_equal(features, mdp.features[states[:, :-1], actions, states[:, 1:]])
    assert (mdp.transitions[states[:, :-1], actions, states[:, 1:]] > 0.0).all()
    for first, again in zip(sample(0), (states, actions, features), strict=True):
        np.testing.assert_array_equal(first, again)
    assert not np.array_equal(sample(1)[0], states)


def test_impossible_actions_are_never_drawn(mdp: TabularMDP) -> None:
    policy = np.zeros((mdp.n_states, mdp.n_actions))
    policy[:, 1] = 1.0
    sample = sample_episodes(mdp, policy, rng=np.random.default_rng(0), n_episodes=500, horizon=20)
    assert (sample.actions == 1).all()


def test_features_may_be_given_without_the_next_state(mdp: TabularMDP) -> None:
    short = dataclasses.replace(mdp, features=mdp.expected_features)
    policy = uniform_policy(mdp)
    np.testing.assert_allclose(
        feature_expectations(short, policy), feature_expectations(mdp, policy)
    )
    sample = sample_episodes(short, policy, rng=np.random.default_rng(0), n_episodes=3, horizon=2)
    np.testing.assert_array_equal(
        sample.features, short.features[sample.states[:, :-1], sample.actions]
    )


def test_softmax_fixes_the_last_logit_and_survives_large_ones() -> None:
    policy = softmax_policy([np.log(2.0), 0.0, 2000.0, -2000.0], n_states=2, n_actions=3)
    np.testing.assert_allclose(policy, [[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"transitions": np.full((2, 2, 2), 0.4)}, r"row \[0, 0\] must sum to 1.*0.8"),
        ({"transitions": [[[1.5, -0.5]] * 2] * 2}, r"transitions\[0, 0, 1\] is negative"),
        ({"transitions": np.ones((2, 2, 3))}, r"shape \(S, A, S\), got \(2, 2, 3\)"),
        ({"transitions": np.full((2, 2, 2), np.nan)}, "NaN"),
        ({"features": np.zeros((2, 3, 1))}, r"\(2, 2, q\).*got \(2, 3, 1\)"),
        ({"features": np.zeros(2)}, r"got \(2,\)"),
        ({"initial": [1.0]}, r"shape \(2,\), got \(1,\)"),
        ({"initial": [0.5, 0.4]}, "initial must sum to 1"),
        ({"gamma": 1.0}, r"\[0, 1\), but is 1.0"),
        ({"feature_names": ("a", "b")}, "1 different names"),
    ],
)
def test_malformed_worlds_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        dataclasses.replace(two_state_world(), **change)


def test_malformed_arguments_are_refused(mdp: TabularMDP) -> None:
    policy = uniform_policy(mdp)
    rng = np.random.default_rng(0)
    with pytest.raises(PolicyError, match="shape"):
        occupancy(mdp, policy[:-1])
    with pytest.raises(PolicyError, match="sum to 1"):
        occupancy(mdp, 2.0 * policy)
    with pytest.raises(PolicyError, match="sum to 1"):
        occupancy(mdp, np.full_like(policy, np.nan))
    with pytest.raises(PolicyError, match="theta must have shape"):
        softmax_policy(np.zeros(3), n_states=2, n_actions=2)
    with pytest.raises(OptionError, match="weights must be 2 finite numbers"):
        optimal_policy(mdp, [1.0])
    with pytest.raises(OptionError, match="horizon must be at least 1"):
        occupancy(mdp, policy, horizon=0)
    with pytest.raises(OptionError, match="branching"):
        random_mdp(rng, n_states=2, n_actions=2, n_features=1, branching=3)


def test_arrays_are_read_only_copies() -> None:
    world = two_state_world()
    with pytest.raises(ValueError, match="read-only"):
        world.transitions[0, 0, 0] = 0.5
