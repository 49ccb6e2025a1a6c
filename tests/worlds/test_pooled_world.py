"""The pooled critic of a continuous world against closed forms and its own definition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from logel.data.history import LearningHistory
from logel.data.stage import Episode, Stage
from logel.envs import lqr
from logel.envs.parametric import FeaturisedMDP, LinearControl
from logel.envs.tabular import random_mdp
from logel.errors import HistoryError, OptionError
from logel.learners.gradient_ascent import GradientAscent, observe_parametric
from logel.policies.gaussian import LinearGaussian
from logel.worlds.own_episodes import stage_jacobian
from logel.worlds.pooled import N_GROUPS, CriticBasis, sampled_world

PATH = np.array([[-0.2, -0.1], [-0.3, -0.3], [-0.4, -0.4], [-0.4, -0.6]])


def control(sigma: float | None = 0.3) -> LinearControl:
    return LinearControl(lqr.point_mass(), sigma=sigma)


def stages_along(world: Any, path: Any, *, n_episodes: int, seed: int = 0) -> list[Stage]:
    rng = np.random.default_rng(seed)
    return [world.sample(theta, rng=rng, n_episodes=n_episodes) for theta in path]


def relative_errors(found: Any, exact: Any) -> Any:
    return np.linalg.norm(found - exact, axis=(0, 1)) / np.linalg.norm(exact, axis=(0, 1))


def test_the_jacobian_approaches_the_closed_form() -> None:
    world = control()
    exact = np.stack([world.jacobian(theta) for theta in PATH])
    errors = []
    for n_episodes in (50, 2000):
        stages = stages_along(world, PATH, n_episodes=n_episodes)
        pooled = sampled_world(stages, world.policy, gamma=world.gamma).at(PATH)
        assert pooled.anchored is not None
        errors.append(relative_errors(pooled.anchored.design, exact))
        own = [
            stage_jacobian(world.policy, theta, stage, gamma=world.gamma, baseline="time").mean
            for theta, stage in zip(PATH, stages, strict=True)
        ]
        # A quadratic critic is the right one here: far better than each stage by itself.
        assert errors[-1].mean() < 0.4 * relative_errors(np.stack(own), exact).mean()
    assert (errors[1] < 0.06).all()


def test_deviations_that_are_learnt_have_jacobians_too() -> None:
    world = control(sigma=None)
    path = np.column_stack([PATH, [-1.0, -1.1, -1.2, -1.3]])
    stages = stages_along(world, path, n_episodes=1500)
    pooled = sampled_world(stages, world.policy, gamma=world.gamma).at(path)
    exact = np.stack([world.jacobian(theta) for theta in path])
    assert pooled.anchored is not None
    assert (relative_errors(pooled.anchored.design, exact) < 0.08).all()


def test_a_critic_that_cannot_be_right_is_corrected_by_each_stage() -> None:
    rng = np.random.default_rng(0)
    mdp = random_mdp(rng, n_states=12, n_actions=3, n_features=2, gamma=0.8)
    world = FeaturisedMDP(mdp, rng.standard_normal((12, 2)), 8)
    path = 0.5 * rng.normal(size=(3, 4))
    stages = stages_along(world, path, n_episodes=4000)
    # Polynomials of the state's number say nothing about a random world.
    pooled = sampled_world(stages, world.policy, gamma=world.gamma).at(path)
    exact = np.stack([world.jacobian(theta) for theta in path])
    assert pooled.correction > 0.5
    assert pooled.anchored is not None
    assert (relative_errors(pooled.anchored.design, exact) < 0.25).all()


def test_a_right_critic_is_hardly_corrected() -> None:
    world = control()
    shares = [
        sampled_world(
            stages_along(world, PATH, n_episodes=50, seed=seed), world.policy, gamma=world.gamma
        )
        .at(PATH)
        .correction
        for seed in range(6)
    ]
    assert np.median(shares) < 0.05


def test_a_group_left_out_is_as_if_never_seen() -> None:
    world = control()
    stages = stages_along(world, PATH, n_episodes=30)
    whole = sampled_world(stages, world.policy, gamma=world.gamma)
    group = 3
    left = whole.at(PATH, without=group)
    kept = [
        stage.take(np.flatnonzero((np.arange(30) + t) % N_GROUPS != group))
        for t, stage in enumerate(stages)
    ]
    apart = sampled_world(kept, world.policy, gamma=world.gamma)
    # Same units for the basis, so that the ridge is the same.
    apart = replace(apart, basis=whole.basis).at(PATH)
    assert left.anchored is not None and apart.anchored is not None
    assert left.correction == apart.correction == 0
    np.testing.assert_allclose(left.anchored.design, apart.anchored.design, rtol=1e-6)
    np.testing.assert_allclose(left.information, apart.information, rtol=1e-12)
    np.testing.assert_allclose(left.anchored.noise, apart.anchored.noise, rtol=1e-12)
    assert left.log_likelihood(PATH) == whole.log_likelihood(PATH)


def test_likelihood_and_its_derivatives() -> None:
    world = control(sigma=None)
    path = np.column_stack([PATH, [-1.0, -1.1, -1.2, -1.3]])
    sampled = sampled_world(stages_along(world, path, n_episodes=20), world.policy, gamma=0.9)
    seen = sampled.observe(1, path[1])
    for i in range(3):
        move = np.zeros_like(path)
        move[1, i] = 1e-6
        slope = (sampled.log_likelihood(path + move) - sampled.log_likelihood(path - move)) / 2e-6
        assert seen.score[i] == pytest.approx(slope, rel=1e-5, abs=1e-4)
    rows = seen.times(np.eye(3))
    np.testing.assert_allclose(
        rows @ rows.T,
        world.policy.fisher(world.policy.tensor(path[1]), sampled.rows[1].observations).dense(),
        rtol=1e-9,
    )


def test_expected_basis_is_the_mean_over_actions() -> None:
    rng = np.random.default_rng(0)
    basis = CriticBasis(rng.normal(size=5), rng.uniform(0.5, 2, size=5), discrete=False)
    raw, mean, deviation = rng.normal(size=(4, 3)), rng.normal(size=(4, 2)), np.full((4, 2), 0.7)
    draws = [basis(raw, mean + deviation * rng.standard_normal((4, 2))) for _ in range(20_000)]
    spread = np.std(draws, axis=0) / np.sqrt(len(draws))
    found = basis.expected(raw, mean, deviation)
    assert (np.abs(found - np.mean(draws, axis=0)) <= 4.5 * spread + 1e-9).all()


def test_terminated_and_cut_episodes() -> None:
    # One step, then the end: the value of an action is its feature, whoever follows.
    rng = np.random.default_rng(0)
    policy = LinearGaussian(1, 1, sigma=0.5)

    def one(terminated: bool) -> Episode:
        s, a = rng.normal(size=(1, 1)), rng.normal(size=(1, 1))
        return Episode(s, a, -((a - s) ** 2), terminated=terminated)

    stage = Stage.from_episodes([one(terminated=True) for _ in range(400)])
    pooled = sampled_world([stage, stage], policy, gamma=0.9).at(np.zeros((1, 1)))
    assert pooled.anchored is not None
    # d/dtheta E[-(theta s + noise - s)^2] at 0 is 2 E[s^2].
    expected = 2 * (stage.observations**2).mean()
    np.testing.assert_allclose(pooled.anchored.design[0, 0, 0], expected, rtol=1e-3)


def test_features_may_be_recombined() -> None:
    world = control()
    sampled = sampled_world(stages_along(world, PATH, n_episodes=25), world.policy, gamma=0.9)
    basis = np.random.default_rng(0).normal(size=(3, 2))
    a, b = sampled.at(PATH), sampled.with_features(basis).at(PATH)
    assert a.anchored is not None and b.anchored is not None
    assert a.correction == b.correction == 0
    np.testing.assert_allclose(b.anchored.design, a.anchored.design @ basis, rtol=1e-8)
    assert b.n_features == 2


def test_mistakes_are_named() -> None:
    world = control()
    stages = stages_along(world, PATH, n_episodes=5)
    sampled = sampled_world(stages, world.policy, gamma=0.9)
    with pytest.raises(OptionError, match="anchor the world first"):
        sampled.gradient(PATH, np.zeros(3))
    with pytest.raises(HistoryError, match="no stage at all"):
        sampled_world([], world.policy, gamma=0.9)
    with pytest.raises(HistoryError, match="no features"):
        sampled_world([replace(stages[0], features=None)], world.policy, gamma=0.9)
    rng = np.random.default_rng(0)
    many = Episode(rng.normal(size=(11, 2)), rng.normal(size=(10, 4)), np.ones((10, 1)))
    wide = sampled_world([Stage.from_episodes([many] * 12)], LinearGaussian(2, 4), gamma=0.9)
    with pytest.raises(OptionError, match="up to 3 action dimensions"):
        wide.at(np.zeros((1, LinearGaussian(2, 4).n_parameters)))


def test_a_history_is_enough() -> None:
    world = control()
    history = observe_parametric(
        world, GradientAscent(learning_rate=0.002), weights=[1.0, 0.3, 0.2], n_steps=2, seed=0
    )
    assert isinstance(history, LearningHistory)
    assert sampled_world(history, world.policy, gamma=world.gamma).n_stages == 3
