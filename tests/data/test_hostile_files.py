"""Files made to run code, to reach other files, or to eat all memory: refused with a sentence."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logel.data.history import LearningHistory
from logel.data.limits import Limits
from logel.data.stage import Episode
from logel.errors import FormatError, HistoryError, LogelError

h5py = pytest.importorskip("h5py")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

HEADER = "stage,episode,time,observation,action"


class Bomb:
    """Unpickling this creates the sentinel."""

    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.sentinel),)


@pytest.fixture
def sentinel(tmp_path: Path) -> Path:
    return tmp_path / "code-was-run"


def history() -> LearningHistory:
    return LearningHistory.from_episodes(
        [[Episode([0, 1, 2], [0, 1], [[1.0], [2.0]])] for _ in range(2)]  # type: ignore[arg-type,list-item]
    )


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """The data folder of a good Minari dataset, to be spoilt."""
    return history().to_minari(tmp_path / "datasets")[0] / "data"


def spoil(dataset: Path, name: str, make: Callable[[Any, str], Any]) -> None:
    """Replace one entry of the HDF5 file."""
    with h5py.File(dataset / "main_data.hdf5", "a") as file:
        if name in file:
            del file[name]
        make(file, name)


def declare(dataset: Path, **metadata: Any) -> None:
    path = dataset / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **metadata}))


# --- Minari ---------------------------------------------------------------------------------


def test_an_environment_in_the_metadata_is_never_built(dataset: Path, sentinel: Path) -> None:
    """Without stored spaces Minari itself would build it; the entry point runs a command."""
    spec = {
        "id": "Evil-v0",
        "entry_point": "os:mkdir",
        "kwargs": {"path": str(sentinel)},
        "additional_wrappers": [],
        "vector_entry_point": None,
    }
    declare(dataset, env_spec=json.dumps(spec), eval_env_spec=json.dumps(spec))
    raw = json.loads((dataset / "metadata.json").read_text())
    for key in ("observation_space", "action_space"):
        del raw[key]
    (dataset / "metadata.json").write_text(json.dumps(raw))
    assert LearningHistory.from_minari([dataset])[0].n_steps == 2
    assert not sentinel.exists()
    minari = pytest.importorskip("minari")
    with suppress(Exception):
        minari.MinariDataset(dataset)
    assert sentinel.exists(), "the trap of this test must be a real one"


def test_pickled_objects_are_not_read(dataset: Path, sentinel: Path) -> None:
    data = np.frombuffer(pickle.dumps(Bomb(sentinel)), dtype=np.uint8)

    def opaque(file: Any, name: str) -> None:
        file.create_dataset(name, data=np.array([np.void(data.tobytes())]))

    def objects(file: Any, name: str) -> None:
        made = file.create_dataset(name, (1,), dtype=h5py.vlen_dtype(np.uint8))
        made[0] = data

    for make in (opaque, objects):
        spoil(dataset, "episode_0/observations", make)
        with pytest.raises(FormatError, match=r"episode_0/observations: must be numbers, but hol"):
            LearningHistory.from_minari([dataset])
    assert not sentinel.exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f, n: f.__setitem__(n, h5py.ExternalLink("/etc/passwd", "x")), "is a link to some"),
        (lambda f, n: f.__setitem__(n, h5py.ExternalLink("../o.h5", "/x")), "is a link to some"),
        (lambda f, n: f.__setitem__(n, h5py.SoftLink("/episode_0/actions")), "is a link to some"),
        (
            lambda f, n: f.create_dataset(n, (3,), "i8", external=[("/etc/passwd", 0, 24)]),
            "keeps its data in another file",
        ),
        (
            lambda f, n: f.create_dataset(n, (2**40,), "f8", chunks=(1024,), compression="gzip"),
            "declares 1099511627776 cells, more than the limit",
        ),
        (
            lambda f, n: f.create_dataset(n, (2**12, 2**12, 2**12), "f4", chunks=(1, 64, 64)),
            "cells, more than the limit",
        ),
        (lambda f, n: f.create_dataset(n, data=3.0), "is a single value"),
        (lambda f, n: f.create_dataset(n, data=h5py.Empty("f8")), "is a single value"),
        (lambda f, n: f.create_dataset(n, data=[b"a", b"b", b"c"]), "must be numbers, but holds"),
        (lambda f, n: f.create_group(n).create_dataset("x", data=[1]), "is a group .*flatten"),
    ],
)
def test_entries_that_are_not_plain_numbers_are_refused(
    dataset: Path, make: Callable[[Any, str], Any], message: str
) -> None:
    spoil(dataset, "episode_0/observations", make)
    with pytest.raises(FormatError, match=rf"main_data.hdf5, episode_0/observations.*{message}"):
        LearningHistory.from_minari([dataset])


def test_virtual_datasets_do_not_reach_other_files(dataset: Path, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file.create_dataset("key", data=[1, 2, 3])

    def virtual(file: Any, name: str) -> None:
        layout = h5py.VirtualLayout((3,), "i8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "secret.h5"), "key", (3,))
        file.create_virtual_dataset(name, layout)

    spoil(dataset, "episode_0/observations", virtual)
    with pytest.raises(FormatError, match="keeps its data in another file"):
        LearningHistory.from_minari([dataset])


def test_filters_that_need_plugins_are_refused(dataset: Path) -> None:
    def blosc(file: Any, name: str) -> None:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((3,))
        properties.set_filter(32001, h5py.h5z.FLAG_OPTIONAL, ())
        space = h5py.h5s.create_simple((3,))
        kind = h5py.h5t.NATIVE_INT64
        h5py.h5d.create(file.id, name.encode(), kind, space, dcpl=properties)

    spoil(dataset, "episode_0/observations", blosc)
    with pytest.raises(FormatError, match="filter 32001, which would need a plug-in"):
        LearningHistory.from_minari([dataset])


def test_a_linked_episode_or_file_is_refused(dataset: Path, tmp_path: Path) -> None:
    data = dataset / "main_data.hdf5"
    with h5py.File(data, "a") as file:
        file.copy("episode_0", "other")
        del file["episode_0"]
        file["episode_0"] = h5py.ExternalLink("elsewhere.h5", "/episode_0")
        del file["other"]
    with pytest.raises(FormatError, match=r"episode_0.*is a link to somewhere else"):
        LearningHistory.from_minari([dataset])
    data.rename(tmp_path / "elsewhere.h5")
    data.symlink_to(tmp_path / "elsewhere.h5")
    with pytest.raises(FormatError, match=r"main_data\.hdf5 is missing or not a plain file"):
        LearningHistory.from_minari([dataset])


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"total_episodes": 5}, r"5 of them.*but holds 1"),
        ({"data_format": "arrow"}, "stores its data as 'arrow': only hdf5 is read"),
        ({"data_format": "../../x"}, "only hdf5 is read"),
        ({"observation_space": '{"type": "Dict"}'}, "observation_space: 'Dict' is not an array"),
        ({"observation_space": '{"type": "Box", "shape": [7]}'}, r"has rows of shape \(\), but"),
        ({"observation_space": '{"type": "Box"}'}, "is not a space of Minari"),
        ({"action_space": "[" * 100_000}, "is not a space of Minari"),
        ({"logel": {"parameters": ["x"]}}, "key 'logel'"),
        ({"logel": {"feature_names": [1]}}, "key 'logel': feature_names must be texts"),
        ({"logel": {"feature_names": ["a", "b"]}}, "1 features, but 2 feature_names"),
        ({"logel": 7}, "key 'logel'"),
        ({"logel": {"parameters": [[1.0]]}}, "must be flat"),
    ],
)
def test_metadata_that_makes_no_sense_is_named(
    dataset: Path, metadata: dict[str, Any], message: str
) -> None:
    declare(dataset, **metadata)
    with pytest.raises(LogelError, match=message):
        LearningHistory.from_minari([dataset])


def put(value: Any) -> Callable[[Any, str], Any]:
    return lambda file, name: file.create_dataset(name, data=value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "terminations",
            [True, False],
            "episode_0, terminations: true at time 0, but",
        ),
        ("terminations", [False], "episode_0, terminations: must be 2 numbers, one per action"),
        ("rewards", [1.0], "episode_0, rewards: must be 2 numbers, one per action"),
        ("observations", [1, 2, 3, 4], "episode_0: observations must have 3 rows"),
        ("infos/features", [[1.0], [np.nan]], r"episode_0: features must be finite, but entry \(1"),
        ("infos/features", [[1.0]], r"episode_0: features must have shape \(2, q\)"),
        ("actions", np.zeros(0, dtype=int), "must be 0 numbers"),
    ],
)
def test_bad_episodes_are_named(dataset: Path, name: str, value: Any, message: str) -> None:
    spoil(dataset, f"episode_0/{name}", put(value))
    with pytest.raises(HistoryError, match=rf"main_data\.hdf5, .*{message}"):
        LearningHistory.from_minari([dataset])


def test_missing_arrays_and_files_are_named(dataset: Path, tmp_path: Path) -> None:
    spoil(dataset, "episode_0/actions", lambda file, name: None)
    with pytest.raises(FormatError, match=r"main_data\.hdf5 has no episode_0/actions"):
        LearningHistory.from_minari([dataset])
    (dataset / "main_data.hdf5").write_bytes(b"not HDF5")
    with pytest.raises(FormatError, match=r"main_data\.hdf5 is corrupted or truncated"):
        LearningHistory.from_minari([dataset])
    with pytest.raises(FormatError, match="nowhere is not a Minari dataset"):
        LearningHistory.from_minari([tmp_path / "nowhere"])
    with (dataset / "metadata.json").open("ab") as file:
        file.truncate(65 * 2**20)
    with pytest.raises(FormatError, match="metadata bytes, more than the limit"):
        LearningHistory.from_minari([dataset])


def test_datasets_that_disagree_are_named(tmp_path: Path) -> None:
    one = history().to_minari(tmp_path / "one")[0]
    named = LearningHistory.from_episodes(
        [[Episode([0, 1], [0], [[1.0]])]],  # type: ignore[arg-type,list-item]
        feature_names=["a"],
    ).to_minari(tmp_path / "two")[0]
    with pytest.raises(HistoryError, match="name their features differently"):
        LearningHistory.from_minari([one, named])
    floats = LearningHistory.from_episodes([[Episode([0.5, 1], [0], [[1.0]])]])  # type: ignore[arg-type,list-item]
    with pytest.raises(HistoryError, match="stage 1 disagrees with the history"):
        LearningHistory.from_minari([one, *floats.to_minari(tmp_path / "three")])
    with pytest.raises(FormatError, match="already exists"):
        floats.to_minari(tmp_path / "three")
    for wrong in (str(one), [7], []):
        with pytest.raises(LogelError, match="dataset"):
            LearningHistory.from_minari(wrong)  # type: ignore[arg-type]


@given(st.data())
@settings(max_examples=60)
def test_flipped_bytes_are_a_history_or_a_sentence(data: st.DataObject) -> None:
    """HDF5 has no checksum over everything, so some damage passes; none may escape as a crash."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = history().to_minari(Path(folder) / "d")[0] / "data"
        path = dataset / "main_data.hdf5"
        raw = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
        path.write_bytes(raw)
        try:
            LearningHistory.from_minari([dataset])
        except LogelError as error:
            assert "main_data.hdf5" in str(error) or "d/stage" in str(error)


