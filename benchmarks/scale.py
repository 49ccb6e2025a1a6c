"""A hundred million steps through `paper` and `mirror`: memory, linear time, against plain reading.

    python -m benchmarks.scale write FOLDER                # 3.7 GB, once
    python -m benchmarks.scale FOLDER                      # 1e6, 1e7 and 1e8 steps of it

A learner in a linear world of four numbers climbs the gradient of three features, as a quarter of
its episodes show it; a stage is 10,000
episodes of 100 steps, in single precision. The smallest history is ten stages of 100,000 steps.
Every inference, with known policies and intervals, has a process of its own, which reports its peak
of resident memory, imports included, and its processor and elapsed time, imports excluded.
Beside it the same files are read, which is all that the disk (or, once read, memory) asks for, and
read as stages: checked against their sha256 and for what is not finite, as every reader does.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.report import Check, fresh_process, peak_bytes, report

STAGES, EPISODES, TIMES, GAMMA = 10, 10_000, 100, 0.95
TRUTH = (0.8, 0.36, 0.48)
NAMES = ("first near zero", "second near one", "little effort")
METHODS = ("paper", "mirror")
MEMORY_GB, LINEAR = 2.0, 0.1
RATE, SIGMA = 0.05, 0.5


@dataclass(frozen=True)
class Asked:
    """What of the folder is read: its first stages, or fewer episodes of them."""

    stages: int
    small: bool = False

    @property
    def steps(self) -> int:
        """How many there are."""
        return self.stages * EPISODES * TIMES // (10 if self.small else 1)


SIZES = (Asked(STAGES, small=True), Asked(STAGES), Asked(10 * STAGES))


def episodes(theta: np.ndarray, n: int, rng: np.random.Generator):  # type: ignore[no-untyped-def]
    """Whole episodes of a linear Gaussian policy, as a stage."""
    from logel import Stage

    states = np.empty((n, TIMES + 1, 4), np.float32)
    actions = np.empty((n, TIMES, 2), np.float32)
    gains = np.ascontiguousarray(theta.reshape(5, 2).astype(np.float32))
    moved = np.array([[0.3, 0, 0.1, 0], [0, 0.3, 0, 0.1]], np.float32)
    now = rng.standard_normal((n, 4), np.float32)
    for t in range(TIMES):
        states[:, t] = now
        noise = SIGMA * rng.standard_normal((n, 2), np.float32)
        actions[:, t] = now @ gains[:4] + gains[4] + noise
        now = 0.9 * now + actions[:, t] @ moved + 0.2 * rng.standard_normal((n, 4), np.float32)
    states[:, TIMES] = now
    seen = states[:, :TIMES].reshape(-1, 4)
    acted = actions.reshape(-1, 2)
    paid = [-(seen[:, 0] ** 2), -((seen[:, 1] - 1) ** 2), -(acted**2).sum(axis=1)]
    return Stage(
        observations=seen,
        actions=acted,
        lengths=np.full(n, TIMES),
        terminated=np.zeros(n, dtype=bool),
        last_observations=states[:, TIMES],
        features=np.stack(paid, axis=1),
        parameters=theta,
    )


def family():  # type: ignore[no-untyped-def]
    """Linear in the observation and a constant."""
    from logel import LinearGaussian

    return LinearGaussian(5, 2, sigma=SIGMA, feature_map=with_constant)


def with_constant(observations: np.ndarray) -> np.ndarray:
    """State features, shape (N, 5)."""
    return np.concatenate([observations, np.ones((len(observations), 1))], axis=1)


def write(folder: Path, stages: int) -> None:
    """Both histories, of long stages and of short ones."""
    from logel import HistoryWriter
    from logel.worlds.own_episodes import stage_jacobian

    policy = family()
    about = {"feature_names": NAMES, "own_episodes": False}
    for name, count, n in (("small", STAGES, EPISODES // 10), ("large", stages, EPISODES)):
        theta = np.zeros(policy.n_parameters)
        with HistoryWriter(folder / name, **about) as writer:
            for t in range(count):
                stage = episodes(theta, n, np.random.default_rng([1000, t]))
                writer.append(stage)
                learnt = stage.take(np.arange(n // 4))
                jacobian = stage_jacobian(policy, theta, learnt, gamma=GAMMA, baseline="time")
                theta = theta + RATE * jacobian.mean @ np.array(TRUTH)


def opened(folder: Path, asked: Asked):  # type: ignore[no-untyped-def]
    """The history that is asked for."""
    from logel import LearningHistory

    history = LearningHistory.load(folder / ("small" if asked.small else "large"))
    if len(history) < asked.stages:
        raise SystemExit(f"{folder} has {len(history)} stages: write {asked.stages} first")
    return history.slice(0, asked.stages)


def measured(folder: Path, asked: Asked, what: str) -> dict[str, object]:
    """Time and memory of one inference, or of reading alone, in this process."""
    from logel import infer_reward
    from logel.inference.gauge import direction_error
    from logel.threads import limited_threads

    found: dict[str, object] = {}
    history, policy = opened(folder, asked), family()
    wall, start = time.perf_counter(), time.process_time()
    if what == "bytes":
        for path in sorted((folder / ("small" if asked.small else "large")).glob("stage-*"))[
            : asked.stages
        ]:
            with path.open("rb") as file:
                while file.read(2**22):
                    pass
    elif what == "stages":
        for _ in history:
            pass
    else:
        with limited_threads(1):
            # Some of what is imported is so when it is first needed.
            infer_reward(opened(folder, Asked(2, small=True)), policy, gamma=GAMMA, method=what)
            wall, start = time.perf_counter(), time.process_time()
            estimate = infer_reward(history, policy, gamma=GAMMA, method=what)
        found["error"] = direction_error(estimate.weights, np.array(TRUTH), estimate.gauge)
        found["status"] = estimate.status.name
    found |= {"seconds": time.process_time() - start, "wall": time.perf_counter() - wall}
    return {**found, "peak": peak_bytes(), "steps": asked.steps}


def main() -> int:
    """Write, measure once in this process, or measure and judge everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="+")
    parser.add_argument("--stages", type=int, default=SIZES[-1].stages)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    verb, folder = options.folder[0], Path(options.folder[-1])
    if len(options.folder) == 2:
        if verb == "write":
            write(folder, options.stages)
        else:
            print(json.dumps(measured(folder, Asked(options.stages, options.small), verb)))
        return 0
    sizes = [asked for asked in SIZES if asked.stages <= options.stages]
    runs = {(what, a): _alone(folder, a, what) for a in sizes for what in (*METHODS, *READING)}
    return judged(runs, sizes)


