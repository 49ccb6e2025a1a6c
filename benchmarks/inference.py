"""Seconds the default inference takes on a 10-stage gridworld history, intervals included.

Usage: `python -m benchmarks.inference`. Processor time of one thread, one history per learner.
"""

from __future__ import annotations

import sys
import time

from benchmarks.report import Check, report
from logel import TabularSoftmax, infer_reward
from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.learners.tabular import LEARNERS, observe

ASKED = 5.0


def main() -> int:
    mdp = gridworld_mdp()
    policy = TabularSoftmax(mdp.n_states, mdp.n_actions)
    checks = []
    for name, learner in LEARNERS.items():
        history = observe(
            mdp, learner(), weights=grid_weights(mdp.feature_names), n_steps=10, seed=5
        )
        start = time.process_time()
        infer_reward(history, policy, gamma=mdp.gamma)
        took = time.process_time() - start
        checks.append(Check(f"seconds, {name}", f"{took:.1f}", f"under {ASKED:g}", took < ASKED))
    return report("Default inference, 10 stages", checks)


if __name__ == "__main__":
    sys.exit(main())
