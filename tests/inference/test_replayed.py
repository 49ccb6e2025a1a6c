"""Replay as a method: the default where a learner is known, honest where it is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from logel import (
    LearningHistory,
    Method,
    MLPCategorical,
    MLPGaussian,
    RewardEstimate,
    TabularSoftmax,
    infer_reward,
)
from logel.contract.practice import GAMMA, Practice
from logel.data.settings import KEY, LearnerSettings
from logel.data.stage import Stage
from logel.envs.audit import WORLDS
from logel.errors import HistoryError, OptionError
from logel.inference.gauge import direction_error
from logel.inference.replayed import ORDINARY, _fit_of
from logel.inference.status import Status
from logel.learners import audit
from logel.learners.audit import LEARNERS, Trained
from logel.replay.course import StepShare
from logel.replay.fit import ReplayFit
from logel.replay.learner import OneByOne
from logel.report.page_course import replay_ending
from logel.types import Float

ROOM = WORLDS["room"]
TRUTH = ROOM.random_weights(np.random.default_rng(1000))
# One small layer: what takes time is the networks of all members.
SMALL = replace(
    LEARNERS["A2C"],
    n_envs=32,
    n_steps=50,
    updates=10,
    options={**LEARNERS["A2C"].options, "policy_kwargs": {"net_arch": [16]}},
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("room") / "history"
    return audit.train(ROOM, SMALL, TRUTH, seed=1000, path=folder)


@pytest.fixture(scope="module")
def estimate(trained: Trained) -> RewardEstimate:
    return infer_reward(trained.history, trained.policy, gamma=ROOM.gamma)


def significant(estimate: RewardEstimate) -> list[str]:
    """Features whose interval leaves zero out."""
    rows = zip(estimate.feature_names, estimate.interval(), strict=True)
    return [name for name, (low, high) in rows if low > 0 or high < 0]


# --- the learner's own history --------------------------------------------------------------------


def test_a_known_learner_is_replayed_by_default(estimate: RewardEstimate) -> None:
    assert estimate.status is Status.OK
    assert estimate.config["name"] == "default (replay)"
    assert "the learner's own update replayed over 9 steps: A2C (rate 0.003" in estimate.method
    assert direction_error(estimate.weights, TRUTH) < 0.15
    low, high = estimate.interval().T
    assert ((low <= TRUTH) & (high >= TRUTH)).all()
    # What the learner is paid most for is seen to be paid.
    assert estimate.feature_names[int(np.argmax(np.abs(TRUTH)))] in significant(estimate)
    assert estimate.explained.shape == (9,) and np.median(estimate.explained) > 0.8
    assert estimate.scale == "unit norm" and np.linalg.norm(estimate.weights) == pytest.approx(1)
    assert "times these weights" in estimate.method
    # A sound answer needs no notes, and what Jacobians cannot tell is none of replay's business.
    assert not estimate.notes and not len(estimate.gauge.weak)


def test_lengths_are_roots_of_twice_the_divergence(
    trained: Trained, estimate: RewardEstimate
) -> None:
    fit, parameters = estimate.fit, trained.history.parameters()
    assert fit.rule == "replay" and parameters is not None
    assert fit.moved is not None and fit.predicted is not None and fit.noise is not None
    policy = trained.policy
    assert isinstance(policy, MLPGaussian)

    def normal(theta: Float, states: Any) -> torch.distributions.Normal:
        outputs = policy.outputs(torch.as_tensor(theta), states)
        return torch.distributions.Normal(outputs[:, :2], outputs[:, 2:].exp())

    for t, stage in enumerate(list(trained.history)[:-1]):
        states = policy.prepare_observations(stage.observations)
        before, after = (normal(parameters[k], states) for k in (t, t + 1))
        divergence = torch.distributions.kl_divergence(before, after).sum(dim=1).mean()
        # To the second order, and at some of the states.
        assert fit.moved[t] == pytest.approx(float(2 * divergence) ** 0.5, rel=0.1)
    # What is left of a triangle with these sides.
    ratio = fit.predicted / fit.moved
    np.testing.assert_allclose(fit.explained, 2 * ratio * fit.cosines - ratio**2, atol=1e-6)
    assert ((fit.noise > 0) & (fit.noise < 0.5)).all()


def test_a_step_that_did_not_move_has_no_share_explained() -> None:
    nothing = np.zeros((1, 1))
    still = StepShare(unexplained=1e290, scatter=1e290, cosine=0.0, moved=1e-150, predicted=0.1)
    gone = replace(still, unexplained=0.2, scatter=0.1, cosine=0.9, moved=0.5, predicted=0.4)
    fit = _fit_of(ReplayFit(nothing[0], nothing, 1, [still, gone], nothing[0]), 3)
    np.testing.assert_array_equal(fit.explained, [np.nan, 0.8, np.nan])
    np.testing.assert_array_equal(fit.noise, [np.nan, 0.1, np.nan])
    np.testing.assert_array_equal(fit.predicted, [0.1, 0.4, np.nan])


def test_it_beats_the_rule_that_knows_nothing_of_critics(
    trained: Trained, estimate: RewardEstimate
) -> None:
    mirror = infer_reward(trained.history, trained.policy, gamma=ROOM.gamma, method="mirror")
    assert direction_error(estimate.weights, TRUTH) < direction_error(mirror.weights, TRUTH)
    assert np.nanmean(estimate.explained) > np.nanmean(mirror.explained)


def test_the_same_seed_gives_the_same_bytes(trained: Trained, estimate: RewardEstimate) -> None:
    again, other = (
        infer_reward(trained.history, trained.policy, gamma=ROOM.gamma, method="replay", seed=seed)
        for seed in (0, 1)
    )
    np.testing.assert_array_equal(again.weights, estimate.weights)
    np.testing.assert_array_equal(again.draws, estimate.draws)
    assert not np.array_equal(other.weights, estimate.weights)
    # Other fates give other weights, and intervals of other widths; of ten, one may miss the truth.
    assert direction_error(other.weights, TRUTH) < 0.1
    missed = [
        (low > TRUTH) | (high < TRUTH) for low, high in (e.interval().T for e in (estimate, other))
    ]
    assert np.mean(missed) <= 0.1
    low, high = other.interval().T
    assert ((low <= estimate.interval()[:, 1]) & (high >= estimate.interval()[:, 0])).all()


def test_intervals_cost_nothing_and_change_nothing(
    trained: Trained, estimate: RewardEstimate
) -> None:
    quick = infer_reward(trained.history, trained.policy, gamma=ROOM.gamma, intervals=False)
    np.testing.assert_array_equal(quick.weights, estimate.weights)
    assert quick.covariance is None and "no intervals were asked for" in quick.notes


def test_estimates_survive_files(estimate: RewardEstimate) -> None:
    again = RewardEstimate.from_json(estimate.to_json())
    assert again.to_json() == estimate.to_json() and again.summary() == estimate.summary()


def test_only_the_first_steps_may_be_replayed(trained: Trained) -> None:
    found = infer_reward(
        trained.history,
        trained.policy,
        gamma=ROOM.gamma,
        method=Method.named("replay", n_stages=6),
    )
    assert "replayed over the first 6 of 9 steps" in found.method
    assert found.fit.moved is not None and np.isnan(found.fit.moved[6:]).all()
    np.testing.assert_array_equal(np.isnan(found.explained), [False] * 6 + [True] * 3)
    assert direction_error(found.weights, TRUTH) < 0.3


# --- histories with nothing to find ---------------------------------------------------------------


def shuffled(history: LearningHistory) -> LearningHistory:
    """Policies in an order of their own, each with episodes of another."""
    order = np.random.default_rng(1000).permutation(len(history))
    thetas = history.parameters()
    assert thetas is not None
    stages = [replace(stage, parameters=thetas[k]) for stage, k in zip(history, order, strict=True)]
    return replace(history, source=tuple(stages))


@pytest.mark.parametrize(
    ("spoil", "seed"),
    [
        (audit.backwards, 1000),
        (audit.backwards, 1001),
        (shuffled, 1000),
        (shuffled, 1001),
    ],
)
def test_what_no_update_leads_to_is_not_believed(spoil: Any, seed: int, tmp_path: Path) -> None:
    weights = ROOM.random_weights(np.random.default_rng(seed))
    run = audit.train(ROOM, SMALL, weights, seed=seed, path=tmp_path / "history")
    found = infer_reward(spoil(run.history), run.policy, gamma=ROOM.gamma)
    assert found.status in (Status.UNEXPLAINED, Status.NOT_CONVERGED)
    # The page says in words that replay did not work out, and how.
    ending = replay_ending(found)
    assert ending is not None and not found.verdict.shown
    assert ending.name in ("Stuck", "Not explained", "Fell back")
    said = ("its settings may be others than the history says", "the fit is stuck")
    assert any(words in note for note in found.notes for words in said)
    assert significant(found) == []


def test_few_steps_convince_nobody(trained: Trained) -> None:
    history = trained.history
    short = replace(history, source=tuple(history)[:5], notes=history.notes[:5])
    found = infer_reward(short, trained.policy, gamma=ROOM.gamma)
    assert found.status is Status.UNEXPLAINED and significant(found) == []
    assert any("4 steps cannot tell a reward from a random walk" in note for note in found.notes)


# --- learners that nobody names -------------------------------------------------------------------


def without_settings(history: LearningHistory) -> LearningHistory:
    silent = {name: value for name, value in history.metadata.items() if name != KEY}
    return replace(history, metadata=silent)


def test_without_settings_the_default_is_mirror(trained: Trained) -> None:
    silent = without_settings(trained.history)
    assert LearnerSettings.of(silent) is None
    found = infer_reward(silent, trained.policy, gamma=ROOM.gamma, intervals=False)
    assert found.config["name"] == "default (mirror)"


def test_episodes_that_are_not_the_learners_own_go_to_mirror(trained: Trained) -> None:
    other = replace(trained.history, own_episodes=False)
    found = infer_reward(other, trained.policy, gamma=ROOM.gamma, intervals=False)
    assert found.config["name"] == "default (mirror)"


def held(estimate: RewardEstimate) -> bool:
    low, high = estimate.interval().T
    return bool(((low <= TRUTH) & (high >= TRUTH)).all())


def test_fresh_episodes_asked_for_by_name_are_replayed_without_being_too_sure(
    trained: Trained,
) -> None:
    rng = np.random.default_rng(1000)
    fresh = audit.rolled_out_again(trained.history, ROOM, SMALL, trained.policy, rng)
    found = infer_reward(fresh, trained.policy, gamma=ROOM.gamma, method="replay")
    assert "the learner's own update replayed over 9 steps: A2C" in found.method
    assert held(found)
    unpaid = {name for name, w in zip(found.feature_names, TRUTH, strict=True) if w == 0}
    assert not unpaid & set(significant(found))


def test_several_updates_between_stages_are_replayed_as_several(trained: Trained) -> None:
    history = trained.history
    settings = LearnerSettings.of(history)
    assert settings is not None
    every = replace(settings, n_updates_between=2)
    fewer = replace(
        history,
        source=tuple(history)[::2],
        notes=history.notes[::2],
        metadata={**history.metadata, KEY: every.to_json()},
    )
    method = Method.named("replay", n_stages=4)
    found = infer_reward(fewer, trained.policy, gamma=ROOM.gamma, method=method)
    assert "replayed over 4 steps" in found.method
    # Four steps are few, but they point the right way.
    assert found.status is Status.UNEXPLAINED and significant(found) == []
    assert found.weights @ TRUTH > 0.5 * np.linalg.norm(TRUTH)


def test_ordinary_settings_are_tried_for_unknown_learners(tmp_path: Path) -> None:
    # Ten epochs of PPO are what takes time: few rows.
    tiny = replace(SMALL, n_envs=8, n_steps=25, updates=8)
    found = audit.train(ROOM, tiny, TRUTH, seed=1000, path=tmp_path / "history")
    silent = without_settings(found.history)
    # Notes would tell the learning rate, and with it the very learner.
    silent = replace(silent, notes=tuple({} for _ in silent.notes))
    guessed = infer_reward(silent, found.policy, gamma=ROOM.gamma, method="replay")
    # It was A2C at another rate; neither PPO nor TRPO explains its steps as well.
    assert "replayed over 7 steps: A2C (rate 0.005" in guessed.method
    assert LearnerSettings("A2C", learning_rate=5e-3, normalize_advantage=True) in ORDINARY
    assert direction_error(guessed.weights, TRUTH) < 0.3


# --- somebody's own update ------------------------------------------------------------------------


def towards(
    theta: Float, state: Any, stage: Stage, rewards: Float, rng: np.random.Generator
) -> tuple[Float, Any]:
    """Linear in the rewards, and in nothing that a gradient is."""
    rows = np.random.default_rng(stage.n_steps).standard_normal((len(rewards), len(theta)))
    return theta + rewards @ rows / len(rewards), state


def test_a_learner_of_ones_own() -> None:
    policy = MLPCategorical(1, 3, hidden=(4,))
    history = Practice(seed=1000, n_stages=9).history(
        policy, lambda place: np.asarray(place)[:, None], known=True, rated=False
    )
    weights = np.array([0.6, -0.8, 0.2])
    theta = history[0].parameters
    assert theta is not None
    stages = []
    for stage in history:
        assert stage.features is not None
        stages.append(replace(stage, parameters=theta))
        theta, _ = towards(theta, None, stage, stage.features @ weights, np.random.default_rng(0))
    found = infer_reward(
        replace(history, source=tuple(stages), own_episodes=True),
        policy,
        gamma=GAMMA,
        learner=OneByOne(towards, words="steps by hand"),
    )
    assert found.config["name"] == "default (replay)" and "steps by hand" in found.method
    truth = weights / np.linalg.norm(weights)
    np.testing.assert_allclose(found.weights, truth, atol=1e-3)


# --- what cannot be served ------------------------------------------------------------------------


def test_tables_are_refused_in_a_sentence() -> None:
    policy = TabularSoftmax(4, 3)
    history = Practice(seed=1000).history(
        policy, lambda x: np.clip((x + 2).astype(int), 0, 3), known=True, rated=False
    )
    with pytest.raises(OptionError, match="cannot be replayed: pass learner=, its own update"):
        infer_reward(history, policy, gamma=GAMMA, method="replay")


def test_without_last_observations_cut_episodes_cannot_be_replayed(trained: Trained) -> None:
    stages = [replace(stage, last_observations=None) for stage in trained.history]
    blind = replace(trained.history, source=tuple(stages))
    with pytest.raises(HistoryError, match="stage 0: replay needs the last observation"):
        infer_reward(blind, trained.policy, gamma=ROOM.gamma, method="replay")
    # By default another rule is taken, which does without.
    found = infer_reward(blind, trained.policy, gamma=ROOM.gamma, intervals=False)
    assert found.config["name"] == "default (mirror)"


@pytest.mark.parametrize("wrong", [{"n_stages": 0}, {"n_fates": 1}])
def test_too_few_steps_or_fates_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(OptionError, match="at least one step and two fates"):
        Method.named("replay", **wrong)


def test_recorded_folders_give_the_same(
    trained: Trained, estimate: RewardEstimate, tmp_path: Path
) -> None:
    trained.history.save(tmp_path / "copy")
    copy = LearningHistory.load(tmp_path / "copy")
    found = infer_reward(copy, trained.policy, gamma=ROOM.gamma)
    assert found.to_json() == estimate.to_json()


def test_what_is_not_written_out_is_replayed_by_its_own_code(trained: Trained) -> None:
    few = trained.history.slice(0, 3)
    settings = LearnerSettings.of(few)
    assert settings is not None
    odd = replace(settings, optimizer_options={**(settings.optimizer_options or {}), "centered": 1})
    other = replace(few, metadata={**few.metadata, KEY: odd.to_json()})
    asked = {"gamma": ROOM.gamma, "intervals": False}
    # The slow way is not taken unasked.
    assert "mirror" in infer_reward(other, trained.policy, **asked).method
    few_fates = Method.named("replay", n_fates=2)
    estimate = infer_reward(other, trained.policy, method=few_fates, **asked)
    assert "replayed over 2 steps" in estimate.method
    assert any("centered" in note for note in estimate.notes)
