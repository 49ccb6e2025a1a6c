"""Policy families: proper distributions, exact scores, and the Fisher information they imply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from logel.data.stage import Episode, Stage
from logel.envs.tabular import softmax_policy
from logel.errors import OptionError, PolicyError
from logel.policies.base import Policy
from logel.policies.cloned_path import clone
from logel.policies.cloning import CloneConfig
from logel.policies.fisher import BlockFisher, DenseFisher, Fisher, ProductFisher
from logel.policies.gaussian import GaussianPolicy, LinearGaussian
from logel.policies.networks import MLPCategorical, MLPGaussian
from logel.policies.softmax import LinearSoftmax, SoftmaxPolicy, TabularSoftmax
from logel.rules.functions import Basis, basis_rows
from logel.worlds.critic import ScaleSums
from logel.worlds.pooled import sampled_world


def polynomial(observations: Any) -> Any:
    return np.concatenate([np.ones((len(observations), 1)), observations, observations**2], axis=1)


SOFTMAX: dict[str, SoftmaxPolicy] = {
    "tabular": TabularSoftmax(n_states=4, n_actions=3),
    "tabular, two actions": TabularSoftmax(n_states=3, n_actions=2),
    "linear": LinearSoftmax(n_features=3, n_actions=4),
    "linear, mapped": LinearSoftmax(n_features=5, n_actions=3, feature_map=polynomial),
    "network": MLPCategorical(observation_dim=3, n_actions=3, hidden=(5, 4)),
    "network, no bias": MLPCategorical(observation_dim=3, n_actions=2, hidden=(4,), bias=False),
}
GAUSSIAN: dict[str, GaussianPolicy] = {
    "linear gaussian": LinearGaussian(n_features=3, action_dim=2),
    "linear gaussian, fixed": LinearGaussian(n_features=3, action_dim=2, sigma=(0.5, 2.0)),
    "linear gaussian, mapped": LinearGaussian(5, 1, sigma=0.7, feature_map=polynomial),
    "network gaussian": MLPGaussian(observation_dim=3, action_dim=2, hidden=(5, 4)),
    "network gaussian, fixed": MLPGaussian(3, 2, hidden=(4,), sigma=0.5, bias=False),
}
FAMILIES: dict[str, Policy] = {**SOFTMAX, **GAUSSIAN}
every_family = pytest.mark.parametrize("policy", FAMILIES.values(), ids=FAMILIES.keys())
every_softmax = pytest.mark.parametrize("policy", SOFTMAX.values(), ids=SOFTMAX.keys())
every_gaussian = pytest.mark.parametrize("policy", GAUSSIAN.values(), ids=GAUSSIAN.keys())


def case(policy: Policy, n: int, seed: int = 0) -> tuple[Any, Any, np.random.Generator]:
    """Random parameters and observations of the family."""
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=policy.n_parameters) * 0.7
    if isinstance(policy, TabularSoftmax):
        return theta, rng.integers(0, policy.n_states, n), rng
    width = getattr(policy, "observation_dim", None) or getattr(policy, "n_features", 0)
    if getattr(policy, "feature_map", None) is polynomial:
        width = (width - 1) // 2
    return theta, rng.normal(size=(n, width)), rng


def tensors(policy: Policy, n: int = 40, seed: int = 0) -> tuple[Any, Any, Any]:
    theta, observations, rng = case(policy, n, seed)
    actions = policy.sample(theta, observations, rng)
    return (
        policy.tensor(theta),
        policy.prepare_observations(observations),
        policy.prepare_actions(actions),
    )


def relative_difference(one: Any, two: Any) -> float:
    return float(np.abs(np.asarray(one) - np.asarray(two)).max() / np.abs(np.asarray(two)).max())


# --- distributions --------------------------------------------------------------------------


@every_softmax
def test_probabilities_sum_to_one(policy: SoftmaxPolicy) -> None:
    theta, observations, _ = case(policy, 20)
    prepared = policy.prepare_observations(observations)
    total = torch.zeros(20, dtype=torch.float64)
    table = policy.probabilities(theta, observations)
    for action in range(policy.n_actions):
        actions = policy.prepare_actions(np.full(20, action))
        probability = policy.log_prob(policy.tensor(theta), prepared, actions).exp()
        np.testing.assert_allclose(probability, table[:, action], rtol=1e-12)
        total += probability
    np.testing.assert_allclose(total, 1.0, rtol=1e-12)


@every_gaussian
def test_densities_are_those_of_scipy(policy: GaussianPolicy) -> None:
    theta, observations, actions = tensors(policy)
    means, log_std = policy.outputs(theta, observations).chunk(2, dim=1)
    expected = scipy.stats.norm.logpdf(actions, means, log_std.exp()).sum(axis=1)
    np.testing.assert_allclose(policy.log_prob(theta, observations, actions), expected, rtol=1e-10)


def test_a_density_integrates_to_one() -> None:
    policy = MLPGaussian(3, 1, hidden=(4,))
    theta, observations, _ = tensors(policy, 1)
    grid = np.linspace(-40, 40, 8001)
    density = policy.log_prob(
        theta, observations.expand(len(grid), -1), policy.prepare_actions(grid)
    ).exp()
    assert np.trapezoid(density, grid) == pytest.approx(1.0, abs=1e-9)


@every_softmax
def test_sampling_frequencies(policy: SoftmaxPolicy) -> None:
    theta, observations, rng = case(policy, 3)
    n = 20_000
    probabilities = policy.probabilities(theta, observations)
    drawn = policy.sample(theta, np.repeat(observations, n, axis=0), rng).reshape(3, n)
    for row, p in zip(drawn, probabilities, strict=True):
        counts = np.bincount(row, minlength=policy.n_actions)
        assert scipy.stats.chisquare(counts, p * n).pvalue > 1e-3


def test_impossible_actions_are_never_sampled() -> None:
    policy = TabularSoftmax(n_states=1, n_actions=3)
    drawn = policy.sample([-1e4, 0.0], np.zeros(5000, dtype=int), np.random.default_rng(0))
    assert set(drawn.tolist()) == {1, 2}
    assert np.isfinite(policy.probabilities([1e4, -1e4], np.array([0]))).all()


@every_gaussian
def test_sampled_moments(policy: GaussianPolicy) -> None:
    theta, observations, rng = case(policy, 2)
    n = 20_000
    outputs = policy.outputs(policy.tensor(theta), policy.prepare_observations(observations))
    means, log_std = (part.numpy() for part in outputs.chunk(2, dim=1))
    drawn = policy.sample(theta, np.repeat(observations, n, axis=0), rng)
    scaled = (drawn.reshape(2, n, -1) - means[:, None]) / np.exp(log_std)[:, None]
    for column in scaled.transpose(0, 2, 1).reshape(-1, n):
        assert scipy.stats.kstest(column, "norm").pvalue > 1e-3


@every_family
def test_the_same_generator_gives_the_same_actions(policy: Policy) -> None:
    theta, observations, _ = case(policy, 50)
    one, two = (policy.sample(theta, observations, np.random.default_rng(3)) for _ in range(2))
    np.testing.assert_array_equal(one, two)


# --- derivatives ----------------------------------------------------------------------------


@every_family
def test_scores_are_the_gradients_of_log_prob(policy: Policy) -> None:
    theta, observations, actions = tensors(policy)
    exact = torch.func.jacrev(policy.log_prob)(theta, observations, actions)
    scores = policy.scores(theta, observations, actions)
    assert scores.shape == (40, policy.n_parameters)
    assert relative_difference(scores, exact) < 1e-12
    # The generic implementation that new families inherit says the same.
    assert relative_difference(Policy.scores(policy, theta, observations, actions), exact) < 1e-12


@every_family
def test_scores_agree_with_finite_differences(policy: Policy) -> None:
    theta, observations, actions = tensors(policy, 6)
    columns = []
    for j in range(policy.n_parameters):
        shift = torch.zeros_like(theta)
        shift[j] = 1e-5
        high = policy.log_prob(theta + shift, observations, actions)
        low = policy.log_prob(theta - shift, observations, actions)
        columns.append((high - low) / 2e-5)
    numeric = torch.stack(columns, dim=1)
    assert relative_difference(policy.scores(theta, observations, actions), numeric) < 1e-7


@every_family
def test_vjp_is_scores_times_cotangents(policy: Policy) -> None:
    theta, observations, actions = tensors(policy)
    cotangents = policy.tensor(np.random.default_rng(1).normal(size=(40, 3)))
    expected = policy.scores(theta, observations, actions).T @ cotangents
    assert relative_difference(policy.vjp(theta, observations, actions, cotangents), expected) < (
        1e-12
    )
    generic = Policy.vjp(policy, theta, observations, actions, cotangents)
    assert relative_difference(generic, expected) < 1e-12


# --- Fisher information ---------------------------------------------------------------------


@every_softmax
def test_fisher_is_the_exact_covariance_of_scores(policy: SoftmaxPolicy) -> None:
    theta, observations, _ = tensors(policy, 15)
    expected = np.zeros((policy.n_parameters,) * 2)
    p = torch.softmax(policy.outputs(theta, observations), dim=-1)
    for action in range(policy.n_actions):
        scores = policy.scores(theta, observations, torch.full((15,), action))
        expected += (scores.T @ (p[:, action, None] * scores)).numpy()
    assert relative_difference(policy.fisher(theta, observations).dense(), expected) < 1e-11


@every_family
def test_fisher_matches_the_sampled_covariance_of_scores(policy: Policy) -> None:
    theta, observations, rng = case(policy, 4)
    n = 10_000
    repeated = np.repeat(observations, n, axis=0)
    actions = policy.sample(theta, repeated, rng)
    scores = policy.scores(
        policy.tensor(theta),
        policy.prepare_observations(repeated),
        policy.prepare_actions(actions),
    ).numpy()
    found, variance = np.zeros((2, policy.n_parameters, policy.n_parameters))
    for rows in scores.reshape(4, n, -1):
        mean = rows.T @ rows / n
        found += mean
        variance += ((rows**2).T @ rows**2 / n - mean**2) / n
    exact = policy.fisher(policy.tensor(theta), policy.prepare_observations(observations)).dense()
    # Up to 56 x 56 entries are compared at once: 5 standard errors.
    assert (np.abs(found - exact) <= 5 * np.sqrt(np.clip(variance, 0, None)) + 1e-10).all()


@every_family
def test_all_forms_of_the_fisher_information_agree(policy: Policy) -> None:
    theta, observations, _ = tensors(policy, 30)
    counts = policy.tensor(np.random.default_rng(2).integers(0, 4, 30))
    repeated = observations[torch.repeat_interleave(torch.arange(30), counts.long())]
    own = policy.fisher(theta, observations, counts)
    matrix = own.dense()
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
    assert np.linalg.eigvalsh(matrix).min() > -1e-10
    for other in (
        policy.fisher(theta, repeated),
        Policy.fisher(policy, theta, observations, counts),
    ):
        assert relative_difference(other.dense(), matrix) < 1e-11
        assert relative_difference(other.diagonal(), np.diagonal(matrix)) < 1e-11
    vectors = np.random.default_rng(3).normal(size=(policy.n_parameters, 2))
    assert relative_difference(own.matvec(vectors), matrix @ vectors) < 1e-11
    assert relative_difference(own.matvec(vectors[:, 0]), matrix @ vectors[:, 0]) < 1e-11
    assert relative_difference(own.diagonal(), np.diagonal(matrix)) < 1e-11
    regular = matrix + 0.3 * np.eye(len(matrix))
    for right in (vectors, vectors[:, 0]):
        assert relative_difference(own.solve(right, ridge=0.3), np.linalg.solve(regular, right)) < (
            1e-6
        )


matrices = hnp.arrays(
    float, (2, 3, 3), elements=st.floats(-3, 3, allow_nan=False, allow_subnormal=False)
)


@given(matrices, st.floats(0.01, 10))
def test_fisher_solvers_agree_on_any_matrix(roots: Any, ridge: float) -> None:
    blocks = roots @ roots.transpose(0, 2, 1)
    dense = np.zeros((6, 6))
    dense[:3, :3], dense[3:, 3:] = blocks
    right = np.arange(1.0, 7.0)
    expected = np.linalg.solve(dense + ridge * np.eye(6), right)
    forms: list[Fisher] = [
        BlockFisher(blocks),
        DenseFisher(dense),
        ProductFisher(6, lambda v: dense @ v, lambda _: np.diagonal(dense).copy()),
    ]
    for form in forms:
        np.testing.assert_allclose(form.solve(right, ridge=ridge), expected, atol=1e-5)
        np.testing.assert_allclose(form.dense(), dense, atol=1e-12)


def test_singular_information_gives_the_minimum_norm_solution() -> None:
    # A state never visited: nothing is known about its parameters.
    policy = TabularSoftmax(n_states=2, n_actions=3)
    theta = policy.tensor(np.zeros(4))
    fisher = policy.fisher(theta, torch.zeros(9, dtype=torch.int64))
    np.testing.assert_array_equal(fisher.solve(np.ones(4))[2:], 0.0)
    np.testing.assert_allclose(
        fisher.solve(np.ones(4)), np.linalg.pinv(fisher.dense()) @ np.ones(4), atol=1e-12
    )
    rank_one = np.outer([1.0, 2.0], [1.0, 2.0])
    np.testing.assert_allclose(
        DenseFisher(rank_one).solve(np.array([1.0, 2.0])), [0.2, 0.4], atol=1e-12
    )


def product_form(matrix: Any) -> ProductFisher:
    return ProductFisher(len(matrix), lambda v: matrix @ v, lambda _: np.diagonal(matrix).copy())


def test_products_that_are_not_enough_give_the_minimum_norm_solution() -> None:
    root = np.random.default_rng(0).normal(size=(6, 3))
    matrix, right = root @ root.T, np.arange(1.0, 7.0)
    # What the information knows nothing about keeps conjugate gradients from converging.
    found = product_form(matrix).solve(right)
    np.testing.assert_allclose(found, np.linalg.pinv(matrix, rcond=1e-10) @ right, rtol=1e-8)
    two = product_form(matrix).solve(np.stack([right, -right], axis=1))
    np.testing.assert_allclose(two, np.stack([found, -found], axis=1), rtol=1e-8)


def test_information_that_cannot_be_solved_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PolicyError, match="do not tell the policy's 2 parameters apart"):
        product_form(np.full((2, 2), np.nan)).solve(np.ones(2))
    monkeypatch.setattr("logel.policies.fisher._LARGEST_DENSE", 1)
    with pytest.raises(PolicyError, match="larger prior_strength"):
        product_form(np.ones((2, 2))).solve(np.array([1.0, 2.0]))


# --- what families say of themselves ----------------------------------------------------------


@dataclass(frozen=True)
class Bumps(SoftmaxPolicy):
    """A new family, as short as the module's description promises: one bump per action."""

    n_actions: int

    @property
    def n_parameters(self) -> int:
        return self.n_actions

    def prepare_observations(self, observations: Any) -> Any:
        return self.tensor(observations).reshape(len(observations), 1)

    def outputs(self, theta: Any, observations: Any) -> Any:
        return -((observations - theta) ** 2)


