from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm

from logel.baselines.log_density import LogDensityReward
from logel.baselines.neural_lfl import (
    NeuralLflConfig,
    _cloned,
    _Fit,
    neural_lfl,
    reward_family,
)
from logel.baselines.soft_improvement import kl_divergence, step_rows, step_targets
from logel.data.history import LearningHistory
from logel.data.stage import Episode, Stage
from logel.envs import lqr
from logel.envs.parametric import LinearControl
from logel.errors import HistoryError, IdentificationError, OptionError, PolicyError
from logel.policies.base import Policy
from logel.policies.gaussian import LinearGaussian
from logel.policies.networks import MLPCategorical, MLPGaussian
from logel.policies.softmax import LinearSoftmax, TabularSoftmax

WEIGHTS, TEMPERATURE = np.array([1.0, 0.3, 0.2]), 0.7
QUICK = NeuralLflConfig(
    hidden=(8,),
    head_hidden=8,
    clone_steps=20,
    initial_steps=20,
    shaping_steps=20,
    batch_rows=32,
)


def soft_iteration(
    problem: lqr.LQRProblem, gain: np.ndarray, sigma: float, n_steps: int
) -> tuple[list[np.ndarray], list[tuple[np.ndarray, float]]]:
    """Parameters of exact soft policy iteration (one action), and the soft value of every step.

    Q(s, a) = -z'Mz + gamma c with z = (s, a); the improved policy is Gaussian, and its normaliser
    temperature * log of the integral of exp(Q / temperature) is -s'Vs + v.
    """
    n, gamma = problem.n_states, problem.gamma
    cost = np.tensordot(WEIGHTS, problem.costs, axes=1)
    both = np.concatenate([problem.dynamics, problem.control], axis=1)
    path, values = [np.append(gain.ravel(), np.log(sigma))], []
    for _ in range(n_steps):
        to_go, closed = np.zeros((n, n)), np.concatenate([np.eye(n), gain])
        for _ in range(2000):
            to_go = closed.T @ (cost + gamma * both.T @ to_go @ both) @ closed
        m = cost + gamma * both.T @ to_go @ both
        entropy = 0.5 * np.log(2 * np.pi * np.e * sigma**2)
        constant = (TEMPERATURE * entropy - m[n, n] * sigma**2) / (1 - gamma)
        quadratic = m[:n, :n] - np.outer(m[:n, n], m[:n, n]) / m[n, n]
        level = gamma * constant + TEMPERATURE * 0.5 * np.log(np.pi * TEMPERATURE / m[n, n])
        gain, sigma = -m[n:, :n] / m[n, n], float(np.sqrt(TEMPERATURE / (2 * m[n, n])))
        path.append(np.append(gain.ravel(), np.log(sigma)))
        values.append((quadratic, level))
    return path, values


def soft_history(
    problem: lqr.LQRProblem, path: list[np.ndarray], *, n_episodes: int, seed: int
) -> LearningHistory:
    world, rng = LinearControl(problem), np.random.default_rng(seed)
    return LearningHistory.from_stages(
        [replace(world.sample(p, rng=rng, n_episodes=n_episodes), parameters=p) for p in path]
    )


def test_divergence_of_gaussians_is_the_integral() -> None:
    policy = LinearGaussian(1, 1)
    theta, other = np.array([0.5, np.log(0.8)]), np.array([-0.3, np.log(1.3)])
    grid = np.linspace(-15, 15, 200_001)
    for state in (-1.0, 0.4, 2.0):
        p = norm.pdf(grid, 0.5 * state, 0.8)
        logs = norm.logpdf(grid, 0.5 * state, 0.8) - norm.logpdf(grid, -0.3 * state, 1.3)
        found = kl_divergence(
            policy, policy.tensor(theta), policy.tensor(other), policy.tensor([[state]])
        )
        assert float(found[0]) == pytest.approx(np.trapezoid(p * logs, grid), abs=1e-9)


def test_divergence_sums_over_action_dimensions_and_vanishes_between_equals() -> None:
    policy = LinearGaussian(1, 2, sigma=(0.5, 2.0))
    theta, other = policy.tensor([1.0, -1.0]), policy.tensor([0.0, 1.0])
    states = policy.tensor([[1.0], [2.0]])
    # (mean difference)^2 / (2 variance), dimension by dimension.
    expected = [1 / 0.5 + 4 / 8, 4 / 0.5 + 16 / 8]
    found = kl_divergence(policy, theta, other, states)
    np.testing.assert_allclose(found.numpy(), expected)
    assert kl_divergence(policy, theta, theta, states).abs().max() == 0


