"""How noisy a learner's own gradient is, from the returns its batch would show.

A sampled policy gradient adds up  gamma^h score(s[h], a[h]) (G[h] - b[h]),  G[h] being the return
from time h on and b[h] its mean. Its covariance has a block per state,

    sum_h gamma^(2h) P(s[h] = s) E[score score' (G[h] - b[h])^2 | s],

and parts between times, which are left out: they need every pair of times, and what they are worth
is small. First and second moments of the return follow backwards from the horizon. Where returns
hardly differ the learner's steps are nearly exact; where nobody goes it learns nothing, with
certainty.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from logel.types import Float

# Of the mean variance, in every direction: what lies between times, and what the model of the world
# gets wrong.
_TRACE = 1e-3


def batch_noise(
    policy: Float, here: Float, paid: Float, expect: Callable[[Float], Float], gamma: float
) -> Float:
    """Covariance, up to scale, of a sampled gradient, shape (m, S, A - 1, A - 1).

    Args:
        policy: Action probabilities, shape (m, S, A).
        here: Where the policies are at every time, shape (H, m, S).
        paid: Mean reward of states and actions, shape (S, A).
        expect: Expected value (m, S, A) of the next state, for values (m, S).
        gamma: Discount factor.
    """
    first = second = np.zeros(policy.shape[:2])
    spread = np.zeros(policy.shape)
    for h in range(len(here) - 1, -1, -1):
        ahead = gamma * expect(first)
        mean = paid + ahead
        square = paid * (mean + ahead) + gamma**2 * expect(second)
        first, second = (policy * mean).sum(axis=2), (policy * square).sum(axis=2)
        middle = (here[h] * first).sum(axis=1)[:, None, None]
        off = np.maximum(square + middle * (middle - 2 * mean), 0.0)
        spread += (gamma ** (2 * h) * here[h])[:, :, None] * off
    return _scored(policy, policy * spread)


def _scored(policy: Float, weight: Float) -> Float:
    """Sum over actions of weight (m, S, A) times score score', with a trace in every direction."""
    free, mine = policy[..., :-1], weight[..., :-1]
    crossed = mine[..., :, None] * free[..., None, :]
    total = weight.sum(axis=2)[..., None, None]
    blocks = total * free[..., :, None] * free[..., None, :]
    blocks -= crossed + np.swapaxes(crossed, -1, -2)
    index = np.arange(free.shape[-1])
    blocks[..., index, index] += mine
    size = np.einsum("msaa->m", blocks) / np.prod(free.shape[1:])
    return np.asarray(blocks + _TRACE * size[:, None, None, None] * np.eye(free.shape[-1]))
