"""What the benchmarks share: a table of measurements against targets, and measuring processes."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from logel.threads import ONE_THREAD

_ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Check:
    """One line of the table: what was measured, the result and the target in words, the verdict."""

    name: str
    measured: str
    target: str
    passed: bool


def report(title: str, checks: Sequence[Check], notes: Sequence[str] = ()) -> int:
    """Print the table; return the exit code, 1 if a target was missed."""
    table = Table(title=title, title_justify="left")
    for column in ("", "measured", "target", "verdict"):
        table.add_column(column)
    for check in checks:
        verdict = "[green]pass[/green]" if check.passed else "[red]FAIL[/red]"
        table.add_row(check.name, check.measured, check.target, verdict)
    console = Console(width=None if sys.stdout.isatty() else 100)
    console.print(table)
    for note in notes:
        console.print(note, highlight=False)
    return 0 if all(check.passed for check in checks) else 1


def fresh_process(
    module: str, *arguments: object, environment: Mapping[str, str | None] | None = None
) -> dict[str, Any]:
    """Run a benchmark module in a new interpreter; parse the JSON it prints.

    With one thread, unless `environment` has its own variables; None takes one away.
    """
    variables = {**os.environ, **ONE_THREAD, **(environment or {})}
    done = subprocess.run(
        [sys.executable, "-m", module, *(str(argument) for argument in arguments)],
        cwd=_ROOT,
        env={name: value for name, value in variables.items() if value is not None},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return json.loads(done.stdout)


def resident_bytes() -> int:
    """Resident memory of this process now."""
    import psutil

    return psutil.Process().memory_info().rss


def forget_peak() -> None:
    """Let `peak_bytes` begin anew, where the system can (Linux)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """Highest resident memory this process has had.

    On Linux from /proc: `ru_maxrss` of a new process can include the one it was started from.
    """
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (row for row in status.read_text().splitlines() if row.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
