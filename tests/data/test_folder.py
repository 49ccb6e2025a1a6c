"""Histories on disk: what goes in comes out, and nothing malformed gets past the door."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from logel.data.folder import FORMAT_VERSION, MANIFEST, STAGES, HistoryWriter
from logel.data.history import LearningHistory
from logel.data.stage import Episode, Stage
from logel.errors import FormatError, HistoryError

FIELDS = [f.name for f in fields(Stage)]


def small_history(n_stages: int = 3, **options: Any) -> LearningHistory:
    rng = np.random.default_rng(0)
    return LearningHistory.from_episodes(
        [
            [Episode(rng.integers(0, 4, n + 1), rng.integers(0, 2, n), rng.normal(size=(n, 2)))]
            for n in range(1, n_stages + 1)
        ],
        **options,
    )


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    small_history().save(tmp_path / "history")
    return tmp_path / "history"


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest with the stages' lines in it, as both were one file in version 1."""
    lines = [json.loads(line) for line in (folder / STAGES).read_text().splitlines()]
    complete = {"complete": True} in lines
    stages = [line for line in lines if line != {"complete": True}]
    header = json.loads((folder / MANIFEST).read_text())
    return {**header, "stages": stages, "complete": complete}


def write_manifest(folder: Path, manifest: Any) -> None:
    """As version 2 has it where that is possible, else everything in one file."""
    if isinstance(manifest, dict) and isinstance(manifest.get("stages"), list):
        ends = [{"complete": True}] if manifest.get("complete") is True else []
        lines = [json.dumps(line) for line in (*manifest["stages"], *ends)]
        (folder / STAGES).write_text("".join(f"{line}\n" for line in lines))
    (folder / MANIFEST).write_text(json.dumps(manifest))


def rewrite_stage(folder: Path, index: int, arrays: dict[str, Any]) -> None:
    """Put other arrays into a stage's file, with the right checksum in the manifest."""
    import hashlib

    data = safetensors.numpy.save(arrays)
    manifest = read_manifest(folder)
    (folder / manifest["stages"][index]["file"]).write_bytes(data)
    signed = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    manifest["stages"][index].update(signed)
    write_manifest(folder, manifest)


def read_everything(folder: Path) -> LearningHistory:
    history = LearningHistory.load(folder)
    for stage in history:
        assert stage.n_steps > 0
    history.parameters()
    return history


# --- round trip -----------------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> LearningHistory:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    action_shape = draw(st.sampled_from([(), (2,)]))
    discrete_states, discrete_actions = draw(st.booleans()), draw(st.booleans())
    with_features, last_seen = draw(st.booleans()), draw(st.booleans())
    dtype = draw(st.sampled_from([np.float64, np.float32]))
    lengths = draw(
        st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=4)
    )

    def values(discrete: bool, size: tuple[int, ...]) -> Any:
        if discrete:
            return rng.integers(-(2**62), 2**62, size)
        return (rng.normal(size=size) * 10.0 ** rng.integers(-30, 30)).astype(dtype)

    def episode(n: int) -> Episode:
        return Episode(
            values(discrete_states, (n + last_seen, *shape)),
            values(discrete_actions, (n, *action_shape)),
            rng.normal(size=(n, 3)) if with_features else None,
            bool(rng.integers(2)),
        )

    m = len(lengths)
    with_names = draw(st.booleans())
    names = draw(
        st.lists(st.text(max_size=5).filter(str.isprintable), min_size=3, max_size=3, unique=True)
    )
    return LearningHistory.from_episodes(
        [[episode(n) for n in stage] for stage in lengths],
        parameters=rng.normal(size=(m, 5)) if draw(st.booleans()) else None,
        learning_rates=rng.random(m - 1) + 1e-9 if m > 1 and draw(st.booleans()) else None,
        feature_names=names if with_names else None,
        metadata=draw(st.dictionaries(st.text(max_size=4), st.none() | st.floats(allow_nan=False))),
        own_episodes=draw(st.sampled_from([None, False, True])),
    )


