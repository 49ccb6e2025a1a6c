"""A linear system with quadratic features and a learner whose advantages are known in closed form.

x' = A x + B a + noise, a = k + K x + sigma z; features -x1^2, -x2^2, -|a|^2, x1. The natural
gradient moves the mean by rate * sigma^2 * dQ/da at the mean, which is linear in x again.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from logel.data.history import LearningHistory
from logel.data.stage import Stage
from logel.policies.gaussian import LinearGaussian
from logel.types import Float

GAMMA, SIGMA, NOISE = 0.9, 0.5, 0.4
NAMES = ("-x1^2", "-x2^2", "-|a|^2", "x1")
TRUTH = np.array([0.7, 0.3, 0.4, 0.5]) / np.linalg.norm([0.7, 0.3, 0.4, 0.5])
_A = np.array([[0.8, 0.3], [-0.2, 0.7]])
_B = np.array([[0.6, 0.0], [0.2, 0.5]])
START = np.array([[0.5, -0.5], [-0.6, 0.3], [0.5, -0.9]])  # rows: one, x1, x2; columns: actions


def with_one(observations: npt.NDArray[np.generic]) -> Float:
    x = np.asarray(observations, dtype=float).reshape(len(observations), 2)
    return np.concatenate([np.ones((len(x), 1)), x], axis=1)


POLICY = LinearGaussian(n_features=3, action_dim=2, sigma=SIGMA, feature_map=with_one)


def advantage_slopes(theta: Float, weights: Float) -> Float:
    """Coefficients of z in the advantage, as rows (one, x1, x2), shape (3, 2)."""
    offset, gain = theta[0], theta[1:].T
    state, action = np.diag(weights[:2]), weights[2] * np.eye(2)
    linear = np.array([weights[3], 0.0])
    closed = _A + _B @ gain
    # V = x'Px + r'x + c: match the quadratic and the linear terms of the Bellman equation.
    system = np.eye(4) - GAMMA * np.kron(closed.T, closed.T)
    p = np.linalg.solve(system, (-state - gain.T @ action @ gain).reshape(-1)).reshape(2, 2)
    right = linear - 2 * gain.T @ action @ offset + 2 * GAMMA * closed.T @ p @ _B @ offset
    r = np.linalg.solve(np.eye(2) - GAMMA * closed.T, right)
    constant = -2 * action @ offset + GAMMA * _B.T @ (2 * p @ _B @ offset + r)
    slope = -2 * action @ gain + 2 * GAMMA * _B.T @ p @ closed
    return SIGMA * np.concatenate([constant[None], slope.T])


def learner_path(n_steps: int, rate: float, weights: Float = TRUTH) -> list[Float]:
    """Parameters (3, 2) of a natural-gradient learner's policies."""
    path = [START]
    for _ in range(n_steps):
        path.append(path[-1] + rate * SIGMA * advantage_slopes(path[-1], weights))
    return path


def sample_stage(theta: Float, n_episodes: int, horizon: int, rng: np.random.Generator) -> Stage:
    x = rng.standard_normal((n_episodes, 2))
    states, actions = [x], []
    for _ in range(horizon):
        a = with_one(x) @ theta + SIGMA * rng.standard_normal((n_episodes, 2))
        x = x @ _A.T + a @ _B.T + NOISE * rng.standard_normal((n_episodes, 2))
        states.append(x)
        actions.append(a)
    seen, taken = np.stack(states, axis=1), np.stack(actions, axis=1).reshape(-1, 2)
    before = seen[:, :-1].reshape(-1, 2)
    features = [-(before**2), -(taken**2).sum(axis=1, keepdims=True), before[:, :1]]
    return Stage(
        observations=before,
        actions=taken,
        lengths=np.full(n_episodes, horizon),
        terminated=np.zeros(n_episodes, dtype=bool),
        last_observations=seen[:, -1],
        features=np.concatenate(features, axis=1),
    )


def watched(
    seed: int,
    *,
    n_steps: int = 8,
    rate: float = 0.15,
    n_episodes: int = 60,
    horizon: int = 40,
    known: bool = True,
    path: list[Float] | None = None,
) -> LearningHistory:
    rng = np.random.default_rng(seed)
    stages = []
    for theta in path or learner_path(n_steps, rate):
        stage = sample_stage(theta, n_episodes, horizon, rng)
        stages.append(replace(stage, parameters=theta.reshape(-1) if known else None))
    return LearningHistory.from_stages(stages, feature_names=NAMES)
