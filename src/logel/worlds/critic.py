"""Feature advantages with a critic of the features: successor features, linear in the state.

A critic V predicts the discounted features to come from a state, all q at once, as `x(s) @ theta`.
Generalised advantages of every row follow from one-step errors discounted by gamma * lambda,

    advantage[h] = sum_k (gamma lambda)^k (phi[h+k] + gamma V(s[h+k+1]) - V(s[h+k])),

which is linear in theta: advantage = own + critic @ theta. Its sums against anything are kept in
those two parts (`critic_rows`), group of episodes by group, so that the critic can be fitted after
one pass over the data, on other episodes than those it serves, pooled over stages, and again
without any one group.

The critic is LSTD(lambda): theta makes the advantages orthogonal to the critic's state features.
With lambda = 1 it only serves as a baseline (and beyond the end of what was seen): the advantages
are unbiased, whatever it says. A smaller lambda trades variance for the critic's bias.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import numpy.typing as npt

from logel.data.stage import Stage
from logel.types import Float
from logel.worlds.coordinates import Axes, Sketch, narrow, wide
from logel.worlds.own_episodes import discounted_to_go

# Rows' worth of belief that a state is worth what the others are: matters where few were seen.
_PSEUDO_ROWS = 2.0
# Rows per number of the critic that another stage may add at most: with many of its own, a stage
# needs no others, whose policies had other values.
_BORROWED_ROWS = 10.0
# Weight below which a stage lends nothing.
_LENDS = 1e-6
# Discrete states that each get a value of their own; coordinates up to which all products of two
# enter a quadratic, which then has 153 terms: beyond, only their squares do.
_STATES_AT_MOST, _MOST_CROSSED = 500, 16


def critic_rows(
    features: Float,
    states: Float,
    last_states: Float | None,
    lengths: npt.NDArray[np.int64],
    terminated: npt.NDArray[np.bool_],
    *,
    gamma: float,
    trace: float,
    bootstrap: bool,
) -> tuple[Float, Float]:
    """Advantages of consecutive episodes in two parts: own (N, q) + critic (N, b) @ theta.

    Args:
        features: Reward features, shape (N, q).
        states: Critic's features of the state of every row, shape (N, b).
        last_states: The same of the state each episode ended in, (n_episodes, b), or None.
        lengths: Rows of each episode.
        terminated: Whether its end is absorbing: nothing comes after.
        gamma: Discount factor.
        trace: The lambda of the generalised advantages.
        bootstrap: Whether the critic stands for what comes after the end of an episode that was
            cut off. Without a last state the last action then says nothing, and is left out.
    """
    ends = np.cumsum(lengths) - 1
    following = np.zeros_like(states)
    following[:-1] = states[1:]
    following[ends] = 0.0
    own = np.array(features, dtype=float)
    errors = -states
    if bootstrap and last_states is not None:
        following[ends[~terminated]] = last_states[~terminated]
    errors += gamma * following
    if bootstrap and last_states is None and gamma > 0:
        own[ends[~terminated]] = 0.0
        errors[ends[~terminated]] = 0.0
    discount = gamma * trace
    return discounted_to_go(own, lengths, discount), discounted_to_go(errors, lengths, discount)


@dataclass(frozen=True, eq=False)
class CriticSums:
    """What one stage says about its critic, group by group of episodes."""

    system: Float  # minus states x critic parts of the advantages, shape (g, b, b)
    target: Float  # states x their own parts, shape (g, b, q)
    n_rows: int


def pooled(stages: Iterable[CriticSums], pool: float) -> Iterator[CriticSums]:
    """Each stage's sums plus those of the others, weighted by pool ** (distance in stages).

    0 is each stage by itself; with 1 all count alike, however far. Large stages count for no more
    than ten rows per number to fit, so that pooling fades where a stage has enough of its own.
    Only stages that lend something are held at a time.
    """
    far = math.inf if pool >= 1 else math.log(_LENDS) / math.log(pool) if pool > 0 else 0
    reach = None if far == math.inf else int(far) + 1
    rest = iter(stages)
    held = deque(islice(rest, None if reach is None else reach + 1))
    at = 0
    while at < len(held):
        yield _lent_to(held, at, pool)
        held.extend(islice(rest, 1))
        if at == reach:
            held.popleft()
        else:
            at += 1


def _lent_to(stages: Sequence[CriticSums], t: int, pool: float) -> CriticSums:
    """One stage's sums, and what its neighbours lend it."""
    borrowed = _BORROWED_ROWS * stages[t].system.shape[1]
    lent = np.minimum(1.0, borrowed / np.array([stage.n_rows for stage in stages]))
    weights = lent * float(pool) ** np.abs(t - np.arange(len(stages)))
    weights[t] = 1.0
    # Stages so far away that they lend nothing would only cost time, or groups.
    used = [(weights[s], stages[s]) for s in np.flatnonzero(weights > _LENDS).tolist()]
    n_groups = min(len(other.system) for _, other in used)
    system = np.sum([w * _merge(other.system, n_groups) for w, other in used], axis=0)
    target = np.sum([w * _merge(other.target, n_groups) for w, other in used], axis=0)
    return CriticSums(system, target, stages[t].n_rows)


