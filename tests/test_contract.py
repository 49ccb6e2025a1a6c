"""Every method x family x (known, cloned) x (rates known, unknown) keeps the contract."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from logel import (
    LearningHistory,
    LinearGaussian,
    LinearSoftmax,
    LogelError,
    Method,
    MLPCategorical,
    MLPGaussian,
    TabularSoftmax,
)
from logel.contract.family import check_family
from logel.contract.method import CHECKS, Case, check_null
from logel.contract.practice import GAMMA, Practice
from logel.contract.rule import check_rule, check_world
from logel.inference.estimate import RewardEstimate
from logel.inference.method import METHODS
from logel.policies.cloning import CloneConfig
from logel.rules.catalogue import RULES
from logel.worlds.choose import pooler

# All methods but replay: it needs a learner's settings, and is checked in
# tests/inference/test_replayed.py.
NAMED = [name for name in METHODS if name != "replay"]


def bins(place: Any) -> Any:
    return np.clip((place + 2).astype(int), 0, 3)


def column(place: Any) -> Any:
    return np.asarray(place)[:, None]


def with_one(observations: Any) -> Any:
    x = np.asarray(observations, dtype=float).reshape(len(observations), -1)
    return np.concatenate([np.ones((len(x), 1)), x], axis=1)


FAMILIES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "table": (TabularSoftmax(4, 3), bins),
    "linear-softmax": (LinearSoftmax(2, 3, feature_map=with_one), column),
    "linear-gaussian": (LinearGaussian(2, 1, sigma=0.5, feature_map=with_one), column),
    "network-gaussian": (MLPGaussian(1, 1, hidden=(4,)), column),
    "network-categorical": (MLPCategorical(1, 3, hidden=(4,)), column),
}


@cache
def practised(family: str, known: bool, rated: bool, seed: int = 0) -> LearningHistory:
    policy, observe = FAMILIES[family]
    return Practice(seed=seed, n_stages=7, n_episodes=12, length=6).history(
        policy, observe, known=known, rated=rated
    )


@cache
def case_of(method: str, family: str, known: bool, rated: bool) -> Case:
    asked: str | Method = method
    if family.startswith("network") and not known and METHODS[method].tellable:
        # Well-trained clones are not what is asked about here, and take most of the time.
        asked = Method.named(method, clone=CloneConfig(max_iterations=6))
    return Case(practised(family, known, rated), FAMILIES[family][0], GAMMA, asked)


@cache
def asked(method: str, family: str, known: bool, rated: bool) -> RewardEstimate | LogelError:
    try:
        return case_of(method, family, known, rated).ask()
    except LogelError as error:
        return error


@pytest.mark.parametrize("rated", [False, True], ids=["rates-unknown", "rates-known"])
@pytest.mark.parametrize("known", [False, True], ids=["cloned", "known"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", NAMED)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__[6:])
def test_contract(check: Any, method: str, family: str, known: bool, rated: bool) -> None:
    estimate = asked(method, family, known, rated)
    if isinstance(estimate, LogelError):
        # What cannot be served is refused in a sentence that says what to use instead.
        assert (
            method == "joint" and family.startswith("network") and "use 'two-step'" in str(estimate)
        )
        return
    check(case_of(method, family, known, rated), estimate)


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family: str) -> None:
    policy, observe = FAMILIES[family]
    check_family(policy, observe(np.linspace(-1.5, 1.5, 24)))


@pytest.mark.parametrize("family", ["table", "linear-softmax", "linear-gaussian"])
def test_worlds_and_their_rules(family: str) -> None:
    history, policy = practised(family, True, False), FAMILIES[family][0]
    policies = history.parameters()
    assert policies is not None
    world = pooler(history, policy, gamma=GAMMA)(history)
    check_world(world, policies)
    for name in world.offers:
        check_rule(RULES[name](world), policies)


@pytest.mark.parametrize("family", ["table", "network-gaussian"])
@pytest.mark.parametrize("method", NAMED)
def test_learners_that_want_nothing_are_not_believed(method: str, family: str) -> None:
    if method == "joint" and family.startswith("network"):
        return
    policy, observe = FAMILIES[family]
    walks = [
        Practice(weights=None, seed=seed, n_episodes=10, step=1.0).history(
            policy, observe, known=True, rated=False
        )
        for seed in range(12)
    ]
    check_null([Case(walk, policy, GAMMA, method) for walk in walks])
