"""What is replayed, and what one replayed step says about the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from logel.replay.batch import Batch
from logel.replay.movement import Movement
from logel.types import Float


@dataclass(frozen=True, eq=False)
class Course:
    """What is replayed: m steps of a learner.

    Attributes:
        batches: Of the stages before each step.
        parameters: Policies' parameters, (m + 1, d).
        movements: From each stage's policy.
        observed: Where the learner went, one row per step.
        own: Whether the learner learnt from these very episodes.
        n_updates: Updates from a stage to the next.
    """

    batches: Sequence[Batch]
    parameters: Float
    movements: Sequence[Movement]
    own: bool = True
    n_updates: int = 1
    observed: Sequence[Float] = field(init=False)

    def __post_init__(self) -> None:
        rows = torch.as_tensor(self.parameters)
        seen = [move.to(rows[t + 1 : t + 2])[0] for t, move in enumerate(self.movements)]
        object.__setattr__(self, "observed", seen)

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def known(self) -> bool:
        """Whether all that the learner learnt from is here."""
        return self.own and self.n_updates == 1

    @property
    def scale(self) -> Float:
        """Deviation of each feature over all steps (its size, if it is constant), (q,)."""
        rows = np.concatenate([batch.features.double().cpu().numpy() for batch in self.batches])
        deviation, size = rows.std(axis=0), np.abs(rows).mean(axis=0)
        # What hardly varies is a constant with rounding.
        return np.where(deviation > 1e-9 * size, deviation, np.where(size > 0, size, 1.0))


# Share of a movement of which nobody asks how much of it is chance.
_LEAST = 0.001


@dataclass(frozen=True, eq=False, kw_only=True)
class StepShare:
    """How well one step is explained.

    Attributes:
        unexplained: Share of the squared movement that the centre leaves.
        scatter: Share that fates differ by.
        cosine: Between the movement at the centre and the observed one.
        moved: Length of the observed movement.
        predicted: Length of the movement at the centre.
    """

    unexplained: float
    scatter: float
    cosine: float
    moved: float
    predicted: float


def excess(steps: Sequence[StepShare]) -> float:
    """What is left unexplained, over what other fates would change: about one where all is well."""
    return float(np.median([step.unexplained / (step.scatter + _LEAST) for step in steps]))
