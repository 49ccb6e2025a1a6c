"""The policies of all stages: known, or cloned one by one or several at a time.

A stage is warm-started where an earlier one ended (`parent`), so that many can be cloned at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from logel.data.cache import Arrays, Cache
from logel.data.contents import elsewhere
from logel.data.history import LearningHistory
from logel.data.stage import Stage, StageSource
from logel.errors import HistoryError, LogelError
from logel.policies.base import Policy
from logel.policies.cloning import Clone, CloneConfig, CloneMethod, clone_stage
from logel.types import Array, Float, Progress
from logel.workers import SERIAL, Executor

logger = logging.getLogger(__name__)
# Sums of squares of known parameters stay within doubles.
_LARGEST = 1e18
# Stages of which each is warm-started at the one before.
_IN_A_ROW = 4


@dataclass(frozen=True, eq=False)
class ClonedPath:
    """The clones of all stages and the configuration that made them."""

    clones: tuple[Clone, ...]
    config: CloneConfig

    @property
    def parameters(self) -> Float:
        """Shape (m + 1, d)."""
        return np.stack([clone.parameters for clone in self.clones])


def clone(
    stages: LearningHistory | Sequence[Stage],
    policy: Policy,
    config: CloneConfig | None = None,
    *,
    rng: np.random.Generator | None = None,
    progress: Callable[[int], None] | None = None,
    run: Executor = SERIAL,
) -> ClonedPath:
    """Clone the policy of every stage.

    Args:
        stages: A history, or any stages in order.
        policy: The family to fit.
        config: Choices; the defaults suit the log-linear families.
        rng: Chooses held-out episodes and a network's starting point.
        progress: Called with the number of stages done.
        run: What clones stages, several at a time if it can.
    """
    config = config or CloneConfig()
    rng = rng or np.random.default_rng(0)
    theta = policy.initial(rng)
    number = int(rng.integers(2**63))
    far, items = _pieces(stages, run)
    before = [parent(t, config) for t in range(len(items))]
    work = partial(_cloned, policy, config, theta, number, eager=not run.here, cache=run.cache)
    done = run.tree(work, items, before, far, handed=_parameters_of)
    clones: list[Clone] = []
    for t, (found, n_episodes) in enumerate(done):
        clones.append(found)
        _log(t, n_episodes, found)
        if progress is not None:
            progress(t + 1)
    return ClonedPath(tuple(clones), config)


class Cloner:
    """Clones stages as they come, in order; the same clones as `clone`'s.

    Args:
        policy: The family to fit.
        config: Choices.
        rng: Chooses held-out episodes and a network's starting point.
    """

    def __init__(self, policy: Policy, config: CloneConfig, rng: np.random.Generator) -> None:
        self._policy, self.config, self._n_stages = policy, config, 0
        # Where cloning begins, and clones at which later ones start.
        self._starts: dict[int | None, Float] = {None: policy.initial(rng)}
        self._number = int(rng.integers(2**63))

    def add(self, stage: Stage) -> Clone:
        """Clone the next stage."""
        t, config = self._n_stages, self.config
        start, rng = self._starts[parent(t, config)], np.random.default_rng([self._number, t])
        found = clone_stage(stage, self._policy, config, start=start, rng=rng)
        self._starts[t], self._n_stages = found.parameters, t + 1
        self._starts = {at: self._starts[at] for at in still_needed(t, config)}
        _log(t, stage.n_episodes, found)
        return found


def _pieces(
    stages: LearningHistory | Sequence[Stage], run: Executor
) -> tuple[StageSource | None, list[tuple[int, Stage | None]]]:
    """Where stages are read when it is their turn, and those that cannot be read there."""
    source = stages.source if isinstance(stages, LearningHistory) else tuple(stages)
    far = source if run.here else elsewhere(source)
    return far, [(t, source[t] if far is None else None) for t in range(len(stages))]


def parent(t: int, config: CloneConfig) -> int | None:
    """The stage at whose clone the search for stage t starts, None for the first one.

    Few steps of Adam, and priors around the stage before, need that one. Every other search ends
    where the data say: most start at the stage before, which is near, but every fourth one at that
    with the number of a fourth that lacks the last binary 1, so that only a few stages have to wait
    for each other.
    """
    if t == 0:
        return None
    fourth, rest = divmod(t, _IN_A_ROW)
    return t - 1 if rest or _chained(config) else _IN_A_ROW * (fourth & (fourth - 1))


def still_needed(t: int, config: CloneConfig) -> list[int]:
    """Those of stages 0 to t at whose clones later ones start."""
    found = [t]
    at = None if _chained(config) else t - t % _IN_A_ROW
    while at is not None:
        found.append(at)
        at = parent(at, config)
    return found


def _chained(config: CloneConfig) -> bool:
    return config.method is CloneMethod.ADAM or config.prior_centre == "previous"


def _cloned(
    policy: Policy,
    config: CloneConfig,
    initial: Float,
    number: int,
    source: StageSource | None,
    item: tuple[tuple[int, Stage | None], Float | None],
    *,
    eager: bool,
    cache: Cache | None,
) -> tuple[Clone, int]:
    """One stage's clone, and its number of episodes."""
    (t, stage), start = item
    if stage is None:
        assert source is not None
        stage = source[t]
    start = initial if start is None else start
    rng = np.random.default_rng([number, t])
    try:
        made = partial(clone_stage, stage, policy, config, start=start, rng=rng)
        found = (
            made()
            if cache is None
            else _kept(cache, stage, (policy, config, start, number, t), made)
        )
    except LogelError as error:
        raise type(error)(f"stage {t}: {error}") from None
    if eager and not found.fisher.tabular:
        _ = found.typical_information  # while others are at work, too
    return found, stage.n_episodes


