"""Stable-Baselines3's own `train()` as a learner: slow, one candidate after another, and exact.

For learners of its kind that `StackedLearner` does not repeat: other activations, optimisers and
feature extractors, and subclasses with a `train()` of their own, given as a live model. Models are
never loaded here: a file's settings build a new one, and only from classes named below.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from logel.data.settings import LearnerSettings
from logel.data.stage import Stage
from logel.errors import MissingExtraError, OptionError
from logel.policies.architecture import ACTIVATIONS
from logel.policies.base import Policy
from logel.policies.sb3 import policy_parameters, set_policy_parameters
from logel.policies.sb3_settings import model_settings
from logel.replay.batch import Batch
from logel.replay.learner import (
    DEFAULTS,
    Generators,
    Learner,
    OneByOne,
    StackedLearner,
    described,
    optimiser_name,
    scheduled,
    unlike,
    updated,
)
from logel.replay.normaliser import RunningReturns
from logel.types import Array, Float

# What a file may ask for by name; Stable-Baselines3's own comes on top.
_OPTIMISERS = (
    *("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "SGD", "Adagrad", "Adadelta"),
    "RMSpropTFLike",
)
# Of `Update`, what models keep as functions of the training's progress.
_SCHEDULES = ("learning_rate", "clip_range", "clip_range_vf")
# Seeds of torch and numpy that both take.
_SEEDS = 2**32


@dataclass(frozen=True, eq=False)
class Carried:
    """What copies carry on beside their policies.

    Attributes:
        models: All that a model would save, for each copy.
        returns: Statistics of normalised rewards, if they are.
    """

    models: list[Any]
    returns: RunningReturns | None = None


class SB3Learner:
    """Copies of a model that are trained one by one, by its own `train()`."""

    def __init__(
        self, model: Any, settings: LearnerSettings, notes: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """A learner that leaves the model as it is.

        Args:
            model: Of PPO, A2C, TRPO or a subclass; not used further.
            settings: Its own.
            notes: Of the stages, for its words.
        """
        self.model = _apart(model)
        self.settings = settings
        name = next((name for name in DEFAULTS if name in _names(model)), "PPO")
        self.common = updated(DEFAULTS[name], settings)
        words = described(settings.algorithm, self.common, notes)
        self.words = f"{words} by its own code"

    def initial(self, rng: Generators) -> Carried:
        """See `Learner`."""
        return Carried([self._beginning(one) for one in rng])

    def update(
        self, parameters: Tensor, state: Carried, batch: Batch, rewards: Tensor, rng: Generators
    ) -> tuple[Tensor, Carried]:
        """See `Learner`."""
        returns = state.returns
        if (normaliser := self.settings.reward_normaliser) is not None:
            before = returns or RunningReturns.initial(rewards)
            rewards, returns = before.scaled(rewards, batch, normaliser, self.settings.n_envs)
        self._schedule(batch.notes)
        each = OneByOne(self.trained)
        found, models = each.update(parameters, state.models, batch, rewards, rng)
        return found, Carried(models, returns)

    def chosen(self, state: Carried, members: Array) -> Carried:
        """See `Learner`."""
        returns = state.returns
        if returns is not None:
            returns = returns.chosen(torch.as_tensor(np.array(members), device=returns.mean.device))
        return Carried([state.models[int(k)] for k in members], returns)

    def together(self, batch: Batch) -> float:
        """See `Learner`: alone is as well."""
        return 1

    def trained(
        self, parameters: Float, state: Any, stage: Stage, rewards: Float, rng: np.random.Generator
    ) -> tuple[Float, Any]:
        """The model's policy and all it carries on, after it trained on a stage."""
        model = self.model
        # Optimisers would go on working in the tensors they are given.
        model.set_parameters(copy.deepcopy(state), device=model.device)
        set_policy_parameters(model, parameters)
        model.rollout_buffer = _filled(model, stage, rewards, rng)
        with _random(rng, model.device):
            model.train()
        return policy_parameters(model), copy.deepcopy(model.get_parameters())

    def _beginning(self, rng: np.random.Generator) -> Any:
        with _random(rng, self.model.device):
            self.model._setup_model()
        return copy.deepcopy(self.model.get_parameters())

    def _schedule(self, notes: Mapping[str, Any]) -> None:
        """Rate and clip ranges of a stage; where its notes have none, those of the beginning."""
        now = scheduled(self.common, notes)
        for name in _SCHEDULES:
            attribute = "lr_schedule" if name == "learning_rate" else name
            if callable(getattr(self.model, attribute, None)):
                setattr(self.model, attribute, _Constant(getattr(now, name)))


