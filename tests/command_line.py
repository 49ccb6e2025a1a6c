"""The `logel` command: in the tests' own process, which saves importing torch, or interrupted."""

from __future__ import annotations

import contextlib
import io
import signal
import subprocess
import sys
import unittest.mock
from pathlib import Path

from logel.cli.main import main


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


# A shell that runs the tests in the background has them ignore Ctrl-C; these must not. The
# function named by the first argument says "here" and waits when it is called the n-th time, so
# that the signal comes at the worst moment.
PROGRAM = """
import importlib, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
where, number = sys.argv[1], int(sys.argv[2])
module, name = where.split(":")
holder = importlib.import_module(module)
*path, last = name.split(".")
for part in path:
    holder = getattr(holder, part)
real, calls = getattr(holder, last), 0

def slow(*args, **kwargs):
    global calls
    calls += 1
    if calls == number:
        print("here", flush=True)
        time.sleep(60)
    return real(*args, **kwargs)

setattr(holder, last, slow)
sys.argv = ["logel", *sys.argv[3:]]
from logel.cli.main import main
main()
"""


def interrupted(folder: Path, where: str, number: int, *arguments: object) -> str:
    """What a command says when Ctrl-C comes in the n-th call of a function."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, where, str(number), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert out == "" and len(err.strip().splitlines()) == 1, err
    return err.strip()
