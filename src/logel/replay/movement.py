"""How policies move, as numbers that mean the same for every family.

A movement is the change of what a policy puts out (means and log-deviations, logits) at states that
were visited, multiplied by a root of the Fisher information there: its square is twice the mean
divergence of the two policies, whatever their parameters are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from logel.data.stage import Stage
from logel.policies.base import Policy
from logel.types import Array, Float

# States at which policies are compared: a network of ordinary size is smooth between as many.
_STATES = 300


def spread_rows(observations: Array) -> Array:
    """As many of them as policies are compared at, evenly spread."""
    rows = np.unique(np.linspace(0, len(observations) - 1, _STATES).astype(int))
    return np.asarray(observations[rows])


@dataclass(frozen=True, eq=False)
class Movement:
    """Movements away from one stage's policy."""

    policy: Policy
    states: Tensor
    outputs: Tensor
    root: Tensor

    @classmethod
    def at(cls, stage: Stage, policy: Policy, parameters: Float) -> Movement:
        """Seen at states of a stage, evenly spread over its rows."""
        return cls.among(spread_rows(stage.observations), policy, parameters)

    @classmethod
    def among(cls, observations: Array, policy: Policy, parameters: Float) -> Movement:
        """Seen at given states."""
        states = policy.prepare_observations(observations)
        outputs = policy.outputs(torch.as_tensor(parameters, device=policy.device), states)
        return cls(policy, states, outputs, policy.fisher_root(outputs))

    def to(self, parameters: Tensor) -> Float:
        """Movements to policies with parameters (K, d), one row each."""
        moved = [self._row(theta) for theta in parameters.to(self.outputs)]
        return torch.stack(moved).cpu().numpy()

    def _row(self, theta: Tensor) -> Tensor:
        change = self.policy.outputs(theta, self.states) - self.outputs
        # Divided so that sizes do not depend on the number of states.
        return (change[:, None, :] @ self.root).flatten() / len(change) ** 0.5
