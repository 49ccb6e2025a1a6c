"""Which inference the default takes: the whole path at once only where that takes seconds."""

from __future__ import annotations

import numpy as np
import pytest

from logel.data.history import LearningHistory
from logel.data.stage import Stage
from logel.errors import OptionError
from logel.inference import path
from logel.inference.infer import infer_reward
from logel.inference.path import LARGEST_KNOWN, LARGEST_TABLE, path_applies
from logel.inference.watched import Watched
from logel.policies.base import Policy
from logel.policies.gaussian import LinearGaussian
from logel.policies.networks import MLPCategorical
from logel.policies.softmax import LinearSoftmax, TabularSoftmax


def seen(policy: Policy, *, n_steps: int, known: bool = False) -> Watched:
    """One short episode per stage; only sizes matter here."""
    rng = np.random.default_rng(0)
    gaussian = isinstance(policy, LinearGaussian)
    stages = [
        Stage(
            observations=rng.normal(size=(2, 3)) if gaussian else rng.integers(0, 4, 2),
            actions=rng.normal(size=(2, policy.action_dim)) if gaussian else rng.integers(0, 2, 2),
            lengths=np.array([2]),
            terminated=np.array([False]),
            features=rng.normal(size=(2, 1)),
            parameters=rng.normal(size=policy.n_parameters) if known else None,
        )
        for _ in range(n_steps + 1)
    ]
    return Watched(
        LearningHistory.from_stages(stages),
        policy,
        gamma=0.9,
        features=None,
        use_parameters=True,
        intervals=False,
        seed=0,
        report=lambda what, done, total: None,
    )


# A choice in half of the states; and more of it in some than in others.
CORRIDORS, UNEVEN = np.ones((2, 400, 4), dtype=bool)
CORRIDORS[200:, 1:] = False
UNEVEN[100:, 0] = False


def one_hot(states: np.ndarray) -> np.ndarray:
    return np.eye(4)[states]


@pytest.mark.parametrize(
    ("policy", "n_steps", "known", "expected"),
    [
        # The gridworld of the paper, and three times as many steps.
        (TabularSoftmax(25, 4), 10, False, True),
        (TabularSoftmax(25, 4), 30, False, True),
        # Tables are multiplied, not held in matrices, hidden or known.
        (TabularSoftmax(200, 4), 3, False, True),
        (TabularSoftmax(LARGEST_TABLE, 2), 3, False, True),
        (TabularSoftmax(LARGEST_TABLE, 2), 3, True, True),
        (TabularSoftmax(LARGEST_TABLE + 1, 2), 3, False, False),
        (TabularSoftmax(LARGEST_TABLE + 1, 2), 3, True, False),
        # Tables with more choice here than there are not.
        (TabularSoftmax(25, 4, legal=np.ones((25, 4), dtype=bool)), 10, False, True),
        (TabularSoftmax(200, 4, legal=np.ones((200, 4), dtype=bool)), 3, False, True),
        (TabularSoftmax(400, 4, legal=CORRIDORS), 3, False, True),
        (TabularSoftmax(400, 4, legal=UNEVEN), 3, False, False),
        (TabularSoftmax(200, 4, legal=UNEVEN[:200]), 3, True, True),
        # Six hundred hidden parameters of another family: one pass alone is minutes of work.
        (LinearSoftmax(200, 4), 3, False, False),
        (LinearSoftmax(200, 4), 1, False, False),
        # Known ones are regressed on.
        (LinearSoftmax(200, 4), 3, True, True),
        (LinearSoftmax(LARGEST_KNOWN + 1, 2), 3, True, False),
        (LinearSoftmax(4, 3, feature_map=one_hot), 10, False, True),
        (LinearGaussian(3, 3), 10, False, True),
        # Quadrature over four action dimensions has too many nodes.
        (LinearGaussian(3, 4), 10, False, False),
        (MLPCategorical(1, 2, hidden=(2,)), 10, True, False),
    ],
)
def test_the_path_is_smoothed_where_that_takes_seconds(
    policy: Policy, n_steps: int, known: bool, expected: bool
) -> None:
    assert path_applies(seen(policy, n_steps=n_steps, known=known)) == expected


def test_what_is_too_large_is_left_by_the_default_and_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(path, "LARGEST_TABLE", 100)
    policy = TabularSoftmax(51, 3)
    history = seen(policy, n_steps=3).history
    estimate = infer_reward(history, policy, gamma=0.9, intervals=False)
    assert estimate.method.startswith("method default (two-step)")
    with pytest.raises(OptionError, match="use 'two-step' for others"):
        infer_reward(history, policy, gamma=0.9, method="joint")
