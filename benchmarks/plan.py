"""What `logel plan` says an inference takes, and what it then takes: seconds and memory.

    python -m benchmarks.plan            # three minutes on a quiet core
    python -m benchmarks.plan --only replay --workers 2

Every history in a fresh process, as on the command line: first the plan, then the inference.
Seconds are those of one core (of one worker), or those that pass (of several); how long planning
took are seconds that passed.
Memory is the highest of that process; with several workers that of the others is not in it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.report import Check, fresh_process, peak_bytes, report
from benchmarks.workers import ACTIONS, OBSERVATIONS, network, ppo, table
from logel import LearningHistory, MLPGaussian, TabularSoftmax, infer_reward, plan_inference
from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.learners.tabular import GPOMDPLearner, observe
from logel.policies.base import Policy
from logel.policies.choose import choose_common_policy

# A plan is right if it is off by at most so much, and takes at most so many seconds.
FACTOR, SECONDS = 2.0, 3.0


def known_table(folder: Path) -> None:
    """A learner in the paper's gridworld, with the parameters of its policies."""
    world = gridworld_mdp()
    weights = grid_weights(world.feature_names)
    learner = GPOMDPLearner()
    history = observe(world, learner, weights=weights, n_steps=60, parameters=True, seed=1000)
    history.save(folder)


HISTORIES: dict[str, Callable[[Path], object]] = {
    "table, cloned, gradient learner": lambda folder: table(folder, 10),
    "table, cloned, soft value iteration": lambda folder: table(folder, 10, "svi"),
    "table, cloned, 31 stages": lambda folder: table(folder, 30),
    "table of 100 parameters, known": known_table,
    "network, known, mirror": lambda folder: network(24, 200, folder),
    "network, cloned, mirror": lambda folder: network(24, 32, folder),
    "network, cloned, paper": lambda folder: network(24, 32, folder),
    "network, known, replay": ppo,
}


def planned(name: str, folder: Path, workers: int) -> dict[str, Any]:
    """A plan and the truth, of one history."""
    history = LearningHistory.load(folder)
    kind, known, *rest = name.split(", ")
    policy: Policy = MLPGaussian(OBSERVATIONS, ACTIONS, hidden=(64, 64))
    if "replay" in rest:
        policy = choose_common_policy({"": history}, "auto", known=True)
    elif kind.startswith("table"):
        policy = TabularSoftmax(25 if known == "known" else 100, 4)
    given = {
        "gamma": history.gamma or 0.96,
        "method": next((one for one in rest if one in ("mirror", "paper", "replay")), "default"),
        "use_parameters": known == "known",
        "workers": workers,
    }
    plan = plan_inference(history, policy, **given)
    clock = time.process_time if workers == 1 else time.perf_counter
    started = clock()
    infer_reward(history, policy, **given)
    return {
        "planned": plan.seconds,
        "taken": clock() - started,
        "plan_took": plan.took,
        "planned_bytes": plan.memory,
        "peak_bytes": peak_bytes(),
    }


def check(name: str, told: dict[str, Any], workers: int) -> Check:
    """Whether a plan was right."""
    ratio = told["planned"] / told["taken"]
    memory = told["planned_bytes"] / told["peak_bytes"]
    right = 1 / FACTOR <= ratio <= FACTOR and told["plan_took"] <= SECONDS
    right &= workers > 1 or 1 / FACTOR <= memory <= FACTOR
    return Check(
        name,
        f"{told['planned']:.1f} s planned, {told['taken']:.1f} s taken ({ratio:.2f}); "
        f"{told['planned_bytes'] / 1e9:.2f}, {told['peak_bytes'] / 1e9:.2f} GB ({memory:.2f}); "
        f"plan {told['plan_took']:.1f} s",
        f"within {FACTOR:g}",
        right,
    )


def main() -> int:
    """Plan and infer; the exit code says whether all plans were right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", default="", help="a word of the names")
    parser.add_argument("--one", nargs=2, help="a name and its folder, in this process")
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(planned(options.one[0], Path(options.one[1]), options.workers)))
        return 0
    checks = []
    with tempfile.TemporaryDirectory() as kept:
        for number, (name, make) in enumerate(HISTORIES.items()):
            if options.only not in name:
                continue
            folder = Path(kept) / str(number)
            make(folder)
            more = ("--workers", options.workers)
            told = fresh_process("benchmarks.plan", "--one", name, folder, *more)
            checks.append(check(name, told, options.workers))
            print(checks[-1].name, checks[-1].measured, flush=True)
    return report("Plans", checks)


if __name__ == "__main__":
    sys.exit(main())
