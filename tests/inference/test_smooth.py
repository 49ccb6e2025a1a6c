"""The joint fit against dense solves, numerical integration and learners of known kind."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax
from scipy.stats import multivariate_normal, norm

from logel.envs.gridworld import GridMap, grid_weights, gridworld_mdp
from logel.envs.tabular import TabularMDP, random_mdp
from logel.inference import dense
from logel.inference.rounds import Variances
from logel.inference.smooth import (
    JointFit,
    _Objective,
    fit_path,
    fit_random_walk,
)
from logel.learners.tabular import (
    GPOMDPLearner,
    SoftPolicyIteration,
    SoftValueIteration,
    TabularLearner,
    observe,
)
from logel.policies.softmax import TabularSoftmax
from logel.rules.ascent import Gradient, NaturalGradient
from logel.rules.catalogue import RULES
from logel.rules.rule import Prediction, RandomWalk, Rule
from logel.rules.values import GradualValue, QLearning, SoftPolicy, SoftValue
from logel.worlds.counting import pool_world
from logel.worlds.table import TabularWorld

DIFFERENTIABLE = (SoftPolicy, SoftValue, GradualValue, Gradient, NaturalGradient)
TABULAR = [RULES[name] for name in TabularWorld.offers]


def known_world(
    mdp: TabularMDP, counts: Any, *, horizon: int = 10, rng: np.random.Generator | None = None
) -> TabularWorld:
    rng = np.random.default_rng(0) if rng is None else rng
    shape = (5, mdp.n_states, mdp.n_actions, mdp.n_features)
    return TabularWorld(
        transitions=mdp.transitions,
        features=mdp.expected_features,
        initial=mdp.initial,
        gamma=mdp.gamma,
        horizon=horizon,
        counts=np.asarray(counts, dtype=float),
        episode_sums=tuple(rng.normal(size=shape) for _ in counts),
    )


def logits(model: Rule, states: Any) -> Any:
    return model.world.logits(model.as_policy(states))


def with_counts(world: TabularWorld, model: Rule, states: Any, rng: Any, n: int) -> Any:
    """The world with n actions per state and stage drawn from the policies of a path."""
    return replace(
        world, counts=rng.multinomial(n, world.probabilities(model.as_policy(states))).astype(float)
    )


def priors(model: Rule, variances: Variances) -> tuple[Any, Any]:
    q = model.world.n_features
    middle = np.concatenate([np.zeros(q), model.nuisance_mean])
    return middle, np.concatenate([np.full(q, variances.scale), model.nuisance_variance])


def objective(model: Rule, middle: Any, prior: Any, shape: Any, variances: Variances) -> _Objective:
    """The log posterior for noise of this shape."""
    nothing = np.zeros((len(shape), 0))
    prediction = Prediction(nothing, nothing, nothing, shape)
    misfit = dense.Dense().misfit(prediction, variances.noise)
    return _Objective(model, middle, prior, misfit, variances)


def settle(
    model: Rule, variances: Variances, *, rounds: int = 30, start: JointFit | None = None
) -> tuple[Any, Any, list[float], float, _Objective]:
    """Rounds at fixed variances and noise shape: path, parameters, values, log determinant."""
    counts = model.world.counts
    middle, prior = priors(model, variances)
    states = np.zeros((len(counts), model.state_dim)) if start is None else start.states
    parameters = middle if start is None else start.parameters
    shape = model.predict(states[:-1], parameters).shape
    target = objective(model, middle, prior, shape, variances)
    values = [target(states, parameters).total]
    for _ in range(rounds):
        prediction = replace(model.predict(states[:-1], parameters), shape=shape)
        found = dense.smooth(model, states, parameters, middle, prior, prediction, variances)
        states, parameters, value = target.ascend(states, parameters, found)
        values.append(value.total)
    return states, parameters, values, found.log_determinant, target


# --- one pass of the smoother ---------------------------------------------------------------


def dense_problem(
    keeps_values: bool, states: Any, parameters: Any, middle: Any, prior: Any, counts: Any,
    prediction: Prediction, variances: Variances,
) -> dict[str, Any]:  # fmt: skip
    """The Gauss-Newton problem over all states and parameters at once, as one dense system."""
    n_stages, d = states.shape
    p = len(parameters)
    size = n_stages * d + p
    at = [slice(t * d, (t + 1) * d) for t in range(n_stages)]
    tail = slice(n_stages * d, size)
    precision, linear = np.zeros((size, size)), np.zeros(size)
    for t in range(n_stages):
        s = len(counts[t])
        logits = states[t].reshape(s, -1)
        if not keeps_values:
            logits = np.pad(logits, ((0, 0), (0, 1)))
        policy, width = softmax(logits, axis=1), d // s
        for i in range(s):
            rows = slice(t * d + i * width, t * d + (i + 1) * width)
            visits = counts[t, i].sum()
            full = visits * (np.diag(policy[i]) - np.outer(policy[i], policy[i]))
            precision[rows, rows] += full[:width, :width]
            linear[rows] += (counts[t, i] - visits * policy[i])[:width]
    precision[at[0], at[0]] += np.eye(d) / variances.start
    linear[at[0]] -= states[0] / variances.start
    precision[tail, tail] += np.diag(1 / prior)
    linear[tail] += (middle - parameters) / prior
    log_prior = d * np.log(variances.start) + np.log(prior).sum()
    errors = []
    for t in range(n_stages - 1):
        row = np.zeros((d, size))
        row[:, at[t + 1]] = np.eye(d)
        row[:, at[t]] -= prediction.transition[t]
        row[:, tail] -= prediction.design[t]
        gap = states[t + 1] - prediction.following[t]
        noise = variances.noise * prediction.shape[t]
        precision += row.T @ np.linalg.solve(noise, row)
        linear -= row.T @ np.linalg.solve(noise, gap)
        log_prior += np.linalg.slogdet(noise)[1]
        errors.append((row, noise))
    covariance = np.linalg.inv(precision)
    freedom = sum(
        d - np.trace(np.linalg.solve(noise, row @ covariance @ row.T)) for row, noise in errors
    )
    moves = covariance @ linear
    return {
        "state_moves": moves[: n_stages * d].reshape(n_stages, d),
        "parameter_moves": moves[tail],
        "parameter_covariance": covariance[tail, tail],
        "start_variance": np.trace(covariance[at[0], at[0]]),
        "log_determinant": np.linalg.slogdet(precision)[1] + log_prior,
        "noise_freedom": freedom,
    }


@pytest.mark.parametrize("kind", [RandomWalk, SoftValue], ids=["logits", "values"])
@given(
    seed=st.integers(0, 10_000),
    n_stages=st.integers(2, 5),
    n_parameters=st.integers(1, 3),
    unit=st.sampled_from([1e-3, 1.0, 1e3]),
)
@settings(max_examples=30)
def test_a_pass_solves_the_dense_gauss_newton_problem(
    kind: type[Rule], seed: int, n_stages: int, n_parameters: int, unit: float
) -> None:
    # Any linear model will do: its numbers are drawn, only logits and counts come from a world.
    rng = np.random.default_rng(seed)
    mdp = random_mdp(rng, n_states=2, n_actions=3, n_features=2)
    counts = rng.integers(0, 12, (n_stages, 2, 3)).astype(float)
    counts[:, rng.integers(2)] *= rng.random() < 0.7  # now and then a state nobody visits
    model = kind(known_world(mdp, counts))
    d, m = model.state_dim, n_stages - 1
    roots = rng.normal(size=(m, d, d))
    prediction = Prediction(
        following=rng.normal(size=(m, d)),
        transition=0.6 * rng.normal(size=(m, d, d)),
        design=rng.normal(size=(m, d, n_parameters)) / unit,
        shape=roots @ roots.transpose(0, 2, 1) + 0.1 * np.eye(d),
    )
    states, parameters = rng.normal(size=(n_stages, d)), unit * rng.normal(size=n_parameters)
    middle = unit * rng.normal(size=n_parameters)
    prior = unit**2 * (rng.gamma(2, size=n_parameters) + 0.1)
    variances = Variances(noise=float(rng.gamma(2)) + 0.05, start=float(rng.gamma(2)) + 0.05)
    found = dense.smooth(model, states, parameters, middle, prior, prediction, variances)
    expected = dense_problem(
        kind.keeps_values, states, parameters, middle, prior, counts, prediction, variances
    )
    units = {"parameter_moves": unit, "parameter_covariance": unit**2}
    for name, value in expected.items():
        atol = 1e-6 * units.get(name, 1.0)
        np.testing.assert_allclose(getattr(found, name), value, rtol=1e-6, atol=atol, err_msg=name)


# --- the objective --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*DIFFERENTIABLE, QLearning], ids=lambda k: k.__name__)
def test_the_objective_is_the_log_posterior(kind: type[Rule]) -> None:
    rng = np.random.default_rng(1)
    mdp = random_mdp(rng, n_states=3, n_actions=2, n_features=2, gamma=0.8)
    model = kind(known_world(mdp, rng.integers(0, 9, (4, 3, 2))))
    counts, variances = model.world.counts, Variances(0.3, 0.7, 1.9)
    middle, prior = priors(model, variances)
    shape = model.predict(rng.normal(size=(3, model.state_dim)), middle + 0.1).shape
    target = objective(model, middle, prior, shape, variances)

    def log_posterior(states: Any, parameters: Any) -> float:
        total = float((counts * log_softmax(logits(model, states), axis=-1)).sum())
        total += norm(0, np.sqrt(0.7)).logpdf(states[0]).sum()
        total += norm(middle, np.sqrt(prior)).logpdf(parameters).sum()
        following = model.following(states[:-1], parameters)
        for t in range(3):
            total += multivariate_normal(following[t], 0.3 * shape[t]).logpdf(states[t + 1])
        return total

    points = [
        (rng.normal(size=(4, model.state_dim)), middle + rng.normal(size=len(middle)))
        for _ in range(3)
    ]
    gaps = np.diff([target(*at).total for at in points])
    np.testing.assert_allclose(gaps, np.diff([log_posterior(*at) for at in points]), rtol=1e-9)
    value = target(*points[0])
    likelihood = (counts * log_softmax(logits(model, points[0][0]), axis=-1)).sum()
    assert value.log_likelihood == pytest.approx(likelihood)


def small_history(kind: type[Rule], seed: int = 0, *, noise: float = 0.02, n: int = 30) -> Rule:
    """A model of this kind with n actions per state and stage drawn from a path of its own."""
    rng = np.random.default_rng(seed)
    mdp = random_mdp(rng, n_states=4, n_actions=3, n_features=2, gamma=0.8)
    world = known_world(mdp, np.ones((6, 4, 3)), rng=rng)
    model = kind(world)
    parameters = np.concatenate([1.5 * rng.normal(size=2), model.nuisance_mean])
    return kind(with_counts(world, model, path(model, parameters, 5, noise, rng), rng, n))


def path(model: Rule, parameters: Any, m: int, noise: float, rng: Any) -> Any:
    """A path of m steps, with process noise of the model's own shape."""
    states = np.zeros((m + 1, model.state_dim))
    for t in range(m):
        # All steps so far at once: fading rates must know how late it is.
        prediction = model.predict(states[: t + 1], parameters)
        root = np.linalg.cholesky(noise * prediction.shape[t])
        states[t + 1] = prediction.following[t] + root @ rng.standard_normal(model.state_dim)
    return states


