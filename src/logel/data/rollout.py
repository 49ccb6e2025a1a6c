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
    """

    observations: Array
    actions: Array
    terminated: Array
    truncated: Array | None = None
    next_observations: Array | None = None
    features: Array | None = None

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
        following = self.next_observations
        return Stage(
            observations=_by_environment(self.observations),
            actions=_by_environment(self.actions),
            lengths=np.diff(ends, prepend=-1),
            terminated=terminated.T.reshape(-1)[ends],
            last_observations=None if following is None else _by_environment(following)[ends],
            features=None if self.features is None else _by_environment(self.features),
            parameters=parameters,
        )


def _by_environment(values: Array) -> Array:
    """Shape (n * T, ...), environment-major."""
    return values.swapaxes(0, 1).reshape(-1, *values.shape[2:])


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
