from __future__ import annotations

import csv
import io
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import runner_tasks
from hypothesis import given
from hypothesis import strategies as st

from logel.errors import FormatError, LogelError, MissingExtraError, OptionError
from logel.studies.run.files import exclusive, write_table
from logel.studies.run.runner import collect, run_tasks
from logel.studies.run.tasks import Scalar, Task, grid, sorted_tasks

HERE = Path(__file__).parent
TROUBLE = grid("trouble", {}, seeds=range(8))
SMALL = grid("small", {"batch": [5, 10]}, seeds=range(3))

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)  # fmt: skip
names = st.text(min_size=1, max_size=6).filter(lambda name: name not in ("study", "seed"))
settings_ = st.dictionaries(names, scalars, max_size=4)


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "traces"
    folder.mkdir()
    monkeypatch.setenv("RUNNER_TEST_TRACES", str(folder))
    return folder


def calls(traces: Path) -> Counter[str]:
    return Counter(path.name.rpartition("--")[0] for path in traces.iterdir())


def table(rows: object, path: Path) -> bytes:
    write_table(rows, path)  # type: ignore[arg-type]
    return path.read_bytes()


def finished(out: Path) -> set[str]:
    return {
        path.name.removesuffix(".json")
        for path in (out / "tasks").glob("*.json")
        if not path.name.endswith(".error.json")
    }


# --- Task ---------------------------------------------------------------------------------------


@given(settings_, settings_, st.integers(), st.integers())
def test_equal_keys_mean_equal_tasks(
    one: dict[str, Scalar], two: dict[str, Scalar], seed_one: int, seed_two: int
) -> None:
    a, b = Task("study", one, seed_one), Task("study", two, seed_two)
    identical = repr(sorted(one.items())) == repr(sorted(two.items())) and seed_one == seed_two
    assert (a.key.lower() == b.key.lower()) == identical  # some file systems ignore case
    assert (a.rng().random() == b.rng().random()) == identical


@given(settings_, st.integers(), st.randoms())
def test_the_order_of_a_setting_is_irrelevant(
    setting: dict[str, Scalar], seed: int, shuffler: random.Random
) -> None:
    items = list(setting.items())
    shuffler.shuffle(items)
    a, b = Task("study", setting, seed), Task("study", dict(items), seed)
    assert a.key == b.key
    assert list(a.setting.items()) == list(b.setting.items())


@given(st.text(min_size=1), settings_)
def test_a_key_is_a_file_name(study: str, setting: dict[str, Scalar]) -> None:
    key = Task(study, setting, 0).key
    assert len(key) <= 100 and not key.startswith(".")
    assert all(c.isascii() and (c.isalnum() or c in "=._-") for c in key)


@pytest.mark.parametrize(
    ("one", "two"), [(1, True), (1, 1.0), (0, False), (1, "1"), (None, "None")]
)
def test_values_that_python_or_print_confuse_are_distinct(one: Scalar, two: Scalar) -> None:
    a, b = Task("s", {"x": one}, 0), Task("s", {"x": two}, 0)
    assert a.key != b.key
    assert a.rng().random() != b.rng().random()


def test_seeds_are_stable_across_versions() -> None:
    # Values of the first implementation: a change here changes every published table.
    assert Task("s", {"x": 1}, 0).key == "s-x=1-seed=0-b645095fcd7c3964"
    assert Task("s", {"x": 1}, 0).rng().integers(1 << 30) == 868644051


def test_ignoring_a_setting_pairs_the_random_numbers() -> None:
    a, b = (Task("s", {"method": m, "batch": 5}, 3) for m in ("logel", "lfl"))
    assert a.rng().random() != b.rng().random()
    assert a.rng(ignoring=["method"]).random() == b.rng(ignoring=["method"]).random()
    with pytest.raises(OptionError, match="cannot ignore"):
        a.rng(ignoring=["methods"])


def test_tasks_are_sorted_by_value_and_duplicates_refused() -> None:
    tasks = [Task("s", {"batch": b}, s) for b in (10, 2, "x", None, 2.5) for s in (10, 9)]
    order = [(t.setting["batch"], t.seed) for t in sorted_tasks(tasks)]
    assert order == [(b, s) for b in (None, 2, 2.5, 10, "x") for s in (9, 10)]
    with pytest.raises(OptionError, match="more than once"):
        run_tasks([tasks[0], tasks[0]], runner_tasks.noisy, out=Path("never"))
    assert not Path("never").exists()


