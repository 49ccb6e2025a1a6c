"""From a recorded run to a reward to an agent trained on it, on the command line."""

from __future__ import annotations

import csv
import json
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv

from command_line import logel
from logel import Episode, HistoryRecorder, LearningHistory, LinearSoftmax, infer_reward
from logel.cli.main import main
from logel.envs.mujoco import FEATURES
from logel.errors import OptionError, TooLargeError
from logel.inference.estimate import RewardEstimate
from logel.learners.ppo import PPOSettings, train_ppo
from logel.learners.train import train_on_estimate
from logel.policies.choose import choose_policy
from logel.policies.networks import MLPGaussian

SMALL = partial(PPOSettings, n_envs=2, n_steps=100, batch_size=50, n_epochs=2, hidden=(8,))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short history of Hopper, and the estimate made from it."""
    folder = tmp_path_factory.mktemp("observing")
    recorder = HistoryRecorder(folder / "history", FEATURES["Hopper-v5"])
    train_ppo("Hopper-v5", SMALL(), updates=4, seed=0, recorder=recorder)
    history = LearningHistory.load(folder / "history")
    policy = choose_policy(history, "auto")
    assert policy == MLPGaussian(11, 3, hidden=(8,)), "the recorder noted the widths"
    infer_reward(history, policy=policy, gamma=0.99).save(folder / "est.json")
    return folder


def board_scalars(folder: Path) -> dict[str, list[float]]:
    """What TensorBoard would draw."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (events,) = folder.rglob("events.out.*")
    board = EventAccumulator(str(events))
    board.Reload()
    return {tag: [e.value for e in board.Scalars(tag)] for tag in board.Tags()["scalars"]}


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("logel.learners.train.PPOSettings", SMALL)
    monkeypatch.setattr(sys, "argv", ["logel", "train", *map(str, arguments)])
    try:
        main()
    except SystemExit as end:
        return int(str(end.code or 0))
    return 0


