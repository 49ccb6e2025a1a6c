"""Who drives at the crossroad: a set of rules with parameters, and a linear policy that clones it.

The rules look at the gaps in the traffic and say GO or YIELD; no derivative exists. An observer
stands a linear softmax policy in for them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logel.data.history import LearningHistory
from logel.data.stage import Episode
from logel.envs.crossroad.world import (
    DISTANCE_GAPS,
    GO,
    MAX_DISTANCE_GAP,
    OBSERVATION_NAMES,
    START_DISTANCE,
    TIME_GAPS,
    YIELD,
    Crossroad,
)
from logel.errors import OptionError, PolicyError
from logel.policies.cloned_path import clone
from logel.policies.cloning import CloneConfig
from logel.policies.softmax import LinearSoftmax
from logel.types import Float

PARAMETER_NAMES = (
    "time gap left",
    "time gap right",
    "time gap turning",
    "distance gap",
    "decision distance",
)
# A careless beginner: a second, five metres, and eyes on the traffic from 40 m on.
START = (1.0, 1.0, 1.0, 5.0, 40.0)
SIGMA = (0.7, 0.7, 0.7, 3.5, 7.0)
N_CLONE = 6


@dataclass(frozen=True)
class RuleDriver:
    """GO when far from the line, or when every gap is large enough; else YIELD.

    Attributes:
        time_gaps: Least time gap, in seconds, for each stream of traffic.
        distance_gap: Least distance, in metres, of any car from where the paths meet.
        decision_distance: Metres before the line from which on the traffic is looked at.
    """

    time_gaps: tuple[float, float, float]
    distance_gap: float
    decision_distance: float

    @classmethod
    def from_parameters(cls, parameters: npt.ArrayLike) -> RuleDriver:
        """From a flat vector, in the order of `PARAMETER_NAMES`."""
        values = np.asarray(parameters, dtype=float)
        if values.shape != (len(PARAMETER_NAMES),) or not np.isfinite(values).all():
            raise OptionError(
                f"the rules have {len(PARAMETER_NAMES)} finite parameters, but got {values}"
            )
        left, right, turning, distance, decision = values.tolist()
        return cls((left, right, turning), distance, decision)

    def act(self, observation: Float) -> int:
        """GO or YIELD."""
        if observation[0] > self.decision_distance:
            return GO
        clear = bool(
            (observation[TIME_GAPS] >= self.time_gaps).all()
            and (observation[DISTANCE_GAPS] >= self.distance_gap).all()
        )
        return GO if clear else YIELD


def drive(env: Crossroad, parameters: npt.ArrayLike, seed: int) -> Episode:
    """Play an episode by the rules; beyond the line, where nothing is decided, the action is GO."""
    driver = RuleDriver.from_parameters(parameters)
    observation, info = env.reset(seed=seed)
    observations, actions, features = [observation], [], []
    terminated = truncated = False
    while not (terminated or truncated):
        action = driver.act(observation) if info["decides"] else GO
        observation, _, terminated, truncated, info = env.step(action)
        observations.append(observation)
        actions.append(action)
        features.append(info["features"])
    return Episode(np.stack(observations), np.array(actions), np.stack(features), terminated)


@dataclass(frozen=True, eq=False)
class CloneFeatures:
    """State features of the clone, shape (N, 6).

    A constant, distance to the line, speed, least time gap, least distance gap, and exp(-least
    time gap), each about unit size, then mixed by `mixing`. All are zero beyond the line: there GO
    is forced, and no score may come from it.

    Attributes:
        mixing: Shape (6, 6).
    """

    mixing: Float

    def __call__(self, observations: npt.ArrayLike, /) -> Float:
        """Features of N observations."""
        table = np.asarray(observations, dtype=float).reshape(-1, len(OBSERVATION_NAMES))
        time, distance = table[:, TIME_GAPS].min(axis=1), table[:, DISTANCE_GAPS].min(axis=1)
        # 10 m/s and 5 s are typical; a gap that closed a second ago says all there is to say.
        columns = [
            np.ones(len(table)),
            table[:, 0] / START_DISTANCE,
            table[:, 1] / 10.0,
            time / 5.0,
            distance / MAX_DISTANCE_GAP,
            np.exp(-np.maximum(time, -1.0)),
        ]
        return np.asarray(np.stack(columns, axis=1) @ self.mixing) * (table[:, :1] > 0)


def plain_clone() -> LinearSoftmax:
    """A linear policy over the features as they are."""
    return LinearSoftmax(N_CLONE, 2, feature_map=CloneFeatures(np.eye(N_CLONE)))


def even_clone(history: LearningHistory) -> LinearSoftmax:
    """The linear policy with which an observer clones the rules.

    The features are mixed such that the Fisher information, pooled over the history's stages, is
    the same in all directions. The gaps are strongly correlated: in plain features a parameter's
    size says little about how much the policy changes, cloning noise is a hundred times larger in
    some directions than in others, and the gradient points elsewhere than the natural gradient,
    which no choice of features can turn. Only observed data enter.
    """
    plain = plain_clone()
    path = clone(history, plain, CloneConfig(holdout=0.0))
    information, n_episodes = np.zeros((N_CLONE, N_CLONE)), 0
    for stage, found in zip(history, path.clones, strict=True):
        information += found.fisher.dense()
        n_episodes += stage.n_episodes
    values, vectors = np.linalg.eigh(information / n_episodes)
    # Less than this is rounding error: the direction was never seen to vary.
    if not values[0] > 1e-9 * values[-1]:
        raise PolicyError("the observed gaps do not vary enough to clone the driver: watch more")
    return LinearSoftmax(N_CLONE, 2, feature_map=CloneFeatures(vectors / np.sqrt(values)))
