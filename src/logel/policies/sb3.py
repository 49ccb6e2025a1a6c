"""Stable-Baselines3's actor-critic policies as families that logel can differentiate.

Only the part that chooses actions counts: features extractor (if it has parameters), policy
network, action network, log-deviations, flattened in this order, every layer's weight before its
bias. For a plain tanh network that is the order of `MLPGaussian` and `MLPCategorical`, and those
are what `SB3Policy.from_model` returns; any other network is called as it is (`TorchPolicy`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from torch import Tensor, nn

from logel.errors import MissingExtraError, PolicyError
from logel.policies.architecture import ACTIVATIONS
from logel.policies.base import Policy
from logel.policies.networks import MLPCategorical, MLPGaussian, one_hot
from logel.policies.sb3_checkpoint import read_checkpoint, space_kind
from logel.policies.torch_policy import TorchPolicy
from logel.types import Array, Float


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


class SB3Policy:
    """Families of Stable-Baselines3's actor-critic policies."""

    @classmethod
    def from_model(cls, model: Any, *, device: str = "cpu", precision: str | None = None) -> Policy:
        """The family of a model's policy (or of a policy): PPO, A2C, TRPO, MaskablePPO.

        Masks are no part of it: they are recorded with the history (`action_masks`).

        Args:
            model: The model, or its policy.
            device: Where tensors live.
            precision: See `TorchPolicy`; by default single for policies that see images.

        Returns:
            `MLPGaussian` or `MLPCategorical` for a plain tanh network on vectors, whose
            derivatives are written out; else a `TorchPolicy` of a copy of the network.
        """
        policy = _actor_critic(model)
        _check_distribution(policy)
        hidden = plain_hidden(policy)
        if hidden is not None:
            discrete, outputs = not hasattr(policy, "log_std"), int(policy.action_net.out_features)
            widths = (int(policy.features_dim), *hidden, outputs)
            numbered = shows_states(policy.observation_space)
            return _tanh_network(widths, discrete=discrete, device=device, one_hot=numbered)
        actor = nn.Sequential(
            policy.pi_features_extractor, policy.mlp_extractor.policy_net, policy.action_net
        )
        seen = _stored(policy.observation_space)
        parts = seen.spaces.values() if isinstance(seen, spaces.Dict) else (seen,)
        images = any(shows_pictures(part) for part in parts)
        return TorchPolicy(
            actor,
            policy.action_space,
            observations=seen if isinstance(seen, spaces.Dict) else None,
            prepare_inputs=_Preprocess(policy.observation_space, bool(policy.normalize_images)),
            precision=precision or ("single" if images else "double"),
            device=device,
        )

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
        prepare = partial(one_hot, n_states=widths[0]) if numbered else None
        n = widths[-1]
        actions = spaces.Discrete(n) if discrete else spaces.Box(-np.inf, np.inf, (n,))
        # Nothing comes after the last layer.
        module = nn.Sequential(*parts[:-1])
        return TorchPolicy(module, actions, prepare_inputs=prepare, device=device)


def _tanh_network(
    widths: Sequence[int], *, discrete: bool, device: str, one_hot: bool = False
) -> Policy:
    inputs, *hidden, outputs = widths
    family = MLPCategorical if discrete else MLPGaussian
    return family(inputs, outputs, hidden=tuple(hidden), device=device, one_hot=one_hot)


def _stored(space: Any) -> Any:
    """The space of observations as histories hold them: single floats are all that is seen."""
    if isinstance(space, spaces.Dict):
        for name, part in space.spaces.items():
            if not isinstance(part, spaces.Box):
                raise PolicyError(
                    f"part {name!r} of the observations is in {part}: histories hold Dict "
                    "observations of Boxes, so write it as numbers"
                )
        return spaces.Dict({name: _stored(part) for name, part in space.spaces.items()})
    if isinstance(space, spaces.Box) and space.dtype == np.float64:
        return spaces.Box(-np.inf, np.inf, space.shape, np.float32)
    return space


