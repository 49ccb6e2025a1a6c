"""Where tasks run: loky processes on this machine, or a Ray cluster.

Each backend yields (task, rows or failure) as tasks finish, and None now and then so that its
caller can look up.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from types import FrameType
from typing import Any

from joblib.externals.loky import ProcessPoolExecutor

from logel.data.limits import optional
from logel.errors import OptionError
from logel.studies.run.tasks import Failure, Row, Task, TaskFunction, as_scalar
from logel.threads import ONE_THREAD, limited_threads

# Two tasks per CPU keep a cluster busy; at least this many let a cluster that grows on demand grow.
_RAY_MIN_IN_FLIGHT = 64
# How long Ctrl-C may go unnoticed while no task finishes.
_POLL_SECONDS = 0.1
Outcomes = Generator[tuple[Task, list[Row] | Failure] | None, None, None]
_Running = Future[list[Row] | Failure]


def _execute(function: TaskFunction, task: Task) -> list[Row] | Failure:
    """Run one task in a worker; an exception comes back as data, with its traceback."""
    try:
        rows: list[Row] = []
        # Sums split over threads may differ in their last bits on another machine.
        with limited_threads(1):
            for index, record in enumerate(function(task)):
                taken = [n for n in record if n in task.setting or n in ("study", "seed")]
                if taken:
                    raise OptionError(f"row {index}: column {taken[0]!r} is the task's; rename it")
                row = {n: as_scalar(v, f"row {index}, column {n!r}") for n, v in record.items()}
                rows.append(row)
        return rows
    except (Exception, SystemExit) as error:
        return _failure(task, error)


def _failure(task: Task, error: BaseException) -> Failure:
    one_line = " ".join("".join(traceback.format_exception_only(error)).split())
    return Failure(task, one_line, "".join(traceback.format_exception(error)))


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
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
        # Orphans get another parent, but nobody tells them.
        while os.getppid() == driver:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


@contextlib.contextmanager
def _blocked_interrupt() -> Iterator[None]:
    """Let a process started meanwhile inherit a blocked Ctrl-C, until it ignores it by itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def loky_outcomes(
    tasks: Sequence[Task], function: TaskFunction, *, jobs: int, address: str | None
) -> Outcomes:
    """Compute on `jobs` processes of this machine.

    Each process is a pool of its own: when one dies (out of memory, a crash in native code), the
    task to blame is known and the other processes are not disturbed. joblib.Parallel would lose
    the whole pool, and would run a single job in this process, whose threads it cannot limit.
    """
    waiting = iter(tasks)
    running: dict[_Running, tuple[Any, Task]] = {}
    pools: list[Any] = []

    def submit(pool: Any | None) -> None:
        task = next(waiting, None)
        if task is None:
            return
        if pool is None:
            pool = ProcessPoolExecutor(
                1, env=ONE_THREAD, initializer=_start_worker, initargs=(os.getpid(),)
            )
            pools.append(pool)
        with _blocked_interrupt():
            running[pool.submit(_execute, function, task)] = (pool, task)

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
        _stop(pools, running)


def _stop(pools: list[Any], running: Collection[_Running]) -> None:
    # loky 3.6 fails when it is stopped before its thread has taken up the last call.
    deadline = time.monotonic() + 5.0
    while any(not (f.running() or f.done()) for f in running) and time.monotonic() < deadline:
        time.sleep(0.001)
    for pool in pools:
        pool.shutdown(kill_workers=bool(running))


def ray_outcomes(
    tasks: Sequence[Task], function: TaskFunction, *, jobs: int, address: str | None
) -> Outcomes:
    """Compute on a Ray cluster; rows travel back, since its nodes may not share our disk."""
    ray = optional("ray", "ray")
    if not tasks:
        return
    in_flight: dict[Any, Task] = {}
    waiting = iter(tasks)
    with _ray_cluster(ray, jobs=jobs, address=address):
        # One more try when a node is lost; a task that keeps killing its worker is a failure.
        remote = ray.remote(num_cpus=1, max_retries=1)(_execute)
        limit = max(_RAY_MIN_IN_FLIGHT, 2 * int(ray.cluster_resources().get("CPU", 1)))
        try:
            while True:
                for task in itertools.islice(waiting, limit - len(in_flight)):
                    in_flight[remote.remote(function, task)] = task
                if not in_flight:
                    break
                done, _ = ray.wait(list(in_flight), num_returns=1, timeout=_POLL_SECONDS)
                if not done:
                    yield None
                for ready in done:
                    task = in_flight.pop(ready)
                    try:
                        yield task, ray.get(ready)
                    except ray.exceptions.RayError as error:
                        yield task, _failure(task, error)
        finally:
            for handle in in_flight:
                ray.cancel(handle, force=True)


@contextlib.contextmanager
def _ray_cluster(ray: Any, *, jobs: int, address: str | None) -> Iterator[None]:
    """Connect to a cluster, or start one; leave alone what the caller has connected to."""
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    # A study sends nothing home unless the user says so.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    local = {"num_cpus": jobs, "include_dashboard": False} if address == "local" else {}
    ray.init(
        address=address,
        runtime_env={"env_vars": ONE_THREAD},
        logging_level=logging.ERROR,
        log_to_driver=False,
        **local,
    )
    try:
        yield
    finally:
        ray.shutdown()


BACKENDS: dict[str, Callable[..., Outcomes]] = {"joblib": loky_outcomes, "ray": ray_outcomes}
