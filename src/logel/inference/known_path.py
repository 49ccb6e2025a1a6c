"""Weights from a path of known policies, under a learner model in the pooled world.

With the states known, each step is a linear regression of its movement on the model's design. The
noise of the movement has the model's shape, and a size that runs with the squared rate and a power
of time; both are refreshed until they settle (feasible generalised least squares). Uncertainty has
two sources: the learner's own noise, seen in how much the steps disagree (a sandwich over steps),
and the world model's, seen by leaving groups of episodes out of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from logel.inference.rounds import in_products
from logel.rules.rule import Rule
from logel.types import Float

# Of time, that a learner's noise may run with beside its rate: batches that grow, gradients that
# shrink.
_POWERS = np.arange(-40, 41) / 10


@dataclass(frozen=True, eq=False)
class KnownPathFit:
    """A learner model fitted to known states.

    Attributes:
        parameters: Weights, then nuisance parameters, shape (q + k,).
        covariance: Of the weights, from the disagreement of the steps, shape (q, q).
        degrees_of_freedom: Of that covariance.
        evidence: Log-probability of the movements (by Schwarz's criterion), up to a constant
            shared by all models of equal state.
    """

    parameters: Float
    covariance: Float
    degrees_of_freedom: int
    evidence: float


def fit_known_path(
    model: Rule, states: Float, *, max_rounds: int = 12, weightless: bool = False
) -> KnownPathFit:
    """Fit a model whose states (m + 1, D) are known.

    Args:
        model: The learner model in its world.
        states: Shape (m + 1, D).
        max_rounds: Limit on rounds.
        weightless: Hold the weights at zero: the null that a reward has to beat.
    """
    q, m, d = model.n_features, len(states) - 1, model.state_dim
    middle = np.concatenate([np.zeros(q), model.nuisance_mean])
    prior = np.concatenate([np.zeros(q), 1 / model.nuisance_variance])
    parameters, sizes = middle, np.ones(m)
    for done in range(max_rounds):
        steps = _Steps.of(model, states[:-1], parameters)
        error = states[1:] - steps.following
        both = np.concatenate([steps.design, error[:, :, None]], axis=2)
        inverse = steps.solve(both) / sizes[:, None, None]
        weighted = inverse[:, :, :-1]
        misfit = np.einsum("md,md->m", error, inverse[:, :, -1]) / d
        noise = max(float(misfit.sum()) / max(m - q / d, 1e-3), 1e-14)
        information = np.einsum("mdp,mdr->pr", steps.design, weighted) / noise + np.diag(prior)
        # A trace of ridge for directions that no step moves.
        corner = information[:q, :q]
        corner += 1e-9 * max(float(np.trace(corner)), 1e-300) / q * np.eye(q)
        pull = np.einsum("mdp,md->p", weighted, error) / noise - prior * (parameters - middle)
        move = np.linalg.solve(information, pull)
        if weightless:
            move = np.zeros_like(move)
        parameters = parameters + move
        if done > 0:
            sizes = _step_sizes(misfit * sizes / noise, model.rates_of(parameters, m))
        if done > 3 and np.abs(move).max() < 1e-8 * (1 + np.abs(parameters).max()):
            break
    scores = np.einsum("mdp,md->mp", weighted, error) / noise
    inverse_information = np.linalg.inv(information)
    freedom = m - q
    covariance = inverse_information
    if freedom >= 3:
        spread = scores.T @ scores * m / freedom
        covariance = inverse_information @ spread @ inverse_information
    evidence = -0.5 * m * d * np.log(noise) - 0.5 * d * np.log(sizes).sum()
    evidence -= 0.5 * steps.log_determinants().sum()
    # Schwarz's price per parameter: a prior on the weights would need a scale.
    evidence -= 0.5 * (0 if weightless else q) * np.log(m * d)
    return KnownPathFit(
        parameters=parameters,
        covariance=covariance[:q, :q],
        degrees_of_freedom=freedom if freedom >= 3 else m * d - q,
        evidence=float(evidence),
    )


def step_information(model: Rule, states: Float, parameters: Float) -> tuple[Float, Float, float]:
    """What every step says about a change of the parameters, in units of its noise.

    Args:
        model: A rule in its world.
        states: Known, (m + 1, D).
        parameters: Weights and nuisance parameters around which it is asked, (q + k,).

    Returns:
        Information (m, q + k, q + k), pulls away from the parameters (m, q + k), and the squared
        movement of all steps.
    """
    steps = _Steps.of(model, states[:-1], parameters)
    error = states[1:] - steps.following
    moved = np.diff(states, axis=0)
    both = np.concatenate([steps.design, error[:, :, None], moved[:, :, None]], axis=2)
    inverse = steps.solve(both)
    misfit = np.einsum("md,md->m", error, inverse[:, :, -2]) / model.state_dim
    sizes = _step_sizes(misfit, model.rates_of(parameters, len(misfit)))
    noise = (max(float((misfit / sizes).mean()), 1e-14) * sizes)[:, None, None]
    inverse = inverse / noise
    products = np.swapaxes(steps.design, 1, 2) @ inverse
    squared = float((moved * inverse[:, :, -1]).sum())
    return products[:, :, :-2], products[:, :, -2], squared


class _Steps(NamedTuple):
    """What a model says about steps from known states, and products with its noise."""

    following: Float  # shape (m, D)
    design: Float  # shape (m, D, q + k)
    solve: Callable[[Float], Float]  # inverse shapes of the noise times columns (m, D, k)
    log_determinants: Callable[[], Float]  # of the shapes, (m,)

    @classmethod
    def of(cls, model: Rule, states: Float, parameters: Float) -> _Steps:
        """In products where they are faster."""
        if in_products(model):
            found = model.linearised(states, parameters)
            noise = found.noise
            return cls(found.following, found.design, noise.solve, noise.log_determinants)
        known = model.predict(states, parameters, states_known=True)
        return cls(
            known.following,
            known.design,
            lambda columns: np.asarray(np.linalg.inv(known.shape) @ columns),
            lambda: np.asarray(np.linalg.slogdet(known.shape)[1]),
        )


def _step_sizes(misfit: Float, rates: Float) -> Float:
    """Relative noise variance of every step: its squared rate times a power of time, of mean one.

    One number is fitted, not one per step. A step that happened to stray would otherwise count for
    less, and the steps in which nobody came by a rare place stray least of all: the weights of what
    is rarely met shrank, the more the longer one watched.
    """
    m = len(misfit)
    running = np.maximum(rates**2, 1e-300)
    times = (1.0 + np.arange(m)) ** _POWERS[:, None] * running / running.mean()
    # Misfits are sums of many squares: the likelihood of gamma variables, their scale put where it
    # is largest.
    loss = m * np.log((misfit / times).mean(axis=1) + 1e-300) + np.log(times).sum(axis=1)
    best = times[np.argmin(loss)]
    mean = float(best.mean())
    return np.asarray(np.maximum(best, 1e-6 * mean) / mean)
