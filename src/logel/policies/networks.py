"""Policies whose logits or means come from a tanh network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from logel.errors import OptionError, PolicyError
from logel.policies.gaussian import GaussianPolicy
from logel.policies.layers import LayeredPolicy, Layers
from logel.policies.softmax import SoftmaxPolicy
from logel.types import Array, Float


def one_hot(observations: Tensor, n_states: int) -> Tensor:
    """Numbers of states as rows of indicators, shape (N, n_states)."""
    states = observations.reshape(len(observations), -1)
    if states.shape[1] != 1 or not ((states >= 0) & (states < n_states)).all():
        raise PolicyError(
            f"the policy takes states numbered 0 to {n_states - 1}, but the data have others"
        )
    return nn.functional.one_hot(states[:, 0].long(), n_states).to(torch.float64)


class _NetworkPolicy(LayeredPolicy):
    """What networks have in common, whatever their outputs mean."""

    observation_dim: int
    hidden: tuple[int, ...]
    bias: bool
    one_hot: bool

    def __post_init__(self) -> None:
        widths = self.layers.widths
        if any(not isinstance(w, int) or w < 1 for w in widths):
            raise OptionError(f"a network's layers need positive whole widths, not {list(widths)}")

    @property
    def floats_per_step(self) -> int:
        """Activations kept for the backward pass."""
        return 4 * sum(self.hidden) + 8 * self.layers.widths[-1]

    def prepare_observations(self, observations: Array) -> Tensor:
        """Observations as floats, shape (N, observation_dim)."""
        if self.one_hot:
            return one_hot(self.tensor(observations), self.observation_dim)
        table = self.tensor(observations).reshape(len(observations), -1)
        if table.shape[1] != self.observation_dim:
            raise PolicyError(
                f"the policy takes observations of {self.observation_dim} numbers, but the data "
                f"have {table.shape[1]}"
            )
        return table

    def initial(self, rng: np.random.Generator) -> Float:
        """Starting parameters: a nearly constant policy, with unit deviations if it has any."""
        network = self.layers.initial(rng, 0.01)
        return np.concatenate([network, np.zeros(self.n_parameters - len(network))])


@dataclass(frozen=True)
class MLPGaussian(_NetworkPolicy, GaussianPolicy):
    """Means from a tanh network, deviations fixed or fitted (state-independent).

    Attributes:
        observation_dim: Numbers in one observation.
        action_dim: Number k of action dimensions.
        hidden: Widths of the hidden layers.
        bias: Whether layers have biases.
        sigma: Fixed standard deviation (one, or one per dimension); None to fit it.
        device: Where tensors live.
        one_hot: Whether observations are numbers of states, 0 to observation_dim - 1, of which
            each is an input of its own.
    """

    observation_dim: int
    action_dim: int
    hidden: tuple[int, ...] = (64, 64)
    bias: bool = True
    sigma: float | Sequence[float] | None = None
    device: str = "cpu"
    one_hot: bool = False

    @property
    def layers(self) -> Layers:
        """From observations to means."""
        return Layers((self.observation_dim, *self.hidden, self.action_dim), self.bias)


@dataclass(frozen=True)
class MLPCategorical(_NetworkPolicy, SoftmaxPolicy):
    """Logits of all actions from a tanh network.

    Attributes:
        observation_dim: Numbers in one observation.
        n_actions: Number of actions.
        hidden: Widths of the hidden layers.
        bias: Whether layers have biases.
        device: Where tensors live.
        one_hot: Whether observations are numbers of states, 0 to observation_dim - 1, of which
            each is an input of its own.
    """

    observation_dim: int
    n_actions: int
    hidden: tuple[int, ...] = (64, 64)
    bias: bool = True
    device: str = "cpu"
    one_hot: bool = False

    @property
    def layers(self) -> Layers:
        """From observations to logits."""
        return Layers((self.observation_dim, *self.hidden, self.n_actions), self.bias)

    @property
    def n_parameters(self) -> int:
        """Number d of parameters."""
        return self.layers.n_parameters
