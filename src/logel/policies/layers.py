"""Layers between observations and a policy's outputs, with their derivatives written out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from logel.errors import PolicyError
from logel.policies.base import Policy
from logel.types import Array, Float

FeatureMap = Callable[[Array], npt.ArrayLike]


@dataclass(frozen=True)
class Layers:
    """A multi-layer perceptron with tanh between layers, its weights in a flat vector."""

    widths: Sequence[int]  # numbers that go in, those between layers, and those that come out
    bias: bool = False  # whether a layer's weights are followed by a bias
    # Whether weight matrices are stored in x out (row-major), not out x in.
    inputs_first: bool = False

    @property
    def n_parameters(self) -> int:
        """Number of weights and biases."""
        return sum((width + self.bias) * out for width, out in pairwise(self.widths))

    def split(self, theta: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        """Weight (out x in) and bias of every layer, as views of theta."""
        result, at = [], 0
        for width, out in pairwise(self.widths):
            flat = theta[at : at + out * width]
            weight = flat.reshape(width, out).T if self.inputs_first else flat.reshape(out, width)
            at += out * width
            bias = theta[at : at + out] if self.bias else None
            at += out if self.bias else 0
            result.append((weight, bias))
        return result

    def activations(self, theta: Tensor, inputs: Tensor) -> list[Tensor]:
        """Input of every layer, then what the last one puts out."""
        values = [inputs]
        for index, (weight, bias) in enumerate(self.split(theta)):
            linear = torch.nn.functional.linear(values[-1], weight, bias)
            values.append(linear if index == len(self.widths) - 2 else torch.tanh(linear))
        return values

    def scores(self, theta: Tensor, activations: list[Tensor], output_scores: Tensor) -> Tensor:
        """Per-row gradients, shape (N, n_parameters), written once into one array.

        A row's gradient w.r.t. a weight matrix is an outer product, so a backward pass over the
        batch and one product per layer give them all.
        """
        rows = theta.new_empty(len(output_scores), self.n_parameters)
        at = self.n_parameters
        for values, back in self._backward(theta, activations, output_scores):
            if self.bias:
                rows[:, at - back.shape[1] : at] = back
                at -= back.shape[1]
            left, right = self._ordered(values, back)
            size = left.shape[1] * right.shape[1]
            target = rows[:, at - size : at].view(-1, left.shape[1], right.shape[1])
            torch.mul(left[:, :, None], right[:, None, :], out=target)
            at -= size
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
            parts.append(kronecker_vjp(*self._ordered(values, back), cotangents))
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
            left, right = self._ordered(values**2, squared)
            parts.append((left.T @ right).reshape(-1))
        return torch.cat(parts[::-1])

    def initial(self, rng: np.random.Generator, final_scale: float) -> Float:
        """Fan-in scaled normal weights, zero biases, a small last layer."""
        parts: list[Float] = []
        for index, (width, out) in enumerate(pairwise(self.widths)):
            scale = final_scale if index == len(self.widths) - 2 else 1.0
            parts.append(scale * rng.standard_normal(out * width) / np.sqrt(width))
            parts.append(np.zeros(out if self.bias else 0))
        return np.concatenate(parts)

    def _ordered(self, values: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
        return (values, back) if self.inputs_first else (back, values)

    def _backward(
        self, theta: Tensor, activations: list[Tensor], output_scores: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """From the last layer to the first: its inputs, and gradients w.r.t. its linear outputs."""
        back, layers = output_scores, self.split(theta)
        for index in reversed(range(len(layers))):
            yield activations[index], back
            if index > 0:
                back = torch.ops.aten.tanh_backward(back @ layers[index][0], activations[index])


class LayeredPolicy(Policy):
    """A family whose outputs come from layers, which take the first parameters of theta."""

    @property
    @abstractmethod
    def layers(self) -> Layers:
        """From prepared observations to logits or means."""

    @property
    def n_mean_parameters(self) -> int:
        """Number of parameters of the layers."""
        return self.layers.n_parameters

    def layer_inputs(self, observations: Tensor) -> Tensor:
        """What the first layer takes, out of prepared observations."""
        return observations

    def limited(self, outputs: Tensor, observations: Tensor) -> Tensor:
        """Outputs as far as prepared observations allow them."""
        return outputs

    def means(self, theta: Tensor, observations: Tensor) -> Tensor:
        """What the last layer puts out: logits or means."""
        return self.layers.activations(theta, self.layer_inputs(observations))[-1]

    def outputs(self, theta: Tensor, observations: Tensor) -> Tensor:
        """Parameters of the action distribution, one row per observation."""
        means = self.means(theta, observations)
        return self.limited(self.completed(theta, means), observations)

    def scores(self, theta: Tensor, observations: Tensor, actions: Tensor) -> Tensor:
        """Gradient of each row's log-probability, shape (N, d)."""
        values, last, own = self._forward(theta, observations, actions)
        rows = self.layers.scores(theta, values, last)
        return rows if own is None else torch.cat([rows, own], dim=1)

    def vjp(
        self, theta: Tensor, observations: Tensor, actions: Tensor, cotangents: Tensor
    ) -> Tensor:
        """Sum over rows of score (x) cotangent, shape (d, q)."""
        values, last, own = self._forward(theta.detach(), observations, actions)
        result = self.layers.vjp(theta.detach(), values, last, cotangents)
        return result if own is None else torch.cat([result, own.T @ cotangents])

    def mean_score(self, theta: Tensor, observations: Tensor, actions: Tensor) -> Tensor:
        """Gradient of the rows' mean log-probability, shape (d,)."""
        share = torch.full((len(observations), 1), 1 / len(observations)).to(theta)
        return self.vjp(theta, observations, actions, share)[:, 0]

    def _forward(
        self, theta: Tensor, observations: Tensor, actions: Tensor
    ) -> tuple[list[Tensor], Tensor, Tensor | None]:
        """Activations, and gradients w.r.t. the last layer's outputs and other parameters."""
        values = self.layers.activations(theta, self.layer_inputs(observations))
        outputs = self.limited(self.completed(theta, values[-1]), observations)
        first, own = self.output_scores(outputs, actions)
        return values, first[:, : values[-1].shape[1]], own

    def _fisher_diagonal(self, theta: Tensor, observations: Tensor, weight: Tensor) -> Tensor:
        values = self.layers.activations(theta, self.layer_inputs(observations))
        outputs = self.limited(self.completed(theta, values[-1]), observations)
        roots = self.fisher_root(outputs)[:, : values[-1].shape[1]]
        total = theta.new_zeros(self.n_mean_parameters)
        for root in roots.unbind(dim=2):
            if root.any():  # not so where a column is about deviations alone
                total += self.layers.squares(theta, values, root, weight)
        # A Gaussian has information 2 about each log-deviation.
        return torch.cat([total, (2 * weight.sum()).expand(self.n_parameters - len(total))])