def own_update(model: Any) -> SB3Learner:
    """A learner that repeats the updates of a live model by its own `train()`.

    Args:
        model: Of PPO, A2C, TRPO or a subclass of theirs; it stays as it is.
    """
    return SB3Learner(model, model_settings(model))


def learner_for(
    settings: LearnerSettings,
    policy: Policy,
    n_inputs: int,
    model: Any = None,
    *,
    notes: Sequence[Mapping[str, Any]] = (),
) -> tuple[Learner, str | None]:
    """The fastest way to repeat a learner's updates, and a note where that is slow.

    Args:
        settings: Of the learner.
        policy: Its family.
        n_inputs: Numbers in an observation.
        model: A live model of it, for what settings do not tell.
        notes: Of the stages, for its words.

    Raises:
        OptionError: If settings alone are not enough, and there is no model.
        MissingExtraError: If the slow way is taken and Stable-Baselines3 is not installed.
    """
    why = unlike(settings, policy, n_inputs)
    if why is None and model is not None and type(model) not in _algorithms().values():
        why = f"{type(model).__name__} may have an update of its own"
    if why is None:
        fast = StackedLearner.of(settings, policy, n_inputs, notes)
        assert fast is not None
        return fast, None
    if model is None:
        slow = SB3Learner(model_for(settings, policy, n_inputs), settings, notes)
    else:
        slow = SB3Learner(model, _completed(model_settings(model), settings), notes)
    return slow, f"replayed by Stable-Baselines3's own code, candidate by candidate: {why}"


def _completed(own: LearnerSettings, told: LearnerSettings) -> LearnerSettings:
    """A model's settings; it may have lost the environments that it was trained in."""
    normaliser = told.reward_normaliser or own.reward_normaliser
    return replace(own, n_envs=told.n_envs or own.n_envs, reward_normaliser=normaliser)


def _names(model: Any) -> list[str]:
    return [kind.__name__ for kind in type(model).__mro__]


def _algorithms() -> dict[str, Any]:
    try:
        from stable_baselines3 import A2C, PPO
    except ImportError as error:
        raise MissingExtraError("stable-baselines3", "mujoco") from error
    known = {"PPO": PPO, "A2C": A2C}
    try:
        from sb3_contrib import TRPO
    except ImportError:
        return known
    return {**known, "TRPO": TRPO}


def model_for(settings: LearnerSettings, policy: Policy, n_inputs: int) -> Any:
    """A new model with a learner's settings, in a world that only has spaces.

    Raises:
        OptionError: If the settings do not tell all that it takes.
    """
    s, kind = settings, _algorithms().get(settings.algorithm)
    if kind is None and s.algorithm == "TRPO":
        raise MissingExtraError("sb3-contrib", "mujoco")
    known = optimiser_name(s) in _OPTIMISERS and not s.use_sde
    if kind is None or not known or s.pi is None or s.vf is None or s.activation is None:
        raise OptionError(
            f"this learner's updates cannot be repeated from its settings, because "
            f"{unlike(s, policy, n_inputs)}: pass the model itself, or a function of yours that "
            "does one update"
        )
    networks = {
        "net_arch": {"pi": list(s.pi), "vf": list(s.vf)},
        "activation_fn": ACTIVATIONS[s.activation],
        "ortho_init": s.ortho_init is not False,
        **_optimiser(s),
    }
    world = _world(policy, n_inputs)
    model = kind("MlpPolicy", world, policy_kwargs=networks, device="cpu")
    _set(model, s)
    _check_size(model, policy)
    return model


def _check_size(model: Any, policy: Policy) -> None:
    n = len(policy_parameters(model))
    if n != policy.n_parameters:
        raise OptionError(
            f"a network with the learner's settings has {n} parameters and the policy "
            f"{policy.n_parameters}: give the policy that the learner had"
        )


def _set(model: Any, settings: LearnerSettings) -> None:
    """Put settings into a model, whether or not they fit the rollout that it was made with."""
    for name, value in vars(updated(DEFAULTS[settings.algorithm], settings)).items():
        if name not in _SCHEDULES:
            setattr(model, name, value)
    if settings.algorithm == "PPO" and settings.clip_range_vf is not None:
        model.clip_range_vf = _Constant(settings.clip_range_vf)


def _world(policy: Policy, n_inputs: int) -> Any:
    from gymnasium import Env, spaces

    world: Any = Env()
    world.observation_space = spaces.Box(-np.inf, np.inf, (n_inputs,), dtype=np.float32)
    n_actions = getattr(policy, "n_actions", None)
    world.action_space = (
        spaces.Discrete(int(n_actions))
        if n_actions
        else spaces.Box(-1.0, 1.0, (policy.action_dim,), dtype=np.float32)  # type: ignore[attr-defined]
    )
    return world


