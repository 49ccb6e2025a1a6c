"""CartPole with a reward of our own: train with A2C, record, recover the weights.

The learner is paid 1 per step alive, minus the lean of the pole and the speed of the cart. logel
sees the episodes and the policies of the training, not the reward, and recovers it up to its scale.

    python examples/cartpole.py

What to look at: the true weights beside the intervals, and "explained movement" in the summary:
how much of the policy's movement the recovered reward accounts for.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import A2C
from stable_baselines3.common.env_util import make_vec_env

from logel import LearningHistory, RewardEstimate, infer_reward
from logel.envs.classic_control import FEATURES
from logel.learners.sb3 import HistoryRecorder
from logel.policies.sb3 import SB3Policy

FEATURE_SET = FEATURES["CartPole-v1"]
TRUTH = np.array([1.0, -1.0, -1.0])  # alive, lean, speed
GAMMA = 0.97


class OwnReward(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Pays for the features instead of what CartPole pays."""

    def step(self, action: Any) -> Any:
        """One step; all three features depend on where it led alone."""
        following, _, terminated, truncated, info = self.env.step(action)
        row = FEATURE_SET(following[None], np.array([action]), following[None])[0]
        return following, float(row @ TRUTH), terminated, truncated, info


def recover(seed: int, *, updates: int = 30, n_steps: int = 200) -> RewardEstimate:
    """Train, record and infer."""
    env = make_vec_env(lambda: OwnReward(gymnasium.make("CartPole-v1")), n_envs=16, seed=seed)
    model = A2C(
        "MlpPolicy",
        env,
        n_steps=n_steps,
        learning_rate=3e-3,
        gamma=GAMMA,
        normalize_advantage=True,
        seed=seed,
        device="cpu",
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history"
        model.learn(updates * n_steps * 16, callback=HistoryRecorder(path, FEATURE_SET))
        history = LearningHistory.load(path)
        first, last = (history.notes[t]["mean_return"] for t in (0, -1))
        print(f"return of an episode: {first:.1f} at first, {last:.1f} after {updates} updates\n")
        return infer_reward(history, SB3Policy.from_model(model), gamma=GAMMA)


def main() -> None:
    """Print the summary and compare with the truth."""
    parser = argparse.ArgumentParser(description="Recover a known reward from CartPole.")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    estimate = recover(options.seed)
    print(estimate.summary())
    unit = TRUTH / np.linalg.norm(TRUTH)
    print("\nfeature     truth   recovered   95% interval")
    rows = zip(estimate.feature_names, unit, estimate.weights, estimate.interval(0.95), strict=True)
    for name, true, found, (low, high) in rows:
        print(f"{name:<9} {true:+7.2f} {found:+11.2f}   [{low:+.2f}, {high:+.2f}]")


if __name__ == "__main__":
    main()
