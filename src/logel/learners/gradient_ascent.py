"""Gradient ascent on any differentiable policy family, in worlds with exact answers.

A learner here is a small frozen configuration whose `run` yields one `ParameterSnapshot` per stage,
the first before any learning. `observe_parametric` samples the observer's own episodes from every
snapshot with random numbers of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from logel.data.history import LearningHistory
from logel.data.stage import Stage
from logel.envs.parametric import ParametricWorld
from logel.errors import Choice, OptionError
from logel.learners.recording import check_rate, drift, record, scheduled_rate
from logel.policies.fisher import Fisher
from logel.types import Float
from logel.worlds.own_episodes import stage_jacobian


class ParameterSnapshot(NamedTuple):
    """A learner between two updates.

    Attributes:
        parameters: Flat parameters of its policy, shape (d,).
        learning_rate: Rate of the step that led here; None if there is none.
    """

    parameters: Float
    learning_rate: float | None = None


class ParametricLearner(Protocol):
    """Anything that learns the parameters of a policy family."""

    def run(
        self, world: ParametricWorld, weights: Float, rng: np.random.Generator, initial: Float
    ) -> Iterator[ParameterSnapshot]:
        """Yield the parameters before learning and after every update, without end."""
        ...


class Direction(Choice):
    """What a step follows.

    VANILLA: the gradient.
    NATURAL: the inverse Fisher information of a discounted episode times the gradient.
    ADAM: Adam's running mean of gradients over the root of their running mean square.
    """

    VANILLA = "vanilla"
    NATURAL = "natural"
    ADAM = "adam"


@dataclass(frozen=True)
class GradientAscent:
    """Ascent of the expected discounted return.

    Sampled gradients are G(PO)MDP with a leave-one-out mean per time as the baseline, which keeps
    them unbiased; a sampled natural gradient takes the information from the same batch.

    Attributes:
        learning_rate: Rate of the first step.
        direction: "vanilla", "natural" or "adam". Adam's steps have no rates to reveal: they are
            not a multiple of the gradient at hand.
        schedule: "constant"; "normalised" (each step has length `learning_rate`); "1/(1+t)";
            "1/(1+t)^2".
        n_episodes: Episodes of the learner's own batch, per step.
        exact: Follow the exact gradient (and information) instead of a sampled one.
        memory: How much of their past Adam's two running means keep per step.
        epsilon: What Adam adds to the root of the mean square.
    """

    learning_rate: float = 0.1
    direction: str = "vanilla"
    schedule: str = "constant"
    n_episodes: int = 50
    exact: bool = False
    memory: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        check_rate(self.learning_rate, self.schedule)
        Direction(self.direction)
        if not all(0 <= keep < 1 for keep in self.memory):
            raise OptionError(f"memory must be two numbers in [0, 1), but is {self.memory}")

    def run(
        self, world: ParametricWorld, weights: Float, rng: np.random.Generator, initial: Float
    ) -> Iterator[ParameterSnapshot]:
        """Yield the parameters before learning and after every update, without end."""
        theta = np.array(initial, dtype=np.float64)
        rate: float | None = None
        means = [np.zeros_like(theta), np.zeros_like(theta)]
        for step in count():
            yield ParameterSnapshot(theta, rate)
            # A learner that diverges is told so below, in words.
            with np.errstate(over="ignore", invalid="ignore"):
                move = self.gradient(world, theta, weights, rng)
                if self.direction == Direction.ADAM:
                    move = self._adam_move(means, move, step)
                size = float(np.linalg.norm(move))
                taken = scheduled_rate(self.learning_rate, self.schedule, step=step, size=size)
                theta = theta + taken * move
            if not np.isfinite(theta).all():
                raise OptionError(
                    f"the parameters are no longer finite after {step + 1} steps: lower the "
                    f"learning_rate, now {self.learning_rate}"
                )
            rate = None if self.direction == Direction.ADAM else taken

    def _adam_move(self, means: list[Float], gradient: Float, step: int) -> Float:
        """Adam's direction; its running means of gradient and square are updated in place."""
        freed = []
        for k, (keep, new) in enumerate(zip(self.memory, (gradient, gradient**2), strict=True)):
            means[k] = keep * means[k] + (1 - keep) * new
            # Freed of their start at zero.
            freed.append(means[k] / (1 - keep ** (step + 1)))
        return np.asarray(freed[0] / (np.sqrt(freed[1]) + self.epsilon))

    def gradient(
        self, world: ParametricWorld, parameters: Float, weights: Float, rng: np.random.Generator
    ) -> Float:
        """One gradient, sampled or exact, made natural if that is the direction; shape (d,)."""
        natural = self.direction == Direction.NATURAL
        if self.exact:
            exact = np.asarray(world.jacobian(parameters) @ weights)
            return world.fisher(parameters).solve(exact) if natural else exact
        stage = world.sample(parameters, rng=rng, n_episodes=self.n_episodes)
        sampled = sampled_gradient(world, parameters, stage, weights=weights)
        if not natural:
            return sampled
        return sampled_fisher(world, parameters, stage).solve(sampled)


