"""Jacobians of the discounted feature expectations, from a stage's own episodes.

    Psi = E[ sum_h score[h] (x) sum_{k >= h} gamma^k phi[k] ]       (G(PO)MDP)
    Psi = E[ (sum_h score[h]) (x) (sum_k gamma^k phi[k]) ]          (REINFORCE)

With the sums in this order the (d, q) Jacobian is a vector-Jacobian product of the summed
log-likelihood: discounted features to go, minus a baseline, are the cotangents. Only what the
component-wise baseline of the paper's experiments takes off needs per-row scores.

Everything is a sum over episodes and is streamed in blocks of bounded memory. A terminated episode
is absorbing (its score stays, its features are zero); a truncated one is just shorter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from logel.data.observations import as_numbers, width
from logel.data.stage import Stage
from logel.errors import Choice, OptionError, check_gamma
from logel.policies.base import Policy
from logel.types import Array, Float

# Blocks of this size stay in cache, and their memory is reused instead of being mapped anew.
_ROWS_AT_ONCE = 2**14
_SCORES_MEMORY = 16 * 2**20
# Bytes of working memory, beside a stage, an array of the size of its features, and the result.
_MEMORY = 256 * 2**20


class Estimator(Choice):
    """Which of the two classic estimators."""

    REINFORCE = "reinforce"
    GPOMDP = "gpomdp"


class Baseline(Choice):
    """What is subtracted from the features to go; all but `COMPONENT` leave the mean unchanged.

    NONE: nothing.
    TIME: the mean over the *other* episodes at the same time (leave-one-out, hence unbiased).
    COMPONENT: one per time, parameter and feature, minimising each entry's variance in-sample,
        as in the paper's experiments; biased on small batches, where it removes signal.
    CRITIC: a regression on the state, fitted on the *other* half of the episodes.
    """

    NONE = "none"
    TIME = "time"
    COMPONENT = "component"
    CRITIC = "critic"


@dataclass(frozen=True, eq=False)
class StageJacobian:
    """One stage's Jacobian.

    Attributes:
        mean: Shape (d, q).
        groups: Estimates from disjoint groups of episodes, shape (g, d, q); their weighted mean
            is `mean`, their spread its sampling noise.
        group_weights: Share of the episodes in each group, shape (g,).
        score_sums: Summed score of each group, shape (g, d): what one group of episodes does to
            cloned parameters.
    """

    mean: Float
    groups: Float
    group_weights: Float
    score_sums: Float

    def covariance(self) -> Float:
        """Estimated E[(error)^T (error)] of the mean, shape (q, q), summed over parameters."""
        g = len(self.groups)
        if g < 2:
            return np.full((self.mean.shape[1],) * 2, np.nan)
        errors = self.groups - self.mean
        weights = self.group_weights**2 * g / (g - 1)
        return np.einsum("g,gdi,gdj->ij", weights, errors, errors)


def stage_jacobian(
    policy: Policy,
    parameters: npt.ArrayLike,
    stage: Stage,
    *,
    gamma: float,
    estimator: Estimator | str = Estimator.GPOMDP,
    baseline: Baseline | str = Baseline.NONE,
    n_groups: int = 10,
) -> StageJacobian:
    """Estimate the Jacobian at `parameters` from a stage's episodes.

    Args:
        policy: The policy family.
        parameters: Flat parameters of the stage's policy, shape (d,).
        stage: Episodes with features.
        gamma: Discount factor, in [0, 1).
        estimator: REINFORCE or G(PO)MDP.
        baseline: See `Baseline`.
        n_groups: Groups of episodes kept apart for uncertainty (fewer if there are fewer episodes).
    """
    estimator, baseline = Estimator(estimator), Baseline(baseline)
    check_gamma(gamma)
    if stage.features is None:
        raise OptionError("the stage has no features: compute them first (Stage.with_features)")
    if n_groups < 1:
        raise OptionError(f"n_groups must be at least 1, but is {n_groups}")
    group = np.arange(stage.n_episodes) * min(n_groups, stage.n_episodes) // stage.n_episodes
    policy.check(stage)
    theta = policy.tensor(parameters)
    if theta.shape != (policy.n_parameters,):
        raise OptionError(f"the policy has {policy.n_parameters} parameters, not {theta.shape}")
    cotangents = _cotangents(stage, gamma, estimator, baseline)
    sums, scores = _grouped_sums(policy, theta, stage, group, cotangents)
    if baseline is Baseline.COMPONENT:
        sums -= _component_sums(policy, theta, stage, group, gamma, estimator)
    counts = np.bincount(group).astype(float)
    mean = sums.sum(axis=0) / stage.n_episodes
    sums /= counts[:, None, None]
    return StageJacobian(
        mean=mean,
        groups=sums,
        group_weights=counts / stage.n_episodes,
        score_sums=scores,
    )


def features_to_go(stage: Stage, gamma: float, *, from_start: bool = True) -> Float:
    """Discounted features from each row to the end of its episode, shape (N, q).

    Discounted from the episode's start (gamma^k phi[k] summed over k >= h), or from the row
    itself when `from_start` is false.
    """
    assert stage.features is not None
    result = np.empty(stage.features.shape)
    edges = np.concatenate([stage.starts, [stage.n_steps]])
    first = np.unique(np.searchsorted(stage.starts, np.arange(0, stage.n_steps, _ROWS_AT_ONCE)))
    for a, b in pairwise(np.unique([*first, stage.n_episodes])):
        rows, lengths = slice(edges[a], edges[b]), stage.lengths[a:b]
        to_go = discounted_to_go(stage.features[rows], lengths, gamma)
        times = stage.times[rows]
        result[rows] = (gamma**times)[:, None] * to_go if from_start else to_go
    return result


def following_observations(stage: Stage) -> tuple[Array, Array]:
    """The state after each row, and whether it is known (termination counts as known)."""
    following = np.roll(stage.observations, -1, axis=0)
    ends = stage.starts + stage.lengths - 1
    known = np.ones(stage.n_steps, dtype=bool)
    if stage.last_observations is None:
        known[ends] = stage.terminated
        following[ends] = stage.observations[ends]
    else:
        following[ends] = stage.last_observations
    return following, known


def discounted_to_go(rows: Float, lengths: npt.NDArray[np.int64], discount: float) -> Float:
    """Sum of the discounted rows from each row to the end of its episode, same shape as rows."""
    to_go = rows.astype(float)
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    remaining = np.repeat(lengths, lengths) - (np.arange(len(rows)) - starts)
    # Doubling: after k passes a row holds its next 2^k terms. In differences of running sums
    # the rounding errors of early rows would swamp late ones, where gamma^h is tiny.
    reach = 1
    while reach < lengths.max():
        weight = np.where(remaining[:-reach] > reach, discount**reach, 0.0)
        to_go[:-reach] += weight[:, None] * to_go[reach:]
        reach *= 2
    return to_go


def _cotangents(stage: Stage, gamma: float, estimator: Estimator, baseline: Baseline) -> Float:
    """Features to go minus the baseline, one row per step, shape (N, q).

    The component-wise baseline differs between parameters: `_component_sums` sees to it.
    """
    to_go = features_to_go(stage, gamma)
    if estimator is Estimator.REINFORCE:
        to_go = np.repeat(to_go[stage.starts], stage.lengths, axis=0)
    if baseline is Baseline.TIME:
        return _leave_one_out(to_go, stage, estimator)
    if baseline is Baseline.CRITIC:
        return to_go - _critic(stage, to_go, gamma, estimator)
    return to_go


def _leave_one_out(to_go: Float, stage: Stage, estimator: Estimator) -> Float:
    """Subtract the mean over the other episodes that are still running at the same time."""
    times, rows = stage.times, np.arange(stage.n_steps)
    if estimator is Estimator.REINFORCE:
        times, rows = np.zeros_like(times), stage.starts
    n_times = int(times.max()) + 1
    alive = np.bincount(times[rows], minlength=n_times).astype(float)
    sums = np.stack(
        [np.bincount(times[rows], weights=c, minlength=n_times) for c in to_go[rows].T], axis=1
    )
    others = np.maximum(alive - 1, 1)[times][:, None]
    mean = np.where(alive[times][:, None] > 1, (sums[times] - to_go) / others, 0.0)
    return to_go - mean


def _critic(stage: Stage, to_go: Float, gamma: float, estimator: Estimator) -> Float:
    """Predict the cotangents from the state by ridge regression, two-fold over episodes.

    G(PO)MDP's prediction depends on state and time; REINFORCE's may only use the first state,
    since later ones are consequences of earlier actions of the same row's episode.
    """
    basis = _state_basis(stage)
    scale = (gamma**stage.times)[:, None]
    if estimator is Estimator.REINFORCE:
        basis = np.repeat(basis[stage.starts], stage.lengths, axis=0)
        scale = np.ones_like(scale)
    fold = np.repeat(np.arange(stage.n_episodes) % 2, stage.lengths)
    predicted = np.zeros_like(to_go)
    for held_out in (0, 1):
        fit, use = fold != held_out, fold == held_out
        if not fit.any():
            continue
        # Regress in units of the row's own discount, so that late rows count as much as early ones.
        x = basis[fit]
        # A thousandth of the rows per function of the basis: invertible, hardly shrunk.
        gram = x.T @ x + 1e-3 * len(x) / x.shape[1] * np.eye(x.shape[1])
        target = to_go[fit] / np.maximum(scale[fit], 1e-300)
        predicted[use] = scale[use] * (basis[use] @ np.linalg.solve(gram, x.T @ target))
    return predicted


def _state_basis(stage: Stage) -> Float:
    """State features for a linear critic, shape (N, b), from the observations alone.

    One indicator per state for discrete observations; standardised coordinates and their squares
    otherwise; with both, powers of the time.
    """
    time = stage.times / max(int(stage.times.max()), 1)
    powers = np.stack([np.ones_like(time), time, time**2, time**3], axis=1)
    if stage.signature.discrete_observations and width(stage.observations) == 1:
        states, index = np.unique(stage.observations.ravel(), return_inverse=True)
        indicators = np.eye(len(states))[index]
        return np.concatenate([indicators, time[:, None] * indicators, powers], axis=1)
    flat = as_numbers(stage.observations)
    spread = flat.std(axis=0)
    standard = np.clip((flat - flat.mean(axis=0)) / np.where(spread > 0, spread, 1.0), -5, 5)
    return np.concatenate([powers, standard, standard**2], axis=1)


def _blocks(stage: Stage, group: Array, rows_per_block: int) -> Iterator[tuple[int, slice]]:
    """Row ranges of one group each, cut at `rows_per_block`."""
    edges = np.concatenate([stage.starts, [stage.n_steps]])
    first = np.searchsorted(group, np.arange(group[-1] + 2))
    for g in range(group[-1] + 1):
        start, stop = int(edges[first[g]]), int(edges[first[g + 1]])
        for at in range(start, stop, rows_per_block):
            yield g, slice(at, min(at + rows_per_block, stop))


def _grouped_sums(
    policy: Policy, theta: Tensor, stage: Stage, group: Array, cotangents: Float
) -> tuple[Float, Float]:
    """Per-group sums of score (x) cotangent, (g, d, q), and of the score alone, (g, d)."""
    q = cotangents.shape[1]
    total = torch.zeros(
        int(group[-1]) + 1, policy.n_parameters, q + 1, dtype=theta.dtype, device=policy.device
    )
    rows = max(256, _MEMORY // (8 * (q + 1) * policy.floats_per_step))
    for g, block in _blocks(stage, group, rows):
        ones = np.ones((block.stop - block.start, 1))
        total[g] += policy.vjp(
            theta,
            policy.prepare_observations(stage.observations[block]),
            policy.prepare_actions(stage.actions[block]),
            policy.tensor(np.concatenate([cotangents[block], ones], axis=1)),
        )
    result = total.cpu().numpy()
    return result[:, :, :q], result[:, :, q]


def _component_sums(
    policy: Policy, theta: Tensor, stage: Stage, group: Array, gamma: float, estimator: Estimator
) -> Float:
    """Per-group sums of what the component-wise baseline takes off, (g, d, q).

    With C[n, h] the score cumulated up to time h and D[n, h] the discounted features there, the
    baseline of time h is b = sum_n C^2 D / sum_n C^2, entry by entry, and the estimate
    sum_h sum_n C (D - b). The part without b is a vector-Jacobian product like the others; this
    is sum_h b sum_n C. Time is the outer loop: a running C per episode is all that is carried.
    """
    assert stage.features is not None
    n_groups, q = int(group[-1]) + 1, stage.features.shape[1]
    total = theta.new_zeros(n_groups, q, policy.n_parameters)
    cumulated = theta.new_zeros(stage.n_episodes, policy.n_parameters)
    members = policy.tensor(group == np.arange(n_groups)[:, None])
    for times, rows, scores in _scores_by_time(policy, theta, stage):
        for h in times:
            here = stage.lengths > h
            alive = torch.tensor(np.flatnonzero(here), device=policy.device)
            cumulated.index_add_(0, alive, scores[rows[h - times.start]])
            if estimator is Estimator.REINFORCE:
                continue
            discounted = np.zeros((stage.n_episodes, q))
            discounted[here] = gamma**h * stage.features[stage.starts[here] + h]
            # Truncated episodes leave the sums at their end; terminated ones stay, with D = 0.
            _add_component_baseline(
                total, cumulated, members, policy.tensor(discounted), here | stage.terminated
            )
    if estimator is Estimator.REINFORCE:
        returns = policy.tensor(features_to_go(stage, gamma)[stage.starts])
        everyone = np.ones(stage.n_episodes, dtype=bool)
        _add_component_baseline(total, cumulated, members, returns, everyone)
    return total.transpose(1, 2).cpu().numpy()


def _add_component_baseline(
    total: Tensor, cumulated: Tensor, members: Tensor, discounted: Tensor, present: Array
) -> None:
    """Add one time's b sum_n C of every group to `total`, (g, q, d).

    Parameters are the last axis here, so that every product runs along contiguous memory.
    """
    weight = torch.tensor(present, device=cumulated.device).to(cumulated.dtype)
    columns = torch.cat([discounted.T * weight, weight[None]])
    sums = columns @ cumulated**2
    baseline = sums[:-1] / torch.where(sums[-1] > 0, sums[-1], 1.0)
    total.addcmul_(((members * weight) @ cumulated)[:, None, :], baseline)


def _scores_by_time(
    policy: Policy, theta: Tensor, stage: Stage
) -> Iterator[tuple[range, list[slice], Tensor]]:
    """Scores of all episodes for consecutive times, several times at once if memory allows.

    Yields the times, for each the rows of `scores` of the episodes still running, and the scores.
    """
    longest = int(stage.lengths.max())
    at_once = max(1, _SCORES_MEMORY // (8 * policy.n_parameters * stage.n_episodes))
    for start in range(0, longest, at_once):
        times = range(start, min(start + at_once, longest))
        picked = [stage.starts[stage.lengths > h] + h for h in times]
        sizes = np.cumsum([0, *(len(p) for p in picked)])
        index = np.concatenate(picked)
        scores = policy.scores(
            theta,
            policy.prepare_observations(stage.observations[index]),
            policy.prepare_actions(stage.actions[index]),
        )
        yield times, [slice(a, b) for a, b in pairwise(sizes)], scores
