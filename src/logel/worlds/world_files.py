"""Known worlds in files: a table of moves (CSV, Parquet) or NumPy arrays (.npz).

A table has columns state, action, next_state, which is missing where a move ends the episode, and
probability, if moves are not certain; pairs of state and action without a row are not known. A
.npz file holds `successors` (S, A) or `transitions`, (S, A, S) or (S, A, S + 1), and `terminal`, if
there are such states; see `KnownWorld`. Nothing in it is unpickled.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from logel.data.columns import Table
from logel.data.limits import (
    CellCount,
    FilePath,
    Limits,
    ask_memory,
    check_plain_file,
    parsing,
    shown,
)
from logel.data.table_files import read_tables
from logel.errors import FormatError, HistoryError, OptionError
from logel.types import Array, Float
from logel.worlds.known import KnownWorld

_ARRAYS = ("successors", "transitions", "terminal")
_COLUMNS = ("state", "action", "next_state", "probability")


def read_world(
    path: FilePath, n_states: int, n_actions: int, *, limits: Limits | None = None
) -> KnownWorld:
    """Read a world of so many states and actions.

    Args:
        path: A .npz, .csv or .parquet file.
        n_states: Number S of states of the policy.
        n_actions: Number A of its actions.
        limits: How large the file may be.
    """
    source = Path(path)
    kind = source.suffix.lower()
    if kind == ".npz":
        return _of_arrays(_read_arrays(source, CellCount(limits)), source)
    if kind not in (".csv", ".parquet"):
        raise OptionError(f"a world is a .npz, .csv or .parquet file, not {source.name}")
    table, _ = read_tables(kind[1:], [source], None, (), limits, None)
    return KnownWorld(_of_moves(table, n_states, n_actions))


def _read_arrays(path: Path, cells: CellCount) -> dict[str, Array]:
    check_plain_file(path, cells.limits)
    # What reads archives and NumPy's heads raises all kinds of errors on broken bytes.
    with parsing(path, Exception):
        with zipfile.ZipFile(path) as archive:
            # What is packed small may unpack to anything.
            size = sum(info.file_size for info in archive.infolist())
        cells.add(size // 8, path)
        with np.load(path, allow_pickle=False) as held:
            if unknown := [name for name in held.files if name not in _ARRAYS]:
                raise FormatError(
                    f"{path} holds {shown(unknown[0])!r}, but a world has {', '.join(_ARRAYS)}"
                )
            return {name: np.asarray(held[name]) for name in held.files}


def _of_arrays(arrays: dict[str, Array], path: Path) -> KnownWorld:
    tables = [arrays[name] for name in _ARRAYS[:2] if name in arrays]
    if len(tables) != 1:
        raise FormatError(f"{path} must hold either successors or transitions")
    terminal = arrays.get("terminal", np.zeros(0, dtype=int))
    if terminal.dtype.kind not in "iu" or terminal.ndim > 1:
        raise FormatError(f"{path}: terminal must be numbers of states, not {terminal.dtype}")
    return KnownWorld(tables[0], terminal=[int(state) for state in np.atleast_1d(terminal)])


def _of_moves(table: Table, n_states: int, n_actions: int) -> Float:
    """Probabilities (S, A, S + 1), termination last; zero where nothing is said."""
    for name in _COLUMNS[:3]:
        if name not in table.columns:
            raise HistoryError(f"{table.name} must have a column {name}, but has none")
    if unknown := [name for name in table.columns if name not in _COLUMNS]:
        raise HistoryError(f"{table.name}: column {shown(unknown[0])!r} means nothing in a world")
    state, action = table.labels("state"), table.labels("action")
    following = table.columns["next_state"]
    if following.values.dtype.kind != "i":
        # A column that is all missing, or a float by its missing entries, has no type of its own.
        wrong = ~following.missing & (following.values != np.round(following.values))
        table.refuse(wrong, "next_state", "must be a whole number, but is {value}")
    after = np.where(following.missing, n_states, following.values).astype(np.int64)
    for name, values, count in (
        ("state", state, n_states),
        ("action", action, n_actions),
        ("next_state", np.where(following.missing, 0, after), n_states),
    ):
        wild = (values < 0) | (values >= count)
        table.refuse(wild, name, f"{{value}} is outside 0..{count - 1}")
    chance = np.ones(table.n_rows)
    if "probability" in table.columns:
        chance = table.complete("probability").astype(float)
        table.refuse(~((chance > 0) & (chance <= 1)), "probability", "{value} is not in (0, 1]")
    ask_memory(8 * n_states * n_actions * (n_states + 1), f"{table.name}, as probabilities,")
    outcomes = np.zeros((n_states, n_actions, n_states + 1))
    np.add.at(outcomes, (state, action, after), chance)
    return outcomes
