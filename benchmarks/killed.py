"""What is killed, and what must be left of it; `benchmarks.kills` counts.

Four kinds of work are killed by
SIGKILL, at moments spread over their whole length:

recorder   PPO with a `HistoryRecorder`: the history holds the first stages of the run that was
           never killed, byte for byte, or there is none yet
record     `logel record gridworld`: the folder is whole, or free to be written again
import     `logel import` of a CSV file: the same
study      a study with two workers; the driver is killed, or one of its workers. It is run again
           until it ends, and its table must be that of a study that was never killed

What the killed left lying about must be gone once the work was done again.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import numpy as np
import psutil

from logel.data.history import LearningHistory
from logel.errors import FormatError
from logel.studies.run.files import write_table
from logel.studies.run.runner import run_tasks
from logel.studies.run.tasks import Task, grid

STAGES = 12
TASKS = grid("killed", {"size": [1, 2, 3]}, seeds=range(10))
# Children come with everything imported, which takes longer than what they do.
SERVER = multiprocessing.get_context("forkserver")
PRELOADED = ["benchmarks.killed", "logel.cli.main", "logel.learners.sb3", "logel.inference.infer"]


# --- the work -----------------------------------------------------------------------------------


def record_training(folder: Path) -> None:
    """PPO in CartPole, every update a stage."""
    import torch
    from stable_baselines3 import PPO

    from logel.learners.sb3 import HistoryRecorder

    torch.set_num_threads(1)
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=64, n_epochs=2, seed=0)
    model.learn(64 * STAGES, callback=HistoryRecorder(folder / "h", "none"))


def command(*words: object) -> None:
    """The command line, quietly."""
    from logel.cli.main import main

    sys.argv = ["logel", *map(str, words)]
    with Path(os.devnull).open("w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
        main()


def record_gridworld(folder: Path) -> None:
    """`logel record`, which reserves its folder and fills it at the end."""
    command("record", "gridworld", folder / "h", "--steps", STAGES, "--episodes", 20)


def import_table(folder: Path) -> None:
    """`logel import`."""
    command("import", folder / "steps.csv", "--out", folder / "h")


def prepare_table(folder: Path) -> None:
    """A table of steps to import."""
    rng = np.random.default_rng(0)
    rows = [
        f"{t},{n},{h},{rng.integers(9)},{rng.integers(2)}"
        for t in range(STAGES)
        for n in range(50)
        for h in range(10)
    ]
    lines = ["stage,episode,time,observation,action", *rows]
    (folder / "steps.csv").write_text("\n".join(lines) + "\n")


def small_task(task: Task) -> list[dict[str, object]]:
    """A task of the study: some milliseconds, and a number."""
    time.sleep(0.01)
    return [{"mean": float(task.rng().normal(size=100).mean()) * task.integer("size")}]


def study(folder: Path) -> None:
    """A study with two workers; it writes its table if nothing failed."""
    run = run_tasks(TASKS, small_task, out=folder, jobs=2)
    if not run.failures:
        write_table(run.rows, folder / "table.csv")


# --- killing ------------------------------------------------------------------------------------


def quietly(work: Callable[[Path], None], folder: Path) -> None:
    """In the child: its own group of processes, and nothing on the screen."""
    os.setsid()
    with suppress(SystemExit):
        work(folder)


def start(work: Callable[[Path], None], folder: Path) -> multiprocessing.process.BaseProcess:
    """The work in a process of its own."""
    process = SERVER.Process(target=quietly, args=(work, folder))
    process.start()
    return process


def prepared(work: Callable[[Path], None], folder: Path) -> Path:
    """A folder in which the work can be done."""
    folder.mkdir()
    if work is import_table:
        prepare_table(folder)
    return folder


def finish(work: Callable[[Path], None], folder: Path) -> None:
    """Do the work, and let nobody kill it."""
    process = start(work, folder)
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"{work.__name__} fails by itself")


def progress(folder: Path) -> int:
    """Files that the work has written so far, finished or not, wherever it writes them."""
    found = [*folder.glob("h/*"), *folder.glob(".h.*.tmp/*"), *folder.glob("tasks/*.json")]
    return len(found)


def wait_until(
    process: multiprocessing.process.BaseProcess, folder: Path, written: int, delay: float
) -> bool:
    """Whether so many files were written, and some time went by, before the work was done."""
    while process.is_alive() and progress(folder) < written:
        time.sleep(0.001)
    process.join(delay)
    return process.is_alive()


def kill_at(work: Callable[[Path], None], folder: Path, rng: np.random.Generator) -> bool:
    """Whether the work was killed, at some moment, before it was done."""
    process = start(work, folder)
    moment = int(rng.integers(STAGES + 2)), float(rng.uniform(0, 0.03))
    alive = wait_until(process, folder, *moment)
    process.kill()
    process.join()
    return alive


def files(folder: Path) -> dict[str, bytes]:
    """Everything below a folder, by path."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def left_over(folder: Path) -> list[str]:
    """Temporary files and folders."""
    return [path.name for path in folder.rglob(".*.tmp")]


