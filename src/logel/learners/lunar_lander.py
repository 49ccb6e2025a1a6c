"""PPO of Stable-Baselines3 that learns to land, recorded with features that see the ending."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

from logel.envs.box2d import FEATURES
from logel.errors import MissingExtraError
from logel.learners.sb3 import HistoryRecorder

try:
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize
except ImportError as error:
    raise MissingExtraError("stable-baselines3", "sb3") from error

WORLD = "LunarLander-v3"


@dataclass(frozen=True)
class Lander:
    """Settings as in the RL Zoo, with half as many environments, for twice as many updates.

    Rewards are divided by the deviation of returns (`VecNormalize`): critics are never in time for
    crashes of 100 points, and what they do instead is chance.
    """

    n_envs: int = 8
    n_steps: int = 1024
    total: int = 300_000
    batch_size: int = 64
    n_epochs: int = 4
    gamma: float = 0.999
    gae_lambda: float = 0.98
    ent_coef: float = 0.01

    def train(self, path: str | PathLike[str], *, seed: int) -> float:
        """Record every update to a new folder; the seconds of processor time it took."""
        options: dict[str, Any] = asdict(self)
        n_envs, total = options.pop("n_envs"), options.pop("total")
        started = time.process_time()
        env = make_vec_env(WORLD, n_envs=n_envs, seed=seed)
        env = VecNormalize(env, norm_obs=False, gamma=self.gamma)
        model = PPO("MlpPolicy", env, seed=seed, device="cpu", **options)
        model.learn(total, callback=HistoryRecorder(path, FEATURES[WORLD]))
        return time.process_time() - started
