"""Linear-quadratic control, solved exactly: a continuous world in which the truth is known.

States follow s' = A s + B a + noise; every reward feature is minus a quadratic cost of state and
action, so positive weights are costs. Policies act by a = gain @ s + exploration. Everything that
matters is then a function of second moments, which obey a linear recursion: feature expectations,
their derivatives and best policies come without sampling.

n states, k actions, q reward features, T = `horizon` steps per episode. Sums are over those T
steps, discounted, and the best policy then has one gain per time. Functions called stationary are
about one gain for all times and the infinite discounted sum instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import solve_discrete_are, solve_discrete_lyapunov

from logel.envs.tabular import EpisodeArrays, FloatArray
from logel.errors import OptionError, PolicyError
from logel.types import Array

# Curvatures below this fraction of the largest cost are rounding errors of a flat direction.
_FLAT = 1e-12
_NO_BEST = (
    "these weights reward ever larger actions or states, so that no policy is best: give the "
    "actions a positive cost."
)


@dataclass(frozen=True, eq=False)
class LQRProblem:
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
        horizon: Number T of steps of an episode.
        gamma: Discount factor, in [0, 1).
        feature_names: q names; left empty, they become "feature 0", "feature 1", ...
    """

    dynamics: FloatArray
    control: FloatArray
    noise: FloatArray
    initial_mean: FloatArray
    initial_covariance: FloatArray
    costs: FloatArray
    horizon: int = 20
    gamma: float = 0.95
    feature_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        arrays = {}
        for name in (
            "dynamics",
            "control",
            "noise",
            "initial_mean",
            "initial_covariance",
            "costs",
        ):
            arrays[name] = np.array(getattr(self, name), dtype=np.float64)
            if not np.isfinite(arrays[name]).all():
                raise OptionError(f"{name} must be finite; it contains NaN or infinity.")
            arrays[name].flags.writeable = False
            object.__setattr__(self, name, arrays[name])
        if self.control.ndim != 2 or 0 in self.control.shape:
            raise OptionError(f"control must have shape (n, k), got {self.control.shape}.")
        n, k = self.control.shape
        q = len(self.costs) if self.costs.ndim else 0
        expected = {
            "dynamics": (n, n),
            "noise": (n, n),
            "initial_mean": (n,),
            "initial_covariance": (n, n),
            "costs": (q, n + k, n + k),
        }
        for name, shape in expected.items():
            if arrays[name].shape != shape:
                raise OptionError(
                    f"{name} must have shape {shape} to go with control {(n, k)}, "
                    f"got {arrays[name].shape}."
                )
        for name in ("noise", "initial_covariance"):
            _root(arrays[name], name)
        if q == 0 or not np.allclose(self.costs, self.costs.transpose(0, 2, 1)):
            raise OptionError("costs must be one or more symmetric matrices, shape (q, n+k, n+k).")
        if self.horizon < 1:
            raise OptionError(f"horizon must be at least 1, got {self.horizon}.")
        if not 0.0 <= self.gamma < 1.0:
            raise OptionError(f"gamma must be in [0, 1), got {self.gamma}.")
        names = tuple(self.feature_names) or tuple(f"feature {i}" for i in range(q))
        if len(names) != q or len(set(names)) != q:
            raise OptionError(f"feature_names must be {q} different names, got {names}.")
        object.__setattr__(self, "feature_names", names)

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


class ValueMatrices(NamedTuple):
    """One time's part of the backward recursion, for every feature at once.

    The discounted cost to go after action a in state s is, up to a constant, z @ M @ z with
    z = (s, a) and M in blocks.

    Attributes:
        states: Block of the states, shape (q, n, n).
        mixed: Block of actions and states, shape (q, k, n).
        actions: Block of the actions, shape (q, k, k).
    """

    states: FloatArray
    mixed: FloatArray
    actions: FloatArray

    def under(self, gain: FloatArray) -> FloatArray:
        """The matrices of the states when actions follow the gain, shape (q, n, n)."""
        cross = gain.T @ self.mixed
        return self.states + cross + cross.transpose(0, 2, 1) + gain.T @ self.actions @ gain


