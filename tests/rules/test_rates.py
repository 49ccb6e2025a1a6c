"""Schedules of learning rates: their evidence against the full normal, and what they find."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from logel.errors import OptionError
from logel.inference.gauge import Gauge
from logel.inference.method import MirrorMethod
from logel.inference.mirror_solve import Answer, _averaged, solve_movement
from logel.inference.movement import Movement
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
from logel.types import Float

TRUTH = np.array([0.8, -0.5, 0.3])


def movement(
    delta: Float, design: Float, delta_errors: Float | None = None, errors: Float | None = None
) -> Movement:
    """Steps whose groups of episodes have the given errors, (g, m, k) and (g, m, k, q)."""
    m, k, q = design.shape
    none = np.zeros((0, m, k)), np.zeros((0, m, k, q))
    without = none
    if delta_errors is not None and errors is not None:
        # Leaving a group out takes its share of the errors' mean away.
        g = len(delta_errors)
        without = (
            delta + (delta_errors.sum(axis=0) - delta_errors) / (g - 1) - delta_errors.mean(axis=0),
            design + (errors.sum(axis=0) - errors) / (g - 1) - errors.mean(axis=0),
        )
    return Movement(delta, design, *without, m * k, 1.0)


def solved(steps: Movement, known: Float | None = None, **options: Any) -> Answer:
    q = steps.design.shape[2]
    names = tuple(f"f{i}" for i in range(q))
    gauge = Gauge(names, np.zeros((0, q)), "", np.zeros((0, q)))
    return solve_movement(steps, gauge, known, MirrorMethod(**options))


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


def test_a_falling_rate_is_found_and_weighs_the_steps() -> None:
    """Rates as a deep learner's, its noise with them: nearly as good as knowing them."""
    m, k = 9, 36
    rates = np.linspace(5 / 3, 1 / 3, m)
    errors: dict[str, list[float]] = {"schedule": [], "shared": [], "known": []}
    off, covered = [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        design = rng.standard_normal((m, k, 3))
        delta = rates[:, None] * (design @ TRUTH + rng.standard_normal((m, k)))
        steps = movement(delta, design)
        answers = {
            "schedule": solved(steps),
            "shared": solved(steps, rates="shared"),
            "known": solved(steps, rates),
        }
        for name, answer in answers.items():
            errors[name].append(float(np.linalg.norm(answer.raw - TRUTH)))
        off.append(np.abs(answers["schedule"].rates - rates).max())
        spread = np.sqrt(np.diag(answers["schedule"].learner))
        covered.append(np.abs(answers["schedule"].raw - TRUTH) < 1.96 * spread)
    assert np.median(off) < 0.15 and np.max(off) < 0.6
    assert np.mean(errors["schedule"]) < np.mean(errors["shared"]) / 1.15
    assert np.mean(errors["schedule"]) < 1.05 * np.mean(errors["known"])
    # 180 weights, 95% intervals, the scale of the rates included.
    assert 0.90 <= np.mean(covered) <= 0.99


def test_constant_rates_cost_nothing() -> None:
    errors: dict[str, list[float]] = {"schedule": [], "shared": []}
    for seed in range(60):
        rng = np.random.default_rng(100 + seed)
        design = rng.standard_normal((6, 10, 3))
        # The design fades: a learner that comes to rest looks like a falling rate to careless eyes.
        design *= np.linspace(1.5, 0.5, 6)[:, None, None]
        steps = movement(design @ TRUTH + rng.standard_normal((6, 10)), design)
        for rates, found in errors.items():
            answer = solved(steps, rates=rates)
            found.append(float(np.linalg.norm(answer.raw / answer.scale - TRUTH / 0.99)))
    assert np.mean(errors["schedule"]) < 1.1 * np.mean(errors["shared"])


def test_known_rates_keep_their_scale() -> None:
    rng = np.random.default_rng(1)
    design, rates = rng.standard_normal((5, 30, 3)), np.array([0.4, 0.3, 0.2, 0.1, 0.05])
    delta = rates[:, None] * (design @ TRUTH) + 1e-3 * rng.standard_normal((5, 30))
    answer = solved(movement(delta, design), rates)
    np.testing.assert_allclose(answer.raw, TRUTH, atol=5e-3)
    np.testing.assert_array_equal(answer.rates, rates)
    assert answer.scale == 1 and not answer.free
    among = known_schedules(rates)
    assert [s.prior for s in among] == [0.5, 0.5]
    np.testing.assert_allclose(among[0].noise, rates / rates.mean())
    with pytest.raises(OptionError, match="unknown rates 'cosine': choose one of schedule"):
        MirrorMethod(rates="cosine")


def test_movement_without_a_reward_is_called_so_at_the_promised_rate() -> None:
    chances = []
    for seed in range(120):
        rng = np.random.default_rng(seed)
        noise = np.linspace(1.0, 0.4, 6)[:, None] * rng.standard_normal((6, 20))
        chances.append(solved(movement(noise, rng.standard_normal((6, 20, 3)))).chance)
    # The share below 5% of 120: within three standard deviations.
    assert np.mean(np.array(chances) < 0.05) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 120)


