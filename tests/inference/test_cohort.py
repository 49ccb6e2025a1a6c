"""Several learners and one reward: exact joint fits, single learners that stand out, files."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from logel.data.history import LearningHistory
from logel.data.stage import Episode
from logel.envs.tabular import TabularMDP, random_mdp
from logel.errors import FormatError, IdentificationError, OptionError
from logel.inference.cohort import infer_each, named_histories
from logel.inference.direction import Stack, unit
from logel.inference.estimate import RewardEstimate
from logel.inference.gauge import direction_error
from logel.inference.infer import Method, infer_reward
from logel.inference.shared import evidence_shares, reward_gain
from logel.inference.smooth import fit_path, fit_random_walk
from logel.inference.status import Status
from logel.learners.tabular import (
    GPOMDPLearner,
    RandomWalk,
    SoftPolicyIteration,
    SoftValueIteration,
    observe,
)
from logel.policies.softmax import TabularSoftmax
from logel.rules.catalogue import RULES
from logel.types import Float
from logel.worlds.counting import pool_world

FAST = Method.named("joint", models=("gradient", "soft-value", "soft-policy"))
POLICY = TabularSoftmax(6, 3)


@cache
def world(seed: int = 0) -> tuple[TabularMDP, Float]:
    rng = np.random.default_rng(seed)
    mdp = random_mdp(rng, n_states=6, n_actions=3, n_features=3, gamma=0.9, branching=3)
    return mdp, unit(rng.standard_normal(3))


@cache
def watched(*signs: float, seed: int = 0, episodes: int = 10) -> tuple[LearningHistory, ...]:
    """Learners of different kind and size that want the same, or the opposite."""
    mdp, truth = world()
    kinds = SoftValueIteration(), SoftPolicyIteration(1.0)
    return tuple(
        observe(
            *(mdp, kinds[i % 2]),
            weights=sign * truth,
            n_steps=5,
            n_episodes=episodes,
            horizon=10,
            seed=100 * seed + i,
        )
        for i, sign in enumerate(signs)
    )


@cache
def shared() -> RewardEstimate:
    return infer_reward(watched(1.0, 0.7, 1.4, 0.5), POLICY, gamma=0.9, method=FAST)


@cache
def of_two() -> RewardEstimate:
    return infer_reward(watched(1.0, 0.7), POLICY, gamma=0.9, method=FAST)


@cache
def of_first() -> RewardEstimate:
    return infer_reward(watched(1.0, 0.7)[0], POLICY, gamma=0.9, method=FAST)


def test_together_they_err_less_than_each_alone() -> None:
    estimate, (_, truth) = shared(), world()
    alone = [direction_error(one.weights, truth) for one in estimate.learners]
    assert direction_error(estimate.weights, truth) < np.mean(alone) / 2 + 0.05
    assert estimate.status is Status.OK and estimate.scale == "unit norm"
    low, high = estimate.interval(0.998).T
    assert ((low <= truth) & (truth <= high)).all()
    widths = np.mean([one.high - one.low for one in estimate.learners])
    assert (high - low).mean() < widths
    assert np.linalg.norm(estimate.weights) == pytest.approx(1.0)


def test_everyone_has_a_share_and_agrees() -> None:
    estimate = shared()
    assert [one.name for one in estimate.learners] == [f"learner {i}" for i in (1, 2, 3, 4)]
    assert sum(one.share for one in estimate.learners) == pytest.approx(1.0)
    assert all(one.agreement > 0 and not one.contradicts for one in estimate.learners)
    assert len(estimate.learning_rates) == 20 == len(estimate.fit.explained)
    for one in estimate.learners:
        assert direction_error(one.without, estimate.weights) < 0.5
    assert "learner 3" in estimate.summary()


def test_one_who_wants_the_opposite_is_named() -> None:
    histories = dict(zip("abcd", watched(1.0, 0.7, 1.4, -1.2), strict=True))
    estimate = infer_reward(histories, POLICY, gamma=0.9, method=FAST)
    assert [one.name for one in estimate.learners if one.contradicts] == ["d"]
    assert any("'d' contradicts the others" in note for note in estimate.notes)
    assert direction_error(estimate.weights, world()[1]) < 0.7


def test_learners_that_only_drift_show_no_reward() -> None:
    mdp, truth = world()
    histories = [
        observe(mdp, RandomWalk(0.3), weights=truth, n_steps=5, n_episodes=10, horizon=10, seed=i)
        for i in range(4)
    ]
    estimate = infer_reward(histories, POLICY, gamma=0.9, method=FAST)
    assert estimate.status is Status.UNEXPLAINED
    low, high = estimate.interval().T
    assert ((low < 0) & (high > 0)).all()


def test_a_list_of_one_is_that_one() -> None:
    """Nearly: its weights are brought to the sphere and drawn anew."""
    history = watched(1.0, 0.7)[0]
    one = of_first()
    same = infer_reward([history], POLICY, gamma=0.9, method=FAST)
    assert direction_error(one.weights, same.weights) < 0.3
    assert same.learners[0].share == 1.0 and not same.learners[0].decisive


def test_the_joint_fit_of_all_is_what_they_say_together() -> None:
    """Exactly: for each direction every learner is fitted again with weights along it."""
    rng = np.random.default_rng(1701)
    mdp = random_mdp(rng, n_states=4, n_actions=2, n_features=2, gamma=0.8, branching=2)
    truth, policy = np.array([0.8, 0.6]), TabularSoftmax(4, 2)
    histories = [
        observe(
            *(mdp, SoftPolicyIteration(1.0)),
            weights=size * truth,
            n_steps=4,
            n_episodes=10,
            horizon=10,
            seed=17010 + i,
        )
        for i, size in enumerate((1.0, 0.6, 1.5))
    ]
    angles = np.arctan2(0.6, 0.8) + np.linspace(-0.4, 0.3, 15)
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    pooled = pool_world(chain.from_iterable(histories), policy, gamma=0.8)
    exact = np.zeros(len(angles))
    for history in histories:
        own = pooled.with_actions_of(pool_world(history, policy, gamma=0.8))
        walk = fit_random_walk(RULES["soft-policy"](own))
        for j, direction in enumerate(directions):
            rule = RULES["soft-policy"](own.with_features(direction[:, None]))
            fit = fit_path(rule, max_rounds=25, start=walk)
            # Sizes are positive.
            exact[j] += fit.evidence + norm.logcdf(fit.weights[0] / fit.covariance[0, 0] ** 0.5)
    stack = cohort_stack(histories, policy, Method.named("joint", models=("soft-policy",)))
    stack, basis = replace(stack[0], log_chances=np.full(3, -np.inf)), stack[1]
    found = stack.by_learner(unit(directions @ np.linalg.pinv(basis).T)).sum(axis=1)
    (mean, spread), (other, width) = (moments(angles, logs) for logs in (exact, found))
    assert mean == pytest.approx(other, abs=0.3 * spread)
    assert width == pytest.approx(spread, rel=0.25)


def moments(angles: Float, logs: Float) -> tuple[float, float]:
    weights = np.exp(logs - logsumexp(logs))
    mean = float(weights @ angles)
    return mean, float(np.sqrt(weights @ (angles - mean) ** 2))


def cohort_stack(
    histories: list[LearningHistory], policy: TabularSoftmax, method: Method
) -> tuple[Stack, Float]:
    """The evidence behind an answer, without the world's errors."""
    seen: list[Any] = []
    import logel.inference.infer as module

    original = module.shared_estimate
    module.shared_estimate = lambda cohort: seen.append(cohort) or original(cohort)  # type: ignore[func-returns-value]
    try:
        infer_reward(histories, policy, gamma=0.8, method=method)
    finally:
        module.shared_estimate = original
    evidence = [single.evidence for single in seen[0].singles]
    return Stack.of(evidence, np.random.default_rng(0)), seen[0].basis


