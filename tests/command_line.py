"""The `logel` command: in the tests' own process, which saves importing torch, or interrupted."""

from __future__ import annotations

import contextlib
import importlib
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest.mock
from collections.abc import Sequence
from multiprocessing.synchronize import Event
from pathlib import Path

from logel.cli.main import main

# Its children come with torch imported, which takes longer than what they are asked to do.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["logel.inference.infer", "logel.learners.tabular"])


def logel(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Exit code, standard output and standard error of `logel ARGUMENTS`."""
    out, err = io.StringIO(), io.StringIO()
    command = ["logel", *map(str, arguments)]
    code: object = 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        unittest.mock.patch.object(sys, "argv", command),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return subprocess.CompletedProcess(command, int(str(code)), out.getvalue(), err.getvalue())


def interrupted(folder: Path, where: str, number: int, *arguments: object) -> str:
    """What a command says when Ctrl-C comes in the n-th call of a function (`module:name`)."""
    here = SERVER.Event()
    with tempfile.TemporaryDirectory() as elsewhere:
        said = [Path(elsewhere) / name for name in ("out", "err")]
        process = SERVER.Process(
            target=run_and_wait, args=(folder, said, where, number, list(map(str, arguments)), here)
        )
        process.start()
        assert here.wait(timeout=300)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        process.join(timeout=300)
        out, err = (path.read_text() for path in said)
    assert process.exitcode == 130, err
    assert out == "" and len(err.strip().splitlines()) == 1, err
    return err.strip()


def run_and_wait(
    folder: Path, said: Sequence[Path], where: str, number: int, arguments: list[str], here: Event
) -> None:
    """Run a command in a process of its own; wait in the n-th call of a function to be stopped."""
    # A shell that runs the tests in the background has them ignore Ctrl-C; these must not.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    for path, stream in zip(said, (sys.stdout, sys.stderr), strict=True):
        with path.open("w") as file:
            os.dup2(file.fileno(), stream.fileno())
    module, _, name = where.partition(":")
    *path_to, last = name.split(".")
    holder = importlib.import_module(module)
    for part in path_to:
        holder = getattr(holder, part)
    real, calls = getattr(holder, last), 0

    def slow(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        if calls == number:
            # The signal comes at the worst moment.
            here.set()
            time.sleep(60)
        return real(*args, **kwargs)

    setattr(holder, last, slow)
    sys.argv = ["logel", *arguments]
    main()
