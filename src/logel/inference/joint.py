"""The joint inference, from a history to an estimate: `infer_reward(..., method="joint")`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt

from logel.data.history import LearningHistory
from logel.data.stage import Stage
from logel.errors import IdentificationError, LogelError, OptionError
from logel.inference.choose import (
    JointMethod,
    LearnerChoice,
    choose_learner,
    explained_movement,
    feature_basis,
)
from logel.inference.estimate import RewardEstimate
from logel.inference.gauge import (
    FAR_LEVEL,
    Fit,
    Gauge,
    check_identified,
    check_movement,
    explain,
)
from logel.inference.gauge_sums import GaugeSums
from logel.inference.known_path import KnownPathFit, fit_known_path
from logel.inference.more_data import Planning
from logel.inference.regress import Status
from logel.inference.smooth import JointFit, expected_covariance, fit_path
from logel.policies.base import Policy
from logel.policies.cloning import CloneConfig, known_or_cloned, known_parameters
from logel.policies.gaussian import GaussianPolicy
from logel.policies.softmax import LinearSoftmax, TabularSoftmax
from logel.rewards.features import feature_names, featured
from logel.rules.ascent import ASCENTS
from logel.rules.rule import PathModel
from logel.rules.values import MODELS, DriftingValues
from logel.types import FeatureFunction, Float, Progress
from logel.worlds.linear import LinearWorld, distinct_observations, linear_world
from logel.worlds.pooled import N_GROUPS, SampledWorld, sampled_world
from logel.worlds.table import TabularWorld, pool_world

logger = logging.getLogger(__name__)
# Number d of parameters beyond which dense D x D filtering takes minutes rather than seconds.
LARGEST_JOINT = 600
# Observed times beyond which revisiting all of them in every round takes minutes.
LARGEST_ROWS = 100_000
World = TabularWorld | LinearWorld | SampledWorld
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
    if not joint_applies(policy, history, use_parameters=use_parameters):
        raise OptionError(
            f"method 'joint' needs a policy family that is linear in up to {LARGEST_JOINT} "
            f"parameters and up to {LARGEST_ROWS} observed times: use 'two-step' for others"
        )
    watched = _Watched(history, policy, features)
    seen = GaugeSums(gamma)
    for t, stage in enumerate(watched):
        seen.add(stage)
        if use_parameters and stage.parameters is not None:  # else cloning has more to say
            logger.info(
                "stage %d: %d episodes, %d steps, known parameters",
                t,
                stage.n_episodes,
                stage.n_steps,
            )
        report("reading", t + 1, len(history))
    # Q-learners are drawn to what they have not tried by rewards below its first value, zero: the
    # level of the features is theirs to see, unless it is so far off that it cannot be meant.
    level = isinstance(policy, TabularSoftmax) and "q-learning" in method.among(MODELS)
    watched.offset = seen.moments.offset(beyond=FAR_LEVEL if level else 0.0)
    names = feature_names(history, features, len(seen.moments.scale))
    gauge = seen.gauge(names, bootstrap=_life_goes_on(policy, method))
    check_identified(gauge)
    basis = feature_basis(gauge, seen.moments.ranges())
    known = known_parameters(history, policy) if use_parameters else None
    rng = np.random.default_rng(seed)
    worlds = _Worlds(watched, method, gamma, basis, history.learning_rates)
    if known is None:
        answer = _from_trajectories(worlds, method, seed, intervals, report)
    else:
        answer = _from_parameters(worlds, method, known, report)

    keep_scale = history.learning_rates is not None and answer.model in ("gradient", "natural")
    # Another of the rules may have heard what the chosen one cannot.
    chosen = _life_goes_on(policy, replace(method, models=(answer.model,)))
    gauge = seen.gauge(names, bootstrap=chosen)
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
        notes=(
            *_notes(history, answer, intervals),
            *seen.moments.offset_notes(names, centred=True),
        ),
        gauge=gauge,
        fit=answer.fit,
        method=_describe(name, answer, known=known is not None),
        config={**asdict(method), "name": name, "gamma": gamma, "seed": seed},
        objective_trace=np.array(answer.trace),
        rank=len(names) - gauge.n,
        condition=answer.condition,
        draws=draws,
        models=answer.gains,
        planning=answer.planning,
    )


def _life_goes_on(policy: Policy, method: JointMethod) -> bool | None:
    """Whether the rules look beyond the end of episodes; None if some do and others do not."""
    if not isinstance(policy, TabularSoftmax):
        return False
    looks = {name != "gradient" for name in method.among(MODELS)}
    return looks.pop() if len(looks) == 1 else None


def joint_applies(policy: Policy, history: LearningHistory, *, use_parameters: bool) -> bool:
    """Whether the joint fit can be afforded: a convex family of moderate size."""
    if policy.n_parameters > LARGEST_JOINT or not policy.convex:
        return False
    if isinstance(policy, GaussianPolicy) and history[0].actions[0].size > 3:
        return False
    if isinstance(policy, TabularSoftmax):
        return True
    # A known path is gone through once, a hidden one in every round.
    known = use_parameters and history[0].parameters is not None
    rows = sum(stage.n_steps for stage in history)
    return rows <= (10 * LARGEST_ROWS if known else LARGEST_ROWS)


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
        self, history: LearningHistory, policy: Policy, features: FeatureFunction | None
    ) -> None:
        self.history, self.policy, self.features = history, policy, features
        self.offset: Float | None = None

    def __iter__(self) -> Iterator[Stage]:
        for t, stage in enumerate(self.history):
            try:
                self.policy.check(stage)
                yield featured(stage, self.features, t, self.offset)
            except LogelError as error:
                if isinstance(error, OptionError):
                    raise
                raise type(error)(f"stage {t}: {error}") from None

    def without(self, group: int, n_groups: int) -> Iterator[Stage]:
        """The same with one group of episodes left out of every stage."""
        for t, stage in enumerate(self):
            # Which episodes form a group differs from stage to stage.
            member = (np.arange(stage.n_episodes) + t) % n_groups == group
            yield stage.take(np.flatnonzero(~member))


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
    planning: Planning | None


class _Worlds:
    """Builds the world a policy family acts in, and the learner models in it."""

    def __init__(
        self,
        watched: _Watched,
        method: JointMethod,
        gamma: float,
        basis: Float,
        rates: Float | None,
    ) -> None:
        self.watched, self.gamma, self.basis, self.rates = watched, gamma, basis, rates
        self.observations: npt.NDArray[np.generic] | None = None
        policy = watched.policy
        if isinstance(policy, LinearSoftmax):
            self.observations = distinct_observations(watched.history)
        self.names = method.among(MODELS if isinstance(policy, TabularSoftmax) else ASCENTS)
        self.world = self._pool(watched)

    def _pool(self, stages: Iterable[Stage]) -> World:
        policy = self.watched.policy
        world: World
        if isinstance(policy, TabularSoftmax):
            world = pool_world(stages, policy, gamma=self.gamma)
        elif isinstance(policy, LinearSoftmax) and self.observations is not None:
            world = linear_world(stages, policy, self.observations, gamma=self.gamma)
        else:
            world = sampled_world(stages, policy, gamma=self.gamma)
        return world.with_features(self.basis)

    def model(self, name: str, world: World) -> PathModel:
        """One kind of learner in a world."""
        if isinstance(world, TabularWorld):
            return MODELS[name](world, self.rates)
        return ASCENTS[name](world, self.rates)

    def nulls(self) -> list[PathModel]:
        """Accounts without a reward, beside the random walk of the policy's parameters."""
        return [DriftingValues(self.world)] if isinstance(self.world, TabularWorld) else []

    def n_groups(self) -> int:
        """Groups of episodes that can be left out in turn; none if there are too few."""
        fewest = min(stage.n_episodes for stage in self.watched.history)
        if isinstance(self.world, SampledWorld):
            return N_GROUPS if fewest >= N_GROUPS else 0
        return min(N_GROUPS, fewest) if fewest >= 3 else 0

    def without(self, group: int, n_groups: int, states: Float) -> World:
        """The world without a group of episodes; the actions to be explained are all there."""
        if isinstance(self.world, SampledWorld):
            return self.world.at(states[:-1], without=group)
        other = self._pool(self.watched.without(group, n_groups))
        if isinstance(self.world, LinearWorld):
            assert isinstance(other, LinearWorld)
            return replace(other, table=_same_actions(other.table, self.world.table))
        assert isinstance(other, TabularWorld)
        return _same_actions(other, self.world)


