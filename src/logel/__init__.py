"""Recover the reward an agent is optimising by watching it learn.

The public names, in the order of the computation; each is imported when first used, so that
`import logel` stays fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_NAMES = {
    "Episode": "logel.data.stage",
    "Stage": "logel.data.stage",
    "LearningHistory": "logel.data.history",
    "HistoryWriter": "logel.data.folder",
    "Rollout": "logel.data.rollout",
    "record_stage": "logel.data.rollout",
    "HistoryRecorder": "logel.learners.sb3",
    "TabularSoftmax": "logel.policies.softmax",
    "LinearSoftmax": "logel.policies.softmax",
    "LinearGaussian": "logel.policies.gaussian",
    "MLPGaussian": "logel.policies.networks",
    "MLPCategorical": "logel.policies.networks",
    "SB3Policy": "logel.policies.sb3",
    "TorchPolicy": "logel.policies.torch_policy",
    "Method": "logel.inference.method",
    "KnownWorld": "logel.worlds.known",
    "Workers": "logel.workers",
    "infer_reward": "logel.inference.infer",
    "check_estimate": "logel.inference.check",
    "plan_inference": "logel.inference.plan",
    "Plan": "logel.inference.plan",
    "EstimateChecks": "logel.inference.check",
    "infer_group": "logel.inference.infer",
    "compare_groups": "logel.inference.infer",
    "GroupEstimate": "logel.inference.group",
    "Contrast": "logel.inference.contrast",
    "Observer": "logel.inference.observer",
    "RewardEstimate": "logel.inference.estimate",
    "LinearReward": "logel.rewards.linear",
    "LogelError": "logel.errors",
}

if TYPE_CHECKING:
    from logel.data.folder import HistoryWriter
    from logel.data.history import LearningHistory
    from logel.data.rollout import Rollout, record_stage
    from logel.data.stage import Episode, Stage
    from logel.errors import LogelError
    from logel.inference.check import EstimateChecks, check_estimate
    from logel.inference.contrast import Contrast
    from logel.inference.estimate import RewardEstimate
    from logel.inference.group import GroupEstimate
    from logel.inference.infer import compare_groups, infer_group, infer_reward
    from logel.inference.method import Method
    from logel.inference.observer import Observer
    from logel.inference.plan import Plan, plan_inference
    from logel.learners.sb3 import HistoryRecorder
    from logel.policies.gaussian import LinearGaussian
    from logel.policies.networks import MLPCategorical, MLPGaussian
    from logel.policies.sb3 import SB3Policy
    from logel.policies.softmax import LinearSoftmax, TabularSoftmax
    from logel.policies.torch_policy import TorchPolicy
    from logel.rewards.linear import LinearReward
    from logel.workers import Workers
    from logel.worlds.known import KnownWorld

__all__ = [
    "Contrast",
    "Episode",
    "EstimateChecks",
    "GroupEstimate",
    "HistoryRecorder",
    "HistoryWriter",
    "KnownWorld",
    "LearningHistory",
    "LinearGaussian",
    "LinearReward",
    "LinearSoftmax",
    "LogelError",
    "MLPCategorical",
    "MLPGaussian",
    "Method",
    "Observer",
    "Plan",
    "RewardEstimate",
    "Rollout",
    "SB3Policy",
    "Stage",
    "TabularSoftmax",
    "TorchPolicy",
    "Workers",
    "__version__",
    "check_estimate",
    "compare_groups",
    "infer_group",
    "infer_reward",
    "plan_inference",
    "record_stage",
]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'logel' has no attribute {name!r}")
    from logel.errors import MissingExtraError

    try:
        return getattr(import_module(_NAMES[name]), name)
    except MissingExtraError as error:
        missing = error

    # Importing every name works without the extras; using one that needs them says which.
    def refuse(self: object, *_: object, **__: object) -> None:
        raise missing

    return type(name, (), {"__init__": refuse, "__doc__": str(missing)})


def __dir__() -> list[str]:
    return sorted({*__all__, *_NAMES})
