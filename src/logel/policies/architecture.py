"""Networks told by a few facts, so that a history's policy is rebuilt without loading any code.

    {"inputs": [{"name": "camera", "shape": [4, 84, 84], "features": 256, "bytes": true},
                {"name": "speed", "shape": [3], "features": null, "bytes": false}],
     "hidden": [64, 64], "activation": "tanh", "actions": "MultiDiscrete", "sizes": [3, 2]}

An input with `features` goes through three convolutions and a layer of so many numbers (the
network of Mnih et al., 2015, as Stable-Baselines3 has it), one without is flattened; then come the
hidden layers. A single input may have no name. Parameters are in the order of Stable-Baselines3's
policies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from logel.data.limits import ask_memory
from logel.errors import OptionError
from logel.policies.torch_policy import TorchFamily, TorchPolicy

if TYPE_CHECKING:
    from gymnasium import spaces

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "leaky_relu": nn.LeakyReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}
# Channels, width and stride of every convolution.
_CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
_MOST_INPUTS, _MOST_LAYERS, _MOST_WIDE = 100, 100, 2**24
# What inference holds for each weight of a network: measured, and rounded up.
_WEIGHT_BYTES = 64


def nature(shape: tuple[int, ...], features: int) -> nn.Sequential:
    """Three convolutions of a picture, channels first, and a layer of so many numbers."""
    parts: list[nn.Module] = []
    (channels, *sides), inner = shape, 0
    for out, width, stride in _CONVOLUTIONS:
        parts += [nn.Conv2d(channels, out, width, stride), nn.ReLU()]
        channels, sides = out, [(side - width) // stride + 1 for side in sides]
    inner = channels * math.prod(sides)
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(inner, features), nn.ReLU())


class Actor(nn.Module):
    """From observations, one tensor or several by name, to what a distribution needs."""

    def __init__(self, names: tuple[str | None, ...], extractors: list[nn.Module], rest: nn.Module):
        super().__init__()
        self.names = names
        self.extractors, self.rest = nn.ModuleList(extractors), rest

    def forward(self, observations: Any) -> Tensor:
        """Logits or means, N rows."""
        pairs = zip(self.names, self.extractors, strict=True)
        found = [part(observations if n is None else observations[n]) for n, part in pairs]
        return self.rest(torch.cat(found, dim=1) if len(found) > 1 else found[0])


def policy_of_facts(facts: Any, *, device: str = "cpu") -> TorchFamily:
    """The family that facts tell of.

    Raises:
        OptionError: If they make no sense, or tell of a network that no memory holds.
    """
    try:
        return _policy(facts, device)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(
            f"the history's policy is told in a way that makes no sense ({error}): pass policy="
        ) from None


def _policy(facts: Mapping[str, Any], device: str) -> TorchFamily:
    inputs = [_input(one) for one in facts["inputs"]]
    _check_inputs(inputs)
    hidden, sizes = ([_count(n) for n in facts[name]] for name in ("hidden", "sizes"))
    actions, outputs = _actions(facts["actions"], sizes)
    widths = [sum(one.width for one in inputs), *hidden, outputs]
    weights = sum(one.weights for one in inputs) + _n_weights(widths)
    ask_memory(_WEIGHT_BYTES * weights, f"a policy of {weights} parameters")
    module = Actor(
        tuple(one.name for one in inputs),
        [one.extractor for one in inputs],
        _layers(widths, ACTIVATIONS[facts["activation"]]),
    )
    return TorchPolicy(
        module,
        actions,
        observations=_space(inputs),
        precision=_precision(inputs),
        device=device,
    )


def _precision(inputs: list[_Input]) -> str:
    return "single" if any(one.image for one in inputs) else "double"


def _n_weights(widths: list[int]) -> int:
    return sum((below + 1) * above for below, above in pairwise(widths))


def _layers(widths: list[int], activation: type[nn.Module]) -> nn.Sequential:
    if len(widths) > _MOST_LAYERS:
        raise ValueError("too many layers")
    layers: list[nn.Module] = []
    for below, above in pairwise(widths):
        layers += [nn.Linear(below, above), activation()]
    return nn.Sequential(*layers[:-1])  # nothing comes after the last layer


class _Input(NamedTuple):
    """One input: see the top."""

    name: str | None
    shape: tuple[int, ...]
    features: int | None
    image: bool

    @property
    def width(self) -> int:
        """Numbers that come out."""
        return math.prod(self.shape) if self.features is None else self.features

    @property
    def weights(self) -> int:
        """Parameters of the extractor, at most."""
        if self.features is None:
            return 0
        return self.shape[0] * 2048 + 70_000 + self.features * (math.prod(self.shape[1:]) + 1)

    @property
    def extractor(self) -> nn.Module:
        """What it goes through."""
        return nn.Flatten() if self.features is None else nature(self.shape, self.features)


def _check_inputs(inputs: list[_Input]) -> None:
    if not 0 < len(inputs) <= _MOST_INPUTS:
        raise ValueError(f"{len(inputs)} inputs")
    if len({one.name for one in inputs}) < len(inputs):
        raise ValueError("two inputs have the same name")
    if len(inputs) > 1 and any(one.name is None for one in inputs):
        raise ValueError("several inputs need names")


def _input(raw: Mapping[str, Any]) -> _Input:
    name, shape, features = raw["name"], tuple(_count(n) for n in raw["shape"]), raw["features"]
    if name is not None and not isinstance(name, str):
        raise ValueError(f"{name!r:.40} is no name")
    if features is not None and (len(shape) != 3 or min(shape[1:]) < 36):
        raise ValueError(f"a picture of shape {shape} is too small for three convolutions")
    return _Input(name, shape, None if features is None else _count(features), raw["bytes"] is True)


def _count(raw: Any) -> int:
    if type(raw) is not int or not 0 < raw <= _MOST_WIDE:
        raise ValueError(f"{raw!r:.40} is no number of anything")
    return raw


def _actions(kind: Any, sizes: list[int]) -> tuple[spaces.Space[Any], int]:
    """The space of the actions, and the outputs it takes."""
    from gymnasium import spaces

    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(sizes), sum(sizes)
    (size,) = sizes
    if kind == "Discrete":
        return spaces.Discrete(size), size
    if kind == "MultiBinary":
        return spaces.MultiBinary(size), size
    if kind == "Box":
        return spaces.Box(-np.inf, np.inf, (size,)), size
    raise ValueError(f"{kind!r:.40} is no kind of actions")


def _space(inputs: list[_Input]) -> spaces.Space[Any] | None:
    """Of the observations, where they have several parts by name."""
    from gymnasium import spaces

    if inputs[0].name is None:
        return None
    limits = {True: (0, 255, np.uint8), False: (-np.inf, np.inf, np.float32)}
    return spaces.Dict(
        {
            str(one.name): spaces.Box(*limits[one.image][:2], one.shape, limits[one.image][2])
            for one in inputs
        }
    )
