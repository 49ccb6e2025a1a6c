"""Learners that keep values, in a tabular world: their policies are the softmax of a table.

A policy shows such a table only up to a potential, so these rules need the smoother; soft policy
iteration, whose table follows from its policy, does not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import logsumexp, softmax

from logel.rules.rule import Prediction, RandomWalk, Rule
from logel.types import FORBIDDEN, Float
from logel.worlds.base import Observation, World
from logel.worlds.legal import LegalWorld, restricted
from logel.worlds.products import Linearised, StepNoise, ThroughValues
from logel.worlds.table import TabularWorld, observe_counts, relative


class SoftPolicy(Rule):
    """Soft policy iteration, as LfL assumes: the next logits are the soft Q of this policy.

    Temperature one: the weights come in units of it.
    """

    name = "soft policy iteration"
    forgets = True
    world: TabularWorld | LegalWorld
    # One step may lead anywhere: a random walk's path, which is smooth, can be a bad start.
    second_start = True

    def following(self, states: Float, parameters: Float) -> Float:
        """Soft values of the present policy."""
        return self.world.evaluate(states, parameters[: self.n_features], entropy=True).values

    def predict(
        self, states: Float, parameters: Float, *, states_known: bool = False
    ) -> Prediction:
        """Soft values of the present policy, and their derivatives."""
        found = self.world.evaluate(states, parameters[: self.n_features], entropy=True)
        return Prediction(found.values, found.slope, found.design, self.identity(len(states)))

    def linearised(self, states: Float, parameters: Float) -> Linearised:
        """The same in products."""
        if isinstance(self.world, LegalWorld):
            return super().linearised(states, parameters)
        found = self.world.evaluate(states, parameters[: self.n_features], entropy=True)
        noise = StepNoise.even(len(states), self.world.n_states, self.block_width)
        return Linearised(found.values, found.transition(0.0, 1.0), found.design, noise)


class ValueRule(Rule):
    """Rules whose state is the whole table of values, D = S A."""

    keeps_values = True
    world: TabularWorld | LegalWorld

    def __init__(self, world: World, rates: Float | None = None) -> None:
        super().__init__(world, rates)
        self.model = self.world.table
        self.n_pairs = self.model.n_states * self.model.n_actions
        self.state_dim = len(np.arange(self.n_pairs)[self.world.legal_pairs])

    def table(self, states: Float) -> Float:
        """Values of states (..., D), shape (..., S, A), those of illegal actions out of reach."""
        whole = np.full((*states.shape[:-1], self.n_pairs), FORBIDDEN)
        whole[..., self.world.legal_pairs] = states
        return whole.reshape(*states.shape[:-1], self.model.n_states, self.model.n_actions)

    def legal(self, tables: Float) -> Float:
        """Entries (m, D, ...) of the legal pairs in tables (m, S, A, ...)."""
        return tables.reshape(len(tables), self.n_pairs, *tables.shape[3:])[
            :, self.world.legal_pairs
        ]

    def by_pairs(self, slope: Float) -> Float:
        """Derivatives (m, D, D) between legal pairs, for those (m, S, A, S, A) between all."""
        square = slope.reshape(len(slope), self.n_pairs, self.n_pairs)
        return square[:, self.world.legal_pairs][:, :, self.world.legal_pairs]

    def probabilities(self, states: Float) -> Float:
        """Action probabilities, shape (..., S, A)."""
        return np.asarray(softmax(self.table(states), axis=-1))

    def backup(self, states: Float, parameters: Float) -> Float:
        """One soft backup of states (m, D)."""
        w = self.model
        value = np.asarray(logsumexp(self.table(states), axis=-1))
        return self.legal(w.features @ parameters[: w.n_features] + w.gamma * w.expect(value))

    def through(self, slope: Float, keep: Float, gain: Float) -> ThroughValues:
        """Transitions by way of the value of what follows; its slope is that of a state's own."""
        return ThroughValues(self.model.expectation, slope, None, keep, gain, relative=False)

    def observe(self, stage: int, state: Float) -> Observation:
        """Actions are counted by state; each state's are multinomial."""
        seen = observe_counts(self.model.counts[stage], self.table(state), whole=True)
        pairs = self.world.legal_pairs
        return seen if isinstance(pairs, slice) else restricted(seen, pairs)

    def log_likelihood(self, states: Float) -> float:
        """Of all stages' actions along a path (m + 1, D)."""
        return self.model.log_likelihood_of(self.table(states))

    def as_policy(self, states: Float) -> Float:
        """Logits relative to the last action."""
        whole = relative(self.table(states)).reshape(*states.shape[:-1], -1)
        return np.asarray(whole[..., self.world.free])

    def from_policy(self, policies: Float) -> Float:
        """Values that average zero in every state."""
        logits = self.world.logits(policies)
        held = logits > FORBIDDEN / 2
        mean = np.where(held, logits, 0.0).sum(axis=-1, keepdims=True)
        centred = logits - mean / held.sum(axis=-1, keepdims=True)
        whole = centred.reshape(*policies.shape[:-1], -1)
        return np.asarray(whole[..., self.world.legal_pairs])


