"""What a page draws of worlds, rewards and stages."""

from __future__ import annotations

import numpy as np
import pytest
from pages import example

from logel.data.history import LearningHistory
from logel.data.stage import Episode
from logel.errors import OptionError
from logel.report.page_data import page_data
from logel.report.page_stages import policy_distance
from logel.report.reward_maps import discrete_world, rbf_map, world_map
from logel.rewards.features import ActionCost, Concatenate, RBFGrid


def test_the_layout_of_a_grid_is_read_off_its_transitions(history: LearningHistory) -> None:
    world = discrete_world(history)
    assert world is not None and world.columns == 4 and world.shape == (3, 4)
    assert world.moves == ((1, 0), (-1, 0), (0, -1), (0, 1))
    drawn = world_map(world, np.array([1.0, 2.0, 3.0]), ("a", "b", "c"))
    assert drawn is not None
    np.testing.assert_array_equal(drawn.values, 1 + (np.arange(12) % 3).reshape(3, 4))
    assert drawn.labels[:4] == ("a", "b", "c", "a")


def test_a_world_without_places_is_drawn_without_arrows() -> None:
    rng = np.random.default_rng(1)
    episodes = [
        Episode(rng.integers(7, size=31), rng.integers(3, size=30), rng.random((30, 3)))
        for _ in range(20)
    ]
    world = discrete_world(LearningHistory.from_episodes([episodes, episodes]))
    assert world is not None and world.columns is None and world.moves == ()
    assert not world.exact


@pytest.mark.parametrize(("leap", "columns"), [(False, 4), (True, None)])
def test_a_world_where_every_action_slips_is_a_grid_of_neighbours(
    leap: bool, columns: int | None
) -> None:
    # As in FrozenLake: every action leads to any neighbour; a single leap, and it is no grid.
    rng = np.random.default_rng(0)
    states = [0]
    for _ in range(4000):
        down, right = [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0)][rng.integers(5)]
        row, column = divmod(states[-1], 4)
        states.append(4 * min(max(row + down, 0), 2) + min(max(column + right, 0), 3))
    if leap:
        states.append((states[-1] + 6) % 12)
    actions = rng.integers(4, size=len(states) - 1)
    episode = Episode(np.array(states), actions, np.ones((len(actions), 1)))
    world = discrete_world(LearningHistory.from_episodes([[episode], [episode]]))
    assert world is not None and (world.columns, world.moves) == (columns, ())


@pytest.mark.parametrize("top", [401, 2**40])
def test_large_worlds_are_left_alone(top: int) -> None:
    episode = Episode(np.array([0, top]), np.array([0]), np.ones((1, 3)))
    assert discrete_world(LearningHistory.from_episodes([[episode], [episode]])) is None


def test_bumps_are_summed_over_the_plane() -> None:
    grid = RBFGrid(-1.0, 1.0, 5, (0, 1))
    features = Concatenate((grid, ActionCost()))
    weights = np.random.default_rng(2).standard_normal(26)
    drawn = rbf_map(features.names, weights)
    assert drawn is not None and drawn.extent == (-1.25, 1.25, -1.25, 1.25)
    rows, columns = np.indices(drawn.values.shape)
    x = -1.25 + 2.5 * (columns.ravel() + 0.5) / drawn.values.shape[1]
    y = 1.25 - 2.5 * (rows.ravel() + 0.5) / drawn.values.shape[0]
    points = np.stack([x, y], axis=1)
    direct = grid(points, points, points) @ weights[:-1]
    np.testing.assert_allclose(drawn.values.ravel(), direct, atol=1e-9)


def test_names_that_only_look_like_bumps_draw_nothing() -> None:
    assert rbf_map(["rbf(1, e)", "rbf(.., 1)", "rbf(1e999, 1)", "rbf(1, 2)"], np.ones(4)) is None
    assert rbf_map(["rbf(0, 0)", "rbf(0, 1)", "rbf(1, 0)"], np.ones(3)) is None


def test_distance_of_policies_and_of_their_noise() -> None:
    policies = np.array([[[1.0, 0.0], [0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]]])
    counts = np.array([[30.0, 10.0], [30.0, 10.0]])
    moved, noise = policy_distance(policies, counts)
    np.testing.assert_allclose(moved, [0.75 * 0.5])
    spread = [np.sqrt(2 / np.pi * p * (1 - p) * 2 / n) for p, n in ((0.75, 30), (0.5, 10))]
    np.testing.assert_allclose(noise, [0.75 * spread[0] + 0.25 * spread[1]])


def test_noise_of_a_learner_that_stands_still_matches_its_movement() -> None:
    rng = np.random.default_rng(3)
    counts = rng.multinomial(40, [0.25] * 4, size=(300, 5))
    moved, noise = policy_distance(counts / 40, np.full((300, 5), 40.0))
    assert abs(moved.mean() / noise.mean() - 1) < 0.05


def test_returns_and_expectations_by_hand() -> None:
    features = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    episode = Episode(np.array([0, 1, 2]), np.array([0, 0]), features)
    still = LearningHistory.from_episodes([[episode, episode]] * 10)
    views = page_data(example(), still)["stages"]
    np.testing.assert_allclose(views["expectations"][0], [1.0, 0.9, 0.0])
    np.testing.assert_allclose(views["returns"], 0.8 - 0.9 * 0.6)
    np.testing.assert_allclose(views["return_errors"], 0.0, atol=1e-12)


def test_a_foreign_history_is_refused_or_remarked_upon(history: LearningHistory) -> None:
    with pytest.raises(OptionError, match="features are goal, cliff, grass, but"):
        page_data(example(names=("a", "b", "c")), history)
    few = Episode(np.zeros(3), np.zeros(2), np.ones((2, 2)))
    with pytest.raises(OptionError, match="3 features, but the history 2"):
        page_data(example(), LearningHistory.from_episodes([[few], [few]]))
    warnings = page_data(example(), history.slice(0, 5))["warnings"]
    assert any("4 steps, but the estimate was made from 9" in line for line in warnings)
