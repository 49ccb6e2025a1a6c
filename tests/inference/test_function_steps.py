"""Inference in function space: known answers, coverage, learners that want nothing, refusals."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from linear_quadratic import (
    GAMMA,
    NAMES,
    POLICY,
    TRUTH,
    learner_path,
    watched,
    with_one,
)
from logel.data.history import LearningHistory
from logel.envs.tabular import random_mdp
from logel.errors import HistoryError, IdentificationError, OptionError, PolicyError
from logel.inference.estimate import RewardEstimate
from logel.inference.gauge import direction_error, explain_grams
from logel.inference.infer import METHODS, infer_reward
from logel.inference.method import Coordinates, Method
from logel.inference.status import Status
from logel.learners.tabular import NaturalGradientAscent, observe
from logel.policies.cloning import CloneConfig
from logel.policies.gaussian import LinearGaussian
from logel.policies.networks import MLPGaussian
from logel.policies.softmax import TabularSoftmax

QUICK = CloneConfig(holdout=0.0)


def mirror(history: LearningHistory, policy: Any = POLICY, **options: Any) -> RewardEstimate:
    method = Method.named("mirror", **{"clone": QUICK, **options})
    return infer_reward(history, policy, gamma=GAMMA, method=method)


def test_tabular_errors_fall_with_the_episodes() -> None:
    mdp = random_mdp(np.random.default_rng(0), n_states=8, n_actions=3, n_features=4)
    truth = np.random.default_rng(1).standard_normal(4)
    policy = TabularSoftmax(8, 3)
    errors = []
    for n_episodes in (20, 500):
        for seed in range(6):
            history = observe(
                mdp,
                NaturalGradientAscent(0.2),
                weights=truth,
                n_steps=5,
                n_episodes=n_episodes,
                horizon=30,
                seed=seed,
                parameters=True,
            )
            estimate = infer_reward(history, policy, gamma=mdp.gamma, method="mirror")
            errors.append(direction_error(estimate.weights, truth, estimate.gauge))
    few, many = np.mean(errors[:6]), np.mean(errors[6:])
    # 25 times the episodes: five times the accuracy, less what the critic's bias leaves.
    assert many < 0.07 and many < few / 2.5, (few, many)


@pytest.mark.parametrize("known", [True, False])
def test_linear_gaussian_learners(known: bool, tmp_path: Path) -> None:
    estimate = mirror(watched(0, n_episodes=300, known=known))
    assert direction_error(estimate.weights, TRUTH) < (0.08 if known else 0.2)
    assert estimate.status is Status.OK and estimate.feature_names == NAMES
    assert np.median(estimate.fit.cosines) > 0.7
    assert "critic leaves" in estimate.method and "6 functions" in estimate.method
    assert estimate.planning is not None and "planning:" in estimate.summary()
    estimate.save(tmp_path / "estimate.json")
    assert RewardEstimate.load(tmp_path / "estimate.json").summary() == estimate.summary()


def test_options_change_what_they_should() -> None:
    history = watched(1, n_episodes=100)
    base = mirror(history)
    for options in ({"trace": 1.0}, {"pool": 0.0}, {"debias": False}, {"bootstrap": False}):
        other = mirror(history, **options)
        assert 0 < direction_error(base.weights, other.weights) < 0.3, options
    spreads = [
        np.ptp(mirror(history, rates=rates).learning_rates) for rates in ("shared", "schedule")
    ]
    assert 0 == spreads[0] < spreads[1]
    # By default, the first for known policies and the second for clones.
    assert np.ptp(base.learning_rates) == 0 and "one shared rate" in base.method
    cloned = mirror(watched(1, n_episodes=100, known=False))
    assert np.ptp(cloned.learning_rates) > 0 and "a schedule of rates" in cloned.method
    rated = LearningHistory.from_stages(
        list(history), learning_rates=[0.15] * 8, feature_names=NAMES
    )
    scaled = mirror(rated)
    assert scaled.scale == "known learning rates" and "known rates" in scaled.method
    # The truth has norm one, and known rates give the weights their size.
    assert 0.8 < np.linalg.norm(scaled.weights) < 1.2
    assert mirror(history, debias=False, ridge=1e3).learning_rates is not None
    silent = infer_reward(history, POLICY, gamma=GAMMA, method="mirror", intervals=False)
    assert silent.covariance is None and silent.planning is None
    np.testing.assert_allclose(silent.weights, mirror(history).weights)


def test_shrinking_deviations_are_kept_apart() -> None:
    # Exploration shrinks by itself; as movement it would be taken for a cost of actions.
    free = LinearGaussian(3, 2, feature_map=with_one)
    history = watched(2, n_episodes=200)
    stages = []
    for t, stage in enumerate(history):
        assert stage.parameters is not None
        log_std = np.log(0.5) - 0.05 * t
        stages.append(replace(stage, parameters=np.append(stage.parameters, [log_std] * 2)))
    shrinking = LearningHistory.from_stages(stages, feature_names=NAMES)
    apart = mirror(shrinking, free)
    together = mirror(shrinking, free, deviations=True)
    assert direction_error(apart.weights, TRUTH) < 0.3
    assert abs(together.weights[2] - TRUTH[2]) > abs(apart.weights[2] - TRUTH[2])


def network_history(policy: MLPGaussian, n_episodes: int, horizon: int) -> LearningHistory:
    """Stages of the closed-form learner, its means copied into a network."""
    path = learner_path(4, 0.15)
    history = watched(3, path=path, n_episodes=n_episodes, horizon=horizon)
    theta = policy.tensor(policy.initial(np.random.default_rng(0))).requires_grad_(True)
    stages = []
    for stage, linear in zip(history, path, strict=True):
        inputs = policy.prepare_observations(stage.observations[:2000])
        target = policy.tensor(with_one(stage.observations[:2000]) @ linear)
        optimiser = torch.optim.LBFGS([theta], max_iter=150, line_search_fn="strong_wolfe")

        def loss(
            o: Any = optimiser, x: torch.Tensor = inputs, y: torch.Tensor = target
        ) -> torch.Tensor:
            o.zero_grad()
            value = ((policy.means(theta, x) - y) ** 2).mean()
            value.backward()  # type: ignore[no-untyped-call]
            return value

        optimiser.step(loss)  # type: ignore[no-untyped-call]
        stages.append(replace(stage, parameters=theta.detach().numpy().copy()))
    return LearningHistory.from_stages(stages, feature_names=NAMES)


@pytest.mark.slow
def test_networks_cost_nothing_in_their_size() -> None:
    policy = MLPGaussian(2, 2, hidden=(64, 64), sigma=0.5)
    history = network_history(policy, n_episodes=320, horizon=100)
    assert policy.n_parameters == 4482 and history[0].n_steps == 32_000
    tracemalloc.start()
    start = time.process_time()
    estimate = mirror(history, policy)
    seconds, (_, peak) = time.process_time() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert direction_error(estimate.weights, TRUTH) < 0.15
    # An (N, d) array would take 1.1 GB, a (d, d) one 160 MB.
    assert peak < 100 * 2**20 and seconds / len(history) < 5


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
def test_intervals_cover(known: bool) -> None:
    covered, widths = [], []
    for seed in range(100):
        history = watched(seed, n_steps=5, n_episodes=40, horizon=20, known=known)
        estimate = mirror(history)
        ends = estimate.interval(0.95)
        covered.append((ends[:, 0] <= TRUTH) & (ends[:, 1] >= TRUTH))
        widths.append(np.diff(ends, axis=1)[:, 0])
    # Four weights of 100 histories; weights of one history are not independent.
    assert 0.91 <= np.mean(covered) <= 0.99, np.mean(covered, axis=0)
    assert np.median(widths) < (0.5 if known else 1.5)


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
def test_learners_that_want_nothing_are_called_so(known: bool) -> None:
    significant, warned = [], []
    for seed in range(40):
        rng = np.random.default_rng(1000 + seed)
        path = list(
            np.cumsum(0.05 * rng.standard_normal((9, 3, 2)), axis=0) + learner_path(0, 0)[0]
        )
        history = watched(seed, path=path, n_episodes=40, horizon=20, known=known)
        estimate = mirror(history)
        ends = estimate.interval(0.95)
        significant.append((ends[:, 0] > 0) | (ends[:, 1] < 0))
        warned.append(estimate.status is Status.UNEXPLAINED)
    assert np.mean(significant) <= 0.10, np.mean(significant, axis=0)
    assert np.mean(warned) >= 0.85


def test_bad_input_is_refused() -> None:
    assert METHODS["mirror"].coordinates is Coordinates.FUNCTIONS
    history = watched(0, n_episodes=5, horizon=5)
    with pytest.raises(OptionError, match=r"trace must be in \[0, 1\], but is 1.5"):
        Method.named("mirror", trace=1.5)
    with pytest.raises(OptionError, match=r"pool must be in \[0, 1\]"):
        Method.named("mirror", pool=-0.1)
    with pytest.raises(OptionError, match="n_groups"):
        Method.named("mirror", n_groups=-1)
    with pytest.raises(OptionError, match="unknown statefeatures"):
        Method.named("mirror", state_features="cubic")
    with pytest.raises(PolicyError, match="stage 0: TabularSoftmax needs discrete actions"):
        mirror(watched(0, n_episodes=5, known=False), TabularSoftmax(3, 2))
    with pytest.raises(HistoryError, match="have 6 parameters, but the family 4"):
        mirror(history, LinearGaussian(2, 2, sigma=0.5))
    still = LearningHistory.from_stages([history[0], history[0]], feature_names=NAMES)
    with pytest.raises(IdentificationError, match="the policies do not move between stages"):
        mirror(still)
    bare = LearningHistory.from_stages([replace(stage, features=None) for stage in history])
    with pytest.raises(OptionError, match="stage 0 has no recorded features"):
        mirror(bare)
    constant = LearningHistory.from_stages(
        [replace(stage, features=np.ones((stage.n_steps, 2))) for stage in history]
    )
    with pytest.raises(IdentificationError, match="every feature is constant"):
        mirror(constant)


def test_few_episodes_give_weights_without_intervals() -> None:
    estimate = mirror(watched(0, n_episodes=2, horizon=200))
    assert estimate.covariance is None and estimate.planning is None
    assert any("no intervals" in note for note in estimate.notes)
    alone = mirror(watched(0, n_episodes=1, horizon=400))
    assert np.isfinite(alone.weights).all() and "critic leaves" not in alone.method


def test_poor_clones_are_made_up_for() -> None:
    """One Newton step in the basis: clones far from their maximum give almost its answer."""
    history = watched(5, n_episodes=300, known=False)
    good = mirror(history)
    rough = mirror(history, clone=CloneConfig(prior_strength=300.0, holdout=0.0))
    shift = direction_error(good.weights, rough.weights)
    assert direction_error(good.weights, TRUTH) < 0.2 and 0 < shift < 0.1


def test_own_episodes_are_signal() -> None:
    history = watched(1, n_episodes=100)
    marked = replace(history, own_episodes=True)
    plain, corrected = mirror(history, debias=False), mirror(history)
    np.testing.assert_array_equal(mirror(marked).weights, plain.weights)
    assert (corrected.weights != plain.weights).any()


@pytest.mark.parametrize(("n_episodes", "explained"), [(300, True), (6, False)])
def test_the_note_on_single_steps_agrees_with_the_status(
    n_episodes: int, explained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step is predicted by itself: all of them together show a reward, or nothing does."""

    def without_cosines(*arguments: Any, **options: Any) -> Any:
        fit = explain_grams(*arguments, **options)
        return replace(fit, cosines=np.zeros_like(fit.cosines))

    monkeypatch.setattr("logel.inference.functions.explain_grams", without_cosines)
    estimate = mirror(watched(0, n_episodes=n_episodes, known=False))
    assert (estimate.status is not Status.UNEXPLAINED) == explained
    (note,) = (note for note in estimate.notes if "random direction" in note)
    assert ("do not trust" in note) == (not explained)