class DriftingValues(ValueRule, RandomWalk):
    """A random walk in a table of values: logits relative to one action then drift together."""

    name = "random walk of values"


class SoftValue(ValueRule):
    """Soft value iteration: Q <- Phi @ weights + gamma P logsumexp(Q), for every pair."""

    name = "soft value iteration"
    forgets = True

    def following(self, states: Float, parameters: Float) -> Float:
        """One soft backup."""
        return self.backup(states, parameters)

    def predict(
        self, states: Float, parameters: Float, *, states_known: bool = False
    ) -> Prediction:
        """One soft backup, with derivatives."""
        w, (m, d) = self.model, states.shape
        policy = self.probabilities(states)
        slope = w.gamma * w.flat_transitions[None, :, :, None] * policy[:, None]
        return Prediction(
            following=self.following(states, parameters),
            transition=self.by_pairs(slope),
            design=np.broadcast_to(self.legal(w.features[None]), (m, d, w.n_features)),
            shape=self.identity(m),
        )

    def linearised(self, states: Float, parameters: Float) -> Linearised:
        """The same in products."""
        if isinstance(self.world, LegalWorld):
            return super().linearised(states, parameters)
        w, (m, d) = self.world, states.shape
        return Linearised(
            self.following(states, parameters),
            self.through(self.probabilities(states), np.zeros(1), np.full(1, w.gamma)),
            np.broadcast_to(w.features.reshape(1, d, -1), (m, d, w.n_features)),
            StepNoise.even(m, w.n_states, w.n_actions),
        )


@dataclass(frozen=True, eq=False)
class _Flow:
    """Where values are after they flowed for a time, and what that depends on."""

    following: Float  # shape (m, D)
    design: Float  # derivative w.r.t. the weights and the logarithm of the time, (m, D, q + 1)
    resolvent: Float  # values of all states from each one's own, shape (m, S, S)
    slope: Float  # of a state's own value w.r.t. its actions', shape (m, S, A)
    keep: float
    gain: float


class GradualValue(ValueRule):
    """Soft value iteration a little at a time: all through a stage values flow to their backup.

    For a time T, whose logarithm is a nuisance parameter, in moves too small to be told apart:

        d Q / dt = Phi @ weights + gamma P logsumexp(Q) - Q,

    with the backup linear in Q around where the stage began, and the rate of change the mean of
    those at both ends (Crank and Nicolson): Q + T M way, where `way` is that of the first moment
    and M = (1 + T / 2 (1 - gamma P policy))^-1. A short T goes a share of the way to one backup.
    """

    name = "gradual soft value iteration"

    def __init__(self, world: World, rates: Float | None = None) -> None:
        super().__init__(world, rates)
        # A stage of T = 1 would go .63 of the way to a backup that stays; give or take, a half.
        self.nuisance_mean, self.nuisance_variance = np.zeros(1), np.full(1, 0.6**2)

    def following(self, states: Float, parameters: Float) -> Float:
        """Where a stage ends."""
        time, way = self._way(states, parameters)
        policy = self.probabilities(states)
        resolvent = self._resolvent(policy, time)
        return states + time * self._spread(policy, resolvent, time, way[..., None])[..., 0]

    def predict(
        self, states: Float, parameters: Float, *, states_known: bool = False
    ) -> Prediction:
        """Where a stage ends, with derivatives."""
        w, index, found = self.model, np.arange(self.state_dim), self._flow(states, parameters)
        ahead = found.gain * w.flat_transitions @ found.resolvent
        transition = self.by_pairs(ahead[..., None] * found.slope[:, None])
        transition[:, index, index] += found.keep
        return Prediction(found.following, transition, found.design, self.identity(len(states)))

    def linearised(self, states: Float, parameters: Float) -> Linearised:
        """The same in products."""
        if isinstance(self.world, LegalWorld):
            return super().linearised(states, parameters)
        w, found = self.world, self._flow(states, parameters)
        return Linearised(
            found.following,
            replace(
                self.through(found.slope, np.full(1, found.keep), np.full(1, found.gain)),
                resolvent=found.resolvent,
            ),
            found.design,
            StepNoise.even(len(states), w.n_states, w.n_actions),
        )

    def _way(self, states: Float, parameters: Float) -> tuple[float, Float]:
        """The time, and how far backups are, (m, D)."""
        q = self.n_features
        return float(np.exp(parameters[q])), self.backup(states, parameters[:q]) - states

    def _resolvent(self, policy: Float, time: float) -> Float:
        """Values of all states, (m, S, S), from each one's own."""
        kernel = np.einsum("msa,sat->mst", policy, self.model.transitions)
        share = self.model.gamma * time / (2 + time)
        return np.linalg.inv(np.eye(self.model.n_states) - share * kernel)

    def _spread(self, policy: Float, resolvent: Float, time: float, columns: Float) -> Float:
        """M times columns (m, D, k)."""
        whole = np.zeros((len(columns), self.n_pairs, columns.shape[2]))
        whole[:, self.world.legal_pairs] = columns
        own = np.einsum("msa,msak->msk", policy, whole.reshape(*policy.shape, -1))
        ahead = self.legal(self.model.expect(resolvent @ own))
        share = self.model.gamma * time / (2 + time)
        return np.asarray((columns + share * ahead) * 2 / (2 + time))

    def _flow(self, states: Float, parameters: Float) -> _Flow:
        time, way = self._way(states, parameters)
        policy = self.probabilities(states)
        resolvent = self._resolvent(policy, time)
        features = np.repeat(self.legal(self.model.features[None]), len(states), axis=0)
        columns = np.concatenate([features, way[..., None]], axis=2)
        moved = time * self._spread(policy, resolvent, time, columns)
        gone = moved[..., -1].copy()
        # Time counts in M as well: d (T M) / d log T = T M M.
        moved[..., -1:] = self._spread(policy, resolvent, time, gone[..., None])
        # Policies lead elsewhere as values change: the better actions are, by what is gone, the
        # more they count.
        better = np.where(policy > 0, self.table(gone), 0.0)
        better = better - (policy * better).sum(axis=-1, keepdims=True)
        kept = 2 / (2 + time)
        return _Flow(
            following=states + gone,
            design=moved,
            resolvent=resolvent,
            slope=policy * (1 + better / (2 * kept)),
            keep=2 * kept - 1,
            gain=self.model.gamma * time * kept**2,
        )


