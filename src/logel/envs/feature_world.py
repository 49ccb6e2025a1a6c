"""What worlds with exact answers share: options checked once, and episodes as plain arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from logel.data.stage import Stage
from logel.errors import OptionError, check_gamma
from logel.types import Array, Float


class FeatureWorld:
    """A world whose reward is `weights @ features`; a base of frozen dataclasses.

    Attributes:
        gamma: Discount factor, in [0, 1).
        feature_names: q names; left empty, they become "feature 0", "feature 1", ...
    """

    gamma: float
    feature_names: tuple[str, ...]

    @property
    def n_features(self) -> int:
        """The number of reward features, q."""
        raise NotImplementedError

    def checked_weights(self, weights: ArrayLike) -> Float:
        """Reward weights as an array, shape (q,)."""
        vector = np.asarray(weights, dtype=np.float64)
        if vector.shape != (self.n_features,) or not np.isfinite(vector).all():
            raise OptionError(
                f"weights must be {self.n_features} finite numbers, one per feature "
                f"{self.feature_names}, got {vector!r}."
            )
        return vector

    def _freeze(self, *names: str) -> None:
        """Replace arrays by read-only float64 copies, which must be finite."""
        for name in names:
            array = np.array(getattr(self, name), dtype=np.float64)
            if not np.isfinite(array).all():
                raise OptionError(f"{name} must be finite; it contains NaN or infinity.")
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    def _check_options(self) -> None:
        """Check the discount factor and the names, once the arrays are known to be sound."""
        check_gamma(self.gamma)
        q = self.n_features
        names = tuple(self.feature_names) or tuple(f"feature {i}" for i in range(q))
        if len(names) != q or len(set(names)) != q:
            raise OptionError(f"feature_names must be {q} different names, got {names}.")
        object.__setattr__(self, "feature_names", names)


class EpisodeArrays(NamedTuple):
    """Episodes of equal length, packed: N episodes of T times.

    Attributes:
        states: shape (N, T + 1), int64; the last column is the state after the last action. In
            continuous worlds (N, T + 1, n), float64.
        actions: shape (N, T), int64; in continuous worlds (N, T, k), float64.
        features: reward features of each time, shape (N, T, q), float64.
    """

    states: Array
    actions: Array
    features: Float

    def stage(self, parameters: ArrayLike | None = None) -> Stage:
        """The episodes as a stage, with the parameters of the policy if they are to be known."""
        n_episodes, horizon, n_features = self.features.shape
        rows = n_episodes * horizon
        return Stage(
            observations=self.states[:, :-1].reshape(rows, *self.states.shape[2:]),
            actions=self.actions.reshape(rows, *self.actions.shape[2:]),
            lengths=np.full(n_episodes, horizon),
            terminated=np.zeros(n_episodes, dtype=bool),
            last_observations=self.states[:, -1],
            features=self.features.reshape(rows, n_features),
            parameters=None if parameters is None else np.asarray(parameters),
        )


def at_least_one(value: int, name: str) -> int:
    """The value, refused if it is no count of anything."""
    if value < 1:
        raise OptionError(f"{name} must be at least 1, got {value}.")
    return value
