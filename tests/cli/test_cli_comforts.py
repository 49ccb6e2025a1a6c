"""Ranges of stages, and names that a shell completes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import logel
from logel import LearningHistory
from logel.cli.console import FAMILIES, METHODS
from logel.cli.studies import STUDY_NAMES
from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.inference.method import METHODS as KNOWN
from logel.learners.tabular import SoftValueIteration, observe
from logel.policies.choose import choose_policy


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight stages."""
    world, folder = gridworld_mdp(), tmp_path_factory.mktemp("saved") / "history"
    weights = grid_weights(world.feature_names)
    observe(world, SoftValueIteration(), weights=weights, n_steps=7, n_episodes=5).save(folder)
    return folder


def test_stages_are_cut_as_python_cuts(saved: Path, tmp_path: Path) -> None:
    def steps(stages: str) -> int:
        done = logel("infer", saved, "--stages", stages, "--method", "paper", "--json")
        assert done.returncode == 0, done.stderr
        return len(json.loads(done.stdout)["learning_rates"])

    assert (steps("2:6"), steps("3:"), steps(":4"), steps(":-2")) == (3, 4, 3, 5)
    assert json.loads(logel("inspect", saved, "--stages", "1:3", "--json").stdout)["stages"][1:]
    table = tmp_path / "few.csv"
    assert logel("export", saved, table, "--stages", "6:").returncode == 0
    assert len(LearningHistory.from_csv(table)) == 2
    for wrong, says in (("5", "must be FROM:TO"), ("7:20:2", "FROM:TO"), ("9:", "leave none")):
        refused = logel("infer", saved, "--stages", wrong)
        assert refused.returncode == 2 and says in refused.stderr


def test_a_report_of_a_part_is_of_that_part(saved: Path, tmp_path: Path) -> None:
    found, page = tmp_path / "estimate.json", tmp_path / "page.html"
    infer = ["infer", saved, "--stages", "2:7", "--method", "paper", "--out", found]
    assert logel(*infer).returncode == 0
    options = ["--history", saved, "--stages", "2:7", "--out", page]
    assert logel("report", found, *options).returncode == 0
    assert "this may not be the history behind it" not in page.read_text()


def test_names_that_are_completed_are_the_names_there_are(saved: Path) -> None:
    from logel.studies.registry import GROUPS, STUDIES

    assert {*METHODS} == {"default", *KNOWN}
    assert {*STUDY_NAMES} == {*GROUPS, *STUDIES}
    for family in FAMILIES:
        choose_policy(LearningHistory.load(saved), family)


@pytest.mark.parametrize(
    "typed, expected",
    [
        ("logel reproduce accuracy-c", {"accuracy-coverage", "accuracy-control"}),
        ("logel infer history --method mi", {"mirror"}),
        ("logel infer history --policy t", {"tabular"}),
        ("logel rep", {"report", "reproduce"}),
    ],
)
def test_a_shell_completes_names(typed: str, expected: set[str]) -> None:
    environment = {
        **os.environ,
        "_LOGEL_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
    }
    program = "from logel.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert set(done.stdout.split()) == expected, done.stderr
