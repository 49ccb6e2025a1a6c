"""From the arrays of a training loop to a stage of a history.

Vectorised training loops hold one array per quantity, times first and environments second. A
`Rollout` is such a batch, checked; `record_stage` cuts it into episodes and appends them to a
history on disk. It is all that a hand-written training loop needs:

    with HistoryWriter("history", feature_names=names) as writer:
        for update in range(n_updates):
            ...  # act, and train on what happened
            record_stage(writer, Rollout(observations, actions, terminated=terminated,
                                         truncated=truncated, next_observations=following,
                                         features=features), parameters=theta_before_training)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from logel.data.folder import HistoryWriter
from logel.data.stage import Episode, Stage
from logel.errors import HistoryError
from logel.types import Array


@dataclass(frozen=True, eq=False)
class Rollout:
    """What one policy did in several environments side by side, T steps in each of n.

    Attributes:
        observations: Shape (T, n, ...), as the policy saw them.
        actions: Shape (T, n) for discrete actions (integers) or (T, n, k), as the policy chose
            them, before any clipping.
        terminated: Shape (T, n), where the step ended the episode for good.
        truncated: Shape (T, n), where the step ended the episode by a time limit. None: nowhere.
        next_observations: Shape (T, n, ...), the state each step led to: at the end of an episode
            its last state, not the first of the next. None if not seen.
        features: Reward features of every step, shape (T, n, q), or None.
        action_masks: Which actions were legal, booleans of shape (T, n, n_actions), or None.
    """

    observations: Array
    actions: Array
    terminated: Array
    truncated: Array | None = None
    next_observations: Array | None = None
    features: Array | None = None
    action_masks: Array | None = None

    def __post_init__(self) -> None:
        arrays = {
            name: np.asarray(value) for name, value in vars(self).items() if value is not None
        }
        self.__dict__.update(arrays)  # frozen for everyone else
        if self.actions.ndim < 2 or 0 in self.actions.shape[:2]:
            raise HistoryError(
                f"actions of a rollout must have shape (T, n, ...), but have {self.actions.shape}"
            )
        shape = self.actions.shape[:2]
        for name, array in arrays.items():
            if array.shape[:2] != shape:
                raise HistoryError(
                    f"{name} must start with the shape {shape} of the actions, but have shape "
                    f"{array.shape}"
                )
            if name in ("terminated", "truncated") and array.shape != shape:
                raise HistoryError(f"{name} must have shape {shape}, but have {array.shape}")

    def stage(self, parameters: Array | None = None) -> Stage:
        """The episodes, environment after environment.

        Episodes are cut where they ended and at the rollout's end; a piece cut by the rollout's
        end counts as truncated, and one that began before the rollout starts with its first
        observation: what came before was another policy's.
        """
        terminated = self.terminated.astype(bool)
        ended = terminated if self.truncated is None else terminated | self.truncated.astype(bool)
        ended = ended.copy()
        ended[-1] = True
        ends = np.flatnonzero(ended.T)
        following, masks = self.next_observations, self.action_masks
        return Stage(
            observations=_by_environment(self.observations),
            actions=_by_environment(self.actions),
            lengths=np.diff(ends, prepend=-1),
            terminated=terminated.T.reshape(-1)[ends],
            last_observations=None if following is None else _by_environment(following)[ends],
            features=None if self.features is None else _by_environment(self.features),
            parameters=parameters,
            action_masks=None if masks is None else _by_environment(masks),
        )


def _by_environment(values: Array) -> Array:
    """Shape (n * T, ...), environment-major."""
    return values.swapaxes(0, 1).reshape(-1, *values.shape[2:])


@dataclass(frozen=True, eq=False)
class Grid:
    """Where a rollout's times and environments are in its stage.

    Attributes:
        rows: Row of the stage, shape (T, n).
        episodes: Episode of the stage, shape (T, n).
        dones: Whether the step ended an episode, for good or by a time limit, shape (T, n).
        timeouts: Whether it was by a time limit, shape (T, n).
    """

    rows: Array
    episodes: Array
    dones: Array
    timeouts: Array


def grid_of(stage: Stage, n_envs: int, continues: Sequence[bool] | None = None) -> Grid:
    """The rollout that a stage was cut from (`Rollout.stage`).

    Args:
        stage: Its pieces lie environment after environment.
        n_envs: Number n of environments.
        continues: For every environment, whether its last episode went on after the rollout. A
            stage cannot tell that from a time limit at the rollout's end: by default all did
            that were not terminated.

    Raises:
        HistoryError: If the pieces do not fill as many times in each environment.
    """
    fits = 0 < n_envs <= stage.n_steps and stage.n_steps % n_envs == 0
    n_times = stage.n_steps // n_envs if fits else stage.n_steps
    ends = np.cumsum(stage.lengths)
    borders = np.arange(n_times, stage.n_steps + 1, n_times)
    if not fits or not np.isin(borders, ends).all():
        raise HistoryError(
            f"{stage.n_steps} steps in {stage.n_episodes} episodes are no rollout of {n_envs} "
            "environments: record whole rollouts, or give their number of environments"
        )
    episodes = np.repeat(np.arange(stage.n_episodes), stage.lengths)
    dones = np.zeros(stage.n_steps, dtype=bool)
    dones[ends - 1] = True
    dones[borders - 1] = ~_continues(stage.terminated[episodes[borders - 1]], continues)
    timeouts = dones & ~stage.terminated[episodes]
    rows = np.arange(stage.n_steps)
    parts = (rows, episodes, dones, timeouts)
    return Grid(*(part.reshape(n_envs, n_times).T for part in parts))


def _continues(terminated: Array, continues: Sequence[bool] | None) -> Array:
    """Whether each environment's last episode goes on, checked against those that ended."""
    if continues is None:
        return ~terminated
    # From notes, which may hold anything.
    told = isinstance(continues, Sequence | np.ndarray) and len(continues) == len(terminated)
    if not told or not all(isinstance(flag, bool | np.bool_) for flag in continues):
        raise HistoryError(
            f"continues must be true or false for each of {len(terminated)} environments"
        )
    flags = np.array(continues, dtype=bool)
    if (flags & terminated).any():
        i = int(np.flatnonzero(flags & terminated)[0])
        raise HistoryError(f"environment {i} is said to go on after its episode terminated")
    return flags


def record_stage(
    writer: HistoryWriter,
    data: Rollout | Stage | Sequence[Episode],
    *,
    parameters: npt.ArrayLike | None = None,
    learning_rate: float | None = None,
    notes: Mapping[str, Any] | None = None,
) -> Stage:
    """Append what one policy did to a history.

    Args:
        writer: Of the history.
        data: A rollout, or a list of episodes, or a stage.
        parameters: Flat parameters of the policy that acted: those before it was trained on the
            data. None if unknown.
        learning_rate: Rate of the step that led to this policy, if known.
        notes: Facts worth keeping about the stage, JSON-serialisable.

    Returns:
        The stage as written.
    """
    theta = None if parameters is None else np.asarray(parameters, dtype=np.float64)
    if isinstance(data, Stage):
        stage = data if theta is None else replace(data, parameters=theta)
    elif isinstance(data, Rollout):
        stage = data.stage(theta)
    else:
        stage = Stage.from_episodes(list(data), theta)
    writer.append(stage, learning_rate=learning_rate, notes=notes)
    return stage
