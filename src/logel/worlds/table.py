"""A tabular world, of known transitions and features: all that follows from them.

The Jacobian, the advantages and the soft values of any policy are exact, with far less noise than a
single stage's episodes would leave. `counting` says where transitions and features come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax, softmax

from logel.types import Flags, Float
from logel.worlds.base import Landscape, Observation, World
from logel.worlds.batch_noise import batch_noise
from logel.worlds.curving import Curving
from logel.worlds.expectation import Expectation
from logel.worlds.products import Climb, Climbing, StepNoise, ThroughValues

# Numbers held at once for visits and values of all times: a quarter of a gigabyte.
_AT_ONCE = 2**24
# Of the noise of a sampled policy gradient: share of the analytic shape, the empirical one being
# rank-deficient on its own; and stages on either side whose episodes shape the latter.
_ANALYTIC, _WINDOW = 0.6, 2
# Chance per time that a learner's run starts anew, in any state.
RESTART = 1 / 50


@dataclass(frozen=True, eq=False)
class TabularWorld(World):
    """Pooled model of a tabular world, and each stage's action counts."""

    transitions: Float  # P(s' | s, a), shape (S, A, S); what is missing to one is termination
    features: Float  # mean reward features of a state and action, shape (S, A, q)
    initial: Float  # distribution of the first state, shape (S,)
    gamma: float
    horizon: int  # times an episode lasts at most
    counts: Float  # how often each action was taken, shape (m + 1, S, A)
    # For every stage, each episode's features to go (centred by time) summed by state and action,
    # shape (n, S, A, q): the raw material of per-episode gradients.
    episode_sums: tuple[Float, ...]
    # Added to logits relative to the last action, shape (S, A - 1): FORBIDDEN where not legal.
    barred: Float | None = None
    # The same as transitions, but less by `RESTART` than by time where states without a choice are
    # passed on the way, shape (S, A, S); None: nothing is passed.
    moves: Float | None = None
    # Pairs known to lead somewhere that nobody was seen to take, shape (S, A); None: not known.
    untried: Flags | None = None

    offers: ClassVar[tuple[str, ...]] = (
        "gradient",
        "natural",
        "soft-policy",
        "soft-value",
        "gradual-value",
        "q-learning",
    )
    smooth_steps: ClassVar[bool] = True
    noise_floor: ClassVar[float] = 0.0

    @property
    def n_states(self) -> int:
        """Number S of states."""
        return self.transitions.shape[0]

    @property
    def n_actions(self) -> int:
        """Number A of actions."""
        return self.transitions.shape[1]

    @property
    def n_features(self) -> int:
        """Number q of features."""
        return self.features.shape[2]

    @property
    def n_stages(self) -> int:
        """Number m + 1 of stages."""
        return len(self.counts)

    @property
    def n_parameters(self) -> int:
        """Number d = S (A - 1) of policy parameters."""
        return self.n_states * (self.n_actions - 1)

    @property
    def n_blocks(self) -> int:
        """States."""
        return self.n_states

    @cached_property
    def _nearness(self) -> Float:
        """How much states have to do with one another if actions are random, shape (S, S)."""
        kernel = self.transitions.mean(axis=1)
        reach = np.linalg.inv(np.eye(self.n_states) - 0.9 * kernel)
        return np.asarray((reach + reach.T) ** 2)

    def spread_out(self, k: int) -> npt.NDArray[np.int64]:
        """Each state's team of k, shape (S,): one after the other joins where it is least known."""
        near, team = self._nearness, np.zeros(self.n_states, dtype=np.int64)
        known = np.zeros((k, self.n_states))
        sizes = np.zeros(k)
        most = -(-self.n_states // k)
        for s in np.argsort(-near.sum(axis=0), kind="stable"):
            team[s] = np.where(sizes < most, known[:, s], np.inf).argmin()
            known[team[s]] += near[s]
            sizes[team[s]] += 1
        return team

    @property
    def table(self) -> TabularWorld:
        """Itself: worlds of legal actions have one inside."""
        return self

    @property
    def free(self) -> slice:
        """Places of the parameters among the logits relative to the last action: all."""
        return slice(None)

    @property
    def legal_pairs(self) -> slice:
        """Places of the legal pairs among all: no action is illegal."""
        return slice(None)

    def with_features(self, basis: Float) -> TabularWorld:
        """The same world with features multiplied by a matrix, shape (q, k)."""
        return replace(
            self,
            features=self.features @ basis,
            episode_sums=tuple(sums @ basis for sums in self.episode_sums),
        )

    def with_actions_of(self, other: TabularWorld) -> TabularWorld:
        """This world, with another's actions to explain."""
        return replace(
            self, counts=other.counts, episode_sums=other.episode_sums, horizon=other.horizon
        )

    def leaving_out(
        self, group: int, pool: Callable[[], TabularWorld], policies: Float
    ) -> TabularWorld:
        """Pooled from the other episodes.

        What a pair pays is not forgotten with the only group that took it, if it is known where
        that leads: else the weight of a rare reward would seem unknown for want of a visit.
        """
        rest = pool()
        if rest.untried is not None:
            kept = np.where(rest.untried[:, :, None], self.features, rest.features)
            rest = replace(rest, features=kept)
        return rest.with_actions_of(self)

    def logits(self, parameters: Float) -> Float:
        """Action logits (..., S, A) of parameters (..., d): the last action's is zero."""
        free = parameters.reshape(*parameters.shape[:-1], self.n_states, self.n_actions - 1)
        if self.barred is not None:
            free = free + self.barred
        return np.concatenate([free, np.zeros((*free.shape[:-1], 1))], axis=-1)

    def probabilities(self, parameters: Float) -> Float:
        """Action probabilities (..., S, A) of parameters (..., d)."""
        return np.asarray(softmax(self.logits(parameters), axis=-1))

    def observe(self, stage: int, parameters: Float) -> Observation:
        """Actions are counted by state; each state's are multinomial."""
        return observe_counts(self.counts[stage], self.logits(parameters), whole=False)

    def log_likelihood(self, parameters: Float) -> float:
        """Of all stages' actions along a path (m + 1, d)."""
        return self.log_likelihood_of(self.logits(parameters))

    def log_likelihood_of(self, logits: Float) -> float:
        """The same for logits (m + 1, S, A)."""
        return float((self.counts * log_softmax(logits, axis=-1)).sum())

    @cached_property
    def flat_transitions(self) -> Float:
        """Shape (S A, S)."""
        return self.transitions.reshape(-1, self.n_states)

    def expect(self, values: Float) -> Float:
        """Expected value of the next state, (m, S, A, ...), for values (m, S, ...)."""
        m, rest = len(values), values.shape[2:]
        wide = values.reshape(m, self.n_states, -1)
        if self.expectation.is_sparse:
            columns = wide.transpose(1, 0, 2).reshape(self.n_states, -1)
            ahead = self.expectation.ahead(columns).reshape(len(self.flat_transitions), m, -1)
            flat = ahead.transpose(1, 0, 2)
        else:
            flat = np.matmul(self.flat_transitions, wide)
        return flat.reshape(m, self.n_states, self.n_actions, *rest)

    @cached_property
    def expectation(self) -> Expectation:
        """The same as a product for single policies."""
        return Expectation.of(self.flat_transitions)

    def gradient(self, parameters: Float, weights: Float, *, curved: bool = False) -> Landscape:
        """Policy gradients of the observed horizon.

        The noise has the shape a sampled gradient has. If the curvature is not asked for, paths
        are known, and each step is seen so well that this shape decides: it is then that of the
        learner's own batch. Else it is partly the Fisher-like shape of a policy-gradient estimate,
        partly the covariance of per-episode gradients of the observer's own episodes in nearby
        stages.
        """
        flow = self.flow(parameters)
        if not curved:
            return Landscape(flow.jacobian, lambda: self._batch_noise(flow, weights))
        curving = self._curving(parameters, weights)
        curvature = np.stack([curving.table(t) for t in range(len(parameters))])
        return Landscape(flow.jacobian, lambda: self.noise_shape(flow, weights), curvature)

    def natural(self, parameters: Float, weights: Float, *, curved: bool = False) -> Landscape:
        """Advantages of the features, which is what the inverse information makes of gradients."""
        values = self.evaluate(parameters, weights, entropy=False)
        m, d = parameters.shape
        identity = np.broadcast_to(np.eye(d), (m, d, d))
        return Landscape(values.design, lambda: identity, values.slope if curved else None)

    def climb(self, kind: str, parameters: Float, weights: Float) -> Climb:
        """Gradients of the observed horizon, or advantages, in products."""
        m, width = len(parameters), self.n_actions - 1
        if kind == "natural":
            values = self.evaluate(parameters, weights, entropy=False)
            even = StepNoise.even(m, self.n_states, width)
            return Climb(
                values.design, lambda rates: values.transition(1.0, rates[:, None, None]), even
            )
        flow = self.flow(parameters)
        curving = self._curving(parameters, weights)
        return Climb(
            flow.jacobian,
            lambda rates: Climbing(rates, curving.product, curving.own),
            self.noise_rows(flow, weights),
        )

    def _curving(self, parameters: Float, weights: Float) -> Curving:
        """What second derivatives of the return are made of."""
        policy, _, here = self._forward(parameters)
        paid, worth = self.features @ weights, np.zeros(policy.shape[:2])
        advantage = np.empty((self.horizon, *policy.shape))
        for h in range(self.horizon - 1, -1, -1):
            action_worth = paid + self.gamma * self.expect(worth)
            worth = (policy * action_worth).sum(axis=2)
            advantage[h] = action_worth - worth[:, :, None]
        return Curving(policy, here, advantage, self.expectation, self.gamma)

    def evaluate(self, parameters: Float, weights: Float, *, entropy: bool) -> Evaluation:
        """Values of every policy relative to the last action, with or without entropy bonus."""
        m, d = parameters.shape
        logs = log_softmax(self.logits(parameters), axis=-1)
        policy = np.exp(logs)
        kernel = np.einsum("msa,sat->mst", policy, self.transitions)
        resolvent = np.linalg.inv(np.eye(self.n_states) - self.gamma * kernel)
        value = resolvent @ np.einsum("msa,saq->msq", policy, self.features)
        feature_value = self.features + self.gamma * self.expect(value)
        action_value, state_value = feature_value @ weights, value @ weights
        bonus = np.zeros_like(logs)
        if entropy:
            bonus = logs
            extra = (resolvent @ -(policy * logs).sum(axis=-1)[..., None])[..., 0]
            action_value = action_value + self.gamma * self.expect(extra)
            state_value = state_value + extra
        advantage = action_value - bonus - state_value[..., None]
        return Evaluation(
            world=self,
            values=relative(action_value).reshape(m, d),
            resolvent=resolvent,
            moved=(policy * advantage)[:, :, :-1],
            design=(feature_value[:, :, :-1] - feature_value[:, :, -1:]).reshape(m, d, -1),
        )

    def occupancy(self, policy: Float) -> Float:
        """Share of a long run's visits to every state, (m, S), for policies (m, S, A)."""
        moves = self.transitions if self.moves is None else self.moves
        kernel = np.einsum("msa,sat->mst", policy, moves).transpose(0, 2, 1)
        uniform = np.full((len(policy), self.n_states, 1), RESTART / self.n_states)
        system = np.eye(self.n_states) - (1 - RESTART) * kernel
        return np.linalg.solve(system, uniform)[..., 0]

    def flow(self, parameters: Float) -> Flow:
        """Visits and Jacobians of every policy, a few stages at a time to bound the memory."""
        per_stage = self.n_states * (self.horizon + self.n_actions * self.n_features)
        parts = _blocks(len(parameters), per_stage)
        return Flow.joined([self._flow(parameters[part]) for part in parts])

    def _flow(self, parameters: Float) -> Flow:
        policy, _, here = self._forward(parameters)
        m, s, a = policy.shape
        value = np.zeros((m, s, self.n_features))
        jacobian = np.zeros((m, s, a, self.n_features))
        for h in range(self.horizon - 1, -1, -1):
            action_value = self.features + self.gamma * self.expect(value)
            value = (policy[..., None] * action_value).sum(axis=2)
            weight = self.gamma**h * here[h]
            advantage = action_value - value[:, :, None]
            jacobian += weight[:, :, None, None] * policy[..., None] * advantage
        discounts = self.gamma ** np.arange(self.horizon)
        left = np.cumsum(discounts[::-1])[::-1]
        return Flow(
            policy=policy,
            discounted=np.tensordot(discounts, here, axes=1),
            weighed=np.einsum("h,hms->ms", (left / left[0]) ** 2, here),
            jacobian=jacobian[:, :, :-1].reshape(m, self.n_parameters, self.n_features),
            parameters=parameters,
        )

    def _forward(self, parameters: Float) -> tuple[Float, Float, Float]:
        """Policies (m, S, A), their kernels (m, S, S), and where they are over time (H, m, S)."""
        policy = self.probabilities(parameters)
        kernel = np.einsum("msa,sat->mst", policy, self.transitions)
        here = np.empty((self.horizon, len(parameters), self.n_states))
        here[0] = self.initial
        for h in range(1, self.horizon):
            here[h] = np.matmul(here[h - 1][:, None], kernel)[:, 0]
        return policy, kernel, here

    def noise_shape(self, flow: Flow, weights: Float) -> Float:
        """Covariance, up to scale, of a sampled policy gradient at every stage."""
        analytic = _block_diagonal(self._noise_blocks(flow))
        if np.abs(weights).max(initial=0.0) < 1e-9:
            return analytic
        empirical = self._episode_covariance(flow.policy, weights)
        ratio = np.einsum("mii->", analytic) / max(np.einsum("mii->", empirical), 1e-300)
        return np.asarray(_ANALYTIC * analytic + (1 - _ANALYTIC) * ratio * empirical)

    def _batch_noise(self, flow: Flow, weights: Float) -> Float:
        """That of the learner's own batch, shape (m, d, d); without a reward it has none."""
        if np.abs(weights).max(initial=0.0) < 1e-9:
            return _block_diagonal(self._noise_blocks(flow))
        policy, _, here = self._forward(flow.parameters)
        paid = self.features @ weights
        return _block_diagonal(batch_noise(policy, here, paid, self.expect, self.gamma))

    def _noise_blocks(self, flow: Flow) -> Float:
        """The analytic part, shape (m, S, A - 1, A - 1)."""
        # A trace of noise where a policy never goes, or never tries, keeps the shape invertible.
        visits = flow.weighed + 1e-3
        blocks = softmax_information(flow.policy) + 1e-3 * np.eye(self.n_actions - 1)
        return np.asarray(visits[:, :, None, None] * blocks)

    def noise_rows(self, flow: Flow, weights: Float) -> StepNoise:
        """The same covariance as blocks and a row per episode."""
        blocks = self._noise_blocks(flow)
        if np.abs(weights).max(initial=0.0) < 1e-9:
            return StepNoise(blocks)
        rows = tuple(self._episode_rows(flow.policy, weights))
        size = max(sum(float((r**2).sum()) / len(r) for r in rows), 1e-300)
        share = (1 - _ANALYTIC) * float(np.einsum("msaa->", blocks)) / size
        return StepNoise(_ANALYTIC * blocks, tuple(np.sqrt(share / len(r)) * r for r in rows))

    def _episode_covariance(self, policy: Float, weights: Float) -> Float:
        rows = self._episode_rows(policy, weights)
        return np.stack([near.T @ near / len(near) for near in rows])

    def _episode_rows(self, policy: Float, weights: Float) -> Iterator[Float]:
        """Gradients of nearby stages' episodes at every policy, centred, shape (n, d)."""
        paid = [sums @ weights for sums in self.episode_sums]
        for t in range(len(policy)):
            near = np.concatenate(paid[max(0, t - _WINDOW) : t + _WINDOW + 1])
            scores = near - near.sum(axis=2, keepdims=True) * policy[t]
            rows = scores[:, :, :-1].reshape(len(near), -1)
            yield rows - rows.mean(axis=0)


@dataclass(frozen=True, eq=False)
class Flow:
    """Where policies go and what their gradients are."""

    policy: Float  # action probabilities, shape (m, S, A)
    discounted: Float  # discounted visits of the states in an episode, shape (m, S)
    # Visits weighed by the squared share of the return that is still to come, (m, S).
    weighed: Float
    jacobian: Float  # shape (m, d, q)
    parameters: Float  # shape (m, d)

    @classmethod
    def joined(cls, parts: Sequence[Flow]) -> Flow:
        """Several stages' flows as one."""
        if len(parts) == 1:
            return parts[0]
        names = cls.__dataclass_fields__
        return cls(**{n: np.concatenate([getattr(part, n) for part in parts]) for n in names})


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Values of a policy relative to the last action, with derivatives."""

    world: TabularWorld
    values: Float  # shape (m, d)
    resolvent: Float  # values of all states from each one's own, shape (m, S, S)
    moved: Float  # of a state's own value w.r.t. its free logits, shape (m, S, A - 1)
    design: Float  # derivative w.r.t. the weights, shape (m, d, q)
    # Of the parameters among all logits relative to the last action; None: all of them.
    places: npt.NDArray[np.int64] | None = None

    @property
    def slope(self) -> Float:
        """Derivative w.r.t. the policy's logits, shape (m, d, d)."""
        m, d = len(self.values), self.world.n_parameters
        moved = self.resolvent[:, :, :, None] * self.moved[:, None]
        slope = self.world.gamma * self.world.expect(moved.reshape(m, -1, d))
        whole = (slope[:, :, :-1] - slope[:, :, -1:]).reshape(m, d, d)
        return whole if self.places is None else whole[:, self.places][:, :, self.places]

    def transition(self, keep: float, gain: Float | float) -> ThroughValues:
        """`keep` times what is, plus `gain` times the slope, in products, of all logits."""
        return ThroughValues(
            self.world.expectation,
            self.moved,
            self.resolvent,
            np.asarray(keep),
            np.asarray(self.world.gamma * gain),
            relative=True,
        )


def observe_counts(counts: Float, logits: Float, *, whole: bool) -> Observation:
    """Score and information of action counts (S, A) about logits (S, A).

    About all of them if `whole`, else about those relative to the last action.
    """
    policy = softmax(logits, axis=-1)
    visits = counts.sum(axis=-1)
    score = counts - visits[:, None] * policy
    root = np.sqrt(policy)
    factor = root[:, :, None] * (np.eye(policy.shape[1]) - root[:, :, None] * root[:, None, :])
    factor = np.sqrt(visits)[:, None, None] * factor
    if not whole:
        score, factor = score[:, :-1], factor[:, :-1]
    return Observation(score.reshape(-1), factor)


def softmax_information(policy: Float) -> Float:
    """Information of one action about the free logits of policies (..., A): (..., A - 1, A - 1)."""
    free = policy[..., :-1]
    return free[..., None] * np.eye(free.shape[-1]) - free[..., :, None] * free[..., None, :]


def _block_diagonal(blocks: Float) -> Float:
    """Matrices (m, S k, S k) with these blocks (m, S, k, k)."""
    m, s, k, _ = blocks.shape
    whole, index = np.zeros((m, s, k, s, k)), np.arange(s)
    whole[:, index, :, index, :] = np.moveaxis(blocks, 1, 0)
    return whole.reshape(m, s * k, s * k)


def relative(table: Float) -> Float:
    """Differences to the last action, (..., S, A - 1), for (..., S, A)."""
    return table[..., :-1] - table[..., -1:]


def _blocks(m: int, per_stage: int) -> list[slice]:
    """Ranges of stages whose numbers fit into memory together."""
    at_once = max(1, _AT_ONCE // max(per_stage, 1))
    return [slice(t, t + at_once) for t in range(0, m, at_once)]
