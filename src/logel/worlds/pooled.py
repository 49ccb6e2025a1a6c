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

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from logel.data.stage import Stage
from logel.errors import HistoryError, OptionError
from logel.policies.base import Policy
from logel.policies.gaussian import GaussianPolicy
from logel.policies.softmax import SoftmaxPolicy
from logel.types import Array, Float
from logel.worlds.base import N_GROUPS, Landscape, Observation, natural_of
from logel.worlds.own_episodes import features_to_go

# Observation (and action) coordinates up to which all products of two enter the basis.
_MOST_CROSSED = 10
# Action dimensions up to which three quadrature nodes each are affordable.
_MOST_QUADRATURE = 3
_RIDGE = 1e-6


@dataclass(frozen=True, eq=False)
class _Rows:
    """One stage, in the forms the critic and the likelihood need.

    Attributes:
        observations: As the policy takes them.
        actions: As the policy takes them.
        raw: Observations as numbers, shape (N, p).
        following: Next observations, as the policy takes them.
        raw_following: The same as numbers, shape (N, p).
        going: Whether the episode goes on from the next observation, shape (N,).
        known: Whether the next observation (or that there is none) is known, shape (N,).
        times: Time in the episode, shape (N,).
        features: Shape (N, q).
        to_go: Discounted features from each row on, shape (N, q).
        group: Group of episodes each row belongs to, shape (N,).
        n_episodes: Episodes in each group, shape (g,).
    """

    observations: Tensor
    actions: Tensor
    following: Tensor
    raw: Float
    raw_following: Float
    going: Array
    known: Array
    times: Array
    features: Float
    to_go: Float
    group: Array
    n_episodes: Float