def test_train_writes_curve_summary_and_model(
    recorded: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--estimate", recorded / "est.json", "--env", "Hopper-v5", "--updates", 3]
    options += ["--init", recorded / "history", "--out", tmp_path / "out", "--json"]
    options += ["--tensorboard", tmp_path / "board", "--verbose"]
    assert run(monkeypatch, *options) == 0
    said = capsys.readouterr()
    summary = json.loads(said.out)
    lines = said.err.splitlines()
    *updates, verdict = lines
    assert [line.split(":")[0] for line in updates] == ["update 1", "update 2", "update 3"]
    assert verdict.startswith("the reward is not shown: ")
    assert all("true return" in line and "learned return" in line for line in updates)
    assert summary == json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["from_recorded_policy"] and list(summary["weights"]) == [
        *FEATURES["Hopper-v5"].names
    ]
    assert summary["packages"]["mujoco"]
    with (tmp_path / "out" / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["timesteps"] for row in rows] == ["200", "400", "600"]
    np.testing.assert_allclose([float(r["mean_true_return"]) for r in rows], summary["returns"])
    assert (tmp_path / "out" / "model.zip").exists()
    scalars = board_scalars(tmp_path / "board")
    np.testing.assert_allclose(scalars["rollout/true_return"], summary["returns"], rtol=1e-6)
    assert len(scalars["rollout/learned_return"]) == 3
    assert lines[2].startswith(
        f"update 3: true return {summary['returns'][2]:.2f}, "
        f"learned return {scalars['rollout/learned_return'][2]:.2f}, "
    )

    # The same command again, with words: refused, as the folder is there.
    assert run(monkeypatch, *options) == 2
    assert "already exists" in capsys.readouterr().err
    options[options.index(tmp_path / "out")] = tmp_path / "again"
    options.remove("--json")
    assert run(monkeypatch, *options) == 0
    assert "true return in Hopper-v5" in capsys.readouterr().out
    again = json.loads((tmp_path / "again" / "summary.json").read_text())
    assert again["returns"] == summary["returns"], "the same seed gives the same run"


def test_mistakes_cost_one_sentence(
    recorded: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    base = ["--estimate", recorded / "est.json", "--out", tmp_path / "out", "--quiet"]
    for options, sentence in (
        (["--env", "Reacher-v5"], "it is of another environment"),
        (["--env", "Hoper-v5"], "there is no environment 'Hoper-v5'"),
        (["--env", "Hopper-v5", "--updates", "0"], "updates must be at least 1"),
        (["--env", "Hopper-v5", "--init", tmp_path], "not a learning history"),
    ):
        assert run(monkeypatch, *base, *options) == 2
        assert sentence in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_cartpole_is_paid_for_its_known_features(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    episodes = [
        Episode(rng.normal(size=(6, 4)), rng.integers(2, size=5), rng.normal(size=(5, 3)))
        for _ in range(60)
    ]
    history = LearningHistory.from_episodes(
        [episodes[:20], episodes[20:40], episodes[40:]],
        parameters=rng.normal(size=(3, 4)),
        feature_names=["alive", "lean", "speed"],
    )
    estimate = infer_reward(history, LinearSoftmax(4, 2), gamma=0.9, method="paper")
    summary = train_on_estimate(
        estimate, "CartPole-v1", out=tmp_path / "out", updates=1, seed=0, settings=SMALL()
    )
    assert list(summary["weights"]) == ["alive", "lean", "speed"]
    assert (tmp_path / "out" / "model.zip").exists()


def test_ctrl_c_in_training_says_what_is_kept(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, step = 0, HopperEnv.step

    def fiftieth(self: HopperEnv, action: np.ndarray) -> Any:
        nonlocal steps
        steps += 1
        if steps == 50:
            signal.raise_signal(signal.SIGINT)
        return step(self, action)

    monkeypatch.setattr(HopperEnv, "step", fiftieth)
    monkeypatch.chdir(tmp_path)
    # What Python does by itself, unless whoever started the tests ignores Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        options = ["--estimate", recorded / "est.json", "--env", "Hopper-v5", "--updates", 7]
        done = logel("train", *options)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (done.returncode, done.stdout, steps) == (130, "", 50)
    (sentence,) = done.stderr.strip().splitlines()
    assert sentence == (
        "Stopped: 0 of 7 updates were done, nothing was written. "
        "Run the same command again to start over."
    )
    assert not list(tmp_path.iterdir())


def test_a_stopped_training_keeps_only_the_scalars(recorded: Path, tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    board = tmp_path / "board"
    with pytest.raises(KeyboardInterrupt) as stopped:
        train_on_estimate(
            RewardEstimate.load(recorded / "est.json"),
            "Hopper-v5",
            out=tmp_path / "out",
            updates=3,
            seed=0,
            settings=SMALL(),
            tensorboard=board,
            progress=stop,
        )
    assert str(stopped.value) == (
        f"Stopped: 2 of 3 updates were done, only TensorBoard's scalars are kept, in {board}. "
        "Run the same command again to start over."
    )
    assert [path.name for path in tmp_path.iterdir()] == ["board"]


def test_widths_that_no_memory_holds_are_not_believed(recorded: Path) -> None:
    history = LearningHistory.load(recorded / "history")
    deep = replace(history, metadata={"policy": {"hidden": [1] * 10**4}})
    assert choose_policy(deep, "mlp") == MLPGaussian(11, 3)
    wide = replace(history, metadata={"policy": {"hidden": [99_999, 99_999]}})
    with pytest.raises(TooLargeError, match="99999 to 99999"):
        choose_policy(wide, "mlp")


def test_a_network_of_the_same_size_that_is_another_is_refused(recorded: Path) -> None:
    usual = MLPGaussian(11, 3)
    stages = [
        replace(stage, parameters=np.zeros(usual.n_parameters))
        for stage in LearningHistory.load(recorded / "history")
    ]
    names = FEATURES["Hopper-v5"].names
    silent = LearningHistory.from_stages(stages, feature_names=names)
    assert choose_policy(silent, "mlp") == usual, "nobody knows better"
    relu = replace(silent, metadata={"policy": {"hidden": None}})
    with pytest.raises(OptionError, match="not a plain network with tanh"):
        choose_policy(relu, "mlp")
    assert choose_policy(relu, "mlp", known=False) == usual, "clones may be of any family"
