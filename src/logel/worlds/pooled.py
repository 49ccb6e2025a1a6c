"""The return around a policy's parameters in a continuous world, pooled over all stages.

A linear critic of the reward features (successor features), in a polynomial basis of observation
and action, is fitted backwards from the horizon on the transitions of *all* stages and evaluated
under each stage's own policy: what follows an action does not depend on who took it. A stage's
Jacobian is then the mean over its own visited states of

    sum_a  pi(a | s) score(s, a) (x) Q_phi(s, a)

with the sum over actions done exactly (or by Gaussian quadrature), so that only the states of a
stage are its own sample. Where the basis cannot express the critic this is biased; the stage's own
returns say by how much, and as much of that correction is applied as stands out of its noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from logel.data.observations import as_numbers
from logel.data.stage import Stage
from logel.errors import HistoryError, OptionError
from logel.policies.base import Policy
from logel.types import Array, Float
from logel.worlds.base import N_GROUPS, Landscape, Observation, World, natural_of
from logel.worlds.critic import products
from logel.worlds.own_episodes import features_to_go, following_observations

# Observation (and action) coordinates up to which all products of two enter the basis.
_MOST_CROSSED = 10
# Of the mean square of a basis function: enough to invert the Gram matrix, too little to bias it.
_RIDGE = 1e-6


@dataclass(frozen=True, eq=False)
class _Rows:
    """One stage, N rows in the forms the critic and the likelihood need."""

    observations: Tensor  # as the policy takes them
    actions: Tensor
    following: Tensor  # next observations, likewise
    raw: Float  # observations as numbers, (N, p)
    raw_following: Float
    going: Array  # whether the episode goes on from the next observation
    known: Array  # whether the next observation (or that there is none) is known
    times: Array
    features: Float  # (N, q)
    to_go: Float  # discounted features from each row on, (N, q)
    group: Array  # of episodes, to which each row belongs
    n_episodes: Float  # in each group, (g,)

    def take(self, rows: Array) -> _Rows:
        """Some of the rows, given by a mask (N,)."""
        device = self.observations.device
        picked = {}
        for name in (field.name for field in fields(self) if field.name != "n_episodes"):
            values = getattr(self, name)
            tensor = isinstance(values, Tensor)
            picked[name] = values[torch.as_tensor(rows, device=device) if tensor else rows]
        return replace(self, **picked)

    def without(self, group: int | None) -> _Rows:
        """The stage as if a group of episodes had never been seen."""
        if group is None:
            return self
        n_episodes = self.n_episodes.copy()
        n_episodes[group] = 0
        return replace(self.take(self.group != group), n_episodes=n_episodes)


@dataclass(frozen=True, eq=False)
class SampledWorld(World):
    """What all stages of a continuous world show; a `World` once anchored (`at`)."""

    policy: Policy
    gamma: float
    horizon: int  # times an episode lasts at most
    rows: tuple[_Rows, ...]
    basis: CriticBasis
    # Stages that the critic is fitted on; if there are none, those of `rows`.
    company: tuple[_Rows, ...] = ()
    # The landscape where the Jacobians were last computed, or None.
    anchored: Landscape | None = None
    # Fisher information of a discounted episode there, shape (m, d, d), or None.
    information: Float | None = None
    # Share of the correction by each stage's own returns that was applied there.
    correction: float = 0.0

    @property
    def n_features(self) -> int:
        """Number q of reward features."""
        return self.rows[0].features.shape[1]

    @property
    def n_stages(self) -> int:
        """Number m + 1 of stages."""
        return len(self.rows)

    @property
    def n_parameters(self) -> int:
        """Number d of policy parameters."""
        return self.policy.n_parameters

    def with_features(self, basis: Float) -> SampledWorld:
        """The same world with features multiplied by a matrix, shape (q, k)."""
        rows, company = (
            tuple(replace(r, features=r.features @ basis, to_go=r.to_go @ basis) for r in stages)
            for stages in (self.rows, self.company)
        )
        return replace(self, rows=rows, company=company, anchored=None, information=None)

    def with_actions_of(self, other: SampledWorld) -> SampledWorld:
        """The critic of this world, with another's stages to explain."""
        company = self.company or self.rows
        return replace(
            self,
            rows=other.rows,
            company=company,
            horizon=other.horizon,
            anchored=None,
            information=None,
        )

    def observe(self, stage: int, state: Float) -> Observation:
        """What a stage's actions say about parameters (d,)."""
        rows, theta = self.rows[stage], self.policy.tensor(state)
        ones = torch.ones(len(rows.times), 1, dtype=theta.dtype, device=theta.device)
        score = self.policy.vjp(theta, rows.observations, rows.actions, ones)[:, 0]
        information = self.policy.fisher(theta, rows.observations).dense()
        symmetric = (information + information.T) / 2
        return Observation.of(score.cpu().numpy().astype(float), symmetric)

    def log_likelihood(self, states: Float) -> float:
        """Of all stages' actions along a path (m + 1, d)."""
        total = 0.0
        for rows, state in zip(self.rows, states, strict=True):
            theta = self.policy.tensor(state)
            logs = self.policy.log_prob(theta, rows.observations, rows.actions)
            total += float(logs.detach().sum())
        return total

    def gradient(self, parameters: Float, weights: Float, *, curved: bool = False) -> Landscape:
        """The landscape where the world is anchored: Jacobians are held fixed inside a round."""
        if self.anchored is None or len(self.anchored.design) < len(parameters):
            raise OptionError("anchor the world first: world.at(parameters)")
        return self.anchored

    def n_groups(self, fewest: int) -> int:
        """All groups its rows were put into, or none."""
        return N_GROUPS if fewest >= N_GROUPS else 0

    def leaving_out(
        self, group: int, pool: Callable[[], SampledWorld], policies: Float
    ) -> SampledWorld:
        """The landscape along a path from the other rows: nothing is pooled anew."""
        return self.at(policies[:-1], without=group)

    def natural(self, parameters: Float, weights: Float, *, curved: bool = False) -> Landscape:
        """Gradients times the inverse information of a discounted episode."""
        landscape = self.gradient(parameters, weights)
        assert self.information is not None
        return natural_of(landscape, self.information)

    def at(self, states: Float, *, without: int | None = None) -> SampledWorld:
        """The world with its landscape computed at the parameters (m, d) of the first m stages.

        A group of episodes can be left out of everything but the likelihood.
        """
        seen = [rows.without(without) for rows in self.rows]
        critic = _Critic(self, [r.without(without) for r in self.company] or seen)
        plain, own, fisher, noise = [], [], [], []
        noise_of_own = 0.0
        left = np.cumsum((self.gamma ** np.arange(self.horizon))[::-1])[::-1]
        for rows, state in zip(seen[: len(states)], states, strict=False):
            theta = self.policy.tensor(state)
            # Values of those with as many times to go as each row has, shape (N, k, q).
            values = critic.values(theta)[self.horizon - 1 - rows.times]
            plain.append(self._jacobian(rows, theta, values))
            correction, error = self._correction(rows, theta, values)
            own.append(correction)
            noise_of_own += error
            fisher.append(self._information(rows, theta, self.gamma**rows.times))
            noise.append(self._information(rows, theta, (left[rows.times] / left[0]) ** 2))
        residual = np.stack(own)
        share = max(0.0, 1 - 2 * noise_of_own / max(float((residual**2).sum()), 1e-300))
        return replace(
            self,
            anchored=Landscape(np.stack(plain) + share * residual, lambda: np.stack(noise)),
            information=np.stack(fisher),
            correction=share,
        )

    def _information(self, rows: _Rows, theta: Tensor, weights: Float) -> Float:
        """Fisher information of an episode, its rows weighted, shape (d, d)."""
        counts = self.policy.tensor(weights)
        return self.policy.fisher(theta, rows.observations, counts).dense() / rows.n_episodes.sum()

    def _jacobian(self, rows: _Rows, theta: Tensor, values: Float) -> Float:
        """The critic's Jacobian, shape (d, q), averaged over all actions in the states visited."""
        total = np.zeros((self.n_parameters, self.n_features))
        outputs = self.policy.outputs(theta, rows.observations).detach()
        for weight, actions in self.policy.nodes(outputs):
            functions = self.basis(rows.raw, self.policy.action_numbers(actions))
            q_values = np.einsum("nk,nkq->nq", functions, values)
            cotangents = (weight * self.gamma**rows.times)[:, None] * q_values
            total += self._pulled(theta, rows.observations, actions, cotangents)
        return total / rows.n_episodes.sum()

    def _correction(self, rows: _Rows, theta: Tensor, values: Float) -> tuple[Float, float]:
        """What the stage's own returns add to the critic's Jacobian, (d, q), and its noise."""
        functions = self.basis(rows.raw, self.policy.action_numbers(rows.actions))
        error = rows.to_go - np.einsum("nk,nkq->nq", functions, values)
        cotangents = (self.gamma**rows.times)[:, None] * error
        found = np.flatnonzero(rows.n_episodes)
        groups = []
        for g in found:
            mine = rows.group == g
            at = torch.as_tensor(mine, device=theta.device)
            pulled = self._pulled(theta, rows.observations[at], rows.actions[at], cotangents[mine])
            groups.append(pulled / rows.n_episodes[g])
        shares = rows.n_episodes[found] / rows.n_episodes.sum()
        mean = np.einsum("g,gdq->dq", shares, np.stack(groups))
        many = len(groups)
        spread = ((np.stack(groups) - mean) ** 2).sum(axis=(1, 2))
        noise = float((shares**2 * spread).sum() * many / max(many - 1, 1))
        return mean, noise if many > 1 else np.inf

    def _pulled(
        self, theta: Tensor, observations: Tensor, actions: Tensor, cotangents: Float
    ) -> Float:
        cotangent = self.policy.tensor(cotangents)
        return np.asarray(self.policy.vjp(theta, observations, actions, cotangent).cpu().numpy())


