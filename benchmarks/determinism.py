"""The same seed gives the same bytes: by workers, backends, threads and processes.

Usage: `python -m benchmarks.determinism [--quick]`. Every named method infers from one history of a
table's learner or of a network's (`benchmarks.determined`). The estimates, checksums of all that
they hold, are compared between studies with 1, 2 and 4 workers, joblib or Ray; and between
processes with BLAS libraries set to 1 or 4 threads. There logel takes one thread whatever they are
set to. With LOGEL_THREADS=4 sums are split and last bits may differ: what is compared then are the
weights, within a tolerance. `--quick` leaves out Ray and four workers.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.determined import TASKS, infer
from benchmarks.report import Check, fresh_process, report
from logel.studies.run.runner import run_tasks
from logel.studies.run.tasks import Row
from logel.threads import ONE_THREAD

# Of unit-norm weights, where sums are split over threads.
TOLERANCE = 1e-6


def alone() -> None:
    """All tasks in this process; print their rows as JSON."""
    print(json.dumps([{**task.setting, **row} for task in TASKS for row in infer(task)]))


def by_workers(jobs: int, backend: str) -> list[Row]:
    """All tasks as a study."""
    with tempfile.TemporaryDirectory(prefix="logel-determinism-") as folder:
        run = run_tasks(TASKS, infer, out=Path(folder), jobs=jobs, backend=backend)
        if run.failures:
            raise RuntimeError(run.summary())
        return [{k: v for k, v in row.items() if k not in ("study", "seed")} for row in run.rows]


def in_a_process(blas: int, ours: int | None = None) -> list[Row]:
    """All tasks in a process of its own."""
    threads = {**dict.fromkeys(ONE_THREAD, str(blas)), "LOGEL_THREADS": ours and str(ours)}
    rows: list[Row] = fresh_process("benchmarks.determinism", "alone", environment=threads)
    return rows


def _by_name(rows: list[Row]) -> dict[str, Row]:
    return {f"{row['learner']}, {row['method']}": row for row in rows}


def _equal(one: list[Row], two: list[Row]) -> tuple[int, float]:
    """How many estimates are equal byte for byte, and the largest difference of weights."""
    first, second = _by_name(one), _by_name(two)
    same = sum(first[name]["sha256"] == second[name]["sha256"] for name in first)
    apart = [
        abs(float(str(value)) - float(str(second[name][key])))
        for name, row in first.items()
        for key, value in row.items()
        if key.startswith("w") and value is not None
    ]
    return same, max(apart)


def main() -> int:
    """Compare everything with one process on one thread; print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.determinism")
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    reference = in_a_process(1)
    ways = {
        "another process": lambda: in_a_process(1),
        "BLAS set to 4 threads": lambda: in_a_process(4),
        "study, 1 worker": lambda: by_workers(1, "joblib"),
        "study, 2 workers": lambda: by_workers(2, "joblib"),
    }
    if not quick:
        ways["study, 4 workers"] = lambda: by_workers(4, "joblib")
        ways["study, 2 workers, Ray"] = lambda: by_workers(2, "ray")
    checks = []
    for name, way in ways.items():
        same, apart = _equal(reference, way())
        told = f"{same} of {len(TASKS)} the same, weights apart by {apart:.2g}"
        checks.append(Check(name, told, "all the same", same == len(TASKS)))
    same, apart = _equal(reference, in_a_process(4, ours=4))
    told = f"{same} of {len(TASKS)} the same, weights apart by {apart:.2g}"
    checks.append(Check("LOGEL_THREADS=4", told, f"apart by {TOLERANCE:g}", apart <= TOLERANCE))
    names = ", ".join(_by_name(reference))
    return report("The same seed, the same bytes", checks, [f"estimates: {names}"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["alone"]:
        alone()
    else:
        sys.exit(main())
