"""Replaying a learner's update for many candidates at once, against one by one; CPU and GPU.

    python -m benchmarks.replay                  # a minute
    python -m benchmarks.replay --device cuda    # a 256-256 network there and here

One update of PPO with its default settings (2,048 steps, minibatches of 64, ten epochs, networks
64-64) under candidate rewards: all stacked, and each through Stable-Baselines3's own `train()` on
the same episodes, from the same critics and in the same minibatch orders, so that the answers can
be compared. Then the time for other numbers of candidates. Processor time of one thread, the best
of several; on a device the time that passes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.report import Check, report
from logel import MLPGaussian, Stage
from logel.data.settings import LearnerSettings
from logel.replay.actor_critic import State
from logel.replay.batch import Batch
from logel.replay.learner import StackedLearner
from logel.replay.sb3 import SB3Learner, model_for

SEED = 1000
EPISODES, TIMES, OBSERVATIONS, ACTIONS, FEATURES = 16, 128, 11, 3, 5
CANDIDATES = 12
SPEEDUP, TOLERANCE = 5.0, 1e-5
COUNTS = (1, 3, 6, 12, 24, 48)
WIDE = 256


class Problem:
    """An update of a learner with two hidden layers, and random candidates."""

    def __init__(self, width: int = 64, device: str = "cpu") -> None:
        rng = np.random.default_rng(SEED)
        hidden = (width, width)
        self.policy = MLPGaussian(OBSERVATIONS, ACTIONS, hidden=hidden, device=device)
        self.theta = self.policy.initial(rng)
        n = EPISODES * TIMES
        seen = rng.standard_normal((n, OBSERVATIONS)).astype(np.float32)
        stage = Stage(
            observations=seen,
            actions=self.policy.sample(self.theta, seen, rng).astype(np.float32),
            lengths=np.full(EPISODES, TIMES),
            terminated=np.zeros(EPISODES, dtype=bool),
            last_observations=seen[:EPISODES],
            features=rng.standard_normal((n, FEATURES)),
        )
        self.weights = rng.standard_normal((max(COUNTS), FEATURES))
        self.batch = Batch.of(stage, self.policy)
        self.settings = LearnerSettings("PPO", pi=hidden, vf=hidden, activation="tanh")
        learner = StackedLearner.of(self.settings, self.policy, OBSERVATIONS)
        assert learner is not None
        self.stacked = learner

    def given(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Parameters and rewards of n candidates."""
        features = self.batch.features
        theta = torch.as_tensor(np.tile(self.theta, (n, 1))).to(features)
        return theta, torch.as_tensor(self.weights[:n]).to(features) @ features.T

    def together(self, n: int, critics: torch.Tensor | None = None) -> tuple[Any, Any]:
        """Policies and critics of n candidates, stacked."""
        theta, rewards = self.given(n)
        if critics is None:
            state = self.stacked.initial([np.random.default_rng(SEED)])
            state = self.stacked.chosen(state, np.zeros(n, dtype=int))
        else:
            state = State(critics)
        rng = [np.random.default_rng(SEED)]
        found, state = self.stacked.update(theta, state, self.batch, rewards, rng)
        if found.is_cuda:
            torch.cuda.synchronize()
        return found, state.critic


def critic_of(state: Any) -> torch.Tensor:
    """Of a model, flat."""
    policy = state["policy"]
    return torch.cat([policy[name].flatten() for name in policy if "value_net" in name])


def best(
    function: Callable[[], Any], repeats: int, clock: Callable[[], float]
) -> tuple[float, Any]:
    """Least time of several calls, and the last result."""
    times = []
    for _ in range(repeats):
        start = clock()
        result = function()
        times.append(clock() - start)
    return min(times), result


def compare() -> tuple[list[Check], list[str]]:
    """All candidates at once, and one by one through Stable-Baselines3."""
    problem = Problem()
    model = model_for(problem.settings, problem.policy, OBSERVATIONS)
    slow = SB3Learner(model, problem.settings)
    state = slow.initial([np.random.default_rng(SEED)])
    state = slow.chosen(state, np.zeros(CANDIDATES, dtype=int))
    critics = torch.stack([critic_of(one) for one in state.models])
    theta, rewards = problem.given(CANDIDATES)

    def one_by_one() -> Any:
        rng = [np.random.default_rng(SEED)]
        return slow.update(theta, state, problem.batch, rewards, rng)

    long, (expected, after) = best(one_by_one, 2, time.process_time)
    short, (found, critic) = best(
        lambda: problem.together(CANDIDATES, critics), 7, time.process_time
    )
    policies = float((found - expected).abs().max())
    values = float((critic - torch.stack([critic_of(one) for one in after.models])).abs().max())
    alike = max(policies, values)
    checks = [
        Check(
            f"speed against Stable-Baselines3, {CANDIDATES} candidates",
            f"{long / short:.1f}x",
            f"at least {SPEEDUP:.0f}x",
            long >= SPEEDUP * short,
        ),
        Check(
            "largest difference of a parameter, actor or critic",
            f"{alike:.1e}",
            f"below {TOLERANCE:.0e}",
            alike < TOLERANCE,
        ),
    ]
    return checks, [f"one by one {long:.2f} s, together {short:.2f} s"]


def growth() -> str:
    """Time for other numbers of candidates."""
    problem = Problem()
    times = {n: best(lambda n=n: problem.together(n), 3, time.process_time)[0] for n in COUNTS}
    parts = [f"{n}: {seconds:.2f} s" for n, seconds in times.items()]
    return f"time by the number of candidates: {', '.join(parts)}"


def on_device(device: str) -> tuple[list[Check], list[str]]:
    """A wide network on a device against one thread of the CPU."""
    here, there = Problem(WIDE), Problem(WIDE, device)
    notes, gaps = [], []
    there.together(1)
    for n in (CANDIDATES, max(COUNTS)):
        slow, (expected, _) = best(lambda n=n: here.together(n), 1, time.perf_counter)
        fast, (found, _) = best(lambda n=n: there.together(n), 3, time.perf_counter)
        gaps.append(float((found.cpu() - expected).abs().max()))
        notes.append(
            f"{WIDE}-{WIDE} network, {n} candidates: CPU {slow:.2f} s, {device} {fast:.2f} s, "
            f"{slow / fast:.1f}x"
        )
    check = Check(
        f"largest difference of a parameter, CPU against {device}",
        f"{max(gaps):.1e}",
        f"below {TOLERANCE:.0e}",
        max(gaps) < TOLERANCE,
    )
    return [check], notes


def main() -> int:
    """Run everything; the exit code says whether all targets are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    torch.set_num_threads(1)
    checks, notes = compare() if device == "cpu" else on_device(device)
    if device == "cpu":
        notes.append(growth())
    return report(f"One update of PPO replayed, {EPISODES * TIMES} steps", checks, notes)


if __name__ == "__main__":
    sys.exit(main())
