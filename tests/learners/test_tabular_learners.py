"""The gridworld learners against exact solvers, and what an observer sees of them."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.envs.tabular import TabularMDP, feature_jacobian, random_mdp, start_value
from logel.errors import OptionError
from logel.learners.tabular import (
    LEARNERS,
    GPOMDPLearner,
    QLearner,
    Snapshot,
    SoftPolicyIteration,
    SoftValueIteration,
    observe,
    soft_action_values,
)


def world(seed: int = 0, gamma: float = 0.8) -> tuple[TabularMDP, Any]:
    rng = np.random.default_rng(seed)
    mdp = random_mdp(rng, n_states=4, n_actions=3, n_features=2, gamma=gamma)
    return mdp, rng.normal(size=2)


def snapshots(learner: Any, mdp: TabularMDP, weights: Any, n: int, seed: int = 0) -> list[Snapshot]:
    return list(islice(learner.run(mdp, weights, np.random.default_rng(seed)), n))


# --- policy gradient ------------------------------------------------------------------------


@pytest.mark.parametrize("n_episodes", [1, 4])
def test_sampled_gradients_average_to_the_exact_one(n_episodes: int) -> None:
    mdp, weights = world()
    learner = GPOMDPLearner(learning_rate=0.5, n_episodes=n_episodes, horizon=5)
    run = [snapshots(learner, mdp, weights, 2, seed) for seed in range(1500)]
    gradients = np.stack([(b.parameters - a.parameters) / 0.5 for a, b in run])
    exact = feature_jacobian(mdp, np.zeros(8), horizon=5) @ weights
    error = gradients.std(axis=0, ddof=1) / np.sqrt(len(gradients))
    assert (np.abs(gradients.mean(axis=0) - exact) < 4 * error).all()


def test_exact_steps_follow_the_exact_gradient() -> None:
    mdp, weights = world()
    learner = GPOMDPLearner(learning_rate=0.3, horizon=6, exact=True)
    theta = np.zeros(8)
    for snapshot in snapshots(learner, mdp, weights, 5):
        np.testing.assert_allclose(snapshot.parameters, theta, atol=1e-10)
        theta = theta + 0.3 * feature_jacobian(mdp, theta, horizon=6) @ weights


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.2, 0.2, 0.2]),
        ("1/(1+t)", [0.2, 0.1, 0.2 / 3]),
        ("1/(1+t)^2", [0.2, 0.05, 0.2 / 9]),
    ],
)
def test_schedules(schedule: str, expected: list[float]) -> None:
    mdp, weights = world()
    learner = GPOMDPLearner(learning_rate=0.2, schedule=schedule, exact=True, horizon=5)
    path = snapshots(learner, mdp, weights, 4)
    assert path[0].learning_rate is None
    np.testing.assert_allclose([s.learning_rate for s in path[1:]], expected)
    for before, after, rate in zip(path, path[1:], expected, strict=False):
        gradient = feature_jacobian(mdp, before.parameters, horizon=5) @ weights
        np.testing.assert_allclose(after.parameters - before.parameters, rate * gradient)


def test_normalised_steps_have_the_length_of_the_rate() -> None:
    mdp, weights = world()
    for exact in (True, False):
        learner = GPOMDPLearner(learning_rate=0.2, schedule="normalised", exact=exact)
        path = np.stack([s.parameters for s in snapshots(learner, mdp, weights, 4)])
        np.testing.assert_allclose(np.linalg.norm(np.diff(path, axis=0), axis=1), 0.2)


def test_malformed_learners_are_refused() -> None:
    with pytest.raises(OptionError, match=r"schedule must be one of .*but is 'cosine'"):
        GPOMDPLearner(schedule="cosine")
    with pytest.raises(OptionError, match="learning_rate must be positive, but is 0"):
        GPOMDPLearner(learning_rate=0)


# --- value learners -------------------------------------------------------------------------


def soft_optimal(mdp: TabularMDP, weights: Any, temperature: float) -> Any:
    """Q = r + gamma P T logsumexp(Q / T), by plain iteration."""
    rewards = mdp.expected_features @ weights
    values = np.zeros((mdp.n_states, mdp.n_actions))
    for _ in range(400):
        soft = temperature * logsumexp(values / temperature, axis=1)
        values = rewards + mdp.gamma * mdp.transitions @ soft
    return values


def test_soft_policy_iteration_converges_to_the_soft_optimum() -> None:
    mdp, weights = world()
    learner = SoftPolicyIteration(temperature=0.3)
    path = snapshots(learner, mdp, weights, 40)
    np.testing.assert_allclose(path[0].policy, 1 / 3)
    expected = softmax(soft_optimal(mdp, weights, 0.3) / 0.3, axis=1)
    np.testing.assert_allclose(path[-1].policy, expected, atol=1e-10)
    # Soft policy improvement: the soft value never falls.
    rewards = mdp.expected_features @ weights
    values = []
    for snapshot in path:
        q = soft_action_values(mdp, snapshot.policy, rewards, 0.3)
        entropy = -(snapshot.policy * np.log(snapshot.policy)).sum(axis=1)
        values.append((snapshot.policy * q).sum(axis=1) + 0.3 * entropy)
    assert (np.diff(values, axis=0) > -1e-10).all()


def test_soft_action_values_satisfy_their_equation() -> None:
    mdp, weights = world(1)
    rng = np.random.default_rng(0)
    policy = rng.dirichlet(np.ones(3), size=4)
    rewards = mdp.expected_features @ weights
    q = soft_action_values(mdp, policy, rewards, 0.7)
    soft = (policy * (q - 0.7 * np.log(policy))).sum(axis=1)
    np.testing.assert_allclose(q, rewards + mdp.gamma * mdp.transitions @ soft, atol=1e-10)


def test_soft_value_iteration_reaches_its_fixed_point() -> None:
    mdp, weights = world()
    path = snapshots(SoftValueIteration(), mdp, weights, 150)
    np.testing.assert_allclose(path[0].policy, 1 / 3)
    # After one backup from zero: r + gamma log(3), whose constant does not show.
    np.testing.assert_allclose(path[1].policy, softmax(mdp.expected_features @ weights, axis=1))
    expected = softmax(soft_optimal(mdp, weights, 1.0), axis=1)
    np.testing.assert_allclose(path[-1].policy, expected, atol=1e-10)


def test_q_learning_updates_by_hand() -> None:
    # One state, two actions that pay 1 and -1/2; one step per stage. Only Q(0) - Q(1) shows in the
    # policy, and every change must be one of the two updates that can happen.
    mdp = TabularMDP(
        transitions=np.ones((1, 2, 1)),
        features=np.array([[[1.0], [-0.5]]]),
        initial=np.ones(1),
        gamma=0.5,
    )
    rate, values, counts = 0.1, np.zeros(2), [0, 0]
    path = [np.log(s.policy[0]) for s in _q_path(mdp, rate, 200)]
    for before, after in pairwise(path):
        assert before[0] - before[1] == pytest.approx(values[0] - values[1], abs=1e-9)
        options = []
        for action, reward in enumerate((1.0, -0.5)):
            updated = values.copy()
            updated[action] += rate * (reward + 0.5 * values.max() - values[action])
            options.append(updated)
        matches = [np.isclose(o[0] - o[1], after[0] - after[1], atol=1e-9) for o in options]
        assert sum(matches) == 1
        taken = matches.index(True)
        counts[taken] += 1
        values = options[taken]
    assert min(counts) > 20
    # Q converges to r + gamma max Q: 1 / (1 - gamma) = 2 for the better action.
    assert 1.5 < values[0] < 2.0


def test_q_learners_act_as_they_are_told() -> None:
    mdp = random_mdp(np.random.default_rng(0), n_states=3, n_actions=4, n_features=2)
    learner = QLearner(greed=1e4, explores=0.2, hopes=1.0)
    first, *_, last = snapshots(learner, mdp, np.array([1.0, -1.0]), 4)
    np.testing.assert_allclose(first.policy, 0.25)
    # The best of four takes its own share and a quarter of what is left to chance.
    np.testing.assert_allclose(np.sort(last.policy, axis=1)[:, -1], 0.85, atol=1e-6)


def _q_path(mdp: TabularMDP, rate: float, n: int) -> list[Snapshot]:
    return snapshots(QLearner(learning_rate=rate, n_steps=1), mdp, np.ones(1), n)


@pytest.mark.parametrize("name", sorted(LEARNERS))
def test_all_learners_improve_in_the_gridworld(name: str) -> None:
    mdp = gridworld_mdp()
    weights = grid_weights(mdp.feature_names)
    path = snapshots(LEARNERS[name](), mdp, weights, 31)
    values = [start_value(mdp, s.policy, weights=weights) for s in (path[0], path[-1])]
    assert values[1] > values[0] + 1.0
    for snapshot in path:
        np.testing.assert_allclose(snapshot.policy.sum(axis=1), 1.0)


# --- observing ------------------------------------------------------------------------------


def test_what_an_observer_sees() -> None:
    mdp, weights = world()
    learner = GPOMDPLearner(n_episodes=6, horizon=5)
    history = observe(
        mdp,
        learner,
        weights=weights,
        n_steps=3,
        n_episodes=7,
        horizon=9,
        seed=1,
        parameters=True,
        learning_rates=True,
    )
    assert len(history) == 4 and history.feature_names == mdp.feature_names
    np.testing.assert_array_equal(history.learning_rates, 0.1)
    parameters = history.parameters()
    assert parameters is not None and parameters.shape == (4, 8)
    np.testing.assert_array_equal(parameters[0], 0.0)
    for stage in history:
        assert stage.n_episodes == 7 and stage.n_steps == 63 and not stage.terminated.any()
        following = stage.next_observations()
        np.testing.assert_array_equal(
            stage.features, mdp.features[stage.observations, stage.actions, following]
        )
    # The truth stays with the learner.
    assert not any(repr(float(w)) in repr(history.metadata) for w in weights)


def same(one: Any, two: Any) -> bool:
    names = ("observations", "actions", "features")
    return all(
        np.array_equal(getattr(a, n), getattr(b, n))
        for a, b in zip(one, two, strict=True)
        for n in names
    )


@pytest.mark.parametrize("name", sorted(LEARNERS))
def test_the_same_seed_gives_the_same_history(name: str) -> None:
    mdp, weights = world()
    options: dict[str, Any] = {"weights": weights, "n_steps": 2, "n_episodes": 5}
    one, two, other = (observe(mdp, LEARNERS[name](), seed=seed, **options) for seed in (4, 4, 5))
    assert same(one, two) and not same(one, other)
    assert same(one, observe(mdp, LEARNERS[name](), seed=np.random.SeedSequence(4), **options))


def test_learner_and_observer_have_streams_of_their_own() -> None:
    mdp, weights = world()
    paths = [
        observe(
            mdp,
            GPOMDPLearner(n_episodes=5, horizon=5),
            weights=weights,
            n_steps=3,
            n_episodes=n,
            horizon=horizon,
            parameters=True,
        ).parameters()
        for n, horizon in ((5, 5), (50, 3))
    ]
    # Looking longer does not change what is looked at.
    np.testing.assert_array_equal(paths[0], paths[1])
    # With equal batch sizes the observer still sees other episodes than the learner used: the
    # learner's first step is not the gradient estimated from the observer's first stage.
    stage = observe(
        mdp,
        GPOMDPLearner(n_episodes=5, horizon=5),
        weights=weights,
        n_steps=1,
        n_episodes=5,
        horizon=5,
        parameters=True,
    )[0]
    from logel.policies.softmax import TabularSoftmax
    from logel.worlds.own_episodes import stage_jacobian

    own = stage_jacobian(TabularSoftmax(4, 3), np.zeros(8), stage, gamma=0.8, baseline="time")
    assert paths[0] is not None
    assert not np.allclose(0.1 * own.mean @ weights, paths[0][1])


def test_impossible_requests_are_refused() -> None:
    mdp, weights = world()
    with pytest.raises(OptionError, match="n_steps must be at least 1, but is 0"):
        observe(mdp, SoftValueIteration(), weights=weights, n_steps=0)
    with pytest.raises(OptionError, match="SoftValueIteration has no learning rates to reveal"):
        observe(mdp, SoftValueIteration(), weights=weights, n_steps=2, learning_rates=True)


def test_parameters_are_the_logits_relative_to_the_last_action() -> None:
    policy = softmax(np.array([[1.0, -2.0, 0.0], [0.5, 0.25, 0.0]]), axis=1)
    np.testing.assert_allclose(Snapshot(policy).parameters, [1.0, -2.0, 0.5, 0.25])
    assert np.isfinite(Snapshot(np.array([[1.0, 0.0], [0.0, 1.0]])).parameters).all()
