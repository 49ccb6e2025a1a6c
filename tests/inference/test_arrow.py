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
from logel.inference.arrow import (
    less_decided,
    order_gain,
    repeated_in,
    repeated_share,
    restless,
    runs_forward,
    sketched,
)
from logel.inference.estimate import RewardEstimate
from logel.inference.infer import infer_reward
from logel.inference.null import CONVINCING
from logel.inference.status import Status
from logel.learners.tabular import GPOMDPLearner, observe
from logel.policies.gaussian import LinearGaussian
from logel.policies.networks import MLPCategorical
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


def test_a_network_has_to_become_more_decided() -> None:
    family = MLPCategorical(2, 3, hidden=(4,))
    seen = (np.eye(2), np.eye(2))
    theta = np.random.default_rng(3).normal(size=family.n_parameters)
    # The last layer's weights and biases make the logits, which a factor makes bolder.
    bolder = theta.copy()
    bolder[-15:] *= 1.5
    assert less_decided(family, (theta, theta), seen)
    assert less_decided(family, (bolder, theta), seen)
    assert not less_decided(family, (theta, bolder), seen)


def test_stages_in_any_order_are_a_shuffle() -> None:
    line = np.arange(11.0)[:, None] * np.ones(3)
    assert order_gain(line) == order_gain(line[::-1]) == np.inf
    rng = np.random.default_rng(5)
    found = [order_gain(line[rng.permutation(11)]) < CONVINCING for _ in range(300)]
    # One in fifty of them passes for a path.
    assert np.mean(found) > 0.955
    # One step may lead to the end, around which there is noise; too few stages tell nothing.
    jump = np.concatenate([np.zeros((1, 3)), 9 + 0.1 * rng.normal(size=(10, 3))])
    assert order_gain(jump) == np.inf
    assert order_gain(line[[4, 0, 3, 1, 2]]) == np.inf


def test_order_costs_the_same_in_long_histories() -> None:
    walk = np.arange(5000.0)[:, None] + np.random.default_rng(6).normal(size=(5000, 2))
    assert order_gain(walk) == np.inf
    assert order_gain(np.random.default_rng(7).permutation(walk)) < CONVINCING


@pytest.mark.parametrize("method", ["joint", "two-step", "mirror"])
@pytest.mark.parametrize("known", [True, False])
def test_shuffled_stages_are_not_believed(method: str, known: bool) -> None:
    seen = history(1.0, -0.5, 0.3, 0.2)
    order = [5, 8, 1, 10, 3, 0, 7, 2, 9, 4, 6]
    shuffled = LearningHistory.from_stages([seen[t] for t in order])
    estimate = infer(shuffled, method, use_parameters=known)
    assert estimate.status is Status.UNEXPLAINED
    assert any("any other order" in note for note in estimate.notes)
    assert not any("any other order" in note for note in infer(seen, method).notes)


def _steps(
    m: int, rng: np.random.Generator, weights: np.ndarray, carried: float = 0.0
) -> tuple[np.ndarray, ...]:
    """Design, noise's shape, steps, and what the best weights leave; late weights may differ."""
    design = rng.normal(size=(m, 20, 2))
    noise = rng.normal(size=(m, 20))
    for t in range(1, m):
        noise[t] += carried * noise[t - 1]
    moved = np.einsum("tdq,tq->td", design, np.broadcast_to(weights, (m, 2))) + noise
    best = np.linalg.lstsq(design.reshape(-1, 2), moved.reshape(-1), rcond=None)[0]
    return design, np.tile(np.eye(20), (m, 1, 1)), moved, moved - design @ best, best


def test_momentum_and_a_change_of_mind_are_told_and_honest_steps_left_alone() -> None:
    rng, m = np.random.default_rng(8), 14
    still, late = np.tile([1.0, 1.0], (m, 1)), np.tile([1.0, 1.0], (m, 1))
    late[m // 2 :] = [1.0, -1.0]
    fading = still / np.arange(1, m + 1)[:, None]

    def said(*options: object) -> list[str]:
        return [s[:4] for s in restless(*_steps(m, rng, *options))]  # type: ignore[arg-type]

    honest = [said(still) for _ in range(200)]
    # One in a hundred and one in forty of them are wronged.
    assert sum(map(len, honest)) / 200 < 0.07
    assert all("each" in said(still, 0.8) for _ in range(10))
    assert sum("late" in said(late) for _ in range(10)) >= 9
    # Smaller steps are no other mind.
    assert sum("late" in said(fading) for _ in range(20)) <= 3


def test_steps_follow_where_they_began() -> None:
    rng, m = np.random.default_rng(9), 12
    design = rng.normal(size=(m + 1, 15, 2)).cumsum(axis=0)
    moved = design[:-1] @ np.array([1.0, -2.0]) + 0.5 * rng.normal(size=(m, 15))
    shape = np.tile(np.eye(15), (m, 1, 1))
    assert runs_forward(design[:-1], shape, moved)
    # Read backwards every step begins where it ended.
    assert not runs_forward(design[:0:-1], shape, -moved[::-1])
    assert not runs_forward(design[:5], shape[:5], moved[:5])
