"""The steps of a learner in standard form: movement = rate * design @ weights + noise.

Whatever moves (parameters, or values of functions) and wherever the design comes from, a step is
brought to coordinates in which its noise is alike in all directions, and then compressed: an
orthogonal change of coordinates takes its (d, q + 1) numbers to (q + 1, q + 1) and leaves every
residual norm as it is. What groups of episodes say about a step travels with it, so that nothing
after this needs an episode or a parameter again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.linalg

from logel.data.packed import Packed
from logel.errors import IdentificationError, OptionError
from logel.types import Float


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a history in compressed form.

    Attributes:
        design: Triangular factors, shape (m, r, q) with r <= q + 1.
        delta: Matching movements, shape (m, r).
        n_parameters: The original d.
        squared_movement: ||delta[t]||^2 in the metric, shape (m,).
        noise: What sampling noise is expected to add to the Gram matrices of [design, delta],
            shape (m, q + 1, q + 1), for the closed forms to subtract; None to take the design as
            it is.
    """

    design: Float
    delta: Float
    n_parameters: int
    squared_movement: Float
    noise: Float | None = None

    @property
    def n_steps(self) -> int:
        """Number m of steps."""
        return self.design.shape[0]

    @property
    def n_features(self) -> int:
        """Number q of features."""
        return self.design.shape[2]

    def grams(self) -> Float:
        """Gram matrices of [design, delta] in the metric, shape (m, q + 1, q + 1)."""
        both = np.concatenate([self.design, self.delta[:, :, None]], axis=2)
        return np.asarray(np.swapaxes(both, 1, 2) @ both)

    def projected(self, basis: Float) -> Steps:
        """The same steps for weights `basis @ coordinates`; basis of shape (q, k)."""
        if is_identity(basis):
            return self
        noise = None
        if self.noise is not None:
            wide = beside_one(basis)
            noise = wide.T @ self.noise @ wide
        return replace(self, design=self.design @ basis, noise=noise)

    def part(self, at: slice) -> Steps:
        """Some of the steps; not a view of the others."""
        return replace(
            self,
            design=self.design[at].copy(),
            delta=self.delta[at].copy(),
            squared_movement=self.squared_movement[at].copy(),
            noise=None if self.noise is None else self.noise[at].copy(),
        )

    def weighed(self, roots: Float) -> Steps:
        """Every step multiplied by a number, shape (m,): the root of how much it counts."""
        squared = roots**2
        return replace(
            self,
            design=roots[:, None, None] * self.design,
            delta=roots[:, None] * self.delta,
            squared_movement=squared * self.squared_movement,
            noise=None if self.noise is None else squared[:, None, None] * self.noise,
        )

    def beside(self, other: Steps) -> Steps:
        """Each step and the other's of the same place as one that stands for both."""
        both = np.concatenate(
            [np.concatenate([s.design, s.delta[:, :, None]], axis=2) for s in (self, other)], axis=1
        )
        factor = np.asarray(np.linalg.qr(both, mode="r"), dtype=float)
        noise = None
        if self.noise is not None and other.noise is not None:
            noise = self.noise + other.noise
        return Steps(
            design=factor[:, :, :-1],
            delta=factor[:, :, -1],
            n_parameters=self.n_parameters + other.n_parameters,
            squared_movement=self.squared_movement + other.squared_movement,
            noise=noise,
        )

    def at_rate(self, rate: float) -> Steps:
        """The same steps as if made at rate one."""
        noise = self.noise
        if noise is not None:
            scale = np.append(np.full(self.n_features, rate), 1.0)
            noise = noise * np.outer(scale, scale)
        return replace(self, design=rate * self.design, noise=noise)

    def merged(self, learning_rates: Float) -> Steps:
        """One step that stands for all of them at the given rates (at rate one)."""
        both = np.concatenate(
            [learning_rates[:, None, None] * self.design, self.delta[:, :, None]], axis=2
        )
        factor = np.asarray(np.linalg.qr(both.reshape(-1, both.shape[2]), mode="r"), dtype=float)
        noise = None
        if self.noise is not None:
            scale = np.repeat(learning_rates[:, None], both.shape[2], axis=1)
            scale[:, -1] = 1.0
            noise = (scale[:, :, None] * scale[:, None, :] * self.noise).sum(axis=0)[None]
        return Steps(
            design=factor[None, :, :-1],
            delta=factor[None, :, -1],
            n_parameters=self.n_parameters * self.n_steps,
            squared_movement=self.squared_movement.sum()[None],
            noise=noise,
        )


