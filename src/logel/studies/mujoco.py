"""The paper's MuJoCo studies: what a PPO agent that learns to hop, or to reach, wants.

A learner trains; its run is recorded. Observers see the later stages only, without the policy's
parameters, recover a reward each in its own way, and train an agent on it from the learner's first
policy. Agents are scored by the true reward: 0 is the learner's first return, 1 its last.

Recorded learners are kept in a folder of their own (`LOGEL_CACHE`, by default `~/.cache/logel`):
all observers of a seed watch the same one, and a study that was stopped need not train it again.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from logel.data.folder import package_versions, write_atomically
from logel.data.history import LearningHistory
from logel.errors import LogelError, MissingExtraError
from logel.inference.estimate import RewardEstimate
from logel.inference.infer import METHODS, Method, infer_reward
from logel.policies.networks import MLPGaussian
from logel.studies.run.tasks import Row, Task, checksum, grid
from logel.types import Float
from logel.worlds.own_episodes import Baseline

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from logel.learners.ppo import PPOSettings
    from logel.rewards.linear import LinearReward
    from logel.rewards.sb3 import TransitionReward

ENVIRONMENTS = {"hopper": "Hopper-v5", "reacher": "Reacher-v5"}
OBSERVERS = ("default", "paper", "lfl", "trex")
GAMMA = 0.99
PACKAGES = ("mujoco", "gymnasium", "stable-baselines3")


@dataclass(frozen=True)
class Size:
    """How large a study is.

    Attributes:
        updates: Of the learner.
        first: First stage the observer sees: the early ones are too noisy.
        observer_updates: Of the agents trained on recovered rewards.
        ppo: What differs from the paper's PPO settings.
        fit_steps: Minibatch steps of the neural baselines, in units of their own defaults.
    """

    updates: int
    first: int
    observer_updates: int
    ppo: tuple[tuple[str, int], ...] = ()
    fit_steps: float = 1.0

    @property
    def settings(self) -> PPOSettings:
        """PPO's settings."""
        from logel.learners.ppo import PPOSettings

        return replace(PPOSettings(), **dict[str, Any](self.ppo))


SIZES = {
    "full": Size(updates=20, first=10, observer_updates=30),
    # The whole pipeline in little time: nothing it finds means anything.
    "quick": Size(
        updates=5,
        first=1,
        observer_updates=2,
        ppo=(("n_envs", 4), ("n_steps", 400), ("batch_size", 400), ("n_epochs", 4)),
        fit_steps=0.02,
    ),
}


def hopper_tasks(options: dict[str, str], observers: Sequence[str], seeds: range) -> list[Task]:
    """Learner and observers on Hopper."""
    return _tasks("hopper", options, observers, seeds)


def reacher_tasks(options: dict[str, str], observers: Sequence[str], seeds: range) -> list[Task]:
    """Learner and observers on Reacher."""
    return _tasks("reacher", options, observers, seeds)


def _tasks(
    study: str, options: dict[str, str], observers: Sequence[str], seeds: range
) -> list[Task]:
    try:
        import mujoco  # noqa: F401
        import stable_baselines3  # noqa: F401
    except ImportError:
        raise MissingExtraError("mujoco and stable-baselines3", "mujoco") from None
    chosen = [name for name in OBSERVERS if name in observers]
    size = "quick" if options.get("quick") else "full"
    settings = {"observer": ["learner", *chosen], "size": [size]}
    return grid(study, settings, seeds=seeds) if chosen else []


def run(task: Task) -> list[Row]:
    """Train the learner (or find it trained), recover its reward, train an agent on it."""
    import torch

    torch.set_num_threads(1)
    env, size = ENVIRONMENTS[task.study], SIZES[str(task.setting["size"])]
    observer = str(task.setting["observer"])
    history, returns = recorded_learner(env, task.seed, size)
    if observer == "learner":
        return _curve_rows(returns, returns)
    started = time.process_time()
    reward, rows = _recover(observer, history, size, env, task.seed)
    seconds = time.process_time() - started
    from logel.learners.ppo import train_ppo

    curve = train_ppo(
        env,
        size.settings,
        updates=size.observer_updates,
        # The learner's own seed would give the observer the learner's own luck.
        seed=int(task.seed_sequence().generate_state(1)[0] % 2**31),
        reward=reward,
        initial=history[0].parameters,
    )
    rows = [{**row, "seconds": seconds} if row["part"] == "fit" else row for row in rows]
    return rows + _curve_rows(curve.returns, returns)


def _curve_rows(returns: Float, learner: Float) -> list[Row]:
    scale = learner[-1] - learner[0]
    return [
        {
            "part": "curve",
            "update": u,
            "return": float(value),
            "score": float((value - learner[0]) / scale) if scale != 0 else float("nan"),
        }
        for u, value in enumerate(returns)
    ]


# --- the learner ----------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Where recorded learners are kept."""
    return Path(os.environ.get("LOGEL_CACHE", "~/.cache/logel")).expanduser()