def fit_critic(sums: CriticSums, groups: npt.NDArray[np.int64]) -> Float:
    """The critic theta, (b, q), from the given groups of episodes."""
    system, target = sums.system[groups].sum(axis=0), sums.target[groups].sum(axis=0)
    # The first column is one, and free: values are far from zero where features are.
    penalty = np.full(len(system), _PSEUDO_ROWS)
    penalty[0] = 1e-9 * (1 + abs(float(np.trace(system))))
    return np.asarray(np.linalg.solve(system + np.diag(penalty), target))


def _merge(groups: Float, n_groups: int) -> Float:
    """Sums of groups in fewer groups, neighbours merged."""
    if len(groups) == n_groups:
        return groups
    return np.add.reduceat(groups, np.arange(n_groups) * len(groups) // n_groups)


@dataclass(frozen=True, eq=False)
class StateScale:
    """Mean and spread of the observations of all stages, to put coordinates on one scale."""

    mean: Float  # of the coordinates, shape (o,): the observations' numbers or, of wide ones, fewer
    spread: Float  # standard deviation, 1 where it vanishes
    largest: float
    smallest: float
    longest: int  # rows of the longest episode
    discrete: bool  # whether observations are single integers
    axes: Mapping[str, Axes] = field(default_factory=dict)  # of wide parts

    def coordinates(self, observations: npt.NDArray[np.generic]) -> Float:
        """Standardised coordinates, shape (N, o), cut at five deviations."""
        flat = narrow(observations)
        if self.axes:
            parts = wide(observations)
            flat = np.concatenate([flat, *(self.axes[n](parts[n]) for n in self.axes)], axis=1)
        return np.clip((flat - self.mean) / self.spread, -5, 5)

    @property
    def n_states(self) -> int | None:
        """How many discrete states there are, if so few that each can have its own value."""
        few = self.discrete and self.smallest >= 0 and self.largest < _STATES_AT_MOST
        return int(self.largest) + 1 if few else None

    def basis(
        self, observations: npt.NDArray[np.generic], times: npt.NDArray[np.int64] | None
    ) -> Float:
        """State features of the critic, shape (N, b).

        Always one first; then an indicator per state where states are few and discrete; otherwise
        a quadratic in the standardised coordinates. With times, for episodes that end where they
        are cut off, also powers of the time (in tables: an indicator's slope in time).
        """
        n = len(observations)
        time = None if times is None else (times / self.longest)[:, None]
        if self.n_states is not None:
            base = np.zeros((n, 1 + self.n_states))
            base[:, 0] = 1.0
            base[np.arange(n), 1 + np.asarray(observations).reshape(n).astype(int)] = 1.0
            return base if time is None else np.concatenate([base, time * base], axis=1)
        z = self.coordinates(observations)
        parts = [np.ones((n, 1)), z, products(z, most=_MOST_CROSSED)]
        if time is not None:
            parts += [time, time**2, time**3, time * z]
        return np.concatenate(parts, axis=1)


def products(z: Float, *, most: int) -> Float:
    """Products of two of the coordinates (N, p); beyond `most` of them, only their squares."""
    p = z.shape[1]
    first, second = np.triu_indices(p) if p <= most else (np.arange(p), np.arange(p))
    return np.asarray(z[:, first] * z[:, second])


class ScaleSums:
    """Streams stages into a `StateScale`."""

    def __init__(self) -> None:
        self.count, self.longest = 0, 1
        self.mean = self.scatter = np.zeros(0)
        self.largest, self.smallest = -np.inf, np.inf
        self.discrete = True
        self._sketches: dict[str, Sketch] = {}

    def add(self, stage: Stage) -> None:
        """Include a stage's observations (Chan's parallel update)."""
        for name, part in wide(stage.observations).items():
            if name not in self._sketches:
                self._sketches[name] = Sketch(part[0].size)
            self._sketches[name].add(part)
        # Few long columns are summed many times faster than many short rows.
        flat = np.array(narrow(stage.observations).T, dtype=float, order="C")
        ends = [float(flat.min(initial=np.inf)), float(flat.max(initial=-np.inf))]
        mean, n, width = flat.mean(axis=1), stage.n_steps, len(flat)
        flat -= mean[:, None]
        scatter = np.einsum("ij,ij->i", flat, flat)
        if self.count == 0:
            self.mean, self.scatter = mean, scatter
        else:
            shift, share = mean - self.mean, n / (self.count + n)
            self.scatter = self.scatter + scatter + shift**2 * self.count * share
            self.mean = self.mean + shift * share
        self.count += n
        if stage.last_observations is not None:
            last = narrow(stage.last_observations)
            ends += [float(last.min(initial=np.inf)), float(last.max(initial=-np.inf))]
        self.largest, self.smallest = max(self.largest, *ends), min(self.smallest, *ends)
        self.longest = max(self.longest, int(stage.lengths.max()))
        self.discrete &= stage.signature.discrete_observations and width == 1

    def scale(self) -> StateScale:
        """Of all stages added."""
        spread = np.sqrt(self.scatter / self.count)
        safe = np.where(spread > 1e-12 * np.maximum(np.abs(self.mean), 1e-300), spread, 1.0)
        axes = {name: sketch.axes() for name, sketch in self._sketches.items()}
        mean = np.concatenate([self.mean, *(np.zeros(len(a.spread)) for a in axes.values())])
        safe = np.concatenate([safe, *(a.spread for a in axes.values())])
        return StateScale(
            *(mean, safe, self.largest, self.smallest, self.longest, self.discrete), axes=axes
        )
