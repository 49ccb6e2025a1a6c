"""Rewards as `VecNormalize` scales them, for many candidates at once.

It divides every reward by the deviation of all discounted returns so far. Those depend on the
reward, so each candidate has statistics of its own, carried from stage to stage. They are sums
over steps; so all steps of a stage are scaled at once, not one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from logel.data.rollout import Grid, grid_of
from logel.data.settings import RewardNormaliser
from logel.data.stage import Stage
from logel.errors import HistoryError
from logel.replay.batch import Batch, discounted_sums
from logel.types import Array

# What Stable-Baselines3 counts before the first step, to divide by something.
_BEFORE = 1e-4


@dataclass(frozen=True, eq=False)
class RunningReturns:
    """Statistics of discounted returns so far; rows are candidates, n are environments.

    Attributes:
        count: Of steps, (K, 1).
        mean: (K, 1).
        square: Mean square, (K, 1).
        carried: Returns of the episodes that go on, (K, n).
    """

    count: Tensor
    mean: Tensor
    square: Tensor
    carried: Tensor

    @classmethod
    def initial(cls, like: Tensor) -> RunningReturns:
        """Before the first step, a row for each of the rewards given."""
        one = torch.ones((len(like), 1), dtype=torch.float64, device=like.device)
        return cls(_BEFORE * one, 0 * one, one, 0 * one)

    def chosen(self, index: Tensor) -> RunningReturns:
        """Those of some candidates."""
        return RunningReturns(*(value[index] for value in vars(self).values()))

    def scaled(
        self, rewards: Tensor, batch: Batch, normaliser: RewardNormaliser, n_envs: int | None
    ) -> tuple[Tensor, RunningReturns]:
        """Rewards (K, N) as the learner got them, and the statistics after the stage."""
        grid = _grid(batch, n_envs)
        rows, firsts, dones = (
            torch.as_tensor(np.array(part), device=rewards.device)
            for part in (grid.rows, _first_pieces(grid), grid.dones[-1])
        )
        n_times, n = rows.shape
        factor = normaliser.gamma
        carried = self.carried if self.carried.shape[1] == n else 0 * rewards[:, :n].double()
        returns = _returns(rewards.double(), batch, factor)[:, rows]
        times = torch.arange(1, n_times + 1, device=rewards.device, dtype=torch.float64)
        returns = returns + (factor ** times[:, None] * firsts) * carried[:, None]
        count = self.count + n * times
        mean = (self.mean * self.count + returns.sum(dim=2).cumsum(dim=1)) / count
        square = self.square * self.count + returns.square().sum(dim=2).cumsum(dim=1)
        square = square / count
        variance = (square - mean * mean).clamp_(min=0.0)
        scale = torch.rsqrt(variance + normaliser.epsilon)[:, :, None]
        result = torch.empty_like(rewards)
        paid = (rewards[:, rows] * scale).clamp_(-normaliser.clip, normaliser.clip)
        result[:, rows] = paid.to(rewards.dtype)
        last = returns[:, -1] * ~dones
        return result, RunningReturns(count[:, -1:], mean[:, -1:], square[:, -1:], last)


def _grid(batch: Batch, n_envs: int | None) -> Grid:
    """Which steps were taken together; where nobody knows, episodes one after another."""
    try:
        return grid_of(batch.stage, n_envs or 1, batch.notes.get("continues"))
    except HistoryError:
        return _in_turn(batch.stage)


def _in_turn(stage: Stage) -> Grid:
    dones = np.zeros((stage.n_steps, 1), dtype=bool)
    dones[np.cumsum(stage.lengths) - 1] = True
    episodes = np.repeat(np.arange(stage.n_episodes), stage.lengths)[:, None]
    return Grid(np.arange(stage.n_steps)[:, None], episodes, dones, dones & False)


def _first_pieces(grid: Grid) -> Array:
    """Whether each step is of the episode that its environment's rollout begins in, (T, n)."""
    return grid.episodes == grid.episodes[:1]


def _returns(rewards: Tensor, batch: Batch, gamma: float) -> Tensor:
    """Discounted rewards of each episode up to every step, (K, N)."""
    grid = rewards.new_zeros((len(rewards), batch.shape[0] * batch.shape[1]))
    grid[:, batch.cells] = rewards
    backwards = grid.view(-1, *batch.shape).flip(2)
    return discounted_sums(backwards, gamma).flip(2).flatten(1)[:, batch.cells]
