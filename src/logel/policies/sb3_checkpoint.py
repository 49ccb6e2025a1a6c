"""Policy parameters out of a Stable-Baselines3 `.zip`, whoever made it.

Such an archive holds `policy.pth`, which is itself an archive: a small pickle that says how
tensors are laid out in raw storages. That pickle is read only if it names nothing but tensors,
and then by torch's restricted reader; so is the state of the optimiser, `policy.optimizer.pth`.
The pickled objects in the archive's `data` are never touched. Sizes are checked before anything
is unpacked.
"""

from __future__ import annotations

import io
import pickletools
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from logel.data.limits import ask_memory, parse_json
from logel.errors import FormatError, TooLargeError, one_line
from logel.types import Array

# The archive inside an archive is held three times: unpacked, as tensors, and as doubles, which are
# twice as large.
_COPIES = 4
_MAX_PICKLE_BYTES = 2**22
_MAX_ENTRIES = 10_000
_TENSOR_NAMES = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    *(f"torch {kind}Storage" for kind in ("Float", "Double", "Half", "BFloat16", "Long", "Int")),
}
# Every way a pickle can name something to call, except GLOBAL, whose names are checked.
_REFUSED_CODES = {"STACK_GLOBAL", "INST", "OBJ", "EXT1", "EXT2", "EXT4", "NEWOBJ", "NEWOBJ_EX"}


def read_checkpoint(path: str | PathLike[str]) -> dict[str, Array]:
    """The policy's arrays by name, as in its `state_dict`.

    Raises:
        FormatError: If the file is not such an archive, is absurdly large, or holds anything but
            tensors.
    """
    with _reading(path) as file:
        loaded = _load(file, "policy.pth")
        if not isinstance(loaded, dict):
            raise ValueError("policy.pth holds no table of tensors")
        _check_tensors(loaded)
        arrays = {str(name): value.to(torch.float64).numpy() for name, value in loaded.items()}
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                raise ValueError(f"{name} is not finite")
    return arrays


def optimizer_group(path: str | PathLike[str]) -> dict[str, Any]:
    """Options of the optimiser's first group of parameters by torch's names; empty if unusual.

    The state of an optimiser is a table of tensors and numbers, and is read by the same rules as
    the policy.
    """
    try:
        with _reading(path) as file:
            group = _load(file, "policy.optimizer.pth")["param_groups"][0]
    except FormatError:
        # An optimiser of somebody's own may hold anything; the policy is readable without it.
        return {}
    return group if isinstance(group, dict) else {}


def _load(file: Path, name: str) -> Any:
    """A table of tensors in the archive, once it is sure to be nothing else."""
    payload = _member(file, name, _COPIES)
    _check_tensor_archive(payload, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)


def _check_tensors(loaded: dict[Any, Any]) -> None:
    total = 0
    for name, value in loaded.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise ValueError(f"policy.pth holds {name!r}, which is not a tensor")
        # A tensor may claim to be far larger than its storage (strides of 0).
        total += value.numel() * torch.float64.itemsize
    ask_memory(total, "the policy")


def space_kind(path: str | PathLike[str], name: str) -> str | None:
    """The class name of "action_space" or "observation_space" as the archive writes it, or None."""
    space = checkpoint_facts(path).get(name)
    kind = space.get(":type:") if isinstance(space, dict) else None
    return kind.rsplit(".", 1)[-1].rstrip("'>") if isinstance(kind, str) else None


def recorded_gamma(path: str | PathLike[str]) -> float | None:
    """The discount factor as the archive writes it, or None if it does not say a usable one."""
    gamma = checkpoint_facts(path).get("gamma")
    return float(gamma) if isinstance(gamma, int | float) and 0 <= gamma < 1 else None


def checkpoint_facts(path: str | PathLike[str]) -> dict[str, Any]:
    """What the archive says in plain JSON; anything pickled in it stays text."""
    with _reading(path) as file:
        try:
            data = parse_json(_member(file, "data", 1), f"data of {file}")
        except KeyError:
            return {}
    return data if isinstance(data, dict) else {}


@contextmanager
def _reading(path: str | PathLike[str]) -> Iterator[Path]:
    """Turns whatever goes wrong with a malformed file into one sentence naming the file."""
    file = Path(path)
    if not file.is_file():
        raise FormatError(f"{file} is not a file: give a checkpoint of Stable-Baselines3")
    try:
        yield file
    except Exception as error:
        # zipfile, torch and the pickle scanner raise all kinds of errors on broken bytes.
        kind = TooLargeError if isinstance(error, TooLargeError) else FormatError
        raise kind(
            f"{file} is not a readable checkpoint of Stable-Baselines3: {one_line(error)}"
        ) from None


def _member(path: Path, name: str, copies: int) -> bytes:
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(name)
        # What is packed small may unpack to anything.
        ask_memory(copies * info.file_size, name)
        with archive.open(info) as file:
            return file.read(info.file_size)


def _check_tensor_archive(payload: bytes, name: str) -> None:
    """Refuse anything but an uncompressed archive of raw storages and a pickle of tensors."""
    with zipfile.ZipFile(io.BytesIO(payload)) as archive:
        infos = archive.infolist()
        if len(infos) > _MAX_ENTRIES:
            raise ValueError(f"{name} holds more than any policy needs")
        ask_memory(sum(info.file_size for info in infos), name)
        if any(info.compress_type != zipfile.ZIP_STORED for info in infos):
            raise ValueError(f"{name} is compressed, which torch never does")
        _check_pickles(archive, name)


def _check_pickles(archive: zipfile.ZipFile, name: str) -> None:
    """Refuse more than one pickle, or one that names more than what rebuilds tensors."""
    pickles = [info for info in archive.infolist() if info.filename.endswith(".pkl")]
    if len(pickles) != 1 or not pickles[0].filename.endswith("/data.pkl"):
        raise ValueError(f"{name} must hold exactly one table of tensors")
    if pickles[0].file_size > _MAX_PICKLE_BYTES:
        raise ValueError(f"{name} has an absurdly large table of tensors")
    _check_pickle(archive.read(pickles[0]), name)


def _check_pickle(code: bytes, name: str) -> None:
    for opcode, argument, _ in pickletools.genops(code):
        if opcode.name in _REFUSED_CODES:
            raise ValueError(f"{name} holds pickled objects, which are never loaded")
        if opcode.name == "GLOBAL" and argument not in _TENSOR_NAMES:
            raise ValueError(f"{name} holds pickled objects ({argument!r}), which are never loaded")
