"""A maze with masks against the same maze folded by hand, and a known maze against a counted one.

    python -m benchmarks.mazes [--animals 24] [--first 2000] [--depth 3]

Simulated foragers (`logel.learners.forager`), 240 bouts in 8 windows. Folded, only junctions are
left: going to an end and back is one move, which pays what the end does. That takes two times,
which the folded world says by losing a share of one minus gamma on the way; a fold that forgets it
is another task, with another discount, and is shown beside.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from logel import Episode, KnownWorld, LearningHistory, RewardEstimate, TabularSoftmax, infer_reward
from logel.envs.tree_maze import TreeMaze
from logel.inference.status import Status
from logel.learners.forager import forager

WINDOWS, BOUTS = 8, 240


def animal(seed: int, maze: TreeMaze) -> list[Episode]:
    """Bouts of one animal, thirsty if its seed is even."""
    rng = np.random.default_rng([seed, 127])
    return forager(rng, thirsty=seed % 2 == 0).bouts(maze, BOUTS, rng)


def folded(bouts: list[Episode], maze: TreeMaze) -> list[Episode]:
    """The same bouts, junctions alone."""
    made = []
    for bout in bouts:
        assert bout.features is not None
        seen, last = np.asarray(bout.observations), int(bout.observations[-1])
        kept = np.flatnonzero(seen[:-1] < maze.n_junctions)
        back = (last - 1) // 2 if last >= maze.n_junctions else last
        states = np.append(seen[kept], 0 if bout.terminated else back)
        made.append(Episode(states, bout.actions[kept], bout.features[kept], bout.terminated))
    return made


def folded_world(maze: TreeMaze, kept: float) -> KnownWorld:
    """Where moves lead then; of those to an end and back a share is kept, the rest ends."""
    n = maze.n_junctions
    table = np.zeros((n, 3, n + 1))
    for junction in range(n):
        for way, to in enumerate(maze.successors[junction]):
            if to in (maze.port, maze.n_nodes):
                table[junction, way, n] = 1.0
            elif to >= n:
                table[junction, way, [junction, n]] = kept, 1 - kept
            else:
                table[junction, way, to] = 1.0
    return KnownWorld(table)


def masked(bouts: list[Episode], maze: TreeMaze, gamma: float, **more: Any) -> RewardEstimate:
    """What the default says of the maze as it is, dead ends masked."""
    policy = TabularSoftmax(maze.n_nodes, 3, legal=maze.legal)
    history = LearningHistory.from_sessions(bouts, windows=WINDOWS, feature_names=maze.names)
    return infer_reward(history, policy, gamma=gamma, **more)


def by_hand(
    bouts: list[Episode], maze: TreeMaze, gamma: float, kept: float, **more: Any
) -> RewardEstimate:
    """What it says of the folded maze."""
    history = LearningHistory.from_sessions(
        folded(bouts, maze), windows=WINDOWS, feature_names=maze.names
    )
    policy = TabularSoftmax(maze.n_junctions, 3)
    return infer_reward(history, policy, gamma=gamma, world=folded_world(maze, kept), **more)


def width(estimate: RewardEstimate) -> float:
    """Of the 95% intervals, in the mean."""
    return float(np.ptp(estimate.interval(0.95), axis=1).mean())


def main() -> None:
    """Print one line per animal, and what they come to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--animals", type=int, default=24)
    parser.add_argument("--first", type=int, default=2000)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--gamma", type=float, default=0.9)
    options = parser.parse_args()
    maze, gamma = TreeMaze(options.depth), options.gamma
    known = KnownWorld(maze.successors, [maze.port])
    rows = []
    for seed in range(options.first, options.first + options.animals):
        bouts = animal(seed, maze)
        one = masked(bouts, maze, gamma, world=known)
        exact, forgetful = (by_hand(bouts, maze, gamma, kept) for kept in (gamma, 1.0))
        counted = masked(bouts, maze, gamma)
        apart = [float(np.abs(one.weights - e.weights).max()) for e in (exact, forgetful)]
        same = [one.status is e.status for e in (exact, forgetful)]
        explained = one.status is Status.OK
        rows.append((explained, *apart, *same, width(one), width(counted)))
        print(
            f"{seed}: {one.status.name}; folded: weights {apart[0]:.3f} apart, {exact.status.name};"
            f" time forgotten: {apart[1]:.3f}, {forgetful.status.name}; widths: known "
            f"{rows[-1][5]:.2f}, counted {rows[-1][6]:.2f}",
            flush=True,
        )
    table = np.array(rows, dtype=float)
    for name, at, same in (("folded", 1, 3), ("folded, time forgotten", 2, 4)):
        explained = table[:, 0] == 1
        print(
            f"{name}: apart at most {table[explained, at].max():.3f} where explained, "
            f"{table[:, at].max():.3f} anywhere; same status {table[:, same].mean():.2f}"
        )
    print(f"mean width: known {table[:, 5].mean():.3f}, counted {table[:, 6].mean():.3f}")


if __name__ == "__main__":
    main()
