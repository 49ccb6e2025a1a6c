"""The basis, its projections and the critic, against quadrature, loops and exact solvers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from linear_quadratic import POLICY, advantage_slopes, learner_path, sample_stage
from logel.data.stage import Stage
from logel.envs.tabular import (
    feature_action_values,
    occupancy,
    random_mdp,
    softmax_policy,
)
from logel.errors import OptionError, PolicyError
from logel.inference.regress import solve
from logel.inference.steps import compress
from logel.learners.tabular import NaturalGradientAscent, observe
from logel.policies.base import Policy
from logel.policies.gaussian import LinearGaussian
from logel.policies.networks import MLPCategorical, MLPGaussian
from logel.policies.softmax import LinearSoftmax, TabularSoftmax
from logel.rules.functions import Basis, basis_rows, stage_sums
from logel.worlds.critic import (
    CriticSums,
    ScaleSums,
    StateScale,
    critic_rows,
    fit_critic,
    pooled,
)
from logel.worlds.own_episodes import discounted_to_go

PLAIN = StateScale(np.zeros(2), np.ones(2), 5.0, -5.0, 10, False)


def test_the_mirror_identity_is_exact_in_tables() -> None:
    # Every pair once, weighted by how often it occurs, with exact advantages: nothing is sampled.
    mdp = random_mdp(np.random.default_rng(0), n_states=6, n_actions=3, n_features=4)
    weights = np.random.default_rng(1).standard_normal(4)
    policy = TabularSoftmax(6, 3)
    history = observe(
        mdp, NaturalGradientAscent(0.3), weights=weights, n_steps=3, n_episodes=2, parameters=True
    )
    parameters = history.parameters()
    assert parameters is not None
    scale = StateScale(np.zeros(1), np.ones(1), 5.0, 0.0, 20, True)
    basis = Basis.choose(policy, "auto", scale)
    states, actions = (grid.reshape(-1) for grid in np.mgrid[:6, :3])
    deltas, designs = [], []
    for now, after in pairwise(parameters):
        pi = softmax_policy(now, n_states=6, n_actions=3)
        q_values = feature_action_values(mdp, pi)
        advantages = q_values - (pi[:, :, None] * q_values).sum(axis=1, keepdims=True)
        share = (occupancy(mdp, pi)[:, None] * pi).reshape(-1)
        rows = basis_rows(basis, now, after, states, actions, share)
        root = np.linalg.inv(np.linalg.cholesky(rows.gram))
        deltas.append(root @ rows.movement)
        designs.append(root @ rows.values.T @ (share[:, None] * advantages.reshape(-1, 4)))
    solution = solve(compress(np.array(deltas), np.array(designs)), np.full(3, 0.3))
    np.testing.assert_allclose(solution.weights, weights, rtol=1e-8)
    assert solution.objective_trace[-1] < 1e-18


def test_gaussian_projections_are_those_of_quadrature() -> None:
    policy = LinearGaussian(2, 2)
    rng = np.random.default_rng(2)
    now, after = 0.3 * rng.standard_normal(6), 0.3 * rng.standard_normal(6)
    basis = Basis.choose(policy, "family", PLAIN, deviations=True)
    observations = rng.standard_normal((4, 2))
    nodes, masses = np.polynomial.hermite_e.hermegauss(12)
    masses = masses / masses.sum()
    z1, z2 = (grid.reshape(-1) for grid in np.meshgrid(nodes, nodes))
    mass = np.outer(masses, masses).reshape(-1)
    gram, movement = np.zeros((6, 6)), np.zeros(6)
    for row in observations:
        means = row @ now[:4].reshape(2, 2)
        taken = means + np.exp(now[4:]) * np.stack([z1, z2], axis=1)
        repeated = np.repeat(row[None], len(mass), axis=0)
        values = basis_rows(basis, now, after, repeated, taken).values
        ratio = _log_ratio(policy, now, after, repeated, taken)
        np.testing.assert_allclose(mass @ values, 0, atol=1e-12)
        gram += values.T @ (mass[:, None] * values)
        movement += values.T @ (mass * ratio)
    rows = basis_rows(basis, now, after, observations, np.zeros((4, 2)))
    np.testing.assert_allclose(rows.gram, gram, atol=1e-10)
    np.testing.assert_allclose(rows.movement, movement, atol=1e-10)
    apart = basis_rows(Basis.choose(policy, "family", PLAIN), now, after, observations, taken[:4])
    np.testing.assert_allclose(apart.movement, movement[:4], atol=1e-10)


@pytest.mark.parametrize("states", ["linear", "quadratic"])
def test_softmax_projections_are_sums_over_actions(states: str) -> None:
    policy = MLPCategorical(2, 4, hidden=(5,))
    rng = np.random.default_rng(3)
    now, after = policy.initial(rng), rng.standard_normal(policy.n_parameters)
    basis = Basis.choose(policy, states, PLAIN)
    observations = rng.standard_normal((7, 2))
    every = np.repeat(observations, 4, axis=0)
    actions = np.tile(np.arange(4), 7)
    p = policy.probabilities(now, observations).reshape(-1)
    found = basis_rows(basis, now, after, every, actions)
    ratio = _log_ratio(policy, now, after, every, actions)
    rows = basis_rows(basis, now, after, observations, actions[:7])
    assert rows.values.shape == (7, basis.width)
    np.testing.assert_allclose(rows.gram, found.values.T @ (p[:, None] * found.values), atol=1e-12)
    np.testing.assert_allclose(rows.movement, found.values.T @ (p * ratio), atol=1e-12)


def _log_ratio(policy: Policy, now: Any, after: Any, observations: Any, actions: Any) -> Any:
    o, a = policy.prepare_observations(observations), policy.prepare_actions(actions)
    with torch.no_grad():
        pair = [policy.log_prob(policy.tensor(theta), o, a).numpy() for theta in (after, now)]
    return pair[0] - pair[1]


def test_the_family_basis_is_its_score() -> None:
    rng = np.random.default_rng(4)
    observations = rng.standard_normal((9, 2))
    policy = LinearSoftmax(2, 3)
    theta, actions = rng.standard_normal(4), rng.integers(0, 3, 9)
    rows = basis_rows(Basis.choose(policy, "auto", PLAIN), theta, None, observations, actions)
    tensors = policy.prepare_observations(observations), policy.prepare_actions(actions)
    np.testing.assert_allclose(rows.values, policy.scores(policy.tensor(theta), *tensors).numpy())
    fisher = policy.fisher(policy.tensor(theta), tensors[0]).dense()
    np.testing.assert_allclose(rows.gram, fisher, atol=1e-12)
    assert not rows.movement.any()


def test_bases_that_cannot_be_served_are_refused() -> None:
    with pytest.raises(OptionError, match="MLPGaussian is not linear in any state features"):
        Basis.choose(MLPGaussian(2, 1), "family", PLAIN)
    with pytest.raises(OptionError, match="unknown statefeatures 'cubic'"):
        Basis.choose(MLPGaussian(2, 1), "cubic", PLAIN)
    with pytest.raises(OptionError, match="the basis has 3000 functions, more than 1000"):
        Basis.choose(TabularSoftmax(1000, 4), "auto", PLAIN)

    class Other(Policy):
        n_parameters = prepare_observations = prepare_actions = None  # type: ignore[assignment]
        outputs = log_density = sample = fisher_root = None  # type: ignore[assignment]

    with pytest.raises(PolicyError, match="Other is neither a softmax nor a Gaussian family"):
        Basis.choose(Other(), "auto", PLAIN)


# --- the critic -----------------------------------------------------------------------------


def test_sums_to_go_by_hand() -> None:
    rows = np.array([[1.0], [2.0], [4.0], [8.0]])
    np.testing.assert_allclose(
        discounted_to_go(rows, np.array([3, 1]), 0.5)[:, 0], [1 + 1 + 1, 2 + 2, 4, 8]
    )


@pytest.mark.parametrize("bootstrap", [True, False])
@pytest.mark.parametrize("seen", [True, False])
def test_advantages_are_generalised_advantages(bootstrap: bool, seen: bool) -> None:
    rng = np.random.default_rng(5)
    lengths, terminated = np.array([3, 4, 1]), np.array([False, True, False])
    features, states = rng.standard_normal((8, 2)), rng.standard_normal((8, 3))
    last, theta = rng.standard_normal((3, 3)), rng.standard_normal((3, 2))
    gamma, trace = 0.9, 0.7
    own, critic = critic_rows(
        features,
        states,
        last if seen else None,
        lengths,
        terminated,
        gamma=gamma,
        trace=trace,
        bootstrap=bootstrap,
    )
    expected, at = np.zeros((8, 2)), 0
    for n, length in enumerate(lengths):
        running = np.zeros(2)
        for h in reversed(range(length)):
            row, value = at + h, states[at + h] @ theta
            if h < length - 1:
                error = features[row] + gamma * states[row + 1] @ theta - value
            elif terminated[n] or not bootstrap:
                error = features[row] - value
            elif seen:
                error = features[row] + gamma * last[n] @ theta - value
            else:
                error = np.zeros(2)
            running = error + gamma * trace * running
            expected[row] = running
        at += length
    np.testing.assert_allclose(own + critic @ theta, expected, atol=1e-12)


def test_the_critic_finds_the_exact_values() -> None:
    mdp = random_mdp(np.random.default_rng(6), n_states=5, n_actions=3, n_features=2)
    policy = TabularSoftmax(5, 3)
    history = observe(
        mdp,
        NaturalGradientAscent(0.1),
        weights=np.ones(2),
        n_steps=1,
        n_episodes=1500,
        horizon=30,
        parameters=True,
    )
    stage, theta = history[0], history.parameters()
    assert theta is not None
    scale = ScaleSums()
    scale.add(stage)
    basis = Basis.choose(policy, "auto", scale.scale())
    sums = stage_sums(basis, stage, theta[0], None, gamma=mdp.gamma, trace=0.9)
    critic = fit_critic(sums.critic_sums, np.arange(20))
    pi = softmax_policy(theta[0], n_states=5, n_actions=3)
    exact = (pi[:, :, None] * feature_action_values(mdp, pi)).sum(axis=1)
    found = critic[0] + critic[1:]
    np.testing.assert_allclose(found - found.mean(axis=0), exact - exact.mean(axis=0), atol=0.05)


def test_pooling_fades_with_distance_and_with_plenty() -> None:
    def sums(value: float, n_rows: int) -> CriticSums:
        return CriticSums(np.full((4, 2, 2), value), np.full((4, 2, 1), value), n_rows)

    few = list(pooled([sums(1.0, 10), sums(10.0, 10), sums(100.0, 10)], 0.5))
    assert [s.system[0, 0, 0] for s in few] == [1 + 5 + 25, 0.5 + 10 + 50, 0.25 + 5 + 100]
    assert next(pooled([sums(1.0, 10), sums(10.0, 10)], 0.0)).system[0, 0, 0] == 1.0
    # Two numbers to fit: another stage lends twenty rows, here a hundredth of its 2000.
    assert next(pooled([sums(1.0, 2000), sums(10.0, 2000)], 1.0)).system[0, 0, 0] == 1 + 0.1


@pytest.mark.parametrize(("pool", "ahead"), [(0.0, 2), (0.1, 7), (0.5, 20)])
def test_of_many_stages_only_those_that_lend_are_held(pool: float, ahead: int) -> None:
    read = 0

    def stages() -> Iterator[CriticSums]:
        nonlocal read
        for t in range(100):
            read += 1
            yield CriticSums(np.full((2, 1, 1), float(t % 7)), np.ones((2, 1, 1)), 1)

    found = []
    for t, one in enumerate(pooled(stages(), pool)):
        assert read <= t + 2 + ahead
        found.append(one.system[0, 0, 0])
    weights = pool ** np.abs(np.subtract.outer(np.arange(100), np.arange(100.0)))
    weights[weights <= 1e-6] = 0.0
    np.testing.assert_allclose(found, weights @ (np.arange(100) % 7), rtol=1e-12)


def test_sampled_advantages_project_on_the_exact_ones() -> None:
    theta = learner_path(1, 0.1)[0]
    stage = sample_stage(theta, 2000, 30, np.random.default_rng(7))
    scale = ScaleSums()
    scale.add(stage)
    basis = Basis.choose(POLICY, "auto", scale.scale())
    for trace in (0.9, 1.0):
        sums = stage_sums(basis, stage, theta.reshape(-1), None, gamma=0.9, trace=trace)
        critic = fit_critic(sums.critic_sums, np.arange(20))
        groups = (sums.own + sums.critic @ critic) / sums.counts[:, None, None]
        found = np.linalg.solve(sums.gram[None], groups)
        exact = np.stack([advantage_slopes(theta, w).reshape(-1) for w in np.eye(4)], axis=1)
        errors = found.std(axis=0, ddof=1) / np.sqrt(len(found))
        assert errors.max() < 0.03 < np.abs(exact).max() / 10
        # The 24 numbers are correlated; their mean squared error in units of its size is near one.
        assert (((found.mean(axis=0) - exact) / errors) ** 2).mean() < 2


def test_stages_stream_in_blocks() -> None:
    # Ragged episodes, some longer than a block; the sums are those of one pass over the rows.
    rng = np.random.default_rng(8)
    lengths = np.array([5000, 3, 70, 4500, 1])
    n = int(lengths.sum())
    stage = Stage(
        observations=rng.standard_normal((n, 2)),
        actions=rng.standard_normal((n, 2)),
        lengths=lengths,
        terminated=np.array([True, False, True, False, True]),
        last_observations=None,
        features=rng.standard_normal((n, 3)),
    )
    scale = ScaleSums()
    scale.add(stage)
    basis = Basis.choose(POLICY, "auto", scale.scale())
    theta = rng.standard_normal(6)
    sums = stage_sums(basis, stage, theta, theta + 0.1, gamma=0.9, n_groups=3)
    whole = basis_rows(basis, theta, theta + 0.1, stage.observations, stage.actions)
    np.testing.assert_allclose(sums.gram * n, whole.gram, atol=1e-7)
    np.testing.assert_allclose(sums.movement.sum(axis=0), whole.movement, atol=1e-7)
    np.testing.assert_allclose(sums.scores.sum(axis=0), whole.values.sum(axis=0), atol=1e-7)
    np.testing.assert_array_equal(sums.counts, [5003, 4570, 1])
    to_go = discounted_to_go(np.asarray(stage.features), lengths, 0.9)
    np.testing.assert_allclose(sums.plain.sum(axis=0), whole.values.T @ to_go, atol=1e-7)
