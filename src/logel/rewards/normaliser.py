"""Observations as a policy saw them whose training normalised them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from logel.errors import OptionError
from logel.types import Array, Float


@dataclass(frozen=True, eq=False)
class Normaliser:
    """Statistics by which a run normalised its observations.

    Attributes:
        mean: Shape of an observation.
        var: Likewise.
        epsilon: Added to the variance.
        clip: Largest normalised value.
    """

    mean: Float
    var: Float
    epsilon: float = 1e-8
    clip: float = 10.0

    @classmethod
    def from_notes(cls, notes: Mapping[str, Any]) -> Normaliser:
        """With the statistics in the notes of a recorded stage."""
        try:
            mean, var = (np.array(notes[f"observation_{k}"], float) for k in ("mean", "var"))
            epsilon, clip = (float(notes[f"observation_{k}"]) for k in ("epsilon", "clip"))
        except (KeyError, TypeError, ValueError):
            raise OptionError(
                "the stage's notes do not say how observations were normalised"
            ) from None
        return cls(mean, var, epsilon, clip)

    def __call__(self, observations: Array) -> Array:
        """Observations as the policy sees them."""
        scaled = (observations - self.mean) / np.sqrt(self.var + self.epsilon)
        return np.clip(scaled, -self.clip, self.clip).astype(np.float32)
