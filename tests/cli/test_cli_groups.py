"""`logel infer` for several learners and `logel compare`, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from command_line import logel
from logel.cli.compare import gathered
from logel.data.history import LearningHistory
from logel.envs.tabular import random_mdp
from logel.inference.answers import load_answer
from logel.inference.contrast import Contrast
from logel.inference.group import GroupEstimate
from logel.learners.tabular import SoftPolicyIteration, observe


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two groups of two."""
    root = tmp_path_factory.mktemp("animals")
    rng = np.random.default_rng(0)
    mdp = random_mdp(rng, n_states=3, n_actions=2, n_features=2, gamma=0.5, branching=2)
    for group, weights in (("wet", [1.0, 0.2]), ("dry", [0.0, 1.0])):
        for i in range(2):
            history = observe(
                *(mdp, SoftPolicyIteration(1.0)),
                weights=weights,
                n_steps=3,
                n_episodes=12,
                horizon=6,
                seed=i,
            )
            history.save(root / group / f"rat{i}")
    np.savez(root / "world.npz", transitions=mdp.transitions)
    return root


def test_several_folders_are_learners_that_share(folder: Path, tmp_path: Path) -> None:
    out, one_by_one = tmp_path / "shared.json", tmp_path / "again.json"
    done = logel("infer", folder / "wet/rat0", folder / "wet/rat1", "--out", one_by_one)
    assert done.returncode == 0, done.stderr
    done = logel("infer", folder / "wet", "--out", out)
    assert out.read_bytes() == one_by_one.read_bytes()
    assert done.returncode == 0, done.stderr
    assert "rat0" in done.stdout and "share" in done.stdout
    assert [one["name"] for one in json.loads(out.read_text())["learners"]] == ["rat0", "rat1"]


def test_groups_are_inferred_saved_and_compared(folder: Path, tmp_path: Path) -> None:
    for group in ("wet", "dry"):
        rats = sorted((folder / group).iterdir())
        done = logel("infer", *rats, "--hierarchy", "--out", tmp_path / f"{group}.json", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["format"] == "logel-group"
    assert isinstance(load_answer(tmp_path / "wet.json"), GroupEstimate)
    saved = [word for group in ("wet", "dry") for word in ("--group", tmp_path / f"{group}.json")]
    done = logel("compare", *saved)
    assert done.returncode == 0, done.stderr
    assert "wet minus dry" in done.stdout


def test_folders_of_groups_are_compared(folder: Path, tmp_path: Path) -> None:
    out, rats = tmp_path / "contrast.json", sorted((folder / "wet").iterdir())
    options = ("--own-worlds", "--name", "a", "--name", "b", "--out", out)
    done = logel("compare", "--group", *rats, "--group", folder / "dry", *options)
    assert done.returncode == 0, done.stderr
    contrast = load_answer(out)
    assert isinstance(contrast, Contrast) and contrast.names == ("a", "b")
    assert [one.name for one in contrast.first.learners] == ["rat0", "rat1"]


def test_groups_may_live_in_a_known_world(folder: Path, tmp_path: Path) -> None:
    groups = ("--group", folder / "wet", "--group", folder / "dry")
    found = []
    for i, words in enumerate(((), ("--world", folder / "world.npz"))):
        out = tmp_path / f"{i}.json"
        done = logel("compare", *groups, *words, "--out", out)
        assert done.returncode == 0, done.stderr
        found.append(load_answer(out).weights)
    assert not np.allclose(*found)
    linear = ("--policy", "linear", "--world", folder / "world.npz")
    done = logel("compare", *groups, *linear)
    assert done.returncode == 2 and "--policy tabular" in done.stderr


def test_mistakes(folder: Path, tmp_path: Path) -> None:
    wet, dry = folder / "wet", folder / "dry"
    saved = tmp_path / "wet.json"
    saved.write_text("{}")
    for said, words in {
        "two groups are compared, but there are 1": ("--group", wet),
        "infer both, or none": ("--group", saved, "--group", dry),
        "a group needs at least two learners": ("--group", wet / "rat0", "--group", dry),
        "not a logel estimate": ("--group", saved, "--group", saved),
        "two different names": ("--group", wet, "--group", dry, "--name", "x"),
        "named twice": ("--group", wet / "rat0", wet / "rat0", "--group", dry),
    }.items():
        done = logel("compare", *words)
        assert done.returncode == 2 and said in done.stderr, done.stderr
    other = LearningHistory.load(wet / "rat0")
    LearningHistory.from_stages(list(other), metadata={"gamma": 0.9}).save(tmp_path / "other")
    done = logel("infer", wet / "rat0", tmp_path / "other")
    assert done.returncode == 2 and "has the discount factor 0.5, but other has 0.9" in done.stderr


def test_values_of_a_group_are_gathered() -> None:
    words = ["--group", "a", "b", "--seed", "3", "--group", "c", "--json"]
    assert gathered(words) == ["--group", "a\0b", "--seed", "3", "--group", "c", "--json"]
    assert gathered(["--group"]) == ["--group", ""]
