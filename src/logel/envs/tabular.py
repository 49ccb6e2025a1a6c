"""Exact solvers for small finite worlds: the oracles that every estimator is tested against.

Everything here is a pure function of a `TabularMDP` and small arrays. The letters in the shapes
are the glossary's: S states, A actions, q reward features, d = S * (A - 1) policy parameters, and
h for time inside an episode. A `policy` is pi(a | s), shape (S, A); `theta` are the logits of
`softmax_policy`, shape (d,); `weights` are reward weights, shape (q,). Wherever a function takes
`horizon`, `None` means the infinite discounted sum and an integer T means episodes of exactly T
times.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from logel.envs.feature_world import EpisodeArrays, FeatureWorld, at_least_one
from logel.errors import OptionError, PolicyError
from logel.types import Float

Int = NDArray[np.int64]

# Probabilities read from text files carry rounding errors; anything worse is a mistake.
_PROBABILITY_TOLERANCE = 1e-8
# Two actions tie when their values differ by less than this fraction of the largest value any
# policy could have. Linear solves are accurate to about 1e-14 of it, so ties are recognised
# whatever the scale of the weights, and no real difference is mistaken for one.
_TIE_TOLERANCE = 1e-10


@dataclass(frozen=True, eq=False)
class TabularMDP(FeatureWorld):
    """A finite world with linear reward features: the reward is `weights @ features`.

    The arrays are copied, converted to float64 and made read-only.

    Attributes:
        transitions: P(s' | s, a), shape (S, A, S); every row sums to 1.
        features: reward features phi(s, a, s'), shape (S, A, S, q); or (S, A, q) when they do
            not depend on the next state.
        initial: distribution of the first state, shape (S,).
        gamma: discount factor, in [0, 1).
        feature_names: q names; left empty, they become "feature 0", "feature 1", ...
    """

    transitions: Float
    features: Float
    initial: Float
    gamma: float
    feature_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._freeze("transitions", "features", "initial")
        self._check_shapes()
        _check_distributions(self.transitions, "transitions")
        _check_distributions(self.initial, "initial")
        self._check_options()

    def _check_shapes(self) -> None:
        shape = self.transitions.shape
        if len(shape) != 3 or shape[0] != shape[2] or 0 in shape:
            raise OptionError(f"transitions must have shape (S, A, S), got {shape}.")
        s, a = shape[:2]
        expected = {3: (s, a), 4: (s, a, s)}
        if self.features.shape[:-1] != expected.get(self.features.ndim):
            raise OptionError(
                f"features must have shape ({s}, {a}, {s}, q) or ({s}, {a}, q) to match "
                f"transitions {shape}, got {self.features.shape}."
            )
        if self.initial.shape != (s,):
            raise OptionError(f"initial must have shape ({s},), got {self.initial.shape}.")

    @property
    def n_states(self) -> int:
        """The number of states, S."""
        return int(self.transitions.shape[0])

    @property
    def n_actions(self) -> int:
        """The number of actions, A."""
        return int(self.transitions.shape[1])

    @property
    def n_features(self) -> int:
        """The number of reward features, q."""
        return int(self.features.shape[-1])

    @property
    def n_parameters(self) -> int:
        """The number of parameters of the tabular softmax policy, d = S * (A - 1)."""
        return self.n_states * (self.n_actions - 1)

    @cached_property
    def expected_features(self) -> Float:
        """The features expected from each action, E[phi | s, a], shape (S, A, q)."""
        if self.features.ndim == 3:
            return self.features
        expected: Float = (self.transitions[:, :, None, :] @ self.features)[:, :, 0, :]
        expected.flags.writeable = False
        return expected

    @cached_property
    def transition_cdf(self) -> Float:
        """Cumulative next-state probabilities for inverse sampling, shape (S, A, S)."""
        return _cumulative(self.transitions)


def softmax_policy(theta: ArrayLike, *, n_states: int, n_actions: int) -> Float:
    """Action probabilities of the tabular softmax policy, shape (S, A).

    `theta` are the logits of all actions but the last, whose logit is 0, flat and state-major.
    """
    flat = np.asarray(theta, dtype=np.float64)
    if flat.shape != (n_states * (n_actions - 1),):
        raise PolicyError(
            f"theta must have shape ({n_states * (n_actions - 1)},) = n_states * (n_actions - 1) "
            f"for {n_states} states and {n_actions} actions, got {flat.shape}."
        )
    logits = np.zeros((n_states, n_actions))
    logits[:, :-1] = flat.reshape(n_states, n_actions - 1)
    # Without the shift a large logit overflows.
    logits -= logits.max(axis=1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=1, keepdims=True)
    return logits


def uniform_policy(mdp: TabularMDP) -> Float:
    """The policy that picks every action with the same probability, shape (S, A)."""
    return np.full((mdp.n_states, mdp.n_actions), 1.0 / mdp.n_actions)


def occupancy(mdp: TabularMDP, policy: ArrayLike, *, horizon: int | None = None) -> Float:
    """Discounted state occupancy, sum_h gamma^h P(s_h = s), shape (S,).

    With a horizon T only the T states count in which an action is taken. It sums to
    1 / (1 - gamma), or to (1 - gamma^T) / (1 - gamma).
    """
    kernel = _state_kernel(mdp, _as_policy(mdp, policy))
    if horizon is None:
        return _solve(np.eye(mdp.n_states) - mdp.gamma * kernel.T, mdp.initial)
    total: Float = _discounted_marginals(mdp, kernel, horizon).sum(axis=0)
    return total


def feature_action_values(mdp: TabularMDP, policy: ArrayLike) -> Float:
    """Successor features of the actions, shape (S, A, q): times the weights they are Q.

    That is, the discounted features collected after each action, then following the policy.
    """
    return _lookahead(mdp, _as_policy(mdp, policy), mdp.expected_features)


def feature_expectations(
    mdp: TabularMDP, policy: ArrayLike, *, horizon: int | None = None
) -> Float:
    """Discounted reward features the policy collects from the initial distribution, shape (q,)."""
    probabilities = _as_policy(mdp, policy)
    visits = occupancy(mdp, probabilities, horizon=horizon)[:, None] * probabilities
    return np.tensordot(visits, mdp.expected_features, axes=2)


def feature_jacobian(mdp: TabularMDP, theta: ArrayLike, *, horizon: int | None = None) -> Float:
    """Derivative of the feature expectations with respect to the softmax logits, shape (d, q).

    The policy gradient theorem, one column per feature: the row of state s and action b is
    occupancy(s) * pi(b | s) * (Q(s, b) - V(s)). With a finite horizon Q depends on the time left,
    so the product is summed over time.
    """
    policy = softmax_policy(theta, n_states=mdp.n_states, n_actions=mdp.n_actions)
    if horizon is None:
        q_values = feature_action_values(mdp, policy)
        weighted = occupancy(mdp, policy)[:, None, None] * _advantage(policy, q_values)
    else:
        marginals = _discounted_marginals(mdp, _state_kernel(mdp, policy), horizon)
        weighted = np.zeros((mdp.n_states, mdp.n_actions, mdp.n_features))
        q_values = np.zeros_like(weighted)
        for marginal in marginals[::-1]:
            values = (policy[:, None, :] @ q_values)[:, 0, :]
            q_values = mdp.expected_features + mdp.gamma * (mdp.transitions @ values)
            weighted += marginal[:, None, None] * _advantage(policy, q_values)
    rows: Float = policy[:, :-1, None] * weighted[:, :-1]
    return rows.reshape(mdp.n_parameters, mdp.n_features)


def action_values(mdp: TabularMDP, policy: ArrayLike, *, weights: ArrayLike) -> Float:
    """Action values Q(s, a) of a policy under the reward `weights @ features`, shape (S, A)."""
    return _lookahead(mdp, _as_policy(mdp, policy), _rewards(mdp, weights)[:, :, None])[:, :, 0]


def start_value(mdp: TabularMDP, policy: ArrayLike, *, weights: ArrayLike) -> float:
    """Value of a policy from the initial distribution: its expected discounted return."""
    probabilities = _as_policy(mdp, policy)
    q_values = action_values(mdp, probabilities, weights=weights)
    return float(mdp.initial @ (probabilities * q_values).sum(axis=1))


def optimal_policy(mdp: TabularMDP, weights: ArrayLike) -> tuple[Float, Float]:
    """The stationary policy that is best for the infinite discounted sum, by policy iteration.

    Returns:
        The policy, one-hot, shape (S, A), with ties (up to a small relative tolerance) broken to
        the lowest action; and its state values, shape (S,).
    """
    reward = _rewards(mdp, weights)
    tolerance = _tie_tolerance(mdp, reward)
    states = np.arange(mdp.n_states)
    actions = _first_best(reward, tolerance)
    while True:
        values = _values_of_actions(mdp, reward, actions)
        q_values = reward + mdp.gamma * (mdp.transitions @ values)
        best = _first_best(q_values, tolerance)
        # Moving only on a real improvement guarantees that the loop ends.
        improves = q_values[states, best] > q_values[states, actions] + tolerance
        if not improves.any():
            break
        actions = np.where(improves, best, actions)
    if not np.array_equal(best, actions):
        values = _values_of_actions(mdp, reward, best)
    policy = np.zeros((mdp.n_states, mdp.n_actions))
    policy[states, best] = 1.0
    return policy, values


def policy_regret(mdp: TabularMDP, policy: ArrayLike, *, true_weights: ArrayLike) -> float:
    """What following a policy costs, as a fraction of what there is to lose.

    (best value - the policy's value) / (best value - value of the uniform policy), all three under
    the true weights, from the initial distribution, over the infinite horizon. 0 is as good as
    knowing the reward, 1 no better than acting at random, and more than 1 worse than that. Where
    the true reward leaves nothing to lose the regret is 0.
    """
    best = float(mdp.initial @ optimal_policy(mdp, true_weights)[1])
    at_random = start_value(mdp, uniform_policy(mdp), weights=true_weights)
    if best - at_random <= _tie_tolerance(mdp, _rewards(mdp, true_weights)):
        return 0.0
    # Two solves of the same best policy may differ in the last digit.
    loss = max(best - start_value(mdp, policy, weights=true_weights), 0.0)
    return loss / (best - at_random)


def relative_regret(
    mdp: TabularMDP, recovered_weights: ArrayLike, *, true_weights: ArrayLike
) -> float:
    """Regret of the policy that is optimal for the recovered weights; see `policy_regret`."""
    chosen, _ = optimal_policy(mdp, recovered_weights)
    return policy_regret(mdp, chosen, true_weights=true_weights)


def random_mdp(
    rng: np.random.Generator,
    *,
    n_states: int,
    n_actions: int,
    n_features: int,
    gamma: float = 0.9,
    branching: int | None = None,
) -> TabularMDP:
    """A random world with stochastic transitions and standard normal features of (s, a, s').

    `branching` is how many different states each action can lead to; all of them by default.
    """
    branching = n_states if branching is None else branching
    if not 1 <= branching <= n_states:
        raise OptionError(f"branching must be between 1 and {n_states} states, got {branching}.")
    shape = (n_states, n_actions, n_states)
    reachable = rng.random(shape).argsort(axis=-1) < branching
    transitions = np.where(reachable, rng.standard_exponential(shape), 0.0)
    transitions /= transitions.sum(axis=-1, keepdims=True)
    return TabularMDP(
        transitions=transitions,
        features=rng.standard_normal((*shape, n_features)),
        initial=rng.dirichlet(np.ones(n_states)),
        gamma=gamma,
    )


def sample_episodes(
    mdp: TabularMDP, policy: ArrayLike, *, rng: np.random.Generator, n_episodes: int, horizon: int
) -> EpisodeArrays:
    """Sample episodes of T = `horizon` times each, all of them in parallel."""
    n_episodes = at_least_one(n_episodes, "n_episodes")
    policy_cdf = _cumulative(_as_policy(mdp, policy))
    states = np.empty((n_episodes, at_least_one(horizon, "horizon") + 1), dtype=np.int64)
    actions = np.empty((n_episodes, horizon), dtype=np.int64)
    states[:, 0] = _invert(_cumulative(mdp.initial)[None], rng.random(n_episodes))
    for h in range(horizon):
        uniforms = rng.random((2, n_episodes))
        here = states[:, h]
        actions[:, h] = _invert(policy_cdf[here], uniforms[0])
        states[:, h + 1] = _invert(mdp.transition_cdf[here, actions[:, h]], uniforms[1])
    index = (states[:, :-1], actions, states[:, 1:])
    return EpisodeArrays(states, actions, mdp.features[index[: mdp.features.ndim - 1]])


def _solve(system: Float, right: Float) -> Float:
    # gamma < 1 keeps I - gamma * P regular, so no least squares or fallback is needed.
    return np.asarray(np.linalg.solve(system, right), dtype=np.float64)


def _state_kernel(mdp: TabularMDP, policy: Float) -> Float:
    """State-to-state probabilities under the policy, shape (S, S)."""
    kernel: Float = (policy[:, None, :] @ mdp.transitions)[:, 0, :]
    return kernel


def _discounted_marginals(mdp: TabularMDP, kernel: Float, horizon: int) -> Float:
    """gamma^h P(s_h = s) for h < horizon, shape (T, S)."""
    marginals = np.empty((at_least_one(horizon, "horizon"), mdp.n_states))
    marginals[0] = mdp.initial
    discounted = mdp.gamma * kernel
    for h in range(1, horizon):
        np.dot(marginals[h - 1], discounted, out=marginals[h])
    return marginals


def _lookahead(mdp: TabularMDP, policy: Float, payoff: Float) -> Float:
    """Discounted sums of a payoff of shape (S, A, k) after each action, same shape."""
    expected = (policy[:, None, :] @ payoff)[:, 0, :]
    system = np.eye(mdp.n_states) - mdp.gamma * _state_kernel(mdp, policy)
    return payoff + mdp.gamma * (mdp.transitions @ _solve(system, expected))


def _advantage(policy: Float, q_values: Float) -> Float:
    """Q(s, a) - V(s) for every feature, shape (S, A, q)."""
    return q_values - policy[:, None, :] @ q_values


def _rewards(mdp: TabularMDP, weights: ArrayLike) -> Float:
    """Expected reward of every action, shape (S, A)."""
    return mdp.expected_features @ mdp.checked_weights(weights)


def _values_of_actions(mdp: TabularMDP, reward: Float, actions: Int) -> Float:
    """State values of the deterministic policy `actions`, shape (S,)."""
    states = np.arange(mdp.n_states)
    system = np.eye(mdp.n_states) - mdp.gamma * mdp.transitions[states, actions]
    return _solve(system, reward[states, actions])


def _tie_tolerance(mdp: TabularMDP, reward: Float) -> float:
    return _TIE_TOLERANCE * float(np.abs(reward).max()) / (1.0 - mdp.gamma)


def _first_best(q_values: Float, tolerance: float) -> Int:
    """The lowest action whose value is within the tolerance of the best, shape (S,)."""
    return np.asarray((q_values >= q_values.max(axis=1, keepdims=True) - tolerance).argmax(axis=1))


def _cumulative(probabilities: Float) -> Float:
    """Cumulative probabilities along the last axis, ending in exactly 1.

    Dividing by the last entry also makes the entries after the last possible outcome exactly 1,
    so that an outcome of probability 0 is never drawn.
    """
    cdf = probabilities.cumsum(axis=-1)
    cdf /= cdf[..., -1:]
    return cdf


def _invert(cdf: Float, uniforms: Float) -> Int:
    """Inverse sampling, one row of `cdf` (or a shared one) per uniform number in [0, 1)."""
    indices: Int = (cdf <= uniforms[:, None]).sum(axis=1, dtype=np.int64)
    return indices


def _as_policy(mdp: TabularMDP, policy: ArrayLike) -> Float:
    probabilities = np.asarray(policy, dtype=np.float64)
    if probabilities.shape != (mdp.n_states, mdp.n_actions):
        raise PolicyError(
            f"policy must have shape ({mdp.n_states}, {mdp.n_actions}), one row of action "
            f"probabilities per state, got {probabilities.shape}."
        )
    # `not (<=)` instead of `>` so that NaN is caught as well.
    worst = float(np.abs(probabilities.sum(axis=1) - 1.0).max())
    if not (worst <= _PROBABILITY_TOLERANCE and probabilities.min() >= 0.0):
        raise PolicyError(
            "policy rows must be probabilities that sum to 1; the worst row is off by "
            f"{worst:.3g} and the smallest entry is {probabilities.min():.3g}."
        )
    return probabilities


def _check_distributions(array: Float, name: str) -> None:
    """Every row along the last axis must be a probability distribution."""
    if array.min() < 0.0:
        where = tuple(int(i) for i in np.unravel_index(array.argmin(), array.shape))
        raise OptionError(f"{name}{list(where)} is negative: {array[where]:.6g}.")
    sums = np.atleast_1d(array.sum(axis=-1))
    off = np.abs(sums - 1.0)
    if off.max() > _PROBABILITY_TOLERANCE:
        where = tuple(int(i) for i in np.unravel_index(off.argmax(), off.shape))
        row = f" row {list(where)}" if array.ndim > 1 else ""
        raise OptionError(f"{name}{row} must sum to 1, it sums to {sums[where]:.9g}.")
