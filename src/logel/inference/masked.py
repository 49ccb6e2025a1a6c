"""Histories that recorded what was legal, as an inference sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from logel.data.contents import elsewhere
from logel.data.history import LearningHistory
from logel.data.stage import Signature, Stage, StageSource
from logel.errors import OptionError
from logel.policies.base import Policy
from logel.policies.masks import masked_policy, masked_table, with_masks_behind
from logel.policies.softmax import TabularSoftmax
from logel.rewards.features import feature_names, featured
from logel.types import FeatureFunction


@dataclass(frozen=True)
class _Masked:
    """Stages whose observations carry masks; features are computed before they do."""

    source: StageSource
    features: FeatureFunction | None

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int, /) -> Stage:
        return with_masks_behind(featured(self.source[index], self.features, index))

    def elsewhere(self) -> _Masked | None:
        """For another process to read, if it can."""
        source = elsewhere(self.source)
        return None if source is None else _Masked(source, self.features)


def allowing(
    history: LearningHistory, policy: Policy, features: FeatureFunction | None
) -> tuple[LearningHistory, Policy, FeatureFunction | None]:
    """The same where no masks were recorded; else in terms that know what was legal."""
    n_masked = history.signature.n_masked_actions
    if n_masked is None:
        return history, policy, features
    policy = masked_policy(policy, history, n_masked)
    if policy.tabular:
        return history, policy, features
    source = _Masked(history.source, features)
    first = Signature.of(source[0])
    names = feature_names(history, features, first.n_features or 0)
    seen = replace(history, source=source, signature=first, feature_names=names)
    return seen, policy, None


def allowing_all(histories: Mapping[str, LearningHistory], policy: Policy) -> Policy:
    """The family of learners in one world: a table is told what any of them recorded as legal."""
    recorded = {name: h.signature.n_masked_actions is not None for name, h in histories.items()}
    if not any(recorded.values()) or _told(policy):
        return policy
    if not all(recorded.values()):
        without, *_, with_masks = sorted(recorded, key=recorded.__getitem__)
        raise OptionError(
            f"{with_masks} has action_masks, but {without} has none: learners of one world "
            "need them all, or a table that is told by legal=; else pass pool_world=False"
        )
    return masked_table(policy, histories) if isinstance(policy, TabularSoftmax) else policy


def _told(policy: Policy) -> bool:
    """Whether a table knows what is legal without any record."""
    return isinstance(policy, TabularSoftmax) and policy.legal is not None
