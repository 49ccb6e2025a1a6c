"""Learning histories laid out as tables; `logel.data.tables` says what the columns mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from logel.data.columns import Column, Origin, Table, join
from logel.data.history import LearningHistory
from logel.data.stage import Stage
from logel.data.tables import FEATURE
from logel.types import Array


def table_of_history(history: LearningHistory) -> Table:
    """The steps of a history, final observations included, as a table."""
    parts = [_table_of_stage(stage, t, history.feature_names) for t, stage in enumerate(history)]
    return join(parts)


def table_of_stages(history: LearningHistory) -> Table | None:
    """Parameters and learning rates, one row per stage; None when neither is known."""
    parameters = history.parameters()
    if parameters is None and history.learning_rates is None:
        return None
    columns = {"stage": Column.of(np.arange(len(history)))}
    if history.learning_rates is not None:
        columns["learning_rate"] = Column.of(np.append(np.nan, history.learning_rates))
    for k, values in enumerate(() if parameters is None else parameters.T):
        columns[f"parameter_{k}"] = Column.of(values)
    return Table(columns, (Origin("the table of stages", len(history)),))


def _table_of_stage(stage: Stage, index: int, names: Sequence[str] | None) -> Table:
    last = stage.last_observations
    lengths = stage.lengths + (last is not None)
    n_rows = int(lengths.sum())
    starts = np.cumsum(lengths) - lengths
    ends = starts + lengths - 1
    is_step = np.ones(n_rows, dtype=bool)
    observations = np.empty((n_rows, *stage.observations.shape[1:]), stage.observations.dtype)
    if last is not None:
        is_step[ends] = False
        observations[ends] = last
    observations[is_step] = stage.observations
    terminated = np.zeros(n_rows, dtype=bool)
    terminated[ends - (last is not None)] = stage.terminated
    episode = np.repeat(np.arange(stage.n_episodes), lengths)
    columns = {
        "stage": Column.of(np.full(n_rows, index)),
        "episode": Column.of(episode),
        "time": Column.of(np.arange(n_rows) - starts[episode]),
    }
    for name, values in _named("observation", observations):
        columns[name] = Column.of(values)
    for name, values in _named("action", stage.actions):
        columns[name] = _spread(values, is_step)
    if stage.features is not None:
        labels = [str(k) for k in range(stage.features.shape[1])] if names is None else names
        for label, values in zip(labels, stage.features.T, strict=True):
            columns[FEATURE + label] = _spread(values, is_step)
    columns["terminated"] = Column(terminated, ~is_step)
    return Table(columns, (Origin("the history", n_rows),))


def _named(kind: str, values: Array) -> list[tuple[str, Array]]:
    """One column per entry of an observation or action, with its index in its name."""
    return [
        ("_".join([kind, *map(str, index)]), values[(slice(None), *index)])
        for index in np.ndindex(values.shape[1:])
    ]


def _spread(values: Array, is_step: Array) -> Column:
    """Values of the steps, with missing entries in the other rows."""
    spread = np.zeros(len(is_step), values.dtype)
    spread[is_step] = values
    return Column.of(spread, ~is_step)
