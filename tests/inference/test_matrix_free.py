"""Rounds in products and by values against dense ones, and estimates against what is exact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logel import Episode
from logel.data.history import LearningHistory
from logel.envs.gridworld import GridMap, grid_weights, gridworld_mdp
from logel.inference import choose, dense, matrix_free, rounds
from logel.inference.by_values import ByValues
from logel.inference.chains import Chains
from logel.inference.infer import infer_reward
from logel.inference.known_path import fit_known_path
from logel.inference.method import Method
from logel.inference.rounds import Variances
from logel.inference.smooth import expected_covariance, fit_path, fit_random_walk
from logel.learners.tabular import SoftValueIteration, observe
from logel.policies.softmax import TabularSoftmax
from logel.rules.catalogue import RULES
from logel.rules.rule import RandomWalk, Rule
from logel.rules.values import DriftingValues
from logel.worlds.base import World
from logel.worlds.expectation import Expectation
from logel.worlds.legal import LegalWorld, Slots
from logel.worlds.table import TabularWorld

TABULAR = [RULES[name] for name in (*TabularWorld.offers, "adam")]
ALL = [RandomWalk, DriftingValues, *TABULAR]
FORGETFUL = [kind for kind in TABULAR if kind.forgets]
VARIANCES = Variances(noise=0.05, start=0.1, scale=1.0)
# Sizes up to which things are done that way: in matrices, in products, and by values.
ALGEBRAS = (
    {"MOST_VALUES": 0, "LARGEST_DENSE": 150},
    {"MOST_VALUES": 0, "LARGEST_DENSE": 1},
    {"MOST_VALUES": 250, "LARGEST_DENSE": 1},
)


def local_world(rng: Any, *, n_states: int, n_stages: int, floor: float = 0.02) -> TabularWorld:
    """Actions lead to three states, and with little probability anywhere."""
    transitions = np.full((n_states, 3, n_states), floor / n_states)
    for state in range(n_states):
        for action in range(3):
            followers = rng.choice(n_states, size=3, replace=False)
            transitions[state, action, followers] += rng.dirichlet(np.ones(3)) * (0.97 - floor)
    return TabularWorld(
        transitions=transitions,
        features=rng.normal(size=(n_states, 3, 2)),
        initial=np.full(n_states, 1 / n_states),
        gamma=0.8,
        horizon=8,
        counts=rng.integers(0, 9, (n_stages, n_states, 3)).astype(float),
        episode_sums=tuple(rng.normal(size=(5, n_states, 3, 2)) for _ in range(n_stages)),
    )


def point(model: Rule, rng: Any) -> tuple[Any, Any, Any, Any]:
    """A path, parameters, and their prior's mean and variances."""
    q = model.n_features
    middle = np.concatenate([np.zeros(q), model.nuisance_mean])
    prior = np.concatenate([np.full(q, VARIANCES.scale), model.nuisance_variance])
    states = 0.3 * rng.normal(size=(model.n_stages, model.state_dim))
    return states, middle + 0.3 * np.sqrt(prior) * rng.normal(size=len(prior)), middle, prior


def legal_only(world: TabularWorld, legal: Any) -> LegalWorld:
    """The same world, in which not all actions are legal."""
    slots = Slots.of(legal)
    free = np.flatnonzero(slots.legal[:, :-1])
    return LegalWorld(slots.table(world), free, np.flatnonzero(slots.legal))


# --- what rules say in products -------------------------------------------------------------


