"""Jacobian of one stage against the classic per-sample autograd loop: speed, equality, memory.

Usage: `python -m benchmarks.jacobian`. The setting is that of a small continuous-control task: 40
episodes of 50 steps, a 64-64 network without biases (d = 4928), q = 26 features. The reference is
what one writes first: a network module, a torch distribution, one `autograd.grad` per step, scores
cumulated along each episode, and for the component-wise baseline arrays over episodes, parameters
and features. They are formed time by time, since all times together would take 2 GB each.

Times are processor time of one thread, so other jobs on the machine do not count, and only ratios
within the run are compared: the best of several for either side. Like the loop, the timed call
estimates the Jacobian only (one group of episodes); the ten groups that `stage_jacobian` keeps
apart by default, for uncertainty, are timed beside it, without a target. The memory of the
component-wise baseline is the rise of the peak resident memory in a fresh process after a small
warm-up call.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from benchmarks.report import Check, fresh_process, peak_bytes, report, resident_bytes
from logel import MLPGaussian, Stage
from logel.worlds.own_episodes import stage_jacobian

EPISODES, TIMES, FEATURES = 40, 50, 26
GAMMA, SIGMA = 0.99, 0.5
POLICY = MLPGaussian(observation_dim=11, action_dim=2, hidden=(64, 64), bias=False, sigma=SIGMA)
SPEEDUPS = {"none": 50.0, "component": 20.0}
TOLERANCE = 1e-5
MEMORY_RATIO = 5.0


def problem(n_episodes: int = EPISODES) -> tuple[np.ndarray, Stage]:
    """Parameters and a stage of random observations and features, actions from the policy."""
    rng = np.random.default_rng(0)
    # A tenth on top of the nearly constant initial policy, so that no layer's score is tiny.
    theta = POLICY.initial(rng) + 0.1 * rng.standard_normal(POLICY.n_parameters)
    observations = rng.standard_normal((n_episodes * TIMES, POLICY.observation_dim))
    stage = Stage(
        observations=observations,
        actions=POLICY.sample(theta, observations, rng),
        lengths=np.full(n_episodes, TIMES),
        terminated=np.zeros(n_episodes, dtype=bool),
        features=rng.standard_normal((n_episodes * TIMES, FEATURES)),
    )
    return theta, stage


def network(theta: np.ndarray) -> torch.nn.Sequential:
    """The policy's mean as an ordinary torch module, written without logel."""
    widths = (POLICY.observation_dim, *POLICY.hidden, POLICY.action_dim)
    linears = [torch.nn.Linear(i, o, bias=False, dtype=torch.float64) for i, o in pairwise(widths)]
    parameters = [linear.weight for linear in linears]
    torch.nn.utils.vector_to_parameters(torch.tensor(theta), parameters)
    first, *others = linears
    return torch.nn.Sequential(first, *(m for o in others for m in (torch.nn.Tanh(), o)))


def loop_cumulated(theta: np.ndarray, stage: Stage) -> torch.Tensor:
    """Scores by one autograd call per step, cumulated along episodes, shape (n, T, d)."""
    module = network(theta)
    parameters = list(module.parameters())
    observations, actions = torch.tensor(stage.observations), torch.tensor(stage.actions)
    rows = []
    for observation, action in zip(observations, actions, strict=True):
        log_prob = torch.distributions.Normal(module(observation), SIGMA).log_prob(action).sum()
        gradients = torch.autograd.grad(log_prob, parameters)
        rows.append(torch.cat([gradient.reshape(-1) for gradient in gradients]))
    return torch.stack(rows).reshape(EPISODES, TIMES, -1).cumsum(dim=1)


def loop_jacobian(theta: np.ndarray, stage: Stage, baseline: str) -> np.ndarray:
    """The reference: G(PO)MDP from cumulated scores, shape (d, q)."""
    cumulated = loop_cumulated(theta, stage)
    discount = GAMMA ** torch.arange(TIMES, dtype=torch.float64)
    features = torch.tensor(stage.features).reshape(EPISODES, TIMES, FEATURES)
    discounted = discount[:, None] * features
    if baseline == "none":
        return torch.einsum("nhd,nhq->dq", cumulated, discounted).numpy() / EPISODES
    total = torch.zeros(POLICY.n_parameters, FEATURES, dtype=torch.float64)
    for h in range(TIMES):
        c, phi = cumulated[:, h, :, None], discounted[:, h, None, :]
        b = (c**2 * phi).sum(dim=0) / (c**2).sum(dim=0)
        total += (c * (phi - b)).mean(dim=0)
    return total.numpy()


def timed(function: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Least processor time of several calls, and the last result."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        result = function()
        times.append(time.process_time() - start)
    return min(times), result


def compare(baseline: str) -> tuple[list[Check], str]:
    """Speed and equality for one baseline."""
    theta, stage = problem()
    slow, expected = timed(lambda: loop_jacobian(theta, stage, baseline), repeats=3)

    def estimate(n_groups: int) -> np.ndarray:
        return stage_jacobian(
            POLICY, theta, stage, gamma=GAMMA, baseline=baseline, n_groups=n_groups
        ).mean

    fast, found = timed(lambda: estimate(1), repeats=25)
    grouped, _ = timed(lambda: estimate(10), repeats=25)
    error = float(np.abs(found - expected).max() / np.abs(expected).max())
    target = SPEEDUPS[baseline]
    checks = [
        Check(
            f"speed against the loop, baseline {baseline}",
            f"{slow / fast:.0f}x",
            f"at least {target:.0f}x",
            slow >= target * fast,
        ),
        Check(
            f"largest difference / largest entry, baseline {baseline}",
            f"{error:.1e}",
            f"below {TOLERANCE:.0e}",
            error < TOLERANCE,
        ),
    ]
    note = (
        f"baseline {baseline}: loop {slow:.2f} s, logel {1e3 * fast:.0f} ms; with the default 10 "
        f"groups for uncertainty {1e3 * grouped:.0f} ms ({slow / grouped:.0f}x)"
    )
    return checks, note


def measure_memory() -> None:
    """Print the memory that one Jacobian with component-wise baseline adds, as JSON."""
    torch.set_num_threads(1)
    theta, small = problem(n_episodes=2)
    stage_jacobian(POLICY, theta, small, gamma=GAMMA, baseline="component")
    theta, stage = problem()
    before = resident_bytes()
    stage_jacobian(POLICY, theta, stage, gamma=GAMMA, baseline="component")
    print(json.dumps({"added": peak_bytes() - before, "steps": stage.n_steps}))


def memory() -> Check:
    """Memory of the component-wise baseline in units of the score array, N x d floats."""
    found = fresh_process("benchmarks.jacobian", "memory")
    ratio = found["added"] / (8 * found["steps"] * POLICY.n_parameters)
    return Check(
        "peak memory / score array, baseline component",
        f"{ratio:.2f}x ({found['added'] / 2**20:.0f} MiB)",
        f"below {MEMORY_RATIO:.0f}x",
        ratio < MEMORY_RATIO,
    )


def main() -> int:
    """Run everything; the exit code says whether all targets are met."""
    torch.set_num_threads(1)
    compared = [compare(baseline) for baseline in SPEEDUPS]
    checks = [check for found, _ in compared for check in found]
    title = f"Jacobian of {EPISODES} x {TIMES} steps, d = {POLICY.n_parameters}, q = {FEATURES}"
    return report(title, [*checks, memory()], [note for _, note in compared])


if __name__ == "__main__":
    if sys.argv[1:] == ["memory"]:
        measure_memory()
    else:
        sys.exit(main())
