"""Many copies of one network side by side, derivatives written out.

Replay asks what a learner would have become under many candidate rewards. All candidates see the
same observations through networks of the same shape, so their parameters are rows of one array and
every layer is one product for all of them: the work of a loop over candidates at the price of few
calls. Autograd would keep a graph that is thrown away after each minibatch; a backward pass by hand
takes a third of the calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import elu, leaky_relu

Views = list[tuple[Tensor, Tensor]]

# Slope below zero of torch's leaky_relu.
_LEAK = 0.01
_MINUS_ONE = torch.tensor(-1.0)


def _tanh(doubled: Tensor) -> Tensor:
    """Of half the values, to 2e-7: torch's sigmoid is several times faster than its tanh."""
    return torch.add(_MINUS_ONE, doubled.sigmoid_(), alpha=2.0, out=doubled)


def _through_tanh(back: Tensor, values: Tensor) -> Tensor:
    return torch.ops.aten.tanh_backward(back, values)


def _through_relu(back: Tensor, values: Tensor) -> Tensor:
    return back.mul_(values > 0)


def _through_elu(back: Tensor, values: Tensor) -> Tensor:
    return back.mul_(values.clamp(max=0.0).add_(1.0))


def _through_leaky(back: Tensor, values: Tensor) -> Tensor:
    return back.mul_(torch.where(values > 0, 1.0, _LEAK))


class Activation(NamedTuple):
    """An activation of `factor` times the values, in place, and how derivatives go back through it.

    Its slope follows from its own value: nothing else must be kept for the way back.
    """

    of: Callable[[Tensor], Tensor]
    back: Callable[[Tensor, Tensor], Tensor]
    factor: float = 1.0


ACTIVATIONS = {
    "tanh": Activation(_tanh, _through_tanh, 2.0),
    "relu": Activation(torch.relu_, _through_relu),
    "elu": Activation(partial(elu, inplace=True), _through_elu),
    "leaky_relu": Activation(partial(leaky_relu, inplace=True), _through_leaky),
}


@dataclass(frozen=True)
class StackedNetwork:
    """The shape of a perceptron; parameters travel as rows, weight (out x in) before bias."""

    widths: tuple[int, ...]
    activation: str = "tanh"

    @property
    def n_parameters(self) -> int:
        """Of one copy."""
        return sum((width + 1) * out for width, out in pairwise(self.widths))

    def views(self, flat: Tensor) -> Views:
        """Weight (K, out, in) and bias (K, 1, out) of every layer, as views of (K, n)."""
        result, at = [], 0
        for width, out in pairwise(self.widths):
            weight = flat[:, at : at + out * width].view(-1, out, width)
            at += out * width
            result.append((weight, flat[:, None, at : at + out]))
            at += out
        return result

    def forward(self, layers: Views, inputs: Tensor) -> list[Tensor]:
        """Input of every layer, then the outputs (K, B, out); inputs (B, in) or (K, B, in)."""
        act, _, factor = ACTIVATIONS[self.activation]
        if inputs.ndim == 2:
            inputs = inputs.expand(len(layers[0][0]), *inputs.shape)
        values = [inputs]
        for index, (weight, bias) in enumerate(layers):
            last = index == len(layers) - 1
            times = 1.0 if last else factor
            linear = torch.baddbmm(bias, values[-1], weight.mT, beta=times, alpha=times)
            values.append(linear if last else act(linear))
        return values

    def outputs(self, flat: Tensor, inputs: Tensor) -> Tensor:
        """Of every copy, (K, B, out)."""
        return self.forward(self.views(flat), inputs)[-1]

    def backward(self, layers: Views, values: list[Tensor], back: Tensor, into: Views) -> None:
        """Gradients of sum(outputs * back) w.r.t. all parameters, written `into` their views."""
        through = ACTIVATIONS[self.activation].back
        for index in reversed(range(len(layers))):
            weight, bias = into[index]
            torch.sum(back, dim=1, keepdim=True, out=bias)
            # A narrow matrix on the left of a product is several times faster than on its right.
            if self.widths[index] < self.widths[index + 1]:
                weight.copy_(torch.bmm(values[index].mT, back).mT)
            else:
                weight.copy_(torch.bmm(back.mT, values[index]))
            if index > 0:
                back = through(torch.bmm(back, layers[index][0]), values[index])

    def tangent(self, layers: Views, values: list[Tensor], direction: Views) -> Tensor:
        """Derivative of the outputs along a direction of the parameters, (K, B, out)."""
        through = ACTIVATIONS[self.activation].back
        moved: Tensor | None = None
        for index, (weight, bias) in enumerate(direction):
            change = torch.baddbmm(bias, values[index].expand(len(bias), -1, -1), weight.mT)
            if moved is not None:
                own = layers[index][0].expand(len(bias), -1, -1)
                change = torch.baddbmm(change, moved, own.transpose(1, 2))
            moved = change if index == len(direction) - 1 else through(change, values[index + 1])
        assert moved is not None
        return moved
