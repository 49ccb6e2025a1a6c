"""Policies that know what is legal: their layout by hand, their derivatives by the contract."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from logel import LinearSoftmax, MLPCategorical, TabularSoftmax
from logel.contract.family import check_family
from logel.data.stage import Stage
from logel.errors import HistoryError, OptionError, PolicyError
from logel.policies.cloning import CloneConfig, clone_stage
from logel.policies.masks import MaskedSoftmax, legal_table, masked_policy, with_masks_behind

LEGAL = np.array([[1, 1, 1], [0, 1, 0], [1, 0, 1], [0, 1, 1]], dtype=bool)
TABLE = TabularSoftmax(4, 3, legal=LEGAL)


def towards(observations: Any) -> Any:
    """Left is legal right of the middle, right left of it, staying always."""
    x = np.asarray(observations, dtype=float).reshape(len(observations), -1)[:, 0]
    return np.stack([x > -0.5, np.ones(len(x), dtype=bool), x < 0.5], axis=1)


def stage_of(states: Any, actions: Any, **more: Any) -> Stage:
    n = len(actions)
    return Stage(np.array(states), np.array(actions), np.array([2, n - 2]), np.zeros(2), **more)


def test_parameters_are_the_legal_actions_but_the_last_of_every_state() -> None:
    theta = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    assert TABLE.n_parameters == LEGAL.sum() - 4
    table = TABLE.table(theta).numpy()
    np.testing.assert_array_equal(table[LEGAL], [0.1, 0.2, 0, 0, 0.3, 0, 0.4, 0])
    chances = TABLE.probabilities(theta.numpy(), np.arange(4))
    assert (chances[~LEGAL] == 0).all() and chances[1, 1] == 1
    assert chances[2, 0] == pytest.approx(np.exp(0.3) / (1 + np.exp(0.3)))
    entropy = TABLE.entropy(TABLE.outputs(theta, torch.arange(4))).numpy()
    assert entropy[1] == 0 and np.isfinite(entropy).all() and (entropy[[0, 2, 3]] > 0).all()


@pytest.mark.parametrize(
    ("policy", "observations"),
    [
        (TABLE, np.repeat(np.arange(4), 6)),
        (LinearSoftmax(1, 3, legal=towards), np.linspace(-1.5, 1.5, 24)[:, None]),
        (
            MaskedSoftmax(MLPCategorical(1, 3, hidden=(4,)), towards),
            np.linspace(-1.5, 1.5, 24)[:, None],
        ),
    ],
    ids=["table", "linear", "network"],
)
def test_the_contract_of_families(policy: Any, observations: Any) -> None:
    check_family(policy, observations)
    theta = np.linspace(-1, 1, policy.n_parameters)
    assert (
        policy.probabilities(theta, observations)[~policy.legal_actions(observations)] == 0
    ).all()


def test_information_of_a_table_is_that_of_every_state_by_hand() -> None:
    theta = np.array([0.5, -0.2, 0.7, 0.1])
    counts = torch.tensor([5.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    fisher = TABLE.fisher(TABLE.tensor(theta), torch.arange(4), counts)
    p = TABLE.probabilities(theta, np.arange(4))
    expected = np.zeros((4, 4))
    expected[:2, :2] = 5 * (np.diag(p[0, :2]) - np.outer(p[0, :2], p[0, :2]))
    expected[2, 2], expected[3, 3] = 3 * p[2, 0] * p[2, 2], 4 * p[3, 1] * p[3, 2]
    np.testing.assert_allclose(fisher.dense(), expected, atol=1e-12)
    np.testing.assert_allclose(fisher.diagonal(), np.diagonal(expected))
    vector = np.array([1.0, 2.0, -1.0, 0.5])
    np.testing.assert_allclose(fisher.matvec(vector), expected @ vector)
    inverse = np.linalg.inv(expected + 0.5 * np.eye(4))
    np.testing.assert_allclose(fisher.solve(vector, ridge=0.5), inverse @ vector)
    np.testing.assert_allclose(fisher.solve(vector), np.linalg.solve(expected, vector), rtol=1e-6)


def test_where_all_is_legal_nothing_changes() -> None:
    rng = np.random.default_rng(0)
    stage = stage_of(rng.integers(0, 4, 60), rng.integers(0, 3, 60))
    plain, told = TabularSoftmax(4, 3), TabularSoftmax(4, 3, legal=np.ones((4, 3), dtype=bool))
    clones = [
        clone_stage(stage, policy, CloneConfig(), start=np.zeros(8), rng=np.random.default_rng(1))
        for policy in (plain, told)
    ]
    np.testing.assert_allclose(clones[0].parameters, clones[1].parameters, atol=1e-12)
    np.testing.assert_allclose(clones[0].fisher.dense(), clones[1].fisher.dense(), atol=1e-12)


def test_a_clone_of_legal_actions_has_their_frequencies() -> None:
    stage = stage_of([2] * 10 + [1] * 30, [0] * 7 + [2] * 3 + [1] * 30)
    config = CloneConfig(prior_strength=0.0)
    found = clone_stage(stage, TABLE, config, start=np.zeros(4), rng=np.random.default_rng(0))
    chances = TABLE.probabilities(found.parameters, np.array([2, 1]))
    np.testing.assert_allclose(chances, [[0.7, 0, 0.3], [0, 1, 0]], atol=1e-8)
    # Thirty actions without a choice tell nothing, and cost nothing.
    assert found.log_likelihood * 40 == pytest.approx(7 * np.log(0.7) + 3 * np.log(0.3))


def test_illegal_actions_are_named() -> None:
    with pytest.raises(
        PolicyError, match=r"episode 1, time 1: action 0 is illegal in state 3, .*\[1, 2\]"
    ):
        TABLE.check(stage_of([0, 1, 2, 3], [2, 1, 2, 0]))
    linear = LinearSoftmax(1, 3, legal=towards)
    with pytest.raises(PolicyError, match="episode 0, time 1: action 0 is illegal"):
        linear.check(stage_of([[0.0], [-1.0], [1.0]], [2, 0, 1]))


@pytest.mark.parametrize(
    ("legal", "told"),
    [
        (LEGAL[:3], r"shape \(4, 3\)"),
        (LEGAL.astype(int), "booleans"),
        (LEGAL & (np.arange(4) != 1)[:, None], "no action in state 1"),
    ],
)
def test_what_cannot_be_legal_is_refused(legal: Any, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        TabularSoftmax(4, 3, legal=legal)


def test_families_are_equal_only_if_they_allow_the_same() -> None:
    assert TabularSoftmax(4, 3, legal=LEGAL.copy()) == TABLE != TabularSoftmax(4, 3)
    assert hash(TabularSoftmax(4, 3, legal=LEGAL.copy())) == hash(TABLE)


def test_a_function_that_allows_nothing_is_refused() -> None:
    nothing = LinearSoftmax(1, 3, legal=lambda x: np.zeros((len(x), 3), dtype=bool))
    with pytest.raises(PolicyError, match="no action in row 0"):
        nothing.prepare_observations(np.ones((2, 1)))


def test_recorded_masks_make_a_table() -> None:
    states, actions = [0, 1, 2, 0], [2, 1, 0, 0]
    stage = stage_of(states, actions, action_masks=LEGAL[states])
    expected = LEGAL.copy()
    expected[3] = True  # nobody acted there
    np.testing.assert_array_equal(legal_table([stage, stage], 4, 3), expected)
    other = LEGAL[states].copy()
    other[3, 1] = False
    bad = stage_of(states, actions, action_masks=other)
    with pytest.raises(
        HistoryError, match=r"stage 1, episode 1, time 1: in state 0 actions \[0, 2\]"
    ):
        legal_table([stage, bad], 4, 3)


def test_masks_behind_observations_are_what_a_function_of_them_says() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (40, 1))
    actions = np.array([rng.choice(np.flatnonzero(row)) for row in towards(x)])
    stage = stage_of(x, actions, action_masks=towards(x))
    policy = masked_policy(LinearSoftmax(1, 3), [stage], 3)
    behind, told = with_masks_behind(stage), LinearSoftmax(1, 3, legal=towards)
    theta = np.array([0.4, -1.1])
    for one, two in zip(policy.prepare(behind), told.prepare(stage), strict=True):
        np.testing.assert_array_equal(one, two)
    np.testing.assert_allclose(
        policy.probabilities(theta, behind.observations),
        told.probabilities(theta, x),  # type: ignore[attr-defined]
    )
    with pytest.raises(OptionError, match="give one"):
        masked_policy(told, [stage], 3)
    with pytest.raises(OptionError, match="has 4 actions, but the history's action_masks 3"):
        masked_policy(LinearSoftmax(1, 4), [stage], 3)
