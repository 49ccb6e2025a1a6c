"""Results on disk: one checksummed file per task, written in one step, and the tidy table."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from logel.data.folder import write_atomically
from logel.errors import FormatError, LogelError
from logel.studies.run.tasks import Failure, Row, Task, checksum

_RESULT_FORMAT = "logel-task-result/1"
_ERROR_FORMAT = "logel-task-error/1"


def write_table(rows: Sequence[Row], path: Path) -> None:
    """Write rows as CSV; equal rows give equal bytes.

    Columns appear in the order in which the rows first name them. Floats are written with as many
    digits as it takes to read the same number back, None as an empty cell.
    """
    text = io.StringIO(newline="")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.getvalue().encode())


@contextlib.contextmanager
def exclusive(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the folder for this process; the kernel lets go of it even after SIGKILL.

    A process that holds it already is an error, or is waited for.
    """
    with (folder / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise LogelError(
                f"another process is running a study in {folder}; wait for it or choose "
                "another folder"
            ) from None
        yield


def result_path(folder: Path, task: Task) -> Path:
    """Where a task's result is kept."""
    return folder / f"{task.key}.json"


def load_result(folder: Path, task: Task, *, made_by: dict[str, Any]) -> list[Row] | None:
    """Return the rows of a finished task, or None when there is no intact result."""
    path = result_path(folder, task)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        stated = content.pop("sha256")
        intact = stated == checksum(content)
    except (FileNotFoundError, ValueError, KeyError, AttributeError, TypeError):
        return None
    if not intact or content.get("task") != task.identity:
        return None
    for what, ours in (("format", _RESULT_FORMAT), ("made_by", made_by)):
        if content[what] != ours:
            raise FormatError(
                f"{path} has {what} {content[what]}, not {ours}; choose another folder, or delete "
                "this one to compute everything again"
            )
    rows: list[Row] = content["rows"]
    return rows


def save_outcome(
    folder: Path, task: Task, *, outcome: list[Row] | Failure, made_by: dict[str, Any]
) -> None:
    """Write the task's result, or its error, which the next success removes."""
    error_path = folder / f"{task.key}.error.json"
    content: dict[str, Any] = {"task": task.identity, "made_by": made_by}
    if isinstance(outcome, Failure):
        found = {"error": outcome.error, "traceback": outcome.traceback.splitlines()}
        content = {"format": _ERROR_FORMAT, **content, **found}
        write_atomically(error_path, (json.dumps(content, indent=1) + "\n").encode())
        return
    content = {"format": _RESULT_FORMAT, **content, "rows": outcome}
    content["sha256"] = checksum(content)
    write_atomically(result_path(folder, task), (json.dumps(content) + "\n").encode())
    error_path.unlink(missing_ok=True)


def kept_learner(
    name: str, made_with: Mapping[str, Any], result: str, train: Callable[[Path], Any]
) -> tuple[Path, Any]:
    """The folder of a learner's history and what `train` told (JSON), trained now or before.

    Learners are kept in `LOGEL_CACHE`, since all observers and several studies watch the same ones.

    Args:
        name: Of the learner.
        made_with: All that decides what it becomes, JSON-serialisable.
        result: File of what `train` told.
        train: Writes the history to a folder that does not exist yet.
    """
    cache = Path(os.environ.get("LOGEL_CACHE", "~/.cache/logel")).expanduser()
    folder = cache / f"{name}-{checksum(made_with)[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    history, told = folder / "history", folder / result
    # One process at a time trains; the others wait for its result.
    with exclusive(folder, wait=True):
        if not told.exists():
            # A run that was stopped: its history is of no use without the rest.
            shutil.rmtree(history, ignore_errors=True)
            write_atomically(told, json.dumps(train(history)).encode())
    return history, json.loads(told.read_text())
