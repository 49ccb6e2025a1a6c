"""Ready-made features against what the environments pay themselves."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest

from logel.envs import classic_control, mujoco, toy_text
from logel.envs.ready_made import FEATURES, generic_features
from logel.errors import OptionError
from logel.rewards.features import Concatenate, Ended
from logel.rewards.linear import LinearReward

PAID = {**classic_control.TRUE_WEIGHTS, **toy_text.TRUE_WEIGHTS, **mujoco.TRUE_WEIGHTS}


def push_along(seen: np.ndarray) -> np.ndarray:
    """Drives a car up the hill, by swinging."""
    return np.array([1.0 if seen[1] >= 0 else -1.0])


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo writes its log where it is."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("env_id", sorted(PAID))
def test_the_environment_pays_just_this(env_id: str) -> None:
    if env_id in mujoco.TRUE_WEIGHTS:
        pytest.importorskip("mujoco")
    slippery = {"is_slippery": False} if env_id.startswith("Frozen") else {}
    env = gymnasium.make(env_id, disable_env_checker=True, **slippery)
    reward = LinearReward(np.array(PAID[env_id]), FEATURES[env_id])
    paying = reward.wrap(env)
    rng, ends, paid_something = np.random.default_rng(0), 0, 0
    for episode in range(60 if env_id.startswith("Frozen") else 3):
        seen, _ = paying.reset(seed=episode)
        paying.action_space.seed(episode)
        for _ in range(1000):
            action = paying.action_space.sample()
            if env_id == "MountainCarContinuous-v0":
                action = push_along(seen)
            if env_id.startswith("Frozen"):  # down or right
                action = int(rng.integers(1, 3))
            seen, paid, terminated, truncated, info = paying.step(action)
            np.testing.assert_allclose(paid, info["true_reward"], rtol=1e-4, atol=1e-5)
            ends += terminated
            paid_something += paid != 0
            if terminated or truncated:
                break
    assert paid_something
    if env_id.startswith(("Frozen", "MountainCarC")):
        assert ends, "no episode ended"


def test_cartpole_pays_what_is_alive_and_the_fall() -> None:
    env = LinearReward(np.array([1.0, 0.0, 0.0]), FEATURES["CartPole-v1"]).wrap(
        gymnasium.make("CartPole-v1")
    )
    env.reset(seed=0)
    over = False
    while not over:
        _, paid, over, _, info = env.step(1)
        assert info["true_reward"] == paid + over


def test_reacher_is_paid_for_what_it_does_not_say_in_bumps_but_for_effort() -> None:
    """Reacher's distance is not linear in its bumps; its effort is the last feature."""
    pytest.importorskip("mujoco")
    env = gymnasium.make("Reacher-v5")
    observation, _ = env.reset(seed=0)
    action = env.action_space.sample()
    following, *_, info = env.step(action)
    found = FEATURES["Reacher-v5"](observation[None], action[None], following[None])
    np.testing.assert_allclose(-found[0, -1], info["reward_ctrl"], rtol=1e-5)


def test_a_taxi_by_hand() -> None:
    """Stops at a stand without a passenger, with one, at the right stand, and on the way."""
    taxi = gymnasium.make("Taxi-v4").unwrapped
    rng = np.random.default_rng(0)
    states, actions = rng.integers(500, size=2000), rng.integers(6, size=2000)
    expected = []
    for state, action in zip(states.tolist(), actions.tolist(), strict=True):
        ((_, _, paid, _),) = taxi.P[state][action]
        expected.append(paid)
    found = FEATURES["Taxi-v4"](states, actions, states) @ PAID["Taxi-v4"]
    np.testing.assert_array_equal(found, expected)
    assert set(expected) == {-1, -10, 20}


def test_ends_count_where_they_are_wanted() -> None:
    features = Concatenate((Ended(), Ended("crashed", lambda last: last[:, 0] < 0)))
    assert features.names == ("ended", "crashed")
    after = np.array([[1.0], [-1.0], [-1.0]])
    found = features(after, after, after, terminated=np.array([True, True, False]))
    np.testing.assert_array_equal(found, [[1, 0], [1, 1], [0, 0]])


def test_generic_features_come_from_names_and_bounds() -> None:
    lake = generic_features(gymnasium.make("FrozenLake-v1"))
    assert lake.names[:2] == ("state 0", "state 1") and len(lake.names) == 16
    car = generic_features(gymnasium.make("MountainCarContinuous-v0"), names=("place", "speed"))
    assert car.names == ("place", "speed", "place^2", "speed^2", "|action|^2", "ended")
    low, high = np.array([[-1.2, -0.07]]), np.array([[0.6, 0.07]])
    found = car(low, np.array([[2.0]]), high, terminated=np.array([True]))
    np.testing.assert_allclose(found, [[1, 1, 1, 1, 4, 1]], rtol=1e-5)
    pole = generic_features(gymnasium.make("CartPole-v1"))
    found = pole(np.ones((1, 4)), np.zeros(1), np.full((1, 4), 3.0), terminated=np.zeros(1))
    assert np.isfinite(found).all() and found[0, 1] == 3.0  # a speed has no bounds
    with pytest.raises(OptionError, match="no generic features"):
        generic_features(gymnasium.make("Taxi-v4"))
    with pytest.raises(OptionError, match="4 numbers or states to name, but 1 names"):
        generic_features(gymnasium.make("CartPole-v1"), names=("x",))
