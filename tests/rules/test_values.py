"""Rules in tabular worlds against exact solvers, finite differences and the learners themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp, softmax

from logel.data.stage import Stage
from logel.envs.tabular import (
    TabularMDP,
    action_values,
    feature_jacobian,
    occupancy,
    random_mdp,
    sample_episodes,
    softmax_policy,
)
from logel.learners.tabular import SoftPolicyIteration, SoftValueIteration, soft_action_values
from logel.policies.softmax import TabularSoftmax
from logel.rules.ascent import Gradient, NaturalGradient
from logel.rules.catalogue import RULES
from logel.rules.rule import RandomWalk, Rule
from logel.rules.values import DriftingValues, QLearning, SoftPolicy, SoftValue
from logel.worlds.linear import LinearWorld
from logel.worlds.own_episodes import stage_jacobian
from logel.worlds.pooled import SampledWorld
from logel.worlds.table import _ANALYTIC, TabularWorld, pool_world

HORIZON = 7
ALL = (*(RULES[name] for name in TabularWorld.offers), RandomWalk, DriftingValues)
FADING = (Gradient, NaturalGradient)


def known_world(mdp: TabularMDP, *, n_stages: int = 5, seed: int = 0) -> TabularWorld:
    """The true world, with made-up episodes (they only shape the noise)."""
    rng = np.random.default_rng(seed)
    shape = (mdp.n_states, mdp.n_actions)
    return TabularWorld(
        transitions=mdp.transitions,
        features=mdp.expected_features,
        initial=mdp.initial,
        gamma=mdp.gamma,
        horizon=HORIZON,
        counts=rng.integers(0, 9, (n_stages, *shape)).astype(float),
        episode_sums=tuple(rng.normal(size=(6, *shape, mdp.n_features)) for _ in range(n_stages)),
    )


def small(seed: int = 0, n_states: int = 4, n_actions: int = 3) -> TabularMDP:
    rng = np.random.default_rng(seed)
    return random_mdp(rng, n_states=n_states, n_actions=n_actions, n_features=2, gamma=0.8)


def terminating(seed: int = 0) -> tuple[TabularMDP, TabularWorld]:
    """An MDP whose last state absorbs without pay, and the same world with termination instead."""
    rng = np.random.default_rng(seed)
    s, a, q = 3, 2, 2
    transitions = np.zeros((s + 1, a, s + 1))
    transitions[:s] = rng.dirichlet(np.ones(s + 1), size=(s, a))
    transitions[s, :, s] = 1.0
    features = np.zeros((s + 1, a, q))
    features[:s] = rng.normal(size=(s, a, q))
    initial = np.append(rng.dirichlet(np.ones(s)), 0.0)
    mdp = TabularMDP(transitions, features, initial, gamma=0.9)
    world = TabularWorld(
        transitions=transitions[:s, :, :s],
        features=features[:s],
        initial=initial[:s],
        gamma=0.9,
        horizon=HORIZON,
        counts=np.ones((4, s, a)),
        episode_sums=tuple(rng.normal(size=(6, s, a, q)) for _ in range(4)),
    )
    return mdp, world


def policies(model: Rule, states: Any) -> Any:
    """Action probabilities of states, shape (..., S, A)."""
    return model.world.probabilities(model.as_policy(states))


def point(model: Rule, seed: int, m: int = 4) -> tuple[Any, Any]:
    """Random states of m steps and random parameters."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=model.world.n_features)
    nuisance = model.nuisance_mean + 0.3 * rng.normal(size=len(model.nuisance_mean))
    return rng.normal(size=(m, model.state_dim)), np.concatenate([weights, nuisance])


def differences(function: Callable[[Any], Any], x: Any, step: float = 1e-5) -> Any:
    """Central differences along the last axis of x, appended as the last axis."""
    columns = []
    for i in range(x.shape[-1]):
        move = np.zeros(x.shape[-1])
        move[i] = step
        columns.append((function(x + move) - function(x - move)) / (2 * step))
    return np.stack(columns, axis=-1)


def worlds() -> list[TabularWorld]:
    return [known_world(small()), terminating()[1]]


# --- every model ----------------------------------------------------------------------------


@pytest.mark.parametrize("world", worlds(), ids=["lasting", "terminating"])
@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_derivatives_equal_finite_differences(kind: type[Rule], world: TabularWorld) -> None:
    model = kind(world)
    for seed in range(2):
        states, parameters = point(model, seed)
        found = model.predict(states, parameters)
        np.testing.assert_allclose(found.following, model.following(states, parameters), rtol=1e-12)
        by_parameter = differences(
            lambda p, s=states: model.following(s, p),  # type: ignore[misc]
            parameters,
        )
        np.testing.assert_allclose(found.design, by_parameter, atol=1e-7)
        if kind is not QLearning:
            by_state = differences(
                lambda s, p=parameters: model.following(s, p),  # type: ignore[misc]
                states,
            )
            np.testing.assert_allclose(found.transition, by_state, atol=1e-7)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
