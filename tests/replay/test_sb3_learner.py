"""Stable-Baselines3's own `train()` as a learner, and when it is taken."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import TRPO
from sb3_runs import Run, critic_tensors, run_of
from stable_baselines3 import A2C, PPO

from logel.data.settings import LearnerSettings
from logel.data.stage import Episode, Stage
from logel.errors import MissingExtraError, OptionError
from logel.policies.networks import MLPGaussian
from logel.policies.sb3 import SB3Policy, policy_parameters
from logel.policies.sb3_settings import model_settings
from logel.replay.actor_critic import State
from logel.replay.batch import Batch
from logel.replay.learner import StackedLearner
from logel.replay.sb3 import SB3Learner, learner_for, model_for, own_update

SMALL = {"batch_size": 7, "n_epochs": 3, "learning_rate": 3e-3}
CASES = [
    pytest.param(PPO, {**SMALL, "clip_range_vf": 0.05, "ent_coef": 0.1}, id="PPO"),
    pytest.param(PPO, {**SMALL, "normalise": {}, "discrete": True}, id="PPO, normalised"),
    pytest.param(A2C, {"learning_rate": lambda left: 1e-3 * (left + 0.1)}, id="A2C"),
    pytest.param(TRPO, {"batch_size": 7, "sub_sampling_factor": 2, "n_steps": 16}, id="TRPO"),
]
SHORT = pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")


def given(rows: Any) -> torch.Tensor:
    return torch.as_tensor(np.array(rows), dtype=torch.float32)


def critic_of(carried: Any) -> Any:
    policy = carried["policy"]
    names = [name for name in policy if "value_net" in name]
    return torch.cat([policy[name].flatten() for name in names])


class Quiet(np.random.Generator):
    """Draws orders, and zeros for the noise that conjugate gradients begin with."""

    def standard_normal(self, size: int) -> Any:  # type: ignore[override]
        return np.zeros(size)


def generators() -> list[np.random.Generator]:
    return [Quiet(np.random.PCG64(seed)) for seed in (1000, 1001)]


@SHORT
@pytest.mark.parametrize(("algorithm", "options"), CASES)
@pytest.mark.parametrize("live", [False, True])
@patch("torch.randn_like", torch.zeros_like)
def test_slow_and_fast_agree(
    algorithm: Any, options: dict[str, Any], live: bool, tmp_path: Path
) -> None:
    run = run_of(algorithm, tmp_path, n_updates=3, **options)
    fast, note = learner_for(run.settings, run.policy, 3)
    assert isinstance(fast, StackedLearner) and note is None
    model = run.model if live else model_for(run.settings, run.policy, 3)
    slow = SB3Learner(model, run.settings)
    # Two generators for four candidates, in turn.
    fast_rng, slow_rng = generators(), generators()
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    slow_state = slow.chosen(slow.initial(slow_rng), np.array([0, 1, 0, 1]))
    fast_state = State(torch.stack([critic_of(one) for one in slow_state.models]))
    trained = policy_parameters(run.model)
    for t, stage in enumerate(run.history):
        batch, theta = run.batch(t), given([stage.parameters] * 4)
        rewards = torch.tensor([[1.0], [-2.0], [0.1], [0.3]]) @ batch.features.T
        found, fast_state = fast.update(theta, fast_state, batch, rewards, fast_rng)
        with torch.no_grad():
            own, slow_state = slow.update(theta, slow_state, batch, rewards, slow_rng)
        np.testing.assert_allclose(found, own, rtol=1e-5, atol=1e-5)
        critics = torch.stack([critic_of(one) for one in slow_state.models])
        np.testing.assert_allclose(fast_state.critic, critics, rtol=1e-5, atol=1e-5)
    # Neither the user's model nor anybody's random numbers were touched.
    assert (policy_parameters(run.model) == trained).all()
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


def replayed(learner: SB3Learner, run: Run) -> None:
    """With the true reward and the run's own draws, the run comes out."""
    state = learner.initial([np.random.default_rng(1000)])
    initial = state.models[0]["policy"]
    critic = iter(torch.split(given(run.moments[0].critic), sizes(run.model.policy)))
    for name in [name for name in initial if "value_net" in name]:
        initial[name] = next(critic).view(initial[name].shape)
    for t, stage in enumerate(run.history):
        batch = run.batch(t)
        theta = given([stage.parameters])
        draws: Any = replace(run.draws[t], given=[0, 0])
        found, state = learner.update(theta, state, batch, batch.features.T, [draws])
        after = run.moments[t + 1]
        np.testing.assert_allclose(found[0], after.parameters, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(critic_of(state.models[0]), after.critic, rtol=1e-5, atol=1e-5)


def sizes(policy: Any) -> list[int]:
    return [tensor.numel() for tensor in critic_tensors(policy)]


@SHORT
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"activation_fn": torch.nn.SiLU}, "silu"),
        (
            {
                "optimizer_class": torch.optim.RMSprop,
                "optimizer_kwargs": {"momentum": 0.5, "centered": True},
            },
            "RMSprop has momentum, centered",
        ),
        ({"optimizer_class": torch.optim.AdamW, "optimizer_kwargs": {"eps": 1e-4}}, "AdamW"),
        (
            {
                "optimizer_class": torch.optim.SGD,
                "optimizer_kwargs": {"nesterov": True, "momentum": 0.1},
            },
            "SGD",
        ),
    ],
)
def test_what_is_not_written_out_runs_slowly_and_says_so(
    options: dict[str, Any], why: str, tmp_path: Path
) -> None:
    kwargs = {"net_arch": {"pi": [7], "vf": [6, 5]}, **options}
    run = run_of(PPO, tmp_path, n_updates=3, policy_kwargs=kwargs, **SMALL)
    learner, note = learner_for(run.settings, run.policy, 3)
    assert isinstance(learner, SB3Learner)
    assert note is not None and "candidate by candidate" in note and why in note
    replayed(learner, run)


