"""The command line while it works: bars, log lines, Ctrl-C, version and completion."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import command_line
import logel
from command_line import interrupted
from logel.cli.console import STOPPED, progress_bars, read_with_progress
from logel.data.history import LearningHistory
from logel.data.stage import Episode
from logel.data.store import new_folder
from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.errors import FormatError
from logel.inference.estimate import RewardEstimate
from logel.inference.infer import infer_reward
from logel.learners.tabular import SoftValueIteration, observe
from logel.policies.softmax import TabularSoftmax


def run(*arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command in this process."""
    done = command_line.logel(*arguments)
    return done.returncode, done.stdout, done.stderr


@functools.cache
def small(*, parameters: bool) -> LearningHistory:
    """A history for everyone: nobody can change it."""
    mdp = gridworld_mdp()
    return observe(
        mdp,
        SoftValueIteration(),
        weights=grid_weights(mdp.feature_names),
        n_steps=3,
        n_episodes=10,
        parameters=parameters,
    )


@dataclass(eq=False)
class Watched(logging.Handler):
    """What an inference told its progress and its log."""

    told: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def progress(self, what: str, done: int, total: int) -> None:
        self.told.setdefault(what, []).append((done, total))


@functools.cache
def watched(method: str, known: bool) -> Watched:
    """One inference, for the tests of its progress and of its log."""
    watcher, logger, history = Watched(), logging.getLogger("logel"), small(parameters=known)
    before = logger.level
    logger.addHandler(watcher)
    logger.setLevel(logging.INFO)
    infer_reward(
        history, TabularSoftmax(25, 4), gamma=0.96, method=method, progress=watcher.progress
    )
    logger.removeHandler(watcher)
    logger.setLevel(before)
    return watcher


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("console") / "history"
    small(parameters=False).save(path)
    return path


# --- progress -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["joint", "two-step", "mirror", "paper"])
def test_every_long_part_says_how_far_it_is(method: str) -> None:
    told = watched(method, False).told
    expected = {
        "joint": {"reading", "cloning", "rules", "intervals"},
        "two-step": {"cloning", "Jacobians", "intervals"},
        "paper": {"cloning", "Jacobians", "intervals"},
        "mirror": {"cloning", "advantages"},
    }
    assert told.keys() == expected[method]
    for what, steps in told.items():
        assert all(0 < done <= total for done, total in steps), what
        assert steps[-1][0] == steps[-1][1], what
        again = method == "two-step" and what == "intervals"  # with and without noise subtracted
        assert again or [done for done, _ in steps] == sorted(done for done, _ in steps), what


def test_bars_appear_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for forced, quiet, shown in (("1", False, True), ("1", True, False), ("", False, False)):
        monkeypatch.setenv("FORCE_COLOR", forced)
        err = io.StringIO()
        with contextlib.redirect_stderr(err), progress_bars(quiet) as report:
            report("cloning", 1, 3)
            report("cloning", 2, 4)
        assert ("cloning" in err.getvalue()) == shown
        assert ("2/4" in err.getvalue()) == shown, "a total may change on the way"


def test_reading_is_told_stage_by_stage() -> None:
    told: list[tuple[str, int, int]] = []
    history = read_with_progress(small(parameters=False), lambda *news: told.append(news))
    assert len(list(history)) == 4
    assert told == [("reading", t + 1, 4) for t in range(4)]


# --- log lines ----------------------------------------------------------------------------------


def test_verbose_says_a_line_per_stage_beside_the_json(recorded: Path, tmp_path: Path) -> None:
    code, out, err = run("infer", recorded, "--method", "paper", "--json", "-v")
    assert code == 0
    assert RewardEstimate.from_json(out).feature_names
    lines = err.splitlines()
    assert lines[0] == "method paper: 4 stages, TabularSoftmax with 75 parameters"
    for t in range(4):
        (line,) = [line for line in lines if f"stage {t}: 10 episodes" in line]
        assert "held-out log-likelihood -1." in line and line.endswith(" iterations")
        assert f"stage {t}: Jacobians from 10 episodes, 200 steps" in lines
    code, out, err = run("record", "gridworld", tmp_path / "h", "--steps", 2, "-v", "--json")
    assert json.loads(out)["stages"] == 3
    assert err.splitlines() == [f"stage {t}: 50 episodes, 1000 steps" for t in range(3)]


def test_without_verbose_nothing_is_said(recorded: Path) -> None:
    code, _, err = run("infer", recorded, "--method", "paper")
    assert code == 0 and err.startswith("verdict: ") and len(err.splitlines()) == 1
    assert not logging.getLogger("logel").handlers


