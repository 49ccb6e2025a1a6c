"""How a reward moves a policy: the one protocol of all rules.

    state[t + 1] = next(state[t], parameters) + noise,    noise ~ N(0, variance * shape[t])

A state is whatever the learner carries from stage to stage: the parameters of its policy, or a
table of values of which its policy is the softmax. Parameters hold the reward weights (learning
rate or temperature folded in), in which the next state is linear, and behind them the rule's own
nuisance parameters.

A rule needs `following`; with `predict`, which adds derivatives and the shape of the noise, paths
can be regressed on or smoothed with it. A new rule is a class with these two, put into
`rules.catalogue.RULES` and into what a world offers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from logel.types import Float
from logel.worlds.base import Observation, World
from logel.worlds.products import Apart, DenseTransition, Linearised, StepNoise


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a rule says about the steps from given states."""

    following: Float  # predicted next states, shape (m, D)
    transition: Float  # derivative w.r.t. the present states, shape (m, D, D)
    design: Float  # derivative w.r.t. the parameters, shape (m, D, q + k)
    shape: Float  # of the process noise, positive definite, (m, D, D)


class Rule(ABC):
    """One kind of learner, in the world it is seen in.

    Attributes:
        world: What all stages show.
        rates: Known learning rates, shape (m,), or None. Rules without a learning rate of their own
            ignore them.
        nuisance_mean: Prior mean of the nuisance parameters, shape (k,).
        nuisance_variance: Their prior variance, shape (k,).
        n_features: Number q of reward features.
        n_stages: Number m + 1 of stages seen.
        state_dim: Size D of the learner's state.
        second_start: Whether a fit should also start from regressed clones, not only from a walk's
            path.
    """

    name: ClassVar[str]
    variance_bounds: ClassVar[tuple[float, float]] = (1e-7, 1e3)
    """Between which the variance of the process noise is sought."""
    keeps_values: ClassVar[bool] = False
    """Whether the state is a whole table of values, which a policy shows only up to a potential."""
    keeps_scale: ClassVar[bool] = False
    """Whether known learning rates give the weights a scale."""
    forgets: ClassVar[bool] = False
    """Whether what follows depends on a table only through one value of every state."""
    apart: ClassVar[bool] = False
    """Whether the blocks of a state never meet: what each does depends on itself alone."""
    second_start: bool = False

    def __init__(self, world: World, rates: Float | None = None) -> None:
        self.world, self.rates = world, rates
        self.nuisance_mean, self.nuisance_variance = np.zeros(0), np.zeros(0)
        self.n_features, self.n_stages = world.n_features, world.n_stages
        self.state_dim = world.n_parameters

    def observe(self, stage: int, state: Float) -> Observation:
        """What a stage's actions say about a state (D,)."""
        return self.world.observe(stage, state)

    def log_likelihood(self, states: Float) -> float:
        """Of all stages' actions along a path (m + 1, D)."""
        return self.world.log_likelihood(states)

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

    @property
    def block_width(self) -> int:
        """Size of the equal parts of a state that actions speak of independently."""
        return self.state_dim // self.world.n_blocks

    def linearised(self, states: Float, parameters: Float) -> Linearised:
        """What `predict` says, in products; rules that can say it without d x d arrays do."""
        found, width = self.predict(states, parameters), self.block_width
        return Linearised(
            found.following,
            DenseTransition(found.transition, width),
            found.design,
            StepNoise.dense(found.shape, width),
        )

    def as_policy(self, states: Float) -> Float:
        """Parameters (..., d) of the policies behind states (..., D)."""
        return states

    def from_policy(self, policies: Float) -> Float:
        """States (..., D) whose policies have these parameters (..., d)."""
        return policies

    def refreshed(self, policies: Float) -> Rule:
        """The rule with what its world holds fixed inside a round renewed at a path (m + 1, d)."""
        world = self.world.at(policies[:-1])
        return self if world is self.world else type(self)(world, self.rates)

    def unit(self, policies: Float, parameters: Float) -> float:
        """What the weights are to be multiplied by to go with true learning rates."""
        return 1.0

    def rates_of(self, parameters: Float, n_steps: int) -> Float:
        """Relative learning rate of every step: ones, for rules without any."""
        return np.ones(n_steps)

    def identity(self, m: int) -> Float:
        """Shape (m, D, D)."""
        return np.broadcast_to(np.eye(self.state_dim), (m, self.state_dim, self.state_dim))


class RandomWalk(Rule):
    """Parameters that drift without any reward: the null every rule must beat."""

    name = "random walk"
    apart = True

    def following(self, states: Float, parameters: Float) -> Float:
        """Stay where you are."""
        return states

    def predict(
        self, states: Float, parameters: Float, *, states_known: bool = False
    ) -> Prediction:
        """Stay where you are."""
        m, d = states.shape
        identity = self.identity(m)
        return Prediction(states, identity, np.zeros((m, d, self.n_features)), identity)

    def linearised(self, states: Float, parameters: Float) -> Linearised:
        """The same in products."""
        (m, d), s, width = states.shape, self.world.n_blocks, self.block_width
        design = np.zeros((m, d, self.n_features))
        return Linearised(states, Apart.staying(m, s, width), design, StepNoise.even(m, s, width))
