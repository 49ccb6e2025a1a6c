"""Neural rewards on disk: one safetensors file whose header carries a JSON description.

Files may come from anyone: every array is checked against the description, and nothing is ever
executed or unpickled.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import safetensors
import safetensors.numpy

from logel.baselines.networks import Network
from logel.data.folder import package_versions
from logel.data.limits import MALFORMED, ask_memory, parse_json, parsing, shown
from logel.data.store import write_atomically
from logel.errors import FormatError, OptionError, one_line
from logel.types import Array, Float

FORMAT = "logel-reward"
FORMAT_VERSION = 1


@dataclass(frozen=True, eq=False)
class RewardFile:
    """What a reward's file holds.

    Attributes:
        networks: By name.
        arrays: Further arrays, by name.
        facts: Whatever else describes the reward, as JSON.
    """

    networks: Mapping[str, Network]
    arrays: Mapping[str, Float]
    facts: Mapping[str, Any]


def number(fact: Any) -> float:
    """A number among the facts; JSON has no NaN, so null stands for it."""
    return float("nan") if fact is None else float(fact)


def _written(fact: Any) -> Any:
    return None if isinstance(fact, float) and math.isnan(fact) else fact


class SavedReward(ABC):
    """A reward that is written to one file and read back."""

    kind: ClassVar[str]
    """What the file says it holds."""
    method: ClassVar[str]
    """Whose reward it is, in words."""

    @abstractmethod
    def _content(self) -> RewardFile: ...

    @classmethod
    @abstractmethod
    def _from_content(cls, content: RewardFile) -> Self: ...

    def save(self, path: str | PathLike[str]) -> None:
        """Write to one file: safetensors with a JSON header."""
        content = self._content()
        tensors = {f"array.{name}": np.ascontiguousarray(a) for name, a in content.arrays.items()}
        description: dict[str, Any] = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "packages": package_versions(("logel", "numpy", "torch")),
            "kind": self.kind,
            "facts": {name: _written(fact) for name, fact in content.facts.items()},
            "arrays": sorted(content.arrays),
            "networks": {},
        }
        for name, net in content.networks.items():
            layers = {"layers": len(net.weights), "activation": str(net.activation)}
            description["networks"][name] = layers
            for index, (weight, bias) in enumerate(zip(net.weights, net.biases, strict=True)):
                tensors[f"network.{name}.{index}.weight"] = np.ascontiguousarray(weight)
                tensors[f"network.{name}.{index}.bias"] = np.ascontiguousarray(bias)
        header = json.dumps(description, sort_keys=True, allow_nan=False)
        write_atomically(Path(path), safetensors.numpy.save(tensors, {"logel": header}))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read what `save` wrote; anything else is a FormatError."""
        content = _read(Path(path), cls.kind)
        try:
            return cls._from_content(content)
        except MALFORMED as error:
            told = f"{path} is not a reward of {cls.method}: {one_line(error)}"
            raise FormatError(told) from None


def _read(file: Path, kind: str) -> RewardFile:
    """Read a reward of the given kind; whatever is wrong with the file is a FormatError."""
    if not file.is_file():
        raise FormatError(f"{file} is missing or not a plain file")
    # Arrays are held as they are and in doubles.
    ask_memory(3 * file.stat().st_size, file)
    with parsing(file, OSError, safetensors.SafetensorError):
        with safetensors.safe_open(file, framework="numpy") as opened:
            text = (opened.metadata() or {}).get("logel", "null")
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        description = parse_json(text.encode(), file)
        _check_header(file, description, kind)
        try:
            return _parse(description, tensors)
        except OptionError as error:
            raise FormatError(f"{file} is corrupted or truncated: {one_line(error)}") from None


def _check_header(file: Path, description: Any, kind: str) -> None:
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise FormatError(f"{file} is not a reward saved by logel")
    found = description["format_version"]
    if not isinstance(found, int) or not 1 <= found <= FORMAT_VERSION:
        raise FormatError(
            f"{file} has format version {found!r}, but this logel reads up to "
            f"{FORMAT_VERSION}: upgrade logel"
        )
    if description["kind"] != kind:
        raise FormatError(f"{file} holds a reward of kind {description['kind']!r}, not {kind}")


def _parse(description: Mapping[str, Any], tensors: dict[str, Array]) -> RewardFile:
    facts, specs = description["facts"], description["networks"]
    if not isinstance(facts, dict) or not isinstance(specs, dict):
        raise ValueError("its description is not a reward's")
    networks = {name: _network(name, spec, tensors) for name, spec in specs.items()}
    arrays = {}
    for name in description["arrays"]:
        array = tensors.pop(f"array.{name}")
        if array.dtype != np.float64 or not np.isfinite(array).all():
            raise ValueError(f"array {name!r} must be finite float64 numbers")
        arrays[name] = array
    if tensors:
        first, *others = sorted(tensors)
        more = f" and {len(others)} more" if others else ""
        raise ValueError(f"its description does not name {shown(first)}{more}")
    return RewardFile(networks, arrays, facts)


def _network(name: str, spec: Mapping[str, Any], tensors: dict[str, Array]) -> Network:
    """Take a network out of the tensors."""
    n_layers, prefix = spec["layers"], f"network.{name}"
    if not isinstance(n_layers, int) or not 1 <= n_layers <= len(tensors):
        raise ValueError(f"network {name!r} cannot have {n_layers!r} layers")
    return Network(
        tuple(tensors.pop(f"{prefix}.{i}.weight") for i in range(n_layers)),
        tuple(tensors.pop(f"{prefix}.{i}.bias") for i in range(n_layers)),
        spec["activation"],
    )