@pytest.mark.parametrize("kind", [*DIFFERENTIABLE, QLearning], ids=lambda k: k.__name__)
@pytest.mark.parametrize("noise", [0.003, 0.3])
def test_rounds_never_lower_the_objective(kind: type[Rule], noise: float) -> None:
    # From a random walk's path and a guess of the weights: where nothing is to be learnt yet,
    # Q-learning has no noise either, and no step could leave such a path.
    model = small_history(kind)
    walk = fit_random_walk(model)
    states = model.from_policy(walk.model.as_policy(walk.states))
    parameters = np.concatenate([np.full(2, 0.5), model.nuisance_mean])
    start = replace(walk, states=states, parameters=parameters)
    _, _, values, _, _ = settle(model, Variances(noise, 1.0, 4.0), rounds=15, start=start)
    assert (np.diff(values) > -2e-6).all()
    assert values[-1] > values[0] + 1


@pytest.mark.parametrize("kind", DIFFERENTIABLE, ids=lambda k: k.__name__)
def test_rounds_end_where_the_objective_is_flat(kind: type[Rule]) -> None:
    # Wrong derivatives would settle elsewhere, or nowhere. Q-learning's are approximate by design.
    model = small_history(kind)
    states, parameters, _, _, target = settle(model, Variances(0.05, 1.0, 4.0))
    rng = np.random.default_rng(2)
    for _ in range(5):
        dx, dp = rng.normal(size=states.shape), rng.normal(size=parameters.shape)

        def along(h: float, dx: Any = dx, dp: Any = dp) -> float:
            return target(states + h * dx, parameters + h * dp).total

        slope = (along(1e-4) - along(-1e-4)) / 2e-4
        bend = (along(1e-2) - 2 * along(0.0) + along(-1e-2)) / 1e-4
        assert bend < 0 and abs(slope) < 2e-4 * abs(bend)


