"""Mirror descent in function space, from a history to an estimate: `method="mirror"`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.stats

from logel.cloning import CloneConfig, ClonedPath, CloneMethod, known_or_cloned
from logel.diagnostics import FeatureMoments, Fit, Gauge, explain, find_gauge
from logel.errors import IdentificationError, LogelError, OptionError
from logel.estimate import RewardEstimate
from logel.feature_critic import CriticSums, ScaleSums, fit_critic, pooled
from logel.features import feature_names, featured
from logel.function_space import Basis, StageSums, StateFeatures, stage_sums
from logel.history import OWN_EPISODES, FeatureFunction, LearningHistory
from logel.jacobian import StageJacobian
from logel.planning import Planning
from logel.policies import Policy
from logel.progress import Progress
from logel.shrinkage import evidence_ridge
from logel.solve import Solution, Status, compress, solve

Float = npt.NDArray[np.float64]
logger = logging.getLogger(__name__)
# Share of the design's squared size, in any direction, that may be taken off as sampling noise:
# beyond it the correction would mostly amplify noise.
_MOST_NOISE = 0.75
# Weights from which their own spread can be told well enough to shrink them by it.
_MANY_WEIGHTS = 10
# Chance that a movement that has nothing to do with any reward is called explained.
_FALSE_ALARM = 0.05


@dataclass(frozen=True)
class MirrorMethod:
    """Choices of the inference in function space.

    Attributes:
        clone: How policies are fitted when their parameters are not known.
        state_features: State features of the basis, see `StateFeatures`.
        deviations: Whether changes of a Gaussian policy's deviations count as movement. Exploration
            usually shrinks by itself, which would look like a cost of actions.
        trace: The lambda of the feature advantages: 1 is unbiased, less has less variance.
        pool: Weight of neighbouring stages in a stage's critic, see `feature_critic.pooled`.
        bootstrap: Whether life goes on, for the learner, where episodes are cut off. False takes
            the length of the episodes for the learner's own horizon.
        debias: Take the sampling noise of the advantages out of the normal equations. A learner
            that learnt from these very episodes followed that noise: it is signal then. None takes
            it out unless the history says that it is such a record (`OWN_EPISODES`).
        shared_rate: Assume one learning rate for all steps.
        ridge: Penalty on the weights, or "evidence" for the one with the largest evidence. None
            is "evidence" for ten weights or more and none for fewer, whose spread is not known well
            enough to shrink by.
        epsilon: Lower bound of the learning rates, in units of the equal ones we start from.
        max_iterations: Limit on alternations.
        n_groups: Groups of episodes left out in turn for the intervals.
        n_draws: Draws of the weights, where only their direction is known.
    """

    clone: CloneConfig = field(default_factory=CloneConfig)
    state_features: StateFeatures | str = StateFeatures.AUTO
    deviations: bool = False
    trace: float = 0.9
    pool: float = 0.5
    bootstrap: bool = True
    debias: bool | None = None
    shared_rate: bool = True
    ridge: float | str | None = None
    epsilon: float = 1e-6
    max_iterations: int = 2000
    n_groups: int = 20
    n_draws: int = 2000

    def __post_init__(self) -> None:
        object.__setattr__(self, "state_features", StateFeatures(self.state_features))
        for name in ("trace", "pool"):
            if not 0 <= getattr(self, name) <= 1:
                raise OptionError(f"{name} must be in [0, 1], but is {getattr(self, name)}")
        if min(self.max_iterations, self.n_groups, self.n_draws) < 1:
            raise OptionError(f"max_iterations, n_groups and n_draws must be at least 1: {self}")
        if isinstance(self.ridge, str) and self.ridge != "evidence":
            raise OptionError(f"ridge must be a number or 'evidence', but is {self.ridge!r}")
        negative = isinstance(self.ridge, int | float) and self.ridge < 0
        if negative or self.epsilon <= 0:
            raise OptionError(f"ridge must not be negative, epsilon must be positive: {self}")


@dataclass(frozen=True, eq=False)
class Movement:
    """The steps in the basis, in coordinates where their noise is alike in all directions.

    Attributes:
        delta: Projected log-ratios of consecutive policies, shape (m, k).
        design: Projected feature advantages, shape (m, k, q).
        delta_without: The same without each group of episodes in turn, shape (g, m, k).
        design_without: Shape (g, m, k, q).
        rank: Number of coordinates, of all steps, in which anything was seen.
        variance_left: Share of the advantages' variance that the critic leaves.
    """

    delta: Float
    design: Float
    delta_without: Float
    design_without: Float
    rank: int
    variance_left: float

    @property
    def n_groups(self) -> int:
        """Number g of groups."""
        return len(self.delta_without)


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
    moments, scale = FeatureMoments(), ScaleSums()
    for t, stage in enumerate(history):
        moments.add(featured(stage, features, t))
        scale.add(stage)
        report("reading", t + 1, len(history))
    assert moments.mean is not None
    names = feature_names(history, features, len(moments.mean))
    basis = Basis.choose(policy, method.state_features, scale.scale(), deviations=method.deviations)
    sums = _sums(history, basis, parameters, method, gamma, features, report)
    strength = None if path is None else path.config.prior_strength
    movement = project(sums, pool=method.pool, prior_strength=strength)
    if not (np.abs(movement.delta) > 1e-9).any():
        raise IdentificationError(
            "the policies do not move between stages: there is nothing to explain"
        )
    rates = history.learning_rates
    assumed = np.ones(len(movement.delta)) if rates is None else rates
    gauge = find_gauge(_as_jacobians(movement), assumed, moments, names)
    if gauge.n == len(names):
        raise IdentificationError(
            "no direction of the weights is identified: every feature is constant; use others"
        )
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
        notes=_notes(history, path, fit, known=known, explained=status is not Status.UNEXPLAINED),
        gauge=gauge,
        fit=fit,
        method=_describe(name, method, basis, movement, known=path is None),
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
    report: Progress,
) -> list[StageSums]:
    """Every stage in the basis, streamed."""
    result = []
    for t, stage in enumerate(history):
        try:
            result.append(
                stage_sums(
                    basis,
                    featured(stage, features, t),
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


def project(
    sums: Sequence[StageSums], *, pool: float, prior_strength: float | None = None
) -> Movement:
    """Bring stages to the standard form: movement = rate * design @ weights + noise.

    Args:
        sums: Of all stages in order.
        pool: See `MirrorMethod`.
        prior_strength: Of the prior that cloned policies were fitted with; None when the policies
            are known and carry no noise.
    """
    n_groups = min(len(s.counts) for s in sums)
    sums = [_regrouped(s, n_groups) for s in sums]
    critics = pooled([s.critic_sums for s in sums], pool)
    everyone = np.arange(n_groups)
    kept = [everyone, *(np.delete(everyone, g) for g in everyone if n_groups > 1)]
    deltas, designs, spreads, rank = [], [], [], 0
    for t in range(len(sums) - 1):
        root = _noise_root(sums[t], sums[t + 1], prior_strength)
        rank += len(root)
        width = root.shape[1] - len(root)
        root = np.concatenate([root, np.zeros((width, root.shape[1]))])
        moved = [_movement(sums[t], sums[t + 1], kept_, prior_strength) for kept_ in kept]
        design = [_design(sums[t], critics[t], kept_) for kept_ in kept]
        plain = [sums[t].plain[g].sum(axis=0) / sums[t].counts[g].sum() for g in kept]
        deltas.append(np.array(moved) @ root.T)
        designs.append(root @ np.array(design))
        spreads.append(_variances(designs[-1][1:]) / _variances((root @ np.array(plain))[1:]))
    delta, full_design = np.stack(deltas, axis=1), np.stack(designs, axis=1)
    left = np.array(spreads)
    return Movement(
        delta=delta[0],
        design=full_design[0],
        delta_without=delta[1:],
        design_without=full_design[1:],
        rank=rank,
        variance_left=float(np.nanmedian(left)) if np.isfinite(left).any() else float("nan"),
    )


def _regrouped(sums: StageSums, n_groups: int) -> StageSums:
    if len(sums.counts) == n_groups:
        return sums
    first = np.arange(n_groups) * len(sums.counts) // n_groups
    merged = {
        name: np.add.reduceat(getattr(sums, name), first)
        for name in ("counts", "scores", "movement", "own", "critic", "plain")
    }
    critic = CriticSums(
        np.add.reduceat(sums.critic_sums.system, first),
        np.add.reduceat(sums.critic_sums.target, first),
        sums.critic_sums.n_rows,
    )
    return replace(sums, **merged, critic_sums=critic)


def _noise_root(now: StageSums, after: StageSums, prior_strength: float | None) -> Float:
    """Takes projections to coordinates in which their noise is alike, shape (rank, k).

    Known policies: the advantages' noise is about the Gram matrix. Cloned ones add the errors of
    two fits: the same again, and that of the next stage, which may have seen other states.
    """
    noise = now.gram
    if prior_strength is not None:
        back = _ridged(after, prior_strength)
        noise = (now.gram + now.gram @ np.linalg.solve(back, now.gram)) / 2
    values, vectors = np.linalg.eigh((noise + noise.T) / 2)
    seen = values > 1e-9 * values.max()
    return np.asarray((vectors[:, seen] / np.sqrt(values[seen])).T)


def _ridged(sums: StageSums, strength: float) -> Float:
    """Information about the log-policy per row, with a prior's share."""
    floor = 1e-9 * float(np.trace(sums.gram)) / len(sums.gram)
    ridge = max(strength / float(sums.counts.sum()), floor)
    return sums.gram + ridge * np.eye(len(sums.gram))


