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
import hashlib
import importlib
import itertools
import json
import logging
import math
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, Literal
from uuid import uuid4

import numpy as np
from joblib.externals.loky import ProcessPoolExecutor

from logel.errors import FormatError, LogelError, MissingExtraError, OptionError

if sys.platform != "win32":
    import fcntl

Scalar = bool | int | float | str | None
Row = dict[str, Scalar]
Backend = Literal["joblib", "ray"]

_RESULT_FORMAT = "logel-task-result/1"
_ERROR_FORMAT = "logel-task-error/1"
# Two tasks per CPU keep a cluster busy; at least this many let a cluster that grows on demand grow.
_RAY_MIN_IN_FLIGHT = 64
# How long Ctrl-C may go unnoticed while no task finishes.
_POLL_SECONDS = 0.1
# Read by the numerical libraries when they load, hence set before a worker starts. With several
# threads a sum may be split differently on another machine, and its last bits then differ.
_ONE_THREAD = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "BLIS_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        "NUMEXPR_NUM_THREADS",
    ),
    "1",
)


@dataclass(frozen=True, eq=False)
class Task:
    """One independent piece of a study; equal tasks have equal keys and equal random numbers.

    Attributes:
        study: Name of the study.
        setting: What is varied, name to bool, int, finite float, str or None. Order is irrelevant.
        seed: Which repetition this is.
    """

    study: str
    setting: Mapping[str, Scalar]
    seed: int

    def __post_init__(self) -> None:
        if not isinstance(self.study, str) or not self.study:
            raise OptionError(f"study must be a non-empty string, not {self.study!r}")
        setting: dict[str, Scalar] = {}
        for name, value in self.setting.items():
            if not isinstance(name, str) or not name or name in ("study", "seed"):
                raise OptionError(
                    f"{name!r} cannot name a setting: use a non-empty string other than "
                    "'study' and 'seed', which are columns of every table already"
                )
            plain = setting[name] = _as_scalar(value, f"setting {name!r}")
            if isinstance(plain, float) and not math.isfinite(plain):
                raise OptionError(f"setting {name!r} must be finite, not {value!r}")
        seed = _as_scalar(self.seed, "seed")
        if type(seed) is not int:
            raise OptionError(f"seed must be an integer, not {self.seed!r}")
        object.__setattr__(self, "setting", MappingProxyType(dict(sorted(setting.items()))))
        object.__setattr__(self, "seed", seed)

    def __reduce__(self) -> tuple[type[Task], tuple[str, dict[str, Scalar], int]]:
        return Task, (self.study, dict(self.setting), self.seed)  # a mapping proxy has no pickle

    def __eq__(self, other: object) -> bool:
        # Through the identity, because Python holds 1 == 1.0 == True while their keys differ.
        return isinstance(other, Task) and _canonical(self.identity) == _canonical(other.identity)

    def __hash__(self) -> int:
        return hash(_canonical(self.identity))

    @property
    def identity(self) -> dict[str, Any]:
        """Study, setting and seed as plain JSON."""
        return {"study": self.study, "setting": dict(self.setting), "seed": self.seed}

    @property
    def key(self) -> str:
        """A file-name-safe name: readable first, then a hash that makes it unique."""
        words = [self.study, *(f"{name}={value}" for name, value in self.setting.items())]
        slug = re.sub(r"[^A-Za-z0-9=._-]+", "_", "-".join([*words, f"seed={self.seed}"]))
        return f"{slug.lstrip('.')[:80]}-{_sha256(self.identity)[:16]}"

    def seed_sequence(self, *, ignoring: Collection[str] = ()) -> np.random.SeedSequence:
        """Derive the task's own seed from what it is, so that order and workers cannot matter.

        Args:
            ignoring: Settings left out of the derivation. Tasks that differ only in these draw the
                same numbers, which makes comparisons between them paired (say, two methods on
                the same learner).

        Returns:
            A seed sequence independent of every other task's; `spawn` it for several streams.
        """
        unknown = sorted(set(ignoring) - set(self.setting))
        if unknown:
            raise OptionError(f"cannot ignore {unknown}: the settings are {sorted(self.setting)}")
        kept = {name: value for name, value in self.setting.items() if name not in ignoring}
        return np.random.SeedSequence(int(_sha256({**self.identity, "setting": kept}), 16))

    def rng(self, *, ignoring: Collection[str] = ()) -> np.random.Generator:
        """Return a fresh generator seeded by `seed_sequence`; two calls give the same stream."""
        return np.random.default_rng(self.seed_sequence(ignoring=ignoring))


