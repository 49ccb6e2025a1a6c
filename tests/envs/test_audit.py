"""The audit's worlds: dynamics against Gymnasium's own, features and rewards by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.classic_control.continuous_mountain_car import Continuous_MountainCarEnv
from gymnasium.envs.classic_control.pendulum import PendulumEnv

from logel.envs import audit
from logel.envs.audit import WORLDS


def test_the_cart_moves_as_gymnasiums() -> None:
    rng = np.random.default_rng(1000)
    states = rng.uniform(-1, 1, (50, 4)) * (2.0, 2.0, 0.2, 2.0)
    actions = rng.integers(2, size=50)
    dynamics, env = audit.CartPole(), CartPoleEnv()
    found, _ = dynamics.step(states, actions)
    env.reset(seed=1000)
    for state, action, row in zip(states, actions, dynamics.show(found), strict=True):
        env.state, env.steps_beyond_terminated = state, None
        np.testing.assert_allclose(row, env.step(int(action))[0], rtol=1e-6, atol=1e-7)


def test_the_cart_ends_at_the_tracks_end_and_when_the_pole_has_fallen() -> None:
    states = np.array([[2.39, 1.0, 0, 0], [2.3, 1.0, 0, 0], [0, 0, 0.49, 1.0], [0, 0, 0.3, 0]])
    _, ended = audit.CartPole().step(states, np.ones(4, dtype=int))
    assert ended.tolist() == [True, False, True, False]


def test_the_pendulum_turns_as_gymnasiums_with_less_gravity() -> None:
    rng = np.random.default_rng(1000)
    states = rng.uniform(-1, 1, (50, 2)) * (np.pi, 9.0)
    actions = rng.uniform(-2, 2, (50, 1))
    dynamics, env = audit.Pendulum(), PendulumEnv(g=audit.PENDULUM_GRAVITY)
    found, ended = dynamics.step(states, actions)
    assert not ended.any()
    env.reset(seed=1000)
    for state, action, row in zip(states, actions, dynamics.show(found), strict=True):
        env.state = state
        np.testing.assert_allclose(row, env.step(action)[0], rtol=1e-6, atol=1e-6)


def test_the_car_drives_as_gymnasiums_and_ends_where_it_does() -> None:
    rng = np.random.default_rng(1000)
    states = np.stack([rng.uniform(-1.2, 0.6, 200), rng.uniform(-0.07, 0.07, 200)], axis=1)
    actions = rng.uniform(-1, 1, (200, 1))
    dynamics, env = audit.MountainCar(), Continuous_MountainCarEnv()
    found, ended = dynamics.step(states, actions)
    assert 0 < ended.sum() < 200
    env.reset(seed=1000)
    shown = dynamics.show(found)
    for state, action, row, end in zip(states, actions, shown, ended, strict=True):
        env.state = state.copy()
        place, terminated = env.step(action)[::2][:2]
        assert (row[0] * 0.9 - 0.3, row[1] * 0.07) == pytest.approx(tuple(place), abs=1e-6)
        assert bool(end) is terminated


def test_walls_stop_the_robot_and_the_walker() -> None:
    moved, ended = audit.Room().step(np.array([[0.95, 0.0]]), np.array([[2.0, -1.0]]))
    np.testing.assert_allclose(moved, [[1.0, -0.1]])
    assert not ended.any()
    cells = np.array([[0, 0], [7, 7], [3, 3], [3, 3]])
    moved, _ = audit.Grid().step(cells, np.array([3, 1, 1, 0]))
    assert moved.tolist() == [[0, 0], [7, 7], [3, 4], [3, 3]]
    shown = audit.Grid().show(moved)
    np.testing.assert_allclose(shown[:2], [[-1, -1], [1, 1]])


# One transition of every world: action, next observation, features.
BY_HAND: dict[str, tuple[Any, list[float], list[float]]] = {
    "room": (
        [1.0, -2.0],
        [0.7, 0.5],
        # Squared distances .25, 2.21, .53 and 1.93.
        [np.exp(-0.5), np.exp(-4.42), np.exp(-1.06), np.exp(-3.86), 2.5],
    ),
    "cartpole": (
        0,
        [-0.5, -1.5, 0.1, 0.0],
        [np.exp(-0.5), np.exp(-4.5), np.exp(-0.2), 1.5, -1.0],
    ),
    # The tip is at the left; torque 1.
    "pendulum": ([1.0], [0.0, 1.0, -2.0], [0.0, 1.0, np.exp(-8), 0.25, 0.5]),
    # In the valley, at half the speed limit.
    "mountaincar": (
        [-0.5],
        [-0.2 / 0.9, 0.5],
        [np.exp(-8.1), np.exp(-3.6), 1.0, 0.5, 0.25],
    ),
    # Column 5, row 1.
    "grid": (4, [10 / 7 - 1, 2 / 7 - 1], [0, 1, 0, 0, 1]),
}


@pytest.mark.parametrize("name", WORLDS)
def test_features_by_hand(name: str) -> None:
    action, after, expected = BY_HAND[name]
    rows = np.array([after, after], dtype=np.float32)
    found = WORLDS[name].features(rows, np.array([action, action]), rows)
    np.testing.assert_allclose(found, [expected, expected], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", WORLDS)
def test_an_environment_pays_its_features_until_its_time_is_over(name: str) -> None:
    world = WORLDS[name]
    weights = np.arange(1.0, 1.0 + len(world.features.names))
    env = world.make(weights)
    before, _ = env.reset(seed=1000)
    assert env.observation_space.contains(before)
    env.action_space.seed(1000)
    for time in range(1, world.horizon + 1):
        action = env.action_space.sample()
        after, reward, terminated, truncated, _ = env.step(action)
        (features,) = world.features(before[None], np.asarray(action)[None], after[None])
        assert reward == pytest.approx(float(features @ weights))
        assert truncated == (time == world.horizon)
        before = after
        if terminated:
            break
    assert truncated or name in ("cartpole", "mountaincar")


@pytest.mark.parametrize("name", WORLDS)
def test_rewards_have_unit_norm_and_two_features_that_pay_nothing(name: str) -> None:
    world = WORLDS[name]
    rng = np.random.default_rng(1000)
    drawn = np.array([world.random_weights(rng) for _ in range(200)])
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 1.0)
    assert ((drawn == 0).sum(axis=1) == 2).all()
    for column, feature in zip(drawn.T, world.features.names, strict=True):
        # Any feature may be the innocent one, and the costs' signs are known.
        assert 0.25 < (column == 0).mean() < 0.55
        assert feature not in world.costs or (column <= 0).all()
        assert feature not in world.bonuses or (column >= 0).all()
        if feature not in world.costs + world.bonuses:
            assert (column > 0).any() and (column < 0).any()


@pytest.mark.parametrize("name", WORLDS)
def test_features_are_of_order_one_where_a_beginner_goes(name: str) -> None:
    world, rng = WORLDS[name], np.random.default_rng(1000)
    dynamics = world.dynamics
    states = dynamics.start(400, rng)
    rows = []
    for _ in range(20):
        if hasattr(dynamics.action_space, "n"):
            actions = rng.integers(dynamics.action_space.n, size=400)
        else:
            shape = (400, *dynamics.action_space.shape)
            actions = np.clip(
                rng.standard_normal(shape), dynamics.action_space.low, dynamics.action_space.high
            )
        before = dynamics.show(states)
        states, _ = dynamics.step(states, actions)
        rows.append(world.features(before, actions, dynamics.show(states)))
    deviations = np.concatenate(rows).std(axis=0)
    assert (deviations > 0.1).all() and (deviations < 1.2).all(), deviations