def point_mass(
    *,
    horizon: int = 20,
    gamma: float = 0.95,
    time_step: float = 0.25,
    friction: float = 0.1,
    noise: float = 0.05,
) -> LQRProblem:
    """A mass pushed along a line: two states, one action, three named costs.

    Args:
        horizon: T.
        gamma: Discount factor.
        time_step: Time between two actions.
        friction: Share of the velocity lost per unit of time.
        noise: Standard deviation of the noise on the velocity; the position has a tenth of it.
    """
    return LQRProblem(
        dynamics=np.array([[1.0, time_step], [0.0, 1.0 - friction * time_step]]),
        control=np.array([[0.5 * time_step**2], [time_step]]),
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
    gamma: float = 0.95,
    spectral_radius: float = 0.95,
    noise: float = 0.1,
) -> LQRProblem:
    """A random linear world, for tests.

    The last feature is minus the squared length of the action; each other one is minus the square
    of a random unit direction of the state.

    Args:
        rng: Source of randomness.
        n_states: n.
        n_actions: k.
        n_features: q, at least 2.
        horizon: T.
        gamma: Discount factor.
        spectral_radius: Largest modulus of the eigenvalues of A: below 1 the world is stable.
        noise: Standard deviation of the noise of every state.
    """
    if n_features < 2:
        raise OptionError(f"n_features must be at least 2, got {n_features}.")
    if spectral_radius <= 0:
        raise OptionError(f"spectral_radius must be positive, got {spectral_radius}.")
    dynamics = rng.standard_normal((n_states, n_states))
    dynamics *= spectral_radius / np.abs(np.linalg.eigvals(dynamics)).max()
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
        gamma=gamma,
        feature_names=(*(f"-direction {i}^2" for i in range(n_features - 1)), "-effort^2"),
    )


def second_moments(problem: LQRProblem, gain: ArrayLike, *, sigma: ArrayLike = 0.0) -> FloatArray:
    """E[s s^T] at the times in which an action is taken, shape (T, n, n).

    Args:
        problem: The world.
        gain: Actions are gain @ s + exploration; shape (k, n), or (T, k, n) for one per time.
        sigma: Standard deviation of the exploration, one or one per action.
    """
    gains, deviations = _gains(problem, gain), _deviations(problem, sigma)
    mean, n = problem.initial_mean, problem.n_states
    moments = np.empty((problem.horizon, n, n))
    moments[0] = problem.initial_covariance + np.outer(mean, mean)
    spread = problem.noise + (problem.control * deviations**2) @ problem.control.T
    for h in range(problem.horizon - 1):
        closed = problem.dynamics + problem.control @ gains[h]
        moments[h + 1] = closed @ moments[h] @ closed.T + spread
    return moments


def feature_expectations(
    problem: LQRProblem, gain: ArrayLike, *, sigma: ArrayLike = 0.0
) -> FloatArray:
    """Discounted reward features collected in an episode, shape (q,); see `second_moments`."""
    gains, deviations = _gains(problem, gain), _deviations(problem, sigma)
    moments = second_moments(problem, gains, sigma=deviations)
    joint = _joint_moments(moments, gains, np.diag(deviations**2))
    discounts = problem.gamma ** np.arange(problem.horizon)
    return -np.tensordot(problem.costs, np.tensordot(discounts, joint, axes=1), axes=2)


def stationary_expectations(
    problem: LQRProblem, gain: ArrayLike, *, sigma: ArrayLike = 0.0
) -> FloatArray:
    """Reward features collected in the infinite discounted sum, shape (q,).

    Args:
        problem: The world.
        gain: Shape (k, n).
        sigma: Standard deviation of the exploration, one or one per action.

    Raises:
        PolicyError: If under this gain states grow so fast that the sums have no limit.
    """
    gain, variances = _one_gain(problem, gain), _deviations(problem, sigma) ** 2
    if not _converges(problem, gain):
        raise PolicyError("under this gain states grow too fast for the discounted sum to exist.")
    mean, gamma = problem.initial_mean, problem.gamma
    closed = np.sqrt(gamma) * (problem.dynamics + problem.control @ gain)
    spread = problem.noise + (problem.control * variances) @ problem.control.T
    start = problem.initial_covariance + np.outer(mean, mean)
    # Sum of gamma^h E[s_h s_h^T]: the recursion of `second_moments`, summed.
    total = solve_discrete_lyapunov(closed, start + gamma / (1.0 - gamma) * spread)
    joint = _joint_moments(total, gain, np.diag(variances) / (1.0 - gamma))
    return -np.tensordot(problem.costs, joint, axes=2)


