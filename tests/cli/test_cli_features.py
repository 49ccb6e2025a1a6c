"""`--features`, and numbered states from a folder of checkpoints to a reward."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from command_line import logel
from logel import Episode, LearningHistory

LAKE = ["--features", "FrozenLake-v1"]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of PPO, which learns to cross the ice."""
    pytest.importorskip("stable_baselines3")
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    folder = tmp_path_factory.mktemp("checkpoints")
    worlds = make_vec_env("FrozenLake-v1", 8, env_kwargs={"is_slippery": False})
    model = PPO("MlpPolicy", worlds, n_steps=128, learning_rate=1e-3, seed=0)
    for steps in range(0, 6 * 1024, 1024):
        if steps:
            model.learn(1024, reset_num_timesteps=False)
        model.save(folder / f"ppo_{steps}_steps")
    return folder


@pytest.fixture(scope="module")
def lake(checkpoints: Path) -> Path:
    """A history of those."""
    out = checkpoints / "history"
    done = logel("record", "--checkpoints", checkpoints, "--env", "FrozenLake-v1", "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def test_checkpoints_of_a_frozen_lake_become_a_history_of_states(lake: Path) -> None:
    history = LearningHistory.load(lake)
    assert history.signature.observation_shape == () and history.signature.discrete_observations
    assert history.feature_names == ("goal", "hole") and history.metadata["n_states"] == 16
    done = logel("infer", lake, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # What a state's number means is nothing to the network: each state is an input of its own.
    assert "indicators state features" in found["method"]
    assert found["feature_names"] == ["goal", "hole"]


def test_features_are_computed_after_an_import(lake: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    LearningHistory.from_stages(
        [
            type(stage)(
                *(stage.observations, stage.actions, stage.lengths, stage.terminated),
                last_observations=stage.last_observations,
            )
            for stage in LearningHistory.load(lake)
        ]
    ).save(bare)
    assert logel("export", bare, tmp_path / "steps.csv").returncode == 0
    table, history = tmp_path / "steps.csv", tmp_path / "imported"
    assert logel("import", table, "--gamma", 0.99, "--out", history).returncode == 0
    refused = logel("infer", history)
    assert refused.returncode == 2 and "--features module:function" in refused.stderr
    done = logel("infer", history, *LAKE, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["feature_names"] == ["goal", "hole"]


def test_features_of_ones_own_module_and_generic_ones(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_18.py").write_text(
        "import numpy as np\n"
        "def late(o, a, n, terminated, times):\n"
        "    return np.stack([terminated, terminated & (times > 9)], axis=1)\n"
        "late.names = ('ended', 'ended late')\n"
    )
    monkeypatch.chdir(tmp_path)
    options = ["--method", "paper", "--clone", "--policy", "tabular", "--json"]
    done = logel("infer", lake, "--features", "mine_18:late", *options)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["feature_names"] == ["ended", "ended late"]
    done = logel("infer", lake, "--features", "generic:FrozenLake-v1", *options)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["feature_names"]) == 16


@pytest.mark.parametrize(
    "name, sentence",
    [
        ("nowhere:none", "cannot load the features nowhere:none"),
        ("FrozenCake-v1", "must be module:name"),
        ("generic:FrozenCake-v1", "cannot make the environment 'FrozenCake-v1'"),
        ("logel.types:FORBIDDEN", "must be a function of transitions"),
        ("Hopper-v5", "look at each step's info"),
        ("CartPole-v1", "cannot be computed from observations that are whole numbers"),
        ("generic:CartPole-v1", "made for observations of 4 numbers, but these have 1"),
    ],
)
def test_mistakes_cost_one_sentence(lake: Path, name: str, sentence: str) -> None:
    done = logel("infer", lake, "--features", name)
    assert done.returncode == 2
    assert sentence in " ".join(done.stderr.split()) and "Traceback" not in done.stderr


def test_groups_are_compared_by_features_of_ones_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in "abcd":
        LearningHistory.from_episodes(
            [
                [
                    Episode(rng.integers(3, size=6), rng.integers(2, size=5) * (rng.random(5) > p))
                    for _ in range(20)
                ]
                for p in np.linspace(0, 0.9, 8)
            ]
        ).save(tmp_path / name)
    groups = ["--group", tmp_path / "a", tmp_path / "b", "--group", tmp_path / "c", tmp_path / "d"]
    options = ["--features", f"{__name__}:stays", "--gamma", 0.5]
    done = logel("compare", *groups, *options)
    assert done.returncode == 0, done.stderr
    assert "feature 0" in done.stdout


def stays(observations: np.ndarray, actions: np.ndarray, following: np.ndarray) -> np.ndarray:
    return np.stack([observations == following, actions == 1], axis=1)
