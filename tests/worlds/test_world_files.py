"""Known worlds out of files: strangers' arrays and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logel.data.limits import Limits
from logel.errors import FormatError, LogelError
from logel.worlds.world_files import read_world

LEADS = np.array([[1, 2], [0, -1]])


def test_arrays_and_moves_say_the_same(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", successors=LEADS)
    (tmp_path / "w.csv").write_text("state,action,next_state\n0,0,1\n0,1,\n1,0,0\n")
    found = [read_world(tmp_path / name, 2, 2).rows(2, 2) for name in ("w.npz", "w.csv")]
    np.testing.assert_array_equal(found[0].outcomes, found[1].outcomes)
    np.testing.assert_array_equal(found[0].known, [[True, True], [True, False]])
    assert found[0].outcomes[0, 1, 2] == 1


def test_chances_and_terminal_states(tmp_path: Path) -> None:
    (tmp_path / "w.csv").write_text(
        "state,action,next_state,probability\n0,0,1,0.25\n0,0,0,0.5\n0,0,,0.25\n"
    )
    rows = read_world(tmp_path / "w.csv", 2, 2).rows(2, 2)
    np.testing.assert_allclose(rows.outcomes[0, 0], [0.5, 0.25, 0.25])
    np.savez(tmp_path / "w.npz", successors=LEADS, terminal=np.array([1]))
    assert read_world(tmp_path / "w.npz", 2, 2).rows(2, 2).outcomes[0, 0, 2] == 1


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"successors": np.array([None], dtype=object)}, "corrupted"),
        ({"table": LEADS}, "holds 'table', but a world has successors, transitions, terminal"),
        ({"terminal": np.array([1])}, "either successors or transitions"),
        ({"successors": LEADS, "terminal": np.array([0.5])}, "numbers of states"),
    ],
)
def test_arrays_that_are_no_world(tmp_path: Path, arrays: dict[str, Any], told: str) -> None:
    np.savez(tmp_path / "w.npz", **arrays)
    with pytest.raises(FormatError, match=told):
        read_world(tmp_path / "w.npz", 2, 2)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("state,action\n0,0\n", "must have a column next_state"),
        ("state,action,next_state,mood\n0,0,1,2\n", "'mood' means nothing in a world"),
        ("state,action,next_state\n0,0,2\n", "line 2, column next_state: 2 is outside 0..1"),
        ("state,action,next_state\n0,0,1.5\n", "must be a whole number, but is 1.5"),
        ("state,action,next_state\n0,5,1\n", "column action: 5 is outside 0..1"),
        ("state,action,next_state,probability\n0,0,1,0\n", r"0(\.0)? is not in \(0, 1\]"),
    ],
)
def test_moves_that_cannot_be(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "w.csv").write_text(text)
    with pytest.raises(LogelError, match=told):
        read_world(tmp_path / "w.csv", 2, 2)


def test_other_files_and_bombs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "w.txt").write_text("0")
    with pytest.raises(LogelError, match=r"\.npz, \.csv or \.parquet"):
        read_world(tmp_path / "w.txt", 2, 2)
    (tmp_path / "w.npz").write_bytes(b"PK nonsense")
    with pytest.raises(FormatError, match="corrupted"):
        read_world(tmp_path / "w.npz", 2, 2)
    np.savez_compressed(tmp_path / "large.npz", transitions=np.zeros((40, 10, 40)))
    with pytest.raises(FormatError, match="more than the limit"):
        read_world(tmp_path / "large.npz", 2, 2, limits=Limits(cells=1000))
    with pytest.raises(FormatError, match="missing or not a plain file"):
        read_world(tmp_path / "none.npz", 2, 2)
