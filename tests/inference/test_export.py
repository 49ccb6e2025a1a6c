"""Estimates in other people's formats."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import scipy.stats

from estimates import example
from logel.errors import MissingExtraError, OptionError
from logel.inference.export import posterior_draws


def test_the_frame_has_the_table() -> None:
    frame = example().to_frame(0.9)
    assert list(frame.columns) == [
        "feature",
        "weight",
        "std_err",
        "low",
        "high",
        "probability_positive",
    ]
    assert list(frame.feature) == ["goal", "cliff", "grass"]
    np.testing.assert_array_equal(frame[["low", "high"]], example().interval(0.9))
    np.testing.assert_array_equal(frame.probability_positive, example().probability_positive())
    np.testing.assert_allclose(frame.std_err, [0.1, 0.2, 0.0])


def test_draws_agree_with_the_intervals() -> None:
    estimate = example()
    draws = posterior_draws(estimate, 40_000, seed=0)
    ends = np.quantile(draws, [0.025, 0.975], axis=0).T
    np.testing.assert_allclose(ends, estimate.interval(0.95), atol=0.02)
    test = scipy.stats.kstest((draws[:, 0] - 0.8) / 0.1, scipy.stats.t(9).cdf)
    assert test.pvalue > 0.01
    np.testing.assert_array_equal(draws, posterior_draws(estimate, 40_000, seed=0))
    assert not np.array_equal(draws, posterior_draws(estimate, 40_000, seed=1))
    # Without degrees of freedom the covariance is taken for exact.
    normal = posterior_draws(example(degrees_of_freedom=0), 20_000, seed=0)[:, 1]
    assert scipy.stats.kstest((normal + 0.6) / 0.2, scipy.stats.norm.cdf).pvalue > 0.01


def test_draws_keep_their_correlations_and_are_not_redrawn() -> None:
    covariance = np.array([[2.0, 1.9, 0.0], [1.9, 2.0, 0.0], [0.0, 0.0, 1.0]])
    draws = posterior_draws(example(covariance=covariance, degrees_of_freedom=200), 20_000, seed=3)
    np.testing.assert_allclose(np.corrcoef(draws.T)[0, 1], 0.95, atol=0.01)
    own = np.random.default_rng(0).standard_normal((7, 3))
    np.testing.assert_array_equal(posterior_draws(example(draws=own), 5, seed=0), own)


def test_without_intervals_there_is_nothing_to_draw() -> None:
    for covariance in (None, np.full((3, 3), np.nan)):
        with pytest.raises(OptionError, match="no intervals to draw from: infer with intervals"):
            posterior_draws(example(covariance=covariance), 10, seed=0)
    with pytest.raises(OptionError, match="n_draws must be at least 1, but is 0"):
        posterior_draws(example(), 0, seed=0)


def test_inference_data_has_named_dimensions() -> None:
    try:
        data = example().to_inference_data(n_draws=50, seed=4)
    except MissingExtraError:
        pytest.skip("arviz is not installed")
    weights = data.posterior["weights"]
    assert weights.dims == ("chain", "draw", "feature")
    assert weights.shape == (1, 50, 3)
    assert list(weights.coords["feature"].values) == ["goal", "cliff", "grass"]
    np.testing.assert_array_equal(weights.values[0], posterior_draws(example(), 50, seed=4))
    np.testing.assert_array_equal(
        weights.sel(feature="cliff").values[0], posterior_draws(example(), 50, seed=4)[:, 1]
    )
    assert data.posterior.attrs["scale"] == "unit norm"
    assert data.posterior.attrs["method"] == "by hand"


def test_missing_packages_name_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(MissingExtraError, match=r"pip install '.*\[arviz\]'"):
        example().to_inference_data()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"pip install '.*\[report\]'"):
        example().to_frame()
