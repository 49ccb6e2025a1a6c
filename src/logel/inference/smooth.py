"""Joint likelihood: the whole path of policies, the weights and the noise from all trajectories.

The objective the paper calls impractical, for a given rule:

    sum_t log p(actions of stage t | state[t])                          the trajectories
    + sum_t log N(state[t + 1]; next(state[t], parameters), variance * shape[t])     the learning
    + log N(state[0]; 0, start) + log N(weights; 0, scale) + log N(nuisance; ...)

It is maximised by an iterated extended Kalman smoother over (state[t], parameters), which is
Gauss-Newton on the path: derivatives are held fixed inside a round and refreshed between rounds,
so nothing of high order is ever differentiated. Between rounds the variances move to where the
evidence wants them. What is left at the end is a Gaussian posterior of the weights and the
(Laplace) evidence of the learner model, by which models are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from logel.errors import OptionError
from logel.inference.by_values import ByValues
from logel.inference.dense import Dense
from logel.inference.matrix_free import MatrixFree
from logel.inference.rounds import Algebra, Round, Variances, by_values, in_products
from logel.inference.weight_posterior import weight_posterior
from logel.rules.rule import RandomWalk, Rule
from logel.types import Float

# Rounds in which the path settles before the weights may shape the noise.
_WARM_UP = 2
# Prior variance that holds the weights at zero.
_NO_WEIGHT = 1e-12


@dataclass(frozen=True, eq=False)
class Start:
    """Where a fit may begin.

    Attributes:
        states: A path of the model's states, shape (m + 1, D).
        parameters: Weights and nuisance parameters, shape (q + k,), or None for their prior means.
    """

    states: Float
    parameters: Float | None = None


@dataclass(frozen=True, eq=False)
class JointFit:
    """A learner model fitted to all trajectories.

    Attributes:
        model: The learner model.
        states: The most probable path, shape (m + 1, D).
        parameters: Weights, then nuisance parameters, shape (q + k,).
        covariance: Of the weights, given the variances, shape (q, q).
        variances: The hyperparameters where they ended (`scale`: as used in the last round).
        evidence: Laplace approximation of the log-probability of all actions.
        log_likelihood: Of the actions along the path.
        rounds: Rounds made.
        converged: Whether the evidence had settled.
        trace: Evidence after every round.
        draws: Of the weights, shape (n, q), where they are not nearly normal.
    """

    model: Rule
    states: Float
    parameters: Float
    covariance: Float
    variances: Variances
    evidence: float
    log_likelihood: float
    rounds: int
    converged: bool
    trace: tuple[float, ...]
    draws: Float | None = None

    @property
    def settled(self) -> bool:
        """Whether the last round changed nothing that is reported: a nat of evidence does not."""
        return self.converged or (
            len(self.trace) > 1 and abs(self.trace[-1] - self.trace[-2]) < 1.0
        )

    @property
    def weights(self) -> Float:
        """Most probable weights for the fitted variances, shape (q,)."""
        return self.parameters[: self.model.n_features]


def fit_path(
    model: Rule,
    *,
    max_rounds: int = 18,
    start: JointFit | Start | None = None,
    weightless: bool = False,
    weights_only: bool = False,
    settling: bool = False,
) -> JointFit:
    """Fit a learner model to the action counts of all stages.

    Args:
        model: The learner model in its world.
        max_rounds: Limit on rounds.
        start: Continue from this fit of the same model, take only the path from a fit of another
            (such as the random walk), or begin at a point of your own.
        weightless: Hold the weights at zero: the same learner, without a reward. The null that a
            reward has to beat.
        settling: Let variances and noise follow ever more slowly, for fits that go in circles.
        weights_only: Nobody will ask for the evidence, which may be off then.
    """
    if max_rounds < 1:
        raise OptionError(f"max_rounds must be at least 1, but is {max_rounds}")
    q = model.n_features
    middle = np.concatenate([np.zeros(q), model.nuisance_mean])
    states = np.zeros((model.n_stages, model.state_dim))
    parameters, variances = middle, Variances()
    trace: list[float] = []
    warm = False
    if isinstance(start, Start):
        states = start.states
        parameters = middle if start.parameters is None else start.parameters
    elif start is not None:
        warm = type(start.model) is type(model)
        states = model.from_policy(start.model.as_policy(start.states))
        if warm:
            states, parameters, variances = start.states, start.parameters, start.variances
            trace = list(start.trace)
    algebra = algebra_of(model, warm=warm)
    before: Any = None
    drift, share = 1.0, 0.5
    for done in range(1, max_rounds + 1):
        prediction = algebra.predict(model, states[:-1], parameters)
        used = replace(variances, scale=_NO_WEIGHT) if weightless else variances
        if not warm and done <= _WARM_UP:
            prediction = algebra.evened(prediction)
            used = replace(used, noise=max(used.noise, 0.03))
        else:
            # The shape follows the weights, which follow the shape: averaging damps the cycle.
            share = 1 / (done + 1) if settling else share
            prediction = before = algebra.damped(prediction, before, share)
        prior = np.concatenate([np.full(q, used.scale), model.nuisance_variance])
        # Nothing follows from the evidence of a first round.
        rough = weights_only or (done == 1 < max_rounds and not warm)
        round_ = algebra.smooth(
            model, states, parameters, middle, prior, prediction, used, rough=rough
        )
        target = _Objective(model, middle, prior, algebra.misfit(prediction, used.noise), used)
        states, parameters, value = target.ascend(states, parameters, round_, prediction.following)
        trace.append(value.total - 0.5 * round_.log_determinant)
        if done > 1:
            new, drift = _update(model, used, round_, value, states[0], parameters[:q], drift)
            variances = new.nearer(variances, 2 * share) if settling else new
        converged = len(trace) >= 5 and bool(np.abs(np.diff(trace[-3:])).max() < 0.1)
        if converged:
            break
    return JointFit(
        model=model,
        states=states,
        parameters=parameters,
        covariance=round_.parameter_covariance[:q, :q],
        variances=replace(variances, scale=used.scale),
        evidence=trace[-1],
        log_likelihood=value.log_likelihood,
        rounds=len(trace),
        converged=converged,
        trace=tuple(trace),
    )


def fit_random_walk(model: Rule, *, start: Start | None = None) -> JointFit:
    """The path without any learning model: where other fits start, and what they must beat."""
    return fit_path(RandomWalk(model.world), max_rounds=12, start=start)


def algebra_of(model: Rule, *, warm: bool = True) -> Algebra[Any]:
    """By values where these tell all, else matrices for small states and products for others."""
    if by_values(model):
        return ByValues()
    return MatrixFree(warm=warm) if in_products(model) else Dense()


def expected_covariance(fit: JointFit, *, episodes: float = 1.0, more_steps: int = 0) -> Float:
    """Covariance of the weights, (q, q), to expect from other data, by the information at the fit.

    Args:
        fit: What was found.
        episodes: Multiple of the episodes in every stage.
        more_steps: Further steps, each like the last one and seen as well as the last stage.
    """
    model, q = fit.model, fit.model.n_features
    algebra = algebra_of(model)
    prediction = algebra.predict(model, fit.states[:-1], fit.parameters)
    prior = np.concatenate([np.full(q, fit.variances.scale), model.nuisance_variance])
    last = model.n_stages - 1
    steps = np.minimum(np.arange(last + more_steps), last - 1)
    whole = algebra.covariance(
        model, fit.states, prior, prediction, fit.variances, steps=steps, episodes=episodes
    )
    return whole[:q, :q]


@dataclass(frozen=True)
class _Value:
    """The log posterior of a path and its parts."""

    total: float
    misfit: float
    log_likelihood: float


class _Objective:
    """Log posterior of a path for fixed variances and noise shape."""

    def __init__(
        self,
        model: Rule,
        middle: Float,
        prior: Float,
        misfit: Callable[[Float], float],
        variances: Variances,
    ) -> None:
        self.model, self.middle, self.prior = model, middle, prior
        self.misfit, self.variances = misfit, variances

    def __call__(self, states: Float, parameters: Float, following: Float | None = None) -> _Value:
        """The log posterior; what follows the states need not be computed again."""
        likelihood = self.model.log_likelihood(states)
        if following is None:
            following = self.model.following(states[:-1], parameters)
        error = states[1:] - following
        misfit = self.misfit(error)
        prior = float((states[0] ** 2).sum()) / self.variances.start
        prior += float(((parameters - self.middle) ** 2 / self.prior).sum())
        return _Value(likelihood - 0.5 * (misfit + prior), misfit, likelihood)

    def ascend(
        self, states: Float, parameters: Float, round_: Round, following: Float | None = None
    ) -> tuple[Float, Float, _Value]:
        """Take the round's step, shortened until the log posterior does not fall."""
        before = self(states, parameters, following)
        size = 1.0
        for _ in range(6):
            moved = states + size * round_.state_moves
            shifted = parameters + size * round_.parameter_moves
            value = self(moved, shifted)
            if value.total > before.total - 1e-6:
                return moved, shifted, value
            size *= 0.4
        return states, parameters, before


def _update(
    model: Rule,
    used: Variances,
    round_: Round,
    value: _Value,
    first: Float,
    weights: Float,
    drift: float,
) -> tuple[Variances, float]:
    """Move every variance to where the evidence wants it, at most tenfold (weights thirtyfold)."""
    freedom = max(round_.noise_freedom, 0.0)
    wanted = float(np.log((value.misfit + 1e-3) / (freedom + 1e-3)))
    # A change of direction means the last move overshot.
    change = wanted if wanted * drift > 0 else 0.4 * wanted
    noise = used.noise * float(np.exp(np.clip(change, -np.log(10), np.log(10))))
    low, high = model.variance_bounds
    freedom = max(model.state_dim - round_.start_variance / used.start, 0.0)
    start = (float((first**2).sum()) + 0.02) / (freedom + 2)
    q = len(weights)
    scale = weight_posterior(weights, round_.parameter_covariance[:q, :q], used.scale).scale
    return (
        Variances(
            noise=float(np.clip(noise, low, high)),
            start=max(float(np.clip(start, used.start / 10, used.start * 10)), 1e-4),
            scale=float(np.clip(scale, used.scale / 30, used.scale * 30)),
        ),
        wanted,
    )
