"""The paper's gridworld: a character map, its exact transition model, and a Gymnasium environment.

The agent walks on a map of coloured areas; each step pays the reward of the area it arrives at,
and from the goal the next action, whatever it is, leads back to the start. One `TabularMDP`
serves sampling, solving and evaluating, so that they cannot disagree.

The source disagrees with itself about the rewards. The paper's text gives blue 7 and green (the
goal) 0; the authors' code gives the goal 7 and blue 0. The default here, "code", is the second;
the first is called "paper-text". See `WEIGHTS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from numpy.typing import ArrayLike

from logel.envs.feature_world import at_least_one
from logel.envs.tabular import Int, TabularMDP
from logel.errors import OptionError
from logel.types import Float

GOAL = "g"
ACTIONS = ("down", "up", "left", "right")
_MOVES: Int = np.array([(1, 0), (-1, 0), (0, -1), (0, 1)], dtype=np.int64)

AREA_NAMES: Mapping[str, str] = MappingProxyType(
    {".": "light", "o": "orange", "d": "dark", "b": "blue", GOAL: "goal"}
)

DEFAULT_MAP = """
. . . b b
. . . . b
. . d . .
o . . . .
o o . . g
"""

_UNDISPUTED = {"light": -1.0, "orange": -3.0, "dark": -5.0}
WEIGHTS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "code": MappingProxyType({**_UNDISPUTED, "blue": 0.0, "goal": 7.0}),
        "paper-text": MappingProxyType({**_UNDISPUTED, "blue": 7.0, "goal": 0.0}),
    }
)


@dataclass(frozen=True)
class GridMap:
    """A rectangular map of areas, one character per cell.

    Attributes:
        rows: the rows of the map from top to bottom, without spaces.
        names: the name of the area each character stands for. `"g"` is the goal, which leads
            back to the start on the next action; all other characters differ only in name.
        start: row and column of the first cell, (0, 0) being the top-left one.
    """

    rows: tuple[str, ...]
    names: Mapping[str, str] = field(default_factory=lambda: AREA_NAMES, hash=False)
    start: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        if not self.rows or not self.rows[0]:
            raise OptionError("The map is empty: give at least one row of cells.")
        for i, cells in enumerate(self.rows):
            self._check_row(i, cells)
        if len(set(self.names.values())) != len(self.names):
            raise OptionError(f"Two characters have the same area name: {dict(self.names)}.")
        (row, column), (n_rows, n_columns) = self.start, self.shape
        if not (0 <= row < n_rows and 0 <= column < n_columns):
            raise OptionError(
                f"The start (row {row}, column {column}) lies outside the map of "
                f"{n_rows} rows and {n_columns} columns."
            )
        if self.rows[row][column] == GOAL:
            raise OptionError(
                f"The start (row {row}, column {column}) is a goal, which leads back to the "
                "start: the agent could never leave it. Choose another start."
            )

    def _check_row(self, i: int, cells: str) -> None:
        if len(cells) != self.shape[1]:
            raise OptionError(
                f"The map must be rectangular: row {i} has {len(cells)} cells, "
                f"row 0 has {self.shape[1]}."
            )
        for j, character in enumerate(cells):
            if character not in self.names:
                raise OptionError(
                    f"Unknown character {character!r} at row {i}, column {j} of the map; "
                    f"known are {' '.join(self.names)}. Name new areas with `names`."
                )

    @classmethod
    def parse(
        cls,
        text: str = DEFAULT_MAP,
        *,
        names: Mapping[str, str] = AREA_NAMES,
        start: tuple[int, int] = (0, 0),
    ) -> GridMap:
        """Read a map from text: one line per row; spaces and blank lines do not count."""
        rows = ("".join(line.split()) for line in text.splitlines())
        return cls(tuple(row for row in rows if row), names=names, start=start)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns."""
        return len(self.rows), len(self.rows[0])

    @property
    def area_names(self) -> tuple[str, ...]:
        """Names of the areas that appear on the map, in the order of `names`."""
        present = set("".join(self.rows))
        return tuple(name for character, name in self.names.items() if character in present)

    @property
    def areas(self) -> Int:
        """The index into `area_names` of every cell, row by row, shape (S,)."""
        index = {name: i for i, name in enumerate(self.area_names)}
        return np.array([index[self.names[c]] for c in "".join(self.rows)], dtype=np.int64)

    def state(self, row: int, column: int) -> int:
        """The state number of a cell: cells are numbered row by row from the top-left one."""
        return row * self.shape[1] + column