@dataclass(frozen=True)
class Sine(GaussianPolicy):
    """Another: the mean is a sine of unknown phase."""

    action_dim: int = 1
    sigma: float | None = None

    @property
    def n_mean_parameters(self) -> int:
        return 1

    def prepare_observations(self, observations: Any) -> Any:
        return self.tensor(observations).reshape(len(observations), 1)

    def means(self, theta: Any, observations: Any) -> Any:
        return torch.sin(observations + theta)


@pytest.mark.parametrize("policy", [Bumps(3), Sine()], ids=["softmax", "gaussian"])
def test_a_new_family_is_served_everywhere(policy: Policy) -> None:
    rng = np.random.default_rng(0)
    path = np.linspace(-0.4, 0.4, 2 * policy.n_parameters).reshape(2, -1)
    observations = 1.5 * rng.normal(size=(600, 1))
    stages = [
        Stage(
            observations,
            policy.sample(theta, observations, rng),
            np.full(30, 20),
            np.ones(30, dtype=bool),
            features=np.ones((600, 1)),
        )
        for theta in path
    ]
    cloned = clone(stages, policy)
    assert all(found.converged for found in cloned.clones)
    np.testing.assert_allclose(cloned.parameters, path, atol=0.25)
    few = clone(stages, policy, CloneConfig(method="adam"))
    assert np.isfinite(few.parameters).all()
    world = sampled_world(stages, policy, gamma=0.9).at(path)
    assert policy.worlds == ("critic",) and world.anchored is not None
    assert np.isfinite(world.anchored.design).all()
    scale = ScaleSums()
    scale.add(stages[0])
    basis = Basis.choose(policy, "auto", scale.scale(), deviations=True)
    rows = basis_rows(basis, path[0], path[1], observations, stages[0].actions)
    assert basis.states == "linear" and rows.values.shape == (600, basis.width)
    assert np.linalg.eigvalsh(rows.gram).min() > 0 and np.isfinite(rows.movement).all()


