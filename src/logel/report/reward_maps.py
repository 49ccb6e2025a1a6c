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
from logel.data.stage import Stage
from logel.errors import OptionError
from logel.types import FeatureFunction, Float

Int = npt.NDArray[np.int64]
LARGEST_WORLD = 400
MOST_ACTIONS = 16
_RASTER = 48
_RBF_NAME = re.compile(r"rbf\(\s*([-+0-9.e]{1,20})\s*(?:,\s*([-+0-9.e]{1,20})\s*)?\)")


@dataclass(frozen=True, eq=False)
class RewardMap:
    """A picture of a reward: one value per cell, row by row from the top.

    Attributes:
        values: Reward of every cell, shape (rows, columns); NaN where nothing is known.
        labels: Name of every cell, row by row, or empty.
        moves: For every action its (rows down, columns right), or empty when cells are not places.
        caption: What is drawn, in a sentence.
        x: Label of the columns.
        y: Label of the rows.
        extent: Left, right, bottom and top edge in the units of the labels; None for cells.
    """

    values: Float
    labels: tuple[str, ...] = ()
    moves: tuple[tuple[int, int], ...] = ()
    caption: str = ""
    x: str = "column"
    y: str = "row"
    extent: tuple[float, float, float, float] | None = None

    def __post_init__(self) -> None:
        values = np.asarray(self.values, dtype=float)
        if values.ndim != 2 or values.size == 0:
            raise OptionError(f"a reward map needs shape (rows, columns), but has {values.shape}")
        if values.size > max(LARGEST_WORLD, _RASTER**2):
            raise OptionError(f"a reward map of {values.size} cells is too fine to be drawn")
        if self.labels and len(self.labels) != values.size:
            raise OptionError(f"there are {values.size} cells, but {len(self.labels)} labels")
        object.__setattr__(self, "values", values)


