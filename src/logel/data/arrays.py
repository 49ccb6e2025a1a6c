"""Flat arrays, one row per step, with the stage and the episode of every row beside them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from logel.data.contents import parameter_rows
from logel.data.stage import Stage, named, taken
from logel.errors import HistoryError
from logel.types import Array


def stages_of_arrays(
    observations: npt.ArrayLike,
    actions: npt.ArrayLike,
    stages: npt.ArrayLike,
    episodes: npt.ArrayLike,
    features: npt.ArrayLike | None,
    terminated: npt.ArrayLike | None,
    last_observations: npt.ArrayLike | None,
    parameters: npt.ArrayLike | None,
    action_masks: npt.ArrayLike | None = None,
) -> list[Stage]:
    """Check every row and cut them into stages; see `LearningHistory.from_arrays`."""
    rows = {"observations": _rows(observations, "observations"), "actions": _rows(actions)}
    if features is not None:
        rows["features"] = _rows(features, "features")
    if action_masks is not None:
        rows["action_masks"] = _rows(action_masks, "action_masks")
    n_rows = len(rows["actions"])
    stage, episode = _labels(stages, "stages"), _labels(episodes, "episodes")
    ended = np.zeros(n_rows, dtype=bool) if terminated is None else _flags(terminated)
    for name, array in {**rows, "stages": stage, "episodes": episode, "terminated": ended}.items():
        if len(array) != n_rows:
            raise HistoryError(f"{name} must have {n_rows} rows like actions, but has {len(array)}")
    starts = _episode_starts(stage, episode)
    ends = np.append(starts[1:], n_rows) - 1
    early = ended.copy()
    early[ends] = False
    if early.any():
        row = int(np.argmax(early))
        raise HistoryError(f"terminated, row {row}: true, but the episode continues after it")
    last = None if last_observations is None else _rows(last_observations, "last_observations")
    if last is not None and len(last) != len(starts):
        raise HistoryError(
            f"last_observations must have {len(starts)} rows, one per episode, but has {len(last)}"
        )
    return cut_stages(
        rows["observations"],
        rows["actions"],
        stage_of=stage[starts],
        lengths=ends - starts + 1,
        terminated=ended[ends],
        last_observations=last,
        last_seen=np.full(len(starts), last is not None),
        features=rows.get("features"),
        parameters=parameters,
        action_masks=rows.get("action_masks"),
    )


def cut_stages(
    observations: Array,
    actions: Array,
    *,
    stage_of: Array,
    lengths: Array,
    terminated: Array,
    last_observations: Array | None,
    last_seen: Array,
    features: Array | None = None,
    parameters: npt.ArrayLike | None = None,
    action_masks: Array | None = None,
) -> list[Stage]:
    """Cut rows that are in order into stages; see `Stage` for the shapes, over all episodes.

    Every episode has its stage (`stage_of`, 0..m in order). Of the last observations only those
    that were seen count (`last_seen`), and a stage with one unseen is a stage without.
    """
    n_stages = int(stage_of[-1]) + 1
    bounds = np.searchsorted(stage_of, np.arange(n_stages + 1))
    row_bounds = np.concatenate([[0], np.cumsum(lengths)])[bounds]
    stages = []
    for t, theta in enumerate(parameter_rows(parameters, n_stages)):
        own = slice(bounds[t], bounds[t + 1])
        rows = slice(row_bounds[t], row_bounds[t + 1])
        with named(f"stage {t}"):
            stage = Stage(
                observations=observations[rows],
                actions=actions[rows],
                lengths=lengths[own],
                terminated=terminated[own],
                last_observations=taken(last_observations, own) if last_seen[own].all() else None,
                features=taken(features, rows),
                parameters=theta,
                action_masks=taken(action_masks, rows),
            )
        stages.append(stage)
    return stages


def _episode_starts(stages: Array, episodes: Array) -> Array:
    """Rows at which an episode starts; refuses stages out of order and scattered episodes."""
    if len(stages) == 0:
        raise HistoryError("a history needs at least one row, but there are none")
    if stages[0] != 0:
        raise HistoryError(f"stages, row 0: {stages[0]}, but stages are numbered 0, 1, ...")
    steps = np.diff(stages)
    jumps = (steps != 0) & (steps != 1)
    if jumps.any():
        row = int(np.argmax(jumps)) + 1
        told = "skips a stage" if steps[row - 1] > 1 else "goes back"
        raise HistoryError(
            f"stages, row {row}: {stages[row]} after {stages[row - 1]} {told}; sort the rows by "
            "stage and number the stages 0, 1, ..."
        )
    starts = np.flatnonzero(np.concatenate([[True], (steps != 0) | (np.diff(episodes) != 0)]))
    order = np.lexsort((episodes[starts], stages[starts]))
    same = (np.diff(stages[starts][order]) == 0) & (np.diff(episodes[starts][order]) == 0)
    if same.any():
        row = int(starts[order[1:][same]].min())
        raise HistoryError(
            f"episodes, row {row}: episode {episodes[row]} of stage {stages[row]} comes back after "
            "another; keep the rows of an episode together, in the order of time"
        )
    return starts


def _rows(values: npt.ArrayLike, name: str = "actions") -> Array:
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise HistoryError(f"{name} cannot be made an array: {error}") from None
    if array.ndim == 0:
        raise HistoryError(f"{name} needs one row per step, but is a single value")
    if array.dtype.kind not in "buif":
        raise HistoryError(f"{name} must be numbers, not {array.dtype}")
    finite = np.isfinite(array)
    if not finite.all():
        row, *column = (int(i) for i in np.argwhere(~finite)[0])
        where = f"row {row}" + (f", column {column[0]}" if len(column) == 1 else "")
        raise HistoryError(f"{name}, {where}: must be finite, but is {array[~finite][0]}")
    return array


def _labels(values: npt.ArrayLike, name: str) -> Array:
    array = _rows(values, name)
    if array.dtype.kind not in "ui" or array.ndim != 1:
        raise HistoryError(
            f"{name} must be one whole number per row, not {array.dtype} of shape {array.shape}"
        )
    return array.astype(np.int64)


def _flags(values: npt.ArrayLike) -> Array:
    array = _rows(values, "terminated")
    if array.ndim != 1 or not np.isin(array, (0, 1)).all():
        raise HistoryError("terminated must be one true or false per row")
    return array.astype(bool)
