"""Learners that act greedily: their account by brute force, and what is said of them."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest

from logel import TabularSoftmax, infer_reward
from logel.envs.tabular import random_mdp
from logel.inference import greedy
from logel.inference.greedy import greedy_evidence
from logel.inference.status import Status
from logel.learners.tabular import QLearner, observe


def test_the_account_sums_over_all_courses_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two actions, three stages: every course of (first, second, undecided) is listed."""
    monkeypatch.setattr(greedy, "_EXPLORING", (0.2,))
    monkeypatch.setattr(greedy, "_CHANGING", (0.3,))
    counts = np.array(
        [[[1.0, 2.0], [0.0, 0.0]], [[4.0, 0.0], [1.0, 0.0]], [[1.0, 5.0], [0.0, 3.0]]]
    )
    chances = np.array([[0.8, 0.2], [0.2, 0.8], [0.5, 0.5]])
    expected = 0.0
    for s in range(2):
        total = 0.0
        for course in product(range(3), repeat=3):
            chance = 1 / 3
            for before, after in pairwise(course):
                # Seven tenths stay; the rest takes either action, be it the same.
                chance *= 0.7 * (before == after) + 0.15 * (after < 2)
            for t, state in enumerate(course):
                chance *= float(np.prod(chances[state] ** counts[t, s]))
            total += chance
        expected += np.log(total)
    assert greedy_evidence(counts) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("explores", [0.3, 0.0])
def test_a_greedy_learner_is_not_believed_and_a_soft_one_is(explores: float) -> None:
    rng = np.random.default_rng([1000, 23])
    mdp = random_mdp(rng, n_states=8, n_actions=3, n_features=3, gamma=0.9, branching=2)
    learner = QLearner(greed=100.0 if explores else 1.0, explores=explores)
    weights = rng.standard_normal(3)
    history = observe(mdp, learner, weights=weights, n_steps=15, horizon=15, seed=1000)
    estimate = infer_reward(history, TabularSoftmax(8, 3), gamma=0.9)
    noted = any("acts greedily" in note for note in estimate.notes)
    assert noted == bool(explores)
    assert (estimate.status is Status.UNEXPLAINED) == bool(explores)
    if explores:
        assert not estimate.verdict.shown
