"""Learning histories as tables of steps: what the columns mean, and how they become stages.

One row per step, in the order of stage, episode, time:

    stage, episode, time        whole numbers; stages count from 0 without gaps, and so do the times
                                of an episode; episodes ascend inside their stage
    observation                 or observation_0, observation_1, ... (observation_0_0, ... for
    action                      tables of numbers); the same for actions
    feature_NAME                reward features, optional; feature_0, feature_1, ... are unnamed
    legal_0, legal_1, ...       optional; whether each action could be taken (`action_masks`)
    terminated                  optional; true in the last step of an episode the world ended
    reward                      optional; kept only as mean return of every stage

The observation after the last action is one more row, in which actions, features and terminated are
missing; it may be left out. Policy parameters and learning rates have one value per stage, so they
live in a second table: stage, learning_rate (missing for stage 0), parameter_0, parameter_1, ...
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from logel.data.arrays import cut_stages
from logel.data.columns import Table
from logel.data.contents import Contents
from logel.data.limits import shown
from logel.errors import HistoryError
from logel.types import Array

_LABELS = ("stage", "episode", "time")
_INDEXED = re.compile(r"(observation|action)((?:_(?:0|[1-9]\d{0,8}))*)")
FEATURE = "feature_"
LEGAL = "legal_"
_LEGAL = re.compile(r"legal_(0|[1-9]\d{0,8})")
_PARAMETER = re.compile(r"parameter_(0|[1-9]\d{0,8})")


def contents_of_tables(
    table: Table, stages: Table | None, metadata: Mapping[str, Any] | None
) -> Contents:
    """Check a table of steps, row by row, and cut it into stages."""
    observed, acted, features, legal = _recognise(table)
    if table.n_rows == 0:
        raise HistoryError(f"{table.name} must have at least one row, but is empty")
    first = _first_rows(table)
    starts, is_last = np.flatnonzero(first), np.append(first[1:], True)
    for name in observed.names:
        table.complete(name)
    final = _final_rows(table, [*acted.names, *features, *legal], is_last)
    for name in legal:
        values = table.columns[name].values
        wild = ~final & (values != 0) & (values != 1)
        table.refuse(wild, name, "must be true or false, but is {value}")
    lone = "is missing, but an episode needs at least one action"
    table.refuse(final & first, acted.names[0], lone)
    terminated = _terminated(table, final, is_last, starts)
    stage_of = table.columns["stage"].values[starts]
    known = dict(metadata or {})
    if "reward" in table.columns:
        known.setdefault("mean_returns", _mean_returns(table, final, starts, stage_of))
    parameters, rates = (None, None) if stages is None else _stage_facts(stages, stage_of[-1] + 1)
    observations, last_seen = table.stack(*observed), final[is_last]
    packed = cut_stages(
        observations[~final],
        table.stack(*acted)[~final],
        stage_of=stage_of,
        lengths=np.diff(np.append(starts, table.n_rows)) - last_seen,
        terminated=terminated,
        last_observations=observations[is_last],
        last_seen=last_seen,
        features=table.stack(features, (len(features),))[~final] if features else None,
        parameters=parameters,
        action_masks=table.stack(legal, (len(legal),))[~final] == 1 if legal else None,
    )
    names = [name.removeprefix(FEATURE) for name in features]
    return Contents.from_stages(
        packed,
        learning_rates=rates,
        feature_names=None if names == numbers(len(names)) else names,
        metadata=known,
    )


class _Indexed(NamedTuple):
    """The columns of observations or actions, and the shape their indices span."""

    names: list[str]
    shape: tuple[int, ...]


def _indexed(kind: str, indices: Mapping[tuple[int, ...], str], where: str) -> _Indexed:
    if not indices:
        raise HistoryError(f"{where} must have a column {kind}, or columns {kind}_0, {kind}_1, ...")
    if len({len(index) for index in indices}) > 1:
        raise HistoryError(
            f"{where}: columns {', '.join(sorted(indices.values())[:5])} mix kinds of {kind}; "
            f"use either {kind} or {kind}_0, {kind}_1, ..."
        )
    names = [indices[index] for index in sorted(indices)]
    shape = tuple(1 + max(axis) for axis in zip(*indices, strict=True))
    if math.prod(shape) != len(indices):
        lacking = "_".join([kind, *map(str, _first_gap(indices, shape))])
        raise HistoryError(f"{where} must have a column {lacking}, because it has {names[-1]}")
    return _Indexed(names, shape)


def _first_gap(indices: Container[tuple[int, ...]], shape: Sequence[int]) -> tuple[int, ...]:
    # Counted, not enumerated: an index may claim a shape no memory holds.
    places = (_index(flat, shape) for flat in itertools.count())
    return next(index for index in places if index not in indices)


def _index(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The index of the entry at a flat position, the last axis running fastest."""
    index = []
    for length in reversed(shape):
        flat, place = divmod(flat, length)
        index.append(place)
    return tuple(reversed(index))


