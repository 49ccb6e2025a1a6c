"""Second derivatives of a tabular return, to be multiplied with directions.

They have a part within states, and X + X', where X is what an action here does to what a later
state's actions are worth. Along a few directions, visits change forward in time and values
backward: two products with the transitions per time of an episode. For many directions X itself is
put together, from what a state leads to at once and how that state's value depends on all others'
actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from logel.types import Float
from logel.worlds.expectation import Expectation, Numbers

# Numbers of d x d tables held at once, half a gigabyte; and states of a dense world up to which
# tables are put together.
_MOST_NUMBERS, _DENSE_STATES = 2**27, 120


@dataclass(frozen=True, eq=False)
class Curving:
    """The return of m policies around their free logits."""

    policy: Float  # action probabilities, shape (m, S, A)
    here: Float  # where the policies are at every time, shape (H, m, S)
    advantage: Float  # of the return to come at every time, shape (H, m, S, A)
    expectation: Expectation
    gamma: float

    @cached_property
    def discounts(self) -> Float:
        """Of every time, shape (H,)."""
        return np.asarray(self.gamma ** np.arange(len(self.here)))

    @cached_property
    def own(self) -> Float:
        """Within a state, as if it were not visited again, shape (m, S, A - 1, A - 1)."""
        discounts = self.discounts
        worth = np.einsum("h,hms,hmsa->msa", discounts, self.here, self.advantage)
        free, scaled = self.policy[..., :-1], (self.policy * worth)[..., :-1]
        crossed = free[..., :, None] * scaled[..., None, :]
        result = -crossed - np.swapaxes(crossed, -1, -2)
        index = np.arange(free.shape[-1])
        result[..., index, index] += scaled
        return np.asarray(result)

    def product(self, t: int, columns: Float) -> Float:
        """Derivative of policy t's gradient along columns (S, A - 1, k), of the same shape."""
        if not self._affordable:
            return self._swept(t, columns)
        if t not in self._tables:
            self._tables[t] = self._crossed(t)
        flat = columns.reshape(-1, columns.shape[2]).astype(np.float32)
        return np.matmul(self.own[t], columns) + (self._tables[t] @ flat).reshape(columns.shape)

    @cached_property
    def _tables(self) -> dict[int, Numbers]:
        """X + X' of the policies that were asked for."""
        return {}

    @cached_property
    def _affordable(self) -> bool:
        """Whether all policies' tables can be put together and held."""
        m, s, a = self.policy.shape
        few = self.expectation.is_sparse or s <= _DENSE_STATES
        return few and m * (s * (a - 1)) ** 2 <= _MOST_NUMBERS

    def table(self, t: int) -> Float:
        """Second derivatives of policy t's return, shape (d, d)."""
        result = np.asarray(self._crossed(t, np.float64), dtype=float)
        s, b, _ = self.own[t].shape
        index = np.arange(s)
        result.reshape(s, b, s, b)[index, :, index, :] += self.own[t]
        return result

    def _crossed(self, t: int, precision: type[np.floating[Any]] = np.float32) -> Numbers:
        """X + X' of policy t, shape (d, d); what is slow is to read it."""
        policy, here = self.policy[t], self.discounts[:, None] * self.here[:, t]
        s, a = policy.shape
        free = (policy * self.advantage[:, t])[..., :-1]
        kernel = self.expectation.mixed(policy).to(precision)
        n_times, b, index = len(here) - 1, a - 1, np.arange(s)
        # How values at times to come depend on all logits; last the sum over all states.
        slopes = np.zeros((s + 1, max(n_times, 1), s * b), dtype=precision)
        value: Numbers = np.zeros((s, s * b), dtype=precision)
        for h in range(n_times, 0, -1):
            if h < n_times:
                value = kernel.ahead(value)
                value *= precision(self.gamma)
            value.reshape(s, s, b)[index, index] += free[h]
            slopes[:s, h - 1], slopes[s, h - 1] = value, value.sum(axis=0)
        # How often a state is followed by what it leads to at once, at every time.
        pairs = self.expectation.pairs
        found = np.empty((len(pairs.states), s * b), dtype=precision)
        often = here[:n_times].T.astype(precision)
        for follower, at in enumerate(pairs.by_follower):
            found[at] = often[pairs.states[at]] @ slopes[follower, :n_times]
        ahead = pairs.table - np.repeat(pairs.mixed(policy), a, axis=0)
        weights = self.gamma * (policy[..., None] * ahead.reshape(s, a, -1))[:, :b]
        rows = np.repeat(index, b), np.tile(np.arange(b), s)
        chosen = sparse.csr_array(
            (
                weights[rows].ravel().astype(precision),
                pairs.numbers[rows[0]].ravel(),
                np.arange(s * b + 1) * pairs.numbers.shape[1],
            ),
            shape=(s * b, len(found)),
        )
        crossed = chosen @ found
        return np.asarray(crossed + crossed.T)

    def _swept(self, t: int, columns: Float) -> Float:
        """The same by going through time."""
        s, b, k = columns.shape
        policy, here, advantage = self.policy[t][..., None], self.here[:, t], self.advantage[:, t]
        free = policy[:, :b]
        mean = (free * columns).sum(axis=1, keepdims=True)
        moved = np.concatenate([free * (columns - mean), -policy[:, b:] * mean], axis=1)
        # Where the policies go otherwise.
        visits = np.zeros((len(here), s, k))
        for h in range(len(here) - 1):
            flow = policy * visits[h][:, None] + here[h][:, None, None] * moved
            visits[h + 1] = self.expectation.back(flow.reshape(-1, k))
        discounts = self.discounts
        paid = discounts[:, None, None] * advantage
        result = np.einsum("hsa,hsk->sak", paid, visits, optimize=True) * policy
        result += np.einsum("hs,hsa->sa", here, paid)[..., None] * moved
        # What else it is worth to be somewhere.
        gained = np.einsum("hsa,sak->hsk", advantage, moved, optimize=True)
        worth = np.zeros((s, k))
        ahead = np.zeros((s, b + 1, k))
        value = np.zeros_like(moved)
        for h in range(len(here) - 1, -1, -1):
            if h < len(here) - 1:
                ahead = self.gamma * self.expectation.ahead(worth).reshape(s, -1, k)
            expected = (policy * ahead).sum(axis=1)
            # The direct gain of moving is in a state's value, not in its actions'.
            worth = expected + gained[h]
            value += (discounts[h] * here[h])[:, None, None] * (ahead - worth[:, None])
        return np.asarray((result + policy * value)[:, :b])
