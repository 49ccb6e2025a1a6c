"""What replay needs of Stable-Baselines3's learners: recorded, or read from their checkpoints."""

from __future__ import annotations

import base64
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import TRPO
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from logel import HistoryRecorder, LearningHistory
from logel.data.rollout import grid_of
from logel.data.settings import HUGE, LearnerSettings, RewardNormaliser
from logel.errors import FormatError
from logel.policies.sb3_settings import checkpoint_settings, model_settings, updates_between
from logel.rewards.features import FunctionFeatures


class Walk(gymnasium.Env[Any, Any]):
    """A point on a line; episodes end at the given times, in turn, negative ones by time limit."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        self.lengths, self.episode, self.time = lengths, -1, 0
        self.action_space = spaces.Box(-1, 1, (1,), dtype=np.float32)
        self.observation_space = spaces.Box(-1e3, 1e3, (2,), dtype=np.float32)
        self.seen = np.zeros(2, dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.time = self.episode + 1, 0
        self.seen = np.array([self.episode, 0], dtype=np.float32)
        return self.seen, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        self.seen = self.seen + np.array([action[0], 1], dtype=np.float32)
        length = self.lengths[self.episode % len(self.lengths)]
        over = self.time == abs(length)
        return self.seen, float(self.seen[0]), over and length > 0, over and length < 0, {}


# In rollouts of 8 times: a time limit at the border, an end at the border, and one that goes on.
LENGTHS = ((3, -5), (8,), (5, -6))
PLACE = FunctionFeatures(lambda o, a, n: n[:, :1], ("place",))


def walks(normalise: dict[str, Any] | None = None) -> DummyVecEnv | VecNormalize:
    def maker(lengths: tuple[int, ...]) -> Callable[[], gymnasium.Env[Any, Any]]:
        return lambda: Walk(lengths)

    venv = DummyVecEnv([maker(lengths) for lengths in LENGTHS])
    return venv if normalise is None else VecNormalize(venv, **normalise)


def linear(value: float) -> Callable[[float], float]:
    return lambda left: value * left


CASES: dict[str, tuple[type[Any], dict[str, Any], LearnerSettings]] = {
    "PPO": (
        PPO,
        {
            **{"batch_size": 12, "n_epochs": 2, "gamma": 0.9, "target_kl": 0.5},
            **{"learning_rate": linear(0.01), "clip_range": linear(0.3), "ent_coef": 0.01},
            **{"clip_range_vf": linear(0.5), "max_grad_norm": float("inf")},
            "policy_kwargs": {
                "net_arch": {"pi": [8], "vf": [9, 7]},
                "activation_fn": torch.nn.ELU,
                "ortho_init": False,
            },
        },
        LearnerSettings(
            "PPO",
            **{"gamma": 0.9, "gae_lambda": 0.95, "n_steps": 8, "n_envs": 3, "batch_size": 12},
            **{"n_epochs": 2, "ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": HUGE},
            **{"normalize_advantage": True, "target_kl": 0.5, "learning_rate": 0.01},
            **{"clip_range": 0.3, "clip_range_vf": 0.5, "pi": (8,), "vf": (9, 7)},
            **{"activation": "elu", "ortho_init": False},
        ),
    ),
    "A2C": (
        A2C,
        {"learning_rate": 0.002, "rms_prop_eps": 1e-4},
        LearnerSettings(
            "A2C",
            **{"gamma": 0.99, "gae_lambda": 1.0, "n_steps": 8, "n_envs": 3, "ent_coef": 0.0},
            **{"vf_coef": 0.5, "max_grad_norm": 0.5, "normalize_advantage": False},
            **{"learning_rate": 0.002, "pi": (64, 64), "vf": (64, 64), "activation": "tanh"},
            ortho_init=True,
            optimizer="RMSprop",
            optimizer_options={
                **{"alpha": 0.99, "eps": 1e-4, "weight_decay": 0, "momentum": 0},
                **{"centered": 0, "maximize": 0},
            },
        ),
    ),
    "A2C with Adam": (
        A2C,
        {"use_rms_prop": False, "normalize_advantage": True, "policy_kwargs": {"net_arch": []}},
        LearnerSettings(
            "A2C",
            **{"gamma": 0.99, "gae_lambda": 1.0, "n_steps": 8, "n_envs": 3, "ent_coef": 0.0},
            **{"vf_coef": 0.5, "max_grad_norm": 0.5, "normalize_advantage": True},
            **{"learning_rate": 7e-4, "pi": (), "vf": (), "activation": "tanh"},
            ortho_init=True,
        ),
    ),
    "TRPO": (
        TRPO,
        {"batch_size": 12, "sub_sampling_factor": 2, "learning_rate": linear(0.01)},
        LearnerSettings(
            "TRPO",
            **{"gamma": 0.99, "gae_lambda": 0.95, "n_steps": 8, "n_envs": 3, "batch_size": 12},
            **{"ent_coef": 0.0, "vf_coef": 0.0, "max_grad_norm": 0.0, "target_kl": 0.01},
            **{"normalize_advantage": True, "learning_rate": 0.01, "cg_max_steps": 15},
            **{"cg_damping": 0.1, "line_search_shrinking_factor": 0.8, "line_search_max_iter": 10},
            **{"n_critic_updates": 10, "sub_sampling_factor": 2, "pi": (64, 64), "vf": (64, 64)},
            **{"activation": "tanh", "ortho_init": True},
        ),
    ),
}
# Of the policy: Stable-Baselines3 sets eps for Adam.
ADAM = {
    **{"beta1": 0.9, "beta2": 0.999, "eps": 1e-5, "weight_decay": 0, "amsgrad": 0},
    **{"maximize": 0, "decoupled_weight_decay": 0},
}


def expected_of(name: str, updates: int, **more: Any) -> LearnerSettings:
    told = CASES[name][2]
    if told.optimizer is None:
        told = replace(told, optimizer="Adam", optimizer_options=ADAM)
    return replace(told, total_timesteps=24 * updates, use_sde=False, **more)


def train(name: str, env: Any, *, updates: int = 4, callback: Any = None) -> Any:
    algorithm, options, _ = CASES[name]
    model = algorithm("MlpPolicy", env, n_steps=8, seed=1003, device="cpu", **options)
    return model.learn(24 * updates, callback=callback)


class Witness(BaseCallback):
    """What Stable-Baselines3 itself did in every update, and how its rollouts ended."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []
        self.clips: list[Any] = []
        self.starts: list[np.ndarray] = []
        self.dones: list[np.ndarray] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.starts:
            self._trained()

    def _on_rollout_end(self) -> None:
        self.starts.append(self.model.rollout_buffer.episode_starts.astype(bool))
        self.dones.append(self.model._last_episode_starts.copy())

    def _on_training_end(self) -> None:
        self._trained()

    def _trained(self) -> None:
        self.rates.append(self.model.policy.optimizer.param_groups[0]["lr"])
        values = self.model.logger.name_to_value
        self.clips.append([values.get(f"train/{k}") for k in ("clip_range", "clip_range_vf")])


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_settings_and_schedules_are_recorded_and_nothing_changes(
    name: str, every: int, tmp_path: Path
) -> None:
    env, watched_env = walks({"clip_reward": 5.0}), walks({"clip_reward": 5.0})
    plain = train(name, env)
    witness = Witness()
    recorder = HistoryRecorder(tmp_path / "h", PLACE, every=every)
    model = train(name, watched_env, callback=CallbackList([recorder, witness]))
    for key, value in plain.policy.state_dict().items():
        assert torch.equal(value, model.policy.state_dict()[key]), key
    assert isinstance(env, VecNormalize) and isinstance(watched_env, VecNormalize)
    np.testing.assert_array_equal(env.ret_rms.var, watched_env.ret_rms.var)

    history = LearningHistory.load(tmp_path / "h")
    normaliser = RewardNormaliser(gamma=0.99, epsilon=1e-8, clip=5.0)
    assert LearnerSettings.of(history) == expected_of(
        name, 4, reward_normaliser=normaliser, n_updates_between=every
    )
    notes = history.notes
    assert [note["update"] for note in notes] == list(range(0, 4, every))
    for index, note in enumerate(notes):
        u = note["update"]
        assert note["learning_rate"] == witness.rates[u]
        assert note["continues"] == (~witness.dones[u]).tolist()
        told = "learning_rates_between" in note
        assert told == (every > 1 and index > 0)
        if told:
            assert note["learning_rates_between"] == witness.rates[u - every : u]
        assert [note.get(k) for k in ("clip_range", "clip_range_vf")] == witness.clips[u]
        assert not {"rewards", "values", "advantages"} & set(note)
    if name == "PPO":
        left = 1 - (np.arange(0, 4, every) + 1) / 4
        np.testing.assert_allclose([note["clip_range"] for note in notes], 0.3 * left)
        np.testing.assert_allclose([note["clip_range_vf"] for note in notes], 0.5 * left)


