"""What is watched, and how: the stages of a history with features, checked, streamed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np

from logel.data.contents import ParameterRows, elsewhere
from logel.data.history import LearningHistory
from logel.data.stage import Stage, StageSource
from logel.errors import IdentificationError, LogelError, OptionError
from logel.inference.arrow import SOME_ROWS, less_decided
from logel.inference.deviations import Deviations
from logel.inference.extremes import Extremes
from logel.inference.gauge import FeatureMoments, Gauge, check_identified
from logel.inference.gauge_sums import GaugeSums, common_gauge
from logel.policies.base import Policy
from logel.policies.cloned_path import ClonedPath, Cloner, checked_parameters
from logel.policies.cloning import Clone, CloneConfig
from logel.rewards.features import feature_names, featured
from logel.types import Array, FeatureFunction, Float, Progress
from logel.workers import SERIAL, Executor
from logel.worlds.base import World
from logel.worlds.choose import Pooler, pooler
from logel.worlds.critic import ScaleSums, StateScale
from logel.worlds.known import KnownWorld

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Watched:
    """A learner's history as an inference sees it; see `infer_reward` for the arguments.

    Attributes:
        offset: Constants subtracted from the features, shape (q,), see `FeatureMoments.offset`.
        world: What is known of the world, or None.
        company: The learners it is inferred together with, itself among them, or None.
        run: What runs independent pieces of work.
        cloning: How policies that are not known are cloned as soon as their stage is looked at, so
            that it is not read again for that; None: they are not, or later.
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
    company: Company | None = None
    run: Executor = SERIAL
    cloning: CloneConfig | None = None

    def stages(self) -> Iterator[Stage]:
        """The stages with features, checked against the policy; errors name the stage."""
        seen = self._seen
        for t, stage in enumerate(self.history):
            with naming(t):
                stage = seen.checked(stage, t)
            yield stage

    def each(self, work: StageWork, given: Iterable[Any], what: str) -> Iterator[Any]:
        """`work(stage, item)` for every stage as `stages` yields it, wherever that runs.

        Args:
            work: At the top level of a module, or a `partial` of such a function.
            given: One item per stage.
            what: It is for, to be reported.
        """
        # Here stages may be at hand; other processes read for themselves.
        far = None if self.run.here else elsewhere(self.history.source)
        here = self.history if far is None else repeat(None, len(self.history))
        items = ((t, stage, item) for t, (stage, item) in enumerate(zip(here, given, strict=True)))
        done = self.run.map(_with_stage, items, (work, self._seen, far))
        for t, (result, n_episodes, n_steps) in enumerate(done):
            logger.info("stage %d: %s from %d episodes, %d steps", t, what, n_episodes, n_steps)
            self.report(what, t + 1, len(self.history))
            yield result

    @property
    def elsewhere(self) -> Watched:
        """The same for another process, which has nobody to report to; with the look if taken."""
        there = replace(self, report=unheard, run=SERIAL)
        if "look" in self.__dict__:
            there.__dict__.update(look=self.look, extremes=self.extremes)
        return there

    @property
    def _seen(self) -> _Seen:
        return _Seen(self.policy, self.features, self.offset)

    def without(self, group: int, n_groups: int) -> Iterator[Stage]:
        """The same with one group of episodes left out of every stage."""
        for t, stage in enumerate(self.stages()):
            # Which episodes form a group differs from stage to stage.
            member = (np.arange(stage.n_episodes) + t) % n_groups == group
            yield stage.take(np.flatnonzero(~member))

    @property
    def common(self) -> Look | Company:
        """What its features are measured by: all that the company shows, if there is any."""
        return self.look if self.company is None else self.company

    @cached_property
    def extremes(self) -> Extremes:
        """Sizes of all columns, once `look` was taken."""
        return Extremes(self.history.feature_names if self.features is None else None)

    @cached_property
    def look(self) -> Look:
        """All that one pass over the stages shows: reading them may be what takes longest."""
        legal = getattr(self.policy, "legal_actions", None)
        seen, scale, episodes, n_rows = GaugeSums(self.gamma, legal), ScaleSums(), [], 0
        deviations, extremes = Deviations(self.policy), self.extremes
        parameters = ParameterRows()
        ends: list[Array] = []
        cloned: list[Clone] = []
        for t, stage in enumerate(self.stages()):
            with naming(t):
                extremes.add(stage)
            seen.add(stage)
            scale.add(stage)
            deviations.add(stage)
            episodes.append(stage.n_episodes)
            ends = [*ends[:1], stage.observations[:SOME_ROWS].copy()]  # a view would keep all
            n_rows += stage.n_steps
            what = "reading"
            if self.use_parameters:
                parameters.add(stage)
            if self.use_parameters and stage.parameters is not None:  # else cloning has more to say
                size = (t, stage.n_episodes, stage.n_steps)
                logger.info("stage %d: %d episodes, %d steps, known parameters", *size)
            elif self._cloner is not None:
                with naming(t):
                    cloned.append(self._cloner.add(stage))
                what = "cloning"
            self.report(what, t + 1, len(self.history))
        extremes.check()
        known = checked_parameters(parameters.rows, self.policy)
        if known is None and extremes.all_alike:
            raise IdentificationError(
                "every stage shows the same observations and actions: the policy does not move, "
                "there is nothing to explain"
            )
        names = feature_names(self.history, self.features, len(seen.moments.scale))
        unusual = deviations.notes() if known is None else ()
        found = names, seen, scale.scale(), min(episodes), n_rows, known
        path = ClonedPath(tuple(cloned), self.cloning) if cloned and self.cloning else None
        return Look(*found, (ends[0], ends[-1]), unusual, path)

    @cached_property
    def _cloner(self) -> Cloner | None:
        if self.cloning is None:
            return None
        return Cloner(self.policy, self.cloning, np.random.default_rng(self.seed))


