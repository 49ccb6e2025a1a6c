"""Cohorts of foragers: is the thirsty group's weight of water larger, and only then?

    python -m benchmarks.forager_cohorts [--cohorts 20] [--first 0] [--each 6]

Groups of simulated animals (`logel.studies.foragers`, 31 nodes), `infer_group` and `Contrast`:
thirsty ones with others, and, twice as often, groups of one kind with each other.
"""

from __future__ import annotations

import argparse

from logel import Contrast, KnownWorld, LearningHistory, TabularSoftmax, infer_group
from logel.inference.group import GroupEstimate
from logel.learners.forager import Forager
from logel.studies.foragers import maze_of, watched

SIZE = "quick"


def group(first: int, n: int, *, thirsty: bool) -> list[LearningHistory]:
    """Histories of n animals of one kind."""
    seeds = range(2 * first + (not thirsty), 2 * (first + n) + (not thirsty), 2)
    return [watched(seed, SIZE)[1] for seed in seeds]


def fitted(histories: list[LearningHistory]) -> GroupEstimate:
    """What a group wants, the maze being known."""
    maze = maze_of(SIZE)
    return infer_group(
        histories,
        TabularSoftmax(maze.n_nodes, 3, legal=maze.legal),
        gamma=Forager.gamma,
        world=KnownWorld(maze.successors, terminal=[maze.port]),
    )


def water(one: GroupEstimate, other: GroupEstimate) -> tuple[float, float]:
    """The interval of the difference of the weights of water."""
    low, high = Contrast.of(one, other).interval(0.95)[0]
    return float(low), float(high)


def main() -> None:
    """Print one line per cohort, and how many differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cohorts", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first animal")
    parser.add_argument("--each", type=int, default=6, help="animals in a group")
    options = parser.parse_args()
    n, larger, differing = options.each, [], []
    for i in range(options.cohorts):
        first = options.first + 2 * n * i
        thirsty, others = (
            [fitted(group(at, n, thirsty=kind)) for at in (first, first + n)]
            for kind in (True, False)
        )
        low, high = water(thirsty[0], others[0])
        larger.append(low > 0)
        print(f"{first}: thirsty against others [{low:+.2f}, {high:+.2f}]", end="")
        for name, pair in (("thirsty", thirsty), ("others", others)):
            low, high = water(pair[0], pair[1])
            differing.append(low > 0 or high < 0)
            print(f"; {name} against {name} [{low:+.2f}, {high:+.2f}]", end="")
        print(flush=True)
    print(f"water weighs more for the thirsty in {sum(larger)} of {len(larger)} cohorts")
    print(f"groups of one kind differ in {sum(differing)} of {len(differing)}")


if __name__ == "__main__":
    main()
