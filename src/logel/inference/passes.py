"""What takes a pass over all stages: their parameters, and their sums in a basis of functions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

from logel.data.stage import Stage
from logel.inference.method import Method
from logel.inference.watched import Look, Watched
from logel.policies.cloned_path import ClonedPath, known_or_cloned
from logel.rules.functions import Basis, StageSums, stage_sums
from logel.types import Float


def stage_parameters(
    watched: Watched, look: Look, method: Method
) -> tuple[Float, ClonedPath | None]:
    """Parameters of every stage, and the clones behind them if they are not known."""
    if look.parameters is not None:
        return look.parameters, None
    if look.cloned is not None and look.cloned.config == method.clone:
        return look.cloned.parameters, look.cloned
    return known_or_cloned(
        watched.history,
        watched.policy,
        method.clone,
        use_parameters=False,
        rng=np.random.default_rng(watched.seed),
        progress=watched.report,
        run=watched.run,
    )


def basis_sums(
    watched: Watched, basis: Basis, parameters: Float, method: Method
) -> Iterator[StageSums]:
    """Every stage in the basis, streamed."""
    work = partial(
        _stage_sums,
        basis,
        gamma=watched.gamma,
        trace=method.trace,
        bootstrap=method.bootstrap,
        n_groups=method.n_groups,
    )
    return watched.each(work, zip_longest(parameters, parameters[1:]), "advantages")


def _stage_sums(
    basis: Basis, stage: Stage, policies: tuple[Float, Float | None], **options: Any
) -> StageSums:
    """One stage in the basis, with its policy and the next one."""
    return stage_sums(basis, stage, *policies, **options)
