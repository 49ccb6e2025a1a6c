"""From a learning history to reward weights: the stages of the computation in one function.

Read beside the paper: clone the policies (its equation for behavioural cloning), estimate the
Jacobians (section "Approximate gradient"), alternate the two closed forms (section "Recovering
learning rates and reward weights").
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace

import numpy as np
import numpy.typing as npt

from logel.cloning import Clone, CloneConfig, ClonedPath, CloneMethod, clone
from logel.diagnostics import FeatureMoments, Gauge, explain, find_gauge
from logel.errors import HistoryError, IdentificationError, LogelError, OptionError
from logel.estimate import RewardEstimate
from logel.features import feature_names, featured
from logel.fisher import BlockFisher, ProductFisher
from logel.history import FeatureFunction, LearningHistory
from logel.infer_joint import Progress, check_movement, infer_jointly, joint_applies
from logel.infer_mirror import MirrorMethod, infer_in_function_space
from logel.jacobian import Baseline, Estimator, StageJacobian, stage_jacobian
from logel.learner_choice import JointMethod
from logel.planning import Planning
from logel.policies import Policy
from logel.solve import Solution, Status, compress, solve
from logel.uncertainty import jackknife

Float = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Method:
    """Every choice of the inference; the named ones are in `METHODS`.

    Attributes:
        clone: How parameters are fitted when they are not known.
        estimator: Jacobian estimator.
        baseline: Its baseline.
        metric: "identity" as in the paper, or "fisher": movements weigh by how well cloning knows
            them (only matters for cloned parameters).
        shared_rate: Assume one learning rate for all steps.
        ridge: Penalty on the weights.
        nonnegative: Constrain the weights to be non-negative (features that are costs: negate
            them first).
        epsilon: Lower bound of the learning rates, in units of the equal ones we start from.
        max_iterations: Limit on alternations.
        n_groups: Groups of episodes left out in turn for the intervals.
    """

    clone: CloneConfig = field(default_factory=CloneConfig)
    estimator: Estimator | str = Estimator.GPOMDP
    baseline: Baseline | str = Baseline.NONE
    metric: str = "identity"
    shared_rate: bool = False
    ridge: float = 0.0
    nonnegative: bool = False
    epsilon: float = 1e-6
    max_iterations: int = 2000
    n_groups: int = 10

    def __post_init__(self) -> None:
        object.__setattr__(self, "estimator", Estimator(self.estimator))
        object.__setattr__(self, "baseline", Baseline(self.baseline))
        if self.ridge < 0 or self.epsilon <= 0 or self.max_iterations < 1 or self.n_groups < 0:
            raise OptionError(
                "ridge and n_groups must not be negative, epsilon must be positive and "
                f"max_iterations at least 1: {self}"
            )
        if self.metric not in ("identity", "fisher"):
            raise OptionError(f"metric must be 'identity' or 'fisher', but is {self.metric!r}")


METHODS: dict[str, Method | JointMethod | MirrorMethod] = {
    # The paper's algorithm. What it leaves open, and what we take: the G(PO)MDP estimator (it names
    # two); no baseline (it mentions none, and asks for an unbiased estimator); a weak unit prior in
    # cloning (the plain maximum does not exist for actions never taken); rates start equal; epsilon
    # is relative to the rates we start from (the scale of the rates is not identified).
    "paper": Method(),
    # What the authors' experiments run: few-step cloning and the component-wise baseline.
    "authors": Method(clone=CloneConfig(method=CloneMethod.ADAM), baseline=Baseline.COMPONENT),
    # For families without a pooled world model: unbiased Jacobians with the simplest variance
    # reduction, one rate for all steps.
    "two-step": Method(baseline=Baseline.TIME, shared_rate=True),
    # Path, weights and learner model together; tabular policies only.
    "joint": JointMethod(),
    # Natural gradient without parameters: log-policies against feature advantages, any family.
    "mirror": MirrorMethod(),
}


def infer_reward(
    history: LearningHistory,
    policy: Policy,
    *,
    gamma: float,
    method: str | Method | JointMethod | MirrorMethod = "default",
    features: FeatureFunction | None = None,
    use_parameters: bool = True,
    intervals: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> RewardEstimate:
    """Recover the reward weights of a learner from its history.

    Identification: unless the history carries learning rates (and the learner model has any), the
    weights are only known up to a positive factor and are returned with unit norm; `scale` in the
    estimate says which. See `RewardEstimate` for sign and gauge.

    Args:
        history: What was observed, at least two stages.
        policy: Family of the learner's policies (or of the clones that stand for them).
        gamma: The learner's discount factor, in [0, 1).
        method: "default" takes "joint" for tabular policies and "two-step" for others; "paper" is
            exactly the paper's algorithm, "authors" what its experiments run, "mirror" compares
            policies as functions; or a `Method`, `JointMethod` or `MirrorMethod` of your own.
        features: Maps (observations, actions, next_observations) to reward features (N, q); needed
            when the episodes carry none.
        use_parameters: Use the history's policy parameters if it has them, instead of cloning.
        intervals: Whether to compute intervals, clones' held-out fit and comparisons with learners
            that want nothing; False is faster.
        seed: Chooses held-out episodes and starting points; the same seed gives the same estimate.
        progress: Called with (what, done, total) during long work.
    """
    if not 0 <= gamma < 1:
        raise OptionError(f"gamma must be in [0, 1), but is {gamma}")
    if len(history) < 2:
        raise IdentificationError(
            f"the history has {len(history)} stage: at least two are needed to see the learner move"
        )
    name, chosen = _choose(method, policy, history)
    report = progress or (lambda what, done, total: None)
    if isinstance(chosen, MirrorMethod):
        return infer_in_function_space(
            history,
            policy,
            name=name,
            method=chosen,
            gamma=gamma,
            features=features,
            use_parameters=use_parameters,
            intervals=intervals,
            seed=seed,
            report=report,
        )
    if isinstance(chosen, JointMethod):
        return infer_jointly(
            history,
            policy,
            name=name,
            method=chosen,
            gamma=gamma,
            features=features,
            use_parameters=use_parameters,
            intervals=intervals,
            seed=seed,
            report=report,
        )
    if not intervals:
        chosen = replace(chosen, n_groups=0, clone=replace(chosen.clone, holdout=0.0))

    parameters, path = _parameters(history, policy, chosen, use_parameters, seed, report)
    jacobians, moments = _jacobians(history, policy, parameters, chosen, gamma, features, report)
    names = feature_names(history, features, jacobians[0].mean.shape[1])

    rates = history.learning_rates
    metric = _metric(path) if chosen.metric == "fisher" and path is not None else None
    delta = np.diff(parameters, axis=0)
    design = np.stack([jacobian.mean for jacobian in jacobians[:-1]])
    check_movement(delta)
    assumed = np.ones(len(delta)) if rates is None else rates
    gauge = find_gauge(jacobians[:-1], assumed, moments, names)
    if gauge.n == len(names):
        raise IdentificationError(
            "no direction of the weights is identified: every feature is constant; use others"
        )

    solution = _solve_identified(delta, design, metric, gauge, rates, chosen)
    weights, rates_found = _normalise(solution, known=rates is not None)

    def solve_again(delta: Float, design: Float) -> Float:
        again = _solve_identified(delta, design, metric, gauge, rates, chosen, tolerance=1e-8)
        return _normalise(again, known=rates is not None)[0]

    # Three steps of Adam do not answer to the data as a maximum does: no interval is better than
    # a wrong one.
    tellable = path is None or path.config.method is CloneMethod.MLE
    spread = None
    if chosen.n_groups > 2 and tellable:
        spread = jackknife(parameters, jacobians, path, solve_again)
    fit = explain(delta, design, weights, rates_found, fitted=len(names) - gauge.n)
    return RewardEstimate(
        weights=weights,
        feature_names=names,
        learning_rates=rates_found,
        covariance=None if spread is None else spread[0],
        degrees_of_freedom=0 if spread is None else spread[1],
        scale="unit norm" if rates is None else "known learning rates",
        status=_status(solution, gauge),
        notes=_notes(history, path, fit.cosines, fit.chance, spread is None),
        gauge=gauge,
        fit=fit,
        method=_describe(name, chosen, known=path is None),
        config={**asdict(chosen), "name": name, "gamma": gamma, "seed": seed},
        objective_trace=solution.objective_trace,
        rank=solution.rank,
        condition=solution.condition,
        held_out=None if path is None else np.array([c.held_out for c in path.clones]),
        planning=None if spread is None else Planning.proportional(spread[0]),
    )


def _choose(
    method: str | Method | JointMethod | MirrorMethod, policy: Policy, history: LearningHistory
) -> tuple[str, Method | JointMethod | MirrorMethod]:
    if not isinstance(method, str):
        return "custom", method
    if method == "default":
        name = "joint" if joint_applies(policy, history) else "two-step"
        return f"default ({name})", METHODS[name]
    if method not in METHODS:
        raise OptionError(
            f"unknown method {method!r}: choose one of {', '.join(['default', *METHODS])}"
        )
    return method, METHODS[method]


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


def _jacobians(
    history: LearningHistory,
    policy: Policy,
    parameters: Float,
    method: Method,
    gamma: float,
    features: FeatureFunction | None,
    report: Progress,
) -> tuple[list[StageJacobian], FeatureMoments]:
    """Jacobians of every stage (the last one's serves only the intervals), streamed."""
    jacobians: list[StageJacobian] = []
    moments = FeatureMoments()
    for t, stage in enumerate(history):
        try:
            stage = featured(stage, features, t)
            jacobians.append(
                stage_jacobian(
                    policy,
                    parameters[t],
                    stage,
                    gamma=gamma,
                    estimator=method.estimator,
                    baseline=method.baseline,
                    n_groups=max(method.n_groups, 1),
                )
            )
        except LogelError as error:
            if isinstance(error, OptionError):
                raise
            raise type(error)(f"stage {t}: {error}") from None
        moments.add(stage)
        report("Jacobians", t + 1, len(history))
    return jacobians, moments


def _metric(path: ClonedPath) -> Float:
    """Inverse covariance of each movement, from the information in the two stages it joins.

    Dense for the families that can afford it; diagonal for networks, shape (m, d, d) or (m, d).
    """
    strength = path.config.prior_strength
    if any(isinstance(c.fisher, ProductFisher) for c in path.clones):
        variance = np.stack([1 / (c.fisher.diagonal() + strength) for c in path.clones])
        return np.asarray(1 / (variance[1:] + variance[:-1]))
    identity = np.eye(path.parameters.shape[1])
    inverse = np.stack([c.fisher.solve(identity, ridge=strength) for c in path.clones])
    total = inverse[1:] + inverse[:-1]
    symmetric = np.linalg.inv((total + np.swapaxes(total, 1, 2)) / 2)
    return np.asarray((symmetric + np.swapaxes(symmetric, 1, 2)) / 2)


def _solve_identified(
    delta: Float,
    design: Float,
    metric: Float | None,
    gauge: Gauge,
    rates: Float | None,
    method: Method,
    *,
    tolerance: float = 1e-13,
) -> Solution:
    """Solve in the identified subspace, so that no weight is spent on what has no effect."""
    # Non-negativity is about the features themselves: a rotated basis would lose it.
    basis = np.eye(design.shape[2]) if method.nonnegative else gauge.identified
    solution = solve(
        compress(delta, design @ basis, metric=metric),
        rates,
        ridge=method.ridge,
        nonnegative=method.nonnegative,
        shared_rate=method.shared_rate,
        epsilon=method.epsilon,
        max_iterations=method.max_iterations,
        tolerance=tolerance,
    )
    return replace(solution, weights=basis @ solution.weights)


def _normalise(solution: Solution, *, known: bool) -> tuple[Float, Float]:
    """Unit weights, unless known rates give them a scale."""
    size = float(np.linalg.norm(solution.weights))
    if known or size == 0:
        return solution.weights, solution.learning_rates
    return solution.weights / size, solution.learning_rates * size


def _status(solution: Solution, gauge: Gauge) -> Status:
    if not np.any(solution.weights):
        return Status.UNEXPLAINED
    if solution.status is Status.OK and gauge.n:
        return Status.RANK_DEFICIENT
    return solution.status


def _notes(
    history: LearningHistory,
    path: ClonedPath | None,
    cosines: Float,
    chance: float,
    no_interval: bool,
) -> tuple[str, ...]:
    notes = []
    if not history.complete:
        notes.append("the history's recording was interrupted; these are the stages it has")
    if path is not None and not all(c.converged for c in path.clones):
        stages = [t for t, c in enumerate(path.clones) if not c.converged]
        notes.append(f"cloning did not converge at stages {stages}: increase max_iterations")
    if np.nanmedian(cosines) < 1.5 * chance and not np.nanmedian(cosines) > 0.9:
        notes.append(
            "the predicted movement is hardly closer to the observed one than a random direction "
            "would be: do not trust these weights"
        )
    if path is not None and not isinstance(path.clones[0].fisher, BlockFisher):
        weak = [t for t, c in enumerate(path.clones) if _outweighed(c, path.config)]
        if weak:
            notes.append(
                f"the prior outweighs the data in cloning stages {weak}: rescale the observations "
                "or lower prior_strength"
            )
    if no_interval:
        notes.append(
            "no intervals: they need at least three groups of episodes in every stage, and cloning "
            "by maximum likelihood"
        )
    return tuple(notes)


def _outweighed(clone: Clone, config: CloneConfig) -> bool:
    """Whether the prior says more about most parameters than the stage's data."""
    return bool(np.median(clone.fisher.diagonal()) < config.prior_strength)


def _describe(name: str, method: Method, *, known: bool) -> str:
    cloning = "known parameters" if known else f"cloned parameters ({method.clone.method})"
    rates = "one shared rate" if method.shared_rate else "one rate per step"
    metric = "" if known or method.metric == "identity" else ", Fisher metric"
    jacobian = f"{method.estimator} with {method.baseline} baseline"
    return f"method {name}: {cloning}, {jacobian}, {rates}{metric}"
