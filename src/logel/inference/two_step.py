"""The two-step inference for any policy family: clone, Jacobians, solve.

Read beside the paper: clone the policies (its equation for behavioural cloning), estimate the
Jacobians (section "Approximate gradient"), alternate the two closed forms (section "Recovering
learning rates and reward weights"). What goes beyond the paper is an option of `Method` and off
unless asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from logel.data.history import LearningHistory
from logel.errors import LogelError, OptionError
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
from logel.inference.gauge import FAR_LEVEL, check_movement, explain, find_gauge
from logel.inference.gauge_sums import GaugeSums
from logel.inference.method import Method
from logel.inference.neighbours import pooled_jacobians
from logel.inference.noise import Metric
from logel.inference.regress import Steps
from logel.inference.spread import NoiseParts, StageSample, joined, step_between
from logel.inference.two_step_estimate import CloneFacts, Report
from logel.policies.base import Policy
from logel.policies.cloning import ClonedPath, CloneMethod, known_or_cloned
from logel.rewards.features import feature_names, featured
from logel.rules.updates import Learner, adam
from logel.types import FeatureFunction, Float, Progress
from logel.worlds.own_episodes import Baseline

logger = logging.getLogger(__name__)
# Rounds in which Adam's diagonal and the weights are refreshed in turn.
_ADAM_ROUNDS = 4


def infer_two_step(
    history: LearningHistory,
    policy: Policy,
    *,
    name: str,
    method: Method,
    gamma: float,
    features: FeatureFunction | None,
    use_parameters: bool,
    intervals: bool,
    seed: int,
    report: Progress,
) -> RewardEstimate:
    """See `logel.inference.infer.infer_reward` for the arguments."""
    n_groups = method.n_groups if intervals or method.needs_groups else 1
    if not intervals:
        method = replace(method, n_groups=0, clone=replace(method.clone, holdout=0.0))
    parameters, path = known_or_cloned(
        history,
        policy,
        method.clone,
        use_parameters=use_parameters,
        rng=np.random.default_rng(seed),
        progress=report,
    )
    seen = GaugeSums(gamma)
    for t, stage in enumerate(history):
        seen.add(featured(stage, features, t))
        report("reading", t + 1, len(history))
    # The paper's own estimators have no baseline in time and take features as they come. That
    # baseline takes constants out, but for digits, and noise where lengths differ.
    centred = Baseline(method.baseline) is Baseline.TIME
    offset = seen.moments.offset(beyond=FAR_LEVEL) if centred else None
    records = _records(
        history, policy, parameters, path, method, max(n_groups, 1), gamma, features, offset, report
    )
    jacobians = [record.jacobian for record in records]
    names = feature_names(history, features, jacobians[0].mean.shape[1])
    rates = history.learning_rates
    delta = np.diff(parameters, axis=0)
    check_movement(delta)
    assumed = np.ones(len(delta)) if rates is None else rates
    gauge = find_gauge(jacobians[:-1], assumed, seen.gauge(names, bootstrap=False))
    basis = basis_of(gauge, method)

    enough = min(len(jacobian.groups) for jacobian in jacobians)
    choice = _choose_learner(records, basis, rates, method, enough)
    found, spread = Settled.alone(choice.account), None
    # Three steps of Adam do not answer to the data as a maximum does: no interval is better than
    # a wrong one.
    tellable = path is None or path.config.method is not CloneMethod.ADAM
    wanted = method.n_groups > 2 and tellable
    if enough > 2 and (wanted or method.debias == "auto"):
        steps = _replicated_steps(choice, method, seed, report)
        known = rates is not None
        found = replicated(steps, choice.account, rates, method, known=known, report=report)
        logger.info("intervals: solved for %d replicates of the episodes", len(steps))
        spread = spread_from(found, rates, method, seed) if wanted else None
    account = found.account
    weights, size = normalised(account.weights, known=rates is not None)
    design = np.stack([sample.design.mean for sample in choice.samples[:-1]])
    own_rates = account.solution.learning_rates * size
    fit = explain(delta, design, weights, own_rates, fitted=len(names) - gauge.n)
    facts = None
    if path is not None:
        facts = [CloneFacts.of(c, path.config.prior_strength) for c in path.clones]
    told = Report(
        name,
        method,
        gamma,
        seed,
        names,
        gauge,
        history.complete,
        facts,
        choice.learner,
        choice.gains,
        seen.moments.offset_notes(names, centred=centred),
    )
    return told.estimate(account, fit, rates, spread)


def _records(
    history: LearningHistory,
    policy: Policy,
    parameters: Float,
    path: ClonedPath | None,
    method: Method,
    n_groups: int,
    gamma: float,
    features: FeatureFunction | None,
    offset: Float | None,
    report: Progress,
) -> list[StageRecord]:
    """Every stage (the last one's Jacobian serves only the intervals), streamed."""
    records: list[StageRecord] = []
    for t, stage in enumerate(history):
        cloned = None if path is None else path.clones[t]
        try:
            stage = featured(stage, features, t, offset)
            records.append(
                record_stage(
                    stage, policy, parameters[t], cloned, method, gamma=gamma, n_groups=n_groups
                )
            )
        except LogelError as error:
            if isinstance(error, OptionError):
                raise
            raise type(error)(f"stage {t}: {error}") from None
        logger.info(
            "stage %d: Jacobian from %d episodes, %d steps", t, stage.n_episodes, stage.n_steps
        )
        report("Jacobians", t + 1, len(history))
    if method.neighbours:
        pooled = pooled_jacobians(
            lambda t: featured(history[t], features, t, offset),
            policy,
            parameters,
            [record.jacobian for record in records],
            reach=method.neighbours,
            gamma=gamma,
            baseline=method.baseline,
            report=report,
        )
        records = [replace(r, jacobian=p) for r, p in zip(records, pooled, strict=True)]
    return records


def _updates(
    records: Sequence[StageRecord], learner: Learner, weights: Float | None
) -> list[Update]:
    """The update of every stage; Adam's need weights."""
    plain = [stage_update(record, learner) for record in records]
    if learner is not Learner.ADAM or weights is None:
        return plain
    scaled = adam([update.design for update in plain], weights)
    result = []
    for update, (design, scale) in zip(plain, scaled, strict=True):
        noise = None if update.noise is None else update.noise / scale / scale[:, None]
        result.append(Update(design, noise))
    return result


@dataclass(frozen=True, eq=False)
class _Choice:
    """The update rule taken, its account, and what the replicates need of it."""

    learner: Learner
    account: Account
    samples: Sequence[StageSample]
    metrics: Sequence[Metric]
    parts: Sequence[NoiseParts] | None
    gains: Mapping[str, float] = field(default_factory=dict)


def _choose_learner(
    records: Sequence[StageRecord],
    basis: Float,
    rates: Float | None,
    method: Method,
    n_groups: int,
) -> _Choice:
    """Account for the steps by the asked update rule, or by the one that predicts best."""
    asked = Learner(method.learner)
    rules = [asked] if asked is not Learner.AUTO else [r for r in Learner if r is not asked]
    choices: dict[str, _Choice] = {}
    for rule in rules:
        weights = None
        for _ in range(_ADAM_ROUNDS if rule is Learner.ADAM else 1):
            updates = _updates(records, rule, weights)
            choice = _account(rule, records, updates, basis, rates, method, n_groups)
            weights = choice.account.weights
        choices[rule] = choice
    gains: dict[str, float] = {}
    if len(choices) > 1 or method.process_noise:
        accounts = {name: choice.account for name, choice in choices.items()}
        gains = gains_over_nothing(accounts, rates, method)
    best = choices[next(iter(gains), rules[0])]
    return replace(best, gains=gains)


def _account(
    rule: Learner,
    records: Sequence[StageRecord],
    updates: Sequence[Update],
    basis: Float,
    rates: Float | None,
    method: Method,
    n_groups: int,
) -> _Choice:
    """Solve under given updates, at the noise level that makes the movements most likely."""
    grouped = n_groups if method.n_groups or method.needs_groups else 0
    samples = [
        record.sample(update.design, method, grouped)
        for record, update in zip(records, updates, strict=True)
    ]
    metrics = [
        step_metrics(before, after, update, method)
        for before, after, update in zip(records[:-1], records[1:], updates[:-1], strict=True)
    ]
    pairs = list(pairwise(samples))
    accounts, all_parts = [], []
    for level, mine in enumerate(zip(*metrics, strict=True)):
        parts: list[NoiseParts] | None = None
        if method.needs_groups and grouped > 2:
            parts = [NoiseParts.of(*pair, m) for pair, m in zip(pairs, mine, strict=True)]
        steps = [
            step_between(*pair, m, basis=basis, parts=None if parts is None else parts[t])
            for t, (pair, m) in enumerate(zip(pairs, mine, strict=True))
        ]
        logs = np.array([m.log_determinant for m in mine])
        accounts.append(Account.of(joined(steps), logs, basis, rates, method, level))
        all_parts.append(parts)
    best = best_level(accounts)
    taken = [m[best.level] for m in metrics]
    return _Choice(rule, best, samples, taken, all_parts[best.level])


def _replicated_steps(
    choice: _Choice, method: Method, seed: int, report: Progress
) -> list[list[Steps]]:
    """The steps for every reweighting of the episodes."""
    samples, parts = choice.samples, choice.parts if method.debias else None
    weights = [
        replicate_weights(method, sample.n_groups, t, seed) for t, sample in enumerate(samples)
    ]
    replicates = []
    for r in range(len(weights[0])):
        steps = [
            step_between(
                samples[t],
                samples[t + 1],
                metric,
                basis=choice.account.basis,
                weights=(weights[t][r], weights[t + 1][r]),
                parts=None if parts is None else parts[t],
            )
            for t, metric in enumerate(choice.metrics)
        ]
        replicates.append(steps)
        report("replicates", r + 1, len(weights[0]))
    return replicates
