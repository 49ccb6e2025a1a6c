"""The examples run, and show what they say; so do the lines for newcomers in the README."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def run(*command: str, cwd: Path) -> str:
    """What a command prints; it must succeed, and warn of nothing."""
    environment = {**os.environ, "PYTHONWARNINGS": "error::UserWarning"}
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def load(name: str) -> ModuleType:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_tested_and_says_what_to_look_at() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {
        "cartpole",
        "compare_learners",
        "natural_gradient",
        "reward_hacking",
        "streaming",
    }
    for path in EXAMPLES.glob("*.py"):
        assert "What to look at" in path.read_text(), path


@pytest.mark.slow
def test_reward_hacking_names_the_bonus_and_clears_the_placebo() -> None:
    # Half as many updates and a third of the robots: replay needs no more for this.
    example = load("reward_hacking")
    named = cleared = 0
    for seed in (1020, 1021):
        estimate = example.audit(seed, updates=12, n_envs=24)
        assert estimate.config["name"] == "default (replay)"
        ends = dict(zip(estimate.feature_names, estimate.interval(0.95), strict=True))
        named += not ends["camera"][0] <= 0 <= ends["camera"][1]
        cleared += ends["window"][0] <= 0 <= ends["window"][1]
    assert (named, cleared) == (2, 2)


@pytest.mark.slow
def test_cartpole_covers_the_truth() -> None:
    example = load("cartpole")
    # Fewer and shorter rollouts than the example's, for time.
    estimate = example.recover(0, updates=12, n_steps=100)
    unit = example.TRUTH / np.linalg.norm(example.TRUTH)
    low, high = estimate.interval(0.95).T
    assert ((low <= unit) & (unit <= high)).all()
    assert low[0] > 0, "being alive is paid, beyond doubt"
    assert estimate.weights @ unit > 0.95


@pytest.mark.slow
def test_natural_gradient_is_recognised(tmp_path: Path) -> None:
    printed = run(str(EXAMPLES / "natural_gradient.py"), cwd=tmp_path)
    assert "rule 'natural'" in printed
    match = re.search(r"loses ([\d.]+)% of what there is to win", printed)
    assert match is not None and float(match[1]) < 5


@pytest.mark.slow
def test_learners_with_different_rewards_differ(tmp_path: Path) -> None:
    printed = run(str(EXAMPLES / "compare_learners.py"), cwd=tmp_path)
    differ = {line.split()[0] for line in printed.splitlines() if line.endswith("they differ")}
    assert {"blue", "goal"} <= differ and "light" not in differ


@pytest.mark.slow
def test_streaming_gets_better(tmp_path: Path) -> None:
    printed = run(str(EXAMPLES / "streaming.py"), "--stages", "21", cwd=tmp_path)
    errors = [float(line.split()[1]) for line in printed.splitlines()[1:]]
    assert len(errors) == 4 and errors[-1] < 0.2 and errors[-1] < errors[0]


def newcomer_section() -> str:
    """The README's section for users of Stable-Baselines3."""
    match = re.search(r"^## Your own training run.*?(?=^## )", README, re.MULTILINE | re.DOTALL)
    assert match is not None
    return match[0]


README = (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_ten_lines_or_three_commands_from_nothing_to_a_report(tmp_path: Path) -> None:
    section = newcomer_section()
    block = re.search(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert block is not None
    lines = [line for line in block[1].splitlines() if line.strip()]
    assert len(lines) <= 10
    # Two updates of the training; what all of it shows is measured by benchmarks/flagship.py.
    assert "learn(128_000," in block[1]
    (tmp_path / "train.py").write_text(block[1].replace("learn(128_000,", "learn(4_096,"))
    printed = run("train.py", cwd=tmp_path)
    assert "alive" in printed and (tmp_path / "report.html").is_file()
    commands = re.findall(r"^    (python|logel) (.*?)(?: +#.*)?$", section, re.MULTILINE)
    assert len(commands) == 4 and commands[0] == ("python", "train.py")
    (tmp_path / "report.html").unlink()
    for _, arguments in commands[1:]:
        run("-m", "logel", *arguments.split(), cwd=tmp_path)
    assert (tmp_path / "estimate.json").is_file() and (tmp_path / "report.html").is_file()
