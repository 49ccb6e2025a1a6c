"""Where tasks run: processes of this machine, or a Ray cluster; see `logel.workers`."""

from __future__ import annotations

import traceback
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

from logel.errors import OptionError, WorkerError
from logel.studies.run.tasks import Failure, Row, Task, TaskFunction, as_scalar
from logel.workers import Workers

BACKENDS = ("joblib", "ray")
Outcomes = Generator[tuple[Task, list[Row] | Failure] | None, None, None]


def _execute(function: TaskFunction, common: Any, task: Task) -> list[Row] | Failure:
    """Run one task in a worker; an exception comes back as data, with its traceback."""
    try:
        rows: list[Row] = []
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


def outcomes(
    tasks: Sequence[Task], function: TaskFunction, *, jobs: int, backend: str, address: str | None
) -> Outcomes:
    """Each task with its rows or its failure, as they finish, and None now and then."""
    if not tasks:
        return
    workers = Workers(jobs, (address or "") if backend == "ray" else None)
    for news in workers.outcomes(partial(_execute, function), tasks):
        if news is None:
            yield None
            continue
        task, result = news
        yield task, _failure(task, result) if isinstance(result, WorkerError) else result
