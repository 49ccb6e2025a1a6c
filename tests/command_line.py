"""The `logel` command run in the tests' own process, which saves importing torch every time."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import unittest.mock

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
