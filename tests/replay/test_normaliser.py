"""Rewards scaled as `VecNormalize` scales them, against its own class."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.running_mean_std import RunningMeanStd

from logel.data.rollout import Rollout
from logel.data.settings import RewardNormaliser
from logel.data.stage import Stage
from logel.policies.networks import MLPGaussian
from logel.replay.batch import Batch
from logel.replay.learner import OneByOne
from logel.replay.normaliser import RunningReturns

POLICY = MLPGaussian(2, 1, hidden=(3,))
NORMALISER = RewardNormaliser(gamma=0.9, epsilon=0.1, clip=1.0)


class Plain:
    """`VecNormalize` for one reward, step by step."""

    def __init__(self, n: int) -> None:
        self.statistics, self.returns = RunningMeanStd(shape=()), np.zeros(n)

    def __call__(self, rewards: Any, dones: Any) -> Any:
        """Rewards and ends of all times, (T, n)."""
        result = []
        for reward, done in zip(rewards, dones, strict=True):
            self.returns = self.returns * NORMALISER.gamma + reward
            self.statistics.update(self.returns)
            scaled = reward / np.sqrt(self.statistics.var + NORMALISER.epsilon)
            result.append(np.clip(scaled, -NORMALISER.clip, NORMALISER.clip))
            self.returns[done] = 0.0
        return np.stack(result)


def rollout(rng: np.random.Generator, ended: Any) -> Stage:
    shape = ended.shape
    return Rollout(
        rng.standard_normal((*shape, 2)),
        rng.standard_normal((*shape, 1)),
        terminated=ended,
        next_observations=rng.standard_normal((*shape, 2)),
        features=rng.standard_normal((*shape, 1)),
    ).stage()


def by_environment(values: Any) -> Any:
    return values.T.reshape(-1)


def test_each_candidate_has_statistics_of_its_own_from_stage_to_stage() -> None:
    rng, n_times, n = np.random.default_rng(1000), 50, 3
    # Far from zero and small, so that a variance from sums is hard to get.
    offsets, plain = (0.0, 100.0, -1e-3), [Plain(n) for _ in range(3)]
    running = RunningReturns.initial(torch.zeros(3, 1))
    for _ in range(3):
        ended = rng.random((n_times, n)) < 0.1
        continues = ~ended[-1]
        batch = Batch.of(rollout(rng, ended), POLICY, {"continues": continues.tolist()})
        paid = np.stack([rng.standard_normal((n_times, n)) + offset for offset in offsets])
        rewards = torch.tensor(np.stack([by_environment(one) for one in paid]))
        found, running = running.scaled(rewards, batch, NORMALISER, n)
        expected = [by_environment(one(x, ended)) for one, x in zip(plain, paid, strict=True)]
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    chosen = running.chosen(torch.tensor([2, 0]))
    assert (chosen.mean == running.mean[[2, 0]]).all()


@pytest.mark.parametrize("n_envs", [None, 4])
def test_episodes_that_are_no_rollout_come_one_after_another(n_envs: int | None) -> None:
    rng = np.random.default_rng(1000)
    ended = np.array([[False, False, True, False, True, False, True]]).T
    batch = Batch.of(rollout(rng, ended), POLICY)
    running, plain = RunningReturns.initial(torch.zeros(1, 1)), Plain(1)
    # As many environments as before are not told twice.
    for _ in range(2):
        rewards = rng.standard_normal((7, 1))
        found, running = running.scaled(torch.tensor(rewards.T), batch, NORMALISER, n_envs)
        np.testing.assert_allclose(found[0], plain(rewards, ended)[:, 0], rtol=1e-9)


def test_copies_that_share_a_generator_draw_the_same() -> None:
    rng = np.random.default_rng(1000)
    batch = Batch.of(rollout(rng, np.ones((3, 1), dtype=bool)), POLICY)

    def update(theta: Any, state: Any, stage: Any, rewards: Any, rng: Any) -> tuple[Any, Any]:
        weight = torch.zeros(1, requires_grad=True)
        (2 * weight).backward()
        return theta + float(weight.grad[0]) * rng.random(), [*state, rewards.sum()]

    learner = OneByOne(update, lambda rng: [rng.random()])
    pair, alone = ([np.random.default_rng(k) for k in (1000, 1001)] for _ in range(2))
    state = learner.chosen(learner.initial(pair), np.array([0, 1, 0, 1]))
    beginnings = [one.random() for one in alone]
    assert [one[0] for one in state] == beginnings * 2
    rewards = torch.arange(12.0).view(4, 3)
    with torch.no_grad():
        for _ in range(2):
            found, after = learner.update(torch.zeros(4, 1), state, batch, rewards, pair)
            drawn = [2 * one.random() for one in alone]
            np.testing.assert_allclose(found[:, 0], drawn * 2, rtol=1e-6)
    assert [one[1] for one in after] == rewards.sum(dim=1).tolist()
