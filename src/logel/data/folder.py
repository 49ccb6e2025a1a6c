"""Histories on disk: a folder with `manifest.json` and one safetensors file per stage.

Every file is written under a temporary name and renamed, the stage before the manifest that names
it, so a crash costs at most the stage being written. Folders may come from anyone: names in the
manifest are matched against one pattern, every file is checked against its sha256 before it is
parsed, and nothing is ever executed or unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from logel.data.contents import Contents, check_feature_names, check_own_episodes
from logel.data.limits import FilePath, parsing
from logel.data.stage import Signature, Stage, check_parameters, check_stage
from logel.errors import FormatError, HistoryError
from logel.types import Array, Progress

FORMAT = "logel-history"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"
_STAGE_NAME = re.compile(r"stage-\d{5,9}\.safetensors")
# Before there was a field, recorders noted `own_episodes` among the metadata under this name.
_OWN_EPISODES = "learnt_from_these_episodes"
# A manifest holds about 200 bytes per stage; anything near this limit is not one of ours.
_MAX_MANIFEST_BYTES = 64 * 2**20


# Dynamics differ between versions of mujoco, learners between those of SB3.
_SIMULATED = ("gymnasium", "mujoco", "stable-baselines3", "sb3-contrib")
_PACKAGES = ("logel", "numpy", "scipy", "torch", *_SIMULATED)


def package_versions(names: Sequence[str] = _PACKAGES) -> dict[str, str]:
    """Versions of the packages that shaped a result, recorded beside it."""
    found = {"python": sys.version.split()[0]}
    for name in names:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def write_atomically(path: Path, data: bytes) -> None:
    """Write under a temporary name, flush to disk, rename: readers see all of it or nothing."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def check_new_folder(path: Path) -> None:
    """Refuse a path where something would be overwritten; an empty folder is as good as none."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FormatError(f"{path} already exists: choose another path or remove it first")


@contextmanager
def new_folder(path: FilePath) -> Iterator[Path]:
    """A temporary folder beside `path` that becomes it if all goes well, and else vanishes."""
    check_new_folder(Path(path))
    # Absolute, so that `history/..` and the like have a name.
    whole = Path(path).resolve()
    temporary = whole.with_name(f".{whole.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if whole.is_dir():
            whole.rmdir()  # it is empty; not every system renames onto it
        temporary.replace(whole)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class HistoryWriter:
    """Writes a history stage by stage; whatever has been appended survives a crash.

    Use as a context manager: leaving it normally marks the history complete.

    Args:
        path: A new folder; it appears with the first stage.
        feature_names: q names.
        metadata: Anything worth keeping about the run, JSON-serialisable.
        own_episodes: Whether every step is learnt from the very episodes that are appended, all of
            them and no others. None: not said.
    """

    def __init__(
        self,
        path: FilePath,
        *,
        feature_names: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        own_episodes: bool | None = None,
    ) -> None:
        self.path = Path(path)
        check_new_folder(self.path)
        check_own_episodes(own_episodes)
        _check_json("metadata", metadata)
        self._signature: Signature | None = None
        self._n_parameters: int | None = None
        self._manifest: dict[str, Any] = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "packages": package_versions(),
            "feature_names": None if feature_names is None else [str(n) for n in feature_names],
            "metadata": dict(metadata or {}),
            "own_episodes": own_episodes,
            "signature": None,
            "complete": False,
            "stages": [],
        }

    def append(
        self,
        stage: Stage,
        *,
        learning_rate: float | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a stage.

        Args:
            stage: The next stage.
            learning_rate: Rate of the step that led to this stage, if known.
            notes: Facts about this stage, JSON-serialisable; see `LearningHistory.notes`.
        """
        self._check(stage, learning_rate)
        _check_json("notes", notes, allow_nan=False)
        arrays = {f.name: getattr(stage, f.name) for f in fields(stage)}
        whole = {name: np.ascontiguousarray(a) for name, a in arrays.items() if a is not None}
        data = safetensors.numpy.save(whole)
        entries = self._manifest["stages"]
        name = f"stage-{len(entries):05d}.safetensors"
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / name, data)
        entries.append(
            {
                "file": name,
                "sha256": hashlib.sha256(data).hexdigest(),
                "bytes": len(data),
                "episodes": stage.n_episodes,
                "steps": stage.n_steps,
                "learning_rate": None if learning_rate is None else float(learning_rate),
                # Readers that do not know them ignore them.
                **({"notes": dict(notes)} if notes else {}),
            }
        )
        self._manifest["complete"] = False
        self._write_manifest()

    def _check(self, stage: Stage, learning_rate: float | None) -> None:
        """Refuse a stage unlike the first; the first one settles what they are like."""
        index = len(self._manifest["stages"])
        if self._signature is None:
            if self._manifest["feature_names"] is not None:
                check_feature_names(self._manifest["feature_names"], stage.signature.n_features)
            self._signature, self._n_parameters = stage.signature, stage.n_parameters
            self._manifest["signature"] = asdict(stage.signature)
        check_stage(stage, index, self._signature)
        check_parameters(stage, index, self._n_parameters)
        if learning_rate is not None and not (learning_rate > 0 and math.isfinite(learning_rate)):
            raise HistoryError(
                f"learning rates must be positive, but step {index - 1} has {learning_rate}"
            )

    def close(self) -> None:
        """Mark the history complete."""
        self._manifest["complete"] = True
        if self._manifest["stages"]:
            self._write_manifest()

    def _write_manifest(self) -> None:
        text = json.dumps(self._manifest, indent=1, sort_keys=True)
        write_atomically(self.path / MANIFEST, text.encode())

    def __enter__(self) -> HistoryWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()


