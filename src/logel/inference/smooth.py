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

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_solve, solve_triangular

from logel.errors import OptionError
from logel.rules.rule import Prediction, RandomWalk, Rule
from logel.types import Float
from logel.worlds.base import Observation

# Rounds in which the path settles before the weights may shape the noise.
_WARM_UP = 2
# Prior variance that holds the weights at zero.
_NO_WEIGHT = 1e-12


@dataclass(frozen=True)
class Variances:
    """Hyperparameters, updated between rounds.

    Attributes:
        noise: Of the process noise, relative to its shape.
        start: Of the first state.
        scale: Of the weights.
    """

    noise: float = 0.01
    start: float = 1.0
    scale: float = 1.0


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
) -> JointFit:
    """Fit a learner model to the action counts of all stages.

    Args:
        model: The learner model in its world.
        max_rounds: Limit on rounds.
        start: Continue from this fit of the same model, take only the path from a fit of another
            (such as the random walk), or begin at a point of your own.
        weightless: Hold the weights at zero: the same learner, without a reward. The null that a
            reward has to beat.
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
    shape: Float | None = None
    drift = 1.0
    for done in range(1, max_rounds + 1):
        prediction = model.predict(states[:-1], parameters)
        used = replace(variances, scale=_NO_WEIGHT) if weightless else variances
        if not warm and done <= _WARM_UP:
            flat = np.broadcast_to(np.eye(model.state_dim), prediction.shape.shape)
            prediction = replace(prediction, shape=flat)
            used = replace(used, noise=max(used.noise, 0.03))
        else:
            # The shape follows the weights, which follow the shape: averaging damps the cycle.
            shape = prediction.shape if shape is None else (prediction.shape + shape) / 2
            prediction = replace(prediction, shape=shape)
        prior = np.concatenate([np.full(q, used.scale), model.nuisance_variance])
        round_ = _smooth(model, states, parameters, middle, prior, prediction, used)
        target = _Objective(model, middle, prior, prediction.shape, used)
        states, parameters, value = target.ascend(states, parameters, round_)
        trace.append(value.total - 0.5 * round_.log_determinant)
        if done > 1:
            variances, drift = _update(model, used, round_, value, states[0], parameters[:q], drift)
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


@dataclass(frozen=True, eq=False)
class _Round:
    """One pass of the smoother, as moves from the point of linearisation."""

    state_moves: Float
    parameter_moves: Float
    parameter_covariance: Float
    start_variance: float
    log_determinant: float
    noise_freedom: float


def _smooth(
    model: Rule,
    states: Float,
    parameters: Float,
    middle: Float,
    prior: Float,
    prediction: Prediction,
    variances: Variances,
) -> _Round:
    """Kalman filter and Rauch-Tung-Striebel smoother on deviations of (state, parameters)."""
    d, n = model.state_dim, model.state_dim + len(parameters)
    last = model.n_stages - 1
    mean = np.concatenate([-states[0], middle - parameters])
    spread = np.diag(np.concatenate([np.full(d, variances.start), prior]))
    predicted, filtered, moves = [], [], []
    log_determinant = 0.0
    for t in range(last + 1):
        predicted.append((mean, spread))
        observation = model.observe(t, states[t])
        spread, determinant = _condition(spread, observation, d)
        log_determinant += determinant
        surprise = observation.score - observation.information_times(mean[:d])
        mean = mean + spread[:, :d] @ surprise
        filtered.append((mean, spread))
        if t < last:
            move = np.eye(n)
            move[:d, :d], move[:d, d:] = prediction.transition[t], prediction.design[t]
            moves.append(move)
            mean = move @ mean
            mean[:d] += prediction.following[t] - states[t + 1]
            spread = _carry(spread, move, variances.noise * prediction.shape[t])
    smoothed = [filtered[-1]]
    freedom = 0.0
    for t in range(last - 1, -1, -1):
        mean, spread = filtered[t]
        ahead_mean, ahead_spread = predicted[t + 1]
        later_mean, later_spread = smoothed[-1]
        # Relative to each variance, so that the units of the weights do not matter.
        jitter = np.diag(1e-10 * np.diagonal(ahead_spread))
        root = np.linalg.cholesky(ahead_spread + jitter)
        both = np.concatenate([moves[t] @ spread, np.eye(n)[:, :d]], axis=1)
        both = cho_solve((root, True), both, overwrite_b=True, check_finite=False)
        gain, inverse = both[:, :n].T, both[:, n:]
        smoothed.append(
            (
                mean + gain @ (later_mean - ahead_mean),
                spread + gain @ (later_spread - ahead_spread) @ gain.T,
            )
        )
        # How many of this step's D noise components the data determine.
        explained = inverse[:d] - inverse.T @ later_spread @ inverse
        freedom += variances.noise * float((explained * prediction.shape[t]).sum())
    smoothed.reverse()
    return _Round(
        state_moves=np.stack([mean[:d] for mean, _ in smoothed]),
        parameter_moves=smoothed[-1][0][d:],
        parameter_covariance=smoothed[-1][1][d:, d:],
        start_variance=float(np.diagonal(smoothed[0][1])[:d].sum()),
        log_determinant=log_determinant,
        noise_freedom=freedom,
    )


def _condition(spread: Float, observation: Observation, d: int) -> tuple[Float, float]:
    """Covariance of (state, parameters) after a stage was seen, and log det(1 + information)."""
    cross = observation.times(spread[:, :d])
    gram = observation.times(cross[:d].T)
    root = np.linalg.cholesky((gram + gram.T) / 2 + np.eye(len(gram)))
    reduced = solve_triangular(root, cross.T, lower=True, check_finite=False)
    return spread - reduced.T @ reduced, 2 * float(np.log(np.diagonal(root)).sum())


def _carry(spread: Float, move: Float, noise: Float) -> Float:
    """Covariance of (state, parameters) one step later."""
    d = len(noise)
    spread = move @ spread @ move.T
    spread[:d, :d] += noise
    return (spread + spread.T) / 2


def expected_covariance(fit: JointFit, *, episodes: float = 1.0, more_steps: int = 0) -> Float:
    """Covariance of the weights, (q, q), to expect from other data, by the information at the fit.

    Args:
        fit: What was found.
        episodes: Multiple of the episodes in every stage.
        more_steps: Further steps, each like the last one and seen as well as the last stage.
    """
    model, d, q = fit.model, fit.model.state_dim, fit.model.n_features
    prediction = model.predict(fit.states[:-1], fit.parameters)
    last = model.n_stages - 1
    n = d + len(fit.parameters)
    prior = np.concatenate([np.full(q, fit.variances.scale), model.nuisance_variance])
    spread = np.diag(np.concatenate([np.full(d, fit.variances.start), prior]))
    for t in range(last + 1 + more_steps):
        stage, step = min(t, last), min(t, last - 1)
        if t <= last:
            seen = model.observe(stage, fit.states[stage])
            seen = replace(seen, factor=np.sqrt(episodes) * seen.factor)
        spread, _ = _condition(spread, seen, d)
        if t < last + more_steps:
            move = np.eye(n)
            move[:d, :d], move[:d, d:] = prediction.transition[step], prediction.design[step]
            spread = _carry(spread, move, fit.variances.noise * prediction.shape[step])
    return spread[d : d + q, d : d + q]


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
        shape: Float,
        variances: Variances,
    ) -> None:
        self.model, self.middle, self.prior = model, middle, prior
        self.variances = variances
        self.roots = np.linalg.cholesky(variances.noise * shape)

    def __call__(self, states: Float, parameters: Float) -> _Value:
        """The log posterior."""
        likelihood = self.model.log_likelihood(states)
        error = states[1:] - self.model.following(states[:-1], parameters)
        misfit = float((np.linalg.solve(self.roots, error[..., None]) ** 2).sum())
        prior = float((states[0] ** 2).sum()) / self.variances.start
        prior += float(((parameters - self.middle) ** 2 / self.prior).sum())
        return _Value(likelihood - 0.5 * (misfit + prior), misfit, likelihood)

    def ascend(
        self, states: Float, parameters: Float, round_: _Round
    ) -> tuple[Float, Float, _Value]:
        """Take the round's step, shortened until the log posterior does not fall."""
        before = self(states, parameters)
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
    round_: _Round,
    value: _Value,
    first: Float,
    weights: Float,
    drift: float,
) -> tuple[Variances, float]:
    """Move every variance to where the evidence wants it, at most tenfold (weights thirtyfold)."""
    wanted = float(np.log((value.misfit + 1e-3) / (round_.noise_freedom + 1e-3)))
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


