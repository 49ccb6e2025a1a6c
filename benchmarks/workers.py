"""How much faster several workers are, and whether the answer is the same to the last bit.

    python -m benchmarks.workers                # two against one: five minutes on two quiet cores
    python -m benchmarks.workers --workers 16 --only replay

Elapsed time of whole inferences, the smallest of those in turn, histories read from a folder: a
network's policies cloned and then moved along advantages, the same with known policies, PPO's
updates replayed, controls of an answer, and the default on a table of 300 parameters. Workers have
been started before (that takes some two seconds of each), as they are for whoever asks more than
one question; `--cold` starts them anew for every answer.

What the machine allows is measured beside it: as many processes as there are workers make one whole
inference each, by themselves and at once. Cores that share caches, memory and power do not do that
in the time of one, and no division of work can do better.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Check, report
from benchmarks.smoother import watched
from logel import (
    LearningHistory,
    MLPGaussian,
    Stage,
    TabularSoftmax,
    Workers,
    check_estimate,
    infer_reward,
)
from logel.envs.audit import WORLDS
from logel.learners import audit
from logel.policies.choose import choose_common_policy
from logel.threads import limited_threads
from logel.workers import SERIAL, Executor

OBSERVATIONS, ACTIONS, FEATURES, TIMES = 11, 3, 4, 250
FACTOR = {2: 1.8, 16: 10.0}
SEED = 1000


def network(n_stages: int, episodes: int, folder: Path) -> tuple[LearningHistory, MLPGaussian]:
    """Sizes of a run of Hopper; what the numbers say makes no difference to time."""
    rng = np.random.default_rng(SEED)
    policy, n = MLPGaussian(OBSERVATIONS, ACTIONS, hidden=(64, 64)), episodes * TIMES
    theta, stages = policy.initial(rng), []
    for _ in range(n_stages):
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


def ppo(folder: Path) -> LearningHistory:
    """PPO in a room with 14 updates of 2,048 steps, networks 64-64."""
    world = WORLDS["room"]
    weights = world.random_weights(np.random.default_rng(SEED))
    with limited_threads():
        audit.train(world, audit.LEARNERS["PPO"], weights, seed=SEED, path=folder)
    return LearningHistory.load(folder)


def table(folder: Path, n_steps: int, learner: str = "gpomdp") -> LearningHistory:
    """A learner in a gridworld of 10 x 10 cells."""
    world, history = watched(10, learner, n_steps)
    LearningHistory.from_stages(list(history), metadata={"gamma": world.gamma}).save(folder)
    return LearningHistory.load(folder)


# What is made, and what is asked of it, by name.
HISTORIES: dict[str, Callable[[Path], object]] = {
    "cloning": lambda folder: network(48, 32, folder),
    "mirror": lambda folder: network(32, 400, folder),
    "replay": ppo,
    "table": lambda folder: table(folder, 10),
    "long-table": lambda folder: table(folder, 30),
    "controls": lambda folder: network(8, 32, folder),
}
WORDS = {
    "cloning": f"cloning and mirror, 48 stages of {32 * TIMES} steps",
    "mirror": f"mirror, 32 stages of {400 * TIMES} steps",
    "replay": "replay of PPO, 14 updates of 2048 steps, networks 64-64",
    "table": "the default on a table of 300 parameters, 11 stages",
    "long-table": "the same, 31 stages",
    "controls": "controls of mirror (quick), 8 stages",
}


def ask(name: str, folder: Path, run: Executor | Workers) -> str:
    """The answer as JSON."""
    history = LearningHistory.load(folder / name)
    own = MLPGaussian(OBSERVATIONS, ACTIONS, hidden=(64, 64))
    if name == "cloning":
        options: dict[str, Any] = {"method": "mirror", "use_parameters": False}
        return infer_reward(history, own, gamma=0.99, workers=run, **options).to_json()
    if name == "mirror":
        return infer_reward(history, own, gamma=0.99, method=name, workers=run).to_json()
    if name == "controls":
        found = check_estimate(
            *(history, own), gamma=0.99, quick=True, method="mirror", workers=run
        )
        return found.to_json()
    if name == "replay":
        policy = choose_common_policy({"": history}, "auto", known=True)
        return infer_reward(history, policy, workers=run).to_json()
    family = TabularSoftmax(100, 4)
    return infer_reward(history, family, use_parameters=False, workers=run).to_json()


def timed(what: Callable[[], object]) -> tuple[float, Any]:
    """Seconds, and what came of it."""
    started = time.perf_counter()
    found = what()
    return time.perf_counter() - started, found


def alone(folder: Path, name: str) -> float:
    """Seconds of one inference by one process."""
    return timed(partial(ask, name, folder, SERIAL))[0]


def compared(name: str, folder: Path, options: Any, run: Executor) -> list[Check]:
    """One against several, and what the machine allows."""
    several = Workers(options.workers) if options.cold else run
    turns = [
        [timed(partial(ask, name, folder, who)) for who in (SERIAL, several)]
        for _ in range(options.repeats)
    ]
    one, many = (min(turn[i][0] for turn in turns) for i in (0, 1))
    same = len({turn[i][1] for turn in turns for i in (0, 1)}) == 1
    by_itself = max(run.map(alone, [name], folder))
    at_once = max(run.map(alone, [name] * options.workers, folder))
    allowed = options.workers * by_itself / at_once
    wanted = FACTOR.get(options.workers)
    words = f"{one / many:.2f} ({one:.1f} s / {many:.1f} s); the machine allows {allowed:.2f}"
    return [
        Check(
            f"{WORDS[name]}: one worker / {options.workers}",
            words,
            "" if wanted is None else f"at least {wanted}",
            wanted is None or one / many >= wanted,
        ),
        Check("the same bytes", "yes" if same else "no", "yes", same),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare; the exit code says whether workers are fast enough and agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--cold", action="store_true", help="start workers for every answer")
    parser.add_argument("--only", choices=HISTORIES, nargs="+", default=list(HISTORIES))
    options = parser.parse_args(arguments)
    checks = []
    with tempfile.TemporaryDirectory() as kept, Workers(options.workers).open() as run:
        folder = Path(kept)
        for name in options.only:
            HISTORIES[name](folder / name)
        # Workers import what they need.
        network(3, 2, folder / "warm")
        list(run.map(_warm, [folder / "warm"] * 2 * options.workers))
        for name in options.only:
            checks += compared(name, folder, options, run)
            print(checks[-2].name, checks[-2].measured, checks[-1].measured, flush=True)
    return report("Workers", checks)


def _warm(common: None, folder: Path) -> None:
    policy = MLPGaussian(OBSERVATIONS, ACTIONS, hidden=(64, 64))
    infer_reward(LearningHistory.load(folder), policy, gamma=0.9, method="mirror")


if __name__ == "__main__":
    sys.exit(main())
