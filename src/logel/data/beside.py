"""What lies beside an exported table of steps, so that nothing is lost on the way back.

    steps.csv               the steps
    steps-stages.csv        parameters and learning rates, where they are known
    steps.csv.about.json    the rest: metadata (gamma among them), notes, own episodes, precision

Reading `steps.csv` reads the others too. They may come from anyone: sizes are checked, names are
ours and not the file's, and nothing is executed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from logel.data.contents import Contents
from logel.data.folder import own_episodes_of, parse_names
from logel.data.frames import frame_of_stages, frame_of_steps
from logel.data.limits import FilePath, Limits, check_plain_file, parse_json, parsing
from logel.data.stage import Stage
from logel.data.store import write_atomically
from logel.data.table_files import check_new_file, read_tables, write_frame
from logel.data.tables import contents_of_tables
from logel.errors import FormatError
from logel.types import Array, Progress

_FORMAT, _VERSION = "logel-table", 1
# What CSV widens: it comes back as it was.
_ROWS = ("observations", "actions", "features", "last_observations", "parameters")


def stages_beside(table: Path) -> Path:
    """The table of parameters and learning rates."""
    return table.with_name(f"{table.stem}-stages{table.suffix}")


def about_beside(table: Path) -> Path:
    """The file with all that is no table."""
    return table.with_name(f"{table.name}.about.json")


def write_tables(history: Contents, path: FilePath, file_format: str) -> list[Path]:
    """Write a history as new files, and return their paths, the table of steps first."""
    table = Path(path)
    second, about = stages_beside(table), about_beside(table)
    for beside in (second, about):
        check_new_file(beside)
    written = [write_frame(frame_of_steps(history), table, file_format)]
    stages = frame_of_stages(history)
    if stages is not None:
        written.append(write_frame(stages, second, file_format))
    write_atomically(about, json.dumps(_about(history), indent=1, sort_keys=True).encode())
    return [*written, about]


def _about(history: Contents) -> dict[str, Any]:
    first = history[0]
    kept = {name: getattr(first, name) for name in _ROWS}
    return {
        "format": _FORMAT,
        "format_version": _VERSION,
        "n_stages": len(history),
        "metadata": dict(history.metadata),
        "own_episodes": history.own_episodes,
        "complete": history.complete,
        "feature_names": None if history.feature_names is None else list(history.feature_names),
        "notes": [dict(notes) for notes in history.notes],
        "single_precision": [
            name for name, rows in kept.items() if rows is not None and rows.dtype == np.float32
        ],
        "images": first.observations.dtype == np.uint8,
    }


def contents_of_files(
    file_format: str,
    paths: Sequence[FilePath] | FilePath,
    stages: FilePath | None,
    ignore: Sequence[str],
    metadata: Mapping[str, Any] | None,
    limits: Limits | None,
    progress: Progress | None,
) -> Contents:
    """What tables hold, and what lies beside a single one; see `LearningHistory.from_csv`."""
    sources = [paths] if isinstance(paths, str | PathLike) else list(paths)
    about = None
    if len(sources) == 1:
        table = Path(sources[0])
        about = _read_about(about_beside(table), limits)
        if about is not None and stages is None and stages_beside(table).is_file():
            stages = stages_beside(table)
    found = read_tables(file_format, sources, stages, ignore, limits, progress)
    told = {} if about is None else about["metadata"]
    contents = contents_of_tables(*found, {**told, **(metadata or {})})
    return contents if about is None else _completed(contents, about, about_beside(table))


def _read_about(path: Path, limits: Limits | None) -> dict[str, Any] | None:
    """The file about a table, checked; None if there is none."""
    if not path.is_file():
        return None
    limits = limits or Limits()
    check_plain_file(path, limits)
    limits.check("metadata_bytes", path.stat().st_size, path)
    with parsing(path):
        raw = parse_json(path.read_bytes(), path)
        if not isinstance(raw, dict) or raw.get("format") != _FORMAT:
            raise FormatError(f"{path} is not about a table of steps: move it elsewhere")
        if raw["format_version"] != _VERSION:
            raise FormatError(f"{path} has another format version than {_VERSION}: upgrade logel")
        notes, metadata = raw["notes"], dict(raw["metadata"])
        if not isinstance(notes, list) or not all(isinstance(one, dict) for one in notes):
            raise ValueError("notes must be a list of tables")
        return {
            "n_stages": int(raw["n_stages"]),
            "metadata": metadata,
            "own_episodes": own_episodes_of(raw, metadata),
            "complete": bool(raw["complete"]),
            "feature_names": parse_names(raw["feature_names"]),
            "notes": tuple(notes),
            "single_precision": frozenset(raw["single_precision"]) & frozenset(_ROWS),
            # Before there were images nobody said that there are none.
            "images": bool(raw.get("images", False)),
        }


def _completed(contents: Contents, about: Mapping[str, Any], path: Path) -> Contents:
    """Contents of tables with what the file beside them knows."""
    if len(contents) != about["n_stages"]:
        raise FormatError(
            f"{path} is about {about['n_stages']} stages, but the table has {len(contents)}: "
            "remove it if the table was changed on purpose"
        )
    narrow = about["single_precision"]
    stages = tuple(_narrowed(stage, narrow, about["images"]) for stage in contents)
    names, n = about["feature_names"], contents.signature.n_features
    fits = names is not None and n in (None, len(names))
    return replace(
        contents,
        source=stages,
        signature=stages[0].signature,
        feature_names=names if fits else contents.feature_names,
        complete=about["complete"],
        notes=about["notes"],
        own_episodes=about["own_episodes"],
    )


def _narrowed(stage: Stage, names: frozenset[str], images: bool) -> Stage:
    known = {f.name: getattr(stage, f.name) for f in fields(stage)}
    narrow = {
        name: known[name].astype(np.float32)
        for name in names
        if known[name] is not None and known[name].dtype == np.float64
    }
    if images:
        seen = ("observations", "last_observations")
        narrow |= {n: _bytes(known[n]) for n in seen if known[n] is not None}
    return replace(stage, **narrow) if narrow else stage


def _bytes(values: Array) -> Array:
    """What were bytes, if it still is."""
    fits = values.min() >= 0 and values.max() <= 255
    return values.astype(np.uint8) if fits else values