def test_divergence_of_softmax_policies_is_the_sum() -> None:
    policy = LinearSoftmax(2, 3)
    rng = np.random.default_rng(0)
    theta, other, states = rng.normal(size=4), rng.normal(size=4), rng.normal(size=(5, 2))
    p, q = policy.probabilities(theta, states), policy.probabilities(other, states)
    found = kl_divergence(policy, policy.tensor(theta), policy.tensor(other), policy.tensor(states))
    np.testing.assert_allclose(found.numpy(), (p * np.log(p / q)).sum(axis=1))


def test_targets_are_the_reward_up_to_the_soft_value() -> None:
    problem = lqr.point_mass(gamma=0.9, noise=0.0)
    path, values = soft_iteration(problem, np.array([[-0.2, -0.5]]), 0.5, 2)
    history = soft_history(problem, path, n_episodes=5, seed=0)
    policy = LinearGaussian(2, 1)
    for t, (quadratic, level) in enumerate(values):
        stage = history[t]
        rows = step_rows(stage, policy, path[t], path[t + 1], family=MLPGaussian(2, 1))
        found = step_targets(rows, gamma=0.9, temperature=TEMPERATURE)
        s, following = stage.observations, stage.next_observations()
        here, there = (level - ((x @ quadratic) * x).sum(axis=1) for x in (s, following))
        reward = problem.features(s, stage.actions) @ WEIGHTS
        np.testing.assert_allclose(found.numpy(), reward + 0.9 * there - here, atol=1e-8)


def test_nothing_follows_a_termination_and_unseen_states_are_left_out() -> None:
    policy = LinearGaussian(1, 1, sigma=1.0)
    ended = Episode(np.array([[1.0], [2.0], [9.0]]), np.zeros((2, 1)), terminated=True)
    cut = Episode(np.array([[3.0], [4.0]]), np.zeros((2, 1)), terminated=False)
    family = MLPGaussian(1, 1)
    seen = step_rows(Stage.from_episodes([ended]), policy, np.zeros(1), np.ones(1), family=family)
    # Means 0 and s, deviation 1: the divergence is s^2 / 2 and log pi'(0|s) = -s^2/2 + constant.
    constant = -0.5 * np.log(2 * np.pi)
    found = step_targets(seen, gamma=0.5, temperature=2.0)
    np.testing.assert_allclose(found.numpy(), [2 * (-0.5 + constant + 1.0), 2 * (-2 + constant)])
    partly = step_rows(
        Stage.from_episodes([ended, cut]), policy, np.zeros(1), np.ones(1), family=family
    )
    np.testing.assert_array_equal(partly.observations.numpy()[:, 0], [1, 2, 3])
    np.testing.assert_array_equal(partly.going.numpy(), [1, 0, 1])
    single = Episode(np.array([[3.0]]), np.zeros((1, 1)))
    with pytest.raises(HistoryError, match=r"stage 4.*too short"):
        step_rows(
            Stage.from_episodes([single]), policy, np.zeros(1), np.ones(1), family=family, index=4
        )


