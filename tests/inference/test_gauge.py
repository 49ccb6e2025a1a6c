"""What the data cannot say is found and named; what they explain is counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logel.data.stage import Episode, Stage
from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.inference.gauge import (
    FeatureMoments,
    Gauge,
    JacobianMoments,
    direction_error,
    explain,
)
from logel.inference.gauge_sums import ZERO, GaugeSums
from logel.learners.tabular import GPOMDPLearner, observe
from logel.policies.softmax import TabularSoftmax
from logel.worlds.own_episodes import StageJacobian, stage_jacobian


def moments_of(features: Any, *, terminated: bool = False, pieces: int = 1) -> FeatureMoments:
    moments = FeatureMoments()
    for part in np.array_split(np.asarray(features, dtype=float), pieces):
        n = len(part)
        moments.add(Stage.from_episodes([Episode(np.zeros(n), np.zeros(n), part, terminated)]))
    return moments


def simulated(
    rng: np.random.Generator, truth: Any, *, noise: Any, m: int = 6, g: int = 10
) -> list[StageJacobian]:
    """Jacobians with known expectation and normal sampling noise, in groups of equal weight."""
    jacobians = []
    for _ in range(m):
        groups = truth + np.sqrt(g) * noise * rng.normal(size=(g, *truth.shape))
        mean = groups.mean(axis=0)
        sums = np.zeros((g, truth.shape[0]))
        jacobians.append(StageJacobian(mean, groups, np.full(g, 1 / g), sums))
    return jacobians


def with_weak(jacobians: list[StageJacobian], rate: float, exact: Gauge) -> Gauge:
    moments = JacobianMoments.empty(len(exact.feature_names))
    for jacobian in jacobians:
        moments.add(jacobian, rate)
    return replace(exact, weak=moments.weak_directions(exact.identified))


def nothing_silent(*names: str) -> Gauge:
    q = len(names)
    return Gauge(names, np.zeros((0, q)), (), np.zeros((0, q)))


# --- gauge ----------------------------------------------------------------------------------


def test_the_level_of_one_hot_features_is_found_by_name() -> None:
    mdp = gridworld_mdp()
    history = observe(
        mdp, GPOMDPLearner(), weights=grid_weights(mdp.feature_names), n_steps=2, seed=0
    )
    policy, sums, jacobians = TabularSoftmax(25, 4), GaugeSums(mdp.gamma), []
    for stage in history:
        sums.add(stage)
        jacobians.append(stage_jacobian(policy, np.zeros(75), stage, gamma=mdp.gamma))
    exact = sums.gauge(mdp.feature_names, bootstrap=False)
    gauge = with_weak(jacobians, 1.0, exact)
    assert gauge.n == 1
    np.testing.assert_allclose(np.abs(gauge.directions[0]), np.sqrt(1 / 5), atol=1e-8)
    assert gauge.describe()[0] == (
        "adding the same amount to light, orange, dark, blue, goal is not identified: "
        "it is constant along every trajectory"
    )


@pytest.mark.parametrize("pieces", [1, 3])
def test_constant_and_dependent_features_are_gauge_without_termination(pieces: int) -> None:
    x = np.random.default_rng(0).normal(size=(60, 1))
    features = np.concatenate([x, np.full_like(x, 1e4), 2 * x - 3, x**2], axis=1)
    directions = moments_of(features, pieces=pieces).constant_directions()
    assert len(directions) == 2
    np.testing.assert_allclose(directions @ directions.T, np.eye(2), atol=1e-10)
    # Spanned by the constant and by (2, 0, -1, 0).
    for vector in ([0, 1, 0, 0], [2, 0, -1, 0]):
        vector = np.array(vector) / np.linalg.norm(vector)
        assert np.linalg.norm(directions @ vector) == pytest.approx(1.0, abs=1e-6)


def test_with_termination_only_silence_is_gauge() -> None:
    x = np.random.default_rng(1).normal(size=(50, 1))
    features = np.concatenate([x, np.ones_like(x), np.zeros_like(x)], axis=1)
    alive = moments_of(features, terminated=False)
    assert len(alive.constant_directions()) == 2
    directions = moments_of(features, terminated=True).constant_directions()
    np.testing.assert_allclose(np.abs(directions), [[0, 0, 1]], atol=1e-9)
    gauge = Gauge(("speed", "alive", "never"), directions, ZERO, np.zeros((0, 3)))
    assert gauge.describe() == [
        "the weight of never is not identified: it is zero along every trajectory"
    ]


@given(st.integers(1, 5), st.integers(1, 5), st.sampled_from([1e-6, 1.0, 1e6]))
def test_moments_do_not_depend_on_how_they_are_streamed(pieces: int, q: int, scale: float) -> None:
    rng = np.random.default_rng(q)
    features = scale * (rng.normal(size=(20, q)) + 100.0)
    whole, streamed = moments_of(features), moments_of(features, pieces=pieces)
    assert whole.count == streamed.count == 20
    np.testing.assert_allclose(streamed.mean, features.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(
        streamed.scatter, 20 * np.cov(features.T, bias=True).reshape(q, q), atol=1e-9 * scale**2
    )
    # Units of the features do not decide what is constant.
    assert len(streamed.constant_directions()) == 0


def test_projection_removes_exactly_the_gauge() -> None:
    gauge = Gauge(("a", "b", "c"), np.ones((1, 3)) / np.sqrt(3), "", np.zeros((0, 3)))
    np.testing.assert_allclose(gauge.project([1.0, 2.0, 6.0]), [-2.0, -1.0, 3.0])
    basis = gauge.identified
    assert basis.shape == (3, 2)
    np.testing.assert_allclose(basis.T @ basis, np.eye(2), atol=1e-12)
    np.testing.assert_allclose(basis.T @ np.ones(3), 0, atol=1e-12)
    assert Gauge(("a",), np.zeros((0, 1)), "", np.zeros((0, 1))).identified.shape == (1, 1)


# --- weak directions ------------------------------------------------------------------------


def test_a_feature_without_effect_is_weak_and_the_others_are_not() -> None:
    rng = np.random.default_rng(2)
    truth = rng.normal(size=(20, 3))
    truth[:, 2] = 0.0
    exact = nothing_silent("x", "y", "noise")
    found, innocent, trials = 0, 0, 100
    for _ in range(trials):
        jacobians = simulated(rng, truth, noise=np.array([0.1, 0.3, 0.5]))
        gauge = with_weak(jacobians, 0.5, exact)
        assert gauge.n == 0
        found += len(gauge.weak) >= 1 and abs(gauge.weak[0] @ [0, 0, 1]) > 0.9
        innocent += len(gauge.weak) <= 1
    assert found >= 97 and innocent == trials
    (sentence,) = gauge.describe()
    assert "noise is hardly identified: its effect cannot be told from the sampling" in sentence


def test_a_weak_combination_is_named_as_such() -> None:
    rng = np.random.default_rng(3)
    column = rng.normal(size=(30, 1))
    truth = np.concatenate([column, column, rng.normal(size=(30, 1))], axis=1)
    jacobians = simulated(rng, truth, noise=0.2)
    gauge = with_weak(jacobians, 1.0, nothing_silent("here", "there", "else"))
    assert len(gauge.weak) == 1
    assert abs(gauge.weak[0] @ np.array([1, -1, 0]) / np.sqrt(2)) > 0.95
    (sentence,) = gauge.describe()
    assert sentence.startswith("the combination") and "here" in sentence and "there" in sentence


def test_too_few_groups_leave_weakness_untold() -> None:
    rng = np.random.default_rng(4)
    jacobians = simulated(rng, np.zeros((5, 2)), noise=1.0, g=2)
    gauge = with_weak(jacobians, 1.0, nothing_silent("a", "b"))
    assert len(gauge.weak) == 0


# --- fit ------------------------------------------------------------------------------------


def test_explained_movement_by_hand() -> None:
    design = np.array([[[1.0], [0.0]], [[1.0], [0.0]], [[1.0], [0.0]], [[0.0], [0.0]]])
    delta = np.array([[2.0, 0.0], [1.0, 1.0], [-2.0, 0.0], [1.0, 0.0]])
    fit = explain(delta, design, np.array([2.0]), np.array([1.0, 0.5, 1.0, 1.0]))
    np.testing.assert_allclose(fit.explained, [1.0, 0.5, -3.0, 0.0])
    np.testing.assert_allclose(fit.cosines, [1.0, np.sqrt(0.5), -1.0, 0.0])
    assert fit.moved is not None and fit.predicted is not None and fit.noise is None
    np.testing.assert_allclose(fit.moved, [2.0, np.sqrt(2.0), 2.0, 1.0])
    np.testing.assert_allclose(fit.predicted, [2.0, 1.0, 2.0, 0.0])
    assert fit.chance == pytest.approx(np.sqrt(0.5))
    still = explain(np.zeros((1, 2)), design[:1], np.array([2.0]), np.ones(1))
    assert np.isfinite(still.cosines).all()


def test_the_chance_level_is_that_of_random_directions() -> None:
    rng = np.random.default_rng(5)
    fit = explain(
        rng.normal(size=(4000, 30)), rng.normal(size=(4000, 30, 1)), np.ones(1), np.ones(4000)
    )
    assert np.sqrt((fit.cosines**2).mean()) == pytest.approx(fit.chance, rel=0.05)


@given(st.floats(1e-3, 1e3), st.integers(0, 1000))
def test_direction_errors(scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    one, two = rng.normal(size=(2, 4))
    assert direction_error(one, scale * one) == pytest.approx(0, abs=1e-7)
    assert direction_error(one, -scale * one) == pytest.approx(2)
    error = direction_error(one, two)
    assert error == pytest.approx(direction_error(scale * two, one))
    cosine = one @ two / np.linalg.norm(one) / np.linalg.norm(two)
    assert error**2 == pytest.approx(2 - 2 * cosine)
    gauge = Gauge(tuple("abcd"), np.full((1, 4), 0.5), "", np.zeros((0, 4)))
    assert direction_error(one + 7, one, gauge) == pytest.approx(0, abs=1e-7)
    assert direction_error(np.zeros(4), one) == pytest.approx(np.sqrt(2))


def test_large_offsets_are_not_constants_and_constants_of_any_size_are() -> None:
    rng = np.random.default_rng(0)
    n = 400
    stage = Stage(
        observations=np.zeros(n, dtype=int),
        actions=np.zeros(n, dtype=int),
        lengths=np.array([n]),
        terminated=np.array([False]),
        features=np.stack(
            [1e7 + rng.standard_normal(n), np.full(n, 1.0), np.full(n, 1e10)], axis=1
        ),
    )
    moments = FeatureMoments()
    moments.add(stage)
    directions = moments.constant_directions()
    np.testing.assert_allclose(directions.T @ directions, np.diag([0, 1, 1]), atol=1e-12)


def test_a_step_without_movement_has_no_share_explained() -> None:
    fit = explain(np.array([[0.0, 0.0], [1.0, 0.0]]), np.ones((2, 2, 1)), np.ones(1), np.ones(2))
    assert np.isnan(fit.explained[0]) and np.isfinite(fit.explained[1])


def test_large_features_that_nearly_cancel_are_not_zero_where_episodes_terminate() -> None:
    x = np.random.default_rng(7).normal(size=(300, 2))
    features = np.concatenate([x + 1e8, 2 * x[:, :1] + 2e8, np.full((300, 1), 3.0)], axis=1)
    directions = moments_of(features, terminated=True).constant_directions()
    np.testing.assert_allclose(np.abs(directions), [np.array([2, 0, 1, 0]) / np.sqrt(5)], atol=1e-8)


def test_features_far_from_zero_are_centred_where_that_is_silent_and_noted_elsewhere() -> None:
    x = np.random.default_rng(8).normal((1e5, 3.0), size=(200, 2))
    alive, dying = moments_of(x), moments_of(x, terminated=True)
    np.testing.assert_allclose(alive.offset(), x.mean(axis=0))
    np.testing.assert_allclose(alive.offset(beyond=10.0), [x[:, 0].mean(), 0.0])
    assert dying.offset() is None
    names = ("far", "near")
    assert alive.offset_notes(names, centred=True) == ()
    (as_it_is,) = alive.offset_notes(names, centred=False)
    (ended,) = dying.offset_notes(names, centred=True)
    for note in (as_it_is, ended):
        assert "(far)" in note and "subtract a constant" in note
    assert "a feature that is one" in ended and "a feature that is one" not in as_it_is
