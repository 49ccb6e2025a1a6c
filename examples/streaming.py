"""Watching live: an estimate after every update of a learner, at a cost that does not grow.

A policy-gradient learner learns in the gridworld. After each of its updates, `Observer` takes in
the episodes of that stage, and forgets them again, and its estimate gets better.

    python examples/streaming.py

What to look at: the error falls as stages come in (0: exact, 1.41: unrelated), and the time per
stage stays the same.
"""

from __future__ import annotations

import argparse
import time
from itertools import islice

import numpy as np
import torch

from logel import Observer, TabularSoftmax
from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.envs.tabular import sample_episodes
from logel.inference.gauge import direction_error
from logel.learners.tabular import GPOMDPLearner


def main() -> None:
    """Learn and watch, stage by stage."""
    parser = argparse.ArgumentParser(description="Recover a reward while the learner learns.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stages", type=int, default=31)
    options = parser.parse_args()
    torch.set_num_threads(1)
    world = gridworld_mdp()
    truth = grid_weights(world.feature_names)
    learner_rng, observer_rng = np.random.default_rng([options.seed, 0]).spawn(2)
    observer = Observer(TabularSoftmax(25, 4), gamma=world.gamma, feature_names=world.feature_names)
    print("stage  error  seconds  best area (weight, 95% interval)")
    run = GPOMDPLearner(learning_rate=0.1).run(world, truth, learner_rng)
    for stage, snapshot in enumerate(islice(run, options.stages)):
        batch = sample_episodes(
            world, snapshot.policy, rng=observer_rng, n_episodes=200, horizon=20
        )
        start = time.perf_counter()
        estimate = observer.update(batch.stage(), parameters=snapshot.parameters)
        seconds = time.perf_counter() - start
        if estimate is None or stage % 5:
            continue  # nothing moved yet, or nothing to print
        error = direction_error(estimate.weights, truth, estimate.gauge)
        best = int(np.argmax(estimate.weights))
        low, high = estimate.interval(0.95)[best]
        print(
            f"{stage:5}  {error:5.2f}  {seconds:7.2f}  {estimate.feature_names[best]} "
            f"({estimate.weights[best]:+.2f}, [{low:+.2f}, {high:+.2f}])"
        )


if __name__ == "__main__":
    main()
