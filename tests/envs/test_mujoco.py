"""Hopper's and Reacher's features against the environments' own rewards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest

from logel import HistoryWriter, Rollout, record_stage
from logel.envs.mujoco import (
    FEATURES,
    HOPPER_DT,
    HOPPER_TRUE_WEIGHTS,
    hopper_true_weights,
    make,
    reacher_features,
)
from logel.errors import OptionError
from logel.rewards.features import StepFeatures
from logel.rewards.gymnasium import FeatureWrapper, with_features


def test_hopper_pays_its_true_weights_times_its_features() -> None:
    env = make("Hopper-v5")
    assert env.unwrapped.dt == pytest.approx(HOPPER_DT)  # type: ignore[attr-defined]
    env.action_space.seed(0)
    _, info = env.reset(seed=0)
    position, ends = info["x_position"], 0
    for _ in range(300):
        action = env.action_space.sample()
        _, reward, terminated, truncated, info = env.step(action)
        distance, alive, effort = info["features"]
        assert np.dot(HOPPER_TRUE_WEIGHTS, info["features"]) == pytest.approx(reward, abs=1e-6)
        assert distance == pytest.approx(info["x_position"] - position, abs=1e-12)
        assert alive == (not terminated)
        rows = FEATURES["Hopper-v5"].rows(*[np.zeros((1, 11)), action[None], None, [info]])
        np.testing.assert_allclose(rows, [info["features"]], rtol=1e-6)
        assert effort == pytest.approx(np.square(action).sum(), rel=1e-6)
        position = info["x_position"]
        if terminated or truncated:
            ends += 1
            _, info = env.reset()
            position = info["x_position"]
    assert ends > 3
    unit = hopper_true_weights(unit=True)
    assert np.linalg.norm(unit) == pytest.approx(1.0)
    np.testing.assert_allclose(unit / unit[0], [1.0, 0.008, -8e-6])


def test_the_quick_hopper_is_gymnasiums_to_the_last_digit() -> None:
    quick = make("Hopper-v5", report_features=False)
    plain = gymnasium.make("Hopper-v5")
    assert type(quick.unwrapped) is not type(plain.unwrapped)
    rng = np.random.default_rng(0)
    ends = 0
    np.testing.assert_array_equal(quick.reset(seed=0)[0], plain.reset(seed=0)[0])
    for _ in range(1200):
        # Weak actions make long episodes, strong ones all ways to fall.
        action = (rng.uniform(-1, 1, 3) * (0.1 if ends % 2 else 1.0)).astype(np.float32)
        left, right = quick.step(action), plain.step(action)
        np.testing.assert_array_equal(left[0], right[0])
        assert left[1:] == right[1:]
        if left[2] or left[3]:
            ends += 1
            np.testing.assert_array_equal(quick.reset()[0], plain.reset()[0])
    assert ends > 10


@pytest.mark.parametrize(
    ("place", "value"),
    [(1, 0.7), (1, 0.71), (2, 0.2), (2, -0.19), (4, 100.0), (4, 99.0), (3, -101.0), (3, np.nan)],
)
@pytest.mark.parametrize("moving", [False, True])
def test_the_quick_hopper_agrees_on_health(place: int, value: float, *, moving: bool) -> None:
    found = []
    for env in (make("Hopper-v5"), gymnasium.make("Hopper-v5")):
        env.reset(seed=0)
        hopper: Any = env.unwrapped
        (hopper.data.qvel if moving else hopper.data.qpos)[place] = value
        found.append(hopper.is_healthy)
    assert found[0] is found[1]


def test_reacher_features_by_hand() -> None:
    features = reacher_features()
    assert len(features.names) == 26 and features.names[-1] == "|action|^2"
    assert features is not FEATURES["Reacher-v5"] and features == FEATURES["Reacher-v5"]
    env = make("Reacher-v5")
    assert not isinstance(env, FeatureWrapper)
    env.action_space.seed(0)
    before, _ = env.reset(seed=0)
    for _ in range(20):
        action = env.action_space.sample()
        after, _, _, _, info = env.step(action)
        (row,) = features(before[None], action[None], after[None])
        assert row[-1] == pytest.approx(-info["reward_ctrl"], rel=1e-6)
        vector = after[-2:]
        assert np.linalg.norm(vector) == pytest.approx(-info["reward_dist"], abs=1e-9)
        centres = [(x, y) for x in np.linspace(-0.2, 0.2, 5) for y in np.linspace(-0.2, 0.2, 5)]
        squares = [(vector[0] - x) ** 2 + (vector[1] - y) ** 2 for x, y in centres]
        np.testing.assert_allclose(row[:25], np.exp(-np.array(squares) / (2 * 0.05**2)))
        before = after


def test_a_history_names_the_version_of_mujoco(tmp_path: Path) -> None:
    zeros = np.zeros((2, 1))
    with HistoryWriter(tmp_path / "h") as writer:
        record_stage(writer, Rollout(zeros, zeros, zeros))
    manifest = json.loads((tmp_path / "h" / "manifest.json").read_text())
    assert manifest["packages"]["mujoco"] == mujoco.__version__


def test_features_of_ones_own() -> None:
    seen: list[Any] = []

    def function(observation: Any, action: Any, following: Any, info: dict[str, Any]) -> Any:
        seen.append((observation, following))
        return [observation[0], following[0]]

    env = with_features(gymnasium.make("CartPole-v1"), StepFeatures(function, ("before", "after")))
    first, _ = env.reset(seed=0)
    second, _, _, _, info = env.step(1)
    third, _, _, _, info = env.step(1)
    np.testing.assert_allclose(info["features"], [second[0], third[0]])
    np.testing.assert_array_equal(seen[0][0], first)
    wrong = with_features(gymnasium.make("CartPole-v1"), StepFeatures(function, ("one",)))
    wrong.reset(seed=0)
    with pytest.raises(OptionError, match=r"must return 1 numbers \(one\)"):
        wrong.step(0)