def test_families_say_where_they_can_be_seen() -> None:
    assert FAMILIES["tabular"].worlds == ("table",) and FAMILIES["tabular"].tabular
    assert FAMILIES["linear"].worlds == ("distinct", "critic")
    assert FAMILIES["network"].worlds == FAMILIES["linear gaussian"].worlds == ("critic",)
    assert LinearGaussian(2, 4).worlds == ()
    assert [f.n_state_features for f in FAMILIES.values()] == [4, 3, 3, 5] + 2 * [None] + [
        3, 3, 5, None, None
    ]  # fmt: skip


@every_family
def test_outputs_are_linear_in_the_state_features(policy: Policy) -> None:
    if policy.n_state_features is None:
        return
    theta, observations, _ = case(policy, 8)
    features = policy.state_features(observations)
    assert features.shape == (8, policy.n_state_features)
    outputs = policy.outputs(policy.tensor(theta), policy.prepare_observations(observations))
    k = policy.n_scores
    slopes = theta[: policy.n_state_features * k].reshape(-1, k)
    np.testing.assert_allclose(outputs[:, :k], features @ slopes, atol=1e-12)


@every_family
def test_nodes_have_the_moments_of_the_policy(policy: Policy) -> None:
    theta, observations, _ = tensors(policy, 7)
    outputs = policy.outputs(theta, observations)
    parts = [(w[:, None], policy.action_numbers(a)) for w, a in policy.nodes(outputs)]
    mean, deviation = policy.action_moments(outputs)
    np.testing.assert_allclose(sum(w * a for w, a in parts), mean, atol=1e-12)
    np.testing.assert_allclose(sum(w * (a - mean) ** 2 for w, a in parts), deviation**2, atol=1e-12)


