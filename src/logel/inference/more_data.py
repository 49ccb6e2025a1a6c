"""How much narrower the intervals would be with more data: an information bound at the estimate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from logel.errors import OptionError
from logel.types import Float


@dataclass(frozen=True, eq=False)
class Planning:
    """Covariance of the weights now, and what it would be with twice the data, all (q, q).

    Attributes:
        covariance: With the data at hand.
        twice_episodes: With twice the episodes in every stage.
        twice_stages: With twice the stages, later ones telling as much as those seen.
    """

    covariance: Float
    twice_episodes: Float
    twice_stages: Float

    def __post_init__(self) -> None:
        shapes = [np.shape(c) for c in (self.covariance, self.twice_episodes, self.twice_stages)]
        if len(shapes[0]) != 2 or shapes[0][0] != shapes[0][1] or len(set(shapes)) > 1:
            raise OptionError(f"planning needs three (q, q) covariances, not {shapes}")

    @classmethod
    def of(cls, sampling: Float, learner: Float) -> Planning:
        """From the covariance due to the episodes seen, and that of the learner's own noise.

        Episodes: noise of clones, designs and worlds averages over episodes; the learner's own,
        which no episode shows, stays. Stages: the information is a sum over steps, and twice the
        steps at the mean information of those seen doubles it. That is a conservative bound where
        parameters are cloned: the error of one clone enters the two movements it joins with
        opposite signs and cancels in their sum. It is optimistic if the learner has converged:
        steps without movement tell nothing.
        """
        both = sampling + learner
        return cls(both, sampling / 2 + learner, both / 2)

    def factors(self, *, episodes: float = 1.0, stages: float = 1.0) -> Float:
        """By what to multiply each weight's standard error, shape (q,).

        Between and beyond the two points that are known, the variance is a constant plus a part
        that falls as one over the episodes (noise that no episode takes away stays), and a power
        of the number of stages. A weight without variance keeps it.

        Args:
            episodes: Multiple of the episodes per stage.
            stages: Multiple of the number of stages.
        """
        for name, multiple in (("episodes", episodes), ("stages", stages)):
            if not (multiple > 0 and np.isfinite(multiple)):
                raise OptionError(f"{name} is a positive multiple of what was seen, not {multiple}")
        now = np.diagonal(self.covariance)
        known = now > 0
        safe = np.where(known, now, 1.0)
        tiny = np.finfo(float).tiny
        with_episodes = np.clip(np.diagonal(self.twice_episodes) / safe, tiny, 1.0)
        with_stages = np.clip(np.diagonal(self.twice_stages) / safe, tiny, 1.0)
        floor = 2 * with_episodes - 1
        # Less than half the variance from twice the episodes leaves no floor: a power law then.
        power = episodes ** np.log2(with_episodes)
        ratio = np.where(floor >= 0, floor + (1 - floor) / episodes, power)
        ratio = ratio * stages ** np.log2(with_stages)
        return np.where(np.isnan(now), np.nan, np.sqrt(np.where(known, ratio, 1.0)))

    @classmethod
    def from_plain(cls, raw: Mapping[str, Any], n_features: int) -> Planning:
        """From the three by name; raises KeyError, TypeError or ValueError on anything else."""
        names = ("covariance", "twice_episodes", "twice_stages")
        arrays = [np.array(raw[name], dtype=float) for name in names]
        if any(array.shape != (n_features, n_features) for array in arrays):
            raise ValueError(f"planning covariances must be ({n_features}, {n_features})")
        return cls(*arrays)
