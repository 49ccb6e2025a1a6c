"""Replay from cloned policies against `mirror`, on Hopper and Reacher: which should be the default?

    python -m benchmarks.cloned_replay              # half an hour on one core
    python -m benchmarks.cloned_replay --seeds 1 --updates 8 --worlds Hopper-v5

PPO of Stable-Baselines3 with its default settings learns the environment's own reward, a linear
function of ready-made features. Its episodes are all that is watched: policies are cloned, and
replay's movements have the clones' errors on both ends. Errors are those of weights times the
features' deviations, of unit norm, as far as they are identified.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from stable_baselines3 import PPO

from benchmarks.report import Check, report
from logel import HistoryRecorder, LearningHistory, SB3Policy, infer_reward
from logel.envs.mujoco import FEATURES, TRUE_WEIGHTS
from logel.errors import LogelError
from logel.inference.gauge import direction_error

WORLDS = ("Hopper-v5", "Reacher-v5")
WAYS = {
    "replay, known": ("replay", True),
    "replay, cloned": ("replay", False),
    "mirror, cloned": ("mirror", False),
}


def errors(world: str, seed: int, updates: int) -> dict[str, float]:
    """Of all ways of watching one learner."""
    model = PPO("MlpPolicy", world, seed=seed, device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history"
        model.learn(updates * model.n_steps, callback=HistoryRecorder(path, FEATURES[world]))
        history = LearningHistory.load(path)
        policy = SB3Policy.from_model(model)
        spread = np.concatenate([stage.features for stage in history]).std(axis=0)
        truth = np.array(TRUE_WEIGHTS[world]) * spread
        found = {}
        for name, (method, known) in WAYS.items():
            started = time.process_time()
            try:
                estimate = infer_reward(
                    history, policy, gamma=0.99, method=method, use_parameters=known
                )
            except LogelError as error:
                print(f"{world} seed {seed}, {name}: {error}", flush=True)
                continue
            found[name] = direction_error(estimate.weights * spread, truth)
            print(
                f"{world} seed {seed}, {name}: {found[name]:.3f} {estimate.status.name} "
                f"{time.process_time() - started:.0f} s",
                flush=True,
            )
    return found


def main() -> int:
    """Compare; the exit code says whether replay is the better one from clones too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--updates", type=int, default=16)
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=WORLDS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    checks = []
    for world in options.worlds:
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        rows = [errors(world, seed, options.updates) for seed in seeds]
        means = {
            name: float(np.mean([row[name] for row in rows if name in row] or [np.nan]))
            for name in WAYS
        }
        said = ", ".join(f"{name} {error:.2f}" for name, error in means.items())
        better = means["replay, cloned"] < means["mirror, cloned"]
        checks.append(Check(world, said, "replay the smaller one", better))
    return report("Cloned policies: mean direction errors", checks)


if __name__ == "__main__":
    sys.exit(main())