def test_a_step_that_would_overshoot_is_shortened_and_a_bad_one_refused() -> None:
    model = small_history(SoftPolicy)
    variances = Variances(0.05, 1.0, 4.0)
    middle, prior = priors(model, variances)
    states = np.zeros((6, model.state_dim))
    prediction = model.predict(states[:-1], middle)
    good = dense.smooth(model, states, middle, middle, prior, prediction, variances)
    target = objective(model, middle, prior, prediction.shape, variances)
    before = target(states, middle).total
    far = replace(
        good, state_moves=20 * good.state_moves, parameter_moves=20 * good.parameter_moves
    )
    moved, _, value = target.ascend(states, middle, far)
    assert value.total > before and np.abs(moved).max() > 0
    back = replace(good, state_moves=-good.state_moves, parameter_moves=-good.parameter_moves)
    stay, same, value = target.ascend(states, middle, back)
    assert value.total == before
    np.testing.assert_array_equal(stay, states)
    np.testing.assert_array_equal(same, middle)


# --- the evidence ---------------------------------------------------------------------------


def test_the_evidence_is_the_integral_over_paths_and_weights() -> None:
    # One state, two actions: the next logit is (phi_0 - phi_1) w plus noise, whatever the last.
    # Left to integrate are two logits and a weight, on a grid; Laplace errs by about 1 / counts.
    phi = np.array([[[1.4], [0.2]]])
    mdp = TabularMDP(np.ones((1, 2, 1)), phi, np.ones(1), gamma=0.5)
    counts = np.array([[[180.0, 120.0]], [[230.0, 90.0]]])
    model = SoftPolicy(known_world(mdp, counts))
    variances = Variances(0.05, 0.3, 0.8)
    _, _, values, log_determinant, _ = settle(model, variances)
    found = values[-1] - 0.5 * log_determinant
    x, w = np.linspace(-1.5, 2.5, 801), np.linspace(-5, 5, 801)

    def likelihood(t: int) -> Any:
        n, k = counts[t, 0]
        return n * -np.logaddexp(0, -x) + k * -np.logaddexp(0, x)

    first = likelihood(0) + norm(0, np.sqrt(0.3)).logpdf(x)
    second = norm(1.2 * w[:, None], np.sqrt(0.05)).logpdf(x) + likelihood(1)
    weight = norm(0, np.sqrt(0.8)).logpdf(w)
    tops = first.max(), second.max()
    dx, dw = x[1] - x[0], w[1] - w[0]
    integral = np.log((np.exp(first - tops[0]) * dx).sum()) + tops[0]
    inner = (np.exp(second - tops[1]) * dx).sum(axis=1) * np.exp(weight)
    integral += np.log(inner.sum() * dw) + tops[1]
    assert found == pytest.approx(integral, abs=0.01)


