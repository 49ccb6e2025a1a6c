"""Animals in a tree: the maze by hand, what they learn, and who drinks."""

from __future__ import annotations

import numpy as np
import pytest

from logel import LearningHistory, TabularSoftmax
from logel.envs.tree_maze import TreeMaze
from logel.errors import OptionError
from logel.learners.forager import KINDS, Forager, forager
from logel.worlds.known import KnownWorld

MAZE = TreeMaze(2)


def test_the_maze_by_hand() -> None:
    assert MAZE.n_nodes == 7 and MAZE.n_junctions == 3 and MAZE.port == 5
    assert TreeMaze().n_nodes == 127 and TreeMaze().n_nodes - TreeMaze().n_junctions == 64
    expected = [[7, 1, 2], [0, 3, 4], [0, 5, 6], *([1, -1, -1],) * 2, *([2, -1, -1],) * 2]
    np.testing.assert_array_equal(MAZE.successors, expected)
    np.testing.assert_array_equal(MAZE.legal, np.array(expected) >= 0)
    here, way = np.array([2, 2, 1, 3, 0]), np.array([1, 0, 2, 0, 0])
    paid = MAZE(here, way, MAZE.successors[here, way])
    np.testing.assert_array_equal(paid, [[1, 1, 0], [0, 0, 1], [0, 1, 0], [0, 0, 0], [0, 0, 1]])
    for wrong in (2, 7):
        with pytest.raises(OptionError, match=r"at an end, 3\.\.6"):
            TreeMaze(2, water=wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_the_thirsty_learn_to_drink_and_the_others_do_not(kind: str) -> None:
    rate = {"gradient": 0.2, "q-learning": 0.3, "planning": 0.05}[kind]
    late = {}
    for water in (5.0, 0.0):
        bouts = Forager((water, 0.1, -0.1), kind, rate).bouts(MAZE, 200, np.random.default_rng(3))
        late[water] = np.mean([bout.features[:, 0].sum() for bout in bouts[-50:]])  # type: ignore[index]
        history = LearningHistory.from_sessions(bouts, windows=4)
        policy = TabularSoftmax(7, 3, legal=MAZE.legal)
        for stage in history:
            policy.check(stage)
        # What is seen is what the table of ways says.
        assert KnownWorld(MAZE.successors, [MAZE.port]).check(history, policy) is None
    assert late[5.0] > 0.9 and late[5.0] > late[0.0] + 0.2


def test_animals_differ_and_bad_ones_are_refused() -> None:
    rng = np.random.default_rng(0)
    animals = [forager(rng, thirsty=i < 5) for i in range(10)]
    assert [animal.weights[0] > 0 for animal in animals] == [True] * 5 + [False] * 5
    assert len({animal.rate for animal in animals}) == 10 and len({a.kind for a in animals}) > 1
    with pytest.raises(OptionError, match="kind must be one of"):
        Forager((1, 0, 0), "asleep")
    with pytest.raises(OptionError, match="rate must be positive"):
        Forager((1, 0, 0), rate=0)
