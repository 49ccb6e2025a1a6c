"""What a rule says of the steps near given states, as products: no matrix of order D is formed.

A table's states meet only in the values of what follows, one number per state. So the derivative of
a step is block-diagonal plus a product through S values, and the noise of a step block-diagonal
plus one row per episode. Columns have shape (S, B, k): S groups of B coordinates (the logits or the
values of one state; any other rule is one group), k columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, solve_triangular

from logel.types import Float
from logel.worlds.expectation import Expectation


class Transition(ABC):
    """Derivatives of the following states w.r.t. the present ones, for m steps."""

    coupled: bool = True
    """Whether groups depend on one another at all."""

    @abstractmethod
    def times(self, t: int, columns: Float) -> Float:
        """Of step t, times columns (S, B, k)."""

    @abstractmethod
    def transposed(self, t: int, columns: Float) -> Float:
        """The transpose of it, times columns (S, B, k)."""

    @abstractmethod
    def blocks(self) -> Float:
        """About what a group does to itself, shape (m, S, B, B)."""


@dataclass(frozen=True, eq=False)
class DenseTransition(Transition):
    """Any matrices (m, D, D), in groups of a given size."""

    matrices: Float
    width: int

    def times(self, t: int, columns: Float) -> Float:
        """Of step t, times columns (S, B, k)."""
        flat = columns.reshape(self.matrices.shape[1], -1)
        return (self.matrices[t] @ flat).reshape(columns.shape)

    def transposed(self, t: int, columns: Float) -> Float:
        """The transpose of it, times columns (S, B, k)."""
        flat = columns.reshape(self.matrices.shape[1], -1)
        return (self.matrices[t].T @ flat).reshape(columns.shape)

    def blocks(self) -> Float:
        """What a group does to itself, shape (m, S, B, B)."""
        return own_blocks(self.matrices, self.width)


@dataclass(frozen=True, eq=False)
class Apart(Transition):
    """Groups that do not meet."""

    matrices: Float  # shape (m, S, B, B)
    coupled = False

    @classmethod
    def staying(cls, m: int, n_groups: int, width: int) -> Apart:
        """Where nothing moves by itself."""
        return cls(np.broadcast_to(np.eye(width), (m, n_groups, width, width)))

    def times(self, t: int, columns: Float) -> Float:
        """Of step t, times columns (S, B, k)."""
        return np.matmul(self.matrices[t], columns)

    def transposed(self, t: int, columns: Float) -> Float:
        """The transpose of it, times columns (S, B, k)."""
        return np.matmul(np.swapaxes(self.matrices[t], 1, 2), columns)

    def blocks(self) -> Float:
        """All there is, shape (m, S, B, B)."""
        return self.matrices


@dataclass(frozen=True, eq=False)
class ThroughValues(Transition):
    """diag(keep) + diag(gain) out(P R slope): what follows depends on S values of what is.

    `out` takes values of all actions, or their differences to the last one's.
    """

    expectation: Expectation  # P, shape (S A, S)
    slope: Float  # of a state's own value w.r.t. its coordinates, shape (m, S, B)
    resolvent: Float | None  # R, values of all states from own ones, shape (m, S, S); None: one
    keep: Float  # broadcasts to (m, S, B)
    gain: Float  # broadcasts to (m, S, B), the discount in it
    relative: bool

    @cached_property
    def _scales(self) -> tuple[Float, Float]:
        """What is kept and gained, each (m, S, B, 1)."""
        shape = self.slope.shape
        kept, gained = (np.broadcast_to(x, shape)[..., None] for x in (self.keep, self.gain))
        return kept, gained

    def times(self, t: int, columns: Float) -> Float:
        """Of step t, times columns (S, B, k)."""
        values = np.matmul(self.slope[t][:, None], columns)[:, 0]
        return self._scales[0][t] * columns + self.onward(t, values)

    def transposed(self, t: int, columns: Float) -> Float:
        """The transpose of it, times columns (S, B, k)."""
        values = self.backward(t, columns)
        return self._scales[0][t] * columns + self.slope[t][..., None] * values[:, None]

    def onward(self, t: int, values: Float) -> Float:
        """What states' own values (S, k) do to the following states, shape (S, B, k)."""
        if self.resolvent is not None:
            values = self.resolvent[t] @ values
        ahead = self.expectation.ahead(values).reshape(len(values), -1, values.shape[1])
        if self.relative:
            ahead = ahead[:, :-1] - ahead[:, -1:]
        return np.asarray(self._scales[1][t] * ahead)

    def backward(self, t: int, columns: Float) -> Float:
        """The transpose of `onward`, times columns (S, B, k)."""
        scaled = self._scales[1][t] * columns
        if self.relative:
            scaled = np.concatenate([scaled, -scaled.sum(axis=1, keepdims=True)], axis=1)
        values = self.expectation.back(scaled.reshape(-1, columns.shape[2]))
        return values if self.resolvent is None else self.resolvent[t].T @ values

    def blocks(self) -> Float:
        """What a state does to itself, shape (m, S, B, B)."""
        m, s, b = self.slope.shape
        result = np.zeros((m, s, b, b))
        for t in range(m):
            back = np.eye(s) if self.resolvent is None else self.resolvent[t]
            own = self.expectation.ahead(back).reshape(s, -1, s)
            own = own[np.arange(s), :, np.arange(s)]
            if self.relative:
                own = own[:, :-1] - own[:, -1:]
            own = np.broadcast_to(self.gain, self.slope.shape)[t] * own
            result[t] = own[:, :, None] * self.slope[t][:, None, :]
        index = np.arange(b)
        result[..., index, index] += np.broadcast_to(self.keep, self.slope.shape)
        return result