def test_the_grid_replays_the_reward_normaliser(tmp_path: Path) -> None:
    """Its statistics come back from the recorded pay; Stable-Baselines3's own are the oracle."""
    env, witness = walks({"gamma": 0.9}), Witness()
    recorder = HistoryRecorder(tmp_path / "h", PLACE)
    train("PPO", env, callback=CallbackList([recorder, witness]))
    history = LearningHistory.load(tmp_path / "h")
    settings = LearnerSettings.of(history)
    assert settings is not None and settings.reward_normaliser is not None
    statistics, running = RunningMeanStd(shape=()), np.zeros(3)
    for t, stage in enumerate(history):
        grid = grid_of(stage, 3, history.notes[t]["continues"])
        np.testing.assert_array_equal(grid.dones[:-1], witness.starts[t][1:])
        np.testing.assert_array_equal(grid.dones[-1], witness.dones[t])
        assert stage.features is not None
        for rewards, dones in zip(stage.features[grid.rows, 0], grid.dones, strict=True):
            running = settings.reward_normaliser.gamma * running + rewards
            statistics.update(running)
            running[dones] = 0
    assert isinstance(env, VecNormalize)
    np.testing.assert_allclose(statistics.var, env.ret_rms.var, rtol=1e-6)
    np.testing.assert_allclose(running, env.returns, rtol=1e-6)
    first = grid_of(history[0], 3, history.notes[0]["continues"])
    # Environment 0: 3 steps to an end, a time limit after 5; environment 1 ends; 2: 5 and then on.
    assert history.notes[0]["continues"] == [False, False, True]
    np.testing.assert_array_equal(np.argwhere(first.dones), [[2, 0], [4, 2], [7, 0], [7, 1]])
    np.testing.assert_array_equal(np.argwhere(first.timeouts), [[7, 0]])


