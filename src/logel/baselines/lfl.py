"""Learning from a Learner (Jacq et al., 2019), tabular: the learner is taken to improve softly.

If every policy is the soft improvement of the one before it at temperature alpha, then

    alpha log pi'(a|s) + alpha gamma E KL(pi || pi')(s')  =  r(s, a) + f(s) - gamma E f(s')

for some potential f of that step. One reward is shared by all steps, one potential belongs to
each, and their fit is linear least squares. Its solution is explicit: the reward is the mean
target over the steps, up to a potential, which cannot change what is optimal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from logel.baselines.checks import check_positive, check_stages
from logel.data.history import LearningHistory
from logel.errors import PolicyError, check_gamma
from logel.policies.cloned_path import clone
from logel.policies.cloning import CloneConfig
from logel.policies.softmax import TabularSoftmax
from logel.types import Array, Float
from logel.worlds.counting import successors


@dataclass(frozen=True, eq=False)
class TabularReward:
    """A reward for every state and action.

    Attributes:
        table: Shape (S, A).
        shaping: Potential of each step, shape (m, S).
        residual: Root-mean-square misfit of the targets.
    """

    table: Float
    shaping: Float
    residual: float

    def __call__(self, observations: Array, actions: Array, next_observations: Array) -> Float:
        """Rewards of N transitions, shape (N,)."""
        return np.asarray(self.table[observations, actions])


def lfl(
    history: LearningHistory,
    policy: TabularSoftmax,
    *,
    gamma: float,
    temperature: float = 0.7,
    use_parameters: bool = True,
    seed: int = 0,
) -> TabularReward:
    """Recover a reward table from a history.

    Args:
        history: What was observed, at least two stages, with every episode's last state.
        policy: The tabular family of the learner's policies.
        gamma: Discount factor, in [0, 1).
        temperature: The model's alpha; the paper's experiments use .7 whatever the learner's.
        use_parameters: Use the history's policy parameters if it has them, instead of cloning.
        seed: Chooses held-out episodes.
    """
    if not isinstance(policy, TabularSoftmax):
        raise PolicyError("tabular LfL needs a TabularSoftmax policy")
    check_stages(history)
    theta = history.parameters() if use_parameters else None
    if theta is None:
        rng = np.random.default_rng(seed)
        theta = clone(history, policy, CloneConfig(holdout=0.0), rng=rng).parameters
    states = np.arange(policy.n_states)
    policies = np.stack([policy.probabilities(row, states) for row in theta])
    return fit_lfl(
        policies, count_transitions(history, policy), gamma=gamma, temperature=temperature
    )


def count_transitions(history: LearningHistory, policy: TabularSoftmax) -> Float:
    """Transition frequencies pooled over all stages, (S, A, S); uniform where nothing was seen.

    What is missing to one is termination, after which nothing follows.
    """
    s, a = policy.n_states, policy.n_actions
    counts = np.zeros((s, a, s + 1))
    for stage in history:
        policy.check(stage)
        rows, following = successors(stage, n_states=s)
        index = (stage.observations[rows] * a + stage.actions[rows]) * (s + 1) + following
        counts += np.bincount(index, minlength=counts.size).reshape(counts.shape)
    totals = counts.sum(axis=2, keepdims=True)
    return np.where(totals > 0, counts[:, :, :s] / np.maximum(totals, 1), 1 / s)


def fit_lfl(
    policies: Float, transitions: Float, *, gamma: float, temperature: float
) -> TabularReward:
    """Least-squares reward and potentials for a path of policies.

    Of all solutions, which differ by a potential, the one of least norm is returned: the one
    gradient descent from zero would reach. Shapes: `policies` (m + 1, S, A), `transitions`
    (S, A, S).
    """
    check_gamma(gamma)
    check_positive(temperature=temperature)
    n_states, n_actions = transitions.shape[:2]
    targets = lfl_targets(policies, transitions, gamma=gamma, temperature=temperature)
    shaping = shaping_matrix(transitions, gamma)
    flat = targets.reshape(len(targets), -1)
    mean = flat.mean(axis=0)
    m = len(flat)
    # The mean potential only trades off against the reward: least norm decides.
    common = np.linalg.solve(shaping.T @ shaping + m * np.eye(n_states), shaping.T @ mean)
    own = np.linalg.lstsq(shaping, (flat - mean).T, rcond=None)[0].T
    reward = mean - shaping @ common
    residual = flat - reward - (own + common) @ shaping.T
    return TabularReward(
        table=reward.reshape(n_states, n_actions),
        shaping=own + common,
        residual=float(np.sqrt((residual**2).mean())),
    )


def lfl_targets(policies: Float, transitions: Float, *, gamma: float, temperature: float) -> Float:
    """Left-hand side of the module's equation for every step, shape (m, S, A)."""
    logs = np.log(np.maximum(policies, np.finfo(float).tiny))
    change = (policies[:-1] * (logs[1:] - logs[:-1])).sum(axis=2)
    return np.asarray(
        temperature * logs[1:] - temperature * gamma * np.einsum("sat,mt->msa", transitions, change)
    )


def shaping_matrix(transitions: Float, gamma: float) -> Float:
    """Maps a potential (S,) to f(s) - gamma E f(s'), shape (S A, S)."""
    n_states, n_actions = transitions.shape[:2]
    own = np.repeat(np.eye(n_states), n_actions, axis=0)
    return own - gamma * transitions.reshape(n_states * n_actions, n_states)
