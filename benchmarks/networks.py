"""How long inference from a recorded network takes, and whether a GPU agrees.

    python -m benchmarks.networks                     # trains and records Hopper first: minutes
    python -m benchmarks.networks HISTORY --device cuda

Ten stages of 32,000 steps each (the later half of the paper's Hopper run) on one thread, policies
cloned. With a device, the weights are inferred there as well, and compared.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from logel.data.history import LearningHistory
from logel.inference.estimate import RewardEstimate
from logel.inference.infer import infer_reward
from logel.policies.networks import MLPGaussian

GAMMA = 0.99


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("history", type=Path, nargs="?", help="A recorded run of MLPs 64-64.")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    history = recorded() if arguments.history is None else LearningHistory.load(arguments.history)
    history = history.slice(max(0, len(history) - 10))
    print(f"{len(history)} stages of {history[0].n_steps} steps; torch {torch.__version__}")
    for known in (True, False):
        for method in ("default", "paper"):
            case = f"{'known' if known else 'cloned'} policies, method {method}"
            here = timed(history, method, "cpu", known=known, label=case)
            if arguments.device != "cpu":
                there = timed(history, method, arguments.device, known=known, label=case)
                gap = float(np.abs(here.weights - there.weights).max())
                print(f"  largest difference of the weights: {gap:.2g}")


def recorded() -> LearningHistory:
    from logel.studies.mujoco import SIZES, recorded_learner

    return recorded_learner("Hopper-v5", 1000, SIZES["full"])[0]


def timed(
    history: LearningHistory, method: str, device: str, *, known: bool, label: str
) -> RewardEstimate:
    first = history[0]
    policy = MLPGaussian(first.observations.shape[1], first.actions.shape[1], device=device)
    ends: dict[str, float] = {}
    begun = time.process_time()
    estimate = infer_reward(
        history,
        policy,
        gamma=GAMMA,
        method=method,
        use_parameters=known,
        progress=lambda what, done, total: ends.update({what: time.process_time() - begun}),
    )
    total = time.process_time() - begun
    parts, before = [], 0.0
    for what, end in ends.items():
        parts.append(f"{what} {end - before:.1f}")
        before = end
    print(f"{label}, {device}: {total:.1f} s of processor time ({', '.join(parts)})", flush=True)
    return estimate


if __name__ == "__main__":
    main()
