"""Histories on disk: `manifest.json`, `stages.jsonl` and one safetensors file per stage.

The manifest says what all stages share. Each stage is written under a temporary name and renamed,
and then named by a line added to `stages.jsonl`, so a crash costs at most the stage being written:
a last line without its end does not count. Folders may come from anyone: names of files are matched
against one pattern, every file is checked against its size and sha256 before it is parsed, and
nothing is ever executed or unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from types import EllipsisType
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from logel.data.contents import Contents, check_feature_names, check_own_episodes
from logel.data.limits import (
    FilePath,
    ask_memory,
    ask_memory_of_json,
    parse_json,
    parsing,
)
from logel.data.observations import by_name, parsed_parts
from logel.data.packed import Packed
from logel.data.places import Place
from logel.data.remote import is_address, place_of
from logel.data.stage import Signature, Stage, check_parameters, check_stage
from logel.data.store import new_folder
from logel.errors import FormatError, HistoryError
from logel.types import Array, Progress

FORMAT = "logel-history"
# 2 gives stages a file of lines, which grows by its end; before, they were a list in the manifest.
FORMAT_VERSION = 2
MANIFEST = "manifest.json"
STAGES = "stages.jsonl"
# The last line of a history whose writer was done.
_COMPLETE = {"complete": True}
_NO_NOTES: Mapping[str, Any] = {}
_DIGEST = re.compile(r"[0-9a-f]{64}")
_STAGE_NAME = re.compile(r"stage-[0-9]{5,9}\.safetensors")
# Before there was a field, recorders noted `own_episodes` among the metadata under this name.
_OWN_EPISODES = "learnt_from_these_episodes"


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


class HistoryWriter:
    """Writes a history stage by stage; whatever has been appended survives a crash.

    Use as a context manager: leaving it normally marks the history complete.

    Args:
        path: A new folder, or an address of one (`logel.data.remote`); it appears with the first
            stage.
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
        self._place = place_of(path)
        self._place.check_new()
        check_own_episodes(own_episodes)
        _check_json("metadata", metadata)
        self._signature: Signature | None = None
        self._n_parameters: int | None = None
        self._n_stages = 0
        self._held: weakref.finalize[..., HistoryWriter] | None = None
        self._manifest: dict[str, Any] = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "packages": package_versions(),
            "feature_names": None if feature_names is None else [str(n) for n in feature_names],
            "metadata": dict(metadata or {}),
            "own_episodes": own_episodes,
            "signature": None,
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
        data = safetensors.numpy.save(_tensors(stage))
        name = f"stage-{self._n_stages:05d}.safetensors"
        if self._n_stages == 0:
            self._begin()
        self._place.write(name, data)
        self._add_line(
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
        self._n_stages += 1

    def _begin(self) -> None:
        """Take the folder, and say what all stages share."""
        if self._held is None:
            self._held = weakref.finalize(self, self._place.hold())
        text = json.dumps(self._manifest, indent=1, sort_keys=True)
        self._place.write(MANIFEST, text.encode())

    def _add_line(self, content: Mapping[str, Any]) -> None:
        self._place.add_line(STAGES, json.dumps(content, sort_keys=True).encode())

    def _check(self, stage: Stage, learning_rate: float | None) -> None:
        """Refuse a stage unlike the first; the first one settles what they are like."""
        index = self._n_stages
        if self._signature is None:
            if self._manifest["feature_names"] is not None:
                check_feature_names(self._manifest["feature_names"], stage.signature.n_features)
            self._signature, self._n_parameters = stage.signature, stage.n_parameters
            told = asdict(stage.signature)
            if told["observation_parts"] is None:
                del told["observation_parts"]  # readers of before there were any do not know them
            self._manifest["signature"] = told
            self._manifest["n_parameters"] = stage.n_parameters
        check_stage(stage, index, self._signature)
        check_parameters(stage, index, self._n_parameters)
        if learning_rate is not None and not (learning_rate > 0 and math.isfinite(learning_rate)):
            raise HistoryError(
                f"learning rates must be positive, but step {index - 1} has {learning_rate}"
            )

    def close(self) -> None:
        """Mark the history complete, until another stage is added."""
        if self._n_stages:
            self._add_line(_COMPLETE)

    def __enter__(self) -> HistoryWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()


def write_folder(history: Contents, path: FilePath, progress: Progress | None) -> None:
    """Write a whole history, one stage in memory at a time; a folder gets all of it or nothing."""
    if is_address(path):
        write_into(path, history, progress)
        return
    with new_folder(path) as folder:
        write_into(folder, history, progress)


def write_into(folder: FilePath, history: Contents, progress: Progress | None) -> None:
    """Write a whole history into an empty folder that somebody has reserved (`new_folder`)."""
    known = history.learning_rates
    rates = [None, *([None] * history.n_steps if known is None else known)]
    notes = history.notes or ({},) * len(history)
    with HistoryWriter(
        folder,
        feature_names=history.feature_names,
        metadata=history.metadata,
        own_episodes=history.own_episodes,
    ) as writer:
        for t, (stage, rate, about) in enumerate(zip(history, rates, notes, strict=True)):
            writer.append(stage, learning_rate=rate, notes=about)
            if progress is not None:
                progress("writing", t + 1, len(history))


def _check_json(what: str, value: Any, *, allow_nan: bool = True) -> None:
    try:
        json.dumps(value, allow_nan=allow_nan)
    except (TypeError, ValueError) as error:
        raise HistoryError(f"{what} must be JSON-serialisable: {error}") from None


def _tensors(stage: Stage) -> dict[str, Array]:
    """A stage's arrays by their names in a file; named parts of observations have their own."""
    arrays = {f.name: getattr(stage, f.name) for f in fields(stage)}
    found: dict[str, Array] = {}
    for name, array in arrays.items():
        parts = None if array is None else by_name(array)
        found |= {name: array} if parts is None else {f"{name}/{p}": a for p, a in parts.items()}
    return {name: np.ascontiguousarray(a) for name, a in found.items() if a is not None}


def _joined(tensors: Mapping[str, Array]) -> dict[str, Any]:
    """The inverse of `_tensors`."""
    found: dict[str, Any] = {name: a for name, a in tensors.items() if "/" not in name}
    for name, array in tensors.items():
        whole, cut, part = name.partition("/")
        if cut and isinstance(parts := found.setdefault(whole, {}), dict):
            parts[part] = array
    return found


# What is said of one stage's file; thousands of them are held. An unknown rate is NaN.
_STAGE_FILE = np.dtype([("file", "S32"), ("sha256", "S64"), ("bytes", "i8"), ("rate", "f8")])


@dataclass(frozen=True, eq=False)
class _Folder:
    """Stages of a folder, read and verified when asked for, by whom they are asked for."""

    place: Place
    entries: Array
    signature: Signature
    lists: str
    """The file that lists the stages."""
    n_parameters: int | EllipsisType | None = ...
    """Of the policy, None if they are not known; not said in version 1."""

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int, /) -> Stage:
        name, digest, n_bytes, _ = self.entries[index].tolist()
        path = self.place.where(name.decode())
        with _stage(index):
            data = self.place.read_sized(name.decode(), n_bytes, self.lists)
        if hashlib.sha256(data).hexdigest().encode() != digest:
            raise FormatError(
                f"stage {index}: {path} is corrupted or truncated (its sha256 is not the one in "
                f"{self.lists}); restore it or leave the stage out"
            )
        with parsing(path, safetensors.SafetensorError):
            tensors = safetensors.numpy.load(data)
            # Small numbers and flags become large ones; images stay as they are.
            ask_memory(sum(_size(array) for array in tensors.values()), path)
            arrays = _joined(tensors)
        del data, tensors  # the arrays are copies: a large stage need not be held three times
        known = {f.name for f in fields(Stage)}
        if not {"observations", "actions", "lengths", "terminated"} <= arrays.keys() <= known:
            raise FormatError(f"stage {index}: {path} holds {sorted(arrays)}, not a stage's arrays")
        try:
            stage = Stage(**arrays)
            check_stage(stage, index, self.signature)
            check_parameters(stage, index, self._first_parameters(stage, index))
        except (HistoryError, TypeError, ValueError) as error:
            raise FormatError(f"stage {index}: {path} is not a valid stage: {error}") from None
        return stage

    def sizes(self) -> list[float]:
        """See `stage_sizes`: by their files."""
        return [float(n) for n in self.entries["bytes"]]

    def elsewhere(self) -> _Folder | None:
        """For another process to read, if it finds them there."""
        return self if self.place.shared else None

    def _first_parameters(self, stage: Stage, index: int) -> int | None:
        """How many parameters the first stage has: as the manifest says or, of old, as it is."""
        if self.n_parameters is ...:
            first = stage if index == 0 else self[0]
            # Frozen for everyone else.
            self.__dict__["n_parameters"] = first.n_parameters
        return self.n_parameters  # type: ignore[return-value]