def gridworld_mdp(grid: GridMap | None = None, *, gamma: float = 0.96) -> TabularMDP:
    """The gridworld as a `TabularMDP`, with a one-hot feature for the area arrived at.

    The features of every step sum to 1, so the Jacobian of their expectations maps the vector of
    ones to 0: the common level of the weights is a gauge that no data can identify.

    Args:
        grid: the map; the paper's 5x5 one by default.
        gamma: discount factor.
    """
    grid = GridMap.parse() if grid is None else grid
    n_rows, n_columns = grid.shape
    n_states, n_actions = n_rows * n_columns, len(ACTIONS)
    cells = np.stack(np.divmod(np.arange(n_states), n_columns), axis=1)
    # Walls block: a step off the map is a step on the spot.
    targets = (cells[:, None, :] + _MOVES).clip(0, (n_rows - 1, n_columns - 1))
    next_states = targets[..., 0] * n_columns + targets[..., 1]
    next_states[np.array(list("".join(grid.rows))) == GOAL] = grid.state(*grid.start)

    transitions = np.zeros((n_states, n_actions, n_states))
    np.put_along_axis(transitions, next_states[:, :, None], 1.0, axis=2)
    arrived = np.eye(len(grid.area_names))[grid.areas]
    initial = np.zeros(n_states)
    initial[grid.state(*grid.start)] = 1.0
    return TabularMDP(
        transitions=transitions,
        features=np.broadcast_to(arrived, (n_states, n_actions, *arrived.shape)),
        initial=initial,
        gamma=gamma,
        feature_names=grid.area_names,
    )


def grid_weights(
    feature_names: Sequence[str], convention: str | Mapping[str, float] = "code"
) -> Float:
    """Reward weights by area name, in the order of the features.

    Args:
        feature_names: q area names, as in `TabularMDP.feature_names`.
        convention: a key of `WEIGHTS`, or a mapping from area name to weight.

    Returns:
        Shape (q,).
    """
    if isinstance(convention, str):
        if convention not in WEIGHTS:
            raise OptionError(
                f"Unknown weights {convention!r}; choose one of {', '.join(WEIGHTS)}."
            )
        convention = WEIGHTS[convention]
    missing = [name for name in feature_names if name not in convention]
    if missing:
        raise OptionError(
            f"No weight is given for the areas {', '.join(missing)}; "
            "pass a mapping from every area name to its weight."
        )
    return np.array([convention[name] for name in feature_names], dtype=np.float64)


def parse_weights(text: str) -> str | dict[str, float]:
    """A named convention, or `name=value,name=value`."""
    if "=" not in text:
        return text
    pairs: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            pairs[name.strip()] = float(value)
        except ValueError:
            raise OptionError(f"weights must look like name=value, but {part!r} does not") from None
    return pairs


class Gridworld(gymnasium.Env[np.int64, np.int64]):
    """The gridworld as a Gymnasium environment; it truncates itself and never terminates.

    Observations are state numbers, row by row from the top-left cell; actions are down, up, left
    and right. Each step's reward features are in `info["features"]`, shape (q,).

    Attributes:
        mdp: the transition model; the exact solvers take the same object.
        weights: reward weights, shape (q,).
        horizon: number of steps after which an episode is truncated.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 (Gymnasium's own type)

    def __init__(
        self,
        grid: GridMap | None = None,
        *,
        weights: str | Mapping[str, float] | ArrayLike = "code",
        horizon: int = 20,
        gamma: float = 0.96,
        render_mode: str | None = None,
    ) -> None:
        at_least_one(horizon, "horizon")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise OptionError(f"render_mode must be None or 'ansi', got {render_mode!r}.")
        self.grid = GridMap.parse() if grid is None else grid
        self.mdp = gridworld_mdp(self.grid, gamma=gamma)
        if isinstance(weights, (str, Mapping)):
            self.weights = grid_weights(self.mdp.feature_names, weights)
        else:
            self.weights = np.array(self.mdp.checked_weights(weights))
        self.horizon = horizon
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Discrete(self.mdp.n_states)
        self.action_space = gymnasium.spaces.Discrete(self.mdp.n_actions)
        # A spec of its own lets tools rebuild the environment without a global registration.
        self.spec = EnvSpec(
            "logel/Gridworld-v0",
            entry_point="logel.envs.gridworld:Gridworld",
            kwargs={"grid": grid, "weights": weights, "horizon": horizon, "gamma": gamma},
        )
        self._state = self.grid.state(*self.grid.start)
        self._time = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """Start an episode; `options={"state": s}` starts it in another cell than the map's."""
        super().reset(seed=seed)
        self._time = 0
        self._state = self.grid.state(*self.grid.start)
        if options and "state" in options:
            if not self.observation_space.contains(options["state"]):
                raise OptionError(
                    f"options['state'] must be an integer in 0..{self.mdp.n_states - 1}, "
                    f"got {options['state']!r}."
                )
            self._state = int(options["state"])
        return np.int64(self._state), {}

    def step(self, action: np.int64 | int) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Move; the features and the reward are those of the cell arrived at."""
        if not self.action_space.contains(action):
            raise OptionError(
                f"The action must be an integer in 0..{self.mdp.n_actions - 1}, got {action!r}."
            )
        state, action = self._state, int(action)
        cdf = self.mdp.transition_cdf[state, action]
        self._state = int(cdf.searchsorted(self.np_random.random(), side="right"))
        self._time += 1
        features = self.mdp.features[state, action, self._state].copy()
        reward = float(self.weights @ features)
        truncated = self._time >= self.horizon
        return np.int64(self._state), reward, False, truncated, {"features": features}

    def render(self) -> str | None:
        """The map as text, with `@` where the agent is."""
        if self.render_mode is None:
            return None
        row, column = divmod(self._state, self.grid.shape[1])
        cells = [list(line) for line in self.grid.rows]
        cells[row][column] = "@"
        return "\n".join(" ".join(line) for line in cells) + "\n"
