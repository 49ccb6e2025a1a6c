"""Ten thousand stages take ten thousand times what has to be kept of one, and no more.

`python -m benchmarks.long_life` measures the same with all of them.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from benchmarks.long_life import WORK, stages, write

from logel.data.contents import Kept
from logel.data.folder import HistoryWriter
from logel.data.stage import Stage

FEW, MANY = 50, 150


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("histories")
    for n in (FEW, MANY):
        write(here, n)
        (here / "made").rename(here / f"{n}")
    return here


def peak(work: Callable[[Path, int], None], folders: Path, n: int) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        work(folders, n)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# What is kept (docs/results/robustness.md), and about as much to work on it.
@pytest.mark.parametrize(
    ("kind", "most"),
    [("load", 600), ("inspect", 1500), ("observer", 2500), ("paper", 2500), ("mirror", 2700)],
)
def test_memory_grows_by_what_is_kept_of_a_stage(
    kind: str, most: int, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is taken up to a limit would grow in histories as short as these.
    monkeypatch.setattr("logel.data.contents._KEPT", 0.0)
    monkeypatch.setattr("logel.inference.null._BLOCK", 2**10)
    monkeypatch.setattr("logel.rules.rates._BLOCK", 2**10)
    work = WORK[kind]
    work(folders, FEW)
    few, many = (peak(work, folders, n) for n in (FEW, MANY))
    assert (many - few) / (MANY - FEW) < most


def test_a_writer_holds_nothing_of_what_it_wrote(tmp_path: Path) -> None:
    made = stages(220)
    with HistoryWriter(tmp_path / "h") as writer:
        for stage in islice(made, 20):
            writer.append(stage)
        tracemalloc.start()
        for stage in made:
            writer.append(stage)
        gc.collect()  # the encoders of JSON are cycles
        grown = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    assert grown < 200 * 20


def test_few_stages_stay_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGEL_MEMORY", "16M")
    reads: list[int] = []

    class Source:
        def __len__(self) -> int:
            return 100

        def __getitem__(self, index: int, /) -> Stage:
            reads.append(index)
            return next(stages(1))

    kept = Kept(Source())
    for _ in range(2):
        assert sum(kept[t].n_steps for t in range(100)) == 2500
    # A 256th of 16 MiB holds some twenty such stages, what Python takes for them included.
    assert reads[:100] == list(range(100)) and 70 < len(reads) - 100 < 90
