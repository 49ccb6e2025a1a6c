"""Weights from steps in function space: schedules, noise and its correction, no trajectories."""

from __future__ import annotations

from typing import Any

import numpy as np

from logel.inference.functions import (
    FunctionSteps,
    _averaged,
    _by_schedule,
    _deviations,
    _Weighed,
    find_weights,
)
from logel.inference.gauge import Gauge, JacobianMoments
from logel.inference.method import Method
from logel.inference.steps import compress, joined
from logel.rules.rates import Schedule, known_schedules, schedules
from logel.types import Float

TRUTH = np.array([0.8, -0.5, 0.3])


def movement(
    delta: Float, design: Float, delta_errors: Float | None = None, errors: Float | None = None
) -> FunctionSteps:
    """Steps whose groups of episodes have the given errors, (g, m, k) and (g, m, k, q)."""
    m, k, q = design.shape
    deltas, designs = np.zeros((0, m, k)), np.zeros((0, m, k, q))
    if delta_errors is not None and errors is not None:
        # Leaving a group out takes its share of the errors' mean away.
        g = len(delta_errors)
        deltas = (
            delta + (delta_errors.sum(axis=0) - delta_errors) / (g - 1) - delta_errors.mean(axis=0)
        )
        designs = design + (errors.sum(axis=0) - errors) / (g - 1) - errors.mean(axis=0)
    return FunctionSteps(
        steps=joined([compress(delta[t : t + 1], design[t : t + 1]) for t in range(m)]),
        without=tuple(compress(d, x) for d, x in zip(deltas, designs, strict=True)),
        parts=np.stack([_deviations(deltas[:, t], designs[:, t]) for t in range(m)]),
        seen=np.full(m, k),
        weak=JacobianMoments.empty(q),
        variance_left=1.0,
        shared=np.concatenate([design, delta[:, :, None]], axis=2),
    )


def solved(steps: FunctionSteps, known: Float | None = None, **options: Any) -> _Weighed:
    """The answer averaged over what the rates may be, not normalised."""
    method, m = Method.named("mirror", **options), steps.steps.n_steps
    among = schedules(m) if known is None else known_schedules(known)
    if options.get("rates") == "shared":
        among = [Schedule(np.ones(m), np.ones(m), 1.0)]
    answers, shares, _ = _by_schedule(steps, among, method)
    return _averaged(answers, shares)


def everything(q: int) -> Gauge:
    """Nothing is hidden."""
    names = tuple(f"f{i}" for i in range(q))
    return Gauge(names, np.zeros((0, q)), "", np.zeros((0, q)))


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
            errors[name].append(float(np.linalg.norm(answer.weights - TRUTH)))
        off.append(np.abs(answers["schedule"].rates - rates).max())
        spread = np.sqrt(np.diag(answers["schedule"].learner))
        covered.append(np.abs(answers["schedule"].weights - TRUTH) < 1.96 * spread)
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
            found.append(
                float(
                    np.linalg.norm(answer.weights / np.linalg.norm(answer.weights) - TRUTH / 0.99)
                )
            )
    assert np.mean(errors["schedule"]) < 1.1 * np.mean(errors["shared"])


def test_known_rates_keep_their_scale() -> None:
    rng = np.random.default_rng(1)
    design, rates = rng.standard_normal((5, 30, 3)), np.array([0.4, 0.3, 0.2, 0.1, 0.05])
    delta = rates[:, None] * (design @ TRUTH) + 1e-3 * rng.standard_normal((5, 30))
    answer = solved(movement(delta, design), rates)
    np.testing.assert_allclose(answer.weights, TRUTH, atol=5e-3)
    np.testing.assert_array_equal(answer.rates, rates)
    found = find_weights(
        movement(delta, design), everything(3), rates, Method.named("mirror"), seed=0
    )
    np.testing.assert_allclose(found.weights, answer.weights)
    assert found.keeps_scale and found.size == 1


