"""Task functions for the runner's tests: workers import them, so they live in a module."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import time
from pathlib import Path
from uuid import uuid4

import numpy as np

from logel.studies.run.tasks import Row, Task, grid

STUDY = grid("tiny", {"batch": [5, 10, 20], "method": ["a", "b"]}, seeds=range(10))


def noisy(task: Task) -> list[dict[str, object]]:
    """Random numbers and a matrix product; each call leaves a trace for the test to count."""
    _leave_trace(task)
    time.sleep(float(os.environ.get("RUNNER_TEST_SLEEP", "0")))
    rng = task.rng()
    matrix = rng.normal(size=(40, 40))
    return [
        {
            "stage": np.int64(stage),
            "error": rng.normal() / np.sqrt(task.setting["batch"]),
            "trace": np.trace(matrix @ matrix),
            "note": 'quoted, "twice"\r' if stage else None,
            "blas": blas_threads(),
            "undefined": float("nan") if task.seed == 0 else np.float32(0.1),
        }
        for stage in range(2)
    ]


def troubled(task: Task) -> list[dict[str, object]]:
    """Fail in every way a task can, unless the environment says that it is repaired."""
    _leave_trace(task)
    if "RUNNER_TEST_REPAIRED" not in os.environ:
        if task.seed == 1:
            raise ValueError("seed 1 is unlucky")
        if task.seed == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if task.seed == 3:
            sys.exit("seed 3 left")
        if task.seed == 4:
            return [{"weights": np.zeros(2)}]
        if task.seed == 5:
            return [{"seed": 0}]
    return [{"value": task.rng().normal()}]


def either(task: Task) -> list[dict[str, object]]:
    """Serve both studies: starting Ray twice would double the time of its test."""
    return troubled(task) if task.study == "trouble" else noisy(task)


def thread_counts(task: Task) -> list[Row]:
    """Report the threads of a worker that has imported torch."""
    import torch

    torch.ones(8, 8) @ torch.ones(8, 8)
    return [
        {
            "torch": torch.get_num_threads(),
            "blas": blas_threads(),
            "omp": os.environ["OMP_NUM_THREADS"],
            "pid": os.getpid(),
        }
    ]


def blas_threads() -> int:
    """Ask numpy's own OpenBLAS how many threads it uses."""
    maps = Path("/proc/self/maps").read_text()
    found = re.search(r"/\S*libscipy_openblas64_\S*\.so", maps)
    assert found, "numpy is expected to bring its own OpenBLAS"
    count: int = ctypes.CDLL(found.group()).scipy_openblas_get_num_threads64_()
    return count


def _leave_trace(task: Task) -> None:
    folder = os.environ.get("RUNNER_TEST_TRACES")
    if folder:
        (Path(folder) / f"{task.key}--{uuid4().hex}").touch()
