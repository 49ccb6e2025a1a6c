"""Gradient and natural gradient in tabular worlds against exact solvers and sampled noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_worlds import (
    FADING,
    HORIZON,
    differences,
    known_world,
    point,
    small,
    terminating,
)

from logel.data.stage import Stage
from logel.envs.tabular import (
    TabularMDP,
    action_values,
    feature_jacobian,
    occupancy,
    sample_episodes,
    softmax_policy,
)
from logel.policies.softmax import TabularSoftmax
from logel.rules.ascent import Gradient, NaturalGradient
from logel.rules.rule import Rule
from logel.worlds.counting import pool_world
from logel.worlds.own_episodes import stage_jacobian
from logel.worlds.table import _ANALYTIC


@pytest.mark.parametrize("seed", range(4))
def test_gradient_steps_follow_the_exact_jacobian(seed: int) -> None:
    mdp = small(seed, n_states=3 + seed % 2, n_actions=2 + seed % 3)
    model = Gradient(known_world(mdp))
    states, parameters = point(model, seed)
    parameters[-1] = 0.0
    exact = np.stack([feature_jacobian(mdp, theta, horizon=HORIZON) for theta in states])
    np.testing.assert_allclose(model.world.gradient(states, np.zeros(2)).design, exact, atol=1e-10)
    found = model.following(states, parameters)
    np.testing.assert_allclose(found, states + exact @ parameters[:-1], atol=1e-10)


@pytest.mark.parametrize("kind", FADING)
@pytest.mark.parametrize(("decay", "shares"), [(0.0, [1, 1, 1]), (1.0, [1, 1 / 2, 1 / 3])])
def test_rates_fade_as_the_schedules_do(
    kind: type[Rule], decay: float, shares: list[float]
) -> None:
    model = kind(known_world(small()))
    states, parameters = point(model, 6, m=1)
    states = np.repeat(states, 3, axis=0)
    parameters[-1] = decay
    step = model.following(states, parameters) - states
    np.testing.assert_allclose(step, np.outer(shares, step[0]), atol=1e-12)
    assert np.abs(step[0]).max() > 1e-2


@pytest.mark.parametrize("kind", FADING)
def test_known_rates_multiply_the_steps(kind: type[Rule]) -> None:
    world, rates = known_world(small()), np.array([2.0, 0.1, 0.7, 3.0])
    plain, known = kind(world), kind(world, rates)
    states, parameters = point(plain, 17)
    parameters[-1] = 0.0
    step = plain.following(states, parameters) - states
    found = known.predict(states, parameters)
    np.testing.assert_allclose(found.following - states, rates[:, None] * step, atol=1e-12)
    by_state = differences(lambda s: known.following(s, parameters), states)
    np.testing.assert_allclose(found.transition, by_state, atol=1e-7)
    by_parameter = differences(lambda p: known.following(states, p), parameters)
    np.testing.assert_allclose(found.design, by_parameter, atol=1e-7)
    # Nothing is left for a decay to explain.
    assert known.nuisance_mean[0] == 0.0
    assert known.nuisance_variance[0] < 1e-6 * plain.nuisance_variance[0]


def test_gradient_of_a_terminating_world_is_that_of_its_absorbing_twin() -> None:
    mdp, world = terminating()
    model = Gradient(world)
    states, _ = point(model, 7)
    # The absorbing state's own parameter changes nothing.
    exact = np.stack(
        [feature_jacobian(mdp, np.append(theta, 0.0), horizon=HORIZON)[:-1] for theta in states]
    )
    np.testing.assert_allclose(model.world.gradient(states, np.zeros(2)).design, exact, atol=1e-10)


def test_gradient_noise_is_shaped_by_the_weights_but_not_sized_by_them() -> None:
    model = Gradient(known_world(small()))
    states, parameters = point(model, 8)
    shape = model.predict(states, parameters).shape
    parameters[:2] *= -50
    np.testing.assert_allclose(model.predict(states, parameters).shape, shape, rtol=1e-9)
    parameters[:2] = [1.0, 0.0]
    assert np.abs(model.predict(states, parameters).shape / shape - 1).max() > 0.01
    parameters[:2] = 0.0
    analytic = model.predict(states, parameters).shape
    # Both parts have the same trace over all steps, so mixing them keeps it.
    assert np.einsum("mii->", analytic) == pytest.approx(np.einsum("mii->", shape), rel=1e-9)


def test_the_analytic_noise_is_the_information_where_every_step_counts_alike() -> None:
    # With one time only, noise is proportional to P(first state) * Fisher, plus its small floor.
    mdp = small()
    world = known_world(mdp)
    model = Gradient(replace(world, horizon=1))
    states, parameters = point(model, 9)
    parameters[:2] = 0.0
    shape = model.predict(states, parameters).shape
    for t in range(4):
        policy = softmax_policy(states[t], n_states=4, n_actions=3)
        expected = np.zeros((8, 8))
        for s in range(4):
            p = policy[s, :-1]
            expected[2 * s : 2 * s + 2, 2 * s : 2 * s + 2] = mdp.initial[s] * (
                np.diag(p) - np.outer(p, p)
            )
        np.testing.assert_allclose(shape[t], expected, atol=2.5e-3)


def test_later_actions_add_less_noise() -> None:
    # State 0 first, state 1 second and last, gamma = 1/2: an action is scored with what is still
    # to come, 1 + 1/2 against 1/2 in units of one time, so its noise counts with 1/9.
    transitions = np.zeros((2, 2, 2))
    transitions[:, :, 1] = 1.0
    mdp = TabularMDP(transitions, np.ones((2, 2, 1)), np.array([1.0, 0.0]), gamma=0.5)
    model = Gradient(replace(known_world(mdp), horizon=2))
    shape = model.predict(np.zeros((1, 2)), np.zeros(2)).shape[0]
    assert shape[1, 1] / shape[0, 0] == pytest.approx(1 / 9, rel=0.02)


def test_the_empirical_noise_is_the_covariance_of_single_episode_gradients() -> None:
    mdp = small()
    theta = np.random.default_rng(10).normal(size=mdp.n_parameters)
    policy = softmax_policy(theta, n_states=4, n_actions=3)
    rng = np.random.default_rng(11)
    stages = []
    for _ in range(3):
        batch = sample_episodes(mdp, policy, rng=rng, n_episodes=12, horizon=5)
        stages.append(
            Stage(
                observations=batch.states[:, :-1].reshape(-1),
                actions=batch.actions.reshape(-1),
                lengths=np.full(12, 5),
                terminated=np.zeros(12, dtype=bool),
                last_observations=batch.states[:, -1],
                features=batch.features.reshape(60, -1),
            )
        )
    family = TabularSoftmax(4, 3)
    model = Gradient(pool_world(stages, family, gamma=mdp.gamma))
    weights = np.array([0.7, -1.3])
    states = np.stack([theta, theta])
    share = _ANALYTIC
    none = model.predict(states, np.zeros(3)).shape
    empirical = (model.predict(states, np.append(weights, 0.0)).shape - share * none)[0]
    # Leave-one-out centring, as the estimator has it, is centring times n / (n - 1): same shape.
    gradients = np.concatenate(
        [
            stage_jacobian(
                family, theta, stage, gamma=mdp.gamma, baseline="time", n_groups=12
            ).groups
            @ weights
            for stage in stages
        ]
    )
    expected = np.cov(gradients.T)
    scale = np.trace(empirical) / np.trace(expected)
    np.testing.assert_allclose(empirical, scale * expected, atol=1e-9 * np.trace(empirical))


# --- the natural gradient -------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_the_natural_gradient_is_the_gradient_over_the_information(seed: int) -> None:
    mdp = small(seed)
    model = NaturalGradient(known_world(mdp))
    states, parameters = point(model, seed)
    parameters[-1] = 0.0
    found = model.following(states, parameters) - states
    for theta, step in zip(states, found, strict=True):
        policy = softmax_policy(theta, n_states=4, n_actions=3)
        visits = occupancy(mdp, policy)
        information = np.zeros((8, 8))
        for s in range(4):
            p, rows = policy[s, :-1], slice(2 * s, 2 * s + 2)
            information[rows, rows] = visits[s] * (np.diag(p) - np.outer(p, p))
        gradient = feature_jacobian(mdp, theta) @ parameters[:-1]
        np.testing.assert_allclose(step, np.linalg.solve(information, gradient), atol=1e-9)
        # Which is the advantage, up to a level per state.
        values = action_values(mdp, policy, weights=parameters[:-1])
        moved = np.pad(step.reshape(4, 2), ((0, 0), (0, 1)))
        np.testing.assert_allclose(np.ptp(moved - values, axis=1), 0.0, atol=1e-9)
