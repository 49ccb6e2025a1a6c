"""One round of the smoother for rules that go through values: exact, with small matrices.

Under soft value and soft policy iteration a table's next state depends on the present one only
through a value of every state (`Rule.forgets`). Given these S values and the parameters, what is
inside the states, S groups of B coordinates, is independent of the past and of one another. So the
filter need not carry the table, only z = (values before, parameters). At every stage

    inside = base + F (z - mean) + noise       apart in every group, given z
    precision of z grows by F' W F             what actions tell, groups integrated out
    values = slope * inside                    the next z

It is the dense smoother with (S + p)^3 in place of (S B + p)^3: nothing is estimated, and work is
linear in stages. Going back, `told` is the precision that a stage and all later ones add to z.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import lu_factor, lu_solve

from logel.inference.rounds import Products, Round, Variances
from logel.rules.rule import Rule
from logel.types import Float
from logel.worlds.products import Linearised, ThroughValues


@dataclass(frozen=True, eq=False)
class _Stage:
    """What the filter knows at a stage, z having n = S + p entries."""

    mean: Float  # of z before the stage is seen, shape (n,)
    spread: Float  # its covariance
    effect: Float  # F, shape (S, B, n)
    base: Float  # what is inside, at that mean, shape (S, B)
    noise: Float  # of what is inside, given z, shape (S, B, B)
    kept: Float  # 1 / (1 + noise * information), shape (S, B, B)
    score: Float  # of the actions, shape (S, B)
    told: Float  # precision of z in the actions, shape (n, n)
    pull: Float  # score of z, shape (n,)
    post: Float  # covariance of z once the stage is seen

    @property
    def inside(self) -> Float:
        """Covariance of what is inside, given z and the actions, shape (S, B, B)."""
        return self.kept @ self.noise

    def given(self, z: Float) -> Float:
        """Mean of what is inside, given z (n,) and the actions, shape (S, B)."""
        return _times(self.kept, self.base + self.effect @ (z - self.mean)) + _times(
            self.inside, self.score
        )

    def gain(self, slope: Float) -> Float:
        """By how much what is inside moves with the values along a slope, shape (S, B)."""
        along = _times(self.inside, slope)
        size = (slope * along).sum(axis=1, keepdims=True)
        return np.asarray(along / np.where(size > 0, size, 1.0))


class _Filter:
    """Goes through some of a rule's steps, in any order."""

    def __init__(
        self,
        model: Rule,
        states: Float,
        first: Float,
        prior: Float,
        found: Linearised,
        variances: Variances,
        *,
        steps: npt.NDArray[np.int64] | None = None,
        episodes: float = 1.0,
    ) -> None:
        """Go.

        Args:
            model: The rule.
            states: Where it is linearised, shape (m + 1, D).
            first: Prior mean of the parameters, from where they are linearised, shape (p,).
            prior: Prior variances of the parameters.
            found: What the rule says about the steps.
            variances: Of noise and first state.
            steps: Numbers of the steps, each behind the stage of that number; None: all.
            episodes: Multiple of the episodes that are seen.
        """
        assert isinstance(found.transition, ThroughValues)
        self.through = found.transition
        m, s, b, _ = found.noise.blocks.shape
        self.n_values, self.n = s, s + len(prior)
        self.steps = np.arange(m) if steps is None else steps
        self.design = found.design.reshape(m, s, b, -1)
        gap = (found.following - states[1:]).reshape(m, s, b)
        self.stages: list[_Stage] = []
        self.moves: list[Float] = []  # the next z for every z
        self.log_determinant = 0.0
        mean, spread = np.concatenate([np.zeros(s), first]), np.zeros((self.n, self.n))
        spread[s:, s:] = np.diag(prior)
        effect, base = np.zeros((s, b, self.n)), -states[0].reshape(s, b)
        noise = np.broadcast_to(variances.start * np.eye(b), (s, b, b))
        for t in range(len(self.steps) + 1):
            seen = model.observe(min(t, m), states[min(t, m)])
            told = episodes * seen.factor @ np.swapaxes(seen.factor, 1, 2)
            self._see(mean, spread, effect, base, noise, told, seen.score.reshape(s, b))
            if t < len(self.steps):
                step = self.steps[t]
                mean, spread = self._move(self.stages[t], self.through.slope[step])
                effect = self._onward(step, np.eye(self.n))
                base = gap[step] + effect @ mean
                noise = variances.noise * found.noise.blocks[step]

    def _onward(self, step: int, columns: Float) -> Float:
        """What columns of z (n, k) do to what is inside after a step, shape (S, B, k)."""
        return self.through.onward(step, columns[: self.n_values]) + np.asarray(
            self.design[step] @ columns[self.n_values :]
        )

    def _back(self, columns: Float) -> Float:
        """The transpose of the last step's effect, times columns (S, B, k)."""
        k = columns.shape[2]
        if not self.stages:
            return np.zeros((self.n, k))
        step = self.steps[len(self.stages) - 1]
        design = self.design[step].reshape(-1, self.n - self.n_values)
        values = self.through.backward(step, columns)
        return np.concatenate([values, design.T @ columns.reshape(-1, k)])

    def _see(
        self,
        mean: Float,
        spread: Float,
        effect: Float,
        base: Float,
        noise: Float,
        information: Float,
        score: Float,
    ) -> None:
        """Take in a stage's actions."""
        within = np.eye(noise.shape[1]) + noise @ information
        kept = np.asarray(np.linalg.inv(within), dtype=float)
        told = self._back(information @ kept @ effect)
        told = (told + told.T) / 2
        surprise = _times(np.swapaxes(kept, 1, 2), score - _times(information, base))
        factor = lu_factor(np.eye(self.n) + spread @ told, check_finite=False)
        post = lu_solve(factor, spread, check_finite=False)
        self.log_determinant += float(np.linalg.slogdet(within)[1].sum())
        self.log_determinant += float(np.log(np.abs(np.diagonal(factor[0]))).sum())
        pull, post = self._back(surprise[..., None])[:, 0], (post + post.T) / 2
        self.stages.append(_Stage(mean, spread, effect, base, noise, kept, score, told, pull, post))

    def _move(self, stage: _Stage, slope: Float) -> tuple[Float, Float]:
        """Mean and covariance of the next z."""
        s, index = self.n_values, np.arange(self.n_values)
        move = np.eye(self.n)
        move[:s] = np.matmul(slope[:, None] @ stage.kept, stage.effect)[:, 0]
        self.moves.append(move)
        mean = stage.mean + stage.post @ stage.pull
        mean[:s] = (slope * stage.given(mean)).sum(axis=1)
        spread = move @ stage.post @ move.T
        spread[index, index] += (slope * _times(stage.inside, slope)).sum(axis=1)
        return mean, (spread + spread.T) / 2

    def _backwards(self) -> Iterator[tuple[_Stage, Float, Float]]:
        """Stages, slopes of the values after them, and how z moves; nothing follows the last."""
        last = self.stages[-1]
        yield last, np.zeros_like(last.base), np.zeros_like(last.post)
        for t in range(len(self.steps) - 1, -1, -1):
            yield self.stages[t], self.through.slope[self.steps[t]], self.moves[t]

    def smoothed(self) -> tuple[Float, Float]:
        """Means given all stages, of what is inside, (m + 1, S, B), and of the parameters."""
        s, moves = self.n_values, []
        pull, after = np.zeros(self.n), np.zeros(self.n)
        for stage, slope, move in self._backwards():
            pull = stage.pull + move.T @ pull
            now = stage.mean + stage.post @ pull
            # Where the values are known, more is known of what is inside.
            inside = stage.given(now)
            surprise = after[:s] - (slope * inside).sum(axis=1)
            moves.append(inside + stage.gain(slope) * surprise[:, None])
            pull, after = pull - stage.told @ (stage.post @ pull), now
        return np.stack(moves[::-1]), after[s:]

    def freedoms(self) -> Float:
        """How many components of each stage's noise all stages determine, the first state's too."""
        s, result = self.n_values, []
        told = spread = np.zeros((self.n, self.n))
        for t, (stage, slope, move) in enumerate(self._backwards(), -len(self.steps)):
            both = stage.post @ move.T  # covariance with the next z, up to this stage
            felt = told @ both.T
            values = np.diagonal(spread - spread @ told @ spread)[:s]
            across = (both - felt.T @ spread)[:, :s].T[..., None]
            # The noise is linear in z and in the values after it, with something left over.
            gain = stage.gain(slope)[..., None]
            own = -gain @ slope[:, None]
            own[:, range(slope.shape[1]), range(slope.shape[1])] += 1.0
            left = own @ stage.inside
            own = own @ stage.kept - np.eye(slope.shape[1])
            cross = own @ stage.effect @ across @ np.swapaxes(gain, 1, 2)
            left = left + cross + np.swapaxes(cross, 1, 2)
            left = left + gain @ np.swapaxes(gain, 1, 2) * values[:, None, None]
            if t < 0:
                ours = self._onward(self.steps[-t - 1], stage.post - both @ felt)
                left = left + own @ ours @ np.swapaxes(stage.effect, 1, 2) @ np.swapaxes(own, 1, 2)
            share = np.trace(np.linalg.solve(stage.noise, left), axis1=1, axis2=2)
            result.append(slope.size - float(share.sum()))
            turned = move - both.T @ stage.told
            told = stage.told - stage.told @ stage.post @ stage.told + turned.T @ told @ turned
            told, spread = (told + told.T) / 2, stage.spread
        return np.array(result[::-1])


