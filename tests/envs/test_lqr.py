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
    optimal_gains,
    optimal_stationary_gain,
    point_mass,
    random_lqr,
    relative_regret,
    sample_episodes,
    second_moments,
    start_value,
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
        feature_expectations(scalar(), [[-0.5]], sigma=2.0),
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
    batch = sample_episodes(problem, gain, rng=np.random.default_rng(0), n_episodes=4)
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
            point_mass(), [[-1.0, -1.0]], rng=np.random.default_rng(7), n_episodes=3, sigma=0.5
        )
        for _ in range(2)
    )
    np.testing.assert_array_equal(first.states, second.states)
    np.testing.assert_array_equal(first.actions, second.actions)


# --- best policies ----------------------------------------------------------------------------


def test_riccati_by_hand() -> None:
    # The last action only costs: 0. The first trades 1 * a^2 against .5 * (s + a)^2: a = -s / 3.
    gains = optimal_gains(scalar(), [1.0, 1.0])
    np.testing.assert_allclose(gains[:, 0, 0], [-1 / 3, 0.0], atol=1e-15)


@pytest.mark.parametrize("problem", problems())
def test_no_perturbation_beats_the_riccati_gains(problem: LQRProblem) -> None:
    rng = np.random.default_rng(4)
    weights = rng.uniform(0.2, 1.0, problem.n_features)
    gains = optimal_gains(problem, weights)
    best = start_value(problem, gains, weights=weights)
    for size in (1e-3, 0.1, 1.0):
        for _ in range(20):
            other = gains + size * rng.standard_normal(gains.shape)
            assert start_value(problem, other, weights=weights) < best
    noisy = start_value(problem, gains, weights=weights, sigma=0.3)
    other = gains + 0.1 * rng.standard_normal(gains.shape)
    assert start_value(problem, other, weights=weights, sigma=0.3) < noisy < best


@pytest.mark.parametrize("problem", problems())
def test_long_episodes_approach_the_stationary_answers(problem: LQRProblem) -> None:
    long = replace(problem, horizon=500)
    gain, sigma = policy_of(problem)
    np.testing.assert_allclose(
        feature_expectations(long, 0.1 * gain, sigma=sigma),
        stationary_expectations(problem, 0.1 * gain, sigma=sigma),
        rtol=1e-8,
    )
    weights = np.linspace(0.3, 1.0, problem.n_features)
    np.testing.assert_allclose(
        optimal_gains(long, weights)[0], optimal_stationary_gain(problem, weights), atol=1e-8
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
    gain = optimal_stationary_gain(problem, weights)
    best = stationary_expectations(problem, gain) @ weights
    for size in (1e-3, 0.01, 0.1):
        for _ in range(20):
            other = gain + size * rng.standard_normal(gain.shape)
            assert stationary_expectations(problem, other) @ weights < best


@pytest.mark.parametrize("stationary", [True, False])
def test_regret_is_zero_for_the_truth_and_grows_with_error(stationary: bool) -> None:
    problem = point_mass()
    regrets = [
        relative_regret(
            problem,
            2.0 * MASS_WEIGHTS + [0, 0, error],
            true_weights=MASS_WEIGHTS,
            stationary=stationary,
        )
        for error in (0.0, 0.5, 5.0, 1e6)
    ]
    assert regrets[0] < 1e-10
    assert regrets == sorted(regrets)
    # With a prohibitive effort the best policy is never to act, which is the initial one.
    assert regrets[-1] == pytest.approx(1.0, abs=0.01)


def test_regret_by_hand() -> None:
    # Two steps, one free action: it costs a^2 + .5 (s + a)^2 and is a = -s / 3 at its best, for
    # s^2 / 3. Believing effort to be free of cost it is a = -s, for s^2; never acting: s^2 / 2.
    regret = relative_regret(scalar(), [1, 0], true_weights=[1, 1], stationary=False)
    assert regret == pytest.approx((1 - 1 / 3) / (1 / 2 - 1 / 3))


@pytest.mark.parametrize("stationary", [True, False])
def test_weights_that_reward_ever_larger_actions(stationary: bool) -> None:
    problem = point_mass()
    for wrong in ([1, 1, -1], [-1, -1, -1], [-1, -1, 0.01]):
        regret = relative_regret(problem, wrong, true_weights=MASS_WEIGHTS, stationary=stationary)
        assert regret == np.inf
    best = optimal_stationary_gain if stationary else optimal_gains
    with pytest.raises(OptionError, match="no policy is best"):
        best(problem, [1, 1, -1])
    # Where nothing depends on the actions, not acting is as good as anything.
    np.testing.assert_array_equal(best(problem, [0, 0, 0]), 0.0)


def test_the_end_of_an_episode_is_less_forgiving() -> None:
    # A reward for speed is held back by the position's cost, except when nothing comes after.
    wrong = [0.7, -0.64, 0.3]
    assert relative_regret(point_mass(), wrong, true_weights=MASS_WEIGHTS) < 0.2
    ending = relative_regret(point_mass(), wrong, true_weights=MASS_WEIGHTS, stationary=False)
    assert ending == np.inf


@pytest.mark.parametrize("stationary", [True, False])
def test_nothing_to_lose_is_no_regret(stationary: bool) -> None:
    problem = point_mass()
    truth = [0, 0, 1]
    assert relative_regret(problem, [1, 1, 1], true_weights=truth, stationary=stationary) == 0.0


# --- mistakes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dynamics": np.eye(2)}, "dynamics must have shape"),
        ({"control": [1.0]}, "control must have shape"),
        ({"noise": [[-1.0]]}, "noise must be symmetric"),
        ({"initial_mean": [np.nan]}, "initial_mean must be finite"),
        ({"costs": [[[0.0, 1.0], [0.0, 0.0]]]}, "symmetric"),
        ({"horizon": 0}, "horizon"),
        ({"gamma": 1.0}, "gamma"),
        ({"feature_names": ("a", "a")}, "feature_names"),
    ],
)
def test_malformed_problems_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        scalar(**changes)


def test_malformed_policies_are_refused() -> None:
    with pytest.raises(PolicyError, match="gain must be finite"):
        feature_expectations(scalar(), [[1.0, 2.0]])
    with pytest.raises(PolicyError, match="sigma"):
        feature_expectations(scalar(), [[1.0]], sigma=-1.0)
    with pytest.raises(PolicyError, match="states grow too fast"):
        stationary_expectations(scalar(), [[1.0]])
    with pytest.raises(PolicyError, match="one for all times"):
        feature_jacobian(scalar(), [[[1.0]], [[1.0]]])
    with pytest.raises(OptionError, match="weights must be 2 finite"):
        start_value(scalar(), [[1.0]], weights=[1.0])
