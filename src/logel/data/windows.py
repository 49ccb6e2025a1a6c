"""One learner's episodes in order, cut into windows that serve as stages.

Nobody stops learning at the end of a window: a stage is what the learner did around some time.
Few long windows blur the learning, many short ones show single policies badly;
`logel.check_estimate` tells whether an answer depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from logel.data.stage import Episode, taken
from logel.errors import Choice, HistoryError, OptionError
from logel.types import Float


class Cut(Choice):
    """What windows have in common.

    EPISODES: the number of episodes, up to one.
    TRIALS: the number of actions, up to one; episodes are cut where a window ends.
    TIME: their length in time, by when each episode began; empty windows are left out.
    """

    EPISODES = "episodes"
    TRIALS = "trials"
    TIME = "time"


def windows_of(
    episodes: Sequence[Episode],
    windows: int,
    *,
    by: Cut | str = Cut.EPISODES,
    times: npt.ArrayLike | None = None,
) -> list[list[Episode]]:
    """Cut episodes into windows, none of them empty; see `LearningHistory.from_sessions`."""
    by = Cut(by)
    if windows < 1:
        raise OptionError(f"windows must be at least 1, but is {windows}")
    if (times is None) == (by is Cut.TIME):
        told = "need times, one per episode" if times is None else "take no times"
        raise OptionError(f"windows by {by.value} {told}")
    episodes = list(episodes)
    if not episodes:
        raise HistoryError("sessions need at least one episode, but there are none")
    if by is Cut.TRIALS:
        return _by_trials(episodes, windows)
    if by is Cut.TIME:
        return _by_time(episodes, windows, _checked_times(times, len(episodes)))
    if windows > len(episodes):
        raise HistoryError(
            f"{len(episodes)} episodes cannot fill {windows} windows: ask for fewer, or cut by "
            "trials"
        )
    edges = np.arange(windows + 1) * len(episodes) // windows
    return [episodes[a:b] for a, b in pairwise(edges)]


def _by_time(episodes: list[Episode], windows: int, times: Float) -> list[list[Episode]]:
    span = times[-1] - times[0]
    if span == 0:
        return [episodes]
    # The last episode begins at the end of the last window, and belongs to it.
    window = np.minimum((windows * (times - times[0]) / span).astype(int), windows - 1)
    starts = np.flatnonzero(np.diff(window, prepend=-1))
    return [episodes[a:b] for a, b in pairwise([*starts, len(episodes)])]


def _checked_times(values: npt.ArrayLike | None, n: int) -> Float:
    times = np.asarray(values, dtype=float)
    if times.shape != (n,) or not np.isfinite(times).all():
        raise HistoryError(
            f"times must be {n} numbers, one per episode, but have shape {times.shape}"
            + ("" if np.isfinite(times).all() else " and are not all finite")
        )
    back = np.diff(times) < 0
    if back.any():
        n = int(np.argmax(back)) + 1
        raise HistoryError(
            f"episode {n} began at {times[n]:g}, before the one in front of it, at "
            f"{times[n - 1]:g}: sort the episodes by time"
        )
    return times


def _by_trials(episodes: list[Episode], windows: int) -> list[list[Episode]]:
    lengths = np.array([len(episode) for episode in episodes])
    total = int(lengths.sum())
    if windows > total:
        raise HistoryError(f"{total} trials cannot fill {windows} windows: ask for fewer")
    starts = np.cumsum(lengths) - lengths
    edges = np.arange(windows + 1) * total // windows
    result = []
    for low, high in pairwise(edges):
        inside = np.flatnonzero((starts < high) & (starts + lengths > low))
        result.append(
            [
                _piece(episodes[n], max(low - starts[n], 0), min(high - starts[n], lengths[n]))
                for n in inside
            ]
        )
    return result


def _piece(episode: Episode, first: int, after: int) -> Episode:
    """Times first..after - 1 of an episode; what was seen next is the state it led to."""
    if (first, after) == (0, len(episode)):
        return episode
    rows = slice(first, after)
    return Episode(
        episode.observations[first : after + 1],
        episode.actions[rows],
        taken(episode.features, rows),
        episode.terminated and after == len(episode),
        taken(episode.action_masks, rows),
    )
