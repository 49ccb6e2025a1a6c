"""From what a fit found to the estimate: status, notes, words and scale, for every method alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np

from logel.inference.estimate import RewardEstimate
from logel.inference.found import Found
from logel.inference.gauge import Gauge
from logel.inference.method import Coordinates, Method
from logel.inference.null import CONVINCING, ENOUGH_STEPS, no_reward
from logel.inference.spread import Spread, student_draws, unit_rows
from logel.inference.status import Status
from logel.policies.cloned_path import ClonedPath
from logel.policies.cloning import Clone
from logel.types import Float

# A weight of which the gauge leaves less than this has neither size nor interval.
_SILENT = 1e-6
# Share of what steps have in common that may be left again and again. Learners whose rule is the
# fitted one leave nothing that is no chance; a missing feature leaves a tenth to a half, a reward
# outside the features a half and more.
_MUCH = 0.1


class CloneFacts(NamedTuple):
    """What the notes need to know about a stage's clone."""

    held_out: float
    converged: bool
    outweighed: bool

    @classmethod
    def of(cls, clone: Clone, strength: float) -> CloneFacts:
        """`outweighed`: whether the prior says more about most parameters than the data."""
        # In a table, states that are not visited know nothing, which is no matter of units.
        outweighed = not clone.fisher.tabular and clone.typical_information < strength
        return cls(clone.held_out, clone.converged, outweighed)

    @classmethod
    def of_path(cls, path: ClonedPath | None) -> tuple[CloneFacts, ...] | None:
        """Of every stage, or None when the parameters were known."""
        if path is None:
            return None
        return tuple(cls.of(clone, path.config.prior_strength) for clone in path.clones)


@dataclass(frozen=True, eq=False)
class Asked:
    """What was asked, and of what: the part of an answer that no fit decides."""

    name: str
    method: Method
    gamma: float
    seed: int
    intervals: bool
    feature_names: tuple[str, ...]
    complete: bool
    clones: Sequence[CloneFacts] | None
    notes: tuple[str, ...] = ()
    # What of the data a given world calls impossible.
    contradicted: tuple[str, ...] = ()
    # The column furthest from unit size, in a sentence.
    furthest: str = ""


def answer(found: Found, gauge: Gauge, asked: Asked) -> RewardEstimate:
    """The estimate."""
    size, spread, clones = found.size, found.spread or Spread(), asked.clones
    draws, covariance = spread.draws, spread.covariance
    if draws is not None and not found.keeps_scale:
        draws = unit_rows(draws)
    if covariance is None and draws is not None:
        covariance = np.cov(draws.T).reshape(len(asked.feature_names), -1)
    draws = _doubted(found, gauge, asked, draws, covariance)
    estimate = RewardEstimate(
        weights=found.weights / size,
        feature_names=asked.feature_names,
        learning_rates=found.rates * size,
        covariance=covariance,
        degrees_of_freedom=spread.freedom,
        scale="known learning rates" if found.keeps_scale else "unit norm",
        status=_status(found, gauge),
        notes=_notes(found, asked, known=covariance is not None),
        gauge=gauge,
        fit=replace(found.fit, rule=found.rule),
        method=f"method {asked.name}: {found.words}",
        config={
            **asdict(asked.method),
            "name": asked.name,
            "gamma": asked.gamma,
            "seed": asked.seed,
        },
        objective_trace=found.trace,
        rank=found.rank,
        condition=found.condition,
        draws=draws,
        models=found.gains,
        held_out=None if clones is None else np.array([c.held_out for c in clones]),
        planning=spread.planning,
    )
    return usable(estimate, asked.furthest)


def usable(estimate: RewardEstimate, furthest: str) -> RewardEstimate:
    """The estimate, with another status where it promises numbers that are none.

    Weights that are all zero, that are not finite, or intervals that are not, or that have no width
    though more than one weight is told, come of columns whose sizes lie too far apart.
    """
    if estimate.status not in (Status.OK, Status.RANK_DEFICIENT):
        return estimate
    weights, covariance = estimate.weights, estimate.covariance
    told = np.linalg.norm(estimate.gauge.directions, axis=0) < 1 - _SILENT
    sound = bool(np.isfinite(weights).all() and np.any(weights))
    if sound and covariance is not None and len(weights) > 1:
        widths = np.diff(estimate.interval(), axis=1)[:, 0]
        sound = bool(np.isfinite(widths).all() and (widths[told] > 0).all())
    if sound:
        return estimate
    notes = (*estimate.notes, furthest) if furthest else estimate.notes
    return replace(estimate, status=Status.OUT_OF_SCALE, notes=notes)


