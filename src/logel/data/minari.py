"""Minari datasets, one per stage.

Only episodes are read. A dataset's metadata can name an environment whose construction runs any
code, so nothing is ever built from it: a folder is read here, file by file, without Minari; a
dataset the user opened is asked for its episodes only. Reward features are `infos["features"]`;
what logel knows beyond Minari's format is under the key "logel" of a dataset's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from logel.data.columns import shown
from logel.data.hdf5 import Hdf5Reader, open_hdf5
from logel.data.history import LearningHistory
from logel.data.limits import CellCount, Limits, check_plain_file
from logel.data.stage import Episode, Stage
from logel.errors import FormatError, HistoryError, OptionError
from logel.types import Array, Progress

LOGEL_KEY = "logel"
_METADATA, _DATA = "metadata.json", "main_data.hdf5"


@dataclass(frozen=True, eq=False)
class _Raw:
    """One episode as Minari stores it, not yet checked."""

    name: str
    observations: Any
    actions: Any
    rewards: Any
    terminations: Any
    features: Any


@dataclass(frozen=True, eq=False)
class _Notes:
    """What logel wrote into a dataset's metadata; empty for other people's datasets."""

    parameters: Array | None = None
    learning_rate: float | None = None
    feature_names: tuple[str, ...] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


def history_from_minari(
    datasets: Sequence[Any],
    *,
    metadata: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> LearningHistory:
    """See `LearningHistory.from_minari`."""
    if isinstance(datasets, str | PathLike) or not isinstance(datasets, Sequence):
        raise OptionError("from_minari needs a list of datasets or folders, one per stage")
    if len(datasets) == 0:
        raise HistoryError("a history needs at least one stage, but no dataset was given")
    limits = limits or Limits()
    stages, notes, returns = [], [], []
    cells = CellCount(limits)
    for t, dataset in enumerate(datasets):
        stage, note, mean_return = _read_stage(dataset, limits, cells)
        stages.append(stage)
        notes.append(note)
        returns.append(mean_return)
        if progress is not None:
            progress("reading", t + 1, len(datasets))
    names = {note.feature_names for note in notes}
    if len(names) > 1:
        raise HistoryError(
            f"the datasets name their features differently: {'; '.join(map(shown, names))}"
        )
    kept = {**notes[0].metadata, **(metadata or {})}
    if all(np.isfinite(returns)):
        kept.setdefault("mean_returns", returns)
    rates = [note.learning_rate for note in notes[1:]]
    return LearningHistory.from_stages(
        stages,
        learning_rates=[float(rate) for rate in rates if rate is not None]
        if rates and None not in rates
        else None,
        feature_names=notes[0].feature_names,
        metadata=kept,
    )


def _read_stage(dataset: Any, limits: Limits, cells: CellCount) -> tuple[Stage, _Notes, float]:
    """One dataset: its stage, logel's notes, and the mean return (NaN when unknown)."""
    if isinstance(dataset, str | PathLike):
        name, folder = str(dataset), _data_folder(Path(dataset))
        declared = _read_metadata(folder / _METADATA, limits)
        raw_episodes = _folder_episodes(folder, declared, limits, cells)
    elif hasattr(dataset, "iterate_episodes"):
        stored = getattr(getattr(dataset, "storage", None), "data_path", None)
        name = str(stored or "the dataset")
        declared = {} if stored is None else _read_metadata(Path(stored) / _METADATA, limits)
        raw_episodes = _object_episodes(dataset, name)
    else:
        raise OptionError(
            f"from_minari needs folders or opened Minari datasets, not {type(dataset).__name__}"
        )
    episodes, returns = [], []
    for raw in raw_episodes:
        episodes.append(_episode(raw))
        returns.append(float(np.sum(np.asarray(raw.rewards, dtype=float))))
    notes = _notes(declared, name)
    try:
        return Stage.from_episodes(episodes, notes.parameters), notes, float(np.mean(returns))
    except HistoryError as error:
        raise HistoryError(f"{name}: {error}") from None


def _episode(raw: _Raw) -> Episode:
    """Check one episode; messages name the dataset, the episode and the array."""
    arrays = {}
    for part in ("observations", "actions", "rewards", "terminations", "features"):
        value = getattr(raw, part)
        if value is None and part == "features":
            continue
        if isinstance(value, Mapping | tuple):
            raise HistoryError(
                f"{raw.name}, {part}: must be one array, but is a {type(value).__name__}; flatten "
                "it first"
            )
        arrays[part] = np.asarray(value)
    length = len(np.atleast_1d(arrays["actions"]))
    flags = arrays["terminations"]
    for part in ("rewards", "terminations"):
        if arrays[part].shape != (length,) or arrays[part].dtype.kind not in "biuf":
            raise HistoryError(
                f"{raw.name}, {part}: must be {length} numbers, one per action, but is "
                f"{arrays[part].dtype} of shape {arrays[part].shape}"
            )
    if flags[:-1].any():
        raise HistoryError(
            f"{raw.name}, terminations: true at time {int(np.argmax(flags))}, but the episode "
            f"continues to time {length - 1}"
        )
    features = arrays.get("features")
    if features is not None and features.ndim == 2 and len(features) == length + 1:
        # Minari's collector stores the info of the reset first; no step belongs to it.
        features = features[1:]
    try:
        return Episode(
            arrays["observations"], arrays["actions"], features, bool(length and flags[-1])
        )
    except HistoryError as error:
        raise HistoryError(f"{raw.name}: {error}") from None


