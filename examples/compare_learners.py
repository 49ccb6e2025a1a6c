"""Two learners in the same world: do they want the same?

Both learn in the gridworld by soft value iteration. One is after the green goal, the other after
the blue corner. From the trajectories of each, logel recovers its reward with intervals; where
the interval of a difference excludes zero, the two want different things.

    python examples/compare_learners.py

What to look at: the last column. Green and blue differ; light grey, which both find equally
tiresome, need not.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from logel import RewardEstimate, TabularSoftmax, infer_reward
from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.learners.tabular import SoftValueIteration, observe

WORLD = gridworld_mdp()


def watch(reward: str, seed: int) -> RewardEstimate:
    """The reward recovered from a learner that has the named one."""
    history = observe(
        WORLD,
        SoftValueIteration(),
        weights=grid_weights(WORLD.feature_names, reward),
        n_steps=5,
        seed=seed,
    )
    return infer_reward(history, TabularSoftmax(25, 4), gamma=WORLD.gamma)


def main() -> None:
    """Print both estimates and their difference."""
    parser = argparse.ArgumentParser(description="Compare the rewards of two learners.")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    one, two = watch("code", options.seed), watch("paper-text", options.seed + 1)
    difference = one.weights - two.weights
    # The runs are independent, so the half-widths add as standard errors do.
    halves = [np.diff(estimate.interval(0.95), axis=1)[:, 0] / 2 for estimate in (one, two)]
    half = np.hypot(*halves)
    print("area         goal lover   blue lover   difference (95% interval)")
    for j, name in enumerate(one.feature_names):
        low, high = difference[j] - half[j], difference[j] + half[j]
        verdict = "" if low <= 0 <= high else "   they differ"
        print(
            f"{name:<11} {one.weights[j]:+11.2f} {two.weights[j]:+12.2f}   "
            f"{difference[j]:+.2f} [{low:+.2f}, {high:+.2f}]{verdict}"
        )


if __name__ == "__main__":
    main()