def _recognise(table: Table) -> tuple[_Indexed, _Indexed, list[str], list[str]]:
    """Columns of observations, actions, features and masks; refuses those it does not know."""
    for name in _LABELS:
        _check_column(table, name)
    found: dict[str, dict[tuple[int, ...], str]] = {"observation": {}, "action": {}}
    features, legal, unknown = [], [], []
    for name in table.columns:
        if match := _INDEXED.fullmatch(name):
            found[match[1]][tuple(map(int, match[2].split("_")[1:]))] = name
        elif name.startswith(FEATURE):
            features.append(name)
        elif _LEGAL.fullmatch(name):
            legal.append(name)
        elif name not in (*_LABELS, "terminated", "reward"):
            unknown.append(name)
    if unknown:
        raise HistoryError(
            f"{table.name}: column {shown(unknown[0])!r} means nothing here; name reward features "
            f"feature_NAME, and pass ignore={[shown(name) for name in unknown[:5]]} to leave "
            "columns out"
        )
    observed, acted = (_indexed(kind, found[kind], table.name) for kind in found)
    masks = [f"{LEGAL}{k}" for k in range(len(legal))]
    for name in masks:
        _check_column(table, name)
    return observed, acted, features, masks


def _check_column(table: Table, name: str) -> None:
    if name not in table.columns:
        raise HistoryError(f"{table.name} must have a column {name}, but has none")


_ADVICE = "sort the rows by stage, episode and time"


def _first_rows(table: Table) -> Array:
    """A mask of the rows that start an episode; the first row that is out of order is named."""
    labels = [table.labels(name) for name in _LABELS]
    same, mistakes = _disorder(*labels)
    wrong = [(int(np.argmax(rows)), k) for k, (rows, _, _) in enumerate(mistakes) if rows.any()]
    if wrong:
        rows, column, said = mistakes[min(wrong)[1]]
        order = np.lexsort(labels[::-1])
        shuffled = not any(bad.any() for bad, _, _ in _disorder(*(x[order] for x in labels))[1])
        late = f"{{value}} is out of order; {_ADVICE}"
        table.refuse(rows, column, late if shuffled and _ADVICE not in said else said)
    return ~same