def test_what_pairs_of_steps_disagree_about_is_uncertainty_where_a_critic_lags() -> None:
    """Every step has an error of its own in one direction of the weights, whatever its k numbers
    say: intervals that count numbers are too short, those that leave pairs of steps out are not.
    """
    m, k, method = 12, 40, Method.named("mirror")
    covered: dict[bool, list[bool]] = {False: [], True: []}
    for seed in range(1000, 1060):
        rng = np.random.default_rng(seed)
        design = rng.standard_normal((m, k, 3))
        pairs = np.repeat(rng.standard_normal((m // 2, 3)), 2, axis=0)
        delta = np.einsum("tkq,tq->tk", design, TRUTH + 0.5 * pairs)
        groups = 0.01 * rng.standard_normal((10, m, k))
        steps = movement(delta, design, groups, 0.01 * rng.standard_normal((10, m, k, 3)))
        for lagging in covered:
            found = find_weights(
                steps, everything(3), np.ones(m), method, seed=seed, lagging=lagging
            )
            assert found.spread is not None and found.spread.covariance is not None
            deviation = np.sqrt(np.diag(found.spread.covariance))
            # Student's t of five degrees, at 95%: as many pairs as are free to disagree.
            covered[lagging] += list(np.abs(found.weights - TRUTH) < 2.571 * deviation)
    # Of 180 weights.
    assert np.mean(covered[True]) > 0.9 > 0.8 > np.mean(covered[False])


def test_movement_without_a_reward_is_called_so_at_the_promised_rate() -> None:
    gains = []
    for seed in range(120):
        rng = np.random.default_rng(seed)
        noise = np.linspace(1.0, 0.4, 8)[:, None] * rng.standard_normal((8, 20))
        steps = movement(noise, rng.standard_normal((8, 20, 3)))
        found = find_weights(steps, everything(3), None, Method.named("mirror"), seed)
        gains.append(found.gain)
    # The share below 5% of 120: within three standard deviations.
    chances = np.exp(-np.array(gains))
    assert np.mean(chances < 0.05) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 120)


def test_clones_and_advantages_err_together() -> None:
    """The learner followed the advantages' noise, not the clones' errors that go with it."""
    m, k, g = 8, 30, 20
    bias: dict[str, list[Float]] = {"together": [], "apart": []}
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
            found.append(solved(steps, debias=False, rates="shared").weights - TRUTH)
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
            errors[name].append(float(((answer.weights - truth) ** 2).sum()))
    assert np.mean(errors["groups"]) < 1.2 * np.mean(errors["none"])


def test_schedules_that_disagree_are_uncertainty() -> None:
    rng = np.random.default_rng(2)
    design, noise = rng.standard_normal((4, 20, 3)), rng.standard_normal((4, 20))
    first, second = (
        solved(movement(rates[:, None] * (design @ TRUTH) + noise, design), rates="shared")
        for rates in (np.ones(4), np.array([2.0, 1.0, 0.6, 0.4]))
    )
    both = _averaged([first, second], np.array([0.25, 0.75]))
    gap = first.weights - second.weights
    np.testing.assert_allclose(both.weights, 0.25 * first.weights + 0.75 * second.weights)
    expected = 0.25 * first.learner + 0.75 * second.learner + 0.1875 * np.outer(gap, gap)
    np.testing.assert_allclose(both.learner, expected)
    assert both.sampling is None and both.solution is second.solution


def test_ridge_by_evidence_shrinks_what_is_not_seen() -> None:
    rng = np.random.default_rng(0)
    m, k, q = 6, 20, 15
    truth = rng.standard_normal(q)
    design = rng.standard_normal((m, k, q)) * np.linspace(0.02, 1, q)
    delta = design @ truth + rng.standard_normal((m, k))
    steps = movement(delta, design)
    answers = {ridge: solved(steps, ridge=ridge, rates="shared") for ridge in (0.0, None)}
    errors = {r: np.linalg.norm(a.weights - truth) for r, a in answers.items()}
    assert errors[None] < 0.7 * errors[0.0]
    # The uncertainty is the posterior's: what is hardly seen is as uncertain as its prior.
    spread = np.sqrt(np.diag(answers[None].learner))
    assert 0.4 < spread[0] < 2.0 and spread[-1] < 0.25
    # In closed form: the residual variance times the inverse of the penalised square.
    flat = design.reshape(m * k, q)
    square = flat.T @ flat + 3.0 * np.eye(q)
    answer = solved(steps, ridge=3.0, rates="shared")
    left = float(((delta.ravel() - flat @ answer.weights) ** 2).sum()) / (m * k - q)
    expected = left * np.linalg.inv(square)
    np.testing.assert_allclose(answer.learner, expected, rtol=1e-8, atol=1e-12)
