"""A thousand spoilt files of every kind; `python -m tests.fuzz --cases N` reads any number."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fuzz import watch
from tests.fuzz.readers import READERS, Reader
from tests.fuzz.watch import Cases, fresh_folder

from logel.errors import FormatError

CASES = 1360


@pytest.fixture
def root() -> Iterator[Path]:
    with fresh_folder() as folder:
        yield folder


def test_a_thousand_spoilt_files(root: Path) -> None:
    """No raw error, nothing slow, nothing large, nothing written outside, nothing executed."""
    cases = Cases(root, seed=7)
    results = [cases.run(case) for case in range(CASES)]
    assert [found for *_, found in results if found is not None] == []
    outcomes = {(name, outcome == "read") for name, outcome, _ in results}
    # Spoiling must neither spare everything nor make everything unreadable.
    assert {name for name, read in outcomes if read} == {reader.name for reader in READERS}
    refused = {name for name, read in outcomes if not read}
    assert refused == {reader.name for reader in READERS} - {"task file"}, "those are made anew"


def raise_raw(folder: Path) -> None:
    raise KeyError("x")


def execute(folder: Path) -> None:
    eval("1 + 1")


def start_a_process(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


def write_a_file(folder: Path) -> None:
    (folder / "new").write_text("x")


def write_outside(folder: Path) -> None:
    os.pwrite(write_outside.descriptor, b"evil", 0)  # type: ignore[attr-defined]


def hang(folder: Path) -> None:
    time.sleep(60)


def take_memory(folder: Path) -> None:
    assert len(bytearray(64 * 2**20))


def say_too_much(folder: Path) -> None:
    raise type("Chatty", (FormatError,), {"__str__": lambda self: "\x1b"})


@pytest.mark.parametrize(
    ("misbehave", "noticed"),
    [
        (raise_raw, "raw KeyError: 'x'"),
        (execute, "did what it must not: exec"),
        (start_a_process, "did what it must not: subprocess.Popen"),
        (write_a_file, "did what it must not: open for writing"),
        (write_outside, "something outside was changed"),
        (hang, "longer than 1 s"),
        (take_memory, "took "),
        (say_too_much, "message unfit to be printed"),
    ],
)
def test_misbehaviour_is_noticed(
    root: Path,
    misbehave: Callable[[Path], None],
    noticed: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tame = Reader("tame", lambda folder: (folder / "f.json").write_text("[1]"), lambda _: None)
    cases = Cases(root, seed=0, readers=(tame,))
    assert cases.run(0)[2] is None
    monkeypatch.setattr(watch, "SECONDS", 1)
    before = watch.peak_bytes()
    if misbehave is take_memory:
        watch.forget_peak()
        monkeypatch.setattr(watch, "BYTES", watch.peak_bytes() + 32 * 2**20)
    assert before > 0
    with cases.outside.open("r+b") as file:
        write_outside.descriptor = file.fileno()  # type: ignore[attr-defined]
        cases.readers = (Reader("tame", tame.make, misbehave),)
        found = cases.run(0)[2]
    assert found is not None and found.what.startswith(noticed), found
    assert cases.outside.read_bytes() == b"precious"


def test_a_case_is_the_same_every_time(root: Path) -> None:
    cases = Cases(root, seed=3, readers=READERS[:2])
    files = []
    for _ in range(2):
        cases.run(4)
        found = sorted((root / "case").rglob("*.*"))
        files.append({path.name: path.read_bytes() for path in found if path.is_file()})
    assert files[0] == files[1]
