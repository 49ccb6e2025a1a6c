"""Does the interval know how far the answer moves with the seed of the inference?

    python -m benchmarks.replay_seeds --first-seed 1000 --learners 5     # a minute or two

Short runs of A2C with a small network in the audit's room, ten updates of which nine are replayed:
the critics and orders of minibatches that replay draws move their answer most. Every run is read
with several seeds. Then what the answers of one run differ by, against the deviations that
intervals tell, and how often intervals hold the truth.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import torch

from benchmarks.report import Check, report
from logel import infer_reward
from logel.envs.audit import WORLDS
from logel.learners import audit
from logel.types import Float

ROOM = WORLDS["room"]
LEARNER = replace(
    audit.LEARNERS["A2C"],
    n_envs=32,
    updates=10,
    options={**audit.LEARNERS["A2C"].options, "policy_kwargs": {"net_arch": [16]}},
)


def answers(seed: int, n: int) -> tuple[Float, Float, Float]:
    """Weights and intervals of one run, read with n seeds, and the truth."""
    truth = ROOM.random_weights(np.random.default_rng(seed))
    with tempfile.TemporaryDirectory() as folder:
        run = audit.train(ROOM, LEARNER, truth, seed=seed, path=Path(folder) / "history")
        found = [
            infer_reward(run.history, run.policy, gamma=ROOM.gamma, seed=one) for one in range(n)
        ]
    weights = np.stack([estimate.weights for estimate in found])
    return weights, np.stack([estimate.interval(0.95) for estimate in found]), truth


def main() -> int:
    """Run everything; the exit code says whether all targets are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learners", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=8, help="of the inference, for each learner")
    options = parser.parse_args()
    torch.set_num_threads(1)
    inside, ratios, gaps = [], [], []
    for seed in range(options.first_seed, options.first_seed + options.learners):
        weights, intervals, truth = answers(seed, options.seeds)
        low, high = np.moveaxis(intervals, 2, 0)
        inside.append(((low <= truth) & (truth <= high)).mean())
        ratios.append(weights.std(axis=0, ddof=1) / ((high - low) / 4).mean(axis=0))
        gaps.append(max(np.linalg.norm(a - b) for a, b in combinations(weights, 2)))
        print(f"seed {seed}: coverage {inside[-1]:.3f}, farthest apart {gaps[-1]:.3f}", flush=True)
    usual, worst = float(np.median(ratios)), float(np.max(ratios))
    checks = [
        Check("coverage of 95% intervals", f"{np.mean(inside):.3f}", ".90", np.mean(inside) >= 0.9),
        Check(
            "what seeds differ by / deviation told, median and worst weight",
            f"{usual:.2f}, {worst:.2f}",
            "at most 1 (median)",
            usual <= 1,
        ),
    ]
    note = f"farthest apart of one run's answers: {max(gaps):.3f}"
    return report("Seeds of the inference", checks, [note])


if __name__ == "__main__":
    sys.exit(main())
