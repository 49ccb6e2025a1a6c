"""A reward with the shape of a policy's log-density, evaluated with numpy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from logel.baselines.networks import Network, flat_rows
from logel.baselines.reward_file import RewardFile, SavedReward, number
from logel.errors import OptionError
from logel.types import Array, Float

_LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True, eq=False)
class LogDensityReward(SavedReward):
    """The reward of neural LfL: scale * log-density of N(network(s), exp(log_std)^2) or a softmax.

    Attributes:
        network: Means of the actions, or logits, from an observation.
        log_std: Log-deviations, shape (k,); None for discrete actions.
        scale: Multiplies the log-density.
        shaping: Potentials of the m steps, from an observation.
        residual: Root-mean-square misfit of the targets.
        explained: Share of the targets' variance that reward and potentials explain.
    """

    kind = "neural-lfl"
    method = "neural LfL"

    network: Network
    log_std: Float | None
    scale: float
    shaping: Network
    residual: float
    explained: float

    def __post_init__(self) -> None:
        if self.log_std is not None and self.log_std.shape != (self.network.n_outputs,):
            raise OptionError(
                f"the network gives {self.network.n_outputs} means, but log_std has shape "
                f"{self.log_std.shape}"
            )
        if not 0 < self.scale < math.inf:
            raise OptionError(f"scale must be positive and finite, but is {self.scale}")
        if self.shaping.n_inputs != self.network.n_inputs:
            raise OptionError(
                f"the reward takes {self.network.n_inputs} numbers, but its potentials "
                f"{self.shaping.n_inputs}"
            )

    def __call__(self, observations: Array, actions: Array, next_observations: Array) -> Float:
        """Rewards of N transitions, shape (N,); the next observation does not matter."""
        outputs = self.network(flat_rows(observations))
        if self.log_std is None:
            taken = np.asarray(actions, dtype=np.int64).reshape(len(outputs), 1)
            if taken.size and not 0 <= taken.min() <= taken.max() < self.network.n_outputs:
                raise OptionError(
                    f"actions must lie in 0..{self.network.n_outputs - 1}, but one is outside"
                )
            outputs = outputs - outputs.max(axis=1, keepdims=True)
            chosen = np.take_along_axis(outputs, taken, axis=1)[:, 0]
            return np.asarray(self.scale * (chosen - np.log(np.exp(outputs).sum(axis=1))))
        flat = flat_rows(actions)
        if flat.shape != outputs.shape:
            raise OptionError(
                f"the reward takes actions of shape {outputs.shape}, but they have {flat.shape}"
            )
        scaled = (flat - outputs) * np.exp(-self.log_std)
        constant = self.log_std.sum() + 0.5 * _LOG_2PI * len(self.log_std)
        return np.asarray(-self.scale * (0.5 * (scaled * scaled).sum(axis=1) + constant))

    def _content(self) -> RewardFile:
        arrays = {} if self.log_std is None else {"log_std": self.log_std}
        networks = {"network": self.network, "shaping": self.shaping}
        facts = {"scale": self.scale, "residual": self.residual, "explained": self.explained}
        return RewardFile(networks, arrays, facts)

    @classmethod
    def _from_content(cls, content: RewardFile) -> Self:
        networks, facts = content.networks, content.facts
        return cls(
            network=networks["network"],
            log_std=content.arrays.get("log_std"),
            scale=number(facts["scale"]),
            shaping=networks["shaping"],
            residual=number(facts["residual"]),
            explained=number(facts["explained"]),
        )
