"""Small networks of the neural baselines: fitted with torch, evaluated with numpy.

A reward is asked for at every environment step, for a handful of rows at a time: there, a few
plain matrix products are several times faster than torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from logel.errors import Choice, IdentificationError, OptionError
from logel.types import Array, Progress

# Rows evaluated at a time: 16,384 rows of 64 units are 8 MB.
_BLOCK = 2**14


class Activation(Choice):
    """What stands between two layers."""

    TANH = "tanh"
    RELU = "relu"


@dataclass(frozen=True, eq=False)
class Network:
    """A multi-layer perceptron.

    Attributes:
        weights: One matrix per layer, shape (out, in), all float32 or all float64.
        biases: One vector per layer, shape (out,).
        activation: Between layers; the last one is linear.
    """

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    activation: Activation | str = Activation.TANH

    def __post_init__(self) -> None:
        object.__setattr__(self, "activation", Activation(self.activation))
        if len(self.weights) == 0 or len(self.weights) != len(self.biases):
            raise OptionError(
                f"a network needs as many biases as weights, at least one, but has "
                f"{len(self.biases)} and {len(self.weights)}"
            )
        for weight, bias in zip(self.weights, self.biases, strict=True):
            self._check_layer(weight, bias)
        for before, after in pairwise(self.weights):
            if after.shape[1] != before.shape[0]:
                raise OptionError(
                    f"a layer of {before.shape[0]} numbers cannot feed one of {after.shape[1]}"
                )

    def _check_layer(self, weight: Array, bias: Array) -> None:
        kind = self.weights[0].dtype
        if weight.ndim != 2 or 0 in weight.shape or bias.shape != weight.shape[:1]:
            raise OptionError(
                f"a layer needs a matrix and a bias for each row, but has {weight.shape} and "
                f"{bias.shape}"
            )
        if {weight.dtype, bias.dtype} != {kind} or kind not in (np.float32, np.float64):
            raise OptionError("a network's numbers must be all float32 or all float64")
        if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            raise OptionError("a network's numbers must be finite")

    @property
    def n_inputs(self) -> int:
        """Width of the input."""
        return int(self.weights[0].shape[1])

    @property
    def n_outputs(self) -> int:
        """Width of the output."""
        return int(self.weights[-1].shape[0])

    def __call__(self, inputs: Array) -> Array:
        """Outputs of N rows, shape (N, n_outputs)."""
        values = np.asarray(inputs, dtype=self.weights[0].dtype)
        if values.ndim != 2 or values.shape[1] != self.n_inputs:
            raise OptionError(
                f"the network takes rows of {self.n_inputs} numbers, but the data have shape "
                f"{values.shape}"
            )
        last = len(self.weights) - 1
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            values = values @ weight.T
            values += bias
            if index < last:
                if self.activation is Activation.TANH:
                    np.tanh(values, out=values)
                else:
                    np.maximum(values, 0, out=values)
        return values

    def rescaled(
        self,
        *,
        input_shift: npt.ArrayLike = 0.0,
        input_scale: npt.ArrayLike = 1.0,
        output_shift: npt.ArrayLike = 0.0,
        output_scale: npt.ArrayLike = 1.0,
    ) -> Network:
        """A network g with g(x) = (f((x - input_shift) / input_scale) - output_shift) / scale."""
        weights = [np.array(w, dtype=np.float64) for w in self.weights]
        biases = [np.array(b, dtype=np.float64) for b in self.biases]
        weights[0] = weights[0] / np.asarray(input_scale)
        biases[0] = biases[0] - weights[0] @ np.broadcast_to(input_shift, (self.n_inputs,))
        scale = np.broadcast_to(output_scale, (self.n_outputs,))
        weights[-1] = weights[-1] / scale[:, None]
        biases[-1] = (biases[-1] - np.asarray(output_shift)) / scale
        kind = self.weights[0].dtype
        return Network(
            tuple(w.astype(kind) for w in weights),
            tuple(b.astype(kind) for b in biases),
            self.activation,
        )


def blocks(n_rows: int) -> Iterator[slice]:
    """Parts of all rows, to be evaluated one at a time: bounds memory."""
    return (slice(start, start + _BLOCK) for start in range(0, n_rows, _BLOCK))


def flat_rows(values: Array) -> Array:
    """Anything with N rows as a table, shape (N, numbers per row)."""
    array = np.asarray(values)
    return array.reshape(len(array), -1)


def initial_parameters(
    widths: Sequence[int], rng: np.random.Generator, *, dtype: torch.dtype, device: str = "cpu"
) -> list[Tensor]:
    """Weight and bias of every layer, uniform within 1 / sqrt(width of its input)."""
    if any(not isinstance(w, int) or w < 1 for w in widths):
        raise OptionError(f"a network's layers need positive whole widths, not {list(widths)}")
    result = []
    for width, out in pairwise(widths):
        bound = 1 / np.sqrt(width)
        for shape in ((out, width), (out,)):
            values = torch.as_tensor(rng.uniform(-bound, bound, shape), dtype=dtype, device=device)
            result.append(values.requires_grad_(True))
    return result


def forward(parameters: Sequence[Tensor], inputs: Tensor, activation: Activation) -> Tensor:
    """What `Network` computes, differentiable; parameters as from `initial_parameters`."""
    values = inputs
    for index in range(0, len(parameters), 2):
        values = torch.nn.functional.linear(values, parameters[index], parameters[index + 1])
        if index + 2 < len(parameters):
            values = torch.tanh(values) if activation is Activation.TANH else torch.relu(values)
    return values


def frozen(parameters: Sequence[Tensor], activation: Activation) -> Network:
    """A fitted network without torch; the arrays are copies, so that fitting on changes nothing."""
    arrays = [np.array(p.detach().cpu().numpy()) for p in parameters]
    return Network(tuple(arrays[::2]), tuple(arrays[1::2]), activation)


def descend(
    loss: Callable[[], Tensor],
    parameters: Sequence[Tensor],
    *,
    n_updates: int,
    rate: float,
    what: str = "",
    progress: Progress | None = None,
) -> None:
    """Steps of Adam, in place; the loss draws its own minibatch. Progress is told about `what`."""
    optimiser = torch.optim.Adam(list(parameters), lr=rate)
    # Fifty reports are a smooth bar; more would only cost time.
    every = max(1, n_updates // 50)
    for step in range(1, n_updates + 1):
        optimiser.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if progress is not None and (step % every == 0 or step == n_updates):
            progress(what, step, n_updates)
    if not all(bool(torch.isfinite(p).all()) for p in parameters):
        raise IdentificationError(
            f"the fit diverged at rate {rate}: lower it, or bring the observations to unit size"
        )
