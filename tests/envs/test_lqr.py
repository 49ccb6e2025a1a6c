"""The linear-quadratic world: exact answers against differences, samples and hand calculations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from logel.envs.lqr import (
    LQRProblem,
    feature_expectations,
    feature_jacobian,
    optimal_stationary_gain,
    point_mass,
    random_lqr,
    relative_regret,
    sample_episodes,
    second_moments,
    stationary_expectations,
)
from logel.errors import OptionError, PolicyError

MASS_WEIGHTS = np.array([1.0, 0.3, 0.2])


def problems() -> list[Any]:
    return [
        pytest.param(point_mass(horizon=8), id="point mass"),
        pytest.param(random_lqr(np.random.default_rng(0), horizon=6), id="random"),
        pytest.param(
            random_lqr(np.random.default_rng(1), n_states=1, n_actions=1, n_features=2, horizon=1),
            id="one step",
        ),
    ]


def policy_of(problem: LQRProblem, seed: int = 5) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    gain = 0.4 * rng.standard_normal((problem.n_actions, problem.n_states))
    return gain, np.exp(0.5 * rng.standard_normal(problem.n_actions))


def scalar(**changes: Any) -> LQRProblem:
    """s' = s + a + noise, features -s^2 and -a^2: small enough to solve by hand."""
    settings: dict[str, Any] = {
        "dynamics": [[1.0]],
        "control": [[1.0]],
        "noise": [[0.5]],
        "initial_mean": [2.0],
        "initial_covariance": [[1.0]],
        "costs": [[[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 1.0]]],
        "horizon": 2,
        "gamma": 0.5,
    }
    return LQRProblem(**{**settings, **changes})


# --- expectations and derivatives -------------------------------------------------------------


def test_expectations_by_hand() -> None:
    # E s0^2 = 4 + 1; with a = -s/2 + e, Var e = 4: E s1^2 = 5/4 + 4 + 1/2, E a^2 = E s^2 / 4 + 4.
    second = 5 / 4 + 4 + 0.5
    np.testing.assert_allclose(
        feature_expectations(scalar(), np.array([[-0.5]]), sigma=np.array([2.0])),
        [-(5 + 0.5 * second), -(5 / 4 + 4 + 0.5 * (second / 4 + 4))],
    )


@pytest.mark.parametrize("problem", problems())
def test_monte_carlo_agrees_with_the_moments(problem: LQRProblem) -> None:
    gain, sigma = policy_of(problem)
    batch = sample_episodes(
        problem, gain, rng=np.random.default_rng(2), n_episodes=20_000, sigma=sigma
    )
    discounts = problem.gamma ** np.arange(problem.horizon)
    returns = np.einsum("h,nhq->nq", discounts, batch.features)
    error = returns.std(axis=0, ddof=1) / np.sqrt(len(returns))
    exact = feature_expectations(problem, gain, sigma=sigma)
    assert (np.abs(returns.mean(axis=0) - exact) < 4 * error).all()
    last = batch.states[:, -2]
    products = last[:, :, None] * last[:, None, :]
    error = products.std(axis=0, ddof=1) / np.sqrt(len(products))
    exact = second_moments(problem, gain, sigma=sigma)[-1]
    assert (np.abs(products.mean(axis=0) - exact) < 4 * error).all()


@pytest.mark.parametrize("problem", problems())
def test_jacobian_agrees_with_finite_differences(problem: LQRProblem) -> None:
    gain, sigma = policy_of(problem)
    by_gain, by_log_std = feature_jacobian(problem, gain, sigma=sigma)
    size = 1e-5
    for index in np.ndindex(*gain.shape):
        shift = np.zeros_like(gain)
        shift[index] = size
        upper = feature_expectations(problem, gain + shift, sigma=sigma)
        lower = feature_expectations(problem, gain - shift, sigma=sigma)
        np.testing.assert_allclose(by_gain[index], (upper - lower) / (2 * size), atol=1e-6)
    for k in range(problem.n_actions):
        factor = np.where(np.arange(problem.n_actions) == k, np.exp(size), 1.0)
        upper = feature_expectations(problem, gain, sigma=sigma * factor)
        lower = feature_expectations(problem, gain, sigma=sigma / factor)
        np.testing.assert_allclose(by_log_std[k], (upper - lower) / (2 * size), atol=1e-6)


