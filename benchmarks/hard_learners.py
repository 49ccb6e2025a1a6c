"""Learners that explore otherwise, saturate, or are seen only after they have converged.

    python -m benchmarks.hard_learners --seed 2000 --runs 20

Random small tables and rewards, trajectories only. Nothing here is told what kind the learner is.
At temperature T soft value iteration, and Q-learners that act by softmax(Q / T), are the same
learners at one, paid 1 / T times as much: rows of temperatures are rows of rewards.
Prints a Markdown table: direction error, lost value, how often 95% intervals hold the truth, how
often something is shown, and what the statuses are.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator

import numpy as np

from logel import TabularSoftmax, infer_reward
from logel.envs.tabular import random_mdp, relative_regret
from logel.learners.tabular import (
    NaturalGradientAscent,
    QLearner,
    SoftPolicyIteration,
    SoftValueIteration,
    TabularLearner,
    observe,
)
from logel.studies.measures import judge_estimate

STATES, ACTIONS, FEATURES, GAMMA, HORIZON, EPISODES = 8, 3, 3, 0.9, 15, 50
# Learner, how many times the reward it is paid, steps before it is watched, and watched ones.
LEARNERS: dict[str, tuple[TabularLearner, float, int, int]] = {
    "Q-learning, softmax": (QLearner(), 1.0, 0, 15),
    "Q-learning, temperature .2": (QLearner(), 5.0, 0, 15),
    "Q-learning, temperature 3": (QLearner(), 1 / 3, 0, 15),
    "Q-learning, greedy but for .1": (QLearner(greed=100.0, explores=0.1), 1.0, 0, 15),
    "Q-learning, greedy but for .3": (QLearner(greed=100.0, explores=0.3), 1.0, 0, 15),
    "Q-learning, hopeful": (QLearner(hopes=3.0), 1.0, 0, 15),
    "soft value iteration": (SoftValueIteration(), 1.0, 0, 8),
    "soft value iteration, temperature .1": (SoftValueIteration(), 10.0, 0, 8),
    "soft value iteration, temperature 3": (SoftValueIteration(), 1 / 3, 0, 8),
    "soft policy iteration, temperature .05": (SoftPolicyIteration(0.05), 1.0, 0, 8),
    "converged: soft value iteration": (SoftValueIteration(), 1.0, 80, 8),
    "converged: soft policy iteration": (SoftPolicyIteration(1.0), 1.0, 20, 8),
    "converged: natural gradient": (NaturalGradientAscent(), 1.0, 300, 12),
    "converged: Q-learning": (QLearner(), 1.0, 150, 15),
}


def judged(seed: int, name: str) -> dict[str, float | str]:
    """One learner of one random reward in one random world."""
    rng = np.random.default_rng([seed, 23])
    mdp = random_mdp(
        rng, n_states=STATES, n_actions=ACTIONS, n_features=FEATURES, gamma=GAMMA, branching=2
    )
    truth = rng.standard_normal(FEATURES)
    learner, paid, unseen, steps = LEARNERS[name]
    history = observe(
        *(mdp, learner),
        weights=paid * truth,
        n_steps=unseen + steps,
        n_episodes=EPISODES,
        horizon=HORIZON,
        seed=seed,
    ).slice(unseen)
    estimate = infer_reward(history, TabularSoftmax(STATES, ACTIONS), gamma=GAMMA, seed=seed)
    return {
        **judge_estimate(estimate, truth),
        "regret": relative_regret(mdp, estimate.weights, true_weights=truth),
        "shown": float(estimate.verdict.shown),
    }


def table(found: dict[str, list[dict[str, float | str]]]) -> Iterator[str]:
    """What came out so far, in Markdown."""
    yield "| learner | runs | error | regret | coverage | significant | shown | rules | statuses |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, rows in found.items():
        measures = ("error", "regret", "coverage", "significant", "shown")
        means = [f"{np.mean([float(row[m]) for row in rows]):.2f}" for m in measures]
        kinds = [
            ", ".join(f"{kind} {n}" for kind, n in Counter(row[key] for row in rows).most_common())
            for key in ("learner_model", "status")
        ]
        yield f"| {' | '.join([name, str(len(rows)), *means, *kinds])} |"


def main() -> None:
    """Watch every learner; the table is printed anew after every seed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--only", default="", help="learners whose names have this in them")
    chosen = parser.parse_args()
    found: dict[str, list[dict[str, float | str]]] = {}
    for seed in range(chosen.seed, chosen.seed + chosen.runs):
        for name in LEARNERS:
            if chosen.only in name:
                found.setdefault(name, []).append(judged(seed, name))
        print(f"\nseeds {chosen.seed} to {seed}", *table(found), sep="\n", flush=True)


if __name__ == "__main__":
    main()
