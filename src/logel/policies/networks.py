"""Policies whose logits or means come from a tanh network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from logel.errors import OptionError, PolicyError
from logel.policies.base import Policy, kronecker_vjp
from logel.policies.gaussian import GaussianPolicy
from logel.policies.softmax import SoftmaxPolicy
from logel.types import Array, Float


class _Network:
    """A multi-layer perceptron with tanh between layers, its weights in a flat vector.

    Layer by layer: the weight matrix (out x in, row-major), then the bias if there is one.
    """

    def __init__(self, widths: Sequence[int], bias: bool) -> None:
        self.shapes = [(out, width) for width, out in pairwise(widths)]
        self.bias = bias
        self.n_parameters = sum(o * i + (o if bias else 0) for o, i in self.shapes)

    def layers(self, theta: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        """Weight and bias of every layer, as views of theta."""
        result, at = [], 0
        for out, width in self.shapes:
            weight = theta[at : at + out * width].reshape(out, width)
            at += out * width
            bias = theta[at : at + out] if self.bias else None
            at += out if self.bias else 0
            result.append((weight, bias))
        return result

    def activations(self, theta: Tensor, inputs: Tensor) -> list[Tensor]:
        """Input of every layer, then the network's output."""
        values = [inputs]
        for index, (weight, bias) in enumerate(self.layers(theta)):
            linear = torch.nn.functional.linear(values[-1], weight, bias)
            values.append(linear if index == len(self.shapes) - 1 else torch.tanh(linear))
        return values

    def scores(self, theta: Tensor, activations: list[Tensor], output_scores: Tensor) -> Tensor:
        """Per-row gradients, shape (N, n_parameters), written once into one array.

        A row's gradient w.r.t. a weight matrix is an outer product, so a backward pass over the
        batch and one product per layer give them all.
        """
        rows = torch.empty(
            len(output_scores), self.n_parameters, dtype=theta.dtype, device=theta.device
        )
        at = self.n_parameters
        for values, back in self._backward(theta, activations, output_scores):
            out, width = back.shape[1], values.shape[1]
            if self.bias:
                rows[:, at - out : at] = back
                at -= out
            target = rows[:, at - out * width : at].view(-1, out, width)
            torch.mul(back[:, :, None], values[:, None, :], out=target)
            at -= out * width
        return rows

    def vjp(
        self, theta: Tensor, activations: list[Tensor], output_scores: Tensor, cotangents: Tensor
    ) -> Tensor:
        """Sum over rows of gradient (x) cotangent, shape (n_parameters, q).

        The backward pass is shared by all cotangents; they only enter one product per layer.
        """
        parts = []
        for values, back in self._backward(theta, activations, output_scores):
            if self.bias:
                parts.append(back.T @ cotangents)
            parts.append(kronecker_vjp(back, values, cotangents))
        return torch.cat(parts[::-1])

    def squares(
        self, theta: Tensor, activations: list[Tensor], output_scores: Tensor, weight: Tensor
    ) -> Tensor:
        """Weighted sum over rows of squared gradients, shape (n_parameters,).

        The square of an outer product is the outer product of squares: no row's gradient is formed.
        """
        parts = []
        for values, back in self._backward(theta, activations, output_scores):
            squared = weight[:, None] * back**2
            if self.bias:
                parts.append(squared.sum(dim=0))
            parts.append((squared.T @ values**2).reshape(-1))
        return torch.cat(parts[::-1])

    def _backward(
        self, theta: Tensor, activations: list[Tensor], output_scores: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """From the last layer to the first: its inputs, and gradients w.r.t. its linear outputs."""
        back = output_scores
        layers = self.layers(theta)
        for index in reversed(range(len(layers))):
            yield activations[index], back
            if index > 0:
                back = (back @ layers[index][0]) * (1.0 - activations[index] ** 2)

    def initial(self, rng: np.random.Generator, final_scale: float) -> Float:
        """Fan-in scaled normal weights, zero biases, a small last layer."""
        parts: list[Float] = []
        for index, (out, width) in enumerate(self.shapes):
            scale = final_scale if index == len(self.shapes) - 1 else 1.0
            parts.append(scale * rng.standard_normal(out * width) / np.sqrt(width))
            parts.append(np.zeros(out if self.bias else 0))
        return np.concatenate(parts)


def _flat_floats(policy: Policy, observations: Array, width: int) -> Tensor:
    table = policy.tensor(observations).reshape(len(observations), -1)
    if table.shape[1] != width:
        raise PolicyError(
            f"the policy takes observations of {width} numbers, but the data have {table.shape[1]}"
        )
    return table


def _check_widths(widths: Sequence[Any]) -> None:
    if any(not isinstance(w, int) or w < 1 for w in widths):
        raise OptionError(f"a network's layers need positive whole widths, not {list(widths)}")


@dataclass(frozen=True)
class MLPGaussian(GaussianPolicy):
    """Means from a tanh network, deviations fixed or fitted (state-independent).

    Attributes:
        observation_dim: Numbers in one observation.
        action_dim: Number k of action dimensions.
        hidden: Widths of the hidden layers.
        bias: Whether layers have biases.
        sigma: Fixed standard deviation (one, or one per dimension); None to fit it.
        device: Where tensors live.
    """

    observation_dim: int
    action_dim: int
    hidden: tuple[int, ...] = (64, 64)
    bias: bool = True
    sigma: float | Sequence[float] | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        _check_widths([self.observation_dim, *self.hidden, self.action_dim])

    @property
    def network(self) -> _Network:
        """The network that gives the means."""
        return _Network([self.observation_dim, *self.hidden, self.action_dim], self.bias)

    @property
    def n_mean_parameters(self) -> int:
        """Number of parameters of the means."""
        return self.network.n_parameters

    @property
    def floats_per_step(self) -> int:
        """Activations kept for the backward pass."""
        return 4 * sum(self.hidden) + 8 * self.action_dim

    def prepare_observations(self, observations: Array) -> Tensor:
        """Observations as floats, shape (N, observation_dim)."""
        return _flat_floats(self, observations, self.observation_dim)

    def means(self, theta: Tensor, observations: Tensor) -> Tensor:
        """Means, shape (N, k)."""
        return self.network.activations(theta, observations)[-1]

    def scores(self, theta: Tensor, observations: Tensor, actions: Tensor) -> Tensor:
        """Gradient of each row's log-density, shape (N, d)."""
        inner, values, mean, log_std = self._forward(theta, observations, actions)
        rows = self.network.scores(inner, values, mean)
        return rows if self.sigma is not None else torch.cat([rows, log_std], dim=1)

    def vjp(
        self, theta: Tensor, observations: Tensor, actions: Tensor, cotangents: Tensor
    ) -> Tensor:
        """Sum over rows of score (x) cotangent, shape (d, q)."""
        inner, values, mean, log_std = self._forward(theta.detach(), observations, actions)
        result = self.network.vjp(inner, values, mean, cotangents)
        return result if self.sigma is not None else torch.cat([result, log_std.T @ cotangents])

    def _fisher_diagonal(self, theta: Tensor, observations: Tensor, weight: Tensor) -> Tensor:
        inner = theta[: self.n_mean_parameters]
        values = self.network.activations(inner, observations)
        spread = self.log_std(theta).expand_as(values[-1])
        root = self.fisher_root(torch.cat([values[-1], spread], dim=1))[:, : self.action_dim]
        total = torch.stack(
            [self.network.squares(inner, values, column, weight) for column in root.unbind(dim=2)]
        ).sum(dim=0)
        if self.sigma is not None:
            return total
        # A Gaussian has information 2 about each log-deviation.
        return torch.cat([total, (2 * weight.sum()).expand(self.action_dim)])

    def _forward(
        self, theta: Tensor, observations: Tensor, actions: Tensor
    ) -> tuple[Tensor, list[Tensor], Tensor, Tensor]:
        """The network's parameters, its activations, and the scores of means and log-deviations."""
        inner = theta[: self.n_mean_parameters]
        values = self.network.activations(inner, observations)
        outputs = torch.cat([values[-1], self.log_std(theta).expand_as(values[-1])], dim=1)
        return inner, values, *self.output_scores(outputs, actions)

    def initial(self, rng: np.random.Generator) -> Float:
        """Starting parameters: a nearly constant policy with unit deviations."""
        means = self.network.initial(rng, 0.01)
        return np.concatenate([means, np.zeros(self.n_parameters - len(means))])


@dataclass(frozen=True)
class MLPCategorical(SoftmaxPolicy):
    """Logits of all actions from a tanh network.

    Attributes:
        observation_dim: Numbers in one observation.
        n_actions: Number of actions.
        hidden: Widths of the hidden layers.
        bias: Whether layers have biases.
        device: Where tensors live.
    """

    observation_dim: int
    n_actions: int
    hidden: tuple[int, ...] = (64, 64)
    bias: bool = True
    device: str = "cpu"

    def __post_init__(self) -> None:
        _check_widths([self.observation_dim, *self.hidden, self.n_actions])

    @property
    def network(self) -> _Network:
        """The network that gives the logits."""
        return _Network([self.observation_dim, *self.hidden, self.n_actions], self.bias)

    @property
    def n_parameters(self) -> int:
        """Number d of parameters."""
        return self.network.n_parameters

    @property
    def floats_per_step(self) -> int:
        """Activations kept for the backward pass."""
        return 4 * sum(self.hidden) + 8 * self.n_actions

    def prepare_observations(self, observations: Array) -> Tensor:
        """Observations as floats, shape (N, observation_dim)."""
        return _flat_floats(self, observations, self.observation_dim)

    def outputs(self, theta: Tensor, observations: Tensor) -> Tensor:
        """Logits, shape (N, n_actions)."""
        return self.network.activations(theta, observations)[-1]

    def scores(self, theta: Tensor, observations: Tensor, actions: Tensor) -> Tensor:
        """Gradient of each row's log-probability, shape (N, d)."""
        values = self.network.activations(theta, observations)
        return self.network.scores(theta, values, self.logit_scores(values[-1], actions))

    def vjp(
        self, theta: Tensor, observations: Tensor, actions: Tensor, cotangents: Tensor
    ) -> Tensor:
        """Sum over rows of score (x) cotangent, shape (d, q)."""
        theta = theta.detach()
        values = self.network.activations(theta, observations)
        scores = self.logit_scores(values[-1], actions)
        return self.network.vjp(theta, values, scores, cotangents)

    def _fisher_diagonal(self, theta: Tensor, observations: Tensor, weight: Tensor) -> Tensor:
        values = self.network.activations(theta, observations)
        root = self.fisher_root(values[-1])
        return torch.stack(
            [self.network.squares(theta, values, column, weight) for column in root.unbind(dim=2)]
        ).sum(dim=0)

    def initial(self, rng: np.random.Generator) -> Float:
        """Starting parameters: a nearly uniform policy."""
        return self.network.initial(rng, 0.01)
