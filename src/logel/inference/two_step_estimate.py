"""What a two-step estimate says beside its numbers: status, notes, and what was done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np

from logel.inference.accounts import Account, Spread, normalised
from logel.inference.estimate import RewardEstimate
from logel.inference.gauge import Fit, Gauge
from logel.inference.method import Method
from logel.inference.more_data import Planning
from logel.inference.regress import Solution, Status
from logel.inference.shrinkage import RateShrinkage
from logel.policies.cloning import Clone
from logel.policies.fisher import BlockFisher
from logel.rules.updates import Learner
from logel.types import Float

# Log-likelihood a reward must gain on held-out steps before its weights deserve trust: about the
# odds of twenty to one.
_CONVINCING = 3.0


class CloneFacts(NamedTuple):
    """What the notes need to know about a stage's clone."""

    held_out: float
    converged: bool
    outweighed: bool

    @classmethod
    def of(cls, clone: Clone, strength: float) -> CloneFacts:
        """`outweighed`: whether the prior says more about most parameters than the data."""
        # In a table, states that are not visited know nothing, which is no matter of units.
        tabular = isinstance(clone.fisher, BlockFisher)
        outweighed = not tabular and bool(np.median(clone.fisher.diagonal()) < strength)
        return cls(clone.held_out, clone.converged, outweighed)


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
    clones: Sequence[CloneFacts] | None
    learner: Learner
    gains: Mapping[str, float]
    notes: tuple[str, ...] = ()

    def estimate(
        self, account: Account, fit: Fit, rates: Float | None, spread: Spread | None
    ) -> RewardEstimate:
        """The answer."""
        weights, size = normalised(account.weights, known=rates is not None)
        solution, clones = account.solution, self.clones
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
            held_out=None if clones is None else np.array([c.held_out for c in clones]),
            planning=None if spread is None else Planning.proportional(spread.covariance),
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
        notes, clones = [], self.clones or ()
        if not self.complete:
            notes.append("the history's recording was interrupted; these are the stages it has")
        if stages := [t for t, c in enumerate(clones) if not c.converged]:
            notes.append(f"cloning did not converge at stages {stages}: increase max_iterations")
        if np.nanmedian(fit.cosines) < 1.5 * fit.chance and not np.nanmedian(fit.cosines) > 0.9:
            notes.append(
                "the predicted movement is hardly closer to the observed one than a random "
                "direction would be: do not trust these weights"
            )
        if stages := [t for t, c in enumerate(clones) if c.outweighed]:
            notes.append(
                f"the prior outweighs the data in cloning stages {stages}: rescale the "
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
        method, known = self.method, self.clones is None
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
        if account.steps.noise is not None:
            parts.append("Jacobian noise subtracted")
        if isinstance(method.ridge, str):
            parts.append(f"ridge {account.ridge:.2g} by evidence")
        return f"method {self.name}: " + ", ".join(parts)


def _noise_note(account: Account) -> str:
    if account.noise is None:
        return "Jacobian noise was not subtracted: every stage needs at least three episodes"
    if account.steps.noise is None:
        return (
            "the noise of the Jacobians was not subtracted: the weights would have spread more "
            "than they gained; intervals allow for the bias that remains"
        )
    share = account.solution.share
    if share >= 1:
        return "the noise of the Jacobians was subtracted in full"
    return (
        f"only {share:.0%} of the noise of the Jacobians could be subtracted in the noisiest "
        "direction of the weights: more episodes would tell"
    )
