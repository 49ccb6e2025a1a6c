"""Rewards that nobody named: a dictionary made from what was observed.

One element for every state of a table; bumps over the observations where these are continuous, on
the plane of two coordinates, or along each coordinate where there are more; and one for every
action, or an action's size. Each pays for what a step led to, and is of order one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from logel.data.observations import check_plain, parts_of
from logel.data.stage import Signature, Stage, StageSource
from logel.errors import OptionError
from logel.inference.watched import Watched
from logel.policies.base import Policy
from logel.rewards.features import feature_names, featured
from logel.types import Array, FeatureFunction, Float

# States that get an element of their own, the most visited first; actions likewise.
_MOST_STATES, _MOST_ACTIONS = 200, 12
# Bumps along a plane's axes, along the only coordinate, and along each of many; coordinates.
_ON_PLANE, _ALONE, _EACH, _MOST_COORDINATES = 6, 10, 7, 8
# Share of the observations beyond the outermost bumps, on either side; rows looked at per stage.
_BEYOND, _ROWS = 0.02, 500


@dataclass(frozen=True, eq=False)
class Dictionary:
    """What a learner might also be paid for.

    Attributes:
        names: What each of the k elements pays for, in words.
        centres: Where, in units of the observation, shape (k, n): the number of a state, or
            coordinates; NaN for those that do not matter to an element.
        widths: Of the bumps along every coordinate, shape (n,); zero for states.
        powers: Which of an action's parts an element pays for, and to which power (0: whether it
            is that action), shape (k, 2); minus one for elements that pay for places.
        sizes: Of actions' parts, by which they are divided.
        left_out: States that have no element.
    """

    names: tuple[str, ...]
    centres: Float
    widths: Float
    powers: Array
    sizes: Float
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.names)

    @property
    def discrete(self) -> bool:
        """Whether places are states."""
        return not self.widths.any()

    @property
    def placed(self) -> Array:
        """Which elements pay for a place."""
        return np.asarray(self.powers[:, 0] < 0)

    def __call__(self, actions: Array, arrivals: Array) -> Float:
        """Elements of N steps, shape (N, k)."""
        n = len(actions)
        values = np.empty((n, len(self)))
        placed = self.placed
        where = np.asarray(arrivals, dtype=float).reshape(n, -1)
        if self.discrete:
            values[:, placed] = where == self.centres[placed].T
        else:
            away = (where[:, None] - self.centres[placed]) / self.widths
            values[:, placed] = np.exp(-0.5 * np.nansum(away**2, axis=2))
        did = np.asarray(actions, dtype=float).reshape(n, -1)
        for j in np.flatnonzero(~placed):
            part, power = self.powers[j]
            one = did[:, 0] == part if power == 0 else (did[:, part] / self.sizes[part]) ** power
            values[:, j] = one
        return values

    @classmethod
    def of(cls, stages: Iterable[Stage], policy: Policy) -> Dictionary:
        """Made from where the stages' steps led, and what was done."""
        where, did = _seen(stages)
        if policy.tabular or where.dtype.kind in "iu":
            names, centres, left_out = _states(where)
            widths = np.zeros(1)
        else:
            names, centres, widths = _bumps(where.astype(float))
            left_out = 0
        acts, powers, sizes = _actions(did, discrete=policy.discrete_actions)
        nowhere = np.full((len(acts), centres.shape[1]), np.nan)
        return cls(
            names=(*names, *acts),
            centres=np.concatenate([centres, nowhere]),
            widths=widths,
            powers=np.concatenate([np.full((len(names), 2), -1), powers]),
            sizes=sizes,
            left_out=left_out,
        )


def arrivals(stage: Stage) -> Array:
    """Where every step led; episodes whose last state was not seen are taken to stay."""
    if stage.last_observations is not None:
        return stage.next_observations()
    ends = stage.starts + stage.lengths - 1
    return replace(stage, last_observations=stage.observations[ends]).next_observations()


def _seen(stages: Iterable[Stage]) -> tuple[Array, Array]:
    """Where some steps of all stages led, one row each, and what was done."""
    where, did = [], []
    for stage in stages:
        check_plain(parts_of(stage.observations), "rewards that nobody named")
        states = arrivals(stage)
        all_rows = states.dtype.kind in "iu"
        rows = np.arange(len(states))
        if not all_rows:
            rows = np.unique(np.linspace(0, len(states) - 1, _ROWS).astype(int))
        where.append(states[rows].reshape(len(rows), -1))
        did.append(stage.actions[rows].reshape(len(rows), -1))
    return np.concatenate(where), np.concatenate(did)


