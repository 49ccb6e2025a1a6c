"""Recording Stable-Baselines3: nothing changes, and everything is as the policy saw it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import TRPO, MaskablePPO, RecurrentPPO
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from logel import (
    HistoryRecorder,
    LearningHistory,
    MLPCategorical,
    MLPGaussian,
    SB3Policy,
    infer_reward,
)
from logel.errors import FormatError, OptionError
from logel.policies.sb3 import policy_parameters
from logel.rewards.features import FunctionFeatures, StepFeatures
from logel.rewards.gymnasium import with_features

ALGORITHMS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "PPO": (PPO, {"n_steps": 24, "batch_size": 24, "n_epochs": 2}),
    "A2C": (A2C, {"n_steps": 24}),
    "TRPO": (TRPO, {"n_steps": 24, "batch_size": 24}),
}


class Clock(gymnasium.Env[Any, Any]):
    """Counts its steps; episode e of an environment has a known length and a known kind of end.

    Observations are (episode, time in it, 1); `lengths` gives each episode's length, a negative
    one meaning that it is cut by a time limit.
    """

    def __init__(self, lengths: tuple[int, ...], actions: spaces.Space[Any]) -> None:
        self.lengths = lengths
        self.action_space = actions
        self.observation_space = spaces.Box(-1e6, 1e6, (3,), dtype=np.float64)
        self.episode, self.time = -1, 0

    def _observation(self) -> np.ndarray:
        return np.array([self.episode, self.time, 1.0])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.time = self.episode + 1, 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        length = self.lengths[self.episode % len(self.lengths)]
        over = self.time == abs(length)
        info = {"action": np.copy(action)}
        reward = float(np.sum(action)) + self.time
        return self._observation(), reward, over and length > 0, over and length < 0, info


BOX = spaces.Box(-0.5, 0.5, (2,), dtype=np.float32)
DISCRETE = spaces.Discrete(3)
LENGTHS = ((5, -7, 100), (10, 3, -11), (24, 24, 24))


def clocks(
    actions: spaces.Space[Any], normalise: bool = False, processes: bool = False
) -> DummyVecEnv | SubprocVecEnv | VecNormalize:
    def maker(lengths: tuple[int, ...]) -> Callable[[], gymnasium.Env[Any, Any]]:
        return lambda: Monitor(Clock(lengths, actions))

    makers = [maker(lengths) for lengths in LENGTHS]
    venv = SubprocVecEnv(makers, start_method="fork") if processes else DummyVecEnv(makers)
    return VecNormalize(venv) if normalise else venv


class Buffers(BaseCallback):
    """Keeps copies of what SB3 itself knows of every rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.log_probs: list[np.ndarray] = []
        self.actions: list[np.ndarray] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        buffer = self.model.rollout_buffer
        self.log_probs.append(buffer.log_probs.T.reshape(-1).copy())
        self.actions.append(buffer.actions.swapaxes(0, 1).reshape(-1, buffer.action_dim).copy())


def train(name: str, env: Any, *, updates: int = 3, callback: Any = None, **options: Any) -> Any:
    algorithm, settings = ALGORITHMS[name]
    model = algorithm("MlpPolicy", env, seed=3, device="cpu", **{**settings, **options})
    return model.learn(updates * 24 * len(LENGTHS), callback=callback)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("actions", [BOX, DISCRETE], ids=["box", "discrete"])
def test_recording_changes_no_bit_and_log_probabilities_agree(
    name: str, actions: spaces.Space[Any], tmp_path: Path
) -> None:
    normalise = actions is BOX
    plain = train(name, clocks(actions, normalise))
    features = FunctionFeatures(lambda o, a, n: n[:, :2], ("episode", "time"))
    buffers = Buffers()
    recorder = HistoryRecorder(tmp_path / "h", features)
    watched = train(name, clocks(actions, normalise), callback=CallbackList([recorder, buffers]))
    for key, value in plain.policy.state_dict().items():
        assert torch.equal(value, watched.policy.state_dict()[key]), key

    history = LearningHistory.load(tmp_path / "h")
    assert history.complete and len(history) == 3
    assert history.feature_names == ("episode", "time")
    policy = SB3Policy.from_model(watched)
    for t, stage in enumerate(history):
        assert stage.parameters is not None and stage.parameters.dtype == np.float64
        with torch.no_grad():
            found = policy.log_prob(policy.tensor(stage.parameters), *policy.prepare(stage))
        np.testing.assert_allclose(found, buffers.log_probs[t], atol=1e-5)
        np.testing.assert_array_equal(stage.actions.reshape(72, -1), buffers.actions[t])
    moved = np.abs(np.diff(history.parameters(), axis=0)).max(axis=1)
    assert (moved > 0).all()
    assert not np.array_equal(history[2].parameters, policy_parameters(watched))


