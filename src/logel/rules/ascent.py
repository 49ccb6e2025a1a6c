"""Learners that climb the return in the parameters of a policy family, whatever the family.

    theta[t + 1] = theta[t] + rate[t] * P(theta[t]) @ Psi(theta[t]) @ weights + noise

The kinds differ in the preconditioner P: none (the paper's learner), the inverse Fisher information
(natural gradient), or a diagonal that follows the size of each parameter's gradients (Adam). What
the stages show, and the Jacobian Psi of any parameters, comes from an `AscentWorld`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from logel.rules.rule import Observation, PathModel, Prediction, decay_prior, fading_rates
from logel.types import Float


@dataclass(frozen=True, eq=False)
class Ascent:
    """The return's landscape at the parameters of m stages.

    Attributes:
        jacobian: Psi, shape (m, d, q).
        fisher: Fisher information of a discounted episode about the policy, shape (m, d, d).
        noise: Covariance, up to scale, of a sampled gradient, shape (m, d, d).
        curvature: Derivative of Psi @ weights, shape (m, d, d), or None when it is not known: then
            Jacobians are held fixed inside a round and refreshed between rounds.
    """

    jacobian: Float
    fisher: Float
    noise: Float
    curvature: Float | None = None


class AscentWorld(Protocol):
    """What all stages show about a policy family's parameters and the return around them."""

    @property
    def n_features(self) -> int:
        """Number q of reward features."""
        ...

    @property
    def n_stages(self) -> int:
        """Number m + 1 of stages."""
        ...

    @property
    def n_parameters(self) -> int:
        """Number d of policy parameters."""
        ...

    def observe(self, stage: int, state: Float) -> Observation:
        """What a stage's actions say about parameters (d,)."""
        ...

    def log_likelihood(self, states: Float) -> float:
        """Of all stages' actions along a path (m + 1, d)."""
        ...

    def ascent(self, states: Float, weights: Float, *, curved: bool = False) -> Ascent:
        """The landscape at the parameters (m, d) of the first m stages, for weights (q,).

        The curvature is computed only if asked for, and only where it can be.
        """
        ...

    def at(self, states: Float) -> AscentWorld:
        """The world with what it holds fixed inside a round renewed at parameters (m, d)."""
        ...


class DriftingParameters(PathModel):
    """A random walk of the parameters: no reward at all."""

    name = "random walk"

    def __init__(self, world: AscentWorld, rates: Float | None = None) -> None:
        self.world, self.rates = world, rates
        self.nuisance_mean, self.nuisance_variance = np.zeros(0), np.zeros(0)

    @property
    def n_features(self) -> int:
        """Number q of reward features."""
        return self.world.n_features

    @property
    def n_stages(self) -> int:
        """Number m + 1 of stages seen."""
        return self.world.n_stages

    @property
    def state_dim(self) -> int:
        """Number d of parameters."""
        return self.world.n_parameters

    def observe(self, stage: int, state: Float) -> Observation:
        """What a stage's actions say about parameters (d,)."""
        return self.world.observe(stage, state)

    def log_likelihood(self, states: Float) -> float:
        """Of all stages' actions along a path (m + 1, d)."""
        return self.world.log_likelihood(states)

    def adopt(self, other: PathModel, states: Float) -> Float:
        """All models of a family share its parameters."""
        return states

    def without_learning(self) -> PathModel:
        """Parameters that drift."""
        return DriftingParameters(self.world)

    def rates_of(self, parameters: Float, n_steps: int) -> Float:
        """Ones."""
        return np.ones(n_steps)

    def following(self, states: Float, parameters: Float) -> Float:
        """Stay where you are."""
        return states

    def predict(
        self, states: Float, parameters: Float, *, states_known: bool = False
    ) -> Prediction:
        """Stay where you are."""
        m, d = states.shape
        identity = np.broadcast_to(np.eye(d), (m, d, d))
        return Prediction(states, identity, np.zeros((m, d, self.n_features)), identity)


