import numpy as np

from logel.baselines.girl import girl
from logel.data.history import LearningHistory
from logel.data.stage import Stage
from logel.envs.tabular import feature_jacobian, random_mdp, sample_episodes, softmax_policy
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