def network_facts(policy: Any) -> dict[str, Any] | None:
    """What rebuilds a policy's network (`logel.policies.architecture`); None if nothing does.

    What a subclass does with its layers cannot be known: only Stable-Baselines3's own count.
    """
    from stable_baselines3.common.policies import (
        ActorCriticCnnPolicy,
        ActorCriticPolicy,
        MultiInputActorCriticPolicy,
    )
    from stable_baselines3.common.torch_layers import MlpExtractor

    own = (ActorCriticPolicy, ActorCriticCnnPolicy, MultiInputActorCriticPolicy)
    layers = list(policy.mlp_extractor.policy_net)
    inputs, hidden = _inputs(policy), linear_widths(layers[0::2])
    activation = _one_activation(layers[1::2])
    plain = type(policy) in own and type(policy.mlp_extractor) is MlpExtractor
    if not (plain and policy.normalize_images) or None in (inputs, hidden, activation):
        return None
    assert hidden is not None
    actions = policy.action_space
    sizes = np.ravel(getattr(actions, "nvec", getattr(actions, "n", int(np.prod(actions.shape)))))
    return {
        "inputs": inputs,
        "hidden": list(hidden),
        "activation": activation,
        "actions": type(actions).__name__,
        "sizes": [int(n) for n in sizes],
    }


def _one_activation(between: Iterable[nn.Module]) -> str | None:
    """The name of what lies between all layers alike; any, if there is nothing."""
    names = {str(kind()): name for name, kind in ACTIVATIONS.items()}
    texts = {str(layer) for layer in between} or {str(nn.Tanh())}
    return names.get(texts.pop()) if len(texts) == 1 else None


def _inputs(policy: Any) -> list[dict[str, Any]] | None:
    """The part of the facts about what is observed, if all of it is flattened or convolved."""
    from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor, NatureCNN

    extractor, space = policy.pi_features_extractor, policy.observation_space
    named: dict[str | None, tuple[Any, Any]] = {None: (extractor, space)}
    if type(extractor) is CombinedExtractor:
        named = {n: (part, space.spaces[n]) for n, part in extractor.extractors.items()}
    found = []
    for name, (part, seen) in named.items():
        image = shows_pictures(seen)
        flat = type(part) in (FlattenExtractor, nn.Flatten) and shows_vectors(seen)
        if not flat and not (type(part) is NatureCNN and image):
            return None
        features = None if flat else int(part.linear[0].out_features)
        found.append(
            {"name": name, "shape": list(seen.shape), "features": features, "bytes": image}
        )
    return found


@dataclass(frozen=True)
class _Preprocess:
    """What SB3 does to observations before the network: one-hot codes, images to [0, 1]."""

    space: Any
    normalize_images: bool

    def __call__(self, observations: Any) -> Any:
        from stable_baselines3.common.preprocessing import preprocess_obs

        if shows_vectors(self.space):
            return observations
        return preprocess_obs(observations, self.space, normalize_images=self.normalize_images)


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
        BernoulliDistribution,
        CategoricalDistribution,
        DiagGaussianDistribution,
        MultiCategoricalDistribution,
    )

    # Masked distributions have a class for each kind of actions.
    known = (
        *(CategoricalDistribution, DiagGaussianDistribution),
        *(MultiCategoricalDistribution, BernoulliDistribution),
    )
    masked = type(policy.action_dist).__name__ == "MaskableCategoricalDistribution"
    if not (type(policy.action_dist) in known or (masked and is_maskable(policy))):
        raise PolicyError(
            f"policies with {type(policy.action_dist).__name__} are not supported: use Discrete, "
            "MultiDiscrete, MultiBinary or Box actions, without state-dependent exploration "
            "(use_sde)"
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
    return isinstance(space, spaces.Discrete) and space.start == 0


def shows_vectors(space: Any) -> bool:
    """Whether observations are vectors of numbers, images not counted."""
    return isinstance(space, spaces.Box) and space.dtype != np.uint8


def shows_pictures(space: Any) -> bool:
    """Whether observations are pictures, which are stored as bytes."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) > 1


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