@dataclass(frozen=True, eq=False)
class WeightPosterior:
    """Posterior of the weights with their prior scale integrated out: a mixture of Gaussians.

    A point estimate of the scale collapses when the weights are weakly determined. Instead, each
    scale of a grid counts with its evidence, under a flat prior on the standard deviation.

    Attributes:
        axes: Eigenvectors of the likelihood's information, columns, shape (q, q).
        means: Mean along each axis for every scale, shape (g, q).
        deviations: Standard deviation along each axis for every scale, shape (g, q).
        shares: Probability of every scale, shape (g,).
        scale: Geometric mean of the scale (a variance).
    """

    axes: Float
    means: Float
    deviations: Float
    shares: Float
    scale: float

    @property
    def mean(self) -> Float:
        """Posterior mean, shape (q,): optimal to plan with, since values are linear in it."""
        return np.asarray(self.axes @ (self.shares @ self.means))

    def draw(self, n: int, rng: np.random.Generator) -> Float:
        """Independent draws of the weights, shape (n, q)."""
        chosen = rng.choice(len(self.shares), size=n, p=self.shares)
        noise = rng.standard_normal((n, self.means.shape[1]))
        return np.asarray((self.means[chosen] + noise * self.deviations[chosen]) @ self.axes.T)


def weight_posterior(weights: Float, covariance: Float, scale: float) -> WeightPosterior:
    """Integrate out the weights' prior scale.

    Args:
        weights: Posterior mean under a prior of variance `scale`, shape (q,).
        covariance: Posterior covariance under it, shape (q, q).
        scale: That prior variance.
    """
    precision, axes = np.linalg.eigh(np.linalg.inv((covariance + covariance.T) / 2))
    information = np.maximum(precision - 1 / scale, 1e-9 * precision.max())
    linear = precision * (axes.T @ weights)
    largest = max(float((linear**2 / information**2).max()), 1 / float(information.max()))
    grid = np.geomspace(1e-2 / float(information.max()), 1e3 * largest, 80)[:, None]
    total = information + 1 / grid
    evidence = 0.5 * (linear**2 / total - np.log1p(grid * information)).sum(axis=1)
    logs = evidence + 0.5 * np.log(grid[:, 0])
    shares = np.exp(logs - logs.max())
    shares /= shares.sum()
    return WeightPosterior(
        axes=axes,
        means=linear / total,
        deviations=1 / np.sqrt(total),
        shares=shares,
        scale=float(np.exp(shares @ np.log(grid[:, 0]))),
    )
