"""`logel import`, `export` and `inspect`, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from command_line import logel
from logel.data.history import LearningHistory
from logel.data.stage import Episode


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    history = LearningHistory.from_episodes(
        [
            [
                Episode(rng.integers(5, size=6), rng.integers(3, size=5), rng.normal(size=(5, 2)))
                for _ in range(4)
            ]
            for _ in range(3)
        ],
        parameters=rng.normal(size=(3, 7)),
        learning_rates=[0.5, 0.25],
        feature_names=["far, [left]", "near"],
        metadata={"gamma": 0.9},
    )
    history.save(tmp_path / "history")
    return tmp_path / "history"


def assert_same(path: Path, other: Path) -> None:
    one, two = LearningHistory.load(path), LearningHistory.load(other)
    assert one.feature_names == two.feature_names and dict(one.metadata) == dict(two.metadata)
    np.testing.assert_array_equal(one.learning_rates, two.learning_rates)
    np.testing.assert_array_equal(one.parameters(), two.parameters())
    for left, right in zip(one, two, strict=True):
        for name in ("observations", "actions", "features", "lengths", "last_observations"):
            np.testing.assert_array_equal(getattr(left, name), getattr(right, name))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_goes_out_and_comes_in(saved: Path, tmp_path: Path, kind: str) -> None:
    steps = tmp_path / f"steps.{kind}"
    done = logel("export", saved, steps)
    assert done.returncode == 0, done.stderr
    stages = tmp_path / f"steps-stages.{kind}"
    done = logel(
        "import", steps, "--stages", stages, "--out", tmp_path / "back", "--gamma", 0.9, "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "history": str(tmp_path / "back"),
        "stages": 3,
        "episodes": 12,
        "steps": 60,
    }
    assert_same(saved, tmp_path / "back")


def test_an_export_says_how_to_read_it_back(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = logel("export", saved, "steps.csv").stdout
    (command,) = (line for line in said.splitlines() if line.startswith("to read it back: "))
    words = command.removeprefix("to read it back: logel ").replace("FOLDER", "back").split()
    done = logel(*words)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert_same(saved, Path("back"))
    assert LearningHistory.load("back").metadata["gamma"] == 0.9

    assert LearningHistory.load("back").metadata == LearningHistory.load(saved).metadata


def test_minari_goes_out_and_comes_in(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = logel("export", saved, "datasets", "--to", "minari", "--json")
    assert done.returncode == 0, done.stderr
    written = json.loads(done.stdout)["written"]
    assert written == [f"datasets/stage-0000{t}-v0" for t in range(3)]
    done = logel("import", *written, "--out", "back", "--quiet")
    assert done.returncode == 0, done.stderr
    assert "imported 3 stages, 12 episodes, 60 steps" in done.stdout
    assert_same(saved, tmp_path / "back")


def test_inspect_prints_a_table_and_json(saved: Path) -> None:
    done = logel("inspect", saved)
    assert done.returncode == 0, done.stderr
    for expected in (
        "far, [left]",
        "near",
        "whole numbers",
        "known, 7 per stage",
        "numpy 2",
        "gamma  0.9",
    ):
        assert expected in done.stdout, expected
    found = json.loads(logel("inspect", saved, "--json").stdout)
    history = LearningHistory.load(saved)
    features = history[1].features
    assert features is not None
    assert found["stages"][1]["feature_means"] == pytest.approx(list(features.mean(axis=0)))
    assert found["n_parameters"] == 7 and found["learning_rates_known"]
    assert "numpy" in found["versions"] and found["metadata"] == {"gamma": 0.9}


def test_bad_input_costs_one_sentence_and_writes_nothing(saved: Path, tmp_path: Path) -> None:
    header = "stage,episode,time,observation,action"
    (tmp_path / "gap.csv").write_text(f"{header}\n0,0,0,1,1\n0,0,2,1,1\n")
    (tmp_path / "text.csv").write_text(f"{header},rat\n0,0,0,1,1,Anna\n")
    np.savez(tmp_path / "arrays.npz", a=np.array([print], dtype=object))
    out = tmp_path / "out"
    cases = {
        "gap": (["import", tmp_path / "gap.csv", "--out", out], "gap.csv, line 3, column time: 2"),
        "text": (["import", tmp_path / "text.csv", "--out", out], "line 2, column rat: must be a"),
        "npz": (["import", tmp_path / "arrays.npz", "--out", out], "pass --format csv"),
        "suffix": (["export", saved, tmp_path / "steps.xyz"], "pass --to csv"),
        "mixed": (["import", saved, tmp_path / "gap.csv", "--out", out], "cannot tell the format"),
        "format": (
            ["import", saved, "--out", out, "--format", "xlsx"],
            "unknown format 'xlsx': choose one of csv, parquet, minari",
        ),
        "not minari": (["import", saved, "--out", out], "is not a Minari dataset"),
        "missing": (["import", tmp_path / "no.csv", "--out", out], "no.csv is missing"),
        "gamma": (
            ["import", tmp_path / "gap.csv", "--out", out, "--gamma", 1],
            "gamma must be in [0, 1)",
        ),
        "taken": (["import", tmp_path / "gap.csv", "--out", saved], "already exists"),
        "options": (
            ["import", saved, "--out", out, "--ignore", "x"],
            "--stages and --ignore are for tables",
        ),
        "no history": (["inspect", tmp_path], "not a learning history"),
        "export nothing": (["export", tmp_path, out, "--to", "csv"], "not a learning history"),
        "export over": (["export", saved, tmp_path / "gap.csv"], "already exists"),
    }
    before = {path.name for path in tmp_path.iterdir()}
    for name, (arguments, expected) in cases.items():
        done = logel(*arguments)
        assert done.returncode == 2, (name, done.stdout, done.stderr)
        assert expected in " ".join(done.stderr.split()), (name, done.stderr)
        assert len(done.stderr.strip().splitlines()) == 1, (name, done.stderr)
        assert {path.name for path in tmp_path.iterdir()} == before, name
    done = logel("import", tmp_path / "text.csv", "--out", out, "--ignore", "rat")
    assert done.returncode == 0, done.stderr


def test_a_known_world_comes_from_a_file(tmp_path: Path) -> None:
    from logel.envs.tree_maze import TreeMaze
    from logel.learners.forager import Forager

    maze = TreeMaze(1)
    bouts = Forager((4.0, 0.2, -0.2), "planning", 0.05).bouts(maze, 80, np.random.default_rng(0))
    facts = {"n_states": 3, "n_actions": 3, "gamma": 0.9}
    history = LearningHistory.from_sessions(
        bouts, windows=4, feature_names=maze.names, metadata=facts
    )
    history.save(tmp_path / "h")
    np.savez(tmp_path / "w.npz", successors=maze.successors, terminal=[maze.port])
    done = logel("infer", tmp_path / "h", "--world", tmp_path / "w.npz", "--quiet", "--json")
    assert done.returncode == 0, done.stderr
    (tmp_path / "w.csv").write_text("state,action,next_state\n0,1,2\n")
    done = logel("infer", tmp_path / "h", "--world", tmp_path / "w.csv", "--quiet")
    assert done.returncode == 2 and "the given world calls impossible" in done.stderr
    done = logel(
        "infer", tmp_path / "h", "--world", tmp_path / "w.csv", "--quiet", "--policy", "mlp"
    )
    assert done.returncode == 2 and "--world needs numbered states" in done.stderr