def _same_actions(world: TabularWorld, whole: TabularWorld) -> TabularWorld:
    return replace(
        world, counts=whole.counts, episode_sums=whole.episode_sums, horizon=whole.horizon
    )


def _from_trajectories(
    worlds: _Worlds, method: JointMethod, seed: int, intervals: bool, report: Progress
) -> _Answer:
    """Path, weights and learner model together."""
    watched, basis = worlds.watched, worlds.basis
    total = len(watched.history)
    path, _ = known_or_cloned(
        watched.history,
        watched.policy,
        CloneConfig(holdout=0.0),
        use_parameters=False,
        rng=np.random.default_rng(seed),
        progress=report,
    )
    if (path == path[0]).all():
        raise IdentificationError(
            "every stage shows the same actions: the policy does not move, there is nothing to "
            "explain"
        )
    models = {name: worlds.model(name, worlds.world) for name in worlds.names}
    nulls = worlds.nulls() if intervals else None
    choice = choose_learner(models, method, cloned=path, nulls=nulls, report=report)
    spread = np.zeros((basis.shape[1],) * 2)
    if intervals:
        fit = choice.fit

        def shifted(world: World | None) -> Float:
            model = fit.model if world is None else worlds.model(choice.name, world)
            return fit_path(model, max_rounds=1, start=fit).weights

        spread = _world_noise(worlds, fit.states, shifted, report)
    return _Answer(
        model=choice.name,
        weights=basis @ choice.posterior(choice.name).mean,
        rates=choice.fit.model.rates_of(choice.fit.parameters, total - 1),
        gains=choice.gains,
        reward_gain=choice.reward_gain,
        fit=explained_movement(choice),
        trace=choice.fit.trace,
        # The last nat of evidence changes nothing that is reported.
        converged=choice.fit.converged or abs(float(np.diff(choice.fit.trace[-2:])[0])) < 1.0,
        condition=float(np.linalg.cond(choice.fit.covariance)) ** 0.5,
        draw=lambda n, rng: _averaged_draws(choice, spread, n, rng) @ basis.T,
        planning=_plan(choice.fit, spread, basis) if intervals else None,
    )


