"""Worlds seen through a differentiable policy family: parameters in, exact answers out.

A `ParametricWorld` pairs a world with the family its learner uses. It knows what a policy's flat
parameters collect, how that changes with them, what information a discounted episode carries
about them, and how to sample episodes; learners and tests need nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logel.data.stage import Stage
from logel.envs import lqr, tabular
from logel.envs.feature_world import EpisodeArrays, FeatureWorld, at_least_one
from logel.errors import OptionError, PolicyError
from logel.policies.base import Policy
from logel.policies.fisher import DenseFisher, Fisher
from logel.policies.gaussian import LinearGaussian
from logel.policies.softmax import LinearSoftmax
from logel.types import Array, Float


class ParametricWorld(ABC):
    """A world and the policy family its learner uses; episodes have a fixed number of times."""

    @property
    @abstractmethod
    def world(self) -> FeatureWorld:
        """The world itself."""

    @property
    @abstractmethod
    def policy(self) -> Policy:
        """The family; its d parameters travel as flat arrays."""

    @property
    def gamma(self) -> float:
        """Discount factor."""
        return self.world.gamma

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the q reward features."""
        return self.world.feature_names

    @abstractmethod
    def expectations(self, parameters: npt.ArrayLike) -> Float:
        """Discounted reward features collected in an episode, shape (q,)."""

    @abstractmethod
    def jacobian(self, parameters: npt.ArrayLike) -> Float:
        """Derivative of the expectations with respect to the parameters, shape (d, q)."""

    @abstractmethod
    def fisher(self, parameters: npt.ArrayLike) -> Fisher:
        """Expected information of one episode, what happens at time h counting gamma^h."""

    @abstractmethod
    def _episodes(
        self, parameters: npt.ArrayLike, rng: np.random.Generator, n_episodes: int
    ) -> EpisodeArrays: ...

    def sample(
        self, parameters: npt.ArrayLike, *, rng: np.random.Generator, n_episodes: int
    ) -> Stage:
        """Sample episodes; the stage does not carry the parameters."""
        return self._episodes(parameters, rng, n_episodes).stage()

    def _flat(self, parameters: npt.ArrayLike) -> Float:
        theta, d = np.asarray(parameters, dtype=np.float64), self.policy.n_parameters
        if theta.shape != (d,) or not np.isfinite(theta).all():
            raise PolicyError(
                f"parameters must be {d} finite numbers for {type(self.policy).__name__}, "
                f"got shape {theta.shape}."
            )
        return theta


@dataclass(frozen=True, eq=False)
class LinearControl(ParametricWorld):
    """A linear-quadratic problem controlled by a linear Gaussian policy.

    Parameters are those of `LinearGaussian`: the transposed gain row by row, then the logarithms
    of the deviations unless `sigma` fixes them.

    Attributes:
        problem: The world.
        sigma: Fixed deviation of the exploration (one, or one per action); None to learn it.
    """

    problem: lqr.LQRProblem
    sigma: float | Sequence[float] | None = None

    @property
    def world(self) -> lqr.LQRProblem:
        """The problem."""
        return self.problem

    @property
    def policy(self) -> LinearGaussian:
        """The family."""
        return LinearGaussian(self.problem.n_states, self.problem.n_actions, sigma=self.sigma)

    def gain(self, parameters: npt.ArrayLike) -> Float:
        """The gain in the parameters, shape (k, n)."""
        return self._split(parameters)[0]

    def expectations(self, parameters: npt.ArrayLike) -> Float:
        """Discounted reward features collected in an episode, shape (q,)."""
        gain, sigma = self._split(parameters)
        return lqr.feature_expectations(self.problem, gain, sigma=sigma)

    def jacobian(self, parameters: npt.ArrayLike) -> Float:
        """Derivative of the expectations with respect to the parameters, shape (d, q)."""
        gain, sigma = self._split(parameters)
        by_gain, by_log_std = lqr.feature_jacobian(self.problem, gain, sigma=sigma)
        rows = by_gain.transpose(1, 0, 2).reshape(-1, self.problem.n_features)
        return rows if self.sigma is not None else np.concatenate([rows, by_log_std])

    def fisher(self, parameters: npt.ArrayLike) -> Fisher:
        """Expected information of one discounted episode."""
        gain, sigma = self._split(parameters)
        discounts = self.gamma ** np.arange(self.problem.horizon)
        moments = lqr.second_moments(self.problem, gain, sigma=sigma)
        total = np.tensordot(discounts, moments, axes=1)
        d = self.policy.n_parameters
        # At every time a log-deviation carries the information 2 and is independent of the mean's.
        matrix = 2.0 * discounts.sum() * np.eye(d)
        n_mean = self.policy.n_mean_parameters
        matrix[:n_mean, :n_mean] = np.kron(total, np.diag(1.0 / sigma**2))
        return DenseFisher(matrix)

    def _episodes(
        self, parameters: npt.ArrayLike, rng: np.random.Generator, n_episodes: int
    ) -> EpisodeArrays:
        gain, sigma = self._split(parameters)
        return lqr.sample_episodes(self.problem, gain, rng=rng, n_episodes=n_episodes, sigma=sigma)

    def _split(self, parameters: npt.ArrayLike) -> tuple[Float, Float]:
        """Gain (k, n) and deviations (k,)."""
        n, k = self.problem.n_states, self.problem.n_actions
        theta = self._flat(parameters)
        gain = theta[: n * k].reshape(n, k).T
        if self.sigma is None:
            return gain, np.exp(theta[n * k :])
        return gain, np.broadcast_to(np.asarray(self.sigma, dtype=np.float64), (k,))