# --- Tables -------------------------------------------------------------------------------------

# No study writes a carriage return, which Python's csv misreads.
words = st.text(st.characters(exclude_characters="\r"), max_size=8)
cells = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), words)


@given(st.lists(st.dictionaries(words, cells, min_size=1, max_size=4), max_size=5))
def test_a_table_reads_back(rows: list[dict[str, Scalar]]) -> None:
    path = Path(os.environ["PYTEST_TABLE"])
    text = table(rows, path).decode()
    assert table([dict(row) for row in rows], path) == text.encode()
    read = list(csv.reader(io.StringIO(text, newline="")))
    header = read[0] if rows else []
    assert header == list(dict.fromkeys(name for row in rows for name in row))
    for row, line in zip(rows, read[1:], strict=True):
        for name, cell in zip(header, line, strict=True):
            value = row.get(name)
            if type(value) is float:
                assert float(cell) == value or (math.isnan(float(cell)) and math.isnan(value))
                assert math.copysign(1, float(cell)) == math.copysign(1, value) or math.isnan(value)
            else:
                assert cell == ("" if value is None else str(value))


@pytest.fixture(autouse=True, scope="module")
def _table_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    # Hypothesis refuses function-scoped fixtures: one file serves all its examples.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_TABLE", str(tmp_path_factory.mktemp("table") / "t.csv"))
        yield


def test_a_table_is_plain_csv(tmp_path: Path) -> None:
    rows = [{"a": 0.1, "b": True, "c": None}, {"a": 0.5, "c": "", "d": 'x,"y"'}]
    expected = b'a,b,c,d\n0.1,True,,\n0.5,,,"x,""y"""\n'
    assert table(rows, tmp_path / "deep" / "t.csv") == expected
    assert [path.name for path in tmp_path.rglob("*.*")] == ["t.csv"]


# --- Running ------------------------------------------------------------------------------------


def test_a_study_runs_once_and_resumes(tmp_path: Path, traces: Path) -> None:
    out = tmp_path / "out"
    first = run_tasks(SMALL[:4], runner_tasks.noisy, out=out, jobs=2)
    assert (first.computed, first.reused, first.failures) == (4, 0, ())
    assert first.rows[0]["study"] == "small"
    assert list(first.rows[0])[:3] == ["study", "batch", "seed"]

    damaged, truncated = (out / "tasks" / f"{task.key}.json" for task in SMALL[:2])
    good = damaged.read_bytes()
    damaged.write_bytes(good.replace(b'"stage": 0', b'"stage": 7'))
    truncated.write_bytes(truncated.read_bytes()[:100])
    (out / "tasks" / ".leftover.tmp").write_text("half a resu")

    second = run_tasks(SMALL, runner_tasks.noisy, out=out, jobs=1)
    assert (second.computed, second.reused) == (4, 2)
    assert calls(traces) == {t.key: 2 if t in SMALL[:2] else 1 for t in SMALL}
    assert damaged.read_bytes() == good
    assert not list((out / "tasks").glob("*.tmp"))

    third = run_tasks(SMALL, runner_tasks.noisy, out=out)
    assert (third.computed, third.reused) == (0, 6)
    expected = table(second.rows, tmp_path / "a.csv")
    assert table(third.rows, tmp_path / "b.csv") == expected
    read = collect(SMALL[::-1], runner_tasks.noisy, out=out)
    assert (read.reused, read.missing) == (6, 0)
    assert table(read.rows, tmp_path / "c.csv") == expected
    assert sum(calls(traces).values()) == 8


def test_the_table_does_not_depend_on_workers_or_order(tmp_path: Path) -> None:
    shuffled = random.Random(0).sample(runner_tasks.STUDY, len(runner_tasks.STUDY))
    one = run_tasks(runner_tasks.STUDY, runner_tasks.noisy, out=tmp_path / "1", jobs=1)
    two = run_tasks(shuffled, runner_tasks.noisy, out=tmp_path / "2", jobs=3)
    assert len(one.rows) == 120
    assert table(one.rows, tmp_path / "1.csv") == table(two.rows, tmp_path / "2.csv")
    files = {path.name: path.read_bytes() for path in (tmp_path / "1" / "tasks").glob("*.json")}
    assert len(files) == 60
    assert files == {p.name: p.read_bytes() for p in (tmp_path / "2" / "tasks").glob("*.json")}


