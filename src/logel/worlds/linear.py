"""Linear softmax policies in a world of finitely many observations: exact, like a tabular one.

When only a few different observations ever occur, they serve as states whatever the policy family
makes of them: transitions and features are pooled as in any tabular world. A policy whose logits
are linear in its parameters then moves on a plane inside the space of all logits, and Jacobian,
curvature and noise are those of the tabular learner, pulled back to the plane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from logel.data.stage import Stage
from logel.policies.softmax import LinearSoftmax, TabularSoftmax
from logel.types import Float
from logel.worlds.base import Landscape, Observation, World, natural_of, row_keys
from logel.worlds.counting import pool_world
from logel.worlds.legal import Slots
from logel.worlds.table import TabularWorld, softmax_information

# More different observations than this are not worth a table.
MOST_OBSERVATIONS = 150


def distinct_observations(
    stages: Iterable[Stage], *, most: int = MOST_OBSERVATIONS
) -> npt.NDArray[np.generic] | None:
    """All different observations of the stages, shape (S, ...), or None if there are too many."""
    found: npt.NDArray[np.generic] | None = None
    for stage in stages:
        parts = [stage.observations]
        if stage.last_observations is not None:
            parts.append(stage.last_observations)
        if found is not None:
            parts.append(found)
        rows = np.concatenate(parts)
        # Look at a few rows first: a continuous world shows itself at once.
        if len(np.unique(rows[: 4 * most], axis=0)) > most:
            return None
        found = np.unique(rows, axis=0)
        if len(found) > most:
            return None
    return found


def indexed(stages: Iterable[Stage], table: npt.NDArray[np.generic]) -> Iterator[Stage]:
    """The same stages with each observation replaced by its row in the table."""
    numbers = {key.tobytes(): index for index, key in enumerate(row_keys(table))}

    def lookup(observations: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
        keys = row_keys(observations.astype(table.dtype))
        return np.array([numbers[key.tobytes()] for key in keys], dtype=np.int64)

    for stage in stages:
        last = stage.last_observations
        yield replace(
            stage,
            observations=lookup(stage.observations),
            last_observations=None if last is None else lookup(last),
        )


@dataclass(frozen=True, eq=False)
class LinearWorld(World):
    """A pooled tabular world, seen through a linear softmax policy."""

    table: TabularWorld  # its states are the different observations
    coordinates: Float  # logits relative to the last action per parameter, shape (S (A - 1), d)

    @property
    def n_features(self) -> int:
        """Number q of reward features."""
        return self.table.n_features

    @property
    def n_stages(self) -> int:
        """Number m + 1 of stages."""
        return len(self.table.counts)

    @property
    def n_parameters(self) -> int:
        """Number d of policy parameters."""
        return self.coordinates.shape[1]

    def with_features(self, basis: Float) -> LinearWorld:
        """The same world with features multiplied by a matrix, shape (q, k)."""
        return replace(self, table=self.table.with_features(basis))

    def with_actions_of(self, other: LinearWorld) -> LinearWorld:
        """This world, with another's actions to explain."""
        return replace(self, table=self.table.with_actions_of(other.table))

    def leaving_out(
        self, group: int, pool: Callable[[], LinearWorld], policies: Float
    ) -> LinearWorld:
        """Pooled from the other episodes."""
        return pool().with_actions_of(self)

    def observe(self, stage: int, parameters: Float) -> Observation:
        """What a stage's actions say about parameters (d,)."""
        seen = self.table.observe(stage, self.coordinates @ parameters)
        n, height, _ = seen.factor.shape
        blocks = self.coordinates.reshape(n, height, -1)
        spread = np.matmul(np.swapaxes(blocks, 1, 2), seen.factor)
        information = np.tensordot(spread, spread, axes=([0, 2], [0, 2]))
        return Observation.of(self.coordinates.T @ seen.score, information)

    def log_likelihood(self, parameters: Float) -> float:
        """Of all stages' actions along a path (m + 1, d)."""
        return self.table.log_likelihood(parameters @ self.coordinates.T)

    def gradient(self, parameters: Float, weights: Float, *, curved: bool = False) -> Landscape:
        """The table's landscape on the plane."""
        j = self.coordinates
        whole = self.table.gradient(parameters @ j.T, weights, curved=curved)
        curvature = None if whole.curvature is None else j.T @ whole.curvature @ j
        return Landscape(
            j.T @ whole.design,
            lambda: j.T @ whole.noise @ j,
            curvature,
            batch_of=lambda: j.T @ whole.batch @ j,
        )

    def natural(self, parameters: Float, weights: Float, *, curved: bool = False) -> Landscape:
        """Gradients times the inverse information of a discounted episode."""
        flow = self.table.flow(parameters @ self.coordinates.T)
        blocks = flow.discounted[:, :, None, None] * softmax_information(flow.policy)
        rows = self.coordinates.reshape(*blocks.shape[1:3], -1)
        information = np.einsum("sid,msij,sje->mde", rows, blocks, rows, optimize=True)
        return natural_of(self.gradient(parameters, weights, curved=curved), information)


def linear_world(
    stages: Iterable[Stage],
    policy: LinearSoftmax,
    observations: npt.NDArray[np.generic],
    *,
    gamma: float,
) -> LinearWorld:
    """Pool the stages of a linear softmax policy over their different observations (S, ...)."""
    tabular = TabularSoftmax(len(observations), policy.n_actions)
    table = pool_world(indexed(stages, observations), tabular, gamma=gamma)
    inputs, legal = policy.state_features(observations), policy.legal_actions(observations)
    if legal is None:
        coordinates = np.kron(inputs, np.eye(policy.n_actions - 1))
        return LinearWorld(table, np.asarray(coordinates, dtype=float))
    slots = Slots.of(legal)
    rows = np.kron(inputs, np.eye(policy.n_actions, dtype=float)[:, :-1])
    whole = np.asarray(rows.reshape(len(observations), policy.n_actions, -1), dtype=float)
    return LinearWorld(slots.table(table), slots.relative(whole))
