"""Seconds and memory of the default on tables, by parameters and by stages, intervals included.

Usage: `python -m benchmarks.smoother [--quick]`. Processor time of one thread, on gridworlds with
random areas watched for 50 episodes of 20 steps a stage; one gradient learner and one soft value
iterator each. `--quick` leaves out the largest world and the longest histories.
"""

from __future__ import annotations

import sys
import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.report import Check, peak_bytes, report
from logel import LearningHistory, Method, TabularSoftmax, infer_reward
from logel.envs.gridworld import GridMap, grid_weights, gridworld_mdp
from logel.envs.tabular import TabularMDP
from logel.inference import rounds
from logel.learners.tabular import LEARNERS, observe

# Cells along a side, parameters, and the seconds asked for ten stages.
WORLDS = ((5, 75, 1.0), (10, 300, 5.0), (20, 1200, 60.0))
STAGES = (10, 20, 50, 100, 200)
LEARNT = ("gpomdp", "svi")


class Run(NamedTuple):
    """One history inferred."""

    weights: npt.NDArray[np.float64]
    seconds: float
    way: str


def infer(side: int, learner: str, *, n_steps: int = 10, models: tuple[str, ...] = ()) -> Run:
    """The default's answer for a history of its own, and its processor time."""
    mdp, history = watched(side, learner, n_steps)
    method = Method.named("joint", models=models) if models else "default"
    policy = TabularSoftmax(mdp.n_states, mdp.n_actions)
    start = time.process_time()
    estimate = infer_reward(history, policy, gamma=mdp.gamma, method=method)
    return Run(estimate.weights, time.process_time() - start, estimate.method)


def watched(side: int, learner: str, n_steps: int) -> tuple[TabularMDP, LearningHistory]:
    """A learner in a gridworld with random areas."""
    rng = np.random.default_rng(side)
    cells = rng.choice(list("...obd"), (side, side))
    cells[0, 0], cells[-1, -1] = ".", "g"
    mdp = gridworld_mdp(GridMap(tuple("".join(row) for row in cells)))
    weights = grid_weights(mdp.feature_names)
    return mdp, observe(mdp, LEARNERS[learner](), weights=weights, n_steps=n_steps, seed=5)


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """Slope of log seconds against log size."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def by_states(worlds: tuple[tuple[int, int, float], ...]) -> list[Check]:
    """Ten stages of ever larger worlds."""
    checks = []
    for learner in LEARNT:
        seconds = []
        for side, d, asked in worlds:
            run = infer(side, learner)
            seconds.append(run.seconds)
            joint = run.way.startswith("method default (joint)")
            checks.append(
                Check(
                    f"seconds, d = {d}, 10 stages, {learner}",
                    f"{run.seconds:.1f}" + ("" if joint else " (not joint)"),
                    f"under {asked:g}",
                    run.seconds < asked and joint,
                )
            )
        slope = exponent([d for _, d, _ in worlds], seconds)
        checks.append(Check(f"exponent of parameters, {learner}", f"{slope:.2f}", "", True))
    return checks


def by_stages(stages: tuple[int, ...]) -> list[Check]:
    """Ever longer histories of a hundred states."""
    seconds = [infer(10, "svi", n_steps=m, models=("soft-value",)).seconds for m in stages]
    slope = exponent(list(stages), seconds)
    listed = ", ".join(f"{s:.1f}" for s in seconds)
    what = f"seconds of {', '.join(map(str, stages))} stages, d = 300, one rule"
    return [
        Check(what, listed, "", True),
        Check("exponent of stages", f"{slope:.2f}", "at most 1.1", slope <= 1.1),
    ]


def against_matrices(worlds: tuple[tuple[int, int, float], ...]) -> list[Check]:
    """The same answers from products and from matrices."""
    checks, usual = [], rounds.LARGEST_DENSE
    for side, d, _ in worlds:
        for learner in LEARNT:
            found = []
            for largest in (0, 10**9):
                rounds.LARGEST_DENSE = largest
                found.append(infer(side, learner).weights)
            gap = float(np.abs(found[0] - found[1]).max())
            what = f"difference of weights from matrices, d = {d}, {learner}"
            checks.append(Check(what, f"{gap:.1e}", "at most 1e-4", gap <= 1e-4))
    rounds.LARGEST_DENSE = usual
    return checks


def main() -> int:
    quick = "--quick" in sys.argv[1:]
    worlds = WORLDS[:2] if quick else WORLDS
    checks = by_states(worlds)
    peak = peak_bytes() / 1e9
    checks.append(Check("peak memory so far, GB", f"{peak:.2f}", "under 2", peak < 2))
    checks += by_stages(STAGES[:3] if quick else STAGES)
    checks += against_matrices(WORLDS[:1] if quick else WORLDS[:2])
    return report("Default on tables, by size", checks)


if __name__ == "__main__":
    sys.exit(main())
