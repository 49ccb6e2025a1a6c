"""What the steps of a course say about the weights, seen from one centre."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from logel.replay.course import StepShare
from logel.types import Float

# The most that the centre is shifted by: in shares of the movement, and of its length.
_MOST, _LONGEST = 0.5, 0.5
# Share of a step's movement that a candidate's distance from the centre makes, once effects are
# known; and the most it may be, relative to the weights' length, where effects are small.
_EFFECT, _FARTHEST = 0.3, 0.3
# Share of the movement that a shift must make to tell anything about effects.
_TELLS = 0.1
# Share of a movement that no learner's update explains (rounding), and the directions over which it
# spreads: policies move smoothly, not in every state by itself.
_ROUNDING, _DIRECTIONS = 0.0003, 10
# Of what neither weights nor chance explain: how much more may hide where weights are mistaken for
# it, in every direction and at all steps alike, as wrong settings of the learner do.
_HIDDEN = 5.0
# Of the scatter, what is taken to go along all of those: few fates show few directions.
_UNSEEN = 0.5


@dataclass(frozen=True, eq=False)
class View:
    """Steps in a linear model around a centre.

    Attributes:
        observed: Where the learner went, one row (D,) per step; those replayed are the first.
        usual: A small squared movement: of policies that move less, a share says little.
        centre: Weights in units of the features' scale, (q,).
        measured_at: Where effects were measured, (q,).
        middles: Movements at the centre under R fates, (m, R, D).
        effects: What weights change about them, (m, q, D).
        reach: The most that the centre is shifted by, in shares of the movement.
    """

    observed: Sequence[Float]
    usual: float
    centre: Float
    measured_at: Float
    middles: Float
    effects: Float
    reach: float = _MOST

    @cached_property
    def steps(self) -> Float:
        """Where the learner went in the steps that were replayed, (m, D)."""
        return np.stack(self.observed[: len(self.middles)])

    @cached_property
    def sizes(self) -> Float:
        """Squared movements, (m,)."""
        return np.asarray(np.maximum((self.steps**2).sum(axis=1), 1e-300))

    @cached_property
    def left(self) -> Float:
        """What the centre leaves of the movements, (m, D)."""
        return np.asarray(self.steps - self.middles.mean(axis=1))

    @cached_property
    def scatter(self) -> Float:
        """Squared movement that fates differ by, (m,)."""
        apart = self.middles - self.middles.mean(axis=1, keepdims=True)
        return np.asarray((apart**2).sum(axis=(1, 2)) / (self.middles.shape[1] - 1))

    @property
    def shares(self) -> list[StepShare]:
        """Step by step."""
        middle = self.middles.mean(axis=1)
        lengths = np.linalg.norm(middle, axis=1)
        along = (middle * self.steps).sum(axis=1)
        moved = np.sqrt(self.sizes)
        return [
            StepShare(
                unexplained=float((self.left[t] ** 2).sum() / size),
                scatter=float(self.scatter[t] / size),
                cosine=float(along[t] / max(lengths[t] * moved[t], 1e-300)),
                moved=float(moved[t]),
                predicted=float(lengths[t]),
            )
            for t, size in enumerate(self.sizes)
        ]

    @property
    def loss(self) -> float:
        """Mean log of the share that the centre leaves unexplained."""
        return float(np.log((self.left**2).sum(axis=1) / self.sizes + 1e-12).mean())

    def beyond_chance(self, shift: Float) -> float:
        """Share of the usual movement that a shift of the centre would leave, but for chance."""
        left = self.left - np.einsum("q,tqd->td", shift, self.effects)
        chance = (1 + 1 / self.middles.shape[1]) * self.scatter
        shares = ((left**2).sum(axis=1) - chance) / (self.sizes + self.usual)
        return max(float(np.median(shares)), _ROUNDING)

    # --- what is found --------------------------------------------------------------------------

    @cached_property
    def grams(self) -> Float:
        """Effects multiplied with themselves, (m, q, q)."""
        return np.einsum("tqd,tpd->tqp", self.effects, self.effects)

    @cached_property
    def noises(self) -> Float:
        """Covariance of effects times what is left, by chance, (m, q, q)."""
        n = self.middles.shape[1]
        apart = self.middles - self.middles.mean(axis=1, keepdims=True)
        chance = np.einsum("trd,tqd->trq", apart, self.effects)
        # What differs between fates differs between the learner's and their mean.
        noise = (1 + 1 / n) / (n - 1) * np.einsum("trq,trp->tqp", chance, chance)
        rounding = self.beyond_chance(np.zeros_like(self.centre))
        spread = rounding * (self.sizes + self.usual) + _UNSEEN * self.scatter
        noise += (spread / _DIRECTIONS)[:, None, None] * self.grams
        tiny = 1e-9 * np.trace(noise, axis1=1, axis2=2) + 1e-300
        return np.asarray(noise + tiny[:, None, None] * np.eye(noise.shape[1]))

    @property
    def found(self) -> Float:
        """Weights that the steps speak for, (q,)."""
        return self._solved[0]

    @property
    def covariance(self) -> Float:
        """How sure they are, (q, q)."""
        values, vectors = np.linalg.eigh(self.information)
        hidden = _HIDDEN * (self.misfit - _ROUNDING) / _DIRECTIONS
        variances = hidden / np.maximum(values, 1e-3 * values[-1] + 1e-300)
        return np.asarray(self._solved[1] + (vectors * variances) @ vectors.T)

    @cached_property
    def misfit(self) -> float:
        """What neither weights nor chance explain: the same at all steps, it looks like weights."""
        return self.beyond_chance(self.found - self.centre)

    @cached_property
    def _solved(self) -> tuple[Float, Float]:
        # What turns a pull into information: gram / noise.
        gains = np.linalg.solve(self.noises, self.grams).transpose(0, 2, 1)
        parts = gains @ self.grams
        pulls = np.einsum("tqp,tpd,td->tq", gains, self.effects, self.left)
        m = len(parts)
        # A prior that is far too wide to matter, but keeps this solvable.
        total = parts.sum(axis=0) + 0.01 * self.precision(self.centre)
        shift = np.linalg.solve(total, pulls.sum(axis=0))
        without = np.linalg.solve(total - parts, (pulls.sum(axis=0) - pulls)[:, :, None])[:, :, 0]
        spread = without - without.mean(axis=0)
        # What steps disagree about, each left out in turn, and what other minibatches and critics
        # would have changed: critics are carried along, so steps are not independent. The learner
        # had one order and one critic, however many we replay.
        inverse = np.linalg.inv(total)
        noise = inverse @ (gains @ self.noises @ gains.transpose(0, 2, 1)).sum(axis=0) @ inverse.T
        return np.asarray(self.centre + shift), np.asarray((m - 1) / m * spread.T @ spread + noise)

    # --- where to go ----------------------------------------------------------------------------

    @cached_property
    def information(self) -> Float:
        """Share of a step's squared movement that weights make, on average, (q, q)."""
        return np.asarray((self.grams / (self.sizes + self.usual)[:, None, None]).mean(axis=0))

    def distance(self, weights: Float) -> tuple[float, float]:
        """Of the centre: in shares of the movement, and squared, per weight, in what is chance."""
        shift = weights - self.centre
        chance = float(shift @ np.linalg.solve(self.covariance, shift)) / len(shift)
        return float(shift @ self.information @ shift) ** 0.5, chance

    def towards_found(self) -> Float:
        """From the centre towards what was found, no farther than effects are known."""
        shift = self.found - self.centre
        effect, _ = self.distance(self.found)
        length = float(np.linalg.norm(shift) / np.linalg.norm(self.centre))
        return np.asarray(self.centre + shift / max(1.0, effect / self.reach, length / _LONGEST))

    def root(self, centre: Float) -> Float:
        """Of a covariance of candidates that differ as much in all directions, by movement."""
        values, vectors = np.linalg.eigh(self.information)
        longest = (_FARTHEST * np.linalg.norm(centre)) ** 2
        variances = np.minimum(_EFFECT**2 / np.maximum(values, 1e-300), longest) / len(centre)
        return np.asarray(vectors * np.sqrt(variances))

    def precision(self, centre: Float) -> Float:
        """Of those candidates, (q, q)."""
        inverse = np.linalg.inv(self.root(centre))
        return np.asarray(inverse.T @ inverse)

    def corrected(self, centre: Float, middles: Float) -> View:
        """The view from another centre, with effects that would have foretold what is seen there.

        The smallest change of them that does, if the way there was long enough to tell (Broyden).
        """
        shift = centre - self.centre
        effects = self.effects
        if self.distance(centre)[0] > _TELLS:
            foretold = np.einsum("q,tqd->td", shift, effects)
            wrong = (middles - self.middles).mean(axis=1) - foretold
            along = self.precision(centre) @ shift
            effects = effects + np.einsum("q,td->tqd", along / (along @ shift), wrong)
        return replace(self, centre=centre, middles=middles, effects=effects)

    def learning_from(self, other: View) -> View:
        """The same view after another, from a centre that was too far away."""
        half = 0.5 * self.distance(other.centre)[0]
        return replace(self, effects=other.effects, reach=min(half, self.reach))
