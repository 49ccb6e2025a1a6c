"""What goes into a round of the smoother, and what comes out of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from logel.rules.rule import Rule
from logel.types import Float
from logel.worlds.products import Linearised, StepNoise

# Coordinates of a state up to which matrices are faster than products.
LARGEST_DENSE = 150
# States of a table up to which matrices over their values are faster than products.
MOST_VALUES = 250


def in_products(model: Rule) -> bool:
    """Whether a model is better asked for products than for matrices."""
    return model.world.n_blocks > 1 and (model.apart or model.state_dim > LARGEST_DENSE)


def by_values(model: Rule) -> bool:
    """Whether a model's tables are better not carried, but their values."""
    return model.forgets and 1 < model.world.n_blocks <= MOST_VALUES


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

    def nearer(self, other: Variances, share: float) -> Variances:
        """Only a share of the way here, from others; on a logarithmic scale."""
        mine, theirs = (np.log([v.noise, v.start, v.scale]) for v in (self, other))
        return Variances(*(float(x) for x in np.exp(theirs + share * (mine - theirs))))


@dataclass(frozen=True, eq=False)
class Round:
    """One pass of the smoother, as moves from the point of linearisation."""

    state_moves: Float
    parameter_moves: Float
    parameter_covariance: Float
    start_variance: float
    log_determinant: float
    noise_freedom: float


Predicted = TypeVar("Predicted")
"""What a rule says about its steps, in the form an algebra needs."""


class Algebra(ABC, Generic[Predicted]):
    """How the linear algebra of a round is done; all ways give the same answers."""

    @abstractmethod
    def predict(self, model: Rule, states: Float, parameters: Float) -> Predicted:
        """What the rule says about the steps from states (m, D)."""

    @abstractmethod
    def evened(self, found: Predicted) -> Predicted:
        """The same with noise alike in all directions."""

    @abstractmethod
    def damped(self, found: Predicted, before: Predicted | None, share: float) -> Predicted:
        """The same with noise in which its own has a share, and that before it has the rest."""

    @abstractmethod
    def smooth(
        self,
        model: Rule,
        states: Float,
        parameters: Float,
        middle: Float,
        prior: Float,
        found: Predicted,
        variances: Variances,
        *,
        rough: bool = False,
    ) -> Round:
        """One pass, linear around states (m + 1, D) and parameters (q + k,).

        Args:
            model: The rule.
            states: Where it is linearised.
            parameters: Likewise.
            middle: Prior mean of the parameters.
            prior: Prior variances of the parameters.
            found: What the rule says about the steps.
            variances: Of noise and first state.
            rough: Only moves and their covariance are wanted.
        """

    @abstractmethod
    def misfit(self, found: Predicted, noise: float) -> Callable[[Float], float]:
        """Computes what errors (m, D) of the steps weigh, squared, in units of their noise."""

    @abstractmethod
    def covariance(
        self,
        model: Rule,
        states: Float,
        prior: Float,
        found: Predicted,
        variances: Variances,
        *,
        steps: npt.NDArray[np.int64],
        episodes: float,
    ) -> Float:
        """Of the parameters, if these steps were seen in that multiple of the episodes."""


class Products(Algebra[Linearised]):
    """Without matrices over all of a state."""

    def predict(self, model: Rule, states: Float, parameters: Float) -> Linearised:
        """What the rule says about the steps from states (m, D)."""
        return model.linearised(states, parameters)

    def evened(self, found: Linearised) -> Linearised:
        """The same with noise alike in all directions."""
        m, s, b, _ = found.noise.blocks.shape
        return found.with_noise(StepNoise.even(m, s, b))

    def damped(self, found: Linearised, before: Linearised | None, share: float) -> Linearised:
        """The same with noise in which its own has a share, and that before it has the rest."""
        if before is None:
            return found
        return found.with_noise(found.noise.mixed(before.noise, share))

    def misfit(self, found: Linearised, noise: float) -> Callable[[Float], float]:
        """Computes what errors (m, D) of the steps weigh, squared, in units of their noise."""
        return lambda errors: found.noise.misfit(errors) / noise