def _status(found: Found, gauge: Gauge) -> Status:
    """Trust comes first, then how the solver ended, then what cannot be told."""
    if found.gain < CONVINCING or not np.any(found.weights):
        return Status.UNEXPLAINED
    if found.solved not in (Status.OK, Status.RANK_DEFICIENT):
        return found.solved
    if found.unlearns:
        return Status.REVERSIBLE
    if found.repeats > _MUCH or found.unsteady:
        return Status.INCOMPLETE
    return Status.RANK_DEFICIENT if gauge.n else found.solved


def _nothing(found: Found, asked: Asked) -> float:
    """Probability that the weights mean nothing, as far as the draws do not know it yet."""
    nothing = found.repeats if found.repeats > _MUCH else 0.0
    # Fits of whole paths, and replay, draw with that in mind. Of few steps nothing was asked that
    # could have been answered: their intervals take for granted that there is a reward.
    asks = asked.method.coordinates in (Coordinates.PARAMETERS, Coordinates.FUNCTIONS)
    if asks and len(found.rates) >= ENOUGH_STEPS and found.gain < CONVINCING:
        nothing = max(nothing, no_reward(found.gain))
    return nothing


def _doubted(
    found: Found, gauge: Gauge, asked: Asked, draws: Float | None, covariance: Float | None
) -> Float | None:
    """Draws that allow for what the status doubts, in its proportion; as they are if that is nil.

    Without a reward, or with one that the features do not tell, any direction is as likely; where
    time may run either way, so is the opposite one. What is called significant has to survive that.
    """
    nothing = _nothing(found, asked)
    if covariance is None or not (nothing or found.unlearns):
        return draws
    rng, n = np.random.default_rng([asked.seed, 41]), max(asked.method.n_draws, 1000)
    if draws is None:
        assert found.spread is not None
        mean = found.weights / found.size
        draws = student_draws(mean, covariance, found.spread.freedom, n, rng)
    draws = draws[rng.integers(0, len(draws), n)]
    if not found.keeps_scale:
        draws = unit_rows(draws)
    if found.unlearns:
        draws = draws * rng.choice([-1.0, 1.0], (n, 1))
    size = np.linalg.norm(draws, axis=1, keepdims=True)
    anything = unit_rows(gauge.project(rng.standard_normal(draws.shape).T).T) * size
    return np.where(rng.random((n, 1)) < nothing, anything, draws)


def _notes(found: Found, asked: Asked, *, known: bool) -> tuple[str, ...]:
    clones = asked.clones or ()
    unfinished = [t for t, c in enumerate(clones) if not c.converged]
    outweighed = [t for t, c in enumerate(clones) if c.outweighed]
    said = {
        "the history's recording was interrupted; these are the stages it has": not asked.complete,
        f"cloning did not converge at stages {unfinished}: raise max_iterations": unfinished,
        f"the prior outweighs the data in cloning stages {outweighed}: rescale the observations or "
        "lower prior_strength": outweighed,
        "no intervals were asked for": not asked.intervals,
        "no intervals: they need at least three groups of episodes in every stage, and cloning by "
        "maximum likelihood": asked.intervals and not known,
    }
    chosen = [note for note, holds in said.items() if holds]
    return (*chosen, *_about_the_fit(found), *found.notes, *asked.notes, *asked.contradicted)


def _about_the_fit(found: Found) -> list[str]:
    """Whether single steps are predicted, and whether another rule would have done as well."""
    notes, fit = [], found.fit
    if found.gain >= CONVINCING and found.repeats > _MUCH:
        notes.append(
            f"{found.repeats:.0%} of what the steps have in common is left unexplained again and "
            "again: a feature is missing, what is wanted changes, or the learner follows another "
            "rule"
        )
    if found.gain >= CONVINCING:
        notes.extend(found.unsteady)
    cosine = np.nanmedian(fit.cosines)
    if not cosine > max(1.5 * fit.chance, 0.0) and not cosine > 0.9:
        explained = found.gain >= CONVINCING
        notes.append(
            "single steps are predicted hardly better than by a random direction; only all of them "
            "together show a reward"
            if explained
            else "the predicted movement is hardly closer to the observed one than a random "
            "direction would be: do not trust these weights"
        )
    first, second, *_ = [*found.gains.items(), ("", -np.inf), ("", -np.inf)]
    if first[1] - second[1] < CONVINCING:
        notes.append(
            f"the rules '{first[0]}' and '{second[0]}' explain the data about equally well: "
            "compare their weights (Method.named('joint', models=...))"
        )
    return notes
