"""`logel infer` on runs of Stable-Baselines3: replay by default, and words about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import A2C, PPO

from command_line import logel
from logel.data.history import LearningHistory
from logel.data.settings import KEY
from logel.envs.audit import WORLDS
from logel.inference.estimate import RewardEstimate
from logel.learners import audit
from logel.learners.audit import LEARNERS, AuditLearner
from logel.types import Progress

ROOM = WORLDS["room"]
WEIGHTS = ROOM.random_weights(np.random.default_rng(1000))
HINT = "try --method replay"


def falling(progress: float) -> float:
    return 1e-3 * progress


def recorded(folder: Path, algorithm: Any, **options: Any) -> Path:
    """A short run with a small network, in a folder."""
    options = {**options, "policy_kwargs": {"net_arch": [8]}}
    learner = AuditLearner(algorithm, n_envs=8, n_steps=25, updates=8, options=options)
    audit.train(ROOM, learner, WEIGHTS, seed=1000, path=folder)
    return folder


@pytest.fixture(scope="module")
def a2c(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = LEARNERS["A2C"].options
    return recorded(tmp_path_factory.mktemp("cli") / "a2c", A2C, **options)


@pytest.fixture(scope="module")
def ppo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = {"n_epochs": 2, "batch_size": 100, "learning_rate": falling}
    return recorded(tmp_path_factory.mktemp("cli") / "ppo", PPO, **options)


@pytest.fixture(scope="module")
def silent(a2c: Path) -> Path:
    """The same run, recorded by somebody who did not ask about the learner."""
    history = LearningHistory.load(a2c)
    metadata = {name: value for name, value in history.metadata.items() if name != KEY}
    replace(history, metadata=metadata).save(a2c.parent / "silent")
    return a2c.parent / "silent"


def hints(stderr: str) -> list[str]:
    """What is said beside the verdict, which comes first."""
    verdict, *others = stderr.splitlines()
    assert verdict.startswith("verdict: ")
    return others


def test_replay_is_the_default_and_says_so(
    a2c: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, list[tuple[int, int]]] = {}

    @contextmanager
    def bars(quiet: bool, *, verbose: bool = False) -> Iterator[Progress]:
        yield lambda what, done, total: told.setdefault(what, []).append((done, total))

    monkeypatch.setattr("logel.cli.reward.progress_bars", bars)
    out = tmp_path / "estimate.json"
    done = logel("infer", a2c, "--out", out)
    assert done.returncode == 0, done.stderr
    words = "method default (replay): the learner's own update replayed over 7 steps: A2C (rate 0."
    assert words in done.stdout and hints(done.stderr) == []
    assert {"first guesses", "replaying"} <= set(told)
    assert all(done <= total for steps in told.values() for done, total in steps)
    assert told["replaying"][-1] == (7, 7)
    estimate = RewardEstimate.load(out)
    assert estimate.fit.rule == "replay" and estimate.fit.noise is not None
    page = logel("report", out, "--history", a2c, "--out", tmp_path / "page.html")
    assert page.returncode == 0, page.stderr
    assert 'data-plot="course"' in (tmp_path / "page.html").read_text()


def test_schedules_are_named_with_the_rates_they_had(ppo: Path) -> None:
    done = logel("infer", ppo)
    # Of eight updates the first seven are seen; the schedule is asked after each rollout.
    assert "PPO (2 epochs, rate 0.00088 to 0.00013, lambda 0.95)" in done.stdout


def test_other_methods_can_be_asked_for(a2c: Path) -> None:
    done = logel("infer", a2c, "--method", "mirror")
    assert done.returncode == 0 and "method mirror: known parameters" in done.stdout
    assert hints(done.stderr) == []


def test_without_settings_one_line_says_how_to_ask_for_replay(silent: Path) -> None:
    done = logel("infer", silent)
    assert "method default (mirror)" in done.stdout and HINT not in done.stdout
    (told,) = hints(done.stderr)
    assert HINT in told
    for more in (("--clone",), ("--method", "mirror"), ("--json",)):
        assert hints(logel("infer", silent, *more).stderr) == [], more


def test_the_line_is_not_for_those_whom_replay_cannot_serve(silent: Path, tmp_path: Path) -> None:
    history = LearningHistory.load(silent)
    unlike = {
        "unknown": tuple(replace(stage, parameters=None) for stage in history),
        "blind": tuple(replace(stage, last_observations=None) for stage in history),
    }
    for name, stages in unlike.items():
        replace(history, source=stages).save(tmp_path / name)
        assert HINT not in logel("infer", tmp_path / name).stderr, name
    replace(history, own_episodes=False).save(tmp_path / "fresh")
    assert HINT not in logel("infer", tmp_path / "fresh").stderr
