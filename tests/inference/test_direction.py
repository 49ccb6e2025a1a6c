"""Evidence about directions: integrals by quadrature, Bayes by hand, and no prior counted twice."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from logel.inference.direction import (
    Account,
    Evidence,
    Stack,
    log_integral,
    student_accounts,
    unit,
)


def evidence(mean: list[float], precision: float = 50.0, chance: float = 0.0) -> Evidence:
    k = len(mean)
    account = Account.of("gradient", 1.0, np.array(mean), np.eye(k) / precision)
    return Evidence((account,), chance, np.zeros((0, k)), np.eye(k))


def circle(n: int) -> np.ndarray:
    angles = 2 * np.pi * np.arange(n) / n
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def stacked(*parts: Evidence) -> Stack:
    return Stack.of(parts, np.random.default_rng(0))


@pytest.mark.parametrize("t", [-200.0, -31.0, -30.0, -3.0, 0.0, 0.4, 7.0, 59.9, 61.0, 300.0])
def test_the_integral_over_sizes(t: float) -> None:
    peak = max(t, 0.0)
    ends = sorted({0.0, 0.001, 0.01, 0.1, 1.0, max(peak - 6, 0.0), peak, peak + 1, peak + 15})
    whole = sum(
        quad(lambda x: np.exp(x * t - x * x / 2 - peak**2 / 2) / (1 + x), a, b)[0]
        for a, b in pairwise(ends)
    )
    assert log_integral(np.array(t)) - peak**2 / 2 == pytest.approx(np.log(whole), abs=2e-3)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=20))
def test_it_grows_with_what_is_seen(values: list[float]) -> None:
    ordered = np.sort(np.array(values))
    assert (np.diff(log_integral(ordered)) >= -1e-9).all()


def test_evidence_has_mean_one_over_all_directions() -> None:
    """So that it multiplies, and a learner that says nothing changes nothing."""
    directions = circle(4000)
    logs = stacked(evidence([0.8, 0.3]), evidence([0.0, 0.1], chance=0.6)).by_learner(directions)
    assert np.exp(logs).mean(axis=0) == pytest.approx(np.ones(2), rel=0.1)
    nothing = stacked(evidence([0.5, 0.5], chance=1.0)).by_learner(directions)
    assert nothing == pytest.approx(np.zeros((4000, 1)))


def test_n_equal_learners_know_what_one_with_n_times_the_data_knows() -> None:
    """The uniform prior counts once: the spread falls as one over the root of n."""
    directions = circle(20000)

    def spread(log_density: np.ndarray) -> float:
        weights = np.exp(log_density - log_density.max())
        angles = np.arctan2(directions[:, 1], directions[:, 0])
        weights /= weights.sum()
        return float(np.sqrt(weights @ angles**2 - (weights @ angles) ** 2))

    many = stacked(*[evidence([1.0, 0.0], 200.0)] * 9).by_learner(directions).sum(axis=1)
    one = stacked(evidence([1.0, 0.0], 200.0)).by_learner(directions)[:, 0]
    more = stacked(evidence([1.0, 0.0], 1800.0)).by_learner(directions)[:, 0]
    assert spread(many) == pytest.approx(spread(one) / 3, rel=0.05)
    assert spread(many) == pytest.approx(spread(more), rel=0.05)


def test_the_size_of_weights_does_not_matter_and_their_units_do_not() -> None:
    directions = circle(500)
    small, large = (
        Evidence(
            (Account.of("gradient", 1.0, c * np.array([0.6, 0.2]), c**2 * np.diag([0.01, 0.05])),),
            0.1,
            np.zeros((0, 2)),
            np.eye(2),
        )
        for c in (1e-3, 1e3)
    )
    assert stacked(small).by_learner(directions) == pytest.approx(
        stacked(large).by_learner(directions), abs=1e-6
    )


def test_noise_widens_an_account_as_covariances_add() -> None:
    rng = np.random.default_rng(1)
    roots = rng.standard_normal((2, 3, 3))
    one, two = (r @ r.T for r in roots)
    mean = rng.standard_normal(3)
    wide = Account.of("gradient", 1.0, mean, one).widened(two)
    both = Account.of("gradient", 1.0, mean, one + two)
    assert wide.information == pytest.approx(both.information)
    assert wide.linear == pytest.approx(both.linear)


def test_other_coordinates_tell_the_same() -> None:
    rng = np.random.default_rng(2)
    matrix = rng.standard_normal((3, 3))
    account = Account.of("gradient", 1.0, rng.standard_normal(3), np.diag([1.0, 2.0, 0.5]))
    z = rng.standard_normal((5, 3))

    def value(account: Account, w: np.ndarray) -> np.ndarray:
        return w @ account.linear - np.einsum("pi,ij,pj->p", w, account.information, w) / 2

    assert value(account.through(matrix), z) == pytest.approx(value(account, z @ matrix.T))


def test_few_degrees_of_freedom_have_heavy_tails() -> None:
    mean, covariance = np.array([3.0, 0.0]), np.eye(2)
    parts = tuple(student_accounts("mirror", mean, covariance, 4))
    heavy = stacked(Evidence(parts, 0.0, np.zeros((0, 2)), np.eye(2)))
    light = stacked(evidence([3.0, 0.0], 1.0))
    back = np.array([[-1.0, 0.0]])
    assert heavy.by_learner(back)[0, 0] > light.by_learner(back)[0, 0] + 0.5
    assert len(student_accounts("mirror", mean, covariance, 200)) == 1


def test_world_noise_is_a_jackknife() -> None:
    moved = np.array([[0.1, 0.0], [-0.1, 0.0], [0.0, 0.2], [0.0, -0.2]])
    one = Evidence(evidence([1.0, 0.0]).accounts, 0.0, moved, np.eye(2))
    assert one.world_noise == pytest.approx(3 / 4 * np.diag([0.02, 0.08]))
    assert one.widened().moved.shape == (0, 2)


def test_units() -> None:
    assert unit(np.array([[3.0, 4.0], [0.0, 0.0]])) == pytest.approx(np.array([[0.6, 0.8], [0, 0]]))
