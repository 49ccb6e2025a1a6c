"""Small versions of `benchmarks.kills` and `benchmarks.determinism`.

Recorders, writers and studies are killed in the tests of their own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from benchmarks import killed
from benchmarks.determined import TASKS, infer

from logel.studies.run.runner import run_tasks
from logel.threads import limited_threads


@pytest.mark.slow
@pytest.mark.parametrize("work", [killed.record_gridworld, killed.import_table])
def test_killed_commands_leave_all_or_nothing(work: Callable[[Path], None], tmp_path: Path) -> None:
    killed.SERVER.set_forkserver_preload(killed.PRELOADED)
    told = killed.killed_commands(work, tmp_path, np.random.default_rng(0), 3)
    assert told["wrong"] == 0
    assert told["killed"] == 3
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.slow
def test_every_method_gives_the_same_bytes_in_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in this process, with the libraries set to as many threads as they like."""
    quick = ("paper", "authors", "two-step", "mirror")
    tables = [t for t in TASKS if t.text("learner") == "table" and t.text("method") in quick]
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    run = run_tasks(tables, infer, out=tmp_path, jobs=1)
    assert run.failures == ()
    theirs = {row["method"]: row["sha256"] for row in run.rows}
    with limited_threads(os.cpu_count() or 1):
        ours = {task.text("method"): infer(task)[0]["sha256"] for task in tables}
    assert ours == theirs


@pytest.mark.slow
def test_more_threads_stay_within_the_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.determinism import TOLERANCE

    task = next(task for task in TASKS if task.text("method") == "two-step")
    (one,) = infer(task)
    monkeypatch.setenv("LOGEL_THREADS", "4")
    (four,) = infer(task)
    weights = [[row[k] for k in row if k.startswith("w")] for row in (one, four)]
    np.testing.assert_allclose(*weights, atol=TOLERANCE)
