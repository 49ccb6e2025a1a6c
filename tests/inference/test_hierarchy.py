"""A group's mean and spread: integrals by simulation, and what is recovered from known groups."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp

from logel.inference.direction import Account, Evidence, Stack, unit
from logel.inference.hierarchy import by_learner, fit_group, spread_of_normal


def learner(mean: np.ndarray, information: np.ndarray, chance: float = 0.05) -> Evidence:
    k = len(mean)
    account = Account("gradient", 1.0, information @ mean, information)
    return Evidence((account,), chance, np.zeros((0, k)), np.eye(k))


def group(seed: int, spread: float, *, n: int = 8, k: int = 3) -> tuple[Stack, np.ndarray]:
    """Gaussian evidence about learners that stray from a mean, each of a size of its own."""
    rng = np.random.default_rng(seed)
    mean = unit(rng.standard_normal(k))
    parts = []
    for _ in range(n):
        root = rng.standard_normal((k, k + 3))
        information = 20 * root @ root.T
        weights = np.exp(rng.standard_normal()) * (mean + spread * rng.standard_normal(k))
        noise = np.linalg.cholesky(np.linalg.inv(information)) @ rng.standard_normal(k)
        parts.append(learner(weights + noise, information))
    return Stack.of(parts, rng), mean


def test_without_a_spread_it_is_the_evidence_of_shared_weights() -> None:
    stack, mean = group(0, 0.0)
    directions = unit(mean + 0.3 * np.random.default_rng(1).standard_normal((20, 3)))
    shared = stack.by_learner(directions)
    assert by_learner(stack, directions, np.full(20, 1e-4)) == pytest.approx(shared, abs=0.06)


@pytest.mark.parametrize("tau", [0.1, 0.8])
def test_the_integral_over_single_weights_by_simulation(tau: float) -> None:
    stack, mean = group(2, 0.3, n=2)
    rng = np.random.default_rng(3)
    v = mean + tau * rng.standard_normal((15000, 3))
    y = np.linspace(0.0, np.log(3e3), 250)
    for i in range(2):
        information, linear = stack.information[i, 0], stack.linear[i, 0]
        sizes = np.expm1(y) / np.sqrt(mean @ information @ mean)
        square, along = np.einsum("pi,ij,pj->p", v, information, v), v @ linear
        logs = [logsumexp(c * along - c**2 * square / 2) - np.log(len(v)) for c in sizes]
        whole = logsumexp(np.array(logs) + np.log(y[1] - y[0])) + stack.log_shares[i, 0]
        expected = np.logaddexp(whole, stack.log_chances[i])
        found = by_learner(stack, mean[None], np.array([tau]))[0, i]
        assert found == pytest.approx(expected, abs=0.1)


def test_a_known_spread_is_recovered_and_none_is_not_invented() -> None:
    for spread, low, high in ((0.0, 0.0, 0.12), (0.4, 0.25, 0.65)):
        stack, mean = group(4, spread, n=12)
        found = fit_group(stack, 150, np.random.default_rng(5))
        assert low <= np.median(found.spreads) <= high
        assert np.linalg.norm(unit(found.means.mean(axis=0)) - mean) < 0.1 + spread / 2


def test_few_learners_leave_the_spread_open() -> None:
    few, many = (
        fit_group(group(6, 0.3, n=n)[0], 200, np.random.default_rng(7)).spreads for n in (2, 12)
    )
    assert np.subtract(*np.quantile(few, [0.9, 0.1])) > 2 * np.subtract(
        *np.quantile(many, [0.9, 0.1])
    )


def test_who_is_seen_badly_is_drawn_to_the_mean() -> None:
    """Partial pooling: the same deviation, seen well and hardly."""
    mean = np.array([1.0, 0.0, 0.0])
    rng = np.random.default_rng(8)
    others = [learner(mean + 0.1 * rng.standard_normal(3), 400 * np.eye(3), 0.01) for _ in range(8)]
    off = np.array([0.6, 0.8, 0.0])
    stack = Stack.of(
        [*others, learner(off, 400 * np.eye(3), 1e-9), learner(off, 2 * np.eye(3))], rng
    )
    found = fit_group(stack, 300, rng)
    well, badly = (unit(found.singles[i].mean(axis=0)) for i in (8, 9))
    assert np.linalg.norm(well - off) < 0.15
    assert badly[1] < 0.45 and badly[0] > 0.85


def test_one_who_learnt_nothing_is_a_draw_of_the_group() -> None:
    rng = np.random.default_rng(9)
    parts = [learner(np.array([1.0, 0.5]), 300 * np.eye(2), 0.01) for _ in range(5)]
    stack = Stack.of([*parts, learner(np.array([-1.0, 0.0]), np.eye(2), 1.0)], rng)
    found = fit_group(stack, 300, rng)
    nobody = unit(found.singles[5].mean(axis=0))
    assert nobody == pytest.approx(unit(np.array([1.0, 0.5])), abs=0.1)


def test_the_prior_of_the_spread_is_half_cauchy() -> None:
    z = np.random.default_rng(10).standard_normal(20000)
    assert np.median(spread_of_normal(z)) == pytest.approx(0.5, rel=0.05)
    assert np.quantile(spread_of_normal(z), 0.75) == pytest.approx(
        0.5 * np.tan(3 * np.pi / 8), rel=0.1
    )
