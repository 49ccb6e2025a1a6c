"""The default inference in tabular worlds: fit every learner model, keep the one with evidence.

Learners differ in how they turn reward into the next policy, and a wrong assumption about it costs
more than anything else. So the assumption is inferred too: each model of `learner_models` is
fitted to the same trajectories, and the one whose evidence is highest gives the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logel.diagnostics import Fit, Gauge, explain
from logel.errors import OptionError
from logel.joint import JointFit, WeightPosterior, fit_path, fit_random_walk, weight_posterior
from logel.learner_models import MODELS, DriftingValues, LearnerModel
from logel.world_model import TabularWorld

Float = npt.NDArray[np.float64]


@dataclass(frozen=True)
class JointMethod:
    """Choices of the joint inference.

    Attributes:
        models: Learner models to try, by their names in `learner_models.MODELS`.
        complexity_cost: Log prior odds of every model against "gradient". With few data, models
            with much process noise all look alike, and the plainest should win.
        heats: Rounds of each heat, and the log evidence by which a model may trail the leader and
            still run in the next one. In the first rounds evidence is still far from settled, so
            only the hopeless go.
        n_draws: Posterior draws kept for the intervals.
    """

    models: tuple[str, ...] = tuple(MODELS)
    complexity_cost: float = 4.0
    heats: tuple[tuple[int, float], ...] = ((4, 150.0), (3, 30.0), (10, 0.0))
    n_draws: int = 1000

    def __post_init__(self) -> None:
        if unknown := [name for name in self.models if name not in MODELS]:
            raise OptionError(f"unknown learner models {unknown}: choose from {', '.join(MODELS)}")
        if not self.models:
            raise OptionError("at least one learner model is needed")


@dataclass(frozen=True, eq=False)
class LearnerChoice:
    """The learner model with the highest evidence, and how the others did.

    Attributes:
        name: The chosen model.
        fit: Its fit.
        walk: The fit of a random walk, which every model has to beat.
        gains: Log evidence (with prior odds) of each model over the random walk, best first.
        reward_gain: Log evidence of the chosen model over the best account without a reward: a
            random walk of logits or of values, or the same learner with all weights zero.
        posterior: Of the weights in the world's own features.
    """

    name: str
    fit: JointFit
    walk: JointFit
    gains: Mapping[str, float]
    reward_gain: float
    posterior: WeightPosterior


def feature_basis(gauge: Gauge, ranges: Float) -> Float:
    """Matrix (q, k) that takes features to the identified ones, measured in units of their ranges.

    The weights' prior is the same in all directions of these, whatever units the features came in.
    """
    basis = np.eye(len(ranges))
    if gauge.n:
        basis = np.linalg.svd(gauge.directions * ranges, full_matrices=True)[2][gauge.n :].T
    return np.asarray(basis / ranges[:, None])


def choose_learner(
    world: TabularWorld,
    method: JointMethod,
    *,
    rates: Float | None = None,
    all_nulls: bool = True,
    report: Callable[[str, int, int], None] | None = None,
) -> LearnerChoice:
    """Fit all models and choose by evidence.

    Args:
        world: What all stages show.
        method: Which models, how long.
        rates: Known learning rates, shape (m,).
        all_nulls: Hold the chosen model against every account without a reward, not only against
            the random walk; a fifth of the time.
        report: Called with (what, done, total).
    """
    models: dict[str, LearnerModel] = {name: MODELS[name](world, rates) for name in method.models}
    walk = fit_random_walk(next(iter(models.values())))
    fits: dict[str, JointFit] = {}

    def gain(name: str) -> float:
        cost = 0.0 if name == "gradient" else method.complexity_cost
        return fits[name].evidence - walk.evidence - cost

    running = list(models)
    for heat, (rounds, margin) in enumerate(method.heats):
        for name in running:
            fits[name] = fit_path(models[name], max_rounds=rounds, start=fits.get(name, walk))
        lead = max(gain(name) for name in fits)
        running = [n for n in running if not fits[n].converged and gain(n) >= lead - margin]
        if report is not None:
            report("learner models", heat + 1, len(method.heats))
    order = sorted(fits, key=gain, reverse=True)
    fit = fits[order[0]]
    nulls = [walk]
    if all_nulls:
        nulls.append(fit_path(DriftingValues(world), max_rounds=12, start=walk))
        nulls.append(fit_path(fit.model, max_rounds=8, start=walk, weightless=True))
    cost = 0.0 if order[0] == "gradient" else method.complexity_cost
    return LearnerChoice(
        name=order[0],
        fit=fit,
        walk=walk,
        gains={name: gain(name) for name in order},
        reward_gain=fit.evidence - max(null.evidence for null in nulls) - cost,
        posterior=weight_posterior(fit.weights, fit.covariance, fit.variances.scale),
    )


def explained_movement(choice: LearnerChoice) -> Fit:
    """How well the chosen model predicts the movement of the policies as the data alone show them.

    The movement is that of the random walk's path, which knows nothing of the model; both are
    compared as logits relative to the last action.
    """
    seen, model = choice.walk, choice.fit.model
    moved = np.diff(seen.states, axis=0)
    states = choice.fit.states[:-1]
    following = model.following(states, choice.fit.parameters)
    predicted = seen.model.from_logits(model.logits(following)) - seen.model.from_logits(
        model.logits(states)
    )
    fitted = model.world.n_features
    return explain(moved, predicted[:, :, None], np.ones(1), np.ones(len(moved)), fitted=fitted)