class QLearning(ValueRule):
    """Q-learning, on average: only pairs the behaviour visits move towards their hard backup.

    A pair visited n times moves by the share 1 - exp(-n) of its temporal difference, where n, the
    product of learning rate and visits, follows the policy's occupancy; its overall size is a
    nuisance parameter. Updates are noisy in proportion to their temporal differences.

    Another is a constant reward. What is the same in every step moves no gradient, and features
    that sum to a constant leave it out; but pairs not yet visited keep their first value, so that
    this learner is drawn to them by rewards that are all negative, and away by positive ones.
    """

    name = "Q-learning"
    variance_bounds = (1e-3, 1.0)

    def __init__(self, world: World, rates: Float | None = None) -> None:
        super().__init__(world, rates)
        # Learning rate times visits is a tenth for the average pair, give or take a factor of two;
        # the constant reward is of the order of one.
        self.nuisance_mean = np.array([np.log(0.1 * self.state_dim), 0.0])
        self.nuisance_variance = np.array([0.7**2, 1.0])

    def following(self, states: Float, parameters: Float) -> Float:
        """The expected update of a run."""
        share, _, difference = self._update(states, parameters)
        return states + share * difference

    def predict(
        self, states: Float, parameters: Float, *, states_known: bool = False
    ) -> Prediction:
        """The expected update of a run; the visits' own dependence on Q is left out."""
        w, (m, d) = self.model, states.shape
        share, visits, difference = self._update(states, parameters)
        best = np.eye(w.n_actions)[self.table(states).argmax(axis=-1)]
        slope = w.gamma * w.flat_transitions[None, :, :, None] * best[:, None]
        transition = share[..., None] * self.by_pairs(slope)
        index = np.arange(d)
        transition[:, index, index] += 1 - share
        design, spread = self._design(share, visits, difference)
        shape = np.zeros((m, d, d))
        shape[:, index, index] = spread
        return Prediction(states + share * difference, transition, design, shape)

    def linearised(self, states: Float, parameters: Float) -> Linearised:
        """The same in products."""
        if isinstance(self.world, LegalWorld):
            return super().linearised(states, parameters)
        w = self.model
        share, visits, difference = self._update(states, parameters)
        best = np.eye(w.n_actions)[self.table(states).argmax(axis=-1)]
        design, spread = self._design(share, visits, difference)
        blocks = self.table(spread)[..., None] * np.eye(w.n_actions)
        moved = self.table(share)
        return Linearised(
            states + share * difference,
            self.through(best, 1 - moved, w.gamma * moved),
            design,
            StepNoise(blocks),
        )

    def _design(self, share: Float, visits: Float, difference: Float) -> tuple[Float, Float]:
        """Derivative w.r.t. the parameters, (m, D, q + 2), and variances of the update, (m, D)."""
        moved, own = share[..., None], ((1 - share) * visits * difference)[..., None]
        features = moved * self.legal(self.model.features[None])
        spread = share * difference**2
        spread = spread + 0.2 * spread.mean(axis=1, keepdims=True) + 1e-6
        return np.concatenate([features, own, moved], axis=2), spread

    def _update(self, states: Float, parameters: Float) -> tuple[Float, Float, Float]:
        """Share of the temporal difference, visits, temporal differences; each (m, D)."""
        w, values = self.model, self.table(states)
        policy = self.probabilities(states)
        occupancy = w.occupancy(policy)[..., None]
        visits = np.exp(parameters[w.n_features]) * occupancy * policy
        target = w.features @ parameters[: w.n_features] + parameters[w.n_features + 1]
        target = target + w.gamma * w.expect(values.max(axis=-1))
        visits = self.legal(visits)
        return 1 - np.exp(-visits), visits, self.legal(target) - states