# --- tables ---------------------------------------------------------------------------------


def test_compressed_tables_are_not_unpacked(tmp_path: Path) -> None:
    for name in ("bomb.csv", "bomb.csv.gz"):
        with gzip.open(tmp_path / name, "wb") as file:
            file.write(b"0" * 2**22)
        with pytest.raises(FormatError, match=r"bomb.*is compressed: unpack it first"):
            LearningHistory.from_csv(tmp_path / name)


def test_a_pickle_in_place_of_a_table_is_not_loaded(tmp_path: Path, sentinel: Path) -> None:
    pickled = tmp_path / "table.csv"
    pickled.write_bytes(pickle.dumps(Bomb(sentinel)))
    zipped = tmp_path / "table.parquet"
    np.savez(tmp_path / "table.npz", a=np.array([Bomb(sentinel)], dtype=object))
    (tmp_path / "table.npz").rename(zipped)
    for read, path in (
        (LearningHistory.from_csv, pickled),
        (LearningHistory.from_parquet, pickled),
        (LearningHistory.from_csv, zipped),
        (LearningHistory.from_parquet, zipped),
    ):
        with pytest.raises(LogelError, match="table"):
            read(path)
    assert not sentinel.exists()


def test_pickled_columns_and_pandas_metadata_are_not_believed(
    tmp_path: Path, sentinel: Path
) -> None:
    table = pa.table(
        {
            "stage": [0],
            "episode": [0],
            "time": [0],
            "observation": [0],
            "action": pa.array([pickle.dumps(Bomb(sentinel))]),
        }
    )
    field = pa.field("action", pa.binary(), metadata={"ARROW:extension:name": "arrow.py_extension"})
    table = table.cast(table.schema.set(4, field))
    pq.write_table(table.replace_schema_metadata({"pandas": "{"}), tmp_path / "t.parquet")
    with pytest.raises(LogelError, match=r"t\.parquet"):
        LearningHistory.from_parquet(tmp_path / "t.parquet")
    assert not sentinel.exists()


