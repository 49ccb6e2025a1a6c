"""Chains of small blocks through time: the path as it would be if groups of states did not meet.

In whitened observations y = H x + unit noise, with a Kalman filter per group, all groups at once:
the covariance of y is L L', and products with L, its inverse and its transpose are sweeps through
time in blocks of a few numbers. Columns have shape (m + 1, S, B, k).
"""

from __future__ import annotations

import numpy as np

from logel.types import Float


class Chains:
    """The filter of S independent chains.

    Attributes:
        log_determinant: Of the covariance of the observations.
        noise_freedom: How many components of the process noise they determine.
        start_freedom: How many of the first state.
    """

    def __init__(self, seen: Float, transition: Float, noise: Float, start: float) -> None:
        """Filter.

        Args:
            seen: Symmetric roots H of each stage's information, shape (m + 1, S, B, B).
            transition: Shape (m, S, B, B).
            noise: Covariance of the process noise, shape (m, S, B, B).
            start: Variance of the first state.
        """
        n, s, b, _ = seen.shape
        eye = np.eye(b)
        spread = np.broadcast_to(start * eye, (s, b, b))
        # One step of the whitening filter: [next, white] = step @ [predicted, observed].
        self._steps = np.zeros((n, s, 2 * b, 2 * b))
        # And of its inverse, which makes observations of white noise.
        self._makers = np.zeros((n, s, 2 * b, 2 * b))
        self.log_determinant = 0.0
        for t in range(n):
            cross = spread @ seen[t]
            root = np.linalg.cholesky(eye + seen[t] @ cross)
            self.log_determinant += 2 * float(np.log(np.diagonal(root, axis1=1, axis2=2)).sum())
            inverse = np.linalg.inv(root)
            gain = cross @ np.swapaxes(inverse, 1, 2)
            step, maker = self._steps[t], self._makers[t]
            step[:, b:, :b], step[:, b:, b:] = -inverse @ seen[t], inverse
            maker[:, b:, :b], maker[:, b:, b:] = seen[t], root
            if t < n - 1:
                onward = transition[t] @ gain
                step[:, :b, :b] = transition[t] + onward @ step[:, b:, :b]
                step[:, :b, b:] = onward @ inverse
                maker[:, :b, :b], maker[:, :b, b:] = transition[t], onward
                spread = transition[t] @ (spread - gain @ np.swapaxes(gain, 1, 2))
                spread = spread @ np.swapaxes(transition[t], 1, 2) + noise[t]
                spread = (spread + np.swapaxes(spread, 1, 2)) / 2
        self._turned = np.ascontiguousarray(np.swapaxes(self._steps, 2, 3))
        self.noise_freedom, self.start_freedom = self._freedoms(noise, start)

    def _freedoms(self, noise: Float, start: float) -> tuple[float, float]:
        """From the information about each state that its own and later stages hold."""
        n, s, b = len(self._steps), self._steps.shape[1], self._steps.shape[2] // 2
        information, freedom = np.zeros((s, b, b)), 0.0
        for t in range(n - 1, -1, -1):
            if t < n - 1:
                freedom += float((noise[t] * information).sum())
            back, white = self._steps[t, :, :b, :b], self._steps[t, :, b:, :b]
            information = np.swapaxes(back, 1, 2) @ information @ back
            information = information + np.swapaxes(white, 1, 2) @ white
        return freedom, start * float(np.trace(information, axis1=1, axis2=2).sum())

    def whiten(self, columns: Float) -> Float:
        """Inverse of L times columns."""
        return self._forward(self._steps, columns)

    def make(self, columns: Float) -> Float:
        """L times columns."""
        return self._forward(self._makers, columns)

    def turned(self, columns: Float) -> Float:
        """Inverse of L' times columns."""
        b = columns.shape[2]
        result = np.empty_like(columns)
        carried = np.zeros_like(columns[0])
        for t in range(len(columns) - 1, -1, -1):
            both = np.matmul(self._turned[t], np.concatenate([carried, columns[t]], axis=1))
            carried, result[t] = both[:, :b], both[:, b:]
        return result

    def _forward(self, steps: Float, columns: Float) -> Float:
        b = columns.shape[2]
        result = np.empty_like(columns)
        carried = np.zeros_like(columns[0])
        for t in range(len(columns)):
            both = np.matmul(steps[t], np.concatenate([carried, columns[t]], axis=1))
            carried, result[t] = both[:, :b], both[:, b:]
        return result