def feature_jacobian(
    problem: LQRProblem, gain: ArrayLike, *, sigma: ArrayLike = 0.0
) -> tuple[FloatArray, FloatArray]:
    """Derivatives of the feature expectations of a policy with one gain for all times.

    Args:
        problem: The world.
        gain: Shape (k, n).
        sigma: Standard deviation of the exploration, one or one per action.

    Returns:
        The derivative with respect to the gain, shape (k, n, q), and with respect to the
        logarithms of the deviations, shape (k, q).
    """
    gain, deviations = _one_gain(problem, gain), _deviations(problem, sigma)
    moments = second_moments(problem, gain, sigma=deviations)
    by_gain = np.zeros((problem.n_features, problem.n_actions, problem.n_states))
    by_variance = np.zeros((problem.n_features, problem.n_actions))
    for h, value in _backward(problem, gain):
        scale = problem.gamma**h
        by_gain += 2.0 * scale * (value.mixed + value.actions @ gain) @ moments[h]
        by_variance += scale * np.diagonal(value.actions, axis1=1, axis2=2)
    return -by_gain.transpose(1, 2, 0), -2.0 * deviations[:, None] ** 2 * by_variance.T


def start_value(
    problem: LQRProblem, gain: ArrayLike, *, weights: ArrayLike, sigma: ArrayLike = 0.0
) -> float:
    """Expected discounted return of a policy in an episode of T steps; see `second_moments`."""
    return float(feature_expectations(problem, gain, sigma=sigma) @ _weights(problem, weights))


def optimal_gains(problem: LQRProblem, weights: ArrayLike) -> FloatArray:
    """The best policy for episodes of T steps, by the discounted Riccati recursion.

    No policy of any kind does better, and noise does not change it; among equally good actions
    the smallest are taken.

    Args:
        problem: The world.
        weights: Reward weights, shape (q,).

    Returns:
        One gain per time, shape (T, k, n).

    Raises:
        OptionError: If the weights reward ever larger actions, so that no policy is best.
    """
    gains = _riccati(problem, _weights(problem, weights))
    if gains is None:
        raise OptionError(_NO_BEST)
    return gains


def optimal_stationary_gain(problem: LQRProblem, weights: ArrayLike) -> FloatArray:
    """The gain that is best for the infinite discounted sum, by the discounted Riccati equation.

    Best among the policies under which the sum exists.

    Args:
        problem: The world.
        weights: Reward weights, shape (q,).

    Returns:
        One gain for all times, shape (k, n).

    Raises:
        OptionError: If the weights reward ever larger actions, so that no policy is best.
    """
    gain = _stationary_riccati(problem, _weights(problem, weights))
    if gain is None:
        raise OptionError(_NO_BEST)
    return gain


