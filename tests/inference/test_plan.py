"""How long it will take, before it starts."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from logel import LearningHistory, MLPGaussian, Stage, TabularSoftmax, infer_reward, plan_inference
from logel.cli.main import app
from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.inference.plan import Phase, Plan
from logel.learners.tabular import GPOMDPLearner, observe

NETWORK = MLPGaussian(3, 1, hidden=(16, 16))
TABLE = TabularSoftmax(n_states=25, n_actions=4)


def test_what_is_shared_out_takes_as_long_as_what_follows_one_upon_the_other() -> None:
    phase = Phase("rules", serial=1.0, parallel=12.0, longest=4.0)
    assert [phase.seconds(n) for n in (1, 2, 3, 100)] == [13.0, 7.0, 5.0, 5.0]
    plan = Plan("mirror", (phase, Phase("solving", 0.5)), 3 * 10**9, 2, 0.1)
    assert plan.seconds == 7.5
    assert "2 workers, memory up to 3 GB" in plan.summary()
    told = json.loads(plan.to_json())
    assert told["seconds"] == 7.5 and told["phases"][0] == {"name": "rules", "seconds": 7.0}


@pytest.fixture(scope="module")
def network() -> LearningHistory:
    rng = np.random.default_rng(1000)
    theta, stages = NETWORK.initial(rng), []
    for _ in range(8):
        seen = rng.standard_normal((4000, 3)).astype(np.float32)
        acts = NETWORK.sample(theta, seen, rng).astype(np.float32)
        paid = np.tanh(np.concatenate([seen[:, :2], acts], axis=1) + 0.2)
        stages.append(
            Stage(seen, acts, np.full(40, 100), np.zeros(40, bool), seen[:40], paid, theta)
        )
        theta = theta + 0.05 * rng.standard_normal(theta.shape)
    return LearningHistory.from_stages(stages)


@pytest.fixture(scope="module")
def grid() -> LearningHistory:
    world = gridworld_mdp()
    weights = grid_weights(world.feature_names)
    return observe(world, GPOMDPLearner(), weights=weights, n_steps=12, seed=1000)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["table", "cloned", "known"])
def test_it_takes_about_as_long_as_planned(
    network: LearningHistory, grid: LearningHistory, case: str
) -> None:
    history, policy = (grid, TABLE) if case == "table" else (network, NETWORK)
    plan = plan_inference(history, policy, gamma=0.96, use_parameters=case == "known")
    began = time.perf_counter()
    infer_reward(history, policy, gamma=0.96, use_parameters=case == "known")
    taken = time.perf_counter() - began
    # The benchmark asks for twice; here others may be at work meanwhile.
    assert taken / 6 < plan.seconds < 6 * taken
    names = [phase.name for phase in plan.phases]
    expected = {
        "table": ["reading", "cloning", "rules", "intervals"],
        "cloned": ["reading", "cloning", "advantages", "solving"],
        "known": ["reading", "advantages", "solving"],
    }
    assert names == expected[case]


@pytest.mark.slow
def test_on_the_command_line(grid: LearningHistory, tmp_path: Path) -> None:
    grid.save(tmp_path / "grid")
    asked = ["plan", str(tmp_path / "grid"), "--gamma", ".96", "--workers", "2", "--json"]
    found = CliRunner().invoke(app, asked)
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert told["method"] == "default (joint)" and told["workers"] == 2
    assert told["phases"][-1]["name"] == "workers start"
