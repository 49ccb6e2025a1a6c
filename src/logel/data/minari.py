"""Minari datasets, one per stage.

Only episodes are read. A dataset's metadata can name an environment whose construction runs any
code, so nothing is ever built from it: a folder is read here, file by file, without Minari; a
dataset the user opened is asked for its episodes only. Reward features are `infos["features"]`;
what logel knows beyond Minari's format is under the key "logel" of a dataset's metadata. A history
knows neither environment nor rewards: what is written derives spaces from the data, and rewards are
NaN.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from logel.data.contents import Contents
from logel.data.folder import all_or_none, own_episodes_of, parse_names
from logel.data.hdf5 import open_hdf5
from logel.data.limits import (
    CellCount,
    FilePath,
    Limits,
    check_plain_file,
    optional,
    parse_json,
    read_json,
    shown,
)
from logel.data.observations import check_plain
from logel.data.stage import Episode, Stage, named
from logel.data.store import new_folder
from logel.errors import FormatError, HistoryError, OptionError
from logel.types import Array, Progress

_KEY = "logel"
_METADATA, _DATA = "metadata.json", "main_data.hdf5"
_PARTS = ("observations", "actions", "rewards", "terminations")


@dataclass(frozen=True, eq=False)
class _Notes:
    """What logel wrote into a dataset's metadata; empty for other people's datasets."""

    parameters: Array | None = None
    learning_rate: float | None = None
    feature_names: tuple[str, ...] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    own_episodes: bool | None = None


def read_minari(
    datasets: Sequence[Any],
    metadata: Mapping[str, Any],
    limits: Limits | None,
    progress: Progress | None,
) -> Contents:
    """See `LearningHistory.from_minari`."""
    if isinstance(datasets, str | PathLike) or not isinstance(datasets, Sequence):
        raise OptionError("from_minari needs a list of datasets or folders, one per stage")
    if len(datasets) == 0:
        raise HistoryError("a history needs at least one stage, but no dataset was given")
    cells = CellCount(limits)
    read = []
    for dataset in datasets:
        read.append(_read_dataset(dataset, cells))
        if progress is not None:
            progress("reading", len(read), len(datasets))
    stages, notes, returns = zip(*read, strict=True)
    known = {**notes[0].metadata, **metadata}
    if np.isfinite(returns).all():
        known.setdefault("mean_returns", list(returns))
    return Contents.from_stages(
        stages,
        learning_rates=all_or_none([note.learning_rate for note in notes[1:]]),
        feature_names=_common_names(notes),
        metadata=known,
        own_episodes=_agreed({note.own_episodes for note in notes}),
    )


def _agreed(said: set[bool | None]) -> bool | None:
    # Datasets may come from different recordings.
    return said.pop() if len(said) == 1 else None


def _common_names(notes: Sequence[_Notes]) -> tuple[str, ...] | None:
    names = {note.feature_names for note in notes}
    if len(names) > 1:
        raise HistoryError(
            f"the datasets name their features differently: {'; '.join(map(shown, names))}"
        )
    return names.pop()


def _read_dataset(dataset: Any, cells: CellCount) -> tuple[Stage, _Notes, float]:
    """One dataset: its stage, logel's notes, and the mean return (NaN when unknown)."""
    if isinstance(dataset, str | PathLike):
        name, folder = str(dataset), _data_folder(Path(dataset))
        declared = _read_metadata(folder / _METADATA, cells.limits)
        raw_episodes = _folder_episodes(folder, declared, cells)
    elif hasattr(dataset, "iterate_episodes"):
        stored = getattr(getattr(dataset, "storage", None), "data_path", None)
        name = str(stored or "the dataset")
        declared = {} if stored is None else _read_metadata(Path(stored) / _METADATA, cells.limits)
        raw_episodes = _object_episodes(dataset, name)
    else:
        raise OptionError(
            f"from_minari needs folders or opened Minari datasets, not {type(dataset).__name__}"
        )
    episodes, returns = [], []
    for where, raw in raw_episodes:
        episodes.append(_episode(where, raw))
        returns.append(float(np.sum(np.asarray(raw["rewards"], dtype=float))))
    notes = _parse_notes(declared.get(_KEY), f"{name}, {_METADATA}, key {_KEY!r}")
    with named(name):
        return Stage.from_episodes(episodes, notes.parameters), notes, float(np.mean(returns))


