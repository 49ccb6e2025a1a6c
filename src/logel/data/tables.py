"""Learning histories as tables of steps: what the columns mean, and how they become stages.

One row per step, in the order of stage, episode, time:

    stage, episode, time        whole numbers; stages count from 0 without gaps, and so do the times
                                of an episode; episodes ascend inside their stage
    observation                 or observation_0, observation_1, ... (observation_0_0, ... for
    action                      tables of numbers); the same for actions
    feature_NAME                reward features, optional; feature_0, feature_1, ... are unnamed
    terminated                  optional; true in the last step of an episode the world ended
    reward                      optional; kept only as mean return of every stage

The observation after the last action is one more row, in which actions, features and terminated are
missing; it may be left out. Policy parameters and learning rates have one value per stage, so they
live in a second table: stage, learning_rate (missing for stage 0), parameter_0, parameter_1, ...
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from logel.data.arrays import pack_history
from logel.data.columns import Table, shown
from logel.data.history import LearningHistory
from logel.errors import HistoryError
from logel.types import Array

_LABELS = ("stage", "episode", "time")
_INDEXED = re.compile(r"(observation|action)((?:_(?:0|[1-9]\d{0,8}))*)")
FEATURE = "feature_"
_PARAMETER = re.compile(r"parameter_(0|[1-9]\d{0,8})")


def history_from_table(
    table: Table, *, stages: Table | None = None, metadata: Mapping[str, Any] | None = None
) -> LearningHistory:
    """Check a table of steps, row by row, and cut it into stages."""
    observed, acted, features = _recognise(table)
    if table.n_rows == 0:
        raise HistoryError(f"{table.name} must have at least one row, but is empty")
    starts = _episode_starts(table)
    n_rows = table.n_rows
    counts = np.diff(np.append(starts, n_rows))
    is_last = np.zeros(n_rows, dtype=bool)
    is_last[starts + counts - 1] = True
    for name in observed.names:
        table.complete(name)
    final = _final_rows(table, [*acted.names, *features], is_last)
    lone = final[starts]
    if lone.any():
        rows = np.zeros(n_rows, dtype=bool)
        rows[starts[lone]] = True
        table.refuse(rows, acted.names[0], "is missing, but an episode needs at least one action")
    ended = _terminated(table, final, is_last, starts)
    steps = ~final
    observations = observed.values(table)
    last_seen = final[starts + counts - 1]
    last_observations = observations[starts + counts - 1] if last_seen.any() else None
    stage_of = table.columns["stage"].values[starts]
    notes = dict(metadata or {})
    if "reward" in table.columns:
        notes.setdefault("mean_returns", _mean_returns(table, final, starts, stage_of))
    parameters, rates = (None, None) if stages is None else _stage_columns(stages, stage_of[-1] + 1)
    names = [name.removeprefix(FEATURE) for name in features]
    return pack_history(
        observations[steps],
        acted.values(table)[steps],
        stage_of=stage_of,
        lengths=counts - last_seen,
        terminated=ended,
        last_observations=last_observations,
        last_seen=last_seen,
        features=_features(table, features)[steps] if features else None,
        parameters=parameters,
        learning_rates=rates,
        feature_names=None if not names or names == _numbers(len(names)) else names,
        metadata=notes,
    )


class _Indexed:
    """The columns of observations or actions, and the shape their indices span."""

    def __init__(self, kind: str, indices: Mapping[tuple[int, ...], str], where: str) -> None:
        if not indices:
            raise HistoryError(
                f"{where} must have a column {kind}, or columns {kind}_0, {kind}_1, ..."
            )
        depth = {len(index) for index in indices}
        if len(depth) > 1:
            raise HistoryError(
                f"{where}: columns {', '.join(sorted(indices.values())[:5])} mix kinds of {kind}; "
                f"use either {kind} or {kind}_0, {kind}_1, ..."
            )
        self.shape = tuple(1 + max(axis) for axis in zip(*indices, strict=True))
        size = 1
        for length in self.shape:
            size *= length
        if size != len(indices):
            # Counted, not enumerated: an index may claim a shape no memory holds.
            places = (_index(flat, self.shape) for flat in range(len(indices) + 1))
            lacking = next(index for index in places if index not in indices)
            raise HistoryError(
                f"{where} must have a column {'_'.join([kind, *map(str, lacking)])}, because it "
                f"has {indices[max(indices)]}"
            )
        self.names = [indices[index] for index in sorted(indices)]

    def values(self, table: Table) -> Array:
        return table.stack(self.names, self.shape)


def _index(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The index of the entry at a flat position, the last axis running fastest."""
    index = []
    for length in reversed(shape):
        flat, place = divmod(flat, length)
        index.append(place)
    return tuple(reversed(index))


def _recognise(table: Table) -> tuple[_Indexed, _Indexed, list[str]]:
    """The columns of observations, actions and features; refuses columns it does not know."""
    lacking = [name for name in _LABELS if name not in table.columns]
    if lacking:
        raise HistoryError(f"{table.name} must have a column {lacking[0]}, but has none")
    found: dict[str, dict[tuple[int, ...], str]] = {"observation": {}, "action": {}}
    features, unknown = [], []
    for name in table.columns:
        if match := _INDEXED.fullmatch(name):
            index = tuple(int(i) for i in match[2].split("_")[1:])
            found[match[1]][index] = name
        elif name.startswith(FEATURE):
            features.append(name)
        elif name not in (*_LABELS, "terminated", "reward"):
            unknown.append(name)
    if unknown:
        raise HistoryError(
            f"{table.name}: column {shown(unknown[0])!r} means nothing here; name reward features "
            f"feature_NAME, and pass ignore={[shown(name) for name in unknown[:5]]} to leave "
            "columns out"
        )
    observed = _Indexed("observation", found["observation"], table.name)
    return observed, _Indexed("action", found["action"], table.name), features


