"""A maze that is a binary tree, with water at one of its ends, as animals are watched in.

Nodes are numbered from the entrance, 0, level by level: the ways on from node n lead to 2 n + 1 and
2 n + 2, the way back to the node before it. From an end there is only the way back; the way back
from the entrance is the way out, which ends the bout.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logel.errors import OptionError
from logel.types import Array, Flags, Float

BACK, LEFT, RIGHT = 0, 1, 2
FEATURES = ("water", "end", "turn back")


@dataclass(frozen=True)
class TreeMaze:
    """The maze, and what a reward for moving in it may be made of.

    Attributes:
        depth: Junctions between the entrance and an end, plus one: 6 makes 127 nodes, 64 ends.
        water: The end where the water is; None for the middle one.
    """

    depth: int = 6
    water: int | None = None

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise OptionError(f"a maze needs a depth of at least 1, not {self.depth}")
        if self.water is not None and not self.n_junctions <= self.water < self.n_nodes:
            raise OptionError(
                f"the water must be at an end, {self.n_junctions}..{self.n_nodes - 1}, but is at "
                f"node {self.water}"
            )

    @property
    def n_nodes(self) -> int:
        """Number of nodes, entrance and ends included."""
        return 2 ** (self.depth + 1) - 1

    @property
    def n_junctions(self) -> int:
        """Number of nodes with ways on: those before the first end."""
        return int(2**self.depth - 1)

    @property
    def port(self) -> int:
        """The end where the water is."""
        middle = self.n_junctions + (self.n_nodes - self.n_junctions) // 2
        return middle if self.water is None else self.water

    @property
    def names(self) -> tuple[str, ...]:
        """Of the features: arriving at the water, arriving at any end, turning back."""
        return FEATURES

    @property
    def legal(self) -> Flags:
        """Which of back, left and right there is in every node, shape (S, 3)."""
        legal = np.ones((self.n_nodes, 3), dtype=bool)
        legal[self.n_junctions :, LEFT:] = False
        return legal

    @property
    def successors(self) -> npt.NDArray[np.int64]:
        """Where every way leads, shape (S, 3): a node, S for out of the maze, -1 for nowhere."""
        node = np.arange(self.n_nodes)
        table = np.stack([(node - 1) // 2, 2 * node + 1, 2 * node + 2], axis=1)
        table[0, BACK] = self.n_nodes
        table[~self.legal] = -1
        return table

    def __call__(self, observations: Array, actions: Array, next_observations: Array, /) -> Float:
        """Features of N moves, shape (N, 3)."""
        arrived = np.asarray(self.successors[observations, actions])
        end = (arrived >= self.n_junctions) & (arrived < self.n_nodes)
        # From an end there is no other way than back: that is no choice, and no cost.
        turned = (np.asarray(actions) == BACK) & (np.asarray(observations) < self.n_junctions)
        return np.stack([arrived == self.port, end, turned], axis=1).astype(float)
