"""The gridworld: its map, the known numbers, and the Gymnasium environment."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from logel.envs.gridworld import (
    AREA_NAMES,
    WEIGHTS,
    GridMap,
    Gridworld,
    grid_weights,
    gridworld_mdp,
)
from logel.envs.tabular import (
    feature_expectations,
    feature_jacobian,
    optimal_policy,
    uniform_policy,
)
from logel.errors import OptionError

DOWN, UP, LEFT, RIGHT = range(4)


def next_state(state: int, action: int) -> int:
    return int(gridworld_mdp().transitions[state, action].argmax())


def test_the_known_numbers_are_reproduced() -> None:
    # The reference values of the experiments page, section A. All returns are discounted.
    mdp = gridworld_mdp()
    weights = grid_weights(mdp.feature_names)
    _, values = optimal_policy(mdp, weights)
    assert float(mdp.initial @ values) == pytest.approx(3.189, abs=5e-4)
    uniform = feature_expectations(mdp, uniform_policy(mdp), horizon=20) @ weights
    assert uniform == pytest.approx(-16.1, abs=0.05)
    finite = np.zeros(mdp.n_states)
    for _ in range(20):
        finite = (mdp.expected_features @ weights + mdp.gamma * mdp.transitions @ finite).max(
            axis=1
        )
    assert float(mdp.initial @ finite) == pytest.approx(1.867, abs=5e-4)


def test_the_optimal_value_by_hand() -> None:
    # Two steps right, into blue (0), one on into blue, down the blue corner, then light, light,
    # the goal (7), and back to the light start (-1): a cycle of nine steps.
    rewards = np.array([-1.0, -1.0, 0.0, 0.0, 0.0, -1.0, -1.0, 7.0, -1.0])
    gamma = 0.96
    cycle = rewards @ gamma ** np.arange(9)
    assert cycle / (1 - gamma**9) == pytest.approx(3.189, abs=5e-4)


def test_the_default_map_has_the_areas_of_the_paper() -> None:
    grid = GridMap.parse()
    counts = np.bincount(grid.areas)
    assert dict(zip(grid.area_names, counts.tolist(), strict=True)) == {
        "light": 17,
        "orange": 3,
        "dark": 1,
        "blue": 3,
        "goal": 1,
    }


def test_moves_walls_and_the_goal() -> None:
    assert [next_state(12, a) for a in range(4)] == [17, 7, 11, 13]
    assert [next_state(0, a) for a in range(4)] == [5, 0, 0, 1]
    assert [next_state(9, a) for a in range(4)] == [14, 4, 8, 9]
    assert [next_state(24, a) for a in range(4)] == [0, 0, 0, 0]


def test_features_are_those_of_the_cell_arrived_at() -> None:
    mdp = gridworld_mdp()
    goal, light = mdp.feature_names.index("goal"), mdp.feature_names.index("light")
    assert mdp.expected_features[23, RIGHT, goal] == 1.0
    assert mdp.expected_features[19, DOWN, goal] == 1.0
    assert mdp.expected_features[24, DOWN, light] == 1.0


@pytest.mark.parametrize("horizon", [None, 20])
def test_the_common_level_of_one_hot_weights_is_a_gauge(horizon: int | None) -> None:
    mdp = gridworld_mdp()
    theta = np.random.default_rng(0).normal(size=mdp.n_parameters)
    jacobian = feature_jacobian(mdp, theta, horizon=horizon)
    assert jacobian.shape == (75, 5)
    np.testing.assert_allclose(jacobian @ np.ones(5), 0.0, atol=1e-10)
    assert np.linalg.matrix_rank(jacobian, tol=1e-8) == 4


def test_both_weight_conventions_work_by_name() -> None:
    names = ("goal", "light", "blue")
    np.testing.assert_array_equal(grid_weights(names), [7.0, -1.0, 0.0])
    np.testing.assert_array_equal(grid_weights(names, "paper-text"), [0.0, -1.0, 7.0])
    np.testing.assert_array_equal(grid_weights(["lava"], {"lava": -9.0}), [-9.0])
    assert set(WEIGHTS) == {"code", "paper-text"}
    with pytest.raises(OptionError, match="one of code, paper-text"):
        grid_weights(names, "paper")
    with pytest.raises(OptionError, match="areas lava"):
        grid_weights(["light", "lava"])


def test_under_the_text_weights_staying_in_the_blue_corner_is_best() -> None:
    mdp = gridworld_mdp()
    _, values = optimal_policy(mdp, grid_weights(mdp.feature_names, "paper-text"))
    # Two light steps, then 7 for ever.
    expected = -1.0 - 0.96 + 0.96**2 * 7.0 / 0.04
    assert float(mdp.initial @ values) == pytest.approx(expected)


def test_maps_of_other_shapes_and_areas() -> None:
    names = {**AREA_NAMES, "~": "water"}
    grid = GridMap.parse("~.g\n\n. . .", names=names, start=(1, 2))
    mdp = gridworld_mdp(grid, gamma=0.5)
    assert (grid.shape, mdp.n_states) == ((2, 3), 6)
    assert mdp.feature_names == ("light", "goal", "water")
    assert mdp.initial.argmax() == 5
    np.testing.assert_array_equal(mdp.transitions[2].argmax(axis=1), 5)
    assert gridworld_mdp(GridMap.parse("..")).feature_names == ("light",)


@pytest.mark.parametrize(
    ("text", "start", "message"),
    [
        ("  \n", (0, 0), "empty"),
        (". .\n. . .", (0, 0), "row 1 has 3 cells, row 0 has 2"),
        (". .\n. x", (0, 0), "'x' at row 1, column 1"),
        (". .\n. g", (2, 0), r"row 2, column 0\) lies outside"),
        (". .\n. g", (0, -1), "outside"),
        (". .\n. g", (1, 1), "is a goal"),
    ],
)
def test_malformed_maps_are_refused(text: str, start: tuple[int, int], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        GridMap.parse(text, start=start)


def test_two_areas_of_one_name_are_refused() -> None:
    with pytest.raises(OptionError, match="same area name"):
        GridMap.parse(". x", names={".": "light", "x": "light"})


@pytest.mark.parametrize("render_mode", [None, "ansi"])
def test_gymnasium_accepts_the_environment(render_mode: str | None) -> None:
    check_env(Gridworld(render_mode=render_mode))


def test_an_episode_follows_the_model_and_truncates_itself() -> None:
    env = Gridworld(weights="code")
    rng = np.random.default_rng(0)
    state, _ = env.reset(seed=0)
    assert state == 0
    for h in range(20):
        action = int(rng.integers(4))
        arrived, reward, terminated, truncated, info = env.step(action)
        assert env.mdp.transitions[state, action, arrived] == 1.0
        np.testing.assert_array_equal(info["features"], env.mdp.expected_features[state, action])
        assert reward == env.weights @ info["features"]
        assert not terminated
        assert truncated == (h == 19)
        state = arrived
    assert env.reset()[0] == 0
    assert not env.step(DOWN)[3]


def test_episodes_can_start_elsewhere_and_goals_reset() -> None:
    env = Gridworld()
    env.reset(options={"state": 23})
    arrived, reward, *_ = env.step(RIGHT)
    assert (int(arrived), reward) == (24, 7.0)
    arrived, reward, terminated, *_ = env.step(UP)
    assert (int(arrived), reward, terminated) == (0, -1.0, False)


def test_the_environment_takes_weights_in_every_form() -> None:
    by_name = Gridworld(weights={"light": 1, "orange": 2, "dark": 3, "blue": 4, "goal": 5})
    by_order = Gridworld(weights=[1, 2, 3, 4, 5])
    np.testing.assert_array_equal(by_name.weights, by_order.weights)


def test_rendering_shows_the_agent() -> None:
    env = Gridworld(render_mode="ansi")
    env.reset()
    env.step(RIGHT)
    text = env.render()
    assert text is not None
    assert text.splitlines()[0] == ". @ . b b"
    assert text.splitlines()[4] == "o o . . g"
    assert Gridworld().render() is None


def test_malformed_arguments_are_refused() -> None:
    with pytest.raises(OptionError, match="horizon"):
        Gridworld(horizon=0)
    with pytest.raises(OptionError, match="render_mode"):
        Gridworld(render_mode="human")
    with pytest.raises(OptionError, match="5 finite numbers"):
        Gridworld(weights=[1.0])
    env = Gridworld()
    env.reset()
    with pytest.raises(OptionError, match="action"):
        env.step(4)
    with pytest.raises(OptionError, match="state"):
        env.reset(options={"state": 25})
