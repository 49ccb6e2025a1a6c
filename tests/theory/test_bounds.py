"""The finite-sample bounds: hand-derived values, monotonicity, and whether they hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from logel.errors import OptionError
from logel.theory.bounds import (
    cloned_one_step_bound,
    episodes_needed,
    gaussian_cloning_error,
    jacobian_concentration,
    multi_step_bound_terms,
    one_step_bound,
)

JACOBIAN = np.array([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]])
WEIGHTS = np.array([1.0, -2.0])
CLONING: dict[str, Any] = {
    "n_pairs": 400,
    "horizon": 10,
    "gamma": 0.5,
    "bound": 0.1,
    "state_bound": 1.0,
    "reward_bound": 2.0,
    "sigma": 0.5,
    "rank": 3,
    "eta": 100.0,
    "confidence": 0.9,
}


def test_concentration_by_hand() -> None:
    # sqrt(2 * 3) * 5 * sqrt(log(2 / 0.1) / 200)
    size: dict[str, Any] = {"bound": 5.0, "n_parameters": 3, "n_features": 2, "confidence": 0.9}
    value = jacobian_concentration(100, **size)
    assert value == pytest.approx(5.0 * math.sqrt(6.0) * math.sqrt(math.log(20.0) / 200.0))
    assert jacobian_concentration(400, **size) == pytest.approx(value / 2.0)
    with_union = jacobian_concentration(100, **size, union=True)
    assert with_union / value == pytest.approx(math.sqrt(math.log(120.0) / math.log(20.0)))


def test_one_step_bound_by_hand() -> None:
    error = jacobian_concentration(10_000, bound=1.0, n_parameters=3, n_features=2, confidence=0.95)
    kappa, norm = 4.0 / 3.0, 4.0
    c = 1.0 - error / norm * kappa
    expected = error * kappa * math.sqrt(5.0) / (c * norm)
    value = one_step_bound(JACOBIAN, WEIGHTS, n_episodes=10_000, bound=1.0, confidence=0.95)
    assert value == pytest.approx(expected)


def test_one_step_bound_is_infinite_when_a_direction_may_be_lost() -> None:
    assert one_step_bound(JACOBIAN, WEIGHTS, n_episodes=1, bound=10.0, confidence=0.9) == math.inf


def test_the_y_term_appears_only_when_rank_is_lost() -> None:
    deficient = np.array([[2.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    options: dict[str, Any] = {"n_episodes": 10_000, "bound": 1.0, "confidence": 0.95}
    error = jacobian_concentration(10_000, bound=1.0, n_parameters=3, n_features=2, confidence=0.95)
    # Identified weight 1, singular value 2: y = (1 / 2, 0, 0).
    expected = error * (1.0 / (2.0 - error) + 0.5)
    assert one_step_bound(deficient, WEIGHTS, **options) == pytest.approx(expected)
    # The unidentified weight has no influence.
    assert one_step_bound(deficient, [1.0, 99.0], **options) == pytest.approx(expected)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    error=st.floats(1e-4, 1e2),
    bound=st.floats(1e-3, 1e3),
    confidence=st.floats(0.01, 0.999),
    union=st.booleans(),
    deficient=st.booleans(),
)
def test_episodes_needed_is_the_smallest_sufficient_number(
    seed: int, error: float, bound: float, confidence: float, union: bool, deficient: bool
) -> None:
    rng = np.random.default_rng(seed)
    jacobian = rng.normal(size=(4, 2))
    if deficient:
        jacobian[:, 1] = jacobian[:, 0]
    weights = rng.normal(size=2)
    options: dict[str, Any] = {"bound": bound, "confidence": confidence, "union": union}
    n = episodes_needed(error, jacobian, weights=weights, **options)
    assert one_step_bound(jacobian, weights, n_episodes=n, **options) <= error
    # Beyond 2^53 two neighbouring numbers of episodes are the same float.
    if 1 < n < 2**50:
        assert one_step_bound(jacobian, weights, n_episodes=n - 1, **options) > error


def test_multi_step_parts_by_hand() -> None:
    stack = np.stack([JACOBIAN] * 4)
    terms = multi_step_bound_terms(stack, WEIGHTS, n_episodes=50, bound=1.0, confidence=0.9)
    noise = jacobian_concentration(50, bound=1.0, n_parameters=3, n_features=2, confidence=0.9)
    rate = math.sqrt(math.log(6.0) / 4.0)
    scale = math.sqrt(5.0) / 9.0
    assert terms.vanishing == pytest.approx(scale * noise * (4.0 + noise) * rate)
    assert terms.bias == pytest.approx(scale * noise**2 * math.sqrt(6.0))


def test_more_steps_shrink_one_part_and_more_episodes_both() -> None:
    def terms(n_steps: int, n_episodes: int) -> tuple[float, float]:
        result = multi_step_bound_terms(
            np.stack([JACOBIAN] * n_steps),
            WEIGHTS,
            n_episodes=n_episodes,
            bound=1.0,
            confidence=0.9,
        )
        return result.vanishing, result.bias

    few, many, long = terms(2, 100), terms(8, 100), terms(2, 400)
    assert many == pytest.approx((few[0] / 2.0, few[1]))
    assert long[0] < few[0]
    assert long[1] == pytest.approx(few[1] / 4.0)


def test_multi_step_parts_are_infinite_without_full_rank() -> None:
    stack = np.zeros((2, 3, 2))
    stack[:, 0, 0] = 1.0
    terms = multi_step_bound_terms(stack, WEIGHTS, n_episodes=9, bound=1.0, confidence=0.9)
    assert (terms.vanishing, terms.bias) == (math.inf, math.inf)


def test_cloning_error_by_hand() -> None:
    options: dict[str, Any] = {"sigma": 2.0, "rank": 4, "eta": 0.5, "confidence": 1 - math.exp(-4)}
    assert gaussian_cloning_error(32, **options, printed=True) == pytest.approx(
        2.0 * math.sqrt(8.0 / 16.0)
    )
    assert gaussian_cloning_error(32, **options) == pytest.approx(2.0 * math.sqrt(20.0 / 16.0))


@pytest.mark.parametrize("rank", [1, 3, 10, 75])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
def test_cloning_tail_covers_the_chi_square_quantile(rank: int, confidence: float) -> None:
    error = gaussian_cloning_error(1, sigma=1.0, rank=rank, eta=1.0, confidence=confidence)
    assert error**2 >= stats.chi2.ppf(confidence, rank)


def test_the_printed_cloning_formula_is_not_a_bound() -> None:
    printed = gaussian_cloning_error(1, sigma=1.0, rank=10, eta=1.0, confidence=0.95, printed=True)
    assert printed**2 < stats.chi2.ppf(0.95, 10)


def test_cloning_error_holds_for_eta_of_the_averaged_gram_matrix() -> None:
    rng = np.random.default_rng(0)
    n, rank, sigma = 200, 5, 0.7
    features = rng.normal(size=(n, rank)) @ np.diag([1.0, 0.8, 0.5, 0.3, 0.2])
    eta = float(np.linalg.eigvalsh(features.T @ features / n)[0])
    noise = sigma * rng.normal(size=(n, 2000))
    errors = np.linalg.norm(np.linalg.lstsq(features, noise)[0], axis=0)
    bound = gaussian_cloning_error(n, sigma=sigma, rank=rank, eta=eta, confidence=0.9)
    assert (errors <= bound).mean() >= 0.9
    # With the lemma's other reading, eta of S^T S itself, it fails most of the time.
    wrong = gaussian_cloning_error(n, sigma=sigma, rank=rank, eta=n * eta, confidence=0.9)
    assert (errors <= wrong).mean() < 0.5


def test_cloned_one_step_bound_by_hand() -> None:
    value = cloned_one_step_bound(JACOBIAN, WEIGHTS, n_episodes=50, **CLONING)
    sampling = 0.1 * math.sqrt(6.0) * math.sqrt(math.log(20.0) / 100.0)
    # sigma sqrt((r + log(1 / delta)) / (n eta)), as printed
    parameters = 0.5 * math.sqrt((3.0 + math.log(10.0)) / (400.0 * 100.0))
    # T M_S^2 M_R / ((1 - gamma) sigma^2)
    error = sampling + 10.0 * 2.0 / (0.5 * 0.5**2) * parameters
    c = 1.0 - error / 3.0
    expected = error * math.sqrt(5.0) / (c * 3.0) + 2.0 * parameters / (c * 3.0)
    assert value == pytest.approx(expected)
    assert cloned_one_step_bound(JACOBIAN, WEIGHTS, n_episodes=50, **CLONING, union=True) > value


def test_cloning_bound_approaches_the_known_parameters_one() -> None:
    exact = {**CLONING, "n_pairs": 10**15}
    value = cloned_one_step_bound(JACOBIAN, WEIGHTS, n_episodes=50, **exact)
    known = one_step_bound(JACOBIAN, WEIGHTS, n_episodes=50, bound=0.1, confidence=0.9)
    assert value == pytest.approx(known, rel=1e-4)


@pytest.mark.parametrize("dependent", [False, True])
def test_the_valid_bounds_hold_as_often_as_they_say(dependent: bool) -> None:
    """Bounded one-episode Jacobians: how often are the matrix and the weights within bounds?"""
    rng = np.random.default_rng(0)
    n_runs, n_episodes, width, confidence = 2000, 400, 2.0, 0.7
    shape = JACOBIAN.shape
    # Two-point noise of the given width is the hardest case for Hoeffding's inequality, and one
    # coin for all entries the hardest for the norm.
    coins = rng.binomial(n_episodes, 0.5, size=(n_runs, *((1, 1) if dependent else shape)))
    noise = np.broadcast_to(width * (coins / n_episodes - 0.5), (n_runs, *shape))
    estimates = JACOBIAN + noise
    options: dict[str, Any] = {"bound": width, "confidence": confidence, "union": True}

    matrix_bound = jacobian_concentration(n_episodes, n_parameters=3, n_features=2, **options)
    matrix_errors = np.linalg.norm(noise, ord=2, axis=(1, 2))
    recovered = np.linalg.pinv(estimates) @ (JACOBIAN @ WEIGHTS)
    weight_bound = one_step_bound(JACOBIAN, WEIGHTS, n_episodes=n_episodes, **options)
    weight_errors = np.linalg.norm(recovered - WEIGHTS, axis=1)
    assert math.isfinite(weight_bound)
    for errors, bound in ((matrix_errors, matrix_bound), (weight_errors, weight_bound)):
        held = int((errors <= bound).sum())
        # One-sided: no significant evidence that the bound holds less often than it says.
        assert stats.binomtest(held, n_runs, confidence, alternative="less").pvalue > 0.01
        assert held >= confidence * n_runs


def test_malformed_arguments_are_refused() -> None:
    good: dict[str, Any] = {"n_episodes": 10, "bound": 1.0, "confidence": 0.9}
    for change, message in (
        ({"confidence": 95.0}, "0.95, not 95"),
        ({"confidence": 1.0}, "strictly between"),
        ({"n_episodes": 0}, "n_episodes must be at least 1"),
        ({"bound": -1.0}, "bound must be a positive"),
        ({"bound": math.nan}, "bound must be a positive"),
    ):
        with pytest.raises(OptionError, match=message):
            one_step_bound(JACOBIAN, WEIGHTS, **{**good, **change})
    with pytest.raises(OptionError, match="2 finite numbers"):
        one_step_bound(JACOBIAN, [1.0], **good)
    with pytest.raises(OptionError, match=r"shape \(d, q\)"):
        one_step_bound(WEIGHTS, WEIGHTS, **good)
    with pytest.raises(OptionError, match="Jacobian is zero"):
        one_step_bound(np.zeros((3, 2)), WEIGHTS, **good)
    with pytest.raises(OptionError, match=r"shape \(m, d, q\)"):
        multi_step_bound_terms(JACOBIAN, WEIGHTS, **good)
    with pytest.raises(OptionError, match="error must be a positive"):
        episodes_needed(0.0, JACOBIAN, weights=WEIGHTS, bound=1.0, confidence=0.9)
    for change, message in (
        ({"gamma": 1.0}, "gamma"),
        ({"horizon": 0}, "horizon"),
        ({"sigma": 0.0}, "sigma"),
        ({"eta": 0.0}, "eta"),
        ({"rank": 0}, "rank"),
        ({"n_pairs": 0}, "n_pairs"),
    ):
        with pytest.raises(OptionError, match=message):
            cloned_one_step_bound(JACOBIAN, WEIGHTS, n_episodes=10, **{**CLONING, **change})
