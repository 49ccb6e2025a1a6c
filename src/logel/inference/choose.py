"""The default inference: fit every learner model, keep the one with evidence.

Learners differ in how they turn reward into the next policy, and a wrong assumption about it costs
more than anything else. So the assumption is inferred too: each model is fitted to the same
trajectories, and the one whose evidence is highest gives the weights. The evidence is the
probability of every stage predicted from those before it, so a model pays for what it fits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from logel.errors import OptionError
from logel.inference.gauge import Fit, Gauge, explain
from logel.inference.known_path import fit_known_path
from logel.inference.smooth import (
    JointFit,
    Start,
    WeightPosterior,
    fit_path,
    fit_random_walk,
    weight_posterior,
)
from logel.rules.ascent import ASCENTS
from logel.rules.rule import PathModel
from logel.rules.values import MODELS
from logel.types import Float, Progress

logger = logging.getLogger(__name__)
# Rounds of the random walk, of other accounts without a reward, and of the winner without one.
_WALK_ROUNDS, _NULL_ROUNDS, _WEIGHTLESS_ROUNDS = 12, 12, 8


@dataclass(frozen=True)
class JointMethod:
    """Choices of the joint inference.

    Attributes:
        models: Learner models to try, by their names in `learner_models.MODELS` (tabular policies)
            or `ascent_models.ASCENTS` (others); None tries all that apply.
        complexity_cost: Log prior odds of every model against "gradient". With few data, models
            with much process noise all look alike, and the plainest should win.
        heats: Rounds of each heat, and the log evidence by which a model may trail the leader and
            still run in the next one. In the first rounds evidence is still far from settled, so
            only the hopeless go.
        n_draws: Posterior draws kept for the intervals.
    """

    models: tuple[str, ...] | None = None
    complexity_cost: float = 4.0
    heats: tuple[tuple[int, float], ...] = ((4, 150.0), (3, 30.0), (10, 0.0))
    n_draws: int = 1000

    def __post_init__(self) -> None:
        known = {**MODELS, **ASCENTS}
        if self.models is None:
            return
        if unknown := [name for name in self.models if name not in known]:
            raise OptionError(f"unknown learner models {unknown}: choose from {', '.join(known)}")
        if not self.models:
            raise OptionError("at least one learner model is needed")

    def among(self, offered: Iterable[str]) -> list[str]:
        """The models to try of those that the policy family offers."""
        names = list(offered)
        chosen = names if self.models is None else [n for n in self.models if n in names]
        if not chosen:
            raise OptionError(
                f"none of the learner models {self.models} fits this policy family: choose from "
                f"{', '.join(names)}"
            )
        return chosen


@dataclass(frozen=True, eq=False)
class LearnerChoice:
    """The learner model with the highest evidence, and how the others did.

    Attributes:
        name: The chosen model.
        walk: The fit of a random walk, which every model has to beat.
        gains: Log evidence (with prior odds) of each model over the random walk, best first.
        reward_gain: Log evidence of the chosen model over the best account without a reward: a
            random walk of logits or of values, or the same learner with all weights zero.
        fits: The fit of every model.
    """

    name: str
    fits: Mapping[str, JointFit]
    walk: JointFit
    gains: Mapping[str, float]
    reward_gain: float

    @property
    def fit(self) -> JointFit:
        """Of the chosen model."""
        return self.fits[self.name]

    def posterior(self, name: str) -> WeightPosterior:
        """Of the weights under one of the models, in the world's own features."""
        fit = self.fits[name]
        return weight_posterior(fit.weights, fit.covariance, fit.variances.scale)


def feature_basis(gauge: Gauge, ranges: Float) -> Float:
    """Matrix (q, k) that takes features to the identified ones, measured in units of their ranges.

    The weights' prior is the same in all directions of these, whatever units the features came in.
    """
    basis = np.eye(len(ranges))
    if gauge.n:
        basis = np.linalg.svd(gauge.directions * ranges, full_matrices=True)[2][gauge.n :].T
    return np.asarray(basis / ranges[:, None])


