"""Movements of policies as functions, whatever their parameters.

A learner that follows the natural gradient, or mirror descent, moves its policy by

    log pi[t+1](a | s) - log pi[t](a | s) = rate * A_phi(s, a) @ weights    (+ a function of s),

A_phi being the advantages of the features. Both sides are projected on a basis of k functions
B(s, a) = (state feature) x (action score) with mean zero in every state, where the score belongs to
what a policy puts out, not to its parameters:

* softmax: indicator of an action minus its probability, all actions but the last;
* Gaussian: z = (a - mean) / deviation and, apart and for all states together, z^2 - 1.

Under those scores the log-ratio of two policies of a family has coefficients in closed form, state
by state; no sampled action enters. The advantages are averaged over the actions taken. Everything
is a sum over rows: k by q, k by b and k by k numbers, whatever the number d of parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import scipy.linalg
import torch

from logel.data.stage import Stage
from logel.errors import Choice, OptionError
from logel.policies.base import Policy, ScoreRows
from logel.types import Array, Float
from logel.worlds.critic import CriticSums, StateScale, critic_rows
from logel.worlds.own_episodes import discounted_to_go

LARGEST_WIDTH = 1000
_ROWS_AT_ONCE = 2**12


class StateFeatures(Choice):
    """The state features of the basis.

    AUTO: the family's own if it is log-linear, else INDICATORS of few discrete states, else LINEAR.
    FAMILY: those in which the family is linear: the basis then is its score.
    INDICATORS: one for each discrete state.
    LINEAR: one, and the standardised observation.
    QUADRATIC: the squares as well.
    """

    AUTO = "auto"
    FAMILY = "family"
    INDICATORS = "indicators"
    LINEAR = "linear"
    QUADRATIC = "quadratic"


@dataclass(frozen=True, eq=False)
class Basis:
    """The functions B(s, a) of one policy family."""

    policy: Policy
    states: StateFeatures  # which state features (never AUTO)
    scale: StateScale  # of the observations of all stages: the same for every stage
    deviations: bool = False  # whether z^2 - 1 is part of a Gaussian family's basis

    @classmethod
    def choose(
        cls,
        policy: Policy,
        states: StateFeatures | str,
        scale: StateScale,
        *,
        deviations: bool = False,
    ) -> Basis:
        """Settle AUTO, and refuse families and widths that cannot be served."""
        states = StateFeatures(states)
        linear = policy.n_state_features is not None
        if states is StateFeatures.FAMILY and not linear:
            raise OptionError(
                f"{type(policy).__name__} is not linear in any state features: choose 'linear' or "
                "'quadratic'"
            )
        if states is StateFeatures.AUTO:
            states = StateFeatures.FAMILY if linear else _without_family(policy, scale)
        if states is StateFeatures.INDICATORS and scale.n_states is None:
            raise OptionError("indicators of states need few discrete states: choose 'linear'")
        basis = cls(policy, states, scale, deviations)
        if basis.width > LARGEST_WIDTH:
            raise OptionError(
                f"the basis has {basis.width} functions, more than {LARGEST_WIDTH}: choose "
                "state_features='linear' or a policy family with fewer state features"
            )
        return basis

    @property
    def width(self) -> int:
        """Number k of functions."""
        # Deviations, where a family has any, are one score per action dimension for all states.
        apart = self.deviations and not self.policy.discrete_actions
        return (self.n_state_features + apart) * self.policy.n_scores

    @property
    def n_state_features(self) -> int:
        """Number of state features."""
        if self.states is StateFeatures.FAMILY:
            return self.policy.n_state_features or 0
        if self.states is StateFeatures.INDICATORS:
            return self.scale.n_states or 0
        return 1 + len(self.scale.mean) * (2 if self.states is StateFeatures.QUADRATIC else 1)

    def state_features(self, observations: Array) -> Float:
        """Shape (N, f)."""
        if self.states is StateFeatures.FAMILY:
            return self.policy.state_features(observations)
        if self.states is StateFeatures.INDICATORS:
            return np.eye(self.n_state_features)[np.asarray(observations, dtype=int).ravel()]
        z = self.scale.coordinates(observations)
        squares = z**2 if self.states is StateFeatures.QUADRATIC else z[:, :0]
        return np.concatenate([np.ones((len(z), 1)), z, squares], axis=1)


def _without_family(policy: Policy, scale: StateScale) -> StateFeatures:
    """Indicators of the states where there are few, else linear ones."""
    few = scale.n_states is not None and scale.n_states * policy.n_scores <= LARGEST_WIDTH
    return StateFeatures.INDICATORS if few else StateFeatures.LINEAR


@dataclass(frozen=True, eq=False)
class BasisRows:
    """A block of rows in the basis."""

    values: Float  # B of the observed pairs, shape (n, k)
    gram: Float  # sum over the rows' states of E[B B^T | s], shape (k, k)
    movement: Float  # sum of E[B * log-ratio | s], shape (k,); zero without a following policy


def basis_rows(
    basis: Basis,
    parameters: Float,
    following: Float | None,
    observations: Array,
    actions: Array,
    row_weights: Float | None = None,
) -> BasisRows:
    """Evaluate the basis of the policy at `parameters`, and project the next policy's log-ratio.

    The rows count as often as `row_weights` says, once each when None.
    """
    policy = basis.policy
    f = basis.state_features(observations)
    weights = np.ones(len(f)) if row_weights is None else row_weights
    prepared = policy.prepare_observations(observations)
    with torch.no_grad():
        now, after = (
            None if theta is None else policy.outputs(policy.tensor(theta), prepared).cpu().numpy()
            for theta in (parameters, following)
        )
    assert now is not None
    scores, spread = policy.output_rows(now, policy.prepare_actions(actions).cpu().numpy(), after)
    rows = _products(f, weights, scores)
    if spread is None or not basis.deviations:
        return rows
    # z and z^2 - 1 do not correlate, so the two parts of the basis do not either.
    apart = _products(np.ones((len(f), 1)), weights, spread)
    return BasisRows(
        np.concatenate([rows.values, apart.values], axis=1),
        np.asarray(scipy.linalg.block_diag(rows.gram, apart.gram)),
        np.concatenate([rows.movement, apart.movement]),
    )


def _products(f: Float, weights: Float, scores: ScoreRows) -> BasisRows:
    """Every state feature times every score."""
    (n, width), k, weighted = f.shape, scores.values.shape[1], weights[:, None] * f
    values = (f[:, :, None] * scores.values[:, None, :]).reshape(n, -1)
    movement = (weighted.T @ scores.movement).reshape(-1)
    if scores.information.ndim == 1:
        gram = np.asarray(np.kron(weighted.T @ f, np.diag(scores.information)), dtype=float)
        return BasisRows(values, gram, movement)
    blocks = np.empty((width, k, width, k))
    for a in range(k):
        for b in range(a + 1):
            block = weighted.T @ (scores.information[:, a, b, None] * f)
            blocks[:, a, :, b] = block
            blocks[:, b, :, a] = block.T
    return BasisRows(values, blocks.reshape(len(movement), -1), movement)


@dataclass(frozen=True, eq=False)
class StageSums:
    """One stage in the basis: sums over the rows of each group of episodes."""

    counts: Float  # rows of each group, shape (g,)
    gram: Float  # of the whole stage, per row, shape (k, k)
    scores: Float  # sums of B, shape (g, k): what one group does to a cloned policy
    movement: Float  # projected log-ratio to the next stage, shape (g, k)
    own: Float  # sums of B times the advantages' own part, shape (g, k, q)
    critic: Float  # sums of B times their critic's part, shape (g, k, b)
    plain: Float  # sums of B times the discounted features to go, for comparison, shape (g, k, q)
    critic_sums: CriticSums  # what the stage says about its critic


def stage_sums(
    basis: Basis,
    stage: Stage,
    parameters: Float,
    following: Float | None,
    *,
    gamma: float,
    trace: float = 1.0,
    bootstrap: bool = True,
    n_groups: int = 20,
) -> StageSums:
    """Sum a stage's rows (with features) in blocks of bounded memory; see `StageSums`.

    Args:
        basis: The basis.
        stage: Episodes with features.
        parameters: Of the stage's policy, shape (d,).
        following: Of the next stage's policy, or None for the last.
        gamma: Discount factor.
        trace: The lambda of the generalised advantages, see `critic_rows`.
        bootstrap: See `critic_rows`.
        n_groups: Groups of episodes kept apart (fewer if there are fewer episodes).
    """
    assert stage.features is not None
    basis.policy.check(stage)
    n_groups = max(1, min(n_groups, stage.n_episodes))
    group = np.arange(stage.n_episodes) * n_groups // stage.n_episodes
    k, q = basis.width, stage.features.shape[1]
    times = None if bootstrap else stage.times

    def states_of(rows: slice) -> Float:
        return basis.scale.basis(stage.observations[rows], None if times is None else times[rows])

    b = states_of(slice(0, 1)).shape[1]
    shapes = {"scores": (k,), "movement": (k,), "own": (k, q), "critic": (k, b), "plain": (k, q)}
    sums = {name: np.zeros((n_groups, *shape)) for name, shape in shapes.items()}
    counts, gram = np.zeros(n_groups), np.zeros((k, k))
    system, target = np.zeros((n_groups, b, b)), np.zeros((n_groups, b, q))
    edges = np.concatenate([stage.starts, [stage.n_steps]])
    for first, stop in _episode_blocks(stage, group):
        g, rows = int(group[first]), slice(int(edges[first]), int(edges[stop]))
        states, last = states_of(rows), None
        if bootstrap and stage.last_observations is not None:
            last = basis.scale.basis(stage.last_observations[first:stop], None)
        ends = (stage.lengths[first:stop], stage.terminated[first:stop])
        phi = stage.features[rows].astype(float)
        y, z = critic_rows(phi, states, last, *ends, gamma=gamma, trace=trace, bootstrap=bootstrap)
        to_go = discounted_to_go(phi, ends[0], gamma)
        system[g] -= states.T @ z
        target[g] += states.T @ y
        counts[g] += len(phi)
        for at in range(0, len(phi), _ROWS_AT_ONCE):
            part = slice(at, min(at + _ROWS_AT_ONCE, len(phi)))
            here = slice(rows.start + part.start, rows.start + part.stop)
            found = basis_rows(
                basis, parameters, following, stage.observations[here], stage.actions[here]
            )
            gram += found.gram
            sums["movement"][g] += found.movement
            sums["scores"][g] += found.values.sum(axis=0)
            for name, factor in (("own", y), ("critic", z), ("plain", to_go)):
                sums[name][g] += found.values.T @ factor[part]
    return StageSums(
        **sums,
        counts=counts,
        gram=gram / stage.n_steps,
        critic_sums=CriticSums(system, target, stage.n_steps),
    )


def _episode_blocks(stage: Stage, group: Array) -> Iterator[tuple[int, int]]:
    """Ranges of whole episodes of one group each, of about `_ROWS_AT_ONCE` rows."""
    cut = np.flatnonzero(np.diff(group)) + 1
    for start, stop in pairwise([0, *cut.tolist(), stage.n_episodes]):
        at = start
        while at < stop:
            rows = np.cumsum(stage.lengths[at:stop])
            taken = max(1, int(np.searchsorted(rows, _ROWS_AT_ONCE, side="right")))
            yield at, at + taken
            at += taken


def regrouped(sums: StageSums, n_groups: int) -> StageSums:
    """The same with neighbouring groups of episodes merged into so many."""
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