@pytest.mark.parametrize("method", ["mirror", "two-step"])
def test_other_methods_put_learners_together_alike(method: str) -> None:
    mdp, truth = world()
    histories = [
        observe(
            *(mdp, GPOMDPLearner(learning_rate=1.0, exact=True)),
            weights=truth,
            n_steps=8,
            n_episodes=20,
            horizon=10,
            seed=i,
            parameters=True,
        )
        for i in range(3)
    ]
    estimate = infer_reward(histories, POLICY, gamma=0.9, method=method)
    alone = [direction_error(one.weights, truth) for one in estimate.learners]
    assert direction_error(estimate.weights, truth) < max(alone)
    assert method in estimate.method and estimate.rank == 3
    assert sum(one.share for one in estimate.learners) == pytest.approx(1.0)


def test_worlds_are_pooled_unless_told_otherwise() -> None:
    histories = watched(1.0, 0.7)
    together, alone = of_two(), of_first()
    apart = infer_reward(histories, POLICY, gamma=0.9, method=FAST, pool_world=False)
    # But for the units: features are measured by the ranges that all of them show.
    assert apart.learners[0].weights == pytest.approx(alone.weights, abs=1e-3)
    assert not np.allclose(together.learners[0].weights, alone.weights, atol=1e-2)
    assert together.config["pool_world"] is True and apart.config["pool_world"] is False


def test_units_of_the_features_do_not_matter() -> None:
    """All features ten times as large: the same directions, exactly as sure."""
    histories = watched(1.0, 0.7)
    larger = [
        LearningHistory.from_stages(
            [replace(stage, features=10.0 * stage.features) for stage in history]
        )
        for history in histories
    ]
    ten = infer_reward(larger, POLICY, gamma=0.9, method=FAST)
    assert ten.interval() == pytest.approx(of_two().interval(), abs=1e-6)


def test_without_intervals_there_are_none() -> None:
    estimate = infer_reward(watched(1.0, 0.7), POLICY, gamma=0.9, method=FAST, intervals=False)
    assert estimate.draws is None and np.isnan(estimate.interval()).all()
    assert "no intervals were asked for" in estimate.notes


# --- parts ---------------------------------------------------------------------------------------