@pytest.mark.parametrize("kind", DIFFERENTIABLE, ids=lambda k: k.__name__)
def test_the_fitted_variances_are_where_the_evidence_is_highest(kind: type[Rule]) -> None:
    model = small_history(kind, seed=3, noise=0.1, n=200)
    fit = fit_path(model, max_rounds=60)
    assert fit.converged

    def evidence(**change: float) -> float:
        result = settle(model, replace(fit.variances, **change), start=fit)
        return result[2][-1] - 0.5 * result[3]

    best = evidence()
    assert best == pytest.approx(fit.evidence, abs=0.2)
    for factor in (0.5, 2.0):
        assert evidence(noise=factor * fit.variances.noise) < best - 0.1


def test_the_noise_of_a_random_walk_is_recovered() -> None:
    found = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        mdp = random_mdp(rng, n_states=5, n_actions=3, n_features=2)
        world = known_world(mdp, np.ones((9, 5, 3)))
        walk = RandomWalk(world)
        states = path(walk, np.zeros(2), 8, 0.25, rng)
        fit = fit_random_walk(SoftPolicy(with_counts(world, walk, states, rng, 100)))
        assert isinstance(fit.model, RandomWalk)
        found.append(fit.variances.noise)
    # 480 increments: a relative standard error of about 8 %, with what the actions hide.
    assert np.mean(found) == pytest.approx(0.25, rel=0.25)