def _episode(where: str, raw: Mapping[str, Any]) -> Episode:
    """Check one episode; what `raw` holds is not even known to be arrays."""
    arrays = {part: _array(raw[part], f"{where}, {part}") for part in _PARTS}
    actions, flags = arrays["actions"], arrays["terminations"]
    length = len(np.atleast_1d(actions))
    for part in ("rewards", "terminations"):
        kind, shape = arrays[part].dtype, arrays[part].shape
        if shape != (length,) or kind.kind not in "biuf":
            raise HistoryError(
                f"{where}, {part}: must be {length} numbers, one per action, but is {kind} of "
                f"shape {shape}"
            )
    if flags[:-1].any():
        raise HistoryError(
            f"{where}, terminations: true at time {int(np.argmax(flags))}, but the episode "
            f"continues to time {length - 1}"
        )
    features = raw["features"]
    if features is not None:
        features = _array(features, f"{where}, features")
        # Minari's collector stores the info of the reset first; no step belongs to it.
        features = features[1:] if features.shape[:1] == (length + 1,) else features
    with named(where):
        return Episode(arrays["observations"], actions, features, bool(length and flags[-1]))


def _array(value: Any, where: str) -> Array:
    if isinstance(value, Mapping | tuple):
        kind = type(value).__name__
        raise HistoryError(f"{where}: must be one array, but is a {kind}; flatten it first")
    return np.asarray(value)


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
    found = read_json(path, follow_links=False)
    if not isinstance(found, dict):
        raise FormatError(f"{path} must hold the metadata of a Minari dataset")
    return found


def _folder_episodes(
    folder: Path, declared: Mapping[str, Any], cells: CellCount
) -> Iterator[tuple[str, dict[str, Any]]]:
    if declared.get("data_format", "hdf5") != "hdf5":
        raise FormatError(
            f"{folder} stores its data as {declared['data_format']!r:.40}: only hdf5 is read from "
            "a folder; open a dataset you trust with minari.load_dataset and pass it instead"
        )
    spaces = {part: f"{part.removesuffix('s')}_space" for part in ("observations", "actions")}
    shapes = {
        part: _declared_shape(declared.get(space), f"{folder / _METADATA}, {space}")
        for part, space in spaces.items()
    }
    path = folder / _DATA
    with open_hdf5(path, cells) as file:
        for name in _episode_names(file.names(), declared, path):
            raw: dict[str, Any] = {part: file.array(f"{name}/{part}") for part in _PARTS}
            raw["features"] = file.find(f"{name}/infos/features")
            _check_shapes(raw, shapes, f"{path}, {name}")
            yield f"{path}, {name}", raw


def _episode_names(found: Sequence[str], declared: Mapping[str, Any], path: Path) -> list[str]:
    names = [f"episode_{k}" for k in range(len(found))]
    total = declared.get("total_episodes", len(found))
    wrong = sorted(set(found).difference(names))[:3]
    if total != len(found) or wrong:
        told = ", ".join(map(shown, wrong)) or "fewer or more"
        raise FormatError(
            f"{path} must hold episode_0, episode_1, ... ({total!r:.20} of them, by its "
            f"{_METADATA}), but holds {len(found)}: {told}"
        )
    return names


def _check_shapes(
    raw: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...] | None], where: str
) -> None:
    for part, shape in shapes.items():
        found = raw[part].shape[1:]
        if shape is not None and found != shape:
            raise HistoryError(
                f"{where}/{part}: has rows of shape {found}, but the space declares {shape} "
                "(images packed as JPEG are not read)"
            )


def _declared_shape(space: Any, where: str) -> tuple[int, ...] | None:
    """Shape of one observation or action, by the serialised space; None if it is not told."""
    if space is None:
        return None
    try:
        raw = parse_json(str(space).encode(), where)
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