def _times(blocks: Float, vectors: Float) -> Float:
    """Blocks (S, B, B) times vectors (S, B)."""
    return np.asarray(np.matmul(blocks, vectors[..., None])[..., 0])


class ByValues(Products):
    """Through values; any number of fits."""

    def smooth(
        self,
        model: Rule,
        states: Float,
        parameters: Float,
        middle: Float,
        prior: Float,
        found: Linearised,
        variances: Variances,
        *,
        rough: bool = False,
    ) -> Round:
        """One pass, linear around states (m + 1, D) and parameters (q + k,)."""
        passed = _Filter(model, states, middle - parameters, prior, found, variances)
        moves, shifts = passed.smoothed()
        start, *noise = (0.0,) if rough else passed.freedoms()
        return Round(
            state_moves=moves.reshape(len(states), -1),
            parameter_moves=shifts,
            parameter_covariance=passed.stages[-1].post[passed.n_values :, passed.n_values :],
            start_variance=variances.start * (states.shape[1] - start),
            log_determinant=passed.log_determinant,
            noise_freedom=float(np.sum(noise)),
        )

    def covariance(
        self,
        model: Rule,
        states: Float,
        prior: Float,
        found: Linearised,
        variances: Variances,
        *,
        steps: npt.NDArray[np.int64],
        episodes: float,
    ) -> Float:
        """Of the parameters, if these steps were seen in that multiple of the episodes."""
        still = np.zeros(len(prior))
        passed = _Filter(
            model, states, still, prior, found, variances, steps=steps, episodes=episodes
        )
        return passed.stages[-1].post[passed.n_values :, passed.n_values :]
