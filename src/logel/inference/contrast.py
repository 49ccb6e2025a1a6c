"""How the weights of two groups differ, feature by feature."""

from __future__ import annotations

import json
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from logel.data.store import write_atomically
from logel.errors import OptionError, printed
from logel.inference.direction import unit
from logel.inference.estimate import RewardEstimate
from logel.inference.export import frame_of_contrast, posterior_draws
from logel.inference.gauge import Gauge
from logel.inference.gauge_sums import either_gauge
from logel.inference.group import GroupEstimate
from logel.inference.saved import check_format, load_json, read_json
from logel.inference.verdict import Verdict, doubt_of, verdict_on
from logel.types import Float

if TYPE_CHECKING:
    import pandas as pd

FORMAT, FORMAT_VERSION = "logel-contrast", 1
_DRAWS = 2000


@dataclass(frozen=True, eq=False)
class Contrast:
    """The first group's weights minus the second's.

    Identification: both have unit norm in what is identified for both, so that a difference is one
    of direction: how much each group wants a feature beside all else it wants. A group that wants
    everything twice as much is no other group.

    Attributes:
        names: Of the groups.
        first: The first group's weights.
        second: The second's.
        seed: Pairs their draws.
    """

    names: tuple[str, str]
    first: RewardEstimate
    second: RewardEstimate
    seed: int = 0

    def __post_init__(self) -> None:
        if self.first.feature_names != self.second.feature_names:
            raise OptionError(
                f"the groups are described by different features: "
                f"{', '.join(self.first.feature_names)} and {', '.join(self.second.feature_names)}"
            )
        if self.gauge.n == len(self.feature_names):
            raise OptionError("no weight is identified in both groups: nothing can be compared")

    @classmethod
    def of(
        cls,
        first: GroupEstimate | RewardEstimate,
        second: GroupEstimate | RewardEstimate,
        *,
        names: tuple[str, str] = ("first", "second"),
        seed: int = 0,
    ) -> Contrast:
        """Of two groups' means, of weights that learners share, or of single learners."""
        one, other = (g.mean if isinstance(g, GroupEstimate) else g for g in (first, second))
        return cls((str(names[0]), str(names[1])), one, other, seed)

    @property
    def verdict(self) -> Verdict:
        """Whether differences are found; not shown if the weights of a group are not."""
        return verdict_on(self, doubt=self.doubt)

    @property
    def doubt(self) -> str:
        """Why differences are not to be trusted; empty if nothing speaks against it."""
        return "; ".join(self._doubts)

    @property
    def _doubts(self) -> list[str]:
        """Why weights of a group are not to be trusted."""
        sides = zip(self.names, (self.first, self.second), strict=True)
        said = [(name, doubt_of(estimate)) for name, estimate in sides]
        return [f"the weights of '{n}' are not to be trusted: {why}" for n, why in said if why]

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Of the weights."""
        return self.first.feature_names

    @property
    def gauge(self) -> Gauge:
        """What cannot be told of one group or the other."""
        return either_gauge(self.first.gauge, self.second.gauge)

    @property
    def sides(self) -> tuple[Float, Float]:
        """Both groups' weights, unit norm in what is identified for both."""
        one, other = (unit(self.gauge.project(e.weights)) for e in (self.first, self.second))
        return one, other

    @property
    def weights(self) -> Float:
        """Difference of the weights, shape (q,)."""
        one, other = self.sides
        return one - other

    @property
    def draws(self) -> Float:
        """Draws of the difference, shape (p, q)."""
        rng = np.random.default_rng(self.seed)
        sides = []
        for estimate in (self.first, self.second):
            drawn = posterior_draws(estimate, _DRAWS, self.seed)
            sides.append(rng.permutation(drawn[rng.permutation(_DRAWS) % len(drawn)]))
        silent = self.gauge.directions
        one, other = (unit(d - (d @ silent.T) @ silent) for d in sides)
        return np.asarray(one - other)

    @property
    def standard_errors(self) -> Float:
        """Shape (q,)."""
        return np.asarray(self.draws.std(axis=0))

    def interval(self, level: float = 0.95) -> Float:
        """Lower and upper ends of every difference's interval, shape (q, 2)."""
        if not 0 < level < 1:
            raise OptionError(f"a confidence level lies between 0 and 1, but is {level}")
        return np.quantile(self.draws, [0.5 - level / 2, 0.5 + level / 2], axis=0).T

    def probability_exceeds(self) -> Float:
        """Probability that the first group's weight is larger than the second's, shape (q,)."""
        draws = self.draws
        return np.asarray((draws > 0).mean(axis=0) + (draws == 0).mean(axis=0) / 2)

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings in plain words."""
        notes = self._doubts
        for name, estimate in zip(self.names, (self.first, self.second), strict=True):
            if any(one.contradicts or one.decisive for one in estimate.learners):
                notes += [f"'{name}': {note}" for note in estimate.notes]
        return tuple(notes)

    def to_frame(self, level: float = 0.95) -> pd.DataFrame:
        """One row per feature (needs the extra `report`).

        Columns: feature, first, second (the groups' weights), difference, std_err, low, high,
        probability_exceeds.
        """
        return frame_of_contrast(self, level)

    def summary(self, level: float = 0.95) -> str:
        """A table to paste into a notebook."""
        width = max([len(name) for name in self.feature_names] + [len("feature")])
        percent = f"{100 * level:g}%"
        one, other = self.names
        lines = [
            f"Difference of weights (unit norm): {one} minus {other}",
            f"verdict: {self.verdict}",
            "",
            f"{'feature':<{width}}  {'first':>8}  {'second':>8}  {'differ by':>9}  "
            f"{percent + ' interval':>20}  {'P(first > second)':>17}",
        ]
        rows = zip(
            self.feature_names,
            *self.sides,
            self.weights,
            self.interval(level),
            self.probability_exceeds(),
            strict=True,
        )
        for name, a, b, difference, (low, high), chance in rows:
            lines.append(
                f"{name:<{width}}  {a:>8.3f}  {b:>8.3f}  {difference:>+9.3f}  "
                f"[{low:>+8.3f}, {high:>+8.3f}]  {chance:>17.3f}"
            )
        lines += [f"gauge: {sentence}" for sentence in self.gauge.describe()]
        lines += [f"note: {note}" for note in self.notes]
        return printed(lines)

    def __repr__(self) -> str:
        pairs = zip(self.feature_names, self.weights, strict=True)
        told = ", ".join(f"{name}={value:+.3g}" for name, value in list(pairs)[:8])
        return f"Contrast({self.names[0]} minus {self.names[1]}: {told})"

    def to_json(self) -> str:
        """The contrast as JSON."""
        fields = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "verdict": self.verdict.to_plain(),
            "names": list(self.names),
            "first": self.first.to_plain(),
            "second": self.second.to_plain(),
            "seed": self.seed,
        }
        return json.dumps(fields, indent=1, allow_nan=False)

    @classmethod
    def from_plain(cls, raw: Any) -> Contrast:
        """From plain values."""
        check_format(raw, FORMAT, FORMAT_VERSION, "contrast")
        first, second = (RewardEstimate.from_plain(raw[side]) for side in ("first", "second"))
        one, other = (str(name) for name in raw["names"])
        seed = int(raw["seed"])
        if seed < 0:
            raise ValueError(f"the seed is {seed}, which is negative")
        return cls((one, other), first, second, seed)

    @classmethod
    def from_json(cls, text: str | bytes) -> Contrast:
        """Read what `to_json` wrote; raises FormatError on anything else."""
        return read_json(text, cls.from_plain, "contrast")

    def save(self, path: str | PathLike[str]) -> None:
        """Write it as JSON, atomically."""
        write_atomically(Path(path), self.to_json().encode())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Contrast:
        """Read what `save` wrote."""
        return load_json(path, cls.from_json, "contrast")
