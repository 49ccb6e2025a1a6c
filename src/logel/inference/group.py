"""The answer for learners that resemble each other: a mean, a spread, and every single one's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from logel.data.notebook import estimate_line
from logel.data.store import write_atomically
from logel.errors import OptionError
from logel.inference.cohort import Cohort, Single
from logel.inference.direction import Stack, unit
from logel.inference.estimate import RewardEstimate
from logel.inference.export import rows_of_learners
from logel.inference.hierarchy import by_learner, fit_group
from logel.inference.null import CONVINCING
from logel.inference.saved import array, check_format, load_json, plain, read_json
from logel.inference.shared import ByLearner, learner_shares, together, world_shifts
from logel.inference.shares import LearnerShare
from logel.inference.status import Status
from logel.inference.verdict import Verdict
from logel.types import Float

if TYPE_CHECKING:
    import pandas as pd

FORMAT, FORMAT_VERSION = "logel-group", 1
# Draws of mean, spread and single learners: every one costs an integral over each one's size.
_DRAWS, _DRAWS_WITHOUT = 500, 200


@dataclass(frozen=True, eq=False)
class GroupEstimate:
    """Recovered weights of a group of learners.

    Identification: every learner's weights are known up to a positive factor of its own. They are a
    mean of unit length and a deviation from it, times that factor; mean and single weights are
    given with unit norm.

    Attributes:
        mean: The group's mean weights; `mean.learners` tells each one's part in it.
        learners: Every learner's own weights by its name, partially pooled.
        spreads: Draws of the spread, (p,): the standard deviation of a learner's weights from the
            mean, in any direction, in units of the mean's length (features in units of their
            ranges).
    """

    mean: RewardEstimate
    learners: Mapping[str, RewardEstimate]
    spreads: Float

    @property
    def verdict(self) -> Verdict:
        """That on the mean; single learners have verdicts of their own."""
        return self.mean.verdict

    @property
    def names(self) -> tuple[str, ...]:
        """Of the learners."""
        return tuple(self.learners)

    @property
    def spread(self) -> float:
        """Median of the spread."""
        return float(np.median(self.spreads))

    def spread_interval(self, level: float = 0.95) -> tuple[float, float]:
        """Ends of the spread's interval."""
        if not 0 < level < 1:
            raise OptionError(f"a confidence level lies between 0 and 1, but is {level}")
        low, high = np.quantile(self.spreads, [0.5 - level / 2, 0.5 + level / 2])
        return float(low), float(high)

    def to_frame(self, level: float = 0.95) -> pd.DataFrame:
        """One row per learner and feature, the group's mean first (needs the extra `report`).

        Columns: learner, feature, weight, std_err, low, high, probability_positive.
        """
        return rows_of_learners({"group mean": self.mean, **self.learners}, level)

    def summary(self, level: float = 0.95) -> str:
        """The mean, the spread and every learner's part."""
        low, high = self.spread_interval(level)
        told = (
            f"spread of single learners' weights around the mean: {self.spread:.3f} of its length "
            f"(interval {low:.3f} to {high:.3f})"
        )
        return f"Mean of {len(self.learners)} learners\n\n{self.mean.summary(level)}\n{told}"

    def __repr__(self) -> str:
        return f"GroupEstimate({len(self.learners)} learners, mean {estimate_line(self.mean)})"

    def to_plain(self) -> dict[str, Any]:
        """Plain values, of which JSON is made."""
        learners = [
            {"name": name, "estimate": one.to_plain()} for name, one in self.learners.items()
        ]
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "verdict": self.verdict.to_plain(),
            "mean": self.mean.to_plain(),
            "learners": learners,
            "spreads": plain(self.spreads),
        }

    def to_json(self) -> str:
        """The estimate as JSON; not-a-number becomes null."""
        return json.dumps(self.to_plain(), indent=1, allow_nan=False)

    @classmethod
    def from_plain(cls, raw: Any) -> GroupEstimate:
        """From the values of `to_plain`."""
        check_format(raw, FORMAT, FORMAT_VERSION, "group estimate")
        mean = RewardEstimate.from_plain(raw["mean"])
        learners = {
            str(one["name"]): RewardEstimate.from_plain(one["estimate"]) for one in raw["learners"]
        }
        for name, one in learners.items():
            if one.feature_names != mean.feature_names:
                raise ValueError(f"the features of {name!r:.40} are not those of the mean")
        spreads = array(raw["spreads"], (len(raw["spreads"]),))
        if len(spreads) == 0 or not (spreads >= 0).all():
            raise ValueError("the spread must have draws, none of them negative")
        return cls(mean, learners, spreads)

    @classmethod
    def from_json(cls, text: str | bytes) -> GroupEstimate:
        """Read what `to_json` wrote; raises FormatError on anything else."""
        return read_json(text, cls.from_plain, "group estimate")

    def save(self, path: str | PathLike[str]) -> None:
        """Write it as JSON, atomically."""
        write_atomically(Path(path), self.to_json().encode())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> GroupEstimate:
        """Read what `save` wrote."""
        return load_json(path, cls.from_json, "group estimate")


def group_estimate(cohort: Cohort) -> GroupEstimate:
    """Mean, spread and single learners of a cohort."""
    if len(cohort) < 2:
        raise OptionError("a group needs at least two learners; one alone has no spread")
    rng = np.random.default_rng(cohort.seed)
    stack = cohort.stack(rng)
    group = fit_group(stack, _DRAWS, rng)

    def evidence(others: Stack) -> Float:
        return by_learner(others, group.means, group.spreads)

    moved = world_shifts(cohort, stack, group.means, evidence, rng)

    def redraw(others: Stack) -> tuple[Float, ByLearner]:
        again = fit_group(others, _DRAWS_WITHOUT, rng)
        return again.means, lambda one: by_learner(one, again.means, again.spreads)

    shares = learner_shares(cohort, stack, group.means, group.by_learner, redraw, rng)
    words = "weights around a group's mean"
    draws = unit(unit(group.means @ cohort.basis.T) + moved)
    mean = together(cohort, stack, draws, group.log_evidence, shares, words, [])
    learners = {}
    for i, single in enumerate(cohort.singles):
        draws = unit(unit(group.singles[i] @ cohort.basis.T) + moved)
        chance = stack.log_chances[i]
        learners[single.name] = _pooled(cohort, single, draws, shares[i], float(chance))
    return GroupEstimate(mean, learners, group.spreads)


def _pooled(
    cohort: Cohort, single: Single, draws: Float, share: LearnerShare, log_chance: float
) -> RewardEstimate:
    """A learner's own estimate, partially pooled."""
    gauge = cohort.gauge
    draws = draws - (draws @ gauge.directions.T) @ gauge.directions
    # Odds of a reward beside the others, who may know what it could be.
    gain = share.agreement - log_chance
    learnt = gain > 0 and gain + np.log1p(-np.exp(-gain)) >= CONVINCING
    status = single.estimate.status
    if status is Status.UNEXPLAINED and learnt:
        status = Status.RANK_DEFICIENT if gauge.n else Status.OK
    return replace(
        single.estimate,
        weights=unit(draws.mean(axis=0)),
        covariance=np.cov(draws.T).reshape(draws.shape[1], -1),
        degrees_of_freedom=0,
        scale="unit norm",
        status=status,
        gauge=gauge,
        method=f"{single.estimate.method}; partially pooled with {len(cohort) - 1} others",
        draws=draws,
        planning=None,
    )
