"""What a fit found, for every method alike: the answer is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from logel.inference.direction import Evidence
from logel.inference.gauge import Fit
from logel.inference.method import Method
from logel.inference.spread import Spread
from logel.inference.status import Status
from logel.types import Float


@dataclass(frozen=True, eq=False)
class Found:
    """What a fit found, whichever way: in the given features, and not normalised.

    Attributes:
        weights: Shape (q,); they go with `rates`.
        rates: Learning rates, shape (m,).
        fit: How much of the movement is explained.
        gain: Log odds of a reward over none, in nats; infinite where that was not asked.
        words: What was done.
        spread: How uncertain the weights are, or None where that cannot be told.
        rule: How the reward moves the policy.
        gains: Log odds of every rule that was tried, best first.
        solved: How the solver ended.
        trace: Objective or evidence along the way.
        rank: Of the design.
        condition: Of the design.
        notes: What else to know.
        keeps_scale: Whether known rates give the weights a scale.
        evidence: What there is to say beside other learners, in coordinates of the common basis;
            None where the spread says it all.
        unlearns: Whether the policy lost most of what it had decided when it began.
        repeats: Share of what the steps have in common that is left again and again.
        unsteady: What contradicts that steps are made alike and each for itself, in sentences.
    """

    weights: Float
    rates: Float
    fit: Fit
    gain: float
    words: str
    rule: str
    solved: Status
    trace: Float
    rank: int
    condition: float
    keeps_scale: bool
    spread: Spread | None = None
    gains: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    evidence: Evidence | None = None
    unlearns: bool = False
    repeats: float = 0.0
    unsteady: tuple[str, ...] = ()

    @property
    def size(self) -> float:
        """What the weights are divided by, and the rates multiplied."""
        size = float(np.linalg.norm(self.weights))
        return 1.0 if self.keeps_scale or size == 0 else size


def path_words(method: Method, *, known: bool) -> str:
    """Where the path came from."""
    return "known parameters" if known else f"cloned parameters ({method.clone.method})"