@given(histories())
@settings(max_examples=40)
def test_what_is_saved_is_loaded(history: LearningHistory) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "deep" / "history"
        history.save(path)
        loaded = LearningHistory.load(path)
        assert len(loaded) == len(history)
        assert loaded.signature == history.signature
        assert loaded.feature_names == history.feature_names
        assert loaded.complete and dict(loaded.metadata) == dict(history.metadata)
        assert loaded.own_episodes is history.own_episodes
        np.testing.assert_array_equal(loaded.learning_rates, history.learning_rates)
        for one, two in zip(loaded, history, strict=True):
            for name in FIELDS:
                left, right = getattr(one, name), getattr(two, name)
                assert (left is None) == (right is None), name
                if right is not None:
                    np.testing.assert_array_equal(left, right)
                    assert left.dtype == right.dtype and left.flags.writeable is False
        # Nothing but the manifest and the stages stays behind.
        stages = {f"stage-{t:05d}.safetensors" for t in range(len(history))}
        assert {p.name for p in path.iterdir()} == {MANIFEST, STAGES, *stages}


def test_histories_of_version_1_are_still_read(saved: Path) -> None:
    manifest = read_manifest(saved)
    (saved / STAGES).unlink()
    (saved / MANIFEST).write_text(json.dumps({**manifest, "format_version": 1}))
    opened = read_everything(saved)
    assert len(opened) == 3 and opened.complete
    (saved / MANIFEST).write_text(json.dumps({**manifest, "format_version": 1, "complete": False}))
    assert not read_everything(saved).complete


def test_the_same_history_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        small_history(feature_names=["a", "b"], metadata={"k": 1}).save(tmp_path / name)
    one, two = (sorted((tmp_path / name).iterdir()) for name in ("one", "two"))
    assert [p.read_bytes() for p in one] == [p.read_bytes() for p in two]


def test_the_manifest_says_what_made_it(saved: Path) -> None:
    manifest = read_manifest(saved)
    assert manifest["format_version"] == FORMAT_VERSION == 2
    assert {"python", "logel", "numpy", "torch"} <= manifest["packages"].keys()
    assert [entry["steps"] for entry in manifest["stages"]] == [1, 2, 3]


@pytest.mark.parametrize("said", [True, False])
def test_folders_from_before_the_field_say_whose_episodes_they_hold(
    saved: Path, said: bool
) -> None:
    manifest = read_manifest(saved)
    del manifest["own_episodes"]
    metadata = {"learnt_from_these_episodes": said, "gamma": 0.9}
    write_manifest(saved, {**manifest, "metadata": metadata})
    loaded = LearningHistory.load(saved)
    assert loaded.own_episodes is said and dict(loaded.metadata) == {"gamma": 0.9}
    write_manifest(saved, {**manifest, "metadata": metadata, "own_episodes": not said})
    assert LearningHistory.load(saved).own_episodes is not said, "the field is the newer word"


@pytest.mark.parametrize("said", ["yes", 1, [], {}])
def test_own_episodes_are_true_false_or_not_said(saved: Path, said: Any) -> None:
    write_manifest(saved, {**read_manifest(saved), "own_episodes": said})
    with pytest.raises(FormatError, match=r"manifest\.json .*own_episodes must be true, false or"):
        LearningHistory.load(saved)


