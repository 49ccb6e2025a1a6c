"""Where tasks run: loky processes on this machine, or a Ray cluster.

Each backend yields (task, rows or failure) as tasks finish, and None now and then so that its
caller can look up.
"""

from __future__ import annotations

import itertools
import time
import traceback
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from typing import Any

from logel.data.limits import optional
from logel.errors import OptionError
from logel.studies.run.tasks import Failure, Row, Task, TaskFunction, as_scalar
from logel.threads import limited_threads
from logel.workers import POLL_SECONDS, blocked_interrupt, process_pool, ray_cluster

# Two tasks per CPU keep a cluster busy; at least this many let a cluster that grows on demand grow.
_RAY_MIN_IN_FLIGHT = 64
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
            pool = process_pool(1)
            pools.append(pool)
        with blocked_interrupt():
            running[pool.submit(_execute, function, task)] = (pool, task)

    try:
        for _ in range(jobs):
            submit(None)
        while running:
            done, _ = wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
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
    with ray_cluster(ray, jobs=jobs, address=address):
        # One more try when a node is lost; a task that keeps killing its worker is a failure.
        remote = ray.remote(num_cpus=1, max_retries=1)(_execute)
        limit = max(_RAY_MIN_IN_FLIGHT, 2 * int(ray.cluster_resources().get("CPU", 1)))
        try:
            while True:
                for task in itertools.islice(waiting, limit - len(in_flight)):
                    in_flight[remote.remote(function, task)] = task
                if not in_flight:
                    break
                done, _ = ray.wait(list(in_flight), num_returns=1, timeout=POLL_SECONDS)
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


BACKENDS: dict[str, Callable[..., Outcomes]] = {"joblib": loky_outcomes, "ray": ray_outcomes}