# --- reading --------------------------------------------------------------------------------


def _data_folder(path: Path) -> Path:
    for folder in (path, path / "data"):
        if (folder / _METADATA).is_file():
            return folder
    raise FormatError(
        f"{path} is not a Minari dataset: there is no {_METADATA} in it or in its folder data "
        "(downloaded datasets are below ~/.minari/datasets)"
    )


def _read_metadata(path: Path, limits: Limits) -> dict[str, Any]:
    check_plain_file(path, limits, follow_links=False)
    limits.check("metadata_bytes", path.stat().st_size, path)
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is corrupted or truncated: {error}") from None
    if not isinstance(found, dict):
        raise FormatError(f"{path} must hold the metadata of a Minari dataset")
    return found


def _folder_episodes(
    folder: Path, declared: Mapping[str, Any], limits: Limits, cells: CellCount
) -> Iterator[_Raw]:
    if declared.get("data_format", "hdf5") != "hdf5":
        raise FormatError(
            f"{folder} stores its data as {declared['data_format']!r:.40}: only hdf5 is read from "
            "a folder; open a dataset you trust with minari.load_dataset and pass it instead"
        )
    shapes = {
        part: _declared_shape(declared.get(f"{part}_space"), f"{folder / _METADATA}, {part}_space")
        for part in ("observation", "action")
    }
    with open_hdf5(folder / _DATA, limits, cells) as file:
        names = set(file.names())
        total = declared.get("total_episodes", len(names))
        wrong = sorted(names - {f"episode_{k}" for k in range(len(names))})[:3]
        if total != len(names) or wrong:
            told = ", ".join(map(shown, wrong)) or "fewer or more"
            raise FormatError(
                f"{folder / _DATA} must hold episode_0, episode_1, ... ({total!r:.20} of them, by "
                f"its {_METADATA}), but holds {len(names)}: {told}"
            )
        for k in range(len(names)):
            yield _stored_episode(file, folder / _DATA, f"episode_{k}", shapes)


def _stored_episode(
    file: Hdf5Reader, path: Path, name: str, shapes: Mapping[str, tuple[int, ...] | None]
) -> _Raw:
    arrays = {
        part: file.array(f"{name}/{part}")
        for part in ("observations", "actions", "rewards", "terminations")
    }
    for part, shape in shapes.items():
        found = arrays[f"{part}s"].shape[1:]
        if shape is not None and found != shape:
            raise HistoryError(
                f"{path}, {name}/{part}s: has rows of shape {found}, but the space declares "
                f"{shape} (images packed as JPEG are not read)"
            )
    features = f"{name}/infos/features"
    return _Raw(
        name=f"{path}, {name}",
        features=file.array(features) if file.has(features) else None,
        **arrays,
    )


def _declared_shape(space: Any, where: str) -> tuple[int, ...] | None:
    """Shape of one observation or action, by the serialised space; None if it is not told."""
    if space is None:
        return None
    try:
        raw = json.loads(space)
        kind = raw["type"]
        if kind == "Box":
            return tuple(int(n) for n in raw["shape"])
        if kind == "Discrete":
            return ()
        if kind == "MultiDiscrete":
            return np.shape(raw["nvec"])
        if kind == "MultiBinary":
            return tuple(int(n) for n in np.atleast_1d(raw["n"]))
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise FormatError(f"{where}: is not a space of Minari: {error}") from None
    raise FormatError(f"{where}: {kind!r:.40} is not an array of numbers; flatten it first")


def _object_episodes(dataset: Any, name: str) -> Iterator[_Raw]:
    for k, episode in enumerate(dataset.iterate_episodes()):
        infos = episode.infos or {}
        yield _Raw(
            name=f"{name}, episode {k}",
            observations=episode.observations,
            actions=episode.actions,
            rewards=episode.rewards,
            terminations=episode.terminations,
            features=infos.get("features"),
        )


def _notes(declared: Mapping[str, Any], name: str) -> _Notes:
    raw = declared.get(LOGEL_KEY)
    if raw is None:
        return _Notes()
    try:
        names, rate, parameters = (
            raw.get(key) for key in ("feature_names", "learning_rate", "parameters")
        )
        if names is not None and not all(isinstance(one, str) for one in names):
            raise ValueError(f"feature_names must be texts, not {names!r:.80}")
        precision = np.float32 if raw.get("parameter_type") == "float32" else np.float64
        return _Notes(
            None if parameters is None else np.array(parameters, dtype=precision),
            None if rate is None else float(rate),
            None if names is None else tuple(names),
            dict(raw.get("metadata") or {}),
        )
    except (AttributeError, ValueError, TypeError, OverflowError) as error:
        raise FormatError(f"{name}, {_METADATA}, key {LOGEL_KEY!r}: {error}") from None
