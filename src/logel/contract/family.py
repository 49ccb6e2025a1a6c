"""What every policy family owes."""

from __future__ import annotations

import numpy as np
import torch

from logel.data.stage import Stage
from logel.policies.base import Policy
from logel.policies.cloning import CloneConfig, clone_stage
from logel.types import Array, Float


def check_family(policy: Policy, observations: Array, *, seed: int = 0) -> None:
    """Log-probabilities, scores, products, information and clones of a family agree.

    Args:
        policy: The family.
        observations: A few dozen different observations it may act in, N rows.
        seed: Of parameters and actions.
    """
    rng = np.random.default_rng(seed)
    theta = policy.initial(rng) + 0.3 * rng.standard_normal(policy.n_parameters)
    actions = policy.sample(theta, observations, rng)
    _check_scores(policy, theta, observations, actions)
    _check_information(policy, theta, observations, rng)
    _check_cloning(policy, theta, observations, rng)


def _log_prob(policy: Policy, theta: Float, observations: Array, actions: Array) -> Float:
    prepared = policy.prepare_observations(observations), policy.prepare_actions(actions)
    values = policy.log_prob(policy.tensor(theta), *prepared)
    return np.asarray(values.detach().cpu().numpy(), dtype=float)


def _check_scores(policy: Policy, theta: Float, observations: Array, actions: Array) -> None:
    """Scores are derivatives of log-probabilities; products with them are sums over rows."""
    prepared = policy.prepare_observations(observations), policy.prepare_actions(actions)
    scores = policy.scores(policy.tensor(theta), *prepared).detach().cpu().numpy()
    step = 1e-5
    for i in range(0, len(theta), max(1, len(theta) // 12)):
        move = step * np.eye(len(theta))[i]
        up, down = (_log_prob(policy, theta + s * move, observations, actions) for s in (1, -1))
        expected = (up - down) / (2 * step)
        np.testing.assert_allclose(
            scores[:, i], expected, rtol=1e-4, atol=1e-6, err_msg=f"score of parameter {i}"
        )
    cotangents = np.random.default_rng(1).standard_normal((len(actions), 3))
    product = policy.vjp(policy.tensor(theta), *prepared, policy.tensor(cotangents))
    np.testing.assert_allclose(
        product.detach().cpu().numpy(), scores.T @ cotangents, rtol=1e-7, atol=1e-8
    )


def _check_information(
    policy: Policy, theta: Float, observations: Array, rng: np.random.Generator
) -> None:
    """The information is the mean square of the score over the policy's own actions."""
    prepared = policy.prepare_observations(observations)
    tensor = policy.tensor(theta)
    fisher = policy.fisher(tensor, prepared)
    diagonal = fisher.diagonal()
    np.testing.assert_allclose(diagonal, np.diagonal(fisher.dense()), rtol=1e-6, atol=1e-8)
    total, rounds = np.zeros(len(theta)), 400
    for _ in range(rounds):
        actions = policy.prepare_actions(policy.sample(theta, observations, rng))
        total += (policy.scores(tensor, prepared, actions).detach().cpu().numpy() ** 2).sum(axis=0)
    assert np.median(np.abs(total / rounds - diagonal) / (diagonal + 1e-3)) < 0.25


def _check_cloning(
    policy: Policy, theta: Float, observations: Array, rng: np.random.Generator
) -> None:
    """A clone of many actions predicts them about as well as the policy that took them."""
    n, length = 60, 20
    rows = rng.integers(0, len(observations), n * length)
    seen = np.asarray(observations)[rows]
    stage = Stage(
        observations=seen,
        actions=policy.sample(theta, seen, rng),
        lengths=np.full(n, length),
        terminated=np.zeros(n, dtype=bool),
    )
    start = policy.initial(rng)
    found = clone_stage(stage, policy, CloneConfig(), start=start, rng=rng)
    own = float(_log_prob(policy, theta, stage.observations, stage.actions).mean())
    with torch.no_grad():
        mine = float(_log_prob(policy, found.parameters, stage.observations, stage.actions).mean())
    # A fit of d parameters to N rows is d / 2N above the truth, give or take; a bad one far below.
    room = 0.02 + 3 * np.sqrt(policy.n_parameters / len(rows))
    assert mine > own - room, f"the clone reaches {mine:.3f} per step, the policy {own:.3f}"
