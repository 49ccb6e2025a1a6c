"""Rules that keep values against exact solvers, backups by hand and the learners themselves."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp
from small_worlds import (
    differences,
    known_world,
    point,
    policies,
    small,
    terminating,
)

from logel.envs.tabular import (
    TabularMDP,
    action_values,
    softmax_policy,
)
from logel.learners.tabular import SoftPolicyIteration, SoftValueIteration, soft_action_values
from logel.rules.ascent import NaturalGradient
from logel.rules.values import GradualValue, QLearning, SoftPolicy, SoftValue
from logel.worlds.table import RESTART

# --- soft policy iteration ------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_soft_policy_steps_are_the_soft_values_relative_to_the_last_action(seed: int) -> None:
    mdp = small(seed)
    model = SoftPolicy(known_world(mdp))
    states, weights = point(model, seed)
    for theta, found in zip(states, model.following(states, weights), strict=True):
        policy = softmax_policy(theta, n_states=4, n_actions=3)
        values = soft_action_values(mdp, policy, mdp.expected_features @ weights, 1.0)
        expected = (values[:, :-1] - values[:, -1:]).reshape(-1)
        np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_a_temperature_is_folded_into_the_weights(temperature: float) -> None:
    mdp, weights = small(1), np.array([0.4, -0.9])
    model = SoftPolicy(known_world(mdp))
    learner = SoftPolicyIteration(temperature).run(mdp, weights, np.random.default_rng(0))
    states = np.stack([snapshot.parameters for snapshot in islice(learner, 4)])
    found = model.following(states[:-1], weights / temperature)
    np.testing.assert_allclose(found, states[1:], atol=1e-9)
    assert np.abs(states[1:]).max() > 0.3


def test_soft_values_of_a_terminating_world_are_those_of_its_absorbing_twin() -> None:
    mdp, world = terminating()
    soft, natural = SoftPolicy(world), NaturalGradient(world)
    states, weights = point(soft, 12)
    rate_one = np.append(weights, 0.0)
    for theta, found, step in zip(
        states,
        soft.following(states, weights),
        natural.following(states, rate_one) - states,
        strict=True,
    ):
        policy = softmax_policy(theta, n_states=3, n_actions=2)
        # After the end there is nothing to choose, hence no entropy to earn.
        policy = np.concatenate([policy, [[1.0, 0.0]]])
        values = soft_action_values(mdp, policy, mdp.expected_features @ weights, 1.0)[:3]
        np.testing.assert_allclose(found, values[:, 0] - values[:, 1], atol=1e-10)
        hard = action_values(mdp, policy, weights=weights)[:3]
        np.testing.assert_allclose(step, hard[:, 0] - hard[:, 1], atol=1e-10)


# --- soft value iteration and Q-learning ----------------------------------------------------


def test_soft_value_steps_are_those_of_the_learner() -> None:
    mdp, weights = small(2), np.array([0.8, -0.5])
    model = SoftValue(known_world(mdp))
    learner = SoftValueIteration().run(mdp, weights, np.random.default_rng(0))
    states = np.zeros((1, model.state_dim))
    for snapshot in islice(learner, 5):
        np.testing.assert_allclose(policies(model, states)[0], snapshot.policy, atol=1e-12)
        states = model.following(states, weights)


def test_soft_backups_of_a_terminating_world_are_those_of_its_absorbing_twin() -> None:
    mdp, world = terminating()
    model = SoftValue(world)
    states, weights = point(model, 13)
    for state, found in zip(states, model.following(states, weights), strict=True):
        # Values of the absorbing state whose soft maximum is nothing.
        table = np.concatenate([state.reshape(3, 2), np.full((1, 2), -np.log(2))])
        backup = mdp.expected_features @ weights
        backup = backup + mdp.gamma * mdp.transitions @ logsumexp(table, axis=1)
        np.testing.assert_allclose(found, backup[:3].reshape(-1), atol=1e-12)


def test_gradual_values_go_where_many_small_backups_go() -> None:
    mdp, n, errors = small(2), 2000, []
    model, plain = GradualValue(known_world(mdp)), SoftValue(known_world(mdp))
    states, weights = point(plain, 16)
    for time in (0.2, 0.4, 0.8):
        found = model.following(states, np.append(weights, np.log(time)))
        small_moves = states.copy()
        for _ in range(n):
            small_moves += time / n * (plain.following(small_moves, weights) - small_moves)
        errors.append(np.abs(found - small_moves).max())
        # A share of the way to one backup is another place.
        share = states + (1 - np.exp(-time)) * (plain.following(states, weights) - states)
        assert np.abs(share - small_moves).max() > 2 * errors[-1]
    # Errors fall with the cube of the time.
    assert errors[2] > 5 * errors[1] > 25 * errors[0]


def q_shares(mdp: TabularMDP, policy: Any, size: float, restart: float) -> Any:
    """1 - exp(-size * probability of a pair), the latter by following a run step by step."""
    chance, here = np.zeros(mdp.n_states), np.full(mdp.n_states, restart / mdp.n_states)
    for _ in range(3000):
        chance += here
        here = (1 - restart) * np.einsum("s,sa,sat->t", here, policy, mdp.transitions)
    assert chance.sum() == pytest.approx(1.0)
    return 1 - np.exp(-size * chance[:, None] * policy)


def test_q_learning_moves_visited_pairs_towards_their_backup() -> None:
    mdp = small(3)
    model = QLearning(known_world(mdp))
    states, parameters = point(model, 14)
    found = model.predict(states, parameters)
    for t, state in enumerate(states):
        shares = q_shares(mdp, policies(model, state), np.exp(parameters[2]), RESTART)

        def following(flat: Any, shares: Any = shares) -> Any:
            table = flat.reshape(4, 3)
            target = mdp.expected_features @ parameters[:2] + parameters[3]
            target = target + mdp.gamma * mdp.transitions @ table.max(axis=1)
            return (table + shares * (target - table)).reshape(-1)

        np.testing.assert_allclose(found.following[t], following(state), atol=1e-9)
        # The derivative holds the visits fixed, by design.
        np.testing.assert_allclose(found.transition[t], differences(following, state), atol=1e-7)


def test_q_learning_between_standing_still_and_a_full_backup() -> None:
    mdp, world = terminating(1)
    model = QLearning(world)
    states, parameters = point(model, 15)
    parameters[2] = -40.0
    np.testing.assert_allclose(model.following(states, parameters), states, atol=1e-12)
    parameters[2] = 20.0
    found = model.following(states, parameters)
    for state, row in zip(states, found, strict=True):
        table = np.concatenate([state.reshape(3, 2), np.zeros((1, 2))])
        backup = mdp.expected_features @ parameters[:2] + parameters[3]
        backup = backup + mdp.gamma * mdp.transitions @ table.max(axis=1)
        np.testing.assert_allclose(row, backup[:3].reshape(-1), atol=1e-12)


def test_q_learning_noise_grows_with_the_temporal_differences() -> None:
    model = QLearning(known_world(small(3)))
    states, parameters = point(model, 16)
    found = model.predict(states, parameters)
    moved = np.abs(found.following - states)
    spread = np.diagonal(found.shape, axis1=1, axis2=2)
    for t in range(4):
        off = found.shape[t] - np.diag(spread[t])
        assert np.abs(off).max() == 0
        assert spread[t, moved[t].argmax()] > spread[t, moved[t].argmin()]
    # Ten times the rewards and values, ten times the differences, a hundred times the variance
    # (the policy, and with it the visits, held where it is by uniform values).
    flat = np.zeros_like(states)
    one = model.predict(flat, parameters).shape
    parameters[[0, 1, 3]] *= 10
    ten = model.predict(flat, parameters).shape
    diagonal = np.diagonal(one, axis1=1, axis2=2)
    assert np.diagonal(ten, axis1=1, axis2=2) == pytest.approx(100 * diagonal, rel=1e-2)
