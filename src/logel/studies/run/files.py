"""Results on disk: one checksummed file per task, written in one step, and the tidy table."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from logel.data.limits import MALFORMED, read_json
from logel.data.store import lock_file, write_atomically
from logel.errors import FormatError, LogelError, one_line
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
    if folder.is_symlink():
        raise FormatError(f"{folder} is a link: name the folder itself")
    with lock_file(folder / ".lock", wait=wait) as ours:
        if not ours:
            raise LogelError(
                f"another process is running a study in {folder}; wait for it or choose "
                "another folder"
            )
        yield


def result_path(folder: Path, task: Task) -> Path:
    """Where a task's result is kept."""
    return folder / f"{task.key}.json"


def load_result(folder: Path, task: Task, *, made_by: dict[str, Any]) -> list[Row] | None:
    """Return the rows of a finished task, or None when there is no intact result."""
    path = result_path(folder, task)
    try:
        content = read_json(path, follow_links=False)
        stated = content.pop("sha256")
        intact = stated == checksum(content)
    except (FormatError, *MALFORMED):
        return None
    if not intact or content.get("task") != task.identity:
        return None
    for what, ours in (("format", _RESULT_FORMAT), ("made_by", made_by)):
        if content[what] != ours:
            raise FormatError(
                f"{path} has {what} {one_line(content.get(what))}, not {ours}; choose another "
                "folder, or delete "
                "this one to compute everything again"
            )
    rows = content.get("rows")
    plain = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
    return rows if plain else None


def save_outcome(
    folder: Path, task: Task, *, outcome: list[Row] | Failure, made_by: dict[str, Any]
) -> None:
    """Write the task's result, or its error, which the next success removes."""
    error_path = folder / f"{task.key}.error.json"
    content: dict[str, Any] = {"task": task.identity, "made_by": made_by}
    if isinstance(outcome, Failure):
        found = {"error": outcome.error, "traceback": outcome.traceback.splitlines()}
        content = {"format": _ERROR_FORMAT, **content, **found}
        write_atomically(error_path, (json.dumps(content, indent=1) + "\n").encode(), tidy=False)
        return
    content = {"format": _RESULT_FORMAT, **content, "rows": outcome}
    content["sha256"] = checksum(content)
    text = json.dumps(content) + "\n"
    write_atomically(result_path(folder, task), text.encode(), tidy=False)
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
    return history, read_json(told)
