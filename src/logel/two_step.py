"""The two-step inference for any policy family: clone, Jacobians, solve.

Read beside the paper: clone the policies (its equation for behavioural cloning), estimate the
Jacobians (section "Approximate gradient"), alternate the two closed forms (section "Recovering
learning rates and reward weights"). What goes beyond the paper is an option of `Method` and off
unless asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from logel.cloning import Clone, CloneConfig, ClonedPath, CloneMethod, clone
from logel.diagnostics import FeatureMoments, Fit, Gauge, explain, find_gauge
from logel.errors import HistoryError, IdentificationError, LogelError, OptionError
from logel.estimate import RewardEstimate
from logel.features import feature_names, featured
from logel.fisher import BlockFisher, Fisher, ProductFisher
from logel.history import FeatureFunction, LearningHistory, Stage
from logel.infer_joint import Progress, check_movement
from logel.jacobian import Baseline, Estimator, StageJacobian, stage_jacobian
from logel.metrics import (
    CLONED_LEVELS,
    KNOWN_LEVELS,
    IdentityMetric,
    LowRank,
    LowRankMetric,
    Metric,
    NoiseLevel,
    dense_metric,
    sketch,
)
from logel.neighbours import pooled_jacobians
from logel.policies import Policy
from logel.shrinkage import RateShrinkage, evidence_ridge, solve_shrunk
from logel.solve import Solution, Status, Steps, objective, solve
from logel.uncertainty import (
    NoiseParts,
    StageSample,
    bootstrap_weights,
    influences,
    jackknife_weights,
    joined,
    recentred,
    spread_of,
    step_between,
    unexplained_covariance,
)
from logel.update_rules import Candidate, Learner, adam, held_out_gains, natural

Float = npt.NDArray[np.float64]
# Rounds in which Adam's diagonal and the weights are refreshed in turn.
_ADAM_ROUNDS = 4
# Log-likelihood a reward must gain on held-out steps before its weights deserve trust: about the
# odds of twenty to one.
_CONVINCING = 3.0


@dataclass(frozen=True)
class Method:
    """Every choice of the two-step inference; the named ones are in `logel.infer.METHODS`.

    Attributes:
        clone: How parameters are fitted when they are not known.
        estimator: Jacobian estimator.
        baseline: Its baseline.
        metric: "identity" as in the paper; "fisher": movements weigh by how well cloning knows
            them (only matters for cloned parameters); "noise": beside cloning, noise of gradients
            and of anything else count, as much as the evidence wants (families with a dense
            information matrix; networks get "fisher").
        shared_rate: Assume one learning rate for all steps.
        ridge: Penalty on the weights, or "evidence" for the one with the largest evidence.
        nonnegative: Constrain the weights to be non-negative (features that are costs: negate
            them first).
        epsilon: Lower bound of the learning rates, in units of the equal ones we start from.
        max_iterations: Limit on alternations.
        n_groups: Groups of episodes reweighted for the intervals; a bootstrap wants about 30.
        learner: How gradients become updates: "gradient" as in the paper, "natural", "adam", or
            "auto" for the one that predicts held-out steps best.
        rate_shrinkage: What single learning rates are drawn towards: "none", "shared", or
            "schedule" (a power of time); means nothing with `shared_rate`.
        debias: Subtract what noise in the Jacobians adds to the normal equations, and what they
            share with cloned movements.
        uncertainty: "jackknife" for a covariance, or "bootstrap" for draws of the weights.
        n_draws: Number of bootstrap draws.
        process_noise: Let movement that neither reward nor episodes' noise explains widen the
            intervals, and warn (status) when no reward predicts held-out steps.
        neighbours: Stages on either side whose episodes enter a stage's Jacobian too, importance
            weighted.
    """

    clone: CloneConfig = field(default_factory=CloneConfig)
    estimator: Estimator | str = Estimator.GPOMDP
    baseline: Baseline | str = Baseline.NONE
    metric: str = "identity"
    shared_rate: bool = False
    ridge: float | str = 0.0
    nonnegative: bool = False
    epsilon: float = 1e-6
    max_iterations: int = 2000
    n_groups: int = 10
    learner: Learner | str = Learner.GRADIENT
    rate_shrinkage: RateShrinkage | str = RateShrinkage.NONE
    debias: bool = False
    uncertainty: str = "jackknife"
    n_draws: int = 200
    process_noise: bool = False
    neighbours: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "estimator", Estimator(self.estimator))
        object.__setattr__(self, "baseline", Baseline(self.baseline))
        object.__setattr__(self, "learner", Learner(self.learner))
        object.__setattr__(self, "rate_shrinkage", RateShrinkage(self.rate_shrinkage))
        if isinstance(self.ridge, str) and self.ridge != "evidence":
            raise OptionError(f"ridge must be a number or 'evidence', but is {self.ridge!r}")
        negative = not isinstance(self.ridge, str) and self.ridge < 0
        if negative or self.epsilon <= 0 or self.max_iterations < 1 or self.n_groups < 0:
            raise OptionError(
                "ridge and n_groups must not be negative, epsilon must be positive and "
                f"max_iterations at least 1: {self}"
            )
        if self.metric not in ("identity", "fisher", "noise"):
            raise OptionError(
                f"metric must be 'identity', 'fisher' or 'noise', but is {self.metric!r}"
            )
        if self.uncertainty not in ("jackknife", "bootstrap"):
            raise OptionError(
                f"uncertainty must be 'jackknife' or 'bootstrap', but is {self.uncertainty!r}"
            )
        if self.neighbours < 0 or self.n_draws < 2:
            raise OptionError(
                f"neighbours must not be negative and n_draws at least 2: {self.neighbours}, "
                f"{self.n_draws}"
            )

    @property
    def needs_groups(self) -> bool:
        """Whether the estimate itself, not only its intervals, needs groups of episodes."""
        return self.debias or self.process_noise


@dataclass(frozen=True, eq=False)
class StageRecord:
    """What remains of a stage once it is cloned and its Jacobian estimated.

    Attributes:
        parameters: Shape (d,).
        jacobian: By groups of episodes.
        fisher: Information about the parameters in the stage's data; None if nothing needs it.
        n_rows: Number of environment steps behind it.
        clone: None when the parameters are known.
        strength: Precision of the cloning prior.
    """

    parameters: Float
    jacobian: StageJacobian
    fisher: Fisher | None
    n_rows: int
    clone: Clone | None
    strength: float

    @property
    def dense(self) -> bool:
        """Whether matrices of order d are within reach."""
        return self.fisher is not None and not isinstance(self.fisher, ProductFisher)

    @cached_property
    def covariance(self) -> Float:
        """Of the cloned parameters, shape (d, d)."""
        assert self.fisher is not None
        return self.fisher.solve(np.eye(len(self.parameters)), ridge=self.strength)

    @cached_property
    def information(self) -> LowRank:
        """Of the cloned parameters, prior included."""
        assert self.fisher is not None
        return sketch(self.fisher, ridge=self.strength)

    def sample(self, design: StageJacobian, method: Method, n_groups: int) -> StageSample:
        """The stage by groups of episodes, with the design an update rule makes of it.

        With fewer than three groups nothing can be said about single ones.
        """
        if n_groups < 3:
            return StageSample(self.parameters, design)
        design = design.regrouped(n_groups)
        if self.clone is None:
            return StageSample(self.parameters, design)
        leave_out = method.uncertainty == "jackknife"
        influence = influences(self.clone, design, strength=self.strength, leave_out=leave_out)
        return StageSample(self.parameters, design, influence)


def record_stage(
    stage: Stage,
    policy: Policy,
    parameters: Float,
    cloned: Clone | None,
    method: Method,
    *,
    gamma: float,
    n_groups: int,
) -> StageRecord:
    """Estimate the Jacobian of a stage with features, and keep what the steps need."""
    jacobian = stage_jacobian(
        policy,
        parameters,
        stage,
        gamma=gamma,
        estimator=method.estimator,
        baseline=method.baseline,
        n_groups=n_groups,
    )
    fisher = None if cloned is None else cloned.fisher
    if fisher is None and (method.metric == "noise" or method.learner is not Learner.GRADIENT):
        fisher = policy.fisher(policy.tensor(parameters), policy.prepare(stage)[0])
    return StageRecord(
        parameters, jacobian, fisher, stage.n_steps, cloned, method.clone.prior_strength
    )


@dataclass(frozen=True, eq=False)
class Update:
    """A stage's Jacobian as an update rule takes it, and the shape of the noise it passes on.

    Attributes:
        design: P @ Jacobian, by groups of episodes.
        noise: P F P / N, shape (d, d); None where that is out of reach.
    """

    design: StageJacobian
    noise: Float | None


def stage_update(record: StageRecord, learner: Learner) -> Update:
    """The update of one stage by itself: gradient or natural gradient."""
    per_row = None
    if record.dense:
        assert record.fisher is not None
        per_row = record.fisher.dense() / record.n_rows
    if learner is not Learner.NATURAL:
        return Update(record.jacobian, per_row)
    assert record.fisher is not None
    design = natural(record.jacobian, record.fisher, n_rows=record.n_rows, ridge=record.strength)
    if per_row is not None:
        inverse = record.n_rows * record.covariance
        per_row = inverse @ per_row @ inverse
    return Update(design, per_row)


def step_metrics(
    before: StageRecord, after: StageRecord, update: Update, method: Method
) -> list[Metric]:
    """The metric of one step, or one for every noise level to choose from."""
    known = before.clone is None
    if method.metric == "identity" or (known and (method.metric == "fisher" or not before.dense)):
        return [IdentityMetric()]
    if not before.dense:
        return [LowRankMetric(before.information, after.information)]
    clones = None if known else before.covariance + after.covariance
    levels = noise_levels(method, known=known)
    return [dense_metric(clones, update.noise, level, len(before.parameters)) for level in levels]


def noise_levels(method: Method, *, known: bool) -> tuple[NoiseLevel, ...]:
    """What a dense metric may be made of."""
    if method.metric == "fisher":
        return (NoiseLevel(),)
    return KNOWN_LEVELS if known else CLONED_LEVELS


def solve_steps(
    steps: Steps,
    rates: Float | None,
    method: Method,
    *,
    ridge: float | None = None,
    tolerance: float = 1e-13,
) -> tuple[Solution, float]:
    """Weights and rates of compressed steps, and the ridge that was used."""
    if ridge is None and isinstance(method.ridge, str):
        # Rates move little once the ridge is about right.
        assumed = np.ones(steps.n_steps) if rates is None else rates
        for _ in range(1 if method.shared_rate or rates is not None else 3):
            ridge = evidence_ridge(steps, assumed)
            assumed = solve_steps(steps, rates, method, ridge=ridge)[0].learning_rates
    penalty = float(method.ridge) if ridge is None else ridge
    shrink = method.rate_shrinkage
    if rates is None and not method.shared_rate and shrink is not RateShrinkage.NONE:
        return solve_shrunk(
            steps,
            towards=RateShrinkage(shrink),
            ridge=penalty,
            nonnegative=method.nonnegative,
            epsilon=method.epsilon,
            max_iterations=method.max_iterations,
            tolerance=tolerance,
        ), penalty
    return solve(
        steps,
        rates,
        ridge=penalty,
        nonnegative=method.nonnegative,
        shared_rate=method.shared_rate,
        epsilon=method.epsilon,
        max_iterations=method.max_iterations,
        tolerance=tolerance,
    ), penalty


@dataclass(frozen=True, eq=False)
class Account:
    """One update rule's account of all steps, at one noise level.

    Attributes:
        steps: Compressed, in the coordinates of `basis`; with noise if it is to be subtracted.
        noise: Expected noise of the steps' Gram matrices, (m, k + 1, k + 1), or None.
        log_determinants: Of the movements' covariances, shape (m,).
        basis: Columns of weight space, shape (q, k).
        solution: In the coordinates of `basis`.
        ridge: The penalty it was solved with.
        level: Index of the noise level.
    """

    steps: Steps
    noise: Float | None
    log_determinants: Float
    basis: Float
    solution: Solution
    ridge: float
    level: int = 0

    @classmethod
    def of(
        cls,
        steps: Steps,
        log_determinants: Float,
        basis: Float,
        rates: Float | None,
        method: Method,
        level: int = 0,
    ) -> Account:
        """Solve the steps, which carry their noise if groups of episodes show it."""
        noise = steps.noise
        if not method.debias:
            steps = replace(steps, noise=None)
        solution, ridge = solve_steps(steps, rates, method)
        return cls(steps, noise, log_determinants, basis, solution, ridge, level)

    @property
    def log_likelihood(self) -> float:
        """Of the movements at the solution, the scale of the covariance put where it is largest."""
        n = self.steps.n_steps * self.steps.n_parameters
        plain = replace(self.steps, noise=None)
        rest = objective(plain, self.solution.weights, self.solution.learning_rates)
        return float(-0.5 * (n * np.log(max(rest, 1e-300) / n) + self.log_determinants.sum()))

    @property
    def weights(self) -> Float:
        """Of the features, not normalised."""
        return np.asarray(self.basis @ self.solution.weights)

    def candidate(self, rates: Float | None) -> Candidate:
        """The steps for held-out comparison; known rates go into the design."""
        steps = self.steps
        if rates is not None:
            steps = replace(steps, design=rates[:, None, None] * steps.design)
        return Candidate(replace(steps, noise=None), self.log_determinants)


def best_level(accounts: Sequence[Account]) -> Account:
    """The noise level under which the movements are most likely."""
    if len(accounts) == 1:
        return accounts[0]
    return max(accounts, key=lambda account: account.log_likelihood)


def gains_over_nothing(
    accounts: Mapping[str, Account], rates: Float | None, method: Method
) -> dict[str, float]:
    """Held-out log-likelihood of every update rule, relative to a learner that wants nothing."""
    candidates = {name: account.candidate(rates) for name, account in accounts.items()}
    if min(candidate.steps.n_steps for candidate in candidates.values()) < 2:
        return {}
    inner = method if rates is None else replace(method, shared_rate=True)
    return held_out_gains(candidates, lambda steps: solve_steps(steps, None, inner)[0])


def replicate_weights(method: Method, n_groups: int, t: int, seed: int) -> Float:
    """Weights of the groups of stage t in every replicate, shape (n, n_groups)."""
    if method.uncertainty == "jackknife":
        return jackknife_weights(n_groups)
    # Stages are resampled by themselves, unless their episodes also serve their neighbours.
    stream = [seed, t] if method.neighbours == 0 else [seed]
    return bootstrap_weights(n_groups, method.n_draws, np.random.default_rng(stream))


def replicate(
    steps: Sequence[Steps], account: Account, rates: Float | None, method: Method
) -> Float:
    """Normalised weights of one replicate, solved as the estimate was."""
    again, _ = solve_steps(joined(steps), rates, method, ridge=account.ridge, tolerance=1e-8)
    return normalised(account.basis @ again.weights, known=rates is not None)[0]


def normalised(weights: Float, *, known: bool) -> tuple[Float, float]:
    """Unit weights, unless known rates give them a scale; and the size they had."""
    size = float(np.linalg.norm(weights))
    if known or size == 0:
        return weights, 1.0
    return weights / size, size


@dataclass(frozen=True, eq=False)
class Spread:
    """Uncertainty of the weights: covariance (q, q), its degrees of freedom, draws (n, q)."""

    covariance: Float
    degrees_of_freedom: int
    draws: Float | None


def spread_from(
    replicates: Float, account: Account, rates: Float | None, method: Method, seed: int
) -> Spread:
    """Uncertainty from the replicates' weights, shape (n, q), and what remains unexplained."""
    known = rates is not None
    weights, size = normalised(account.weights, known=known)
    leave_out = method.uncertainty == "jackknife"
    covariance = spread_of(replicates, leave_out=leave_out)
    draws = None if leave_out else recentred(replicates, weights, unit=not known)
    if method.process_noise and account.noise is not None:
        plain = replace(account.steps, noise=None)
        extra = unexplained_covariance(plain, account.noise, account.solution, account.ridge)
        # Normalising removes what points along the weights themselves.
        turn = (
            account.basis if known else (account.basis - np.outer(weights, weights @ account.basis))
        )
        extra = turn @ extra @ turn.T / size**2
        covariance = covariance + extra
        if draws is not None:
            values, vectors = np.linalg.eigh(extra)
            rng = np.random.default_rng([seed, 0, 1])
            noise = rng.standard_normal(draws.shape) * np.sqrt(np.clip(values, 0, None))
            draws = recentred(draws + noise @ vectors.T, weights, unit=not known)
    return Spread(covariance, len(replicates) - 1 if leave_out else 0, draws)


