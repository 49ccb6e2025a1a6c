"""The choices of the two-step inference, and of the one in function space."""

from __future__ import annotations

from dataclasses import dataclass, field

from logel.errors import OptionError
from logel.inference.shrinkage import RateShrinkage
from logel.policies.cloning import CloneConfig
from logel.rules.functions import StateFeatures
from logel.rules.rates import Rates
from logel.rules.updates import Learner
from logel.worlds.own_episodes import Baseline, Estimator


@dataclass(frozen=True)
class Method:
    """Every choice of the two-step inference; the named ones are in `inference.infer.METHODS`.

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
            share with cloned movements. "auto" does so where that promises the smaller error:
            less bias, but more spread.
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
    debias: bool | str = False
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
        if self.debias not in (False, True, "auto"):
            raise OptionError(f"debias must be True, False or 'auto', but is {self.debias!r}")
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
        return bool(self.debias) or self.process_noise


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
            it out unless the history says that it is such a record (`own_episodes`).
        rates: What is assumed of unknown learning rates, see `Rates`. None is a schedule for cloned
            policies and one shared rate for known ones. There every step is seen so well that what
            learners do beside mirror descent, the same at all steps, is what errs, and late steps
            would be trusted for their little noise.
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
    rates: Rates | str | None = None
    ridge: float | str | None = None
    epsilon: float = 1e-6
    max_iterations: int = 2000
    n_groups: int = 20
    n_draws: int = 2000

    def __post_init__(self) -> None:
        object.__setattr__(self, "state_features", StateFeatures(self.state_features))
        if self.rates is not None:
            object.__setattr__(self, "rates", Rates(self.rates))
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
