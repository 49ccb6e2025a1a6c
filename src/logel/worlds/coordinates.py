"""Images, and other observations of many numbers, in the few coordinates in which they vary most.

Principal components, from one pass over the data: with a random matrix W, (o, p), the product of
the covariance C with W is all that is kept; C is about (C W) (W' C W)^-1 (C W)' (Nystroem), exactly
so if it has no more than p directions, as where a picture shows one of a few dozen states. Parts of
an observation that are narrow are taken as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from logel.data.observations import as_numbers, by_name
from logel.types import Array, Float

_MOST_NUMBERS = 200
"""Numbers up to which an observation, or a part of one, is taken as it is."""
_COMPONENTS, _SPARE = 40, 10
# Components with less of the largest one's variance are rounding of single precision.
_ROUNDING = 1e-5
# Numbers that are turned into floats at a time.
_AT_ONCE = 2**23


def _halves(observations: Array) -> tuple[Array | None, dict[str, Array]]:
    """What is taken as it is, and the wide parts by their names."""
    parts = by_name(observations)
    if parts is None:
        wide = observations[0].size > _MOST_NUMBERS if len(observations) else False
        return (None, {"": observations}) if wide else (observations, {})
    wide_parts = {n: p for n, p in parts.items() if np.prod(p.shape[1:]) > _MOST_NUMBERS}
    rest = [name for name in parts if name not in wide_parts]
    return (observations[rest] if rest else None), wide_parts


def narrow(observations: Array) -> Float:
    """What is taken as it is, (N, p); p may be 0."""
    plain, _ = _halves(observations)
    return np.zeros((len(observations), 0)) if plain is None else as_numbers(plain)


def wide(observations: Array) -> dict[str, Array]:
    """The parts that are too wide for that."""
    return _halves(observations)[1]


def _blocks(part: Array) -> Iterator[tuple[slice, Array]]:
    """A wide part as single floats, (n, o), some rows at a time; bytes as shares of 255."""
    flat = part.reshape(len(part), -1)
    unit = np.float32(255 if part.dtype == np.uint8 else 1)
    n = max(1, _AT_ONCE // flat.shape[1])
    for at in range(0, len(flat), n):
        rows = slice(at, min(at + n, len(flat)))
        yield rows, flat[rows].astype(np.float32) / unit


@dataclass(frozen=True, eq=False)
class Axes:
    """Principal components of a wide part.

    Attributes:
        centre: Its mean, shape (o,).
        directions: Shape (o, k).
        spread: Standard deviation along each, shape (k,).
    """

    centre: Array
    directions: Array
    spread: Float

    def __call__(self, part: Array) -> Float:
        """Coordinates, shape (N, k)."""
        result = np.empty((len(part), self.directions.shape[1]))
        for rows, block in _blocks(part):
            result[rows] = (block - self.centre) @ self.directions
        return result


class Sketch:
    """Streams the rows of a wide part into its principal components."""

    def __init__(self, n_numbers: int) -> None:
        self._random = np.random.default_rng(n_numbers).standard_normal(
            (n_numbers, _COMPONENTS + _SPARE), dtype=np.float32
        )
        self._n = 0
        # About the first row, which is nearer than zero: fewer digits cancel.
        self._origin: Array | None = None
        self._sum, self._product = np.zeros(n_numbers), np.zeros(self._random.shape)

    def add(self, part: Array) -> None:
        """Include rows."""
        for _, block in _blocks(part):
            if self._origin is None:
                self._origin = block[0].copy()
            block -= self._origin
            self._n += len(block)
            self._sum += block.sum(axis=0)
            self._product += block.T @ (block @ self._random)

    def axes(self) -> Axes:
        """Of all rows added."""
        assert self._origin is not None
        mean, random = self._sum / self._n, self._random.astype(float)
        product = self._product / self._n - np.outer(mean, mean @ random)
        shift = 1e-7 * float(np.linalg.norm(product)) + 1e-30
        product += shift * random
        square = random.T @ product
        values, vectors = np.linalg.eigh((square + square.T) / 2)
        kept = values > 1e-12 * values.max()
        root = product @ (vectors[:, kept] / np.sqrt(values[kept]))
        directions, sizes, _ = np.linalg.svd(root, full_matrices=False)
        variances = np.maximum(sizes**2 - shift, 0.0)[:_COMPONENTS]
        told = variances > _ROUNDING * max(float(variances.max()), 1e-30)
        return Axes(
            (self._origin + mean).astype(np.float32),
            directions[:, :_COMPONENTS][:, told].astype(np.float32),
            np.sqrt(variances[told]),
        )
