"""Every choice of an inference in one place, and the named ones."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from logel.errors import Choice, OptionError
from logel.policies.base import Policy
from logel.policies.cloning import CloneConfig, CloneMethod
from logel.rules.functions import StateFeatures
from logel.rules.rates import Rates
from logel.worlds.own_episodes import Baseline, Estimator


class Coordinates(Choice):
    """What is taken for the learner's state, and where its design comes from.

    PARAMETERS: parameters move along the Jacobians of each stage's own episodes, as in the paper.
    FUNCTIONS: log-probabilities move along feature advantages, for any family (mirror descent).
    PATH: path, weights and rule together, in a world pooled over all stages (families with few
        parameters); nothing is taken as seen, a smoother goes along the whole path.
    REPLAY: policies move as the learner's own update code moves them, critic and all.
    """

    PARAMETERS = "parameters"
    FUNCTIONS = "functions"
    PATH = "path"
    REPLAY = "replay"


@dataclass(frozen=True)
class Method:
    """How weights are inferred; `Method.named` gives the named ones, with changes if you like.

    Attributes:
        coordinates: See `Coordinates`; the groups below say which of them an option speaks to.
        clone: How parameters are fitted when they are not known.
        rates: What is assumed of unknown learning rates, see `Rates`. None is a schedule for cloned
            policies and one shared rate for known ones: there every step is seen so well that what
            learners do beside mirror descent, the same at all steps, is what errs, and late steps
            would be trusted for their little noise.
        ridge: Penalty on the weights, or "evidence" for the one with the largest evidence. None
            is "evidence" for ten weights or more and none for fewer, whose spread is not known well
            enough to shrink by.
        epsilon: Lower bound of the learning rates, in units of the equal ones we start from.
        max_iterations: Limit on alternations between weights and rates.
        n_groups: Groups of episodes left out in turn, or resampled, for the intervals.
        n_draws: Draws of the weights, where the intervals come from draws.
        debias: Take the sampling noise of the design out of the normal equations, and what it
            shares with cloned movements. "auto" does so where that promises the smaller error. A
            learner that learnt from these very episodes followed that noise: it is signal then;
            None takes it out unless the history says so (`LearningHistory.own_episodes`).

        estimator: Parameters: Jacobian estimator.
        baseline: Parameters: its baseline.
        metric: Parameters: "identity" as in the paper; "fisher": movements weigh by how well
            cloning knows them; "noise": beside cloning, noise of gradients and of anything else
            count, as much as the evidence wants (families with a dense information matrix;
            networks get "fisher").
        nonnegative: Parameters: constrain the weights to be non-negative (features that are costs:
            negate them first).
        uncertainty: Parameters: "jackknife" for a covariance, or "bootstrap" for draws.
        process_noise: Parameters: let movement that neither reward nor episodes' noise explains
            widen the intervals.

        state_features: Functions: state features of the basis, see `StateFeatures`.
        deviations: Functions: whether changes of a Gaussian policy's deviations count as movement.
            Exploration usually shrinks by itself, which would look like a cost of actions.
        trace: Functions: lambda of the feature advantages: 1 is unbiased, less has less variance.
        pool: Functions: weight of neighbouring stages in a stage's critic.
        bootstrap: Functions: whether life goes on, for the learner, where episodes are cut off.
            False takes the length of the episodes for the learner's own horizon.

        models: Path: rules to try, by name; None tries all that the policy family offers.
        complexity_cost: Path: log prior odds of every rule against "gradient". With few data, rules
            with much process noise all look alike, and the plainest should win.
        heats: Path: rounds of each heat, and the log evidence by which a rule may trail the leader
            and still run in the next one. In the first rounds evidence is still far from settled,
            so only the hopeless go.

        n_stages: Replay: steps that are replayed, the first ones of the history.
        n_fates: Replay: other critics' beginnings and orders of minibatches that all candidates
            learn under; more of them tell the learner's own chance better.
    """

    coordinates: Coordinates | str = Coordinates.PARAMETERS
    clone: CloneConfig = field(default_factory=CloneConfig)
    rates: Rates | str | None = Rates.FREE
    ridge: float | str | None = 0.0
    epsilon: float = 1e-6
    max_iterations: int = 2000
    n_groups: int = 10
    n_draws: int = 200
    debias: bool | str | None = False

    estimator: Estimator | str = Estimator.GPOMDP
    baseline: Baseline | str = Baseline.NONE
    metric: str = "identity"
    nonnegative: bool = False
    uncertainty: str = "jackknife"
    process_noise: bool = False

    state_features: StateFeatures | str = StateFeatures.AUTO
    deviations: bool = False
    trace: float = 0.9
    pool: float = 0.5
    bootstrap: bool = True

    models: tuple[str, ...] | None = None
    complexity_cost: float = 4.0
    heats: tuple[tuple[int, float], ...] = ((4, 150.0), (3, 30.0), (10, 0.0))

    n_stages: int = 20
    n_fates: int = 4

    def __post_init__(self) -> None:
        kinds: dict[str, type[Choice]] = {
            "coordinates": Coordinates,
            "estimator": Estimator,
            "baseline": Baseline,
            "state_features": StateFeatures,
            "rates": Rates,
        }
        for name, kind in kinds.items():
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, kind(value))
        among: dict[str, tuple[object, ...]] = {
            "metric": ("identity", "fisher", "noise"),
            "uncertainty": ("jackknife", "bootstrap"),
            "debias": (False, True, "auto", None),
        }
        for name, offered in among.items():
            if getattr(self, name) not in offered:
                listed = ", ".join(repr(value) for value in offered)
                raise OptionError(f"{name} must be one of {listed}, not {getattr(self, name)!r}")
        self._check_numbers()
        self._check_coordinates()
        if self.models is not None and not self.models:
            raise OptionError("at least one rule is needed in models")

    def _check_coordinates(self) -> None:
        """Options that mean something in one kind of coordinates alone."""
        functions = self.coordinates is Coordinates.FUNCTIONS
        parameters = self.coordinates is Coordinates.PARAMETERS
        if self.nonnegative and not parameters:
            raise OptionError(f"nonnegative needs coordinates='parameters', not {self.coordinates}")
        if self.rates is Rates.SCHEDULE and not functions:
            raise OptionError(f"schedules of rates need 'functions', not {self.coordinates}")
        if self.rates is Rates.FREE and functions:
            raise OptionError("one rate per step needs coordinates='parameters', not functions")

    def _check_numbers(self) -> None:
        if isinstance(self.ridge, str) and self.ridge != "evidence":
            raise OptionError(f"ridge must be a number or 'evidence', but is {self.ridge!r}")
        if isinstance(self.ridge, int | float) and not self.ridge >= 0:
            raise OptionError(f"ridge must not be negative, but is {self.ridge}")
        if not self.epsilon > 0:
            raise OptionError(f"epsilon must be positive, but is {self.epsilon}")
        for name, least in (("max_iterations", 1), ("n_groups", 0), ("n_draws", 2)):
            if getattr(self, name) < least:
                raise OptionError(f"{name} must be at least {least}, but is {getattr(self, name)}")
        if self.n_stages < 1 or self.n_fates < 2:
            raise OptionError(
                f"replay needs at least one step and two fates, not {self.n_stages} and "
                f"{self.n_fates}"
            )
        for name in ("trace", "pool"):
            if not 0 <= getattr(self, name) <= 1:
                raise OptionError(f"{name} must be in [0, 1], but is {getattr(self, name)}")

    @classmethod
    def named(cls, name: str, **changes: Any) -> Method:
        """One of the named methods, with some choices changed."""
        if name not in METHODS:
            raise OptionError(f"unknown method {name!r}: choose one of {', '.join(METHODS)}")
        return replace(METHODS[name], **changes)

    @property
    def needs_groups(self) -> bool:
        """Whether the weights in parameter space, not only their intervals, need groups."""
        return bool(self.debias) or self.process_noise

    def without_intervals(self, policy: Policy) -> Method:
        """The same weights, but nothing that only intervals need.

        Episodes held out of a convex family's clones only score them; others stop early by them.
        """
        if not policy.convex:
            return self
        return replace(self, clone=replace(self.clone, holdout=0.0))

    @property
    def centres(self) -> bool:
        """Whether constants are taken off the features of episodes that never terminate.

        The paper's own estimators have no baseline in time and take features as they come. That
        baseline takes constants out, but for digits, and noise where lengths differ.
        """
        return self.coordinates is not Coordinates.PARAMETERS or self.baseline is Baseline.TIME

    @property
    def tellable(self) -> bool:
        """Whether clones answer to the data as a maximum does: three steps of Adam do not."""
        return self.clone.method is not CloneMethod.ADAM


METHODS: dict[str, Method] = {
    # The paper's algorithm. What it leaves open, and what we take: the G(PO)MDP estimator (it names
    # two); no baseline (it mentions none, and asks for an unbiased estimator); a weak unit prior in
    # cloning (the plain maximum does not exist for actions never taken); rates start equal; epsilon
    # is relative to the rates we start from (the scale of the rates is not identified).
    "paper": Method(),
    # What the authors' experiments run: few-step cloning and the component-wise baseline.
    "authors": Method(clone=CloneConfig(method=CloneMethod.ADAM), baseline=Baseline.COMPONENT),
    # For families without a pooled world model: unbiased Jacobians with the simplest variance
    # reduction, one rate for all steps, a metric of all the noise there is, bias removed where that
    # promises much, and doubts in the intervals. What was measured is in docs/estimators.md: mostly
    # better coverage.
    "two-step": Method(
        baseline=Baseline.TIME,
        rates=Rates.SHARED,
        metric="noise",
        debias="auto",
        process_noise=True,
    ),
    # Path, weights and rule together; families with few parameters.
    "joint": Method(coordinates=Coordinates.PATH, rates=None, n_draws=1000),
    # Steps of the policy itself, not of its parameters: any softmax or Gaussian family.
    "mirror": Method(
        coordinates=Coordinates.FUNCTIONS,
        rates=None,
        ridge=None,
        debias=None,
        n_groups=20,
        n_draws=2000,
    ),
    # The learner's own update, run again: networks whose learner is known.
    "replay": Method(coordinates=Coordinates.REPLAY, rates=None, ridge=None, n_draws=2000),
}
