"""How long cloning takes, and how close clones come to networks that are known.

    python -m benchmarks.clones                 # seed 1000: trains and records learners first
    python -m benchmarks.clones --hopper 1000 1001

For each learner of the audits (and of Hopper, its last ten stages): processor time of `mirror` from
clones, divergence of the learner's policies from their clones, averaged over each stage's own steps
and over stages, held-out log-likelihood, and direction error of the weights. With the path of an
older tree in PYTHONPATH the same is told of it.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import torch

from logel import LearningHistory, infer_reward
from logel.envs.mujoco import hopper_true_weights
from logel.inference.answer import CloneFacts
from logel.inference.gauge import direction_error
from logel.learners.audit import family
from logel.policies.base import Policy
from logel.policies.networks import MLPGaussian
from logel.studies.audit import LEARNERS, WORLDS, recorded_learner, true_weights
from logel.studies.mujoco import GAMMA, SIZES
from logel.studies.mujoco import recorded_learner as recorded_hopper
from logel.studies.run.tasks import Task
from logel.types import Float


def divergence(policy: Policy, known: Float, cloned: Float, observations: np.ndarray) -> float:
    """Of a policy from its clone, mean over observations."""
    seen = policy.prepare_observations(observations)
    with torch.no_grad():
        one, two = (policy.outputs(policy.tensor(theta), seen) for theta in (known, cloned))
    if policy.discrete_actions:
        one, two = one.log_softmax(dim=1), two.log_softmax(dim=1)
        return float((one.exp() * (one - two)).sum(dim=1).mean())
    (m, s), (n, r) = one.chunk(2, dim=1), two.chunk(2, dim=1)
    squared = ((2 * s).exp() + (m - n) ** 2) / (2 * r).exp()
    return float((r - s + squared / 2 - 0.5).sum(dim=1).mean())


def measured(history: LearningHistory, policy: Policy, gamma: float, truth: Float) -> dict:
    """One learner, watched without its policies."""
    paths = []
    told = CloneFacts.of_path
    CloneFacts.of_path = lambda path: (paths.append(path), told(path))[1]  # type: ignore
    started = time.process_time()
    try:
        found = infer_reward(history, policy, gamma=gamma, method="mirror", use_parameters=False)
    finally:
        CloneFacts.of_path = told  # type: ignore[method-assign]
    seconds = time.process_time() - started
    away = [
        divergence(policy, stage.parameters, clone.parameters, stage.observations)
        for stage, clone in zip(history, paths[0].clones, strict=True)
    ]
    return {
        "seconds": seconds,
        "divergence": float(np.mean(away)),
        "held_out": float(np.mean(found.held_out)),
        "error": direction_error(found.weights, truth, found.gauge),
    }


def main() -> None:
    """Print a line for each learner, then means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--hopper", type=int, nargs="*", default=[])
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []

    def tell(name: str, *asked: object) -> None:
        rows.append(measured(*asked))  # type: ignore[arg-type]
        print(name, json.dumps(rows[-1]), flush=True)

    for learner in LEARNERS:
        for name, world in WORLDS.items():
            task = Task("", {"world": name, "learner": learner, "size": "full"}, options.seed)
            history = recorded_learner(task)[0]
            tell(f"{learner} {name}", history, family(world), world.gamma, true_weights(task))
    for seed in options.hopper:
        history = recorded_hopper("Hopper-v5", seed, SIZES["full"])[0].slice(10)
        tell(f"Hopper {seed}", history, MLPGaussian(11, 3), GAMMA, hopper_true_weights(unit=True))
    print("means", {name: float(np.mean([row[name] for row in rows])) for name in rows[0]})


if __name__ == "__main__":
    main()