@dataclass(frozen=True, eq=False)
class Climbing(Transition):
    """One plus the rate times a symmetric curvature that is known by its products."""

    rates: Float  # shape (m,)
    product: Callable[[int, Float], Float]  # of step t's curvature with columns (S, B, k)
    own: Float  # about the curvature within a group, shape (m, S, B, B)

    def times(self, t: int, columns: Float) -> Float:
        """Of step t, times columns (S, B, k)."""
        return columns + self.rates[t] * self.product(t, columns)

    def transposed(self, t: int, columns: Float) -> Float:
        """The same: second derivatives commute."""
        return self.times(t, columns)

    def blocks(self) -> Float:
        """About what a state does to itself, shape (m, S, B, B)."""
        return np.asarray(np.eye(self.own.shape[-1]) + self.rates[:, None, None, None] * self.own)


@dataclass(frozen=True, eq=False)
class Taken(Transition):
    """Some steps of another, in any order."""

    whole: Transition
    steps: npt.NDArray[np.int64]

    @property
    def coupled(self) -> bool:  # type: ignore[override]
        """As the whole is."""
        return self.whole.coupled

    def times(self, t: int, columns: Float) -> Float:
        """Of step t, times columns (S, B, k)."""
        return self.whole.times(int(self.steps[t]), columns)

    def transposed(self, t: int, columns: Float) -> Float:
        """The transpose of it, times columns (S, B, k)."""
        return self.whole.transposed(int(self.steps[t]), columns)

    def blocks(self) -> Float:
        """About what a group does to itself, shape (m, S, B, B)."""
        return self.whole.blocks()[self.steps]