def test_the_spread_of_first_states_is_recovered_from_few_actions() -> None:
    found = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        mdp = random_mdp(rng, n_states=25, n_actions=3, n_features=1)
        world = known_world(mdp, np.ones((3, 25, 3)))
        walk = RandomWalk(world)
        first = rng.normal(scale=np.sqrt(0.8), size=(1, 50))
        states = first + np.concatenate([np.zeros((1, 50)), 0.1 * rng.normal(size=(2, 50))])
        found.append(fit_path(RandomWalk(with_counts(world, walk, states, rng, 5))).variances.start)
    # 200 first states, each seen through fifteen actions.
    assert np.mean(found) == pytest.approx(0.8, rel=0.35)


def test_the_reported_scale_is_the_one_the_covariance_belongs_to() -> None:
    # Features so small that the actions tell nothing in time: the posterior is the prior.
    world = watched(SoftPolicyIteration(0.5)).with_features(1e-4 * np.eye(3))
    for rounds in (2, 3, 4):
        fit = fit_path(SoftPolicy(world), max_rounds=rounds)
        prior = fit.variances.scale * np.eye(3)
        np.testing.assert_allclose(fit.covariance, prior, atol=0.2 * fit.variances.scale)


@pytest.mark.parametrize("kind", DIFFERENTIABLE, ids=lambda k: k.__name__)
def test_weights_are_recovered_as_exactly_as_claimed(kind: type[Rule]) -> None:
    # Actions drawn from the model itself in a known world: squared errors over the claimed
    # covariance must average to about q.
    distances = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        mdp = random_mdp(rng, n_states=4, n_actions=3, n_features=2, gamma=0.8)
        world = known_world(mdp, np.ones((7, 4, 3)), rng=rng)
        model = kind(world)
        weights = rng.normal(size=2)
        parameters = np.concatenate([weights, model.nuisance_mean])
        states = path(model, parameters, 6, 0.02, rng)
        model = kind(with_counts(world, model, states, rng, 60))
        fit = fit_path(model, start=fit_random_walk(model))
        error = fit.weights - weights
        distances.append(error @ np.linalg.solve(fit.covariance, error))
    # The mean of 12 chi-square variables of 2 degrees of freedom: 2 +- 0.58.
    assert 0.5 < np.mean(distances) < 4.5


