"""Settings of Stable-Baselines3's learners, from a model that trains or from a checkpoint.

Of a checkpoint only what it says in plain JSON is read, and tables of tensors: objects that it
holds as pickles (schedules, for instance) stay unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

import numpy as np
from torch import nn

from logel.data.settings import HUGE, LearnerSettings
from logel.errors import MissingExtraError
from logel.policies.architecture import ACTIVATIONS
from logel.policies.sb3 import linear_widths, shows_states, shows_vectors
from logel.policies.sb3_checkpoint import checkpoint_facts, optimizer_group, read_checkpoint
from logel.types import Array

# How torch computes a step, not which step.
_MEANS = {"lr", "params", "foreach", "fused", "capturable", "differentiable"}
# Differences of such numbers fit in 64 bits; nobody trains for longer.
_MOST_STEPS = 10**15
# Numbers and flags that models, checkpoints and `LearnerSettings` call the same.
_PLAIN = (
    *("gamma", "gae_lambda", "n_steps", "n_envs", "batch_size", "n_epochs", "ent_coef", "vf_coef"),
    *("max_grad_norm", "normalize_advantage", "target_kl", "use_sde", "cg_max_steps", "cg_damping"),
    *("line_search_shrinking_factor", "line_search_max_iter", "n_critic_updates"),
    "sub_sampling_factor",
)


def model_settings(model: Any, *, n_updates_between: int | None = None) -> LearnerSettings:
    """Settings of a model of PPO, A2C, TRPO or their like.

    Args:
        model: An on-policy model of Stable-Baselines3.
        n_updates_between: Updates between two stages of the history.
    """
    optimizer = model.policy.optimizer
    return LearnerSettings.believed(
        {
            **{name: getattr(model, name, None) for name in _PLAIN},
            "algorithm": type(model).__name__,
            "learning_rate": model.lr_schedule(1.0),
            **schedule_values(model, 1.0),
            "optimizer": type(optimizer).__name__,
            "optimizer_options": _options(optimizer.param_groups[0]),
            **_networks(model.policy),
            "ortho_init": getattr(model.policy, "ortho_init", None),
            "total_timesteps": model._total_timesteps,
            "reward_normaliser": _reward_normaliser(model.get_env()),
            "n_updates_between": n_updates_between,
        }
    )


def schedule_values(model: Any, progress: float) -> dict[str, float]:
    """Clip ranges of a model when `progress` (1 to 0) of its training remains, if it has any."""
    schedules = {name: getattr(model, name, None) for name in ("clip_range", "clip_range_vf")}
    values = {name: float(f(progress)) for name, f in schedules.items() if callable(f)}
    # One that never clips may be infinite, which JSON is not.
    return {name: min(value, HUGE) for name, value in values.items()}


def checkpoint_settings(path: str | PathLike[str]) -> LearnerSettings | None:
    """Settings of the learner that saved a checkpoint, or None if the file does not say any.

    Nothing in the file is executed. Clip ranges, and learning rates that change, are not in plain
    text there: the former stay unknown, the latter is that of the optimiser's last step.

    Raises:
        FormatError: If the file is no checkpoint.
    """
    facts = checkpoint_facts(path)
    if "n_steps" not in facts:
        return None
    chosen = facts.get("policy_kwargs")
    chosen = chosen if isinstance(chosen, dict) else {}
    group = optimizer_group(path)
    rate = facts.get("learning_rate")
    activation = _class_name(chosen.get("activation_fn"), "Tanh")
    names = {kind.__name__: name for name, kind in ACTIVATIONS.items()}
    return LearnerSettings.believed(
        {
            **{name: facts.get(name) for name in _PLAIN},
            "algorithm": _algorithm(facts),
            "learning_rate": rate if isinstance(rate, int | float) else group.get("lr"),
            # A2C writes its RMSprop among the policy's options, and the policy's own is Adam.
            "optimizer": _class_name(chosen.get("optimizer_class"), "Adam"),
            "optimizer_options": _options(group) or None,
            **_checkpoint_networks(read_checkpoint(path)),
            "activation": names.get(activation),
            "ortho_init": chosen.get("ortho_init", True),
            "total_timesteps": facts.get("_total_timesteps"),
        }
    )


def updates_between(settings: LearnerSettings, paths: Iterable[str | PathLike[str]]) -> int | None:
    """Updates from a checkpoint of a run to the next, or None if they do not say.

    Args:
        settings: Of the run.
        paths: Its checkpoints, in the order of training.
    """
    if settings.n_steps is None or settings.n_envs is None:
        return None
    steps = [checkpoint_facts(path).get("num_timesteps") for path in paths]
    if not all(type(step) is int and 0 <= step < _MOST_STEPS for step in steps):
        return None
    gaps = np.diff(np.array(steps, dtype=np.int64))
    if len(gaps) == 0 or gaps.min() <= 0:
        return None
    # Checkpoints fall inside rollouts: single gaps may be an update off.
    return max(1, round(float(np.median(gaps)) / (settings.n_steps * settings.n_envs)))


def _algorithm(facts: Mapping[str, Any]) -> str:
    """Archives do not name the algorithm, but no two have the same settings."""
    if "n_epochs" in facts and "clip_range" in facts:
        return "PPO"
    return "TRPO" if "cg_max_steps" in facts else "A2C"


def _class_name(text: Any, default: str) -> str:
    """The name in what Python prints of a class, `<class 'torch.optim.adam.Adam'>`."""
    if text is None:
        return default
    match = re.fullmatch(r"<class '(?:\w+\.)*(\w+)'>", text) if isinstance(text, str) else None
    return match[1] if match else ""


def _options(group: Mapping[Any, Any]) -> dict[str, float]:
    """The numbers of an optimiser's options."""
    betas = group.get("betas")
    if isinstance(betas, list | tuple) and len(betas) == 2:
        group = {**group, "beta1": betas[0], "beta2": betas[1]}
    options = {name: group[name] for name in group if name not in _MEANS}
    # The sign turns flags into numbers.
    return {name: +x for name, x in options.items() if isinstance(x, int | float)}