@dataclass(frozen=True, eq=False)
class CriticBasis:
    """Polynomials of second order in standardised observation and, for real actions, action.

    For discrete actions each action has its own polynomial of the observation.
    """

    centre: Float  # shape (p,)
    scale: Float  # shape (p,)
    discrete: bool  # whether actions are indicators

    def __call__(self, raw: Float, actions: Float) -> Float:
        """Basis functions of observations (N, p) and actions, shape (N, k).

        Discrete actions come as probabilities or indicators (N, A), so that this is also the
        expectation over a policy's actions.
        """
        if not self.discrete:
            both = (np.concatenate([raw, actions], axis=1) - self.centre) / self.scale
            return _polynomials(both)
        inner = _polynomials((raw - self.centre) / self.scale)
        return np.asarray((inner[:, :, None] * actions[:, None, :]).reshape(len(raw), -1))

    def expected(self, raw: Float, mean: Float, deviation: Float) -> Float:
        """Expectation over actions of given moments: squares of real ones gain their variance."""
        functions = self(raw, mean)
        if self.discrete:
            return functions
        p, k = raw.shape[1], mean.shape[1]
        extra = np.zeros_like(functions)
        for i in range(k):
            extra[:, _square_column(p + i, p + k)] = (deviation[:, i] / self.scale[p + i]) ** 2
        return functions + extra


