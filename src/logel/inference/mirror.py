"""Mirror descent in function space, from a history to an estimate: `method="mirror"`."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace

import numpy as np

from logel.data.history import OWN_EPISODES, LearningHistory
from logel.errors import IdentificationError, LogelError, OptionError
from logel.inference.estimate import RewardEstimate
from logel.inference.gauge import Fit, Gauge, check_identified, explain, find_gauge
from logel.inference.gauge_sums import GaugeSums
from logel.inference.method import MirrorMethod
from logel.inference.mirror_solve import Answer, solve_movement
from logel.inference.movement import Movement, as_jacobians, project
from logel.inference.regress import Status
from logel.policies.base import Policy
from logel.policies.cloning import ClonedPath, CloneMethod, known_or_cloned
from logel.rewards.features import feature_names, featured
from logel.rules.functions import Basis, StageSums, stage_sums
from logel.rules.rates import Rates
from logel.types import FeatureFunction, Float, Progress
from logel.worlds.critic import ScaleSums

logger = logging.getLogger(__name__)
# Chance that a movement that has nothing to do with any reward is called explained.
_FALSE_ALARM = 0.05


def infer_in_function_space(
    history: LearningHistory,
    policy: Policy,
    *,
    name: str,
    method: MirrorMethod,
    gamma: float,
    features: FeatureFunction | None,
    use_parameters: bool,
    intervals: bool,
    seed: int,
    report: Progress,
) -> RewardEstimate:
    """See `infer_reward` for the arguments."""
    if method.debias is None:
        method = replace(method, debias=not history.metadata.get(OWN_EPISODES, False))
    if not intervals:
        method = replace(method, clone=replace(method.clone, holdout=0.0))
    parameters, path = known_or_cloned(
        history,
        policy,
        method.clone,
        use_parameters=use_parameters,
        rng=np.random.default_rng(seed),
        progress=report,
    )
    if method.rates is None:
        method = replace(method, rates=Rates.SHARED if path is None else Rates.SCHEDULE)
    seen, scale = GaugeSums(gamma), ScaleSums()
    for t, stage in enumerate(history):
        seen.add(featured(stage, features, t))
        scale.add(stage)
        report("reading", t + 1, len(history))
    names = feature_names(history, features, len(seen.moments.scale))
    basis = Basis.choose(policy, method.state_features, scale.scale(), deviations=method.deviations)
    offset = seen.moments.offset()
    sums = _sums(history, basis, parameters, method, gamma, features, offset, report)
    strength = None if path is None else path.config.prior_strength
    movement = project(sums, pool=method.pool, prior_strength=strength)
    if not (np.abs(movement.delta) > 1e-9).any():
        raise IdentificationError(
            "the policies do not move between stages: there is nothing to explain"
        )
    rates = history.learning_rates
    assumed = np.ones(len(movement.delta)) if rates is None else rates
    gauge = seen.gauge(names, bootstrap=method.bootstrap)
    gauge = find_gauge(as_jacobians(movement), assumed, gauge)
    check_identified(gauge)
    answer = solve_movement(movement, gauge, rates, method)
    tellable = path is None or path.config.method is not CloneMethod.ADAM
    known = intervals and tellable and answer.sampling is not None
    weights, rates_found = answer.raw / answer.scale, answer.rates * answer.scale
    fit = explain(
        movement.delta, movement.design, weights, rates_found, fitted=len(names) - gauge.n
    )
    draws = answer.draws(method.n_draws, np.random.default_rng(seed)) if known else None
    covariance = answer.sampling + answer.learner if known and answer.sampling is not None else None
    if draws is not None:
        covariance = np.cov(draws.T).reshape(len(names), -1)
    return RewardEstimate(
        weights=weights,
        feature_names=names,
        learning_rates=rates_found,
        covariance=covariance,
        degrees_of_freedom=answer.degrees_of_freedom if known else 0,
        scale="unit norm" if rates is None else "known learning rates",
        status=(status := _status(answer, gauge)),
        notes=(
            *_notes(history, path, fit, known=known, explained=status is not Status.UNEXPLAINED),
            *seen.moments.offset_notes(names, centred=True),
        ),
        gauge=gauge,
        fit=fit,
        method=_describe(
            name, method, basis, movement, known=path is None, rated=rates is not None
        ),
        config={**asdict(method), "name": name, "gamma": gamma, "seed": seed},
        objective_trace=answer.solution.objective_trace,
        rank=answer.solution.rank,
        condition=answer.solution.condition,
        draws=draws,
        held_out=None if path is None else np.array([c.held_out for c in path.clones]),
        planning=answer.planning if known else None,
    )


def _sums(
    history: LearningHistory,
    basis: Basis,
    parameters: Float,
    method: MirrorMethod,
    gamma: float,
    features: FeatureFunction | None,
    offset: Float | None,
    report: Progress,
) -> list[StageSums]:
    """Every stage in the basis, streamed."""
    result = []
    for t, stage in enumerate(history):
        try:
            result.append(
                stage_sums(
                    basis,
                    featured(stage, features, t, offset),
                    parameters[t],
                    parameters[t + 1] if t + 1 < len(parameters) else None,
                    gamma=gamma,
                    trace=method.trace,
                    bootstrap=method.bootstrap,
                    n_groups=method.n_groups,
                )
            )
        except LogelError as error:
            if isinstance(error, OptionError):
                raise
            raise type(error)(f"stage {t}: {error}") from None
        logger.info(
            "stage %d: advantages from %d episodes, %d steps", t, stage.n_episodes, stage.n_steps
        )
        report("advantages", t + 1, len(history))
    return result


def _status(answer: Answer, gauge: Gauge) -> Status:
    if answer.chance > _FALSE_ALARM or not np.any(answer.raw):
        return Status.UNEXPLAINED
    if answer.solution.status is Status.OK and gauge.n:
        return Status.RANK_DEFICIENT
    return answer.solution.status


def _notes(
    history: LearningHistory, path: ClonedPath | None, fit: Fit, *, known: bool, explained: bool
) -> tuple[str, ...]:
    notes = []
    if not history.complete:
        notes.append("the history's recording was interrupted; these are the stages it has")
    if np.nanmedian(fit.cosines) <= fit.chance:
        notes.append(
            "single steps are predicted no better than by a random direction; only all of them "
            "together show a reward"
            if explained
            else "the prediction is no better than a random direction: do not trust the weights"
        )
    if path is not None and not all(c.converged for c in path.clones):
        unfinished = [t for t, c in enumerate(path.clones) if not c.converged]
        notes.append(f"cloning did not converge at stages {unfinished}: raise max_iterations")
    if not known:
        notes.append(
            "no intervals: they need at least three groups of episodes in every stage, and cloning "
            "by maximum likelihood"
        )
    return tuple(notes)


def _describe(
    name: str, method: MirrorMethod, basis: Basis, movement: Movement, *, known: bool, rated: bool
) -> str:
    path = "known parameters" if known else f"cloned parameters ({method.clone.method})"
    assert method.rates is not None
    rates = {
        Rates.SCHEDULE: "a schedule of rates",
        Rates.SHARED: "one shared rate",
        Rates.FREE: "one rate per step",
    }[Rates(method.rates)]
    rates = "known rates" if rated else rates
    critic = ""
    if np.isfinite(movement.variance_left):
        critic = f", whose critic leaves {100 * movement.variance_left:.3g}% of their variance"
    return (
        f"method {name}: {path}, mirror descent in {basis.width} functions of state and action "
        f"({basis.states} state features), feature advantages{critic}, {rates}"
    )
