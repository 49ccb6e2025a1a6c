"""The choice of windows is held against others, and the note says what came of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from logel import Episode, LearningHistory, Method, TabularSoftmax, infer_reward
from logel.errors import OptionError
from logel.inference.status import Status
from logel.inference.windows import _compared, check_windows

QUICK = Method.named("joint", models=("gradient",), heats=((6, np.inf),))
POLICY = TabularSoftmax(1, 2)


def learner(n: int = 240, rate: float = 0.05) -> LearningHistory:
    """One state, two actions, the first of which pays; learnt trial by trial."""
    rng, logit, episodes = np.random.default_rng(0), 0.0, []
    for _ in range(n):
        chance = 1 / (1 + np.exp(-logit))
        action = int(rng.random() > chance)
        features = np.eye(2)[[action]]
        episodes.append(Episode(np.zeros(2, dtype=int), np.array([action]), features))
        logit += rate * (1 - chance)
    return LearningHistory.from_sessions(episodes, windows=6, feature_names=["paid", "other"])


def test_the_same_answer_in_other_windows_is_noted() -> None:
    estimate = check_windows(learner(), POLICY, gamma=0.0, method=QUICK, others=[8])
    plain = infer_reward(learner(), POLICY, gamma=0.0, method=QUICK)
    np.testing.assert_array_equal(estimate.weights, plain.weights)
    assert estimate.weights[0] > 0.7
    assert estimate.notes[-1].startswith("other windows than these 6: with 8 the same within")
    with pytest.raises(OptionError, match=r"at least 2 and not the 6 there are: \[6, 1\]"):
        check_windows(learner(), POLICY, gamma=0.0, others=[6, 1])
    with pytest.raises(OptionError, match="leave out intervals"):
        check_windows(learner(), POLICY, gamma=0.0, intervals=False)


def test_an_answer_that_depends_on_windows_says_so() -> None:
    one = infer_reward(learner(), POLICY, gamma=0.0, method=QUICK)
    draws = np.array([[0.7, -0.7]]) + 1e-3 * np.random.default_rng(0).normal(size=(99, 2))
    sure = replace(one, weights=np.array([0.7, -0.7]), draws=draws, status=Status.OK)
    other = replace(sure, weights=-sure.weights, draws=-draws)
    assert "depends on it, in the weight of paid, other" in _compared(sure, other, 3)
    vague = replace(other, status=Status.UNEXPLAINED)
    assert "depends on it: no reward made of these features" in _compared(sure, vague, 3)
    assert "the same within intervals (cosine 1.00)" in _compared(sure, sure, 3)