def _size(array: Array) -> int:
    """Bytes that an array of a file will take."""
    image = array.dtype == np.uint8 and array.ndim > 2
    return array.size if image else 8 * array.size


@contextmanager
def _stage(index: int) -> Iterator[None]:
    """Say which stage a file belongs to."""
    try:
        yield
    except FormatError as error:
        raise type(error)(f"stage {index}: {error}") from None


def read_folder(path: FilePath) -> Contents:
    """Open a history; only the manifest is read."""
    folder = place_of(path)
    manifest_path = folder.where(MANIFEST)
    manifest = _read_manifest(folder)
    alone = manifest["format_version"] == 1
    with parsing(manifest_path):
        signature = _parse_signature(manifest["signature"])
        names = parse_names(manifest["feature_names"])
        metadata = dict(manifest["metadata"])
        own = own_episodes_of(manifest, metadata)
        n_parameters = ... if alone else _parse_count(manifest["n_parameters"])
    entries, notes, complete = _read_stages(folder, manifest)
    if not len(entries):
        raise FormatError(f"{folder} holds no stage yet")
    rates = entries["rate"][1:]
    try:
        return Contents(
            source=_Folder(folder, entries, signature, MANIFEST if alone else STAGES, n_parameters),
            signature=signature,
            learning_rates=None if len(rates) == 0 or np.isnan(rates).any() else rates,
            feature_names=names,
            complete=complete,
            metadata=metadata,
            notes=notes,
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


def _read_manifest(folder: Place) -> dict[str, Any]:
    path = folder.where(MANIFEST)
    manifest = parse_json(folder.read(MANIFEST), path)
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
    folder = place_of(path)
    manifest = parse_json(folder.read(MANIFEST), folder.where(MANIFEST))
    with parsing(folder.where(MANIFEST)):
        return {str(name): str(found) for name, found in manifest["packages"].items()}


def _read_stages(
    folder: Place, manifest: Mapping[str, Any]
) -> tuple[Array, tuple[Mapping[str, Any], ...], bool]:
    """What is said of every stage's file, notes if there are any, and whether all was written."""
    alone = manifest["format_version"] == 1
    entries, notes, complete = Packed(), list[Mapping[str, Any]](), False
    with parsing(folder.where(MANIFEST if alone else STAGES)):
        for listed in manifest["stages"] if alone else _read_lines(folder):
            # More stages may follow what was complete once.
            complete = not alone and listed == _COMPLETE
            if not complete:
                entry, about = _parse_entry(listed)
                entries.add(entry)
                notes.append(about or _NO_NOTES)
        complete = bool(manifest["complete"]) if alone else complete
    return entries.rows, tuple(notes) if any(notes) else (), complete


def _read_lines(folder: Place) -> Iterator[Any]:
    """What the lines say, one by one.

    A line without its end was being written when its writer died.
    """
    path, data = folder.where(STAGES), folder.read_lines(STAGES)
    ask_memory_of_json(data, path)
    for n, line in enumerate(BytesIO(data), start=1):
        if line.endswith(b"\n"):
            yield parse_json(line, f"{path}, line {n},")


def _parse_count(raw: Any) -> int | None:
    if raw is not None and (type(raw) is not int or raw < 0):
        raise ValueError(f"n_parameters must be a number or null, not {raw!r:.40}")
    return raw


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
        observation_parts=parsed_parts(raw.get("observation_parts")),
    )


