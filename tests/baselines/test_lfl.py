import numpy as np
import pytest

from logel.baselines.lfl import count_transitions, fit_lfl, lfl, lfl_targets, shaping_matrix
from logel.data.history import LearningHistory
from logel.data.stage import Stage
from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.envs.tabular import (
    TabularMDP,
    optimal_policy,
    random_mdp,
    relative_regret,
    sample_episodes,
    start_value,
    uniform_policy,
)
from logel.errors import IdentificationError, OptionError, PolicyError
from logel.learners.tabular import SoftPolicyIteration, observe
from logel.policies.softmax import LinearSoftmax, TabularSoftmax

GRID = gridworld_mdp()
WEIGHTS = grid_weights(GRID.feature_names)


def regret_of_table(mdp: TabularMDP, table: np.ndarray, weights: np.ndarray) -> float:
    """Relative regret of planning for a reward table."""
    other = TabularMDP(mdp.transitions, table[:, :, None], mdp.initial, mdp.gamma)
    planned = optimal_policy(other, [1.0])[0]
    best = start_value(mdp, optimal_policy(mdp, weights)[0], weights=weights)
    uniform = start_value(mdp, uniform_policy(mdp), weights=weights)
    return (best - start_value(mdp, planned, weights=weights)) / (best - uniform)


def spi_policies(mdp: TabularMDP, weights: np.ndarray, temperature: float, n: int) -> np.ndarray:
    run = SoftPolicyIteration(temperature).run(mdp, weights, np.random.default_rng(0))
    return np.stack([next(run).policy for _ in range(n)])


@pytest.mark.parametrize("n_steps", [1, 3])
def test_exact_soft_policy_iteration_gives_no_regret(n_steps: int) -> None:
    # At .3 the reward's range saturates the softmax within two steps; a warmer learner keeps all
    # log-probabilities above rounding.
    policies = spi_policies(GRID, WEIGHTS, 5.0, n_steps + 1)
    found = fit_lfl(policies, GRID.transitions, gamma=GRID.gamma, temperature=5.0)
    assert regret_of_table(GRID, found.table, WEIGHTS) < 1e-6
    assert found.residual < 1e-8


def test_paper_temperature_gives_no_regret_from_exact_policies() -> None:
    policies = spi_policies(GRID, WEIGHTS, 0.3, 3)
    found = fit_lfl(policies, GRID.transitions, gamma=GRID.gamma, temperature=0.3)
    assert regret_of_table(GRID, found.table, WEIGHTS) < 1e-6


def test_recovered_reward_is_the_true_one_up_to_a_potential() -> None:
    mdp = random_mdp(np.random.default_rng(3), n_states=6, n_actions=3, n_features=2, gamma=0.8)
    weights = np.array([1.0, -0.5])
    policies = spi_policies(mdp, weights, 0.5, 4)
    found = fit_lfl(policies, mdp.transitions, gamma=mdp.gamma, temperature=0.5)
    difference = (found.table - mdp.expected_features @ weights).reshape(-1)
    matrix = shaping_matrix(mdp.transitions, mdp.gamma)
    potential = np.linalg.lstsq(matrix, difference, rcond=None)[0]
    np.testing.assert_allclose(matrix @ potential, difference, atol=1e-8)


def test_least_squares_equals_long_gradient_descent() -> None:
    rng = np.random.default_rng(1)
    mdp = random_mdp(rng, n_states=5, n_actions=3, n_features=2, gamma=0.7)
    logits = np.cumsum(rng.standard_normal((4, 5, 3)), axis=0)
    policies = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    found = fit_lfl(policies, mdp.transitions, gamma=0.7, temperature=0.6)

    targets = lfl_targets(policies, mdp.transitions, gamma=0.7, temperature=0.6)
    reward, shaping = np.zeros((5, 3)), np.zeros((3, 5))
    for _ in range(20_000):
        following = np.einsum("sat,mt->msa", mdp.transitions, shaping)
        residual = targets - reward - shaping[:, :, None] + 0.7 * following
        back = np.einsum("msa,sat->mt", residual, mdp.transitions)
        reward = reward + 0.1 * residual.sum(axis=0)
        shaping = shaping + 0.1 * (residual.sum(axis=2) - 0.7 * back)
    np.testing.assert_allclose(found.table, reward, atol=1e-4)
    np.testing.assert_allclose(found.shaping, shaping, atol=1e-4)


