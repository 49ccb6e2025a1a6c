"""Ordinary learners of Stable-Baselines3 for audits, and what others might tell of their runs.

A run is recorded as its own recorder would (`train`). `rolled_out_again` is what somebody has who
kept the policies only and lets them act once more. `drifted`, `backwards` and `misreported` are
histories in which there is nothing to find, or whose settings are not the learner's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any

import numpy as np
import torch

from logel.data.history import LearningHistory
from logel.data.rollout import Rollout
from logel.data.stage import Stage
from logel.envs.audit import AuditWorld
from logel.errors import HistoryError, MissingExtraError, OptionError
from logel.learners.array_vec_env import ArrayVecEnv
from logel.learners.sb3 import HistoryRecorder
from logel.policies.base import Policy
from logel.policies.sb3 import SB3Policy
from logel.types import Array, Float

try:
    from gymnasium import spaces
    from sb3_contrib import TRPO
    from stable_baselines3 import A2C, PPO
except ImportError as error:
    raise MissingExtraError("stable-baselines3 and sb3-contrib", "sb3") from error

# Where histories keep what their learner was told; see `HistoryRecorder`.
SETTINGS = "learner_settings"


@dataclass(frozen=True)
class AuditLearner:
    """A learner and the size of its run.

    Attributes:
        algorithm: Its class.
        n_envs: Copies of the world.
        n_steps: Steps in each of them per update.
        updates: All are recorded.
        options: What differs from its class's defaults.
    """

    algorithm: Callable[..., Any]
    n_envs: int
    n_steps: int
    updates: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def smaller(self) -> AuditLearner:
        """A run that takes no time and teaches nothing."""
        return replace(self, n_steps=max(self.n_steps // 4, 25), updates=4)


# PPO and TRPO as their classes set them, but for rollouts of 2,048 steps in all. A2C's default,
# five steps an update at rate 7e-4, takes tens of thousands of updates: here they are larger, and
# so is the rate, yet small enough for all worlds. Updates are as many as learning something takes.
LEARNERS: dict[str, AuditLearner] = {
    "PPO": AuditLearner(PPO, n_envs=16, n_steps=128, updates=14),
    "A2C": AuditLearner(
        A2C,
        n_envs=64,
        n_steps=50,
        updates=24,
        options={"learning_rate": 3e-3, "normalize_advantage": True},
    ),
    "TRPO": AuditLearner(TRPO, n_envs=16, n_steps=128, updates=14),
}


@dataclass(frozen=True, eq=False)
class Trained:
    """A recorded run.

    Attributes:
        history: What the recorder wrote.
        policy: Family of its policies.
        seconds: Processor time of the training.
    """

    history: LearningHistory
    policy: Policy
    seconds: float


def train(
    world: AuditWorld,
    learner: AuditLearner,
    weights: Float,
    *,
    seed: int,
    path: str | PathLike[str],
) -> Trained:
    """Train a learner on `features @ weights` and record every update to a new folder.

    Networks this small gain nothing from threads: set one before.
    """
    env = ArrayVecEnv(world, weights, learner.n_envs)
    started = time.process_time()
    model = learner.algorithm(
        "MlpPolicy",
        env,
        n_steps=learner.n_steps,
        gamma=world.gamma,
        seed=seed,
        device="cpu",
        **learner.options,
    )
    recorder = HistoryRecorder(path, world.features, metadata={"environment": world.name})
    model.learn(learner.updates * learner.n_envs * learner.n_steps, callback=recorder)
    seconds = time.process_time() - started
    return Trained(LearningHistory.load(path), SB3Policy.from_model(model), seconds)


def family(world: AuditWorld) -> Policy:
    """The family of the default policy of all learners here."""
    from logel.policies.networks import MLPCategorical, MLPGaussian

    inputs, actions = world.dynamics.observation_space.shape[0], world.dynamics.action_space
    if isinstance(actions, spaces.Discrete):
        return MLPCategorical(inputs, int(actions.n), hidden=(64, 64))
    return MLPGaussian(inputs, int(actions.shape[0]), hidden=(64, 64))


# --- fresh episodes -------------------------------------------------------------------------------


def rolled_out_again(
    history: LearningHistory,
    world: AuditWorld,
    learner: AuditLearner,
    policy: Policy,
    rng: np.random.Generator,
    *,
    parameters: Array | None = None,
) -> LearningHistory:
    """The same policies in fresh episodes, as many steps at every stage.

    Settings and learning rates stay known; with other `parameters`, shape (m + 1, d), other
    policies act.
    """
    thetas = history.parameters() if parameters is None else parameters
    if thetas is None:
        raise HistoryError("the history has no policy parameters: nothing can act again")
    rolled = [_rollout(world, learner, policy, theta, rng) for theta in thetas]
    # Returns of episodes that are no longer there would be others'.
    stale = {"episodes_finished", "mean_return", "continues"}
    kept = [{k: v for k, v in note.items() if k not in stale} for note in history.notes]
    found = LearningHistory.from_stages(
        [stage for stage, _ in rolled],
        feature_names=world.features.names,
        metadata=history.metadata,
        own_episodes=False,
    )
    notes = ({**note, "continues": on} for note, (_, on) in zip(kept, rolled, strict=True))
    return replace(found, notes=tuple(notes))


def _rollout(
    world: AuditWorld,
    learner: AuditLearner,
    policy: Policy,
    theta: Array,
    rng: np.random.Generator,
) -> tuple[Stage, list[bool]]:
    """One policy in the learner's number of copies, which all begin an episode.

    Also tells which of their last episodes were still going on.
    """
    # What is paid is nobody's business here.
    env = ArrayVecEnv(world, np.zeros(len(world.features.names)), learner.n_envs)
    env.seed(int(rng.integers(2**31)))
    before, rows = env.reset(), []
    for _ in range(learner.n_steps):
        chosen = policy.sample(theta, before, rng)
        chosen = chosen.astype(np.float32) if chosen.ndim > 1 else chosen
        taken = _clipped(world, chosen)
        env.step_async(taken)
        shown, _, dones, infos = env.step_wait()
        after = shown.copy()
        for i in np.flatnonzero(dones):
            after[i] = infos[i]["terminal_observation"]
        truncated = np.array([info["TimeLimit.truncated"] for info in infos])
        features = world.features(before, taken, after)
        rows.append((before, chosen, dones & ~truncated, truncated, after, features))
        before = shown
    seen, actions, terminated, truncated, following, features = map(
        np.stack, zip(*rows, strict=True)
    )
    rollout = Rollout(
        seen,
        actions,
        terminated=terminated,
        truncated=truncated,
        next_observations=following,
        features=features,
    )
    going_on = ~(terminated[-1] | truncated[-1])
    return rollout.stage(np.asarray(theta, dtype=np.float64)), going_on.tolist()


def _clipped(world: AuditWorld, actions: Array) -> Array:
    space = world.dynamics.action_space
    return np.clip(actions, space.low, space.high) if isinstance(space, spaces.Box) else actions


# --- histories with nothing to find, or with a false account --------------------------------------


def drifted(
    history: LearningHistory,
    world: AuditWorld,
    learner: AuditLearner,
    policy: Policy,
    rng: np.random.Generator,
) -> LearningHistory:
    """A learner that wants nothing, from the same first policy by steps of the same sizes.

    Every parameter moves as far as it really did, but up or down by chance; the whole step is then
    stretched so that the policy changes as much, in its own information, as it really did.
    """
    thetas = history.parameters()
    if thetas is None:
        raise HistoryError("the history has no policy parameters: there is no first policy")
    path = [thetas[0]]
    for t, move in enumerate(np.diff(thetas, axis=0)):
        observations = history[t].observations
        wanted = step_size(policy, thetas[t], move, observations)
        direction = move * rng.choice([-1.0, 1.0], move.shape)
        path.append(path[-1] + _stretched(policy, path[-1], direction, observations, wanted))
    found = rolled_out_again(history, world, learner, policy, rng, parameters=np.stack(path))
    # It claims to have learnt from them, as the learner in whose place it stands.
    return replace(found, own_episodes=history.own_episodes)


def step_size(policy: Policy, theta: Array, move: Array, observations: Array) -> float:
    """How far a step moves a policy: root of the mean squared change in its own information."""
    seen = policy.prepare_observations(observations)
    with torch.no_grad():
        here = policy.outputs(policy.tensor(theta), seen)
        change = policy.outputs(policy.tensor(theta + move), seen) - here
        lengths = (policy.fisher_root(here).transpose(1, 2) @ change[:, :, None]).square()
    return float(lengths.sum(dim=(1, 2)).mean().sqrt())


def _stretched(
    policy: Policy, theta: Array, direction: Array, observations: Array, wanted: float
) -> Array:
    factor = 1.0
    # Small steps grow in proportion, and need few corrections; large ones saturate units.
    for _ in range(50):
        size = step_size(policy, theta, factor * direction, observations)
        if size == 0 or abs(size - wanted) < 0.01 * wanted:
            break
        factor *= wanted / size
    return factor * direction


def backwards(history: LearningHistory) -> LearningHistory:
    """The stages from the last to the first: a run read the wrong way round."""
    stages = list(history)[::-1]
    return replace(history, source=tuple(stages), notes=history.notes[::-1])


def misreported(history: LearningHistory, wrong: str) -> LearningHistory:
    """The history with one of its learner's settings changed: "epochs", "rate" or "gamma"."""
    settings = dict(history.metadata.get(SETTINGS) or {})
    name, change = _lie(wrong)
    if settings.get(name) is None:
        raise HistoryError(
            f"the history does not say its learner's {name}, so it cannot be said wrongly"
        )
    settings[name] = change(settings[name])
    metadata = {**history.metadata, SETTINGS: settings}
    if name in metadata:
        metadata[name] = settings[name]
    notes = history.notes
    if wrong == "rate":
        notes = tuple(
            {**note, name: change(note[name])} if note.get(name) is not None else note
            for note in notes
        )
    return replace(history, metadata=metadata, notes=notes)


def wrong_gamma(gamma: float) -> float:
    """Half as patient: .9 for .95."""
    return round(1 - 2 * (1 - gamma), 9)


def _lie(wrong: str) -> tuple[str, Callable[[Any], Any]]:
    lies: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "epochs": ("n_epochs", lambda epochs: 4),
        "rate": ("learning_rate", lambda rate: 2 * rate),
        "gamma": ("gamma", wrong_gamma),
    }
    if wrong not in lies:
        raise OptionError(f"unknown wrong setting {wrong!r}: choose one of {', '.join(lies)}")
    return lies[wrong]
