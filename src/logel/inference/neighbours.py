"""Jacobians that also use the episodes of neighbouring stages, by importance weighting.

Learners move little at a time, so a neighbour's episodes are almost as good as a stage's own once
every feature counts as often as the actions before it are likelier under the stage's policy:

    Psi = E_u[ sum_h score[h] (x) sum_{k >= h} ratio[0..k] gamma^k phi[k] ]

for episodes of stage u. Ratios are truncated, which bounds the variance at the price of some bias,
and a neighbour whose ratios leave too few effective episodes is not used at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from logel.data.stage import Stage
from logel.policies.base import Policy
from logel.types import Float, Progress
from logel.worlds.own_episodes import Baseline, StageJacobian, stage_jacobian

# A row counts at most this often.
LARGEST_RATIO = 5.0
# Share of a neighbour's episodes that must remain effective.
SMALLEST_SHARE = 0.3


def importance_ratios(
    policy: Policy, stage: Stage, target: Float, source: Float, *, largest: float = LARGEST_RATIO
) -> Float:
    """How much likelier each episode is under other parameters, up to each row, shape (N,).

    Args:
        policy: The family.
        stage: Episodes sampled at `source`.
        target: Parameters (d,) they are to stand for.
        source: Parameters (d,) they were sampled from.
        largest: Ratios are truncated here.
    """
    observations, actions = policy.prepare(stage)
    with torch.no_grad():
        logs = policy.log_prob(policy.tensor(target), observations, actions)
        logs = logs - policy.log_prob(policy.tensor(source), observations, actions)
    running = np.cumsum(logs.cpu().numpy())
    before = np.concatenate([[0.0], running])[stage.starts]
    total = running - np.repeat(before, stage.lengths)
    return np.exp(np.minimum(total, np.log(largest)))


def effective_share(ratios: Float, stage: Stage, gamma: float) -> float:
    """Share of the episodes that remains effective under such weights, rows discounted."""
    weight = gamma**stage.times
    squared = float(weight.sum() * (weight @ ratios**2))
    return float((weight @ ratios) ** 2 / squared) if squared > 0 else 0.0


def pooled_jacobians(
    stage_at: Callable[[int], Stage],
    policy: Policy,
    parameters: Float,
    own: Sequence[StageJacobian],
    *,
    reach: int,
    gamma: float,
    baseline: Baseline | str = Baseline.NONE,
    report: Progress | None = None,
) -> list[StageJacobian]:
    """Every stage's Jacobian from its own episodes and those of `reach` stages on either side.

    Estimates are averaged in proportion to their effective episodes. Groups of episodes keep their
    numbers across stages, so leaving group g out of every stage leaves it out here as well; the
    score sums stay those of the stage's own episodes, which alone make its clone.

    Args:
        stage_at: Fetches a stage with features.
        policy: The family.
        parameters: Of all stages, shape (m + 1, d).
        own: Jacobians from each stage's own episodes, in as many groups as are wanted.
        reach: Neighbours used on either side.
        gamma: Discount factor.
        baseline: As in `stage_jacobian`, without "component".
        report: Called with (what, done, total).
    """
    n_groups = min(len(jacobian.groups) for jacobian in own)
    parts: list[list[tuple[float, StageJacobian]]] = [[] for _ in own]
    for u in range(len(own)):
        stage = stage_at(u)
        parts[u].append((float(stage.n_episodes), own[u]))
        for t in range(max(u - reach, 0), min(u + reach, len(own) - 1) + 1):
            if t == u:
                continue
            ratios = importance_ratios(policy, stage, parameters[t], parameters[u])
            share = effective_share(ratios, stage, gamma)
            if share < SMALLEST_SHARE:
                continue
            estimate = stage_jacobian(
                policy,
                parameters[t],
                stage,
                gamma=gamma,
                baseline=baseline,
                n_groups=n_groups,
                ratios=ratios,
            )
            parts[t].append((share * stage.n_episodes, estimate))
        if report is not None:
            report("neighbours", u + 1, len(own))
    return [_average(mine, jacobian, n_groups) for mine, jacobian in zip(parts, own, strict=True)]


def _average(
    parts: Sequence[tuple[float, StageJacobian]], own: StageJacobian, n_groups: int
) -> StageJacobian:
    if len(parts) == 1:
        return own
    total = sum(weight for weight, _ in parts)
    shares = np.zeros(n_groups)
    sums = np.zeros((n_groups, *own.mean.shape))
    for weight, jacobian in parts:
        regrouped = jacobian.regrouped(n_groups)
        mine = weight / total * regrouped.group_weights
        shares += mine
        sums += mine[:, None, None] * regrouped.groups
    return StageJacobian(
        mean=sums.sum(axis=0),
        groups=sums / shares[:, None, None],
        group_weights=shares,
        score_sums=own.regrouped(n_groups).score_sums,
    )


def variance_reduction(estimate: StageJacobian, reference: StageJacobian) -> float:
    """How many times less noise an estimate of the same Jacobian has than a reference.

    Ratio of the traces of the covariances that the groups of episodes show.
    """
    return float(np.trace(reference.covariance()) / np.trace(estimate.covariance()))
