"""Parameters that move along the Jacobians of their own episodes: the paper's inference.

Read beside the paper: every stage's policy is cloned (its equation for behavioural cloning) and its
Jacobian estimated (section "Approximate gradient"); two closed forms alternate (section "Recovering
learning rates and reward weights"). What goes beyond the paper is an option of `Method` and off
unless asked for.

Everything that touches trajectories or parameters is done once, when a stage arrives, and the step
that leads to it is compressed: for the episodes as they are and for every replicate of the
intervals. So the same object serves a whole history and a learner that is watched live.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from logel.data.packed import Packed
from logel.data.stage import Stage
from logel.errors import HistoryError
from logel.inference.arrow import disorder, less_decided, order_gain, repeated_in, sketched
from logel.inference.found import Found, path_words
from logel.inference.gauge import Gauge, JacobianMoments, explain_grams
from logel.inference.method import Method
from logel.inference.noise import IdentityMetric
from logel.inference.null import shortness, turned_gain
from logel.inference.regression import (
    Regression,
    less_error,
    normalised,
    solve_steps,
    spread_from,
)
from logel.inference.spread import Spread, bootstrap_weights, jackknife_weights
from logel.inference.stages import (
    NoiseParts,
    StageRecord,
    record_stage,
    replicated_steps,
    step_between,
    step_metrics,
)
from logel.inference.steps import PackedSteps, Steps
from logel.policies.base import Policy
from logel.policies.cloning import Clone
from logel.rules.rates import Rates
from logel.types import Array, Float, Progress

# A movement smaller than this is what rounding leaves of a converged fit.
_STILL = 1e-9


def _recorded(
    policy: Policy,
    method: Method,
    stage: Stage,
    known: tuple[Float, Clone | None],
    *,
    gamma: float,
    n: int,
) -> StageRecord:
    return record_stage(stage, policy, *known, method, gamma=gamma, n_groups=n)


@dataclass
class _Level:
    """The steps seen so far at one noise level of the metric."""

    steps: PackedSteps = field(default_factory=PackedSteps)
    log_determinants: Packed = field(default_factory=Packed)
    # All replicates of the first step, then of the second; or those of all steps as one.
    replicates: PackedSteps = field(default_factory=PackedSteps)
    folded: Steps | None = None

    def add_replicates(self, new: Steps, *, fold: bool, rate: float | None) -> None:
        """Put a step's replicates behind those of the steps before, or into one with them."""
        if not fold:
            self.replicates.add(new)
            return
        new = new.at_rate(1.0 if rate is None else rate)
        self.folded = new if self.folded is None else self.folded.beside(new)