@dataclass(frozen=True, eq=False)
class Report:
    """What an estimate says beside numbers that come from the solver."""

    name: str
    method: Method
    gamma: float
    seed: int
    feature_names: tuple[str, ...]
    gauge: Gauge
    complete: bool
    cloned: ClonedPath | None
    learner: Learner
    gains: Mapping[str, float]
    notes: tuple[str, ...] = ()

    def estimate(
        self, account: Account, fit: Fit, rates: Float | None, spread: Spread | None
    ) -> RewardEstimate:
        """The answer."""
        weights, size = normalised(account.weights, known=rates is not None)
        solution, path = account.solution, self.cloned
        return RewardEstimate(
            weights=weights,
            feature_names=self.feature_names,
            learning_rates=solution.learning_rates * size,
            covariance=None if spread is None else spread.covariance,
            degrees_of_freedom=0 if spread is None else spread.degrees_of_freedom,
            scale="unit norm" if rates is None else "known learning rates",
            status=self._status(solution),
            notes=self._notes(account, fit, spread is None),
            gauge=self.gauge,
            fit=fit,
            method=self._describe(account),
            config={
                **asdict(self.method),
                "name": self.name,
                "gamma": self.gamma,
                "seed": self.seed,
            },
            objective_trace=solution.objective_trace,
            rank=solution.rank,
            condition=solution.condition,
            draws=None if spread is None else spread.draws,
            models=self.gains,
            held_out=None if path is None else np.array([c.held_out for c in path.clones]),
        )

    def _status(self, solution: Solution) -> Status:
        if not np.any(solution.weights):
            return Status.UNEXPLAINED
        gain = self.gains.get(self.learner, np.inf)
        if self.method.process_noise and gain < _CONVINCING:
            return Status.UNEXPLAINED
        if solution.status is Status.OK and self.gauge.n:
            return Status.RANK_DEFICIENT
        return solution.status

    def _notes(self, account: Account, fit: Fit, no_interval: bool) -> tuple[str, ...]:
        notes, path = [], self.cloned
        if not self.complete:
            notes.append("the history's recording was interrupted; these are the stages it has")
        if path is not None and not all(c.converged for c in path.clones):
            stages = [t for t, c in enumerate(path.clones) if not c.converged]
            notes.append(f"cloning did not converge at stages {stages}: increase max_iterations")
        if np.nanmedian(fit.cosines) < 1.5 * fit.chance and not np.nanmedian(fit.cosines) > 0.9:
            notes.append(
                "the predicted movement is hardly closer to the observed one than a random "
                "direction would be: do not trust these weights"
            )
        if path is not None and not isinstance(path.clones[0].fisher, BlockFisher):
            weak = [t for t, c in enumerate(path.clones) if _outweighed(c, path.config)]
            if weak:
                notes.append(
                    f"the prior outweighs the data in cloning stages {weak}: rescale the "
                    "observations or lower prior_strength"
                )
        if self.method.debias:
            notes.append(_noise_note(account))
        if no_interval:
            notes.append(
                "no intervals: they need at least three groups of episodes in every stage, and "
                "cloning by maximum likelihood"
            )
        return (*notes, *self.notes)

    def _describe(self, account: Account) -> str:
        method, known = self.method, self.cloned is None
        cloning = "known parameters" if known else f"cloned parameters ({method.clone.method})"
        parts = [cloning, f"{method.estimator} with {method.baseline} baseline"]
        if method.shared_rate:
            parts.append("one shared rate")
        elif method.rate_shrinkage is RateShrinkage.NONE:
            parts.append("one rate per step")
        else:
            parts.append(f"rates shrunk ({method.rate_shrinkage})")
        if method.metric == "fisher" and not known:
            parts.append("Fisher metric")
        if method.metric == "noise":
            parts.append("noise metric")
        if method.learner is Learner.AUTO:
            others = [name for name in self.gains if name != self.learner]
            second = f", runner-up '{others[0]}'" if others else ""
            parts.append(f"learner '{self.learner}' by held-out steps{second}")
        elif method.learner is not Learner.GRADIENT:
            parts.append(f"{method.learner} learner")
        if method.neighbours:
            parts.append(f"{method.neighbours} neighbouring stages")
        if method.debias and account.noise is not None:
            parts.append("Jacobian noise subtracted")
        if isinstance(method.ridge, str):
            parts.append(f"ridge {account.ridge:.2g} by evidence")
        return f"method {self.name}: " + ", ".join(parts)


