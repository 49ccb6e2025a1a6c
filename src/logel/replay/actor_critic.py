"""Stable-Baselines3's PPO and A2C as functions of stacked parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from logel.replay.batch import Batch
from logel.replay.heads import Head
from logel.replay.normaliser import RunningReturns
from logel.replay.optimisers import Moments, Optimiser, clip_rows
from logel.replay.stacked import StackedNetwork

# Rows of all copies that go through networks together and stay in a processor's cache: of whole
# rollouts, a few copies at a time take two thirds of the time of all at once.
_CACHED = 8192
# SB3 adds it to the deviation of advantages.
_TINY = 1e-8


@dataclass(frozen=True)
class State:
    """What a learner carries from update to update beside its policy; rows are candidates."""

    critic: Tensor
    moments: Moments = field(default_factory=dict)
    returns: RunningReturns | None = None

    def of(self, rows: slice | Tensor) -> State:
        """Of some candidates, but for their returns."""
        moments = {name: value[rows] for name, value in self.moments.items()}
        return replace(self, critic=self.critic[rows], moments=moments)


@dataclass(frozen=True)
class Update:
    """Settings of one update, schedules evaluated; names as in Stable-Baselines3."""

    gamma: float = 0.99
    gae_lambda: float = 0.95
    learning_rate: float = 3e-4
    n_epochs: int = 10
    batch_size: int | None = 64
    clip_range: float | None = 0.2
    clip_range_vf: float | None = None
    normalize_advantage: bool = True
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    target_kl: float | None = None


@dataclass(frozen=True, eq=False)
class ActorCritic:
    """PPO, or A2C (one epoch of one batch, nothing clipped), for K candidates at once."""

    actor: StackedNetwork
    critic: StackedNetwork
    head: Head
    optimiser: Optimiser

    @property
    def n_policy(self) -> int:
        """Parameters of the policy: network, then those beside it."""
        return self.actor.n_parameters + self.head.n_extra

    def update(
        self,
        parameters: Tensor,
        state: State,
        batch: Batch,
        rewards: Tensor,
        settings: Update,
        rng: Sequence[np.random.Generator],
    ) -> tuple[Tensor, State]:
        """Policies (K, d) after one update on rewards (K, N), and what is carried on.

        With several generators, candidate k takes the orders of minibatches of generator
        k % len(rng).
        """
        if settings.batch_size is not None:
            return self._updated(parameters, state, batch, rewards, settings, rng)
        parts = [
            self._updated(parameters[some], state.of(some), batch, rewards[some], settings, rng)
            for some in few(parameters, len(batch))
        ]
        critic = torch.cat([after.critic for _, after in parts])
        names = parts[0][1].moments
        moments = {name: torch.cat([after.moments[name] for _, after in parts]) for name in names}
        policies = torch.cat([policy for policy, _ in parts])
        return policies, replace(state, critic=critic, moments=moments)

    def _updated(
        self,
        parameters: Tensor,
        state: State,
        batch: Batch,
        rewards: Tensor,
        settings: Update,
        rng: Sequence[np.random.Generator],
    ) -> tuple[Tensor, State]:
        """The same, all candidates at once."""
        flat = torch.cat([parameters, state.critic], dim=1)
        moments = {name: value.clone() for name, value in state.moments.items()}
        moments = moments or self.optimiser.initial(flat)
        targets = self.targets(parameters, state.critic, batch, rewards, settings)
        work = _Work(self, flat, torch.empty_like(flat))
        active = None
        if settings.target_kl is not None:
            active = torch.ones((len(flat), 1), dtype=torch.bool, device=flat.device)
        for part in minibatches(batch, targets, settings.n_epochs, settings.batch_size, rng):
            divergence = work.gradient(*part, settings)
            if active is not None and settings.target_kl is not None:
                active = active & (divergence <= 1.5 * settings.target_kl)[:, None]
                if not active.any():
                    break
            clip_rows(work.slope, settings.max_grad_norm)
            self.optimiser.step(flat, work.slope, moments, settings.learning_rate, active)
        d = self.n_policy
        return flat[:, :d].clone(), replace(state, critic=flat[:, d:].clone(), moments=moments)

    def targets(
        self,
        parameters: Tensor,
        critic: Tensor,
        batch: Batch,
        rewards: Tensor,
        settings: Update,
    ) -> Targets:
        """What the update is trained on, by the critic as it was when the episodes were made."""
        values = self.critic.outputs(critic, batch.inputs)[:, :, 0]
        last = self.critic.outputs(critic, batch.last)[:, :, 0]
        advantages = batch.advantages(
            rewards, values, last, gamma=settings.gamma, trace=settings.gae_lambda
        )
        outputs = self.actor.outputs(parameters[:, : self.actor.n_parameters], batch.inputs)
        extra = parameters[:, self.actor.n_parameters :]
        old = self.head.log_prob(outputs, extra, batch.actions)
        return Targets(advantages, advantages + values, values, old)


class Targets(NamedTuple):
    """Of every row, (K, N)."""

    advantages: Tensor
    returns: Tensor
    values: Tensor
    log_prob: Tensor

    def of(self, candidates: slice) -> Targets:
        """Of some candidates."""
        return Targets(*(x[candidates] for x in self))


def few(parameters: Tensor, n_rows: int) -> list[slice]:
    """Candidates that go through so many rows together; on a GPU all of them do."""
    n = len(parameters)
    size = n if parameters.is_cuda else max(1, _CACHED // n_rows)
    return [slice(k, k + size) for k in range(0, n, size)]


class _Work:
    """Parameters in place, and their gradient."""

    def __init__(self, learner: ActorCritic, flat: Tensor, slope: Tensor) -> None:
        self.learner, self.slope = learner, slope
        n, d = learner.actor.n_parameters, learner.n_policy
        self.extra, self.extra_slope = flat[:, n:d], slope[:, n:d]
        self.actor, self.actor_slope = (learner.actor.views(x[:, :n]) for x in (flat, slope))
        self.critic, self.critic_slope = (learner.critic.views(x[:, d:]) for x in (flat, slope))

    def gradient(self, inputs: Tensor, actions: Tensor, part: Targets, settings: Update) -> Tensor:
        """Of the loss on some rows, into `slope`; returns the divergence from the old policy."""
        divergence = self._actor_gradient(inputs, actions, part, settings)
        self._critic_gradient(inputs, part, settings)
        return divergence

    def _actor_gradient(
        self, inputs: Tensor, actions: Tensor, part: Targets, settings: Update
    ) -> Tensor:
        learner = self.learner
        values = learner.actor.forward(self.actor, inputs)
        n = values[-1].shape[1]
        advantages = part.advantages
        if settings.normalize_advantage and n > 1:
            mean = advantages.mean(dim=1, keepdim=True)
            advantages = (advantages - mean) / (advantages.std(dim=1, keepdim=True) + _TINY)
        weight = advantages / -n
        divergence = weight[:, 0]
        if settings.clip_range is not None:
            change = learner.head.log_prob(values[-1], self.extra, actions) - part.log_prob
            ratio = change.exp()
            divergence = (ratio - 1 - change).mean(dim=1)
            # The smaller of the two surrogates has no slope where the ratio is clipped.
            beyond = torch.where(
                advantages > 0, ratio > 1 + settings.clip_range, ratio < 1 - settings.clip_range
            )
            weight = weight * ratio.masked_fill(beyond, 0.0)
        back, own = learner.head.backward(
            values[-1], self.extra, actions, weight, -settings.ent_coef
        )
        learner.actor.backward(self.actor, values, back, self.actor_slope)
        self.extra_slope.copy_(own)
        return divergence

    def _critic_gradient(self, inputs: Tensor, part: Targets, settings: Update) -> None:
        critic = self.learner.critic
        values = critic.forward(self.critic, inputs)
        guess = values[-1][:, :, 0]
        off = guess - part.returns
        limit = settings.clip_range_vf
        if limit is not None:
            change = guess - part.values
            inside = change.abs() <= limit
            off = (part.values + change.clamp(-limit, limit) - part.returns) * inside
        back = off.mul(2 * settings.vf_coef / guess.shape[1])[:, :, None]
        critic.backward(self.critic, values, back, self.critic_slope)


Part = tuple[Tensor, Tensor, Targets]
"""Inputs, actions and targets of some rows."""


def some_rows(batch: Batch, targets: Targets, rows: Tensor | None) -> Part:
    """Rows are (B,), the same for all candidates, or (K, B), or all."""
    if rows is None:
        return batch.inputs, batch.actions, targets
    return batch.inputs[rows], batch.actions[rows], taken(targets, rows)


def taken(targets: Targets, rows: Tensor) -> Targets:
    """Of some rows, (B,) or (K, B)."""
    return Targets(*(x[:, rows] if rows.ndim == 1 else x.gather(1, rows) for x in targets))


def minibatches(
    batch: Batch,
    targets: Targets,
    n_epochs: int,
    size: int | None,
    rng: Sequence[np.random.Generator],
) -> Iterator[Part]:
    """What each step is trained on, epoch by epoch."""
    if size is None:
        yield from [some_rows(batch, targets, None)] * n_epochs
        return
    # All drawn before the first step: those that stop early leave the generators as others do.
    for rows in [shuffled(batch, rng, targets.values) for _ in range(n_epochs)]:
        parts = (torch.split(x, size, dim=1) for x in taken(targets, rows))
        for some, *columns in zip(torch.split(rows, size, dim=-1), *parts, strict=True):
            yield batch.inputs[some], batch.actions[some], Targets(*columns)


def shuffled(batch: Batch, rng: Sequence[np.random.Generator], like: Tensor) -> Tensor:
    """All rows in a random order: (N,) if it serves all candidates, else (K, N)."""
    orders = np.stack([generator.permutation(len(batch)) for generator in rng])
    rows = torch.as_tensor(orders, device=like.device)
    return rows[0] if len(rng) == 1 else rows.repeat(len(like) // len(rng), 1)
