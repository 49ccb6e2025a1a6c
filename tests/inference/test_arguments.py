"""What may be left out of an inference because the history says it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from logel import LearningHistory, TabularSoftmax, compare_groups, infer_group, infer_reward
from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.errors import OptionError
from logel.learners.tabular import SoftValueIteration, observe


def grid(seed: int = 0) -> LearningHistory:
    world = gridworld_mdp()
    weights = grid_weights(world.feature_names)
    sizes = {"n_steps": 3, "n_episodes": 10}
    return observe(world, SoftValueIteration(), weights=weights, seed=seed, **sizes)


def test_a_history_that_says_all_needs_no_more() -> None:
    history = grid()
    assert history.gamma == 0.96
    told = infer_reward(history, TabularSoftmax(25, 4), gamma=0.96, method="paper")
    assert infer_reward(history, method="paper").to_json() == told.to_json()
    assert infer_reward(history, gamma=0.5, method="paper").config["gamma"] == 0.5


def test_so_do_several_and_their_groups() -> None:
    histories = [grid(seed) for seed in range(4)]
    contrast = compare_groups(histories[:2], histories[2:], method="paper")
    assert contrast.feature_names == histories[0].feature_names
    group = infer_group(histories[:2], method="paper")
    assert group.mean.config["gamma"] == 0.96


def test_a_recorded_run_needs_the_policy_at_most(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    from stable_baselines3 import A2C

    from logel import HistoryRecorder, SB3Policy
    from logel.envs.classic_control import FEATURES

    model = A2C("MlpPolicy", "CartPole-v1", n_steps=64, seed=0)
    model.learn(64 * 8, callback=HistoryRecorder(tmp_path / "run", FEATURES["CartPole-v1"]))
    history = LearningHistory.load(tmp_path / "run")
    policy = SB3Policy.from_model(model)
    told = infer_reward(history, policy, gamma=0.99, method="mirror")
    assert infer_reward(history, policy, method="mirror").to_json() == told.to_json()
    assert infer_reward(history, method="mirror").to_json() == told.to_json()


def test_what_is_not_said_is_asked_for() -> None:
    stages = [list(stage.episodes) for stage in grid()]
    bare = LearningHistory.from_episodes(stages)
    with pytest.raises(OptionError, match=r"does not say the discount factor: pass gamma"):
        infer_reward(bare, TabularSoftmax(25, 4))
    other = LearningHistory.from_episodes(stages, metadata={"gamma": 0.5})
    with pytest.raises(OptionError, match=r"learner 1 has the discount factor 0\.96"):
        infer_reward([grid(), other], TabularSoftmax(25, 4))
    known = LearningHistory.from_episodes(stages, parameters=np.eye(4), metadata={"gamma": 0.5})
    with pytest.raises(OptionError, match="does not say the policies' family: pass policy"):
        infer_reward(known)
    for wrong in ("0.9", True, 1.5, -1):
        with pytest.raises(OptionError, match="gamma must be"):
            infer_reward(bare, gamma=wrong)
    for hostile in ("0.9", True, 1.0, float("nan"), None):
        assert LearningHistory.from_episodes(stages, metadata={"gamma": hostile}).gamma is None
