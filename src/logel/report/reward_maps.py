"""Where a reward can be drawn: on the cells of a discrete world, or over two coordinates.

The layout of a discrete world is read off its transitions: actions that mostly move by one state
or by one row of states span a grid. Nothing is taken from the history's metadata but the number
of states, and that only to the extent that the data agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logel.data.history import LearningHistory
from logel.data.stage import Signature, Stage
from logel.types import FeatureFunction, Float

Int = npt.NDArray[np.int64]
LARGEST_WORLD = 400
MOST_ACTIONS = 16
_RASTER = 48
_RBF_NAME = re.compile(r"rbf\(\s*([-+0-9.e]{1,20})\s*,\s*([-+0-9.e]{1,20})\s*\)")


@dataclass(frozen=True, eq=False)
class RewardMap:
    """A picture of a reward: one value per cell, row by row from the top, NaN where unknown.

    Actions move by (rows down, columns right); only cells that are places have moves, and only
    rasters have an extent (left, right, bottom, top).
    """

    values: Float
    caption: str
    labels: tuple[str, ...] = ()
    moves: tuple[tuple[int, int], ...] = ()
    x: str = "column"
    y: str = "row"
    extent: tuple[float, float, float, float] | None = None


@dataclass(frozen=True, eq=False)
class DiscreteWorld:
    """What the episodes show about a small world of numbered states, on a grid if it has columns.

    `arrival` are the mean features on arriving at each state, (S, q), NaN where nobody arrived;
    they are exact if that state determines them.
    """

    n_states: int
    n_actions: int
    columns: int | None
    moves: tuple[tuple[int, int], ...]
    arrival: Float | None
    exact: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the drawing; a world without a layout is wrapped."""
        columns = min(self.n_states, 10) if self.columns is None else self.columns
        return -(-self.n_states // columns), columns


def discrete_world(
    history: LearningHistory, *, features: FeatureFunction | None = None
) -> DiscreteWorld | None:
    """The world behind a history, or None if it is not small, discrete and numbered from 0."""
    n_states, n_actions = _sizes(history)
    if not (0 < n_states <= LARGEST_WORLD and 0 < n_actions <= MOST_ACTIONS):
        return None
    counts = np.zeros((n_states, n_actions, n_states), dtype=np.int64)
    # Sums of the features on arriving at each state, and of their squares.
    moments: Float | None = None
    for s, a, following, phi in _transitions(history, features):
        np.add.at(counts, (s, a, following), 1)
        if phi is not None:
            if moments is None:
                moments = np.zeros((2, n_states, phi.shape[1]))
            np.add.at(moments[0], following, phi)
            np.add.at(moments[1], following, phi**2)
    columns, moves = _layout(counts)
    arrival, exact = None, False
    if moments is not None:
        arrival, exact = _arrivals(moments, counts.sum(axis=(0, 1)))
    return DiscreteWorld(n_states, n_actions, columns, moves, arrival, exact)


def _arrivals(moments: Float, seen: Int) -> tuple[Float, bool]:
    """Mean features on arriving at each state, and whether they are always the same there."""
    sums, squares = moments / np.maximum(seen, 1)[:, None]
    arrival = np.where(seen[:, None] > 0, sums, np.nan)
    # Features recorded as float32 differ by rounding.
    spread = squares - np.nan_to_num(arrival) ** 2
    return arrival, bool((spread <= 1e-9 * (1 + np.nan_to_num(arrival) ** 2)).all())


def _is_discrete(signature: Signature) -> bool:
    discrete = signature.discrete_observations and signature.discrete_actions
    return discrete and signature.observation_shape == signature.action_shape == ()


def _sizes(history: LearningHistory) -> tuple[int, int]:
    """Numbers of states and actions; (0, 0) when they are not numbered from 0."""
    n_states = n_actions = 0
    if not _is_discrete(history.signature):
        return 0, 0
    for stage in history:
        last = stage.last_observations
        states = stage.observations if last is None else np.append(stage.observations, last)
        if min(states.min(), stage.actions.min()) < 0:
            return 0, 0
        n_states = max(n_states, int(states.max()) + 1)
        n_actions = max(n_actions, int(stage.actions.max()) + 1)
    recorded = history.metadata.get("n_states")
    if isinstance(recorded, int) and n_states <= recorded <= LARGEST_WORLD:
        n_states = recorded
    return n_states, n_actions


def _transitions(
    history: LearningHistory, features: FeatureFunction | None
) -> Iterator[tuple[Int, Int, Int, Float | None]]:
    """Stage by stage: states, actions, states arrived at, features; unseen arrivals left out."""
    for stage in history:
        if stage.last_observations is not None:
            full = stage if features is None else stage.with_features(features)
            yield stage.observations, stage.actions, stage.next_observations(), full.features
            continue
        keep = np.ones(stage.n_steps, dtype=bool)
        keep[stage.starts + stage.lengths - 1] = False
        following = np.roll(stage.observations, -1)
        phi = None if stage.features is None else stage.features[keep]
        yield stage.observations[keep], stage.actions[keep], following[keep], phi


def _layout(counts: Int) -> tuple[int | None, tuple[tuple[int, int], ...]]:
    """Columns of the grid and each action's displacement, if the transitions look like a grid.

    Every pair of a state and an action has one vote, for its most frequent outcome: what leads
    elsewhere (a goal that resets, a slip) is then outvoted however often it was visited.
    """
    agreed = [_main_move(counts[:, a]) for a in range(counts.shape[1])]
    n_states, width = len(counts), max(abs(step) for step, _ in agreed)
    if width < 1 or n_states % width:
        return _slippery(counts), ()
    columns = n_states if width == 1 else width
    moves = [_move(step, states, columns) for step, states in agreed]
    return (_slippery(counts), ()) if None in moves else (columns, tuple(filter(None, moves)))


def _slippery(counts: Int) -> int | None:
    """Columns where no action has a move of its own, but each leads to some neighbour on a grid."""
    n_states = len(counts)
    left, reached = np.nonzero(counts.sum(axis=1))
    moved = reached - left
    # States that all lead everywhere have neighbours by chance: few of those possible are seen.
    if moved.size == 0 or moved.size > 5 * n_states:
        return None
    width = int(np.abs(moved).max())
    if width < 2 or n_states % width or not np.isin(np.abs(moved), (0, 1, width)).all():
        return None
    sideways = np.abs(moved) == 1
    same_row = left // width == reached // width
    return width if sideways.any() and same_row[sideways].all() else None


def _move(step: int, states: Int, columns: int) -> tuple[int, int] | None:
    """A step from these states as (down, right), or None if it is no move on the grid."""
    if abs(step) == columns:
        return step // columns, 0
    # A sideways move that often changes the row is none.
    stays = len(states) == 0 or np.mean(states // columns == (states + step) // columns) >= 0.9
    return (0, step) if abs(step) <= 1 and stays else None


def _main_move(outcomes: Int) -> tuple[int, Int]:
    """How most states move under an action, off any grid if they disagree; and which of them do."""
    tried = np.flatnonzero(outcomes.sum(axis=1))
    moved = outcomes[tried].argmax(axis=1) - tried
    moving = moved[moved != 0]
    # A wall may stop some; an action that stops almost everywhere is one that stays.
    if len(moving) <= len(tried) // 4:
        return 0, tried[:0]
    values, votes = np.unique(moving, return_counts=True)
    if votes.max() < 0.7 * len(moving):
        return len(outcomes) + 1, tried[:0]
    step = int(values[votes.argmax()])
    return step, tried[moved == step]


def world_map(world: DiscreteWorld, weights: Float, names: Sequence[str]) -> RewardMap | None:
    """The reward of arriving at every state, or None without features."""
    if world.arrival is None or world.arrival.shape[1] != len(weights):
        return None
    rows, columns = world.shape
    values = np.full(rows * columns, np.nan)
    values[: world.n_states] = world.arrival @ weights
    labels = [""] * (rows * columns)
    if world.exact:
        hot = (world.arrival == 1).sum(axis=1) == 1
        hot &= (np.nan_to_num(world.arrival) != 0).sum(axis=1) == 1
        for state in np.flatnonzero(hot):
            labels[state] = names[int(world.arrival[state].argmax())]
    what = "Reward of arriving at" if world.exact else "Mean reward on arriving at"
    place = "each cell" if world.columns is not None else "each state (positions mean nothing)"
    return RewardMap(
        values.reshape(rows, columns),
        labels=tuple(labels),
        moves=world.moves,
        caption=f"{what} {place}, read off the episodes; empty cells were never entered.",
    )


def rbf_map(names: Sequence[str], weights: Float) -> RewardMap | None:
    """The reward over a plane, when features are Gaussian bumps named after their centres."""
    bumps = _bumps(names, weights)
    axes = [np.unique(bumps[:, i]) for i in (0, 1)]
    if min(map(len, axes)) < 2 or len(axes[0]) * len(axes[1]) != len(bumps):
        return None
    spacing = [float(np.diff(axis).mean()) for axis in axes]
    low = [float(axis[0] - step / 2) for axis, step in zip(axes, spacing, strict=True)]
    high = [float(axis[-1] + step / 2) for axis, step in zip(axes, spacing, strict=True)]
    middles = (np.arange(_RASTER) + 0.5) / _RASTER
    # Rows are drawn from the top.
    points = low[0] + middles * (high[0] - low[0]), high[1] - middles * (high[1] - low[1])
    x, y = (np.exp(-0.5 * ((points[i][:, None] - bumps[:, i]) / spacing[i]) ** 2) for i in (0, 1))
    return RewardMap(
        np.einsum("yk,xk,k->yx", y, x, bumps[:, 2]),
        caption="Sum of the Gaussian bumps at their recovered heights, each as wide as the "
        "centres are apart; other features are left out.",
        x="first coordinate of the bumps",
        y="second coordinate of the bumps",
        extent=(low[0], high[0], low[1], high[1]),
    )


def _bumps(names: Sequence[str], weights: Float) -> Float:
    """Both coordinates of every bump and its height, (k, 3); none when names make no sense."""
    none = np.zeros((0, 3))
    found = [(_RBF_NAME.fullmatch(name), w) for name, w in zip(names, weights, strict=True)]
    try:
        bumps = np.array([(float(m[1]), float(m[2]), w) for m, w in found if m is not None])
    except ValueError:
        return none
    sensible = len(bumps) and (np.abs(bumps[:, :2]) <= 1e12).all()
    return bumps if sensible else none


def visits_and_policy(stage: Stage, world: DiscreteWorld) -> tuple[Float, Float]:
    """Share of the steps spent in each state, (S,), and action frequencies there, (S, A)."""
    counts = np.zeros((world.n_states, world.n_actions))
    np.add.at(counts, (stage.observations, stage.actions), 1)
    visits = counts.sum(axis=1)
    with np.errstate(invalid="ignore"):
        frequencies = counts / visits[:, None]
    return visits / visits.sum(), frequencies