def compress(
    delta: Float, design: Float, *, metric: Float | None = None, may_rest: bool = False
) -> Steps:
    """Bring each step to triangular form.

    Args:
        delta: Movements, shape (m, d).
        design: Shape (m, d, q).
        metric: How well delta is known, per step: None for the identity, (m, d) for a diagonal,
            (m, d, d) for a positive semi-definite matrix.
        may_rest: Accept steps none of which moves.
    """
    delta, design = np.asarray(delta, dtype=float), np.asarray(design, dtype=float)
    if delta.ndim != 2 or design.ndim != 3 or design.shape[:2] != delta.shape:
        raise OptionError(
            f"delta must be (m, d) and design (m, d, q), but are {delta.shape} and {design.shape}"
        )
    if not (np.isfinite(delta).all() and np.isfinite(design).all()):
        raise OptionError("delta and design must be finite")
    both = np.concatenate([design, delta[:, :, None]], axis=2)
    if metric is not None:
        both = _whiten(both, np.asarray(metric, dtype=float))
    squared = (both[:, :, -1] ** 2).sum(axis=1)
    if not (may_rest or (squared > 0).any()):
        raise IdentificationError(
            "the parameters do not move between stages: there is nothing to explain"
        )
    factor = np.asarray(np.linalg.qr(both, mode="r"), dtype=float)
    return Steps(
        design=factor[:, :, :-1],
        delta=factor[:, :, -1],
        n_parameters=delta.shape[1],
        squared_movement=squared,
    )


def compress_grams(grams: Float, *, n_parameters: int) -> Steps:
    """Steps known through their Gram matrices of [design, delta] in the metric.

    For metrics that can be multiplied with but have no root within reach. Half the digits of
    `compress` remain.

    Args:
        grams: Shape (m, q + 1, q + 1), positive semi-definite.
        n_parameters: The number d behind them.
    """
    scale = np.sqrt(np.maximum(np.einsum("mii->mi", grams), 0.0))
    safe = np.where(scale > 0, scale, 1.0)
    values, vectors = np.linalg.eigh(grams / safe[:, :, None] / safe[:, None, :])
    roots = np.sqrt(np.clip(values, 0, None))[:, :, None] * np.swapaxes(vectors, 1, 2)
    factor = np.asarray(np.linalg.qr(roots * scale[:, None, :], mode="r"), dtype=float)
    return Steps(
        design=factor[:, :, :-1],
        delta=factor[:, :, -1],
        n_parameters=n_parameters,
        squared_movement=scale[:, -1] ** 2,
    )


def _whiten(both: Float, metric: Float) -> Float:
    """Multiply every step by a square root of its metric."""
    if metric.shape == both.shape[:2]:
        if (metric < 0).any():
            raise OptionError("a diagonal metric must not be negative")
        return np.sqrt(metric)[:, :, None] * both
    if metric.shape == (*both.shape[:2], both.shape[1]):
        values, vectors = np.linalg.eigh(metric)
        floor = -1e-8 * np.abs(values).max(initial=0.0)
        if (values < floor).any():
            raise OptionError("the metric must be positive semi-definite")
        roots = np.sqrt(np.clip(values, 0, None))
        return roots[:, :, None] * (np.swapaxes(vectors, 1, 2) @ both)
    raise OptionError(
        f"metric must be (m, d) or (m, d, d) for delta {both.shape[:2]}: {metric.shape}"
    )


class PackedSteps:
    """Steps that come one after the other: memory for their numbers, and hardly more."""

    def __init__(self) -> None:
        self._design, self._delta, self._squared, self._noise = (Packed() for _ in range(4))
        self._n_parameters = 0

    def add(self, steps: Steps) -> None:
        """Put one or several behind those that are there; with noise if those have it."""
        self._design.add(steps.design)
        self._delta.add(steps.delta)
        self._squared.add(steps.squared_movement)
        if steps.noise is not None:
            self._noise.add(steps.noise)
        self._n_parameters = steps.n_parameters

    @property
    def steps(self) -> Steps:
        """All so far."""
        return Steps(
            design=self._design.rows,
            delta=self._delta.rows,
            n_parameters=self._n_parameters,
            squared_movement=self._squared.rows,
            noise=self._noise.rows if len(self._noise) else None,
        )


def is_identity(basis: Float) -> bool:
    """Whether a basis (q, k) leaves everything as it is, so that nothing need be copied."""
    return basis.shape[0] == basis.shape[1] and np.array_equal(basis, np.eye(len(basis)))


def beside_one(basis: Float) -> Float:
    """A basis of weights (q, k), and the movement beside them: shape (q + 1, k + 1)."""
    return np.asarray(scipy.linalg.block_diag(basis, np.eye(1)))


def joined(steps: Sequence[Steps]) -> Steps:
    """Several single steps as one object."""
    noise = [s.noise for s in steps if s.noise is not None]
    return Steps(
        design=np.concatenate([s.design for s in steps]),
        delta=np.concatenate([s.delta for s in steps]),
        n_parameters=steps[0].n_parameters,
        squared_movement=np.concatenate([s.squared_movement for s in steps]),
        noise=np.concatenate(noise) if noise else None,
    )
