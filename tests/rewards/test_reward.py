"""The recovered reward in use."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from logel.envs.gridworld import GridMap, Gridworld
from logel.errors import OptionError
from logel.rewards.features import ActionCost, Concatenate, FunctionFeatures, OneHotAreas, RBFGrid
from logel.rewards.linear import LinearReward

WEIGHTS = np.array([1.0, 2.0, 3.0, 4.0, 5.0])


def areas() -> OneHotAreas:
    grid = GridMap.parse()
    return OneHotAreas(grid.areas, grid.area_names)


def test_rewards_are_linear_in_the_features() -> None:
    reward = LinearReward(np.array([2.0, -1.0]), lambda s, a, n: np.stack([s + a, n], axis=1))
    found = reward(np.array([1, 2]), np.array([10, 20]), np.array([3, 4]))
    np.testing.assert_array_equal(found, [2 * 11 - 3, 2 * 22 - 4])
    np.testing.assert_array_equal(reward.from_features([[1, 1], [0, 1]]), [1, -1])
    assert float(reward.from_features([1.0, 1.0])) == 1.0


def test_weights_are_checked_copied_and_read_only() -> None:
    source = np.array([1.0, 2.0])
    reward = LinearReward(source)
    source[0] = 9
    assert reward.weights[0] == 1.0 and not reward.weights.flags.writeable
    for bad in ([np.nan, 1.0], [[1.0]], np.inf):
        with pytest.raises(OptionError, match="finite and flat"):
            LinearReward(np.asarray(bad))
    with pytest.raises(OptionError, match="2 weights, but 3 features"):
        reward.from_features(np.ones((4, 3)))
    with pytest.raises(OptionError, match="no feature function"):
        reward(np.zeros(1), np.zeros(1), np.zeros(1))


@pytest.mark.parametrize("features", [None, areas()], ids=["info", "callable"])
def test_the_wrapper_pays_the_new_reward_and_keeps_the_true_one(features: Any) -> None:
    plain, wrapped = Gridworld(), LinearReward(WEIGHTS, features).wrap(Gridworld())
    first, _ = plain.reset(seed=0)
    assert wrapped.reset(seed=0)[0] == first
    rng = np.random.default_rng(0)
    seen = set()
    for t in range(20):
        action = int(rng.choice([0, 3], p=[0.5, 0.5]))
        observation, true_reward, _, truncated, info = plain.step(action)
        got, paid, terminated, cut, wrapped_info = wrapped.step(action)
        assert got == observation and cut == truncated == (t == 19) and not terminated
        assert paid == WEIGHTS @ info["features"] and isinstance(paid, float)
        assert wrapped_info["true_reward"] == true_reward
        assert "true_reward" not in info
        seen.add(paid)
    assert len(seen) > 1


# Gymnasium remarks that a wrapped environment is not the bare one, which is the point here.
@pytest.mark.filterwarnings("ignore:.*is different from the unwrapped version")
@pytest.mark.parametrize("features", [None, areas()], ids=["info", "callable"])
def test_gymnasium_accepts_the_wrapped_environment(features: Any) -> None:
    check_env(LinearReward(WEIGHTS, features).wrap(Gridworld()), skip_render_check=True)


class Mutable(gymnasium.Env[Any, Any]):
    """Hands out the same array again and again, as fast environments do."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.state = np.zeros(1)

    def reset(self, **options: Any) -> Any:
        self.state[:] = 0
        return self.state, {}

    def step(self, action: Any) -> Any:
        self.state += 1
        return self.state, 7.0, False, False, {}


def test_the_previous_observation_is_remembered_even_if_reused() -> None:
    distance = FunctionFeatures(lambda s, a, n: n - s, ("moved",))
    env = LinearReward(np.array([2.0]), distance).wrap(Mutable())
    env.reset()
    for _ in range(3):
        _, paid, _, _, info = env.step(0)
        assert paid == 2.0 and info["true_reward"] == 7.0


def test_the_reward_of_an_ending_is_paid_at_the_end() -> None:
    ended = FunctionFeatures(lambda s, a, n, terminated, times: terminated * times, ("ended at",))
    env = LinearReward(np.array([2.0]), ended).wrap(gymnasium.make("CartPole-v1"))
    for _ in range(2):
        env.reset(seed=0)
        paid, over = [], False
        while not over:
            _, reward, over, _, _ = env.step(0)
            paid.append(reward)
        assert paid == [0.0] * (len(paid) - 1) + [2.0 * (len(paid) - 1)] and len(paid) > 5


def test_environments_without_features_need_a_function() -> None:
    env = LinearReward(np.array([1.0])).wrap(Mutable())
    env.reset()
    with pytest.raises(OptionError, match="give a feature function"):
        env.step(0)


# --- feature sets ---------------------------------------------------------------------------


def test_one_hot_areas_of_the_state_arrived_at() -> None:
    features = OneHotAreas(np.array([0, 1, 1]), ("in", "out"))
    found = features(np.array([0, 0]), np.array([0, 0]), np.array([2, 0]))
    np.testing.assert_array_equal(found, [[0, 1], [1, 0]])
    with pytest.raises(OptionError, match=r"areas must lie in 0\.\.1"):
        OneHotAreas(np.array([0, 2]), ("in", "out"))


def test_bumps_costs_and_concatenation() -> None:
    bumps = RBFGrid(-1.0, 1.0, 3, columns=(1, 2))
    assert len(bumps.names) == len(set(bumps.names)) == 9
    n = np.array([[9.0, 1.0, -1.0]])
    values = bumps(n, n, n)[0]
    # At the corner (1, -1): its own bump is 1, a neighbour one spacing away exp(-1/2).
    assert values[6] == pytest.approx(1.0) and values[3] == pytest.approx(np.exp(-0.5))
    both = Concatenate((bumps, ActionCost()))
    assert both.names[-1] == "|action|^2"
    table = both(n, np.array([[3.0, 4.0]]), n)
    assert table.shape == (1, 10) and table[0, -1] == 25.0
