"""Run the tests' study from a process of its own, to be killed: run_study.py OUT."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import runner_tasks

from logel.studies.run.files import write_table
from logel.studies.run.runner import run_tasks

if __name__ == "__main__":
    # A shell that runs the tests in the background has them ignore Ctrl-C; this study must not.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    out = Path(sys.argv[1])
    try:
        run = run_tasks(runner_tasks.STUDY, runner_tasks.noisy, out=out, jobs=2)
    except KeyboardInterrupt as stop:
        print(stop, file=sys.stderr)
        sys.exit(130)
    write_table(run.rows, out / "table.csv")