def _disorder(
    stage: Array, episode: Array, time: Array
) -> tuple[Array, list[tuple[Array, str, str]]]:
    """Which rows go on with an episode; and what can be wrong, where, and how it is said."""
    same_stage = np.append(False, stage[1:] == stage[:-1])
    same = same_stage & np.append(False, episode[1:] == episode[:-1])
    stage_step = np.append(stage[0], np.diff(stage))
    time_step = np.append(0, np.diff(time))
    back = np.append(False, np.diff(episode) < 0)
    mistakes = [
        (stage_step < 0, "stage", f"{{value}} comes after a later stage; {_ADVICE}"),
        (
            stage_step > (np.arange(len(stage)) > 0),
            "stage",
            "{value} skips a stage; number the stages 0, 1, ...",
        ),
        (same_stage & back, "episode", f"{{value}} comes after a later episode; {_ADVICE}"),
        (
            same & (time_step == 0),
            "time",
            "{value} is there twice (a duplicate row, or two episodes with one number)",
        ),
        (same & (time_step < 0), "time", f"{{value}} comes after a later time; {_ADVICE}"),
        (same & (time_step > 1), "time", "{value} leaves a gap after the row before it"),
        (~same & (time != 0), "time", "{value}, but an episode must start with time 0"),
    ]
    return same, mistakes


def _final_rows(table: Table, names: Sequence[str], is_last: Array) -> Array:
    """Rows that hold only the observation after an episode's last action."""
    absent = np.stack([table.columns[name].missing for name in names], axis=1)
    final = np.asarray(absent.all(axis=1))
    for k, name in enumerate(names):
        table.finite(name)
        table.refuse(
            absent[:, k] & ~(final & is_last),
            name,
            "is missing; only the row after an episode's last action, its final observation, "
            "may leave out actions and features, and then all of them",
        )
    return final


def _terminated(table: Table, final: Array, is_last: Array, starts: Array) -> Array:
    """Whether each episode was ended by the world."""
    if "terminated" not in table.columns:
        return np.zeros(len(starts), dtype=bool)
    values, missing = _step_column(table, "terminated", final)
    wild = ~missing & (values != 0) & (values != 1)
    table.refuse(wild, "terminated", "must be true or false, but is {value}")
    flags = (values == 1) & ~missing
    early = flags & ~(is_last | np.append(final[1:], False))
    table.refuse(early, "terminated", "true, but the episode continues after it")
    return np.logical_or.reduceat(flags, starts)


def _mean_returns(table: Table, final: Array, starts: Array, stage_of: Array) -> list[float]:
    values, _ = _step_column(table, "reward", final)
    table.finite("reward")
    returns = np.add.reduceat(np.where(final, 0.0, values), starts)
    return [float(total) for total in np.bincount(stage_of, returns) / np.bincount(stage_of)]


def _step_column(table: Table, name: str, final: Array) -> tuple[Array, Array]:
    """Values and missing entries of a column that every step needs."""
    column = table.columns[name]
    table.refuse(column.missing & ~final, name, "is missing, but every step needs it")
    return column.values, column.missing


def numbers(count: int) -> list[str]:
    """What features without names are called."""
    return [str(k) for k in range(count)]


def _stage_facts(table: Table, n_stages: int) -> tuple[Array | None, Array | None]:
    """Parameters and learning rates out of the second table."""
    _check_column(table, "stage")
    if (n := table.n_rows) != n_stages:
        raise HistoryError(f"{table.name} must have {n_stages} rows, one per stage, but has {n}")
    wrong = table.labels("stage") != np.arange(n)
    table.refuse(wrong, "stage", "{value} is out of order; number the stages 0, 1, ...")
    parameters = _parameters(table)
    if "learning_rate" not in table.columns:
        return parameters, None
    rates = table.columns["learning_rate"]
    absent = rates.missing & (np.arange(n) > 0)
    table.refuse(absent, "learning_rate", "is missing; leave out the column or fill it")
    return parameters, rates.values[1:] if n > 1 else None


def _parameters(table: Table) -> Array | None:
    others = ("stage", "learning_rate")
    found = [name for name in table.columns if name not in others]
    for name in found:
        if not _PARAMETER.fullmatch(name):
            raise HistoryError(
                f"{table.name}: column {shown(name)!r} is no parameter_0, parameter_1, ..."
            )
    names = [f"parameter_{k}" for k in range(len(found))]
    for name in names:
        _check_column(table, name)
        table.complete(name)
    return table.stack(names, (len(names),)) if names else None
