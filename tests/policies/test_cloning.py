"""Cloning: maximum likelihood that is as accurate as the Fisher information allows."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch

from logel.data.history import LearningHistory
from logel.data.stage import Episode, Stage
from logel.errors import HistoryError, OptionError, PolicyError
from logel.policies.base import Policy
from logel.policies.cloned_path import ClonedPath, clone, parent, still_needed
from logel.policies.cloning import CloneConfig, CloneMethod, clone_stage, stops_early
from logel.policies.gaussian import LinearGaussian
from logel.policies.networks import MLPCategorical, MLPGaussian
from logel.policies.softmax import LinearSoftmax, TabularSoftmax

PLAIN = CloneConfig(prior_strength=0.0, holdout=0.0)


def sampled_stage(
    policy: Policy, theta: Any, observations: Any, rng: np.random.Generator, *, n_episodes: int = 1
) -> Stage:
    length = len(observations) // n_episodes
    return Stage(
        observations=observations,
        actions=policy.sample(theta, observations, rng),
        lengths=np.full(n_episodes, length),
        terminated=np.zeros(n_episodes, dtype=bool),
    )


def penalised_gradient(policy: Policy, theta: Any, stage: Stage, strength: float, centre: Any):
    observations, actions = policy.prepare(stage)
    total = policy.scores(policy.tensor(theta), observations, actions).sum(dim=0).numpy()
    return total - strength * (theta - centre)


# --- accuracy -------------------------------------------------------------------------------

EFFICIENT: dict[str, tuple[Policy, int, int]] = {
    # Family, steps in the data, replications.
    "tabular": (TabularSoftmax(n_states=3, n_actions=3), 6000, 200),
    "linear softmax": (LinearSoftmax(n_features=2, n_actions=3), 2000, 120),
    "linear gaussian": (LinearGaussian(n_features=3, action_dim=2), 800, 300),
    "linear gaussian, fixed": (LinearGaussian(3, 2, sigma=(0.5, 2.0)), 200, 400),
}


@pytest.mark.parametrize(("policy", "n", "repeats"), EFFICIENT.values(), ids=EFFICIENT.keys())
def test_errors_are_as_large_as_the_fisher_information_predicts(
    policy: Policy, n: int, repeats: int
) -> None:
    rng = np.random.default_rng(0)
    d = policy.n_parameters
    theta = 0.5 * rng.normal(size=d)
    if isinstance(policy, TabularSoftmax):
        observations = rng.integers(0, policy.n_states, n)
    else:
        observations = rng.normal(size=(n, getattr(policy, "n_features", 0)))
    fisher = policy.fisher(policy.tensor(theta), policy.prepare_observations(observations))
    statistics = []
    for _ in range(repeats):
        stage = sampled_stage(policy, theta, observations, rng)
        found = clone_stage(stage, policy, PLAIN, start=np.zeros(d), rng=rng)
        assert found.converged
        error = found.parameters - theta
        statistics.append(error @ fisher.matvec(error))
    # (estimate - truth)^T F (estimate - truth) is chi-square with d degrees of freedom.
    assert scipy.stats.kstest(statistics, "chi2", args=(d,)).pvalue > 1e-3
    assert abs(np.mean(statistics) - d) < 4 * np.sqrt(2 * d / repeats)


NETWORKS: dict[str, tuple[Policy, int]] = {
    # Family, effective number of parameters: only the difference of two logits matters, so the
    # two output rows of the categorical network count once.
    "gaussian": (MLPGaussian(1, 1, hidden=(2,), bias=False), 5),
    "categorical": (MLPCategorical(2, 2, hidden=(2,), bias=False), 6),
}


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "effective"), NETWORKS.values(), ids=NETWORKS.keys())
def test_networks_gain_the_likelihood_that_wilks_predicts(policy: Policy, effective: int) -> None:
    rng = np.random.default_rng(1)
    n, repeats = 1000, 50
    theta = np.array([1.5, -0.5, 1.0, -2.0, -0.3, 0.7, 0.4, -0.8])[: policy.n_parameters]
    observations = 1.5 * rng.normal(size=(n, getattr(policy, "observation_dim", 0)))
    fisher = policy.fisher(policy.tensor(theta), policy.prepare_observations(observations))
    singular = np.linalg.eigvalsh(fisher.dense())
    assert (singular > 1e-9 * singular.max()).sum() == effective
    # A gradient of 1e-6 per step costs far less likelihood than the gains compared here.
    config = replace(PLAIN, method="mle", tolerance=1e-6)
    gains = []
    for _ in range(repeats):
        stage = sampled_stage(policy, theta, observations, rng)
        found = clone_stage(stage, policy, config, start=theta, rng=rng)
        prepared = policy.prepare(stage)
        before = float(policy.log_prob(policy.tensor(theta), *prepared).sum())
        gains.append(2 * (found.log_likelihood * n - before))
    assert scipy.stats.kstest(gains, "chi2", args=(effective,)).pvalue > 1e-3
    assert abs(np.mean(gains) - effective) < 4 * np.sqrt(2 * effective / repeats)


@pytest.mark.parametrize(
    "policy",
    [
        TabularSoftmax(5, 3),
        LinearSoftmax(3, 3),
        LinearGaussian(3, 2),
        MLPGaussian(3, 2, hidden=(4,)),
        MLPCategorical(3, 3, hidden=(4,)),
    ],
    ids=lambda policy: type(policy).__name__,
)
@pytest.mark.parametrize("centre", ["zero", "previous"])
def test_the_gradient_vanishes_at_the_clone(policy: Policy, centre: str) -> None:
    rng = np.random.default_rng(2)
    d, n, strength = policy.n_parameters, 200, 2.0
    if isinstance(policy, TabularSoftmax):
        observations = rng.integers(0, 4, n)  # the last state is never visited
    else:
        observations = rng.normal(size=(n, 3))
    stage = sampled_stage(policy, 0.3 * rng.normal(size=d), observations, rng)
    start = 0.2 * rng.normal(size=d)
    config = CloneConfig(
        method="mle", prior_strength=strength, prior_centre=centre, holdout=0, max_iterations=500
    )
    found = clone_stage(stage, policy, config, start=start, rng=rng)
    assert found.converged and found.iterations > 0
    middle = start if centre == "previous" else np.zeros(d)
    gradient = penalised_gradient(policy, found.parameters, stage, strength, middle)
    if isinstance(policy, LinearGaussian):
        gradient = gradient[: policy.n_mean_parameters]  # deviations carry no prior there
    assert np.abs(gradient).max() / n < (1e-8 if policy.convex else 1e-5)
    if isinstance(policy, TabularSoftmax):
        np.testing.assert_allclose(found.parameters[-2:], middle[-2:], atol=1e-12)


@pytest.mark.parametrize("policy", [TabularSoftmax(4, 3), LinearSoftmax(3, 3)])
def test_convex_families_forget_where_they_started(policy: Policy) -> None:
    rng = np.random.default_rng(3)
    observations = (
        rng.integers(0, 4, 300) if isinstance(policy, TabularSoftmax) else rng.normal(size=(300, 3))
    )
    stage = sampled_stage(policy, rng.normal(size=policy.n_parameters), observations, rng)
    config = CloneConfig(holdout=0)
    ends = [
        clone_stage(stage, policy, config, start=start, rng=rng).parameters
        for start in (np.zeros(policy.n_parameters), 8 * rng.normal(size=policy.n_parameters))
    ]
    np.testing.assert_allclose(ends[0], ends[1], atol=1e-6)


# --- closed forms ---------------------------------------------------------------------------


def test_one_state_two_actions_by_hand() -> None:
    policy = TabularSoftmax(n_states=1, n_actions=2)
    stage = Stage.from_episodes([Episode(np.zeros(11, int), np.array([0] * 7 + [1] * 3))])
    plain = clone_stage(stage, policy, PLAIN, start=np.zeros(1), rng=np.random.default_rng(0))
    assert plain.parameters[0] == pytest.approx(np.log(7 / 3), abs=1e-9)
    assert plain.fisher.dense()[0, 0] == pytest.approx(10 * 0.7 * 0.3)
    assert plain.log_likelihood == pytest.approx(0.7 * np.log(0.7) + 0.3 * np.log(0.3))
    # With a prior: 7 - 10 sigmoid(x) = strength * x.
    config = CloneConfig(prior_strength=4.0, holdout=0)
    found = clone_stage(stage, policy, config, start=np.zeros(1), rng=np.random.default_rng(0))
    root = scipy.optimize.brentq(lambda x: 7 - 10 / (1 + np.exp(-x)) - 4 * x, -5, 5, xtol=1e-14)
    assert found.parameters[0] == pytest.approx(root, abs=1e-8)


def test_actions_never_taken_stay_finite_with_a_prior() -> None:
    policy = TabularSoftmax(n_states=1, n_actions=3)
    stage = Stage.from_episodes([Episode(np.zeros(51, int), np.zeros(50, int))])
    found = clone_stage(
        stage, policy, CloneConfig(holdout=0), start=np.zeros(2), rng=np.random.default_rng(0)
    )
    assert found.converged and 1 < found.parameters[0] < 10 and found.parameters[1] < 0


def test_linear_gaussian_is_least_squares() -> None:
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(60, 4)), rng.normal(size=(60, 2))
    stage = Stage(x, y, np.array([60]), np.array([False]))
    expected = np.linalg.lstsq(x, y, rcond=None)[0]
    fitted = clone_stage(stage, LinearGaussian(4, 2), PLAIN, start=np.zeros(10), rng=rng)
    np.testing.assert_allclose(fitted.parameters[:8].reshape(4, 2), expected, atol=1e-10)
    residual = np.sqrt(((y - x @ expected) ** 2).mean(axis=0))
    np.testing.assert_allclose(np.exp(fitted.parameters[8:]), residual, rtol=1e-9)
    sigma, strength, centre = np.array([0.5, 2.0]), 3.0, rng.normal(size=8)
    config = CloneConfig(prior_strength=strength, prior_centre="previous", holdout=0)
    policy = LinearGaussian(4, 2, sigma=tuple(sigma))
    found = clone_stage(stage, policy, config, start=centre, rng=rng)
    for k in range(2):
        matrix = x.T @ x / sigma[k] ** 2 + strength * np.eye(4)
        right = x.T @ y[:, k] / sigma[k] ** 2 + strength * centre.reshape(4, 2)[:, k]
        np.testing.assert_allclose(
            found.parameters.reshape(4, 2)[:, k], np.linalg.solve(matrix, right), atol=1e-10
        )


def test_a_constant_feature_too_many_gives_the_minimum_norm_fit() -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(40, 1)) @ np.ones((1, 2))
    y = x[:, :1] + 0.1 * rng.normal(size=(40, 1))
    stage = Stage(x, y, np.array([40]), np.array([False]))
    found = clone_stage(stage, LinearGaussian(2, 1, sigma=1.0), PLAIN, start=np.zeros(2), rng=rng)
    np.testing.assert_allclose(found.parameters, np.linalg.lstsq(x, y, rcond=None)[0][:, 0])


# --- the authors' few steps -----------------------------------------------------------------


def test_the_adam_option_makes_exactly_three_steps() -> None:
    rng = np.random.default_rng(6)
    policy = TabularSoftmax(n_states=3, n_actions=3)
    stage = sampled_stage(policy, rng.normal(size=6), rng.integers(0, 2, 80), rng)
    start = 0.3 * rng.normal(size=6)
    config = CloneConfig(method="adam", prior_strength=5.0, holdout=0)
    found = clone_stage(stage, policy, config, start=start, rng=rng)
    assert found.iterations == 3

    counts = np.zeros((3, 3))
    np.add.at(counts, (stage.observations, stage.actions), 1)

    def gradient(theta: Any) -> Any:
        """Of mean log-likelihood + .01 entropy, by hand."""
        logits = np.concatenate([theta.reshape(3, 2), np.zeros((3, 1))], axis=1)
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        visits = counts.sum(axis=1, keepdims=True)
        entropy = -(p * np.log(p)).sum(axis=1, keepdims=True)
        total = counts - visits * p - 0.01 * visits * p * (np.log(p) + entropy)
        return total[:, :2].reshape(-1) / 80

    theta, mean, square = start.copy(), np.zeros(6), np.zeros(6)
    for step in (1, 2, 3):
        g = -gradient(theta)
        mean, square = 0.9 * mean + 0.1 * g, 0.999 * square + 0.001 * g**2
        corrected = np.sqrt(square / (1 - 0.999**step)) + 1e-8
        theta = theta - 0.5 * mean / (1 - 0.9**step) / corrected
    np.testing.assert_allclose(found.parameters, theta, atol=1e-10)
    # The state never visited has no gradient and stays where it was.
    np.testing.assert_array_equal(found.parameters[4:], start[4:])


def test_the_adam_option_is_warm_started_along_the_history() -> None:
    rng = np.random.default_rng(7)
    policy = TabularSoftmax(n_states=2, n_actions=2)
    stages = [sampled_stage(policy, [1.0, -1.0], rng.integers(0, 2, 50), rng) for _ in range(3)]
    path = clone(stages, policy, CloneConfig(method=CloneMethod.ADAM))
    theta = np.zeros(2)
    for stage, cloned in zip(stages, path.clones, strict=True):
        theta = clone_stage(stage, policy, path.config, start=theta, rng=rng).parameters
        np.testing.assert_allclose(cloned.parameters, theta)
    assert path.parameters.shape == (3, 2)


@pytest.mark.parametrize("policy", [LinearGaussian(2, 1), MLPGaussian(2, 1, hidden=(3,))])
def test_the_adam_option_runs_for_gaussian_families(policy: Policy) -> None:
    rng = np.random.default_rng(8)
    stage = sampled_stage(
        policy, 0.1 * rng.normal(size=policy.n_parameters), rng.normal(size=(50, 2)), rng
    )
    start = np.zeros(policy.n_parameters)
    found = clone_stage(stage, policy, CloneConfig(method="adam"), start=start, rng=rng)
    # Adam's steps are at most its rate when gradients keep their sign, and barely more otherwise.
    assert 0 < np.abs(found.parameters).max() < 3 * 0.5 * 1.2


# --- held-out fit ---------------------------------------------------------------------------


def test_held_out_episodes_are_scored_by_a_fit_that_did_not_see_them() -> None:
    policy = TabularSoftmax(n_states=4, n_actions=3)
    rng = np.random.default_rng(9)
    stage = sampled_stage(policy, rng.normal(size=8), rng.integers(0, 4, 200), rng, n_episodes=10)
    config = CloneConfig(holdout=0.3)
    found = clone_stage(stage, policy, config, start=np.zeros(8), rng=np.random.default_rng(1))
    order = np.random.default_rng(1).permutation(10)
    rest = clone_stage(
        stage.take(order[3:]), policy, CloneConfig(holdout=0), start=np.zeros(8), rng=rng
    )
    test = policy.prepare(stage.take(order[:3]))
    expected = policy.log_prob(policy.tensor(rest.parameters), *test).mean()
    assert found.held_out == pytest.approx(float(expected), abs=1e-8)
    # The parameters returned are fitted on everything.
    everything = clone_stage(stage, policy, CloneConfig(holdout=0), start=np.zeros(8), rng=rng)
    np.testing.assert_array_equal(found.parameters, everything.parameters)
    assert np.isnan(everything.held_out)


def test_a_single_episode_cannot_be_held_out() -> None:
    policy = TabularSoftmax(n_states=1, n_actions=2)
    stage = Stage.from_episodes([Episode(np.zeros(5, int), np.array([0, 1, 0, 1]))])
    for share in (0.2, 0.9):
        config = CloneConfig(holdout=share)
        found = clone_stage(stage, policy, config, start=np.zeros(1), rng=np.random.default_rng(0))
        assert np.isnan(found.held_out)


# --- errors ---------------------------------------------------------------------------------


def test_errors_name_the_stage() -> None:
    good, bad = ([Episode(np.zeros(3, int), np.array([0, a]))] for a in (1, 5))
    history = LearningHistory.from_episodes([good, bad])
    with pytest.raises(PolicyError, match=r"^stage 1: episode 0, time 1: action 5 is outside"):
        clone(history, TabularSoftmax(1, 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prior_strength": -1.0}, "prior_strength must not be negative: -1.0"),
        ({"prior_centre": "median"}, "'zero' or 'previous': 'median'"),
        ({"holdout": 1.0}, r"holdout must be in \[0, 1\), but is 1.0"),
        (
            {"method": "sgd"},
            "unknown clonemethod 'sgd': choose one of auto, mle, early-stopping, adam",
        ),
    ],
)
def test_malformed_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        CloneConfig(**options)


def test_too_few_iterations_are_admitted() -> None:
    rng = np.random.default_rng(10)
    for policy in (LinearSoftmax(2, 3), MLPCategorical(2, 3, hidden=(4,))):
        stage = sampled_stage(
            policy, rng.normal(size=policy.n_parameters), rng.normal(size=(100, 2)), rng
        )
        config = CloneConfig(max_iterations=1, holdout=0)
        start = 0.1 * rng.normal(size=policy.n_parameters)
        assert not clone_stage(stage, policy, config, start=start, rng=rng).converged


class Cliff(LinearSoftmax):
    """Has no likelihood beyond parameters of 6: a long step ends in NaN."""

    def outputs(self, theta: Any, observations: Any) -> Any:
        return super().outputs(theta, observations) + 0 * torch.sqrt(6 - theta.abs()).sum()


def test_newton_never_steps_where_there_is_no_likelihood() -> None:
    policy = Cliff(n_features=1, n_actions=2)
    stage = Stage(
        np.ones((100, 1)), np.array([0] * 90 + [1] * 10), np.array([100]), np.array([False])
    )
    # Far on the wrong side the curvature is small and Newton's whole step goes to +45.
    start = np.array([-5.0])
    found = clone_stage(stage, policy, PLAIN, start=start, rng=np.random.default_rng(0))
    assert found.converged
    assert found.parameters[0] == pytest.approx(np.log(9), abs=1e-8)


def test_a_search_that_ascends_nowhere_has_not_converged() -> None:
    policy = Cliff(n_features=1, n_actions=2)
    stage = Stage(np.ones((9, 1)), np.zeros(9, int), np.array([9]), np.array([False]))
    # At the edge every step that gains anything leaves what is defined.
    start = np.array([6.0])
    found = clone_stage(stage, policy, PLAIN, start=start, rng=np.random.default_rng(0))
    assert not found.converged and found.parameters[0] == 6.0
    with pytest.raises(PolicyError, match="no likelihood under the policy where cloning starts"):
        clone_stage(stage, policy, PLAIN, start=start + 1, rng=np.random.default_rng(0))


def test_offsets_in_the_features_cost_no_digits() -> None:
    rng = np.random.default_rng(0)
    x = np.stack([np.ones(500), 1e6 + rng.standard_normal(500)], axis=1)
    y = x @ np.array([-7e5, 0.7]) + 0.1 * rng.standard_normal(500)
    stage = Stage(x, y[:, None], np.array([500]), np.array([False]))
    policy = LinearGaussian(n_features=2, action_dim=1, sigma=0.1)
    config = CloneConfig(prior_strength=0.0, holdout=0.0)
    found = clone([stage], policy, config).parameters[0]
    np.testing.assert_allclose(found, np.linalg.lstsq(x, y, rcond=None)[0], rtol=1e-6)


# --- networks and early stopping -----------------------------------------------------------------


def network_stage(policy: MLPGaussian | MLPCategorical, seed: int) -> tuple[Stage, Any]:
    rng = np.random.default_rng(seed)
    theta = policy.initial(rng)
    # A last layer large enough that the policy depends on the state.
    theta = theta + 0.3 * rng.standard_normal(len(theta))
    return sampled_stage(policy, theta, rng.normal(size=(8000, 3)), rng, n_episodes=40), theta


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy", [MLPGaussian(3, 2, hidden=(16,)), MLPCategorical(3, 4, hidden=(16,))]
)
def test_early_stopping_predicts_as_well_as_the_truth(policy: MLPGaussian | MLPCategorical) -> None:
    stage, truth = network_stage(policy, 0)
    config = CloneConfig(method="early-stopping")
    found = clone([stage], policy, config, rng=np.random.default_rng(1)).clones[0]
    again = clone([stage], policy, config, rng=np.random.default_rng(1)).clones[0]
    np.testing.assert_array_equal(found.parameters, again.parameters)
    fresh = np.random.default_rng(2)
    new = sampled_stage(policy, truth, fresh.normal(size=(20_000, 3)), fresh)
    tensors = policy.prepare(new)
    best, reached = (
        float(policy.log_prob(policy.tensor(theta), *tensors).mean())
        for theta in (truth, found.parameters)
    )
    # Efficient estimates lose d / 2n per step, here .006; early stopping may lose a little more.
    assert best - reached < 2.5 * policy.n_parameters / (2 * 8000)
    assert found.converged and abs(found.held_out - best) < 0.1


def test_auto_takes_early_stopping_for_networks_only() -> None:
    network = MLPGaussian(3, 2, hidden=(4,))
    stage, _ = network_stage(network, 0)
    assert stops_early(network, stage, CloneConfig())
    assert stops_early(network, stage.take(np.arange(3)), CloneConfig())
    assert not stops_early(network, stage, CloneConfig(method="mle"))
    assert not stops_early(LinearGaussian(3, 2), stage, CloneConfig())
    # Seven parameters on 600 steps are safe: maximum likelihood is as good as it gets.
    assert not stops_early(MLPGaussian(3, 1, (1,)), stage.take(np.arange(3)), CloneConfig())
    step = Stage(stage.observations[:1], stage.actions[:1], np.array([1]), np.array([False]))
    assert not stops_early(network, step, CloneConfig())
    with pytest.raises(HistoryError, match="at least two steps"):
        stops_early(network, step, CloneConfig(method="early-stopping"))
    with pytest.raises(PolicyError, match="tables are cloned exactly"):
        stops_early(TabularSoftmax(2, 2), stage, CloneConfig(method="early-stopping"))


@pytest.mark.parametrize("n_episodes", [10, 1], ids=["episodes", "one episode"])
def test_networks_do_not_learn_small_stages_by_heart(n_episodes: int) -> None:
    # 1,600 parameters on 300 steps: maximum likelihood explains the noise, slowly.
    policy = MLPGaussian(4, 2, hidden=(32, 32))
    rng = np.random.default_rng(0)
    truth = policy.initial(rng) + 0.2 * rng.standard_normal(policy.n_parameters)
    stages = [
        sampled_stage(policy, truth, rng.normal(size=(300, 4)), rng, n_episodes=n_episodes)
        for _ in range(3)
    ]
    new = policy.prepare(sampled_stage(policy, truth, rng.normal(size=(5000, 4)), rng))

    def cloned(method: str) -> tuple[ClonedPath, float, float]:
        start = time.process_time()
        path = clone(stages, policy, CloneConfig(method=method), rng=np.random.default_rng(1))
        seconds = time.process_time() - start
        fits = [policy.log_prob(policy.tensor(theta), *new).mean() for theta in path.parameters]
        return path, seconds, float(torch.stack(fits).min())

    auto, seconds, worst = cloned("auto")
    mle, slow, memorised = cloned("mle")
    best = float(policy.log_prob(policy.tensor(truth), *new).mean())
    assert all(found.converged for found in auto.clones)
    assert not any(found.converged for found in mle.clones)
    # As good as a policy that has learnt little; the other one is far worse than none at all.
    assert best - worst < 0.7 < 2 < best - memorised
    assert all(abs(found.held_out - worst) < 0.6 for found in auto.clones)
    assert seconds < slow / 2


def test_mean_scores_are_those_of_the_likelihood() -> None:
    for policy in (MLPGaussian(3, 2, hidden=(5,), sigma=0.7), MLPCategorical(3, 4, hidden=(5,))):
        stage, truth = network_stage(policy, 0)
        theta, rows = policy.tensor(truth), policy.prepare(stage)
        general = Policy.mean_score(policy, theta, *rows)  # by automatic differentiation
        torch.testing.assert_close(policy.mean_score(theta, *rows), general)
        # In single precision as well, whatever the family is told of its deviations.
        acted = rows[1].float() if rows[1].is_floating_point() else rows[1]
        single = policy.mean_score(theta.float(), rows[0].float(), acted)
        assert single.dtype == torch.float32
        torch.testing.assert_close(single.double(), general, atol=1e-5, rtol=1e-4)


def test_short_stages_of_networks_cost_no_more_than_long_ones() -> None:
    network = MLPGaussian(3, 2, hidden=(16,))
    updates = []
    for n in (1000, 16_000):
        rng = np.random.default_rng(3)
        truth = network.initial(rng) + 0.3 * rng.standard_normal(network.n_parameters)
        stages = []
        for _ in range(4):
            truth = truth + 0.02 * rng.standard_normal(network.n_parameters)
            seen = rng.normal(size=(n, 3))
            stages.append(sampled_stage(network, truth, seen, rng, n_episodes=10))
        path = clone(stages, network, rng=np.random.default_rng(4))
        updates.append(sum(found.iterations for found in path.clones[1:]))
    assert updates[0] <= 1.5 * updates[1]


def test_early_stopping_always_leaves_an_episode_to_learn_from() -> None:
    network = MLPGaussian(3, 2, hidden=(4,))
    stage = network_stage(network, 0)[0].take(np.arange(2))
    config = CloneConfig(method="early-stopping", holdout=0.9, max_iterations=2)
    assert np.isfinite(clone([stage], network, config).clones[0].held_out)


@pytest.mark.parametrize("method", [CloneMethod.AUTO, CloneMethod.ADAM])
def test_what_a_stage_starts_at_is_there_and_little_is_kept(method: CloneMethod) -> None:
    config = CloneConfig(method=method)
    kept, depth = {0}, {0: 0}
    assert parent(0, config) is None
    for t in range(1, 300):
        start = parent(t, config)
        assert start in kept
        depth[t] = depth[start] + 1
        needed = set(still_needed(t, config))
        assert needed <= kept | {t}
        kept = needed
        assert len(kept) <= 8
    if method is CloneMethod.AUTO:
        assert max(depth.values()) <= 3 + np.log2(300 / 4)
    else:
        assert [parent(t, config) for t in range(1, 5)] == [0, 1, 2, 3]