class _Critic:
    """Successor features of any policy of the family, from the transitions of all stages."""

    def __init__(self, world: SampledWorld, stages: Iterable[_Rows]) -> None:
        self.world = world
        known = [rows.take(rows.known) for rows in stages]
        actions = world.policy.action_numbers(torch.cat([rows.actions for rows in known]))
        self.functions = world.basis(np.concatenate([rows.raw for rows in known]), actions)
        self.following = torch.cat([rows.following for rows in known])
        self.raw_following = np.concatenate([rows.raw_following for rows in known])
        self.going = np.concatenate([rows.going for rows in known])
        gram = self.functions.T @ self.functions
        self.inverse = np.linalg.inv(gram + _RIDGE * np.diagonal(gram).mean() * np.eye(len(gram)))
        self.paid = self.functions.T @ np.concatenate([rows.features for rows in known])

    def values(self, theta: Tensor) -> Float:
        """Coefficients with 0, 1, ... further times to go, shape (horizon, k, q)."""
        ahead = self._expected_functions(theta) * self.going[:, None]
        step, paid_now = self.inverse @ (self.functions.T @ ahead), self.inverse @ self.paid
        values = [paid_now]
        for _ in range(self.world.horizon - 1):
            values.append(paid_now + self.world.gamma * step @ values[-1])
        result = np.stack(values)
        if not np.isfinite(result).all():
            raise HistoryError(
                "the critic of the features diverges on these data: use method='two-step'"
            )
        return result

    def _expected_functions(self, theta: Tensor) -> Float:
        """Basis functions of the next observation, averaged over the policy's next action."""
        policy = self.world.policy
        moments = policy.action_moments(policy.outputs(theta, self.following).detach())
        return self.world.basis.expected(self.raw_following, *moments)


