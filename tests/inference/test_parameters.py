"""Parameters along the Jacobians of their own episodes: metrics, bias and spread."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from logel import LearningHistory, Method, TabularSoftmax, infer_reward
from logel.envs.gridworld import GridMap, grid_weights, gridworld_mdp
from logel.envs.tabular import feature_jacobian, random_mdp
from logel.errors import OptionError
from logel.inference.gauge import direction_error
from logel.inference.noise import DenseMetric, IdentityMetric
from logel.inference.regress import solve
from logel.inference.regression import Regression, less_error
from logel.inference.status import Status
from logel.inference.steps import compress
from logel.learners.tabular import GPOMDPLearner, RandomWalk, observe
from logel.policies.cloned_path import clone
from logel.policies.softmax import LinearSoftmax
from logel.worlds.own_episodes import stage_jacobian

MDP = gridworld_mdp(GridMap.parse("..b\n.d.\no.g"), gamma=0.9)
TRUTH = grid_weights(MDP.feature_names)
POLICY = TabularSoftmax(9, 4)
SHARED = Method(baseline="time", rates="shared")


def watched(seed: int = 0, *, learner: Any = None, **options: Any) -> LearningHistory:
    settings = {"n_steps": 5, "n_episodes": 40, "horizon": 8, **options}
    learner = learner or GPOMDPLearner(learning_rate=0.1, horizon=8, exact=True)
    return observe(MDP, learner, weights=TRUTH, seed=seed, **settings)


def error(history: LearningHistory, method: Method, **options: Any) -> float:
    estimate = infer_reward(history, POLICY, gamma=0.9, method=method, **options)
    return direction_error(estimate.weights, TRUTH, estimate.gauge)


# --- the paper's settings -------------------------------------------------------------------


@pytest.mark.parametrize("known", [False, True])
def test_the_papers_settings_are_its_formulas_and_nothing_else(known: bool) -> None:
    history = watched(parameters=known)
    estimate = infer_reward(history, POLICY, gamma=0.9, method="paper")
    if known:
        parameters = history.parameters()
    else:
        parameters = clone(history, POLICY, rng=np.random.default_rng(0)).parameters
    assert parameters is not None
    jacobians = [
        stage_jacobian(POLICY, theta, stage, gamma=0.9)
        for theta, stage in zip(parameters, history, strict=True)
    ]
    design = np.stack([j.mean for j in jacobians[:-1]])
    basis = estimate.gauge.identified
    found = solve(compress(np.diff(parameters, axis=0), design).projected(basis))
    weights = basis @ found.weights
    np.testing.assert_array_equal(estimate.weights, weights / np.linalg.norm(weights))
    assert estimate.models == {}


# --- metric ---------------------------------------------------------------------------------


def test_the_metric_of_cloning_noise_is_efficient_for_a_design_without_noise() -> None:
    # Weights are linear in the movement, so their covariance is exact; Gauss and Markov give the
    # smallest one. It says nothing about designs that are noisy themselves.
    theta = np.random.default_rng(0).normal(size=27)
    history = watched(n_steps=1, n_episodes=50)
    fisher = POLICY.fisher(POLICY.tensor(theta), POLICY.prepare(history[0])[0])
    covariance = 2 * fisher.solve(np.eye(27), ridge=1.0)
    design = feature_jacobian(MDP, theta)[:, :4]
    spreads = []
    for metric in (IdentityMetric(), DenseMetric(covariance)):
        columns = [
            solve(metric.compress(e[None], design[None]), np.ones(1)).weights for e in np.eye(27)
        ]
        spreads.append(np.stack(columns, axis=1) @ covariance @ np.stack(columns))
    best = np.linalg.inv(design.T @ np.linalg.inv(covariance) @ design)
    np.testing.assert_allclose(spreads[1], best, rtol=1e-6, atol=1e-8 * np.abs(best).max())
    assert np.linalg.eigvalsh(spreads[0] - best).min() > -1e-8 * np.abs(best).max()
    assert np.trace(spreads[0]) > 1.02 * np.trace(best)


# --- bias -----------------------------------------------------------------------------------


def test_subtracting_noise_lowers_the_floor() -> None:
    # Five episodes per stage and known parameters; few histories, so only the large effect is
    # asserted: from 10 to 160 steps, and against leaving the noise in.
    learner = GPOMDPLearner(learning_rate=0.02, horizon=8, exact=True)
    naive = replace(SHARED, metric="noise", n_groups=5)
    corrected = replace(naive, debias=True)
    rows = []
    for seed in range(4):
        history = watched(seed, learner=learner, n_steps=160, n_episodes=5, parameters=True)
        early = error(history.slice(0, 11), corrected, intervals=False)
        rows.append([early, *(error(history, m, intervals=False) for m in (corrected, naive))])
    early, late, floor = np.mean(rows, axis=0)
    assert late < 0.5 * early and late < 0.5 * floor


def test_the_notes_say_how_much_noise_was_subtracted() -> None:
    history = watched(n_episodes=300, parameters=True)
    full = infer_reward(history, POLICY, gamma=0.9, method=replace(SHARED, debias=True))
    assert "the noise of the Jacobians was subtracted in full" in full.notes
    few = watched(n_episodes=3, parameters=True, n_steps=2)
    partial = infer_reward(few, POLICY, gamma=0.9, method=replace(SHARED, debias=True))
    assert any(n.startswith("only ") and "could be subtracted" in n for n in partial.notes)
    two = watched(n_episodes=2, parameters=True)
    none = infer_reward(two, POLICY, gamma=0.9, method=replace(SHARED, debias=True))
    assert any("noise was not subtracted" in n for n in none.notes)


def test_noise_is_left_where_subtracting_promises_little() -> None:
    method = replace(SHARED, metric="noise", debias="auto")
    many = watched(n_steps=3, n_episodes=1000, parameters=True)
    calm = infer_reward(many, POLICY, gamma=0.9, method=method)
    assert any("was not subtracted: the weights would have spread" in n for n in calm.notes)
    assert "noise subtracted" not in calm.method


def test_noise_is_subtracted_where_the_bias_outweighs_the_spread() -> None:
    rng = np.random.default_rng(0)
    noise = 0.1 * rng.normal(size=(40, 2))

    def fitted(weights: list[float]) -> Regression:
        design = np.random.default_rng(1).normal(size=(2, 5, 2))
        steps = compress(design @ weights, design)
        return Regression.of(steps, [0.0, 0.0], np.eye(2), None, SHARED)

    unbiased = fitted([0.6, 0.8])
    for weights, corrected in (([0.8, -0.6], True), ([0.61, 0.79], False)):
        other = fitted(weights)
        taken, replicates, bias = less_error(
            unbiased, noise, other, 0.5 * noise, Method(uncertainty="bootstrap"), known=False
        )
        assert (taken is unbiased) == corrected
        assert (replicates is noise) == corrected and not (corrected and bias.any())
        assert corrected or (taken is other and np.linalg.norm(bias) < 0.1)


# --- spread ---------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [False, True])
def test_bootstrap_and_jackknife_tell_the_same_spread(known: bool) -> None:
    ratios = []
    for seed in range(5):
        history = watched(seed, parameters=known, n_steps=3, n_episodes=900, learning_rates=True)
        estimates = [
            infer_reward(history, POLICY, gamma=0.9, method=replace(SHARED, **options))
            for options in (
                {"n_groups": 30},
                {"n_groups": 30, "uncertainty": "bootstrap", "n_draws": 100},
            )
        ]
        one, two = (np.trace(e.covariance) for e in estimates)
        ratios.append(two / one)
        assert estimates[1].draws is not None and estimates[1].draws.shape == (100, 5)
        np.testing.assert_array_equal(estimates[0].weights, estimates[1].weights)
    assert 0.7 < np.mean(ratios) < 1.4


@pytest.mark.parametrize("known", [False, True])
def test_a_learner_that_wants_nothing_is_found_out(known: bool) -> None:
    method = replace(SHARED, metric="noise", process_noise=True)
    warned, significant = 0, []
    for seed in range(8):
        history = observe(
            MDP,
            RandomWalk(),
            weights=np.zeros(5),
            n_steps=6,
            n_episodes=30,
            seed=seed,
            parameters=known,
        )
        estimate = infer_reward(history, POLICY, gamma=0.9, method=method)
        warned += estimate.status is Status.UNEXPLAINED
        ends = estimate.interval(0.95)
        significant.append(((ends[:, 0] > 0) | (ends[:, 1] < 0)).mean())
    assert warned >= 7 and np.mean(significant) <= 0.1


def test_a_learner_that_learns_is_believed() -> None:
    method = replace(SHARED, metric="noise", process_noise=True)
    history = watched(n_steps=8, n_episodes=100, parameters=True)
    estimate = infer_reward(history, POLICY, gamma=0.9, method=method)
    assert estimate.status is Status.RANK_DEFICIENT and estimate.models == {}
    # Five steps could have gone their way by chance, however well they are explained.
    few = infer_reward(history.slice(0, 6), POLICY, gamma=0.9, method=method)
    assert few.status is Status.UNEXPLAINED


def test_more_episodes_do_not_take_the_learners_own_noise_away() -> None:
    # A learner of few episodes watched through many: nearly all that is uncertain is its own.
    ratios = {}
    for name, learner, n_episodes in (
        ("noisy", GPOMDPLearner(learning_rate=0.1, horizon=8, n_episodes=3), 600),
        ("exact", None, 20),
    ):
        history = watched(learner=learner, n_steps=8, n_episodes=n_episodes, parameters=True)
        found = infer_reward(history, POLICY, gamma=0.9, method="two-step").planning
        assert found is not None
        now = np.trace(found.covariance)
        ratios[name] = np.trace(found.twice_episodes) / now
        assert np.trace(found.twice_stages) == pytest.approx(now / 2)
    assert ratios["noisy"] > 0.9
    assert 0.5 <= ratios["exact"] < 0.8


def test_chance_counts_only_what_was_seen() -> None:
    history = watched(parameters=True)
    small = infer_reward(history, POLICY, gamma=0.9, method="two-step")
    # Ninety-one states that nobody visits, and whose parameters nobody moves.
    stages = [replace(s, parameters=np.pad(np.asarray(s.parameters), (0, 273))) for s in history]
    padded = LearningHistory.from_stages(stages, feature_names=history.feature_names)
    for known in (True, False):
        fits = [
            infer_reward(h, p, gamma=0.9, method="two-step", use_parameters=known).fit
            for h, p in ((history, POLICY), (padded, TabularSoftmax(100, 4)))
        ]
        assert fits[0].chance == pytest.approx(fits[1].chance)
    # Twenty-seven parameters, all seen; four weights over five steps.
    assert small.fit.chance == pytest.approx(np.sqrt((1 + 4 / 5) / 27))


def test_every_option_together_runs_without_intervals() -> None:
    method = Method(
        baseline="time",
        metric="fisher",
        ridge="evidence",
        debias="auto",
        process_noise=True,
        uncertainty="bootstrap",
        n_draws=5,
    )
    for intervals in (False, True):
        estimate = infer_reward(
            watched(n_steps=3, n_episodes=12), POLICY, gamma=0.9, method=method, intervals=intervals
        )
        assert np.isfinite(estimate.weights).all()
        assert (estimate.draws is not None) == intervals
        assert "one rate per step" in estimate.method and "by evidence" in estimate.method


def test_wrong_options_are_named() -> None:
    for options, words in (
        ({"ridge": "best"}, "a number or 'evidence'"),
        ({"ridge": -1.0}, "ridge must not be negative, but is -1.0"),
        ({"debias": "maybe"}, "debias must be one of False, True, 'auto'"),
        ({"uncertainty": "none"}, "uncertainty must be one of 'jackknife', 'bootstrap'"),
        ({"metric": "euclid"}, "metric must be one of 'identity', 'fisher', 'noise'"),
        ({"rates": "cosine"}, "unknown rates 'cosine': choose one of schedule"),
        ({"rates": "schedule"}, "schedules of rates need 'functions'"),
        ({"coordinates": "values"}, "unknown coordinates 'values'"),
        ({"epsilon": 0.0}, "epsilon must be positive, but is 0.0"),
        ({"max_iterations": 0}, "max_iterations must be at least 1, but is 0"),
        ({"models": ()}, "at least one rule is needed"),
    ):
        with pytest.raises(OptionError, match=words):
            Method(**options)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="one rate per step needs coordinates='parameters'"):
        Method.named("mirror", rates="free")
    with pytest.raises(OptionError, match="nonnegative needs coordinates='parameters'"):
        Method.named("joint", nonnegative=True)
    with pytest.raises(OptionError, match="unknown method 'best': choose one of paper"):
        Method.named("best")


# --- other families -------------------------------------------------------------------------


def test_a_random_world_seen_through_linear_features() -> None:
    rng = np.random.default_rng(1)
    mdp = random_mdp(rng, n_states=8, n_actions=3, n_features=3)
    truth, table = rng.normal(size=3), np.eye(8)
    history = observe(
        mdp,
        GPOMDPLearner(learning_rate=0.3, exact=True),
        weights=truth,
        n_steps=6,
        n_episodes=300,
        seed=2,
    )
    policy = LinearSoftmax(8, 3, feature_map=lambda s: table[s])
    method = replace(SHARED, metric="noise", process_noise=True)
    estimate = infer_reward(history, policy, gamma=mdp.gamma, method=method)
    assert direction_error(estimate.weights, truth, estimate.gauge) < 0.35
    assert estimate.gauge.n == 0
