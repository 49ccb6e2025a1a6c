"""What one of several learners added to an answer, and whether it agrees with the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from logel.inference.null import CONVINCING
from logel.types import Float


@dataclass(frozen=True, eq=False)
class LearnerShare:
    """One of several learners.

    Attributes:
        name: What it is called.
        n_steps: Steps it was watched for.
        rule: How the reward moves its policy, as likely as not with the weights of all.
        gain: Log odds of a reward over none from its own history, in nats.
        share: Of the evidence, between 0 and 1; all learners' add up to one.
        agreement: How much better the others' weights predict its history than weights in any
            direction would, in nats. Below minus three it contradicts them.
        decisive: Whether the answer rests on it: it has more than half of the evidence, and without
            it the sign of a weight that seemed settled is open.
        weights: From its own history alone, unit norm, shape (q,).
        low: Lower ends of their 95% intervals.
        high: Upper ends.
        without: Weights from all the others, unit norm, shape (q,); zero if there are none.
    """

    name: str
    n_steps: int
    rule: str
    gain: float
    share: float
    agreement: float
    decisive: bool
    weights: Float
    low: Float
    high: Float
    without: Float

    @property
    def contradicts(self) -> bool:
        """Whether its history speaks against the others' weights, at odds of twenty to one."""
        return self.agreement < -CONVINCING

    @classmethod
    def from_plain(cls, raw: Mapping[str, Any], n_features: int) -> LearnerShare:
        """From plain values; raises KeyError, TypeError or ValueError on anything else."""
        if not isinstance(raw["decisive"], bool):
            raise ValueError(f"decisive must be true or false, not {raw['decisive']!r:.40}")
        share = float(raw["share"])
        if not 0 <= share <= 1:
            raise ValueError(f"a learner's share lies between 0 and 1, but is {share}")
        vectors = {}
        for name in ("weights", "low", "high", "without"):
            vectors[name] = np.array(raw[name], dtype=float)
            if vectors[name].shape != (n_features,):
                raise ValueError(f"a learner's {name!r} must have {n_features} numbers")
        return cls(
            name=str(raw["name"]),
            n_steps=int(raw["n_steps"]),
            rule=str(raw["rule"]),
            gain=_number(raw["gain"]),
            share=share,
            agreement=_number(raw["agreement"]),
            decisive=raw["decisive"],
            **vectors,
        )


def _number(value: Any) -> float:
    """A number that may be infinite, which JSON does not know."""
    return float("inf") if value is None else float(value)


def share_notes(learners: tuple[LearnerShare, ...]) -> list[str]:
    """Warnings about single learners."""
    notes = [
        f"'{one.name}' contradicts the others ({one.agreement:+.1f} nats): look at it by itself, "
        "or let learners differ (infer_group)"
        for one in learners
        if one.contradicts
    ]
    return notes + [
        f"'{one.name}' decides the answer: it has {100 * one.share:.0f}% of the evidence, and "
        "without it the sign of a weight is open; watch more learners"
        for one in learners
        if one.decisive
    ]


def share_lines(learners: tuple[LearnerShare, ...]) -> list[str]:
    """A table for summaries; nothing for a learner watched alone."""
    if not learners:
        return []
    width = max(7, *(len(one.name) for one in learners))
    lines = ["", f"{'learner':<{width}}  {'steps':>5}  {'share':>5}  {'agreement':>9}  rule"]
    for one in learners:
        mark = "  contradicts the others" if one.contradicts else ""
        mark += "  decides" if one.decisive else ""
        lines.append(
            f"{one.name:<{width}}  {one.n_steps:>5}  {100 * one.share:>4.0f}%  "
            f"{one.agreement:>+9.1f}  {one.rule}{mark}"
        )
    return lines
