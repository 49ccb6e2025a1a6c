"""Checkpoints become a history: what is sampled, what is refused, and that nothing is executed."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import sys
import unittest.mock
import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import CheckpointCallback

from logel.cli.main import main
from logel.data.history import LearningHistory
from logel.data.settings import LearnerSettings
from logel.envs.classic_control import FEATURES
from logel.errors import FormatError, OptionError
from logel.inference.infer import infer_reward
from logel.learners.checkpoints import find_checkpoints, record_checkpoints
from logel.policies.sb3 import SB3Policy, policy_parameters
from logel.rewards.features import FunctionFeatures
from logel.rewards.normaliser import Normaliser

CARTPOLE = FEATURES["CartPole-v1"]


def logel(*arguments: object) -> tuple[int, str]:
    """Exit code and what is printed, errors included."""
    out = io.StringIO()
    code: Any = 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
        unittest.mock.patch.object(sys, "argv", ["logel", *map(str, arguments)]),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return int(code), out.getvalue()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, A2C]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    model = A2C("MlpPolicy", "CartPole-v1", n_steps=128, gamma=0.95, seed=0, device="cpu")
    model.learn(4 * 256, callback=CheckpointCallback(256, str(folder)))
    return folder, model


def test_a_run_becomes_a_history_and_an_estimate(trained: tuple[Path, A2C], tmp_path: Path) -> None:
    folder, model = trained
    out = tmp_path / "history"
    code, printed = logel(
        *("record", "--checkpoints", folder, "--env", "CartPole-v1", "--out", out),
        *("--episodes", 20, "--json"),
    )
    assert code == 0, printed
    assert json.loads(printed) == {"history": str(out), "stages": 4, "episodes_per_stage": 20}
    history = LearningHistory.load(out)
    # In the order of the steps, not of the names: 1024 comes last.
    assert [note["timesteps"] for note in history.notes] == [256, 512, 768, 1024]
    assert history.metadata["gamma"] == 0.95 and history.metadata["n_actions"] == 2
    # Stable-Baselines3's default RMSprop; two rollouts of 128 steps from one to the next.
    settings = LearnerSettings.of(history)
    assert settings is not None and settings.n_updates_between == 2
    assert (settings.algorithm, settings.optimizer) == ("A2C", "RMSprop")
    assert (settings.gamma, settings.n_steps, settings.vf) == (0.95, 128, (64, 64))
    last = history[3].parameters
    assert last is not None
    # Stable-Baselines3's own reader is the oracle; this file is our own.
    reference = A2C.load(folder / "rl_model_1024_steps.zip", device="cpu")
    np.testing.assert_array_equal(last, policy_parameters(reference))
    estimate = infer_reward(history, SB3Policy.from_model(model), gamma=0.95)
    assert estimate.feature_names == ("alive", "lean", "speed")
    code, printed = logel("infer", out, "--json", "--quiet")
    assert code == 0
    found, verdict = printed.rsplit("}", 1)
    assert json.loads(f"{found}}}")["feature_names"] == ["alive", "lean", "speed"]
    assert verdict.strip().startswith("verdict: ")


def test_episodes_are_the_environments_own(trained: tuple[Path, A2C], tmp_path: Path) -> None:
    folder, _ = trained
    history = record_checkpoints(
        folder, "CartPole-v1", tmp_path / "one", features=CARTPOLE, episodes=18, seed=3
    )
    again = record_checkpoints(
        folder, "CartPole-v1", tmp_path / "two", features=CARTPOLE, episodes=18, seed=3
    )
    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    for stage, same in zip(history, again, strict=True):
        assert stage.n_episodes == 18 and stage.terminated.all()
        np.testing.assert_array_equal(stage.observations, same.observations)
        assert stage.last_observations is not None and stage.features is not None
        # The dynamics of CartPole lead from each observation to the next.
        end = 0
        for length, last in zip(stage.lengths[:3], stage.last_observations, strict=False):
            seen = np.vstack([stage.observations[end : end + length], last[None]])
            for h in range(length):
                env.state = seen[h].astype(np.float64)  # type: ignore[attr-defined]
                env.steps_beyond_terminated = None  # type: ignore[attr-defined]
                following = env.step(int(stage.actions[end + h]))[0]
                np.testing.assert_allclose(following, seen[h + 1], atol=1e-5)
            # Alive until the last step, which ended the episode.
            alive = stage.features[end : end + length, 0]
            assert alive[:-1].all() and alive[-1] == 0
            end += length


def test_features_see_the_endings_of_fresh_episodes(
    trained: tuple[Path, A2C], tmp_path: Path
) -> None:
    ended = FunctionFeatures(
        lambda o, a, n, terminated, truncated, times: np.stack([terminated, truncated, times], 1),
        ("ended", "cut", "time"),
    )
    history = record_checkpoints(
        trained[0], "CartPole-v1", tmp_path / "one", features=ended, episodes=3, seed=3
    )
    for stage in history:
        last = np.isin(np.arange(stage.n_steps), stage.starts + stage.lengths - 1)
        # As CARTPOLE above: all of these fall.
        np.testing.assert_array_equal(stage.features, np.stack([last, 0 * last, stage.times], 1))


def test_normalised_observations_need_their_statistics(
    trained: tuple[Path, A2C], tmp_path: Path
) -> None:
    folder, _ = trained
    copies = tmp_path / "checkpoints"
    copies.mkdir()
    for path in folder.glob("*.zip"):
        (copies / path.name).write_bytes(path.read_bytes())
    (copies / "rl_model_vecnormalize_256_steps.pkl").write_bytes(pickle.dumps(None))
    out = tmp_path / "history"
    with pytest.raises(OptionError, match=r"normaliser_notes.*rl_model_256_steps.json"):
        record_checkpoints(copies, "CartPole-v1", out, features=CARTPOLE, episodes=2)
    assert not out.exists()
    for path in copies.glob("*.zip"):
        notes = {"observation_mean": [1.0] * 4, "observation_var": [4.0] * 4}
        path.with_suffix(".json").write_text(json.dumps(notes))
    history = record_checkpoints(copies, "CartPole-v1", out, features=CARTPOLE, episodes=2)
    # CartPole starts within .05 of zero: half a deviation below the mean.
    np.testing.assert_allclose(history[0].observations[0], -0.5, atol=0.03)
    for wrong in ('{"observation_mean": [[[[0]]]]}', f'{{"observation_mean": [{10**400}]}}'):
        (copies / "rl_model_256_steps.json").write_text(wrong)
        with pytest.raises(FormatError, match="statistics"):
            record_checkpoints(copies, "CartPole-v1", tmp_path / "no", features=CARTPOLE)


def test_normaliser_by_hand() -> None:
    normaliser = Normaliser(np.array([1.0]), np.array([3.0]), epsilon=1.0, clip=2.0)
    np.testing.assert_allclose(normaliser(np.array([[3.0], [-9.0]])), [[1.0], [-2.0]])


def test_features_of_the_users_own(
    trained: tuple[Path, A2C], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = trained
    monkeypatch.chdir(tmp_path)
    Path("own_features.py").write_text(
        "from logel.rewards.features import FunctionFeatures\n"
        "spin = FunctionFeatures(lambda s, a, n: n[:, 3] ** 2, ('spin',))\n"
        "bare = abs\n"
    )
    command = ("record", "--checkpoints", folder, "--env", "CartPole-v1", "--episodes", 2)
    path = list(sys.path)
    code, printed = logel(*command, "--out", "own", "--features", "own_features:spin", "-q")
    assert code == 0, printed
    assert sys.path == path
    history = LearningHistory.load("own")
    assert history.feature_names == ("spin",)
    first = history[0]
    assert first.features is not None
    np.testing.assert_allclose(first.features[0, 0], first.observations[1, 3] ** 2, rtol=1e-5)
    for name, expected in {
        "own_features:bare": "FunctionFeatures",
        "own_features:none": "cannot load",
        "no_such_module:x": "cannot load",
        "own_features": "must be module:name",
    }.items():
        code, printed = logel(*command, "--out", "no", "--features", name)
        assert code == 2 and expected in " ".join(printed.split()), printed
        assert not Path("no").exists()


class Boom:
    """What must never run."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('executed')",)


