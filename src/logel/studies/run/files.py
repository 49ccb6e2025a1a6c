"""Results on disk: one checksummed file per task, written in one step, and the tidy table."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from logel.errors import FormatError, LogelError, OptionError
from logel.studies.run.tasks import (
    Failure,
    Row,
    Scalar,
    Task,
    TaskFunction,
    as_scalar,
    canonical_json,
    checksum,
    resolve,
)

if sys.platform != "win32":
    import fcntl


_RESULT_FORMAT = "logel-task-result/1"
_ERROR_FORMAT = "logel-task-error/1"


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
    lines += [_csv_line(record, columns) for record in records]
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_atomically(path, "".join(f"{line}\n" for line in lines))


def _csv_line(record: Mapping[str, object], columns: list[str]) -> str:
    line = ",".join(_cell(as_scalar(record.get(n), f"column {n!r}")) for n in columns)
    return line or '""'  # readers skip a blank line, and with it a lone None


@contextlib.contextmanager
def exclusive(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the folder for this process; the kernel lets go of it even after SIGKILL.

    Args:
        folder: What to hold.
        wait: Wait for a process that holds it already, rather than give up.

    Raises:
        LogelError: Another process holds it.
    """
    if sys.platform == "win32":
        yield
        return
    with (folder / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise LogelError(
                f"another process is running a study in {folder}; wait for it or choose "
                "another folder"
            ) from None
        yield


def provenance(function: TaskFunction, config: Mapping[str, object] | None) -> dict[str, Any]:
    """Return what determines the results besides the task, as plain JSON."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    try:
        importable = module != "__main__" and resolve(f"{module}:{name}") is function
    except (ImportError, AttributeError):
        importable = False
    if not importable:
        raise OptionError(
            f"{function!r} cannot be imported by a worker: define it with `def` at the top level "
            "of a module other than the script being run"
        )
    try:
        plain = json.loads(canonical_json(config or {}))
    except (TypeError, ValueError) as error:
        raise OptionError(f"config must consist of finite JSON values: {error}") from None
    return {"function": f"{module}:{name}", "config": plain}


def result_path(folder: Path, task: Task) -> Path:
    """Where a task's result is kept."""
    return folder / f"{task.key}.json"


def load_result(folder: Path, task: Task, *, made_by: dict[str, Any]) -> list[Row] | None:
    """Return the rows of a finished task, or None when there is no intact result."""
    path = result_path(folder, task)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        stated = content.pop("sha256")
        intact = stated == checksum(content, allow_nan=True)
    except (FileNotFoundError, ValueError, KeyError, AttributeError, TypeError):
        return None
    if not intact or content.get("task") != task.identity:
        return None
    if content["format"] != _RESULT_FORMAT:
        raise FormatError(
            f"{path} has format {content['format']!r}, not {_RESULT_FORMAT!r}: it was written by "
            "another version of logel; choose another folder"
        )
    if canonical_json(content["made_by"]) != canonical_json(made_by):  # Python holds 1 == True
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
        if canonical_json(old.get(name)) != canonical_json(new.get(name))
        or (name in old) != (name in new)
    ]
    return "another config: " + "; ".join(parts)


def save_outcome(
    folder: Path, task: Task, *, outcome: list[Row] | Failure, made_by: dict[str, Any]
) -> None:
    """Write the task's result, or its error, which the next success removes."""
    error_path = folder / f"{task.key}.error.json"
    content: dict[str, Any] = {"task": task.identity, "made_by": made_by}
    if isinstance(outcome, Failure):
        found = {"error": outcome.error, "traceback": outcome.traceback.splitlines()}
        content = {"format": _ERROR_FORMAT, **content, **found}
        _write_atomically(error_path, json.dumps(content, indent=1) + "\n")
        return
    content = {"format": _RESULT_FORMAT, **content, "rows": outcome}
    content["sha256"] = checksum(content, allow_nan=True)
    _write_atomically(result_path(folder, task), json.dumps(content) + "\n")
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


def _cell(value: Scalar) -> str:
    """Write one CSV cell; csv.writer leaves a lone carriage return unquoted, and misreads it."""
    if value is None:
        return ""
    text = str(value)
    if text and not any(character in text for character in ',"\r\n'):
        return text
    return '"' + text.replace('"', '""') + '"'
