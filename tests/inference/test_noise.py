"""Metrics: products, roots and sketches against explicit matrices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logel.inference.noise import (
    DenseMetric,
    IdentityMetric,
    LowRank,
    LowRankMetric,
    NoiseLevel,
    dense_metric,
    sketch,
)
from logel.inference.steps import Steps, compress, compress_grams
from logel.policies.fisher import DenseFisher, ProductFisher

seeds = st.integers(0, 2**32 - 1)


def information(rng: np.random.Generator, d: int, rank: int) -> np.ndarray:
    root = rng.normal(size=(d, rank)) * 3.0 ** -np.arange(rank)
    return np.asarray(10 * root @ root.T)


def products(matrix: np.ndarray) -> ProductFisher:
    return ProductFisher(len(matrix), lambda v: matrix @ v, lambda _: np.diagonal(matrix).copy())


def grams_of(steps: Steps) -> np.ndarray:
    return steps.grams()[0]


@given(seed=seeds, d=st.integers(1, 8), q=st.integers(1, 4))
def test_every_metric_compresses_to_its_gram_matrix(seed: int, d: int, q: int) -> None:
    rng = np.random.default_rng(seed)
    delta, design = rng.normal(size=d), rng.normal(size=(d, q))
    both = np.column_stack([design, delta])
    covariance = information(rng, d, d + 1) + 0.1 * np.eye(d)
    for metric, matrix in (
        (IdentityMetric(), np.eye(d)),
        (DenseMetric(covariance), np.linalg.inv(covariance)),
    ):
        expected = both.T @ matrix @ both
        scale = np.abs(expected).max()
        np.testing.assert_allclose(metric.grams(both), expected, atol=1e-8 * scale)
        np.testing.assert_allclose(
            grams_of(metric.compress(delta[None], design[None])), expected, atol=1e-8 * scale
        )
        stacked = np.stack([both, 2 * both])
        np.testing.assert_allclose(metric.grams(stacked)[1], 4 * expected, atol=1e-8 * scale)


@given(seed=seeds, d=st.integers(1, 9))
def test_a_full_sketch_of_products_gives_the_dense_metric(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    one, two = information(rng, d, d + 2), information(rng, d, d + 2)
    metric = LowRankMetric(sketch(products(one), ridge=1.0), sketch(products(two), ridge=1.0))
    inverse = [np.linalg.inv(m + np.eye(d)) for m in (one, two)]
    matrix = np.linalg.inv(inverse[0] + inverse[1])
    both = rng.normal(size=(d, 3))
    expected = both.T @ matrix @ both
    np.testing.assert_allclose(metric.grams(both), expected, rtol=1e-6, atol=1e-6)
    step = metric.compress(both[None, :, 2], both[None, :, :2])
    np.testing.assert_allclose(grams_of(step), expected, rtol=1e-6, atol=1e-6)


def test_a_sketch_keeps_leading_directions_and_every_diagonal() -> None:
    rng = np.random.default_rng(0)
    matrix = information(rng, 60, 8)
    low = sketch(products(matrix), ridge=0.5, rank=20)
    dense = low.matvec(np.eye(60))
    # Eight directions are all there is: twenty products see them completely.
    np.testing.assert_allclose(dense, matrix + 0.5 * np.eye(60), atol=1e-6)
    coarse = sketch(products(matrix), ridge=0.5, rank=3).matvec(np.eye(60))
    assert np.linalg.norm(coarse - matrix) < 0.2 * np.linalg.norm(matrix)
    assert (np.diagonal(coarse) >= np.diagonal(matrix) + 0.5 - 1e-9).all()


@given(seed=seeds, d=st.integers(1, 8), k=st.integers(0, 4))
def test_low_rank_solves_undo_products(seed: int, d: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    low = LowRank(rng.normal(size=(d, k)), rng.uniform(0.1, 2, k), rng.uniform(0.5, 2, d))
    x = rng.normal(size=(d, 2))
    np.testing.assert_allclose(low.solve(low.matvec(x)), x, atol=1e-8)
    np.testing.assert_allclose((low + low).matvec(x), 2 * low.matvec(x), atol=1e-10)


def test_covariances_add_up() -> None:
    rng = np.random.default_rng(1)
    clones, shape = information(rng, 4, 5) + np.eye(4), information(rng, 4, 5)
    metric = dense_metric(clones, shape, NoiseLevel(0.5, 0.25), 4)
    total = clones + 0.5 * shape + 0.25 * np.eye(4)
    np.testing.assert_allclose(metric.grams(np.eye(4)), np.linalg.inv(total), rtol=1e-8)
    assert metric.log_determinant == pytest.approx(np.linalg.slogdet(total)[1])
    alone = dense_metric(None, None, NoiseLevel(1.0, 2.0), 4)
    np.testing.assert_allclose(alone.grams(np.eye(4)), np.eye(4) / 2)


def test_gram_matrices_lose_nothing_that_matters() -> None:
    rng = np.random.default_rng(2)
    delta, design = rng.normal(size=(3, 7)), rng.normal(size=(3, 7, 2)) * [1.0, 1e3]
    exact = compress(delta, design)
    again = compress_grams(exact.grams(), n_parameters=7)
    np.testing.assert_allclose(again.grams(), exact.grams(), rtol=1e-10)
    np.testing.assert_allclose(again.squared_movement, exact.squared_movement)
    assert DenseFisher(np.eye(2)).n_parameters == 2
