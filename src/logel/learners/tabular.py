"""The paper's four gridworld learners, for any tabular world, and how they are watched.

A learner is a small frozen configuration whose `run` yields one `Snapshot` per stage, the first
before any learning. `observe` samples the observer's own episodes from every snapshot with random
numbers of their own: an observer that reused a learner's batch would not estimate but do algebra.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp, softmax

from logel.data.history import LearningHistory
from logel.data.stage import Stage
from logel.envs.tabular import (
    TabularMDP,
    action_values,
    feature_jacobian,
    sample_episodes,
    softmax_policy,
    uniform_policy,
)
from logel.learners.recording import check_rate, drift, record, scheduled_rate
from logel.types import Float, Progress


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A learner between two updates.

    Attributes:
        policy: Action probabilities, shape (S, A).
        learning_rate: Rate of the step that led here; None if the learner has none.
    """

    policy: Float
    learning_rate: float | None = None

    @property
    def parameters(self) -> Float:
        """Logits relative to the last action, state-major, shape (S (A - 1),)."""
        logits = np.log(np.maximum(self.policy, np.finfo(float).tiny))
        return (logits[:, :-1] - logits[:, -1:]).reshape(-1)


class TabularLearner(Protocol):
    """Anything that learns in a tabular world."""

    def run(self, mdp: TabularMDP, weights: Float, rng: np.random.Generator) -> Iterator[Snapshot]:
        """Yield the learner's policy before learning and after every update, without end."""
        ...


@dataclass(frozen=True)
class GPOMDPLearner:
    """Policy-gradient ascent on a Boltzmann policy with the G(PO)MDP estimator.

    Attributes:
        learning_rate: Rate of the first step.
        schedule: "constant"; "normalised" (each step has length `learning_rate`); "1/(1+t)";
            "1/(1+t)^2".
        n_episodes: Episodes of the learner's own batch, per step.
        horizon: Their length.
        exact: Follow the exact gradient (of `horizon` steps) instead of a sampled one.
    """

    learning_rate: float = 0.1
    schedule: str = "constant"
    n_episodes: int = 50
    horizon: int = 20
    exact: bool = False

    def __post_init__(self) -> None:
        check_rate(self.learning_rate, self.schedule)

    def run(self, mdp: TabularMDP, weights: Float, rng: np.random.Generator) -> Iterator[Snapshot]:
        """Yield the learner's policy before learning and after every update, without end."""
        theta = np.zeros(mdp.n_states * (mdp.n_actions - 1))
        rate: float | None = None
        for step in count():
            policy = softmax_policy(theta, n_states=mdp.n_states, n_actions=mdp.n_actions)
            yield Snapshot(policy, rate)
            if self.exact:
                gradient = feature_jacobian(mdp, theta, horizon=self.horizon) @ weights
            else:
                gradient = self._sampled(mdp, weights, policy, rng)
            size = float(np.linalg.norm(gradient))
            rate = scheduled_rate(self.learning_rate, self.schedule, step=step, size=size)
            theta = theta + rate * gradient

    def _sampled(
        self, mdp: TabularMDP, weights: Float, policy: Float, rng: np.random.Generator
    ) -> Float:
        """An unbiased gradient from the learner's own episodes, shape (d,)."""
        batch = sample_episodes(
            mdp, policy, rng=rng, n_episodes=self.n_episodes, horizon=self.horizon
        )
        discount = mdp.gamma ** np.arange(self.horizon)
        rewards = discount * (batch.features @ weights)
        to_go = np.cumsum(rewards[:, ::-1], axis=1)[:, ::-1]
        centred = to_go
        if self.n_episodes > 1:
            # Leave-one-out mean per time: plain variance reduction that keeps G(PO)MDP unbiased.
            centred = (to_go - to_go.mean(axis=0)) * self.n_episodes / (self.n_episodes - 1)
        pairs = batch.states[:, :-1] * mdp.n_actions + batch.actions
        sums = np.bincount(pairs.ravel(), weights=centred.ravel(), minlength=policy.size)
        sums = sums.reshape(policy.shape)
        scores = sums - policy * sums.sum(axis=1, keepdims=True)
        return scores[:, :-1].reshape(-1) / self.n_episodes


@dataclass(frozen=True)
class QLearner:
    """Tabular Q-learning that acts by softmax(Q), or greedily but for a share of its actions.

    Attributes:
        learning_rate: Of the temporal-difference update.
        n_steps: Environment steps per stage, each run starting in a random state.
        greed: Inverse temperature at which it acts.
        explores: Share of its actions that are taken at random, whatever the values.
        hopes: First value of every action.
    """

    learning_rate: float = 0.1
    n_steps: int = 100
    greed: float = 1.0
    explores: float = 0.0
    hopes: float = 0.0

    def run(self, mdp: TabularMDP, weights: Float, rng: np.random.Generator) -> Iterator[Snapshot]:
        """Yield the learner's policy before learning and after every update, without end."""
        values = np.full((mdp.n_states, mdp.n_actions), self.hopes)
        rewards = mdp.features @ weights
        if rewards.ndim == 2:  # features that do not depend on the next state
            rewards = np.broadcast_to(rewards[:, :, None], mdp.transitions.shape)
        while True:
            yield Snapshot(self._policy(values))
            state = int(rng.integers(mdp.n_states))
            for _ in range(self.n_steps):
                action = int(rng.choice(mdp.n_actions, p=self._policy(values[state])))
                following = int(rng.choice(mdp.n_states, p=mdp.transitions[state, action]))
                target = rewards[state, action, following] + mdp.gamma * values[following].max()
                values[state, action] += self.learning_rate * (target - values[state, action])
                state = following

    def _policy(self, values: Float) -> Float:
        """How it acts in states of these values, (..., A)."""
        chosen = softmax(self.greed * values, axis=-1)
        return np.asarray((1 - self.explores) * chosen + self.explores / values.shape[-1])


