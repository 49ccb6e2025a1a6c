"""How a learner turns its policy and its reward into the next policy, in a tabular world.

One class per kind of learner, each a `PathModel`. A state is either the policy's logits relative to
the last action, D = S (A - 1), or, for learners that keep values, the whole table, D = S A; actions
always follow the softmax of it. All steps are computed at once, in the world that pooled data show.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import log_softmax, logsumexp, softmax

from logel.rules.rule import Observation, PathModel, Prediction, decay_prior, fading_rates
from logel.types import Float
from logel.worlds.table import TabularWorld

_HESSIAN_FLOATS = 2**24


class LearnerModel(PathModel):
    """One kind of learner in one tabular world.

    Attributes:
        world: The world all stages show.
    """

    def __init__(self, world: TabularWorld, rates: Float | None = None) -> None:
        self.world = world
        self.rates = rates
        self.nuisance_mean = np.zeros(0)
        self.nuisance_variance = np.zeros(0)
        self._flat_transitions = world.transitions.reshape(-1, world.n_states)

    @property
    def n_features(self) -> int:
        """Number q of reward features."""
        return self.world.n_features

    @property
    def n_stages(self) -> int:
        """Number m + 1 of stages seen."""
        return len(self.world.counts)

    @property
    def state_dim(self) -> int:
        """Size D of the learner's state."""
        return self.world.n_states * (self.world.n_actions - (0 if self.keeps_values else 1))

    def observe(self, stage: int, state: Float) -> Observation:
        """Actions are counted by state; each state's are multinomial."""
        return observe_counts(self.world.counts[stage], self.logits(state), whole=self.keeps_values)

    def log_likelihood(self, states: Float) -> float:
        """Of all stages' actions along a path (m + 1, D)."""
        logs = log_softmax(self.logits(states), axis=-1)
        return float((self.world.counts * logs).sum())

    def adopt(self, other: PathModel, states: Float) -> Float:
        """The states of this model whose policies are those of another model's states."""
        assert isinstance(other, LearnerModel)
        return self.from_logits(other.logits(states))

    def without_learning(self) -> PathModel:
        """Logits that drift."""
        return NoLearning(self.world)

    def rates_of(self, parameters: Float, n_steps: int) -> Float:
        """Ones: most kinds of learners have no rate that could change."""
        return np.ones(n_steps)

    def logits(self, states: Float) -> Float:
        """Action logits of states (..., D), shape (..., S, A)."""
        s, a = self.world.n_states, self.world.n_actions
        if self.keeps_values:
            return states.reshape(*states.shape[:-1], s, a)
        free = states.reshape(*states.shape[:-1], s, a - 1)
        return np.concatenate([free, np.zeros((*free.shape[:-1], 1))], axis=-1)

    def from_logits(self, logits: Float) -> Float:
        """States (..., D) whose policies are the softmax of logits (..., S, A)."""
        if self.keeps_values:
            centred = logits - logits.mean(axis=-1, keepdims=True)
            return centred.reshape(*logits.shape[:-2], -1)
        return _relative(logits).reshape(*logits.shape[:-2], -1)

    def policies(self, states: Float) -> Float:
        """Action probabilities, shape (..., S, A)."""
        return np.asarray(softmax(self.logits(states), axis=-1))

    def _expect(self, values: Float) -> Float:
        """Expected value of the next state, (m, S, A, ...), for values (m, S, ...)."""
        w = self.world
        trailing = values.shape[2:]
        flat = np.matmul(self._flat_transitions, values.reshape(len(values), w.n_states, -1))
        return flat.reshape(len(values), w.n_states, w.n_actions, *trailing)

    def _identity(self, m: int) -> Float:
        return np.broadcast_to(np.eye(self.state_dim), (m, self.state_dim, self.state_dim))