def unheard(what: str, done: int, total: int) -> None:
    """The progress of one among many."""


StageWork = Callable[[Stage, Any], Any]


class _Seen(NamedTuple):
    """How stages are looked at."""

    policy: Policy
    features: FeatureFunction | None
    offset: Float | None

    def checked(self, stage: Stage, t: int) -> Stage:
        """With features, and checked against the policy."""
        self.policy.check(stage)
        return featured(stage, self.features, t, self.offset)


def _with_stage(
    common: tuple[StageWork, _Seen, StageSource | None], item: tuple[int, Stage | None, Any]
) -> tuple[Any, int, int]:
    """A piece of work on a stage that came along, or is read where the work is done."""
    work, seen, source = common
    t, stage, given = item
    if stage is None:
        assert source is not None
        stage = source[t]
    with naming(t):
        return work(seen.checked(stage, t), given), stage.n_episodes, stage.n_steps


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
        ends: Some observations of the first and the last stage.
        unusual: What contradicts the family.
        cloned: Clones of all stages, if they were made meanwhile.
    """

    names: tuple[str, ...]
    seen: GaugeSums
    scale: StateScale
    fewest: int
    n_rows: int
    parameters: Float | None
    ends: tuple[Array, Array]
    unusual: tuple[str, ...] = ()
    cloned: ClonedPath | None = None

    def groups(self, wanted: int) -> int:
        """Groups of episodes kept apart: as many as are wanted, if every stage has them."""
        return max(min(wanted, self.fewest), 1)

    def unlearns(self, policy: Policy, parameters: Float, kept: float | None = None) -> bool:
        """Whether a path (m + 1, d) loses what was decided at its beginning."""
        return less_decided(policy, (parameters[0], parameters[-1]), self.ends, kept)

    @property
    def moments(self) -> FeatureMoments:
        """Of the features."""
        return self.seen.moments

    def gauge(self, *, bootstrap: bool | None) -> Gauge:
        """What no data can tell; refused if that is everything. See `GaugeSums.gauge`."""
        gauge = self.seen.gauge(self.names, bootstrap=bootstrap)
        check_identified(gauge)
        return gauge


@dataclass(frozen=True, eq=False)
class Company:
    """Learners that are inferred together: what they share before any is fitted.

    Attributes:
        members: Every learner as it is watched by itself.
        pools: Whether they live in one world, about which all of them tell.
    """

    members: tuple[Watched, ...]
    pools: bool

    @cached_property
    def moments(self) -> FeatureMoments:
        """Of the features of all learners."""
        total = FeatureMoments()
        for member in self.members:
            for stage in member.stages():
                total.add(stage)
        return total

    def gauge(self, *, bootstrap: bool | None) -> Gauge:
        """What none of them can tell."""
        looks = [member.look for member in self.members]
        gauge = common_gauge([look.seen.gauge(look.names, bootstrap=bootstrap) for look in looks])
        check_identified(gauge)
        return gauge

    @property
    def fewest(self) -> int:
        """Episodes of the stage that has the fewest."""
        return min(member.look.fewest for member in self.members)

    def pool(self, stages: Iterable[Stage], basis: Float) -> World:
        """A world of some stages, of the kind that all of them together decide on."""
        return self._pooler(stages).with_features(basis)

    def world(
        self, own: World, basis: Float, offset: Float | None, group: int | None, n_groups: int
    ) -> World:
        """The world of all episodes, or of all but one group in every stage, with `own` actions.

        All learners ask for the same, so it is pooled once.
        """
        if group not in self._worlds:
            watched = [replace(m, offset=offset) for m in self.members]
            stages = chain.from_iterable(
                m.stages() if group is None else m.without(group, n_groups) for m in watched
            )
            # Keeping anyone's actions keeps it small.
            self._worlds[group] = self.pool(stages, basis).with_actions_of(own)
        return self._worlds[group].with_actions_of(own)

    @cached_property
    def _worlds(self) -> dict[int | None, World]:
        return {}

    @cached_property
    def _pooler(self) -> Pooler:
        first = self.members[0]
        stages = chain.from_iterable(m.stages() for m in self.members)
        return pooler(stages, first.policy, gamma=first.gamma, known=first.world)
