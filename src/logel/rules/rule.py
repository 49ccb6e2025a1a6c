"""What the joint fit asks of a model of learning: how the data see a state, and where it goes next.

A state is whatever the learner carries from stage to stage: logits, a table of values, or the
parameters of a policy family. Parameters hold the reward weights (learning rate or temperature
folded in) and, behind them, the model's own nuisance parameters:

    state[t + 1] = next(state[t], parameters) + noise,    noise ~ N(0, variance * shape[t])

linearly in the weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from logel.types import Float


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model says about the steps from given states.

    Attributes:
        following: Predicted next states, shape (m, D).
        transition: Derivative w.r.t. the present states, shape (m, D, D).
        design: Derivative w.r.t. the parameters, shape (m, D, q + k).
        shape: Shape of the process noise, positive definite, (m, D, D).
    """

    following: Float
    transition: Float
    design: Float
    shape: Float


@dataclass(frozen=True, eq=False)
class Observation:
    """What one stage's actions say about the state behind them, to second order.

    Attributes:
        score: Derivative of the stage's log-likelihood, shape (D,).
        factor: Block-diagonal factor L of its information L @ L.T, shape (B, D / B, width).
    """

    score: Float
    factor: Float

    def times(self, rows: Float) -> Float:
        """Rows (k, D) times the block-diagonal factor, shape (k, B width)."""
        n, height, width = self.factor.shape
        blocks = rows.reshape(-1, n, height).transpose(1, 0, 2)
        return np.matmul(blocks, self.factor).transpose(1, 0, 2).reshape(len(rows), n * width)

    def information_times(self, vector: Float) -> Float:
        """Information matrix times a vector (D,)."""
        inner = self.times(vector[None])[0].reshape(len(self.factor), -1, 1)
        return np.matmul(self.factor, inner).reshape(-1)


class PathModel(ABC):
    """One kind of learner, together with the stages it is seen in.

    Attributes:
        rates: Known learning rates, shape (m,), or None. Models without a learning rate of their
            own ignore them.
        nuisance_mean: Prior mean of the nuisance parameters, shape (k,).
        nuisance_variance: Their prior variance, shape (k,).
    """

    name: ClassVar[str]
    variance_bounds: ClassVar[tuple[float, float]] = (1e-7, 1e3)
    """Between which the variance of the process noise is sought."""
    keeps_values: ClassVar[bool] = False
    """Whether the state is a whole table of values, which a policy shows only up to a potential."""
    second_start: ClassVar[bool] = False
    """Whether a fit should also be started from the two-step answer, and not only from a walk's."""
    rates: Float | None
    nuisance_mean: Float
    nuisance_variance: Float

    @property
    @abstractmethod
    def n_features(self) -> int:
        """Number q of reward features."""

    @property
    @abstractmethod
    def n_stages(self) -> int:
        """Number m + 1 of stages seen."""

    @property
    @abstractmethod
    def state_dim(self) -> int:
        """Size D of the learner's state."""

    @abstractmethod
    def observe(self, stage: int, state: Float) -> Observation:
        """What a stage's actions say about a state (D,)."""

    @abstractmethod
    def log_likelihood(self, states: Float) -> float:
        """Of all stages' actions along a path (m + 1, D)."""

    @abstractmethod
    def following(self, states: Float, parameters: Float) -> Float:
        """Predicted next states, (m, D), for states (m, D)."""

    @abstractmethod
    def predict(
        self, states: Float, parameters: Float, *, states_known: bool = False
    ) -> Prediction:
        """Predicted next states with derivatives and the shape of the noise.

        With `states_known` the derivative w.r.t. the states is not needed and may be empty.
        """

    @abstractmethod
    def adopt(self, other: PathModel, states: Float) -> Float:
        """The states of this model whose policies are those of another model's states."""

    @abstractmethod
    def without_learning(self) -> PathModel:
        """The random walk that every model must beat."""

    def refreshed(self, states: Float) -> PathModel:
        """The model with what it holds fixed inside a round renewed at a path (m + 1, D)."""
        return self

    @abstractmethod
    def rates_of(self, parameters: Float, n_steps: int) -> Float:
        """Relative learning rate of every step: ones, for models without any."""


def decay_prior(rates: Float | None) -> tuple[Float, Float]:
    """Prior mean and variance of the decay of rates, which are nearly constant unless known."""
    return np.zeros(1), np.full(1, 0.2**2 if rates is None else 1e-12)


def fading_rates(m: int, decay: float, rates: Float | None) -> Float:
    """Rates (1 + t)^-decay, times the known ones, shape (m,)."""
    fade = (1.0 + np.arange(m)) ** -decay
    return np.asarray(fade if rates is None else rates[:m] * fade)
