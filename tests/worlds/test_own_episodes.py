"""Jacobian estimators against the exact finite-horizon Jacobian, and against naive loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logel.data.stage import Episode, Stage
from logel.envs.tabular import (
    TabularMDP,
    feature_jacobian,
    random_mdp,
    sample_episodes,
    softmax_policy,
)
from logel.errors import OptionError, PolicyError
from logel.policies.base import Policy
from logel.policies.gaussian import LinearGaussian
from logel.policies.networks import MLPCategorical
from logel.policies.softmax import LinearSoftmax, TabularSoftmax
from logel.worlds.own_episodes import features_to_go, stage_jacobian

HORIZON = 5
ESTIMATORS = ("reinforce", "gpomdp")
UNBIASED = ("none", "time", "critic")
BASELINES = (*UNBIASED, "component")


def small_world() -> tuple[TabularMDP, Any, TabularSoftmax]:
    rng = np.random.default_rng(0)
    mdp = random_mdp(rng, n_states=3, n_actions=2, n_features=2, gamma=0.9)
    return mdp, rng.normal(size=mdp.n_parameters), TabularSoftmax(3, 2)


def sampled(mdp: TabularMDP, theta: Any, n_episodes: int, seed: int, horizon: int = HORIZON):
    policy = softmax_policy(theta, n_states=mdp.n_states, n_actions=mdp.n_actions)
    rng = np.random.default_rng(seed)
    return sample_episodes(mdp, policy, rng=rng, n_episodes=n_episodes, horizon=horizon)


def packed(batch: Any, rows: slice = slice(None)) -> Stage:
    """Episodes of equal length, none terminated."""
    states, actions, features = (array[rows] for array in batch)
    n, horizon = actions.shape
    return Stage(
        observations=states[:, :-1].reshape(-1),
        actions=actions.reshape(-1),
        lengths=np.full(n, horizon),
        terminated=np.zeros(n, dtype=bool),
        last_observations=states[:, -1],
        features=features.reshape(n * horizon, -1),
    )


def worst_z(estimates: Any, exact: Any) -> float:
    """Largest deviation of the mean from the truth, in standard errors, over all entries."""
    estimates = np.asarray(estimates)
    error = estimates.std(axis=0, ddof=1) / np.sqrt(len(estimates))
    return float((np.abs(estimates.mean(axis=0) - exact) / error).max())


# --- against the exact Jacobian -------------------------------------------------------------


@pytest.mark.parametrize("baseline", UNBIASED)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_small_batches_average_to_the_exact_jacobian(estimator: str, baseline: str) -> None:
    # Batches of a few episodes: a baseline that used a row's own episode would be biased here.
    mdp, theta, policy = small_world()
    n, batches = 6, 500
    batch = sampled(mdp, theta, n * batches, seed=1)
    estimates = [
        stage_jacobian(
            policy,
            theta,
            packed(batch, slice(b * n, (b + 1) * n)),
            gamma=mdp.gamma,
            estimator=estimator,
            baseline=baseline,
            n_groups=1,
        ).mean
        for b in range(batches)
    ]
    exact = feature_jacobian(mdp, theta, horizon=HORIZON)
    assert worst_z(estimates, exact) < 4


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_component_baseline_is_consistent(estimator: str) -> None:
    mdp, theta, policy = small_world()
    stage = packed(sampled(mdp, theta, 40_000, seed=2))
    found = stage_jacobian(
        policy,
        theta,
        stage,
        gamma=mdp.gamma,
        estimator=estimator,
        baseline="component",
        n_groups=40,
    )
    assert worst_z(found.groups, feature_jacobian(mdp, theta, horizon=HORIZON)) < 4


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_baselines_reduce_the_variance(estimator: str) -> None:
    mdp, theta, policy = small_world()
    # A large constant level is what baselines are for.
    batch = sampled(mdp, theta, 2000, seed=3)
    stage = packed(batch._replace(features=batch.features + 5.0))
    spread = {
        baseline: np.trace(
            stage_jacobian(
                policy,
                theta,
                stage,
                gamma=mdp.gamma,
                estimator=estimator,
                baseline=baseline,
                n_groups=50,
            ).covariance()
        )
        for baseline in BASELINES
    }
    for baseline in ("time", "critic", "component"):
        assert spread[baseline] < 0.5 * spread["none"], baseline


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_terminated_episodes_are_absorbing(estimator: str, baseline: str) -> None:
    # The same world with a last state that pays nothing and is never left: episodes are cut where
    # they enter it. The exact Jacobian knows nothing of episode ends.
    rng = np.random.default_rng(4)
    transitions = rng.dirichlet(np.ones(4), size=(4, 2))
    transitions[3] = np.eye(4)[3]
    features = rng.normal(size=(4, 2, 4, 2)) + 1.0
    features[3] = 0.0
    mdp = TabularMDP(transitions, features, np.array([0.5, 0.3, 0.2, 0.0]), 0.9)
    theta = rng.normal(size=mdp.n_parameters)
    n, batches = (1500, 15) if baseline == "component" else (8, 400)
    batch = sampled(mdp, theta, n * batches, seed=5)
    over = batch.states[:, 1:] == 3
    lengths = np.where(over.any(axis=1), over.argmax(axis=1) + 1, HORIZON)
    kept = np.arange(HORIZON) < lengths[:, None]
    estimates = []
    for b in range(batches):
        rows = slice(b * n, (b + 1) * n)
        keep = kept[rows]
        stage = Stage(
            observations=batch.states[rows, :-1][keep],
            actions=batch.actions[rows][keep],
            lengths=lengths[rows],
            terminated=over[rows].any(axis=1),
            features=batch.features[rows][keep],
        )
        found = stage_jacobian(
            TabularSoftmax(4, 2),
            theta,
            stage,
            gamma=mdp.gamma,
            estimator=estimator,
            baseline=baseline,
            n_groups=1,
        )
        estimates.append(found.mean[:3])
        np.testing.assert_array_equal(found.mean[3], 0.0)
    exact = feature_jacobian(mdp, theta, horizon=HORIZON)[:3]
    assert worst_z(estimates, exact) < 4


@pytest.mark.parametrize("baseline", UNBIASED)
def test_a_gaussian_policy_by_hand(baseline: str) -> None:
    # One step, mean theta * s, features (a, a^2): E[phi] = (theta s, theta^2 s^2 + sigma^2), so the
    # derivatives are E[s] and 2 theta E[s^2]; w.r.t. log sigma 0 and 2 sigma^2.
    rng = np.random.default_rng(6)
    policy = LinearGaussian(1, 1)
    theta, n, batches = np.array([0.8, np.log(0.5)]), 10, 300
    observations = np.tile([[0.5], [1.0], [-1.0], [2.0], [0.2]], (2 * batches, 1))
    actions = policy.sample(theta, observations, rng)
    features = np.concatenate([actions, actions**2], axis=1)
    estimates = []
    for b in range(batches):
        order = rng.permutation(n)
        rows = b * n + order
        stage = Stage(
            observations[rows],
            actions[rows],
            np.ones(n, dtype=int),
            np.zeros(n, dtype=bool),
            features=features[rows],
        )
        found = stage_jacobian(policy, theta, stage, gamma=0.9, baseline=baseline, n_groups=1)
        estimates.append(found.mean)
    s = observations[:5, 0]
    exact = [[s.mean(), 2 * 0.8 * (s**2).mean()], [0.0, 2 * 0.25]]
    assert worst_z(estimates, exact) < 4


def test_the_spread_over_groups_is_the_sampling_variance() -> None:
    mdp, theta, policy = small_world()
    n, batches = 60, 300
    batch = sampled(mdp, theta, n * batches, seed=7)
    found = [
        stage_jacobian(
            policy, theta, packed(batch, slice(b * n, (b + 1) * n)), gamma=mdp.gamma, n_groups=7
        )
        for b in range(batches)
    ]
    exact = feature_jacobian(mdp, theta, horizon=HORIZON)
    errors = np.stack([f.mean - exact for f in found])
    true = np.einsum("bdi,bdj->ij", errors, errors) / batches
    claimed = np.mean([f.covariance() for f in found], axis=0)
    np.testing.assert_allclose(np.diagonal(claimed), np.diagonal(true), rtol=0.2)


# --- against naive loops --------------------------------------------------------------------


def naive(policy: Policy, theta: Any, stage: Stage, gamma: float, estimator: str, baseline: str):
    """The textbook formulas, one number at a time."""
    episodes = []
    for episode in stage.episodes:
        alone = Stage.from_episodes([episode])
        scores = policy.scores(policy.tensor(theta), *policy.prepare(alone)).numpy()
        episodes.append((scores, np.asarray(episode.features), episode.terminated))
    n, d, q = len(episodes), policy.n_parameters, episodes[0][1].shape[1]
    total = np.zeros((d, q))
    times = range(max(len(f) for _, f, _ in episodes)) if estimator == "gpomdp" else [None]
    for h in times:
        for i in range(d):
            for j in range(q):
                c, x = [], []
                for scores, features, terminated in episodes:
                    length = len(features)
                    if h is None:
                        c.append(scores[:, i].sum())
                        x.append(sum(gamma**k * features[k, j] for k in range(length)))
                    elif h < length or terminated:
                        c.append(scores[: h + 1, i].sum())
                        x.append(gamma**h * features[h, j] if h < length else 0.0)
                squares = sum(v**2 for v in c)
                b = 0.0
                if baseline == "component" and squares > 0:
                    b = sum(v**2 * y for v, y in zip(c, x, strict=True)) / squares
                total[i, j] += sum(v * (y - b) for v, y in zip(c, x, strict=True))
    return total / n


@st.composite
def tiny_stages(draw: st.DrawFn) -> Stage:
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    return Stage.from_episodes(
        [
            Episode(
                rng.integers(0, 3, n + 1),
                rng.integers(0, 3, n),
                rng.normal(size=(n, 2)),
                draw(st.booleans()),
            )
            for n in lengths
        ]
    )


@pytest.mark.parametrize("baseline", ["none", "component"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(stage=tiny_stages(), gamma=st.sampled_from([0.0, 0.5, 0.97]))
@settings(max_examples=15)
def test_estimates_equal_the_triple_loop(
    estimator: str, baseline: str, stage: Stage, gamma: float
) -> None:
    policy = TabularSoftmax(3, 3)
    theta = np.linspace(-1, 1, 6)
    found = stage_jacobian(
        policy, theta, stage, gamma=gamma, estimator=estimator, baseline=baseline, n_groups=3
    )
    expected = naive(policy, theta, stage, gamma, estimator, baseline)
    np.testing.assert_allclose(found.mean, expected, atol=1e-12)


def test_terminated_and_truncated_by_hand() -> None:
    # One state, two equally likely actions: the score of action 0 is 1/2. gamma = 1/2.
    #   first:  action 0,    features 1        then over
    #   second: actions 0 0, features 1 2
    # Component baseline, time 0: both C = 1/2, D = 1, b = 1: nothing. Time 1: second has C = 1,
    # D = 1. If the first was truncated it is gone: b = 1, nothing. If it terminated it stays with
    # C = 1/2, D = 0: b = 1 / (1 + 1/4) = .8, and 1/2 (0 - .8) + 1 (1 - .8) = -.2, over 2 episodes.
    policy = TabularSoftmax(1, 2)

    def jacobian(terminated: bool, baseline: str) -> float:
        stage = Stage.from_episodes(
            [
                Episode(np.zeros(2, int), np.array([0]), np.array([[1.0]]), terminated),
                Episode(np.zeros(3, int), np.array([0, 0]), np.array([[1.0], [2.0]])),
            ]
        )
        found = stage_jacobian(policy, [0.0], stage, gamma=0.5, baseline=baseline)
        return float(found.mean[0, 0])

    assert jacobian(False, "component") == pytest.approx(0.0, abs=1e-15)
    assert jacobian(True, "component") == pytest.approx(-0.1, abs=1e-15)
    for terminated in (False, True):
        # (1/2 * 1 + 1/2 * 2 + 1/2 * 1) / 2
        assert jacobian(terminated, "none") == pytest.approx(1.0)
        # Time 0: 1/2 (1 - 2) + 1/2 (2 - 1) = 0; at time 1 the second has no one to compare with.
        assert jacobian(terminated, "time") == pytest.approx(0.25)


@given(
    st.lists(st.integers(1, 70), min_size=1, max_size=4),
    st.sampled_from([0.0, 0.3, 0.9, 0.999]),
)
@settings(max_examples=40)
def test_features_to_go_equal_the_recursion(lengths: list[int], gamma: float) -> None:
    rng = np.random.default_rng(sum(lengths))
    stage = Stage.from_episodes(
        [Episode(np.zeros(n), np.zeros(n), rng.normal(size=(n, 2)) + 3) for n in lengths]
    )
    expected = []
    for episode in stage.episodes:
        assert episode.features is not None
        to_go, rows = np.zeros(2), []
        for phi in episode.features[::-1]:
            to_go = phi + gamma * to_go
            rows.append(to_go)
        expected += rows[::-1]
    found = features_to_go(stage, gamma, from_start=False)
    # Late rows must be as accurate as early ones, although gamma^h is as small as 1e-36 there.
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    scaled = features_to_go(stage, gamma)
    np.testing.assert_allclose(scaled, (gamma**stage.times)[:, None] * expected, rtol=1e-10)


# --- invariances ----------------------------------------------------------------------------


def various_stage(policy: Policy, seed: int = 0, n_episodes: int = 60) -> Stage:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 30, n_episodes)
    n = int(lengths.sum())
    tabular = isinstance(policy, TabularSoftmax)
    return Stage(
        observations=rng.integers(0, 3, n) if tabular else rng.normal(size=(n, 3)),
        actions=rng.integers(0, 2, n),
        lengths=lengths,
        terminated=rng.random(n_episodes) < 0.5,
        features=rng.normal(size=(n, 3)),
    )


INVARIANT = (TabularSoftmax(3, 2), LinearSoftmax(3, 2), MLPCategorical(3, 2, hidden=(4,)))


@pytest.mark.parametrize("policy", INVARIANT, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_results_do_not_depend_on_memory_or_groups(
    estimator: str, baseline: str, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = various_stage(policy)
    assert stage.n_steps > 2 * 256  # more than the smallest block
    theta = np.random.default_rng(1).normal(size=policy.n_parameters)
    options: dict[str, Any] = {"gamma": 0.9, "estimator": estimator, "baseline": baseline}
    reference = stage_jacobian(policy, theta, stage, **options)
    with monkeypatch.context() as patch:
        for bound in ("_MEMORY", "_SCORES_MEMORY"):
            patch.setattr(f"logel.worlds.own_episodes.{bound}", 0)
        tight = stage_jacobian(policy, theta, stage, **options)
    np.testing.assert_allclose(tight.groups, reference.groups, atol=1e-12)
    np.testing.assert_allclose(tight.score_sums, reference.score_sums, atol=1e-11)
    scores = policy.scores(policy.tensor(theta), *policy.prepare(stage)).numpy()
    np.testing.assert_allclose(reference.score_sums.sum(axis=0), scores.sum(axis=0), atol=1e-11)
    for n_groups in (1, 7, 60, 1000):
        found = stage_jacobian(policy, theta, stage, n_groups=n_groups, **options)
        assert len(found.groups) == min(n_groups, 60)
        assert found.group_weights.sum() == pytest.approx(1.0)
        np.testing.assert_allclose(found.mean, reference.mean, atol=1e-12)
        weighted = np.tensordot(found.group_weights, found.groups, axes=1)
        np.testing.assert_allclose(weighted, found.mean, atol=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_groups_without_baseline_are_the_estimates_of_their_episodes(estimator: str) -> None:
    policy = TabularSoftmax(3, 2)
    stage, theta = various_stage(policy), np.array([0.3, -0.2, 0.5])
    whole = stage_jacobian(policy, theta, stage, gamma=0.9, estimator=estimator, n_groups=3)
    for g, part in enumerate(np.split(np.arange(60), 3)):
        alone = stage_jacobian(policy, theta, stage.take(part), gamma=0.9, estimator=estimator)
        np.testing.assert_allclose(whole.groups[g], alone.mean, atol=1e-12)


def test_a_constant_feature_cancels_under_the_time_baseline() -> None:
    mdp, theta, policy = small_world()
    stage = packed(sampled(mdp, theta, 30, seed=9))
    assert stage.features is not None
    features = np.concatenate([stage.features, np.full((stage.n_steps, 1), 4.0)], axis=1)
    stage = replace(stage, features=features)
    for estimator in ESTIMATORS:
        found = stage_jacobian(
            policy, theta, stage, gamma=0.9, estimator=estimator, baseline="time"
        )
        assert np.abs(found.groups[:, :, 2]).max() < 1e-12
        assert np.abs(found.mean[:, :2]).max() > 1e-2
        plain = stage_jacobian(policy, theta, stage, gamma=0.9, estimator=estimator)
        assert np.abs(plain.mean[:, 2]).max() > 1e-2


def test_a_single_episode_has_no_spread_but_an_estimate() -> None:
    policy = TabularSoftmax(3, 2)
    stage = various_stage(policy, n_episodes=1)
    for baseline in BASELINES:
        found = stage_jacobian(policy, np.zeros(3), stage, gamma=0.9, baseline=baseline)
        assert np.isfinite(found.mean).all() and np.isnan(found.covariance()).all()


# --- errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [-0.1, 1.0, 1.5, float("nan")])
def test_gamma_outside_its_range_is_refused(gamma: float) -> None:
    policy = TabularSoftmax(3, 2)
    with pytest.raises(OptionError, match=rf"gamma must be in \[0, 1\), but is {gamma}"):
        stage_jacobian(policy, np.zeros(3), various_stage(policy), gamma=gamma)


def test_malformed_arguments_are_refused() -> None:
    policy = TabularSoftmax(3, 2)
    stage, theta = various_stage(policy), np.zeros(3)
    with pytest.raises(OptionError, match="no features"):
        stage_jacobian(policy, theta, replace(stage, features=None), gamma=0.9)
    with pytest.raises(OptionError, match="n_groups must be at least 1, but is 0"):
        stage_jacobian(policy, theta, stage, gamma=0.9, n_groups=0)
    with pytest.raises(OptionError, match="the policy has 3 parameters"):
        stage_jacobian(policy, np.zeros(4), stage, gamma=0.9)
    with pytest.raises(OptionError, match="unknown baseline 'best': choose one of none, time"):
        stage_jacobian(policy, theta, stage, gamma=0.9, baseline="best")
    with pytest.raises(OptionError, match="unknown estimator 'sf'"):
        stage_jacobian(policy, theta, stage, gamma=0.9, estimator="sf")
    with pytest.raises(PolicyError, match="action 1 is outside"):
        stage_jacobian(TabularSoftmax(3, 1), np.zeros(0), stage, gamma=0.9)
