"""Learners that climb the return in the parameters of a policy family, whatever the family.

    theta[t + 1] = theta[t] + rate[t] * P(theta[t]) @ Psi(theta[t]) @ weights + noise

The kinds differ in the preconditioner P: none (the paper's learner), the inverse Fisher information
(natural gradient, which is mirror descent), or a diagonal that follows the size of each parameter's
gradients (Adam). What the stages show, and the landscape around any parameters, comes from a
`World`. Rates may fade as (1 + t)^-decay; decay is a nuisance parameter near zero.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np

from logel.rules.rule import Prediction, Rule
from logel.types import Float
from logel.worlds.base import Landscape, World
from logel.worlds.products import Linearised


class Ascent(Rule):
    """Common to all that climb; subclasses say on which landscape."""

    keeps_scale = True
    climbs: ClassVar[str] = ""
    """Which landscape a world may have in products; none for those that make one of their own."""

    def __init__(self, world: World, rates: Float | None = None) -> None:
        super().__init__(world, rates)
        # Rates are nearly constant: one deviation of the decay takes away a third over ten steps.
        # Known rates leave no room to speak of.
        self.nuisance_mean = np.zeros(1)
        self.nuisance_variance = np.full(1, 0.2**2 if rates is None else 1e-12)
        # Where steps are small against what is seen, both starts lead to the same fit.
        self.second_start = not world.smooth_steps

    @abstractmethod
    def landscape(self, states: Float, weights: Float, *, curved: bool) -> Landscape:
        """Preconditioned gradients at parameters (m, d)."""

    def unit(self, policies: Float, parameters: Float) -> float:
        """That of the landscape along the path (m + 1, d)."""
        weights = parameters[: self.n_features]
        return self.landscape(policies[:-1], weights, curved=False).unit

    def rates_of(self, parameters: Float, n_steps: int) -> Float:
        """Rates (1 + t)^-decay, in units of the first, times the known ones."""
        fade = (1.0 + np.arange(n_steps)) ** -parameters[self.n_features]
        return np.asarray(fade if self.rates is None else self.rates[:n_steps] * fade)

    def following(self, states: Float, parameters: Float) -> Float:
        """One step up."""
        rates, weights = self.rates_of(parameters, len(states)), parameters[: self.n_features]
        step = self.landscape(states, weights, curved=False).design @ weights
        return np.asarray(states + rates[:, None] * step)

    def predict(
        self, states: Float, parameters: Float, *, states_known: bool = False
    ) -> Prediction:
        """One step up, with derivatives."""
        q, (m, d) = self.n_features, states.shape
        weights, rates = parameters[:q], self.rates_of(parameters, m)
        around = self.landscape(states, weights, curved=not states_known)
        step, design = self._step(around.design, weights, rates)
        transition = np.zeros((m, 0, 0))
        if not states_known:
            slope = 0.0 if around.curvature is None else rates[:, None, None] * around.curvature
            transition = np.broadcast_to(np.eye(d) + slope, (m, d, d))
        return Prediction(
            following=states + step,
            transition=transition,
            design=design,
            shape=self._everywhere(around.batch if states_known else around.noise),
        )

    def linearised(self, states: Float, parameters: Float) -> Linearised:
        """One step up in products, where the world has them."""
        weights, rates = parameters[: self.n_features], self.rates_of(parameters, len(states))
        around = self.world.climb(self.climbs, states, weights) if self.climbs else None
        if around is None:
            return super().linearised(states, parameters)
        step, design = self._step(around.design, weights, rates)
        return Linearised(states + step, around.transition(rates), design, around.noise)

    def _step(self, slope: Float, weights: Float, rates: Float) -> tuple[Float, Float]:
        """Steps (m, d) and their derivative w.r.t. all parameters, (m, d, q + 1)."""
        step = rates[:, None] * (slope @ weights)
        # The derivative of (1 + t)^-decay w.r.t. the decay.
        fading = -step * np.log1p(np.arange(len(rates)))[:, None]
        design = rates[:, None, None] * slope
        return step, np.concatenate([design, fading[..., None]], axis=2)

    def _everywhere(self, shape: Float) -> Float:
        """A trace of noise in every direction keeps sampled covariances invertible."""
        if self.world.noise_floor == 0:
            return shape
        d = shape.shape[1]
        size = np.einsum("mii->m", shape) / d
        floor = (self.world.noise_floor * size + 1e-300)[:, None, None] * np.eye(d)
        return np.asarray((shape + np.swapaxes(shape, 1, 2)) / 2 + floor)


class Gradient(Ascent):
    """The paper's learner: theta + rate * Psi @ weights."""

    name = "gradient"
    climbs = "gradient"

    def landscape(self, states: Float, weights: Float, *, curved: bool) -> Landscape:
        """The world's own."""
        return self.world.gradient(states, weights, curved=curved)


class NaturalGradient(Ascent):
    """Natural gradient: every step is measured by how much it changes the policy."""

    name = "natural gradient"
    climbs = "natural"

    def landscape(self, states: Float, weights: Float, *, curved: bool) -> Landscape:
        """The world's own, in units of the policy's change."""
        return self.world.natural(states, weights, curved=curved)


class Adam(Ascent):
    """Adam-like: each parameter's gradient in units of its own recent size, noise included."""

    name = "Adam"
    keeps_scale = False
    memory = 0.9
    """Share of the second moment that is kept from one stage to the next.

    Adam's own .999 is per gradient; a stage is hundreds of them, so that little of the stage before
    last is left.
    """

    def landscape(self, states: Float, weights: Float, *, curved: bool) -> Landscape:
        """Gradients times a diagonal of inverse root second moments, of mean one."""
        around = self.world.gradient(states, weights, curved=curved)
        noise, drift = np.einsum("mii->mi", around.noise), (around.design @ weights) ** 2
        size = drift.mean()
        moment = noise / max(float(noise.mean()), 1e-300) * (size if size > 0 else 1.0) + drift
        running, total = moment.copy(), 1.0
        for t in range(1, len(moment)):
            running[t] = self.memory * running[t - 1] + moment[t]
            total = self.memory * total + 1.0
            moment[t] = running[t] / total
        scale = 1 / np.sqrt(moment + 1e-12 * moment.mean() + 1e-300)
        scale /= scale.mean()
        return around.preconditioned(scale[:, :, None] * np.eye(drift.shape[1]))