class OwnPolicy(ActorCriticPolicy):
    """Whatever it does with its layers."""


def test_what_is_unusual_is_not_known() -> None:
    def settings(env: Any = None, policy: Any = "MlpPolicy", **options: Any) -> LearnerSettings:
        sizes = {"n_steps": 8, "batch_size": 8}
        return model_settings(PPO(policy, env or walks(), device="cpu", **sizes, **options))

    assert settings(policy=OwnPolicy).pi is None
    lake = settings(DummyVecEnv([lambda: gymnasium.make("FrozenLake-v1")]))
    assert lake.pi == lake.vf == (64, 64) and lake.n_envs == 1
    assert settings(policy_kwargs={"activation_fn": torch.nn.Mish}).activation is None
    steep = settings(policy_kwargs={"activation_fn": lambda: torch.nn.LeakyReLU(0.5)})
    assert steep.activation is None and steep.pi == (64, 64)
    assert settings(clip_range_vf=float("inf")).clip_range_vf == HUGE
    # One that scales by a fixed number, and one that leaves rewards alone.
    assert settings(walks({"training": False})).reward_normaliser is None
    assert settings(walks({"norm_reward": False})).reward_normaliser is None
    other = settings(policy_kwargs={"optimizer_class": RMSpropTFLike})
    assert other.optimizer == "RMSpropTFLike" and other.optimizer_options is not None
    assert other.optimizer_options["alpha"] == 0.99


