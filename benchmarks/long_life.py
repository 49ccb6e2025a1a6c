"""Ten thousand stages: time per stage and memory of all that goes through a history.

Usage: `python -m benchmarks.long_life [--out docs/results/robustness] [--stages 10000]`. A table of
3 states and 2 actions, 5 episodes of 5 steps a stage, known parameters. Each kind of work is done
on 1/8, 1/4, 1/2 and all of the stages, each in a process and on a folder of its own, and tells the
processor time and the growth of its resident memory (no file is mapped, so that all of it is the
process's own). The recorder is a `HistoryRecorder` of A2C, an update of 5
steps a stage; the observer, of method `two-step`, answers anew whenever a tenth was added.
Writes a table and a figure.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import (
    Check,
    forget_peak,
    fresh_process,
    peak_bytes,
    report,
    resident_bytes,
)
from logel.data.folder import MANIFEST, STAGES

SHARES = (8, 4, 2, 1)
# Stages worked on beforehand: libraries take memory once, whatever the size.
LITTLE = 60
# Time per stage may grow by this from the fewest stages to all, memory by so many bytes a stage:
# what is said in docs/results/robustness.md to be kept of a stage, and as much again to work on it.
GROWTH = 1.5
BYTES_PER_STAGE = {
    "write": 500,
    "recorder": 500,
    "load": 500,
    "inspect": 1500,
    "observer": 2500,
    "paper": 2500,
    "mirror": 2500,
}
KINDS = tuple(BYTES_PER_STAGE)


def stages(n: int) -> Iterator[Any]:
    """A slow learner's stages, made as they are asked for."""
    from logel.data.stage import Episode, Stage

    rng = np.random.default_rng(0)
    theta = np.zeros(3)
    for _ in range(n):
        episodes = []
        for _ in range(5):
            states = rng.integers(0, 3, 6)
            chances = 1 / (1 + np.exp(theta[states[:5]]))
            actions = (rng.random(5) < chances).astype(int)
            features = np.stack([states[1:] == 1, rng.random(5)], axis=1)
            episodes.append(Episode(states, actions, features))
        yield Stage.from_episodes(episodes, theta.copy())
        theta = theta + 0.01 * rng.normal(size=3) - [0, 0.002, 0]


def write(folder: Path, n: int) -> None:
    """Stages to disk, as a recorder of one's own loop does."""
    from logel.data.folder import HistoryWriter

    with HistoryWriter(folder / "made") as writer:
        for stage in stages(n):
            writer.append(stage)


def begin(whole: Path, part: Path, n: int) -> None:
    """The first stages of a folder as a folder of its own."""
    part.mkdir()
    lines = (whole / STAGES).read_bytes().splitlines(keepends=True)
    (part / STAGES).write_bytes(b"".join([*lines[:n], lines[-1]]))
    for path in (whole / MANIFEST, *sorted(whole.glob("stage-*"))[:n]):
        os.link(path, part / path.name)


def recorder(folder: Path, n: int) -> None:
    """A2C trains, and is watched."""
    from stable_baselines3 import A2C

    from logel.learners.sb3 import HistoryRecorder

    model = A2C("MlpPolicy", "CartPole-v1", seed=0, policy_kwargs={"net_arch": [8]}, device="cpu")
    model.learn(5 * n, callback=HistoryRecorder(folder / "made", "none"))


def load(folder: Path, n: int) -> None:
    """Every stage, once."""
    from logel.data.history import LearningHistory

    assert sum(stage.n_steps for stage in LearningHistory.load(folder / f"{n}")) == 25 * n


def inspect(folder: Path, n: int) -> None:
    """`logel inspect` without the printing."""
    from logel.data.history import LearningHistory
    from logel.data.inspection import inspect_history

    assert len(inspect_history(LearningHistory.load(folder / f"{n}")).stages) == n


def observer(folder: Path, n: int) -> None:
    """Live, from memory."""
    from logel.inference.observer import Observer
    from logel.policies.softmax import TabularSoftmax

    live = Observer(TabularSoftmax(3, 2), gamma=0.9, growth=0.1)
    for stage in stages(n):
        found = live.update(stage)
    assert found is not None