class LinearPolicy(LayeredPolicy):
    """A family with a single layer on state features: log-linear, hence convex."""

    convex: ClassVar[bool] = True
    n_features: int
    feature_map: FeatureMap | None

    @property
    def n_state_features(self) -> int:
        """Outputs are linear in them."""
        return self.n_features

    def prepare_observations(self, observations: Array) -> Tensor:
        """State features, shape (N, n_features)."""
        values = observations if self.feature_map is None else self.feature_map(observations)
        table = np.asarray(values, dtype=np.float64).reshape(len(observations), -1)
        if table.shape[1] != self.n_features:
            raise PolicyError(
                f"the policy has {self.n_features} state features, but its feature map gives "
                f"{table.shape[1]}"
            )
        return self.tensor(table)


def kronecker_vjp(inputs: Tensor, scores: Tensor, cotangents: Tensor) -> Tensor:
    """Sum over rows of (input (x) score) (x) cotangent, shape (f * k, q), as one product."""
    q = cotangents.shape[1]
    if q > 1 and inputs.shape[1] < scores.shape[1]:
        # Only the narrower factor is multiplied out row by row.
        swapped = kronecker_vjp(scores, inputs, cotangents)
        return swapped.reshape(scores.shape[1], -1, q).transpose(0, 1).reshape(-1, q)
    right = (scores[:, :, None] * cotangents[:, None, :]).reshape(len(inputs), -1)
    return (inputs.T @ right).reshape(inputs.shape[1] * scores.shape[1], q)