@pytest.mark.slow
def test_soft_policy_iteration_gives_the_reward_up_to_a_potential() -> None:
    """Thresholds: correlation .95, regret a fifth of the last policy's, so imitation fails."""
    problem = lqr.point_mass(horizon=30, gamma=0.9, noise=0.02)
    path, _ = soft_iteration(problem, np.array([[-0.2, -0.5]]), 0.5, 2)
    history = soft_history(problem, path, n_episodes=100, seed=1)
    config = NeuralLflConfig(
        hidden=(32,),
        head_hidden=64,
        initial_steps=500,
        shaping_steps=1500,
        batch_rows=128,
        rate=5e-3,
    )
    reward = neural_lfl(
        history, LinearGaussian(2, 1), gamma=0.9, temperature=0.7, config=config, seed=1
    )
    assert reward.explained > 0.9

    stages = list(history)
    s, a = (np.concatenate([getattr(x, n) for x in stages]) for n in ("observations", "actions"))
    following = np.concatenate([x.next_observations() for x in stages])
    found = reward(s, a, following)

    def moments(z: np.ndarray) -> np.ndarray:
        i, j = np.triu_indices(z.shape[1])
        return np.concatenate([np.ones((len(z), 1)), z, z[:, i] * z[:, j]], axis=1)

    shaping = moments(s) - 0.9 * moments(following)
    truth = problem.features(s, a) @ WEIGHTS
    left = [y - shaping @ np.linalg.lstsq(shaping, y, rcond=None)[0] for y in (found, truth)]
    assert np.corrcoef(*left)[0, 1] > 0.95

    # Plan for the recovered reward: its best quadratic, by the Riccati equation.
    z = np.concatenate([s, a], axis=1)
    matrix, (i, j) = np.zeros((3, 3)), np.triu_indices(3)
    matrix[i, j] = np.linalg.lstsq(moments(z), found, rcond=None)[0][4:]
    planned = lqr.optimal_stationary_gain(
        replace(problem, costs=-0.5 * (matrix + matrix.T)[None], feature_names=()), [1.0]
    )

    def value(gain: np.ndarray | None) -> float:
        assert gain is not None
        return float(lqr.stationary_expectations(problem, gain) @ WEIGHTS)

    best = value(lqr.optimal_stationary_gain(problem, WEIGHTS))
    assert best - value(planned) < 0.2 * (best - value(path[-1][:2][None]))


def small_history(policy: Policy, *, n_stages: int = 3, seed: int = 0) -> LearningHistory:
    rng = np.random.default_rng(seed)
    stages = []
    for t in range(n_stages):
        observations = rng.normal(size=(60, 2))
        theta = rng.normal(size=policy.n_parameters) * (1 + t)
        stages.append(
            Stage(
                observations=observations,
                actions=policy.sample(theta, observations, rng),
                lengths=np.array([20, 40]),
                terminated=np.array([True, False]),
                last_observations=rng.normal(size=(2, 2)),
            )
        )
    return LearningHistory.from_stages(stages)


@pytest.mark.parametrize(
    "policy",
    [MLPGaussian(2, 2, hidden=(4,)), MLPCategorical(2, 3, hidden=(4,)), LinearSoftmax(2, 3)],
    ids=lambda policy: type(policy).__name__,
)
def test_any_family_is_deterministic_and_comes_back_from_disk(
    policy: Policy, tmp_path: Path
) -> None:
    history = small_history(policy)
    told: list[tuple[str, int, int]] = []
    torch.manual_seed(1)
    first = neural_lfl(
        history, policy, gamma=0.9, config=QUICK, progress=lambda *args: told.append(args)
    )
    torch.manual_seed(2)
    again = neural_lfl(history, policy, gamma=0.9, config=QUICK)
    stage = history[0]
    batch = (stage.observations, stage.actions, stage.next_observations())
    np.testing.assert_array_equal(first(*batch), again(*batch))
    other = neural_lfl(history, policy, gamma=0.9, config=QUICK, seed=1)
    assert np.abs(first(*batch) - other(*batch)).max() > 0
    assert ("cloning", 3, 3) in told and ("reward with potentials", 20, 20) in told
    assert all(0 < done <= total for _, done, total in told)

    first.save(tmp_path / "reward.safetensors")
    back = LogDensityReward.load(tmp_path / "reward.safetensors")
    np.testing.assert_array_equal(back(*batch), first(*batch))
    assert (back.residual, back.explained) == (first.residual, first.explained)
    np.testing.assert_array_equal(
        back.shaping(stage.observations), first.shaping(stage.observations)
    )
    assert first.shaping.n_outputs == history.n_steps


@pytest.mark.parametrize("policy", [MLPGaussian(2, 2), MLPCategorical(2, 3)])
def test_numpy_reward_is_the_familys_log_density(policy: Policy) -> None:
    history = small_history(policy)
    config = replace(QUICK, hidden=None)
    reward = neural_lfl(history, policy, gamma=0.9, config=config)
    family = reward_family(history, policy)
    assert family.hidden == (64, 64)
    flat = [
        x.ravel()
        for pair in zip(reward.network.weights, reward.network.biases, strict=True)
        for x in pair
    ]
    if reward.log_std is not None:
        flat.append(reward.log_std)
    stage = history[1]
    expected = family.log_prob(family.tensor(np.concatenate(flat)), *family.prepare(stage))
    found = reward(stage.observations, stage.actions, stage.observations)
    np.testing.assert_allclose(found, 0.7 * expected.numpy(), rtol=1e-12)


