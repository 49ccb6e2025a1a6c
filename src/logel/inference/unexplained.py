"""What nobody named: a reward for what no named feature explains, where it pays, how sure that is.

A dictionary is made from the observations, and each of its elements is offered to the learner's
rule beside the named features. What remains is a probability for every element, and one that there
is anything at all. Works wherever an estimate does: along paths, in functions, and by replay.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from logel.data.store import write_atomically
from logel.errors import printed
from logel.inference.null import CONVINCING, no_reward
from logel.inference.saved import check_format, finite, load_json, plain, read_json
from logel.types import Float

FORMAT, FORMAT_VERSION = "logel-unexplained", 1
# Probability that a place is to hold, where it is told how far around it may be.
_SURE = 0.9
# Correlations, and shares of what an element does, from which on it may be a named feature's doing.
_ALIKE, _ENTANGLED = 0.5, 0.8


@dataclass(frozen=True, eq=False)
class Unexplained:
    """A reward that no named feature explains, or that there is none.

    Attributes:
        gain: Log odds of something hidden over nothing, in nats.
        names: What each of k elements of the dictionary pays for.
        centres: Where, in units of the observation, (k, n); NaN where that does not matter.
        discrete: Whether places are states of a table.
        shares: Probability of each element, if something is hidden, (k,).
        amounts: What each pays if it is that one, (k,), where the named weights have length one.
        errors: Standard deviation of that, (k,).
        feature_names: The named features.
        alike: Cosine of what the likeliest element does to the learner and what each named feature
            does, (q,).
        correlations: Of the two as rewards, over what was visited, (q,).
        entangled: Share of what the likeliest element does that named features could do together.
        rule: How the reward moves the policy.
        notes: What to know.
    """

    gain: float
    names: tuple[str, ...]
    centres: Float
    discrete: bool
    shares: Float
    amounts: Float
    errors: Float
    feature_names: tuple[str, ...]
    alike: Float
    correlations: Float
    entangled: float
    rule: str
    notes: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """Whether something is hidden, at odds of twenty to one."""
        return self.gain >= CONVINCING

    @property
    def probability(self) -> float:
        """That something is hidden, both being as likely before."""
        return 1 - no_reward(self.gain)

    @property
    def best(self) -> int:
        """The likeliest element."""
        return int(np.argmax(self.shares))

    @property
    def place(self) -> Float:
        """Where the likeliest element pays, (n,); NaN where that does not matter."""
        return np.asarray(self.centres[self.best])

    @property
    def bonus(self) -> Float:
        """What every element is expected to pay, (k,): the map of what is hidden."""
        return self.shares * self.amounts

    @property
    def likely(self) -> tuple[int, ...]:
        """The elements that hold nine tenths of the probability, likeliest first."""
        order = np.argsort(-self.shares, kind="stable")
        n = int(np.searchsorted(np.cumsum(self.shares[order]), _SURE)) + 1
        return tuple(int(j) for j in order[:n])

    @property
    def verdict(self) -> str:
        """Whether anything is hidden, in a sentence."""
        return next(self.describe())

    def describe(self) -> Iterator[str]:
        """What was found, in sentences."""
        if not self.found:
            yield (
                f"nothing that was not named: the odds of a hidden reward are {_odds(self.gain)}, "
                "short of twenty to one"
            )
            return
        j = self.best
        kind = "reward" if self.amounts[j] > 0 else "cost"
        yield (
            f"a hidden {kind}: the learner is also paid for {self.names[j]}, "
            f"{self.amounts[j]:+.2f} +- {self.errors[j]:.2f} where the named weights have length "
            f"one (odds {_odds(self.gain)})"
        )
        others = [self.names[i] for i in self.likely[1:]]
        if others:
            listed = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if others[5:] else "")
            yield f"it may as well be {listed}: these together are as sure as .9"
        yield self._confounded()

    def _confounded(self) -> str:
        """Which named feature it may be mistaken for, in a sentence."""
        strength = np.maximum(np.abs(self.alike), np.abs(self.correlations))
        i = int(np.argmax(strength))
        name, alike, paid = self.feature_names[i], self.alike[i], self.correlations[i]
        if strength[i] < _ALIKE and self.entangled < _ENTANGLED:
            return f"no named feature is like it (the most like it is {name}, {alike:+.2f})"
        return (
            f"it goes along with {name}: what it does to the learner by {alike:+.2f}, as a reward "
            f"by {paid:+.2f}; {100 * self.entangled:.0f}% of what it does named features could do"
        )

    def summary(self) -> str:
        """The sentences, and the likeliest elements in a table."""
        width = max(len(self.names[j]) for j in self.likely[:8])
        lines = ["What nobody named", "", *self.describe(), ""]
        lines.append(
            f"{'also paid for':<{width}}  {'probability':>11}  {'amount':>8}  {'std err':>8}"
        )
        chance = self.probability
        lines += [
            f"{self.names[j]:<{width}}  {chance * self.shares[j]:>11.3f}  {self.amounts[j]:>8.3f}  "
            f"{self.errors[j]:>8.3f}"
            for j in self.likely[:8]
        ]
        lines += ["", f"rule: {self.rule}; probability of anything hidden: {chance:.3f}"]
        lines += [f"note: {note}" for note in self.notes]
        return printed(lines)

    def to_plain(self) -> dict[str, Any]:
        """As plain values, of which JSON is made."""
        fields = {"format": FORMAT, "format_version": FORMAT_VERSION, **vars(self)}
        said = {"found": self.found, "probability": self.probability, "best": self.best}
        return dict(plain({**fields, **said, "sentences": list(self.describe())}))

    def to_json(self) -> str:
        """As JSON; not-a-number becomes null."""
        return json.dumps(self.to_plain(), indent=1, allow_nan=False)

    @classmethod
    def from_plain(cls, raw: Any) -> Unexplained:
        """From the values of `to_plain`; what is malformed raises what `read_json` understands."""
        check_format(raw, FORMAT, FORMAT_VERSION, "unexplained reward")
        names = tuple(str(name) for name in raw["names"])
        features = tuple(str(name) for name in raw["feature_names"])
        k, q, n = len(names), len(features), len(raw["centres"][0])
        shares = finite("shares", raw["shares"], (k,))
        if (shares < 0).any() or not 0.99 < shares.sum() < 1.01 or not q:
            raise ValueError("shares must be probabilities that sum to one")
        centres = np.array(raw["centres"], dtype=float)
        if centres.shape != (k, n):
            raise ValueError(f"expected centres of shape {(k, n)}, not {centres.shape}")
        return cls(
            gain=float(raw["gain"]),
            names=names,
            centres=centres,
            discrete=bool(raw["discrete"]),
            shares=shares,
            amounts=finite("amounts", raw["amounts"], (k,)),
            errors=finite("errors", raw["errors"], (k,)),
            feature_names=features,
            alike=finite("cosines", raw["alike"], (q,)),
            correlations=finite("correlations", raw["correlations"], (q,)),
            entangled=float(raw["entangled"]),
            rule=str(raw["rule"]),
            notes=tuple(str(note) for note in raw["notes"]),
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> Unexplained:
        """Read what `to_json` wrote; raises FormatError on anything else."""
        return read_json(text, cls.from_plain, "unexplained reward")

    def save(self, path: str | PathLike[str]) -> None:
        """Write it as JSON, atomically."""
        write_atomically(Path(path), self.to_json().encode())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Unexplained:
        """Read what `save` wrote."""
        return load_json(path, cls.from_json, "unexplained reward")


def _odds(gain: float) -> str:
    """Log odds as odds."""
    if abs(gain) > np.log(1e6):
        return "over a million to one" if gain > 0 else "one to over a million"
    ratio = np.exp(abs(gain))
    number = f"{ratio:.2g}" if ratio < 100 else f"{ratio:.0f}"
    return f"{number} to one" if gain >= 0 else f"one to {number}"