class AscentLearner(DriftingParameters):
    """Common to all that climb; subclasses say how the gradient is preconditioned."""

    second_start = True

    def __init__(self, world: AscentWorld, rates: Float | None = None) -> None:
        super().__init__(world, rates)
        self.nuisance_mean, self.nuisance_variance = decay_prior(rates)

    def refreshed(self, states: Float) -> PathModel:
        """The learner in the world as seen from a new path."""
        return type(self)(self.world.at(states[:-1]), self.rates)

    @abstractmethod
    def precondition(self, ascent: Ascent, gradient: Float) -> Float:
        """Matrices P, shape (m, d, d), for gradients (m, d)."""

    def rates_of(self, parameters: Float, n_steps: int) -> Float:
        """Rates that may fade, in units of the first."""
        return fading_rates(n_steps, parameters[self.n_features], self.rates)

    def following(self, states: Float, parameters: Float) -> Float:
        """One step up."""
        rates = self.rates_of(parameters, len(states))
        weights = parameters[: self.n_features]
        ascent = self.world.ascent(states, weights)
        gradient = ascent.jacobian @ weights
        step = np.matmul(self.precondition(ascent, gradient), gradient[..., None])[..., 0]
        return np.asarray(states + rates[:, None] * step)

    def predict(
        self, states: Float, parameters: Float, *, states_known: bool = False
    ) -> Prediction:
        """One step up, with derivatives; the preconditioner's own are left out."""
        q, (m, d) = self.n_features, states.shape
        weights, rates = parameters[:q], self.rates_of(parameters, m)
        ascent = self.world.ascent(states, weights, curved=not states_known)
        gradient = ascent.jacobian @ weights
        matrix = self.precondition(ascent, gradient)
        scaled = rates[:, None, None] * matrix
        step = np.matmul(scaled, gradient[..., None])[..., 0]
        fading = -step * np.log1p(np.arange(m))[:, None]
        transition = np.zeros((m, 0, 0))
        if not states_known:
            slope = 0.0 if ascent.curvature is None else scaled @ ascent.curvature
            transition = np.eye(d) + slope
            transition = np.broadcast_to(transition, (m, d, d))
        shape = matrix @ ascent.noise @ np.swapaxes(matrix, 1, 2)
        return Prediction(
            following=states + step,
            transition=transition,
            design=np.concatenate([scaled @ ascent.jacobian, fading[..., None]], axis=2),
            shape=_safe(shape),
        )


class PlainAscent(AscentLearner):
    """The paper's learner: theta + rate * Psi @ weights."""

    name = "gradient"

    def precondition(self, ascent: Ascent, gradient: Float) -> Float:
        """None."""
        m, d = gradient.shape
        return np.broadcast_to(np.eye(d), (m, d, d))


class NaturalAscent(AscentLearner):
    """Natural gradient: every step is measured by how much it changes the policy."""

    name = "natural gradient"

    def precondition(self, ascent: Ascent, gradient: Float) -> Float:
        """The inverse Fisher information, a little damped."""
        d = gradient.shape[1]
        size = np.einsum("mii->m", ascent.fisher) / d
        damped = ascent.fisher + (1e-6 * size + 1e-300)[:, None, None] * np.eye(d)
        # In units of the mean information, so that the weights mean about the same for all kinds.
        inverse = float(np.median(size)) * np.linalg.inv(damped)
        return np.asarray((inverse + np.swapaxes(inverse, 1, 2)) / 2)


class AdamAscent(AscentLearner):
    """Adam-like: each parameter's gradient in units of its own recent size, noise included."""

    name = "Adam"
    memory = 0.9
    """Share of the second moment that is kept from one stage to the next."""

    def precondition(self, ascent: Ascent, gradient: Float) -> Float:
        """A diagonal of inverse root second moments, of mean one; its own slope is left out."""
        noise = np.einsum("mii->mi", ascent.noise)
        drift = gradient**2
        size = drift.mean()
        moment = noise / max(float(noise.mean()), 1e-300) * (size if size > 0 else 1.0) + drift
        running = moment.copy()
        total = 1.0
        for t in range(1, len(moment)):
            running[t] = self.memory * running[t - 1] + moment[t]
            total = self.memory * total + 1.0
            moment[t] = running[t] / total
        scale = 1 / np.sqrt(moment + 1e-12 * moment.mean() + 1e-300)
        scale /= scale.mean()
        return np.asarray(scale[:, :, None] * np.eye(gradient.shape[1]))


def _safe(shape: Float) -> Float:
    """A trace of noise in every direction keeps covariances invertible."""
    d = shape.shape[1]
    size = np.einsum("mii->m", shape) / d
    floor = (1e-3 * size + 1e-300)[:, None, None] * np.eye(d)
    return np.asarray((shape + np.swapaxes(shape, 1, 2)) / 2 + floor)


ASCENTS: dict[str, type[AscentLearner]] = {
    "gradient": PlainAscent,
    "natural": NaturalAscent,
    "adam": AdamAscent,
}
