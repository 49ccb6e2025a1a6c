"""Feature functions see endings and times if they ask for them, and are left alone if not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from logel.data.facts import call_with_facts
from logel.data.stage import Episode, Stage
from logel.errors import OptionError
from logel.rewards.features import ActionCost, Concatenate, FunctionFeatures
from logel.rewards.linear import LinearReward

# Two episodes of 3 and 2 steps, the first of which ends for good.
STAGE = Stage.from_episodes(
    [
        Episode(np.arange(4.0)[:, None], np.zeros((3, 1)), terminated=True),
        Episode(np.arange(3.0)[:, None], np.zeros((2, 1)), terminated=False),
    ]
)
TERMINATED, TRUNCATED, TIMES = [0, 0, 1, 0, 0], [0, 0, 0, 0, 1], [0, 1, 2, 0, 1]


def asking(observations: Any, actions: Any, following: Any, *, terminated: Any, times: Any) -> Any:
    return np.stack([terminated, times], axis=1)


def test_a_stage_tells_what_is_asked_for() -> None:
    np.testing.assert_array_equal(STAGE.with_features(asking).features[:, 0], TERMINATED)
    np.testing.assert_array_equal(STAGE.with_features(asking).features[:, 1], TIMES)
    cut = FunctionFeatures(lambda o, a, n, truncated: truncated, ("cut",))
    np.testing.assert_array_equal(STAGE.with_features(cut).features[:, 0], TRUNCATED)


def test_those_who_ask_and_those_who_do_not_stand_side_by_side() -> None:
    moved = FunctionFeatures(lambda o, a, n: n - o, ("moved",))
    both = Concatenate((moved, FunctionFeatures(asking, ("ended", "time")), ActionCost()))
    found = STAGE.with_features(both).features
    np.testing.assert_array_equal(found, np.column_stack([np.ones(5), TERMINATED, TIMES, [0] * 5]))


def test_old_functions_get_three_arrays() -> None:
    seen: list[tuple[Any, ...]] = []

    def old(*arrays: Any) -> Any:
        seen.append(arrays)
        return arrays[0]

    STAGE.with_features(old)
    assert len(seen[0]) == 3
    # Whatever the arrays are called, they come by position.
    np.testing.assert_array_equal(
        call_with_facts(lambda times, b, c: times + 1, np.zeros(1), 0, 0, times=np.ones(1)), [1.0]
    )
    assert call_with_facts(max, 1, 2, 3, terminated=True) == 3  # cannot tell its parameters


def test_what_nobody_knows_cannot_be_asked_for() -> None:
    features, rows = FunctionFeatures(asking, ("ended", "time")), np.zeros((1, 1))
    with pytest.raises(OptionError, match="ask for times, which is not known here"):
        features(rows, rows, rows, terminated=np.ones(1))
    by_default = FunctionFeatures(lambda o, a, n, terminated=None: o, ("one",))
    assert by_default(rows, rows, rows) == 0.0
    reward = LinearReward(np.array([1.0, 10.0]), features)
    assert reward(rows, rows, rows, terminated=np.ones(1), times=np.full(1, 3)) == 31.0
