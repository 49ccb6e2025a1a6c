"""Policies that take one action in every state but for a share, and now and then another one.

So does a learner that acts greedily and explores at random, whatever it thinks its actions are
worth. Rules that move policies smoothly mistake its jumps for steps, and may be very sure. This is
an account of the actions without a reward, by its evidence.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from scipy.special import logsumexp

from logel.types import Float

GREEDY = (
    "actions look like those of a learner that acts greedily and explores at random: in most "
    "states one is taken but for a share, and now and then another. What it learns in between "
    "does not show"
)
# Shares of actions that are not the greedy one, and chances that a state's changes in a stage: each
# as likely as the others.
_EXPLORING = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)
_CHANGING = (0.03, 0.1, 0.3)


def greedy_evidence(counts: Float) -> float:
    """Log-probability of actions counted by stage and state, (m + 1, S, A)."""
    grid = list(product(_EXPLORING, _CHANGING))
    return float(logsumexp([_evidence(counts, *each) for each in grid]) - np.log(len(grid)))


def _evidence(counts: Float, exploring: float, changing: float) -> float:
    """The same for one share and one chance; states begin undecided or with any action."""
    n = counts.shape[-1]
    total = counts.sum(axis=-1, keepdims=True)
    greedy = counts * np.log(1 - exploring) + (total - counts) * np.log(exploring / (n - 1))
    seen = np.concatenate([greedy, -total * np.log(n)], axis=-1)
    # Who has decided is never undecided again.
    move = (1 - changing) * np.eye(n + 1) + np.append(np.full(n, changing / n), 0.0)
    move = np.log(np.maximum(move, 1e-300))
    alpha = seen[0] - np.log(n + 1)
    for stage in seen[1:]:
        alpha = logsumexp(alpha[:, :, None] + move, axis=1) + stage
    return float(logsumexp(alpha, axis=-1).sum())
