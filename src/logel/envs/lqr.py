"""Linear-quadratic control, solved exactly: a continuous world in which the truth is known.

States follow s' = A s + B a + noise; every reward feature is minus a quadratic cost of state and
action, so positive weights are costs. Policies act by a = gain @ s + exploration. Everything that
matters is then a function of second moments, which obey a linear recursion: feature expectations,
their derivatives and best policies come without sampling.

n states, k actions, q reward features, T = `horizon` times per episode. A policy has one `gain` for
all times, shape (k, n), and explores with the standard deviations `sigma`, one or one per action.
Sums are over T times, discounted; functions called stationary are about the infinite discounted
sum instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import solve_discrete_are, solve_discrete_lyapunov

from logel.envs.feature_world import EpisodeArrays, FeatureWorld, at_least_one
from logel.errors import OptionError, PolicyError
from logel.types import Array, Float

# Curvatures below this fraction of the largest cost are rounding errors of a flat direction.
_FLAT = 1e-12
_ARRAYS = ("dynamics", "control", "noise", "initial_mean", "initial_covariance", "costs")


@dataclass(frozen=True, eq=False)
class LQRProblem(FeatureWorld):
    """A linear world with quadratic reward features: the reward is `weights @ features`.

    The arrays are copied, converted to float64 and made read-only.

    Attributes:
        dynamics: A, shape (n, n).
        control: B, shape (n, k).
        noise: Covariance of the noise in every transition, shape (n, n).
        initial_mean: Mean of the first state, shape (n,).
        initial_covariance: Its covariance, shape (n, n).
        costs: One symmetric matrix per feature, shape (q, n + k, n + k); feature i of state s and
            action a is -z @ costs[i] @ z with z = (s, a).
        horizon: Number T of times of an episode.
        gamma: Discount factor, in [0, 1).
        feature_names: q names; left empty, they become "feature 0", "feature 1", ...
    """

    dynamics: Float
    control: Float
    noise: Float
    initial_mean: Float
    initial_covariance: Float
    costs: Float
    horizon: int = 20
    gamma: float = 0.95
    feature_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._freeze(*_ARRAYS)
        at_least_one(self.horizon, "horizon")
        self._check_options()

    @property
    def n_states(self) -> int:
        """Dimension n of the state."""
        return int(self.control.shape[0])

    @property
    def n_actions(self) -> int:
        """Dimension k of the action."""
        return int(self.control.shape[1])

    @property
    def n_features(self) -> int:
        """The number of reward features, q."""
        return len(self.costs)

    def features(self, states: Array, actions: Array, next_states: Array | None = None) -> Array:
        """Reward features of transitions, shape (..., q); the next state does not matter."""
        both = np.concatenate([states, actions], axis=-1)
        # One product per feature: a single three-way contraction would loop in C.
        return -np.stack([((both @ cost) * both).sum(axis=-1) for cost in self.costs], axis=-1)


class _ValueMatrices(NamedTuple):
    """One time's part of the backward recursion, for every feature at once.

    The discounted cost to go after action a in state s is, up to a constant, z @ M @ z with
    z = (s, a) and M in blocks.

    Attributes:
        states: Block of the states, shape (q, n, n).
        mixed: Block of actions and states, shape (q, k, n).
        actions: Block of the actions, shape (q, k, k).
    """

    states: Float
    mixed: Float
    actions: Float

    def under(self, gain: Float) -> Float:
        """The matrices of the states when actions follow the gain, shape (q, n, n)."""
        cross = gain.T @ self.mixed
        return self.states + cross + cross.transpose(0, 2, 1) + gain.T @ self.actions @ gain


# Time between two actions of the point mass, and the share of its velocity lost per unit of time.
_PERIOD, _FRICTION = 0.25, 0.1


def point_mass(*, horizon: int = 20, gamma: float = 0.95, noise: float = 0.05) -> LQRProblem:
    """A mass pushed along a line: two states, one action, three named costs.

    `noise` is the standard deviation of the noise on the velocity; the position has a tenth of it.
    """
    return LQRProblem(
        dynamics=np.array([[1.0, _PERIOD], [0.0, 1.0 - _FRICTION * _PERIOD]]),
        control=np.array([[0.5 * _PERIOD**2], [_PERIOD]]),
        noise=np.diag([0.01, 1.0]) * noise**2,
        initial_mean=np.array([1.0, 0.0]),
        initial_covariance=np.diag([0.25, 0.25]),
        costs=np.array([np.diag(row) for row in np.eye(3)]),
        horizon=horizon,
        gamma=gamma,
        feature_names=("-position^2", "-velocity^2", "-effort^2"),
    )


def random_lqr(
    rng: np.random.Generator,
    *,
    n_states: int = 3,
    n_actions: int = 2,
    n_features: int = 4,
    horizon: int = 20,
    noise: float = 0.1,
) -> LQRProblem:
    """A random linear world.

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


