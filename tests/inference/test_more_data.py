"""What more data would bring, by hand and against simulated estimators."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimates import example
from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.errors import OptionError
from logel.inference.infer import infer_reward
from logel.inference.more_data import Planning
from logel.learners.tabular import GPOMDPLearner, observe
from logel.policies.softmax import TabularSoftmax


def sampled(covariance: np.ndarray) -> Planning:
    """All noise is the episodes'."""
    return Planning.of(covariance, np.zeros_like(covariance))


def test_the_information_bound_by_hand() -> None:
    # Variance 4 of which 1 is noise that no episode takes away: 4 -> 1 + 3 / 2 = 2.5 with twice
    # the episodes, 1 + 3 / 10 = 1.3 with ten times as many. Telescoping clones: variance falls
    # with the cube of the stages.
    planning = Planning(np.diag([4.0]), np.diag([2.5]), np.diag([0.5]))
    np.testing.assert_allclose(planning.factors(episodes=10), [np.sqrt(1.3 / 4)])
    np.testing.assert_allclose(planning.factors(stages=3), [np.sqrt(1 / 27)])
    np.testing.assert_allclose(planning.factors(episodes=2, stages=2), [np.sqrt(2.5 / 32)])
    np.testing.assert_allclose(planning.factors(), [1.0])


def test_the_corners() -> None:
    # No variance, unknown variance, variance that falls faster than one over the episodes, and
    # a doubling that by rounding seems to lose information.
    planning = Planning(
        np.diag([0.0, np.nan, 1.0, 1.0]),
        np.diag([0.0, np.nan, 0.25, 1.1]),
        np.diag([0.0, np.nan, 0.5, 0.5]),
    )
    np.testing.assert_allclose(planning.factors(episodes=4), [1.0, np.nan, 1 / 4, 1.0])


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_sampling_noise_falls_with_the_root(episodes: float, stages: float) -> None:
    factors = sampled(np.diag([1.0, 5.0])).factors(episodes=episodes, stages=stages)
    np.testing.assert_allclose(factors, 1 / np.sqrt(episodes * stages), rtol=1e-9)


def test_noise_of_the_learner_falls_with_the_stages_alone() -> None:
    planning = Planning.of(np.diag([3.0, 0.0]), np.diag([1.0, 2.0]))
    np.testing.assert_allclose(planning.covariance, np.diag([4.0, 2.0]))
    np.testing.assert_allclose(planning.twice_episodes, np.diag([2.5, 2.0]))
    np.testing.assert_allclose(planning.twice_stages, np.diag([2.0, 1.0]))
    np.testing.assert_allclose(planning.factors(episodes=1e12), [0.5, 1.0], rtol=1e-6)


@pytest.mark.parametrize("multiple", [0.0, -1.0, float("nan"), float("inf")])
def test_multiples_that_make_no_sense_are_refused(multiple: float) -> None:
    planning = sampled(np.eye(2))
    with pytest.raises(OptionError, match="stages is a positive multiple"):
        planning.factors(stages=multiple)
    with pytest.raises(OptionError, match="episodes is a positive multiple"):
        planning.factors(episodes=multiple)
    with pytest.raises(OptionError, match=r"three \(q, q\) covariances"):
        Planning(np.eye(2), np.eye(3), np.eye(2))


def test_the_estimate_answers() -> None:
    estimate = example(planning=sampled(np.diag([0.01, 0.04, 0.0])))
    now = np.diff(estimate.interval(0.9), axis=1)[:, 0]
    np.testing.assert_allclose(estimate.expected_widths(1.0, level=0.9), now)
    np.testing.assert_allclose(estimate.expected_widths(4.0, level=0.9), now / 2)
    np.testing.assert_allclose(estimate.expected_widths(1.0, 9.0, level=0.9), now / 3)
    assert "0.71 times as wide with twice the episodes, 0.71 with twice" in estimate.summary()
    assert np.isnan(example().expected_widths()).all()
    assert "planning" not in example().summary()


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
def test_the_widths_come_true_with_more_episodes(known: bool) -> None:
    # Known parameters: only Jacobian noise. Cloned: both. The learner's gradients are exact, so
    # episodes are the only source of noise, and the paper's way is consistent.
    mdp = gridworld_mdp()
    policy = TabularSoftmax(mdp.n_states, mdp.n_actions)
    expected, found = [], []
    for seed in range(12):
        pair = []
        for n_episodes in (400, 1600):
            history = observe(
                mdp,
                GPOMDPLearner(exact=True, learning_rate=3.0),
                weights=grid_weights(mdp.feature_names),
                n_steps=4,
                n_episodes=n_episodes,
                seed=seed,
                parameters=known,
            )
            pair.append(infer_reward(history, policy, gamma=mdp.gamma, method="two-step"))
        expected.append(pair[0].expected_widths(4.0))
        found.append(np.diff(pair[1].interval(), axis=1)[:, 0])
    ratio = np.median(np.array(expected), axis=0) / np.median(np.array(found), axis=0)
    assert 0.7 < np.median(ratio) < 1.4, ratio