# --- layouts and relations ------------------------------------------------------------------


def test_tabular_is_linear_on_one_hot_states() -> None:
    tabular = TabularSoftmax(n_states=4, n_actions=3)
    linear = LinearSoftmax(4, 3, feature_map=lambda s: np.eye(4)[s])
    theta, states, rng = case(tabular, 60)
    actions = tabular.sample(theta, states, rng)
    cotangents = tabular.tensor(rng.normal(size=(60, 2)))
    left, right = (
        (p.tensor(theta), p.prepare_observations(states), p.prepare_actions(actions))
        for p in (tabular, linear)
    )
    np.testing.assert_allclose(tabular.log_prob(*left), linear.log_prob(*right), rtol=1e-12)
    np.testing.assert_allclose(tabular.scores(*left), linear.scores(*right), atol=1e-12)
    np.testing.assert_allclose(
        tabular.vjp(*left, cotangents), linear.vjp(*right, cotangents), atol=1e-12
    )
    np.testing.assert_allclose(
        tabular.fisher(*left[:2]).dense(), linear.fisher(*right[:2]).dense(), atol=1e-12
    )


def test_tabular_layout_is_state_major_with_the_last_logit_zero() -> None:
    policy = TabularSoftmax(n_states=2, n_actions=3)
    assert policy.n_parameters == 4
    table = policy.table(policy.tensor([1.0, 2.0, 3.0, 4.0]))
    np.testing.assert_array_equal(table, [[1, 2, 0], [3, 4, 0]])
    theta = np.random.default_rng(0).normal(size=4)
    np.testing.assert_allclose(
        policy.probabilities(theta, np.array([0, 1])),
        softmax_policy(theta, n_states=2, n_actions=3),
        rtol=1e-12,
    )


