"""What a learner learnt from at one stage: episodes as tensors, and advantages of any reward.

Where an episode was cut (a time limit, or the rollout's end) the learner's own critic says what was
still to come; where it ended for good, nothing was. Stable-Baselines3 does the same in two places
of its code, so episodes can be treated one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from logel.data.stage import Stage
from logel.errors import HistoryError
from logel.policies.base import Policy


@dataclass(frozen=True, eq=False)
class Batch:
    """Episodes of one stage; N times in E episodes.

    Attributes:
        inputs: Observations as the networks take them, (N, i).
        actions: (N,) or (N, k).
        features: (N, q).
        last: What each episode ended in, (E, i).
        goes_on: Whether it was merely cut there, (E,).
        ends: Row of each episode's last time, (E,).
        cells: Place of every row in a grid of E episodes by T times, (N,).
        shape: (E, T).
        stage: Where it all comes from.
        notes: What was noted about the stage.
    """

    inputs: Tensor
    actions: Tensor
    features: Tensor
    last: Tensor
    goes_on: Tensor
    ends: Tensor
    cells: Tensor
    shape: tuple[int, int]
    stage: Stage
    notes: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        stage: Stage,
        policy: Policy,
        notes: Mapping[str, Any] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Batch:
        """From a stage with features."""
        goes_on = ~stage.terminated
        last = stage.last_observations
        if last is None:
            if goes_on.any():
                raise HistoryError(
                    "replay needs the last observation of episodes that were cut off: give "
                    "observations of shape (T + 1, ...)"
                )
            last = stage.observations[stage.starts]
        assert stage.features is not None
        device = policy.device
        shape = (stage.n_episodes, int(stage.lengths.max()))
        cells = np.repeat(np.arange(shape[0]) * shape[1], stage.lengths) + stage.times
        discrete = stage.actions.dtype.kind == "i"

        def moved(values: object, kind: torch.dtype) -> Tensor:
            return torch.as_tensor(np.array(values), dtype=kind, device=device)

        return cls(
            inputs=_rows(policy.prepare_observations(stage.observations).to(dtype)),
            actions=moved(stage.actions, torch.int64 if discrete else dtype),
            features=moved(stage.features, dtype),
            last=_rows(policy.prepare_observations(last).to(dtype)),
            goes_on=moved(goes_on, dtype),
            ends=moved(stage.starts + stage.lengths - 1, torch.int64),
            cells=moved(cells, torch.int64),
            shape=shape,
            stage=stage,
            notes={} if notes is None else notes,
        )

    def __len__(self) -> int:
        return len(self.inputs)

    def advantages(
        self, rewards: Tensor, values: Tensor, last: Tensor, *, gamma: float, trace: float
    ) -> Tensor:
        """Generalised advantages (K, N) of rewards (K, N), values (K, N) and last values (K, E)."""
        following = torch.roll(values, -1, dims=1)
        following[:, self.ends] = last * self.goes_on
        surprise = rewards + gamma * following - values
        grid = surprise.new_zeros((len(surprise), self.shape[0] * self.shape[1]))
        grid[:, self.cells] = surprise
        grid = discounted_sums(grid.view(-1, *self.shape), gamma * trace)
        return grid.flatten(1)[:, self.cells]


def _rows(observations: Tensor) -> Tensor:
    """One row each, also of states that are mere numbers."""
    return observations.reshape(len(observations), -1)


def discounted_sums(values: Tensor, factor: float) -> Tensor:
    """Sums over k of factor^k * values[t + k], along the last axis.

    Sums of 1, 2, 4, ... terms, each from two of the ones before: a loop over times would cost a
    call each.
    """
    total, reach = values, 1
    while reach < values.shape[-1] and factor:
        longer = total.clone()
        longer[..., :-reach].add_(total[..., reach:], alpha=factor**reach)
        total, reach = longer, 2 * reach
    return total
