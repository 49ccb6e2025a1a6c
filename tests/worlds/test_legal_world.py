"""Worlds with illegal actions against worlds that have none of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from logel import LinearSoftmax, TabularSoftmax
from logel.contract.rule import check_rule, check_world
from logel.data.stage import Episode, Stage
from logel.rules.catalogue import RULES
from logel.worlds.choose import pooler
from logel.worlds.table import TabularWorld

# Two of three actions in every state: by another numbering, a world of two actions.
TWO = np.array([[1, 0, 1], [1, 1, 0], [0, 1, 1]], dtype=bool)
MIXED = np.array([[1, 1, 1], [0, 1, 0], [1, 1, 0], [0, 1, 1]], dtype=bool)


def walk(legal: Any, seed: int = 0, n_stages: int = 4) -> list[Stage]:
    """Episodes in a random world that take legal actions only."""
    rng = np.random.default_rng(seed)
    s, a = legal.shape
    transitions = rng.dirichlet(np.ones(s), size=(s, a))
    stages = []
    for _ in range(n_stages):
        episodes = []
        for _ in range(12):
            states, actions = [int(rng.integers(s))], []
            for _ in range(6):
                actions.append(int(rng.choice(np.flatnonzero(legal[states[-1]]))))
                states.append(int(rng.choice(s, p=transitions[states[-1], actions[-1]])))
            features = np.stack([np.eye(s)[states[1:], 0], np.array(actions) == 1], axis=1)
            episodes.append(Episode(np.array(states), np.array(actions), features))
        stages.append(Stage.from_episodes(episodes))
    return stages


def renumbered(stage: Stage) -> Stage:
    rank = TWO.cumsum(axis=1) - 1
    actions = rank[stage.observations, stage.actions]
    return Stage(
        stage.observations,
        actions,
        stage.lengths,
        stage.terminated,
        stage.last_observations,
        stage.features,
    )


@pytest.mark.parametrize("name", TabularWorld.offers)
def test_a_renumbered_world_is_the_same(name: str) -> None:
    stages = walk(TWO)
    plain = pooler(stages, TabularSoftmax(3, 2), gamma=0.8)([renumbered(s) for s in stages])
    legal = pooler(stages, TabularSoftmax(3, 3, legal=TWO), gamma=0.8)(stages)
    rng = np.random.default_rng(1)
    policies = rng.normal(size=(4, 3))
    one, two = RULES[name](plain), RULES[name](legal)
    states = one.from_policy(policies)
    np.testing.assert_allclose(two.from_policy(policies), states, atol=1e-12)
    parameters = np.concatenate([[0.7, -0.4], one.nuisance_mean])
    before, after = (rule.predict(states[:-1], parameters) for rule in (one, two))
    for part in ("following", "transition", "design", "shape"):
        np.testing.assert_allclose(getattr(after, part), getattr(before, part), atol=1e-9)
    seen = [rule.observe(2, states[2]) for rule in (one, two)]
    np.testing.assert_allclose(seen[0].score, seen[1].score, atol=1e-9)
    vector = rng.normal(size=len(states[0]))
    np.testing.assert_allclose(*(o.information_times(vector) for o in seen), atol=1e-9)
    assert one.log_likelihood(states) == pytest.approx(two.log_likelihood(states))


def policies_of(policy: Any, n: int = 4) -> Any:
    return 0.5 * np.random.default_rng(3).normal(size=(n, policy.n_parameters))


@pytest.mark.parametrize("kind", ["table", "linear"])
def test_the_contract_of_worlds_and_rules(kind: str) -> None:
    stages, policy = walk(MIXED), TabularSoftmax(4, 3, legal=MIXED)
    if kind == "linear":
        policy = LinearSoftmax(  # type: ignore[assignment]
            4, 3, feature_map=lambda x: np.eye(4)[x], legal=lambda x: MIXED[np.asarray(x)]
        )
    world = pooler(stages, policy, gamma=0.8)(stages)
    policies = policies_of(policy)
    check_world(world, policies)
    for name in world.offers:
        check_rule(RULES[name](world), policies)


@pytest.mark.parametrize("name", ["gradient", "soft-policy", "soft-value", "q-learning"])
def test_derivatives_by_the_states(name: str) -> None:
    stages, policy = walk(MIXED, seed=2), TabularSoftmax(4, 3, legal=MIXED)
    rule = RULES[name](pooler(stages, policy, gamma=0.8)(stages))
    states = rule.from_policy(policies_of(policy))[:-1]
    parameters = np.concatenate([[0.3, 0.5], rule.nuisance_mean])
    found = rule.predict(states, parameters).transition
    for i in range(rule.state_dim):
        move = 1e-5 * np.eye(rule.state_dim)[i]
        up, down = (rule.following(states + s * move, parameters) for s in (1, -1))
        if name == "q-learning":
            # By design the visits' own dependence on the values is left out: own entries shrink.
            index = np.arange(rule.state_dim)
            assert (found[:, index, index] <= 1 + 1e-9).all()
            continue
        np.testing.assert_allclose(found[..., i], (up - down) / 2e-5, rtol=1e-4, atol=1e-7)


def test_backups_look_at_legal_actions_alone() -> None:
    """One soft and one hard backup by hand, through state 1, where there is no choice."""
    legal = np.array([[1, 1], [1, 0]], dtype=bool)
    states, actions = np.array([0, 1, 0]), np.array([0, 0])
    episodes = [Episode(states, actions, np.array([[1.0], [0.0]])) for _ in range(2000)]
    episodes += [Episode(np.array([0, 0]), np.array([1]), np.array([[2.0]])) for _ in range(2000)]
    policy = TabularSoftmax(2, 2, legal=legal)
    stages = [Stage.from_episodes(episodes)] * 2
    world = pooler(stages, policy, gamma=0.5)(stages)
    values = np.array([[1.0, 3.0]])  # of (0, 0), (0, 1)
    soft = RULES["soft-value"](world).following(values, np.array([1.0]))
    here = np.log(np.exp(1) + np.exp(3))
    np.testing.assert_allclose(soft, [[1 + 0.5**2 * here, 2 + 0.5 * here]], atol=2e-3)
    rule = RULES["q-learning"](world)
    moved = rule.following(values, np.concatenate([[1.0], [40.0, 0.0]]))
    # So many visits that values are their targets.
    np.testing.assert_allclose(moved, [[1 + 0.5**2 * 3, 2 + 0.5 * 3]], atol=2e-3)
