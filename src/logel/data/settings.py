"""What a learner was told before it trained: all that repeating its updates takes.

A recorder writes the settings to `metadata["learner_settings"]` of a history; replay reads them
from there. They come from strangers' files as well, so every value is checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np

from logel.data.contents import Contents
from logel.data.limits import shown
from logel.errors import HistoryError

# Where histories keep them.
KEY = "learner_settings"
ACTIVATIONS = ("tanh", "relu", "elu", "leaky_relu", "gelu", "silu")
# Infinity (a gradient that is never clipped) is not JSON; nothing that trains reaches this.
HUGE = 1e30
# Epochs and the like are loops that a stranger's file could make endless.
_MOST_REPEATS = 100_000
# More steps than anybody trained for.
_MOST_STEPS = 10**15
_MOST_LAYERS, _MOST_WIDTH = 32, 65_536
# Optimisers have about ten options, and Python names are short.
_MOST_OPTIONS, _LONGEST_NAME = 32, 100

Check = Callable[[str, Any], Any]


def _said(value: object) -> str:
    """A value of any kind, short; printing a huge integer or a deep list would itself fail."""
    if isinstance(value, list | tuple | dict):
        return f"a {type(value).__name__} of {len(value)}"
    huge = isinstance(value, int) and value.bit_length() > 64
    plain = isinstance(value, str | int | float | None) and not huge
    return shown(repr(value)) if plain else f"a value of type {type(value).__name__}"


def _plain(value: Any) -> Any:
    """A number of numpy's as one of Python's, and infinity as a number that JSON has."""
    value = value.item() if isinstance(value, np.generic) else value
    infinite = isinstance(value, float) and math.isinf(value)
    return math.copysign(HUGE, value) if infinite else value


def _refuse(name: str, must: str, value: object) -> HistoryError:
    return HistoryError(f"the learner's {name} must be {must}, but is {_said(value)}")


def _number(low: float = -HUGE, high: float = HUGE) -> Check:
    def check(name: str, value: Any) -> float:
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        if not plain or not low <= value <= high:
            raise _refuse(name, f"a number from {low:g} to {high:g}", value)
        return float(value)

    return check


def _whole(high: int, low: int = 1) -> Check:
    def check(name: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise _refuse(name, f"a whole number from {low} to {high}", value)
        return int(value)

    return check


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _refuse(name, "true or false", value)
    return value


def _name(name: str, value: Any) -> str:
    sound = isinstance(value, str) and len(value) <= _LONGEST_NAME and value.isidentifier()
    if not sound:
        raise _refuse(name, "the name of a class", value)
    return str(value)


def _activation(name: str, value: Any) -> str:
    if not isinstance(value, str) or value not in ACTIVATIONS:
        raise _refuse(name, f"one of {', '.join(ACTIVATIONS)}", value)
    return value


def _widths(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or len(value) > _MOST_LAYERS:
        raise _refuse(name, f"a list of at most {_MOST_LAYERS} widths", value)
    return tuple(_whole(_MOST_WIDTH)(name, width) for width in value)


def _options(name: str, value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping) or len(value) > _MOST_OPTIONS:
        raise _refuse(name, f"at most {_MOST_OPTIONS} numbers by name", value)
    return {_name(name, key): _number()(f"{name} {key}", x) for key, x in value.items()}


@dataclass(frozen=True)
class RewardNormaliser:
    """How a learner's rewards were scaled by the deviation of their running return.

    Attributes:
        gamma: Discount of the running return.
        epsilon: Added to its variance.
        clip: Largest scaled reward.
    """

    gamma: float = 0.99
    epsilon: float = 1e-8
    clip: float = 10.0

    def __post_init__(self) -> None:
        checked = {
            "gamma": _number(0, 1)("reward normaliser's gamma", self.gamma),
            "epsilon": _number(0)("reward normaliser's epsilon", self.epsilon),
            "clip": _number(0)("reward normaliser's clip", self.clip),
        }
        self.__dict__.update(checked)  # frozen for everyone else


def _normaliser(name: str, value: Any) -> RewardNormaliser:
    if isinstance(value, RewardNormaliser):
        return value
    if not isinstance(value, Mapping):
        raise _refuse(name, "a table of gamma, epsilon and clip", value)
    known = {f.name for f in fields(RewardNormaliser)}
    return RewardNormaliser(**{key: value[key] for key in known if key in value})


def _field(check: Check) -> Any:
    return field(default=None, metadata={"check": check})


@dataclass(frozen=True)
class LearnerSettings:
    """Settings of Stable-Baselines3's PPO or A2C, of sb3-contrib's TRPO, or of their like.

    None is a setting that is not known, or that the algorithm does not have.

    Attributes:
        algorithm: "PPO", "A2C", "TRPO", or the name of another class.
        gamma: Discount factor.
        gae_lambda: Of generalised advantages.
        n_steps: Times of a rollout, in each environment.
        n_envs: Environments side by side.
        batch_size: Steps of a minibatch.
        n_epochs: Passes over a rollout.
        ent_coef: Weight of the entropy bonus.
        vf_coef: Weight of the critic's loss.
        max_grad_norm: Longest gradient, actor and critic together.
        normalize_advantage: Whether advantages are normalised, minibatch by minibatch.
        target_kl: Divergence at which PPO stops an update; size of TRPO's step.
        learning_rate: At the beginning of the training; TRPO's critic has it too. Notes of the
            stages have its values later on, and those of the clip ranges.
        clip_range: PPO's, at the beginning.
        clip_range_vf: That of PPO's critic, at the beginning; None also if it does not clip.
        cg_max_steps: TRPO's conjugate gradient steps.
        cg_damping: Added to TRPO's Fisher matrix.
        line_search_shrinking_factor: TRPO's.
        line_search_max_iter: TRPO's.
        n_critic_updates: TRPO's passes of the critic over a rollout.
        sub_sampling_factor: TRPO takes each so many steps of a rollout.
        optimizer: Name of its class: "Adam", "RMSprop", "RMSpropTFLike", or another.
        optimizer_options: Its numbers by torch's names, except that `betas` are "beta1" and
            "beta2"; flags are 0 or 1. The learning rate is not among them.
        pi: Widths of the actor's hidden layers; None unless the policy is a plain network on
            vectors that shares no layer with the critic.
        vf: Widths of the critic's hidden layers, likewise.
        activation: Between the layers, one of `ACTIVATIONS`.
        ortho_init: Whether networks begin with orthogonal weights.
        total_timesteps: Steps that the training was planned for, which schedules refer to.
        reward_normaliser: Of `VecNormalize`; None also if the learner had none.
        use_sde: Whether exploration depends on the state.
        n_updates_between: Updates from a stage to the next.
    """

    algorithm: str = field(metadata={"check": _name})
    gamma: float | None = _field(_number(0, 1))
    gae_lambda: float | None = _field(_number(0, 1))
    n_steps: int | None = _field(_whole(_MOST_STEPS))
    n_envs: int | None = _field(_whole(_MOST_STEPS))
    batch_size: int | None = _field(_whole(_MOST_STEPS))
    n_epochs: int | None = _field(_whole(_MOST_REPEATS))
    ent_coef: float | None = _field(_number())
    vf_coef: float | None = _field(_number())
    max_grad_norm: float | None = _field(_number(0))
    normalize_advantage: bool | None = _field(_flag)
    target_kl: float | None = _field(_number(0))
    learning_rate: float | None = _field(_number(0))
    clip_range: float | None = _field(_number(0))
    clip_range_vf: float | None = _field(_number(0))
    cg_max_steps: int | None = _field(_whole(_MOST_REPEATS))
    cg_damping: float | None = _field(_number(0))
    line_search_shrinking_factor: float | None = _field(_number(0, 1))
    line_search_max_iter: int | None = _field(_whole(_MOST_REPEATS))
    n_critic_updates: int | None = _field(_whole(_MOST_REPEATS, low=0))
    sub_sampling_factor: int | None = _field(_whole(_MOST_STEPS))
    optimizer: str | None = _field(_name)
    optimizer_options: Mapping[str, float] | None = _field(_options)
    pi: tuple[int, ...] | None = _field(_widths)
    vf: tuple[int, ...] | None = _field(_widths)
    activation: str | None = _field(_activation)
    ortho_init: bool | None = _field(_flag)
    total_timesteps: int | None = _field(_whole(_MOST_STEPS))
    reward_normaliser: RewardNormaliser | None = field(
        default=None, metadata={"check": _normaliser}
    )
    use_sde: bool | None = _field(_flag)
    n_updates_between: int | None = _field(_whole(_MOST_REPEATS))

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None or item.name == "algorithm":
                # Frozen for everyone else.
                self.__dict__[item.name] = item.metadata["check"](item.name, value)

    def to_json(self) -> dict[str, Any]:
        """As values that JSON has, every field by its name."""
        values = dict(vars(self))
        for name in ("pi", "vf"):
            values[name] = None if values[name] is None else list(values[name])
        normaliser = self.reward_normaliser
        values["reward_normaliser"] = None if normaliser is None else dict(vars(normaliser))
        options = self.optimizer_options
        values["optimizer_options"] = None if options is None else dict(options)
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """From what `to_json` gave; keys of later versions are left out.

        Raises:
            HistoryError: If a value is of the wrong type or size.
        """
        if not isinstance(values, Mapping) or "algorithm" not in values:
            raise HistoryError("a learner's settings must be a table that names its algorithm")
        known = (item.name for item in fields(cls))
        return cls(**{name: values[name] for name in known if name in values})

    @classmethod
    def believed(cls, values: Mapping[str, Any]) -> Self:
        """From whatever a learner says of itself: what makes no sense counts as not known.

        Recording must not fail because a learner has settings of its own.
        """
        sound: dict[str, Any] = {"algorithm": "unknown"}
        for item in fields(cls):
            value = _plain(values.get(item.name))
            if value is not None:
                with suppress(HistoryError):
                    sound[item.name] = item.metadata["check"](item.name, value)
        return cls(**sound)

    @classmethod
    def of(cls, history: Contents) -> Self | None:
        """Of a history, or None if it was recorded without them."""
        values = history.metadata.get(KEY)
        return None if values is None else cls.from_json(values)
