"""The joint inference, from a history to an estimate: `infer_reward(..., method="joint")`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from logel.diagnostics import FeatureMoments, Fit, Gauge, explain
from logel.errors import HistoryError, IdentificationError, LogelError, OptionError
from logel.estimate import RewardEstimate
from logel.features import feature_names, featured
from logel.history import FeatureFunction, LearningHistory, Stage
from logel.known_path import KnownPathFit, fit_known_path
from logel.learner_choice import JointMethod, choose_learner, explained_movement, feature_basis
from logel.learner_models import MODELS, LearnerModel
from logel.policies import Policy, TabularSoftmax
from logel.solve import Status
from logel.world_model import pool_world

Float = npt.NDArray[np.float64]
Progress = Callable[[str, int, int], None]
# Number d of parameters beyond which dense D x D filtering takes minutes rather than seconds.
LARGEST_JOINT = 600
# Log evidence a reward must gain over none before its weights deserve trust: about the odds of
# twenty to one.
_CONVINCING = 3.0


def infer_jointly(
    history: LearningHistory,
    policy: Policy,
    *,
    name: str,
    method: JointMethod,
    gamma: float,
    features: FeatureFunction | None,
    use_parameters: bool,
    intervals: bool,
    seed: int,
    report: Progress,
) -> RewardEstimate:
    """See `infer_reward` for the arguments."""
    if not isinstance(policy, TabularSoftmax):
        raise OptionError("method 'joint' needs a TabularSoftmax policy: use 'two-step' for others")
    watched = _Watched(history, policy, features)
    moments = FeatureMoments()
    for t, stage in enumerate(watched):
        moments.add(stage)
        report("reading", t + 1, len(history))
    assert moments.mean is not None
    names = feature_names(history, features, len(moments.mean))
    exact, reason = moments.constant_directions()
    gauge = Gauge(names, exact, reason, np.zeros((0, len(names))))
    if gauge.n == len(names):
        raise IdentificationError(
            "no direction of the weights is identified: every feature is constant; use others"
        )
    basis = feature_basis(gauge, moments.ranges())
    known = history.parameters() if use_parameters else None
    rng = np.random.default_rng(seed)
    if known is None:
        answer = _from_trajectories(
            watched, method, gamma, basis, history.learning_rates, intervals, report
        )
    else:
        answer = _from_parameters(watched, method, gamma, basis, history, known, report)

    keep_scale = history.learning_rates is not None and answer.model in ("gradient", "natural")
    weights = gauge.project(answer.weights)
    size = float(np.linalg.norm(weights))
    scale = 1.0 if keep_scale or size == 0 else size
    draws = None
    if intervals:
        draws = _or_no_reward(answer, basis, answer.draw(method.n_draws, rng), rng)
        draws = draws - (draws @ gauge.directions.T) @ gauge.directions
        norms = np.linalg.norm(draws, axis=1, keepdims=True)
        draws = draws / (1.0 if keep_scale else np.where(norms > 0, norms, 1.0))
    return RewardEstimate(
        weights=weights / scale,
        feature_names=names,
        learning_rates=answer.rates * scale,
        covariance=None if draws is None else np.cov(draws.T).reshape(len(names), -1),
        degrees_of_freedom=0,
        scale="known learning rates" if keep_scale else "unit norm",
        status=_status(answer, gauge, size),
        notes=_notes(history, answer, intervals),
        gauge=gauge,
        fit=answer.fit,
        method=_describe(name, answer, known=known is not None),
        config={**asdict(method), "name": name, "gamma": gamma, "seed": seed},
        objective_trace=np.array(answer.trace),
        rank=len(names) - gauge.n,
        condition=answer.condition,
        draws=draws,
        models=answer.gains,
    )


def _or_no_reward(answer: _Answer, basis: Float, draws: Float, rng: np.random.Generator) -> Float:
    """Draws that allow for the account without any reward, in proportion to its probability.

    If nothing was learnt, the data say nothing about the weights, and any direction is as likely as
    any other: what is called significant has to survive that.
    """
    chance = 1 / (1 + np.exp(np.clip(answer.reward_gain, -50, 50)))
    nothing = rng.random(len(draws)) < chance
    size = np.linalg.norm(draws, axis=1).mean()
    anything = rng.standard_normal((len(draws), basis.shape[1])) @ basis.T
    anything *= size / max(float(np.linalg.norm(anything, axis=1).mean()), 1e-300)
    return np.where(nothing[:, None], anything, draws)


class _Watched:
    """The stages of a history with features and checked against the policy, streamed."""

    def __init__(
        self, history: LearningHistory, policy: TabularSoftmax, features: FeatureFunction | None
    ) -> None:
        self.history, self.policy, self.features = history, policy, features

    def __iter__(self) -> Iterator[Stage]:
        for t, stage in enumerate(self.history):
            try:
                self.policy.check(stage)
                yield featured(stage, self.features, t)
            except LogelError as error:
                if isinstance(error, OptionError):
                    raise
                raise type(error)(f"stage {t}: {error}") from None


@dataclass(frozen=True, eq=False)
class _Answer:
    """What either way of fitting found, in the given features and not normalised."""

    model: str
    weights: Float
    rates: Float
    gains: Mapping[str, float]
    reward_gain: float
    fit: Fit
    trace: tuple[float, ...]
    converged: bool
    condition: float
    draw: Callable[[int, np.random.Generator], Float]


def _from_trajectories(
    watched: _Watched,
    method: JointMethod,
    gamma: float,
    basis: Float,
    rates: Float | None,
    intervals: bool,
    report: Progress,
) -> _Answer:
    """Path, weights and learner model together."""
    world = pool_world(watched, watched.policy, gamma=gamma).with_features(basis)
    if (world.counts == world.counts[0]).all():
        raise IdentificationError(
            "every stage shows the same actions: the policy does not move, there is nothing to "
            "explain"
        )
    choice = choose_learner(world, method, rates=rates, all_nulls=intervals, report=report)
    return _Answer(
        model=choice.name,
        weights=basis @ choice.posterior.mean,
        rates=_model_rates(choice.fit.model, choice.fit.parameters, len(choice.fit.states) - 1),
        gains=choice.gains,
        reward_gain=choice.reward_gain,
        fit=explained_movement(choice),
        trace=choice.fit.trace,
        # The last nat of evidence changes nothing that is reported.
        converged=choice.fit.converged or abs(float(np.diff(choice.fit.trace[-2:])[0])) < 1.0,
        condition=float(np.linalg.cond(choice.fit.covariance)) ** 0.5,
        draw=lambda n, rng: np.asarray(choice.posterior.draw(n, rng) @ basis.T),
    )


def _from_parameters(
    watched: _Watched,
    method: JointMethod,
    gamma: float,
    basis: Float,
    history: LearningHistory,
    parameters: Float,
    report: Progress,
) -> _Answer:
    """Weights and learner model, the path being known."""
    policy = watched.policy
    if parameters.shape[1] != policy.n_parameters:
        raise HistoryError(
            f"the history's policies have {parameters.shape[1]} parameters, but the family "
            f"{policy.n_parameters}: pass the matching family, or use_parameters=False to clone"
        )
    check_movement(np.diff(parameters, axis=0))
    states, rates = parameters.astype(float), history.learning_rates
    # A policy shows values only up to a potential, so value learners need the joint fit.
    candidates = [name for name in method.models if not MODELS[name].keeps_values] or ["gradient"]
    world = pool_world(watched, policy, gamma=gamma).with_features(basis)
    fits = {name: fit_known_path(MODELS[name](world, rates), states) for name in candidates}
    without = max(
        fit_known_path(MODELS[name](world, rates), states, weightless=True).evidence
        for name in candidates
    )

    def gain(name: str) -> float:
        cost = 0.0 if name == "gradient" else method.complexity_cost
        return fits[name].evidence - without - cost

    order = sorted(fits, key=gain, reverse=True)
    best, fit = order[0], fits[order[0]]
    model = MODELS[best](world, rates)
    extra = _world_noise(watched, gamma, basis, states, rates, best, fit, report)
    prediction = model.predict(states[:-1], fit.parameters, states_known=True)
    moved = (prediction.following - states[:-1])[:, :, None]
    q = basis.shape[1]
    return _Answer(
        model=best,
        weights=basis @ fit.parameters[:q],
        rates=_model_rates(model, fit.parameters, len(states) - 1),
        gains={name: gain(name) for name in order},
        reward_gain=gain(best),
        fit=explain(np.diff(states, axis=0), moved, np.ones(1), np.ones(len(moved)), fitted=q),
        trace=(fit.evidence,),
        converged=True,
        condition=float(np.linalg.cond(fit.covariance)) ** 0.5,
        draw=lambda n, rng: _student_draws(fit, extra, n, rng) @ basis.T,
    )


def _world_noise(
    watched: _Watched,
    gamma: float,
    basis: Float,
    states: Float,
    rates: Float | None,
    name: str,
    fit: KnownPathFit,
    report: Progress,
    *,
    n_groups: int = 10,
) -> Float:
    """Covariance of the weights due to the world model: a jackknife over groups of episodes."""
    q = basis.shape[1]
    n_groups = min(n_groups, min(stage.n_episodes for stage in watched))
    if n_groups < 3:
        return np.zeros((q, q))
    replicates = []
    for g in range(n_groups):

        def without(group: int = g) -> Iterator[Stage]:
            for t, stage in enumerate(watched):
                # Which episodes form a group differs from stage to stage.
                member = (np.arange(stage.n_episodes) + t) % n_groups == group
                yield stage.take(np.flatnonzero(~member))

        world = pool_world(without(), watched.policy, gamma=gamma).with_features(basis)
        again = fit_known_path(MODELS[name](world, rates), states, max_rounds=6)
        replicates.append(again.parameters[:q])
        report("intervals", g + 1, n_groups)
    spread = np.stack(replicates) - np.mean(replicates, axis=0)
    return (n_groups - 1) / n_groups * spread.T @ spread


def _student_draws(fit: KnownPathFit, extra: Float, n: int, rng: np.random.Generator) -> Float:
    """Draws from a multivariate t around the weights."""
    q = len(extra)
    values, vectors = np.linalg.eigh(fit.covariance + extra)
    noise = rng.standard_normal((n, q)) * np.sqrt(np.clip(values, 0, None)) @ vectors.T
    freedom = max(fit.degrees_of_freedom, 3)
    noise /= np.sqrt(rng.chisquare(freedom, (n, 1)) / freedom)
    return np.asarray(fit.parameters[:q] + noise)


def _model_rates(model: LearnerModel, parameters: Float, m: int) -> Float:
    """Relative learning rate of every step: one, for models without any."""
    if len(parameters) == model.world.n_features or model.keeps_values:
        return np.ones(m)
    fade = np.asarray((1.0 + np.arange(m)) ** -parameters[model.world.n_features])
    return fade if model.rates is None else model.rates[:m] * fade


def _status(answer: _Answer, gauge: Gauge, size: float) -> Status:
    if answer.reward_gain < _CONVINCING or size == 0:
        return Status.UNEXPLAINED
    if not answer.converged:
        return Status.NOT_CONVERGED
    return Status.RANK_DEFICIENT if gauge.n else Status.OK


def _notes(history: LearningHistory, answer: _Answer, intervals: bool) -> tuple[str, ...]:
    notes = []
    if not history.complete:
        notes.append("the history's recording was interrupted; these are the stages it has")
    gains = list(answer.gains.values())
    if len(gains) > 1 and gains[0] - gains[1] < _CONVINCING:
        first, second = list(answer.gains)[:2]
        notes.append(
            f"the learner models '{first}' and '{second}' explain the data about equally well: "
            "compare their weights (JointMethod(models=...))"
        )
    if not intervals:
        notes.append("no intervals were asked for; the status compares with a random walk only")
    return tuple(notes)


def _describe(name: str, answer: _Answer, *, known: bool) -> str:
    runners = [other for other in answer.gains if other != answer.model]
    second = f", runner-up '{runners[0]}'" if runners else ""
    path = "known parameters" if known else "path cloned jointly with the weights"
    return f"method {name}: {path}, learner model '{answer.model}' by evidence{second}"


def check_movement(delta: Float) -> None:
    """Refuse a path on which nothing moves beyond what rounding leaves of a converged fit."""
    if not (np.abs(delta) > 1e-9).any():
        raise IdentificationError(
            "the policy's parameters do not move between stages: there is nothing to explain"
        )
