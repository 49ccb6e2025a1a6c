"""Episodes per second at the crossroad, on one core.

Usage: `python -m benchmarks.crossroad`. Default scenario, 400 episodes with parameters drawn from
the search distribution the driver starts with, and 400 of a careful driver, who waits longer.
Processor time of one thread, so that other jobs on the machine count little.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from benchmarks.report import Check, report
from logel.envs.crossroad.driver import SIGMA, START, drive
from logel.envs.crossroad.world import Crossroad

CAREFUL = (2.5, 3.5, 1.5, 5.0, 40.0)
EPISODES, ASKED = 400, 50.0


def rate(env: Crossroad, mean: tuple[float, ...]) -> float:
    rng = np.random.default_rng(0)
    drive(env, mean, 0)
    start = time.process_time()
    for seed in range(EPISODES):
        drive(env, rng.normal(mean, SIGMA), seed)
    return EPISODES / (time.process_time() - start)


def main() -> int:
    env = Crossroad()
    checks = []
    for name, mean in (("beginner", START), ("careful driver", CAREFUL)):
        found = rate(env, mean)
        target = f"at least {ASKED:g}"
        checks.append(Check(f"episodes/s, {name}", f"{found:.0f}", target, found >= ASKED))
    env.close()
    return report("Crossroad", checks)


if __name__ == "__main__":
    sys.exit(main())
