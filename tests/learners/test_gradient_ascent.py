"""Gradient learners on differentiable families: their steps, and what their histories reveal."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
import torch

from logel import infer_reward
from logel.envs.lqr import point_mass, random_lqr, relative_regret
from logel.envs.parametric import FeaturisedMDP, LinearControl, ParametricWorld
from logel.envs.tabular import random_mdp
from logel.errors import OptionError
from logel.inference.regress import solve
from logel.inference.steps import compress
from logel.learners.gradient_ascent import (
    GradientAscent,
    ParameterSnapshot,
    ParameterWalk,
    observe_parametric,
)


def featurised(horizon: int = 8) -> FeaturisedMDP:
    rng = np.random.default_rng(0)
    mdp = random_mdp(rng, n_states=7, n_actions=3, n_features=4, gamma=0.85)
    return FeaturisedMDP(mdp, rng.standard_normal((7, 3)), horizon=horizon)


WORLDS: list[Any] = [
    pytest.param(featurised(), np.array([1.0, -0.5, 0.3, 0.8]), 0.1, id="softmax"),
    pytest.param(
        LinearControl(point_mass()), np.array([1.0, 0.3, 0.2]), 0.003, id="point mass, deviation"
    ),
    pytest.param(
        LinearControl(random_lqr(np.random.default_rng(1)), sigma=0.5),
        np.array([1.0, 0.3, 0.6, 0.2]),
        0.001,
        id="random control",
    ),
]


def snapshots(
    learner: Any, world: ParametricWorld, weights: Any, n: int, *, initial: Any = None
) -> list[ParameterSnapshot]:
    start = np.zeros(world.policy.n_parameters) if initial is None else initial
    return list(islice(learner.run(world, weights, np.random.default_rng(0), start), n))


# --- steps --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("world", "weights", "rate"), WORLDS)
def test_exact_vanilla_steps_follow_the_gradient(world: Any, weights: Any, rate: float) -> None:
    run = snapshots(GradientAscent(rate, exact=True), world, weights, 4)
    for before, after in pairwise(run):
        expected = before.parameters + rate * world.jacobian(before.parameters) @ weights
        np.testing.assert_allclose(after.parameters, expected, rtol=1e-12)
    values = [world.expectations(s.parameters) @ weights for s in run]
    assert values == sorted(values)
    assert [s.learning_rate for s in run] == [None, rate, rate, rate]


@pytest.mark.parametrize(("world", "weights", "rate"), WORLDS)
def test_natural_steps_solve_with_the_information(world: Any, weights: Any, rate: float) -> None:
    learner = GradientAscent(rate, direction="natural", exact=True)
    for before, after in pairwise(snapshots(learner, world, weights, 3)):
        gradient = world.jacobian(before.parameters) @ weights
        step = (after.parameters - before.parameters) / rate
        np.testing.assert_allclose(
            step, np.linalg.solve(world.fisher(before.parameters).dense(), gradient), rtol=1e-8
        )


@pytest.mark.parametrize(("world", "weights", "rate"), WORLDS)
@pytest.mark.parametrize("direction", ["vanilla", "natural"])
def test_normalised_steps_have_the_given_length(
    world: Any, weights: Any, rate: float, direction: str
) -> None:
    learner = GradientAscent(0.05, direction=direction, schedule="normalised", exact=True)
    for before, after in pairwise(snapshots(learner, world, weights, 3)):
        step = after.parameters - before.parameters
        assert np.linalg.norm(step) == pytest.approx(0.05)
        rng = np.random.default_rng(0)
        move = learner.gradient(world, before.parameters, weights, rng)
        np.testing.assert_allclose(step, after.learning_rate * move)


def test_adam_is_torchs() -> None:
    world, weights = featurised(), np.array([1.0, -0.5, 0.3, 0.8])
    theta = torch.zeros(world.policy.n_parameters, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([theta], lr=0.1, maximize=True)
    learner = GradientAscent(0.1, direction="adam", exact=True)
    for snapshot in snapshots(learner, world, weights, 5):
        np.testing.assert_allclose(snapshot.parameters, theta.detach().numpy(), atol=1e-9)
        assert snapshot.learning_rate is None
        theta.grad = torch.tensor(world.jacobian(snapshot.parameters) @ weights)
        optimiser.step()


@pytest.mark.parametrize(("world", "weights", "rate"), WORLDS)
@pytest.mark.parametrize("n_episodes", [1, 4])
def test_sampled_gradients_average_to_the_exact_one(
    world: Any, weights: Any, rate: float, n_episodes: int
) -> None:
    rng = np.random.default_rng(6)
    theta = 0.2 * rng.standard_normal(world.policy.n_parameters)
    learner = GradientAscent(n_episodes=n_episodes)
    gradients = np.stack([learner.gradient(world, theta, weights, rng) for _ in range(300)])
    error = gradients.std(axis=0, ddof=1) / np.sqrt(len(gradients))
    exact = world.jacobian(theta) @ weights
    assert (np.abs(gradients.mean(axis=0) - exact) < 4 * error).all()


def test_sampled_natural_steps_average_to_the_exact_one() -> None:
    # The inverse of a sampled matrix is biased, but with batches this large by less than the noise.
    world, weights, _ = WORLDS[1].values
    theta, rng = np.full(3, -0.2), np.random.default_rng(1)
    learner = GradientAscent(direction="natural", n_episodes=1000)
    steps = np.stack([learner.gradient(world, theta, weights, rng) for _ in range(60)])
    exact = np.linalg.solve(world.fisher(theta).dense(), world.jacobian(theta) @ weights)
    error = steps.std(axis=0, ddof=1) / np.sqrt(len(steps))
    assert (np.abs(steps.mean(axis=0) - exact) < 4 * error).all()
    assert (error < 0.05 * np.abs(exact)).all()


def test_walks_drift_without_regard_to_the_reward() -> None:
    world = featurised()
    first, second = (
        snapshots(ParameterWalk(0.1), world, weights, 2000) for weights in (np.zeros(4), np.ones(4))
    )
    np.testing.assert_array_equal(first[-1].parameters, second[-1].parameters)
    moves = np.diff([s.parameters for s in first], axis=0)
    assert moves.std() == pytest.approx(0.1, rel=0.03)
    fading = snapshots(ParameterWalk(0.1, fading=True), world, np.zeros(4), 2000)
    ratio = np.diff([s.parameters for s in fading], axis=0) / moves
    np.testing.assert_allclose(ratio, 1 / np.arange(1.0, 2000.0)[:, None] * np.ones(6), rtol=1e-3)


# --- what an observer sees ------------------------------------------------------------------------


@pytest.mark.parametrize(("world", "weights", "rate"), WORLDS)
@pytest.mark.parametrize("direction", ["vanilla", "natural"])
@pytest.mark.parametrize("schedule", ["constant", "normalised", "1/(1+t)"])
def test_exact_designs_and_movements_give_the_weights_back(
    world: Any, weights: Any, rate: float, direction: str, schedule: str
) -> None:
    history = observe_parametric(
        world,
        GradientAscent(rate, direction=direction, schedule=schedule, exact=True),
        weights=weights,
        n_steps=8,
        n_episodes=1,
        parameters=True,
        learning_rates=True,
    )
    path = np.stack([stage.parameters for stage in history])
    design = np.stack([world.jacobian(theta) for theta in path[:-1]])
    if direction == "natural":
        information = [world.fisher(theta) for theta in path[:-1]]
        design = np.stack([f.solve(j) for f, j in zip(information, design, strict=True)])
    steps = compress(np.diff(path, axis=0), design)
    solution = solve(steps, np.asarray(history.learning_rates))
    np.testing.assert_allclose(solution.weights, weights, atol=1e-8)


def test_inference_recovers_the_costs_of_a_watched_controller() -> None:
    world, weights, rate = WORLDS[1].values
    history = observe_parametric(
        world,
        GradientAscent(rate, n_episodes=200),
        weights=weights,
        n_steps=8,
        n_episodes=200,
        seed=1,
        parameters=True,
        learning_rates=True,
    )
    estimate = infer_reward(history, world.policy, gamma=world.gamma, intervals=False)
    assert relative_regret(world.problem, estimate.weights, true_weights=weights) < 0.01


@pytest.mark.parametrize(("world", "weights", "rate"), WORLDS)
def test_observers_draw_their_own_episodes(world: Any, weights: Any, rate: float) -> None:
    # The learner's batches must not depend on how much the observer looks.
    few, many = (
        observe_parametric(
            world,
            GradientAscent(rate, n_episodes=3),
            weights=weights,
            n_steps=2,
            n_episodes=n,
            seed=5,
            parameters=True,
        )
        for n in (2, 9)
    )
    for a, b in zip(few, many, strict=True):
        np.testing.assert_array_equal(a.parameters, b.parameters)
        assert (a.n_episodes, b.n_episodes) == (2, 9)
    assert few.learning_rates is None
    assert few.feature_names == world.feature_names


def test_hidden_parameters_stay_hidden_and_histories_are_saved(tmp_path: Any) -> None:
    world, weights, rate = WORLDS[1].values
    initial = np.array([-0.1, -0.2, 0.3])
    history = observe_parametric(
        world, GradientAscent(rate), weights=weights, n_steps=1, n_episodes=2, initial=initial
    )
    assert history[0].parameters is None
    assert history.metadata["learner_config"]["direction"] == "vanilla"
    history.save(tmp_path / "history")
    loaded = type(history).load(tmp_path / "history")
    np.testing.assert_array_equal(loaded[1].observations, history[1].observations)


def test_mistakes_are_named() -> None:
    world, weights, _ = WORLDS[1].values
    with pytest.raises(OptionError, match="unknown direction"):
        GradientAscent(direction="up")
    with pytest.raises(OptionError, match="schedule must be one of"):
        GradientAscent(schedule="fast")
    with pytest.raises(OptionError, match="learning_rate must be positive"):
        GradientAscent(0.0)
    with pytest.raises(OptionError, match="memory"):
        GradientAscent(memory=(0.9, 1.0))
    for learner in (GradientAscent(direction="adam"), ParameterWalk()):
        with pytest.raises(OptionError, match="no learning rates to reveal"):
            observe_parametric(world, learner, weights=weights, n_steps=1, learning_rates=True)
    with pytest.raises(OptionError, match="lower the learning_rate"):
        snapshots(GradientAscent(1e300, exact=True), world, 1e10 * weights, 3)
