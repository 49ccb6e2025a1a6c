"""What recording costs: the share of a training run's time that is spent in the recorder.

Usage: `python -m benchmarks.recording`. The paper's PPO (16 environments x 2000 steps per update)
in Hopper, whose features look at every step's info, and Reacher, whose 26 features are computed
from transitions, one torch thread. Every call of the recorder is timed inside the run it belongs
to, so other jobs on the machine slow both sides of the ratio alike.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import Check, report
from logel.envs.mujoco import FEATURES
from logel.learners.ppo import PPOSettings, train_ppo
from logel.learners.sb3 import HistoryRecorder

UPDATES = 2
LIMIT = 0.03


class TimedRecorder(HistoryRecorder):
    """A recorder that knows how long it took."""

    seconds = 0.0

    def _timed(self, name: str) -> Any:
        start = time.perf_counter()
        result = getattr(super(), name)()
        self.seconds += time.perf_counter() - start
        return result

    def _on_training_start(self) -> None:
        self._timed("_on_training_start")

    def _on_rollout_start(self) -> None:
        self._timed("_on_rollout_start")

    def _on_step(self) -> bool:
        return bool(self._timed("_on_step"))

    def _on_rollout_end(self) -> None:
        self._timed("_on_rollout_end")

    def _on_training_end(self) -> None:
        self._timed("_on_training_end")


def measure(env_id: str, folder: Path) -> tuple[float, float]:
    """Seconds of training with the recorder, and seconds of them in the recorder."""
    recorder = TimedRecorder(folder, FEATURES[env_id])
    start = time.perf_counter()
    train_ppo(env_id, PPOSettings(), updates=UPDATES, seed=0, recorder=recorder)
    return time.perf_counter() - start, recorder.seconds


def main() -> int:
    torch.set_num_threads(1)
    checks = []
    with tempfile.TemporaryDirectory() as folder:
        for env_id in FEATURES:
            total, spent = measure(env_id, Path(folder) / env_id)
            share = spent / (total - spent)
            measured = f"{100 * share:.2f}% ({spent:.2f} s on top of {total - spent:.1f} s)"
            checks.append(Check(env_id, measured, f"< {100 * LIMIT:.0f}%", share < LIMIT))
    return report(f"Recording {UPDATES} updates of PPO", checks)


if __name__ == "__main__":
    sys.exit(main())