def sampled_world(stages: Iterable[Stage], policy: Policy, *, gamma: float) -> SampledWorld:
    """Pool the stages (with features) of a world with real observations."""
    rows = [_rows(stage, policy, t, gamma) for t, stage in enumerate(stages)]
    if not rows:
        raise HistoryError("a world cannot be pooled from no stage at all")
    numbers = np.concatenate([r.raw for r in rows])
    if not policy.discrete_actions:
        actions = policy.action_numbers(torch.cat([r.actions for r in rows]))
        numbers = np.concatenate([numbers, actions], axis=1)
    spread = numbers.std(axis=0)
    scale = np.where(spread > 0, spread, 1.0)
    basis = CriticBasis(numbers.mean(axis=0), scale, policy.discrete_actions)
    longest = 1 + max(int(r.times.max()) for r in rows)
    return SampledWorld(policy, gamma, longest, tuple(rows), basis)


def _rows(stage: Stage, policy: Policy, t: int, gamma: float) -> _Rows:
    if stage.features is None:
        raise HistoryError("the stage has no features")
    observations, actions = policy.prepare(stage)
    following, known = following_observations(stage)
    going = np.ones(stage.n_steps, dtype=bool)
    going[(stage.starts + stage.lengths - 1)[stage.terminated]] = False
    # Which episodes form a group differs from stage to stage.
    member = (np.arange(stage.n_episodes) + t) % N_GROUPS
    return _Rows(
        observations=observations,
        actions=actions,
        following=policy.prepare_observations(following),
        raw=as_numbers(stage.observations),
        raw_following=as_numbers(following),
        going=going,
        known=known,
        times=stage.times,
        features=stage.features.astype(float),
        to_go=features_to_go(stage, gamma, from_start=False),
        group=np.repeat(member, stage.lengths),
        n_episodes=np.bincount(member, minlength=N_GROUPS).astype(float),
    )


def _polynomials(z: Float) -> Float:
    """One, each coordinate, and products of two."""
    return np.concatenate([np.ones((len(z), 1)), z, products(z, most=_MOST_CROSSED)], axis=1)


def _square_column(i: int, p: int) -> int:
    """Column of the square of coordinate i of p."""
    if p > _MOST_CROSSED:
        return 1 + p + i
    first, second = np.triu_indices(p)
    return 1 + p + int(np.flatnonzero((first == i) & (second == i))[0])
