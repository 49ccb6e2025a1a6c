"""Schedules of learning rates: their evidence against the full normal, and what they find."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from logel.rules.rates import (
    _NOISE,
    Schedule,
    StepMoments,
    known_schedules,
    posterior,
    schedules,
    shapes,
    weigh,
)


@given(n_steps=st.integers(1, 40))
def test_schedules_are_a_prior_over_rates_of_mean_one(n_steps: int) -> None:
    among = schedules(n_steps)
    assert sum(s.prior for s in among) == pytest.approx(1)
    rates = np.stack([s.rates for s in among])
    np.testing.assert_allclose(rates.mean(axis=1), 1)
    assert (rates > 0).all() and all((s.noise > 0).all() for s in among)
    assert (rates[0] == 1).all() and (among[0].noise == 1).all()
    assert len(among) == 1 if n_steps == 1 else len(shapes(n_steps)) == 4


def test_evidence_is_that_of_the_full_normal() -> None:
    rng = np.random.default_rng(0)
    m, k, q = 3, 4, 2
    delta, design = rng.standard_normal((m, k)), rng.standard_normal((m, k, q))
    sampled = np.array([0.1, 0.0, 0.4])
    moments = StepMoments(
        squared=(delta**2).sum(axis=1),
        inner=np.einsum("tki,tk->ti", design, delta),
        gram=np.einsum("tki,tkj->tij", design, design),
        sampled=sampled,
        n_coordinates=k,
    )
    schedule = Schedule(np.array([1.5, 1.0, 0.5]), np.array([1.2, 1.0, 0.8]), 1.0)
    flat = (schedule.rates[:, None, None] * design).reshape(m * k, q)
    logs = []
    for noise in _NOISE * (delta**2).mean():
        own = np.repeat(sampled + schedule.noise**2 * noise, k)
        normal = scipy.stats.multivariate_normal(cov=np.diag(own) + flat @ flat.T / 2.5)
        logs.append(normal.logpdf(delta.ravel()) + m * k / 2 * np.log(2 * np.pi))
    expected = scipy.special.logsumexp(logs) - np.log(len(logs))
    found = weigh(moments, schedule, 2.5)
    assert found.log_evidence == pytest.approx(expected, rel=1e-9)
    best = _NOISE[int(np.argmax(logs))] * (delta**2).mean()
    np.testing.assert_allclose(found.precision, 1 / (sampled + schedule.noise**2 * best))


def test_known_rates_may_bring_their_noise_along() -> None:
    rates = np.array([0.4, 0.3, 0.2, 0.1, 0.05])
    among = known_schedules(rates)
    assert [s.prior for s in among] == [0.5, 0.5]
    assert all((s.rates == rates).all() for s in among)
    np.testing.assert_allclose(among[0].noise, rates / rates.mean())


def test_probabilities_are_normalised_whatever_the_evidence() -> None:
    among = schedules(4)
    moments = StepMoments(np.ones(4), np.ones((4, 1)), np.ones((4, 1, 1)), np.full(4, 1e-3), 50.0)
    probabilities = posterior([weigh(moments, s, 1.0).log_evidence for s in among], among)
    assert probabilities.sum() == pytest.approx(1) and (probabilities >= 0).all()


def test_sizes_of_noise_tried_a_few_at_a_time_give_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    inner, gram = rng.normal(size=(9, 2)), np.tile(np.eye(2), (9, 1, 1))
    moments = StepMoments(rng.random(9) + 1, inner, gram, np.full(9, 0.1), 4.0)
    schedule = schedules(9)[-1]
    whole = weigh(moments, schedule, 1.0)
    monkeypatch.setattr("logel.rules.rates._BLOCK", 2 * 9)
    found = weigh(moments, schedule, 1.0)
    assert found.log_evidence == pytest.approx(whole.log_evidence, rel=1e-12)
    np.testing.assert_allclose(found.precision, whole.precision, rtol=1e-12)