def _movement(
    now: StageSums,
    after: StageSums,
    kept: npt.NDArray[np.int64],
    prior_strength: float | None,
) -> Float:
    """Projected log-ratio from the kept groups, shape (k,).

    Cloned policies are moved to the maximum of the kept rows' likelihood, in the basis and to first
    order: their log-probability shifts by the inverse information times the mean score. That makes
    up for clones that stopped early, and for the rows left out.
    """
    moved = now.movement[kept].sum(axis=0) / now.counts[kept].sum()
    if prior_strength is None:
        return np.asarray(moved)
    for sums, sign in ((now, -1.0), (after, 1.0)):
        mean = sums.scores[kept].sum(axis=0) / sums.counts[kept].sum()
        moved = moved + sign * now.gram @ np.linalg.solve(_ridged(sums, prior_strength), mean)
    return np.asarray(moved)


def _design(now: StageSums, critic: CriticSums, kept: npt.NDArray[np.int64]) -> Float:
    """Projected feature advantages from the kept groups, shape (k, q).

    The critic of every other group is fitted on the rest: an advantage never meets a critic that
    has seen its own episode.
    """
    total = now.own[kept].sum(axis=0)
    for parity in (0, 1):
        served = kept[kept % 2 == parity]
        fitted = kept[kept % 2 != parity]
        if len(served) == 0:
            continue
        theta = fit_critic(critic, fitted if len(fitted) else served)
        total = total + now.critic[served].sum(axis=0) @ theta
    return np.asarray(total / now.counts[kept].sum())