def test_pieces_are_cut_where_episodes_and_rollouts_end(tmp_path: Path) -> None:
    train("PPO", clocks(BOX), callback=HistoryRecorder(tmp_path / "h", "none"))
    history = LearningHistory.load(tmp_path / "h")
    first, second = history[0], history[1]
    # Environment 0: 5 steps to a terminal state, 7 to a time limit, 12 of the next episode.
    # Environment 1: 10, 3 terminal, 11 cut. Environment 2: one episode fills the rollout.
    np.testing.assert_array_equal(first.lengths, [5, 7, 12, 10, 3, 11, 24])
    np.testing.assert_array_equal(first.terminated, [1, 0, 0, 1, 1, 0, 1])
    expected = [[0, 5, 1], [1, 7, 1], [2, 12, 1], [0, 10, 1], [1, 3, 1], [2, 11, 1], [0, 24, 1]]
    np.testing.assert_array_equal(first.last_observations, expected)
    starts = first.observations[first.starts]
    np.testing.assert_array_equal(starts[:, 1], np.zeros(7))
    np.testing.assert_array_equal(starts[:, 0], [0, 1, 2, 0, 1, 2, 0])
    # The next rollout goes on in the middle of environment 0's long episode.
    np.testing.assert_array_equal(second.observations[0], [2, 12, 1])
    np.testing.assert_array_equal(second.lengths, [24, 10, 3, 11, 24])
    assert not second.terminated[0] and second.last_observations is not None
    np.testing.assert_array_equal(second.last_observations[0], [2, 36, 1])
    assert first.features is None


@pytest.mark.parametrize("processes", [False, True], ids=["in-process", "subprocesses"])
@pytest.mark.parametrize("normalise", [False, True], ids=["plain", "normalised"])
def test_features_see_the_environments_own_observations_and_actions(
    normalise: bool, processes: bool, tmp_path: Path
) -> None:
    """Three ways to get features agree with each other and with what the toy must say."""

    def batch(observations: Any, actions: Any, following: Any) -> Any:
        return np.column_stack([observations[:, :2], following[:, :2], actions])

    def step(observation: Any, action: Any, following: Any, info: Any) -> Any:
        np.testing.assert_array_equal(info["action"], action)
        return [*observation[:2], *following[:2], *action]

    names = ("episode", "time", "next episode", "next time", "left", "right")
    tables = []
    for kind, features in {
        "batch": FunctionFeatures(batch, names),
        "step": StepFeatures(step, names),
    }.items():
        recorder = HistoryRecorder(tmp_path / kind, features)
        env = clocks(BOX, normalise, processes)
        # A wide policy, so that some actions are clipped.
        train("PPO", env, updates=2, callback=recorder, policy_kwargs={"log_std_init": 0.5})
        env.close()
        history = LearningHistory.load(tmp_path / kind)
        tables.append(np.concatenate([stage.features for stage in history]))
    np.testing.assert_array_equal(*tables)
    stage = history[0]
    assert stage.features is not None
    np.testing.assert_array_equal(stage.features[:, 1], stage.times)
    np.testing.assert_array_equal(stage.features[:, 3], stage.times + 1)
    np.testing.assert_array_equal(stage.features[:, 0], stage.features[:, 2])
    assert (np.abs(stage.actions) > 0.5).any()
    np.testing.assert_array_equal(stage.features[:, 4:], np.clip(stage.actions, -0.5, 0.5))
    assert ("observation_mean" in history.notes[0]) == normalise