def killed_recorders(root: Path, rng: np.random.Generator, kills: int) -> dict[str, int]:
    """Histories of killed trainings are beginnings of the whole one."""
    finish(record_training, prepared(record_training, root / "whole"))
    reference = files(root / "whole" / "h")
    told = {"killed": 0, "empty": 0, "stages": 0, "wrong": 0}
    for n in itertools.count():
        if told["killed"] >= kills:
            return told
        folder = prepared(record_training, root / str(n))
        told["killed"] += kill_at(record_training, folder, rng)
        try:
            history = LearningHistory.load(folder / "h")
        except FormatError:
            told["empty"] += 1
            told["wrong"] += bool(list((folder / "h").glob("stages.jsonl")))
            continue
        names = [f"stage-{t:05d}.safetensors" for t in range(len(history))]
        found = files(folder / "h")
        same = all(found[name] == reference[name] for name in names)
        told["wrong"] += not (same and sum(stage.n_steps for stage in history) == 64 * len(names))
        told["stages"] += len(names)
    return told


def killed_commands(
    work: Callable[[Path], None], root: Path, rng: np.random.Generator, kills: int
) -> dict[str, int]:
    """All of a folder or nothing; the same command then does it, and clears up."""
    finish(work, prepared(work, root / "whole"))
    reference = files(root / "whole" / "h")
    told = {"killed": 0, "empty": 0, "whole": 0, "again": 0, "wrong": 0}
    for n in itertools.count():
        if told["killed"] >= kills:
            return told
        folder = prepared(work, root / str(n))
        told["killed"] += kill_at(work, folder, rng)
        found = files(folder / "h")
        told["whole" if found else "empty"] += 1
        told["wrong"] += found not in ({}, reference)
        if n % 5 == 0 and not found:
            finish(work, folder)
            told["again"] += 1
            told["wrong"] += files(folder / "h") != reference or bool(left_over(folder))
    return told


def killed_studies(root: Path, rng: np.random.Generator, kills: int) -> dict[str, int]:
    """Studies killed again and again, driver or worker, end with the same bytes."""
    finish(study, prepared(study, root / "whole"))
    reference = files(root / "whole")
    told = {"killed": 0, "drivers": 0, "workers": 0, "studies": 0, "wrong": 0}
    while told["killed"] < kills:
        folder = prepared(study, root / str(told["studies"]))
        while not (folder / "table.csv").exists():
            process = start(study, folder)
            # A few tasks further than the last time.
            moment = progress(folder) + int(rng.integers(4)), float(rng.uniform(0, 0.03))
            assert process.pid is not None
            if wait_until(process, folder, *moment) and told["killed"] < kills:
                victim = _a_worker(process.pid) if told["killed"] % 2 else None
                told["workers" if victim else "drivers"] += 1
                told["killed"] += 1
                with suppress(ProcessLookupError):
                    os.kill(victim or process.pid, signal.SIGKILL)
            process.join(120)
            told["wrong"] += process.is_alive()
            process.kill()
            process.join()
        told["studies"] += 1
        found = files(folder)
        told["wrong"] += found != reference or bool(left_over(folder))
    return told


def _a_worker(driver: int) -> int | None:
    """A process that computes for the driver, if there is one yet."""
    with suppress(psutil.Error):
        children = psutil.Process(driver).children(recursive=True)
        words = [(child.pid, " ".join(child.cmdline())) for child in children]
        workers = [pid for pid, line in words if "loky" in line and "tracker" not in line]
        return workers[-1] if workers else None
    return None


def run(kills: int, seed: int, only: Sequence[str] = ()) -> dict[str, dict[str, int]]:
    """All kinds of work, killed so many times each."""
    SERVER.set_forkserver_preload(PRELOADED)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    rng = np.random.default_rng(seed)
    kinds: dict[str, Callable[[Path], dict[str, int]]] = {
        "recorder": lambda root: killed_recorders(root, rng, kills),
        "record": lambda root: killed_commands(record_gridworld, root, rng, kills),
        "import": lambda root: killed_commands(import_table, root, rng, kills),
        "study": lambda root: killed_studies(root, rng, kills),
    }
    told = {}
    for name, kind in kinds.items():
        if not only or name in only:
            with tempfile.TemporaryDirectory(prefix="logel-kills-") as folder:
                told[name] = kind(Path(folder))
                print(name, told[name], file=sys.stderr, flush=True)
    return told