def second_moments(problem: LQRProblem, gain: Float, *, sigma: Float) -> Float:
    """E[s s^T] at the times in which an action is taken, shape (T, n, n)."""
    closed = problem.dynamics + problem.control @ gain
    spread = problem.noise + (problem.control * np.square(sigma)) @ problem.control.T
    moments = np.empty((problem.horizon, *spread.shape))
    moments[0] = _first_moments(problem)
    for h in range(problem.horizon - 1):
        moments[h + 1] = closed @ moments[h] @ closed.T + spread
    return moments


def feature_expectations(problem: LQRProblem, gain: Float, *, sigma: Float) -> Float:
    """Discounted reward features collected in an episode, shape (q,)."""
    moments = second_moments(problem, gain, sigma=sigma)
    joint = _joint_moments(moments, gain, np.square(sigma))
    discounts = problem.gamma ** np.arange(problem.horizon)
    return -np.tensordot(problem.costs, np.tensordot(discounts, joint, axes=1), axes=2)


def stationary_expectations(problem: LQRProblem, gain: Float) -> Float:
    """Reward features collected, without exploration, in the infinite discounted sum, shape (q,).

    Raises:
        PolicyError: If under this gain states grow so fast that the sums have no limit.
    """
    if not _converges(problem, gain):
        raise PolicyError("under this gain states grow too fast for the discounted sum to exist.")
    gamma = problem.gamma
    closed = np.sqrt(gamma) * (problem.dynamics + problem.control @ gain)
    spread = gamma / (1.0 - gamma) * problem.noise
    # Sum of gamma^h E[s_h s_h^T]: the recursion of `second_moments`, summed.
    total = solve_discrete_lyapunov(closed, _first_moments(problem) + spread)
    joint = _joint_moments(total, gain, np.zeros(problem.n_actions))
    return -np.tensordot(problem.costs, joint, axes=2)


def feature_jacobian(problem: LQRProblem, gain: Float, *, sigma: Float) -> tuple[Float, Float]:
    """Derivatives of the feature expectations.

    Returns:
        The derivative with respect to the gain, shape (k, n, q), and with respect to the
        logarithms of the deviations, shape (k, q).
    """
    moments = second_moments(problem, gain, sigma=sigma)
    by_gain = np.zeros((problem.n_features, problem.n_actions, problem.n_states))
    by_variance = np.zeros((problem.n_features, problem.n_actions))
    to_go = np.zeros((problem.n_features, problem.n_states, problem.n_states))
    for h in reversed(range(problem.horizon)):
        value, scale = _value(problem, problem.costs, to_go), problem.gamma**h
        by_gain += 2.0 * scale * (value.mixed + value.actions @ gain) @ moments[h]
        by_variance += scale * np.diagonal(value.actions, axis1=1, axis2=2)
        to_go = value.under(gain)
    return -by_gain.transpose(1, 2, 0), -2.0 * np.square(sigma)[:, None] * by_variance.T


def optimal_stationary_gain(problem: LQRProblem, weights: ArrayLike) -> Float | None:
    """The gain that is best for the infinite discounted sum, by the discounted Riccati equation.

    Best among the policies under which the sum exists; shape (k, n). None if no policy is best
    because the weights reward ever larger actions or states.
    """
    n = problem.n_states
    vector = problem.checked_weights(weights)
    cost = np.tensordot(vector / max(np.abs(vector).max(), 1e-300), problem.costs, axes=1)
    if not cost.any():
        return np.zeros((problem.n_actions, n))
    root = np.sqrt(problem.gamma)
    try:
        to_go = solve_discrete_are(
            root * problem.dynamics,
            root * problem.control,
            cost[:n, :n],
            cost[n:, n:],
            s=cost[:n, n:],
        )
    except np.linalg.LinAlgError:
        return None
    value = _value(problem, cost[None], to_go[None])
    # The equation also holds where actions are the worst instead of the best.
    if np.linalg.eigvalsh(value.actions[0]).min() <= _FLAT * np.abs(value.states).max():
        return None
    gain = -np.linalg.solve(value.actions[0], value.mixed[0])
    return gain if _converges(problem, gain) else None