@pytest.mark.parametrize("n_states", [5, 70], ids=["dense table", "sparse table"])
@pytest.mark.parametrize("kind", ALL, ids=lambda k: k.name)
def test_products_say_what_matrices_say(kind: type[Rule], n_states: int) -> None:
    rng = np.random.default_rng(0)
    world = local_world(rng, n_states=n_states, n_stages=4)
    assert world.expectation.is_sparse == (n_states == 70)
    model = kind(world)
    states, parameters, _, _ = point(model, rng)
    wanted = model.predict(states[:-1], parameters)
    found = model.linearised(states[:-1], parameters)
    np.testing.assert_allclose(found.following, wanted.following, atol=1e-12)
    np.testing.assert_allclose(found.design, wanted.design, atol=1e-12)
    d, width = model.state_dim, model.block_width
    columns = rng.normal(size=(d, 4))
    grouped = columns.reshape(-1, width, 4)
    for t in range(3):
        for product, matrix in (
            (found.transition.times, wanted.transition[t]),
            (found.transition.transposed, wanted.transition[t].T),
            (found.noise.times, wanted.shape[t]),
        ):
            np.testing.assert_allclose(
                product(t, grouped).reshape(d, 4), matrix @ columns, rtol=1e-6, atol=1e-6
            )
    errors = rng.normal(size=states[:-1].shape)
    solved = np.linalg.solve(wanted.shape, errors[..., None])
    np.testing.assert_allclose(found.noise.solve(errors[..., None]), solved, rtol=1e-6, atol=1e-6)
    assert found.noise.misfit(errors) == pytest.approx((errors[..., None] * solved).sum())
    logs = np.linalg.slogdet(wanted.shape)[1]
    np.testing.assert_allclose(found.noise.log_determinants(), logs, rtol=1e-9)


