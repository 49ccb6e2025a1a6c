"""Second derivatives of a tabular return, as products with directions: no d x d table is formed.

Along a direction of the logits, visits change forward in time and values backward: two products
with the transitions per time of an episode, for any number of directions at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from logel.types import Float
from logel.worlds.expectation import Expectation


@dataclass(frozen=True, eq=False)
class Curving:
    """The return of m policies around their free logits."""

    policy: Float  # action probabilities, shape (m, S, A)
    here: Float  # where the policies are at every time, shape (H, m, S)
    advantage: Float  # of the return to come at every time, shape (H, m, S, A)
    expectation: Expectation
    gamma: float

    def own(self) -> Float:
        """Within a state, as if it were not visited again, shape (m, S, A - 1, A - 1)."""
        discounts = self.gamma ** np.arange(len(self.here))
        worth = np.einsum("h,hms,hmsa->msa", discounts, self.here, self.advantage)
        free, scaled = self.policy[..., :-1], (self.policy * worth)[..., :-1]
        crossed = free[..., :, None] * scaled[..., None, :]
        result = -crossed - np.swapaxes(crossed, -1, -2)
        index = np.arange(free.shape[-1])
        result[..., index, index] += scaled
        return np.asarray(result)

    def product(self, t: int, columns: Float) -> Float:
        """Derivative of policy t's gradient along columns (S, A - 1, k), of the same shape."""
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
        discounts = self.gamma ** np.arange(len(here))
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
