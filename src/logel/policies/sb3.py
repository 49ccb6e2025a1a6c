"""Stable-Baselines3's actor-critic policies as families that logel can differentiate.

Only the part that chooses actions counts: features extractor (if it has parameters), policy
network, action network, log-deviations, flattened in this order, every layer's weight before its
bias. For a plain tanh network that is the order of `MLPGaussian` and `MLPCategorical`, and those
are what `SB3Policy.from_model` returns; any other network is called as it is.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from logel.errors import MissingExtraError, PolicyError
from logel.policies.base import Policy
from logel.policies.gaussian import GaussianPolicy
from logel.policies.networks import MLPCategorical, MLPGaussian, one_hot
from logel.policies.sb3_checkpoint import read_checkpoint, space_kind
from logel.policies.softmax import SoftmaxPolicy
from logel.types import Array, Float

Inputs = Callable[[Tensor], Tensor]
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "leaky_relu": nn.LeakyReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}


def policy_parameters(model: Any) -> Float:
    """Flat parameters of a model's policy (or of a policy) in the order of its family."""
    named = _actor_tensors(_actor_critic(model))
    return np.concatenate([t.detach().cpu().numpy().astype(np.float64).ravel() for t in named])


def set_policy_parameters(model: Any, parameters: npt.ArrayLike) -> None:
    """Overwrite what a model's policy chooses actions with; the value function stays.

    Args:
        model: A Stable-Baselines3 on-policy model, or its policy.
        parameters: Flat, shape (d,), as `policy_parameters` gives them.
    """
    tensors = _actor_tensors(_actor_critic(model))
    vector = torch.as_tensor(np.array(parameters, dtype=np.float64))
    expected = sum(t.numel() for t in tensors)
    if vector.shape != (expected,):
        raise PolicyError(
            f"the policy has {expected} parameters, but there are {tuple(vector.shape)}: they are "
            "of another environment or network"
        )
    if not torch.isfinite(vector).all():
        raise PolicyError("the parameters must be finite")
    with torch.no_grad():
        at = 0
        for tensor in tensors:
            tensor.copy_(vector[at : at + tensor.numel()].reshape(tensor.shape))
            at += tensor.numel()


def checkpoint_parameters(path: str | PathLike[str]) -> Float:
    """Flat parameters of the policy in a checkpoint, in the order of its family; see `SB3Policy`.

    The file is read without executing anything in it.
    """
    layers, log_std = _checkpoint_layers(read_checkpoint(path))
    parts = [array.ravel() for layer in layers for array in layer]
    return np.concatenate([*parts, *([] if log_std is None else [log_std])])