def test_huge_fields_and_lines_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    path.write_text(f"{HEADER}\n0,0,0,{'1' * 2**21},0\n")
    with pytest.raises(FormatError, match=r"wide\.csv, line 2:.* line bytes, more than the limit"):
        LearningHistory.from_csv(path)
    path.write_text(",".join(f"c{k}" for k in range(30_000)))
    with pytest.raises(FormatError, match=r"wide\.csv declares 30000 columns"):
        LearningHistory.from_csv(path)
    path.write_text(f"{HEADER}\n" + "0,0,0,0,0\n" * 100)
    with pytest.raises(FormatError, match=r"wide\.csv declares 500 cells, more than .* 499"):
        LearningHistory.from_csv(path, limits=Limits(cells=499))
    with path.open("ab") as file:
        file.truncate(5 * 2**30)
    with pytest.raises(FormatError, match="file bytes, more than the limit"):
        LearningHistory.from_csv(path)


def test_absurd_row_counts_of_parquet_are_refused(tmp_path: Path) -> None:
    """A constant column packs a hundred million rows into a few bytes."""
    path = tmp_path / "bomb.parquet"
    rows = 2 * 10**6
    column = pa.array(np.zeros(rows, dtype=np.int8))
    pq.write_table(pa.table({name: column for name in HEADER.split(",")}), path)
    assert path.stat().st_size < rows // 50
    with pytest.raises(FormatError, match=r"bomb\.parquet declares 10000000 cells, more than"):
        LearningHistory.from_parquet(path, limits=Limits(cells=5 * rows - 1))
    with pytest.raises(FormatError, match=r"bomb\.parquet declares 5 columns"):
        LearningHistory.from_parquet(path, limits=Limits(columns=4))


