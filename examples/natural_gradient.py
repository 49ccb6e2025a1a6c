"""A natural-gradient learner in the gridworld, watched through its trajectories alone.

The learner climbs the natural gradient of its return. logel is not told that: it compares several
kinds of learners, takes the one that predicts best, and recovers the reward along with it.

    python examples/natural_gradient.py

What to look at: the kind of learner named in the summary's first line, and how close planning for
the recovered reward comes to planning for the true one.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from logel import TabularSoftmax, infer_reward
from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.envs.tabular import relative_regret
from logel.learners.tabular import NaturalGradientAscent, observe


def main() -> None:
    """Watch, infer, compare."""
    parser = argparse.ArgumentParser(description="Recover a natural-gradient learner's reward.")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    world = gridworld_mdp()
    truth = grid_weights(world.feature_names)
    history = observe(
        world, NaturalGradientAscent(0.05), weights=truth, n_steps=15, seed=options.seed
    )
    policy = TabularSoftmax(world.n_states, world.n_actions)
    estimate = infer_reward(history, policy, gamma=world.gamma)
    print(estimate.summary())
    # Areas always sum to one, so only differences between weights can be seen.
    unit = truth - truth.mean()
    unit /= np.linalg.norm(unit)
    print("\narea          truth   recovered")
    for name, true, found in zip(world.feature_names, unit, estimate.weights, strict=True):
        print(f"{name:<11} {true:+7.2f} {found:+11.2f}")
    regret = relative_regret(world, estimate.weights, true_weights=truth)
    print(f"\nplanning for the recovered reward loses {100 * regret:.1f}% of what there is to win")


if __name__ == "__main__":
    main()
