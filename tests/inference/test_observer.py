"""The streaming observer gives what the batch inference gives, at a cost that does not grow."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from logel import (
    LearningHistory,
    LinearSoftmax,
    Method,
    MLPCategorical,
    Observer,
    RewardEstimate,
    TabularSoftmax,
    infer_reward,
)
from logel.data.stage import Stage
from logel.envs.gridworld import GridMap, grid_weights, gridworld_mdp
from logel.errors import HistoryError, OptionError
from logel.learners.tabular import GPOMDPLearner, observe
from logel.policies.base import Policy
from logel.policies.cloning import CloneConfig
from logel.policies.gaussian import LinearGaussian

MDP = gridworld_mdp(GridMap.parse("..b\n.d.\no.g"), gamma=0.9)
POLICY = TabularSoftmax(9, 4)
LINEAR = LinearSoftmax(9, 4, feature_map=lambda s: np.eye(9)[s] + 0.1)
EVERYTHING = Method(
    baseline="time",
    metric="noise",
    ridge="evidence",
    debias=True,
    process_noise=True,
    rates="shared",
)


def watched(**options: Any) -> LearningHistory:
    settings = {"n_steps": 5, "n_episodes": 30, "horizon": 8, "seed": 1, **options}
    learner = GPOMDPLearner(learning_rate=0.3, horizon=8, exact=True)
    return observe(MDP, learner, weights=grid_weights(MDP.feature_names), **settings)


def streamed(history: LearningHistory, policy: Policy, **options: Any) -> list[Any]:
    observer = Observer(policy, **{"gamma": 0.9, "feature_names": history.feature_names, **options})
    rates = history.learning_rates
    return [
        observer.update(stage, learning_rate=None if rates is None or t == 0 else rates[t - 1])
        for t, stage in enumerate(history)
    ]


def assert_same(one: RewardEstimate, two: RewardEstimate, atol: float = 1e-8) -> None:
    for name in ("weights", "learning_rates", "covariance", "held_out", "draws"):
        left, right = getattr(one, name), getattr(two, name)
        assert (left is None) == (right is None), name
        if left is not None:
            np.testing.assert_allclose(left, right, rtol=atol, atol=atol, err_msg=name)
    np.testing.assert_allclose(one.fit.explained, two.fit.explained, atol=atol)
    np.testing.assert_allclose(one.fit.cosines, two.fit.cosines, atol=atol)
    np.testing.assert_allclose(
        one.gauge.weak.T @ one.gauge.weak, two.gauge.weak.T @ two.gauge.weak, atol=1e-6
    )
    assert one.gauge.n == two.gauge.n and one.fit.chance == two.fit.chance
    assert one.models == pytest.approx(two.models, abs=1e-6)
    assert (one.status, one.notes, one.scale) == (two.status, two.notes, two.scale)
    assert one.feature_names == two.feature_names and one.method == two.method


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    "method",
    [
        "paper",
        "two-step",
        EVERYTHING,
        replace(EVERYTHING, rates="free", metric="fisher"),
        Method(rates="shared", uncertainty="bootstrap", n_draws=20, n_groups=15, debias=True),
        Method(nonnegative=True, n_groups=3),
        Method(metric="noise", rates="shared", debias="auto"),
    ],
    ids=["paper", "two-step", "everything", "rates", "bootstrap", "nonnegative", "auto"],
)
def test_streaming_equals_batch(method: Any, known: bool) -> None:
    history = watched(parameters=known)
    estimates = streamed(history, POLICY, method=method)
    assert estimates[0] is None
    for stages in (2, 4, 6):
        batch = infer_reward(history.slice(0, stages), POLICY, gamma=0.9, method=method)
        assert_same(estimates[stages - 1], batch)


@pytest.mark.parametrize("method", ["paper", EVERYTHING], ids=["paper", "everything"])
def test_streaming_equals_batch_with_known_rates(method: Any) -> None:
    history = watched(parameters=True, learning_rates=True)
    estimate = streamed(history, POLICY, method=method)[-1]
    assert estimate.scale == "known learning rates"
    assert_same(estimate, infer_reward(history, POLICY, gamma=0.9, method=method))


def test_streaming_equals_batch_for_linear_policies() -> None:
    history = watched()
    estimate = streamed(history, LINEAR, method=EVERYTHING, seed=4)[-1]
    assert_same(estimate, infer_reward(history, LINEAR, gamma=0.9, method=EVERYTHING, seed=4))


def test_streaming_equals_batch_for_networks() -> None:
    history = watched(n_steps=2, n_episodes=10)
    one_hot = LearningHistory.from_stages(
        [
            replace(stage, observations=np.eye(9)[stage.observations], last_observations=None)
            for stage in history
        ]
    )
    policy = MLPCategorical(9, 4, hidden=(3,))
    cloning = CloneConfig(max_iterations=30, holdout=0.0)
    method = Method(clone=cloning, metric="fisher", rates="shared", n_groups=3)
    estimate = streamed(one_hot, policy, method=method)[-1]
    assert_same(estimate, infer_reward(one_hot, policy, gamma=0.9, method=method), atol=1e-6)


def test_streaming_equals_batch_for_gaussian_policies() -> None:
    rng = np.random.default_rng(0)
    stages = []
    for t in range(4):
        states = rng.normal(size=(60, 2))
        actions = states @ np.array([[0.3 * t], [-0.2 * t]]) + 0.5 * rng.normal(size=(60, 1))
        stages.append(
            Stage(
                observations=states,
                actions=actions,
                lengths=np.full(12, 5),
                terminated=np.zeros(12, dtype=bool),
                features=np.concatenate([states[:, :1] * actions, -(actions**2)], axis=1),
            )
        )
    history = LearningHistory.from_stages(stages)
    policy = LinearGaussian(2, 1, sigma=0.5)
    estimate = streamed(history, policy, method=EVERYTHING)[-1]
    assert_same(estimate, infer_reward(history, policy, gamma=0.9, method=EVERYTHING))


def test_episodes_and_parameters_may_come_apart() -> None:
    history = watched(parameters=True, n_steps=2)
    observer = Observer(POLICY, gamma=0.9, method="paper")
    for stage in history:
        estimate = observer.update(list(stage.episodes), parameters=stage.parameters)
    assert observer.n_stages == 3 and estimate is not None
    assert estimate.feature_names[0] == "feature 0"
    batch = infer_reward(history, POLICY, gamma=0.9, method="paper")
    np.testing.assert_allclose(estimate.weights, batch.weights, atol=1e-8)


def test_nothing_is_said_before_the_policy_moves() -> None:
    stage = watched(parameters=True)[0]
    observer = Observer(POLICY, gamma=0.9, method="paper")
    assert [observer.update(stage) for _ in range(3)] == [None, None, None]
    assert observer.update(watched(parameters=True)[1]) is not None


def test_what_would_need_all_stages_is_refused() -> None:
    for name in ("mirror", "joint"):
        with pytest.raises(OptionError, match="cannot use"):
            Observer(POLICY, gamma=0.9, method=Method.named(name))
    with pytest.raises(OptionError, match="cannot use method 'joint': choose one of paper"):
        Observer(POLICY, gamma=0.9, method="joint")
    with pytest.raises(OptionError, match=r"gamma must be in"):
        Observer(POLICY, gamma=1.0)


def test_stages_that_do_not_fit_are_refused() -> None:
    history = watched(parameters=True)
    observer = Observer(POLICY, gamma=0.9, method="paper")
    with pytest.raises(OptionError, match="no step leads to the first stage"):
        observer.update(history[0], learning_rate=0.1)
    observer.update(history[0])
    with pytest.raises(HistoryError, match="stage 1: parameters must be like"):
        observer.update(replace(history[1], parameters=None))
    with pytest.raises(HistoryError, match="stage 1 disagrees with the history"):
        observer.update(replace(history[1], features=history[1].features[:, :2]))
    with pytest.raises(HistoryError, match="must be positive"):
        observer.update(history[1], learning_rate=-1.0)
    observer.update(history[1], learning_rate=0.1)
    with pytest.raises(OptionError, match="for every step or for none"):
        observer.update(history[2])
    with pytest.raises(HistoryError, match="stage 2: 4 episodes cannot be split"):
        observer.update(history[2].take(np.arange(4)), learning_rate=0.1)


def test_a_refused_stage_leaves_the_observer_as_it_was() -> None:
    history = watched()
    observer = Observer(POLICY, gamma=0.9, method=EVERYTHING, feature_names=MDP.feature_names)
    for stage in history.slice(0, 4):
        observer.update(stage)
    actions = history[4].actions.copy()
    actions[0] = 9
    with pytest.raises(Exception, match="stage 4: episode 0, time 0: action 9"):
        observer.update(replace(history[4], actions=actions))
    for stage in history.slice(4):
        estimate = observer.update(stage)
    assert estimate is not None
    assert_same(estimate, infer_reward(history, POLICY, gamma=0.9, method=EVERYTHING))


def test_late_stages_cost_as_much_as_early_ones() -> None:
    history = watched(n_steps=3, n_episodes=50, parameters=True)
    observer = Observer(POLICY, gamma=0.9, method=Method(baseline="time", rates="shared"))
    times = []
    for t in range(160):
        start = time.process_time()
        observer.update(history[t % 4])
        times.append(time.process_time() - start)
    assert np.median(times[-30:]) < 2 * np.median(times[5:35])


def test_with_growth_it_answers_anew_when_a_share_was_added() -> None:
    history = watched(n_steps=9)
    every, seldom = (streamed(history, POLICY, growth=growth) for growth in (0.0, 0.5))
    new = [t for t in range(1, len(history)) if seldom[t] is not seldom[t - 1]]
    assert 1 < len(new) < len(history) - 2
    for t in new:
        np.testing.assert_array_equal(every[t].weights, seldom[t].weights)
    with pytest.raises(OptionError, match="growth must not be negative"):
        Observer(POLICY, gamma=0.9, growth=-1.0)
