"""Simulated animals that learn their way in a maze, bout by bout, each in its own way.

What is watched is what was learnt from: an animal's own bouts, in order, which
`LearningHistory.from_sessions` cuts into stages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp, softmax

from logel.data.stage import Episode
from logel.envs.tree_maze import BACK, TreeMaze
from logel.errors import OptionError
from logel.types import FORBIDDEN, Float

KINDS = ("gradient", "q-learning", "planning")
# Mean of a first preference against turning back: animals explore before they have learnt.
_FORWARD = 1.0


@dataclass(frozen=True)
class Forager:
    """One animal.

    Attributes:
        weights: Of the maze's features: water, end, turning back.
        kind: "gradient" climbs the return of its own bouts (G(PO)MDP with a baseline of its own),
            "q-learning" learns the values of ways, "planning" knows the maze and thinks further
            ahead with every bout (soft value iteration, a little at a time). A bout ends with a
            drink, on the way out, or when it is cut off.
        rate: Learning rate.
        gamma: Discount factor.
        longest: Moves after which a bout is cut off.
    """

    weights: tuple[float, float, float]
    kind: str = "q-learning"
    rate: float = 0.2
    gamma: float = 0.9
    longest: int = 100

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise OptionError(f"kind must be one of {KINDS}, but is {self.kind!r}")
        if self.rate <= 0:
            raise OptionError(f"rate must be positive, but is {self.rate}")

    def bouts(self, maze: TreeMaze, n: int, rng: np.random.Generator) -> list[Episode]:
        """The animal's first bouts, one episode each."""
        preferences = 0.3 * rng.standard_normal(maze.legal.shape)
        preferences[: maze.n_junctions, BACK] -= _FORWARD
        preferences[~maze.legal] = FORBIDDEN
        baseline = np.zeros(maze.n_nodes)
        bouts = []
        for _ in range(n):
            states, actions, ended = self._walk(maze, preferences, rng)
            paid = maze(states[:-1], actions, states[1:])
            bouts.append(Episode(states, actions, paid, terminated=ended))
            if self.kind == "gradient":
                self._climb(preferences, baseline, states, actions, paid @ np.array(self.weights))
            elif self.kind == "planning":
                self._plan(preferences, maze)
        return bouts

    def _walk(
        self, maze: TreeMaze, preferences: Float, rng: np.random.Generator
    ) -> tuple[Float, Float, bool]:
        """States visited, moves, and whether the animal went out; Q-learners learn on the way."""
        leads, states, actions = maze.successors, [0], []
        weights, ended = np.array(self.weights), False
        draws = rng.random(self.longest)
        for draw in draws:
            here = states[-1]
            chances = softmax(preferences[here]).cumsum()
            action = int((draw * chances[-1] >= chances).sum())
            following = int(leads[here, action])
            # A bout ends with a drink or out of the maze, for which any node may stand.
            ended = following in (maze.n_nodes, maze.port)
            states.append(0 if following == maze.n_nodes else following)
            actions.append(action)
            if self.kind == "q-learning":
                row = np.array([here]), np.array([action]), np.array([states[-1]])
                worth = 0.0 if ended else self.gamma * preferences[following].max()
                error = float(maze(*row)[0] @ weights) + worth - preferences[here, action]
                preferences[here, action] += self.rate * error
            if ended:
                break
        return np.array(states), np.array(actions), ended

    def _climb(
        self,
        preferences: Float,
        baseline: Float,
        states: Float,
        actions: Float,
        rewards: Float,
    ) -> None:
        """One step along the return of one bout, each node's mean taken off."""
        to_go = 0.0
        # The policy that acted: all moves of a bout are of one.
        chances = softmax(preferences, axis=1)
        for here, action, reward in zip(states[-2::-1], actions[::-1], rewards[::-1], strict=True):
            to_go = reward + self.gamma * to_go
            score = -chances[here]
            score[action] += 1.0
            preferences[here] += self.rate * (to_go - baseline[here]) * score
            baseline[here] += 0.1 * (to_go - baseline[here])

    def _plan(self, preferences: Float, maze: TreeMaze) -> None:
        """A part of one backup of all ways."""
        leads, legal = maze.successors, maze.legal
        worth = np.append(np.asarray(logsumexp(preferences, axis=1)), 0.0)
        worth[maze.port] = 0.0
        node, action = np.nonzero(legal)
        arrived = leads[node, action]
        paid = maze(node, action, arrived) @ np.array(self.weights)
        backup = paid + self.gamma * worth[arrived]
        preferences[node, action] += self.rate * (backup - preferences[node, action])


# Between which the rates of each kind lie: all learn in some hundred bouts.
_RATES = {"gradient": (0.1, 0.4), "q-learning": (0.3, 0.8), "planning": (0.02, 0.06)}


def forager(rng: np.random.Generator, *, thirsty: bool) -> Forager:
    """Any animal: how it learns, and what it likes beside water, differ from one to the next."""
    water = rng.uniform(4.0, 8.0)
    end, back = rng.normal(0.15, 0.1), -rng.uniform(0.05, 0.3)
    kind = KINDS[int(rng.integers(len(KINDS)))]
    rate = float(np.exp(rng.uniform(*np.log(_RATES[kind]))))
    return Forager((water if thirsty else 0.0, float(end), float(back)), kind, rate)
