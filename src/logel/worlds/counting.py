"""Transitions and features of a tabular world, counted over all stages.

The dynamics do not change while the learner learns, so every stage's episodes tell about them; only
the policy is a stage's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from logel.data.stage import Stage
from logel.errors import HistoryError, PolicyError
from logel.policies.softmax import TabularSoftmax
from logel.types import Flags, Float
from logel.worlds.own_episodes import features_to_go, following_observations
from logel.worlds.table import TabularWorld

# Pseudo-counts tried for what a state leads to under any action: hardly any to far too many.
_CONCENTRATIONS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


@dataclass(frozen=True, eq=False)
class KnownRows:
    """What is known of a world before anything is counted."""

    outcomes: Float  # P(s' | s, a), termination last, shape (S, A, S + 1)
    known: Flags  # of which pairs, shape (S, A)


def pool_world(
    stages: Iterable[Stage],
    policy: TabularSoftmax,
    *,
    gamma: float,
    known: KnownRows | None = None,
) -> TabularWorld:
    """Estimate the world from the episodes (with features) of all stages.

    A pair seen n times gets its own frequencies with weight n / (n + c) and, for the rest, where
    its state leads under any action; c maximises the evidence. Features of a pair are shrunk in
    the same way to the mean feature of the states it leads to. What is known is not counted.
    """
    s, a = policy.n_states, policy.n_actions
    counts: list[Float] = []
    sums: list[Float] = []
    # Column S of the outcomes stands for termination.
    outcomes = np.zeros((s, a, s + 1))
    paid: Float | None = None
    arrived: Float | None = None
    initial = np.zeros(s)
    longest = 1
    for stage in stages:
        policy.check(stage)
        if stage.features is None:
            raise HistoryError("the stage has no features")
        q = stage.features.shape[1]
        paid = np.zeros((s, a, q)) if paid is None else paid
        arrived = np.zeros((s + 1, q)) if arrived is None else arrived
        pair = stage.observations * a + stage.actions
        counts.append(np.bincount(pair, minlength=s * a).reshape(s, a).astype(float))
        _scatter(paid.reshape(s * a, q), pair, stage.features)
        rows, following = successors(stage, n_states=s)
        flat = pair[rows] * (s + 1) + following
        outcomes += np.bincount(flat, minlength=outcomes.size).reshape(outcomes.shape)
        _scatter(arrived, following, stage.features[rows])
        initial += np.bincount(stage.observations[stage.starts], minlength=s)
        sums.append(_episode_sums(stage, pair, gamma, s, a))
        longest = max(longest, _most_choices(stage, policy))
    if paid is None or arrived is None:
        raise HistoryError("a world cannot be pooled from no stage at all")
    visits = np.stack(counts).sum(axis=0)
    transitions, features = _smoothed(outcomes, visits, paid, arrived, known)
    return TabularWorld(
        transitions=transitions,
        features=features,
        initial=initial / initial.sum(),
        gamma=gamma,
        horizon=min(longest, _effective_horizon(gamma)),
        counts=np.stack(counts),
        episode_sums=tuple(sums),
        untried=None if known is None else known.known & (visits == 0),
    )


def _most_choices(stage: Stage, policy: TabularSoftmax) -> int:
    """Times of the longest episode at which more than one action was legal."""
    legal = policy.legal_actions(stage.observations)
    if legal is None:
        return int(stage.lengths.max())
    return int(np.add.reduceat(legal.sum(axis=1) > 1, stage.starts, dtype=np.int64).max())


def _effective_horizon(gamma: float) -> int:
    """Times after which a millionth of the discounted sum is left."""
    return 1 if gamma == 0 else max(1, int(np.ceil(np.log(1e-6) / np.log(gamma))))


def _scatter(target: Float, index: npt.NDArray[np.int64], rows: Float) -> None:
    for column, values in enumerate(rows.T):
        target[:, column] += np.bincount(index, weights=values, minlength=len(target))


def successors(
    stage: Stage, *, n_states: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows whose outcome is known, and the outcome: a state, or S for termination."""
    following, known = following_observations(stage)
    ends = stage.starts + stage.lengths - 1
    following[ends[stage.terminated]] = n_states
    bad = known[ends] & ~stage.terminated & ((following[ends] < 0) | (following[ends] >= n_states))
    if bad.any():
        # Policies only check the states they act in.
        episode = int(np.argmax(bad))
        raise PolicyError(
            f"episode {episode} ends in state {following[ends[episode]]}, outside "
            f"0..{n_states - 1}: give the policy more states, or mark the episode as terminated"
        )
    rows = np.flatnonzero(known)
    return rows, following[rows]


def _episode_sums(
    stage: Stage, pair: npt.NDArray[np.int64], gamma: float, n_states: int, n_actions: int
) -> Float:
    to_go = features_to_go(stage, gamma)
    alive = np.bincount(stage.times)[stage.times][:, None]
    mean = np.stack([np.bincount(stage.times, weights=c)[stage.times] for c in to_go.T], axis=1)
    centred = to_go - mean / alive
    episode = np.repeat(np.arange(stage.n_episodes), stage.lengths)
    size = n_states * n_actions
    result = np.zeros((stage.n_episodes * size, to_go.shape[1]))
    _scatter(result, episode * size + pair, centred)
    return result.reshape(stage.n_episodes, n_states, n_actions, -1)


def _smoothed(
    outcomes: Float, visits: Float, paid: Float, arrived: Float, known: KnownRows | None
) -> tuple[Float, Float]:
    """Transitions (S, A, S) and features (S, A, q), shrunk where little was seen."""
    s = outcomes.shape[0]
    seen = outcomes.sum(axis=2)
    fallback = outcomes.sum(axis=1)
    # A state never left is taken to keep the agent; a trace of all else keeps the evidence finite.
    fallback[:, :s] += 1e-3 * np.eye(s)
    fallback /= fallback.sum(axis=1, keepdims=True)
    fallback = 0.999 * fallback + 0.001 / (s + 1)

    # Rows that are known need no shrinking, and say nothing of how much the others do; what was
    # never seen adds nothing to the evidence either.
    asked = np.ones(seen.shape, dtype=bool) if known is None else ~known.known
    happened = np.nonzero(outcomes * asked[:, :, None])
    expected, times, often = fallback[happened[0], happened[2]], outcomes[happened], seen[asked]

    def evidence(c: float) -> float:
        gain = (gammaln(c * expected + times) - gammaln(c * expected)).sum()
        return float(gain + (gammaln(c) - gammaln(c + often)).sum())

    c = max(_CONCENTRATIONS, key=evidence)
    if outcomes[:, :, s].sum() == 0:
        # No episode ever terminated: leave no probability to it.
        fallback[:, s] = 0.0
        fallback /= fallback.sum(axis=1, keepdims=True)
    shares = (outcomes + c * fallback[:, None, :]) / (seen + c)[:, :, None]
    if known is not None:
        shares = np.where(known.known[:, :, None], known.outcomes, shares)
    arrivals = outcomes.sum(axis=(0, 1))
    overall = arrived.sum(axis=0) / max(arrivals.sum(), 1.0)
    on_arrival = (arrived + 1e-3 * overall) / (arrivals + 1e-3)[:, None]
    transitions = shares[:, :, :s]
    features = (paid + c * (shares @ on_arrival)) / (visits + c)[:, :, None]
    return transitions, features
