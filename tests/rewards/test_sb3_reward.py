"""A replaced reward in vector environments: paid for the right transition, also at the end."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from logel import LinearReward
from logel.errors import OptionError
from logel.learners.lean_vec_env import LeanVecEnv
from logel.rewards.features import FunctionFeatures, StepFeatures
from logel.rewards.gymnasium import with_features
from logel.rewards.sb3 import NormalisedReward, VecRewardReplacement


class Counter(gymnasium.Env[Any, Any]):
    """Counts up from 10 times its number; ends after `length` steps, paying 1, 2, 3, ..."""

    action_space = spaces.Box(-1.0, 1.0, (1,), dtype=np.float32)
    observation_space = spaces.Box(-np.inf, np.inf, (1,), dtype=np.float64)

    def __init__(self, number: int, length: int) -> None:
        self.start, self.length, self.time = 10.0 * number, length, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self.time = 0
        return np.array([self.start]), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        over = self.time == self.length
        observation = np.array([self.start + self.time])
        return observation, float(self.time), over, False, {}


def transitions(observations: Any, actions: Any, following: Any) -> Any:
    return np.column_stack([observations[:, 0], actions[:, 0], following[:, 0]])


FEATURES = FunctionFeatures(transitions, ("from", "push", "to"))
STEP = StepFeatures(lambda o, a, n, info: [o[0], a[0], n[0]], ("from", "push", "to"))
WEIGHTS = np.array([100.0, 10.0, 1.0])


BATCH = StepFeatures(STEP.function, STEP.names, batch=lambda o, a, n, infos: transitions(o, a, n))


@pytest.mark.parametrize(
    "features",
    [None, FEATURES, STEP, BATCH],
    ids=["reported", "batch of transitions", "step", "batch"],
)
@pytest.mark.parametrize("kind", [DummyVecEnv, LeanVecEnv])
def test_each_transition_is_paid_and_the_true_reward_kept(kind: Any, features: Any) -> None:
    def maker(i: int) -> Any:
        return lambda: with_features(Counter(i, 2 + i), STEP) if reported else Counter(i, 2 + i)

    reported = features is None
    reward = LinearReward(WEIGHTS, features)
    venv = VecRewardReplacement(kind([maker(0), maker(1)]), reward)
    venv.reset()
    actions = np.array([[0.1], [0.2]], dtype=np.float32)
    # Environment 0 ends after 2 steps, environment 1 after 3: (from, to) by hand.
    expected = {
        0: [(0, 1), (1, 2), (0, 1), (1, 2)],
        1: [(10, 11), (11, 12), (12, 13), (10, 11)],
    }
    returns: dict[int, list[float]] = {0: [], 1: []}
    for t in range(4):
        _, paid, dones, infos = venv.step(actions)
        for i, push in enumerate(actions[:, 0]):
            start, stop = expected[i][t]
            assert paid[i] == pytest.approx(100 * start + 10 * push + stop, rel=1e-6)
            assert infos[i]["true_reward"] == 1 + (t % (2 + i))
            assert dones[i] == ("true_return" in infos[i])
            if dones[i]:
                returns[i].append(infos[i]["true_return"])
    assert returns == {0: [3.0, 3.0], 1: [6.0]}


def test_any_callable_pays_and_mistakes_are_told() -> None:
    def make() -> VecRewardReplacement:
        return VecRewardReplacement(DummyVecEnv([lambda: Counter(0, 2)]), reward)

    reward: Any = lambda o, a, n: n[:, 0] * 2  # noqa: E731
    venv = make()
    venv.reset()
    assert venv.step(np.zeros((1, 1)))[1] == [2.0]
    reward = lambda o, a, n: n  # noqa: E731
    venv = make()
    venv.reset()
    with pytest.raises(OptionError, match="one number for each of 1"):
        venv.step(np.zeros((1, 1)))
    reward = LinearReward(WEIGHTS)
    venv = make()
    venv.reset()
    with pytest.raises(OptionError, match="with_features"):
        venv.step(np.zeros((1, 1)))
    with pytest.raises(OptionError, match="put VecNormalize around"):
        VecRewardReplacement(VecNormalize(DummyVecEnv([lambda: Counter(0, 2)])), reward)


@pytest.mark.parametrize("cut", [False, True])
def test_endings_and_times_are_paid_for_if_asked(cut: bool) -> None:
    def asking(o: Any, a: Any, n: Any, terminated: Any, truncated: Any, times: Any) -> Any:
        return 100 * terminated + 10 * truncated + times

    # Of 3 steps; a time limit of 2 may come first.
    def make() -> Any:
        env = Counter(0, 3)
        return gymnasium.wrappers.TimeLimit(env, 2) if cut else env

    expected = [0, 11, 0, 11] if cut else [0, 1, 102, 0]
    linear = LinearReward(np.ones(1), FunctionFeatures(asking, ("all",)))
    for reward in (asking, linear):
        venv = VecRewardReplacement(DummyVecEnv([make]), reward)
        venv.reset()
        assert [float(venv.step(np.zeros((1, 1)))[1][0]) for _ in range(4)] == expected


def test_rewards_of_normalised_observations() -> None:
    notes = {
        "observation_mean": [1.0],
        "observation_var": [4.0],
        "observation_epsilon": 0.0,
        "observation_clip": 5.0,
    }
    reward = NormalisedReward.from_notes(lambda o, a, n: o[:, 0] + 10 * n[:, 0], notes)
    found = reward(np.array([[3.0]]), np.zeros((1, 1)), np.array([[1000.0]]))
    np.testing.assert_allclose(found, [1.0 + 10 * 5.0])
    with pytest.raises(OptionError, match="do not say how observations"):
        NormalisedReward.from_notes(reward, {})


def test_the_lean_environment_steps_like_the_usual_one() -> None:
    usual, lean = (
        kind([lambda: Counter(0, 2), lambda: Counter(1, 3)]) for kind in (DummyVecEnv, LeanVecEnv)
    )
    np.testing.assert_array_equal(usual.reset(), lean.reset())
    finished = []
    for _ in range(6):
        expected, found = usual.step(np.zeros((2, 1))), lean.step(np.zeros((2, 1)))
        for a, b in zip(expected[:3], found[:3], strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype
        for a, b in zip(expected[3], found[3], strict=True):
            episode = b.pop("episode", None)
            assert a == b
            finished += [] if episode is None else [(episode["r"], episode["l"])]
    assert finished == [(3.0, 2), (6.0, 3), (3.0, 2), (3.0, 2), (6.0, 3)]
