"""The tasks of a study: what identifies one, where its random numbers come from, how they sort."""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from logel.errors import OptionError

Scalar = bool | int | float | str | None
Row = dict[str, Scalar]


@dataclass(frozen=True, eq=False)
class Task:
    """One independent piece of a study; equal tasks have equal keys and equal random numbers.

    Attributes:
        study: Name of the study.
        setting: What is varied, name to bool, int, finite float, str or None. Order is irrelevant.
        seed: Which repetition this is.
    """

    study: str
    setting: Mapping[str, Scalar]
    seed: int

    def __post_init__(self) -> None:
        if not isinstance(self.study, str) or not self.study:
            raise OptionError(f"study must be a non-empty string, not {self.study!r}")
        setting = {name: _checked(name, value) for name, value in self.setting.items()}
        seed = as_scalar(self.seed, "seed")
        if type(seed) is not int:
            raise OptionError(f"seed must be an integer, not {self.seed!r}")
        object.__setattr__(self, "setting", MappingProxyType(dict(sorted(setting.items()))))
        object.__setattr__(self, "seed", seed)

    def __reduce__(self) -> tuple[type[Task], tuple[str, dict[str, Scalar], int]]:
        return Task, (self.study, dict(self.setting), self.seed)  # a mapping proxy has no pickle

    def __eq__(self, other: object) -> bool:
        # Through the identity, because Python holds 1 == 1.0 == True while their keys differ.
        return isinstance(other, Task) and canonical_json(self.identity) == canonical_json(
            other.identity
        )

    def __hash__(self) -> int:
        return hash(canonical_json(self.identity))

    def text(self, name: str) -> str:
        """A setting as text."""
        return str(self.setting[name])

    def integer(self, name: str) -> int:
        """A setting as a whole number."""
        return int(self.text(name))

    @property
    def identity(self) -> dict[str, Any]:
        """Study, setting and seed as plain JSON."""
        return {"study": self.study, "setting": dict(self.setting), "seed": self.seed}

    @property
    def key(self) -> str:
        """A file-name-safe name: readable first, then a hash that makes it unique."""
        words = [self.study, *(f"{name}={value}" for name, value in self.setting.items())]
        slug = re.sub(r"[^A-Za-z0-9=._-]+", "_", "-".join([*words, f"seed={self.seed}"]))
        return f"{slug.lstrip('.')[:80]}-{checksum(self.identity)[:16]}"

    def seed_sequence(self, *, ignoring: Collection[str] = ()) -> np.random.SeedSequence:
        """Derive the task's own seed from what it is, so that order and workers cannot matter.

        Args:
            ignoring: Settings left out of the derivation. Tasks that differ only in these draw the
                same numbers, which makes comparisons between them paired (say, two methods on
                the same learner).

        Returns:
            A seed sequence independent of every other task's; `spawn` it for several streams.
        """
        unknown = sorted(set(ignoring) - set(self.setting))
        if unknown:
            raise OptionError(f"cannot ignore {unknown}: the settings are {sorted(self.setting)}")
        kept = {name: value for name, value in self.setting.items() if name not in ignoring}
        return np.random.SeedSequence(int(checksum({**self.identity, "setting": kept}), 16))

    def rng(self, *, ignoring: Collection[str] = ()) -> np.random.Generator:
        """Return a fresh generator seeded by `seed_sequence`; two calls give the same stream."""
        return np.random.default_rng(self.seed_sequence(ignoring=ignoring))


TaskFunction = Callable[[Task], Iterable[Mapping[str, object]]]


@dataclass(frozen=True)
class Failure:
    """A task that raised, or whose worker died; it is tried again by the next run.

    Attributes:
        task: The task that failed.
        error: Type and message on one line.
        traceback: The whole traceback, as Python prints it.
    """

    task: Task
    error: str
    traceback: str


def grid(
    study: str, settings: Mapping[str, Iterable[Scalar]], *, seeds: Iterable[int]
) -> list[Task]:
    """Return the tasks of a full grid: every combination of the settings, every seed."""
    values = [list(choices) for choices in settings.values()]
    seeds = list(seeds)
    return [
        Task(study, dict(zip(settings, combination, strict=True)), seed)
        for combination in itertools.product(*values)
        for seed in seeds
    ]


def resolve(reference: str) -> TaskFunction:
    """The function that "module:name" stands for."""
    module, _, name = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    function: TaskFunction = found
    return function


def _checked(name: str, value: Scalar) -> Scalar:
    if not isinstance(name, str) or not name or name in ("study", "seed"):
        raise OptionError(
            f"{name!r} cannot name a setting: use a non-empty string other than "
            "'study' and 'seed', which are columns of every table already"
        )
    plain = as_scalar(value, f"setting {name!r}")
    if isinstance(plain, float) and not math.isfinite(plain):
        raise OptionError(f"setting {name!r} must be finite, not {value!r}")
    return plain


def as_scalar(value: object, what: str) -> Scalar:
    """Return a plain Python scalar, or say which value is not one."""
    plain = value.item() if isinstance(value, np.generic) else value
    if plain is None or isinstance(plain, bool):
        return plain
    # Subclasses (an enum of strings, say) print otherwise than what a file gives back: strip them.
    if isinstance(plain, int):
        return int.__int__(plain)
    if isinstance(plain, float):
        return float.__float__(plain)
    if isinstance(plain, str):
        return str.__str__(plain)
    raise OptionError(f"{what} must be a bool, int, float, str or None, not {type(value).__name__}")


def canonical_json(content: object, *, allow_nan: bool = False) -> str:
    """Equal contents give equal text, whatever the order of their keys."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=allow_nan)


def checksum(content: object, *, allow_nan: bool = False) -> str:
    """The sha256 of the canonical JSON."""
    return hashlib.sha256(canonical_json(content, allow_nan=allow_nan).encode()).hexdigest()


def sorted_tasks(tasks: Iterable[Task]) -> list[Task]:
    """Sort tasks by their values (2 before 10), whatever order they came in; refuse duplicates."""
    tasks = list(tasks)
    repeated = [key for key, count in Counter(task.key for task in tasks).items() if count > 1]
    if repeated:
        raise OptionError(f"task {repeated[0]} is listed more than once; tasks must be distinct")
    return sorted(tasks, key=sort_key)


def sort_key(task: Task) -> tuple[Any, ...]:
    """What tasks are sorted by."""
    # Values of different types do not compare, so each is preceded by a rank for its type.
    rank = {type(None): 0, bool: 1, int: 2, float: 2, str: 3}
    values = tuple(
        (name, rank[type(value)], 0 if value is None else value)
        for name, value in task.setting.items()
    )
    return task.study, values, task.seed, task.key