def test_failures_are_reported_and_do_not_stop_the_others(
    tmp_path: Path, traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = TROUBLE
    run = run_tasks(tasks, runner_tasks.troubled, out=tmp_path, jobs=2)
    assert [row["seed"] for row in run.rows] == [0, 6, 7]
    assert [failure.task.seed for failure in run.failures] == [1, 2, 3, 4, 5]
    raised, died, left, array, clash = run.failures
    assert raised.error == "ValueError: seed 1 is unlucky"
    assert 'raise ValueError("seed 1 is unlucky")' in raised.traceback
    assert "runner_tasks.py" in raised.traceback
    assert "SIGKILL" in died.error
    assert left.error == "SystemExit: seed 3 left"
    assert "row 0, column 'weights' must be" in array.error
    assert "column 'seed' is the task's" in clash.error
    assert "8 tasks: 3 computed, 0 reused, 5 failed." in run.summary()
    assert "ValueError: seed 1 is unlucky" in run.summary()

    stored = json.loads((run.folder / f"{tasks[1].key}.error.json").read_text())
    assert stored["error"] == raised.error
    assert "\n".join(stored["traceback"]) == raised.traceback.rstrip()
    partial = collect(tasks, runner_tasks.troubled, out=tmp_path)
    assert partial.rows == run.rows
    assert partial.missing == 5
    assert "3 of 8 tasks are finished" in partial.summary()
    with pytest.raises(FormatError, match="none of the 8 tasks has a readable result"):
        collect(tasks, runner_tasks.troubled, out=tmp_path / "elsewhere")

    monkeypatch.setenv("RUNNER_TEST_REPAIRED", "1")
    again = run_tasks(tasks, runner_tasks.troubled, out=tmp_path, jobs=2)
    assert (again.computed, again.reused, again.failures) == (5, 3, ())
    assert not list(run.folder.glob("*.error.json"))
    assert calls(traces) == {t.key: 2 if 1 <= t.seed <= 5 else 1 for t in tasks}


def test_results_made_otherwise_are_refused(tmp_path: Path) -> None:
    task = [Task("s", {}, 0)]
    config = {"version": 1, "learner": {"rate": 0.1}}
    run_tasks(task, runner_tasks.troubled, out=tmp_path, config=config, jobs=1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    with pytest.raises(FormatError, match=r"'version': 1.*, not .*'version': 2.*; choose"):
        run_tasks(task, runner_tasks.troubled, out=tmp_path, config={**config, "version": 2})
    with pytest.raises(FormatError, match=r"'learner': \{'rate': 0.1\}"):
        collect(task, runner_tasks.troubled, out=tmp_path, config={"version": 1})
    with pytest.raises(FormatError, match=r"runner_tasks:troubled.*, not .*runner_tasks:noisy"):
        run_tasks(task, runner_tasks.noisy, out=tmp_path, config=config)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before
    assert run_tasks(task, runner_tasks.troubled, out=tmp_path, config=config).reused == 1


def test_a_folder_serves_one_run_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    with (
        exclusive(tmp_path / "tasks"),
        pytest.raises(LogelError, match="another process is running"),
    ):
        run_tasks(SMALL, runner_tasks.noisy, out=tmp_path)


def test_bad_arguments_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = runner_tasks.noisy
    with pytest.raises(OptionError, match="at least 1"):
        run_tasks(SMALL, noisy, out=tmp_path, jobs=0)
    with pytest.raises(OptionError, match="joblib or ray"):
        run_tasks(SMALL, noisy, out=tmp_path, backend="dask")
    with pytest.raises(OptionError, match="needs backend='ray'"):
        run_tasks(SMALL, noisy, out=tmp_path, address="10.0.0.1:6379")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"\[ray\]"):
        run_tasks(SMALL, noisy, out=tmp_path, backend="ray")


@pytest.mark.slow
def test_workers_use_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "2")  # what a user's shell may say
    run = run_tasks(SMALL[:1], runner_tasks.thread_counts, out=tmp_path, jobs=1)
    (row,) = run.rows
    assert (row["torch"], row["blas"], row["omp"]) == (1, 1, "1")
    assert row["pid"] != os.getpid()