def test_last_states_are_normalised_like_the_others(tmp_path: Path) -> None:
    env = clocks(BOX, normalise=True)
    train("PPO", env, updates=1, callback=HistoryRecorder(tmp_path / "h", "none"))
    history = LearningHistory.load(tmp_path / "h")
    assert history[0].observations.dtype == np.float32
    assert np.abs(history[0].last_observations).max() <= 10.0
    # The statistics at the end of the rollout are those that made the last observations.
    notes = history.notes[0]
    mean, var = np.array(notes["observation_mean"]), np.array(notes["observation_var"])
    # Of environments 0 (cut by the rollout) and 1 (a time limit in the same step).
    raw = np.array([[2, 12, 1], [2, 11, 1]])
    found = history[0].last_observations[[2, 5]]
    np.testing.assert_allclose(found, (raw - mean) / np.sqrt(var + 1e-8), rtol=1e-5, atol=1e-6)


def test_features_reported_by_the_environment(tmp_path: Path) -> None:
    features = StepFeatures(lambda o, a, n, info: [info["action"].sum()], ("push",))
    makers = [lambda: with_features(Clock((9,), BOX), features)] * 3
    train("A2C", DummyVecEnv(makers), callback=HistoryRecorder(tmp_path / "h"))
    history = LearningHistory.load(tmp_path / "h")
    assert history.feature_names == ("push",)
    stage = history[1]
    expected = np.clip(stage.actions, -0.5, 0.5).sum(axis=1)
    np.testing.assert_allclose(stage.features[:, 0], expected, rtol=1e-6)
    with pytest.raises(OptionError, match="with_features"):
        train("PPO", clocks(BOX), callback=HistoryRecorder(tmp_path / "none"))


def test_discrete_observations(tmp_path: Path) -> None:
    buffers = Buffers()
    makers = [lambda: gymnasium.make("FrozenLake-v1")] * 3
    recorder = HistoryRecorder(
        tmp_path / "h", FunctionFeatures(lambda o, a, n: np.eye(16)[n], tuple("abcdefghijklmnop"))
    )
    model = train("PPO", DummyVecEnv(makers), callback=CallbackList([recorder, buffers]))
    policy = SB3Policy.from_model(model)
    history = LearningHistory.load(tmp_path / "h")
    assert history.signature.discrete_observations and history.signature.observation_shape == ()
    assert history.metadata["environment"] == "FrozenLake-v1"
    for t, stage in enumerate(history):
        found = policy.log_prob(policy.tensor(stage.parameters), *policy.prepare(stage))
        np.testing.assert_allclose(found.detach(), buffers.log_probs[t], atol=1e-5)
        np.testing.assert_array_equal(stage.features.argmax(axis=1), stage.next_observations())
        # The lake's holes and its goal are the only ends within so few steps.
        ended = stage.last_observations[stage.terminated]
        assert set(ended) <= {5, 7, 11, 12, 15} and len(ended)


def test_parameters_are_those_of_the_matching_network(tmp_path: Path) -> None:
    for actions, family in ((BOX, MLPGaussian(3, 2)), (DISCRETE, MLPCategorical(3, 3))):
        model = train("PPO", clocks(actions), updates=1)
        policy = SB3Policy.from_model(model)
        assert policy == family
        observations = np.random.default_rng(0).standard_normal((11, 3)).astype(np.float32)
        distribution = model.policy.get_distribution(torch.as_tensor(observations)).distribution
        theta = family.tensor(policy_parameters(model))
        outputs = family.outputs(theta, family.prepare_observations(observations))
        if actions is BOX:
            expected = torch.cat([distribution.mean, distribution.stddev.log()], dim=1)
        else:
            expected, outputs = distribution.logits, torch.log_softmax(outputs, dim=1)
        np.testing.assert_allclose(outputs.detach(), expected.detach(), atol=1e-5)


