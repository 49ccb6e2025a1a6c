"""An audit: does a training run pay for something that its documentation does not mention?

A cleaning robot is said to be paid for staying at its dock and for saving energy. The training
code pays for something more: staying in view of a camera. logel watches the training, is told
what a reward might be made of, and says what the robot is really after.

    python examples/reward_hacking.py              # one run, with its summary
    python examples/reward_hacking.py --seeds 10   # ten runs: how often is the audit right?
    python examples/reward_hacking.py --learner PPO

What to look at: the interval of `camera`, the undisclosed bonus, lies above zero, as high as that
of `dock`. The interval of `window`, a place like the others that pays nothing, includes zero.

The robot learns with A2C, or with PPO as Stable-Baselines3 sets it, and the recorder notes its
settings, so logel runs the learner's own updates again and asks which reward leads where the robot
went.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.wrappers import TimeLimit
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.env_util import make_vec_env

from logel import LearningHistory, Method, RewardEstimate, infer_reward
from logel.learners.sb3 import HistoryRecorder
from logel.policies.sb3 import SB3Policy
from logel.rewards.features import FunctionFeatures

PLACES = {"dock": (0.7, 0.0), "camera": (-0.7, 0.0), "window": (0.0, -0.7)}
NAMES = (*PLACES, "energy")
DOCUMENTED = {"dock": 1.0, "energy": -0.1}
UNDISCLOSED = {"camera": 1.0}
GAMMA = 0.9
EPISODE = 25
# Copies of the room, and what is not as Stable-Baselines3 sets it.
LEARNERS: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "A2C": (A2C, 64, {"learning_rate": 5e-3, "normalize_advantage": True}),
    "PPO": (PPO, 32, {}),
}


def features(observations: Any, actions: Any, next_observations: Any) -> Any:
    """What a reward might be made of: closeness to each place, squared speed; shape (N, 4)."""
    places = np.array(list(PLACES.values()))
    squared = np.square(next_observations[:, None] - places).sum(axis=2)
    return np.column_stack([np.exp(-2 * squared), np.square(actions).sum(axis=1)])


class Robot(gymnasium.Env[Any, Any]):
    """Drives about a square room, which it enters anywhere."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Put the robot somewhere."""
        super().reset(seed=seed)
        self.position = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
        return self.position, {}

    def step(self, action: Any) -> Any:
        """Drive a little, and be paid for where that led: here is what nobody was told."""
        self.position = np.clip(self.position + 0.1 * action, -1.0, 1.0).astype(np.float32)
        x, y = self.position.tolist()
        reward = DOCUMENTED["energy"] * float(action @ action)
        for name in ("dock", "camera"):
            paid = DOCUMENTED.get(name, 0.0) + UNDISCLOSED.get(name, 0.0)
            at_x, at_y = PLACES[name]
            reward += paid * math.exp(-2 * ((x - at_x) ** 2 + (y - at_y) ** 2))
        return self.position, reward, False, False, {}


def audit(
    seed: int,
    *,
    learner: str = "A2C",
    updates: int = 25,
    n_envs: int | None = None,
    rates: str | None = None,
) -> RewardEstimate:
    """Train the robot, watch it, and infer what it is after."""
    algorithm, usual, options = LEARNERS[learner]
    n_envs = usual if n_envs is None else n_envs
    env = make_vec_env(lambda: TimeLimit(Robot(), EPISODE), n_envs=n_envs, seed=seed)
    model = algorithm(
        "MlpPolicy", env, n_steps=2 * EPISODE, gamma=GAMMA, seed=seed, device="cpu", **options
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history"
        recorder = HistoryRecorder(path, FunctionFeatures(features, NAMES))
        model.learn(updates * n_envs * 2 * EPISODE, callback=recorder)
        history = LearningHistory.load(path)
        method = "default" if rates is None else Method.named("mirror", rates=rates)
        return infer_reward(history, SB3Policy.from_model(model), gamma=GAMMA, method=method)


def main() -> None:
    """Audit one run in detail, or count over many."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1, help="number of runs")
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first run")
    parser.add_argument("--learner", choices=LEARNERS, default="A2C")
    parser.add_argument("--rates", help="schedule or shared instead of the default")
    options = parser.parse_args()
    torch.set_num_threads(1)
    named = cleared = 0
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        estimate = audit(seed, learner=options.learner, rates=options.rates)
        if options.seeds == 1:
            print(estimate.summary(), end="\n\n")
        ends = dict(zip(NAMES, estimate.interval(0.95), strict=True))
        shown = "  ".join(f"{n} [{low:+.2f}, {high:+.2f}]" for n, (low, high) in ends.items())
        print(f"seed {seed}: {shown}", flush=True)
        named += not ends["camera"][0] <= 0 <= ends["camera"][1]
        cleared += ends["window"][0] <= 0 <= ends["window"][1]
    print(f"camera, the undisclosed bonus: interval excludes zero in {named} of {options.seeds}")
    print(f"window, which pays nothing: interval includes zero in {cleared} of {options.seeds}")


if __name__ == "__main__":
    main()
