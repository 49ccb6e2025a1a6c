"""Any torch module as a policy: convolutional, large, with several inputs.

    TorchPolicy(module, spaces.Discrete(4))                      # a softmax over its four outputs
    TorchPolicy(module, spaces.Box(-1, 1, (3,)))                 # a Gaussian around them
    TorchPolicy(module, spaces.MultiDiscrete([3, 2]))            # one softmax for each choice
    TorchPolicy(module, spaces.MultiBinary(4))                   # as many yes or no

theta is the module's parameters in their own order, each flattened, then the log-deviations of a
Gaussian. Observations stay as they were stored, images as bytes, until a block of them goes through
the module, so that no more than a block is ever held as floats. Sums over blocks are of 64 bits,
whatever the module computes with.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from logel.data.observations import by_name, storable
from logel.errors import OptionError, PolicyError
from logel.policies.base import Policy
from logel.policies.fisher import Fisher, ProductFisher
from logel.policies.gaussian import GaussianPolicy
from logel.policies.product import ProductPolicy
from logel.policies.softmax import SoftmaxPolicy
from logel.types import Array, Float

if TYPE_CHECKING:
    from gymnasium import spaces

Inputs = Callable[[Any], Any]
"""Maps stored observations, a tensor or tensors by name, to what the module takes."""

# Rows that go through the module at a time; their activations are what is held of them.
_ROWS = 256
# Multiplications of a gradient by a gradient up to which a diagonal is computed row by row; beyond,
# signs that turn rows round at random average the rest away, in so many blocks at least.
_EXACT_DIAGONAL, _SIGNED_BLOCKS = 2**28, 64


def TorchPolicy(  # noqa: N802 (who calls it need not know that there are several classes)
    module: nn.Module,
    actions: spaces.Space[Any],
    *,
    observations: spaces.Space[Any] | None = None,
    prepare_inputs: Inputs | None = None,
    sigma: float | Sequence[float] | None = None,
    precision: str = "double",
    device: str = "cpu",
) -> TorchFamily:
    """The family of a torch module; see the description above.

    Args:
        module: Maps N observations to logits or means, (N, outputs); its own parameters only give
            the shapes, theta always travels as an argument. It is copied. Modules that look at
            other rows of a batch (batch normalisation) use what they have stored.
        actions: The space of the actions, which says the distribution: Discrete, Box, MultiDiscrete
            (logits of all options side by side) or MultiBinary (one logit per flag).
        observations: Their space, needed where it is a Dict: the module then gets tensors by name.
        prepare_inputs: From stored observations to what the module takes; by default images are
            divided by 255.
        sigma: A Gaussian's standard deviation (one, or one per dimension); None to fit it.
        precision: "double" or "single", what the module computes with. Single precision is about
            twice as fast, and exact to some six digits.
        device: Where tensors live.
    """
    if not isinstance(module, nn.Module):
        raise OptionError(f"TorchPolicy takes a torch module, not a {type(module).__name__}")
    from gymnasium import spaces

    options = (observations, prepare_inputs, precision, device)
    if isinstance(actions, spaces.Box):
        return TorchGaussian(module, int(np.prod(actions.shape)), sigma, *options)
    if sigma is not None:
        raise OptionError("only real actions (Box) have a sigma")
    kind, sizes = type(actions).__name__, _sizes(actions)
    if kind == "Discrete":
        return TorchCategorical(module, sizes[0], *options)
    return TorchProduct(module, sizes, kind == "MultiBinary", *options)


def _sizes(actions: spaces.Space[Any]) -> tuple[int, ...]:
    """How many options each choice has."""
    from gymnasium import spaces

    match actions:
        case spaces.Discrete() if actions.start == 0:
            return (int(actions.n),)
        case spaces.MultiBinary() if len(actions.shape) == 1:
            return (2,) * actions.shape[0]
        case spaces.MultiDiscrete() if len(actions.shape) == 1 and not np.any(actions.start):
            return tuple(int(n) for n in actions.nvec)
    raise OptionError(
        f"no distribution is known for actions in {actions}: use Box, or Discrete, MultiDiscrete "
        "or MultiBinary, flat and numbered from 0"
    )


class TorchFamily(Policy):
    """What the families of torch modules have in common; `TorchPolicy` makes the one that fits."""

    module: nn.Module
    observations: spaces.Space[Any] | None
    prepare_inputs: Inputs | None
    precision: str

    def __post_init__(self) -> None:
        if self.precision not in ("double", "single"):
            raise OptionError(f"precision must be double or single, not {self.precision!r}")
        module = copy.deepcopy(self.module).to(device=self.device, dtype=self.dtype).eval()
        self.__dict__["module"] = module.requires_grad_(False)  # frozen for everyone else

    @property
    def dtype(self) -> torch.dtype:
        """What the module computes with."""
        return torch.float32 if self.precision == "single" else torch.float64

    @property
    def worlds(self) -> tuple[str, ...]:
        """None is pooled: a critic in two dozen numbers of an image would miss what matters."""
        return ()

    @property
    def n_mean_parameters(self) -> int:
        """Number of parameters of the module."""
        return sum(value.numel() for value in self.module.parameters())

    @property
    def n_parameters(self) -> int:
        """Number d of parameters."""
        return self.n_mean_parameters

    @property
    def floats_per_step(self) -> int:
        """Few blocks of many rows: they are cut again before they go through the module."""
        return 64

    def prepare_observations(self, observations: Array) -> Tensor:
        """Observations as they are stored, N rows; those of several parts as their bytes."""
        observations = np.asarray(observations)
        names = None if self.layout is None else self.layout.names
        if (by_name(observations) is None) != (names is None):
            raise PolicyError(
                "the policy's observations have several parts, but the data's do not"
                if names
                else "observations have several parts: pass TorchPolicy(..., observations=space)"
            )
        if self.layout is not None and observations.dtype != self.layout:
            raise PolicyError(
                f"the policy sees {self.layout}, but the data hold {observations.dtype}"
            )
        if self.layout is not None:
            whole = np.ascontiguousarray(observations)
            observations = whole.view(np.uint8).reshape(len(whole), self.layout.itemsize)
        with warnings.catch_warnings():
            # Nobody writes into what is shared with a stage.
            warnings.simplefilter("ignore")
            return torch.as_tensor(observations, device=self.device)

    @property
    def layout(self) -> np.dtype[Any] | None:
        """The type of one observation of several parts."""
        return None if self.observations is None else layout_of(self.observations)

    def inputs(self, observations: Tensor) -> Any:
        """What the module takes, out of prepared observations."""
        stored: Any = observations
        if self.layout is not None:
            stored = dict(_parts(observations, self.layout))
        if self.prepare_inputs is not None:
            stored = self.prepare_inputs(stored)
        if isinstance(stored, Mapping):
            return {name: self._computed(part) for name, part in stored.items()}
        return self._computed(stored)

    def _computed(self, values: Tensor) -> Tensor:
        """As what the module computes with; images, if still bytes, as shares of 255."""
        image = values.dtype == torch.uint8
        return values.to(self.dtype) / 255 if image else values.to(self.dtype)

    def means(self, theta: Tensor, observations: Tensor) -> Tensor:
        """What the module puts out for the first parameters of theta, a block at a time."""
        if len(observations) <= _ROWS:
            return self._called(theta, self.inputs(observations))
        parts = (self.inputs(observations[rows]) for rows in _blocks(len(observations)))
        return torch.cat([self._called(theta, part) for part in parts])

    def outputs(self, theta: Tensor, observations: Tensor) -> Tensor:
        """Parameters of the action distribution, one row per observation."""
        return self.completed(theta, self.means(theta, observations))

    def _called(self, theta: Tensor, inputs: Any) -> Tensor:
        tensors, at = {}, 0
        computed = theta.to(self.dtype)
        for name, value in self.module.named_parameters():
            tensors[name] = computed[at : at + value.numel()].reshape(value.shape)
            at += value.numel()
        return torch.func.functional_call(self.module, tensors, (inputs,)).to(theta.dtype)

    def sample(self, theta: npt.ArrayLike, observations: Array, rng: np.random.Generator) -> Array:
        """One action per observation."""
        with torch.no_grad():
            return super().sample(theta, observations, rng)  # type: ignore[safe-super]

    def _alone(self, theta: Tensor, inputs: Any) -> Tensor:
        """Outputs of a single row of what the module takes, shape (1, o)."""
        named = isinstance(inputs, dict)
        alone = {n: x[None] for n, x in inputs.items()} if named else inputs[None]
        return self.completed(theta, self._called(theta, alone))

    def vjp(
        self, theta: Tensor, observations: Tensor, actions: Tensor, cotangents: Tensor
    ) -> Tensor:
        """Sum over rows of score (x) cotangent, (d, q), by a backward pass for every cotangent."""
        point = theta.detach().requires_grad_(True)
        total = torch.zeros(cotangents.shape[1], len(theta), dtype=theta.dtype, device=theta.device)
        for rows in _blocks(len(observations)):
            value = self.log_prob(point, observations[rows], actions[rows])
            for k, column in enumerate(cotangents[rows].T):
                (found,) = torch.autograd.grad(value, point, column, retain_graph=True)
                total[k] += found
        return total.T

    def fisher(self, theta: Tensor, observations: Tensor, counts: Tensor | None = None) -> Fisher:
        """Information about theta, block by block."""
        weight = self._counts(observations, counts)
        blocks = list(_blocks(len(observations)))

        def product(vector: Float) -> Float:
            parts = (
                Policy.fisher(self, theta, observations[rows], weight[rows]).matvec(vector)
                for rows in blocks
            )
            return np.asarray(sum(parts))

        def diagonal(most: int | None) -> Float:
            some = slice(None, None, max(1, len(weight) // (most or len(weight))))
            rows, times = observations[some], weight[some] * (weight.sum() / weight[some].sum())
            return self._diagonal(theta.detach(), rows, times)

        return ProductFisher(self.n_parameters, product, diagonal)

    def _diagonal(self, theta: Tensor, observations: Tensor, weight: Tensor) -> Float:
        """Of the information: exactly, or where that takes too long, about."""
        width = self.outputs(theta, observations[:1]).shape[1]
        if len(observations) * width * len(theta) <= _EXACT_DIAGONAL:
            return Policy.fisher(self, theta, observations, weight).diagonal()
        point, total = theta.clone().requires_grad_(True), torch.zeros_like(theta)
        signs = torch.Generator(device=theta.device).manual_seed(len(observations))
        size = max(1, min(_ROWS, len(observations) // _SIGNED_BLOCKS))
        for rows in _blocks(len(observations), size):
            outputs = self.outputs(point, observations[rows])
            root = self.fisher_root(outputs.detach()) * weight[rows].sqrt()[:, None, None]
            # E (sum of sign * gradient)^2 is the sum of the squares.
            turned = torch.randint(0, 2, root.shape[::2], generator=signs, device=theta.device)
            pulled = (root * (2.0 * turned - 1)[:, None, :]).sum(dim=2)
            (found,) = torch.autograd.grad(outputs, point, pulled)
            total += found**2
        return np.asarray(total.cpu().numpy())

    def initial(self, rng: np.random.Generator) -> Float:
        """Fan-in scaled normal weights, zero biases, a small last layer, unit deviations."""
        named = list(self.module.named_parameters())
        wide = [i for i, (_, value) in enumerate(named) if value.ndim > 1]
        parts = []
        for index, (name, value) in enumerate(named):
            if value.ndim > 1:
                scale = (0.01 if index == wide[-1] else 1.0) / np.sqrt(value[0].numel())
                parts.append(scale * rng.standard_normal(value.numel()))
            else:
                parts.append(np.full(value.numel(), 0.0 if name.endswith("bias") else 1.0))
        parts.append(np.zeros(self.n_parameters - self.n_mean_parameters))
        return np.concatenate(parts)


@dataclass(frozen=True, eq=False)
class TorchCategorical(TorchFamily, SoftmaxPolicy):
    """A softmax over a module's outputs."""

    module: nn.Module = field(repr=False)
    n_actions: int
    observations: spaces.Space[Any] | None = None
    prepare_inputs: Inputs | None = None
    precision: str = "double"
    device: str = "cpu"