def test_some_updates_only_and_their_rates(tmp_path: Path) -> None:
    recorder = HistoryRecorder(
        tmp_path / "h", "none", every=2, first=1, last=6, learning_rates=True
    )
    train("PPO", clocks(DISCRETE), updates=8, callback=recorder, learning_rate=lambda left: left)
    history = LearningHistory.load(tmp_path / "h")
    assert [note["update"] for note in history.notes] == [1, 3, 5]
    assert [note["timesteps"] for note in history.notes] == [72, 216, 360]
    # Update u trains with rate 1 - (u + 1) / 8; between stages lie updates 1, 2 and 3, 4.
    rates = 1 - (np.arange(8) + 1) / 8
    np.testing.assert_allclose([note["learning_rate"] for note in history.notes], rates[[1, 3, 5]])
    np.testing.assert_allclose(history.learning_rates, [rates[1] + rates[2], rates[3] + rates[4]])
    assert history.own_episodes is False, "half of what it learnt from is not kept"
    np.testing.assert_array_equal(history.slice(1).notes[0]["update"], 3)
    history.save(tmp_path / "copy")
    assert LearningHistory.load(tmp_path / "copy").notes == history.notes


def test_optimiser_rates_are_not_taken_for_known_ones(tmp_path: Path) -> None:
    train("PPO", clocks(BOX), callback=HistoryRecorder(tmp_path / "h", "none"))
    assert LearningHistory.load(tmp_path / "h").learning_rates is None
    with pytest.raises(OptionError, match="TRPO does not move"):
        train(
            "TRPO",
            clocks(BOX),
            callback=HistoryRecorder(tmp_path / "t", "none", learning_rates=True),
        )


def test_metadata_and_returns(tmp_path: Path) -> None:
    recorder = HistoryRecorder(tmp_path / "h", "none", metadata={"why": "test"})
    train("PPO", clocks(DISCRETE), callback=recorder)
    history = LearningHistory.load(tmp_path / "h")
    facts = history.metadata
    assert facts["learner"] == "PPO" and facts["gamma"] == 0.99 and facts["why"] == "test"
    assert history.own_episodes is True
    assert facts["n_actions"] == 3 and facts["policy"]["hidden"] == [64, 64]
    # Return: the sum of times 1..T and of the actions.
    stage = history[0]
    whole = [n for n in range(7) if n not in (2, 5)] + [5]
    returns = [
        stage.actions[s : s + n].sum() + n * (n + 1) / 2
        for s, n in zip(stage.starts[whole], stage.lengths[whole], strict=True)
    ]
    assert history.notes[0]["mean_return"] == pytest.approx(np.mean(returns))
    assert history.notes[0]["episodes_finished"] == 6


def test_training_can_go_on_with_the_same_recorder(tmp_path: Path) -> None:
    recorder = HistoryRecorder(tmp_path / "h", "none")
    model = train("PPO", clocks(BOX), callback=recorder)
    model.learn(72, callback=recorder, reset_num_timesteps=False)
    history = LearningHistory.load(tmp_path / "h")
    assert [note["timesteps"] for note in history.notes] == [0, 72, 144, 216] and history.complete


def test_a_full_disk_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls, plain = [0], os.fsync

    def filling(descriptor: int) -> None:
        calls[0] += 1
        if calls[0] > 5:  # the manifest, and two stages with their lines
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(descriptor)

    monkeypatch.setattr(os, "fsync", filling)
    model = train("PPO", clocks(BOX), callback=HistoryRecorder(tmp_path / "h", "none"), updates=5)
    assert model.num_timesteps == 5 * 72
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said.startswith("recording has stopped, training goes on: cannot write ")
    assert said.endswith("stage-00002.safetensors: No space left on device")
    history = LearningHistory.load(tmp_path / "h")
    assert len(history) == 2 and not history.complete


def test_what_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(FormatError, match="already exists"):
        HistoryRecorder(tmp_path / "full")
    with pytest.raises(OptionError, match="every must be"):
        HistoryRecorder(tmp_path / "h", every=0)
    with pytest.raises(OptionError, match="features must be"):
        HistoryRecorder(tmp_path / "h", "info")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="DQN is not an on-policy"):
        DQN("MlpPolicy", Clock((5,), DISCRETE), buffer_size=10, device="cpu").learn(
            5, callback=HistoryRecorder(tmp_path / "h")
        )
    with pytest.raises(OptionError, match="memory"):
        RecurrentPPO(
            "MlpLstmPolicy", Clock((5,), DISCRETE), n_steps=8, batch_size=8, device="cpu"
        ).learn(8, callback=HistoryRecorder(tmp_path / "h"))
    assert not (tmp_path / "h").exists()


