"""Learning rates that fall: one shared rate against a schedule chosen by evidence.

    python -m benchmarks.rate_schedules                  # seeds 1000 to 1004; minutes for each
    python -m benchmarks.rate_schedules 1002 1003

The paper's Hopper learner anneals its rate. For development seeds (no study reports them), stages
10 to 19: the recovered weights with 95% intervals, whether these contain the truth, and how the
rates that were found compare with the optimiser's own. Learners are kept in LOGEL_CACHE.
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd
import torch

from logel import Method
from logel.envs.mujoco import hopper_true_weights
from logel.inference.infer import infer_reward
from logel.policies.networks import MLPGaussian
from logel.rules.rates import Rates
from logel.studies.mujoco import GAMMA, SIZES, recorded_learner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", type=int, nargs="*", default=list(range(1000, 1005)))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = pd.DataFrame([row for seed in arguments.seeds for row in compared(seed)])
    print(table.round(4).to_string(index=False))
    print("\nmean over the seeds")
    print(table.drop(columns="seed").groupby(["policies", "rates"]).mean().round(4).to_string())


def compared(seed: int) -> list[dict[str, object]]:
    """One row for each way to treat policies and rates."""
    size = SIZES["full"]
    history = recorded_learner("Hopper-v5", seed, size)[0].slice(size.first)
    policy = MLPGaussian(history[0].observations.shape[1], history[0].actions.shape[1])
    truth = hopper_true_weights(unit=True)
    own = np.array([note["learning_rate"] for note in history.notes[: history.n_steps]])
    rows: list[dict[str, object]] = []
    for known in (True, False):
        for rates in (Rates.SHARED, Rates.SCHEDULE):
            estimate = infer_reward(
                history,
                policy,
                gamma=GAMMA,
                method=Method.named("mirror", rates=rates),
                use_parameters=known,
                seed=seed,
            )
            ends = estimate.interval(0.95)
            found = estimate.learning_rates / estimate.learning_rates.mean()
            rows.append(
                {
                    "seed": seed,
                    "policies": "known" if known else "cloned",
                    "rates": rates.value,
                    "alive": estimate.weights[1],
                    "alive, half width": float(np.diff(ends[1])[0]) / 2,
                    "|action|^2": estimate.weights[2],
                    "distance above zero": float(ends[0, 0] > 0),
                    "all contain the truth": float(
                        ((ends[:, 0] <= truth) & (truth <= ends[:, 1])).all()
                    ),
                    "rates off by": float(np.abs(found - own / own.mean()).mean()),
                }
            )
    return rows


if __name__ == "__main__":
    main()