def recorded_learner(env: str, seed: int, size: Size) -> tuple[LearningHistory, Float]:
    """The learner's whole history and its mean returns, trained now unless it was before."""
    from logel.envs.mujoco import FEATURES
    from logel.learners.ppo import train_ppo
    from logel.learners.sb3 import HistoryRecorder

    made_with = {
        "size": asdict(size),
        "settings": asdict(size.settings),
        "packages": package_versions(PACKAGES),
    }
    folder = cache_folder() / f"{env}-seed{seed}-{checksum(made_with)[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    curve = folder / "returns.json"
    with _held(folder):
        if not curve.exists():
            # A run that was stopped: its history is of no use without the rest.
            shutil.rmtree(folder / "history", ignore_errors=True)
            found = train_ppo(
                env,
                size.settings,
                updates=size.updates,
                seed=seed,
                recorder=HistoryRecorder(folder / "history", FEATURES[env]),
            )
            write_atomically(curve, json.dumps(found.returns.tolist()).encode())
    returns = np.array(json.loads(curve.read_text()), dtype=float)
    if returns.shape != (size.updates,) or not np.isfinite(returns).all():
        raise LogelError(f"{curve} does not hold {size.updates} returns: delete {folder}")
    return LearningHistory.load(folder / "history"), returns


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Let one process at a time train; the others wait for its result."""
    if sys.platform == "win32":
        yield
        return
    with (folder / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


# --- the observers --------------------------------------------------------------------------------


def methods() -> dict[str, Method | str]:
    """LOGEL in two ways. The paper's gets the critic baseline, without which it sees nothing."""
    paper = METHODS["paper"]
    assert isinstance(paper, Method)
    return {"default": "default", "paper": replace(paper, baseline=Baseline.CRITIC)}


def _recover(
    observer: str, history: LearningHistory, size: Size, env: str, seed: int
) -> tuple[LinearReward | TransitionReward, list[Row]]:
    """A reward from the later stages, and what there is to say about it."""
    from logel.envs.mujoco import FEATURES
    from logel.rewards.linear import LinearReward
    from logel.rewards.sb3 import NormalisedReward

    seen = history.slice(size.first)
    first = seen[0]
    policy = MLPGaussian(first.observations.shape[1], first.actions.shape[1])
    if observer in methods():
        estimate = infer_reward(
            seen,
            policy,
            gamma=GAMMA,
            method=methods()[observer],
            use_parameters=False,
            seed=seed,
        )
        features: Any = FEATURES[env]
        return LinearReward.from_estimate(estimate, features), _estimate_rows(estimate, env)
    reward: TransitionReward
    fit: Row = {"part": "fit"}
    if observer == "lfl":
        reward = _lfl(seen, policy, size, seed)
    else:
        from logel.baselines.trex import TrexConfig, trex

        config = TrexConfig()
        config = replace(config, n_steps=_scaled(config.n_steps, size))
        found = trex(seen, policy, gamma=GAMMA, config=config, seed=seed)
        reward, fit["accuracy"] = found, found.accuracy
    notes = seen.notes[-1]
    return NormalisedReward.from_notes(reward, notes), [fit]


def _lfl(seen: LearningHistory, policy: MLPGaussian, size: Size, seed: int) -> TransitionReward:
    from logel.baselines.neural_lfl import NeuralLflConfig, neural_lfl

    config = NeuralLflConfig()
    names = ("clone_steps", "initial_steps", "shaping_steps")
    shorter: dict[str, Any] = {name: _scaled(getattr(config, name), size) for name in names}
    config = replace(config, **shorter)
    return neural_lfl(seen, policy, gamma=GAMMA, config=config, use_parameters=False, seed=seed)


def _scaled(steps: int, size: Size) -> int:
    return max(1, round(steps * size.fit_steps))


def _estimate_rows(estimate: RewardEstimate, env: str) -> list[Row]:
    from logel.envs.mujoco import hopper_true_weights

    truth = hopper_true_weights(unit=True) if env == "Hopper-v5" else None
    ends = estimate.interval(0.95)
    rows: list[Row] = [
        {
            "part": "weight",
            "feature": name,
            "weight": float(weight),
            "low": float(low),
            "high": float(high),
            "truth": None if truth is None else float(truth[k]),
        }
        for k, (name, weight, (low, high)) in enumerate(
            zip(estimate.feature_names, estimate.weights, ends, strict=True)
        )
    ]
    fit: Row = {
        "part": "fit",
        "cosine": float(np.nanmedian(estimate.fit.cosines)),
        "chance": float(estimate.fit.chance),
        "status": estimate.status.name,
    }
    if truth is None:
        fit["peak distance"] = float(np.linalg.norm(heat_map(estimate.weights)[1]))
    return [*rows, fit]


def heat_map(weights: Float, n: int = 81) -> tuple[Float, Float]:
    """Reacher's reward over the vector from target to fingertip, (n, n), and its peak in metres.

    Args:
        weights: Of the bumps, then of the action's cost.
        n: Points along each coordinate.
    """
    from logel.envs.mujoco import reacher_bumps

    bumps = reacher_bumps((0, 1))
    axis = np.linspace(bumps.low, bumps.high, n)
    places = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    values = bumps(places, np.zeros((len(places), 1)), places) @ weights[: len(bumps.names)]
    return values.reshape(n, n), places[int(np.argmax(values))]