def test_log_lines_are_plain(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bars(True, verbose=True):
        logging.getLogger("logel.somewhere").info("[red]%s\x1b[2J", "name")
        logging.getLogger("elsewhere").warning("not ours")
    assert capsys.readouterr().err == "[red]name?[2J\n"


@pytest.mark.parametrize("known", [False, True])
def test_the_joint_fit_tells_its_heats(known: bool) -> None:
    messages = watched("joint", known).messages
    stages = [m for m in messages if m.startswith("stage ")]
    assert len(stages) == 4 and all(("known parameters" in m) == known for m in stages)
    heats = [m for m in messages if m.startswith("rules")]
    assert len(heats) == (1 if known else 3) and all("gradient" in m for m in heats)


# --- Ctrl-C -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "number", "arguments"),
    [
        ("logel.policies.cloned_path:clone_stage", 3, ["infer", "HISTORY", "--out", "est.json"]),
        ("os:fsync", 1, ["infer", "HISTORY", "--method", "paper", "--out", "est.json", "--json"]),
        ("os:fsync", 5, ["record", "gridworld", "new", "--steps", "4"]),
        ("os:fsync", 3, ["import", "steps.csv", "--out", "new"]),
    ],
)
def test_ctrl_c_leaves_nothing_behind_and_says_so(
    where: str, number: int, arguments: list[str], recorded: Path, tmp_path: Path
) -> None:
    rows = [f"{t},{n},{h},{h},1" for t in range(3) for n in range(2) for h in range(2)]
    (tmp_path / "steps.csv").write_text(
        "\n".join(["stage,episode,time,observation,action", *rows]) + "\n"
    )
    words = [str(recorded) if word == "HISTORY" else word for word in arguments]
    assert interrupted(tmp_path, where, number, *words) == STOPPED
    assert [path.name for path in tmp_path.iterdir()] == ["steps.csv"]


def test_ctrl_c_with_a_message_is_told_once(
    monkeypatch: pytest.MonkeyPatch, recorded: Path
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt("Stopped: [3] of 4 kept.")

    monkeypatch.setattr("logel.data.inspection.inspect_history", stop)
    assert run("inspect", recorded) == (130, "", "Stopped: [3] of 4 kept.\n")


def test_a_saved_history_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    history, calls = small(parameters=False), []

    def stop(what: str, done: int, total: int) -> None:
        calls.append((what, done, total))
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        history.save(tmp_path / "history", progress=stop)
    assert calls == [("writing", 1, 4), ("writing", 2, 4)]
    assert not list(tmp_path.iterdir())
    (tmp_path / "empty").mkdir()
    history.save(tmp_path / "empty")
    assert len(LearningHistory.load(tmp_path / "empty")) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
    with pytest.raises(FormatError, match="already exists"), new_folder(tmp_path / "empty"):
        pass
    np.testing.assert_array_equal(
        LearningHistory.load(tmp_path / "empty")[3].actions, history[3].actions
    )


# --- the rest -----------------------------------------------------------------------------------


def test_version_and_module() -> None:
    assert run("--version") == (0, f"logel {logel.__version__}\n", "")
    done = subprocess.run(
        [sys.executable, "-m", "logel", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"logel {logel.__version__}\n"


def test_the_shell_completes_commands(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    command = f"'{sys.executable}' -m logel --show-completion bash; exit $?"
    shown = subprocess.run([bash, "-c", command], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "_LOGEL_COMPLETE=complete_bash" in shown.stdout
    answered = subprocess.run(
        [sys.executable, "-m", "logel"],
        env={
            **os.environ,
            "_LOGEL_COMPLETE": "complete_bash",
            "COMP_WORDS": "logel in",
            "COMP_CWORD": "1",
        },
        capture_output=True,
        text=True,
    )
    assert answered.stdout.split() == ["inspect", "infer"]


def test_every_command_can_be_quiet_and_speak_json() -> None:
    import typer

    from logel.cli.main import app

    commands = dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    for name, command in commands.pop("record").commands.items():
        commands[f"record {name}"] = command
    for name, command in commands.items():
        options = {option for parameter in command.params for option in parameter.opts}
        assert {"--json", "--quiet"} <= options, name
        talks = name in ("infer", "train") or name.startswith("record")
        assert not talks or {"--verbose", "-v"} <= options, name


def test_pictures_are_refused_before_the_work(tmp_path: Path) -> None:
    code, _, err = run("demo", "--out", tmp_path / "demo.bmp")
    assert code == 2 and "ends in .png, .svg, .pdf" in " ".join(err.split())
    assert not list(tmp_path.iterdir())


def test_stages_and_histories_say_what_they_are() -> None:
    history = LearningHistory.from_episodes(
        [[Episode(np.zeros((3, 2)), np.zeros(2, dtype=int), np.ones((2, 2)))] * 3] * 2,
        parameters=np.arange(8.0).reshape(2, 4),
        learning_rates=[0.5],
        feature_names=["near", "<b>far</b>" + "!" * 60],
        metadata={"gamma": 0.9, "learner": "<i>x</i>", "environment": ["not", "plain"]},
    )
    assert repr(history[0]) == "Stage(3 episodes, 6 steps; 2 features, 4 known parameters)"
    assert repr(history) == (
        "LearningHistory(2 stages; observations real (2,); actions integer; "
        f"features near, <b>far</b>{'!' * 30}...; learning rates known)"
    )
    page = history._repr_html_()
    assert "<b>far" not in page and "&lt;b&gt;far" in page and "&lt;i&gt;x" in page
    assert "0.9" in page and "not" not in page
    bare = LearningHistory.from_episodes([[Episode([0, 1], [0])]])  # type: ignore[list-item]
    assert repr(bare[0]) == "Stage(1 episodes, 1 steps; no features, unknown parameters)"
    assert "features not recorded; learning rates unknown" in repr(bare)