def _episode_starts(table: Table) -> Array:
    """First row of every episode; the first row that is out of order is named."""
    stage, episode, time = (table.labels(name) for name in _LABELS)
    same_stage = np.append(False, stage[1:] == stage[:-1])
    same = same_stage & np.append(False, episode[1:] == episode[:-1])
    stage_step = np.append(stage[0], np.diff(stage))
    time_step = np.append(0, np.diff(time))
    back = np.append(False, np.diff(episode) < 0)
    advice = "sort the rows by stage, episode and time"
    mistakes = [
        (stage_step < 0, "stage", f"{{value}} comes after a later stage; {advice}"),
        (
            stage_step > (np.arange(len(stage)) > 0),
            "stage",
            "{value} skips a stage; number the stages 0, 1, ...",
        ),
        (same_stage & back, "episode", f"{{value}} comes after a later episode; {advice}"),
        (
            same & (time_step == 0),
            "time",
            "{value} is there twice (a duplicate row, or two episodes with one number)",
        ),
        (same & (time_step < 0), "time", f"{{value}} comes after a later time; {advice}"),
        (same & (time_step > 1), "time", "{value} leaves a gap after the row before it"),
        (~same & (time != 0), "time", "{value}, but an episode must start with time 0"),
    ]
    wrong = [(int(np.argmax(rows)), k) for k, (rows, _, _) in enumerate(mistakes) if rows.any()]
    if wrong:
        table.refuse(*mistakes[min(wrong)[1]])
    return np.flatnonzero(~same)


def _final_rows(table: Table, names: Sequence[str], is_last: Array) -> Array:
    """Rows that hold only the observation after an episode's last action."""
    absent = np.stack([table.columns[name].missing for name in names], axis=1)
    final = np.asarray(absent.all(axis=1))
    for k, name in enumerate(names):
        table.check_finite(name)
        wrong = absent[:, k] & ~(final & is_last)
        if wrong.any():
            table.refuse(
                wrong,
                name,
                "is missing; only the row after an episode's last action, its final observation, "
                "may leave out actions and features, and then all of them",
            )
    return final


def _terminated(table: Table, final: Array, is_last: Array, starts: Array) -> Array:
    """Whether each episode was ended by the world."""
    if "terminated" not in table.columns:
        return np.zeros(len(starts), dtype=bool)
    column = table.columns["terminated"]
    values, missing = column.values, column.missing
    if (missing & ~final).any():
        table.refuse(missing & ~final, "terminated", "is missing, but every step needs it")
    wild = ~missing & (values != 0) & (values != 1)
    if wild.any():
        table.refuse(wild, "terminated", "must be true or false, but is {value}")
    flags = (values == 1) & ~missing
    last_step = is_last.copy()
    last_step[:-1] |= final[1:]
    early = flags & ~last_step
    if early.any():
        table.refuse(early, "terminated", "true, but the episode continues after it")
    return np.logical_or.reduceat(flags, starts)


def _mean_returns(table: Table, final: Array, starts: Array, stage_of: Array) -> list[float]:
    column = table.columns["reward"]
    if (column.missing & ~final).any():
        table.refuse(column.missing & ~final, "reward", "is missing, but every step needs it")
    table.check_finite("reward")
    rewards = np.where(final, 0.0, column.values)
    returns = np.add.reduceat(rewards, starts)
    return [float(total) for total in np.bincount(stage_of, returns) / np.bincount(stage_of)]


def _features(table: Table, names: Sequence[str]) -> Array:
    values = table.stack(names, (len(names),))
    return values if values.dtype.kind == "f" else values.astype(np.float64)


def _numbers(count: int) -> list[str]:
    return [str(k) for k in range(count)]


def _stage_columns(table: Table, n_stages: int) -> tuple[Array | None, Array | None]:
    """Parameters and learning rates out of the second table."""
    if "stage" not in table.columns:
        raise HistoryError(f"{table.name} must have a column stage, but has none")
    if (n := table.n_rows) != n_stages:
        raise HistoryError(f"{table.name} must have {n_stages} rows, one per stage, but has {n}")
    wrong = table.labels("stage") != np.arange(n)
    if wrong.any():
        table.refuse(wrong, "stage", "{value} is out of order; number the stages 0, 1, ...")
    numbers = {}
    for name in table.columns:
        if match := _PARAMETER.fullmatch(name):
            numbers[int(match[1])] = name
        elif name not in ("stage", "learning_rate"):
            raise HistoryError(
                f"{table.name}: column {shown(name)!r} is no parameter_0, parameter_1, ..."
            )
    if sorted(numbers) != list(range(len(numbers))):
        lacking = next(k for k in range(len(numbers)) if k not in numbers)
        raise HistoryError(f"{table.name} must have a column parameter_{lacking}")
    parameters = None
    if numbers:
        names = [numbers[k] for k in range(len(numbers))]
        for name in names:
            table.complete(name)
        parameters = table.stack(names, (len(names),))
    rates = None
    if "learning_rate" in table.columns:
        column = table.columns["learning_rate"]
        absent = column.missing & (np.arange(n) > 0)
        if absent.any():
            table.refuse(absent, "learning_rate", "is missing; leave out the column or fill it")
        if n > 1:
            rates = column.values[1:]
    return parameters, rates
