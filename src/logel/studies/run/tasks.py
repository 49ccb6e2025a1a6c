"""The tasks of a study: what identifies one, where its random numbers come from, how they sort."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from logel.errors import OptionError

Scalar = bool | int | float | str | None
Row = dict[str, Scalar]


@dataclass(frozen=True, eq=False)
class Task:
    """One independent piece of a study: its name, what is varied, and which repetition this is."""

    study: str
    setting: Mapping[str, Scalar]
    seed: int

    def __post_init__(self) -> None:
        # Key and random numbers must not depend on the order in which settings are named.
        object.__setattr__(self, "setting", dict(sorted(self.setting.items())))

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

        Tasks that differ only in the settings named by `ignoring` draw the same numbers, which
        makes comparisons between them paired (say, two methods on the same learner).
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
    """A task that raised, or whose worker died; it is tried again by the next run."""

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


def as_scalar(value: object, what: str) -> Scalar:
    """Return a plain Python scalar, or say which value is not one."""
    plain = value.item() if isinstance(value, np.generic) else value
    if plain is None or isinstance(plain, bool | int | float | str):
        return plain
    raise OptionError(f"{what} must be a bool, int, float, str or None, not {type(value).__name__}")


def checksum(content: object) -> str:
    """The sha256 of the content as JSON, whatever the order of its keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


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