def write_folder(history: Contents, path: FilePath, progress: Progress | None) -> None:
    """Write a whole history, one stage in memory at a time; all of it or nothing."""
    known = history.learning_rates
    rates = [None, *([None] * history.n_steps if known is None else known)]
    notes = history.notes or ({},) * len(history)
    with (
        new_folder(path) as folder,
        HistoryWriter(
            folder,
            feature_names=history.feature_names,
            metadata=history.metadata,
            own_episodes=history.own_episodes,
        ) as writer,
    ):
        for t, (stage, rate, about) in enumerate(zip(history, rates, notes, strict=True)):
            writer.append(stage, learning_rate=rate, notes=about)
            if progress is not None:
                progress("writing", t + 1, len(history))


def _check_json(what: str, value: Any, *, allow_nan: bool = True) -> None:
    try:
        json.dumps(value, allow_nan=allow_nan)
    except (TypeError, ValueError) as error:
        raise HistoryError(f"{what} must be JSON-serialisable: {error}") from None


class _StageFile(NamedTuple):
    """One line of the manifest, validated."""

    file: str
    sha256: str
    learning_rate: float | None
    notes: Mapping[str, Any]


@dataclass(frozen=True)
class _Folder:
    """Stages of a folder, read and verified when asked for."""

    path: Path
    entries: tuple[_StageFile, ...]
    signature: Signature

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int, /) -> Stage:
        entry = self.entries[index]
        path = self.path / entry.file
        if path.is_symlink() or not path.is_file():
            raise FormatError(f"stage {index}: {path} is missing or not a plain file")
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise FormatError(
                f"stage {index}: {path} is corrupted or truncated (its sha256 is not the one in "
                f"{MANIFEST}); restore it or leave the stage out"
            )
        with parsing(path, safetensors.SafetensorError):
            arrays = safetensors.numpy.load(data)
        del data  # the arrays are copies: a large stage need not be held three times
        known = {f.name for f in fields(Stage)}
        if not {"observations", "actions", "lengths", "terminated"} <= arrays.keys() <= known:
            raise FormatError(f"stage {index}: {path} holds {sorted(arrays)}, not a stage's arrays")
        try:
            stage = Stage(**arrays)
            check_stage(stage, index, self.signature)
        except (HistoryError, TypeError, ValueError) as error:
            raise FormatError(f"stage {index}: {path} is not a valid stage: {error}") from None
        return stage