def _kept(cache: Cache, stage: Stage, made_of: tuple[Any, ...], make: Callable[[], Clone]) -> Clone:
    """A clone that was found before, or is now."""
    policy = made_of[0]
    made: list[Clone] = []

    def told() -> Arrays:
        found = make()
        made.append(found)
        information = [] if found.fisher.tabular else [found.typical_information]
        numbers = [found.log_likelihood, found.held_out, found.converged, found.iterations]
        return {"parameters": found.parameters, "numbers": np.array([*numbers, *information])}

    def sound(kept: Arrays) -> bool:
        return (
            kept.keys() == {"parameters", "numbers"}
            and kept["parameters"].shape == (policy.n_parameters,)
            and kept["parameters"].dtype == float
            and kept["numbers"].shape in ((4,), (5,))
            and bool(np.isfinite(kept["parameters"]).all())
        )

    kept = cache.kept(("clone", *made_of, stage), told, sound)
    if made:
        return made[0]
    theta, data = kept["parameters"], policy.counted(stage)
    likely, held_out, converged, iterations, *information = kept["numbers"].tolist()
    found = Clone(
        parameters=theta,
        fisher=policy.fisher(policy.tensor(theta), data.observations, data.counts),
        log_likelihood=likely,
        held_out=held_out,
        converged=bool(converged),
        iterations=int(iterations),
    )
    if information:
        found.__dict__["typical_information"] = information[0]
    return found


def _parameters_of(done: tuple[Clone, int]) -> Float:
    return done[0].parameters


def _log(t: int, n_episodes: int, found: Clone) -> None:
    held_out = np.isfinite(found.held_out)
    logger.info(
        "stage %d: %d episodes, %slog-likelihood %.3f, %d iterations%s",
        t,
        n_episodes,
        "held-out " if held_out else "",
        found.held_out if held_out else found.log_likelihood,
        found.iterations,
        "" if found.converged else " (not converged)",
    )


def known_parameters(history: LearningHistory, policy: Policy) -> Float | None:
    """The parameters a history carries, (m + 1, d), checked against the family; None if none."""
    return checked_parameters(history.parameters(), policy)


def checked_parameters(known: Array | None, policy: Policy, first: int = 0) -> Float | None:
    """Known parameters of stages, from `first` on, checked against the family; None if none."""
    if known is None:
        return None
    if known.shape[1] != policy.n_parameters:
        raise HistoryError(
            f"the history's policies have {known.shape[1]} parameters, but the family "
            f"{policy.n_parameters}: pass the matching family, or use_parameters=False (--clone) "
            "to clone"
        )
    if (far := np.abs(known) > _LARGEST).any():
        t, k = np.argwhere(far)[0]
        raise HistoryError(
            f"parameter {k} of stage {first + t} is {known[t, k]:.3g}, too much to "
            "compute with: correct it, or use_parameters=False (--clone) to clone"
        )
    return known.astype(float, copy=False)


def known_or_cloned(
    history: LearningHistory,
    policy: Policy,
    config: CloneConfig,
    *,
    use_parameters: bool,
    rng: np.random.Generator,
    progress: Progress,
    run: Executor = SERIAL,
) -> tuple[Float, ClonedPath | None]:
    """Known parameters if there are any and they are wanted, or cloned ones with their path."""
    known = known_parameters(history, policy) if use_parameters else None
    if known is not None:
        return known, None
    total = len(history)
    path = clone(
        *(history, policy, config),
        rng=rng,
        progress=lambda done: progress("cloning", done, total),
        run=run,
    )
    return path.parameters, path