def test_targets_match_the_formula_written_out() -> None:
    rng = np.random.default_rng(5)
    transitions = rng.dirichlet(np.ones(3), size=(3, 2))
    policies = rng.dirichlet(np.ones(2), size=(2, 3))
    found = lfl_targets(policies, transitions, gamma=0.9, temperature=0.7)
    for s in range(3):
        for a in range(2):
            expected = 0.7 * np.log(policies[1, s, a])
            for following in range(3):
                change = sum(
                    policies[0, following, b]
                    * (np.log(policies[1, following, b]) - np.log(policies[0, following, b]))
                    for b in range(2)
                )
                expected -= 0.7 * 0.9 * transitions[s, a, following] * change
            assert found[0, s, a] == pytest.approx(expected)


def test_counts_are_frequencies_and_uniform_where_unseen() -> None:
    stage = Stage(
        observations=np.array([0, 1, 0]),
        actions=np.array([0, 1, 0]),
        lengths=np.array([2, 1]),
        terminated=np.array([False, False]),
        last_observations=np.array([2, 0]),
    )
    counts = count_transitions(LearningHistory.from_stages([stage, stage]), TabularSoftmax(3, 2))
    np.testing.assert_allclose(counts[0, 0], [0.5, 0.5, 0])
    np.testing.assert_allclose(counts[1, 1], [0, 0, 1])
    np.testing.assert_allclose(counts[2, 1], [1 / 3] * 3)


def test_from_trajectories_recovers_a_soft_policy_iteration_learner() -> None:
    history = observe(GRID, SoftPolicyIteration(), weights=WEIGHTS, n_steps=5, seed=0)
    found = lfl(history, TabularSoftmax(25, 4), gamma=GRID.gamma)
    assert regret_of_table(GRID, found.table, WEIGHTS) < 0.2
    batch = sample_episodes(
        GRID, uniform_policy(GRID), rng=np.random.default_rng(0), n_episodes=2, horizon=3
    )
    paid = found(batch.states[:, 0], batch.actions[:, 0], batch.states[:, 1])
    np.testing.assert_array_equal(paid, found.table[batch.states[:, 0], batch.actions[:, 0]])


def test_bad_input_is_refused() -> None:
    history = observe(GRID, SoftPolicyIteration(), weights=WEIGHTS, n_steps=1, seed=0)
    with pytest.raises(IdentificationError, match="at least two"):
        lfl(history.slice(0, 1), TabularSoftmax(25, 4), gamma=0.9)
    with pytest.raises(PolicyError, match="TabularSoftmax"):
        lfl(history, LinearSoftmax(1, 4), gamma=0.9)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="gamma"):
        lfl(history, TabularSoftmax(25, 4), gamma=1.0)
    with pytest.raises(OptionError, match="temperature"):
        lfl(history, TabularSoftmax(25, 4), gamma=0.9, temperature=0)


def test_regret_helper_agrees_with_the_library() -> None:
    other = np.array([1.0, 0, 0, 0, 0])
    table = GRID.expected_features @ other
    assert regret_of_table(GRID, table, WEIGHTS) == pytest.approx(
        relative_regret(GRID, other, true_weights=WEIGHTS)
    )


def test_termination_is_followed_by_nothing() -> None:
    stage = Stage(
        observations=np.array([0, 1]),
        actions=np.array([0, 1]),
        lengths=np.array([2]),
        terminated=np.array([True]),
        last_observations=np.array([7]),
    )
    counts = count_transitions(LearningHistory.from_stages([stage, stage]), TabularSoftmax(3, 2))
    np.testing.assert_allclose(counts[0, 0], [0, 1, 0])
    np.testing.assert_allclose(counts[1, 1], 0)
