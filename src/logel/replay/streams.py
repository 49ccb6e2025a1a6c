"""Rollouts as a learner would have had them, of episodes that somebody else recorded."""

from __future__ import annotations

import numpy as np

from logel.data.stage import Stage, taken
from logel.types import Array


class Streams:
    """The environments of a learner, each somewhere in an episode.

    A rollout ends within episodes and the next one goes on there: with a time limit of 100 steps
    and rollouts of 50, every other rollout has no beginnings. What an update does depends on it.

    Args:
        n_envs: Environments side by side.
        n_steps: Times of a rollout, in each of them.
    """

    def __init__(self, n_envs: int, n_steps: int) -> None:
        self.n_steps = n_steps
        self.places = np.zeros(n_envs, dtype=int)

    def rollout(self, stage: Stage, episodes: Array, rng: np.random.Generator) -> Stage:
        """The next rollout, of some of a stage's episodes, each as often as the others.

        Where no episode lasts as long as the learner's had lasted, a new one is begun.
        """
        lengths, starts = stage.lengths, stage.starts
        # Ties are broken by chance.
        used = rng.random(len(lengths))
        first, count, of = [], [], []
        for env, place in enumerate(self.places):
            missing = self.n_steps
            while missing > 0:
                long = episodes[lengths[episodes] > place]
                if not len(long):
                    place, long = 0, episodes
                one = long[np.argmin(used[long])]
                used[one] += 1
                n = min(int(lengths[one]) - place, missing)
                first.append(starts[one] + place)
                count.append(n)
                of.append(one)
                missing -= n
                place = place + n if place + n < lengths[one] else 0
            self.places[env] = place
        return _pieces(stage, np.array(first), np.array(count), np.array(of))


def _pieces(stage: Stage, first: Array, count: Array, of: Array) -> Stage:
    """Pieces of episodes as a stage; those that are cut short go on."""
    rows = np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())
    ends = first + count - 1
    whole = ends == stage.starts[of] + stage.lengths[of] - 1
    # Where no last observation was seen all episodes ended for good: nobody asks what followed.
    seen = stage.last_observations is not None
    following = stage.next_observations() if seen else np.roll(stage.observations, -1, axis=0)
    return Stage(
        observations=stage.observations[rows],
        actions=stage.actions[rows],
        lengths=count,
        terminated=stage.terminated[of] & whole,
        last_observations=following[ends],
        features=taken(stage.features, rows),
        parameters=stage.parameters,
    )