def parse_names(raw: Any) -> tuple[str, ...] | None:
    """Names of features out of JSON; null where there are none."""
    if raw is None:
        return None
    if not isinstance(raw, list) or not all(isinstance(name, str) for name in raw):
        raise ValueError(f"feature_names must be texts, not {raw!r:.80}")
    return tuple(raw)


def _parse_entry(raw: Mapping[str, Any]) -> tuple[Array, Mapping[str, Any]]:
    """What is said of one stage's file, shape (1,), and its notes."""
    name, digest, rate, size = (raw[k] for k in ("file", "sha256", "learning_rate", "bytes"))
    notes = raw.get("notes", {})
    for sound, what in (
        (isinstance(name, str) and _STAGE_NAME.fullmatch(name), f"{name!r} is not a stage's file"),
        (isinstance(digest, str) and _DIGEST.fullmatch(digest), f"{digest!r} is not a sha256"),
        (type(size) is int and 0 <= size < 2**63, f"{name} cannot have {size!r:.40} bytes"),
        (rate is None or math.isfinite(rate), f"{name} cannot have the learning rate {rate!r}"),
        (isinstance(notes, dict), f"notes of {name} must be a table, not {type(notes).__name__}"),
    ):
        if not sound:
            raise ValueError(what)
    told = (name, digest, size, math.nan if rate is None else rate)
    return np.array([told], dtype=_STAGE_FILE), notes