@given(seed=st.integers(0, 1000), x=st.floats(-3, 3), y=st.floats(-3, 3))
@settings(max_examples=10)
def test_steps_are_linear_in_the_weights(kind: type[Rule], seed: int, x: float, y: float) -> None:
    model = kind(known_world(small()))
    states, first = point(model, seed)
    q = model.world.n_features
    second, zero, mixed = first.copy(), first.copy(), first.copy()
    second[:q] = np.random.default_rng(seed + 1).normal(size=q)
    zero[:q] = 0.0
    mixed[:q] = x * first[:q] + y * second[:q]
    none = model.following(states, zero)
    expected = none + sum(
        c * (model.following(states, p) - none) for c, p in ((x, first), (y, second))
    )
    np.testing.assert_allclose(model.following(states, mixed), expected, atol=1e-9)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_steps_do_not_see_one_another(kind: type[Rule]) -> None:
    # Each row is a step of its own; only the fading rate knows how late it is.
    model = kind(known_world(small()))
    states, parameters = point(model, 3)
    if kind in FADING:
        parameters[-1] = 0.0
    together = model.following(states, parameters)
    alone = np.concatenate([model.following(row[None], parameters) for row in states])
    np.testing.assert_allclose(together, alone, atol=1e-12)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_noise_shapes_are_covariances(kind: type[Rule]) -> None:
    for world in worlds():
        model = kind(world)
        states, parameters = point(model, 4)
        # Nearly deterministic policies as well: their information is almost singular.
        for factor in (1.0, 20.0):
            shape = model.predict(factor * states, parameters).shape
            assert shape.shape == (4, model.state_dim, model.state_dim)
            np.testing.assert_allclose(shape, shape.transpose(0, 2, 1), atol=1e-12)
            assert np.linalg.eigvalsh(shape).min() > 0
            np.linalg.cholesky(shape)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_states_and_policies_round_trip(kind: type[Rule]) -> None:
    model = kind(known_world(small()))
    states, _ = point(model, 5)
    parameters = model.as_policy(states)
    assert parameters.shape == (4, 8)
    again = model.from_policy(parameters)
    assert again.shape == states.shape
    np.testing.assert_allclose(model.as_policy(again), parameters, atol=1e-12)
    expected = softmax_policy(parameters[0], n_states=4, n_actions=3)
    np.testing.assert_allclose(policies(model, states[0]), expected, atol=1e-12)
    if model.keeps_values:
        assert model.state_dim == 12
        table = states.reshape(4, 4, 3)
        np.testing.assert_allclose(policies(model, states), softmax(table, axis=-1), atol=1e-12)
        # A level per state is no part of the policy: it must be forgotten, not kept.
        levelled = (table + np.arange(4)[:, None]).reshape(4, 12)
        np.testing.assert_allclose(model.as_policy(levelled), parameters, atol=1e-12)
        np.testing.assert_allclose(again.reshape(4, 4, 3).mean(axis=-1), 0.0, atol=1e-12)
    else:
        assert model.state_dim == 8
        np.testing.assert_allclose(again, states, atol=1e-12)
    np.testing.assert_array_equal(model.as_policy(states[1]), parameters[1])
    np.testing.assert_allclose(
        model.log_likelihood(np.zeros((5, model.state_dim))),
        -model.world.counts.sum() * np.log(3),  # type: ignore[attr-defined]
    )


def test_the_catalogue_holds_every_kind_of_learner_once() -> None:
    kinds = set(RULES.values())
    assert len(kinds) == len(RULES) == 6 and not kinds & {RandomWalk, DriftingValues}
    assert len({kind.name for kind in (*kinds, RandomWalk, DriftingValues)}) == 8
    assert set(TabularWorld.offers) == set(RULES) - {"adam"}
    assert set(LinearWorld.offers) == set(SampledWorld.offers) == {"gradient", "natural", "adam"}


# --- the gradient learner -------------------------------------------------------------------


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


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_known_states_change_nothing_but_what_is_not_needed(kind: type[Rule]) -> None:
    model = kind(known_world(small()))
    states, parameters = point(model, 18)
    full = model.predict(states, parameters)
    brief = model.predict(states, parameters, states_known=True)
    for name in ("following", "design", "shape"):
        np.testing.assert_array_equal(getattr(brief, name), getattr(full, name))


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


# --- soft policy iteration and the natural gradient -----------------------------------------


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
        shares = q_shares(mdp, policies(model, state), np.exp(parameters[2]), model.restart)

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