# --- end to end -----------------------------------------------------------------------------

WEIGHTS = np.array([0.6, -0.7, 0.4])


@cache
def watched(learner: TabularLearner, seed: int = 0) -> TabularWorld:
    rng = np.random.default_rng(seed)
    mdp = random_mdp(rng, n_states=6, n_actions=3, n_features=3, gamma=0.8)
    history = observe(
        mdp, learner, weights=WEIGHTS, n_steps=6, n_episodes=40, horizon=20, seed=seed
    )
    return pool_world(list(history), TabularSoftmax(6, 3), gamma=0.8)


def angle(found: Any, truth: Any) -> float:
    """Sine of the angle between two directions, 1 where they point apart."""
    cosine = found @ truth / (np.linalg.norm(found) * np.linalg.norm(truth))
    return 1.0 if cosine < 0 else float(np.sqrt(max(1 - cosine**2, 0.0)))


LEARNERS: dict[type[Rule], tuple[TabularLearner, float]] = {
    SoftPolicy: (SoftPolicyIteration(0.5), 2.0),
    SoftValue: (SoftValueIteration(), 1.0),
    Gradient: (GPOMDPLearner(learning_rate=2.0, exact=True), 2.0),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", LEARNERS, ids=lambda k: k.__name__)
def test_the_right_model_finds_direction_and_size_of_the_weights_and_wins(
    kind: type[Rule], seed: int
) -> None:
    learner, size = LEARNERS[kind]
    world = watched(learner, seed)
    walk = fit_random_walk(kind(world))
    fits = {other: fit_path(other(world), start=walk) for other in TABULAR}
    own = fits[kind]
    assert own.converged
    assert angle(own.weights, WEIGHTS) < 0.12
    # Rate or inverse temperature is folded in.
    ratio = np.linalg.norm(own.weights) / np.linalg.norm(WEIGHTS)
    assert ratio == pytest.approx(size, rel=0.25)
    assert own.evidence > walk.evidence + 10
    # Soft policy and soft value iteration are close relatives, and so is all that lies between
    # them: no one tells them apart here.
    soft = {SoftPolicy, SoftValue, GradualValue}
    rivals = [f.evidence for k, f in fits.items() if k is not kind and not {k, kind} <= soft]
    assert own.evidence > max(rivals) + 2


@pytest.mark.parametrize("seed", range(3))
def test_nothing_beats_the_random_walk_on_a_random_walk(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mdp = random_mdp(rng, n_states=5, n_actions=3, n_features=2, gamma=0.8)
    world = known_world(mdp, np.ones((7, 5, 3)), rng=rng)
    truth = RandomWalk(world)
    world = with_counts(world, truth, path(truth, np.zeros(2), 6, 0.2, rng), rng, 60)
    walk = fit_random_walk(SoftPolicy(world))
    for kind in TABULAR:
        # What fits everything with weights near nothing may tie, but not win.
        assert fit_path(kind(world), start=walk).evidence < walk.evidence + 3


def test_a_gridworld_gives_the_reward_away() -> None:
    mdp = gridworld_mdp(GridMap(("..b", ".o.", "..g")), gamma=0.9)
    weights = np.asarray(grid_weights(mdp.feature_names, "code"))
    history = observe(
        mdp, SoftPolicyIteration(3.0), weights=weights, n_steps=5, n_episodes=60, seed=7
    )
    world = pool_world(list(history), TabularSoftmax(mdp.n_states, mdp.n_actions), gamma=0.9)
    # Areas are one-hot: a constant reward is a potential, so only contrasts are to be found.
    fit = fit_path(SoftPolicy(world), start=fit_random_walk(SoftPolicy(world)))
    assert angle(fit.weights - fit.weights.mean(), weights - weights.mean()) < 0.1


def test_a_fit_is_deterministic_and_consistent_with_itself() -> None:
    model = SoftPolicy(watched(SoftPolicyIteration(0.5)))
    first, second = fit_path(model), fit_path(model)
    for name in ("states", "parameters", "covariance"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    assert first.trace == second.trace
    assert len(first.trace) == first.rounds <= 18
    assert first.evidence == first.trace[-1]
    assert first.states.shape == (7, 12) and first.weights.shape == (3,)
    likelihood = model.world.counts * log_softmax(logits(model, first.states), axis=-1)
    assert first.log_likelihood == pytest.approx(likelihood.sum())
    assert np.linalg.eigvalsh(first.covariance).min() > 0
    short = fit_path(model, max_rounds=2)
    assert short.rounds == 2 and not short.converged


def test_another_orthogonal_basis_turns_the_weights_and_nothing_else() -> None:
    world = watched(SoftValueIteration())
    basis = np.linalg.qr(np.random.default_rng(8).normal(size=(3, 3)))[0]
    plain = fit_path(SoftValue(world))
    turned = fit_path(SoftValue(world.with_features(basis)))
    np.testing.assert_allclose(basis @ turned.weights, plain.weights, atol=1e-5)
    np.testing.assert_allclose(basis @ turned.covariance @ basis.T, plain.covariance, atol=1e-5)
    assert turned.evidence == pytest.approx(plain.evidence, abs=1e-3)


@pytest.mark.parametrize("kind", LEARNERS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("unit", [1e-4, 1e4])
def test_units_of_the_features_do_not_matter(kind: type[Rule], unit: float) -> None:
    # The scale of the weights is found from the data; nothing else may know their units.
    world = watched(LEARNERS[kind][0])
    plain = fit_path(kind(world), max_rounds=40)
    scaled = fit_path(kind(world.with_features(unit * np.eye(3))), max_rounds=40)
    assert scaled.evidence == pytest.approx(plain.evidence, abs=0.3)
    deviation = np.sqrt(np.diagonal(plain.covariance))
    assert (np.abs(unit * scaled.weights - plain.weights) < 0.2 * deviation).all()
    found = unit * np.sqrt(np.diagonal(scaled.covariance))
    np.testing.assert_allclose(found, deviation, rtol=0.1)


def test_known_rates_give_the_weights_themselves() -> None:
    rng = np.random.default_rng(9)
    mdp = random_mdp(rng, n_states=4, n_actions=3, n_features=2, gamma=0.8)
    rates = np.array([4.0, 1.0, 3.0, 0.5, 2.0, 5.0])
    world = known_world(mdp, np.ones((7, 4, 3)), rng=rng)
    weights = np.array([0.5, -0.4])
    states = path(Gradient(world, rates), np.append(weights, 0.0), 6, 1e-4, rng)
    world = with_counts(world, Gradient(world), states, rng, 400)
    informed, ignorant = (fit_path(Gradient(world, r)) for r in (rates, None))
    error = informed.weights - weights
    assert error @ np.linalg.solve(informed.covariance, error) < 9.2  # 99 % of chi-square, 2
    assert informed.evidence > ignorant.evidence + 3


def test_a_fit_continues_where_another_ended() -> None:
    model = SoftPolicy(watched(SoftPolicyIteration(0.5)))
    walk = fit_random_walk(model)
    cold, warm = fit_path(model), fit_path(model, start=walk)
    again = fit_path(model, start=warm)
    # Three ways to the same place.
    assert warm.evidence == pytest.approx(cold.evidence, abs=0.5)
    assert again.evidence == pytest.approx(warm.evidence, abs=0.5)
    deviation = np.sqrt(np.diagonal(warm.covariance))
    assert (np.abs(cold.weights - warm.weights) < 0.5 * deviation).all()
    assert (np.abs(again.weights - warm.weights) < 0.5 * deviation).all()
    # Continuing needs no warm-up: already the first further round is as good as the end.
    assert again.trace[: warm.rounds] == warm.trace and again.rounds > warm.rounds
    assert again.trace[warm.rounds] == pytest.approx(warm.evidence, abs=1.0)