def relative_regret(
    problem: LQRProblem, recovered_weights: ArrayLike, *, true_weights: ArrayLike
) -> float:
    """What acting on recovered weights costs, as a fraction of what there is to lose.

    (best value - value of the policy that is optimal for the recovered weights) / (best value -
    value of never acting), all three under the true weights, for the infinite discounted sum and
    without exploration. 0 is as good as knowing the reward, 1 no better than not having learnt.
    Recovered weights for which no policy is best (they reward ever larger actions) have infinite
    regret; their scale does not matter.
    """
    truth = problem.checked_weights(true_weights)
    chosen = optimal_stationary_gain(problem, recovered_weights)
    right = optimal_stationary_gain(problem, truth)
    if right is None:
        raise OptionError(f"the true weights {truth} leave no policy best: regret means nothing.")

    def value(gain: Float) -> float:
        return float(stationary_expectations(problem, gain) @ truth)

    best = value(right)
    to_lose = best - value(np.zeros((problem.n_actions, problem.n_states)))
    if to_lose <= _FLAT * abs(best):
        return 0.0
    if chosen is None:
        return float("inf")
    # Two evaluations of the same best policy may differ in the last digit.
    return max(best - value(chosen), 0.0) / to_lose


def sample_episodes(
    problem: LQRProblem,
    gain: Float,
    *,
    rng: np.random.Generator,
    n_episodes: int,
    sigma: Float,
) -> EpisodeArrays:
    """Sample episodes of T times, all of them in parallel."""
    at_least_one(n_episodes, "n_episodes")
    n, k, horizon = problem.n_states, problem.n_actions, problem.horizon
    actions = sigma * rng.standard_normal((n_episodes, horizon, k))
    root = _root(problem.initial_covariance)
    states = np.empty((n_episodes, horizon + 1, n))
    states[:, 0] = problem.initial_mean + rng.standard_normal((n_episodes, n)) @ root.T
    states[:, 1:] = rng.standard_normal((n_episodes, horizon, n)) @ _root(problem.noise).T
    for h in range(horizon):
        actions[:, h] += states[:, h] @ gain.T
        states[:, h + 1] += states[:, h] @ problem.dynamics.T + actions[:, h] @ problem.control.T
    return EpisodeArrays(states, actions, problem.features(states[:, :-1], actions))


def _first_moments(problem: LQRProblem) -> Float:
    return problem.initial_covariance + np.outer(problem.initial_mean, problem.initial_mean)


def _value(problem: LQRProblem, costs: Float, to_go: Float) -> _ValueMatrices:
    """Add the discounted cost of the next state, to_go (q, n, n), to the cost of a time."""
    n = problem.n_states
    drift, push = problem.dynamics, problem.control
    after = problem.gamma * (push.T @ to_go)
    return _ValueMatrices(
        states=costs[:, :n, :n] + problem.gamma * (drift.T @ to_go @ drift),
        mixed=costs[:, n:, :n] + after @ drift,
        actions=costs[:, n:, n:] + after @ push,
    )


def _converges(problem: LQRProblem, gain: Float) -> bool:
    """Whether discounted second moments die out under the gain."""
    closed = problem.dynamics + problem.control @ gain
    return bool(problem.gamma * np.abs(np.linalg.eigvals(closed)).max() ** 2 < 1.0)


def _joint_moments(moments: Float, gain: Float, variances: Float) -> Float:
    """Moments of (s, a) from those of s and the exploration's variances; broadcasts."""
    mixed = gain @ moments
    actions = mixed @ gain.T + np.diag(variances)
    return np.block([[moments, np.swapaxes(mixed, -1, -2)], [mixed, actions]])


def _root(covariance: Float) -> Float:
    """A matrix whose product with its transpose is the covariance, singular ones included."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.clip(values, 0.0, None)))