# --- Stopping -----------------------------------------------------------------------------------


def start(out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(HERE / "run_study.py"), str(out)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "RUNNER_TEST_SLEEP": "0.04"},
        start_new_session=True,
    )


def wait_for_results(process: subprocess.Popen[str], out: Path, count: int) -> None:
    deadline = time.monotonic() + 300
    while len(finished(out)) < count:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, f"{len(finished(out))} of {count} results in time"
        time.sleep(0.002)


def wait_for_the_end(processes: list[psutil.Process]) -> None:
    deadline = time.monotonic() + 120
    while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes):
        assert time.monotonic() < deadline, "workers outlive their driver"
        time.sleep(0.01)


@pytest.mark.slow
def test_killed_three_times_the_table_is_the_same(tmp_path: Path, traces: Path) -> None:
    out = tmp_path / "killed"
    kept: set[str] = set()
    rng = random.Random()  # truly random moments: any of them must do
    for _ in range(3):
        before = calls(traces)
        process = start(out)
        wait_for_results(process, out, len(kept) + rng.randint(1, 10))
        time.sleep(rng.uniform(0, 0.06))
        workers = psutil.Process(process.pid).children(recursive=True)
        process.kill()  # the driver only: its workers must notice by themselves
        assert process.wait() == -signal.SIGKILL
        process.stderr.close()  # type: ignore[union-attr]
        wait_for_the_end(workers)
        assert kept < finished(out)
        repeated = {key for key in kept if calls(traces)[key] > before[key]}
        assert not repeated
        kept = finished(out)
    assert len(kept) < len(runner_tasks.STUDY)
    before = calls(traces)
    process = start(out)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert set(calls(traces) - before) == {t.key for t in runner_tasks.STUDY} - kept

    uninterrupted = run_tasks(runner_tasks.STUDY, runner_tasks.noisy, out=tmp_path / "whole")
    expected = table(uninterrupted.rows, tmp_path / "whole.csv")
    assert (out / "table.csv").read_bytes() == expected


@pytest.mark.slow
def test_interrupted_it_says_how_to_go_on(tmp_path: Path) -> None:
    process = start(tmp_path)
    wait_for_results(process, tmp_path, 3)
    for worker in psutil.Process(process.pid).children(recursive=True):
        worker.send_signal(signal.SIGINT)  # as Ctrl-C does; only the driver may act on it
    wait_for_results(process, tmp_path, 10)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130, errors
    done = len(finished(tmp_path))
    assert 10 <= done < 60
    assert not list(tmp_path.rglob("*.error.json"))
    assert errors.strip() == (
        f"Stopped: {done} of 60 tasks are done and kept in {tmp_path / 'tasks'}. "
        "Run the same command again to continue."
    )


# --- Ray ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ray_gives_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(HERE))  # the nodes import the study as we do
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    study, out = runner_tasks.STUDY, tmp_path / "ray"
    run_tasks(study[::2], runner_tasks.either, out=out)
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False}
    )
    try:
        run = run_tasks(
            [*study, *TROUBLE],
            runner_tasks.either,
            out=out,
            backend="ray",
            address=cluster.address,
        )
        assert not ray.is_initialized()
    finally:
        cluster.shutdown()
    assert (run.computed, run.reused) == (30 + 3, 30)
    assert [failure.task.seed for failure in run.failures] == [1, 2, 3, 4, 5]
    assert 'raise ValueError("seed 1 is unlucky")' in run.failures[0].traceback
    assert "WorkerCrashedError" in run.failures[1].error
    rows = [row for row in run.rows if row["study"] == "tiny"]
    assert {row["blas"] for row in rows} == {1}
    local = run_tasks(study, runner_tasks.either, out=tmp_path / "local")
    expected = table(local.rows, tmp_path / "local.csv")
    assert table(rows, tmp_path / "ray.csv") == expected


@pytest.mark.slow
def test_ray_without_an_address_is_started_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    run = run_tasks(SMALL, runner_tasks.noisy, out=tmp_path, backend="ray")
    assert not ray.is_initialized()
    assert (run.computed, run.failures) == (6, ())