@dataclass(frozen=True, eq=False)
class StateTable:
    """A feature map for integer states: the rows of a table, shape (n_states, n_features)."""

    rows: Float

    def __call__(self, observations: Array, /) -> Float:
        """The rows of N states, shape (N, n_features)."""
        return self.rows[observations]


@dataclass(frozen=True, eq=False)
class FeaturisedMDP(ParametricWorld):
    """A tabular world whose learner sees its states through fixed features, p of them.

    Its policy is a `LinearSoftmax` with p * (n_actions - 1) parameters. Episodes record the
    integer states; the family's feature map turns them into features.

    Attributes:
        mdp: The world.
        state_features: Shape (n_states, p); copied and made read-only.
        horizon: Times per episode.
    """

    mdp: tabular.TabularMDP
    state_features: Float
    horizon: int = 20

    def __post_init__(self) -> None:
        table = np.array(self.state_features, dtype=np.float64)
        if table.ndim != 2 or len(table) != self.mdp.n_states or table.shape[1] == 0:
            raise OptionError(
                f"state_features must have shape ({self.mdp.n_states}, p), one row per state, "
                f"got {table.shape}."
            )
        if not np.isfinite(table).all():
            raise OptionError("state_features must be finite; they contain NaN or infinity.")
        at_least_one(self.horizon, "horizon")
        table.flags.writeable = False
        object.__setattr__(self, "state_features", table)

    @property
    def world(self) -> tabular.TabularMDP:
        """The table."""
        return self.mdp

    @property
    def policy(self) -> LinearSoftmax:
        """The family."""
        return LinearSoftmax(
            self.state_features.shape[1],
            self.mdp.n_actions,
            feature_map=StateTable(self.state_features),
        )

    def probabilities(self, parameters: npt.ArrayLike) -> Float:
        """Action probabilities in every state, shape (S, A)."""
        return tabular.softmax_policy(
            self._logits(parameters), n_states=self.mdp.n_states, n_actions=self.mdp.n_actions
        )

    def expectations(self, parameters: npt.ArrayLike) -> Float:
        """Discounted reward features collected in an episode, shape (q,)."""
        policy = self.probabilities(parameters)
        return tabular.feature_expectations(self.mdp, policy, horizon=self.horizon)

    def jacobian(self, parameters: npt.ArrayLike) -> Float:
        """Derivative of the expectations with respect to the parameters, shape (d, q).

        The chain rule: logits are linear in the parameters.
        """
        by_logit = tabular.feature_jacobian(
            self.mdp, self._logits(parameters), horizon=self.horizon
        )
        by_state = by_logit.reshape(self.mdp.n_states, -1)
        return (self.state_features.T @ by_state).reshape(-1, self.mdp.n_features)

    def fisher(self, parameters: npt.ArrayLike) -> Fisher:
        """Expected information of one discounted episode."""
        policy = self.policy
        visits = tabular.occupancy(self.mdp, self.probabilities(parameters), horizon=self.horizon)
        table = policy.tensor(self.state_features)
        return policy.fisher(policy.tensor(parameters), table, policy.tensor(visits))

    def _episodes(
        self, parameters: npt.ArrayLike, rng: np.random.Generator, n_episodes: int
    ) -> EpisodeArrays:
        policy, horizon = self.probabilities(parameters), self.horizon
        return tabular.sample_episodes(
            self.mdp, policy, rng=rng, n_episodes=n_episodes, horizon=horizon
        )

    def _logits(self, parameters: npt.ArrayLike) -> Float:
        """Logits of all states but for the last action's, state-major, shape (S (A - 1),)."""
        theta = self._flat(parameters)
        return (self.state_features @ theta.reshape(self.state_features.shape[1], -1)).reshape(-1)
