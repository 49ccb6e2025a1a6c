"""What takes a pass over all stages: their parameters, and their sums in a basis of functions."""

from __future__ import annotations

import logging

import numpy as np

from logel.inference.method import Method
from logel.inference.watched import Look, Watched, naming
from logel.policies.cloning import ClonedPath, known_or_cloned
from logel.rules.functions import Basis, StageSums, stage_sums
from logel.types import Float

logger = logging.getLogger(__name__)


def stage_parameters(
    watched: Watched, look: Look, method: Method
) -> tuple[Float, ClonedPath | None]:
    """Parameters of every stage, and the clones behind them if they are not known."""
    if look.parameters is not None:
        return look.parameters, None
    return known_or_cloned(
        watched.history,
        watched.policy,
        method.clone,
        use_parameters=False,
        rng=np.random.default_rng(watched.seed),
        progress=watched.report,
    )


def basis_sums(
    watched: Watched, basis: Basis, parameters: Float, method: Method
) -> list[StageSums]:
    """Every stage in the basis, streamed."""
    result = []
    for t, stage in enumerate(watched.stages()):
        with naming(t):
            result.append(
                stage_sums(
                    basis,
                    stage,
                    parameters[t],
                    parameters[t + 1] if t + 1 < len(parameters) else None,
                    gamma=watched.gamma,
                    trace=method.trace,
                    bootstrap=method.bootstrap,
                    n_groups=method.n_groups,
                )
            )
        n, rows = stage.n_episodes, stage.n_steps
        logger.info("stage %d: advantages from %d episodes, %d steps", t, n, rows)
        watched.report("advantages", t + 1, len(watched.history))
    return result
