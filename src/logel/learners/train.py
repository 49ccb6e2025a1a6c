"""Put a recovered reward to work: train an agent on it, and write down how that went."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

import gymnasium
import numpy.typing as npt

from logel.data.folder import package_versions
from logel.data.store import new_folder, write_atomically
from logel.envs.ready_made import FEATURES
from logel.errors import OptionError
from logel.inference.estimate import RewardEstimate
from logel.learners.ppo import PPOSettings, TrainingCurve, train_ppo
from logel.rewards.features import RewardFeatures, StepFeatures
from logel.rewards.linear import LinearReward
from logel.types import Progress


def train_on_estimate(
    estimate: RewardEstimate,
    env_id: str,
    *,
    out: str | PathLike[str],
    updates: int,
    seed: int,
    settings: PPOSettings | None = None,
    initial: npt.ArrayLike | None = None,
    features: RewardFeatures | StepFeatures | None = None,
    tensorboard: str | PathLike[str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train PPO on an estimate's reward; write `curve.csv`, `summary.json` and the model.

    Environments of `logel.envs.ready_made` have features; for others they are given, or the
    environment reports `info["features"]` itself. `initial` are flat parameters of the first
    policy, `tensorboard` is a folder. Returns what `summary.json` holds.
    """
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OptionError(f"{folder} already exists: choose another folder or remove it first")
    features = _features_of(env_id, estimate, features)
    settings = PPOSettings() if settings is None else settings
    tell = progress or (lambda what, done, total: None)
    finished = 0

    def told(done: int, total: int, mean: float) -> None:
        nonlocal finished
        finished = done
        tell("training", done, total)

    tell("training", 0, updates)
    with new_folder(folder) as unfinished:
        try:
            curve = train_ppo(
                env_id,
                settings,
                updates=updates,
                seed=seed,
                reward=LinearReward.from_estimate(estimate, features),
                initial=initial,
                on_update=told,
                checkpoint=unfinished,
                tensorboard=tensorboard,
            )
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_stopped(finished, updates, tensorboard)) from None
        summary = {
            "environment": env_id,
            "seed": seed,
            "updates": updates,
            "from_recorded_policy": initial is not None,
            "weights": dict(zip(estimate.feature_names, estimate.weights.tolist(), strict=True)),
            "settings": asdict(settings),
            # A rollout in which no episode ended has no return, and JSON no word for it but null.
            "returns": [None if value != value else value for value in curve.returns.tolist()],
            "packages": package_versions(),
        }
        write_atomically(unfinished / "curve.csv", _table(curve).encode())
        write_atomically(unfinished / "summary.json", json.dumps(summary, indent=1).encode())
    return summary


def _features_of(
    env_id: str, estimate: RewardEstimate, given: StepFeatures | RewardFeatures | None
) -> StepFeatures | RewardFeatures | None:
    """Given ones, or those of an environment, if it is the one the estimate is about."""
    if given is not None:
        return given
    if env_id not in gymnasium.registry and ":" not in env_id:
        raise OptionError(
            f"there is no environment {env_id!r}: choose one of {', '.join(FEATURES)}, or another "
            "of Gymnasium's that reports its features"
        )
    features = FEATURES.get(env_id)
    if features is not None and tuple(features.names) != tuple(estimate.feature_names):
        raise OptionError(
            f"the estimate is about {', '.join(estimate.feature_names[:4])}, ..., but {env_id} "
            f"has the features {', '.join(features.names[:4])}, ...: it is of another environment"
        )
    return features


def _stopped(done: int, total: int, tensorboard: str | PathLike[str] | None) -> str:
    kept = "nothing was written"
    if tensorboard is not None:
        kept = f"only TensorBoard's scalars are kept, in {tensorboard}"
    return (
        f"Stopped: {done} of {total} updates were done, {kept}. "
        "Run the same command again to start over."
    )


def _table(curve: TrainingCurve) -> str:
    """One row per rollout, measured by the environment's own reward."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["updates", "timesteps", "episodes", "mean_true_return"])
    columns = (curve.timesteps, curve.episodes, curve.returns)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    writer.writerows([done, *row] for done, row in enumerate(rows))
    return text.getvalue()
