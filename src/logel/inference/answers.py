"""Reading whatever answer a file holds: an estimate, a group, a contrast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

from logel.inference import contrast, estimate, group
from logel.inference.contrast import Contrast
from logel.inference.estimate import RewardEstimate
from logel.inference.group import GroupEstimate
from logel.inference.saved import load_json, read_json

Answer = RewardEstimate | GroupEstimate | Contrast
_KINDS: Mapping[str, Callable[[Any], Answer]] = {
    group.FORMAT: GroupEstimate.from_plain,
    contrast.FORMAT: Contrast.from_plain,
    estimate.FORMAT: RewardEstimate.from_plain,
}


def load_answer(path: str | PathLike[str]) -> Answer:
    """What `save` of any of them wrote; raises FormatError on anything else."""
    return load_json(path, lambda text: read_json(text, _made, "estimate"), "estimate")


def _made(raw: Any) -> Answer:
    kind = raw.get("format") if isinstance(raw, dict) else None
    make = _KINDS.get(kind, RewardEstimate.from_plain) if isinstance(kind, str) else None
    return (make or RewardEstimate.from_plain)(raw)
