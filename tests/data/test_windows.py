"""Sessions cut into windows, and visits made into episodes: by hand and by hypothesis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logel import Episode, LearningHistory
from logel.data.visits import episode_of_visits
from logel.data.windows import windows_of
from logel.errors import HistoryError, OptionError


def sessions(lengths: Any, *, ended: bool = True) -> list[Episode]:
    """Episodes that count their trials on, masks and features included."""
    made, at = [], 0
    for length in lengths:
        trials = np.arange(at, at + length)
        masks = np.stack([trials >= 0, trials % 2 == 0], axis=1)
        observations = np.append(trials, -1)
        made.append(
            Episode(observations, 0 * trials, trials[:, None], terminated=ended, action_masks=masks)
        )
        at += length
    return made


def trials(window: list[Episode]) -> list[int]:
    return [int(x) for episode in window for x in episode.features[:, 0]]  # type: ignore[index]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 12))
def test_no_window_is_empty_and_nothing_is_lost(lengths: list[int], windows: int) -> None:
    episodes = sessions(lengths)
    for by, most in (("episodes", len(lengths)), ("trials", sum(lengths))):
        if windows > most:
            with pytest.raises(HistoryError, match=f"{most} {by} cannot fill {windows} windows"):
                windows_of(episodes, windows, by=by)
            continue
        cut = windows_of(episodes, windows, by=by)
        assert len(cut) == windows and all(cut)
        assert [x for window in cut for x in trials(window)] == list(range(sum(lengths)))
        sizes = [len(w) if by == "episodes" else len(trials(w)) for w in cut]
        assert max(sizes) - min(sizes) <= 1
    times = np.cumsum(lengths).astype(float)
    cut = windows_of(episodes, windows, by="time", times=times)
    assert 1 <= len(cut) <= windows and all(cut)
    assert [episode for window in cut for episode in window] == episodes


def test_windows_of_time_are_equally_long_and_empty_ones_are_left_out() -> None:
    episodes = sessions([1, 1, 1, 1, 1])
    cut = windows_of(episodes, 4, by="time", times=[0.0, 1.0, 2.5, 9.0, 10.0])
    assert [len(window) for window in cut] == [2, 1, 2]
    assert windows_of(episodes, 3, by="time", times=np.ones(5)) == [episodes]


def test_an_episode_cut_by_trials_goes_on_where_it_was() -> None:
    first, second = windows_of(sessions([5]), 2, by="trials")
    assert first[0].observations.tolist() == [0, 1, 2] and not first[0].terminated
    assert second[0].observations.tolist() == [2, 3, 4, -1] and second[0].terminated
    np.testing.assert_array_equal(second[0].action_masks, [[1, 1], [1, 0], [1, 1]])


def test_a_history_of_sessions_can_be_cut_anew() -> None:
    history = LearningHistory.from_sessions(sessions([2] * 9), windows=3, feature_names=["n"])
    assert [stage.n_episodes for stage in history] == [3, 3, 3] and history.own_episodes is None
    again = history.with_windows(4)
    assert [stage.n_episodes for stage in again] == [2, 2, 2, 3]
    assert again.feature_names == ("n",)
    assert [s.n_steps for s in history.with_windows(6, by="trials")] == [3] * 6


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"windows": 0}, OptionError, "at least 1"),
        ({"windows": 2, "by": "time"}, OptionError, "need times"),
        ({"windows": 2, "times": [0, 1, 2]}, OptionError, "take no times"),
        ({"windows": 2, "by": "weeks"}, OptionError, "choose one of episodes, trials, time"),
        ({"windows": 2, "by": "time", "times": [0, 1]}, HistoryError, "3 numbers"),
        (
            {"windows": 2, "by": "time", "times": [0, 3, 2]},
            HistoryError,
            "episode 2 began at 2, before the one in front of it, at 3",
        ),
    ],
)
def test_bad_windows_are_refused(options: dict[str, Any], error: Any, told: str) -> None:
    with pytest.raises(error, match=told):
        LearningHistory.from_sessions(sessions([1, 1, 1]), **options)
    with pytest.raises(HistoryError, match="there are none"):
        windows_of([], 1)


# --- visits ---------------------------------------------------------------------------------

LEADS = np.array([[3, 1], [0, 2], [1, -1]])


def test_visits_say_which_ways_were_taken() -> None:
    episode = episode_of_visits([0, 1, 2, 1, 0], LEADS, left=True)
    assert episode.actions.tolist() == [1, 1, 0, 0, 0] and episode.terminated
    assert episode.observations.tolist() == [0, 1, 2, 1, 0, 0]
    np.testing.assert_array_equal(episode.action_masks[2], [True, False])  # type: ignore[index]
    seen = episode_of_visits([0, 1], LEADS, features=lambda s, a, n: np.stack([s, a, n], axis=1))
    np.testing.assert_array_equal(seen.features, [[0, 1, 1]])
    assert not seen.terminated


@pytest.mark.parametrize(
    ("places", "told"),
    [
        ([0, 2], "visit 0: no way leads from place 0 to place 2"),
        ([0, 1, 4], "visit 2: place 4 is outside 0..2"),
        ([1], "at least two"),
        ([0.5, 1.0], "whole numbers"),
    ],
)
def test_visits_that_cannot_be_are_named(places: Any, told: str) -> None:
    with pytest.raises(HistoryError, match=told):
        episode_of_visits(places, LEADS)
    with pytest.raises(HistoryError, match="visit 1: no way leads from place 2 out"):
        episode_of_visits([1, 2], LEADS, left=True)
