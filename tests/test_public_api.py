"""The contract: the public names, the documented snippet, and a fast import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import logel
from logel.envs.gridworld import GridMap, Gridworld, grid_weights, gridworld_mdp
from logel.learners.tabular import GPOMDPLearner, observe
from logel.rewards.features import OneHotAreas

CONTRACT = (
    "Episode",
    "LearningHistory",
    "infer_reward",
    "RewardEstimate",
    "LinearReward",
    "TabularSoftmax",
    "LinearSoftmax",
    "LinearGaussian",
    "MLPGaussian",
    "MLPCategorical",
)


def test_all_names_exist_and_are_listed() -> None:
    assert set(CONTRACT) <= set(logel.__all__) <= set(dir(logel))
    for name in logel.__all__:
        assert getattr(logel, name) is not None
    namespace: dict[str, object] = {}
    exec("from logel import *", namespace)
    assert set(logel.__all__) <= namespace.keys()
    with pytest.raises(AttributeError, match="no attribute 'infer_rewards'"):
        _ = logel.infer_rewards


def test_the_snippet_of_the_documentation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from logel import Episode, LearningHistory, LinearReward, RewardEstimate, TabularSoftmax
    from logel import infer_reward as infer

    mdp, grid = gridworld_mdp(), GridMap.parse()
    watched = observe(
        mdp,
        GPOMDPLearner(exact=True),
        weights=grid_weights(mdp.feature_names),
        n_steps=3,
        n_episodes=30,
        parameters=True,
    )
    stages = [
        [
            Episode(e.observations, e.actions, features=e.features, terminated=False)
            for e in stage.episodes
        ]
        for stage in watched
    ]
    history = LearningHistory.from_episodes(
        stages,
        parameters=watched.parameters(),
        learning_rates=None,
        feature_names=mdp.feature_names,
    )
    history.save(tmp_path / "history")
    history = LearningHistory.load(tmp_path / "history")
    est = infer(
        history,
        policy=TabularSoftmax(n_states=25, n_actions=4),
        gamma=0.96,
        method="paper",
        features=None,
        seed=0,
    )
    assert est.weights.shape == (5,) and est.feature_names == mdp.feature_names
    assert est.learning_rates.shape == est.explained.shape == (3,)
    assert est.status.value and est.gauge.n == 1
    assert est.interval(0.95).shape == (5, 2)
    print(est.summary())
    assert "goal" in capsys.readouterr().out
    est.save(tmp_path / "est.json")
    back = RewardEstimate.load(tmp_path / "est.json")
    np.testing.assert_array_equal(back.weights, est.weights)
    features = OneHotAreas(grid.areas, grid.area_names)
    env = LinearReward.from_estimate(back, features).wrap(Gridworld())
    env.reset(seed=0)
    _, paid, _, _, info = env.step(0)
    assert paid == est.weights[mdp.feature_names.index("light")]
    assert info["true_reward"] == -1.0


def test_observations_may_lack_the_last_state() -> None:
    from logel import Episode

    assert len(Episode(np.zeros(3), np.zeros(3), np.zeros((3, 1)))) == 3


def test_importing_is_fast_and_leaves_torch_alone() -> None:
    program = (
        "import time; start = time.process_time(); import logel; took = time.process_time() - start"
        "; import sys; print(took, *({'torch', 'gymnasium', 'scipy.optimize'} & set(sys.modules)))"
    )
    times = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        took, *heavy = done.stdout.split()
        assert heavy == []
        times.append(float(took))
    assert min(times) < 1.0


def test_inference_imports_nothing_heavy_but_torch() -> None:
    """Each of these takes from a quarter of a second to seconds."""
    program = "import sys\nfrom logel import infer_reward\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    heavy = {"scipy.stats", "gymnasium", "pandas", "matplotlib", "typer", "rich", "joblib"}
    assert heavy & set(done.stdout.split()) == set()


def test_without_stable_baselines_all_names_import_and_the_recorder_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['stable_baselines3'] = None\n"
        "from logel import *\nimport logel\n"
        "from logel.errors import MissingExtraError\n"
        "assert HistoryRecorder.__name__ == 'HistoryRecorder'\n"
        "try:\n    HistoryRecorder('folder')\nexcept MissingExtraError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "[sb3]'" in done.stdout
