"""Nothing of others is overwritten, nothing of ours is lost, and full disks have a name."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import numpy as np
import pytest
from tests.command_line import logel

from logel.data.folder import MANIFEST, STAGES, HistoryWriter
from logel.data.history import LearningHistory
from logel.data.stage import Episode, Stage
from logel.data.store import (
    append_line,
    clear_stale,
    lock_file,
    new_folder,
    write_atomically,
)
from logel.errors import FormatError, LogelError, StorageError
from logel.studies.run.files import exclusive

TOKEN = "0123456789abcdef"


def stage(value: int = 0) -> Stage:
    return Stage.from_episodes([Episode(np.arange(3), np.full(2, value))])


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


# --- links and names ----------------------------------------------------------------------------


def test_a_link_at_the_lock_does_not_empty_the_file_it_points_to(
    tmp_path: Path, victim: Path
) -> None:
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tasks / ".lock").symlink_to(victim)
    with pytest.raises(FormatError, match=r"\.lock is a link"), exclusive(tasks):
        pass
    assert victim.read_text() == "precious"
    (tasks / ".lock").unlink()
    # The same file under another name is nothing to be noticed; but it is not emptied either.
    os.link(victim, tasks / ".lock")
    with exclusive(tasks):
        assert victim.read_text() == "precious"


def test_a_folder_of_tasks_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "tasks").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FormatError, match="is a link"), exclusive(tmp_path / "tasks"):
        pass
    assert not list((tmp_path / "elsewhere").iterdir())


def test_pipes_and_folders_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(FormatError, match=f"{name} is .*plain file"):
            append_line(tmp_path / name, b"line")
        with (
            pytest.raises(FormatError, match=f"{name} is .*plain file"),
            lock_file(tmp_path / name),
        ):
            pass


def test_lines_are_not_written_through_a_link(tmp_path: Path, victim: Path) -> None:
    writer = HistoryWriter(tmp_path / "history")
    writer.append(stage())
    (tmp_path / "history" / STAGES).unlink()
    (tmp_path / "history" / STAGES).symlink_to(victim)
    with pytest.raises(FormatError, match=r"stages\.jsonl is a link"):
        writer.append(stage())
    assert victim.read_text() == "precious"


def test_temporaries_have_names_nobody_can_foresee(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    plain = os.open

    def spy(path: object, *arguments: int) -> int:
        names.append(Path(str(path)).name)
        return plain(path, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", spy)
    for _ in range(2):
        write_atomically(tmp_path / "file", b"")
    one, two = names
    assert one != two and len(one) == len(f".file.{TOKEN}.tmp")


def test_temporaries_are_created_exclusively_and_without_following_links(
    tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: TOKEN)
    (tmp_path / f".file.{TOKEN}.tmp").symlink_to(victim)
    with pytest.raises(StorageError, match=r"cannot write .*/file: File exists"):
        write_atomically(tmp_path / "file", b"evil")
    assert victim.read_text() == "precious" and not (tmp_path / "file").exists()


def test_new_files_obey_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


# --- what killed processes leave ----------------------------------------------------------------


def test_temporaries_are_cleared_when_stale(tmp_path: Path) -> None:
    names = {
        "abandoned": f".file.{TOKEN}.tmp",
        "young": f".file.{TOKEN[::-1]}.tmp",
        "of another": f".other.{TOKEN}.tmp",
        "the user's own": ".file.tmp",
    }
    for what, name in names.items():
        (tmp_path / name).touch()
        if what != "young":
            os.utime(tmp_path / name, (0, time.time() - 3600))
    with lock_file(tmp_path / names["abandoned"]) as ours:
        assert ours
        write_atomically(tmp_path / "file", b"new")
        assert (tmp_path / names["abandoned"]).exists(), "its process is alive"
    write_atomically(tmp_path / "file", b"newer")
    assert not (tmp_path / names.pop("abandoned")).exists()
    assert {path.name for path in tmp_path.iterdir()} == {*names.values(), "file"}
    clear_stale(tmp_path)
    assert not (tmp_path / names["of another"]).exists()


def test_abandoned_folders_are_cleared(tmp_path: Path) -> None:
    left = tmp_path / f".history.{TOKEN}.tmp"
    left.mkdir()
    (left / "stage").touch()
    with new_folder(tmp_path / "history"):
        assert not left.exists()


# --- one owner ----------------------------------------------------------------------------------


def test_record_reserves_its_folder_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object, **__: object) -> None:
        told = "is being written by another process"
        with pytest.raises(FormatError, match=told), new_folder(tmp_path / "new"):
            pass
        raise LogelError("stop here")

    monkeypatch.setattr("logel.learners.tabular.observe", busy)
    done = logel("record", "gridworld", tmp_path / "new")
    assert done.returncode == 2 and "stop here" in done.stderr
    assert not (tmp_path / "new").exists()


def test_two_writers_do_not_share_a_folder(tmp_path: Path) -> None:
    one, two = (HistoryWriter(tmp_path / "history") for _ in range(2))
    one.append(stage(1))
    with pytest.raises(FormatError, match="already exists"):
        two.append(stage(2))
    (tmp_path / "other").mkdir()
    with new_folder(tmp_path / "other"), pytest.raises(FormatError, match="being written"):
        HistoryWriter(tmp_path / "other").append(stage(3))
    one.close()
    assert [int(s.actions[0]) for s in LearningHistory.load(tmp_path / "history")] == [1]


# --- full disks ---------------------------------------------------------------------------------


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", full)
    for write in (write_atomically, append_line):
        with pytest.raises(StorageError, match=r"cannot write .*/file: No space left on device"):
            write(tmp_path / "file", b"data")
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [0], "half a line is taken back"


def test_a_full_disk_keeps_the_answer_on_the_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = logel("record", "gridworld", tmp_path / "h", "--steps", 3, "--episodes", 5)
    assert made.returncode == 0
    monkeypatch.setattr(os, "fsync", full)
    out = tmp_path / "estimate.json"
    done = logel("infer", tmp_path / "h", "--method", "paper", "--out", out)
    assert done.returncode == 2 and "Reward weights" in done.stdout
    assert "cannot write" in done.stderr and "estimate.json: No space left" in done.stderr


# --- manifests ----------------------------------------------------------------------------------


def test_manifests_grow_by_appending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewriting them is quadratic: what is written for a stage must not depend on its number."""
    path = tmp_path / "history"
    writer = HistoryWriter(path)
    sizes = []
    for t in range(40):
        writer.append(stage(t))
        sizes.append((path / STAGES).stat().st_size)
    first = (path / MANIFEST).stat()
    assert len(set(np.diff(sizes))) == 1, "each stage adds one line of the same length"
    writer.append(stage())
    writer.close()
    last = (path / MANIFEST).stat()
    assert (first.st_ino, first.st_mtime_ns) == (last.st_ino, last.st_mtime_ns)
    assert len(LearningHistory.load(path)) == 41


def test_a_line_without_its_end_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "history"
    with HistoryWriter(path) as writer:
        for t in range(3):
            writer.append(stage(t))
    whole = (path / STAGES).read_bytes()
    ends = [n for n, byte in enumerate(whole) if byte == ord("\n")]
    for kept in range(ends[0] + 1, len(whole)):
        (path / STAGES).write_bytes(whole[:kept])
        opened = LearningHistory.load(path)
        assert len(opened) == min(3, sum(end < kept for end in ends)) and not opened.complete
    (path / STAGES).write_bytes(whole.replace(b"}\n{", b"}\n[{", 1))
    with pytest.raises(FormatError, match=r"stages\.jsonl, line 2, is corrupted"):
        LearningHistory.load(path)
