"""PPO as in the paper: settings, schedule, curve, and training on another reward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from logel import HistoryRecorder, LearningHistory, LinearReward, MLPGaussian
from logel.envs.mujoco import FEATURES, hopper_features, hopper_true_weights, make
from logel.errors import OptionError, PolicyError
from logel.learners.ppo import PPOSettings, train_ppo
from logel.policies.sb3 import checkpoint_parameters, policy_parameters

SMALL = PPOSettings(n_envs=2, n_steps=64, batch_size=32, n_epochs=2)


def test_the_papers_settings() -> None:
    settings = PPOSettings()
    assert settings.n_envs * settings.n_steps == 32 * settings.batch_size == 32_000
    with pytest.raises(OptionError, match="must divide the 32000"):
        PPOSettings(batch_size=999)
    with pytest.raises(OptionError, match="n_epochs must be at least 1"):
        PPOSettings(n_epochs=0)
    with pytest.raises(OptionError, match="learning_rate"):
        PPOSettings(learning_rate=0.0)
    with pytest.raises(OptionError, match="updates must be"):
        train_ppo("Hopper-v5", SMALL, updates=0, seed=0)


def test_it_is_sb3s_ppo_bit_for_bit(tmp_path: Path) -> None:
    """The lean environment and the recorder change nothing; the schedule is base * (1 - u / U)."""
    recorder = HistoryRecorder(tmp_path / "h")
    curve = train_ppo("Hopper-v5", SMALL, updates=3, seed=5, recorder=recorder)

    venv = VecNormalize(DummyVecEnv([lambda: Monitor(make("Hopper-v5"))] * 2), gamma=0.99)
    model = PPO(
        "MlpPolicy",
        venv,
        learning_rate=lambda progress: 7e-4 * (progress + 1 / 3),
        clip_range=lambda progress: 0.2 * (progress + 1 / 3),
        n_steps=64,
        batch_size=32,
        n_epochs=2,
        seed=5,
        device="cpu",
    )
    first = policy_parameters(model)
    model.learn(3 * 128)
    np.testing.assert_array_equal(curve.parameters, policy_parameters(model))

    history = LearningHistory.load(tmp_path / "h")
    np.testing.assert_array_equal(history[0].parameters, first)
    np.testing.assert_allclose(
        [note["learning_rate"] for note in history.notes], [7e-4, 7e-4 * 2 / 3, 7e-4 / 3]
    )
    np.testing.assert_allclose([note["mean_return"] for note in history.notes], curve.returns)
    np.testing.assert_array_equal(curve.timesteps, [128, 256, 384])
    assert history.feature_names == ("distance", "alive", "|action|^2")
    # Recorded features, times the true weights, sum to the returns of finished episodes.
    stage = history[0]
    paid = stage.features @ hopper_true_weights()
    whole = [n for n in range(stage.n_episodes) if stage.terminated[n]]
    sums = [paid[s : s + n].sum() for s, n in zip(stage.starts, stage.lengths, strict=True)]
    assert np.mean([sums[n] for n in whole]) == pytest.approx(curve.returns[0], abs=1e-6)


def test_the_true_reward_in_features_trains_like_the_true_reward() -> None:
    own = train_ppo("Hopper-v5", SMALL, updates=2, seed=1)
    replaced = train_ppo(
        "Hopper-v5", SMALL, updates=2, seed=1, reward=LinearReward(hopper_true_weights())
    )
    batched = train_ppo(
        "Hopper-v5",
        SMALL,
        updates=2,
        seed=1,
        reward=LinearReward(hopper_true_weights(), hopper_features()),
    )
    np.testing.assert_array_equal(batched.parameters, replaced.parameters)
    np.testing.assert_allclose(replaced.parameters, own.parameters, atol=1e-4)
    np.testing.assert_allclose(replaced.returns, own.returns, rtol=1e-4)
    assert np.isfinite(own.returns).all()


def test_an_observer_starts_from_the_first_policy_and_is_scored_truly(tmp_path: Path) -> None:
    features = FEATURES["Reacher-v5"]
    recorder = HistoryRecorder(tmp_path / "h", features)  # type: ignore[arg-type]
    train_ppo("Reacher-v5", SMALL, updates=1, seed=0, recorder=recorder)
    initial = LearningHistory.load(tmp_path / "h")[0].parameters
    assert initial is not None
    seen: list[tuple[int, int, float]] = []
    curve = train_ppo(
        "Reacher-v5",
        SMALL,
        updates=2,
        seed=9,
        reward=LinearReward(-np.eye(26)[25], features),  # type: ignore[arg-type]
        initial=initial,
        recorder=HistoryRecorder(tmp_path / "observer", "none"),
        on_update=lambda *args: seen.append(args),
        checkpoint=tmp_path / "model",
    )
    history = LearningHistory.load(tmp_path / "observer")
    np.testing.assert_array_equal(history[0].parameters, initial.astype(np.float32))
    assert [entry[:2] for entry in seen] == [(1, 2), (2, 2)]
    assert [entry[2] for entry in seen] == list(curve.returns)
    assert (curve.returns < -5).all(), "true returns, not the replaced reward"
    np.testing.assert_array_equal(
        checkpoint_parameters(tmp_path / "model" / "model.zip"), curve.parameters
    )
    assert (tmp_path / "model" / "normaliser.json").exists()
    with pytest.raises(PolicyError, match="of another environment"):
        train_ppo("Hopper-v5", SMALL, updates=1, seed=0, initial=initial)


def test_where_no_episode_ends_the_curve_carries_on() -> None:
    import gymnasium

    settings = PPOSettings(n_envs=1, n_steps=30, batch_size=30, n_epochs=1)

    def env() -> Any:
        return gymnasium.make("Reacher-v5", disable_env_checker=True)

    curve = train_ppo(env, settings, updates=4, seed=0)
    # Episodes of 50 steps end in rollouts 1 (step 50) and 3 (step 100) of 30 steps each.
    np.testing.assert_array_equal(curve.episodes, [0, 1, 0, 1])
    assert np.isnan(curve.returns[0]) and curve.returns[1] == curve.returns[2]


def test_log_probabilities_of_the_written_out_family(tmp_path: Path) -> None:
    """MLPGaussian with the recorded parameters: the family users will clone with."""
    train_ppo("Hopper-v5", SMALL, updates=1, seed=0, recorder=HistoryRecorder(tmp_path / "h"))
    stage = LearningHistory.load(tmp_path / "h")[0]
    policy = MLPGaussian(11, 3)
    values = policy.log_prob(policy.tensor(stage.parameters), *policy.prepare(stage))
    # An untrained policy is nearly the standard normal: log-density -|a|^2 / 2 - 3/2 log 2 pi.
    rough = -0.5 * (stage.actions**2).sum(axis=1) - 1.5 * np.log(2 * np.pi)
    assert torch.as_tensor(rough).sub(values).abs().max() < 0.2
