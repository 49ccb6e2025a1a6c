"""Steps in standard form: compression and metrics keep every residual, merging every answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_regress import metrics_for, naive_objective, problem

from logel.errors import IdentificationError, OptionError
from logel.inference.regress import (
    objective,
    solve,
)
from logel.inference.steps import compress


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 5), st.integers(0, 1000))
@settings(max_examples=50)
def test_compression_preserves_the_objective(m: int, d: int, q: int, seed: int) -> None:
    delta, design, weights, rates = problem(seed, m=m, d=d, q=q, noise=1.0)
    steps = compress(delta, design)
    assert steps.design.shape == (m, min(d, q + 1), q) and steps.n_parameters == d
    assert objective(steps, weights, rates, ridge=0.3) == pytest.approx(
        naive_objective(delta, design, weights, rates, 0.3), rel=1e-9
    )
    np.testing.assert_allclose(steps.squared_movement, (delta**2).sum(axis=1))


def test_forms_of_the_metric_agree() -> None:
    delta, design, weights, rates = problem(3)
    m, d = delta.shape
    diagonal = np.random.default_rng(0).random((m, d))
    diagonal[0, 0] = 0.0
    dense = np.stack([np.diag(row) for row in diagonal])
    values = [
        objective(compress(delta, design, metric=metric), weights, rates)
        for metric in (diagonal, dense)
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-12)
    plain = objective(compress(delta, design), weights, rates)
    for identity in (np.ones((m, d)), np.broadcast_to(np.eye(d), (m, d, d))):
        same = objective(compress(delta, design, metric=identity), weights, rates)
        assert same == pytest.approx(plain, rel=1e-12)
    metric = metrics_for(delta)
    residual = delta - rates[:, None] * (design @ weights)
    expected = sum(r @ M @ r for r, M in zip(residual, metric, strict=True))
    found = objective(compress(delta, design, metric=metric), weights, rates)
    assert found == pytest.approx(expected, rel=1e-10)


def test_merged_steps_stand_for_all_of_them() -> None:
    rng = np.random.default_rng(2)
    steps = compress(rng.normal(size=(4, 6)), rng.normal(size=(4, 6, 3)))
    steps = replace(steps, noise=np.broadcast_to(0.01 * np.eye(4), (4, 4, 4)).copy())
    rates = rng.uniform(0.5, 2, size=4)
    merged = steps.merged(rates)
    one, two = solve(steps, rates), solve(merged, np.ones(1))
    np.testing.assert_allclose(one.weights, two.weights, rtol=1e-10)
    assert merged.n_parameters == 24 and one.share == two.share == 1
    basis = np.linalg.qr(rng.normal(size=(3, 2)))[0]
    assert merged.projected(basis).noise.shape == (1, 3, 3)  # type: ignore[union-attr]
    assert steps.part(slice(1, 2)).n_steps == 1
    np.testing.assert_array_equal(steps.part(slice(3, 4)).delta[0], steps.delta[3])


def test_no_movement_is_an_error() -> None:
    with pytest.raises(IdentificationError, match="do not move"):
        compress(np.zeros((2, 3)), np.ones((2, 3, 1)))
    # Movement only where the metric does not look is no movement either.
    with pytest.raises(IdentificationError, match="do not move"):
        compress(np.eye(2), np.ones((2, 2, 1)), metric=1.0 - np.eye(2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"delta": np.zeros((3, 7))}, r"are \(3, 7\) and \(4, 7, 3\)"),
        ({"delta": np.full((4, 7), np.nan)}, "must be finite"),
        ({"metric": np.ones((4, 3))}, r"\(m, d\) or \(m, d, d\).*\(4, 3\)"),
        ({"metric": -np.ones((4, 7))}, "must not be negative"),
        ({"metric": np.broadcast_to(-np.eye(7), (4, 7, 7))}, "positive semi-definite"),
    ],
)
def test_malformed_problems_are_refused(change: dict[str, Any], message: str) -> None:
    delta, design, _, _ = problem(0)
    with pytest.raises(OptionError, match=message):
        compress(**{"delta": delta, "design": design, **change})