@dataclass(frozen=True, eq=False)
class SampledWorld:
    """What all stages of a continuous world show; a `World` once anchored (`at`).

    Attributes:
        policy: The policy family.
        gamma: Discount factor.
        horizon: Times an episode lasts at most.
        rows: The stages.
        basis: The critic's basis.
        anchored: The landscape where the Jacobians were last computed, or None.
        information: Fisher information of a discounted episode there, shape (m, d, d), or None.
        correction: Share of the correction by each stage's own returns that was applied there.
    """

    policy: Policy
    gamma: float
    horizon: int
    rows: tuple[_Rows, ...]
    basis: CriticBasis
    anchored: Landscape | None = None
    information: Float | None = None
    correction: float = 0.0

    offers: ClassVar[tuple[str, ...]] = ("gradient", "natural", "adam")
    smooth_steps: ClassVar[bool] = False
    noise_floor: ClassVar[float] = 1e-3

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
        rows = tuple(
            replace(r, features=r.features @ basis, to_go=r.to_go @ basis) for r in self.rows
        )
        return replace(self, rows=rows, anchored=None, information=None)

    def observe(self, stage: int, state: Float) -> Observation:
        """What a stage's actions say about parameters (d,)."""
        rows, theta = self.rows[stage], self.policy.tensor(state)
        ones = torch.ones(len(rows.times), 1, dtype=theta.dtype, device=theta.device)
        score = self.policy.vjp(theta, rows.observations, rows.actions, ones)[:, 0]
        information = self.policy.fisher(theta, rows.observations).dense()
        values, vectors = np.linalg.eigh((information + information.T) / 2)
        factor = vectors * np.sqrt(np.clip(values, 0, None))
        return Observation(score.cpu().numpy().astype(float), factor[None])

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

        Args:
            states: Shape (m, d) or longer.
            without: Group of episodes to leave out of everything but the likelihood.
        """
        critic = _Critic(self, without=without)
        plain, own, noise_of_own = [], [], 0.0
        fisher, noise = [], []
        left = np.cumsum((self.gamma ** np.arange(self.horizon))[::-1])[::-1]
        for rows, state in zip(self.rows[: len(states)], states, strict=False):
            theta = self.policy.tensor(state)
            used = np.ones(len(rows.times), bool) if without is None else rows.group != without
            jacobian, correction, error = self._jacobian(critic, rows, theta, used)
            plain.append(jacobian)
            own.append(correction)
            noise_of_own += error
            n = rows.n_episodes.sum()
            discounts = self.policy.tensor(self.gamma**rows.times)
            fisher.append(self.policy.fisher(theta, rows.observations, discounts).dense() / n)
            left_over = self.policy.tensor((left[rows.times] / left[0]) ** 2)
            noise.append(self.policy.fisher(theta, rows.observations, left_over).dense() / n)
        residual = np.stack(own)
        share = max(0.0, 1 - 2 * noise_of_own / max(float((residual**2).sum()), 1e-300))
        return replace(
            self,
            anchored=Landscape(np.stack(plain) + share * residual, np.stack(noise)),
            information=np.stack(fisher),
            correction=share,
        )

    def _jacobian(
        self, critic: _Critic, rows: _Rows, theta: Tensor, used: Array
    ) -> tuple[Float, Float, float]:
        """The critic's Jacobian, (d, q), its correction by own returns, and that one's noise."""
        values = critic.values(theta)
        counts = rows.n_episodes if used.all() else rows.n_episodes.copy()
        if not used.all():
            counts[rows.group[~used][0]] = 0
        n = counts.sum()
        index = np.flatnonzero(used)
        discount = self.gamma ** rows.times[index]
        remaining = values[self.horizon - 1 - rows.times[index]]
        total = np.zeros((self.n_parameters, self.n_features))
        pick = torch.as_tensor(index, device=theta.device)
        observations = rows.observations[pick]
        for weight, actions in _nodes(self.policy, theta, observations):
            raw_actions = _numbers(self.policy, actions)
            functions = self.basis(rows.raw[index], raw_actions)
            q_values = np.einsum("nk,nkq->nq", functions, remaining)
            cotangents = self.policy.tensor((weight * discount)[:, None] * q_values)
            total += self.policy.vjp(theta, observations, actions, cotangents).cpu().numpy()
        taken = rows.actions[pick]
        functions = self.basis(rows.raw[index], _numbers(self.policy, taken))
        error = rows.to_go[index] - np.einsum("nk,nkq->nq", functions, remaining)
        groups = []
        for g in np.flatnonzero(counts):
            mine = rows.group[index] == g
            at = torch.as_tensor(np.flatnonzero(mine), device=theta.device)
            cotangents = self.policy.tensor(discount[mine, None] * error[mine])
            found = self.policy.vjp(theta, observations[at], taken[at], cotangents)
            groups.append(found.cpu().numpy() / counts[g])
        shares = counts[counts > 0] / n
        mean = np.einsum("g,gdq->dq", shares, np.stack(groups))
        many = len(groups)
        spread = ((np.stack(groups) - mean) ** 2).sum(axis=(1, 2))
        noise = float((shares**2 * spread).sum() * many / max(many - 1, 1))
        return total / n, mean, noise if many > 1 else np.inf


@dataclass(frozen=True, eq=False)
class CriticBasis:
    """Polynomials of second order in standardised observation and, for real actions, action.

    For discrete actions each action has its own polynomial of the observation.

    Attributes:
        centre: Shape (p,).
        scale: Shape (p,).
        n_actions: Number of discrete actions, or 0 for real ones.
    """

    centre: Float
    scale: Float
    n_actions: int

    def __call__(self, raw: Float, actions: Float) -> Float:
        """Basis functions of observations (N, p) and actions, shape (N, k).

        Discrete actions come as probabilities or indicators (N, A), so that this is also the
        expectation over a policy's actions.
        """
        if self.n_actions == 0:
            both = (np.concatenate([raw, actions], axis=1) - self.centre) / self.scale
            return _polynomials(both)
        inner = _polynomials((raw - self.centre) / self.scale)
        return np.asarray((inner[:, :, None] * actions[:, None, :]).reshape(len(raw), -1))

    def expected(self, raw: Float, mean: Float, deviation: Float) -> Float:
        """Expectation over Gaussian actions: squares of actions gain their variance."""
        functions = self(raw, mean)
        p, k = raw.shape[1], mean.shape[1]
        extra = np.zeros_like(functions)
        for i in range(k):
            extra[:, _square_column(p + i, p + k)] = (deviation[:, i] / self.scale[p + i]) ** 2
        return functions + extra


class _Critic:
    """Successor features of any policy of the family, from the transitions of all stages."""

    def __init__(self, world: SampledWorld, *, without: int | None) -> None:
        self.world = world
        policy, basis, stages = world.policy, world.basis, world.rows
        used = [r.known if without is None else r.known & (r.group != without) for r in stages]
        picked = list(zip(stages, used, strict=True))
        actions = np.concatenate([_numbers(policy, r.actions)[u] for r, u in picked])
        self.functions = basis(np.concatenate([r.raw[u] for r, u in picked]), actions)
        self.following = torch.cat([r.following[torch.as_tensor(u)] for r, u in picked])
        self.raw_following = np.concatenate([r.raw_following[u] for r, u in picked])
        self.going = np.concatenate([r.going[u] for r, u in picked])
        gram = self.functions.T @ self.functions
        self.inverse = np.linalg.inv(gram + _RIDGE * np.diagonal(gram).mean() * np.eye(len(gram)))
        self.paid = self.functions.T @ np.concatenate([r.features[u] for r, u in picked])

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
        policy, basis = self.world.policy, self.world.basis
        outputs = policy.outputs(theta, self.following).detach()
        if isinstance(policy, SoftmaxPolicy):
            return basis(self.raw_following, torch.softmax(outputs, dim=1).cpu().numpy())
        mean, log_std = outputs.chunk(2, dim=1)
        return basis.expected(self.raw_following, mean.cpu().numpy(), log_std.exp().cpu().numpy())


def sampled_world(stages: Iterable[Stage], policy: Policy, *, gamma: float) -> SampledWorld:
    """Pool the stages (with features) of a world with real observations."""
    rows: list[_Rows] = []
    longest = 1
    for t, stage in enumerate(stages):
        policy.check(stage)
        if stage.features is None:
            raise HistoryError("the stage has no features")
        observations, actions = policy.prepare(stage)
        following, known = _following(stage)
        ends = stage.starts + stage.lengths - 1
        going = np.ones(stage.n_steps, dtype=bool)
        going[ends[stage.terminated]] = False
        # Which episodes form a group differs from stage to stage.
        member = (np.arange(stage.n_episodes) + t) % N_GROUPS
        rows.append(
            _Rows(
                observations=observations,
                actions=actions,
                following=policy.prepare_observations(following),
                raw=_flat(stage.observations),
                raw_following=_flat(following),
                going=going,
                known=known,
                times=stage.times,
                features=stage.features.astype(float),
                to_go=features_to_go(stage, gamma, from_start=False),
                group=np.repeat(member, stage.lengths),
                n_episodes=np.bincount(member, minlength=N_GROUPS).astype(float),
            )
        )
        longest = max(longest, int(stage.lengths.max()))
    if not rows:
        raise HistoryError("a world cannot be pooled from no stage at all")
    discrete = isinstance(policy, SoftmaxPolicy)
    numbers = [r.raw for r in rows]
    if not discrete:
        numbers = [np.concatenate([r.raw, _numbers(policy, r.actions)], axis=1) for r in rows]
    pooled = np.concatenate(numbers)
    spread = pooled.std(axis=0)
    basis = CriticBasis(
        centre=pooled.mean(axis=0),
        scale=np.where(spread > 0, spread, 1.0),
        n_actions=policy.n_actions if isinstance(policy, SoftmaxPolicy) else 0,
    )
    return SampledWorld(policy, gamma, longest, tuple(rows), basis)


def _following(stage: Stage) -> tuple[Array, Array]:
    """Next observations and whether they are known (termination counts as known)."""
    following = np.roll(stage.observations, -1, axis=0)
    ends = stage.starts + stage.lengths - 1
    known = np.ones(stage.n_steps, dtype=bool)
    if stage.last_observations is None:
        known[ends] = stage.terminated
        following[ends] = stage.observations[ends]
    else:
        following[ends] = stage.last_observations
    return following, known


def _flat(observations: Array) -> Float:
    return np.asarray(observations, dtype=float).reshape(len(observations), -1)


def _numbers(policy: Policy, actions: Tensor) -> Float:
    """Actions as the critic's basis takes them: indicators, or the numbers themselves."""
    if isinstance(policy, SoftmaxPolicy):
        return np.eye(policy.n_actions)[actions.cpu().numpy()]
    return actions.cpu().numpy().astype(float).reshape(len(actions), -1)