def test_network_by_hand() -> None:
    # One hidden unit: logits = w2 tanh(w1 . x + b1) + b2, weights before bias, layer by layer.
    policy = MLPCategorical(observation_dim=2, n_actions=2, hidden=(1,))
    theta = np.array([0.5, -1.0, 0.25, 2.0, -3.0, 0.1, 0.2])
    inner = np.tanh(0.5 * 3 - 1.0 * 2 + 0.25)
    logits = np.array([2.0 * inner + 0.1, -3.0 * inner + 0.2])
    found = policy.outputs(policy.tensor(theta), policy.tensor([[3.0, 2.0]]))
    np.testing.assert_allclose(found[0], logits, rtol=1e-14)
    assert MLPGaussian(17, 6).n_parameters == 17 * 64 + 64 + 64 * 64 + 64 + 64 * 6 + 6 + 6


def test_deviations_come_after_the_means() -> None:
    policy, fixed = GAUSSIAN["linear gaussian"], GAUSSIAN["linear gaussian, fixed"]
    assert (policy.n_mean_parameters, policy.n_parameters, fixed.n_parameters) == (6, 8, 6)
    np.testing.assert_array_equal(policy.log_std(policy.tensor(np.arange(8.0))), [6, 7])
    np.testing.assert_allclose(fixed.log_std(fixed.tensor(np.zeros(6))), np.log([0.5, 2.0]))


