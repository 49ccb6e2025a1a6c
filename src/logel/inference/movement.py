"""Stages of a learner as movements in function space: the standard form that `mirror` solves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from logel.rules.functions import StageSums
from logel.types import Float
from logel.worlds.critic import CriticSums, fit_critic, pooled
from logel.worlds.own_episodes import StageJacobian


@dataclass(frozen=True, eq=False)
class Movement:
    """The steps in the basis, in coordinates where their noise is alike in all directions.

    Attributes:
        delta: Projected log-ratios of consecutive policies, shape (m, k).
        design: Projected feature advantages, shape (m, k, q).
        delta_without: The same without each group of episodes in turn, shape (g, m, k).
        design_without: Shape (g, m, k, q).
        rank: Number of coordinates, of all steps, in which anything was seen.
        variance_left: Share of the advantages' variance that the critic leaves.
    """

    delta: Float
    design: Float
    delta_without: Float
    design_without: Float
    rank: int
    variance_left: float

    @property
    def n_groups(self) -> int:
        """Number g of groups."""
        return len(self.delta_without)


def project(
    sums: Sequence[StageSums], *, pool: float, prior_strength: float | None = None
) -> Movement:
    """Bring stages to the standard form: movement = rate * design @ weights + noise.

    Args:
        sums: Of all stages in order.
        pool: See `MirrorMethod`.
        prior_strength: Of the prior that cloned policies were fitted with; None when the policies
            are known and carry no noise.
    """
    n_groups = min(len(s.counts) for s in sums)
    sums = [_regrouped(s, n_groups) for s in sums]
    critics = pooled([s.critic_sums for s in sums], pool)
    everyone = np.arange(n_groups)
    kept = [everyone, *(np.delete(everyone, g) for g in everyone if n_groups > 1)]
    deltas, designs, spreads, rank = [], [], [], 0
    for t in range(len(sums) - 1):
        root = _noise_root(sums[t], sums[t + 1], prior_strength)
        rank += len(root)
        width = root.shape[1] - len(root)
        root = np.concatenate([root, np.zeros((width, root.shape[1]))])
        moved = [_movement(sums[t], sums[t + 1], kept_, prior_strength) for kept_ in kept]
        design = [_design(sums[t], critics[t], kept_) for kept_ in kept]
        plain = [sums[t].plain[g].sum(axis=0) / sums[t].counts[g].sum() for g in kept]
        deltas.append(np.array(moved) @ root.T)
        designs.append(root @ np.array(design))
        spreads.append(_variances(designs[-1][1:]) / _variances((root @ np.array(plain))[1:]))
    delta, full_design = np.stack(deltas, axis=1), np.stack(designs, axis=1)
    left = np.array(spreads)
    return Movement(
        delta=delta[0],
        design=full_design[0],
        delta_without=delta[1:],
        design_without=full_design[1:],
        rank=rank,
        variance_left=float(np.nanmedian(left)) if np.isfinite(left).any() else float("nan"),
    )


def _regrouped(sums: StageSums, n_groups: int) -> StageSums:
    if len(sums.counts) == n_groups:
        return sums
    first = np.arange(n_groups) * len(sums.counts) // n_groups
    merged = {
        name: np.add.reduceat(getattr(sums, name), first)
        for name in ("counts", "scores", "movement", "own", "critic", "plain")
    }
    critic = CriticSums(
        np.add.reduceat(sums.critic_sums.system, first),
        np.add.reduceat(sums.critic_sums.target, first),
        sums.critic_sums.n_rows,
    )
    return replace(sums, **merged, critic_sums=critic)


def _noise_root(now: StageSums, after: StageSums, prior_strength: float | None) -> Float:
    """Takes projections to coordinates in which their noise is alike, shape (rank, k).

    Known policies: the advantages' noise is about the Gram matrix. Cloned ones add the errors of
    two fits: the same again, and that of the next stage, which may have seen other states.
    """
    noise = now.gram
    if prior_strength is not None:
        back = _ridged(after, prior_strength)
        noise = (now.gram + now.gram @ np.linalg.solve(back, now.gram)) / 2
    values, vectors = np.linalg.eigh((noise + noise.T) / 2)
    seen = values > 1e-9 * values.max()
    return np.asarray((vectors[:, seen] / np.sqrt(values[seen])).T)


def _ridged(sums: StageSums, strength: float) -> Float:
    """Information about the log-policy per row, with a prior's share."""
    floor = 1e-9 * float(np.trace(sums.gram)) / len(sums.gram)
    ridge = max(strength / float(sums.counts.sum()), floor)
    return sums.gram + ridge * np.eye(len(sums.gram))


def _movement(
    now: StageSums,
    after: StageSums,
    kept: npt.NDArray[np.int64],
    prior_strength: float | None,
) -> Float:
    """Projected log-ratio from the kept groups, shape (k,).

    Cloned policies are moved to the maximum of the kept rows' likelihood, in the basis and to first
    order: their log-probability shifts by the inverse information times the mean score. That makes
    up for clones that stopped early, and for the rows left out.
    """
    moved = now.movement[kept].sum(axis=0) / now.counts[kept].sum()
    if prior_strength is None:
        return np.asarray(moved)
    for sums, sign in ((now, -1.0), (after, 1.0)):
        mean = sums.scores[kept].sum(axis=0) / sums.counts[kept].sum()
        moved = moved + sign * now.gram @ np.linalg.solve(_ridged(sums, prior_strength), mean)
    return np.asarray(moved)


def _design(now: StageSums, critic: CriticSums, kept: npt.NDArray[np.int64]) -> Float:
    """Projected feature advantages from the kept groups, shape (k, q).

    The critic of every other group is fitted on the rest: an advantage never meets a critic that
    has seen its own episode.
    """
    total = now.own[kept].sum(axis=0)
    for parity in (0, 1):
        served = kept[kept % 2 == parity]
        fitted = kept[kept % 2 != parity]
        if len(served) == 0:
            continue
        theta = fit_critic(critic, fitted if len(fitted) else served)
        total = total + now.critic[served].sum(axis=0) @ theta
    return np.asarray(total / now.counts[kept].sum())


def _variances(replicates: Float) -> Float:
    """Jackknife variance of each feature's column, summed over the basis, shape (q,)."""
    if len(replicates) < 2:
        return np.full(replicates.shape[-1], np.nan)
    spread = replicates - replicates.mean(axis=0)
    total = (spread**2).sum(axis=(0, 1))
    return np.where(total > 0, total, np.nan)


def as_jacobians(movement: Movement) -> list[StageJacobian]:
    """The design with its spread, in the form the gauge analysis reads."""
    g, (m, k, _) = movement.n_groups, movement.design.shape
    result = []
    for t in range(m):
        mean = movement.design[t]
        # Pseudo-values: independent estimates with the jackknife's spread.
        groups = g * mean - (g - 1) * movement.design_without[:, t] if g else mean[None]
        n = len(groups)
        result.append(StageJacobian(mean, groups, np.full(n, 1 / n), np.zeros((n, k))))
    return result
