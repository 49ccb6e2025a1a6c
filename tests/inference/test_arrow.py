"""Histories read backwards, and what steps leave over again and again, open the intervals."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from logel.data.history import LearningHistory
from logel.data.stage import Stage
from logel.envs.tabular import random_mdp
from logel.inference.arrow import less_decided, repeated_in, repeated_share, sketched
from logel.inference.estimate import RewardEstimate
from logel.inference.infer import infer_reward
from logel.inference.status import Status
from logel.learners.tabular import GPOMDPLearner, observe
from logel.policies.gaussian import LinearGaussian
from logel.policies.softmax import TabularSoftmax

MDP = random_mdp(np.random.default_rng(7), n_states=6, n_actions=3, n_features=4, branching=3)
POLICY = TabularSoftmax(6, 3)


@cache
def history(*weights: float) -> LearningHistory:
    return observe(
        MDP,
        GPOMDPLearner(learning_rate=1.0, horizon=12),
        weights=weights,
        n_steps=10,
        n_episodes=40,
        horizon=12,
        seed=3,
        parameters=True,
    )


def turned(seen: LearningHistory) -> LearningHistory:
    return LearningHistory.from_stages([seen[t] for t in reversed(range(len(seen)))])


def without_last_feature(seen: LearningHistory) -> LearningHistory:
    def cut(stage: Stage) -> Stage:
        assert stage.features is not None
        return replace(stage, features=stage.features[:, :3])

    return LearningHistory.from_stages([cut(stage) for stage in seen])


def infer(seen: LearningHistory, method: str, **options: Any) -> RewardEstimate:
    return infer_reward(seen, POLICY, gamma=MDP.gamma, method=method, **options)


@pytest.mark.parametrize("method", ["joint", "two-step", "mirror", "paper"])
def test_a_learner_read_backwards_is_not_believed(method: str) -> None:
    forward = history(1.0, -0.5, 0.3, 0.2)
    assert infer(forward, method).status is Status.OK
    backward = infer(turned(forward), method)
    assert backward.status is not Status.OK
    ends = backward.interval()
    assert (ends[:, 0] < 0).all() and (ends[:, 1] > 0).all()
    if backward.status is Status.REVERSIBLE:
        # The opposite is as likely: nobody knows any weight's sign.
        np.testing.assert_allclose(backward.probability_positive(), 0.5, atol=0.06)


@pytest.mark.parametrize("method", ["joint", "two-step", "mirror"])
@pytest.mark.parametrize("known", [True, False])
def test_a_reward_outside_the_features_is_not_believed(method: str, known: bool) -> None:
    seen = without_last_feature(history(0.0, 0.0, 0.0, 1.0))
    estimate = infer(seen, method, use_parameters=known)
    assert estimate.status in (Status.INCOMPLETE, Status.UNEXPLAINED)
    ends = estimate.interval()
    assert (ends[:, 0] < 0).all() and (ends[:, 1] > 0).all()
    if estimate.status is Status.INCOMPLETE:
        assert any("left unexplained again and again" in note for note in estimate.notes)


def test_what_comes_back_is_its_share_of_what_steps_have_in_common() -> None:
    explained, missing = np.eye(8)[0] * 2.0, np.eye(8)[1]
    m = 12
    moved = np.tile(explained + missing, (m, 1))
    assert repeated_share(moved, np.tile(missing, (m, 1))) == pytest.approx(1 / 5)
    # What turns round half-way has nothing in common over all, and returns all the same.
    late = np.where(np.arange(m) < m / 2, 1.0, -1.0)[:, None]
    left = late * missing
    apart = np.abs(np.subtract.outer(np.arange(m), np.arange(m))) > 1
    # Pairs of which both are early, or both late, and pairs of one of each.
    common = (4.0 + np.outer(late, late))[apart].sum()
    assert repeated_share(explained + left, left) == pytest.approx(apart.sum() / common)
    assert repeated_share(moved[:4], np.tile(missing, (4, 1))) == 0.0


def test_chance_and_errors_of_clones_do_not_come_back() -> None:
    rng = np.random.default_rng(0)
    m, found = 10, []
    for _ in range(300):
        errors = rng.normal(size=(m + 1, 20))
        left = np.diff(errors, axis=0) + rng.normal(size=(m, 20))
        found.append(repeated_share(left + 3.0, left) > 0)
    # Two questions at one in a hundred each.
    assert np.mean(found) < 0.05


def test_rates_that_fall_are_no_change_of_mind() -> None:
    rng = np.random.default_rng(1)
    predicted = np.tile(rng.normal(size=30), (12, 1))
    rates = np.linspace(1.5, 0.5, 12)[:, None]
    left = (rates - 1) * predicted + 1e-3 * rng.normal(size=predicted.shape)
    assert repeated_share(predicted + left, left) < 0.05


def test_noisy_designs_do_not_shorten_the_prediction() -> None:
    rng = np.random.default_rng(4)
    design = np.tile(rng.normal(size=(40, 1)), (10, 1, 1))
    steps = np.concatenate([design + 0.3 * rng.normal(size=design.shape), design], axis=2)
    # Half the weight, as noise as large as the design would leave it.
    assert repeated_in(steps, np.ones(10), np.array([0.5])) > 0.1
    assert repeated_in(steps, np.ones(10), np.array([0.5]), noisy=True) < 0.02


def test_sketches_keep_inner_products() -> None:
    rng = np.random.default_rng(2)
    few, many = rng.normal(size=(100, 3)), rng.normal(size=(20_000, 3))
    assert sketched(few) is few
    assert sketched(many).shape == (512, 3)
    np.testing.assert_allclose(sketched(many).T @ sketched(many) / 20_000, np.eye(3), atol=0.25)
    # The same numbers in every step, so that what repeats repeats in the sketch.
    steps = np.stack([sketched(many)] * 9)
    assert repeated_in(steps, np.ones(9), np.zeros(2)) == pytest.approx(1.0)


def test_how_decided_is_by_hand() -> None:
    even, mild, strong = np.zeros(4), np.full(4, 0.5), np.full(4, 3.0)
    table, states = TabularSoftmax(4, 2), np.arange(4)
    assert less_decided(table, (strong, mild), (states, states))
    assert less_decided(table, (mild, even), (states, states))
    assert not less_decided(table, (even, mild), (states, states))
    # Another mind is no lost one.
    assert not less_decided(table, (strong, -strong), (states, states))
    line, x = LinearGaussian(1, 1, sigma=0.5), np.linspace(-1, 1, 9)[:, None]
    # Squares of the means: 1 to .49 is less than half, to .51 is not.
    assert less_decided(line, (np.array([1.0]), np.array([0.7])), (x, x))
    assert not less_decided(line, (np.array([1.0]), np.array([0.72])), (x, x))
