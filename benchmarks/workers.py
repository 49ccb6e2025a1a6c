"""How much faster several workers are, and whether the answer is the same to the last bit.

    python -m benchmarks.workers                # two against one: two minutes on two quiet cores
    python -m benchmarks.workers --workers 16

Elapsed time of whole inferences, the smaller of two in turn, histories read from a folder: a
network's policies cloned and then moved along advantages, the same with known policies, and the
default on a table of 300 parameters. Workers have been started before (that takes some two seconds
of each), as they are for whoever asks more than one question.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.report import Check, report
from benchmarks.smoother import watched
from logel import (
    LearningHistory,
    MLPGaussian,
    RewardEstimate,
    Stage,
    TabularSoftmax,
    Workers,
    infer_reward,
)
from logel.workers import SERIAL, Executor

STAGES, OBSERVATIONS, ACTIONS, FEATURES, TIMES = 16, 11, 3, 4, 250
FACTOR = {2: 1.8, 16: 10.0}
Ask = Callable[[Executor], RewardEstimate]


def network(episodes: int, folder: Path) -> tuple[LearningHistory, MLPGaussian]:
    """Sizes of a run of Hopper; what the numbers say makes no difference to time."""
    rng = np.random.default_rng(1000)
    policy, n = MLPGaussian(OBSERVATIONS, ACTIONS, hidden=(64, 64)), episodes * TIMES
    theta, stages = policy.initial(rng), []
    for _ in range(STAGES):
        seen = rng.standard_normal((n, OBSERVATIONS)).astype(np.float32)
        stages.append(
            Stage(
                observations=seen,
                actions=policy.sample(theta, seen, rng).astype(np.float32),
                lengths=np.full(episodes, TIMES),
                terminated=np.zeros(episodes, dtype=bool),
                last_observations=seen[:episodes],
                features=rng.standard_normal((n, FEATURES)),
                parameters=theta,
            )
        )
        theta = theta + 0.01 * rng.standard_normal(policy.n_parameters)
    LearningHistory.from_stages(stages).save(folder)
    return LearningHistory.load(folder), policy


def questions(folder: Path) -> dict[str, Ask]:
    """Inferences by what they are about."""
    short, policy = network(32, folder / "short")
    long, _ = network(400, folder / "long")
    world, table = watched(10, "gpomdp", 10)
    family = TabularSoftmax(world.n_states, world.n_actions)

    def cloned(run: Executor) -> RewardEstimate:
        return infer_reward(
            short, policy, gamma=0.99, use_parameters=False, method="mirror", workers=run
        )

    def known(run: Executor) -> RewardEstimate:
        return infer_reward(long, policy, gamma=0.99, method="mirror", workers=run)

    def tabular(run: Executor) -> RewardEstimate:
        return infer_reward(table, family, gamma=world.gamma, use_parameters=False, workers=run)

    return {
        f"cloning and mirror, {STAGES} stages of {32 * TIMES} steps": cloned,
        f"mirror, {STAGES} stages of {400 * TIMES} steps": known,
        f"the default on a table of {family.n_parameters} parameters": tabular,
    }


def timed(ask: Ask, run: Executor, folder: Path) -> tuple[float, bytes]:
    """Seconds, and the estimate as a file."""
    started = time.perf_counter()
    estimate = ask(run)
    taken = time.perf_counter() - started
    path = folder / f"{time.monotonic_ns()}.json"
    estimate.save(path)
    return taken, path.read_bytes()


def main() -> int:
    """Compare; the exit code says whether workers are fast enough and agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    wanted, checks = FACTOR.get(options.workers), []
    with tempfile.TemporaryDirectory() as name, Workers(options.workers).open() as run:
        folder = Path(name)
        asked = questions(folder)
        for ask in asked.values():
            timed(ask, run, folder)  # workers import what they need
        for what, ask in asked.items():
            turns = [
                [timed(ask, who, folder) for who in (SERIAL, run)] for _ in range(options.repeats)
            ]
            one, several = (min(turn[i][0] for turn in turns) for i in (0, 1))
            same = len({turn[i][1] for turn in turns for i in (0, 1)}) == 1
            checks.append(
                Check(
                    f"{what}: one worker / {options.workers}",
                    f"{one / several:.2f} ({one:.1f} s / {several:.1f} s)",
                    "" if wanted is None else f"at least {wanted}",
                    wanted is None or one / several >= wanted,
                )
            )
            checks.append(Check("the same bytes", "yes" if same else "no", "yes", same))
    return report("Workers", checks)


if __name__ == "__main__":
    sys.exit(main())