@pytest.mark.parametrize("name", ["network", "network gaussian"])
def test_networks_start_near_a_constant_policy(name: str) -> None:
    policy: Any = FAMILIES[name]
    theta = policy.initial(np.random.default_rng(0))
    outputs = policy.outputs(policy.tensor(theta), policy.tensor(case(policy, 100)[1]))
    assert theta.shape == (policy.n_parameters,)
    assert float(outputs.abs().max()) < 0.1


# --- errors ---------------------------------------------------------------------------------


def stage(*episodes: tuple[Any, Any]) -> Stage:
    return Stage.from_episodes([Episode(np.asarray(o), np.asarray(a)) for o, a in episodes])


@pytest.mark.parametrize("value", [3, -1, 100])
def test_an_action_out_of_range_is_located(value: int) -> None:
    data = stage(([0, 1, 2], [0, 1]), ([0, 1, 2, 3], [2, 1, value]))
    for policy in (TabularSoftmax(4, 3), LinearSoftmax(1, 3)):
        with pytest.raises(
            PolicyError, match=rf"episode 1, time 2: action {value} is outside 0\.\.2"
        ):
            policy.prepare(data)


@pytest.mark.parametrize("value", [4, -1])
def test_a_state_out_of_range_is_located(value: int) -> None:
    data = stage(([0], [0]), ([0, value], [2, 1]), ([0], [0]))
    with pytest.raises(PolicyError, match=rf"episode 1, time 1: state {value} is outside 0\.\.3"):
        TabularSoftmax(4, 3).prepare(data)


@pytest.mark.parametrize(
    ("policy", "data", "message"),
    [
        (TabularSoftmax(4, 3), ([0.0], [0]), "one integer state per time"),
        (TabularSoftmax(4, 3), ([[0, 1]], [0]), r"observations have shape \(2,\)"),
        (TabularSoftmax(4, 3), ([0], [0.5]), "TabularSoftmax needs discrete actions, not cont"),
        (LinearGaussian(1, 1), ([0.0], [1]), "LinearGaussian needs continuous actions, not disc"),
        (LinearSoftmax(1, 3), ([0.0], [[0, 1]]), r"must be flat, but have shape \(1, 2\)"),
        (LinearSoftmax(2, 3), ([[0.0]], [0]), "2 state features, but its feature map gives 1"),
        (LinearGaussian(1, 2), ([0.0], [[0.5]]), "2 action dimensions, the data 1"),
        (MLPGaussian(2, 1), ([[0.0]], [0.5]), "observations of 2 numbers, but the data have 1"),
        (MLPCategorical(2, 3), ([[0.0]], [0]), "observations of 2 numbers, but the data have 1"),
    ],
)
def test_data_that_do_not_fit_are_refused(policy: Policy, data: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        policy.prepare(stage(data))


def test_network_widths_are_checked() -> None:
    for hidden in ((0,), (2.5,), (-1, 3)):
        with pytest.raises(OptionError, match="positive whole widths"):
            MLPGaussian(2, 1, hidden=hidden)  # type: ignore[arg-type]
