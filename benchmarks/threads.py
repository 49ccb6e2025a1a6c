"""Processor time of inference with and without a limit on threads, tables and networks.

    python -m benchmarks.threads              # tables: a minute at most
    python -m benchmarks.threads --networks   # ten stages of 20,000 steps as well: minutes

Tables: the default inference on eight stages of the gridworld, in fresh processes in which the
numerical libraries have the number of threads they take by themselves, and in which the environment
allows one. Networks: one thread against two (LOGEL_THREADS), elapsed time, since that is what
threads are for. On a machine with other work the smallest of the repeats says most.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import numpy as np

from benchmarks.report import Check, fresh_process, report
from logel import LearningHistory, MLPGaussian, Stage, TabularSoftmax, infer_reward
from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.learners.tabular import SoftValueIteration, observe
from logel.threads import ONE_THREAD, limited_threads

RATIO = 1.2  # processor time without a limit from the environment, against with it
SLOWDOWN = 1.5  # elapsed time of networks on one thread, against two: beyond, one is a bad default
STAGES, EPISODES, TIMES, FEATURES = 10, 100, 200, 4


@limited_threads()
def grid_history() -> tuple[LearningHistory, TabularSoftmax, float]:
    mdp = gridworld_mdp()
    weights = grid_weights(mdp.feature_names)
    history = observe(mdp, SoftValueIteration(), weights=weights, n_steps=7, n_episodes=30, seed=5)
    return history, TabularSoftmax(mdp.n_states, mdp.n_actions), mdp.gamma


@limited_threads()
def network_history() -> tuple[LearningHistory, MLPGaussian, float]:
    """Sizes of a run of Hopper, all numbers random: what they say makes no difference to time."""
    rng = np.random.default_rng(0)
    policy = MLPGaussian(11, 3, hidden=(64, 64))
    theta, stages = policy.initial(rng), []
    n = EPISODES * TIMES
    for _ in range(STAGES):
        observations = rng.standard_normal((n, 11))
        stages.append(
            Stage(
                observations=observations,
                actions=policy.sample(theta, observations, rng),
                lengths=np.full(EPISODES, TIMES),
                terminated=np.zeros(EPISODES, dtype=bool),
                features=rng.standard_normal((n, FEATURES)),
                parameters=theta,
            )
        )
        theta = theta + 0.01 * rng.standard_normal(policy.n_parameters)
    return LearningHistory.from_stages(stages), policy, 0.99


def measure(what: str) -> None:
    """Print what one inference takes, as JSON."""
    history, policy, gamma = grid_history() if what == "table" else network_history()
    wall, spent = time.perf_counter(), time.process_time()
    infer_reward(history, policy, gamma=gamma, use_parameters=what != "cloned")
    spent, wall = time.process_time() - spent, time.perf_counter() - wall
    print(json.dumps({"wall": wall, "spent": spent}))


def least(what: str, key: str, repeats: int, **environment: str | None) -> float:
    """The smallest of several measurements, each in a process of its own."""
    runs = [
        fresh_process("benchmarks.threads", "--measure", what, environment=environment)
        for _ in range(repeats)
    ]
    return min(run[key] for run in runs)


def tables(repeats: int) -> Check:
    free = dict.fromkeys(ONE_THREAD, None)
    limited, unlimited = least("table", "spent", repeats), least("table", "spent", repeats, **free)
    ratio = unlimited / limited
    return Check(
        "tables: libraries' own threads / environment's one",
        f"{ratio:.2f} ({unlimited:.2f} s / {limited:.2f} s)",
        f"below {RATIO}",
        ratio < RATIO,
    )


def networks(what: str, repeats: int) -> Check:
    free = dict.fromkeys(ONE_THREAD, None)
    one = least(what, "wall", repeats, **free)
    two = least(what, "wall", repeats, **free, LOGEL_THREADS="2")
    return Check(
        f"networks, {what} policies: seconds on one thread / on two",
        f"{one / two:.2f} ({one:.1f} s / {two:.1f} s)",
        f"below {SLOWDOWN}",
        one < SLOWDOWN * two,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", choices=("table", "known", "cloned"), help=argparse.SUPPRESS)
    parser.add_argument("--networks", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure)
        return 0
    checks = [tables(arguments.repeats)]
    if arguments.networks:
        checks += [networks(what, arguments.repeats) for what in ("known", "cloned")]
    return report("Threads", checks)


if __name__ == "__main__":
    sys.exit(main())
