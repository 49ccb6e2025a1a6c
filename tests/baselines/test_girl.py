import numpy as np
import pytest

from logel.baselines.girl import _on_simplex, girl
from logel.data.history import LearningHistory
from logel.data.stage import Stage
from logel.envs.tabular import feature_jacobian, random_mdp, sample_episodes, softmax_policy
from logel.errors import OptionError
from logel.inference.gauge import direction_error
from logel.policies.softmax import TabularSoftmax

MDP = random_mdp(np.random.default_rng(4), n_states=4, n_actions=3, n_features=3, gamma=0.8)
THETA = np.random.default_rng(5).standard_normal(8)


def one_stage(n_episodes: int) -> LearningHistory:
    policy = softmax_policy(THETA, n_states=4, n_actions=3)
    batch = sample_episodes(
        MDP, policy, rng=np.random.default_rng(0), n_episodes=n_episodes, horizon=10
    )
    stage = Stage(
        observations=batch.states[:, :-1].reshape(-1),
        actions=batch.actions.reshape(-1),
        lengths=np.full(n_episodes, 10),
        terminated=np.zeros(n_episodes, dtype=bool),
        last_observations=batch.states[:, -1],
        features=batch.features.reshape(-1, 3),
        parameters=THETA,
    )
    return LearningHistory.from_stages([stage], feature_names=MDP.feature_names)


def test_smallest_gradient_and_sign_on_the_sphere() -> None:
    exact = feature_jacobian(MDP, THETA, horizon=10)
    truth = np.linalg.svd(exact)[2][-1]
    if THETA @ exact @ truth < 0:
        truth = -truth
    errors = [
        direction_error(
            girl(one_stage(n), TabularSoftmax(4, 3), gamma=0.8, baseline="time").weights, truth
        )
        for n in (500, 50_000)
    ]
    assert errors[1] < 0.1
    assert errors[1] < errors[0]


def test_simplex_solution_is_the_constrained_minimum() -> None:
    rng = np.random.default_rng(2)
    root = rng.standard_normal((6, 3))
    weights = _on_simplex(root.T @ root)
    assert weights.sum() == pytest.approx(1) and (weights >= 0).all()
    grid = rng.dirichlet(np.ones(3), size=20_000)
    best = ((grid @ root.T) ** 2).sum(axis=1).min()
    assert ((root @ weights) ** 2).sum() <= best + 1e-9


def test_unknown_constraint_is_refused() -> None:
    with pytest.raises(OptionError, match="sphere"):
        girl(one_stage(2), TabularSoftmax(4, 3), gamma=0.9, constraint="cube")