class Halved(PPO):
    """Believes only half of its advantages."""

    def train(self) -> None:
        self.rollout_buffer.advantages *= 0.5
        super().train()


@SHORT
def test_a_subclass_is_repeated_by_its_own_code(tmp_path: Path) -> None:
    run = run_of(Halved, tmp_path, n_updates=3, normalize_advantage=False, **SMALL)
    replayed(own_update(run.model), run)
    learner, note = learner_for(run.settings, run.policy, 3, model=run.model)
    assert isinstance(learner, SB3Learner) and note is not None and "Halved" in note
    replayed(learner, run)
    with pytest.raises(OptionError, match="pass the model itself"):
        learner_for(run.settings, run.policy, 3)


def test_an_ordinary_model_is_repeated_fast(tmp_path: Path) -> None:
    run = run_of(A2C, tmp_path, n_updates=1)
    assert isinstance(learner_for(run.settings, run.policy, 3, model=run.model)[0], StackedLearner)


class Rooms(gymnasium.Env[Any, Any]):
    """Observations that are numbers of rooms."""

    observation_space, action_space = spaces.Discrete(4), spaces.Discrete(2)


def test_one_hot_observations_are_replayed_like_vectors() -> None:
    model = PPO("MlpPolicy", Rooms(), n_steps=8, batch_size=4, device="cpu", seed=1000)
    settings, policy = model_settings(model), SB3Policy.from_model(model)
    learner, note = learner_for(settings, policy, 4, model=model)
    assert note is None and isinstance(learner, StackedLearner)
    episode = Episode(np.array([0, 1, 2, 3, 0]), np.array([0, 1, 1, 0]), np.ones((4, 1)))
    stage = Stage.from_episodes([episode, replace(episode, terminated=True)])
    batch, rng = Batch.of(stage, policy), [np.random.default_rng(1000)]
    theta, state = given([policy_parameters(model)]), learner.initial(rng)
    found, _ = learner.update(theta, state, batch, batch.features.T, rng)
    assert found.shape == theta.shape and (found != theta).any()


@pytest.mark.parametrize(
    "changed",
    [{"use_sde": True}, {"pi": None}, {"optimizer": "LBFGS"}, {"activation": None}],
    ids=str,
)
def test_what_nobody_can_repeat_is_refused(changed: dict[str, Any]) -> None:
    settings = LearnerSettings("PPO", pi=(4,), vf=(4,), activation="tanh")
    with pytest.raises(OptionError, match="cannot be repeated from its settings, because"):
        learner_for(replace(settings, **changed), MLPGaussian(3, 2, hidden=(4,)), 3)


def test_networks_must_fit() -> None:
    settings = LearnerSettings("PPO", pi=(4,), vf=(4,), activation="tanh")
    with pytest.raises(OptionError, match="parameters"):
        learner_for(settings, MLPGaussian(3, 2, hidden=(5,)), 3)


def test_without_stable_baselines_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    settings = LearnerSettings("PPO", pi=(4,), vf=(4,), activation="gelu")
    with pytest.raises(MissingExtraError, match="mujoco"):
        learner_for(settings, MLPGaussian(3, 2, hidden=(4,)), 3)