@dataclass(frozen=True, eq=False)
class StepNoise:
    """Shape of the noise of m steps: blocks plus rows' rows."""

    blocks: Float  # positive definite, shape (m, S, B, B)
    rows: tuple[Float, ...] = ()  # for every step, shape (n, D); none at all: nothing beside blocks

    @classmethod
    def even(cls, m: int, n_groups: int, width: int) -> StepNoise:
        """The same for all coordinates."""
        return cls(np.broadcast_to(np.eye(width), (m, n_groups, width, width)))

    @classmethod
    def dense(cls, matrices: Float, width: int) -> StepNoise:
        """Any matrices (m, D, D): even noise of half the smallest eigenvalue, and rows."""
        if matrices.shape[1] == width:
            return cls(matrices[:, None])
        lowest = 0.5 * np.linalg.eigvalsh(matrices)[:, :1]
        blocks = lowest[:, :, None, None] * np.eye(width)
        m, d = matrices.shape[:2]
        rest = matrices - lowest[:, :, None] * np.eye(d)
        roots = np.linalg.cholesky(rest)
        return cls(
            np.broadcast_to(blocks, (m, d // width, width, width)),
            tuple(np.swapaxes(roots, 1, 2)),
        )

    def mixed(self, other: StepNoise, share: float) -> StepNoise:
        """This one in a share and another in the rest: blocks, and roots of what is beside them."""
        if len(self.rows) != len(other.rows):
            # Without weights there are no rows yet; what comes then is taken as it is.
            return self if self.rows else other
        rows = zip(self.rows, other.rows, strict=True)
        return StepNoise(
            share * self.blocks + (1 - share) * other.blocks,
            tuple(share * own + (1 - share) * before for own, before in rows),
        )

    def times(self, t: int, columns: Float) -> Float:
        """Of step t, times columns (S, B, k)."""
        result = np.matmul(self.blocks[t], columns)
        if self.rows:
            rows = self.rows[t]
            flat = columns.reshape(rows.shape[1], -1)
            result = result + (rows.T @ (rows @ flat)).reshape(columns.shape)
        return np.asarray(result)

    def own(self) -> Float:
        """What is within groups, shape (m, S, B, B)."""
        if not self.rows:
            return self.blocks
        _, s, b, _ = self.blocks.shape
        parts = [rows.reshape(-1, s, b).transpose(1, 2, 0) for rows in self.rows]
        return np.stack([self.blocks[t] + p @ np.swapaxes(p, 1, 2) for t, p in enumerate(parts)])

    @cached_property
    def _inverse(self) -> Float:
        """Of the blocks."""
        return np.asarray(np.linalg.inv(self.blocks))

    @cached_property
    def _roots(self) -> tuple[Float, ...]:
        """Of one plus the rows' products in the metric of the blocks, for every step."""
        _, s, b, _ = self.blocks.shape
        roots = []
        for t, rows in enumerate(self.rows):
            parts = rows.reshape(-1, s, b).transpose(1, 2, 0)
            spread = np.matmul(self._inverse[t], parts).reshape(s * b, -1)
            roots.append(np.linalg.cholesky(np.eye(len(rows)) + rows @ spread))
        return tuple(roots)

    def solve(self, columns: Float) -> Float:
        """Inverse shapes times columns (m, D, k)."""
        m, s, b, _ = self.blocks.shape
        grouped = columns.reshape(m, s, b, -1)
        result = np.matmul(self._inverse, grouped)
        for t, (rows, root) in enumerate(zip(self.rows, self._roots, strict=True)):
            inner = cho_solve((root, True), rows @ result[t].reshape(s * b, -1), check_finite=False)
            again = (rows.T @ inner).reshape(s, b, -1)
            result[t] -= np.matmul(self._inverse[t], again)
        return result.reshape(columns.shape)

    def misfit(self, errors: Float) -> float:
        """Sum of e[t]' shape[t]^-1 e[t] for errors (m, D)."""
        m, s, b, _ = self.blocks.shape
        grouped = errors.reshape(m, s, b, 1)
        scaled = np.matmul(self._inverse, grouped)
        total = float((grouped * scaled).sum())
        for root, rows, e in zip(self._roots, self.rows, scaled.reshape(m, -1), strict=False):
            white = solve_triangular(root, rows @ e, lower=True, check_finite=False)
            total -= float(white @ white)
        return total

    def log_determinants(self) -> Float:
        """Of the shapes, (m,)."""
        total = np.linalg.slogdet(self.blocks)[1].sum(axis=1)
        for t, root in enumerate(self._roots):
            total[t] += 2 * np.log(np.diagonal(root)).sum()
        return np.asarray(total)


@dataclass(frozen=True, eq=False)
class Climb:
    """How parameters climb at the rates of m steps, for weights that are part of it."""

    design: Float  # movement per unit of every weight at rate one, shape (m, d, q)
    transition: Callable[[Float], Transition]  # for rates (m,)
    noise: StepNoise


@dataclass(frozen=True, eq=False)
class Linearised:
    """What a rule says about the steps from given states; see `Prediction` for the same, dense."""

    following: Float  # predicted next states, shape (m, D)
    transition: Transition
    design: Float  # derivative w.r.t. the parameters, shape (m, D, q + k)
    noise: StepNoise

    def with_noise(self, noise: StepNoise) -> Linearised:
        """The same with another shape of the noise."""
        return replace(self, noise=noise)

    def of(self, steps: npt.NDArray[np.int64]) -> Linearised:
        """Some steps, in any order, as often as wanted."""
        rows = tuple(self.noise.rows[t] for t in steps) if self.noise.rows else ()
        return Linearised(
            self.following[steps],
            Taken(self.transition, steps),
            self.design[steps],
            StepNoise(self.noise.blocks[steps], rows),
        )

    def apart(self) -> Linearised:
        """The same as if groups did not meet."""
        return replace(
            self, transition=Apart(self.transition.blocks()), noise=StepNoise(self.noise.own())
        )


def own_blocks(matrices: Float, width: int) -> Float:
    """Diagonal blocks (m, S, B, B) of matrices (m, D, D)."""
    m, d = matrices.shape[:2]
    s = d // width
    index = np.arange(s)
    view = matrices.reshape(m, s, width, s, width)
    return np.moveaxis(view[:, index, :, index, :], 0, 1)
