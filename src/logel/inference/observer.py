"""Watching a learner live: an estimate after every stage, at a cost that does not grow.

Everything that touches trajectories or parameters is done once, when a stage arrives: cloning, the
Jacobian, and the step from the stage before, compressed to (q + 1) x (q + 1) numbers, for the
episodes as they are and for every replicate of the intervals. What is kept:

* of the last stage, its parameters, information and Jacobian;
* sums for the gauge;
* one small factor per step, for its own rate and fit. Solving these again is the only work that
  grows with the number of steps, and neither trajectories nor the d parameters enter it;
* one factor per replicate if all rates are equal or known; one per replicate and step if each
  step has a rate of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from logel.data.history import LearningHistory
from logel.data.stage import Episode, Signature, Stage, check_parameters, check_stage
from logel.errors import HistoryError, LogelError, OptionError
from logel.inference.accounts import (
    Account,
    Settled,
    StageRecord,
    Update,
    basis_of,
    best_level,
    gains_over_nothing,
    normalised,
    record_stage,
    replicate_weights,
    replicated,
    spread_from,
    stage_update,
    step_metrics,
)
from logel.inference.estimate import RewardEstimate
from logel.inference.gauge import Gauge, JacobianMoments, explain_grams
from logel.inference.gauge_sums import GaugeSums
from logel.inference.infer import METHODS
from logel.inference.method import Method
from logel.inference.noise import IdentityMetric
from logel.inference.regress import Steps
from logel.inference.spread import NoiseParts, StageSample, joined, step_between
from logel.inference.two_step_estimate import CloneFacts, Report
from logel.policies.base import Policy
from logel.policies.cloning import Clone, CloneMethod, clone_stage, starting_point
from logel.rewards.features import feature_names, featured
from logel.rules.updates import Learner
from logel.types import FeatureFunction, Float

# A movement smaller than this is what rounding leaves of a converged fit.
_STILL = 1e-9


@dataclass
class _Level:
    """The steps seen so far at one noise level of the metric."""

    steps: list[Steps] = field(default_factory=list)
    log_determinants: list[float] = field(default_factory=list)
    replicates: list[list[Steps]] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class _Last:
    """The stage seen last."""

    record: StageRecord
    update: Update
    sample: StageSample
    weights: Float | None


class Observer:
    """Recovers the reward while the learner learns.

    After every stage the estimate is the one `infer_reward` would give for the history so far
    with the same method and seed.

    Args:
        policy: Family of the learner's policies (or of the clones that stand for them).
        gamma: The learner's discount factor, in [0, 1).
        method: A two-step method by name, or a `Method`. Not offered, since each would need all
            earlier stages again: the learners "adam" and "auto", and `neighbours`.
        features: Maps (observations, actions, next_observations) to reward features (N, q);
            needed when the episodes carry none.
        feature_names: q names; numbered when missing.
        use_parameters: Use the stages' parameters if they have them, instead of cloning.
        intervals: Whether to compute intervals and clones' held-out fit.
        seed: As in `infer_reward`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        gamma: float,
        method: str | Method = "two-step",
        features: FeatureFunction | None = None,
        feature_names: Sequence[str] | None = None,
        use_parameters: bool = True,
        intervals: bool = True,
        seed: int = 0,
    ) -> None:
        if not 0 <= gamma < 1:
            raise OptionError(f"gamma must be in [0, 1), but is {gamma}")
        self.policy, self.gamma, self.features, self.seed = policy, gamma, features, seed
        self.name, chosen = _method(method)
        self._groups = chosen.n_groups if intervals or chosen.needs_groups else 1
        if not intervals:
            chosen = replace(chosen, n_groups=0, clone=replace(chosen.clone, holdout=0.0))
        self.method = chosen
        self._given_names = feature_names
        self._use_parameters = use_parameters
        self._rng = np.random.default_rng(seed)
        self._start = starting_point(policy, self._rng)
        self._names: tuple[str, ...] = ()
        self._signature: Signature | None = None
        self._known = False
        self._rates: list[float] | None = None
        self._clones: list[CloneFacts] = []
        self._seen = GaugeSums(gamma)
        self._last: _Last | None = None
        self._n_stages = 0
        self._levels: list[_Level] = []
        self._grams: list[Float] = []
        self._moved = False

    @property
    def n_stages(self) -> int:
        """Number of stages seen."""
        return self._n_stages

    def update(
        self,
        stage: Stage | Sequence[Episode],
        *,
        parameters: npt.ArrayLike | None = None,
        learning_rate: float | None = None,
    ) -> RewardEstimate | None:
        """Take in the next stage.

        Args:
            stage: Its episodes.
            parameters: The policy's flat parameters, if known (or in the stage itself); for all
                stages or none.
            learning_rate: Rate of the step that led to this stage, if known; for all but the
                first stage, or none.

        Returns:
            The estimate from all stages so far; None while there is nothing to infer from: at the
            first stage, and as long as the policy has not moved or no feature varies.
        """
        t = self._n_stages
        if not isinstance(stage, Stage):
            stage = Stage.from_episodes(stage)
        if parameters is not None:
            stage = replace(stage, parameters=np.asarray(parameters))
        self._check(stage, learning_rate)
        try:
            stage = featured(stage, self.features, t)
            last = self._take_in(stage)
        except LogelError as error:
            if isinstance(error, OptionError):
                raise
            raise type(error)(f"stage {t}: {error}") from None
        if self._last is not None:
            self._add_step(self._last, last, learning_rate)
        self._last = last
        self._n_stages += 1
        gauge = self._seen.gauge(self._names, bootstrap=False)
        if not self._moved or gauge.n == len(self._names):
            return None
        return self._estimate(gauge)

    def _check(self, stage: Stage, learning_rate: float | None) -> None:
        t = self._n_stages
        if t == 0:
            history = LearningHistory.from_stages([stage], feature_names=self._given_names)
            self._history_names = history
            self._signature = stage.signature
            self._n_parameters = stage.n_parameters
            self._known = self._use_parameters and stage.parameters is not None
            if learning_rate is not None:
                raise OptionError("no step leads to the first stage: give it no learning_rate")
            return
        assert self._signature is not None
        check_stage(stage, t, self._signature)
        check_parameters(stage, t, self._n_parameters)
        if t > 1 and (learning_rate is None) != (self._rates is None):
            raise OptionError(
                f"stage {t}: learning rates must be given for every step or for none of them"
            )
        if learning_rate is not None and not learning_rate > 0:
            raise HistoryError(
                f"learning rates must be positive, but step {t - 1} has one of {learning_rate}"
            )

    def _take_in(self, stage: Stage) -> _Last:
        """Clone the stage, estimate its Jacobian, and keep what the next step needs."""
        t, method = self._n_stages, self.method
        cloned: Clone | None = None
        if self._known:
            assert stage.parameters is not None
            parameters = stage.parameters.astype(float)
            if len(parameters) != self.policy.n_parameters:
                raise HistoryError(
                    f"the policy has {len(parameters)} parameters, but the family "
                    f"{self.policy.n_parameters}: pass the matching family, or "
                    "use_parameters=False to clone"
                )
        else:
            cloned = clone_stage(stage, self.policy, method.clone, start=self._start, rng=self._rng)
            parameters = self._start = cloned.parameters
        record = record_stage(
            stage,
            self.policy,
            parameters,
            cloned,
            method,
            gamma=self.gamma,
            n_groups=max(self._groups, 1),
        )
        if t == 0:
            self._groups = len(record.jacobian.groups)
            q = record.jacobian.mean.shape[1]
            self._names = feature_names(self._history_names, self.features, q)
            del self._history_names
            self._jacobian_moments = JacobianMoments.empty(q)
        elif len(record.jacobian.groups) < self._groups:
            raise HistoryError(
                f"{stage.n_episodes} episodes cannot be split into the {self._groups} groups of "
                "the stages before: observe as many in every stage, or lower n_groups"
            )
        self._seen.add(stage)
        if cloned is not None:
            self._clones.append(CloneFacts.of(cloned, method.clone.prior_strength))
        update = stage_update(record, Learner(method.learner))
        grouped = self._groups if method.n_groups or method.needs_groups else 0
        sample = record.sample(update.design, method, grouped)
        weights = None
        if self._replicated:
            weights = replicate_weights(method, sample.n_groups, t, self.seed)
        return _Last(record, update, sample, weights)

    @property
    def _wanted(self) -> bool:
        """Whether intervals are to be had."""
        tellable = self._known or self.method.clone.method is not CloneMethod.ADAM
        return self.method.n_groups > 2 and tellable

    @property
    def _replicated(self) -> bool:
        """Whether something asks for replicates."""
        return self._groups > 2 and (self._wanted or self.method.debias == "auto")

    def _add_step(self, before: _Last, after: _Last, rate: float | None) -> None:
        """Compress the step between two stages, as it is and as the replicates see it."""
        method = self.method
        if rate is not None:
            self._rates = [*(self._rates or []), float(rate)]
        basis = np.eye(len(self._names))
        delta = after.sample.parameters - before.sample.parameters
        self._moved |= bool((np.abs(delta) > _STILL).any())
        self._jacobian_moments.add(before.record.jacobian, 1.0 if rate is None else rate)
        both = np.column_stack([before.sample.design.mean, delta])
        self._grams.append(IdentityMetric().grams(both))
        metrics = step_metrics(before.record, after.record, before.update, method)
        self._levels = self._levels or [_Level() for _ in metrics]
        for level, metric in zip(self._levels, metrics, strict=True):
            parts = None
            if method.needs_groups and self._groups > 2:
                parts = NoiseParts.of(before.sample, after.sample, metric)
            level.steps.append(
                step_between(before.sample, after.sample, metric, basis=basis, parts=parts)
            )
            level.log_determinants.append(metric.log_determinant)
            if before.weights is None or after.weights is None:
                continue
            level.replicates = level.replicates or [[] for _ in before.weights]
            for mine, *weights in zip(level.replicates, before.weights, after.weights, strict=True):
                step = step_between(
                    before.sample,
                    after.sample,
                    metric,
                    basis=basis,
                    weights=(weights[0], weights[1]),
                    parts=parts if method.debias else None,
                )
                mine.append(step)
                if method.shared_rate or rate is not None:
                    mine[:] = [_folded(mine, 1.0 if rate is None else rate)]

    def _estimate(self, gauge: Gauge) -> RewardEstimate:
        """Solve what has been compressed so far."""
        method = self.method
        rates = None if self._rates is None else np.array(self._rates)
        gauge = replace(gauge, weak=self._jacobian_moments.weak_directions(gauge.identified))
        basis = basis_of(gauge, method)
        account = best_level(
            [
                Account.of(
                    joined(level.steps).projected(basis),
                    np.array(level.log_determinants),
                    basis,
                    rates,
                    method,
                    i,
                )
                for i, level in enumerate(self._levels)
            ]
        )
        learner = Learner(method.learner)
        gains = {}
        if method.process_noise:
            gains = gains_over_nothing({learner: account}, rates, method)
        found, spread = Settled.alone(account), None
        if self._replicated:
            folded = method.shared_rate or rates is not None
            found = replicated(
                [
                    [step.projected(basis) for step in steps]
                    for steps in self._levels[account.level].replicates
                ],
                account,
                np.ones(1) if folded else None,
                method,
                known=rates is not None,
                own_rates=rates,
            )
            spread = spread_from(found, rates, method, self.seed) if self._wanted else None
        account = found.account
        weights, size = normalised(account.weights, known=rates is not None)
        fit = explain_grams(
            np.stack(self._grams),
            weights,
            account.solution.learning_rates * size,
            n_parameters=self.policy.n_parameters,
            fitted=len(self._names) - gauge.n,
        )
        told = Report(
            self.name,
            method,
            self.gamma,
            self.seed,
            self._names,
            gauge,
            True,
            None if self._known else tuple(self._clones),
            learner,
            gains,
            self._seen.moments.offset_notes(self._names, centred=False),
        )
        return told.estimate(account, fit, rates, spread)


