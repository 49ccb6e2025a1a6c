"""PPO as in the paper's MuJoCo experiments: the learner, and the observer that uses its reward.

    features = FEATURES["Hopper-v5"]
    curve = train_ppo("Hopper-v5", updates=20, seed=0,
                      recorder=HistoryRecorder("history", features))
    curve = train_ppo("Hopper-v5", updates=30, seed=1, initial=history[0].parameters,
                      reward=LinearReward.from_estimate(estimate, features))

Set `torch.set_num_threads(1)` and run seeds in parallel: networks this small gain nothing from
threads.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from logel.data.store import write_atomically
from logel.envs.mujoco import make
from logel.errors import MissingExtraError, OptionError
from logel.learners.lean_vec_env import LeanVecEnv
from logel.learners.sb3 import HistoryRecorder, normaliser_notes
from logel.policies.sb3 import policy_parameters, set_policy_parameters
from logel.rewards.linear import LinearReward
from logel.rewards.sb3 import TransitionReward, VecRewardReplacement
from logel.types import Float

try:
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback, CallbackList
    from stable_baselines3.common.vec_env import VecEnv, VecNormalize
except ImportError as error:
    raise MissingExtraError("stable-baselines3", "sb3") from error

logger = logging.getLogger(__name__)
OnUpdate = Callable[[int, int, float], None]
"""Called after each rollout with (rollouts done, updates in all, mean true return)."""


@dataclass(frozen=True)
class PPOSettings:
    """The paper's settings.

    Attributes:
        n_envs: Environments side by side.
        n_steps: Steps in each of them per update.
        n_epochs: Passes over a rollout.
        batch_size: Steps of a minibatch.
        gamma: Discount factor.
        gae_lambda: Of generalised advantage estimation.
        clip_range: Of the probability ratio, at the start.
        entropy_coefficient: Weight of the entropy bonus.
        value_coefficient: Weight of the value loss.
        max_grad_norm: Gradients are clipped to this norm.
        adam_epsilon: Of the optimiser.
        learning_rate: At the start.
        linear_decay: Whether learning rate and clip range fall linearly, to 1 / updates of their
            start in the last update.
        hidden: Widths of the hidden layers of policy and value networks (tanh).
        normalise: Whether observations and rewards are normalised.
    """

    n_envs: int = 16
    n_steps: int = 2000
    n_epochs: int = 10
    batch_size: int = 1000
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    entropy_coefficient: float = 0.0
    value_coefficient: float = 0.5
    max_grad_norm: float = 0.5
    adam_epsilon: float = 1e-5
    learning_rate: float = 7e-4
    linear_decay: bool = True
    hidden: tuple[int, ...] = (64, 64)
    normalise: bool = True

    def __post_init__(self) -> None:
        for name in ("n_envs", "n_steps", "n_epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} must be at least 1, but is {getattr(self, name)}")
        if self.n_envs * self.n_steps % self.batch_size:
            raise OptionError(
                f"batch_size {self.batch_size} must divide the {self.n_envs * self.n_steps} steps "
                "of a rollout"
            )
        if not (0 < self.gamma <= 1 and self.learning_rate > 0 and self.clip_range > 0):
            raise OptionError("gamma must lie in (0, 1], learning_rate and clip_range above 0")


@dataclass(frozen=True, eq=False)
class TrainingCurve:
    """How a training run went, measured by the environment's own reward.

    Attributes:
        returns: Mean return of the episodes that ended in each rollout, shape (updates,); entry u
            is of the policy after u updates. Where none ended, the value before.
        episodes: Number of episodes that ended in each rollout, shape (updates,).
        timesteps: Environment steps up to the end of each rollout, shape (updates,).
        parameters: Flat policy parameters at the end, shape (d,).
    """

    returns: Float
    episodes: npt.NDArray[np.int64]
    timesteps: npt.NDArray[np.int64]
    parameters: Float = field(repr=False)


@dataclass(frozen=True)
class _Falling:
    """A linear schedule whose last update is not zero.

    SB3 lets progress fall before it trains, so that `base * progress` would be zero in the last
    update and never `base` itself.
    """

    base: float
    updates: int
    falls: bool

    def __call__(self, progress: float) -> float:
        return self.base * (progress + 1.0 / self.updates) if self.falls else self.base


class _Curve(BaseCallback):
    """Collects true returns; tells them, and those of a replaced reward, to log and TensorBoard."""

    def __init__(self, updates: int, on_update: OnUpdate | None) -> None:
        super().__init__()
        self.updates, self.on_update = updates, on_update
        self.returns: list[float] = []
        self.episodes: list[int] = []
        self.timesteps: list[int] = []
        self._finished: list[float] = []
        self._learned: list[float] = []

    def _on_step(self) -> bool:
        dones = self.locals["dones"]
        if dones.any():
            ended = [self.locals["infos"][i] for i in np.flatnonzero(dones)]
            self._finished += [info["episode"]["r"] for info in ended]
            self._learned += [i["learned_return"] for i in ended if "learned_return" in i]
        return True

    def _on_rollout_end(self) -> None:
        before = self.returns[-1] if self.returns else float("nan")
        self.returns.append(float(np.mean(self._finished)) if self._finished else before)
        self.episodes.append(len(self._finished))
        self.timesteps.append(self.num_timesteps)
        self._tell()
        self._finished, self._learned = [], []
        if self.on_update is not None:
            self.on_update(len(self.returns), self.updates, self.returns[-1])

    def result(self, parameters: Float) -> TrainingCurve:
        """What was collected, with the parameters at the end."""
        episodes, timesteps = np.array([self.episodes, self.timesteps], dtype=np.int64)
        return TrainingCurve(np.array(self.returns), episodes, timesteps, parameters)

    def _tell(self) -> None:
        means = {"true_return": self._finished, "learned_return": self._learned}
        found = {name: float(np.mean(values)) for name, values in means.items() if values}
        for name, mean in found.items():
            self.logger.record(f"rollout/{name}", mean)
        returns = ", ".join(f"{n.replace('_', ' ')} {mean:.2f}" for n, mean in found.items())
        logger.info(
            "update %d: %s, %d episodes ended, %d steps in all",
            len(self.returns),
            returns or "no return",
            len(self._finished),
            self.num_timesteps,
        )


def train_ppo(
    env: str | Callable[[], gymnasium.Env[Any, Any]],
    settings: PPOSettings | None = None,
    *,
    updates: int,
    seed: int,
    reward: LinearReward | TransitionReward | None = None,
    initial: npt.ArrayLike | None = None,
    recorder: HistoryRecorder | None = None,
    on_update: OnUpdate | None = None,
    checkpoint: str | PathLike[str] | None = None,
    tensorboard: str | PathLike[str] | None = None,
) -> TrainingCurve:
    """Train a PPO agent on its own or on a replaced reward; measure it by its own.

    Args:
        env: A name of Gymnasium's (those of `logel.envs.mujoco` report their features), or a
            function that makes an environment.
        settings: By default the paper's.
        updates: How many.
        seed: Of everything; SB3 sets the global generators.
        reward: Paid instead of the environment's; see `VecRewardReplacement`.
        initial: Flat parameters of the first policy, shape (d,); the value network starts fresh.
        recorder: Watches.
        on_update: See `OnUpdate`.
        checkpoint: Folder for `model.zip` and, if observations are normalised,
            `normaliser.json`.
        tensorboard: Folder for TensorBoard's scalars; `rollout/true_return` is the environment's,
            `rollout/learned_return` that of the replaced reward.
    """
    if updates < 1:
        raise OptionError(f"updates must be at least 1, but is {updates}")
    if tensorboard is not None and find_spec("tensorboard") is None:
        raise MissingExtraError("tensorboard", "sb3")
    settings = settings or PPOSettings()
    curve = _Curve(updates, on_update)
    callbacks: list[BaseCallback] = [curve] if recorder is None else [curve, recorder]
    venv = _environments(env, settings, reward, recorder)
    try:
        model = _model(venv, settings, updates, seed, tensorboard)
        if initial is not None:
            set_policy_parameters(model, initial)
        model.learn(
            updates * settings.n_envs * settings.n_steps,
            callback=CallbackList(callbacks),
            log_interval=None if tensorboard is None else 1,  # type: ignore[arg-type]
        )
        if checkpoint is not None:
            _save(model, venv, Path(checkpoint))
    finally:
        venv.close()
    return curve.result(policy_parameters(model))


def _environments(
    env: str | Callable[[], gymnasium.Env[Any, Any]],
    settings: PPOSettings,
    reward: LinearReward | TransitionReward | None,
    recorder: HistoryRecorder | None,
) -> VecEnv:
    # Wrapping every environment to report features costs time: only where nothing else does.
    report = recorder is not None and recorder.features is None
    report |= isinstance(reward, LinearReward) and reward.features is None

    def one() -> gymnasium.Env[Any, Any]:
        return make(env, report_features=report) if isinstance(env, str) else env()

    venv: VecEnv = LeanVecEnv([one] * settings.n_envs)
    if reward is not None:
        venv = VecRewardReplacement(venv, reward)
    return VecNormalize(venv, gamma=settings.gamma) if settings.normalise else venv


def _model(
    venv: VecEnv,
    settings: PPOSettings,
    updates: int,
    seed: int,
    tensorboard: str | PathLike[str] | None,
) -> PPO:
    layers = list(settings.hidden)
    falls = settings.linear_decay
    return PPO(
        "MlpPolicy",
        venv,
        learning_rate=_Falling(settings.learning_rate, updates, falls),
        n_steps=settings.n_steps,
        batch_size=settings.batch_size,
        n_epochs=settings.n_epochs,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        clip_range=_Falling(settings.clip_range, updates, falls),
        ent_coef=settings.entropy_coefficient,
        vf_coef=settings.value_coefficient,
        max_grad_norm=settings.max_grad_norm,
        policy_kwargs={
            "net_arch": {"pi": layers, "vf": layers},
            "optimizer_kwargs": {"eps": settings.adam_epsilon},
        },
        tensorboard_log=None if tensorboard is None else str(tensorboard),
        seed=seed,
        device="cpu",
    )


def _save(model: PPO, venv: VecEnv, folder: Path) -> None:
    """The model as SB3 writes it, and the normaliser, without which it cannot act, as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save(folder / "model.zip")
    statistics = normaliser_notes(venv)
    if statistics:
        write_atomically(folder / "normaliser.json", json.dumps(statistics, indent=1).encode())