def _object_episodes(dataset: Any, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for k, episode in enumerate(dataset.iterate_episodes()):
        raw = {part: getattr(episode, part) for part in _PARTS}
        yield f"{name}, episode {k}", {**raw, "features": (episode.infos or {}).get("features")}


def _parse_notes(raw: Any, where: str) -> _Notes:
    if raw is None:
        return _Notes()
    try:
        metadata = dict(raw.get("metadata") or {})
        precision = np.float32 if raw.get("parameter_type") == "float32" else np.float64
        parameters, rate = raw.get("parameters"), raw.get("learning_rate")
        return _Notes(
            parameters=None if parameters is None else np.array(parameters, dtype=precision),
            learning_rate=None if rate is None else float(rate),
            feature_names=parse_names(raw.get("feature_names")),
            metadata=metadata,
            own_episodes=own_episodes_of(raw, metadata),
        )
    except (AttributeError, ValueError, TypeError, OverflowError) as error:
        raise FormatError(f"{where}: {error}") from None


# --- writing --------------------------------------------------------------------------------


def write_minari(history: Contents, folder: FilePath, progress: Progress | None) -> list[Path]:
    """See `LearningHistory.to_minari`."""
    for package in ("minari", "h5py"):
        optional(package, "minari")  # their parts are imported where they are used
    if history.signature.n_masked_actions is not None:
        raise HistoryError(
            "Minari datasets have no room for action_masks: save the history as a folder, or as a "
            "table of steps"
        )
    check_plain(history.signature.observation_parts, "Minari datasets")
    target = Path(folder)
    namespace = re.sub(r"[^-\w]", "_", target.name) or "history"
    names = [f"stage-{t:05d}-v0" for t in range(len(history))]
    with new_folder(target) as temporary:
        spaces = {
            "observation_space": _space(history, "observations", "n_states"),
            "action_space": _space(history, "actions", "n_actions"),
        }
        for t, (stage, name) in enumerate(zip(history, names, strict=True)):
            data = temporary / name / "data"
            data.mkdir(parents=True)
            notes = _stage_notes(history, stage, t)
            _write_dataset(stage, data, f"{namespace}/{name}", spaces, notes)
            if progress is not None:
                progress("writing", t + 1, len(history))
    return [target / name for name in names]


def _write_dataset(
    stage: Stage, data: Path, dataset_id: str, spaces: Mapping[str, Any], notes: Mapping[str, Any]
) -> None:
    import minari
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    storage = MinariStorage.new(data, data_format="hdf5", jpeg_encoding=False, **spaces)
    storage.update_metadata(
        {
            "dataset_id": dataset_id,
            "minari_version": minari.__version__,
            "description": "One stage of a learning history, written by logel; rewards are unknown",
            _KEY: notes,
        }
    )

    def buffer(episode: Episode) -> Any:
        at_end = np.arange(len(episode)) == len(episode) - 1
        return EpisodeBuffer(
            observations=episode.observations,
            actions=episode.actions,
            # Unknown is not zero: whoever needs rewards should notice.
            rewards=np.full(len(episode), np.nan),
            terminations=at_end & episode.terminated,
            truncations=at_end & (not episode.terminated),
            infos=None if episode.features is None else {"features": episode.features},
        )

    storage.update_episodes(map(buffer, stage.episodes))


def _stage_notes(history: Contents, stage: Stage, index: int) -> dict[str, Any]:
    rates, parameters = history.learning_rates, stage.parameters
    return {
        "stage": index,
        "feature_names": None if history.feature_names is None else list(history.feature_names),
        "parameters": None if parameters is None else parameters.tolist(),
        "parameter_type": None if parameters is None else parameters.dtype.name,
        "learning_rate": None if rates is None or index == 0 else float(rates[index - 1]),
        "metadata": dict(history.metadata),
        "own_episodes": history.own_episodes,
    }


def _space(history: Contents, part: str, key: str) -> Any:
    """A Gymnasium space that holds all observations or actions of a history."""
    from gymnasium import spaces

    first: Array = getattr(history[0], part)
    shape, kind = first.shape[1:], first.dtype
    if kind == np.uint8:
        return spaces.Box(0, 255, shape, np.uint8)
    if kind.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, kind.type)
    ranges = np.array([_range(stage, part) for stage in history])
    low, high = int(ranges.min()), int(ranges.max())
    count = history.metadata.get(key)
    n = max(high + 1, count if isinstance(count, int) else 0)
    if shape == () and low >= 0 and n <= np.iinfo(np.int32).max:
        return spaces.Discrete(n)
    return spaces.Box(low, high, shape, np.int64)


def _range(stage: Stage, part: str) -> tuple[int, int]:
    values: Array = getattr(stage, part)
    last = stage.last_observations if part == "observations" else None
    found = values if last is None else np.concatenate([values, last])
    return int(found.min()), int(found.max())