def test_opening_reads_no_stage(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    plain = os.open

    def spy(path: Any, *arguments: Any) -> int:
        opened.append(Path(path).name)
        return plain(path, *arguments)

    monkeypatch.setattr(os, "open", spy)
    history = LearningHistory.load(saved).slice(1)
    assert opened == [MANIFEST, STAGES] and len(history) == 2
    assert history[0].n_steps == 2
    assert opened == [MANIFEST, STAGES, "stage-00001.safetensors"]


def test_missing_stages_matter_only_when_asked_for(saved: Path) -> None:
    (saved / "stage-00001.safetensors").unlink()
    history = LearningHistory.load(saved)
    assert len(history) == 3 and history[0].n_steps == 1 and history[2].n_steps == 3
    with pytest.raises(FormatError, match=r"stage 1: .*is missing or not a plain file"):
        history[1]


# --- corrupted, foreign, hostile ------------------------------------------------------------


@given(st.data())
@settings(max_examples=25)
def test_any_corrupted_byte_is_noticed(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "history"
        small_history(2).save(folder)
        path = folder / "stage-00001.safetensors"
        raw = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] ^= data.draw(st.integers(1, 255))
        path.write_bytes(raw)
        history = LearningHistory.load(folder)
        assert history[0].n_steps == 1
        with pytest.raises(FormatError, match=r"stage 1: .*stage-00001.*corrupted or truncated"):
            history[1]


@pytest.mark.parametrize("kept", [0, 1, 50, -1])
def test_a_truncated_stage_is_noticed(saved: Path, kept: int) -> None:
    path = saved / "stage-00002.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(FormatError, match=r"stage 2: .*corrupted or truncated"):
        LearningHistory.load(saved)[2]


def test_links_are_refused(saved: Path, tmp_path: Path) -> None:
    path = saved / "stage-00000.safetensors"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FormatError, match=r"stage 0: .*not a plain file"):
        LearningHistory.load(saved)[0]


@pytest.mark.parametrize(
    "name",
    [
        "../history/stage-00000.safetensors",
        "/etc/passwd",
        "stage-00000.safetensors/../stage-00001.safetensors",
        "stage-00000.safetensors\n",
        "stage-00000.pt",
        "",
        None,
        7,
    ],
)
def test_names_that_are_not_a_stages_are_refused(saved: Path, name: Any) -> None:
    manifest = read_manifest(saved)
    manifest["stages"][0]["file"] = name
    write_manifest(saved, manifest)
    with pytest.raises(FormatError, match="not a stage's file"):
        LearningHistory.load(saved)


def test_a_newer_format_asks_for_an_upgrade(saved: Path) -> None:
    write_manifest(saved, {**read_manifest(saved), "format_version": FORMAT_VERSION + 1})
    with pytest.raises(FormatError, match=r"version 3, but this logel reads up to 2: upgrade"):
        LearningHistory.load(saved)


def test_paths_that_are_not_a_history(tmp_path: Path, saved: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("hello")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / MANIFEST).write_text('{"name": "a web page"}')
    (tmp_path / "binary").mkdir()
    (tmp_path / "binary" / MANIFEST).write_bytes(b"\xff\xfe\x00")
    for name in ("nowhere", "empty", "file", "foreign"):
        with pytest.raises(FormatError, match=f"{name} is not a learning history"):
            LearningHistory.load(tmp_path / name)
    with pytest.raises(FormatError, match="corrupted or truncated"):
        LearningHistory.load(tmp_path / "binary")
    write_manifest(saved, {**read_manifest(saved), "stages": []})
    with pytest.raises(FormatError, match="holds no stage yet"):
        LearningHistory.load(saved)


def test_a_huge_manifest_is_not_read(saved: Path) -> None:
    with (saved / MANIFEST).open("ab") as file:
        file.truncate(3 * 2**30)
    with pytest.raises(FormatError, match=r"manifest.json would take .* more than the budget"):
        LearningHistory.load(saved)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"observations": np.zeros(1)}, "not a stage's arrays"),
        ({"evil": np.zeros(1)}, "not a stage's arrays"),
        ({"lengths": np.array([2])}, "must have 2 rows"),
        ({"lengths": np.array([np.nan])}, "lengths must be finite"),
        ({"features": np.array([[np.nan, 0.0]])}, "features must be finite"),
        ({"features": np.zeros((1, 5))}, "n_features 5 instead of 2"),
        ({"actions": np.array([0.5])}, "discrete_actions False instead of True"),
        ({"terminated": np.zeros((1, 0))}, "terminated"),
        ({"parameters": np.zeros((1, 1))}, "parameters"),
    ],
)
def test_well_signed_nonsense_is_refused(saved: Path, arrays: dict[str, Any], message: str) -> None:
    good = safetensors.numpy.load((saved / "stage-00000.safetensors").read_bytes())
    rewrite_stage(saved, 0, arrays if "observations" in arrays else {**good, **arrays})
    history = LearningHistory.load(saved)
    with pytest.raises(FormatError, match=f"stage 0: .*{message}"):
        history[0]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)