def _plan(fit: JointFit, spread: Float, basis: Float) -> Planning:
    """What more data would do to the covariance of the weights."""
    steps = len(fit.states) - 1
    now = fit.covariance + spread
    more_episodes = expected_covariance(fit, episodes=2.0) + spread / 2
    more_stages = expected_covariance(fit, more_steps=steps) + spread / 2
    return Planning(*(basis @ matrix @ basis.T for matrix in (now, more_episodes, more_stages)))


def _averaged_draws(
    choice: LearnerChoice, spread: Float, n: int, rng: np.random.Generator
) -> Float:
    """Posterior draws that allow for every learner model in proportion to its probability.

    The scale of the weights means something else under each model: all are brought to the best
    one's.
    """
    gains = np.array([choice.gains[name] for name in choice.gains])
    shares = np.exp(gains - gains.max())
    numbers = rng.multinomial(n, shares / shares.sum())
    values, vectors = np.linalg.eigh(spread)
    root = vectors * np.sqrt(np.clip(values, 0, None))
    size = float(np.linalg.norm(choice.posterior(choice.name).mean))
    parts = []
    for name, number in zip(choice.gains, numbers, strict=True):
        if number == 0:
            continue
        posterior = choice.posterior(name)
        draws = posterior.draw(number, rng)
        own = float(np.linalg.norm(posterior.mean))
        if name != choice.name and own > 0:
            draws = draws * (size / own)
        parts.append(draws + rng.standard_normal(draws.shape) @ root.T)
    return rng.permutation(np.concatenate(parts))