def relative_regret(
    problem: LQRProblem,
    recovered_weights: ArrayLike,
    *,
    true_weights: ArrayLike,
    initial_gain: ArrayLike | None = None,
    stationary: bool = True,
) -> float:
    """What acting on recovered weights costs, as a fraction of what there is to lose.

    (best value - value of the policy that is optimal for the recovered weights) / (best value -
    value of the initial policy), all three under the true weights and without exploration. 0 is as
    good as knowing the reward, 1 no better than not having learnt. Recovered weights for which no
    policy is best (they reward ever larger actions) have infinite regret.

    Args:
        problem: The world.
        recovered_weights: Shape (q,); their scale does not matter.
        true_weights: Shape (q,).
        initial_gain: Gain of the policy to compare with; the one that never acts by default.
        stationary: Whether values are infinite discounted sums and a policy has one gain for all
            times; otherwise values are those of T steps, with one gain per time. Episodes that
            end are the harder test: just before the end nothing holds back a slightly wrong
            reward.
    """
    truth = _weights(problem, true_weights)
    chosen = (_stationary_riccati if stationary else _riccati)(
        problem, _weights(problem, recovered_weights)
    )
    if stationary:
        best_gain, expectations = optimal_stationary_gain(problem, truth), stationary_expectations
    else:
        best_gain, expectations = optimal_gains(problem, truth), feature_expectations
    if initial_gain is None:
        initial_gain = np.zeros((problem.n_actions, problem.n_states))
    best = float(expectations(problem, best_gain) @ truth)
    to_lose = best - float(expectations(problem, initial_gain) @ truth)
    if to_lose <= _FLAT * abs(best):
        return 0.0
    if chosen is None:
        return float("inf")
    # Two evaluations of the same best policy may differ in the last digit.
    return max(best - float(expectations(problem, chosen) @ truth), 0.0) / to_lose


def sample_episodes(
    problem: LQRProblem,
    gain: ArrayLike,
    *,
    rng: np.random.Generator,
    n_episodes: int,
    sigma: ArrayLike = 0.0,
) -> EpisodeArrays:
    """Sample episodes of T steps, all of them in parallel.

    Args:
        problem: The world.
        gain: Shape (k, n), or (T, k, n) for one per time.
        rng: Source of randomness.
        n_episodes: N.
        sigma: Standard deviation of the exploration, one or one per action.

    Returns:
        States (N, T + 1, n), actions (N, T, k) and features (N, T, q).
    """
    if n_episodes < 1:
        raise OptionError(f"n_episodes must be at least 1, got {n_episodes}.")
    gains, deviations = _gains(problem, gain), _deviations(problem, sigma)
    n, k, horizon = problem.n_states, problem.n_actions, problem.horizon
    actions = deviations * rng.standard_normal((n_episodes, horizon, k))
    root = _root(problem.initial_covariance, "initial_covariance")
    states = np.empty((n_episodes, horizon + 1, n))
    states[:, 0] = problem.initial_mean + rng.standard_normal((n_episodes, n)) @ root.T
    states[:, 1:] = rng.standard_normal((n_episodes, horizon, n)) @ _root(problem.noise, "noise").T
    for h in range(horizon):
        actions[:, h] += states[:, h] @ gains[h].T
        states[:, h + 1] += states[:, h] @ problem.dynamics.T + actions[:, h] @ problem.control.T
    return EpisodeArrays(states, actions, problem.features(states[:, :-1], actions))


def _backward(problem: LQRProblem, gain: FloatArray) -> Iterator[tuple[int, ValueMatrices]]:
    """Costs to go of every feature, from the last time to the first."""
    to_go = np.zeros((problem.n_features, problem.n_states, problem.n_states))
    for h in reversed(range(problem.horizon)):
        value = _value(problem, problem.costs, to_go)
        yield h, value
        to_go = value.under(gain)


def _value(problem: LQRProblem, costs: FloatArray, to_go: FloatArray) -> ValueMatrices:
    """Add the discounted cost of the next state, to_go (q, n, n), to the cost of a step."""
    n = problem.n_states
    drift, push = problem.dynamics, problem.control
    after = problem.gamma * (push.T @ to_go)
    return ValueMatrices(
        states=costs[:, :n, :n] + problem.gamma * (drift.T @ to_go @ drift),
        mixed=costs[:, n:, :n] + after @ drift,
        actions=costs[:, n:, n:] + after @ push,
    )