def test_features_are_minus_the_named_squares() -> None:
    problem = point_mass()
    states, actions = np.array([[3.0, -2.0]]), np.array([[0.5]])
    np.testing.assert_array_equal(problem.features(states, actions, states), [[-9, -4, -0.25]])
    assert problem.feature_names == ("-position^2", "-velocity^2", "-effort^2")


def test_episodes_obey_the_dynamics_and_the_policy() -> None:
    problem = random_lqr(np.random.default_rng(3), horizon=5, noise=0.0)
    gain, _ = policy_of(problem)
    still = np.zeros(problem.n_actions)
    batch = sample_episodes(problem, gain, rng=np.random.default_rng(0), n_episodes=4, sigma=still)
    states, actions = batch.states, batch.actions
    np.testing.assert_allclose(actions, states[:, :-1] @ gain.T)
    following = states[:, :-1] @ problem.dynamics.T + actions @ problem.control.T
    np.testing.assert_allclose(states[:, 1:], following)
    stage = batch.stage(parameters=np.zeros(2))
    episodes = list(stage.episodes)
    assert len(episodes) == 4 and stage.parameters is not None
    np.testing.assert_array_equal(episodes[2].observations, states[2])
    np.testing.assert_array_equal(episodes[2].features, batch.features[2])
    recomputed = stage.with_features(problem.features)
    np.testing.assert_array_equal(recomputed.features, stage.features)


def test_the_same_seed_gives_the_same_episodes() -> None:
    first, second = (
        sample_episodes(
            point_mass(),
            np.array([[-1.0, -1.0]]),
            rng=np.random.default_rng(7),
            n_episodes=3,
            sigma=np.array([0.5]),
        )
        for _ in range(2)
    )
    np.testing.assert_array_equal(first.states, second.states)
    np.testing.assert_array_equal(first.actions, second.actions)


# --- best policies ----------------------------------------------------------------------------


def first_riccati_gain(problem: LQRProblem, weights: Any, horizon: int) -> Any:
    """The first action's best gain in an episode that ends, by the recursion from its end."""
    n, gamma = problem.n_states, problem.gamma
    cost = np.tensordot(weights, problem.costs, axes=1)
    both = np.concatenate([problem.dynamics, problem.control], axis=1)
    to_go = np.zeros((n, n))
    for _ in range(horizon):
        total = cost + gamma * both.T @ to_go @ both
        gain = -np.linalg.solve(total[n:, n:], total[n:, :n])
        closed = np.concatenate([np.eye(n), gain])
        to_go = closed.T @ total @ closed
    return gain


def best_gain(problem: LQRProblem, weights: Any) -> Any:
    gain = optimal_stationary_gain(problem, weights)
    assert gain is not None
    return gain


# With both weights 1 the scalar problem's cost to go is p s^2, p = 1 + p/2 - (p/2)^2 / (1 + p/2):
# p = sqrt(2), and the best action -s (p/2) / (1 + p/2).
SCALAR_GAIN = -(0.5**0.5) / (1 + 0.5**0.5)


def test_riccati_by_hand() -> None:
    gain = best_gain(scalar(), [1.0, 1.0])
    np.testing.assert_allclose(gain, [[SCALAR_GAIN]], atol=1e-12)
    # The last action only costs: 0. The first trades 1 * a^2 against .5 * (s + a)^2: a = -s / 3.
    for horizon, expected in ((1, 0.0), (2, -1 / 3)):
        oracle = first_riccati_gain(scalar(), [1.0, 1.0], horizon)
        np.testing.assert_allclose(oracle, [[expected]], atol=1e-15)


@pytest.mark.parametrize("problem", problems())
def test_long_episodes_approach_the_stationary_answers(problem: LQRProblem) -> None:
    long = replace(problem, horizon=500)
    gain, sigma = policy_of(problem)
    np.testing.assert_allclose(
        feature_expectations(long, 0.1 * gain, sigma=np.zeros_like(sigma)),
        stationary_expectations(problem, 0.1 * gain),
        rtol=1e-8,
    )
    weights = np.linspace(0.3, 1.0, problem.n_features)
    np.testing.assert_allclose(
        first_riccati_gain(problem, weights, 500),
        best_gain(problem, weights),
        atol=1e-8,
    )


