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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from logel.errors import FormatError, OptionError
from logel.studies.run.backends import BACKENDS, Backend, Outcomes, deferred_interrupt
from logel.studies.run.files import exclusive, load_result, provenance, result_path, save_outcome
from logel.studies.run.tasks import Failure, Row, Task, TaskFunction, sort_key, sorted_tasks


@dataclass(frozen=True)
class StudyRun:
    """What `run_tasks` did and found.

    Attributes:
        rows: Tidy records of all successful tasks, sorted by task: study, setting, seed, results.
        failures: The tasks that failed this time, sorted by task.
        computed: How many tasks were computed successfully now.
        reused: How many results were found finished.
        damaged: How many result files were unreadable and therefore computed again.
        folder: Where the result and error files are.
        missing: How many tasks nobody has tried to compute, see `collect`.
    """

    rows: tuple[Row, ...]
    failures: tuple[Failure, ...]
    computed: int
    reused: int
    damaged: int
    folder: Path
    missing: int = 0

    @property
    def complete(self) -> bool:
        """Whether every task has its result."""
        return not self.failures and not self.missing

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
        if self.damaged:
            lines.append(f"{self.damaged} damaged result files were computed again.")
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
    backend: Backend = "joblib",
    address: str | None = None,
    progress: bool = True,
) -> StudyRun:
    """Compute the tasks that have no result yet, in parallel, and return the rows of all.

    Every finished task is a file of its own under `out/tasks`, so a run that was stopped, even by
    SIGKILL, continues where it was. A task that raises is a `Failure`; the others go on.

    Args:
        tasks: The study's tasks, in any order, without duplicates.
        function: A function at the top level of an importable module; it receives a task and
            returns rows, mappings from column name to bool, int, float, str or None. Everything
            it depends on must be in the task, in `config`, or constant.
        out: Folder of the study; created when missing.
        config: What else determines the results (JSON types, possibly nested), such as a version.
            Results made with another config or function are refused.
        jobs: Number of worker processes, each with one thread. A Ray cluster given by `address`
            uses all its CPUs instead.
        backend: "joblib" (loky processes on this machine) or "ray".
        address: Ray cluster to connect to. Without it (and without RAY_ADDRESS in the environment)
            a local one is started, and stopped at the end.
        progress: Show a progress bar when standard error is a terminal.

    Returns:
        Rows, failures and counts. It does not depend on `jobs`, `backend` or the order of `tasks`.

    Raises:
        OptionError: An argument makes no sense.
        FormatError: The folder holds results made with another function or config.
        MissingExtraError: Ray is not installed.
        LogelError: Another process is running a study in this folder.
        KeyboardInterrupt: On Ctrl-C, with a message that says how much is done.
    """
    _check_workers(jobs, backend, address)
    ordered = sorted_tasks(tasks)
    made_by = provenance(function, config)
    folder = out / "tasks"
    folder.mkdir(parents=True, exist_ok=True)
    failures: list[Failure] = []
    with exclusive(folder):
        for leftover in folder.glob(".*.tmp"):
            leftover.unlink()
        results = {task: load_result(folder, task, made_by=made_by) for task in ordered}
        pending = [task for task, rows in results.items() if rows is None]
        reused = len(results) - len(pending)
        damaged = sum(result_path(folder, task).exists() for task in pending)
        try:
            with (
                deferred_interrupt() as interrupted,
                contextlib.closing(
                    BACKENDS[backend](pending, made_by["function"], jobs=jobs, address=address)
                ) as outcomes,
                _progress_bar(len(results), done=reused, show=progress) as bar,
            ):
                for task, outcome in _until(interrupted, outcomes):
                    save_outcome(folder, task, outcome=outcome, made_by=made_by)
                    if isinstance(outcome, Failure):
                        failures.append(outcome)
                    else:
                        results[task] = outcome
                    bar(len(failures))
        except KeyboardInterrupt:
            raise _stopped(results, folder) from None
    return StudyRun(
        rows=tuple(tidy_rows(results)),
        failures=tuple(sorted(failures, key=lambda failure: sort_key(failure.task))),
        computed=len(pending) - len(failures),
        reused=reused,
        damaged=damaged,
        folder=folder,
    )


def _check_workers(jobs: int, backend: str, address: str | None) -> None:
    if jobs < 1:
        raise OptionError(f"jobs must be at least 1, not {jobs}")
    if backend not in BACKENDS:
        raise OptionError(f"backend must be 'joblib' or 'ray', not {backend!r}")
    if address is not None and backend != "ray":
        raise OptionError(f"address {address!r} needs backend='ray'; backend {backend!r} has none")


def _until(
    interrupted: Callable[[], bool], outcomes: Outcomes
) -> Iterator[tuple[Task, list[Row] | Failure]]:
    """What comes back, task by task; after Ctrl-C only what the caller has in hand is kept."""
    for news in outcomes:
        if news is not None:
            yield news
        if interrupted():
            raise KeyboardInterrupt


def _stopped(results: Mapping[Task, list[Row] | None], folder: Path) -> KeyboardInterrupt:
    done = sum(rows is not None for rows in results.values())
    return KeyboardInterrupt(
        f"Stopped: {done} of {len(results)} tasks are done and kept in {folder}. "
        "Run the same command again to continue."
    )


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

    Raises:
        FormatError: No task has a result, or one is made with another function or config.
    """
    made_by = provenance(function, config)
    folder = out / "tasks"
    results = {task: load_result(folder, task, made_by=made_by) for task in sorted_tasks(tasks)}
    missing = sum(rows is None for rows in results.values())
    if missing == len(results):
        raise FormatError(f"none of the {missing} tasks has a readable result in {folder}")
    return StudyRun(
        rows=tuple(tidy_rows(results)),
        failures=(),
        computed=0,
        reused=len(results) - missing,
        damaged=0,
        folder=folder,
        missing=missing,
    )


@contextlib.contextmanager
def _progress_bar(total: int, *, done: int, show: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function that moves the bar by one task and is told how many have failed."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    # Tasks may take many minutes: rich's default speed estimate forgets after 30 seconds.
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        disable=not (show and console.is_terminal),
        speed_estimate_period=24 * 3600.0,
    ) as bar:
        line = bar.add_task("tasks", total=total, completed=done)

        def advance(failed: int) -> None:
            bar.update(line, advance=1, description=f"tasks ({failed} failed)" if failed else None)

        yield advance


def tidy_rows(results: Mapping[Task, list[Row] | None]) -> Iterator[Row]:
    """Yield the rows task by task, each with the task's own columns in front."""
    for task, rows in results.items():
        for row in rows or []:
            yield {"study": task.study, **task.setting, "seed": task.seed, **row}