def _from_parameters(
    worlds: _Worlds, method: JointMethod, parameters: Float, report: Progress
) -> _Answer:
    """Weights and learner model, the path being known."""
    basis, states = worlds.basis, parameters
    check_movement(np.diff(states, axis=0))
    world = worlds.world.at(states[:-1]) if isinstance(worlds.world, SampledWorld) else worlds.world
    models = {name: worlds.model(name, world) for name in worlds.names}
    # A policy shows values only up to a potential, so value learners need the joint fit.
    models = {name: model for name, model in models.items() if not model.keeps_values}
    models = models or {"gradient": worlds.model("gradient", world)}
    fits = {name: fit_known_path(model, states) for name, model in models.items()}
    without = max(
        fit_known_path(model, states, weightless=True).evidence for model in models.values()
    )

    def gain(name: str) -> float:
        cost = 0.0 if name == "gradient" else method.complexity_cost
        return fits[name].evidence - without - cost

    order = sorted(fits, key=gain, reverse=True)
    logger.info("learner models: %s", ", ".join(f"{n} {gain(n):+.1f}" for n in order))
    best, fit = order[0], fits[order[0]]
    model = models[best]
    q = basis.shape[1]

    def shifted(world: World | None) -> Float:
        if world is None:
            return fit.parameters[:q]
        return fit_known_path(worlds.model(best, world), states, max_rounds=6).parameters[:q]

    extra = _world_noise(worlds, states, shifted, report)
    prediction = model.predict(states[:-1], fit.parameters, states_known=True)
    moved = (prediction.following - states[:-1])[:, :, None]
    return _Answer(
        model=best,
        weights=basis @ fit.parameters[:q],
        rates=model.rates_of(fit.parameters, len(states) - 1),
        gains={name: gain(name) for name in order},
        reward_gain=gain(best),
        fit=explain(np.diff(states, axis=0), moved, np.ones(1), np.ones(len(moved)), fitted=q),
        trace=(fit.evidence,),
        converged=True,
        condition=float(np.linalg.cond(fit.covariance)) ** 0.5,
        draw=lambda n, rng: _student_draws(fit, extra, n, rng) @ basis.T,
        # The learner's own noise is in its steps: only the world is seen better in more episodes.
        planning=Planning(
            basis @ (fit.covariance + extra) @ basis.T,
            basis @ (fit.covariance + extra / 2) @ basis.T,
            basis @ (fit.covariance + extra) @ basis.T / 2,
        ),
    )


def _world_noise(
    worlds: _Worlds, states: Float, shifted: Callable[[World | None], Float], report: Progress
) -> Float:
    """Covariance of the weights due to the world model: a jackknife over groups of episodes.

    Args:
        worlds: Builds the world without a group.
        states: The path, shape (m + 1, D).
        shifted: The weights (q,) that the fit goes to in another world (None: in its own).
        report: Called with (what, done, total).
    """
    n_groups, q = worlds.n_groups(), worlds.basis.shape[1]
    if n_groups == 0:
        return np.zeros((q, q))
    logger.info("intervals: the world model without each of %d groups of episodes", n_groups)
    here = shifted(None)
    replicates = []
    for g in range(n_groups):
        replicates.append(shifted(worlds.without(g, n_groups, states)) - here)
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
