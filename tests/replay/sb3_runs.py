"""Short runs of Stable-Baselines3 with everything in them written down that replay must repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from logel import HistoryRecorder, LearningHistory
from logel.data.settings import LearnerSettings
from logel.policies.base import Policy
from logel.policies.sb3 import SB3Policy, policy_parameters
from logel.replay.batch import Batch
from logel.rewards.features import FunctionFeatures


def paid(observations: Any, actions: Any, following: Any) -> Any:
    """The reward, of many transitions."""
    cost = 0.1 * np.square(actions).reshape(len(observations), -1).sum(axis=1)
    return (following[:, 0] - 0.3 * observations[:, 1] - cost)[:, None]


class Wander(gymnasium.Env[Any, Any]):
    """Two numbers and a clock; episodes end at the given times, negative ones by time limit."""

    def __init__(self, lengths: tuple[int, ...], discrete: bool) -> None:
        self.lengths, self.episode, self.time, self.discrete = lengths, -1, 0, discrete
        self.action_space = spaces.Discrete(3) if discrete else spaces.Box(-1, 1, (2,))
        self.observation_space = spaces.Box(-1e3, 1e3, (3,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.time = self.episode + 1, 0
        self.seen = self.np_random.standard_normal(3).astype(np.float32)
        return self.seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        before, self.time = self.seen, self.time + 1
        push = np.array([action - 1, action == 2] if self.discrete else action)
        drift = 0.3 * self.np_random.standard_normal(2)
        moved = 0.9 * before[:2] + 0.5 * push + drift
        self.seen = np.append(moved, 0.1 * self.time).astype(np.float32)
        length = self.lengths[self.episode % len(self.lengths)]
        over = self.time == abs(length)
        reward = paid(before[None], np.array(action)[None], self.seen[None])[0, 0]
        return self.seen, float(reward), over and length > 0, over and length < 0, {}


# In rollouts of 8 times: time limits inside and at the border, ends likewise, and some go on.
LENGTHS = ((3, -5), (8,), (5, -6, 11))


def wanderers(
    n_envs: int = 3, *, discrete: bool = False, normalise: dict[str, Any] | None = None
) -> DummyVecEnv | VecNormalize:
    def maker(lengths: tuple[int, ...]) -> Callable[[], gymnasium.Env[Any, Any]]:
        return lambda: Wander(lengths, discrete)

    # A single environment has the most varied lengths.
    venv = DummyVecEnv([maker(lengths) for lengths in reversed(LENGTHS[-n_envs:])])
    return venv if normalise is None else VecNormalize(venv, **normalise)


@dataclass
class Draws:
    """Random numbers of updates; also, given out again in order, a generator-like object."""

    orders: list[Any] = field(default_factory=list)
    noises: list[Any] = field(default_factory=list)
    given: list[int] = field(default_factory=lambda: [0, 0])

    def permutation(self, n: int) -> Any:
        """As drawn; anything after an early stop, where nobody drew."""
        self.given[0] += 1
        drawn = self.orders[self.given[0] - 1 :]
        return drawn[0] if drawn else np.arange(n)

    def integers(self, high: int) -> int:
        """A seed for what was not drawn from numpy."""
        return 1000

    def standard_normal(self, n: int) -> Any:
        """As drawn by sb3-contrib, whose flat parameters begin with the log-deviations."""
        self.given[1] += 1
        return self.noises[self.given[1] - 1]


@dataclass
class Moment:
    """A model between two updates; moments by their names in logel, flat."""

    parameters: Any
    critic: Any
    moments: dict[str, Any]


def critic_tensors(policy: Any) -> list[Any]:
    return [*policy.mlp_extractor.value_net.parameters(), *policy.value_net.parameters()]


def actor_tensors(policy: Any) -> list[Any]:
    parts = [*policy.mlp_extractor.policy_net.parameters(), *policy.action_net.parameters()]
    return [*parts, policy.log_std] if hasattr(policy, "log_std") else parts


def flat(tensors: Sequence[Any]) -> Any:
    return np.concatenate([t.detach().double().numpy().ravel() for t in tensors])


def moment_of(model: Any) -> Moment:
    policy, names = model.policy, {"exp_avg_sq": "square", "square_avg": "square"}
    names |= {"exp_avg": "mean"}
    trained = critic_tensors(policy)
    if not hasattr(model, "cg_max_steps"):
        trained = [*actor_tensors(policy), *trained]
    states = [policy.optimizer.state.get(tensor, {}) for tensor in trained]
    moments = {
        ours: flat([state[theirs] for state in states])
        for theirs, ours in names.items()
        if theirs in states[0]
    }
    return Moment(policy_parameters(model), flat(critic_tensors(policy)), moments)


class Watch(BaseCallback):
    """Keeps the model before every rollout; numbers drawn go to the update that follows."""

    def __init__(self) -> None:
        super().__init__()
        self.moments: list[Moment] = []
        self.draws: list[Draws] = []

    def _on_rollout_start(self) -> None:
        self.moments.append(moment_of(self.model))

    def _on_rollout_end(self) -> None:
        self.draws.append(Draws())

    def _on_step(self) -> bool:
        return True

    @contextmanager
    def listening(self, n_beside: int) -> Iterator[None]:
        """Write down all permutations, and the noise that conjugate gradients begin with."""
        permutation, normal = np.random.permutation, torch.randn_like

        def order(n: int) -> Any:
            self.draws[-1].orders.append(permutation(n))
            return self.draws[-1].orders[-1]

        def noise(like: Any) -> Any:
            drawn = normal(like)
            self.draws[-1].noises.append(np.roll(drawn.double().numpy(), -n_beside))
            return drawn

        with patch("numpy.random.permutation", order), patch("torch.randn_like", noise):
            yield


@dataclass
class Run:
    """A run: as recorded, and as it was; `moments` has one more than there are stages."""

    model: Any
    policy: Policy
    history: LearningHistory
    settings: LearnerSettings
    moments: list[Moment]
    draws: list[Draws]

    def batch(self, t: int) -> Batch:
        return Batch.of(self.history[t], self.policy, self.history.notes[t])


def run_of(
    algorithm: Any,
    folder: Path,
    *,
    n_updates: int = 4,
    n_envs: int = 3,
    n_steps: int = 8,
    discrete: bool = False,
    normalise: dict[str, Any] | None = None,
    **options: Any,
) -> Run:
    """Train for some updates on a small network."""
    env = wanderers(n_envs, discrete=discrete, normalise=normalise)
    options = {"policy_kwargs": {"net_arch": {"pi": [7, 6], "vf": [6, 5]}}, **options}
    model = algorithm("MlpPolicy", env, n_steps=n_steps, seed=1000, device="cpu", **options)
    watch = Watch()
    recorder = HistoryRecorder(folder / "history", FunctionFeatures(paid, ("paid",)))
    with watch.listening(0 if discrete else 2):
        model.learn(n_updates * n_steps * n_envs, callback=[recorder, watch])
    history = LearningHistory.load(folder / "history")
    settings = LearnerSettings.of(history)
    assert settings is not None
    moments = [*watch.moments, moment_of(model)]
    return Run(model, SB3Policy.from_model(model), history, settings, moments, watch.draws)