def observe_counts(counts: Float, logits: Float, *, whole: bool) -> Observation:
    """Score and information of action counts (S, A) about logits (S, A).

    Args:
        counts: How often each action was taken.
        logits: Whose softmax acts.
        whole: About all logits, not only those relative to the last action.
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


def _relative(table: Float) -> Float:
    """Differences to the last action, (..., S, A - 1), for (..., S, A)."""
    return table[..., :-1] - table[..., -1:]


class NoLearning(LearnerModel):
    """A random walk: parameters that drift without any reward. The null every model must beat."""

    name = "random walk"

    def following(self, states: Float, parameters: Float) -> Float:
        """Stay where you are."""
        return states

    def predict(
        self, states: Float, parameters: Float, *, states_known: bool = False
    ) -> Prediction:
        """Stay where you are."""
        m, d = states.shape
        identity = self._identity(m)
        return Prediction(states, identity, np.zeros((m, d, self.world.n_features)), identity)


class DriftingValues(NoLearning):
    """The same in a table of values: logits relative to one action then drift together."""

    name = "random walk of values"
    keeps_values = True


class GradientLearner(LearnerModel):
    """The paper's learner: theta + rate * Psi(theta) @ weights, Psi of the observed horizon.

    The rate may fade as (1 + t)^-decay; decay is a nuisance parameter near zero. The noise has the
    shape a sampled gradient has: partly the Fisher-like shape of a policy-gradient estimate, partly
    the covariance of per-episode gradients of the observer's own episodes in nearby stages.
    """

    name = "gradient"
    analytic_share: ClassVar[float] = 0.6
    """Share of the analytic shape; the empirical one is rank-deficient on its own."""
    window: ClassVar[int] = 2
    """Stages on either side whose episodes shape the noise."""

    def __init__(self, world: TabularWorld, rates: Float | None = None) -> None:
        super().__init__(world, rates)
        self.nuisance_mean, self.nuisance_variance = decay_prior(rates)

    def rates_of(self, parameters: Float, n_steps: int) -> Float:
        """Rates that may fade, in units of the first."""
        return fading_rates(n_steps, parameters[self.n_features], self.rates)

    def following(self, states: Float, parameters: Float) -> Float:
        """One ascent step."""
        flow = self.flow(states)
        q = self.world.n_features
        fade = fading_rates(len(states), parameters[q], self.rates)
        return np.asarray(states + fade[:, None] * (flow.jacobian @ parameters[:q]))

    def predict(
        self, states: Float, parameters: Float, *, states_known: bool = False
    ) -> Prediction:
        """One ascent step, with the Hessian of the return in its derivative."""
        q, (m, d) = self.world.n_features, states.shape
        weights, fade = parameters[:q], fading_rates(m, parameters[q], self.rates)
        flow = self.flow(states)
        step = fade[:, None] * (flow.jacobian @ weights)
        design = np.empty((m, d, q + 1))
        design[..., :q] = fade[:, None, None] * flow.jacobian
        design[..., q] = -step * np.log1p(np.arange(m))[:, None]
        transition = np.zeros((m, 0, 0))
        if not states_known:
            transition = np.eye(d) + fade[:, None, None] * self.curvature(flow, weights)
        return Prediction(
            following=states + step,
            transition=transition,
            design=design,
            shape=self.noise_shape(flow, weights),
        )

    def jacobians(self, states: Float) -> Float:
        """Jacobians of the feature expectations, shape (m, D, q)."""
        return self.flow(states).jacobian

    def flow(self, states: Float) -> Flow:
        """Forward occupancies and backward feature values of every policy."""
        w = self.world
        policy = self.policies(states)
        kernel = np.einsum("msa,sat->mst", policy, w.transitions)
        here = np.empty((w.horizon, len(states), w.n_states))
        here[0] = w.initial
        for h in range(1, w.horizon):
            here[h] = np.matmul(here[h - 1][:, None], kernel)[:, 0]
        value = np.zeros((len(states), w.n_states, w.n_features))
        jacobian = np.zeros((*policy.shape, w.n_features))
        advantages = np.empty((w.horizon, *policy.shape, w.n_features))
        for h in range(w.horizon - 1, -1, -1):
            action_value = w.features + w.gamma * self._expect(value)
            value = (policy[..., None] * action_value).sum(axis=2)
            advantages[h] = action_value - value[:, :, None]
            weight = w.gamma**h * here[h]
            jacobian += weight[:, :, None, None] * policy[..., None] * advantages[h]
        flat = jacobian[:, :, :-1].reshape(len(states), self.state_dim, w.n_features)
        return Flow(policy, kernel, here, advantages, flat)

    def curvature(self, flow: Flow, weights: Float) -> Float:
        """Derivative of Psi(theta) @ weights w.r.t. theta, shape (m, D, D)."""
        # Sensitivities of every time are held at once: a few stages at a time bound them.
        m = len(flow.policy)
        per_stage = self.world.horizon * self.world.n_states * self.state_dim
        at_once = max(1, _HESSIAN_FLOATS // per_stage)
        parts = [slice(t, t + at_once) for t in range(0, m, at_once)]
        return np.concatenate([self._curvature(flow.part(part), weights) for part in parts])

    def _curvature(self, flow: Flow, weights: Float) -> Float:
        """The same, all stages at once, forward through time."""
        w, d = self.world, self.state_dim
        policy, here = flow.policy, flow.here
        m, s, a = policy.shape
        free = policy[:, :, : a - 1]
        index = np.arange(s)
        # How a parameter of state s moves the state reached from s.
        jump = free[..., None] * (w.transitions[:, : a - 1] - flow.kernel[:, :, None, :])
        jump = np.ascontiguousarray(jump.reshape(m, d, s).transpose(0, 2, 1))
        back = np.ascontiguousarray(flow.kernel.transpose(0, 2, 1))
        moved = np.zeros((w.horizon, m, s, d))
        for h in range(1, w.horizon):
            visits = np.repeat(here[h - 1], a - 1, axis=1)[:, None, :]
            moved[h] = np.matmul(back, moved[h - 1]) + visits * jump
        hessian = np.zeros((m, s, a - 1, d))
        own = np.zeros((m, s, a - 1, a - 1))
        value = np.zeros((m, s, d))
        for h in range(w.horizon - 1, -1, -1):
            advantage = flow.advantages[h] @ weights
            action_value = w.gamma * self._expect(value)
            value = np.matmul(policy[:, :, None, :], action_value)[:, :, 0, :]
            scaled = free * advantage[:, :, : a - 1]
            value.reshape(m, s, s, a - 1)[:, index, index, :] += scaled
            discount = w.gamma**h
            reach = discount * here[h][:, :, None] * free
            hessian += reach[..., None] * (action_value[:, :, : a - 1] - value[:, :, None])
            hessian += discount * scaled[..., None] * moved[h][:, :, None]
            slope = np.eye(a - 1) - free[:, :, None, :]
            own += (discount * here[h])[:, :, None, None] * scaled[..., None] * slope
        view = hessian.reshape(m, s, a - 1, s, a - 1)
        view[:, index, :, index, :] += np.moveaxis(own, 1, 0)
        return hessian.reshape(m, d, d)

    def noise_shape(self, flow: Flow, weights: Float) -> Float:
        """Covariance, up to scale, of a sampled policy gradient at every stage."""
        w, d = self.world, self.state_dim
        m, s, a = flow.policy.shape
        free = flow.policy[:, :, : a - 1]
        left = np.cumsum((w.gamma ** np.arange(w.horizon))[::-1])[::-1]
        visits = np.einsum("h,hms->ms", (left / left[0]) ** 2, flow.here) + 1e-3
        blocks = free[..., None] * np.eye(a - 1) - free[..., :, None] * free[..., None, :]
        blocks = visits[:, :, None, None] * (blocks + 1e-3 * np.eye(a - 1))
        analytic = np.zeros((m, s, a - 1, s, a - 1))
        index = np.arange(s)
        analytic[:, index, :, index, :] = np.moveaxis(blocks, 1, 0)
        analytic = analytic.reshape(m, d, d)
        if np.abs(weights).max(initial=0.0) < 1e-9:
            return analytic
        empirical = self._episode_covariance(flow.policy, weights)
        ratio = np.einsum("mii->", analytic) / max(np.einsum("mii->", empirical), 1e-300)
        share = self.analytic_share
        return np.asarray(share * analytic + (1 - share) * ratio * empirical)

    def _episode_covariance(self, policy: Float, weights: Float) -> Float:
        d = self.state_dim
        paid = [sums @ weights for sums in self.world.episode_sums]
        result = np.empty((len(policy), d, d))
        for t in range(len(policy)):
            near = np.concatenate(paid[max(0, t - self.window) : t + self.window + 1])
            scores = near - near.sum(axis=2, keepdims=True) * policy[t]
            rows = scores[:, :, :-1].reshape(len(near), d)
            rows = rows - rows.mean(axis=0)
            result[t] = rows.T @ rows / len(rows)
        return result


@dataclass(frozen=True, eq=False)
class Flow:
    """Quantities of a policy-gradient step that its derivatives share."""

    policy: Float
    kernel: Float
    here: Float
    advantages: Float
    jacobian: Float

    def part(self, stages: slice) -> Flow:
        """The same for some of the stages."""
        return Flow(
            self.policy[stages],
            self.kernel[stages],
            self.here[:, stages],
            self.advantages[:, stages],
            self.jacobian[stages],
        )


class SoftPolicyLearner(LearnerModel):
    """Soft policy iteration, as LfL assumes: the next logits are the soft Q of this policy.

    Temperature one: the weights come in units of it.
    """

    name = "soft policy iteration"
    # One step may lead anywhere: a random walk's path, which is smooth, can be a bad start.
    second_start = True

    def following(self, states: Float, parameters: Float) -> Float:
        """Soft values of the present policy."""
        return self._evaluate(states, parameters).following

    def predict(
        self, states: Float, parameters: Float, *, states_known: bool = False
    ) -> Prediction:
        """Soft values of the present policy, and their derivatives."""
        result = self._evaluate(states, parameters)
        m = len(states)
        return Prediction(result.following, result.slope, result.design, self._identity(m))

    def _evaluate(self, states: Float, parameters: Float, *, entropy: bool = True) -> _Evaluation:
        w, (m, d) = self.world, states.shape
        weights = parameters[: w.n_features]
        logs = log_softmax(self.logits(states), axis=-1)
        policy = np.exp(logs)
        kernel = np.einsum("msa,sat->mst", policy, w.transitions)
        resolvent = np.linalg.inv(np.eye(w.n_states) - w.gamma * kernel)
        value = resolvent @ np.einsum("msa,saq->msq", policy, w.features)
        feature_value = w.features + w.gamma * self._expect(value)
        action_value, state_value = feature_value @ weights, value @ weights
        bonus = np.zeros_like(logs)
        if entropy:
            bonus = logs
            extra = (resolvent @ -(policy * logs).sum(axis=-1)[..., None])[..., 0]
            action_value = action_value + w.gamma * self._expect(extra)
            state_value = state_value + extra
        advantage = action_value - bonus - state_value[..., None]
        moved = resolvent[:, :, :, None] * (policy * advantage)[:, None, :, :-1]
        slope = w.gamma * self._expect(moved.reshape(m, w.n_states, d))
        return _Evaluation(
            following=_relative(action_value).reshape(m, d),
            slope=(slope[:, :, :-1] - slope[:, :, -1:]).reshape(m, d, d),
            design=(feature_value[:, :, :-1] - feature_value[:, :, -1:]).reshape(m, d, -1),
        )


@dataclass(frozen=True, eq=False)
class _Evaluation:
    """Values of a policy relative to the last action, with derivatives."""

    following: Float
    slope: Float
    design: Float


class NaturalGradientLearner(SoftPolicyLearner):
    """Natural gradient, which is mirror descent: log-probabilities move by rate * advantage."""

    name = "natural gradient"
    second_start = False

    def __init__(self, world: TabularWorld, rates: Float | None = None) -> None:
        super().__init__(world, rates)
        self.nuisance_mean, self.nuisance_variance = decay_prior(rates)

    def rates_of(self, parameters: Float, n_steps: int) -> Float:
        """Rates that may fade, in units of the first."""
        return fading_rates(n_steps, parameters[self.n_features], self.rates)

    def following(self, states: Float, parameters: Float) -> Float:
        """Move along the advantages."""
        fade = fading_rates(len(states), parameters[self.world.n_features], self.rates)
        step = self._evaluate(states, parameters, entropy=False).following
        return np.asarray(states + fade[:, None] * step)

    def predict(
        self, states: Float, parameters: Float, *, states_known: bool = False
    ) -> Prediction:
        """Move along the advantages, with derivatives."""
        m, d = states.shape
        fade = fading_rates(m, parameters[self.world.n_features], self.rates)
        result = self._evaluate(states, parameters, entropy=False)
        step = fade[:, None] * result.following
        fading = -step * np.log1p(np.arange(m))[:, None]
        return Prediction(
            following=states + step,
            transition=np.eye(d) + fade[:, None, None] * result.slope,
            design=np.concatenate([fade[:, None, None] * result.design, fading[..., None]], axis=2),
            shape=self._identity(m),
        )


class SoftValueLearner(LearnerModel):
    """Soft value iteration: Q <- Phi @ weights + gamma P logsumexp(Q), for every pair."""

    name = "soft value iteration"
    keeps_values = True

    def following(self, states: Float, parameters: Float) -> Float:
        """One soft backup."""
        w = self.world
        value = np.asarray(logsumexp(self.logits(states), axis=-1))
        backup = w.features @ parameters[: w.n_features] + w.gamma * self._expect(value)
        return backup.reshape(states.shape)

    def predict(
        self, states: Float, parameters: Float, *, states_known: bool = False
    ) -> Prediction:
        """One soft backup, with derivatives."""
        w, (m, d) = self.world, states.shape
        policy = self.policies(states)
        slope = w.gamma * self._flat_transitions[None, :, :, None] * policy[:, None]
        return Prediction(
            following=self.following(states, parameters),
            transition=slope.reshape(m, d, d),
            design=np.broadcast_to(w.features.reshape(1, d, -1), (m, d, w.n_features)),
            shape=self._identity(m),
        )


class QLearningLearner(LearnerModel):
    """Q-learning, on average: only pairs the behaviour visits move towards their hard backup.

    A pair visited n times moves by the share 1 - exp(-n) of its temporal difference, where n, the
    product of learning rate and visits, follows the policy's occupancy; its overall size is a
    nuisance parameter. Updates are noisy in proportion to their temporal differences.

    Another is a constant reward. What is the same in every step moves no gradient, and features
    that sum to a constant leave it out; but pairs not yet visited keep their first value, so that
    this learner is drawn to them by rewards that are all negative, and away by positive ones.
    """

    name = "Q-learning"
    keeps_values = True
    variance_bounds = (1e-3, 1.0)
    restart: ClassVar[float] = 1 / 50
    """Chance per step that a run of the learner starts anew, in any state."""

    def __init__(self, world: TabularWorld, rates: Float | None = None) -> None:
        super().__init__(world, rates)
        pairs = world.n_states * world.n_actions
        self.nuisance_mean = np.array([np.log(0.1 * pairs), 0.0])
        self.nuisance_variance = np.array([0.7**2, 1.0])

    def following(self, states: Float, parameters: Float) -> Float:
        """The expected update of a run."""
        share, _, difference = self._update(states, parameters)
        return states + (share * difference).reshape(states.shape)

    def predict(
        self, states: Float, parameters: Float, *, states_known: bool = False
    ) -> Prediction:
        """The expected update of a run; the visits' own dependence on Q is left out."""
        w, (m, d) = self.world, states.shape
        share, visits, difference = self._update(states, parameters)
        moved = share.reshape(m, d, 1)
        best = np.eye(w.n_actions)[self.logits(states).argmax(axis=-1)]
        slope = w.gamma * self._flat_transitions[None, :, :, None] * best[:, None]
        transition = moved * slope.reshape(m, d, d)
        index = np.arange(d)
        transition[:, index, index] += 1 - moved[..., 0]
        own = ((1 - share) * visits * difference).reshape(m, d, 1)
        design = np.concatenate([moved * w.features.reshape(1, d, -1), own, moved], axis=2)
        spread = (share * difference**2).reshape(m, d)
        shape = np.zeros((m, d, d))
        shape[:, index, index] = spread + 0.2 * spread.mean(axis=1, keepdims=True) + 1e-6
        return Prediction(states + (share * difference).reshape(m, d), transition, design, shape)

    def _update(self, states: Float, parameters: Float) -> tuple[Float, Float, Float]:
        """Share of the temporal difference, visits, temporal differences; each (m, S, A)."""
        w, values = self.world, self.logits(states)
        policy = self.policies(states)
        kernel = np.einsum("msa,sat->mst", policy, w.transitions).transpose(0, 2, 1)
        uniform = np.full((len(states), w.n_states, 1), self.restart / w.n_states)
        system = np.eye(w.n_states) - (1 - self.restart) * kernel
        occupancy = np.linalg.solve(system, uniform)[..., 0]
        visits = np.exp(parameters[w.n_features]) * occupancy[..., None] * policy
        target = w.features @ parameters[: w.n_features] + parameters[w.n_features + 1]
        target = target + w.gamma * self._expect(values.max(axis=-1))
        return 1 - np.exp(-visits), visits, target - values


MODELS: dict[str, type[LearnerModel]] = {
    "gradient": GradientLearner,
    "natural": NaturalGradientLearner,
    "soft-policy": SoftPolicyLearner,
    "soft-value": SoftValueLearner,
    "q-learning": QLearningLearner,
}