TaskFunction = Callable[[Task], Iterable[Mapping[str, object]]]


@dataclass(frozen=True)
class Failure:
    """A task that raised, or whose worker died; it is tried again by the next run.

    Attributes:
        task: The task that failed.
        error: Type and message on one line.
        traceback: The whole traceback, as Python prints it.
    """

    task: Task
    error: str
    traceback: str


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
    """

    rows: tuple[Row, ...]
    failures: tuple[Failure, ...]
    computed: int
    reused: int
    damaged: int
    folder: Path

    @property
    def complete(self) -> bool:
        """Whether every task has its result."""
        return not self.failures

    def summary(self) -> str:
        """Say in words what happened; with failures, which and where their tracebacks are."""
        total = self.computed + self.reused + len(self.failures)
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


def grid(
    study: str, settings: Mapping[str, Iterable[Scalar]], *, seeds: Iterable[int]
) -> list[Task]:
    """Return the tasks of a full grid: every combination of the settings, every seed."""
    values = [list(choices) for choices in settings.values()]
    seeds = list(seeds)
    return [
        Task(study, dict(zip(settings, combination, strict=True)), seed)
        for combination in itertools.product(*values)
        for seed in seeds
    ]


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
        config: What else determines the results (JSON types, possibly nested), such as
            `dataclasses.asdict` of the study's configuration and a version. It is stored in every
            result file, and results made with another config or function are refused.
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
    if jobs < 1:
        raise OptionError(f"jobs must be at least 1, not {jobs}")
    if backend not in ("joblib", "ray"):
        raise OptionError(f"backend must be 'joblib' or 'ray', not {backend!r}")
    if address is not None and backend != "ray":
        raise OptionError(f"address {address!r} needs backend='ray'; backend {backend!r} has none")
    ordered = _sorted_tasks(tasks)
    made_by = _made_by(function, config)
    folder = out / "tasks"
    folder.mkdir(parents=True, exist_ok=True)
    with _exclusive(folder):
        for leftover in folder.glob(".*.tmp"):
            leftover.unlink()
        results = {task: _load_result(folder, task, made_by=made_by) for task in ordered}
        pending = [task for task in ordered if results[task] is None]
        damaged = sum(_result_path(folder, task).exists() for task in pending)
        failures: dict[Task, Failure] = {}
        compute = _loky_outcomes if backend == "joblib" else _ray_outcomes
        try:
            with (
                _deferred_interrupt() as interrupted,
                contextlib.closing(
                    compute(pending, made_by["function"], jobs=jobs, address=address)
                ) as outcomes,
                _progress_bar(len(ordered), done=len(ordered) - len(pending), show=progress) as bar,
            ):
                for news in outcomes:
                    if news is not None:
                        task, outcome = news
                        _save_outcome(folder, task, outcome=outcome, made_by=made_by)
                        if isinstance(outcome, Failure):
                            failures[task] = outcome
                        else:
                            results[task] = outcome
                        bar(len(failures))
                    if interrupted():
                        raise KeyboardInterrupt
        except KeyboardInterrupt:
            done = sum(rows is not None for rows in results.values())
            message = (
                f"Stopped: {done} of {len(ordered)} tasks are done and kept in {folder}. "
                "Run the same command again to continue."
            )
            if progress:
                print(message, file=sys.stderr)
            raise KeyboardInterrupt(message) from None
    return StudyRun(
        rows=tuple(_tidy(results)),
        failures=tuple(failures[task] for task in ordered if task in failures),
        computed=len(pending) - len(failures),
        reused=len(ordered) - len(pending),
        damaged=damaged,
        folder=folder,
    )


def collect(
    tasks: Iterable[Task],
    function: TaskFunction,
    *,
    out: Path,
    config: Mapping[str, object] | None = None,
    allow_missing: bool = False,
) -> list[Row]:
    """Read the rows of a study that has run, without computing anything.

    Args:
        tasks: The study's tasks, in any order.
        function: The function that made the results.
        out: Folder of the study.
        config: The config the results were made with.
        allow_missing: Return the rows there are instead of raising when a task has no result.

    Returns:
        Tidy rows sorted by task, the same as `StudyRun.rows`.

    Raises:
        FormatError: A result is missing, damaged, or made with another function or config.
    """
    made_by = _made_by(function, config)
    folder = out / "tasks"
    results = {task: _load_result(folder, task, made_by=made_by) for task in _sorted_tasks(tasks)}
    missing = sum(rows is None for rows in results.values())
    if missing and not allow_missing:
        raise FormatError(
            f"{missing} of {len(results)} tasks have no readable result in {folder}; "
            "run the study again to compute them"
        )
    return list(_tidy(results))


def write_table(rows: Iterable[Mapping[str, object]], path: Path) -> None:
    """Write rows as CSV, atomically; equal rows give equal bytes.

    Columns appear in the order in which the rows first name them. Floats are written with as many
    digits as it takes to read the same number back, None as an empty cell, "" as two quotes.

    Args:
        rows: Records of bool, int, float, str or None.
        path: File to write; replaced when it exists.
    """
    records = [dict(row) for row in rows]
    columns = list(dict.fromkeys(name for record in records for name in record))
    lines = [",".join(_cell(name) for name in columns)] if columns else []
    for record in records:
        line = ",".join(_cell(_as_scalar(record.get(n), f"column {n!r}")) for n in columns)
        lines.append(line or '""')  # readers skip a blank line, and with it a lone None
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_atomically(path, "".join(f"{line}\n" for line in lines))


# --- What runs in the workers -----------------------------------------------------------------


def _execute(reference: str, task: Task) -> list[Row] | Failure:
    """Run one task in a worker; an exception comes back as data, with its traceback."""
    try:
        function = _resolve(reference)
        torch = sys.modules.get("torch")  # imported by the study or not at all
        if torch is not None:
            torch.set_num_threads(1)
        rows: list[Row] = []
        for index, record in enumerate(function(task)):
            taken = [name for name in record if name in task.setting or name in ("study", "seed")]
            if taken:
                raise OptionError(f"row {index}: column {taken[0]!r} is the task's; rename it")
            row = {n: _as_scalar(v, f"row {index}, column {n!r}") for n, v in record.items()}
            rows.append(row)
        return rows
    except (Exception, SystemExit) as error:
        return _failure(task, error)


def _failure(task: Task, error: BaseException) -> Failure:
    one_line = " ".join("".join(traceback.format_exception_only(error)).split())
    return Failure(task, one_line, "".join(traceback.format_exception(error)))


def _resolve(reference: str) -> TaskFunction:
    module, _, name = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    function: TaskFunction = found
    return function


# --- Backends: each yields (task, rows or failure) as tasks finish, and None now and then --------

_Outcomes = Generator[tuple[Task, list[Row] | Failure] | None, None, None]


@contextlib.contextmanager
def _deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether Ctrl-C was pressed, which no longer raises by itself.

    Raised inside `concurrent.futures.wait`, a KeyboardInterrupt can leave a lock taken that the
    pool's threads need, and the driver then waits for them for ever (seen once in 30 stops). A
    second Ctrl-C does raise at once.
    """
    presses: list[int] = []

    def press(number: int, frame: FrameType | None) -> None:
        presses.append(number)
        if len(presses) > 1:
            signal.default_int_handler(number, frame)

    # Signals reach the main thread only, and a caller's own handler is the caller's business.
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, press)
    try:
        yield lambda: bool(presses)
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _start_worker(driver: int) -> None:
    """Prepare a loky worker to follow its driver: it ignores Ctrl-C and does not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver gets it too, and decides

    def follow() -> None:
        while os.getppid() == driver:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


@contextlib.contextmanager
def _blocked_interrupt() -> Iterator[None]:
    """Let a process started meanwhile inherit a blocked Ctrl-C, until it ignores it by itself."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _loky_outcomes(
    tasks: Sequence[Task], reference: str, *, jobs: int, address: str | None
) -> _Outcomes:
    """Compute on `jobs` processes of this machine.

    Each process is a pool of its own: when one dies (out of memory, a crash in native code), the
    task to blame is known and the other processes are not disturbed. joblib.Parallel would lose
    the whole pool, and would run a single job in this process, whose threads it cannot limit.
    """
    waiting = iter(tasks)
    running: dict[Future[list[Row] | Failure], tuple[Any, Task]] = {}
    pools: list[Any] = []

    def submit(pool: Any | None) -> None:
        task = next(waiting, None)
        if task is None:
            return
        if pool is None:
            pool = ProcessPoolExecutor(
                1, env=_ONE_THREAD, initializer=_start_worker, initargs=(os.getpid(),)
            )
            pools.append(pool)
        with _blocked_interrupt():
            running[pool.submit(_execute, reference, task)] = (pool, task)

    try:
        for _ in range(jobs):
            submit(None)
        while running:
            done, _ = wait(running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
            if not done:
                yield None
            for future in done:
                pool, task = running.pop(future)
                try:
                    outcome = future.result()
                except BrokenExecutor as error:
                    outcome = _failure(task, error)
                    pool.shutdown(kill_workers=True)
                    pools.remove(pool)
                    pool = None
                submit(pool)  # before the driver writes, so that the worker does not wait for it
                yield task, outcome
    finally:
        # loky 3.6 fails when it is stopped before its thread has taken up the last call.
        deadline = time.monotonic() + 5.0
        while any(not (f.running() or f.done()) for f in running) and time.monotonic() < deadline:
            time.sleep(0.001)
        for pool in pools:
            pool.shutdown(kill_workers=bool(running))


def _ray_outcomes(
    tasks: Sequence[Task], reference: str, *, jobs: int, address: str | None
) -> _Outcomes:
    """Compute on a Ray cluster; rows travel back, since its nodes may not share our disk."""
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise MissingExtraError("ray", "ray") from None
    if not tasks:
        return
    started_here = not ray.is_initialized()
    if started_here:
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        # A study sends nothing home unless the user says so.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        local = {"num_cpus": jobs, "include_dashboard": False} if address == "local" else {}
        ray.init(
            address=address,
            runtime_env={"env_vars": _ONE_THREAD},
            logging_level=logging.ERROR,
            log_to_driver=False,
            **local,
        )
    in_flight: dict[Any, Task] = {}
    try:
        # One more try when a node is lost; a task that keeps killing its worker is a failure.
        remote = ray.remote(num_cpus=1, max_retries=1)(_execute)
        limit = max(_RAY_MIN_IN_FLIGHT, 2 * int(ray.cluster_resources().get("CPU", 1)))
        waiting = iter(tasks)
        while True:
            for task in itertools.islice(waiting, limit - len(in_flight)):
                in_flight[remote.remote(reference, task)] = task
            if not in_flight:
                break
            done, _ = ray.wait(list(in_flight), num_returns=1, timeout=_POLL_SECONDS)
            if not done:
                yield None
                continue
            (ready,) = done
            task = in_flight.pop(ready)
            try:
                outcome: list[Row] | Failure = ray.get(ready)
            except ray.exceptions.RayError as error:
                outcome = _failure(task, error)
            yield task, outcome
    finally:
        for handle in in_flight:
            ray.cancel(handle, force=True)
        if started_here:
            ray.shutdown()


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
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    # Tasks may take many minutes: rich's default speed estimate forgets after 30 seconds.
    with Progress(
        *columns,
        console=console,
        disable=not (show and console.is_terminal),
        speed_estimate_period=24 * 3600.0,
    ) as bar:
        line = bar.add_task("tasks", total=total, completed=done)

        def advance(failed: int) -> None:
            bar.update(line, advance=1, description=f"tasks ({failed} failed)" if failed else None)

        yield advance


# --- Files --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Hold the folder for this process; the kernel lets go of it even after SIGKILL."""
    if sys.platform == "win32":
        yield
        return
    with (folder / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LogelError(
                f"another process is running a study in {folder}; wait for it or choose "
                "another folder"
            ) from None
        yield


def _made_by(function: TaskFunction, config: Mapping[str, object] | None) -> dict[str, Any]:
    """Return what determines the results besides the task, as plain JSON."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    try:
        importable = module != "__main__" and _resolve(f"{module}:{name}") is function
    except (ImportError, AttributeError):
        importable = False
    if not importable:
        raise OptionError(
            f"{function!r} cannot be imported by a worker: define it with `def` at the top level "
            "of a module other than the script being run"
        )
    try:
        plain = json.loads(_canonical(config or {}))
    except (TypeError, ValueError) as error:
        raise OptionError(f"config must consist of finite JSON values: {error}") from None
    return {"function": f"{module}:{name}", "config": plain}


def _result_path(folder: Path, task: Task) -> Path:
    return folder / f"{task.key}.json"


def _load_result(folder: Path, task: Task, *, made_by: dict[str, Any]) -> list[Row] | None:
    """Return the rows of a finished task, or None when there is no intact result."""
    path = _result_path(folder, task)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        checksum = content.pop("sha256")
        intact = checksum == _sha256(content, allow_nan=True)
    except (FileNotFoundError, ValueError, KeyError, AttributeError, TypeError):
        return None
    if not intact or content.get("task") != task.identity:
        return None
    if content["format"] != _RESULT_FORMAT:
        raise FormatError(
            f"{path} has format {content['format']!r}, not {_RESULT_FORMAT!r}: it was written by "
            "another version of logel; choose another folder"
        )
    if _canonical(content["made_by"]) != _canonical(made_by):  # Python holds 1 == True
        raise FormatError(
            f"{path} was made with {_difference(content['made_by'], made_by)}; choose another "
            "folder, or delete this one to compute everything again"
        )
    rows: list[Row] = content["rows"]
    return rows


def _difference(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    if theirs["function"] != ours["function"]:
        return f"function {theirs['function']}, not {ours['function']}"
    old, new = theirs["config"], ours["config"]
    parts = [
        f"{name}={json.dumps(old[name]) if name in old else '(absent)'}, not "
        f"{json.dumps(new[name]) if name in new else '(absent)'}"
        for name in sorted({*old, *new})
        if _canonical(old.get(name)) != _canonical(new.get(name)) or (name in old) != (name in new)
    ]
    return "another config: " + "; ".join(parts)


def _save_outcome(
    folder: Path, task: Task, *, outcome: list[Row] | Failure, made_by: dict[str, Any]
) -> None:
    """Write the task's result, or its error, which the next success removes."""
    error_path = folder / f"{task.key}.error.json"
    if isinstance(outcome, Failure):
        content: dict[str, Any] = {
            "format": _ERROR_FORMAT,
            "task": task.identity,
            "made_by": made_by,
            "error": outcome.error,
            "traceback": outcome.traceback.splitlines(),
        }
        _write_atomically(error_path, json.dumps(content, indent=1) + "\n")
        return
    content = {
        "format": _RESULT_FORMAT,
        "task": task.identity,
        "made_by": made_by,
        "rows": outcome,
    }
    content["sha256"] = _sha256(content, allow_nan=True)
    _write_atomically(_result_path(folder, task), json.dumps(content) + "\n")
    error_path.unlink(missing_ok=True)


def _write_atomically(path: Path, text: str) -> None:
    """Replace `path` in one step: a reader, or a restart, finds all of it or none.

    Nothing is forced to the disk: after a power cut a result may be damaged, but its checksum
    tells, and that task is computed again.
    """
    temporary = path.with_name(f".{uuid4().hex}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


# --- Values -------------------------------------------------------------------------------------


def _as_scalar(value: object, what: str) -> Scalar:
    """Return a plain Python scalar, or say which value is not one."""
    plain = value.item() if isinstance(value, np.generic) else value
    if plain is None or isinstance(plain, bool):
        return plain
    # Subclasses (an enum of strings, say) print otherwise than what a file gives back: strip them.
    if isinstance(plain, int):
        return int.__int__(plain)
    if isinstance(plain, float):
        return float.__float__(plain)
    if isinstance(plain, str):
        return str.__str__(plain)
    raise OptionError(f"{what} must be a bool, int, float, str or None, not {type(value).__name__}")


def _canonical(content: object, *, allow_nan: bool = False) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=allow_nan)


def _sha256(content: object, *, allow_nan: bool = False) -> str:
    return hashlib.sha256(_canonical(content, allow_nan=allow_nan).encode()).hexdigest()


def _cell(value: Scalar) -> str:
    """Write one CSV cell; csv.writer leaves a lone carriage return unquoted, and misreads it."""
    if value is None:
        return ""
    text = str(value)
    if text and not any(character in text for character in ',"\r\n'):
        return text
    return '"' + text.replace('"', '""') + '"'


def _sorted_tasks(tasks: Iterable[Task]) -> list[Task]:
    """Sort tasks by their values (2 before 10), whatever order they came in; refuse duplicates."""
    tasks = list(tasks)
    repeated = [key for key, count in Counter(task.key for task in tasks).items() if count > 1]
    if repeated:
        raise OptionError(f"task {repeated[0]} is listed more than once; tasks must be distinct")
    return sorted(tasks, key=_sort_key)


def _sort_key(task: Task) -> tuple[Any, ...]:
    # Values of different types do not compare, so each is preceded by a rank for its type.
    rank = {type(None): 0, bool: 1, int: 2, float: 2, str: 3}
    values = tuple(
        (name, rank[type(value)], 0 if value is None else value)
        for name, value in task.setting.items()
    )
    return task.study, values, task.seed, task.key


def _tidy(results: Mapping[Task, list[Row] | None]) -> Iterator[Row]:
    """Yield the rows task by task, each with the task's own columns in front."""
    for task, rows in results.items():
        for row in rows or []:
            yield {"study": task.study, **task.setting, "seed": task.seed, **row}
