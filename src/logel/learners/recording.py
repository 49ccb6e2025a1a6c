"""What all simulated learners share: schedules of their rates, and how they are watched."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import count, islice
from typing import Any

import numpy as np

from logel.data.history import LearningHistory
from logel.data.stage import Stage
from logel.errors import OptionError
from logel.types import Float, Progress

logger = logging.getLogger(__name__)
SCHEDULES = ("constant", "normalised", "1/(1+t)", "1/(1+t)^2")


def check_rate(learning_rate: float, schedule: str) -> None:
    """Raise OptionError unless the rate is positive and the schedule a known one."""
    if schedule not in SCHEDULES:
        raise OptionError(f"schedule must be one of {SCHEDULES}, but is {schedule!r}")
    if learning_rate <= 0:
        raise OptionError(f"learning_rate must be positive, but is {learning_rate}")


def scheduled_rate(learning_rate: float, schedule: str, *, step: int, size: float) -> float:
    """The rate of a step, numbered from 0, along a direction of some size.

    `learning_rate` is that of the first step, or the length of every step if "normalised".
    """
    if schedule == "normalised":
        # Where there is no slope left, a step of any rate stays where it is.
        return learning_rate / max(size, 1e-12)
    power = {"constant": 0, "1/(1+t)": 1, "1/(1+t)^2": 2}[schedule]
    return float(learning_rate / (1 + step) ** power)


def drift(start: Float, step: float, *, fading: bool, rng: np.random.Generator) -> Iterator[Float]:
    """A random walk without end; on request, moves shrink as 1 / (1 + t)."""
    position = start
    for t in count():
        yield position
        size = step / (1 + t) if fading else step
        position = position + size * rng.standard_normal(position.shape)


Watch = Callable[[np.random.Generator, np.random.Generator], Iterable[tuple[Stage, float | None]]]
"""Lets a learner learn and an observer look, by random numbers of their own.

Yields what the observer sees between two updates, and the rate of the step that led there."""


def record(
    learner: object,
    watch: Watch,
    *,
    n_steps: int,
    seed: int | np.random.SeedSequence,
    learning_rates: bool,
    feature_names: tuple[str, ...],
    metadata: Mapping[str, Any],
    progress: Progress | None = None,
) -> LearningHistory:
    """Make a history of a learner's first `n_steps` steps.

    The name and settings of the learner, a dataclass, go into the metadata; `learning_rates` says
    whether the observer knows the rates.
    """
    if n_steps < 1:
        raise OptionError(f"n_steps must be at least 1, but is {n_steps}")
    sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    learner_rng, observer_rng = (np.random.default_rng(s) for s in sequence.spawn(2))
    stages: list[Stage] = []
    rates: list[float | None] = []
    seen = islice(watch(learner_rng, observer_rng), n_steps + 1)
    for t, (stage, rate) in enumerate(seen):
        stages.append(stage)
        rates.append(rate)
        logger.info("stage %d: %d episodes, %d steps", t, stage.n_episodes, stage.n_steps)
        if progress is not None:
            progress("recording", t + 1, n_steps + 1)
    # No step led to the first stage.
    known = [rate for rate in rates[1:] if rate is not None]
    if learning_rates and len(known) < n_steps:
        raise OptionError(f"{type(learner).__name__} has no learning rates to reveal")
    return LearningHistory.from_stages(
        stages,
        learning_rates=known if learning_rates else None,
        feature_names=feature_names,
        metadata={
            "learner": type(learner).__name__,
            "learner_config": asdict(learner),  # type: ignore[call-overload]
            **metadata,
        },
    )