@pytest.mark.parametrize(
    ("problem", "weights"),
    [
        *((p.values[0], np.linspace(0.2, 1.0, p.values[0].n_features)) for p in problems()),
        pytest.param(point_mass(), np.array([0.7, -0.64, 0.3]), id="speed rewarded"),
    ],
)
def test_no_perturbation_beats_the_stationary_gain(problem: LQRProblem, weights: Any) -> None:
    rng = np.random.default_rng(4)
    gain = best_gain(problem, weights)
    best = stationary_expectations(problem, gain) @ weights
    for size in (1e-3, 0.01, 0.1):
        for _ in range(20):
            other = gain + size * rng.standard_normal(gain.shape)
            assert stationary_expectations(problem, other) @ weights < best


def test_regret_is_zero_for_the_truth_and_grows_with_error() -> None:
    regrets = [
        relative_regret(point_mass(), 2.0 * MASS_WEIGHTS + [0, 0, error], true_weights=MASS_WEIGHTS)
        for error in (0.0, 0.5, 5.0, 1e6)
    ]
    assert regrets[0] < 1e-10
    assert regrets == sorted(regrets)
    # With a prohibitive effort the best policy is never to act, which is the initial one.
    assert regrets[-1] == pytest.approx(1.0, abs=0.01)


def test_regret_by_hand() -> None:
    # A gain k costs (1 + k^2) E sum gamma^h s_h^2, a sum proportional to 1 / (1 - (1 + k)^2 / 2).
    # Believing effort to be free of cost it is k = -1, for 2; never acting, k = 0, costs 2 too.
    def cost(k: float) -> float:
        return (1 + k**2) / (1 - (1 + k) ** 2 / 2)

    best = cost(SCALAR_GAIN)
    assert best == pytest.approx(2**0.5)
    for wrong, gain in (([1, 0], -1.0), ([0, 1], 0.0), ([1, 1e-9], -1.0)):
        regret = relative_regret(scalar(), wrong, true_weights=[1, 1])
        assert regret == pytest.approx((cost(gain) - best) / (cost(0.0) - best))


def test_weights_that_reward_ever_larger_actions() -> None:
    problem = point_mass()
    for wrong in ([1, 1, -1], [-1, -1, -1], [-1, -1, 0.01]):
        assert relative_regret(problem, wrong, true_weights=MASS_WEIGHTS) == np.inf
    assert optimal_stationary_gain(problem, [1, 1, -1]) is None
    with pytest.raises(OptionError, match="no policy best"):
        relative_regret(problem, MASS_WEIGHTS, true_weights=[1, 1, -1])
    # Where nothing depends on the actions, not acting is as good as anything.
    np.testing.assert_array_equal(best_gain(problem, [0, 0, 0]), 0.0)


def test_a_reward_for_speed_is_held_back_by_the_positions_cost() -> None:
    assert relative_regret(point_mass(), [0.7, -0.64, 0.3], true_weights=MASS_WEIGHTS) < 0.2


def test_nothing_to_lose_is_no_regret() -> None:
    assert relative_regret(point_mass(), [1, 1, 1], true_weights=[0, 0, 1]) == 0.0


# --- mistakes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"initial_mean": [np.nan]}, "initial_mean must be finite"),
        ({"horizon": 0}, "horizon"),
        ({"gamma": 1.0}, "gamma"),
        ({"feature_names": ("a", "a")}, "feature_names"),
    ],
)
def test_malformed_problems_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        scalar(**changes)


def test_policies_and_weights_that_make_no_sense_are_refused() -> None:
    with pytest.raises(PolicyError, match="states grow too fast"):
        stationary_expectations(scalar(), np.array([[1.0]]))
    with pytest.raises(OptionError, match="weights must be 2 finite"):
        optimal_stationary_gain(scalar(), [1.0])