def _nodes(policy: Policy, theta: Tensor, observations: Tensor) -> Iterator[tuple[Float, Tensor]]:
    """Actions that stand for the policy's, each with its weight in every row, shape (N,)."""
    outputs = policy.outputs(theta, observations).detach()
    if isinstance(policy, SoftmaxPolicy):
        shares = torch.softmax(outputs, dim=1).cpu().numpy()
        for a in range(policy.n_actions):
            yield shares[:, a], torch.full((len(shares),), a, device=theta.device)
        return
    assert isinstance(policy, GaussianPolicy)
    mean, log_std = outputs.chunk(2, dim=1)
    deviation = log_std.exp()
    k = mean.shape[1]
    if k > _MOST_QUADRATURE:
        raise OptionError(
            f"the pooled critic handles up to {_MOST_QUADRATURE} action dimensions, not {k}: "
            "use method='two-step'"
        )
    # Three Gauss-Hermite nodes integrate polynomials up to fifth order exactly.
    for nodes in product(((-np.sqrt(3.0), 1 / 6), (0.0, 2 / 3), (np.sqrt(3.0), 1 / 6)), repeat=k):
        offset = policy.tensor([z for z, _ in nodes])
        weight = float(np.prod([w for _, w in nodes]))
        yield np.full(len(mean), weight), mean + offset * deviation


def _polynomials(z: Float) -> Float:
    """One, each coordinate, and products of two (of all pairs, or squares if there are many)."""
    p = z.shape[1]
    first, second = np.triu_indices(p) if p <= _MOST_CROSSED else (np.arange(p), np.arange(p))
    return np.concatenate([np.ones((len(z), 1)), z, z[:, first] * z[:, second]], axis=1)


def _square_column(i: int, p: int) -> int:
    """Column of the square of coordinate i of p."""
    if p > _MOST_CROSSED:
        return 1 + p + i
    first, second = np.triu_indices(p)
    return 1 + p + int(np.flatnonzero((first == i) & (second == i))[0])