@pytest.mark.parametrize("name", CASES)
def test_checkpoints_say_what_their_models_do(name: str, tmp_path: Path) -> None:
    paths = [tmp_path / "one.zip", tmp_path / "two.zip"]
    model = train(name, walks())
    model.save(paths[0])
    found = checkpoint_settings(paths[0])
    # Schedules are pickled: of the rate there is the last one, of the clip ranges nothing.
    changes = callable(CASES[name][1].get("learning_rate"))
    rate = 0.0 if changes else CASES[name][2].learning_rate
    expected = expected_of(name, 4, clip_range=None, clip_range_vf=None, learning_rate=rate)
    assert found == expected
    model.learn(24 * 5, reset_num_timesteps=False)
    model.save(paths[1])
    assert updates_between(expected, paths) == 5
    assert updates_between(expected, paths[::-1]) is None
    assert updates_between(expected, paths[:1]) is None
    assert updates_between(replace(expected, n_envs=None), paths) is None


class Boom:
    """What must never run."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('executed')",)


def rewritten(path: Path, out: Path, files: dict[str, bytes], facts: dict[str, Any]) -> Path:
    """A checkpoint with other members and other facts."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            payload = files.get(name, old.read(name))
            if name == "data":
                payload = json.dumps({**json.loads(payload), **facts}).encode()
            new.writestr(name, payload)
    return out


def test_nothing_in_a_checkpoint_is_executed_or_trusted(tmp_path: Path) -> None:
    good = tmp_path / "good.zip"
    train("A2C", walks(), updates=1).save(good)
    expected = checkpoint_settings(good)
    assert expected is not None
    bomb = base64.b64encode(pickle.dumps(Boom())).decode()
    pickled = {":type:": "<class 'function'>", ":serialized:": bomb}
    state = io.BytesIO()
    torch.save({"param_groups": [Boom()]}, state)
    hostile = rewritten(
        good,
        tmp_path / "hostile.zip",
        {"policy.optimizer.pth": state.getvalue()},
        {"learning_rate": pickled, "gamma": pickled, "policy_kwargs": pickled},
    )
    assert checkpoint_settings(hostile) == replace(
        expected, gamma=None, learning_rate=None, optimizer="Adam", optimizer_options=None
    )
    odd = io.BytesIO()
    torch.save({"param_groups": [{"eps": 10**400, 10**5: 1, "lr": [1]}]}, odd)
    nonsense = rewritten(
        good,
        tmp_path / "odd.zip",
        {"policy.optimizer.pth": odd.getvalue()},
        {
            **{"n_steps": -1, "n_envs": 1e400, "gamma": 7, "learning_rate": None, "use_sde": "no"},
            **{"num_timesteps": 10**300, "_total_timesteps": [], "ent_coef": float("nan")},
            "policy_kwargs": {"activation_fn": "<class 'os.system'>", "ortho_init": [[]]},
        },
    )
    found = checkpoint_settings(nonsense)
    assert found is not None and found.vf == (64, 64)
    for name in ("n_steps", "n_envs", "gamma", "learning_rate", "use_sde", "total_timesteps"):
        assert getattr(found, name) is None, name
    assert (found.activation, found.ortho_init, found.ent_coef) == (None, None, None)
    assert found.optimizer_options is None
    assert updates_between(expected, [good, nonsense]) is None
    bare = tmp_path / "bare.zip"
    with zipfile.ZipFile(bare, "w") as archive:
        archive.writestr("data", "[]")
    assert checkpoint_settings(bare) is None
    bare.write_bytes(b"PK no")
    with pytest.raises(FormatError, match="not a readable checkpoint"):
        checkpoint_settings(bare)
