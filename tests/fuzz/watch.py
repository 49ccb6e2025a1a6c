"""One spoilt file after the other is read, and whatever a reader must not do is noticed."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.fuzz.mutations import spoil
from tests.fuzz.readers import READERS, SIGNED, Reader, changed_stage, signed_again

from logel.errors import LogelError

SECONDS, BYTES = 10, 2 * 10**9
# A reader that runs into what was spoilt says so in less.
LONGEST_MESSAGE = 1000
# What no reader may do, whatever a file says: `sys.addaudithook` names it. (NumPy compiles the head
# of its files to a syntax tree, whose literals it takes; executing anything would be "exec".)
FORBIDDEN = (
    "exec", "import", "marshal.loads", "pickle.find_class", "code.__new__",
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork",
    "os.forkpty", "socket.__new__", "socket.connect", "urllib.Request", "ctypes.dlopen",
    "os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir",
    "os.symlink", "os.truncate", "os.utime", "shutil.rmtree", "shutil.move", "webbrowser.open",
)  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True)
class Finding:
    """Something that went wrong with a case."""

    case: int
    reader: str
    spoilt: str
    what: str


class _Auditor:
    """Notes forbidden events while it is told to."""

    def __init__(self) -> None:
        self.active, self.seen = False, []  # type: bool, list[str]
        self._installed = False

    def install(self) -> None:
        if not self._installed:
            sys.addaudithook(self._hook)  # cannot be taken away again, only put to sleep
            self._installed = True

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if event in FORBIDDEN:
            self.seen.append(f"{event} {str(arguments)[:120]}")
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING:
            self.seen.append(f"open for writing {str(arguments)[:120]}")


_AUDITOR = _Auditor()


class Cases:
    """The cases of a seed: number n is always the same file, spoilt in the same way."""

    def __init__(self, root: Path, seed: int, readers: tuple[Reader, ...] = READERS) -> None:
        self.root, self.seed, self.readers = root, seed, readers
        self.outside = root / "outside"
        self.outside.write_bytes(b"precious")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for reader in readers:
                template = root / "templates" / reader.name
                template.mkdir(parents=True)
                reader.make(template)
                reader.read(template)  # it must be sound, and imports are done
        _AUDITOR.install()

    def run(self, case: int) -> tuple[str, str, Finding | None]:
        """Reader, outcome ("read" or the error's kind) and what was wrong."""
        reader = self.readers[case % len(self.readers)]
        rng = np.random.default_rng([self.seed, case])
        folder = self.root / "case"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.root / "templates" / reader.name, folder)
        if reader.name == SIGNED:
            stage = folder / "h" / "stage-00001.safetensors"
            stage.write_bytes(changed_stage(stage.read_bytes(), rng))
            signed_again(folder)
            spoilt = "an array of a stage, signed"
        else:
            spoilt = spoil(folder, self.outside, rng)
        outcome, wrong = self._watched(reader, folder)
        if self.outside.read_bytes() != b"precious" or len(list(self.root.iterdir())) != 3:
            wrong = "something outside was changed"
            self.outside.write_bytes(b"precious")
        found = None if wrong is None else Finding(case, reader.name, spoilt, wrong)
        return reader.name, outcome, found

    def _watched(self, reader: Reader, folder: Path) -> tuple[str, str | None]:
        forget_peak()
        _AUDITOR.seen.clear()
        start, outcome, wrong = time.monotonic(), "read", None
        try:
            with warnings.catch_warnings(), alarm(SECONDS):
                warnings.simplefilter("ignore")
                _AUDITOR.active = True
                reader.read(folder)
        except LogelError as error:
            outcome, text = type(error).__name__, str(error)
            if len(text) > LONGEST_MESSAGE or not text.replace("\n", "").isprintable():
                wrong = f"message unfit to be printed: {text[:200]!r}"
        except _TooSlow:
            outcome = wrong = f"longer than {SECONDS} s"
        except BaseException as error:
            outcome = type(error).__name__
            last = traceback.extract_tb(error.__traceback__)[-1]
            wrong = f"raw {outcome}: {str(error)[:200]} ({Path(last.filename).name}:{last.lineno})"
        finally:
            _AUDITOR.active = False
        if _AUDITOR.seen:
            wrong = f"did what it must not: {_AUDITOR.seen[0]}"
        if (peak := peak_bytes()) > BYTES:
            wrong = f"took {peak / 1e9:.1f} GB"
        if (took := time.monotonic() - start) > SECONDS and wrong is None:
            wrong = f"took {took:.0f} s"
        return outcome, wrong


class _TooSlow(BaseException):
    """Not an Exception: nobody may catch it."""


@contextmanager
def alarm(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise _TooSlow

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def forget_peak() -> None:
    """Let the highest resident memory count from now, where the system can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """Highest resident memory since `forget_peak`."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    (line,) = (row for row in status.splitlines() if row.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@contextmanager
def fresh_folder() -> Iterator[Path]:
    """In memory where that is possible: a hundred thousand small files wear a disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        prefix="logel-fuzz-", dir=memory if memory.is_dir() else None
    ) as name:
        yield Path(name)