class Corridor(gymnasium.Env[Any, Any]):
    """Five places in a row; one cannot step out of either end."""

    observation_space = spaces.Box(0, 1, (5,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.time = 2, 0
        return self._seen(), {}

    def _seen(self) -> np.ndarray:
        return np.eye(5, dtype=np.float32)[self.place]

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.place, self.time = self.place + int(action) - 1, self.time + 1
        assert 0 <= self.place < 5, "the masks were not heeded"
        return self._seen(), float(self.place == 4), False, self.time >= 8, {}

    def legal(self) -> np.ndarray:
        return np.array([self.place > 0, True, self.place < 4])


def test_a_masked_learner_is_recorded_and_understood(tmp_path: Path) -> None:
    env = ActionMasker(Corridor(), lambda env: env.unwrapped.legal())  # type: ignore[attr-defined]
    model = MaskablePPO(
        "MlpPolicy",
        env,
        n_steps=128,
        batch_size=64,
        gamma=0.9,
        seed=1,
        policy_kwargs={"net_arch": [6]},
        device="cpu",
    )
    ends = FunctionFeatures(lambda o, a, n: n[:, [4, 0]], names=("right", "left"))
    model.learn(128 * 6, callback=HistoryRecorder(tmp_path / "h", ends))
    history = LearningHistory.load(tmp_path / "h")
    assert history.signature.n_masked_actions == 3
    for stage in history:
        places = stage.observations.argmax(axis=1)
        expected = np.stack([places > 0, places >= 0, places < 4], axis=1)
        np.testing.assert_array_equal(stage.action_masks, expected)
    estimate = infer_reward(history, SB3Policy.from_model(model), gamma=0.9, intervals=False)
    assert estimate.weights[0] > 0.7 and "mirror" in estimate.method


KILLED = """
import sys
import gymnasium
from stable_baselines3 import PPO
from logel import HistoryRecorder
model = PPO("MlpPolicy", gymnasium.make("CartPole-v1"), n_steps=64, batch_size=64, device="cpu")
model.learn(10**8, callback=HistoryRecorder(sys.argv[1], "none"))
"""


@pytest.mark.slow
def test_a_killed_run_leaves_a_readable_history(tmp_path: Path) -> None:
    path = tmp_path / "h"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)])
    try:
        limit = time.monotonic() + 300
        while not (path / "stage-00004.safetensors").exists():
            assert process.poll() is None and time.monotonic() < limit
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    history = LearningHistory.load(path)
    assert not history.complete and len(history) >= 4
    assert all(stage.n_steps == 64 for stage in history)
    assert history.parameters() is not None


def told(observations: Any, actions: Any, following: Any, **facts: Any) -> np.ndarray:
    return np.stack([facts["terminated"], facts["truncated"], facts["times"]], axis=1)


@pytest.mark.parametrize("every", [1, 2])
def test_features_see_endings_and_times(tmp_path: Path, every: int) -> None:
    features = FunctionFeatures(told, ("ended", "cut", "time"))
    recorder = HistoryRecorder(tmp_path / "history", features, every=every)
    train("PPO", clocks(DISCRETE, normalise=True), callback=recorder)
    history = LearningHistory.load(tmp_path / "history")
    plain = tmp_path / "plain"
    train("PPO", clocks(DISCRETE), callback=HistoryRecorder(plain, "none", every=every))
    assert len(history) == len(range(0, 3, every))
    for stage, seen in zip(history, LearningHistory.load(plain), strict=True):
        ended, cut, time = stage.features.T
        # The clock itself shows the time, also of episodes that began in an earlier rollout.
        np.testing.assert_array_equal(time, seen.observations[:, 1])
        lengths = [
            LENGTHS[i][int(e) % 3]
            for i, e in zip(environment(seen), seen.observations[:, 0], strict=True)
        ]
        np.testing.assert_array_equal(ended, time + 1 == lengths)
        np.testing.assert_array_equal(cut, time + 1 == -np.array(lengths))


def environment(stage: Any) -> np.ndarray:
    """Whose row is whose: environment after environment."""
    return np.repeat(np.arange(len(LENGTHS)), stage.n_steps // len(LENGTHS))
