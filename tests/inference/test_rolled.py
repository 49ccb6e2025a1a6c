"""Learners without noise of their own, against sums over a grid of weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from logel import infer_reward
from logel.envs.tabular import optimal_policy, policy_regret, random_mdp
from logel.inference.rolled import (
    Rollout,
    SampledPosterior,
    explored,
    reweighed,
    rolled_out,
    walked,
)
from logel.inference.smooth import fit_path, fit_random_walk
from logel.learners.tabular import SoftPolicyIteration, observe
from logel.policies.softmax import TabularSoftmax
from logel.rules.values import SoftPolicy
from logel.studies.measures import family, world
from logel.types import Float
from logel.worlds.choose import pooler


def test_walkers_find_a_correlated_normal() -> None:
    root = np.array([[1.0, 0.0, 0.0], [0.9, 0.5, 0.0], [-3.0, 1.0, 2.0]])
    precision = np.linalg.inv(root @ root.T)

    def log_density(x: Float) -> Float:
        return np.asarray(-0.5 * np.einsum("ki,ij,kj->k", x - 1, precision, x - 1))

    rng = np.random.default_rng(0)
    draws, logs = walked(log_density, rng.standard_normal((40, 3)) + 3, rng)
    np.testing.assert_allclose(draws.mean(axis=0), 1, atol=0.4)
    np.testing.assert_allclose(np.cov(draws.T), root @ root.T, atol=1.5)
    np.testing.assert_allclose(logs, log_density(draws))


def saturated_rule() -> SoftPolicy:
    """A learner whose first improvement is nearly deterministic, two features."""
    rng = np.random.default_rng(4)
    mdp = random_mdp(rng, n_states=4, n_actions=2, n_features=2, gamma=0.9, branching=2)
    history = observe(
        mdp, SoftPolicyIteration(), weights=[6.0, -4.0], n_steps=3, n_episodes=20, seed=1
    )
    return SoftPolicy(pooler(history, TabularSoftmax(4, 2), gamma=0.9)(history))


def test_draws_are_those_of_a_sum_over_a_grid() -> None:
    rule = saturated_rule()
    roll = Rollout(rule, np.zeros(rule.state_dim))
    draws, values = explored(roll, np.array([1.0, 0.0]), np.random.default_rng(0))
    np.testing.assert_allclose(values, roll.log_posterior(draws))
    # Directions by angle; sizes on a log scale, over which the density is r^2 times itself.
    angles, sizes = np.linspace(-np.pi, np.pi, 361)[:-1], np.geomspace(1e-2, 1e4, 120)
    places = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    logs = np.stack([roll.log_posterior(size * places) + 2 * np.log(size) for size in sizes])
    shares = np.exp(logs - logs.max()).sum(axis=0)
    mean = shares @ places / shares.sum()
    drawn = draws / np.linalg.norm(draws, axis=1)[:, None]
    np.testing.assert_allclose(drawn.mean(axis=0), mean, atol=0.05)
    spread = (shares[:, None] * (places - mean) ** 2).sum(axis=0) / shares.sum()
    np.testing.assert_allclose(drawn.std(axis=0), np.sqrt(spread), atol=0.05)


def test_another_world_moves_the_mean_and_the_same_one_does_not() -> None:
    rule = saturated_rule()
    fit = fit_path(rule, start=fit_random_walk(rule))
    roll = Rollout(rule, fit.states[0])
    draws, _ = explored(roll, fit.weights, np.random.default_rng(0))
    found = replace(fit, draws=draws)
    same = reweighed(found, rule)
    mean = SampledPosterior(draws).mean
    assert np.linalg.norm(same - mean) < 0.15 * np.linalg.norm(mean)
    turned = SoftPolicy(rule.world.with_features(np.array([[1.0, 0.0], [0.0, 0.5]])))
    assert np.linalg.norm(reweighed(found, turned) - same) > 1e-3


def test_moderate_learners_are_left_alone() -> None:
    rng = np.random.default_rng(4)
    mdp = random_mdp(rng, n_states=4, n_actions=2, n_features=2, gamma=0.9, branching=2)
    history = observe(
        mdp, SoftPolicyIteration(temperature=1.0), weights=[0.4, -0.3], n_steps=3, seed=1
    )
    rule = SoftPolicy(pooler(history, TabularSoftmax(4, 2), gamma=0.9)(history))
    fit = fit_path(rule, start=fit_random_walk(rule))
    assert rolled_out(fit) is fit


@pytest.mark.parametrize("seed", [1006])
def test_a_cone_of_rewards_is_found_and_not_its_edge(seed: int) -> None:
    """The reward of the paper's text, ten steps: the smoother alone lost more than all of it."""
    where = world("", "paper-text")
    history = where.observe(SoftPolicyIteration(), 10, seed)
    estimate = infer_reward(history, family(where.mdp), gamma=where.mdp.gamma)
    assert next(iter(estimate.models)) == "soft-policy"
    planned = optimal_policy(where.mdp, estimate.weights)[0]
    assert policy_regret(where.mdp, planned, true_weights=where.weights) == pytest.approx(
        0, abs=0.01
    )
    truth = estimate.gauge.project(where.weights)
    low, high = estimate.interval(0.95).T
    assert (low <= truth / np.linalg.norm(truth)).all()
    assert (truth / np.linalg.norm(truth) <= high).all()