def _variances(replicates: Float) -> Float:
    """Jackknife variance of each feature's column, summed over the basis, shape (q,)."""
    if len(replicates) < 2:
        return np.full(replicates.shape[-1], np.nan)
    spread = replicates - replicates.mean(axis=0)
    total = (spread**2).sum(axis=(0, 1))
    return np.where(total > 0, total, np.nan)


def _as_jacobians(movement: Movement) -> list[StageJacobian]:
    """The design with its spread, in the form the gauge analysis reads."""
    g, (m, k, _) = movement.n_groups, movement.design.shape
    result = []
    for t in range(m):
        mean = movement.design[t]
        # Pseudo-values: independent estimates with the jackknife's spread.
        groups = g * mean - (g - 1) * movement.design_without[:, t] if g else mean[None]
        n = len(groups)
        result.append(StageJacobian(mean, groups, np.full(n, 1 / n), np.zeros((n, k))))
    return result


class _Solved(NamedTuple):
    """Weights that carry the scale of `rates`, before normalising, with the normal equations."""

    weights: Float
    rates: Float
    solution: Solution
    square: Float
    corrected: Float
    inner: Float


@dataclass(frozen=True, eq=False)
class Answer:
    """Weights with their uncertainty.

    Attributes:
        raw: Weights that go with rates of mean one (or with the known ones), shape (q,).
        rates: Shape (m,).
        sampling: Covariance of `raw` due to the episodes seen, (q, q), or None with fewer than
            three groups.
        learner: The same due to movement that no reward explains, beyond sampling noise.
        degrees_of_freedom: Of the sampling covariance.
        solution: The least-squares solution, before the noise correction.
        chance: Probability that unrelated movement is explained as well as this one.
        free: Whether only the direction of the weights is known.
    """

    raw: Float
    rates: Float
    sampling: Float | None
    learner: Float
    degrees_of_freedom: int
    solution: Solution
    chance: float
    free: bool

    @property
    def scale(self) -> float:
        """What the raw weights are divided by, and the rates multiplied."""
        size = float(np.linalg.norm(self.raw))
        return size if self.free and size > 0 else 1.0

    def draws(self, n: int, rng: np.random.Generator) -> Float | None:
        """Directions from a Student distribution of the raw weights, shape (n, q).

        A direction's sign is uncertain where the whole vector is: no linearisation shows that.
        """
        if self.sampling is None or not self.free:
            return None
        values, vectors = np.linalg.eigh(self.sampling + self.learner)
        noise = rng.standard_normal((n, len(values))) * np.sqrt(np.clip(values, 0, None))
        freedom = self.degrees_of_freedom
        noise = noise / np.sqrt(rng.chisquare(freedom, (n, 1)) / freedom)
        drawn = self.raw + noise @ vectors.T
        norms = np.linalg.norm(drawn, axis=1, keepdims=True)
        return np.asarray(drawn / np.where(norms > 0, norms, 1.0))

    @property
    def planning(self) -> Planning | None:
        """More episodes leave the learner's own noise as it is; more stages average both."""
        if self.sampling is None:
            return None
        change = np.eye(len(self.raw))
        if self.free:
            unit = self.raw / self.scale
            change = (change - np.outer(unit, unit)) / self.scale
        sampling, learner = (change @ c @ change.T for c in (self.sampling, self.learner))
        return Planning(sampling + learner, sampling / 2 + learner, (sampling + learner) / 2)


