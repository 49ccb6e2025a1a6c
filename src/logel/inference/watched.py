"""What is watched, and how: the stages of a history with features, checked, streamed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from logel.data.history import LearningHistory
from logel.data.stage import Stage
from logel.errors import LogelError, OptionError
from logel.inference.gauge import Gauge, check_identified
from logel.inference.gauge_sums import GaugeSums
from logel.policies.base import Policy
from logel.policies.cloning import known_parameters
from logel.rewards.features import feature_names, featured
from logel.types import FeatureFunction, Float, Progress
from logel.worlds.critic import ScaleSums, StateScale
from logel.worlds.known import KnownWorld

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Watched:
    """A learner's history as an inference sees it; see `infer_reward` for the arguments.

    Attributes:
        offset: Constants subtracted from the features, shape (q,), see `FeatureMoments.offset`.
        world: What is known of the world, or None.
    """

    history: LearningHistory
    policy: Policy
    gamma: float
    features: FeatureFunction | None
    use_parameters: bool
    intervals: bool
    seed: int
    report: Progress
    offset: Float | None = None
    world: KnownWorld | None = None

    def stages(self) -> Iterator[Stage]:
        """The stages with features, checked against the policy; errors name the stage."""
        for t, stage in enumerate(self.history):
            with naming(t):
                self.policy.check(stage)
                stage = featured(stage, self.features, t, self.offset)
            yield stage

    def without(self, group: int, n_groups: int) -> Iterator[Stage]:
        """The same with one group of episodes left out of every stage."""
        for t, stage in enumerate(self.stages()):
            # Which episodes form a group differs from stage to stage.
            member = (np.arange(stage.n_episodes) + t) % n_groups == group
            yield stage.take(np.flatnonzero(~member))

    @cached_property
    def look(self) -> Look:
        """All that one pass over the stages shows: reading them may be what takes longest."""
        legal = getattr(self.policy, "legal_actions", None)
        seen, scale, episodes, n_rows = GaugeSums(self.gamma, legal), ScaleSums(), [], 0
        first_episodes = []
        for t, stage in enumerate(self.stages()):
            seen.add(stage)
            scale.add(stage)
            episodes.append(stage.n_episodes)
            n_rows += stage.n_steps
            first_episodes.append(stage.take(np.zeros(1, dtype=int)))
            if self.use_parameters and stage.parameters is not None:  # else cloning has more to say
                size = (t, stage.n_episodes, stage.n_steps)
                logger.info("stage %d: %d episodes, %d steps, known parameters", *size)
            self.report("reading", t + 1, len(self.history))
        known = None
        if self.use_parameters:
            # First episodes carry the parameters and spare the check a pass of its own.
            brief = replace(self.history, source=tuple(first_episodes))
            known = known_parameters(brief, self.policy)
        names = feature_names(self.history, self.features, len(seen.moments.scale))
        return Look(names, seen, scale.scale(), min(episodes), n_rows, known)


@contextmanager
def naming(stage: int) -> Iterator[None]:
    """Errors raised inside name the stage; those about options do not depend on one."""
    try:
        yield
    except LogelError as error:
        if isinstance(error, OptionError):
            raise
        raise type(error)(f"stage {stage}: {error}") from None


@dataclass(frozen=True, eq=False)
class Look:
    """What one pass over all stages shows.

    Attributes:
        names: Of the features.
        seen: Sums over the features, and what the gauge needs.
        scale: Of the observations.
        fewest: Episodes of the stage that has the fewest.
        n_rows: Observed times of all stages.
        parameters: Of every stage's policy, (m + 1, d), or None if they are not known or not
            wanted.
    """

    names: tuple[str, ...]
    seen: GaugeSums
    scale: StateScale
    fewest: int
    n_rows: int
    parameters: Float | None

    def gauge(self, *, bootstrap: bool | None) -> Gauge:
        """What no data can tell; refused if that is everything. See `GaugeSums.gauge`."""
        gauge = self.seen.gauge(self.names, bootstrap=bootstrap)
        check_identified(gauge)
        return gauge