def _networks(policy: Any) -> dict[str, Any]:
    """Widths and activation, where Stable-Baselines3's own policy acts on vectors."""
    from stable_baselines3.common.policies import ActorCriticPolicy
    from stable_baselines3.common.torch_layers import FlattenExtractor, MlpExtractor

    extractors = (policy.pi_features_extractor, policy.vf_features_extractor)
    kinds = [type(part) for part in (policy, policy.mlp_extractor, *extractors)]
    space = policy.observation_space
    plain = shows_vectors(space) or shows_states(space)
    # What a subclass does with its layers cannot be known.
    plain &= kinds == [ActorCriticPolicy, MlpExtractor, FlattenExtractor, FlattenExtractor]
    if not plain:
        return {}
    layers = [list(policy.mlp_extractor.policy_net), list(policy.mlp_extractor.value_net)]
    pi, vf = (linear_widths(part[0::2]) for part in layers)
    between = [layer for part in layers for layer in part[1::2]]
    return {"pi": pi, "vf": vf, "activation": _activation(between, policy.activation_fn)}


def _activation(layers: Iterable[nn.Module], kind: Any) -> str | None:
    """The name of what lies between layers; without hidden layers, of what would."""
    # Their text tells options such as a slope.
    texts = {repr(layer) for layer in layers}
    for name, known in ACTIVATIONS.items():
        if texts == {repr(known())} or (not texts and kind is known):
            return name
    return None


def _checkpoint_networks(arrays: Mapping[str, Array]) -> dict[str, Any]:
    if any("features_extractor." in name or name.startswith("lstm") for name in arrays):
        return {}
    return {"pi": _saved_widths(arrays, "policy_net"), "vf": _saved_widths(arrays, "value_net")}


def _saved_widths(arrays: Mapping[str, Array], net: str) -> tuple[int, ...] | None:
    pattern = re.compile(rf"mlp_extractor\.{net}\.(\d{{1,6}})\.weight")
    found = {int(match[1]): arrays[name] for name in arrays if (match := pattern.fullmatch(name))}
    if any(weight.ndim != 2 for weight in found.values()):
        return None
    return tuple(len(found[number]) for number in sorted(found))


def _reward_normaliser(env: Any) -> dict[str, float] | None:
    try:
        from stable_baselines3.common.vec_env import unwrap_vec_normalize
    except ImportError as error:
        raise MissingExtraError("stable-baselines3", "sb3") from error
    normaliser = None if env is None else unwrap_vec_normalize(env)
    # One whose statistics stand still only multiplies rewards by a number.
    if normaliser is None or not (normaliser.norm_reward and normaliser.training):
        return None
    return {
        "gamma": normaliser.gamma,
        "epsilon": normaliser.epsilon,
        "clip": normaliser.clip_reward,
    }
