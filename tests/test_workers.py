"""Several workers: the same bytes, in the same order, and sentences where one is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logel import (
    LearningHistory,
    Method,
    MLPGaussian,
    RewardEstimate,
    Stage,
    TabularSoftmax,
    Workers,
    check_estimate,
    infer_reward,
)
from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.errors import IdentificationError, OptionError, WorkerError
from logel.learners.tabular import GPOMDPLearner, observe
from logel.replay.learner import OneByOne
from logel.types import Float
from logel.workers import SERIAL, Executor

TABLE = TabularSoftmax(n_states=25, n_actions=4)
NETWORK = MLPGaussian(3, 1, hidden=(8,))


def slow_first(common: float, item: int) -> float:
    """The earlier, the longer: results come back in another order than they are asked for."""
    time.sleep(0.02 * (4 - item))
    return common + item


def joined(common: str, item: tuple[str, str | None]) -> str:
    mine, before = item
    return f"{before or common}{mine}"


def raising(common: None, item: int) -> int:
    raise IdentificationError(f"stage {item} does not move")


def dying(common: None, item: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return item


@pytest.fixture(scope="module")
def two() -> Iterator[Executor]:
    with Workers(2).open() as run:
        yield run


@pytest.fixture(scope="module")
def grid() -> LearningHistory:
    world = gridworld_mdp()
    weights = grid_weights(world.feature_names)
    return observe(world, GPOMDPLearner(), weights=weights, n_steps=7, parameters=True, seed=1000)


@pytest.fixture(scope="module")
def network() -> LearningHistory:
    """Actions follow a network that drifts; features are functions of what is seen and done."""
    rng = np.random.default_rng(1000)
    theta, stages = NETWORK.initial(rng), []
    for _ in range(7):
        seen = rng.standard_normal((600, 3)).astype(np.float32)
        acts = NETWORK.sample(theta, seen, rng).astype(np.float32)
        paid = np.tanh(np.concatenate([seen[:, :2], acts], axis=1) + 0.2)
        stages.append(Stage(seen, acts, np.full(20, 30), np.zeros(20, bool), seen[:20], paid))
        theta = theta + 0.05 * rng.standard_normal(theta.shape)
    return LearningHistory.from_stages(stages)


@pytest.mark.parametrize("parallel", [False, True])
def test_results_come_in_the_order_of_the_items(two: Executor, parallel: bool) -> None:
    run = two if parallel else SERIAL
    assert list(run.map(slow_first, range(4), 0.5)) == [0.5, 1.5, 2.5, 3.5]
    # 0 <- 1 <- 3, 0 <- 2: children get what their parents hand on.
    tree = run.tree(joined, "abcd", [None, 0, 0, 1], "-", handed=str.upper)
    assert list(tree) == ["-a", "-Ab", "-Ac", "-ABd"]


def test_what_a_piece_raises_is_raised_here(two: Executor) -> None:
    with pytest.raises(IdentificationError, match="stage 3 does not move"):
        list(two.map(raising, [3]))


def test_a_worker_that_dies_is_a_sentence() -> None:
    with Workers(2).open() as run, pytest.raises(WorkerError, match="use fewer workers"):
        list(run.map(dying, [0]))


def test_inside_a_piece_of_work_there_is_one_worker(two: Executor) -> None:
    assert list(two.map(width_of, [two])) == [1]


def width_of(common: None, item: Executor) -> int:
    return item.n


def test_what_is_begun_ahead_is_made_when_it_is_asked_for(two: Executor, tmp_path: Path) -> None:
    begun = [SERIAL.start(touching, k, str(tmp_path)) for k in range(2)]
    assert begun[1]() == 1 and not (tmp_path / "0").exists()
    assert two.start(slow_first, 3, 0.5)() == 3.5


def touching(folder: str, item: int) -> int:
    (Path(folder) / str(item)).touch()
    return item


def dying_at_two(common: None, item: int) -> int:
    return dying(common, item) if item == 2 else item


def test_pieces_that_stand_by_themselves_are_told_which_of_them_died() -> None:
    told = dict(news for news in Workers(2).outcomes(dying_at_two, range(5)) if news is not None)
    lost = told.pop(2)
    assert isinstance(lost, WorkerError) and told == {k: k for k in (0, 1, 3, 4)}


def test_what_pieces_share_is_sent_once(two: Executor) -> None:
    shared = {"size": 3}
    first, again, other = (two._shared(one) for one in (shared, shared, {"size": 3}))
    assert first == again != other


@pytest.mark.parametrize("n", [0, -1, True, 2.0, "two"])
def test_numbers_of_workers_are_checked(n: Any) -> None:
    with pytest.raises(OptionError, match="workers must be a whole number"):
        Workers(n)


def same(one: RewardEstimate, other: RewardEstimate, folder: Path) -> bool:
    one.save(folder / "one.json")
    other.save(folder / "other.json")
    return (folder / "one.json").read_bytes() == (folder / "other.json").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["joint", "two-step", "paper"])
@pytest.mark.parametrize("known", [False, True])
def test_tables_answer_the_same(
    grid: LearningHistory, two: Executor, tmp_path: Path, method: str, known: bool
) -> None:
    asked = partial(infer_reward, grid, TABLE, gamma=0.96, method=method, use_parameters=known)
    assert same(asked(), asked(workers=two), tmp_path)


@pytest.mark.slow
def test_networks_answer_the_same_also_from_a_folder(
    network: LearningHistory, two: Executor, tmp_path: Path
) -> None:
    network.save(tmp_path / "history")
    folder = LearningHistory.load(tmp_path / "history")
    asked = partial(infer_reward, policy=NETWORK, gamma=0.9, method=Method.named("mirror"))
    first = asked(network)
    assert same(first, asked(network, workers=two), tmp_path)
    assert same(first, asked(folder, workers=two), tmp_path)


@pytest.mark.slow
def test_learners_together_answer_the_same(
    grid: LearningHistory, two: Executor, tmp_path: Path
) -> None:
    both = {"early": grid.slice(0, 4), "late": grid.slice(4)}
    asked = partial(infer_reward, both, TABLE, gamma=0.96, use_parameters=False)
    assert same(asked(), asked(workers=two), tmp_path)


def paid(theta: Float, state: None, stage: Stage, rewards: Float, rng: Any) -> tuple[Float, None]:
    """A learner that moves by what it was paid on average, and by chance."""
    return theta + 0.1 * rewards.mean() + 0.01 * rng.standard_normal(len(theta)), state


@pytest.mark.slow
def test_replay_and_controls_answer_the_same(
    network: LearningHistory, two: Executor, tmp_path: Path
) -> None:
    thetas, known = np.cumsum(np.full((7, NETWORK.n_parameters), 0.02), axis=0), []
    for stage, theta in zip(network, thetas, strict=True):
        known.append(replace(stage, parameters=theta))
    history = LearningHistory.from_stages(known, own_episodes=True)
    replay, own = Method.named("replay", n_stages=2, n_fates=2), OneByOne(paid)
    asked = partial(infer_reward, history, NETWORK, gamma=0.9, method=replay, learner=own)
    assert same(asked(), asked(workers=two), tmp_path)
    given = {"method": "mirror", "controls": ["reversed", "decoys", "halves"]}
    checked = partial(check_estimate, history, NETWORK, gamma=0.9, **given)
    told: list[tuple[int, int]] = []
    one = checked(progress=lambda what, done, total: told.append((done, total)))
    assert one.to_json() == checked(workers=two).to_json()
    assert told[-1] == (5, 5)


def dying_once(folder: str, item: int) -> int:
    """Takes its worker along when it is the third item's first time."""
    first = Path(folder) / "first"
    if item == 2 and not first.exists():
        first.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item


@pytest.mark.slow
def test_two_nodes_of_a_ray_cluster_answer_the_same(
    grid: LearningHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    # Nodes import this as we do.
    here, paths = str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [here, paths])))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    grid.save(tmp_path / "history")
    folder = LearningHistory.load(tmp_path / "history")
    asked = partial(infer_reward, folder, TABLE, gamma=0.96, method="paper", use_parameters=False)
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    try:
        cluster.add_node(num_cpus=1)
        with Workers(ray=cluster.address).open() as run:
            assert run.n == 2
            # A worker dies in the middle: its piece is run again.
            assert list(run.map(dying_once, range(5), str(tmp_path))) == [0, 1, 2, 3, 4]
            assert (tmp_path / "first").exists()
            assert same(asked(), asked(workers=run), tmp_path)
            with pytest.raises(IdentificationError, match="stage 3 does not move"):
                list(run.map(raising, [3]))
    finally:
        cluster.shutdown()