def test_shares_are_those_of_the_information() -> None:
    """Gaussian evidence of one learner with three times the information of the other."""
    x = np.random.default_rng(0).standard_normal((200_000, 2)) / 2
    logs = np.stack([-0.5 * (x**2).sum(axis=1), -1.5 * (x**2).sum(axis=1)], axis=1)
    assert evidence_shares(logs) == pytest.approx([0.25, 0.75], abs=0.01)


def test_the_odds_of_a_reward_are_those_of_one_learner_and_add_up() -> None:
    def stack(n: int, gain: float) -> Stack:
        chance = 1 / (1 + np.exp(gain))
        zeros = np.zeros((n, 1, 2))
        return Stack(
            *(zeros, np.ones((n, 1, 2, 2)), np.zeros((n, 1)), np.full(n, np.log(chance))),
            rules=(("gradient",),) * n,
        )

    # Alone, whatever the directions: evidence has mean one.
    assert reward_gain(stack(1, 2.5), 0.0) == pytest.approx(2.5)
    # Four that each say nothing, and do not agree, say less together.
    assert reward_gain(stack(4, -2.0), 0.0) < -2.0
    assert reward_gain(stack(4, 2.0), 6.0) > 8.0
    assert reward_gain(replace(stack(2, 1.0), log_chances=np.array([0.0, -np.inf])), 0.0) == np.inf


# --- errors --------------------------------------------------------------------------------------


def test_mistakes_cost_one_sentence() -> None:
    (history,) = watched(1.0)
    with pytest.raises(OptionError, match="no history"):
        infer_reward([], POLICY, gamma=0.9)
    with pytest.raises(OptionError, match="learner 2 is not a learning history but int"):
        named_histories([history, 3])  # type: ignore[list-item]
    with pytest.raises(IdentificationError, match="short: the history has 1 stage"):
        infer_reward({"long": history, "short": history.slice(0, 1)}, POLICY, gamma=0.9)
    other = LearningHistory.from_stages(list(history), feature_names=["x", "y", "z"])
    with pytest.raises(OptionError, match="learner 2 has the features x, y, z, but learner 1"):
        infer_reward([history, other], POLICY, gamma=0.9)
    few = watched(1.0, 0.7, episodes=2)
    with pytest.raises(IdentificationError, match=r"learner 1: .*at least three episodes"):
        infer_reward(few, POLICY, gamma=0.9, method="mirror")


def test_each_fit_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    infer_reward(
        *(watched(1.0, 0.7), POLICY),
        gamma=0.9,
        method=FAST,
        progress=lambda *what: told.append(what),
    )
    assert told == [("learners", 1, 2), ("learners", 2, 2)]
    assert callable(infer_each)


# --- files ---------------------------------------------------------------------------------------


def test_files_keep_the_learners() -> None:
    estimate = shared()
    read = RewardEstimate.from_json(estimate.to_json())
    assert read.summary() == estimate.summary()
    for one, two in zip(read.learners, estimate.learners, strict=True):
        assert one.without == pytest.approx(two.without) and one.decisive is two.decisive
    frame = read.learners_to_frame()
    assert len(frame) == 4 * 3 and set(frame["learner"]) == {one.name for one in read.learners}


def test_estimates_of_earlier_versions_have_no_learners() -> None:
    raw = json.loads(shared().to_json())
    del raw["learners"]
    raw["format_version"] = 3
    assert RewardEstimate.from_json(json.dumps(raw)).learners == ()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("share", 1.5),
        ("share", None),
        ("weights", [1.0]),
        ("without", "none"),
        ("decisive", "yes"),
        ("n_steps", "many"),
    ],
)
def test_bent_files_are_refused(key: str, value: Any) -> None:
    raw = json.loads(shared().to_json())
    raw["learners"][1][key] = value
    with pytest.raises(FormatError, match="corrupted"):
        RewardEstimate.from_json(json.dumps(raw))


def block(keys: list[int]) -> LearningHistory:
    """One stimulus, two keys of which the second is right, two trials in a stage."""
    trials = [
        Episode(np.array([0]), np.array([key]), np.array([[float(key)]]), terminated=True)
        for key in keys
    ]
    return LearningHistory.from_sessions(trials, windows=len(keys) // 2, feature_names=["right"])


def test_who_shows_nothing_costs_nothing() -> None:
    """Blocks in which one key was pressed throughout tell no weight; the others do."""
    learnt = block([0, 0, 0, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1])
    silent = block([1] * 12)
    options: dict[str, Any] = {"gamma": 0.0, "pool_world": False}
    policy = TabularSoftmax(1, 2)
    both = infer_reward({"a": learnt, "b": silent}, policy, **options)
    alone = infer_reward({"a": learnt}, policy, **options)
    assert [one.name for one in both.learners] == ["a"]
    np.testing.assert_array_equal(both.draws, alone.draws)
    told = "no weight can be told from the histories of b: they count for nothing"
    assert told in both.notes
    with pytest.raises(IdentificationError, match="b: every stage shows the same"):
        infer_reward({"b": silent}, policy, **options)
