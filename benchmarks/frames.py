"""A convolutional policy on frames against a small one on numbered states, in the same world.

    python -m benchmarks.frames                        # frames of 84 x 84 x 4 bytes: minutes
    python -m benchmarks.frames --size 36 --seeds 5
    python -m benchmarks.frames --device cuda          # where there is one

The paper's gridworld, drawn: where the agent is, what its cell is made of, where the goal lies, and
the floor's grain, one channel each. The learner follows the exact natural gradient of its return by
a network of Mnih et al. (1.7 million parameters at 84 x 84) or by two layers of 64, so that the
true reward is known and only 40 episodes of 25 steps a stage are seen. Both are recorded to disk,
read again and inferred by mirror descent with known parameters. One line of JSON per run.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from logel.data.folder import HistoryWriter
from logel.data.history import LearningHistory
from logel.data.stage import Stage
from logel.envs.gridworld import gridworld_mdp
from logel.envs.tabular import TabularMDP, feature_action_values, sample_episodes
from logel.inference.infer import infer_reward
from logel.policies.architecture import policy_of_facts
from logel.policies.base import Policy
from logel.policies.networks import MLPCategorical
from logel.studies.measures import judge_estimate
from logel.types import Array, Float

GAMMA, RATE, STEPS, EPISODES, HORIZON = 0.9, 0.4, 10, 40, 25
SIDE = 5


def frames(mdp: TabularMDP, size: int) -> Array:
    """A frame for every state, channels first, shape (25, 4, size, size)."""
    cell, rng = size // SIDE, np.random.default_rng(0)
    drawn = np.zeros((mdp.n_states, 4, size, size), np.uint8)
    areas = np.arange(mdp.n_states) % 5 * 40  # a shade for each column, as a landmark
    for state in range(mdp.n_states):
        row, column = divmod(state, SIDE)
        here = np.s_[row * cell : (row + 1) * cell, column * cell : (column + 1) * cell]
        drawn[state, 0][here] = 255
        drawn[state, 1][here] = areas[state] + 60
        drawn[state, 2, -cell:, -cell:] = 200
    drawn[:, 3] = rng.integers(0, 64, (size, size))
    return drawn


def facts(size: int) -> dict[str, object]:
    """The network of Mnih et al. on such frames, with a logit for each of four actions."""
    picture = {"name": None, "shape": [4, size, size], "features": 512, "bytes": True}
    return {
        **{"inputs": [picture], "hidden": [], "activation": "relu"},
        **{"actions": "Discrete", "sizes": [4]},
    }


def learnt(
    policy: Policy, seen: Array, mdp: TabularMDP, weights: Float, seed: int
) -> Iterator[tuple[Float, Float]]:
    """Parameters, and probabilities (25, 4) in every state, along the exact natural gradient."""
    theta = policy.initial(np.random.default_rng(seed))
    prepared = policy.prepare_observations(seen)
    while True:
        point = policy.tensor(theta).requires_grad_(True)
        logits = policy.outputs(point, prepared)
        p = torch.softmax(logits, dim=1).detach().cpu().numpy()
        yield theta, p
        values = feature_action_values(mdp, p) @ weights
        wanted = values - (p * values).sum(axis=1, keepdims=True)
        flat = logits.reshape(-1)
        jacobian = np.empty((len(flat), len(theta)), np.float32)
        for k in range(len(flat)):
            (row,) = torch.autograd.grad(flat[k], point, retain_graph=True)
            jacobian[k] = row.cpu().numpy()
        # The shortest step that moves the logits so, to first order.
        kernel = (jacobian @ jacobian.T).astype(float)
        dual = np.linalg.lstsq(kernel, RATE * wanted.ravel(), rcond=1e-10)[0]
        theta = theta + jacobian.T @ dual.astype(np.float32)


def record(
    folder: Path, policy: Policy, seen: Array, mdp: TabularMDP, weights: Float, seed: int
) -> None:
    """Watch the learner: episodes in which it shows its frames instead of the states' numbers."""
    rng = np.random.default_rng([seed, 1])
    with HistoryWriter(
        folder, feature_names=mdp.feature_names, metadata={"gamma": GAMMA}
    ) as writer:
        for step, (theta, p) in enumerate(learnt(policy, seen, mdp, weights, seed)):
            walked = sample_episodes(mdp, p, rng=rng, n_episodes=EPISODES, horizon=HORIZON).stage()
            assert walked.last_observations is not None
            writer.append(
                Stage(
                    observations=seen[walked.observations],
                    actions=walked.actions,
                    lengths=walked.lengths,
                    terminated=walked.terminated,
                    last_observations=seen[walked.last_observations],
                    features=walked.features,
                    parameters=theta.astype(np.float32),
                )
            )
            if step == STEPS:
                return


def run(name: str, policy: Policy, seen: Array, mdp: TabularMDP, seed: int) -> dict[str, object]:
    """One learner, recorded and inferred."""
    truth = np.random.default_rng(seed).standard_normal(mdp.n_features)
    truth /= np.linalg.norm(truth)
    with tempfile.TemporaryDirectory() as folder:
        begun = time.process_time()
        record(Path(folder) / "run", policy, seen, mdp, truth, seed)
        recorded = time.process_time()
        on_disk = sum(path.stat().st_size for path in (Path(folder) / "run").iterdir())
        estimate = infer_reward(LearningHistory.load(Path(folder) / "run"), policy, method="mirror")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        **{
            "policy": name,
            "seed": seed,
            "parameters": policy.n_parameters,
            **judge_estimate(estimate, truth),
        },
        "learning_s": round(recorded - begun, 1),
        "inference_s": round(time.process_time() - recorded, 1),
        "disk_MB": round(on_disk / 1e6, 1),
        "peak_MB": round(peak),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=84, help="Pixels of a side, from 36 on.")
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    plain = gridworld_mdp(gamma=GAMMA)
    # Episodes begin anywhere: from one corner, 40 of them hardly see the other.
    mdp = replace(plain, initial=np.full(plain.n_states, 1 / plain.n_states))
    drawn, numbers = frames(mdp, asked.size), np.arange(mdp.n_states)
    for seed in range(asked.seed, asked.seed + asked.seeds):
        small = MLPCategorical(mdp.n_states, 4, (64, 64), one_hot=True)
        print(json.dumps(run("small", small, numbers, mdp, seed)), flush=True)
        large = policy_of_facts(facts(asked.size), device=asked.device)
        print(json.dumps(run("convolutional", large, drawn, mdp, seed)), flush=True)


if __name__ == "__main__":
    main()
