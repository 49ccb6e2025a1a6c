"""Random linear worlds, for tests of everything that claims to hold in all of them."""

from __future__ import annotations

import numpy as np

from logel.envs.lqr import LQRProblem


def random_lqr(
    rng: np.random.Generator,
    *,
    n_states: int = 3,
    n_actions: int = 2,
    n_features: int = 4,
    horizon: int = 20,
    noise: float = 0.1,
) -> LQRProblem:
    """A random linear world, for tests.

    The last feature is minus the squared length of the action; each other one is minus the square
    of a random unit direction of the state.

    The largest eigenvalue of A has modulus .95: the world is stable.
    """
    dynamics = rng.standard_normal((n_states, n_states))
    dynamics *= 0.95 / np.abs(np.linalg.eigvals(dynamics)).max()
    size = n_states + n_actions
    directions = rng.standard_normal((n_features - 1, n_states))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    costs = np.zeros((n_features, size, size))
    costs[:-1, :n_states, :n_states] = directions[:, :, None] * directions[:, None, :]
    costs[-1, n_states:, n_states:] = np.eye(n_actions)
    return LQRProblem(
        dynamics=dynamics,
        control=rng.standard_normal((n_states, n_actions)) / np.sqrt(n_states),
        noise=noise**2 * np.eye(n_states),
        initial_mean=rng.standard_normal(n_states),
        initial_covariance=0.25 * np.eye(n_states),
        costs=costs,
        horizon=horizon,
        feature_names=(*(f"-direction {i}^2" for i in range(n_features - 1)), "-effort^2"),
    )
