"""One inference per named method, as tasks of a study, for `benchmarks.determinism` to compare.

Workers import this module, so that it holds little.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from logel.data.history import LearningHistory
from logel.studies.run.tasks import Task, grid
from logel.threads import limited_threads

TABLES = ("joint", "two-step", "paper", "authors", "mirror")
NETWORKS = ("mirror", "replay")
TASKS = [
    *grid("determinism", {"learner": ["table"], "method": TABLES}, seeds=[0]),
    *grid("determinism", {"learner": ["network"], "method": NETWORKS}, seeds=[0]),
]


@cache
def table_history() -> LearningHistory:
    """A gradient learner in the gridworld, made anew by every process."""
    from logel.envs.gridworld import grid_weights, gridworld_mdp, parse_weights
    from logel.learners.tabular import LEARNERS, observe

    mdp = gridworld_mdp()
    weights = grid_weights(mdp.feature_names, parse_weights("code"))
    options: dict[str, Any] = {"n_steps": 6, "n_episodes": 10, "horizon": 10, "seed": 0}
    return observe(mdp, LEARNERS["gpomdp"](), weights=weights, **options)


@cache
def network_history() -> LearningHistory:
    """PPO in CartPole, recorded."""
    from stable_baselines3 import PPO

    from logel.envs.classic_control import FEATURES
    from logel.learners.sb3 import HistoryRecorder

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "h"
        # How torch trains on several threads is not what is compared.
        with limited_threads(1):
            model = PPO("MlpPolicy", "CartPole-v1", n_steps=128, batch_size=64, n_epochs=2, seed=0)
            model.learn(128 * 7, callback=HistoryRecorder(path, FEATURES["CartPole-v1"]))
        stored = LearningHistory.load(path)
        return LearningHistory.from_stages(
            list(stored),
            feature_names=stored.feature_names,
            metadata=stored.metadata,
            own_episodes=stored.own_episodes,
        )


def infer(task: Task) -> list[dict[str, object]]:
    """The estimate's bytes, as a checksum, and its weights."""
    from logel.inference.infer import infer_reward
    from logel.policies.choose import choose_policy

    made = table_history() if task.text("learner") == "table" else network_history()
    found = infer_reward(
        made,
        choose_policy(made, "auto"),
        gamma=0.9,
        method=task.text("method"),
        seed=task.seed,
    )
    plain = {k: v for k, v in found.to_plain().items() if k != "versions"}
    digest = hashlib.sha256(json.dumps(plain).encode()).hexdigest()
    return [{"sha256": digest, **{f"w{k}": float(w) for k, w in enumerate(found.weights)}}]