def _noise_note(account: Account) -> str:
    if account.noise is None:
        return "Jacobian noise was not subtracted: every stage needs at least three episodes"
    share = account.solution.share
    if share >= 1:
        return "the noise of the Jacobians was subtracted in full"
    return (
        f"only {share:.0%} of the noise of the Jacobians could be subtracted in the noisiest "
        "direction of the weights: more episodes would tell"
    )


def _outweighed(clone: Clone, config: CloneConfig) -> bool:
    """Whether the prior says more about most parameters than the stage's data."""
    return bool(np.median(clone.fisher.diagonal()) < config.prior_strength)


def basis_of(gauge: Gauge, method: Method) -> Float:
    """Where to solve: the identified subspace, so that no weight is spent without effect."""
    if gauge.n == len(gauge.feature_names):
        raise IdentificationError(
            "no direction of the weights is identified: every feature is constant; use others"
        )
    # Non-negativity is about the features themselves: a rotated basis would lose it.
    return np.eye(len(gauge.feature_names)) if method.nonnegative else gauge.identified


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
    """See `logel.infer.infer_reward` for the arguments."""
    n_groups = method.n_groups if intervals or method.needs_groups else 1
    if not intervals:
        method = replace(method, n_groups=0, clone=replace(method.clone, holdout=0.0))
    parameters, path = _parameters(history, policy, method, use_parameters, seed, report)
    records, moments = _records(
        history, policy, parameters, path, method, max(n_groups, 1), gamma, features, report
    )
    jacobians = [record.jacobian for record in records]
    names = feature_names(history, features, jacobians[0].mean.shape[1])
    rates = history.learning_rates
    delta = np.diff(parameters, axis=0)
    check_movement(delta)
    assumed = np.ones(len(delta)) if rates is None else rates
    gauge = find_gauge(jacobians[:-1], assumed, moments, names)
    basis = basis_of(gauge, method)

    enough = min(len(jacobian.groups) for jacobian in jacobians)
    choice = _choose_learner(records, basis, rates, method, enough)
    account = choice.account
    spread = None
    # Three steps of Adam do not answer to the data as a maximum does: no interval is better than
    # a wrong one.
    tellable = path is None or path.config.method is CloneMethod.MLE
    if method.n_groups > 2 and tellable and enough > 2:
        replicates = _replicates(choice, rates, method, seed)
        spread = spread_from(replicates, account, rates, method, seed)
    weights, size = normalised(account.weights, known=rates is not None)
    design = np.stack([sample.design.mean for sample in choice.samples[:-1]])
    found = account.solution.learning_rates * size
    fit = explain(delta, design, weights, found, fitted=len(names) - gauge.n)
    told = Report(
        name,
        method,
        gamma,
        seed,
        names,
        gauge,
        history.complete,
        path,
        choice.learner,
        choice.gains,
    )
    return told.estimate(account, fit, rates, spread)


