"""One round of the smoother in matrices, for states of up to a few hundred coordinates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, solve_triangular

from logel.inference.rounds import Algebra, Round, Variances
from logel.rules.rule import Prediction, Rule
from logel.types import Float
from logel.worlds.base import Observation


def smooth(
    model: Rule,
    states: Float,
    parameters: Float,
    middle: Float,
    prior: Float,
    prediction: Prediction,
    variances: Variances,
    *,
    rough: bool = False,
) -> Round:
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
        spread, determinant = condition(spread, observation, d)
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
            spread = carry(spread, move, variances.noise * prediction.shape[t])
    smoothed = [filtered[-1]]
    freedom = 0.0
    for t in range(last - 1, -1, -1):
        mean, spread = filtered[t]
        ahead_mean, ahead_spread = predicted[t + 1]
        later_mean, later_spread = smoothed[-1]
        # Relative to each variance, so that the units of the weights do not matter.
        jitter = np.diag(1e-10 * np.diagonal(ahead_spread))
        root = np.linalg.cholesky(ahead_spread + jitter)
        if rough:
            back = cho_solve((root, True), later_mean - ahead_mean, check_finite=False)
            smoothed.append((mean + spread @ (moves[t].T @ back), spread))
            continue
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
    return Round(
        state_moves=np.stack([mean[:d] for mean, _ in smoothed]),
        parameter_moves=smoothed[-1][0][d:],
        parameter_covariance=filtered[-1][1][d:, d:],
        start_variance=float(np.diagonal(smoothed[0][1])[:d].sum()),
        log_determinant=log_determinant,
        noise_freedom=freedom,
    )


def condition(spread: Float, observation: Observation, d: int) -> tuple[Float, float]:
    """Covariance of (state, parameters) after a stage was seen, and log det(1 + information)."""
    cross = observation.times(spread[:, :d])
    gram = observation.times(cross[:d].T)
    root = np.linalg.cholesky((gram + gram.T) / 2 + np.eye(len(gram)))
    reduced = solve_triangular(root, cross.T, lower=True, check_finite=False)
    return spread - reduced.T @ reduced, 2 * float(np.log(np.diagonal(root)).sum())


def carry(spread: Float, move: Float, noise: Float) -> Float:
    """Covariance of (state, parameters) one step later."""
    d = len(noise)
    spread = move @ spread @ move.T
    spread[:d, :d] += noise
    return (spread + spread.T) / 2


class Dense(Algebra[Prediction]):
    """In matrices."""

    def predict(self, model: Rule, states: Float, parameters: Float) -> Prediction:
        """What the rule says about the steps from states (m, D)."""
        return model.predict(states, parameters)

    def evened(self, found: Prediction) -> Prediction:
        """The same with noise alike in all directions."""
        return replace(
            found, shape=np.broadcast_to(np.eye(found.shape.shape[1]), found.shape.shape)
        )

    def damped(self, found: Prediction, before: Prediction | None, share: float) -> Prediction:
        """The same with noise in which its own has a share, and that before it has the rest."""
        if before is None:
            return found
        return replace(found, shape=share * found.shape + (1 - share) * before.shape)

    def smooth(
        self,
        model: Rule,
        states: Float,
        parameters: Float,
        middle: Float,
        prior: Float,
        found: Prediction,
        variances: Variances,
        *,
        rough: bool = False,
    ) -> Round:
        """One pass, linear around states (m + 1, D) and parameters (q + k,)."""
        return smooth(model, states, parameters, middle, prior, found, variances, rough=rough)

    def misfit(self, found: Prediction, noise: float) -> Callable[[Float], float]:
        """Computes what errors (m, D) of the steps weigh, squared, in units of their noise."""
        roots = np.linalg.cholesky(noise * found.shape)
        return lambda errors: float((np.linalg.solve(roots, errors[..., None]) ** 2).sum())

    def covariance(
        self,
        model: Rule,
        states: Float,
        prior: Float,
        found: Prediction,
        variances: Variances,
        *,
        steps: npt.NDArray[np.int64],
        episodes: float,
    ) -> Float:
        """Of the parameters, if these steps were seen in that multiple of the episodes."""
        d, n = model.state_dim, model.state_dim + len(prior)
        spread = np.diag(np.concatenate([np.full(d, variances.start), prior]))
        move = np.eye(n)
        for t in range(len(steps) + 1):
            seen = model.observe(min(t, len(states) - 1), states[min(t, len(states) - 1)])
            seen = replace(seen, factor=np.sqrt(episodes) * seen.factor)
            spread, _ = condition(spread, seen, d)
            if t < len(steps):
                step = steps[t]
                move[:d, :d], move[:d, d:] = found.transition[step], found.design[step]
                spread = carry(spread, move, variances.noise * found.shape[step])
        return spread[d:, d:]