@dataclass(frozen=True)
class SoftPolicyIteration:
    """Soft policy iteration: evaluate the current policy's soft Q, then act by softmax(Q / T)."""

    temperature: float = 0.3

    def run(self, mdp: TabularMDP, weights: Float, rng: np.random.Generator) -> Iterator[Snapshot]:
        """Yield the learner's policy before learning and after every update, without end."""
        policy = uniform_policy(mdp)
        rewards = mdp.expected_features @ weights
        while True:
            yield Snapshot(policy)
            values = soft_action_values(mdp, policy, rewards, self.temperature)
            policy = softmax(values / self.temperature, axis=1)


@dataclass(frozen=True)
class SoftValueIteration:
    """Soft value iteration: Q <- r + gamma P logsumexp(Q), acting by softmax(Q)."""

    def run(self, mdp: TabularMDP, weights: Float, rng: np.random.Generator) -> Iterator[Snapshot]:
        """Yield the learner's policy before learning and after every update, without end."""
        values = np.zeros((mdp.n_states, mdp.n_actions))
        rewards = mdp.expected_features @ weights
        while True:
            yield Snapshot(softmax(values, axis=1))
            values = rewards + mdp.gamma * mdp.transitions @ logsumexp(values, axis=1)


@dataclass(frozen=True)
class NaturalGradientAscent:
    """Exact natural gradient: log-probabilities move by the learning rate times the advantage."""

    learning_rate: float = 0.1

    def run(self, mdp: TabularMDP, weights: Float, rng: np.random.Generator) -> Iterator[Snapshot]:
        """Yield the learner's policy before learning and after every update, without end."""
        logits = np.zeros((mdp.n_states, mdp.n_actions))
        while True:
            policy = softmax(logits, axis=1)
            yield Snapshot(policy, self.learning_rate)
            logits = logits + self.learning_rate * action_values(mdp, policy, weights=weights)


@dataclass(frozen=True)
class RandomWalk:
    """Learns nothing: its logits drift at random. What an observer must not mistake for a will.

    Attributes:
        step: Standard deviation of a logit's first move.
        fading: Whether moves shrink as 1 / (1 + t), as those of a learner that converges.
    """

    step: float = 0.2
    fading: bool = False

    def run(self, mdp: TabularMDP, weights: Float, rng: np.random.Generator) -> Iterator[Snapshot]:
        """Yield the learner's policy before learning and after every update, without end."""
        start = np.zeros((mdp.n_states, mdp.n_actions))
        for logits in drift(start, self.step, fading=self.fading, rng=rng):
            yield Snapshot(softmax(logits, axis=1))


LEARNERS: dict[str, type[TabularLearner]] = {
    "gpomdp": GPOMDPLearner,
    "qlearning": QLearner,
    "spi": SoftPolicyIteration,
    "svi": SoftValueIteration,
}


def soft_action_values(mdp: TabularMDP, policy: Float, rewards: Float, temperature: float) -> Float:
    """Soft Q of a policy, (S, A): reward plus discounted value with an entropy bonus."""
    entropy = -(policy * np.log(np.maximum(policy, np.finfo(float).tiny))).sum(axis=1)
    expected = (policy * rewards).sum(axis=1) + temperature * entropy
    kernel = np.einsum("sa,sat->st", policy, mdp.transitions)
    values = np.linalg.solve(np.eye(mdp.n_states) - mdp.gamma * kernel, expected)
    return np.asarray(rewards + mdp.gamma * mdp.transitions @ values)


def observe(
    mdp: TabularMDP,
    learner: TabularLearner,
    *,
    weights: npt.ArrayLike,
    n_steps: int,
    n_episodes: int = 50,
    horizon: int = 20,
    seed: int | np.random.SeedSequence = 0,
    parameters: bool = False,
    learning_rates: bool = False,
    progress: Progress | None = None,
) -> LearningHistory:
    """Let a learner learn and record what an observer sees of it.

    Args:
        mdp: The world.
        learner: The learner.
        weights: The learner's true reward weights, shape (q,); they do not enter the history.
        n_steps: Number m of updates to watch.
        n_episodes: Episodes the observer samples from each stage's policy.
        horizon: Their length.
        seed: Learner and observer get independent streams from it.
        parameters: Whether the observer also sees the policies' parameters.
        learning_rates: Whether it sees the learning rates.
        progress: Called after every stage.
    """
    truth = np.asarray(weights, dtype=float)

    def watch(
        own: np.random.Generator, observers: np.random.Generator
    ) -> Iterator[tuple[Stage, float | None]]:
        for snapshot in learner.run(mdp, truth, own):
            batch = sample_episodes(
                mdp, snapshot.policy, rng=observers, n_episodes=n_episodes, horizon=horizon
            )
            yield batch.stage(snapshot.parameters if parameters else None), snapshot.learning_rate

    return record(
        learner,
        watch,
        n_steps=n_steps,
        seed=seed,
        learning_rates=learning_rates,
        feature_names=mdp.feature_names,
        metadata={"gamma": mdp.gamma, "n_states": mdp.n_states, "n_actions": mdp.n_actions},
        progress=progress,
    )
