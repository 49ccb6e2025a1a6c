"""What was done before is found again, by what it was made of, and nothing else is believed."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import scipy.sparse
import torch

from logel import LearningHistory, MLPGaussian, Stage, TabularSoftmax, Workers, infer_reward
from logel.data import cache as kept
from logel.data.cache import Arrays, Cache, UnknownPartError, digest
from logel.data.settings import LearnerSettings
from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.learners.tabular import GPOMDPLearner, observe
from logel.policies.cloning import CloneConfig, CloneMethod
from logel.replay.batch import Batch
from logel.replay.course import Course
from logel.replay.fates import Replay
from logel.replay.learner import OneByOne, StackedLearner
from logel.replay.movement import Movement

NETWORK = MLPGaussian(3, 1, hidden=(8,))


class Work:
    """Counts how often something is made."""

    def __init__(self, value: float = 1.0) -> None:
        self.made, self.value = 0, value

    def __call__(self) -> Arrays:
        self.made += 1
        return {"x": np.full(3, self.value)}


def sound(arrays: Arrays) -> bool:
    return arrays.keys() == {"x"} and arrays["x"].shape == (3,)


def the_file(folder: Path) -> Path:
    (found,) = folder.glob("*.kept")
    return found


def test_it_is_made_once_for_what_it_is_made_of(tmp_path: Path) -> None:
    work = Work()
    for folder in (tmp_path, tmp_path):
        np.testing.assert_array_equal(Cache.at(folder).kept("a", work, sound)["x"], np.ones(3))
    assert work.made == 1
    Cache.at(tmp_path).kept("b", work, sound)
    assert work.made == 2


def test_other_code_finds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    Cache.at(tmp_path).kept("a", work, sound)
    monkeypatch.setattr(kept, "code", lambda: "another")
    Cache.at(tmp_path).kept("a", work, sound)
    assert work.made == 2


def whole(data: bytes) -> bytes:
    return hashlib.sha256(data).digest() + data


@pytest.mark.parametrize(
    "spoilt",
    [
        b"",
        b"short",
        whole(b"not arrays"),
        whole(pickle.dumps(print)),
        whole(safetensors.numpy.save({"x": np.ones(4)})),
        whole(safetensors.numpy.save({"y": np.ones(3)})),
        safetensors.numpy.save({"x": np.ones(3)}),
    ],
)
def test_what_is_spoilt_is_made_again(tmp_path: Path, spoilt: bytes) -> None:
    work, there = Work(), Cache.at(tmp_path)
    there.kept("a", work, sound)
    intact = the_file(tmp_path).read_bytes()
    the_file(tmp_path).write_bytes(spoilt)
    np.testing.assert_array_equal(there.kept("a", work, sound)["x"], np.ones(3))
    assert work.made == 2 and the_file(tmp_path).read_bytes() == intact


def test_one_bit_and_a_link_are_not_believed(tmp_path: Path) -> None:
    work, there = Work(), Cache.at(tmp_path / "cache")
    there.kept("a", work, sound)
    path = the_file(there.folder)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    there.kept("a", work, sound)
    assert work.made == 2
    elsewhere = path.rename(tmp_path / "elsewhere")
    path.symlink_to(elsewhere)
    there.kept("a", work, sound)
    assert work.made == 3


def test_the_least_recently_used_go(tmp_path: Path) -> None:
    there, size = Cache.at(tmp_path), 0
    for k, name in enumerate("abc"):
        there.kept(name, Work(), sound)
        size = the_file(tmp_path).stat().st_size if not k else size
        time.sleep(0.01)
    there.kept("a", Work(), sound)  # used again
    small = replace(there, most_bytes=3 * size)
    small.kept("d", Work(), sound)
    assert len(list(tmp_path.glob("*.kept"))) == 3
    made = {name: Work() for name in "acd"}
    for name, work in made.items():
        small.kept(name, work, sound)
    assert not any(work.made for work in made.values())


def another() -> CloneConfig:
    return CloneConfig(method=CloneMethod.MLE, holdout=0.1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (True, 1),
        ("ab", b"ab"),
        (("a", "b"), ("ab",)),
        ((("a",), "b"), ("a", ("b",))),
        (np.zeros(2), np.zeros((2, 1))),
        (np.zeros(2), np.zeros(2, dtype=np.float32)),
        (np.zeros(2), np.array([0.0, -0.0])),
        (torch.zeros(2), np.zeros(2, dtype=np.float32)),
        (another(), replace(another(), holdout=0.2)),
        (NETWORK, MLPGaussian(3, 1, hidden=(8,), sigma=1.0)),
        (scipy.sparse.eye_array(2).tocsr(), scipy.sparse.eye_array(3).tocsr()),
    ],
)
def test_different_things_have_different_digests(one: Any, other: Any) -> None:
    assert digest(one) != digest(other)
    assert digest(one) == digest(pickle.loads(pickle.dumps(one)))


def test_code_of_others_cannot_be_told(tmp_path: Path) -> None:
    with pytest.raises(UnknownPartError, match="it depends on"):
        digest((NETWORK, lambda: 0))
    work = Work()
    for _ in range(2):
        Cache.at(tmp_path).kept(work, work, sound)
    assert work.made == 2


# --- inferences ---------------------------------------------------------------------------------


def drifting(n_stages: int = 6) -> LearningHistory:
    rng = np.random.default_rng(1000)
    theta, stages = NETWORK.initial(rng), []
    for _ in range(n_stages):
        seen = rng.standard_normal((1500, 3)).astype(np.float32)
        acts = NETWORK.sample(theta, seen, rng).astype(np.float32)
        paid = np.tanh(np.concatenate([seen[:, :2], acts], axis=1) + 0.2)
        stages.append(Stage(seen, acts, np.full(50, 30), np.zeros(50, bool), seen[:50], paid))
        theta = theta + 0.05 * rng.standard_normal(theta.shape)
    return LearningHistory.from_stages(stages)


CHILD = """
import sys
from logel import LearningHistory, MLPGaussian, Workers, infer_reward
history = LearningHistory.load(sys.argv[1])
infer_reward(history, MLPGaussian(3, 1, hidden=(8,)), gamma=0.9, method="mirror",
             workers=Workers(int(sys.argv[3]), cache=sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_and_resumed_is_as_if_nothing_had_happened(tmp_path: Path, workers: int) -> None:
    drifting().save(tmp_path / "history")
    folder = Cache.at(tmp_path / "cache").folder
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, tmp_path / "history", folder, str(workers)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 120
    while len(list(folder.glob("*.kept"))) < 2 and time.monotonic() < deadline:
        assert child.poll() is None
        time.sleep(0.005)
    child.kill()
    child.wait()
    done = len(list(folder.glob("*.kept")))
    history = LearningHistory.load(tmp_path / "history")

    def ask(workers: int | Workers) -> str:
        found = infer_reward(history, NETWORK, gamma=0.9, method="mirror", workers=workers)
        return found.to_json()

    assert 2 <= done <= 6
    first = {path: path.stat().st_mtime_ns for path in folder.glob("*.kept")}
    assert ask(Workers(cache=folder)) == ask(1)
    # Those that were there were used, and are there still; nothing is left over.
    held = set(folder.iterdir())
    assert set(first) <= held and len(held) >= 6
    assert all(path.stat().st_mtime_ns > first[path] for path in first)


def refused(*_: object) -> None:
    raise AssertionError("this was done before")


@pytest.mark.slow
def test_fits_of_rules_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = gridworld_mdp()
    weights = grid_weights(world.feature_names)
    table = observe(world, GPOMDPLearner(), weights=weights, n_steps=4, seed=1000)

    def ask(workers: int | Workers) -> str:
        return infer_reward(table, TabularSoftmax(25, 4), gamma=0.96, workers=workers).to_json()

    first = ask(Workers(cache=tmp_path))
    monkeypatch.setattr("logel.inference.choose._continued", refused)
    assert ask(Workers(cache=tmp_path)) == first
    monkeypatch.undo()
    assert ask(1) == first


def test_replayed_updates_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = LearnerSettings("A2C", pi=(8,), vf=(8,), activation="tanh")
    learner = StackedLearner.of(settings, NETWORK, 3)
    assert learner is not None
    stages = list(drifting(2))
    thetas = 0.1 * np.random.default_rng(0).standard_normal((3, NETWORK.n_parameters))
    batches = [Batch.of(stage, NETWORK) for stage in stages]
    moves = [Movement.at(s, NETWORK, theta) for s, theta in zip(stages, thetas, strict=False)]

    def middles(workers: Workers, learner: Any = learner) -> Any:
        with workers.open() as run:
            replay = Replay(Course(batches, thetas, moves), learner, seed=1000, run=run)
            return replay.middles(np.ones(3), 4, 2)

    first = middles(Workers(cache=tmp_path))
    np.testing.assert_array_equal(middles(Workers()), first)
    monkeypatch.setattr(StackedLearner, "update", refused)
    np.testing.assert_array_equal(middles(Workers(cache=tmp_path)), first)
    # Of a learner with code of its own nobody knows whether it is still the same.
    before = len(list(tmp_path.iterdir()))
    middles(Workers(cache=tmp_path), OneByOne(lambda theta, state, *_: (theta, state)))
    assert len(list(tmp_path.iterdir())) == before
