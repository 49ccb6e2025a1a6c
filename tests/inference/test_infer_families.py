"""The default inference beyond tables: linear policies and control, learners of every kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from logel.data.history import LearningHistory
from logel.envs import lqr
from logel.envs.parametric import FeaturisedMDP, LinearControl
from logel.envs.tabular import random_mdp
from logel.errors import OptionError
from logel.inference.gauge import direction_error
from logel.inference.infer import Method, infer_reward
from logel.inference.status import Status
from logel.learners.gradient_ascent import GradientAscent, ParameterWalk, observe_parametric
from logel.policies.gaussian import LinearGaussian
from logel.policies.networks import MLPGaussian
from logel.policies.softmax import LinearSoftmax


def featurised(seed: int) -> tuple[FeaturisedMDP, Any]:
    rng = np.random.default_rng(seed)
    mdp = random_mdp(rng, n_states=12, n_actions=3, n_features=3, gamma=0.9, branching=4)
    return FeaturisedMDP(mdp, rng.standard_normal((12, 4))), rng.standard_normal(3)


def watched(
    world: Any, learner: Any, truth: Any, *, seed: int, n_steps: int = 10, **options: Any
) -> LearningHistory:
    return observe_parametric(world, learner, weights=truth, n_steps=n_steps, seed=seed, **options)


@pytest.mark.parametrize(
    ("learner", "expected"),
    [
        (GradientAscent(learning_rate=1.0), "gradient"),
        (GradientAscent(learning_rate=0.3, direction="natural"), "natural"),
    ],
)
def test_linear_policies_and_how_they_learn(learner: GradientAscent, expected: str) -> None:
    errors, chosen = [], []
    for seed in range(3):
        world, truth = featurised(seed)
        history = watched(world, learner, truth, seed=seed)
        estimate = infer_reward(history, world.policy, gamma=world.gamma)
        errors.append(direction_error(estimate.weights, truth, estimate.gauge))
        chosen.append(next(iter(estimate.models)))
        assert estimate.planning is not None
        assert "joint" in estimate.method
        assert "runner-up" in estimate.method
    assert chosen.count(expected) >= 2
    assert np.median(errors) < 0.35


def test_known_exact_steps_pin_the_weights_down() -> None:
    world, truth = featurised(0)
    history = watched(
        world, GradientAscent(learning_rate=1.0, exact=True), truth, seed=0, parameters=True
    )
    estimate = infer_reward(history, world.policy, gamma=world.gamma)
    # The world alone is estimated, from 11 stages together.
    assert direction_error(estimate.weights, truth, estimate.gauge) < 0.1


def test_control_is_watched_through_a_pooled_critic() -> None:
    world = LinearControl(lqr.point_mass(), sigma=0.3)
    truth = np.array([0.5, 0.4, 0.7])
    history = watched(
        world,
        GradientAscent(learning_rate=0.002, exact=True),
        truth,
        seed=0,
        n_episodes=200,
        parameters=True,
    )
    estimate = infer_reward(history, world.policy, gamma=world.gamma)
    assert estimate.models
    assert direction_error(estimate.weights, truth, estimate.gauge) < 0.15
    assert lqr.relative_regret(world.problem, estimate.weights, true_weights=truth) < 0.05


@pytest.mark.slow
def test_control_without_parameters() -> None:
    world = LinearControl(lqr.point_mass(), sigma=0.3)
    truth = np.array([0.5, 0.4, 0.7])
    history = watched(
        world, GradientAscent(learning_rate=0.002, exact=True), truth, seed=0, n_episodes=200
    )
    estimate = infer_reward(history, world.policy, gamma=world.gamma)
    unit = truth / np.linalg.norm(truth)
    ends = estimate.interval(0.99)
    assert ((ends[:, 0] <= unit) & (unit <= ends[:, 1])).all()


def in_units(history: LearningHistory, unit: float) -> LearningHistory:
    """The same policies, their features `unit` times as large and their parameters the less."""
    stages = [replace(s, parameters=np.asarray(s.parameters) / unit) for s in history]
    return LearningHistory.from_stages(stages, learning_rates=history.learning_rates)


NATURAL = GradientAscent(learning_rate=0.3, direction="natural", exact=True)
RATED = {"n_steps": 8, "n_episodes": 300, "parameters": True, "learning_rates": True}


def test_natural_steps_of_known_rate_have_no_units_in_linear_softmax_worlds() -> None:
    rng = np.random.default_rng(5)
    mdp = random_mdp(rng, n_states=6, n_actions=3, n_features=3, branching=3)
    world = FeaturisedMDP(mdp, rng.standard_normal((6, 3)), horizon=20)
    truth = np.array([0.8, -0.5, 0.3])
    history = watched(world, NATURAL, truth, seed=0, **RATED)
    found = []
    for unit in (0.3, 1.0, 3.0):
        policy = LinearSoftmax(3, 3, feature_map=lambda s, u=unit: u * world.state_features[s])
        estimate = infer_reward(in_units(history, unit), policy, gamma=world.gamma, intervals=False)
        assert estimate.scale == "known learning rates"
        assert next(iter(estimate.models)) == "natural"
        np.testing.assert_allclose(estimate.weights, truth, atol=0.05)
        found.append(estimate.weights)
    np.testing.assert_allclose(found[1:], [found[0]] * 2, rtol=1e-8)


def test_natural_steps_of_known_rate_have_no_units_in_linear_gaussian_worlds() -> None:
    world = LinearControl(lqr.point_mass(horizon=20), sigma=0.3)
    truth = np.array([0.5, 0.4, 0.7])
    history = watched(world, NATURAL, truth, seed=0, initial=np.array([-0.8, -0.2]), **RATED)
    found = []
    for unit in (0.3, 1.0, 3.0):
        policy = LinearGaussian(2, 1, sigma=0.3, feature_map=lambda x, u=unit: u * x)
        estimate = infer_reward(in_units(history, unit), policy, gamma=world.gamma, intervals=False)
        assert estimate.scale == "known learning rates"
        assert next(iter(estimate.models)) == "natural"
        np.testing.assert_allclose(estimate.weights, truth, atol=0.05)
        found.append(estimate.weights)
    np.testing.assert_allclose(found[1:], [found[0]] * 2, rtol=1e-8)


@pytest.mark.parametrize("known", [False, True])
def test_drifting_parameters_are_not_explained(known: bool) -> None:
    world, truth = featurised(1)
    history = watched(world, ParameterWalk(step=0.2), truth, seed=1, parameters=known)
    estimate = infer_reward(history, world.policy, gamma=world.gamma)
    assert estimate.status is Status.UNEXPLAINED


def test_models_must_fit_the_family() -> None:
    world, truth = featurised(0)
    history = watched(world, GradientAscent(), truth, seed=0, n_steps=2)
    with pytest.raises(OptionError, match="none of the rules"):
        infer_reward(
            history,
            world.policy,
            gamma=world.gamma,
            method=Method.named("joint", models=("soft-value",)),
        )
    only = Method.named("joint", models=("adam",))
    estimate = infer_reward(history, world.policy, gamma=world.gamma, method=only)
    assert list(estimate.models) == ["adam"]


def test_networks_are_not_fitted_jointly() -> None:
    world = LinearControl(lqr.point_mass(), sigma=0.3)
    history = watched(
        world, GradientAscent(learning_rate=0.002), [0.5, 0.4, 0.7], seed=0, n_steps=2
    )
    policy = MLPGaussian(2, 1, hidden=(4,))
    with pytest.raises(OptionError, match="use 'two-step' for others"):
        infer_reward(history, policy, gamma=world.gamma, method="joint")


def test_expected_widths_shrink_with_more_data() -> None:
    world, truth = featurised(2)
    history = watched(world, GradientAscent(learning_rate=1.0), truth, seed=2)
    estimate = infer_reward(history, world.policy, gamma=world.gamma)
    now = estimate.interval(0.95)
    width = now[:, 1] - now[:, 0]
    assert (estimate.expected_widths(episodes=2.0, stages=1.0) < width).all()
    assert (estimate.expected_widths(episodes=1.0, stages=2.0) < width).all()
