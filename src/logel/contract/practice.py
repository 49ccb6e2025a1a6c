"""A small world in which any policy family can practise: something to be watched.

A mass on a line is pushed by the action (an index among evenly spaced forces, or the first number
of a real action). Features: where it is, how far from the middle, and the effort of the push. The
learner follows sampled gradients of its own return, in whatever parameters the family has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from logel.data.history import LearningHistory
from logel.data.stage import Stage
from logel.policies.base import Policy
from logel.policies.softmax import TabularSoftmax
from logel.types import Array, Float
from logel.worlds.counting import pool_world
from logel.worlds.own_episodes import stage_jacobian
from logel.worlds.table import TabularWorld

NAMES = ("place", "centred", "effort")
GAMMA = 0.9


@dataclass(frozen=True)
class Practice:
    """How long, and how, a learner practises.

    Attributes:
        weights: Of place, centred and effort; None for a learner that wants nothing, whose
            parameters drift.
        n_stages: Stages seen.
        n_episodes: Episodes of each.
        length: Times of each episode.
        step: Size of the first move of the parameters.
        seed: Of everything.
    """

    weights: tuple[float, float, float] | None = (0.8, 0.5, 0.3)
    n_stages: int = 9
    n_episodes: int = 20
    length: int = 8
    step: float = 0.3
    seed: int = 0

    def history(
        self, policy: Policy, observe: Callable[[Float], Array], *, known: bool, rated: bool
    ) -> LearningHistory:
        """What is seen of a learner.

        Args:
            policy: Its family.
            observe: Maps places (N,) to N observations.
            known: Whether the parameters are seen.
            rated: Whether the learning rates are.
        """
        rng = np.random.default_rng(self.seed)
        theta = policy.initial(rng) + 0.1 * rng.standard_normal(policy.n_parameters)
        stages, rate = [], None
        for _ in range(self.n_stages):
            stage = self._stage(policy, theta, observe, rng)
            stages.append(replace(stage, parameters=theta) if known else stage)
            if self.weights is None:
                push = rng.standard_normal(len(theta))
            else:
                push = self._gradient(policy, theta, observe, rng)
            rate = rate or self.step / float(np.linalg.norm(push))
            theta = theta + rate * push
        rates = np.full(self.n_stages - 1, rate) if rated else None
        return LearningHistory.from_stages(stages, learning_rates=rates, feature_names=NAMES)

    def _gradient(
        self,
        policy: Policy,
        theta: Float,
        observe: Callable[[Float], Array],
        rng: np.random.Generator,
    ) -> Float:
        """From five times the episodes that are seen, so that the learner knows what it does."""
        parts = [self._stage(policy, theta, observe, rng) for _ in range(5)]
        jacobians = [stage_jacobian(policy, theta, p, gamma=GAMMA, baseline="time") for p in parts]
        return np.mean([j.mean for j in jacobians], axis=0) @ np.array(self.weights)

    def _stage(
        self,
        policy: Policy,
        theta: Float,
        observe: Callable[[Float], Array],
        rng: np.random.Generator,
    ) -> Stage:
        place = rng.uniform(-1, 1, self.n_episodes)
        seen, taken, features = [], [], []
        for _ in range(self.length):
            seen.append(np.asarray(observe(place)))
            taken.append(policy.sample(theta, seen[-1], rng))
            force = _force(policy, taken[-1])
            noise = 0.1 * rng.standard_normal(len(place))
            place = np.clip(0.8 * place + 0.4 * force + noise, -2, 2)
            # Around a force that no evenly spaced action has, so that effort differs among them.
            features.append(np.stack([place, -(place**2), -((force - 0.3) ** 2)], axis=1))
        return Stage(
            observations=_episodes(seen),
            actions=_episodes(taken),
            lengths=np.full(self.n_episodes, self.length),
            terminated=np.zeros(self.n_episodes, dtype=bool),
            last_observations=np.asarray(observe(place)),
            features=_episodes(features),
        )


def practice_table(practice: Practice | None = None) -> tuple[TabularWorld, Float]:
    """A table to try rules in: four places and three forces, and the policies (m + 1, d) seen."""
    policy = TabularSoftmax(4, 3)
    history = (practice or Practice()).history(policy, _bins, known=True, rated=False)
    policies = history.parameters()
    assert policies is not None
    return pool_world(history, policy, gamma=GAMMA), policies


def _bins(place: Float) -> Array:
    return np.clip((place + 2).astype(int), 0, 3)


def _force(policy: Policy, actions: Array) -> Float:
    if policy.discrete_actions:
        return np.linspace(-1, 1, policy.n_actions)[actions]  # type: ignore[attr-defined]
    return np.asarray(actions[:, 0], dtype=float)


def _episodes(rows: list[Array]) -> Array:
    """Times of all episodes (T lists of n rows), episode after episode."""
    stacked = np.stack(rows)
    return stacked.swapaxes(0, 1).reshape(-1, *stacked.shape[2:])