def choose_learner(
    models: Mapping[str, PathModel],
    method: JointMethod,
    *,
    cloned: Float | None = None,
    nulls: Sequence[PathModel] | None = None,
    report: Progress | None = None,
) -> LearnerChoice:
    """Fit all models and choose by evidence.

    Every model starts from the random walk's path with no weights; those whose steps may be large
    also from what two steps would answer, the path cloned stage by stage and the weights regressed
    on it. The better start goes on. (Where steps are small both lead to the same fit.)

    Args:
        models: The candidates, by name.
        method: How long, and at which odds.
        cloned: Parameters of each stage's own clone, shape (m + 1, d).
        nulls: Further accounts without a reward that the chosen model has to beat, beside the
            random walk and itself with all weights zero; None compares with the walk alone.
        report: Called with (what, done, total).
    """
    anyone = next(iter(models.values()))
    walk = fit_random_walk(anyone, start=None if cloned is None else Start(cloned))
    current = {name: model.refreshed(walk.states) for name, model in models.items()}
    fits: dict[str, JointFit] = {}

    def gain(name: str) -> float:
        cost = 0.0 if name == "gradient" else method.complexity_cost
        return fits[name].evidence - walk.evidence - cost

    running = list(current)
    effort = _Effort(report, sum(rounds for rounds, _ in method.heats) * len(running), nulls)
    effort.spend(_WALK_ROUNDS)
    for heat, (rounds, margin) in enumerate(method.heats):
        for name in running:
            model = current[name]
            if name in fits:
                model = current[name] = model.refreshed(fits[name].states)
                fits[name] = fit_path(model, max_rounds=rounds, start=fits[name])
                effort.spend(rounds)
                continue
            fits[name] = fit_path(model, max_rounds=rounds, start=walk)
            if cloned is not None and model.second_start:
                other = fit_path(model, max_rounds=rounds, start=_two_steps(model, walk, cloned))
                fits[name] = max(fits[name], other, key=lambda fit: fit.evidence)
            effort.spend(rounds)
        lead = max(gain(name) for name in fits)
        running = [n for n in running if not fits[n].converged and gain(n) >= lead - margin]
        effort.spend(0, left=sum(rounds for rounds, _ in method.heats[heat + 1 :]) * len(running))
        logger.info("learner models, heat %d: %s", heat + 1, _standing(fits, gain))
    order = sorted(fits, key=gain, reverse=True)
    best = fits[order[0]]
    without = [walk.evidence]
    if nulls is not None:
        for null in nulls:
            without.append(fit_path(null, max_rounds=_NULL_ROUNDS, start=walk).evidence)
            effort.spend(_NULL_ROUNDS)
        weightless = fit_path(
            best.model, max_rounds=_WEIGHTLESS_ROUNDS, start=walk, weightless=True
        )
        without.append(weightless.evidence)
        effort.spend(_WEIGHTLESS_ROUNDS)
    cost = 0.0 if order[0] == "gradient" else method.complexity_cost
    return LearnerChoice(
        name=order[0],
        fits=fits,
        walk=walk,
        gains={name: gain(name) for name in order},
        reward_gain=best.evidence - max(without) - cost,
    )


def _standing(fits: Mapping[str, JointFit], gain: Callable[[str], float]) -> str:
    """The models tried, best first, with their gains."""
    return ", ".join(f"{name} {gain(name):+.1f}" for name in sorted(fits, key=gain, reverse=True))


class _Effort:
    """Counts rounds of fitting, so that the time left can be told though models drop out."""

    def __init__(
        self, report: Progress | None, heats: int, nulls: Sequence[PathModel] | None
    ) -> None:
        self.report, self.done = report, 0
        self.last = 0 if nulls is None else _NULL_ROUNDS * len(nulls) + _WEIGHTLESS_ROUNDS
        self.total = _WALK_ROUNDS + heats + self.last

    def spend(self, rounds: int, *, left: int | None = None) -> None:
        """Tell that some rounds are done and, between heats, how many the others may take."""
        self.done += rounds
        if left is not None:
            self.total = self.done + left + self.last
        if self.report is not None:
            self.report("learner models", self.done, self.total)


def _two_steps(model: PathModel, walk: JointFit, cloned: Float) -> Start:
    """The path cloned stage by stage, and the weights regressed on it."""
    states = model.adopt(walk.model, cloned)
    regressed = fit_known_path(model.refreshed(states), states, max_rounds=4)
    return Start(states, regressed.parameters)


def explained_movement(choice: LearnerChoice) -> Fit:
    """How well the chosen model predicts the movement of the policies as the data alone show them.

    The movement is that of the random walk's path, which knows nothing of the model; both are
    compared as logits relative to the last action.
    """
    seen, model = choice.walk.model, choice.fit.model
    moved = np.diff(choice.walk.states, axis=0)
    states = choice.fit.states[:-1]
    following = model.following(states, choice.fit.parameters)
    predicted = seen.adopt(model, following) - seen.adopt(model, states)
    fitted = model.n_features
    return explain(moved, predicted[:, :, None], np.ones(1), np.ones(len(moved)), fitted=fitted)