def test_clones_and_advantages_err_together() -> None:
    """The learner followed the advantages' noise, not the clones' errors that go with it."""
    m, k, g = 8, 30, 20
    bias = {"together": [], "apart": []}
    for seed in range(40):
        rng = np.random.default_rng(seed)
        signal = rng.standard_normal((m, k, 3))
        errors = 2.0 * rng.standard_normal((g, m, k, 3))
        for name, found in bias.items():
            design = signal + errors.mean(axis=0)
            own = errors if name == "together" else 2.0 * rng.standard_normal((g, m, k, 3))
            clones = own @ np.array([0.0, 1.5, 0.0])
            delta = design @ TRUTH + clones.mean(axis=0)
            steps = movement(delta, design, clones, errors)
            found.append(solved(steps, debias=False, rates="shared").raw - TRUTH)
    together, apart = (np.array(bias[name]) for name in ("together", "apart"))
    # Uncorrected, the second weight would be off by the errors' product: 1.5 * 4/20 / 1.2.
    assert np.abs(together.mean(axis=0)).max() < 0.03
    # Where there is nothing to take out, next to nothing is.
    error = np.sqrt((apart**2).sum(axis=1).mean())
    assert error < 1.3 * np.sqrt(3 * (1.5**2 * 4 / 20) / (1.2 * m * k))


def test_what_may_be_chance_is_not_taken_out() -> None:
    """Many weights and few groups: products of errors that have nothing in common."""
    m, k, q, g = 3, 10, 12, 5
    errors: dict[str, list[float]] = {"groups": [], "none": []}
    for seed in range(40):
        rng = np.random.default_rng(seed)
        truth = rng.standard_normal(q)
        apart = 3.0 * rng.standard_normal((g, m, k, q))
        clones = 3.0 * rng.standard_normal((g, m, k))
        design = rng.standard_normal((m, k, q)) + apart.mean(axis=0)
        delta = design @ truth + clones.mean(axis=0)
        for name, steps in (
            ("groups", movement(delta, design, clones, apart)),
            ("none", movement(delta, design)),
        ):
            answer = solved(steps, debias=False, rates="shared", ridge=0.0)
            errors[name].append(float(((answer.raw - truth) ** 2).sum()))
    assert np.mean(errors["groups"]) < 1.2 * np.mean(errors["none"])


def test_schedules_that_disagree_are_uncertainty() -> None:
    rng = np.random.default_rng(2)
    design, noise = rng.standard_normal((4, 20, 3)), rng.standard_normal((4, 20))
    first, second = (
        solved(movement(rates[:, None] * (design @ TRUTH) + noise, design), rates="shared")
        for rates in (np.ones(4), np.array([2.0, 1.0, 0.6, 0.4]))
    )
    both = _averaged([first, second], np.array([0.25, 0.75]))
    gap = first.raw - second.raw
    np.testing.assert_allclose(both.raw, 0.25 * first.raw + 0.75 * second.raw)
    expected = 0.25 * first.learner + 0.75 * second.learner + 0.1875 * np.outer(gap, gap)
    np.testing.assert_allclose(both.learner, expected)
    assert both.sampling is None and both.solution is second.solution


def test_probabilities_are_normalised_whatever_the_evidence() -> None:
    among = schedules(4)
    moments = StepMoments(np.ones(4), np.ones((4, 1)), np.ones((4, 1, 1)), np.full(4, 1e-3), 50.0)
    probabilities = posterior([weigh(moments, s, 1.0) for s in among], among)
    assert probabilities.sum() == pytest.approx(1) and (probabilities >= 0).all()