def test_the_limit_is_for_all_files_together(tmp_path: Path) -> None:
    for t in range(3):
        (tmp_path / f"{t}.csv").write_text(f"{HEADER.removeprefix('stage,')}\n0,0,1,1\n")
    paths = [tmp_path / f"{t}.csv" for t in range(3)]
    assert len(LearningHistory.from_csv(paths, limits=Limits(cells=12))) == 3
    with pytest.raises(FormatError, match=r"2\.csv, with all .* declares 12 cells"):
        LearningHistory.from_csv(paths, limits=Limits(cells=11))


def test_the_limit_is_for_all_datasets_together(tmp_path: Path) -> None:
    paths = history().to_minari(tmp_path / "datasets")
    # Two steps: 3 observations and twice 2 actions, rewards, terminations, features.
    assert len(LearningHistory.from_minari(paths, limits=Limits(cells=22))) == 2
    with pytest.raises(FormatError, match=r"stage-00001.*with all that .* declares 22 cells"):
        LearningHistory.from_minari(paths, limits=Limits(cells=21))


@pytest.mark.parametrize("name", ["folder", "pipe", "missing"])
def test_only_plain_files_are_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for read in (LearningHistory.from_csv, LearningHistory.from_parquet):
        with pytest.raises(FormatError, match=f"{name} is missing or not a plain file"):
            read(tmp_path / name)


@given(st.data())
@settings(max_examples=100)
def test_damaged_parquet_is_a_history_or_a_sentence(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.parquet"
        frame = pd.DataFrame(
            {"stage": 0, "episode": 0, "time": range(4), "observation": 0.5, "action": [0, 1, 0, 1]}
        )
        frame.to_parquet(path)
        raw = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
        path.write_bytes(raw)
        try:
            LearningHistory.from_parquet(path)
        except LogelError as error:
            assert "t.parquet" in str(error)