def _parameters(
    history: LearningHistory,
    policy: Policy,
    method: Method,
    use_parameters: bool,
    seed: int,
    report: Progress,
) -> tuple[Float, ClonedPath | None]:
    """Known parameters, or cloned ones with their path."""
    known = history.parameters() if use_parameters else None
    if known is not None:
        if known.shape[1] != policy.n_parameters:
            raise HistoryError(
                f"the history's policies have {known.shape[1]} parameters, but the family "
                f"{policy.n_parameters}: pass the matching family, or use_parameters=False to clone"
            )
        return known.astype(float), None
    total = len(history)
    path = clone(
        history,
        policy,
        method.clone,
        rng=np.random.default_rng(seed),
        progress=lambda done: report("cloning", done, total),
    )
    return path.parameters, path


def _records(
    history: LearningHistory,
    policy: Policy,
    parameters: Float,
    path: ClonedPath | None,
    method: Method,
    n_groups: int,
    gamma: float,
    features: FeatureFunction | None,
    report: Progress,
) -> tuple[list[StageRecord], FeatureMoments]:
    """Every stage (the last one's Jacobian serves only the intervals), streamed."""
    records: list[StageRecord] = []
    moments = FeatureMoments()
    for t, stage in enumerate(history):
        cloned = None if path is None else path.clones[t]
        try:
            stage = featured(stage, features, t)
            records.append(
                record_stage(
                    stage, policy, parameters[t], cloned, method, gamma=gamma, n_groups=n_groups
                )
            )
        except LogelError as error:
            if isinstance(error, OptionError):
                raise
            raise type(error)(f"stage {t}: {error}") from None
        moments.add(stage)
        report("Jacobians", t + 1, len(history))
    if method.neighbours:
        pooled = pooled_jacobians(
            lambda t: featured(history[t], features, t),
            policy,
            parameters,
            [record.jacobian for record in records],
            reach=method.neighbours,
            gamma=gamma,
            baseline=method.baseline,
        )
        records = [replace(r, jacobian=p) for r, p in zip(records, pooled, strict=True)]
    return records, moments


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


def _replicates(choice: _Choice, rates: Float | None, method: Method, seed: int) -> Float:
    """Weights for every reweighting of the episodes, shape (n, q)."""
    samples, parts = choice.samples, choice.parts if method.debias else None
    weights = [
        replicate_weights(method, sample.n_groups, t, seed) for t, sample in enumerate(samples)
    ]
    return np.stack(
        [
            replicate(
                [
                    step_between(
                        samples[t],
                        samples[t + 1],
                        metric,
                        basis=choice.account.basis,
                        weights=(weights[t][r], weights[t + 1][r]),
                        parts=None if parts is None else parts[t],
                    )
                    for t, metric in enumerate(choice.metrics)
                ],
                choice.account,
                rates,
                method,
            )
            for r in range(len(weights[0]))
        ]
    )
