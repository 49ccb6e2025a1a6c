"""Run the independent tasks of a study: in parallel, resumable, with reproducible tables.

A study is a list of `Task`s (study x setting x seed) and one function that turns a task into rows:

    def evaluate(task: Task) -> list[dict[str, object]]:
        rng = task.rng()
        return [{"error": float(rng.normal()) / math.sqrt(task.setting["batch"])}]

    tasks = grid("demo", {"batch": [5, 10]}, seeds=range(20))
    run = run_tasks(tasks, evaluate, out=Path("runs/demo"))
    write_table(run.rows, Path("runs/demo/table.csv"))

Three rules make the table independent of workers, order and interruptions. Workers only compute;
the driver alone writes, one file per task, by an atomic rename. A task draws its random numbers
from a seed derived from its own identity, never from its position. Rows are collected by sorting
the tasks, not by order of completion.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logel.errors import FormatError, OptionError
from logel.interrupts import deferred_interrupt
from logel.studies.run.backends import BACKENDS, Outcomes, outcomes
from logel.studies.run.files import exclusive, load_result, save_outcome
from logel.studies.run.tasks import Failure, Row, Task, TaskFunction, sorted_tasks
from logel.types import Progress

Results = dict[Task, list[Row] | Failure | None]


@dataclass(frozen=True)
class StudyRun:
    """What `run_tasks` did and found; rows and failures are sorted by task.

    Rows have study, setting, seed and results of all successful tasks. Nobody has tried to compute
    those that are `missing`, see `collect`.
    """

    rows: tuple[Row, ...]
    failures: tuple[Failure, ...]
    computed: int
    reused: int
    folder: Path
    missing: int

    @classmethod
    def of(cls, results: Results, reused: int, folder: Path) -> StudyRun:
        """Rows have the task's own columns in front."""
        failures = tuple(found for found in results.values() if isinstance(found, Failure))
        done = {task: found for task, found in results.items() if isinstance(found, list)}
        missing = len(results) - len(failures) - len(done)
        rows = (
            {"study": task.study, **task.setting, "seed": task.seed, **row}
            for task, found in done.items()
            for row in found
        )
        return cls(tuple(rows), failures, len(done) - reused, reused, folder, missing)

    def summary(self) -> str:
        """Say in words what happened; with failures, which and where their tracebacks are."""
        total = self.computed + self.reused + len(self.failures) + self.missing
        if self.missing:
            return (
                f"{self.reused} of {total} tasks are finished, and only they are counted here. "
                "Run the study again to compute the others."
            )
        lines = [
            f"{total} tasks: {self.computed} computed, {self.reused} reused, "
            f"{len(self.failures)} failed."
        ]
        for failure in self.failures[:5]:
            lines.append(f"  {failure.task.key}: {failure.error}")
        if len(self.failures) > 5:
            lines.append(f"  and {len(self.failures) - 5} more")
        if self.failures:
            lines.append(
                f"Tracebacks: {self.folder}/*.error.json. "
                "Run the same command again to retry the failed tasks only."
            )
        return "\n".join(lines)


def run_tasks(
    tasks: Iterable[Task],
    function: TaskFunction,
    *,
    out: Path,
    config: Mapping[str, object] | None = None,
    jobs: int = 2,
    backend: str = "joblib",
    address: str | None = None,
    progress: Progress | None = None,
) -> StudyRun:
    """Compute the tasks that have no result yet, in parallel, and return the rows of all.

    Every finished task is a file of its own under `out/tasks`, so a run that was stopped, even by
    SIGKILL, continues where it was. A task that raises is a `Failure`; the others go on. Ctrl-C
    raises with a message that says how much is done.

    Args:
        tasks: The study's tasks, in any order, without duplicates.
        function: A function at the top level of an importable module. Everything it depends on
            must be in the task, in `config`, or constant.
        out: Folder of the study; created when missing.
        config: What else determines the results (JSON types), such as a version. Results made with
            another config or function are refused.
        jobs: Number of worker processes, each with one thread. A Ray cluster given by `address`
            uses all its CPUs instead.
        backend: "joblib" (loky processes on this machine) or "ray".
        address: Ray cluster to connect to. Without it (and without RAY_ADDRESS in the environment)
            a local one is started, and stopped at the end.
        progress: Called after every task.
    """
    _check_workers(jobs, backend, address)
    ordered, made_by, folder = sorted_tasks(tasks), _provenance(function, config), out / "tasks"
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder):
        # Nobody else writes here while we hold the folder.
        for leftover in folder.glob(".*.tmp"):
            with contextlib.suppress(OSError):
                leftover.unlink()
        results: Results = {t: load_result(folder, t, made_by=made_by) for t in ordered}
        pending = [task for task, rows in results.items() if rows is None]
        reused = len(results) - len(pending)

        def keep(task: Task, outcome: list[Row] | Failure) -> None:
            save_outcome(folder, task, outcome=outcome, made_by=made_by)
            results[task] = outcome
            if progress is not None:
                progress("tasks", len(results) - list(results.values()).count(None), len(results))

        if progress is not None:
            progress("tasks", reused, len(results))
        try:
            _follow(outcomes(pending, function, jobs=jobs, backend=backend, address=address), keep)
        except KeyboardInterrupt:
            done = sum(isinstance(rows, list) for rows in results.values())
            raise KeyboardInterrupt(
                f"Stopped: {done} of {len(results)} tasks are done and kept in {folder}. "
                "Run the same command again to continue."
            ) from None
    return StudyRun.of(results, reused, folder)


def _follow(outcomes: Outcomes, keep: Callable[[Task, list[Row] | Failure], None]) -> None:
    """Keep what comes back, task by task; after Ctrl-C only what is in hand."""
    with deferred_interrupt() as interrupted, contextlib.closing(outcomes):
        for news in outcomes:
            if news is not None:
                keep(*news)
            if interrupted():
                raise KeyboardInterrupt


def _check_workers(jobs: int, backend: str, address: str | None) -> None:
    if jobs < 1:
        raise OptionError(f"jobs must be at least 1, not {jobs}")
    if backend not in BACKENDS:
        raise OptionError(f"backend must be joblib or ray, but is {backend!r}")
    if address is not None and backend != "ray":
        raise OptionError(f"address {address!r} needs backend='ray'; backend {backend!r} has none")


def _provenance(function: TaskFunction, config: Mapping[str, object] | None) -> dict[str, Any]:
    """What determines the results besides the task, as plain JSON."""
    name = f"{function.__module__}:{function.__qualname__}"
    return {"function": name, "config": dict(config or {})}


def collect(
    tasks: Iterable[Task],
    function: TaskFunction,
    *,
    out: Path,
    config: Mapping[str, object] | None = None,
) -> StudyRun:
    """Read what a study has found so far, without computing anything, even while it runs.

    The arguments are those of `run_tasks`, and so is the answer if the study had no other tasks
    than those with a readable result; the others are `missing`.
    """
    made_by, folder = _provenance(function, config), out / "tasks"
    results: Results = {t: load_result(folder, t, made_by=made_by) for t in sorted_tasks(tasks)}
    finished = len(results) - list(results.values()).count(None)
    if finished == 0:
        raise FormatError(f"none of the {len(results)} tasks has a readable result in {folder}")
    return StudyRun.of(results, finished, folder)
