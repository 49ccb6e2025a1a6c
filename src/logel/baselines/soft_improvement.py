"""What soft improvement says of a step's transitions: the targets of neural LfL."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from logel.baselines.networks import blocks
from logel.data.stage import Stage
from logel.errors import HistoryError, PolicyError
from logel.policies.base import Policy
from logel.policies.gaussian import GaussianPolicy
from logel.types import Float


@dataclass(frozen=True, eq=False)
class StepRows:
    """The transitions of the stage a step starts from (or of several, in order), as tensors.

    Attributes:
        observations: Flat, shape (N, n).
        actions: As the reward's family takes them.
        following: Flat next observations, shape (N, n).
        going: 0 where the environment ended the episode, 1 elsewhere, shape (N,).
        log_prob: Log-density of the actions under the next stage's policy, shape (N,).
        next_divergence: KL(pi || pi') in the next observation, shape (N,).
    """

    observations: Tensor
    actions: Tensor
    following: Tensor
    going: Tensor
    log_prob: Tensor
    next_divergence: Tensor


def kl_divergence(policy: Policy, theta: Tensor, other: Tensor, observations: Tensor) -> Tensor:
    """KL(pi_theta || pi_other) in every observation, in closed form, shape (N,)."""
    before, after = policy.outputs(theta, observations), policy.outputs(other, observations)
    if isinstance(policy, GaussianPolicy):
        mean, log_std = before.chunk(2, dim=1)
        other_mean, other_log_std = after.chunk(2, dim=1)
        change = log_std - other_log_std
        moved = (mean - other_mean) * torch.exp(-other_log_std)
        return (0.5 * (torch.exp(2 * change) + moved**2 - 1) - change).sum(dim=1)
    logs, other_logs = torch.log_softmax(before, dim=1), torch.log_softmax(after, dim=1)
    return (logs.exp() * (logs - other_logs)).sum(dim=1)


def step_rows(
    stage: Stage, policy: Policy, theta: Float, other: Float, *, family: Policy, index: int = 0
) -> StepRows:
    """What a step's potential is fitted on: a stage's transitions as both policies see them."""
    try:
        policy.check(stage)
    except PolicyError as error:
        raise PolicyError(f"stage {index}: {error}") from None
    ends = stage.starts + stage.lengths - 1
    kept = np.ones(stage.n_steps, dtype=bool)
    if stage.last_observations is None:
        # An action that led to a state nobody saw says nothing; after an end nothing follows.
        kept[ends[~stage.terminated]] = False
        following = np.roll(stage.observations, -1, axis=0)
    else:
        following = stage.next_observations()
    if not kept.any():
        raise HistoryError(
            f"stage {index}: its episodes are too short: no action is followed by a state that was "
            "seen; record the episodes' last states, or longer episodes"
        )
    going = np.ones(stage.n_steps)
    going[ends[stage.terminated]] = 0.0
    rows, now, then = stage.actions[kept], policy.tensor(theta), policy.tensor(other)
    observations, following = stage.observations[kept], following[kept]
    log_probs, divergences = [], []
    with torch.no_grad():
        for block in blocks(len(rows)):
            seen = policy.prepare_observations(observations[block])
            reached = policy.prepare_observations(following[block])
            log_probs.append(policy.log_prob(then, seen, policy.prepare_actions(rows[block])))
            divergences.append(kl_divergence(policy, now, then, reached))
    return StepRows(
        observations=family.prepare_observations(observations),
        actions=family.prepare_actions(rows),
        following=family.prepare_observations(following),
        going=family.tensor(going[kept]),
        log_prob=torch.cat(log_probs),
        next_divergence=torch.cat(divergences),
    )


def step_targets(step: StepRows, *, gamma: float, temperature: float) -> Tensor:
    """Alpha log pi'(a|s) + alpha gamma KL(pi || pi')(s') of every row, shape (N,)."""
    return temperature * (step.log_prob + gamma * step.going * step.next_divergence)
