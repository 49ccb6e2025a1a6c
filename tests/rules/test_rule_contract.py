"""Every rule and world keeps the contract, and those that are wrong do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from logel import LinearGaussian, LinearSoftmax
from logel.contract.practice import GAMMA, Practice, practice_table
from logel.contract.rule import check_rule, check_world
from logel.policies.base import Policy
from logel.rules.ascent import Gradient
from logel.rules.catalogue import RULES
from logel.rules.rule import Prediction, RandomWalk
from logel.rules.values import DriftingValues
from logel.worlds.base import World
from logel.worlds.choose import pooler


def with_one(observations: Any) -> Any:
    x = np.asarray(observations, dtype=float).reshape(len(observations), -1)
    return np.concatenate([np.ones((len(x), 1)), x], axis=1)


def pooled(policy: Policy, observe: Any) -> tuple[World, Any]:
    history = Practice().history(policy, observe, known=True, rated=False)
    return pooler(history, policy, gamma=GAMMA)(history), history.parameters()


WORLDS: dict[str, tuple[World, Any]] = {
    "table": practice_table(),
    "linear": pooled(
        LinearSoftmax(2, 3, feature_map=with_one), lambda x: np.abs(x.round())[:, None]
    ),
    "pooled": pooled(LinearGaussian(2, 1, 0.5, feature_map=with_one), lambda x: x[:, None]),
}


@pytest.mark.parametrize("name", WORLDS)
def test_worlds(name: str) -> None:
    check_world(*WORLDS[name])


@pytest.mark.parametrize(
    ("world", "rule"), [(w, r) for w, (world, _) in WORLDS.items() for r in world.offers]
)
def test_rules(world: str, rule: str) -> None:
    seen, policies = WORLDS[world]
    check_rule(RULES[rule](seen), policies)


@pytest.mark.parametrize("rule", [RandomWalk, DriftingValues])
def test_accounts_without_a_reward(rule: Any) -> None:
    world, policies = WORLDS["table"]
    check_rule(rule(world), policies)


class Misdesigned(Gradient):
    """Says that it moves by twice what it does."""

    def predict(self, states: Any, parameters: Any, *, states_known: bool = False) -> Prediction:
        found = super().predict(states, parameters, states_known=states_known)
        return replace(found, design=2 * found.design)


class Noiseless(Gradient):
    """Has no noise where it wants nothing."""

    def predict(self, states: Any, parameters: Any, *, states_known: bool = False) -> Prediction:
        found = super().predict(states, parameters, states_known=states_known)
        return replace(found, shape=found.shape * float(parameters[:3].any()))


@pytest.mark.parametrize(
    ("rule", "said"), [(Misdesigned, "design times the weights"), (Noiseless, "weights of zero")]
)
def test_wrong_rules_are_told_so(rule: Any, said: str) -> None:
    world, policies = WORLDS["table"]
    with pytest.raises(AssertionError, match=said):
        check_rule(rule(world), policies)
