"""Which world a policy family acts in: the best of those it can be asked about in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from logel.data.stage import Stage
from logel.policies.base import Policy
from logel.worlds.base import World
from logel.worlds.counting import pool_world
from logel.worlds.known import KnownWorld
from logel.worlds.legal import legal_world
from logel.worlds.linear import distinct_observations, linear_world
from logel.worlds.pooled import sampled_world

Pooler = Callable[[Iterable[Stage]], World]


def pooler(
    stages: Iterable[Stage], policy: Policy, *, gamma: float, known: KnownWorld | None = None
) -> Pooler:
    """How to pool stages of this family: all of them, or some of their episodes, alike.

    All stages together decide what kind of world it is, among those the family offers; of tables
    something may be known.
    """
    family: Any = policy  # `Policy.worlds` promises what the poolers need
    if "table" in policy.worlds:
        pool = pool_world if family.legal is None else legal_world
        rows = None if known is None else known.rows(family.n_states, family.n_actions)
        return partial(pool, policy=family, gamma=gamma, known=rows)
    observations = distinct_observations(stages) if "distinct" in policy.worlds else None
    if observations is not None:
        return partial(linear_world, policy=family, observations=observations, gamma=gamma)
    return partial(sampled_world, policy=policy, gamma=gamma)
