"""The answer: reward weights with what is known about them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from logel.data.contents import check_feature_names
from logel.data.folder import package_versions
from logel.data.notebook import estimate_line
from logel.data.store import write_atomically
from logel.errors import OptionError, printed
from logel.inference.export import shares_to_frame, to_frame, to_html, to_inference_data
from logel.inference.gauge import Fit, Gauge
from logel.inference.more_data import Planning
from logel.inference.plots import plot_estimate
from logel.inference.saved import (
    array,
    check_format,
    finite,
    load_json,
    optional,
    plain,
    read_json,
    whole,
)
from logel.inference.shares import LearnerShare, share_lines
from logel.inference.status import Status
from logel.inference.verdict import Verdict, beside_walk, median_explained, verdict_of
from logel.types import FeatureFunction, Float, Progress

if TYPE_CHECKING:
    import pandas as pd

    from logel.data.history import LearningHistory
    from logel.inference.unexplained import Unexplained
    from logel.policies.base import Policy
    from logel.replay.learner import Learner
    from logel.workers import Executor, Workers

FORMAT = "logel-estimate"
# 2 added `planning`; files of version 1 are read as estimates without it. 3 gives every direction
# of the gauge a reason of its own; before, one stood for all. 4 added `learners`.
FORMAT_VERSION = 4


@dataclass(frozen=True, eq=False)
class RewardEstimate:
    """Recovered reward weights.

    Identification: with unknown learning rates only the direction of the weights means something;
    they are scaled to unit norm (`scale` says so). Their sign is fixed by positive learning rates.
    Directions listed in `gauge` are not identified; the weights have no component along them.

    Attributes:
        weights: Shape (q,).
        feature_names: q names.
        learning_rates: Shape (m,), in units that go with the weights.
        covariance: Sampling covariance of the weights, (q, q), or None when it could not be told.
        degrees_of_freedom: Of that covariance.
        scale: "unit norm", or "known learning rates" when the weights carry their own scale.
        status: How the solve ended; its value is a sentence. What the answer amounts to is its
            `verdict`.
        notes: Warnings in plain words.
        gauge: Directions that are not identified.
        fit: Explained movement, lengths and cosines, step by step.
        method: What was done, in words.
        config: Every choice, as plain values.
        objective_trace: Objective after every block update (joint fits: the log evidence after
            every round).
        rank: Numerical rank of the stacked design (joint fits: number of identified directions).
        condition: Its condition number (joint fits: of the weights' posterior, as a design's).
        draws: Posterior draws of the weights, in the same scale, shape (n, q), or None when the
            uncertainty is given by `covariance` alone.
        models: Log evidence of every learner model tried, relative to a random walk; the best
            was used. Empty when the learner model was fixed.
        held_out: Held-out log-likelihood per step of each stage's clone, (m + 1,), or None when
            no stage was cloned by itself.
        versions: Packages that made the estimate.
        planning: What more data would do to the covariance, or None when that was not worked out.
        learners: Each one's part in the answer, where several share it: rates and fit are then
            everyone's in a row. Empty for one learner.
    """

    weights: Float
    feature_names: tuple[str, ...]
    learning_rates: Float
    covariance: Float | None
    degrees_of_freedom: int
    scale: str
    status: Status
    notes: tuple[str, ...]
    gauge: Gauge
    fit: Fit
    method: str
    config: Mapping[str, Any]
    objective_trace: Float
    rank: int
    condition: float
    draws: Float | None = None
    models: Mapping[str, float] = field(default_factory=dict)
    held_out: Float | None = None
    versions: Mapping[str, str] = field(default_factory=package_versions)
    planning: Planning | None = None
    learners: tuple[LearnerShare, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Found, partly determined or not shown, with the reason; derived, never stored."""
        return verdict_of(self)

    @property
    def explained(self) -> Float:
        """Share of the squared movement of each step that is explained, shape (m,)."""
        return self.fit.explained

    @property
    def standard_errors(self) -> Float:
        """Shape (q,); NaN when unknown."""
        if self.covariance is None:
            return np.full(len(self.weights), np.nan)
        return np.sqrt(np.clip(np.diagonal(self.covariance), 0, None))

    def interval(self, level: float = 0.95) -> Float:
        """Lower and upper ends of each weight's confidence interval, shape (q, 2)."""
        if not 0 < level < 1:
            raise OptionError(f"a confidence level lies between 0 and 1, but is {level}")
        if self.draws is not None:
            ends = np.quantile(self.draws, [0.5 - level / 2, 0.5 + level / 2], axis=0).T
            return self._with_poles(ends, level) if self.scale == "unit norm" else ends
        if self.covariance is None:
            return np.full((len(self.weights), 2), np.nan)
        reach = special.stdtrit(self.degrees_of_freedom, 0.5 + level / 2) * self.standard_errors
        return np.stack([self.weights - reach, self.weights + reach], axis=1)

    def _with_poles(self, ends: Float, level: float) -> Float:
        """Extend intervals as far as unit weights go if the cone of likely ones goes there.

        A unit vector's largest component can only be overestimated by its draws; quantiles alone
        would never contain a reward that is a single feature. The unit vector with most of a
        feature is that feature's identified part, and as much as is identified is the most.
        """
        assert self.draws is not None
        if not np.linalg.norm(self.weights) > 0:
            return ends
        reach = float(np.quantile(self.draws @ self.weights, 1 - level))
        most = np.sqrt(np.clip(1 - (self.gauge.directions**2).sum(axis=0), 0, None))
        seen = most > 1e-6
        cosine = self.weights / np.where(seen, most, np.inf)
        up, down = (seen & (sign * cosine >= max(reach, 0.0)) for sign in (1, -1))
        ends = ends.copy()
        ends[up, 1], ends[down, 0] = most[up], -most[down]
        return ends

    def probability_positive(self) -> Float:
        """Probability that each weight is positive, shape (q,); NaN when unknown."""
        if self.draws is not None:
            return np.asarray((self.draws > 0).mean(axis=0) + (self.draws == 0).mean(axis=0) / 2)
        errors = self.standard_errors
        safe = np.where(errors > 0, errors, 1.0)
        below = special.stdtr(max(self.degrees_of_freedom, 1), self.weights / safe)
        certain = (1 + np.sign(self.weights)) / 2
        return np.asarray(np.where(np.isnan(errors), np.nan, np.where(errors > 0, below, certain)))

    def expected_widths(
        self, episodes: float = 2.0, stages: float = 1.0, *, level: float = 0.95
    ) -> Float:
        """Interval widths to expect from more data, shape (q,); NaN when unknown.

        An information bound at the estimate: it takes the recovered weights and rates for the true
        ones, and further stages to tell as much as those seen. Methods differ in what they assume
        about the noise; see `Planning.of`.

        Args:
            episodes: Multiple of the episodes per stage, 1 for as many as were seen.
            stages: Multiple of the number of stages.
            level: Confidence level of the intervals.
        """
        widths = np.diff(self.interval(level), axis=1)[:, 0]
        if self.planning is None:
            return np.full(len(self.weights), np.nan)
        return np.asarray(widths * self.planning.factors(episodes=episodes, stages=stages))

    def plot(self, axes: Any = None, *, level: float = 0.95) -> list[Any]:
        """Draw weights with intervals, explained movement and learning rates.

        Needs the extra `report`. Without three axes a new figure of pyplot's is made; returns them.
        """
        return plot_estimate(self, axes, level=level)

    def to_frame(self, level: float = 0.95) -> pd.DataFrame:
        """The table of `summary` as a pandas frame (needs the extra `report`).

        Columns: feature, weight, std_err, low, high, probability_positive; one row per feature.
        """
        return to_frame(self, level)

    def learners_to_frame(self) -> pd.DataFrame:
        """Every learner's part in an answer that several share (needs the extra `report`).

        One row per learner and feature; the columns are the attributes of `LearnerShare`, with
        `weight`, `low` and `high` from its own history alone. No rows for one learner.
        """
        return shares_to_frame(self)

    def to_inference_data(self, *, n_draws: int = 1000, seed: int = 0) -> Any:
        """Posterior draws of the weights as arviz InferenceData (needs the extra `arviz`).

        `posterior["weights"]` has dimensions chain (of length one: the draws are independent),
        draw and feature. Estimates that carry draws give those; others draw from the Student
        distribution behind their intervals.

        Args:
            n_draws: Number of draws, where the estimate carries none.
            seed: Of those draws.
        """
        return to_inference_data(self, n_draws, seed)

    def summary(self, level: float = 0.95) -> str:
        """A table to paste into a notebook, with notes where the answer needs care."""
        width = max([len(name) for name in self.feature_names] + [len("feature")])
        percent = f"{100 * level:g}%"
        ends = self.interval(level)
        lines = [
            f"Reward weights ({self.scale}), {len(self.learning_rates)} steps, {self.method}",
            f"verdict: {self.verdict}",
            "",
            f"{'feature':<{width}}  {'weight':>9}  {'std err':>9}  {percent + ' interval':>22}",
        ]
        for name, w, se, (low, high) in zip(
            self.feature_names, self.weights, self.standard_errors, ends, strict=True
        ):
            lines.append(f"{name:<{width}}  {w:>9.4f}  {se:>9.4f}  [{low:>9.4f}, {high:>9.4f}]")
        lines += [
            "",
            f"status: {self.status.value}",
            f"rank {self.rank} of {len(self.weights)}, condition number {self.condition:.3g}",
            *self._further_facts(),
            *share_lines(self.learners),
        ]
        lines += [f"gauge: {sentence}" for sentence in self.gauge.describe()]
        lines += [f"note: {note}" for note in self.notes]
        return printed(lines)

    def _further_facts(self) -> Iterator[str]:
        """Lines of the summary that not every answer has."""
        if (share := median_explained(self)) is not None:
            yield f"explained movement: median {share:.3f} of the squared steps"
        if np.isfinite(self.fit.cosines).any():
            yield (
                "cosine of movement and prediction: median "
                f"{np.nanmedian(self.fit.cosines):.3f} (chance level {self.fit.chance:.3f})"
            )
        if self.held_out is not None and np.isfinite(self.held_out).any():
            yield f"clones: held-out log-likelihood {np.nanmean(self.held_out):.4f} per step"
        if self.models:
            order = sorted(self.models.items(), key=lambda item: -item[1])
            gains = ", ".join(f"{name} {gain:+.1f}" for name, gain in order)
            yield f"learner models (log evidence over a random walk{beside_walk(self)}): {gains}"
        if self.planning is not None:
            more = self.planning.factors(episodes=2.0), self.planning.factors(stages=2.0)
            by_episodes, by_stages = (float(np.median(f)) for f in more)
            yield (
                f"planning: intervals {by_episodes:.2f} times as wide with twice the episodes, "
                f"{by_stages:.2f} with twice the stages"
            )

    def unexplained(
        self,
        history: LearningHistory,
        policy: Policy | None = None,
        *,
        features: FeatureFunction | None = None,
        use_parameters: bool = True,
        learner: Learner | None = None,
        world: Any = None,
        progress: Progress | None = None,
        workers: int | Workers | Executor = 1,
    ) -> Unexplained:
        """Look for a reward that no named feature explains: is there any, where, how sure is it?

        The learner's rule is offered one more reward, from a dictionary made of what was observed:
        states of a table, bumps over continuous observations, actions.

        Args:
            history: What the estimate was made from, of one learner.
            policy: As for `infer_reward`, like all that follows.
            features: Of the reward, where the episodes carry none.
            use_parameters: Whether recorded parameters are used.
            learner: For "replay".
            world: What is known of the world.
            progress: Called with (what, done, total) during long work.
            workers: How many processes compute at a time.
        """
        # What it needs knows networks, which readers of estimates do without.
        from logel.inference.hidden import find_unexplained

        return find_unexplained(
            *(history, self.weights, self.config, policy),
            features=features,
            use_parameters=use_parameters,
            learner=learner,
            world=world,
            progress=progress,
            workers=workers,
        )

    def __repr__(self) -> str:
        return estimate_line(self)

    def _repr_html_(self) -> str:
        """The estimate in a notebook: verdict, weights with intervals, status and notes."""
        return to_html(self)

    def to_json(self) -> str:
        """The estimate as JSON; not-a-number becomes null."""
        return json.dumps(self.to_plain(), indent=1, allow_nan=False)

    def to_plain(self) -> dict[str, Any]:
        """The estimate as plain values, of which JSON is made."""
        # The gauge is about the same features.
        gauge = {key: value for key, value in vars(self.gauge).items() if key != "feature_names"}
        fields = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            # For readers of the file; who loads it judges anew.
            "verdict": self.verdict.to_plain(),
            **vars(self),
            "status": self.status.name,
            "gauge": gauge,
            "fit": vars(self.fit),
            "planning": None if self.planning is None else vars(self.planning),
            "learners": [vars(one) for one in self.learners],
        }
        return dict(plain(fields))

    @classmethod
    def from_json(cls, text: str | bytes) -> RewardEstimate:
        """Read what `to_json` wrote; raises FormatError on anything else."""
        return read_json(text, cls.from_plain, "estimate")

    @classmethod
    def from_plain(cls, raw: Any) -> RewardEstimate:
        """From the values of `to_plain`; what is malformed raises what `read_json` understands."""
        check_format(raw, FORMAT, FORMAT_VERSION, "estimate")
        return cls._from_plain(raw)

    @classmethod
    def _from_plain(cls, raw: Mapping[str, Any]) -> RewardEstimate:
        names = tuple(str(name) for name in raw["feature_names"])
        q, m, draws = len(names), len(raw["learning_rates"]), raw["draws"]
        planning = raw["planning"] if raw["format_version"] >= 2 else None
        check_feature_names(names, q)
        if q == 0 or (draws is not None and len(draws) < 2):
            raise ValueError("an estimate has at least one feature and, if any, two draws")
        return cls(
            weights=finite("weights", raw["weights"], (q,)),
            feature_names=names,
            learning_rates=array(raw["learning_rates"], (m,)),
            covariance=optional(raw["covariance"], (q, q)),
            degrees_of_freedom=whole("degrees of freedom", raw["degrees_of_freedom"]),
            scale=str(raw["scale"]),
            status=Status[raw["status"]],
            notes=tuple(str(note) for note in raw["notes"]),
            gauge=_gauge(raw["gauge"], names),
            fit=_fit(raw["fit"], m),
            method=str(raw["method"]),
            config=dict(raw["config"]),
            objective_trace=array(raw["objective_trace"], (len(raw["objective_trace"]),)),
            rank=whole("the rank", raw["rank"]),
            condition=float("inf") if raw["condition"] is None else float(raw["condition"]),
            draws=None if draws is None else finite("draws", draws, (len(draws), q)),
            models={str(k): float(v) for k, v in raw["models"].items()},
            held_out=optional(raw["held_out"], (m + 1,)),
            versions={str(k): str(v) for k, v in raw["versions"].items()},
            planning=None if planning is None else Planning.from_plain(planning, q),
            learners=tuple(LearnerShare.from_plain(one, q) for one in raw.get("learners", ())),
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Write the estimate as JSON, atomically."""
        write_atomically(Path(path), self.to_json().encode())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> RewardEstimate:
        """Read an estimate written by `save`."""
        return load_json(path, cls.from_json, "estimate")


def _gauge(raw: Mapping[str, Any], names: tuple[str, ...]) -> Gauge:
    """Read a gauge; before version 3 one reason stood for all directions."""
    directions, weak = (
        finite(f"the gauge's {name}", raw[name], (len(raw[name]), len(names)))
        for name in ("directions", "weak")
    )
    reasons = [str(r) for r in raw["reasons"]] if "reasons" in raw else str(raw["reason"])
    gauge = Gauge(names, directions, reasons, weak)
    if len(gauge.reasons) != gauge.n:
        raise ValueError(f"{gauge.n} directions of the gauge have {len(gauge.reasons)} reasons")
    return gauge


def _fit(raw: Mapping[str, Any], m: int) -> Fit:
    """Read a fit; lengths, noise and rule came later and may be missing."""
    sizes = {name: optional(raw.get(name), (m,)) for name in ("moved", "predicted", "noise")}
    for name, values in sizes.items():
        if values is not None and (values < 0).any():
            raise ValueError(f"the fit's {name!r} has negative numbers")
    return Fit(
        array(raw["explained"], (m,)),
        array(raw["cosines"], (m,)),
        float(raw["chance"]),
        rule=str(raw.get("rule", "")),
        **sizes,
    )
