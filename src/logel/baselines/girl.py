"""Gradient IRL on the last stage only: what a sceptic would do without watching the learning.

Taking the last policy for an expert, its gradient should vanish: the weights are those whose
gradient at the last policy is smallest.
"""

from __future__ import annotations

import numpy as np

from logel.data.history import LearningHistory
from logel.errors import IdentificationError
from logel.inference.gauge_sums import GaugeSums
from logel.policies.base import Policy
from logel.policies.cloned_path import clone
from logel.policies.cloning import CloneConfig
from logel.rewards.features import feature_names, featured
from logel.rewards.linear import LinearReward
from logel.types import FeatureFunction
from logel.worlds.own_episodes import Baseline, stage_jacobian


def girl(
    history: LearningHistory,
    policy: Policy,
    *,
    gamma: float,
    baseline: Baseline | str = Baseline.NONE,
    features: FeatureFunction | None = None,
    use_parameters: bool = True,
    seed: int = 0,
) -> LinearReward:
    """Weights of unit norm, in the identified subspace, whose gradient is smallest.

    Args:
        history: What was observed; only the last stage is used.
        policy: Family of the learner's policies.
        gamma: Discount factor, in [0, 1).
        baseline: Of the G(PO)MDP estimator.
        features: Computes reward features when the episodes carry none.
        use_parameters: Use the last stage's parameters if recorded, instead of cloning.
        seed: Chooses a network's starting point in cloning.

    The gradient's norm does not know the weights' sign; on the sphere the sign is the one for
    which sharpening the policy would pay, as it does for an agent that is nearly optimal.
    """
    last = len(history) - 1
    stage = featured(history[last], features, last)
    theta = stage.parameters if use_parameters else None
    if theta is None:
        rng = np.random.default_rng(seed)
        theta = clone([stage], policy, CloneConfig(holdout=0.0), rng=rng).parameters[0]
    jacobian = stage_jacobian(policy, theta, stage, gamma=gamma, baseline=baseline)
    names = feature_names(history, features, jacobian.mean.shape[1])
    sums = GaugeSums(gamma)
    sums.add(stage)
    basis = sums.gauge(names, bootstrap=False).identified
    if basis.shape[1] == 0:
        raise IdentificationError("no direction of the weights is identified in the last stage")
    weights = basis @ np.linalg.svd(jacobian.mean @ basis)[2][-1]
    sign = -1.0 if theta @ jacobian.mean @ weights < 0 else 1.0
    return LinearReward(sign * weights, features)
