"""An estimate made by hand, for tests of what becomes of one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from logel.inference.estimate import RewardEstimate
from logel.inference.gauge import Fit, Gauge
from logel.inference.status import Status


def example(**changes: Any) -> RewardEstimate:
    names = ("goal", "cliff", "grass")
    base = RewardEstimate(
        weights=np.array([0.8, -0.6, 0.0]),
        feature_names=names,
        learning_rates=np.array([0.1, 0.2]),
        covariance=np.diag([0.01, 0.04, 0.0]),
        degrees_of_freedom=9,
        scale="unit norm",
        status=Status.RANK_DEFICIENT,
        notes=("mind the gap",),
        gauge=Gauge(names, np.array([[0.0, 0.0, 1.0]]), "it is constant", np.zeros((0, 3))),
        fit=Fit(np.array([0.5, 0.7]), np.array([0.71, 0.84]), 0.1),
        method="by hand",
        config={"gamma": 0.9, "clone": {"method": "mle"}, "seed": 0},
        objective_trace=np.array([2.0, 1.0]),
        rank=2,
        condition=3.5,
        held_out=np.array([-1.0, np.nan, -1.2]),
    )
    return replace(base, **changes)
