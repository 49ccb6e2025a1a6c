"""Replay repeats Stable-Baselines3's own updates: policy, critic and optimiser."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sb3_contrib import TRPO
from sb3_runs import Run, run_of
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike

from logel.replay import actor_critic
from logel.replay.actor_critic import State
from logel.replay.learner import StackedLearner

ALIKE = 1e-5


def linear(value: float) -> Callable[[float], float]:
    # Not to nothing: what is clipped to an empty range depends on rounding.
    return lambda left: value * (left + 0.1)


def network(pi: list[int], vf: list[int], **more: Any) -> dict[str, Any]:
    return {"policy_kwargs": {"net_arch": {"pi": pi, "vf": vf}, **more}}


def optimiser(kind: Any, **options: Any) -> dict[str, Any]:
    return network([7, 6], [6, 5], optimizer_class=kind, optimizer_kwargs=options)


SMALL = {"batch_size": 8, "n_epochs": 3, "learning_rate": 3e-3}
PPO_CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "discrete": {"discrete": True},
    "one environment": {"n_envs": 1, "n_steps": 17},
    "schedules": {"learning_rate": linear(0.01), "clip_range": linear(0.1), "discrete": True},
    "critic clipped": {"clip_range_vf": 0.02, "learning_rate": 0.02},
    "critic clipped by schedule": {"clip_range_vf": linear(0.05), "learning_rate": 0.02},
    "ratio clipped": {"clip_range": 0.01, "learning_rate": 0.02, "n_epochs": 6},
    "target_kl": {"target_kl": 0.006, "learning_rate": 0.02},
    "target_kl, discrete": {"target_kl": 0.006, "learning_rate": 0.02, "discrete": True},
    "entropy": {"ent_coef": 0.1},
    "entropy, discrete": {"ent_coef": 0.1, "discrete": True},
    "advantages as they are": {"normalize_advantage": False},
    "gradients clipped": {"max_grad_norm": 0.01},
    "gradients not clipped": {"max_grad_norm": 1e9},
    "never clipped": {"max_grad_norm": float("inf"), "vf_coef": 2.0},
    "other discounts": {"gamma": 0.7, "gae_lambda": 0.5},
    "no trace": {"gamma": 0.9, "gae_lambda": 0.0},
    "all of the trace": {"gamma": 1.0, "gae_lambda": 1.0},
    "last minibatch smaller": {"batch_size": 7},
    "last minibatch of one": {"batch_size": 23},
    "minibatch larger than the rollout": {"batch_size": 100},
    "relu, no orthogonality": network([9], [5, 4], activation_fn=torch.nn.ReLU, ortho_init=False),
    "elu, discrete": {**network([5], [], activation_fn=torch.nn.ELU), "discrete": True},
    "leaky": network([4, 4, 4], [4], activation_fn=torch.nn.LeakyReLU),
    "no hidden layers": network([], []),
    "RMSprop": optimiser(torch.optim.RMSprop, eps=1e-3, alpha=0.9, weight_decay=0.1),
    "RMSprop of TensorFlow": optimiser(RMSpropTFLike, eps=1e-4, alpha=0.8, weight_decay=0.1),
    "Adam's options": optimiser(torch.optim.Adam, eps=1e-4, betas=(0.8, 0.9), weight_decay=0.1),
    "observations normalised": {"normalise": {"norm_reward": False}},
    "rewards normalised": {"normalise": {"norm_obs": False}},
    "rewards normalised and clipped": {
        "normalise": {"norm_obs": False, "gamma": 0.8, "clip_reward": 0.7, "epsilon": 0.01}
    },
    "all normalised, one environment": {"normalise": {}, "n_envs": 1, "n_steps": 17},
    "all normalised, discrete": {"normalise": {}, "discrete": True},
}
A2C_CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "discrete": {"discrete": True, "ent_coef": 0.05},
    "Adam, normalised": {"use_rms_prop": False, "normalize_advantage": True, "gae_lambda": 0.9},
    "RMSprop of TensorFlow": {
        **network([7], [7], optimizer_class=RMSpropTFLike, optimizer_kwargs={"eps": 1e-5}),
        "learning_rate": linear(0.01),
    },
    "gradients not clipped": {"max_grad_norm": 1e9, "n_envs": 1, "n_steps": 5},
    "all normalised": {"normalise": {}, "n_steps": 5},
}
TRPO_CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "discrete": {"discrete": True},
    "every other row": {"sub_sampling_factor": 2, "n_steps": 16},
    "every other row, discrete": {"sub_sampling_factor": 2, "n_steps": 16, "discrete": True},
    "no step is good enough": {"line_search_max_iter": 1, "target_kl": 0.3},
    "advantages as they are": {"normalize_advantage": False},
    "few conjugate gradients": {"cg_max_steps": 2, "cg_damping": 0.01, "target_kl": 0.05},
    "a search that shrinks fast": {"line_search_shrinking_factor": 0.3, "target_kl": 0.3},
    "schedule": {"learning_rate": linear(0.01), "n_critic_updates": 2, "batch_size": 5},
    "all normalised": {"normalise": {}, "gamma": 0.9, "gae_lambda": 0.8},
}
CASES = [
    *(pytest.param(PPO, {**SMALL, **case}, id=f"PPO: {name}") for name, case in PPO_CASES.items()),
    *(pytest.param(A2C, case, id=f"A2C: {name}") for name, case in A2C_CASES.items()),
    *(
        pytest.param(TRPO, {"batch_size": 8, **case}, id=f"TRPO: {name}")
        for name, case in TRPO_CASES.items()
    ),
]


def stacked(run: Run) -> StackedLearner:
    learner = StackedLearner.of(run.settings, run.policy, 3)
    assert learner is not None
    return learner


def given(rows: Any) -> torch.Tensor:
    return torch.as_tensor(np.array(rows), dtype=torch.float32)


def assert_repeated(run: Run) -> None:
    """Every update of a run, each from what replay itself carried over from the one before."""
    learner, state = stacked(run), State(given([run.moments[0].critic]))
    for t, stage in enumerate(run.history):
        batch, after = run.batch(t), run.moments[t + 1]
        theta = given([stage.parameters])
        found, state = learner.update(theta, state, batch, batch.features.T, [run.draws[t]])  # type: ignore[list-item]
        np.testing.assert_allclose(found[0], after.parameters, rtol=ALIKE, atol=ALIKE)
        np.testing.assert_allclose(state.critic[0], after.critic, rtol=ALIKE, atol=ALIKE)
        assert set(after.moments) == set(state.moments) - {"step"}
        for name, expected in after.moments.items():
            # Gradients have the rewards' scale: what is small beside the largest is rounding.
            nearly = ALIKE * max(1.0, np.abs(expected).max())
            np.testing.assert_allclose(state.moments[name][0], expected, rtol=ALIKE, atol=nearly)


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize(("algorithm", "options"), CASES)
def test_updates_are_repeated(algorithm: Any, options: dict[str, Any], tmp_path: Path) -> None:
    assert_repeated(run_of(algorithm, tmp_path, **options))


def test_some_updates_stop_early(tmp_path: Path) -> None:
    run = run_of(PPO, tmp_path, **{**SMALL, **PPO_CASES["target_kl"]})
    assert {len(draws.orders) for draws in run.draws} > {SMALL["n_epochs"]}


def test_some_line_searches_fail(tmp_path: Path) -> None:
    run = run_of(TRPO, tmp_path, batch_size=8, **TRPO_CASES["no step is good enough"])
    moved = [(b.parameters != a.parameters).any() for a, b in pairwise(run.moments)]
    assert set(moved) == {True, False}


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        pytest.param(PPO, {**SMALL, "target_kl": 0.006, "learning_rate": 0.02}, id="PPO"),
        pytest.param(PPO, {**SMALL, "discrete": True, "normalise": {}}, id="scaled"),
        pytest.param(A2C, {"normalise": {}}, id="A2C"),
        pytest.param(A2C, {"use_rms_prop": False}, id="A2C with Adam"),
        pytest.param(TRPO, {"batch_size": 8, "sub_sampling_factor": 2, "n_steps": 16}, id="TRPO"),
        pytest.param(TRPO, {"batch_size": 8, "n_steps": 16}, id="TRPO, all rows"),
    ],
)
@pytest.mark.parametrize("cached", [8192, 99], ids=["at once", "few at a time"])
def test_candidates_side_by_side_are_as_if_alone(
    algorithm: Any,
    options: dict[str, Any],
    cached: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(actor_critic, "_CACHED", cached)
    run = run_of(algorithm, tmp_path, n_updates=3, **options)
    learner, weights = stacked(run), torch.tensor([[1.0], [-2.0], [0.01], [0.3]])
    # Two generators for four candidates, in turn.
    together, alone = generators(2), [[generators(2)[k % 2]] for k in range(4)]
    state = learner.chosen(learner.initial(together), np.array([0, 1, 0, 1]))
    states = [learner.initial(rng) for rng in alone]
    for t, stage in enumerate(run.history):
        batch = run.batch(t)
        theta, rewards = given([stage.parameters] * 4), weights @ batch.features.T
        found, state = learner.update(theta, state, batch, rewards, together)
        for k in range(4):
            one, states[k] = learner.update(theta[[k]], states[k], batch, rewards[[k]], alone[k])
            np.testing.assert_allclose(found[k], one[0], rtol=ALIKE, atol=ALIKE)
            np.testing.assert_allclose(state.critic[k], states[k].critic[0], atol=ALIKE)


def generators(n: int) -> list[np.random.Generator]:
    return [np.random.default_rng(seed) for seed in range(1000, 1000 + n)]
