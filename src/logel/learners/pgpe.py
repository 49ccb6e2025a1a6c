"""Policy gradients with parameter-based exploration (Sehnke et al., 2010), for any episodic return.

The learner keeps a normal distribution over the parameters of its policy, plays whole episodes
with parameters drawn from it, and moves the distribution uphill. The policy itself may be
anything: a set of rules, a program. Draws come in pairs, mirrored at the mean, and both members of
a pair meet the same random numbers, so that what they have in common cancels.

What an observer sees of a stage are episodes with fresh draws from the distribution: that is the
policy which learns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from logel.data.history import LearningHistory
from logel.data.stage import Episode, Stage
from logel.errors import OptionError
from logel.types import Float

EpisodicReturn = Callable[[Float, int], float]
"""Plays an episode with parameters (k,) and a seed; returns what it earned."""
Rollout = Callable[[Float, int], Episode]
"""Plays an episode with parameters (k,) and a seed; returns it with its features."""
# A distribution narrower than this share of its first width explores no more.
_NARROWEST = 0.05


@dataclass(frozen=True, eq=False)
class Search:
    """A normal distribution over policy parameters, independent in every coordinate.

    Attributes:
        mean: Shape (k,).
        sigma: Standard deviations, shape (k,).
    """

    mean: Float
    sigma: Float

    def __post_init__(self) -> None:
        mean, sigma = (np.asarray(v, dtype=float) for v in (self.mean, self.sigma))
        if mean.ndim != 1 or sigma.shape != mean.shape or not np.isfinite(mean).all():
            raise OptionError(
                f"mean and sigma must be flat, finite and of one length: {mean.shape}, "
                f"{sigma.shape}"
            )
        if not (np.isfinite(sigma) & (sigma > 0)).all():
            raise OptionError(f"sigma must be positive, but is {sigma}")
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "sigma", sigma)

    def sample(self, rng: np.random.Generator) -> Float:
        """One draw, shape (k,)."""
        return np.asarray(rng.normal(self.mean, self.sigma))


@dataclass(frozen=True)
class PGPE:
    """The learner's choices.

    Parameters are measured in units of the search distribution's first standard deviations, so
    that learning rates mean the same for all of them.

    Attributes:
        n_pairs: Mirrored pairs of draws per update.
        n_episodes: Episodes every draw plays.
        learning_rate: Of the mean.
        sigma_rate: Of the standard deviations; 0 keeps them.
    """

    n_pairs: int = 10
    n_episodes: int = 5
    learning_rate: float = 7.0
    sigma_rate: float = 0.0

    def __post_init__(self) -> None:
        if self.n_pairs < 1 or self.n_episodes < 1:
            raise OptionError(
                f"n_pairs and n_episodes must be at least 1: {self.n_pairs}, {self.n_episodes}"
            )
        if not self.learning_rate > 0 or not self.sigma_rate >= 0:
            raise OptionError(
                "learning_rate must be positive and sigma_rate not negative: "
                f"{self.learning_rate}, {self.sigma_rate}"
            )

    def run(
        self, earned: EpisodicReturn, start: Search, rng: np.random.Generator
    ) -> Iterator[Search]:
        """Yield the search distribution before learning and after every update, without end."""
        unit, search = start.sigma, start
        while True:
            yield search
            search = self._update(earned, search, unit, rng)

    def _update(
        self, earned: EpisodicReturn, search: Search, unit: Float, rng: np.random.Generator
    ) -> Search:
        width = search.sigma / unit
        offsets = width * rng.standard_normal((self.n_pairs, len(unit)))
        seeds = rng.integers(2**31, size=(self.n_pairs, self.n_episodes))
        returns = np.array(
            [
                [self._mean_return(earned, search.mean + side * unit * o, s) for side in (1, -1)]
                for o, s in zip(offsets, seeds, strict=True)
            ]
        )
        slopes = (returns[:, 0] - returns[:, 1]) / 2
        gradient = (slopes[:, None] * offsets).mean(axis=0) / width**2
        surprise = returns.mean(axis=1) - returns.mean()
        widening = (surprise[:, None] * (offsets**2 - width**2)).mean(axis=0) / width**3
        wider = np.maximum(width + self.sigma_rate * widening, _NARROWEST)
        return Search(search.mean + self.learning_rate * unit * gradient, unit * wider)

    def _mean_return(self, earned: EpisodicReturn, parameters: Float, seeds: Float) -> float:
        return float(np.mean([earned(parameters, int(seed)) for seed in seeds]))


def discounted_return(episode: Episode, weights: Float, gamma: float) -> float:
    """What an episode earned, from its features."""
    if episode.features is None:
        raise OptionError("the episode has no features: record them while playing")
    return float(gamma ** np.arange(len(episode)) @ (episode.features @ weights))


def learn(
    learner: PGPE,
    rollout: Rollout,
    *,
    start: Search,
    weights: npt.ArrayLike,
    gamma: float,
    n_steps: int,
    seed: int | np.random.SeedSequence = 0,
) -> list[Search]:
    """Let PGPE maximise a reward: the search distributions of stages 0..n_steps.

    It plays by `rollout`, from the search distribution `start` on, for the true reward `weights`,
    shape (q,); draws and episodes come from the seed.
    """
    if n_steps < 1:
        raise OptionError(f"n_steps must be at least 1, but is {n_steps}")
    truth = np.asarray(weights, dtype=float)

    def earned(parameters: Float, seed: int) -> float:
        return discounted_return(rollout(parameters, seed), truth, gamma)

    steps = learner.run(earned, start, np.random.default_rng(seed))
    return list(islice(steps, n_steps + 1))


def random_walk(
    start: Search, *, length: float, n_steps: int, seed: int | np.random.SeedSequence = 0
) -> list[Search]:
    """A learner that wants nothing: steps of one length in random directions.

    The standard deviations of `start` are the unit of the steps.
    """
    rng = np.random.default_rng(seed)
    path = [start]
    for _ in range(n_steps):
        direction = rng.standard_normal(len(start.mean))
        direction *= length / np.linalg.norm(direction)
        path.append(Search(path[-1].mean + start.sigma * direction, start.sigma))
    return path


def watch(
    path: Sequence[Search],
    rollout: Rollout,
    *,
    n_episodes: int,
    feature_names: Sequence[str],
    seed: int | np.random.SeedSequence = 0,
    metadata: Mapping[str, Any] | None = None,
) -> LearningHistory:
    """What an observer sees of a path of search distributions: fresh episodes, no parameters.

    Every episode of a stage has a draw of its own. Take another seed than the learner's.
    """
    if n_episodes < 1:
        raise OptionError(f"n_episodes must be at least 1, but is {n_episodes}")
    rng = np.random.default_rng(seed)
    stages = []
    for search in path:
        draws = ((search.sample(rng), int(rng.integers(2**31))) for _ in range(n_episodes))
        stages.append(Stage.from_episodes([rollout(*draw) for draw in draws]))
    return LearningHistory.from_stages(
        stages, feature_names=feature_names, metadata=dict(metadata or {})
    )


def describe(learner: PGPE) -> dict[str, Any]:
    """The learner's choices as plain values, for a history's metadata."""
    return {"learner": "PGPE", "learner_config": asdict(learner)}