def _method(method: str | Method) -> tuple[str, Method]:
    name = method if isinstance(method, str) else "custom"
    if isinstance(method, str):
        named = METHODS.get(method)
        if not isinstance(named, Method):
            offered = [n for n, m in METHODS.items() if isinstance(m, Method)]
            raise OptionError(
                f"an observer cannot use method {method!r}: choose one of {', '.join(offered)}"
            )
        method = named
    if method.learner in (Learner.ADAM, Learner.AUTO) or method.neighbours:
        raise OptionError(
            "the learners 'adam' and 'auto' and neighbouring stages need all earlier stages "
            "again: use infer_reward for them"
        )
    return name, method


def _folded(steps: Sequence[Steps], rate: float) -> Steps:
    """What was folded so far (if anything) and a new step, at its rate, as one."""
    new = steps[-1].merged(np.array([rate]))
    # With fewer parameters than features a single step has fewer rows than several.
    missing = new.n_features + 1 - new.design.shape[1]
    new = replace(
        new,
        design=np.pad(new.design, ((0, 0), (0, missing), (0, 0))),
        delta=np.pad(new.delta, ((0, 0), (0, missing))),
    )
    if len(steps) == 1:
        return new
    total = steps[0].n_parameters + new.n_parameters
    return replace(joined([steps[0], new]).merged(np.ones(2)), n_parameters=total)