def batch(method: str) -> Callable[[Path, int], None]:
    """`infer_reward` from disk."""

    def infer(folder: Path, n: int) -> None:
        from logel.data.history import LearningHistory
        from logel.inference.infer import infer_reward
        from logel.policies.softmax import TabularSoftmax

        history = LearningHistory.load(folder / f"{n}")
        infer_reward(history, TabularSoftmax(3, 2), gamma=0.9, method=method)

    return infer


WORK: dict[str, Callable[[Path, int], None]] = {
    "write": write,
    "recorder": recorder,
    "load": load,
    "inspect": inspect,
    "observer": observer,
    "paper": batch("paper"),
    "mirror": batch("mirror"),
}


def alone(kind: str, folder: Path, n: int) -> None:
    """Do the work in this process, and print what it took as JSON."""
    import torch

    import logel.inference.infer  # noqa: F401 (imports are no part of the work)

    torch.set_num_threads(1)
    WORK[kind](folder, LITTLE)
    shutil.rmtree(folder / "made", ignore_errors=True)
    forget_peak()
    before, start = resident_bytes(), time.process_time()
    WORK[kind](folder, n)
    seconds = time.process_time() - start
    print(json.dumps({"seconds": seconds, "bytes": max(peak_bytes() - before, 0)}))


def measure(n_stages: int, kinds: tuple[str, ...]) -> list[dict[str, Any]]:
    """All kinds of work on all sizes."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="logel-long-life-") as name:
        folder = Path(name)
        sizes = [n_stages // share for share in SHARES]
        write(folder, n_stages)
        (folder / "made").rename(folder / f"{n_stages}")
        for n in (LITTLE, *sizes[:-1]):
            begin(folder / f"{n_stages}", folder / f"{n}", n)
        for kind in kinds:
            for n in sizes:
                took = fresh_process("benchmarks.long_life", "alone", kind, folder, n)
                shutil.rmtree(folder / "made", ignore_errors=True)
                rows.append({"work": kind, "stages": n, **took})
                print(rows[-1], file=sys.stderr, flush=True)
    return rows


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Time per stage and memory against stages, one line per kind of work."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for kind in dict.fromkeys(row["work"] for row in rows):
        own = [row for row in rows if row["work"] == kind]
        n = [row["stages"] for row in own]
        axes[0].plot(n, [1e3 * row["seconds"] / row["stages"] for row in own], "o-", label=kind)
        axes[1].plot(n, [row["bytes"] / 1e6 for row in own], "o-", label=kind)
    axes[0].set(xlabel="stages", ylabel="ms of processor time per stage", yscale="log")
    axes[1].set(xlabel="stages", ylabel="memory beyond that of 60 stages, MB", ylim=(0, None))
    axes[1].legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> int:
    """Measure, write table and figure, print the verdicts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_life")
    parser.add_argument("--out", type=Path, default=Path("docs/results/robustness"))
    parser.add_argument("--stages", type=int, default=10_000)
    parser.add_argument("--only", nargs="*", default=KINDS, choices=KINDS)
    asked = parser.parse_args()
    rows = measure(asked.stages, tuple(asked.only))
    asked.out.mkdir(parents=True, exist_ok=True)
    with (asked.out / "long-life.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    draw(rows, asked.out / "long-life.png")
    checks = []
    for kind in asked.only:
        own = [row for row in rows if row["work"] == kind]
        per_stage = [row["seconds"] / row["stages"] for row in own]
        growth = per_stage[-1] / per_stage[0]
        held = (own[-1]["bytes"] - own[0]["bytes"]) / (own[-1]["stages"] - own[0]["stages"])
        told = (
            f"{1e3 * per_stage[-1]:.2f} ms a stage, {growth:.2f} times; {held:,.0f} bytes a stage"
        )
        most = BYTES_PER_STAGE[kind]
        sound = growth < GROWTH and held < most
        checks.append(Check(kind, told, f"{GROWTH} times; {most:,} bytes", sound))
    return report(f"{asked.stages:,} stages", checks)


if __name__ == "__main__":
    if sys.argv[1:2] == ["alone"]:
        alone(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
    else:
        sys.exit(main())