@dataclass(frozen=True, eq=False)
class DiscreteWorld:
    """What the episodes show about a small world of numbered states.

    Attributes:
        n_states: Number of states S.
        n_actions: Number of actions A.
        columns: States per row if they lie on a grid, else None.
        moves: Displacement (down, right) of every action on that grid.
        arrival: Mean features on arriving at each state, (S, q); NaN where nobody arrived.
        exact: Whether the state arrived at determines the features.
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
    signature = history.signature
    discrete = signature.discrete_observations and signature.discrete_actions
    if not discrete or signature.observation_shape or signature.action_shape:
        return None
    n_states, n_actions = _sizes(history)
    if not (0 < n_states <= LARGEST_WORLD and 0 < n_actions <= MOST_ACTIONS):
        return None
    counts = np.zeros((n_states, n_actions, n_states), dtype=np.int64)
    sums: Float | None = None
    squares: Float | None = None
    for s, a, following, phi in _transitions(history, features):
        np.add.at(counts, (s, a, following), 1)
        if phi is not None:
            if sums is None or squares is None:
                sums = np.zeros((n_states, phi.shape[1]))
                squares = np.zeros_like(sums)
            np.add.at(sums, following, phi)
            np.add.at(squares, following, phi**2)
    columns, moves = _layout(counts)
    arrival, exact = None, False
    if sums is not None and squares is not None:
        seen = counts.sum(axis=(0, 1))[:, None]
        arrival = np.where(seen > 0, sums / np.maximum(seen, 1), np.nan)
        spread = squares / np.maximum(seen, 1) - np.nan_to_num(arrival) ** 2
        exact = bool((spread <= 1e-9 * (1 + np.nan_to_num(arrival) ** 2)).all())
    return DiscreteWorld(n_states, n_actions, columns, moves, arrival, exact)


def _sizes(history: LearningHistory) -> tuple[int, int]:
    """Numbers of states and actions; (0, 0) when some are negative."""
    top = [-1, -1]
    for stage in history:
        columns = [stage.observations], [stage.actions]
        if stage.last_observations is not None:
            columns[0].append(stage.last_observations)
        for i, arrays in enumerate(columns):
            if min(int(array.min()) for array in arrays) < 0:
                return 0, 0
            top[i] = max(top[i], *(int(array.max()) for array in arrays))
    recorded = history.metadata.get("n_states")
    n_states = top[0] + 1
    if isinstance(recorded, int) and n_states <= recorded <= LARGEST_WORLD:
        n_states = recorded
    return n_states, top[1] + 1


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
    n_states, n_actions, _ = counts.shape
    steps: list[int] = []
    support: list[Int] = []
    for a in range(n_actions):
        tried = np.flatnonzero(counts[:, a].sum(axis=1))
        moved = counts[tried, a].argmax(axis=1) - tried
        moving = moved[moved != 0]
        if len(moving) <= len(tried) // 4:
            steps.append(0)
            support.append(tried[:0])
            continue
        values, votes = np.unique(moving, return_counts=True)
        if votes.max() < 0.7 * len(moving):
            return None, ()
        steps.append(int(values[votes.argmax()]))
        support.append(tried[moved == steps[-1]])
    width = max(abs(step) for step in steps)
    if width < 1 or n_states % width or not set(steps) <= {0, 1, -1, width, -width}:
        return None, ()
    if width == 1:
        return n_states, tuple((0, step) for step in steps)
    moves = []
    for step, states in zip(steps, support, strict=True):
        if abs(step) == width:
            moves.append((step // width, 0))
            continue
        # A sideways move that often changes the row is no move on this grid.
        if step and np.mean(states // width == (states + step) // width) < 0.9:
            return None, ()
        moves.append((0, step))
    return width, tuple(moves)


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
    found = [
        (_RBF_NAME.fullmatch(name), weight) for name, weight in zip(names, weights, strict=True)
    ]
    pairs = [(m[1], m[2], w) for m, w in found if m is not None and m[2] is not None]
    try:
        centres = np.array([(float(x), float(y)) for x, y, _ in pairs])
    except ValueError:
        return None
    if len(centres) < 4 or not np.isfinite(centres).all() or np.abs(centres).max() > 1e12:
        return None
    axes = [np.unique(centres[:, i]) for i in (0, 1)]
    if min(len(axis) for axis in axes) < 2 or len(axes[0]) * len(axes[1]) != len(centres):
        return None
    spacing = [float(np.diff(axis).mean()) for axis in axes]
    low = [float(axis[0] - step / 2) for axis, step in zip(axes, spacing, strict=True)]
    high = [float(axis[-1] + step / 2) for axis, step in zip(axes, spacing, strict=True)]
    middles = (np.arange(_RASTER) + 0.5) / _RASTER
    x = low[0] + middles * (high[0] - low[0])
    y = high[1] - middles * (high[1] - low[1])
    bumps_x = np.exp(-0.5 * ((x[:, None] - centres[:, 0]) / spacing[0]) ** 2)
    bumps_y = np.exp(-0.5 * ((y[:, None] - centres[:, 1]) / spacing[1]) ** 2)
    heights = np.array([w for _, _, w in pairs])
    return RewardMap(
        np.einsum("yk,xk,k->yx", bumps_y, bumps_x, heights),
        caption="Sum of the Gaussian bumps at their recovered heights, each as wide as the "
        "centres are apart; other features are left out.",
        x="first coordinate of the bumps",
        y="second coordinate of the bumps",
        extent=(low[0], high[0], low[1], high[1]),
    )


def visits_and_policy(stage: Stage, world: DiscreteWorld) -> tuple[Float, Float]:
    """Share of the steps spent in each state, (S,), and action frequencies there, (S, A)."""
    counts = np.zeros((world.n_states, world.n_actions))
    np.add.at(counts, (stage.observations, stage.actions), 1)
    visits = counts.sum(axis=1)
    with np.errstate(invalid="ignore"):
        frequencies = counts / visits[:, None]
    return visits / visits.sum(), frequencies