class SB3Policy(Policy):
    """The family of a Stable-Baselines3 actor-critic policy.

    Attributes:
        module: Maps prepared observations to means or logits; its own parameters only give the
            shapes, theta always travels as an argument.
        prepare_inputs: Turns observations into the tensor the module expects.
    """

    module: nn.Module
    prepare_inputs: Inputs

    @classmethod
    def from_model(cls, model: Any, *, device: str = "cpu") -> Policy:
        """The family of a model's policy (or of a policy): PPO, A2C, TRPO, MaskablePPO.

        Masks are no part of it: they are recorded with the history (`action_masks`).

        Returns:
            `MLPGaussian` or `MLPCategorical` for a plain tanh network on vectors, whose
            derivatives are written out; else an adapter around a copy of the network.
        """
        policy = _actor_critic(model)
        _check_distribution(policy)
        discrete = not hasattr(policy, "log_std")
        outputs = int(policy.action_net.out_features)
        hidden = plain_hidden(policy)
        if hidden is not None:
            widths = (int(policy.features_dim), *hidden, outputs)
            numbered = shows_states(policy.observation_space)
            return _tanh_network(widths, discrete=discrete, device=device, one_hot=numbered)
        actor = nn.Sequential(
            policy.pi_features_extractor, policy.mlp_extractor.policy_net, policy.action_net
        )
        module = copy.deepcopy(actor).to(device=device, dtype=torch.float64).eval()
        prepare = _Preprocess(policy.observation_space, bool(policy.normalize_images))
        return _adapter(module, prepare, outputs, discrete, device)

    @classmethod
    def from_checkpoint(
        cls, path: str | PathLike[str], *, activation: str = "tanh", device: str = "cpu"
    ) -> Policy:
        """The family of the policy in a checkpoint of an MlpPolicy.

        The file is read without executing anything in it, so what it only says in pickled form,
        the activation between layers, is an argument. `checkpoint_parameters` gives its theta.
        """
        if activation not in ACTIVATIONS:
            raise PolicyError(
                f"unknown activation {activation!r}: choose one of {', '.join(ACTIVATIONS)}"
            )
        kind = space_kind(path, "action_space")
        if kind is not None and kind not in ("Box", "Discrete"):
            raise PolicyError(f"{path}: actions are {kind}, but must be Discrete or Box")
        layers, log_std = _checkpoint_layers(read_checkpoint(path))
        widths = [layers[0][0].shape[1], *(len(bias) for _, bias in layers)]
        discrete = log_std is None
        numbered = space_kind(path, "observation_space") == "Discrete"
        if activation == "tanh":
            return _tanh_network(widths, discrete=discrete, device=device, one_hot=numbered)
        parts: list[nn.Module] = [nn.Flatten()]
        for width, out in pairwise(widths):
            parts += [nn.Linear(width, out), ACTIVATIONS[activation]()]
        # Nothing comes after the last layer.
        module = nn.Sequential(*parts[:-1]).to(device=device, dtype=torch.float64).eval()
        prepare = partial(one_hot, n_states=widths[0]) if numbered else _identity
        return _adapter(module, prepare, widths[-1], discrete, device)

    @property
    def n_mean_parameters(self) -> int:
        """Number of parameters of the network."""
        return sum(value.numel() for value in self.module.parameters())

    @property
    def floats_per_step(self) -> int:
        """Outputs of the module's layers, and as much again for the backward pass."""
        widths = (
            int(getattr(m, "out_features", 0) or getattr(m, "out_channels", 0) * 400)
            for m in self.module.modules()
        )
        return 4 * sum(widths) + 64

    def prepare_observations(self, observations: Array) -> Tensor:
        """Observations as the network takes them, N rows."""
        return self.prepare_inputs(torch.tensor(np.asarray(observations), device=self.device))

    def outputs(self, theta: Tensor, observations: Tensor) -> Tensor:
        """Parameters of the action distribution, one row per observation."""
        return self.completed(theta, self.means(theta, observations))

    def means(self, theta: Tensor, observations: Tensor) -> Tensor:
        """What the network puts out (means or logits) for the first parameters of theta."""
        tensors, at = {}, 0
        for name, value in self.module.named_parameters():
            tensors[name] = theta[at : at + value.numel()].reshape(value.shape)
            at += value.numel()
        return torch.func.functional_call(self.module, tensors, (observations,))

    def initial(self, rng: np.random.Generator) -> Float:
        """Fan-in scaled normal weights, zero biases, a small last layer, unit deviations."""
        named = list(self.module.named_parameters())
        last = max(i for i, (_, value) in enumerate(named) if value.ndim > 1)
        parts = []
        for index, (name, value) in enumerate(named):
            if value.ndim > 1:
                scale = (0.01 if index == last else 1.0) / np.sqrt(value[0].numel())
                parts.append(scale * rng.standard_normal(value.numel()))
            else:
                parts.append(np.full(value.numel(), 0.0 if name.endswith("bias") else 1.0))
        parts.append(np.zeros(self.n_parameters - self.n_mean_parameters))
        return np.concatenate(parts)


@dataclass(frozen=True, eq=False)
class SB3Gaussian(SB3Policy, GaussianPolicy):
    """A diagonal Gaussian around any network, with state-independent deviations."""

    module: nn.Module = field(repr=False)
    prepare_inputs: Inputs = field(repr=False)
    action_dim: int
    sigma: None = None
    device: str = "cpu"


@dataclass(frozen=True, eq=False)
class SB3Categorical(SB3Policy, SoftmaxPolicy):
    """A softmax over any network's logits."""

    module: nn.Module = field(repr=False)
    prepare_inputs: Inputs = field(repr=False)
    n_actions: int
    device: str = "cpu"

    @property
    def n_parameters(self) -> int:
        """Number d of parameters."""
        return self.n_mean_parameters


def _tanh_network(
    widths: Sequence[int], *, discrete: bool, device: str, one_hot: bool = False
) -> Policy:
    inputs, *hidden, outputs = widths
    family = MLPCategorical if discrete else MLPGaussian
    return family(inputs, outputs, hidden=tuple(hidden), device=device, one_hot=one_hot)


def _adapter(
    module: nn.Module, prepare: Inputs, outputs: int, discrete: bool, device: str
) -> SB3Policy:
    if discrete:
        return SB3Categorical(module, prepare, outputs, device=device)
    return SB3Gaussian(module, prepare, outputs, device=device)


def _identity(observations: Tensor) -> Tensor:
    return observations.to(torch.float64)


@dataclass(frozen=True)
class _Preprocess:
    """What SB3 does to observations before the network: one-hot codes, images to [0, 1]."""

    space: Any
    normalize_images: bool

    def __call__(self, observations: Tensor) -> Tensor:
        from stable_baselines3.common.preprocessing import preprocess_obs

        if shows_vectors(self.space):
            return observations.to(torch.float64)
        result = preprocess_obs(observations, self.space, normalize_images=self.normalize_images)
        assert isinstance(result, Tensor)
        return result.to(torch.float64)


def _actor_critic(model: Any) -> Any:
    """The ActorCriticPolicy of a model, or the policy itself."""
    try:
        from stable_baselines3.common.policies import ActorCriticPolicy
    except ImportError as error:
        raise MissingExtraError("stable-baselines3", "sb3") from error
    policy = getattr(model, "policy", model)
    if not (isinstance(policy, ActorCriticPolicy) or is_maskable(policy)):
        raise PolicyError(
            f"{type(policy).__name__} is not an actor-critic policy of Stable-Baselines3: PPO, "
            "A2C, TRPO and MaskablePPO have one"
        )
    return policy