READING = ("stages", "bytes")


def _alone(folder: Path, asked: Asked, what: str) -> dict[str, float]:
    """In a fresh process."""
    small = ["--small"] if asked.small else []
    run = fresh_process("benchmarks.scale", what, folder, "--stages", asked.stages, *small)
    print(what, json.dumps(run), flush=True)
    return run


def judged(runs: dict[tuple[str, Asked], dict[str, float]], sizes: list[Asked]) -> int:
    """Print what was measured against what is asked."""
    checks, last = [], sizes[-1]
    for method in METHODS:
        mine = [runs[method, asked] for asked in sizes]
        per_step = np.array([run["seconds"] / run["steps"] for run in mine])
        change = float(np.abs(per_step / per_step[-1] - 1).max())
        peak = max(run["peak"] for run in mine) / 1e9
        checks += [
            Check(f"{method}: peak memory", f"{peak:.2f} GB", f"{MEMORY_GB} GB", peak < MEMORY_GB),
            Check(
                f"{method}: microseconds a step at {', '.join(f'{a.steps:.0e}' for a in sizes)}",
                ", ".join(f"{1e6 * one:.3f}" for one in per_step),
                f"alike within {LINEAR:.0%}",
                change < LINEAR,
            ),
        ]
        for what in READING:
            share = runs[what, last]["wall"] / runs[method, last]["wall"]
            name = f"{method}: speed, in units of reading {what}"
            checks.append(Check(name, f"{share:.3f}", "", True))
    return report(f"{last.steps:.0e} steps", checks)


if __name__ == "__main__":
    sys.exit(main())