def test_clones_of_stages_do_not_share_their_numbers() -> None:
    policy = LinearGaussian(2, 1)
    history = small_history(policy)
    fit = _Fit(replace(QUICK, clone_steps=600, rate=0.05), np.random.default_rng(0), None)
    cloned = _cloned(history, policy, fit)
    for t, stage in enumerate(history):
        x = stage.observations
        exact = np.linalg.lstsq(x, stage.actions, rcond=None)[0].ravel()
        spread = np.sqrt(((stage.actions - x @ exact[:, None]) ** 2).mean())
        np.testing.assert_allclose(cloned[t], [*exact, np.log(spread)], atol=0.15 * spread)
    rows = step_rows(history[0], policy, cloned[0], cloned[1], family=MLPGaussian(2, 1))
    assert rows.next_divergence.min() > 0


def test_known_parameters_are_used_unless_they_are_to_be_ignored() -> None:
    policy = LinearGaussian(2, 1)
    history = small_history(policy)
    theta = np.random.default_rng(3).normal(size=(3, 3))
    known = LearningHistory.from_stages(
        [replace(stage, parameters=row) for stage, row in zip(history, theta, strict=True)]
    )
    by_history = neural_lfl(known, policy, gamma=0.9, config=QUICK)
    again = neural_lfl(known, LinearGaussian(2, 1), gamma=0.9, config=QUICK)
    assert by_history.residual == again.residual
    ignored = neural_lfl(known, policy, gamma=0.9, config=QUICK, use_parameters=False)
    cloned = neural_lfl(history, policy, gamma=0.9, config=QUICK)
    assert by_history.residual != ignored.residual == cloned.residual


def test_temperature_only_scales() -> None:
    policy = MLPGaussian(2, 1, hidden=(4,))
    history = small_history(policy)
    stage = history[0]
    batch = (stage.observations, stage.actions, stage.observations)

    def shape(temperature: float) -> np.ndarray:
        # The potentials start alike, whatever the scale: without them the fit is the same.
        config = replace(QUICK, shaping_steps=0)
        reward = neural_lfl(history, policy, gamma=0.9, temperature=temperature, config=config)
        return reward(*batch)

    np.testing.assert_allclose(shape(2.0), 4 * shape(0.5))


def test_mistakes_are_named() -> None:
    policy = LinearGaussian(2, 1)
    history = small_history(policy)
    with pytest.raises(IdentificationError, match="at least two"):
        neural_lfl(history.slice(0, 1), policy, gamma=0.9)
    with pytest.raises(PolicyError, match=r"TabularSoftmax.*logel\.baselines\.lfl"):
        neural_lfl(history, TabularSoftmax(3, 2), gamma=0.9)
    with pytest.raises(PolicyError, match=r"stage 0.*discrete"):
        neural_lfl(history, LinearSoftmax(2, 3), gamma=0.9, config=QUICK)
    with pytest.raises(OptionError, match="gamma"):
        neural_lfl(history, policy, gamma=1.0)
    with pytest.raises(OptionError, match="temperature"):
        neural_lfl(history, policy, gamma=0.9, temperature=0.0)
    with pytest.raises(OptionError, match="shaping_steps"):
        NeuralLflConfig(shaping_steps=-1)
    with pytest.raises(IdentificationError, match="diverged"):
        neural_lfl(history, policy, gamma=0.9, config=replace(QUICK, rate=1e300))
    reward = neural_lfl(history, policy, gamma=0.9, config=QUICK)
    with pytest.raises(OptionError, match="actions of shape"):
        reward(np.zeros((3, 2)), np.zeros((3, 4)), np.zeros((3, 2)))
    with pytest.raises(OptionError, match="rows of 2 numbers"):
        reward(np.zeros((3, 5)), np.zeros((3, 1)), np.zeros((3, 5)))
    discrete = neural_lfl(
        small_history(LinearSoftmax(2, 3)), LinearSoftmax(2, 3), gamma=0.9, config=QUICK
    )
    with pytest.raises(OptionError, match=r"0\.\.2"):
        discrete(np.zeros((1, 2)), np.array([3]), np.zeros((1, 2)))