def test_bad_checkpoints_cost_one_sentence(trained: tuple[Path, A2C], tmp_path: Path) -> None:
    folder, _ = trained
    good = sorted(folder.glob("*.zip"))[0].read_bytes()
    other = io.BytesIO()
    A2C("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [8]}, device="cpu").save(other)
    hostile = io.BytesIO()
    inner = io.BytesIO()
    torch.save({"action_net.weight": Boom()}, inner)
    with zipfile.ZipFile(hostile, "w") as archive:
        archive.writestr("policy.pth", inner.getvalue())
        archive.writestr("data", "{}")
    cases: dict[str, tuple[dict[str, bytes], str, str]] = {
        "hostile": ({"a_2.zip": hostile.getvalue()}, "CartPole-v1", "pickled objects"),
        "broken": ({"a_2.zip": b"PK no"}, "CartPole-v1", "not a readable checkpoint"),
        "shape": ({"a_2.zip": other.getvalue()}, "CartPole-v1", "parameters"),
        "twice": ({"b_1.zip": good}, "CartPole-v1", "both of step 1"),
        "nameless": ({"best.zip": good}, "CartPole-v1", "does not tell its step"),
        "alone": ({}, "CartPole-v1", "at least two"),
        "world": ({"a_2.zip": good}, "CliffWalking-v1", "no reward features"),
        "unknown": ({"a_2.zip": good}, "Nowhere-v0", "no environment 'Nowhere-v0'"),
        "wrong": ({"a_2.zip": good}, "Hopper-v5", "another environment"),
    }
    for name, (files, env, expected) in cases.items():
        checkpoints = tmp_path / name
        checkpoints.mkdir()
        for file, payload in {"a_1.zip": good, **files}.items():
            (checkpoints / file).write_bytes(payload)
        out = tmp_path / f"{name} out"
        code, printed = logel(
            *("record", "--checkpoints", checkpoints, "--env", env, "--out", out, "-q")
        )
        assert code == 2, (name, printed)
        assert expected in " ".join(printed.split()), (name, printed)
        assert len(printed.strip().splitlines()) == 1 and not out.exists(), (name, printed)
    code, printed = logel("record", "--checkpoints", tmp_path)
    assert code == 2 and "--env" in printed
    code, printed = logel("record", "--checkpoints", tmp_path, "gridworld", tmp_path / "g")
    assert code == 2 and "not both" in printed


def test_a_stopped_recording_leaves_nothing(trained: tuple[Path, A2C], tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record_checkpoints(
            trained[0], "CartPole-v1", tmp_path / "h", features=CARTPOLE, episodes=2, progress=stop
        )
    assert not list(tmp_path.iterdir())


def test_steps_are_read_from_names(tmp_path: Path) -> None:
    for name in ("rl2_model_900_steps.zip", "rl2_model_1000_steps.zip", "rl2_final10000.zip"):
        (tmp_path / name).touch()
    assert list(find_checkpoints(tmp_path)) == [900, 1000, 10000]
    with pytest.raises(OptionError, match="no folder"):
        find_checkpoints(tmp_path / "none")
