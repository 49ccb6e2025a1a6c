"""Histories as Minari datasets, one per stage, readable by everything that reads Minari.

A history knows neither environment nor rewards: spaces are derived from the data, rewards are NaN.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from logel.data.history import LearningHistory
from logel.data.minari import LOGEL_KEY
from logel.data.stage import Stage
from logel.errors import FormatError, MissingExtraError
from logel.types import Array, Progress


def save_minari(
    history: LearningHistory, folder: str | PathLike[str], *, progress: Progress | None = None
) -> list[Path]:
    """See `LearningHistory.to_minari`."""
    for package in ("minari", "h5py"):
        try:
            import_module(package)  # its parts are imported where they are used
        except ImportError:
            raise MissingExtraError(package, "minari") from None
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FormatError(f"{target} already exists: choose another path or remove it first")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Absolute, because Minari joins a relative path to itself.
    temporary = target.absolute().with_name(f".{target.name}.{os.getpid()}.tmp")
    namespace = re.sub(r"[^-\w]", "_", target.name) or "history"
    spaces = {
        "observation_space": _space(history, "observations", "n_states"),
        "action_space": _space(history, "actions", "n_actions"),
    }
    names = [f"stage-{t:05d}-v0" for t in range(len(history))]
    try:
        for t, (stage, name) in enumerate(zip(history, names, strict=True)):
            data = temporary / name / "data"
            data.mkdir(parents=True)
            notes = _stage_notes(history, stage, t)
            _write_dataset(stage, data, f"{namespace}/{name}", spaces, notes)
            if progress is not None:
                progress("writing", t + 1, len(history))
        temporary.replace(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
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
            LOGEL_KEY: notes,
        }
    )
    storage.update_episodes(
        EpisodeBuffer(
            observations=episode.observations,
            actions=episode.actions,
            # Unknown is not zero: whoever needs rewards should notice.
            rewards=np.full(len(episode), np.nan),
            terminations=_at_end(len(episode), episode.terminated),
            truncations=_at_end(len(episode), not episode.terminated),
            infos=None if episode.features is None else {"features": episode.features},
        )
        for episode in stage.episodes
    )


def _stage_notes(history: LearningHistory, stage: Stage, index: int) -> dict[str, Any]:
    rates, parameters = history.learning_rates, stage.parameters
    return {
        "stage": index,
        "feature_names": None if history.feature_names is None else list(history.feature_names),
        "parameters": None if parameters is None else parameters.tolist(),
        "parameter_type": None if parameters is None else parameters.dtype.name,
        "learning_rate": None if rates is None or index == 0 else float(rates[index - 1]),
        "metadata": dict(history.metadata),
    }


def _at_end(length: int, value: bool) -> Array:
    flags = np.zeros(length, dtype=bool)
    flags[-1] = value
    return flags


def _space(history: LearningHistory, part: str, key: str) -> Any:
    """A Gymnasium space that holds all observations or actions of a history."""
    from gymnasium import spaces

    first: Array = getattr(history[0], part)
    shape, kind = first.shape[1:], first.dtype
    if kind.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, kind.type)
    low, high = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    for stage in history:
        for values in (getattr(stage, part), stage.last_observations):
            if values is not None and (part == "observations" or values is stage.actions):
                low, high = min(low, int(values.min())), max(high, int(values.max()))
    count = history.metadata.get(key)
    n = max(high + 1, count if isinstance(count, int) else 0)
    if shape == () and low >= 0 and n <= np.iinfo(np.int32).max:
        return spaces.Discrete(n)
    return spaces.Box(low, high, shape, np.int64)
