"""What a rule asks of a world: what the stages say of a policy, and what the return does around it.

A world has pooled all stages. Its parameters are those of the policy family, shape (d,); weights of
the q features come in the features the world was given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from logel.types import Array, Float
from logel.worlds.products import Climb

# Groups of episodes left out of a pooled world in turn: each costs a fit.
N_GROUPS = 10
# Bytes of a row beyond which its digest stands for it.
_LONG_KEY = 4096


@dataclass(frozen=True, eq=False)
class Observation:
    """What one stage's actions say about the state behind them, to second order."""

    score: Float  # derivative of the stage's log-likelihood, shape (D,)
    factor: Float  # block-diagonal factor L of its information L @ L.T, shape (B, D / B, width)

    @classmethod
    def of(cls, score: Float, information: Float) -> Observation:
        """From information in full, shape (D, D)."""
        values, vectors = np.linalg.eigh(information)
        return cls(score, (vectors * np.sqrt(np.clip(values, 0, None)))[None])

    def times(self, rows: Float) -> Float:
        """Rows (k, D) times the block-diagonal factor, shape (k, B width)."""
        n, height, width = self.factor.shape
        blocks = rows.reshape(-1, n, height).transpose(1, 0, 2)
        return np.matmul(blocks, self.factor).transpose(1, 0, 2).reshape(len(rows), n * width)

    def information_times(self, vector: Float) -> Float:
        """Information matrix times a vector (D,)."""
        inner = self.times(vector[None])[0].reshape(len(self.factor), -1, 1)
        return np.matmul(self.factor, inner).reshape(-1)


@dataclass(frozen=True, eq=False)
class Landscape:
    """The return around the parameters of m stages."""

    # How parameters move per unit of every weight, shape (m, d, q): the Jacobian Psi of the feature
    # expectations, or what a preconditioner makes of it.
    design: Float
    # Computes `noise`: it costs as much as the design, and most rounds do not ask.
    noise_of: Callable[[], Float]
    # Derivative of design @ weights, shape (m, d, d), or None when it is not known: then designs
    # are held fixed inside a round and refreshed between rounds.
    curvature: Float | None = None
    # What weights that go with this design are to be multiplied by to go with true rates.
    unit: float = 1.0
    # Computes `batch`, or None where the world does not look that close.
    batch_of: Callable[[], Float] | None = None

    @cached_property
    def batch(self) -> Float:
        """The same of a learner's own batch, (m, d, d): what decides where steps are seen."""
        return self.noise if self.batch_of is None else self.batch_of()

    @cached_property
    def noise(self) -> Float:
        """Covariance, up to scale, of a sampled step, shape (m, d, d)."""
        return self.noise_of()

    def preconditioned(self, matrix: Float, unit: float = 1.0) -> Landscape:
        """The same with every gradient multiplied by a symmetric matrix, (m, d, d).

        The matrix counts as fixed: its own derivative is left out.
        """
        curvature = None if self.curvature is None else matrix @ self.curvature
        return Landscape(
            matrix @ self.design,
            lambda: matrix @ self.noise @ matrix,
            curvature,
            unit,
            lambda: matrix @ self.batch @ matrix,
        )


class World(ABC):
    """What all stages show about a policy family's parameters and the return around them."""

    offers: ClassVar[tuple[str, ...]] = ("gradient", "natural", "adam")
    """Names of the rules that can be asked of it, the plainest first."""
    smooth_steps: ClassVar[bool] = False
    """Whether a random walk's path is always a good start: steps are small against what is seen."""
    noise_floor: ClassVar[float] = 1e-3
    """Share of a step's noise that every direction has, whatever the sampled shape says."""

    @property
    @abstractmethod
    def n_features(self) -> int:
        """Number q of reward features."""

    @property
    @abstractmethod
    def n_stages(self) -> int:
        """Number m + 1 of stages."""

    @property
    @abstractmethod
    def n_parameters(self) -> int:
        """Number d of policy parameters."""

    @property
    def n_blocks(self) -> int:
        """Equal parts of the parameters that actions speak of independently."""
        return 1

    def spread_out(self, k: int) -> npt.NDArray[np.int64]:
        """Each block's team of k, shape (n_blocks,): those of a team have little to do together."""
        return np.arange(self.n_blocks) % k

    @abstractmethod
    def with_features(self, basis: Float) -> Self:
        """The same world with features multiplied by a matrix, shape (q, k)."""

    @abstractmethod
    def with_actions_of(self, other: Self) -> Self:
        """This world, with another's stages to explain."""

    @abstractmethod
    def observe(self, stage: int, parameters: Float) -> Observation:
        """What a stage's actions say about parameters (d,)."""

    @abstractmethod
    def log_likelihood(self, parameters: Float) -> float:
        """Of all stages' actions along a path (m + 1, d)."""

    @abstractmethod
    def gradient(self, parameters: Float, weights: Float, *, curved: bool = False) -> Landscape:
        """The landscape at the parameters (m, d) of the first m stages, for weights (q,).

        The curvature is computed only if asked for, and only where it can be.
        """

    @abstractmethod
    def natural(self, parameters: Float, weights: Float, *, curved: bool = False) -> Landscape:
        """The same in units of how much the policy changes: the inverse information times it."""

    def climb(self, kind: str, parameters: Float, weights: Float) -> Climb | None:
        """The landscape "gradient" or "natural" in products, where the world has it so.

        It has the curvature in it, and no array of order d x d.
        """
        return None

    def at(self, parameters: Float) -> Self:
        """The world with what it holds fixed inside a round renewed at parameters (m, d)."""
        return self

    def n_groups(self, fewest: int) -> int:
        """Groups of episodes that can be left out in turn, if no stage has fewer episodes."""
        # Two would say nothing about a spread.
        return min(N_GROUPS, fewest) if fewest >= 3 else 0

    @abstractmethod
    def leaving_out(self, group: int, pool: Callable[[], Any], policies: Float) -> Self:
        """The world without a group of episodes; the actions to be explained are all there.

        Args:
            group: Which.
            pool: Pools the other episodes anew, where that is needed.
            policies: The path (m + 1, d) around which the world is to be known.
        """


def natural_of(landscape: Landscape, information: Float) -> Landscape:
    """Gradients times the inverse information (m, d, d), a little damped."""
    d = information.shape[1]
    size = np.einsum("mii->m", information) / d
    # Directions the stages say nothing of must not blow up: a millionth of the mean damps them.
    damped = information + (1e-6 * size + 1e-300)[:, None, None] * np.eye(d)
    # In units of the mean information, so that weights have about the same size under all rules,
    # which the prior of a smoother starts from.
    unit = float(np.median(size))
    inverse = unit * np.linalg.inv(damped)
    return landscape.preconditioned((inverse + np.swapaxes(inverse, 1, 2)) / 2, unit)


def row_keys(rows: Array) -> Array:
    """One opaque value for each row, equal where rows are."""
    rows = np.ascontiguousarray(rows)
    if rows.nbytes > _LONG_KEY * max(len(rows), 1):
        # Frames are told apart by digests: nobody can make two with the same one.
        flat = rows.view(np.uint8).reshape(len(rows), -1)
        return np.array([blake2b(row.data, digest_size=16).digest() for row in flat], dtype="V16")
    flat = rows.reshape(len(rows), -1)
    if flat.dtype.kind == "f":
        flat = flat + flat.dtype.type(0)  # minus zero is zero
    return flat.view(np.dtype((np.void, flat.itemsize * flat.shape[1]))).reshape(-1)
