"""Direction error and coverage of the two-step inference in random worlds.

    python -m benchmarks.two_step --first 0 --runs 30

Settings are chosen on seeds from 1000 on and reported on those from 0. Needs `envs/parametric.py`
and `learners/gradient_ascent.py`.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

from logel import Method, infer_reward
from logel.envs.parametric import FeaturisedMDP
from logel.envs.tabular import random_mdp
from logel.inference.gauge import direction_error
from logel.inference.infer import METHODS
from logel.learners.gradient_ascent import GradientAscent, observe_parametric

NEW = METHODS["two-step"]
SETTINGS = {
    "before": Method(baseline="time", rates="shared"),
    "two-step": NEW,
    "without debias": replace(NEW, debias=False),
}
HISTORIES: dict[str, dict[str, Any]] = {
    "cloned, m=10, n=50": {},
    "known, m=10, n=50": {"known": True},
    "known, exact, m=40, n=5": {"known": True, "exact": True, "m": 40, "n": 5},
    "cloned, exact, m=10, n=200": {"exact": True, "n": 200},
    "known, natural learner, m=10, n=50": {"known": True, "direction": "natural"},
}


def judge(
    seed: int,
    *,
    m: int = 10,
    n: int = 50,
    known: bool = False,
    exact: bool = False,
    direction: str = "vanilla",
) -> list[tuple[float, float]]:
    rng = np.random.default_rng([seed, 7])
    states, actions = int(rng.integers(10, 30)), int(rng.integers(2, 5))
    q, p = int(rng.integers(3, 7)), int(rng.integers(3, 9))
    mdp = random_mdp(rng, n_states=states, n_actions=actions, n_features=q, branching=4)
    world, truth = FeaturisedMDP(mdp, rng.standard_normal((states, p))), rng.standard_normal(q)
    learner = GradientAscent(learning_rate=0.3, direction=direction, exact=exact)
    history = observe_parametric(
        world, learner, weights=truth, n_steps=m, n_episodes=n, seed=seed, parameters=known
    )
    row = []
    for method in SETTINGS.values():
        estimate = infer_reward(history, world.policy, gamma=world.gamma, method=method)
        unit = estimate.gauge.project(truth)
        unit = unit / np.linalg.norm(unit)
        low, high = estimate.interval(0.95).T
        error = direction_error(estimate.weights, truth, estimate.gauge)
        row.append((error, float(((low <= unit) & (unit <= high)).mean())))
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--runs", type=int, default=30)
    options = parser.parse_args()
    for name, history in HISTORIES.items():
        seeds = range(options.first, options.first + options.runs)
        table = np.array([judge(seed, **history) for seed in seeds])
        for setting, (error, coverage) in zip(SETTINGS, table.mean(axis=0), strict=True):
            print(f"{name:36s} {setting:16s} error {error:.3f} coverage {coverage:.3f}")


if __name__ == "__main__":
    main()
