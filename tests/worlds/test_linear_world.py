"""Linear softmax policies in finite worlds against exact solvers and finite differences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from logel.data.stage import Episode, Stage
from logel.envs.parametric import FeaturisedMDP
from logel.envs.tabular import random_mdp
from logel.learners.gradient_ascent import GradientAscent, observe_parametric
from logel.policies.softmax import LinearSoftmax
from logel.rules.ascent import Adam, Gradient, NaturalGradient
from logel.rules.catalogue import RULES
from logel.worlds.linear import LinearWorld, distinct_observations, indexed, linear_world
from logel.worlds.table import TabularWorld

HORIZON = 8


def featurised(seed: int = 0, n_states: int = 6) -> FeaturisedMDP:
    rng = np.random.default_rng(seed)
    mdp = random_mdp(rng, n_states=n_states, n_actions=3, n_features=2, gamma=0.8)
    return FeaturisedMDP(mdp, rng.standard_normal((n_states, 2)), HORIZON)


def exact_linear_world(world: FeaturisedMDP, n_stages: int = 4, seed: int = 0) -> LinearWorld:
    """The true world, with made-up actions in it."""
    rng = np.random.default_rng(seed)
    mdp = world.mdp
    shape = (mdp.n_states, mdp.n_actions)
    table = TabularWorld(
        transitions=mdp.transitions,
        features=mdp.expected_features,
        initial=mdp.initial,
        gamma=mdp.gamma,
        horizon=HORIZON,
        counts=rng.integers(0, 9, (n_stages, *shape)).astype(float),
        episode_sums=tuple(rng.normal(size=(6, *shape, 2)) for _ in range(n_stages)),
    )
    return LinearWorld(table, np.kron(world.state_features, np.eye(mdp.n_actions - 1)))


def slopes(function: Any, at: Any, step: float = 1e-6) -> Any:
    """Central differences, the derivative in the last axis."""
    columns = []
    for i in range(len(at)):
        move = np.zeros(len(at))
        move[i] = step
        columns.append((function(at + move) - function(at - move)) / (2 * step))
    return np.stack(columns, axis=-1)


def test_the_landscape_is_that_of_the_exact_solver() -> None:
    world = featurised()
    linear = exact_linear_world(world)
    rng = np.random.default_rng(1)
    states = rng.normal(size=(3, linear.n_parameters))
    weights = np.array([0.7, -1.1])
    found = linear.gradient(states, weights, curved=True)
    for t, theta in enumerate(states):
        np.testing.assert_allclose(found.design[t], world.jacobian(theta), atol=1e-12)
        expected = slopes(lambda x: world.jacobian(x) @ weights, theta)
        assert found.curvature is not None
        np.testing.assert_allclose(found.curvature[t], expected, atol=1e-7)
        assert (np.linalg.eigvalsh(found.noise[t]) > 0).all()
    assert linear.gradient(states, weights).curvature is None


def test_what_actions_say_about_the_parameters() -> None:
    linear = exact_linear_world(featurised())
    rng = np.random.default_rng(2)
    path = rng.normal(size=(linear.n_stages, linear.n_parameters))
    for t in range(linear.n_stages):

        def alone(theta: Any, t: int = t) -> Any:
            return linear.log_likelihood(np.where(np.arange(len(path))[:, None] == t, theta, path))

        seen = linear.observe(t, path[t])
        np.testing.assert_allclose(seen.score, slopes(alone, path[t]), atol=1e-6)
        information = seen.times(np.eye(linear.n_parameters))
        curvature = slopes(lambda x, t=t: linear.observe(t, x).score, path[t])
        np.testing.assert_allclose(information @ information.T, -curvature, atol=1e-6)
        vector = rng.normal(size=linear.n_parameters)
        np.testing.assert_allclose(
            seen.information_times(vector), information @ information.T @ vector, atol=1e-9
        )


def test_unit_coordinates_give_the_tabular_learner() -> None:
    world = featurised()
    linear = exact_linear_world(world)
    linear = replace(linear, coordinates=np.eye(linear.coordinates.shape[0]))
    tabular = Gradient(linear.table)
    rng = np.random.default_rng(3)
    states = rng.normal(size=(3, tabular.state_dim))
    parameters = np.array([0.4, -0.3, 0.1])
    a, b = Gradient(linear).predict(states, parameters), tabular.predict(states, parameters)
    np.testing.assert_allclose(a.following, b.following, atol=1e-12)
    np.testing.assert_allclose(a.transition, b.transition, atol=1e-12)
    np.testing.assert_allclose(a.design, b.design, atol=1e-12)


@pytest.mark.parametrize("kind", [RULES[name] for name in LinearWorld.offers])
def test_steps_and_their_derivatives(kind: Any) -> None:
    world = featurised()
    linear = exact_linear_world(world)
    model = kind(linear)
    rng = np.random.default_rng(4)
    states = rng.normal(size=(3, linear.n_parameters))
    parameters = np.array([0.4, -0.3, 0.15])
    said = model.predict(states, parameters)
    np.testing.assert_allclose(said.following, model.following(states, parameters), atol=1e-12)
    # Adam's own scale depends on the weights, which its design leaves out.
    if kind is not Adam:
        design = slopes(lambda p: model.following(states, p), parameters)
        np.testing.assert_allclose(said.design, design, atol=1e-7)
    if kind is Gradient:
        for t in range(3):
            move = slopes(
                lambda x, t=t: model.following(
                    np.where(np.arange(3)[:, None] == t, x, states), parameters
                )[t],
                states[t],
            )
            np.testing.assert_allclose(said.transition[t], move, atol=1e-7)
    assert (np.linalg.eigvalsh(said.shape) > 0).all()
    np.testing.assert_allclose(
        model.rates_of(parameters, 3), (1 + np.arange(3)) ** -0.15, atol=1e-12
    )


def test_the_natural_step_is_the_gradient_in_units_of_information() -> None:
    world = featurised()
    linear = exact_linear_world(world)
    states = np.random.default_rng(5).normal(size=(2, linear.n_parameters))
    weights = np.array([0.4, -0.3])
    model, parameters = NaturalGradient(linear), np.append(weights, 0.0)
    moved = model.following(states, parameters) - states
    unit = model.unit(np.concatenate([states, states[:1]]), parameters)
    for t, theta in enumerate(states):
        gradient = world.jacobian(theta) @ weights
        expected = np.linalg.solve(world.fisher(theta).dense(), gradient)
        # A step in units of the mean information; the weights' unit takes that back.
        np.testing.assert_allclose(moved[t] / unit, expected, rtol=1e-4)


def test_adam_measures_each_parameter_by_its_own_gradients() -> None:
    linear = exact_linear_world(featurised())
    states = np.random.default_rng(6).normal(size=(3, linear.n_parameters))
    model = Adam(linear)
    once = model.following(states, np.array([0.4, -0.3, 0.0])) - states
    # Twice the weights, twice the step: the diagonal is relative.
    twice = model.following(states, np.array([0.8, -0.6, 0.0])) - states
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-9)
    # A parameter in other units moves alike: its gradient and its size cancel.
    scaled = replace(linear, coordinates=linear.coordinates * np.array([10.0, 1, 1, 1]))
    other = Adam(scaled).following(states / [10.0, 1, 1, 1], np.array([0.4, -0.3, 0.0]))
    step = other - states / [10.0, 1, 1, 1]
    ratio = step / once
    np.testing.assert_allclose(ratio[:, 0] / ratio[:, 1], 1.0, rtol=0.02)


def test_different_observations_are_found_and_numbered() -> None:
    rows = np.array([[0.5, 1.0], [2.0, -1.0], [0.5, 1.0], [3.0, 3.0]])
    episode = Episode(rows, np.array([0, 1, 0]), np.ones((3, 1)))
    stage = Stage.from_episodes([episode, episode])
    table = distinct_observations([stage])
    assert table is not None
    assert table.shape == (3, 2)
    (numbered,) = indexed([stage], table)
    np.testing.assert_array_equal(table[numbered.observations], stage.observations)
    assert numbered.last_observations is not None
    np.testing.assert_array_equal(table[numbered.last_observations], stage.last_observations)
    assert distinct_observations([stage], most=2) is None


def test_minus_zero_is_the_same_observation_as_zero() -> None:
    rows = np.array([[0.0, 1.0], [-0.0, 1.0], [2.0, -0.0], [2.0, 0.0]])
    stage = Stage.from_episodes([Episode(rows, np.array([0, 1, 0]), np.ones((3, 1)))])
    table = distinct_observations([stage])
    assert table is not None and len(table) == 2
    (numbered,) = indexed([stage], table)
    np.testing.assert_array_equal(numbered.observations, [0, 0, 1])
    np.testing.assert_array_equal(numbered.last_observations, [1])


def test_a_continuous_world_is_recognised_at_once() -> None:
    rng = np.random.default_rng(0)
    episode = Episode(rng.normal(size=(1001, 2)), rng.integers(2, size=1000), np.ones((1000, 1)))
    assert distinct_observations([Stage.from_episodes([episode])]) is None


def test_observation_vectors_are_as_good_as_states() -> None:
    world = featurised()
    history = observe_parametric(
        world, GradientAscent(), weights=[1.0, -1.0], n_steps=2, n_episodes=20, seed=0
    )
    states = distinct_observations(history)
    assert states is not None
    a = linear_world(history, world.policy, states, gamma=world.gamma)
    vectors = [
        replace(
            stage,
            observations=world.state_features[stage.observations],
            last_observations=world.state_features[stage.last_observations],
        )
        for stage in history
    ]
    table = distinct_observations(vectors)
    assert table is not None
    b = linear_world(vectors, LinearSoftmax(2, 3), table, gamma=world.gamma)
    theta = np.random.default_rng(1).normal(size=(2, 4))
    np.testing.assert_allclose(
        a.gradient(theta, np.zeros(2)).design, b.gradient(theta, np.zeros(2)).design, atol=1e-10
    )
    path = np.zeros((3, 4))
    assert a.log_likelihood(path) == pytest.approx(b.log_likelihood(path))