def _riccati(problem: LQRProblem, weights: FloatArray) -> FloatArray | None:
    """The best gains, or None if some direction of the actions is worth going to infinity."""
    cost = np.tensordot(weights, problem.costs, axes=1)[None]
    gains = np.empty((problem.horizon, problem.n_actions, problem.n_states))
    to_go = np.zeros((1, problem.n_states, problem.n_states))
    for h in reversed(range(problem.horizon)):
        value = _value(problem, cost, to_go)
        curvature, vectors = np.linalg.eigh(value.actions[0])
        slope = vectors.T @ value.mixed[0]
        size = max(np.abs(cost).max(), np.abs(value.states).max())
        flat = curvature <= _FLAT * size
        if (curvature < -_FLAT * size).any() or (np.abs(slope[flat]) > _FLAT * size).any():
            return None
        slope[~flat] /= curvature[~flat, None]
        slope[flat] = 0.0
        gains[h] = -vectors @ slope
        to_go = value.under(gains[h])
    return gains


def _stationary_riccati(problem: LQRProblem, weights: FloatArray) -> FloatArray | None:
    """The best gain for the infinite sum, or None if there is none."""
    n, shape = problem.n_states, (problem.n_actions, problem.n_states)
    cost = np.tensordot(weights / max(np.abs(weights).max(), 1e-300), problem.costs, axes=1)
    if not cost.any():
        return np.zeros(shape)
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


def _converges(problem: LQRProblem, gain: FloatArray) -> bool:
    """Whether discounted second moments die out under the gain."""
    closed = problem.dynamics + problem.control @ gain
    return bool(problem.gamma * np.abs(np.linalg.eigvals(closed)).max() ** 2 < 1.0)


def _joint_moments(moments: FloatArray, gain: FloatArray, extra: FloatArray) -> FloatArray:
    """Moments of (s, a) from those of s, with `extra` those of the exploration; broadcasts."""
    mixed = gain @ moments
    actions = mixed @ np.swapaxes(gain, -1, -2) + extra
    return np.block([[moments, np.swapaxes(mixed, -1, -2)], [mixed, actions]])


def _gains(problem: LQRProblem, gain: ArrayLike) -> FloatArray:
    """One gain per time, shape (T, k, n)."""
    array = np.asarray(gain, dtype=np.float64)
    shape = (problem.n_actions, problem.n_states)
    if array.shape not in (shape, (problem.horizon, *shape)) or not np.isfinite(array).all():
        raise PolicyError(
            f"gain must be finite, of shape {shape} or {(problem.horizon, *shape)}, "
            f"got shape {array.shape}."
        )
    return np.broadcast_to(array, (problem.horizon, *shape))


def _one_gain(problem: LQRProblem, gain: ArrayLike) -> FloatArray:
    """One gain for all times, shape (k, n)."""
    if np.ndim(gain) != 2:
        raise PolicyError(
            f"gain must have shape {(problem.n_actions, problem.n_states)}, one for all times, "
            f"got shape {np.shape(gain)}."
        )
    return np.asarray(_gains(problem, gain)[0])


def _deviations(problem: LQRProblem, sigma: ArrayLike) -> FloatArray:
    """One deviation per action, shape (k,)."""
    array = np.asarray(sigma, dtype=np.float64)
    if array.shape not in ((), (problem.n_actions,)) or not (array >= 0).all():
        raise PolicyError(
            f"sigma must be one or {problem.n_actions} numbers, none negative, got {sigma!r}."
        )
    return np.broadcast_to(array, (problem.n_actions,))


def _weights(problem: LQRProblem, weights: ArrayLike) -> FloatArray:
    vector = np.asarray(weights, dtype=np.float64)
    if vector.shape != (problem.n_features,) or not np.isfinite(vector).all():
        raise OptionError(
            f"weights must be {problem.n_features} finite numbers, one per feature "
            f"{problem.feature_names}, got {vector!r}."
        )
    return vector


def _root(covariance: FloatArray, name: str) -> FloatArray:
    """A matrix whose product with its transpose is the covariance, singular ones included."""
    values, vectors = np.linalg.eigh(covariance)
    top = float(np.abs(values).max(initial=0.0))
    if not np.allclose(covariance, covariance.T) or values.min() < -1e-10 * top:
        raise OptionError(f"{name} must be symmetric and positive semi-definite.")
    return np.asarray(vectors * np.sqrt(np.clip(values, 0.0, None)))