def read_folder(path: FilePath) -> Contents:
    """Open a history; only the manifest is read."""
    folder = Path(path)
    manifest_path = folder / MANIFEST
    manifest = _read_manifest(folder)
    with parsing(manifest_path):
        signature = _parse_signature(manifest["signature"])
        entries = tuple(_parse_entry(entry) for entry in manifest["stages"])
        names = parse_names(manifest["feature_names"])
        metadata = dict(manifest["metadata"])
        own = own_episodes_of(manifest, metadata)
        complete = bool(manifest["complete"])
    if not entries:
        raise FormatError(f"{folder} holds no stage yet")
    try:
        return Contents(
            source=_Folder(folder, entries, signature),
            signature=signature,
            learning_rates=all_or_none([entry.learning_rate for entry in entries[1:]]),
            feature_names=names,
            complete=complete,
            metadata=metadata,
            notes=tuple(entry.notes for entry in entries),
            own_episodes=own,
        )
    except HistoryError as error:
        raise FormatError(f"{manifest_path}: {error}") from None


def own_episodes_of(manifest: Mapping[str, Any], metadata: dict[str, Any]) -> bool | None:
    """What a file says of its episodes, by the field or by the name it had among the metadata."""
    before = metadata.pop(_OWN_EPISODES, None)
    said = manifest.get("own_episodes")
    if said is not None and not isinstance(said, bool):
        raise ValueError(f"own_episodes must be true, false or null, not {said!r:.40}")
    return said if said is not None or before is None else bool(before)


def all_or_none(rates: Sequence[float | None]) -> Array | None:
    """Learning rates, of use only if that of every step is known."""
    known = [rate for rate in rates if rate is not None]
    return np.array(known) if rates and len(known) == len(rates) else None


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    for wrong, why in (
        (not folder.exists(), "there is no such folder"),
        (not folder.is_dir(), "it is a file, not a folder"),
        (not path.is_file(), f"there is no {MANIFEST} in it"),
    ):
        if wrong:
            raise FormatError(f"{folder} is not a learning history: {why}")
    manifest = _read_json(path)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise FormatError(f"{folder} is not a learning history: {path} has another format")
    found = manifest.get("format_version")
    if not isinstance(found, int) or found < 1:
        raise FormatError(f"{path}: format_version must be a positive integer")
    if found > FORMAT_VERSION:
        raise FormatError(
            f"{path} has format version {found}, but this logel reads up to {FORMAT_VERSION}: "
            "upgrade logel"
        )
    return manifest


def recorded_versions(path: FilePath) -> dict[str, str]:
    """Versions of the packages that wrote a history, as its manifest tells them."""
    manifest_path = Path(path) / MANIFEST
    manifest = _read_json(manifest_path)
    with parsing(manifest_path):
        return {str(name): str(found) for name, found in manifest["packages"].items()}


def _read_json(path: Path) -> Any:
    if path.stat().st_size > _MAX_MANIFEST_BYTES:
        raise FormatError(f"{path} is larger than any manifest: not a learning history")
    with parsing(path):
        return json.loads(path.read_bytes())


def _parse_signature(raw: Mapping[str, Any]) -> Signature:
    q, masked = raw["n_features"], raw.get("n_masked_actions")
    return Signature(
        observation_shape=tuple(int(n) for n in raw["observation_shape"]),
        action_shape=tuple(int(n) for n in raw["action_shape"]),
        discrete_observations=bool(raw["discrete_observations"]),
        discrete_actions=bool(raw["discrete_actions"]),
        n_features=None if q is None else int(q),
        # Histories of before there were masks do not speak of them.
        n_masked_actions=None if masked is None else int(masked),
    )


def parse_names(raw: Any) -> tuple[str, ...] | None:
    """Names of features out of JSON; null where there are none."""
    if raw is None:
        return None
    if not isinstance(raw, list) or not all(isinstance(name, str) for name in raw):
        raise ValueError(f"feature_names must be texts, not {raw!r:.80}")
    return tuple(raw)


def _parse_entry(raw: Mapping[str, Any]) -> _StageFile:
    name, digest, rate = raw["file"], raw["sha256"], raw["learning_rate"]
    if not isinstance(name, str) or not _STAGE_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a stage's file name")
    if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise ValueError(f"{digest!r} is not a sha256")
    notes = raw.get("notes", {})
    if not isinstance(notes, dict):
        raise ValueError(f"notes of {name} must be a table, not {type(notes).__name__}")
    return _StageFile(name, digest, None if rate is None else float(rate), notes)