@dataclass(frozen=True)
class ParameterWalk:
    """Learns nothing: its parameters drift at random.

    Attributes:
        step: Standard deviation of a parameter's first move.
        fading: Whether moves shrink as 1 / (1 + t), as those of a learner that converges.
    """

    step: float = 0.05
    fading: bool = False

    def run(
        self, world: ParametricWorld, weights: Float, rng: np.random.Generator, initial: Float
    ) -> Iterator[ParameterSnapshot]:
        """Yield the parameters before every move, without end."""
        start = np.array(initial, dtype=np.float64)
        for theta in drift(start, self.step, fading=self.fading, rng=rng):
            yield ParameterSnapshot(theta)


def sampled_gradient(
    world: ParametricWorld, parameters: Float, stage: Stage, *, weights: Float
) -> Float:
    """Unbiased gradient of the expected return from a stage's episodes, shape (d,)."""
    assert stage.features is not None
    rewards = replace(stage, features=(stage.features @ weights)[:, None])
    estimate = stage_jacobian(
        world.policy, parameters, rewards, gamma=world.gamma, baseline="time", n_groups=1
    )
    return estimate.mean[:, 0]


def sampled_fisher(world: ParametricWorld, parameters: Float, stage: Stage) -> Fisher:
    """Information of one discounted episode, estimated from a stage's observations."""
    policy = world.policy
    shares = world.gamma**stage.times / stage.n_episodes
    observations = policy.prepare_observations(stage.observations)
    return policy.fisher(policy.tensor(parameters), observations, policy.tensor(shares))


def observe_parametric(
    world: ParametricWorld,
    learner: ParametricLearner,
    *,
    weights: npt.ArrayLike,
    n_steps: int,
    n_episodes: int = 50,
    initial: npt.ArrayLike | None = None,
    seed: int | np.random.SeedSequence = 0,
    parameters: bool = False,
    learning_rates: bool = False,
) -> LearningHistory:
    """Let a learner learn and record what an observer sees of it; options as in `observe`.

    `initial` are the learner's parameters before learning, shape (d,); zeros by default. The true
    weights, shape (q,), do not enter the history (`logel.learners.tabular.observe`).
    """
    truth = np.asarray(weights, dtype=float)
    start = np.zeros(world.policy.n_parameters) if initial is None else np.asarray(initial, float)

    def watch(
        own: np.random.Generator, observers: np.random.Generator
    ) -> Iterator[tuple[Stage, float | None]]:
        for theta, rate in learner.run(world, truth, own, start):
            stage = world.sample(theta, rng=observers, n_episodes=n_episodes)
            yield replace(stage, parameters=theta) if parameters else stage, rate

    return record(
        learner,
        watch,
        n_steps=n_steps,
        seed=seed,
        learning_rates=learning_rates,
        feature_names=world.feature_names,
        metadata={"gamma": world.gamma, "world": type(world).__name__},
    )
