"""How often controls let learners through, and what does not learn.

    python -m benchmarks.controls --seed 2000 --runs 20

Learners of a small table (6 states, 3 actions, 3 features), 40 episodes of 10 steps a stage, only
trajectories are seen; `check_estimate(quick=True)`. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator

import numpy as np

from logel import LearningHistory, TabularSoftmax, check_estimate
from logel.envs.tabular import random_mdp
from logel.inference.controls import rearranged
from logel.learners.tabular import (
    GPOMDPLearner,
    RandomWalk,
    SoftPolicyIteration,
    SoftValueIteration,
    observe,
)

LEARNERS = {
    "soft value iteration": (SoftValueIteration(), 6),
    "soft policy iteration": (SoftPolicyIteration(1.0), 6),
    "G(PO)MDP": (GPOMDPLearner(), 12),
    "random walk": (RandomWalk(), 12),
}


def histories(seed: int) -> Iterator[tuple[str, str, LearningHistory]]:
    """Learner, order of its stages, history."""
    rng = np.random.default_rng([seed, 1])
    mdp = random_mdp(rng, n_states=6, n_actions=3, n_features=3, gamma=0.8, branching=2)
    weights = rng.standard_normal(3)
    for name, (learner, n_steps) in LEARNERS.items():
        history = observe(
            *(mdp, learner), weights=weights, n_steps=n_steps, n_episodes=40, horizon=10, seed=seed
        )
        yield name, "as it was", history
        if name != "random walk":
            # The first stage last: no step from it is left.
            shuffled = [*(1 + rng.permutation(n_steps)), 0]
            yield name, "reversed", rearranged(history, range(n_steps + 1)[::-1])
            yield name, "shuffled", rearranged(history, [int(t) for t in shuffled])


Counts = dict[tuple[str, str], Counter[str]]


def table(counts: Counts) -> Iterator[str]:
    """What came out so far, in Markdown."""
    yield "| learner | stages | runs | shown before | after the controls | controls that failed |"
    yield "|---|---|---|---|---|---|"
    for (name, order), count in counts.items():
        told = {"runs", "shown", "left"}
        failed = ", ".join(f"{title} {n}" for title, n in count.items() if title not in told)
        cells = (name, order, count["runs"], count["shown"], count["left"], failed)
        yield f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Check every history and count; the table is printed anew after every seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=20)
    chosen = parser.parse_args()
    counts: Counts = {}
    for seed in range(chosen.seed, chosen.seed + chosen.runs):
        for name, order, history in histories(seed):
            checks = check_estimate(history, TabularSoftmax(6, 3), gamma=0.8, quick=True)
            count = counts.setdefault((name, order), Counter())
            shown = checks.estimate.verdict.shown
            count.update(runs=1, shown=int(shown), left=int(checks.verdict.shown))
            count.update(t for t, outcome, _ in checks.rows() if shown and outcome == "failed")
        print(f"\nseeds {chosen.seed} to {seed}", *table(counts), sep="\n", flush=True)


if __name__ == "__main__":
    main()