class ParameterSteps:
    """Stages taken in one after the other, and what they say about the weights so far.

    What is kept: of the last stage, its parameters, information and Jacobian; sums for the gauge;
    one small factor per step and noise level; one factor per replicate if all rates are equal or
    known, one per replicate and step if each step has a rate of its own.

    Args:
        policy: The family.
        method: The choices.
        gamma: Discount factor.
        n_groups: Groups of episodes kept apart, of those that every stage has.
        known: Whether the parameters are known, not cloned.
        intervals: Whether intervals are wanted.
        seed: Of the bootstrap and the null test.
    """

    def __init__(
        self,
        policy: Policy,
        method: Method,
        *,
        gamma: float,
        n_groups: int,
        known: bool,
        intervals: bool,
        seed: int,
    ) -> None:
        self.policy, self.method, self.gamma, self.seed = policy, method, gamma, seed
        # Intervals of clones that are no maximum would be wrong ones.
        self.wanted = intervals and n_groups > 2 and (known or method.tellable)
        self.known = known
        self.n_groups = n_groups if intervals or method.needs_groups else 1
        self.moved = False
        self._rates = Packed()
        self.weak: JacobianMoments | None = None
        self._last: StageRecord | None = None
        self._levels: list[_Level] = []
        self._grams, self._seen = Packed(), 0
        # Design and movement of every step, to see what comes back; the ends of the history.
        self._sketches = Packed()
        self._ends: list[tuple[Array, Float]] = []

    @property
    def rated(self) -> bool:
        """Whether the steps so far came with their rates."""
        return len(self._rates) > 0

    @property
    def _replicated(self) -> bool:
        """Whether something asks for replicates."""
        return self.n_groups > 2 and (self.wanted or self.method.debias == "auto")

    @property
    def recorder(self) -> Callable[[Stage, tuple[Float, Clone | None]], StageRecord]:
        """Makes a record of a stage with features, its parameters and its clone, if it has one."""
        return partial(_recorded, self.policy, self.method, gamma=self.gamma, n=self.n_groups)

    def take(self, record: StageRecord, rate: float | None = None) -> None:
        """Take in a stage, and the step that led to it at a known or unknown rate."""
        if (n := record.sample.n_groups) < self.n_groups:
            raise HistoryError(
                f"{n} episodes cannot be split into the {self.n_groups} groups of "
                "the stages before: observe as many in every stage, or lower n_groups"
            )
        self._ends = [*self._ends[:1], (record.seen, record.sample.parameters)]
        if self._last is not None:
            self._add_step(self._last, record, rate)
        self._last = record

    def _add_step(self, before: StageRecord, after: StageRecord, rate: float | None) -> None:
        """Compress the step between two stages, as it is and as the replicates see it."""
        first, second = before.sample, after.sample
        if rate is not None:
            self._rates.add([rate])
        delta = second.parameters - first.parameters
        self.moved |= bool((np.abs(delta) > _STILL).any())
        self.weak = self.weak or JacobianMoments.empty(first.design.mean.shape[1])
        self.weak.add(first.design, 1.0 if rate is None else rate)
        both = np.column_stack([first.design.mean, delta])
        self._grams.add(IdentityMetric().grams(both)[None])
        self._sketches.add(sketched(both)[None])
        # Parameters that no episode speaks of and that stay where they are say nothing about the
        # direction of the rest: states of a table that nobody visits.
        moves, predicted = np.abs(delta) > _STILL, first.design.mean.any(axis=1)
        self._seen += int((moves | predicted).sum())
        metrics = step_metrics(before, after, self.method)
        self._levels = self._levels or [_Level() for _ in metrics]
        parts: list[NoiseParts | None] = [None for _ in metrics]
        if self.method.needs_groups and self.n_groups > 2:
            parts = [NoiseParts.of(first, second, metric) for metric in metrics]
        for level, metric, part in zip(self._levels, metrics, parts, strict=True):
            level.steps.add(step_between(first, second, metric, parts=part))
            level.log_determinants.add([metric.log_determinant])
        if self._replicated:
            weights = self._replicate_weights(first.n_groups, len(self._grams) - 1)
            kept = parts if self.method.debias else [None for _ in metrics]
            steps = replicated_steps(first, second, metrics, weights=weights, parts=kept)
            for level, mine in zip(self._levels, steps, strict=True):
                level.add_replicates(mine, fold=self._folds(rate is not None), rate=rate)

    def _folds(self, rated: bool) -> bool:
        """Whether all steps can stand as one, the rates being equal or known."""
        return rated or self.method.rates is Rates.SHARED

    def _replicate_weights(self, n_groups: int, t: int) -> list[tuple[Float, Float]]:
        """Weights of the groups of stages t and t + 1 in every replicate."""
        if self.method.uncertainty == "jackknife":
            weights = jackknife_weights(n_groups)
            return list(zip(weights, weights, strict=True))
        # Stages are resampled by themselves.
        both = (
            bootstrap_weights(n_groups, self.method.n_draws, np.random.default_rng([self.seed, at]))
            for at in (t, t + 1)
        )
        return list(zip(*both, strict=True))

    def with_weak(self, gauge: Gauge) -> Gauge:
        """The gauge with directions whose effect is no larger than the Jacobians' noise."""
        assert self.weak is not None
        return replace(gauge, weak=self.weak.weak_directions(gauge.identified))

    def find(self, gauge: Gauge, report: Progress | None = None) -> Found:
        """Weights, rates and their uncertainty from the steps seen so far."""
        rates = self._known_rates
        found, spread = self._best_level(gauge, rates), None
        if self._replicated:
            found, spread = self._with_replicates(found, rates, report)
        weights, size = found.normalised(known=rates is not None)
        own_rates = rates if rates is not None else self._assumed_rates
        solution, seen = found.solution, self._sketches.rows
        ordered = order_gain(np.cumsum(np.pad(seen[:, :, -1], ((1, 0), (0, 0))), axis=0))
        gain = turned_gain(replace(found.steps, noise=None), own_rates, seed=self.seed)
        return Found(
            weights=found.weights,
            rates=solution.learning_rates,
            fit=explain_grams(
                self._grams.rows,
                weights,
                solution.learning_rates * size,
                fitted=len(gauge.feature_names) - gauge.n,
                n_parameters=max(self._seen / len(self._grams), 1.0),
            ),
            gain=min(gain, ordered),
            words=self._words(found),
            rule="gradient",
            solved=solution.status,
            trace=solution.objective_trace,
            rank=solution.rank,
            condition=solution.condition,
            keeps_scale=rates is not None,
            spread=spread,
            unlearns=self._unlearns(),
            repeats=repeated_in(seen, solution.learning_rates, found.weights, noisy=True),
            notes=(
                *shortness(len(self._grams)),
                *disorder(ordered),
                *([found.noise_note()] if self.method.debias else []),
            ),
        )

    def _unlearns(self) -> bool:
        (first, start), (last, end) = self._ends
        return less_decided(self.policy, (start, end), (first, last))

    def _best_level(self, gauge: Gauge, rates: Float | None) -> Regression:
        """The steps solved at the noise level under which the movements are most likely."""
        # Non-negativity is about the features themselves: a rotated basis would lose it.
        everything = np.eye(len(gauge.feature_names))
        basis = everything if self.method.nonnegative else gauge.identified
        fits = []
        for i, level in enumerate(self._levels):
            steps = level.steps.steps.projected(basis)
            logs = level.log_determinants.rows
            fits.append(Regression.of(steps, logs, basis, rates, self.method, i))
        return fits[0] if len(fits) == 1 else max(fits, key=lambda fit: fit.log_likelihood)

    @property
    def _known_rates(self) -> Float | None:
        return self._rates.rows if self.rated else None

    @property
    def _assumed_rates(self) -> Float | None:
        """Equal ones if they are shared; None if every step has its own."""
        return np.ones(len(self._grams)) if self.method.rates is Rates.SHARED else None

    def _with_replicates(
        self, found: Regression, rates: Float | None, report: Progress | None
    ) -> tuple[Regression, Spread | None]:
        """Solve every replicate's steps as the estimate was, noise subtracted or not."""
        level = self._levels[found.level]
        every = level.replicates.steps if level.folded is None else level.folded
        every = every.projected(found.basis)
        folded = None if level.folded is None else np.ones(1)
        n = every.n_steps // (len(self._grams) if folded is None else 1)
        known, method = rates is not None, self.method

        def solved(fit: Regression, *, plain: bool) -> Float:
            weights = []
            for r in range(n):
                mine = every.part(slice(r, None, n))
                steps = replace(mine, noise=None) if plain else mine
                again = solve_steps(steps, folded, method, ridge=fit.ridge, tolerance=1e-8)[0]
                weights.append(normalised(fit.basis @ again.weights, known=known)[0])
                if report is not None:
                    report("intervals", len(weights), n)
            return np.stack(weights)

        replicates, bias = solved(found, plain=False), np.zeros(len(found.basis))
        if method.debias == "auto" and found.steps.noise is not None:
            plain = found.uncorrected(rates, method)
            found, replicates, bias = less_error(
                found, replicates, plain, solved(plain, plain=True), method, known=known
            )
        if not self.wanted:
            return found, None
        return found, spread_from(found, replicates, bias, method, self.seed, known=known)

    def _words(self, found: Regression) -> str:
        method = self.method
        parts = [
            path_words(method, known=self.known),
            f"{method.estimator} with {method.baseline} baseline",
            "one shared rate" if method.rates is Rates.SHARED else "one rate per step",
        ]
        if method.metric == "noise" or (method.metric == "fisher" and not self.known):
            parts.append(f"{method.metric.capitalize()} metric")
        if found.steps.noise is not None:
            parts.append("Jacobian noise subtracted")
        if isinstance(method.ridge, str):
            parts.append(f"ridge {found.ridge:.2g} by evidence")
        return ", ".join(parts)
