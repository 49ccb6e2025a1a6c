"""The least that any unbiased estimator can err, from trajectories alone: the Cramer-Rao bound.

A learner without noise of its own is a path: a function of its first state and of the weights (its
rate or temperature folded in). The information of all stages' actions about both follows from the
sensitivities of that path; what is left about the weights when the first state is unknown bounds
every unbiased estimator. A learner whose own updates are noisy shows less, so for it the bound of
its average path is a bound all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from logel.envs.tabular import TabularMDP
from logel.learners.tabular import GPOMDPLearner, QLearner, SoftPolicyIteration
from logel.rules.ascent import Gradient
from logel.rules.rule import Rule
from logel.rules.values import QLearning, SoftPolicy, SoftValue
from logel.types import Float
from logel.worlds.table import TabularWorld

# Of a stage, by default, as the studies watch it.
N_EPISODES, HORIZON = 50, 20
MODELS: dict[str, type[Rule]] = {
    "gpomdp": Gradient,
    "qlearning": QLearning,
    "svi": SoftValue,
    "spi": SoftPolicy,
}


@dataclass(frozen=True, eq=False)
class Bound:
    """The least covariance of the weights (q, q), and the true weights; the gauge is removed."""

    covariance: Float
    weights: Float

    @property
    def direction(self) -> float:
        """Least root-mean-square direction error."""
        size = float(np.linalg.norm(self.weights))
        unit = self.weights / size
        across = np.eye(len(unit)) - np.outer(unit, unit)
        return float(np.sqrt(np.trace(across @ self.covariance @ across)) / size)

    def draw(self, n: int, rng: np.random.Generator) -> Float:
        """What an efficient unbiased estimator would answer, n times, shape (n, q)."""
        values, vectors = np.linalg.eigh(self.covariance)
        root = vectors * np.sqrt(np.clip(values, 0, None))
        return np.asarray(self.weights + rng.standard_normal((n, len(root))) @ root.T)


def exact_world(mdp: TabularMDP, *, horizon: int) -> TabularWorld:
    """The true world in the form of a pooled one, with nothing observed in it."""
    return TabularWorld(
        transitions=np.asarray(mdp.transitions),
        features=np.asarray(mdp.expected_features),
        initial=np.asarray(mdp.initial),
        gamma=mdp.gamma,
        horizon=horizon,
        counts=np.zeros((1, mdp.n_states, mdp.n_actions)),
        episode_sums=(np.zeros((1, mdp.n_states, mdp.n_actions, mdp.n_features)),),
    )


def cramer_rao(mdp: TabularMDP, weights: Float, *, learner: str, n_steps: int) -> Bound:
    """The bound for one of the paper's learners, its first state unknown.

    Features are taken to sum to a constant (areas), so that one direction is not identified.
    """
    world = exact_world(mdp, horizon=HORIZON)
    model = MODELS[learner](world)
    q, d = mdp.n_features, model.state_dim
    scaled = _in_model_units(learner, weights)
    parameters = np.concatenate([scaled, _nuisance(learner, model)])
    state = np.zeros((1, d))
    sensitivity = np.concatenate([np.eye(d), np.zeros((d, q))], axis=1)
    information = np.zeros((d + q, d + q))
    for _ in range(n_steps + 1):
        policy = world.probabilities(model.as_policy(state))[0]
        visits = N_EPISODES * undiscounted_visits(mdp, policy, HORIZON)
        fisher = _fisher(policy, visits, whole=model.keeps_values)
        information += sensitivity.T @ fisher @ sensitivity
        step = model.predict(state, parameters)
        sensitivity = step.transition[0] @ sensitivity
        sensitivity[:, d:] += step.design[0][:, :q]
        state = step.following
    # Directions that no action shows (the gauge) have no information but rounding.
    covariance = np.linalg.pinv(information, rcond=1e-12, hermitian=True)[d:, d:]
    identified = np.eye(q) - np.full((q, q), 1 / q)
    return Bound(identified @ covariance @ identified, identified @ scaled)


def _in_model_units(learner: str, weights: Float) -> Float:
    """Weights with the learner's rate or temperature folded in."""
    if learner == "gpomdp":
        return GPOMDPLearner().learning_rate * weights
    if learner == "spi":
        return weights / SoftPolicyIteration().temperature
    return np.asarray(weights, dtype=float)


def _nuisance(learner: str, model: Rule) -> Float:
    """The nuisance parameters a learner of the study really has."""
    if learner == "qlearning":
        teacher = QLearner()
        return np.array([np.log(teacher.learning_rate * teacher.n_steps), 0.0])
    return np.zeros(len(model.nuisance_mean))


def _fisher(policy: Float, visits: Float, *, whole: bool) -> Float:
    """Information of one stage about logits: all of them, or those relative to the last action."""
    free = policy if whole else policy[:, :-1]
    s, width = free.shape
    blocks = free[:, :, None] * np.eye(width) - free[:, :, None] * free[:, None, :]
    fisher = np.zeros((s, width, s, width))
    index = np.arange(s)
    fisher[index, :, index, :] = visits[:, None, None] * blocks
    return fisher.reshape(s * width, s * width)


def undiscounted_visits(mdp: TabularMDP, policy: Float, horizon: int) -> Float:
    """Expected number of times each state is acted in, over one episode."""
    kernel = np.einsum("sa,sat->st", policy, mdp.transitions)
    here, total = np.asarray(mdp.initial), np.zeros(mdp.n_states)
    for _ in range(horizon):
        total = total + here
        here = here @ kernel
    return total