def _optimiser(settings: LearnerSettings) -> dict[str, Any]:
    """Class and options; of those only what the class knows, flags as flags."""
    kind = _optimiser_class(optimiser_name(settings))
    told: dict[str, Any] = {"eps": 1e-5, **(settings.optimizer_options or {})}
    if "beta1" in told and "beta2" in told:
        told["betas"] = (told["beta1"], told["beta2"])
    options = {}
    for name, item in inspect.signature(kind).parameters.items():
        if name in told:
            options[name] = bool(told[name]) if isinstance(item.default, bool) else told[name]
    return {"optimizer_class": kind, "optimizer_kwargs": options}


def _optimiser_class(name: str) -> Any:
    if name != "RMSpropTFLike":
        return getattr(torch.optim, name)
    from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike

    return RMSpropTFLike


@dataclass(frozen=True)
class _Constant:
    """A schedule that has arrived."""

    value: float

    def __call__(self, progress: float) -> float:
        return self.value


def _apart(model: Any) -> Any:
    """A copy of a model with networks, optimiser and buffer of its own, made anew."""
    from stable_baselines3.common.logger import Logger

    own = copy.copy(model)
    own.set_logger(Logger(folder=None, output_formats=[]))
    # It would seed the whole process.
    own.seed = None
    with _random(np.random.default_rng(), own.device):
        own._setup_model()
    return own


def _filled(model: Any, stage: Stage, rewards: Float, rng: np.random.Generator) -> Any:
    """A rollout buffer with a stage in it.

    All episodes lie one after another in one environment, which is the order that buffers have
    when they are sampled from. Where one was cut, the critic's value of what came next is added to
    its last reward, as Stable-Baselines3 itself does at time limits.
    """
    buffer = _buffer(model, stage.n_steps, rng)
    model.policy.set_training_mode(False)
    rows = (stage.n_steps, 1)
    buffer.observations[:] = stage.observations.reshape(buffer.observations.shape)
    buffer.actions[:] = stage.actions.reshape(buffer.actions.shape)
    ends = stage.starts + stage.lengths - 1
    with torch.no_grad():
        seen = _seen(model, stage.observations)
        taken = torch.as_tensor(np.array(stage.actions), device=model.device)
        values, log_probs, _ = model.policy.evaluate_actions(seen, taken)
        paid = rewards.copy()
        if stage.last_observations is not None:
            last = model.policy.predict_values(_seen(model, stage.last_observations))
            after = last.double().cpu().numpy()[:, 0]
            paid[ends] += model.gamma * after * ~stage.terminated
    buffer.values[:] = values.cpu().numpy().reshape(rows)
    buffer.log_probs[:] = log_probs.cpu().numpy().reshape(rows)
    buffer.rewards[:] = paid.reshape(rows)
    buffer.episode_starts[stage.starts] = 1.0
    buffer.pos, buffer.full = stage.n_steps, True
    # The last step ends an episode, so no value comes after it.
    buffer.compute_returns_and_advantage(torch.zeros(1), np.array([True]))
    return buffer


def _seen(model: Any, observations: Array) -> Tensor:
    """Observations as the buffer would give them."""
    array = np.array(observations, dtype=model.observation_space.dtype)
    return torch.as_tensor(array, device=model.device)


def _buffer(model: Any, n_steps: int, rng: np.random.Generator) -> Any:
    """Empty; if it is an ordinary one it takes its orders from the generator."""
    from stable_baselines3.common.buffers import RolloutBuffer

    class Ordered(RolloutBuffer):
        def get(self, batch_size: int | None = None) -> Iterator[Any]:  # type: ignore[override]
            order = rng.permutation(n_steps)
            if not self.generator_ready:
                for name in ("observations", "actions", "values", "log_probs", "advantages"):
                    setattr(self, name, self.swap_and_flatten(getattr(self, name)))
                self.returns = self.swap_and_flatten(self.returns)
                self.generator_ready = True
            size = batch_size or n_steps
            for first in range(0, n_steps, size):
                yield self._get_samples(order[first : first + size])

    kind = getattr(model, "rollout_buffer_class", None) or RolloutBuffer
    return (Ordered if kind is RolloutBuffer else kind)(
        n_steps,
        model.observation_space,
        model.action_space,
        device=model.device,
        gamma=model.gamma,
        gae_lambda=model.gae_lambda,
        n_envs=1,
        **(getattr(model, "rollout_buffer_kwargs", None) or {}),
    )


@contextmanager
def _random(rng: np.random.Generator, device: torch.device) -> Iterator[None]:
    """Global random numbers from a generator, which itself stays where it is, for a while."""
    seed = int(copy.deepcopy(rng).integers(_SEEDS))
    before = np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(before)  # noqa: NPY002