def solve_movement(
    movement: Movement, gauge: Gauge, rates: Float | None, method: MirrorMethod
) -> Answer:
    """Weights, rates and their uncertainty from steps in standard form."""
    basis = gauge.identified
    noise, cross = _sampling_moments(movement, basis)
    if not method.debias:
        noise, cross = np.zeros_like(noise), np.zeros_like(cross)
    ridge = _penalty(movement, basis, rates, method)
    parts = (noise, cross, rates, method, ridge)
    found = _solve_once(movement.delta, movement.design @ basis, *parts)
    sampling, freedom = None, 0
    if movement.n_groups >= 3:
        g = movement.n_groups
        replicates = [
            _solve_once(delta, design @ basis, *parts, tolerance=1e-8).weights
            for delta, design in zip(movement.delta_without, movement.design_without, strict=True)
        ]
        spread = (np.stack(replicates) - np.mean(replicates, axis=0)) @ basis.T
        sampling, freedom = (g - 1) / g * spread.T @ spread, g - 1
    left, excess, chance = _unexplained(movement, basis, found)
    inverse = np.linalg.pinv(found.corrected)
    # What the penalty hides is as uncertain as the prior it stands for; the rest of the square is
    # the data's.
    hidden = left * ridge * inverse @ inverse
    seen = found.square - ridge * np.eye(len(found.square))
    return Answer(
        raw=basis @ found.weights,
        rates=found.rates,
        sampling=sampling,
        learner=basis @ (excess * inverse @ seen @ inverse + hidden) @ basis.T,
        degrees_of_freedom=freedom,
        solution=found.solution,
        chance=chance,
        free=rates is None,
    )


def _penalty(movement: Movement, basis: Float, rates: Float | None, method: MirrorMethod) -> float:
    """The ridge, chosen if it is not given."""
    ridge = method.ridge
    if ridge is None:
        ridge = "evidence" if basis.shape[1] >= _MANY_WEIGHTS else 0.0
    if not isinstance(ridge, str):
        return float(ridge)
    assumed = np.ones(len(movement.delta)) if rates is None else rates
    return evidence_ridge(compress(movement.delta, movement.design @ basis), assumed)