@given(seed=st.integers(0, 10_000), size=st.sampled_from([3, 64, 90]), k=st.integers(1, 4))
@settings(max_examples=15)
def test_sparse_expectations_are_products_with_the_table(seed: int, size: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    flat = np.where(rng.random((2 * size, size)) < 0.05, rng.random((2 * size, size)), 0.0)
    flat += rng.random((2 * size, 1)) * rng.integers(0, 2)
    found = Expectation.of(flat)
    ahead, back = rng.normal(size=(size, k)), rng.normal(size=(2 * size, k))
    np.testing.assert_allclose(found.ahead(ahead), flat @ ahead, atol=1e-10)
    np.testing.assert_allclose(found.back(back), flat.T @ back, atol=1e-10)
    policy = rng.dirichlet(np.ones(2), size=size)
    mixed = np.einsum("sa,sat->st", policy, flat.reshape(size, 2, size))
    np.testing.assert_allclose(found.mixed(policy).ahead(ahead), mixed @ ahead, atol=1e-10)


@pytest.mark.parametrize("n_states", [4, 70])
def test_curvature_is_the_same_swept_and_put_together(n_states: int) -> None:
    rng = np.random.default_rng(1)
    world = local_world(rng, n_states=n_states, n_stages=3)
    parameters, weights = rng.normal(size=(2, 2 * n_states)), rng.normal(size=2)
    curving = world._curving(parameters, weights)
    columns = rng.normal(size=(n_states, 2, 3))
    whole = world.gradient(parameters, weights, curved=True).curvature
    assert whole is not None
    for t in range(2):
        exact = (whole[t] @ columns.reshape(-1, 3)).reshape(columns.shape)
        np.testing.assert_allclose(curving._swept(t, columns), exact, atol=1e-12)
        # In single precision.
        np.testing.assert_allclose(curving.product(t, columns), exact, atol=1e-5)


# --- chains ---------------------------------------------------------------------------------


@given(seed=st.integers(0, 10_000), n=st.integers(1, 5), s=st.integers(1, 3), b=st.integers(1, 3))
@settings(max_examples=30)
def test_chains_are_filters_of_the_dense_problem(seed: int, n: int, s: int, b: int) -> None:
    rng = np.random.default_rng(seed)
    seen = rng.normal(size=(n, s, b, b))
    seen = seen @ np.swapaxes(seen, 2, 3) * (rng.random((n, s, 1, 1)) < 0.8)
    moves = rng.normal(size=(n - 1, s, b, b))
    roots = rng.normal(size=(n - 1, s, b, b))
    noise, start = roots @ np.swapaxes(roots, 2, 3) + 0.1 * np.eye(b), 0.7
    chains = Chains(seen, moves, noise, start)
    columns = rng.normal(size=(n, s, b, 2))
    white, turned, made = chains.whiten(columns), chains.turned(columns), chains.make(columns)
    total, noise_freedom, start_freedom = 0.0, 0.0, 0.0
    for i in range(s):
        # The path as a function of first state and noises, written out.
        effect = np.eye(n * b)
        for t in range(n - 1):
            rows, before = slice((t + 1) * b, (t + 2) * b), slice(t * b, (t + 1) * b)
            effect[rows] += moves[t, i] @ effect[before]
        parts = [np.kron(np.eye(n)[:1].T @ np.eye(n)[:1], start * np.eye(b))]
        inner = np.zeros((n * b, n * b))
        for t in range(n - 1):
            rows = slice((t + 1) * b, (t + 2) * b)
            inner[rows, rows] = noise[t, i]
        parts.append(inner)
        h = np.zeros((n * b, n * b))
        for t in range(n):
            h[t * b : (t + 1) * b, t * b : (t + 1) * b] = seen[t, i]
        spread = [h @ effect @ part @ effect.T @ h for part in parts]
        whole = np.eye(n * b) + spread[0] + spread[1]
        root = np.linalg.cholesky(whole)
        mine = columns[:, i].reshape(n * b, 2)
        for found, expected in (
            (white, np.linalg.solve(root, mine)),
            (turned, np.linalg.solve(root.T, mine)),
            (made, root @ mine),
        ):
            np.testing.assert_allclose(found[:, i].reshape(n * b, 2), expected, atol=1e-6)
        total += np.linalg.slogdet(whole)[1]
        start_freedom += np.trace(np.linalg.solve(whole, spread[0]))
        noise_freedom += np.trace(np.linalg.solve(whole, spread[1]))
    assert chains.log_determinant == pytest.approx(total)
    assert chains.noise_freedom == pytest.approx(noise_freedom)
    assert chains.start_freedom == pytest.approx(start_freedom)


# --- a round --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL, ids=lambda k: k.name)
def test_a_round_in_products_is_the_dense_one(kind: type[Rule]) -> None:
    rng = np.random.default_rng(2)
    model = kind(local_world(rng, n_states=12, n_stages=5))
    states, parameters, middle, prior = point(model, rng)
    at = (model, states, parameters, middle, prior)
    wanted = dense.smooth(*at, model.predict(states[:-1], parameters), VARIANCES)
    # As many signs as states: what is left to estimate is within states.
    linear = model.linearised(states[:-1], parameters)
    found, _ = matrix_free.smooth(*at, linear, VARIANCES, n_probes=12)
    for name in ("state_moves", "parameter_moves", "parameter_covariance"):
        value = getattr(wanted, name)
        np.testing.assert_allclose(
            getattr(found, name), value, atol=1e-5 * np.abs(value).max(), err_msg=name
        )
    # Exact for walks; a few signs of what coupling adds for others.
    tolerance = 1e-6 if model.apart else 0.03
    assert found.log_determinant == pytest.approx(wanted.log_determinant, rel=tolerance)
    assert found.noise_freedom == pytest.approx(wanted.noise_freedom, rel=tolerance)
    assert found.start_variance == pytest.approx(wanted.start_variance, rel=tolerance)


@pytest.mark.parametrize("noise", [0.05, 1e-6])
@pytest.mark.parametrize("kind", FORGETFUL, ids=lambda k: k.name)
def test_a_round_by_values_is_the_dense_one(kind: type[Rule], noise: float) -> None:
    rng = np.random.default_rng(8)
    model = kind(local_world(rng, n_states=9, n_stages=5))
    states, parameters, middle, prior = point(model, rng)
    at = (model, states, parameters, middle, prior)
    linear, variances = model.linearised(states[:-1], parameters), replace(VARIANCES, noise=noise)
    wanted = dense.smooth(*at, model.predict(states[:-1], parameters), variances)
    found = ByValues().smooth(*at, linear, variances)
    for name in ("state_moves", "parameter_moves", "parameter_covariance", "log_determinant"):
        value = np.asarray(getattr(wanted, name))
        np.testing.assert_allclose(
            getattr(found, name), value, atol=1e-6 * np.abs(value).max(), err_msg=name
        )

    # Freedoms against the derivatives of what they are: with little noise matrices miss them.
    def slope(**larger: float) -> float:
        ends = []
        for sign in (1, -1):
            moved = {k: getattr(variances, k) * np.exp(sign * v) for k, v in larger.items()}
            one = ByValues().smooth(*at, linear, replace(variances, **moved), rough=True)
            ends.append(one.log_determinant)
        return float(ends[0] - ends[1]) / (2 * sum(larger.values()))

    assert found.noise_freedom == pytest.approx(slope(noise=1e-3), rel=1e-5)
    start = model.state_dim - found.start_variance / variances.start
    assert start == pytest.approx(slope(start=1e-3), rel=1e-5)


@pytest.mark.parametrize("followed", [0, 8])
def test_signs_estimate_without_bias(followed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    model = RULES["soft-value"](local_world(rng, n_states=10, n_stages=5))
    states, parameters, middle, prior = point(model, rng)
    at = (model, states, parameters, middle, prior)
    wanted = dense.smooth(*at, model.predict(states[:-1], parameters), VARIANCES)
    linear = model.linearised(states[:-1], parameters)
    monkeypatch.setattr(matrix_free, "N_MODES", followed)
    modes = matrix_free.first_modes(model) if followed else None
    for _ in range(2 if followed else 0):
        modes = matrix_free.smooth(*at, linear, VARIANCES, modes=modes)[1]
    found = []
    for seed in range(60):
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(5, 10, 3, 1))
        monkeypatch.setattr(matrix_free, "_signs", lambda model, k, signs=signs: signs)
        one, _ = matrix_free.smooth(*at, linear, VARIANCES, modes=modes)
        found.append((one.log_determinant, one.noise_freedom, one.start_variance))
    exact = wanted.log_determinant, wanted.noise_freedom, wanted.start_variance
    error = np.std(found, axis=0, ddof=1) / np.sqrt(60)
    assert (np.abs(np.mean(found, axis=0) - exact) < 3.5 * error).all()
    # Coupling is strongest in few directions: without them less is left to chance.
    most = 0.1 if not followed else 0.05
    assert (error < most * np.abs(exact)).all()


@pytest.mark.parametrize("kind", [RULES["gradient"], RULES["soft-value"]], ids=lambda k: k.name)
def test_what_more_data_would_do_does_not_depend_on_the_algebra(
    kind: type[Rule], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = kind(local_world(np.random.default_rng(4), n_states=6, n_stages=4))
    fit = fit_path(model, max_rounds=3, start=fit_random_walk(model))
    for more in ({"episodes": 2.0}, {"more_steps": 3}):
        found = []
        for sizes in ALGEBRAS[: 3 if kind.forgets else 2]:
            for name, size in sizes.items():
                monkeypatch.setattr(rounds, name, size)
            found.append(expected_covariance(fit, **more))
        for other in found[1:]:
            np.testing.assert_allclose(other, found[0], atol=1e-4 * np.abs(found[0]).max())


# Of gradient steps matrices know the noise of the learner's own batch, products do not.
@pytest.mark.parametrize("name", ["natural", "soft-policy"])
def test_known_paths_are_regressed_on_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    model = RULES[name](local_world(rng, n_states=6, n_stages=7))
    states = rng.normal(size=(7, 12))
    wanted = fit_known_path(model, states)
    monkeypatch.setattr(rounds, "LARGEST_DENSE", 1)
    found = fit_known_path(model, states)
    for field in ("parameters", "covariance", "evidence"):
        np.testing.assert_allclose(
            getattr(found, field), getattr(wanted, field), rtol=1e-6, atol=1e-9, err_msg=field
        )


def test_answers_do_not_depend_on_the_algebra(monkeypatch: pytest.MonkeyPatch) -> None:
    mdp = gridworld_mdp(GridMap(("..b..", ".o..d", "..d.g")), gamma=0.9)
    history = observe(
        mdp,
        SoftValueIteration(),
        weights=0.3 * np.asarray(grid_weights(mdp.feature_names)),
        n_steps=6,
        n_episodes=30,
        seed=1001,
    )
    policy, method = TabularSoftmax(mdp.n_states, 4), Method.named("joint", models=("soft-value",))
    asked = {"gamma": mdp.gamma, "method": method}
    found = []
    for sizes in ALGEBRAS:
        for name, size in sizes.items():
            monkeypatch.setattr(rounds, name, size)
        found.append(infer_reward(history, policy, **asked))
    wanted, *others = found
    for other, exact in zip(others, (False, True), strict=True):
        np.testing.assert_allclose(other.weights, wanted.weights, atol=1e-6 if exact else 1e-4)
        np.testing.assert_allclose(other.interval(), wanted.interval(), atol=1e-2)
        assert other.status is wanted.status


# --- many stages of few trials --------------------------------------------------------------


def stacked_blocks(seed: int, *, n_stages: int, trials: int) -> tuple[LearningHistory, int]:
    """Blocks of new stimuli with paid actions side by side: a stage is the same trials of all."""
    rng = np.random.default_rng(seed)
    n_blocks, n_stimuli, n_actions = 7, 4, 3
    stages: list[list[Episode]] = [[] for _ in range(n_stages)]
    for block in range(n_blocks):
        paid = rng.integers(n_actions, size=n_stimuli)
        values = np.zeros((n_stimuli, n_actions))
        for stage in stages:
            for _ in range(trials):
                s = rng.integers(n_stimuli)
                chances = np.exp(8 * values[s])
                a = rng.choice(n_actions, p=chances / chances.sum())
                values[s, a] += 0.3 * (float(a == paid[s]) - values[s, a])
                features = np.array([[a == paid[s], a == 0, a == 1]], dtype=float)
                number = np.array([block * n_stimuli + s])
                stage.append(Episode(number, np.array([a]), features=features, terminated=True))
    names = ["correct", "first", "second"]
    return LearningHistory.from_episodes(stages, feature_names=names), n_blocks * n_stimuli


def test_variances_that_chase_one_another_come_to_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    history, n_states = stacked_blocks(1917, n_stages=33, trials=2)
    policy = TabularSoftmax(n_states, 3)
    asked = {
        "gamma": 0.0,
        "intervals": False,
        "method": Method.named("joint", models=("q-learning",)),
    }
    found = infer_reward(history, policy, **asked)
    assert found.status.name != "NOT_CONVERGED"
    assert found.weights.argmax() == 0
    # What it is without: two values in turn, two nats apart, for as long as one waits.
    monkeypatch.setattr(choose, "brought_to_rest", lambda fit: fit)
    assert infer_reward(history, policy, **asked).status.name == "NOT_CONVERGED"


def test_a_stage_may_hold_a_single_episode() -> None:
    mdp = gridworld_mdp(GridMap(("..b", ".o.", "..g")), gamma=0.9)
    weights = 0.3 * np.asarray(grid_weights(mdp.feature_names))
    history = observe(
        mdp, SoftValueIteration(), weights=weights, n_steps=15, n_episodes=1, seed=1000
    )
    found = infer_reward(history, TabularSoftmax(9, 4), gamma=0.9)
    assert found.status.name == "RANK_DEFICIENT"  # areas always sum to one
    truth = weights - weights.mean()
    assert found.weights @ truth / np.linalg.norm(truth) > 0.9


# --- legal actions: unequal groups, for which there are matrices -----------------------------


@pytest.mark.parametrize("kind", ALL, ids=lambda k: k.name)
def test_rules_of_legal_actions_say_the_same_in_products_but_go_through_matrices(
    kind: type[Rule],
) -> None:
    rng = np.random.default_rng(7)
    legal = rng.random((80, 3)) < 0.7
    legal[:, 1] = True
    model = kind(legal_only(local_world(rng, n_states=80, n_stages=4), legal))
    states, parameters, _, _ = point(model, rng)
    assert not rounds.in_products(model)
    matrices, products = (f(states[:-1], parameters) for f in (model.predict, model.linearised))
    np.testing.assert_allclose(products.following, matrices.following, atol=1e-10)
    np.testing.assert_allclose(products.design, matrices.design, atol=1e-10)
    columns = rng.normal(size=(model.state_dim, 2))
    for t, whole in enumerate(matrices.transition):
        found = products.transition.times(t, columns.reshape(1, -1, 2))
        np.testing.assert_allclose(found.reshape(-1, 2), whole @ columns, atol=1e-9)


def test_where_all_is_legal_matrices_find_what_products_find() -> None:
    world = local_world(np.random.default_rng(8), n_states=80, n_stages=4)
    same: list[World] = [world, legal_only(world, np.ones((80, 3), dtype=bool))]
    rules = [RULES["gradient"](one) for one in same]
    assert [rounds.in_products(rule) for rule in rules] == [True, False]
    plain, legal = (fit_path(rule, max_rounds=6) for rule in rules)
    np.testing.assert_allclose(legal.weights, plain.weights, atol=5e-3)
    assert legal.evidence == pytest.approx(plain.evidence, abs=2)
