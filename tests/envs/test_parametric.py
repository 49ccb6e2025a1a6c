"""Worlds seen through a policy family: derivatives and information against independent oracles."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from logel.envs.lqr import point_mass, random_lqr
from logel.envs.parametric import FeaturisedMDP, LinearControl, ParametricWorld
from logel.envs.tabular import feature_jacobian, random_mdp
from logel.errors import OptionError, PolicyError


def featurised(seed: int = 0, *, horizon: int = 6) -> FeaturisedMDP:
    rng = np.random.default_rng(seed)
    mdp = random_mdp(rng, n_states=7, n_actions=3, n_features=4, gamma=0.85)
    return FeaturisedMDP(mdp, rng.standard_normal((7, 3)), horizon=horizon)


WORLDS: list[Any] = [
    pytest.param(featurised(), id="softmax"),
    pytest.param(LinearControl(point_mass(horizon=6)), id="point mass, deviation learnt"),
    pytest.param(
        LinearControl(random_lqr(np.random.default_rng(1), horizon=5), sigma=(0.4, 0.8)),
        id="random control, deviation fixed",
    ),
    pytest.param(
        LinearControl(random_lqr(np.random.default_rng(1), horizon=5)),
        id="random control, deviation learnt",
    ),
]


def parameters_of(world: ParametricWorld, seed: int = 3) -> Any:
    return 0.3 * np.random.default_rng(seed).standard_normal(world.policy.n_parameters)


@pytest.mark.parametrize("world", WORLDS)
def test_jacobian_agrees_with_finite_differences(world: ParametricWorld) -> None:
    theta, size = parameters_of(world), 1e-5
    jacobian = world.jacobian(theta)
    assert jacobian.shape == (len(theta), len(world.feature_names))
    for i, shift in enumerate(size * np.eye(len(theta))):
        difference = world.expectations(theta + shift) - world.expectations(theta - shift)
        np.testing.assert_allclose(jacobian[i], difference / (2 * size), atol=1e-6)


@pytest.mark.parametrize("world", WORLDS)
def test_information_is_the_covariance_of_the_scores(world: ParametricWorld) -> None:
    theta, policy = parameters_of(world), world.policy
    stage = world.sample(theta, rng=np.random.default_rng(4), n_episodes=4000)
    scores = policy.scores(policy.tensor(theta), *policy.prepare(stage)).numpy()
    outer = world.gamma ** stage.times[:, None, None] * scores[:, :, None] * scores[:, None, :]
    per_episode = np.add.reduceat(outer, stage.starts)
    error = per_episode.std(axis=0, ddof=1) / np.sqrt(stage.n_episodes)
    gap = np.abs(per_episode.mean(axis=0) - world.fisher(theta).dense())
    assert (gap < 4 * error + 1e-12).all()


@pytest.mark.parametrize("world", WORLDS)
def test_samples_come_from_the_family_and_agree_with_the_expectations(
    world: ParametricWorld,
) -> None:
    theta = parameters_of(world)
    stage = world.sample(theta, rng=np.random.default_rng(5), n_episodes=4000)
    world.policy.check(stage)
    assert stage.features is not None and stage.parameters is None
    discounted = world.gamma ** stage.times[:, None] * stage.features
    returns = np.add.reduceat(discounted, stage.starts)
    error = returns.std(axis=0, ddof=1) / np.sqrt(len(returns))
    assert (np.abs(returns.mean(axis=0) - world.expectations(theta)) < 4 * error).all()
    # The scores of the family that was sampled from average to zero.
    policy = world.policy
    scores = policy.scores(policy.tensor(theta), *policy.prepare(stage)).numpy()
    sums = np.add.reduceat(scores, stage.starts)
    assert (np.abs(sums.mean(axis=0)) < 4 * sums.std(axis=0) / np.sqrt(len(sums))).all()


def test_one_feature_per_state_is_the_tabular_policy() -> None:
    mdp = featurised().mdp
    world = FeaturisedMDP(mdp, np.eye(7), horizon=6)
    theta = parameters_of(world)
    np.testing.assert_allclose(world.jacobian(theta), feature_jacobian(mdp, theta, horizon=6))


def test_probabilities_are_those_of_the_family() -> None:
    world = featurised()
    theta = parameters_of(world)
    expected = world.policy.probabilities(theta, np.arange(7))
    np.testing.assert_allclose(world.probabilities(theta), expected)


def test_worlds_travel_to_other_processes() -> None:
    world = featurised()
    theta = parameters_of(world)
    copy = pickle.loads(pickle.dumps(world))
    np.testing.assert_array_equal(copy.jacobian(theta), world.jacobian(theta))


def test_parameters_are_a_gain_and_log_deviations() -> None:
    world = LinearControl(random_lqr(np.random.default_rng(1)))
    theta = np.arange(8.0)
    np.testing.assert_array_equal(world.gain(theta), [[0, 2, 4], [1, 3, 5]])
    means = world.policy.outputs(world.policy.tensor(theta), world.policy.tensor([[1, 10, 100]]))
    np.testing.assert_array_equal(means.numpy(), [[420, 531, 6, 7]])


def test_mistakes_are_named() -> None:
    world = featurised()
    with pytest.raises(PolicyError, match="parameters must be 6 finite numbers"):
        world.jacobian(np.zeros(5))
    with pytest.raises(OptionError, match="one row per state"):
        FeaturisedMDP(world.mdp, np.ones((3, 2)))
    with pytest.raises(OptionError, match="finite"):
        FeaturisedMDP(world.mdp, np.full((7, 2), np.nan))
    with pytest.raises(OptionError, match="horizon"):
        FeaturisedMDP(world.mdp, np.ones((7, 2)), horizon=0)