def _sampling_moments(movement: Movement, basis: Float) -> tuple[Float, Float]:
    """Expected products of the noise of design and design, (m, q, q), and delta, (m, q)."""
    g, (m, _, _) = movement.n_groups, movement.design.shape
    q = basis.shape[1]
    if g < 3:
        return np.zeros((m, q, q)), np.zeros((m, q))
    design = movement.design_without @ basis
    design = design - design.mean(axis=0)
    delta = movement.delta_without - movement.delta_without.mean(axis=0)
    factor = (g - 1) / g
    return (
        factor * np.einsum("gtki,gtkj->tij", design, design),
        factor * np.einsum("gtki,gtk->ti", design, delta),
    )


def _solve_once(
    delta: Float,
    design: Float,
    noise: Float,
    cross: Float,
    rates: Float | None,
    method: MirrorMethod,
    ridge: float,
    *,
    tolerance: float = 1e-13,
) -> _Solved:
    """Least squares, then with the expected share of noise taken out of its normal equations.

    In coordinates where the design's squared size is one, noise is a share of it in every
    direction; capped, so that the corrected matrix is always positive definite.
    """
    solution = solve(
        compress(delta, design),
        rates,
        ridge=ridge,
        shared_rate=method.shared_rate,
        epsilon=method.epsilon,
        max_iterations=method.max_iterations,
        tolerance=tolerance,
    )
    found = solution.learning_rates
    scaled = found[:, None, None] * design
    square = np.einsum("tki,tkj->ij", scaled, scaled) + ridge * np.eye(design.shape[2])
    inner = np.einsum("tki,tk->i", scaled, delta) - np.einsum("t,ti->i", found, cross)
    values, vectors = np.linalg.eigh(square)
    seen = values > 1e-12 * max(float(values.max()), np.finfo(float).tiny)
    back = vectors[:, seen] / np.sqrt(values[seen])
    forth = vectors[:, seen] * np.sqrt(values[seen])
    share = back.T @ np.einsum("t,tij->ij", found**2, noise) @ back
    parts, turned = np.linalg.eigh((share + share.T) / 2)
    left = 1 - np.clip(parts, 0.0, _MOST_NOISE)
    inverse = back @ (turned / left) @ turned.T @ back.T
    corrected = forth @ (turned * left) @ turned.T @ forth.T
    weights = inverse @ inner
    if not noise.any() and not cross.any():
        # Nothing to take out: the orthogonal factorisation keeps more digits.
        weights = solution.weights
    return _Solved(weights, found, solution, square, corrected, inner)


def _unexplained(movement: Movement, basis: Float, found: _Solved) -> tuple[float, float, float]:
    """Variance per coordinate that no reward explains, that not even sampling noise, a test's p.

    The test asks whether movement without any relation to the advantages would be explained as
    well; it uses plain least squares, which is not biased when there is nothing to find.
    """
    scaled = found.rates[:, None, None] * (movement.design @ basis)
    freedom = max(movement.rank - basis.shape[1], 1)
    residual = movement.delta - scaled @ found.weights
    expected = 0.0
    if movement.n_groups >= 3:
        again = movement.delta_without - found.rates[:, None] * (
            movement.design_without @ (basis @ found.weights)
        )
        g = movement.n_groups
        expected = (g - 1) / g * float(((again - again.mean(axis=0)) ** 2).sum())
    squared = float((residual**2).sum())
    excess = max(squared - expected, 0.0) / freedom
    explained = float(found.inner @ np.linalg.pinv(found.square) @ found.inner)
    total = float((movement.delta**2).sum())
    rest = max(total - explained, 1e-12 * total)
    ratio = (explained / basis.shape[1]) / (rest / freedom)
    return squared / freedom, excess, float(scipy.stats.f.sf(ratio, basis.shape[1], freedom))


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
    name: str, method: MirrorMethod, basis: Basis, movement: Movement, *, known: bool
) -> str:
    path = "known parameters" if known else f"cloned parameters ({method.clone.method})"
    rates = "one shared rate" if method.shared_rate else "one rate per step"
    critic = ""
    if np.isfinite(movement.variance_left):
        critic = f", whose critic leaves {100 * movement.variance_left:.3g}% of their variance"
    return (
        f"method {name}: {path}, mirror descent in {basis.width} functions of state and action "
        f"({basis.states} state features), feature advantages{critic}, {rates}"
    )