def _states(where: Array) -> tuple[list[str], Float, int]:
    """One element per state that was entered."""
    if where.shape[1] != 1:
        raise OptionError(
            f"observations of {where.shape[1]} whole numbers are no states of a table: what is "
            "unexplained needs numbered states or continuous observations"
        )
    states, visits = np.unique(where[:, 0], return_counts=True)
    kept = np.sort(states[np.argsort(-visits, kind="stable")[:_MOST_STATES]])
    return [f"state {s:g}" for s in kept], kept[:, None].astype(float), len(states) - len(kept)


def _bumps(where: Float) -> tuple[list[str], Float, Float]:
    """Bumps as far apart as they are wide, where observations were."""
    n = where.shape[1]
    low, high = np.quantile(where, [_BEYOND, 1 - _BEYOND], axis=0)
    moving = np.flatnonzero(high > low)
    if len(moving) == 0:
        raise OptionError("the observations never change: there is nowhere to be paid for")
    if len(moving) > _MOST_COORDINATES:
        # Those that learners see in the largest variety say where they are.
        moving = moving[:_MOST_COORDINATES]
    count = {1: _ALONE, 2: _ON_PLANE}.get(len(moving), _EACH)
    widths = np.ones(n)
    widths[moving] = (high - low)[moving] / (count - 1)
    axes = [np.linspace(low[i], high[i], count) for i in moving]
    if len(moving) == 2:
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
        centres = np.full((len(grid), n), np.nan)
        centres[:, moving] = grid
    else:
        centres = np.full((len(moving) * count, n), np.nan)
        for row, (i, axis) in enumerate(zip(moving, axes, strict=True)):
            centres[row * count : (row + 1) * count, i] = axis
    return [_place(centre) for centre in centres], centres, widths


def _place(centre: Float) -> str:
    """A bump in words."""
    known = np.flatnonzero(np.isfinite(centre))
    if len(known) == len(centre):
        return "being around (" + ", ".join(f"{x:.2g}" for x in centre) + ")"
    return ", ".join(f"observation[{i}] around {centre[i]:.2g}" for i in known)


def _actions(did: Array, *, discrete: bool) -> tuple[list[str], Array, Float]:
    """Every action, or size and square of every part of one."""
    if discrete:
        return _numbered(did)
    sizes = np.sqrt(np.mean(did.astype(float) ** 2, axis=0))
    sizes = np.where(sizes > 0, sizes, 1.0)
    parts = range(min(did.shape[1], _MOST_ACTIONS))
    pairs = [(i, power) for i in parts for power in (1, 2)]
    names = [f"action[{i}]" + ("" if power == 1 else " squared") for i, power in pairs]
    return names, np.array(pairs, dtype=int), sizes


def _numbered(did: Array) -> tuple[list[str], Array, Float]:
    """Every action, where they are few; of two the second, which is the first's opposite."""
    kinds = np.unique(did[:, 0]) if did.shape[1] == 1 else np.zeros(0)
    if len(kinds) <= 2 or len(kinds) > _MOST_ACTIONS:
        kinds = kinds[1:2] if len(kinds) == 2 else kinds[:0]
    powers = np.array([(int(a), 0) for a in kinds], dtype=int).reshape(-1, 2)
    return [f"action {a:g}" for a in kinds], powers, np.ones(1)


@dataclass(frozen=True, eq=False)
class _Widened:
    """Stages whose features have the elements behind them."""

    source: StageSource
    features: FeatureFunction | None
    dictionary: Dictionary

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int, /) -> Stage:
        stage = featured(self.source[index], self.features, index)
        assert stage.features is not None
        beside = self.dictionary(stage.actions, arrivals(stage))
        return replace(stage, features=np.concatenate([stage.features, beside], axis=1))


def widened(watched: Watched, dictionary: Dictionary) -> Watched:
    """The same history with the elements of a dictionary beside its features."""
    history = watched.history
    source = _Widened(history.source, watched.features, dictionary)
    first = Signature.of(source[0])
    q = (first.n_features or 0) - len(dictionary)
    names = feature_names(history, watched.features, q)
    # What elements are called may be what features are called.
    inner = tuple(f"{name} (element {j})" for j, name in enumerate(dictionary.names))
    seen = replace(history, source=source, signature=first, feature_names=(*names, *inner))
    return replace(watched, history=seen, features=None)


def shifted(wide: Watched, offset: Float | None) -> Watched:
    """The same with constants (q,) taken off the features, and none off the elements."""
    n = wide.history.signature.n_features or 0
    return (
        wide
        if offset is None
        else replace(wide, offset=np.append(offset, np.zeros(n - len(offset))))
    )
