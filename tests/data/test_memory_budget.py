"""What would take more memory than the budget is refused before any of it is taken."""

from __future__ import annotations

import json
import os
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logel.data.folder import MANIFEST, STAGES
from logel.data.history import LearningHistory
from logel.data.limits import MEMORY, Limits, ask_memory, memory_budget, parse_json
from logel.data.stage import Episode
from logel.errors import FormatError, LogelError, OptionError, TooLargeError
from logel.inference.estimate import RewardEstimate
from logel.inference.infer import infer_reward
from logel.policies.choose import choose_policy
from logel.policies.sb3_checkpoint import read_checkpoint
from logel.policies.softmax import TabularSoftmax

GIBIBYTE = 2**30


@contextmanager
def little_memory(most: int = 64 * 2**20) -> Iterator[None]:
    """Fails if Python or NumPy take more than some MiB meanwhile."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def history(observations: Any = (0, 1, 2), **metadata: Any) -> LearningHistory:
    episode = Episode(np.array(observations), np.arange(2), np.ones((2, 1)))
    return LearningHistory.from_episodes([[episode]] * 3, metadata=metadata)


# --- the budget ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "meant"),
    [("", GIBIBYTE), ("1000", 1000), ("64M", 2**26), (" 8g ", 2**33), ("8GiB", 2**33)],
)
def test_the_budget_is_one_gibibyte_or_what_the_environment_says(
    said: str, meant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MEMORY, said)
    assert memory_budget() == meant
    ask_memory(meant, "this")
    with pytest.raises(TooLargeError, match=r"this would take .* set LOGEL_MEMORY, for example to"):
        ask_memory(meant + 1, "this")


@pytest.mark.parametrize("said", ["much", "0", "-1", "1.5G", "8X"])
def test_a_budget_that_is_no_amount_is_refused(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEMORY, said)
    with pytest.raises(OptionError, match="LOGEL_MEMORY is an amount of memory such as 8G"):
        memory_budget()


@pytest.mark.parametrize("text", ["[{},{},{}]", "[[],[],[]]", '[{"":0},{"":0}]', '["\U0001f600"]'])
def test_the_cost_of_json_is_not_underestimated(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = text[1:-1]
    data = f"[{','.join([inside] * 20_000)}]".encode()
    tracemalloc.start()
    parsed = parse_json(data, "text")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert parsed
    monkeypatch.setenv(MEMORY, str(peak))
    with pytest.raises(TooLargeError):
        parse_json(data, "text")


# --- the holes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n_chunks", [2**20, 2**24])
def test_chunk_counts_of_hdf5(tmp_path: Path, n_chunks: int) -> None:
    h5py = pytest.importorskip("h5py")
    dataset = history().to_minari(tmp_path / "datasets")[0] / "data"
    with h5py.File(dataset / "main_data.hdf5", "a") as file:
        del file["episode_0/observations"]
        made = file.create_dataset(
            "episode_0/observations", (n_chunks,), "i1", chunks=(1,), fillvalue=0
        )
        made[0] = 1
    with little_memory(), pytest.raises(TooLargeError, match=rf"in {n_chunks} chunks, would take"):
        LearningHistory.from_minari([dataset])


def test_a_stage_of_another_size_than_the_manifest_says(tmp_path: Path) -> None:
    folder = tmp_path / "h"
    history().save(folder)
    os.truncate(folder / "stage-00001.safetensors", 100 * 10**9)  # sparse
    opened = LearningHistory.load(folder)
    with (
        little_memory(),
        pytest.raises(FormatError, match=r"has 100000000000 bytes, but \d+"),
    ):
        opened[1]
    lines = (folder / STAGES).read_text().splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), "bytes": 100 * 10**9})
    (folder / STAGES).write_text("\n".join(lines) + "\n")
    with little_memory(), pytest.raises(TooLargeError, match=r"stage-00001.* more than the budget"):
        LearningHistory.load(folder)[1]


@pytest.mark.parametrize(
    ("observations", "metadata"),
    [
        ((0, 1, 2), {"n_states": 10**8}),
        ((0, 1, 2), {"n_states": 10**400}),
        ((0, 1, 2), {"n_actions": 10**9}),
        ((0, 1, 2**40), {}),
        (np.ones((3, 4)), {"policy": {"hidden": [10_000, 10_000]}}),
        (np.ones((3, 4)), {"policy": {"hidden": [10**30]}}),
        (np.ones((3, 4)), {"n_actions": 10**9}),
    ],
    ids=str,
)
def test_policy_sizes_from_metadata_or_data(observations: Any, metadata: dict[str, Any]) -> None:
    made = history(observations, **metadata)
    with little_memory(), pytest.raises(TooLargeError, match=r"would take .* set LOGEL_MEMORY"):
        choose_policy(made, "auto")


@pytest.mark.parametrize(("size", "method"), [((10**5, 2), "two-step"), ((4, 10**4), "paper")])
def test_matrices_of_large_tables(size: tuple[int, int], method: str) -> None:
    rng = np.random.default_rng(0)
    made = LearningHistory.from_episodes(
        [[Episode(np.arange(4), rng.integers(0, 2, 3), rng.random((3, 1)))] for _ in range(3)]
    )
    with pytest.raises(TooLargeError, match="would take"):
        infer_reward(made, TabularSoftmax(*size), gamma=0.5, method=method)


def test_a_manifest_of_63_megabytes(tmp_path: Path) -> None:
    folder = tmp_path / "h"
    history().save(folder)
    for name in (MANIFEST, STAGES):
        before = (folder / name).read_bytes()
        (folder / name).write_bytes(b"[" + b"{}," * (21 * 10**6) + b"{}]\n")
        with little_memory(200 * 10**6), pytest.raises(TooLargeError, match=name):
            LearningHistory.load(folder)
        (folder / name).write_bytes(before)


def test_an_estimate_of_63_megabytes(tmp_path: Path) -> None:
    (tmp_path / "e.json").write_bytes(b"[" + b"{}," * (21 * 10**6) + b"{}]")
    with little_memory(200 * 10**6), pytest.raises(TooLargeError, match=r"e\.json"):
        RewardEstimate.load(tmp_path / "e.json")


def test_a_small_zip_that_unpacks_to_gigabytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MEMORY, "16M")
    with zipfile.ZipFile(tmp_path / "model.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", "{}")
        archive.writestr("policy.pth", bytes(2**23))
    assert (tmp_path / "model.zip").stat().st_size < 2**14
    with little_memory(2**22), pytest.raises(TooLargeError, match=r"policy\.pth would take 32 MiB"):
        read_checkpoint(tmp_path / "model.zip")


def test_small_numbers_that_become_large_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage may hold its whole numbers in a byte each; in memory they take eight."""
    pytest.importorskip("pandas")
    steps = 10**5
    path = tmp_path / "steps.csv"
    path.write_text("stage,episode,time,observation,action\n" + "0,0,0,0,0\n" * steps)
    monkeypatch.setenv(MEMORY, "2M")
    with pytest.raises(TooLargeError, match=r"steps\.csv would take 3 MiB"):
        LearningHistory.from_csv(path)
    # Limits of one's own are one's own business.
    with pytest.raises(LogelError, match="row"):
        LearningHistory.from_csv(path, limits=Limits(cells=10**7))