@contextmanager
def only_format_errors() -> Iterator[None]:
    """Anything but success or a FormatError with a sentence in it fails the test."""
    with suppress(FormatError):
        try:
            yield
        except FormatError as error:
            assert len(str(error)) > 20
            raise


@given(st.binary(max_size=200) | json_values.map(lambda v: json.dumps(v).encode()))
@settings(max_examples=150)
def test_arbitrary_manifests_are_format_errors(text: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / MANIFEST).write_bytes(text)
        with pytest.raises(FormatError):
            LearningHistory.load(folder)


def paths_of(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every position in nested lists and dictionaries."""
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items if isinstance(value, dict | list) else ():
        if isinstance(inner, dict | list):
            yield from paths_of(inner, (*at, key))
        else:
            yield (*at, key)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template") / "history"
    history = small_history(
        parameters=np.zeros((3, 2)), learning_rates=[0.1, 0.2], feature_names=["a", "b"]
    )
    history.save(folder)
    return folder


@given(st.data())
@settings(max_examples=250)
def test_mutated_manifests_are_opened_or_format_errors(template: Path, data: st.DataObject) -> None:
    manifest = read_manifest(template)
    original = copy.deepcopy(manifest)
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.sampled_from([p for p in paths_of(manifest) if p]))
        inside = manifest
        for key in at[:-1]:
            inside = inside[key]
        if isinstance(inside, dict) and data.draw(st.booleans()):
            del inside[at[-1]]
        else:
            inside[at[-1]] = data.draw(json_values)
    try:
        write_manifest(template, manifest)
        with only_format_errors():
            read_everything(template)
    finally:
        write_manifest(template, original)


@pytest.mark.parametrize("names", [5, 1.5, True, [["a"], "b"], "ab", {"a": 1, "b": 2}])
def test_names_that_are_not_a_list_of_texts_are_refused(saved: Path, names: Any) -> None:
    write_manifest(saved, {**read_manifest(saved), "feature_names": names})
    with pytest.raises(FormatError, match="feature_names"):
        LearningHistory.load(saved)


def test_deep_nesting_is_a_format_error(saved: Path) -> None:
    (saved / MANIFEST).write_text("[" * 100_000)
    with pytest.raises(FormatError, match="corrupted or truncated"):
        LearningHistory.load(saved)


def test_parameters_that_change_size_are_a_clear_error(saved: Path) -> None:
    for t in range(3):
        arrays = safetensors.numpy.load((saved / f"stage-{t:05d}.safetensors").read_bytes())
        rewrite_stage(saved, t, {**arrays, "parameters": np.zeros(t + 1)})
    write_manifest(saved, {**read_manifest(saved), "n_parameters": 1})
    with pytest.raises(FormatError, match="stage 1: parameters must be like those of stage 0"):
        LearningHistory.load(saved).parameters()


# --- writing --------------------------------------------------------------------------------


def test_an_existing_path_is_refused_and_left_alone(saved: Path, tmp_path: Path) -> None:
    before = {p.name: p.read_bytes() for p in saved.iterdir()}
    with pytest.raises(FormatError, match="already exists: choose another path"):
        small_history(2).save(saved)
    assert {p.name: p.read_bytes() for p in saved.iterdir()} == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FormatError, match="already exists"):
        small_history().save(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    small_history().save(tmp_path / "empty")
    assert len(LearningHistory.load(tmp_path / "empty")) == 3


@pytest.mark.parametrize(
    ("options", "rate", "message"),
    [
        ({"metadata": {"x": object()}}, None, "metadata must be JSON-serialisable"),
        ({"feature_names": ["a"]}, None, "2 features, but 1 feature_names"),
        ({"feature_names": ["a", "a"]}, None, "must differ from each other"),
        ({"own_episodes": "yes"}, None, "own_episodes must be True, False or None, but is 'yes'"),
        ({}, -0.5, "learning rates must be positive, but step 0 has -0.5"),
        ({}, float("nan"), "learning rates must be positive, but step 0 has nan"),
    ],
)
def test_the_writer_refuses_what_would_not_open(
    tmp_path: Path, options: dict[str, Any], rate: float | None, message: str
) -> None:
    history = small_history()
    path = tmp_path / "history"
    with pytest.raises(HistoryError, match=message):  # noqa: SIM117
        with HistoryWriter(path, **options) as writer:
            writer.append(history[0])
            writer.append(history[1], learning_rate=rate)
    if rate is None:
        assert not path.exists()
    else:
        assert len(read_everything(path)) == 1


def test_the_writer_refuses_stages_that_do_not_go_together(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path / "history")
    writer.append(Stage.from_episodes([Episode([0, 1], [0])], np.zeros(2)))  # type: ignore[list-item]
    with pytest.raises(HistoryError, match="stage 1 disagrees with the history"):
        writer.append(Stage.from_episodes([Episode([0.0, 1.0], [0])], np.zeros(2)))  # type: ignore[list-item]
    for other in (None, np.zeros(3)):
        with pytest.raises(HistoryError, match="stage 1: parameters must be like those of stage 0"):
            writer.append(Stage.from_episodes([Episode([0, 1], [0])], other))  # type: ignore[list-item]
    writer.close()
    assert len(read_everything(tmp_path / "history")) == 1


def test_an_interrupted_history_opens_with_the_stages_it_has(tmp_path: Path) -> None:
    history = small_history()
    path = tmp_path / "history"
    with pytest.raises(KeyboardInterrupt):  # noqa: SIM117
        with HistoryWriter(path) as writer:
            for stage in list(history)[:2]:
                writer.append(stage, learning_rate=0.1)
            assert len(read_everything(path)) == 2  # readable while it is being written
            raise KeyboardInterrupt
    opened = read_everything(path)
    assert len(opened) == 2 and not opened.complete
    assert opened.slice(0).complete is False
    np.testing.assert_array_equal(opened[1].actions, history[1].actions)


def test_a_failing_disk_costs_one_stage_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history, path = small_history(), tmp_path / "history"
    writer = HistoryWriter(path)
    writer.append(history[0])

    def full(descriptor: int) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space"):
            writer.append(history[1])
    assert {p.name for p in path.iterdir()} == {MANIFEST, STAGES, "stage-00000.safetensors"}
    writer.append(history[1])
    writer.close()
    opened = read_everything(path)
    assert len(opened) == 2 and opened.complete


WRITE_FOREVER = """
import sys
import numpy as np
from logel.data.folder import HistoryWriter
from logel.data.stage import Episode, Stage
writer = HistoryWriter(sys.argv[1])
for t in range(10**6):
    n = 20_000
    writer.append(Stage.from_episodes([Episode(np.arange(n + 1), np.full(n, t))]))
"""


@pytest.mark.parametrize("delay", [0.0, 0.013, 0.029])
def test_a_killed_writer_leaves_a_history(tmp_path: Path, delay: float) -> None:
    path = tmp_path / "history"
    process = subprocess.Popen([sys.executable, "-c", WRITE_FOREVER, str(path)])
    try:
        deadline = time.monotonic() + 300
        while not (path / "stage-00003.safetensors").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(delay)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    opened = read_everything(path)
    assert len(opened) >= 3 and not opened.complete
    assert [int(stage.actions[0]) for stage in opened] == list(range(len(opened)))