@dataclass(frozen=True, eq=False)
class TorchGaussian(TorchFamily, GaussianPolicy):
    """A diagonal Gaussian around a module's outputs, with state-independent deviations."""

    module: nn.Module = field(repr=False)
    action_dim: int
    sigma: Any = None
    observations: spaces.Space[Any] | None = None
    prepare_inputs: Inputs | None = None
    precision: str = "double"
    device: str = "cpu"

    @property
    def n_parameters(self) -> int:
        """Number d of parameters."""
        return self.n_mean_parameters + (self.action_dim if self.sigma is None else 0)


@dataclass(frozen=True, eq=False)
class TorchProduct(TorchFamily, ProductPolicy):
    """A softmax for each of several choices, over a module's outputs side by side."""

    module: nn.Module = field(repr=False)
    choices: tuple[int, ...]
    binary: bool = False
    observations: spaces.Space[Any] | None = None
    prepare_inputs: Inputs | None = None
    precision: str = "double"
    device: str = "cpu"


def layout_of(space: spaces.Space[Any]) -> np.dtype[Any] | None:
    """How observations of a Dict space are stored; None for any other space."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Dict):
        return None
    stored = []
    for name in sorted(space.spaces):
        part = space.spaces[name]
        if part.shape is None or part.dtype is None:
            raise OptionError(f"part {name!r} of the observations is a {type(part).__name__}")
        one = storable(np.zeros((1, *part.shape), part.dtype))
        stored.append((name, one.dtype, part.shape))
    return np.dtype(stored)


def _parts(packed: Tensor, layout: np.dtype[Any]) -> Iterator[tuple[str, Tensor]]:
    """Parts of packed observations, (N, bytes), by name."""
    assert layout.names is not None and layout.fields is not None
    for name in layout.names:
        kind, at = layout.fields[name][:2]
        flat = packed[:, at : at + kind.itemsize].contiguous()
        values = flat.view(getattr(torch, kind.base.name))
        yield name, values.reshape(len(packed), *kind.shape)


def _blocks(n: int, size: int = _ROWS) -> Iterator[slice]:
    for at in range(0, n, size):
        yield slice(at, min(at + size, n))
