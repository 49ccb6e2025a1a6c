"""The two-step inference: update rules, metrics, bias and spread against exact worlds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from logel.inference.accounts import Account, Settled, settled
from logel.inference.neighbours import (
    effective_share,
    importance_ratios,
    pooled_jacobians,
    variance_reduction,
)
from logel.rules.updates import Candidate, adam, held_out_gains, natural

from logel import LearningHistory, Method, TabularSoftmax, infer_reward
from logel.data.stage import Stage
from logel.envs.gridworld import GridMap, grid_weights, gridworld_mdp
from logel.envs.tabular import (
    feature_action_values,
    feature_jacobian,
    occupancy,
    random_mdp,
    softmax_policy,
)
from logel.errors import OptionError
from logel.inference.gauge import direction_error
from logel.inference.noise import DenseMetric, IdentityMetric
from logel.inference.regress import solve
from logel.inference.status import Status
from logel.inference.steps import compress
from logel.learners.tabular import (
    GPOMDPLearner,
    NaturalGradientAscent,
    RandomWalk,
    Snapshot,
    observe,
)
from logel.policies.cloning import clone
from logel.policies.fisher import BlockFisher
from logel.policies.softmax import LinearSoftmax
from logel.worlds.own_episodes import Baseline, StageJacobian, stage_jacobian

MDP = gridworld_mdp(GridMap.parse("..b\n.d.\no.g"), gamma=0.9)
TRUTH = grid_weights(MDP.feature_names)
POLICY = TabularSoftmax(9, 4)
SHARED = Method(baseline="time", shared_rate=True)


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
    found = solve(compress(np.diff(parameters, axis=0), design @ basis))
    weights = basis @ found.weights
    np.testing.assert_array_equal(estimate.weights, weights / np.linalg.norm(weights))
    assert estimate.models == {} and estimate.draws is None


# --- update rules ---------------------------------------------------------------------------


def exact_jacobian(theta: np.ndarray) -> StageJacobian:
    mean = feature_jacobian(MDP, theta)
    return StageJacobian(mean, mean[None], np.ones(1), np.zeros((1, len(mean))))


def test_the_natural_gradient_of_a_table_is_the_advantage() -> None:
    theta = np.random.default_rng(0).normal(size=27)
    policy = softmax_policy(theta, n_states=9, n_actions=4)
    visits = occupancy(MDP, policy)
    p = policy[:, :-1]
    blocks = visits[:, None, None] * (np.eye(3) * p[:, :, None] - p[:, :, None] * p[:, None])
    found = natural(exact_jacobian(theta), BlockFisher(blocks), n_rows=1, ridge=0.0).mean
    values = feature_action_values(MDP, policy)
    np.testing.assert_allclose(found, (values[:, :-1] - values[:, -1:]).reshape(27, -1), atol=1e-8)


def test_adams_diagonal_by_hand() -> None:
    weights = np.array([1.0, -1.0])
    means = [np.array([[3.0, 1.0], [0.0, 1.0]]), np.array([[0.0, 0.0], [1.0, 4.0]])]
    jacobians = [StageJacobian(m, m[None], np.ones(1), np.zeros((1, 2))) for m in means]
    # Gradients (2, -1), then (0, -3); the corrected mean squares are exact averages, nearly.
    second = (0.999 * 0.001 * np.array([4.0, 1.0]) + 0.001 * np.array([0.0, 9.0])) / (1 - 0.999**2)
    for (scaled, scale), squares, mean in zip(
        adam(jacobians, weights), ([4.0, 1.0], second), means, strict=True
    ):
        root = np.sqrt(squares)
        np.testing.assert_allclose(scale, root + 1e-3 * np.sqrt(np.mean(squares)))
        np.testing.assert_allclose(scaled.mean, mean / scale[:, None])
        np.testing.assert_allclose(scaled.groups[0], scaled.mean)


@pytest.mark.parametrize(
    ("learner", "expected"),
    [
        (GPOMDPLearner(learning_rate=0.3, horizon=8, exact=True), "gradient"),
        (NaturalGradientAscent(learning_rate=0.5), "natural"),
    ],
)
def test_held_out_steps_tell_the_update_rule(learner: Any, expected: str) -> None:
    history = watched(learner=learner, n_steps=8, n_episodes=400, parameters=True)
    method = Method(baseline="time", shared_rate=True, metric="noise", learner="auto", n_groups=3)
    estimate = infer_reward(history, POLICY, gamma=0.9, method=method)
    assert next(iter(estimate.models)) == expected
    assert set(estimate.models) == {"gradient", "natural", "adam"}
    assert estimate.models[expected] > 10
    assert f"learner '{expected}' by held-out steps, runner-up '" in estimate.method


def test_held_out_gains_by_hand() -> None:
    # Two steps, one parameter, one feature: each is predicted from the other.
    steps = compress(np.array([[2.0], [3.0]]), np.array([[[1.0]], [[1.0]]]))
    gains = held_out_gains(
        {"only": Candidate(steps, np.zeros(2))}, lambda s: solve(s, np.ones(s.n_steps))
    )
    # Each single step is fitted exactly: the variance of its residuals is the smallest number.
    assert gains["only"] < -1e6
    steps = compress(np.array([[2.0, 1], [2.0, -1]]), np.ones((2, 2, 1)) * [[1.0], [0.0]])
    gains = held_out_gains(
        {"only": Candidate(steps, np.zeros(2))}, lambda s: solve(s, np.ones(s.n_steps))
    )
    # Residuals (0, 1) and (0, -1), variance 1/2 from the other step; without weights 5/2.
    null = -0.5 * (2 * np.log(2 * np.pi * 2.5) + 2)
    fit = -0.5 * (2 * np.log(2 * np.pi * 0.5) + 2)
    assert gains["only"] == pytest.approx(2 * (fit - null))


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
        columns = [solve(metric.compress(e, design), np.ones(1)).weights for e in np.eye(27)]
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
    unbiased = Settled(
        cast(Account, SimpleNamespace(weights=np.array([0.6, 0.8]))), noise, noise[0]
    )
    for weights, corrected in (([0.8, -0.6], True), ([0.61, 0.79], False)):
        other = cast(Account, SimpleNamespace(weights=np.array(weights)))
        method = Method(uncertainty="bootstrap")
        taken = settled(unbiased, other, 0.5 * noise, method, known=False)
        assert (taken is unbiased) == corrected
        assert corrected or (taken.account is other and np.linalg.norm(taken.bias) < 0.1)


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
    history = watched(n_episodes=100, parameters=True)
    estimate = infer_reward(history, POLICY, gamma=0.9, method=method)
    assert estimate.status is Status.RANK_DEFICIENT and estimate.models["gradient"] > 3


def test_every_option_together_runs_without_intervals() -> None:
    method = Method(
        baseline="time",
        metric="fisher",
        ridge="evidence",
        rate_shrinkage="schedule",
        learner="auto",
        debias="auto",
        neighbours=1,
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
        assert "rates shrunk (schedule)" in estimate.method and "by evidence" in estimate.method


def test_wrong_options_are_named() -> None:
    for options, words in (
        ({"ridge": "best"}, "a number or 'evidence'"),
        ({"debias": "maybe"}, "True, False or 'auto'"),
        ({"uncertainty": "none"}, "'jackknife' or 'bootstrap'"),
        ({"neighbours": -1}, "neighbours must not be negative"),
        ({"learner": "sgd"}, "gradient"),
        ({"rate_shrinkage": "all"}, "schedule"),
    ):
        with pytest.raises(OptionError, match=words):
            Method(**options)  # type: ignore[arg-type]


# --- neighbours -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Still:
    """A learner that has stopped learning."""

    logits: tuple[float, ...]

    def run(self, mdp: Any, weights: Any, rng: Any) -> Iterator[Snapshot]:
        while True:
            yield Snapshot(softmax_policy(self.logits, n_states=9, n_actions=4))


def sampled(theta: np.ndarray, seed: int, n_episodes: int) -> Stage:
    learner = Still(tuple(theta))
    return watched(seed, learner=learner, n_steps=1, n_episodes=n_episodes, horizon=6)[0]


@pytest.mark.parametrize("baseline", ["none", "time", "critic"])
def test_importance_weights_make_a_neighbours_episodes_ones_own(baseline: str) -> None:
    rng = np.random.default_rng(0)
    source = 0.3 * rng.normal(size=27)
    target = source + 0.2 * rng.normal(size=27)
    exact = feature_jacobian(MDP, target, horizon=6)
    stage = sampled(source, 1, 20000)
    ratios = importance_ratios(POLICY, stage, target, source, largest=1e9)
    found = stage_jacobian(
        POLICY, target, stage, gamma=0.9, baseline=baseline, n_groups=50, ratios=ratios
    )
    spread = (found.groups - found.mean).std(axis=0) / np.sqrt(49)
    z = (found.mean - exact)[spread > 0] / spread[spread > 0]
    assert np.abs(z).max() < 5 and 0.7 < np.sqrt((z**2).mean()) < 1.35


def test_ratios_by_hand() -> None:
    policy = TabularSoftmax(1, 2)
    stage = Stage(
        observations=np.zeros(5, dtype=int),
        actions=np.array([0, 1, 0, 0, 0]),
        lengths=np.array([2, 3]),
        terminated=np.zeros(2, dtype=bool),
    )
    target, source = np.array([np.log(3.0)]), np.zeros(1)
    # Probabilities 3/4 and 1/4 against 1/2 each.
    ratios = importance_ratios(policy, stage, target, source)
    np.testing.assert_allclose(ratios, [1.5, 0.75, 1.5, 2.25, 3.375])
    clipped = importance_ratios(policy, stage, target, source, largest=2.0)
    np.testing.assert_allclose(clipped, [1.5, 0.75, 1.5, 2.0, 2.0])
    same = importance_ratios(policy, stage, source, source)
    np.testing.assert_array_equal(same, 1.0)
    assert effective_share(same, stage, 0.9) == pytest.approx(1.0)
    assert effective_share(np.array([1.0, 1, 0, 0, 0]), stage, 0.0) == pytest.approx(0.5)


def test_neighbours_halve_the_variance_of_a_learner_that_stands_still() -> None:
    theta = np.zeros(27)
    stages = [sampled(theta, s, 300) for s in range(3)]
    own = [
        stage_jacobian(POLICY, theta, s, gamma=0.9, baseline="time", n_groups=60) for s in stages
    ]
    pooled = pooled_jacobians(
        lambda t: stages[t],
        POLICY,
        np.zeros((3, 27)),
        own,
        reach=1,
        gamma=0.9,
        baseline=Baseline.TIME,
    )
    np.testing.assert_allclose(pooled[1].mean, np.mean([j.mean for j in own], axis=0))
    assert 2.2 < variance_reduction(pooled[1], own[1]) < 4.0
    assert variance_reduction(own[0], own[0]) == 1.0
    np.testing.assert_array_equal(pooled[1].score_sums, own[1].score_sums)


def test_neighbours_too_far_away_are_not_used() -> None:
    stages = [sampled(np.zeros(27), 0, 20), sampled(np.zeros(27), 1, 20)]
    parameters = np.stack([np.zeros(27), np.tile([8.0, -8.0, 0.0], 9)])
    own = [stage_jacobian(POLICY, parameters[t], stages[t], gamma=0.9) for t in range(2)]
    pooled = pooled_jacobians(lambda t: stages[t], POLICY, parameters, own, reach=1, gamma=0.9)
    assert pooled[1] is own[1]
    with pytest.raises(OptionError, match="importance weights need"):
        stage_jacobian(
            POLICY,
            np.zeros(27),
            stages[0],
            gamma=0.9,
            baseline="component",
            ratios=np.ones(stages[0].n_steps),
        )


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