def is_maskable(policy: Any) -> bool:
    """Whether a policy is one of sb3-contrib that takes masks of legal actions.

    What it puts out are logits of all actions; masks enter after them, here as there.
    """
    try:
        from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
    except ImportError:
        return False  # then nobody can have made one
    return isinstance(policy, MaskableActorCriticPolicy)


def _check_distribution(policy: Any) -> None:
    from stable_baselines3.common.distributions import (
        CategoricalDistribution,
        DiagGaussianDistribution,
    )

    # Masked distributions have a class for each kind of actions.
    known = (CategoricalDistribution, DiagGaussianDistribution)
    masked = type(policy.action_dist).__name__ == "MaskableCategoricalDistribution"
    if not (type(policy.action_dist) in known or (masked and is_maskable(policy))):
        raise PolicyError(
            f"policies with {type(policy.action_dist).__name__} are not supported: use Discrete "
            "or Box actions, without state-dependent exploration (use_sde)"
        )
    if hasattr(policy, "lstm_actor"):
        raise PolicyError("recurrent policies remember, so their actions cannot be explained")


def _actor_tensors(policy: Any) -> list[Tensor]:
    """The tensors that choose actions, in the order of theta."""
    _check_distribution(policy)
    modules = (policy.pi_features_extractor, policy.mlp_extractor.policy_net, policy.action_net)
    tensors: list[Tensor] = [value for module in modules for value in module.parameters()]
    return [*tensors, policy.log_std] if hasattr(policy, "log_std") else tensors


def shows_states(space: Any) -> bool:
    """Whether observations are numbers of states, from 0."""
    from gymnasium import spaces

    return isinstance(space, spaces.Discrete) and space.start == 0


def shows_vectors(space: Any) -> bool:
    """Whether observations are vectors of numbers, images not counted."""
    from gymnasium import spaces

    return isinstance(space, spaces.Box) and space.dtype != np.uint8


def plain_hidden(policy: Any) -> tuple[int, ...] | None:
    """Widths of the hidden layers if a policy is a tanh network on vectors or states, else None."""
    from stable_baselines3.common.torch_layers import FlattenExtractor

    space = policy.observation_space
    plain = shows_vectors(space) or shows_states(space)
    if not plain or type(policy.pi_features_extractor) is not FlattenExtractor:
        return None
    layers = list(policy.mlp_extractor.policy_net)
    linear, between = layers[0::2], layers[1::2]
    tanh = [type(layer) for layer in between] == [nn.Tanh] * len(linear)
    return linear_widths(linear) if tanh else None


def linear_widths(linear: Iterable[nn.Module]) -> tuple[int, ...] | None:
    """What layers put out, if all are linear and have a bias."""
    if any(type(layer) is not nn.Linear or layer.bias is None for layer in linear):
        return None
    return tuple(int(layer.out_features) for layer in linear)  # type: ignore[arg-type]


def _checkpoint_layers(
    arrays: Mapping[str, Array],
) -> tuple[list[tuple[Array, Array]], Array | None]:
    """Weight and bias of every layer of an MlpPolicy, and the log-deviations."""
    _refuse_extractors(arrays)
    numbers = sorted(
        int(match[1])
        for name in arrays
        if (match := re.fullmatch(r"mlp_extractor\.policy_net\.(\d{1,6})\.weight", name))
    )
    prefixes = [*(f"mlp_extractor.policy_net.{n}" for n in numbers), "action_net"]
    layers = [_checkpoint_layer(arrays, prefix) for prefix in prefixes]
    for prefix, (before, (weight, _)) in zip(prefixes[1:], pairwise(layers), strict=True):
        if len(before[0]) != weight.shape[1]:
            raise PolicyError(f"layer {prefix} does not go with the one before it")
    log_std = arrays.get("log_std")
    if log_std is not None and log_std.shape != layers[-1][1].shape:
        raise PolicyError("policies with state-dependent exploration (use_sde) are not supported")
    return layers, log_std


def _checkpoint_layer(arrays: Mapping[str, Array], prefix: str) -> tuple[Array, Array]:
    weight, bias = arrays.get(f"{prefix}.weight"), arrays.get(f"{prefix}.bias")
    if weight is None or bias is None or weight.ndim != 2 or bias.shape != weight.shape[:1]:
        raise PolicyError(f"the checkpoint has no usable layer {prefix}: is it an MlpPolicy?")
    return weight, bias


def _refuse_extractors(names: Iterable[str]) -> None:
    for name in names:
        if "features_extractor." in name or name.startswith("lstm"):
            raise PolicyError(
                f"the checkpoint has {name}, so it is not an MlpPolicy: load the model yourself "
                "and use SB3Policy.from_model"
            )
