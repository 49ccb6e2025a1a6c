"""Threads: inference uses one, and gives back what it found."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import torch
from threadpoolctl import ThreadpoolController

import estimates
from command_line import logel
from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.errors import OptionError
from logel.learners.tabular import SoftValueIteration, observe
from logel.studies import mujoco
from logel.studies.run.tasks import Task
from logel.threads import ONE_THREAD, limited_threads
from logel.types import Float

T = TypeVar("T")


# Of the BLAS libraries that are loaded, those that can have three threads: one that another test
# brought in may have been built, or started, for a single one.
FLEXIBLE: set[str] = set()


def counts() -> tuple[set[int], int]:
    """Threads of every BLAS that can have several, and of torch."""
    blas = ThreadpoolController().select(user_api="blas").lib_controllers
    found = {library.num_threads for library in blas if library.filepath in FLEXIBLE}
    return found, torch.get_num_threads()


def elsewhere(function: Callable[[], T]) -> T:
    """Call in a Python thread of its own: while one lives that limited BLAS, no other may."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


@pytest.fixture
def three() -> Iterator[None]:
    """As if the user had asked for three threads; the tests themselves run with one."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    blas = ThreadpoolController().select(user_api="blas")
    limit = elsewhere(lambda: blas.limit(limits=3))
    FLEXIBLE.clear()
    FLEXIBLE.update(lib.filepath for lib in blas.lib_controllers if lib.num_threads == 3)
    assert counts() == ({3}, 3)
    yield
    assert counts() == ({3}, 3)
    elsewhere(limit.restore_original_limits)
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three")
def test_threads_are_given_back() -> None:
    with limited_threads():
        assert counts() == ({1}, 1)
    assert counts() == ({3}, 3)

    @limited_threads(2)
    def decorated(value: int) -> tuple[int, tuple[set[int], int]]:
        return value, counts()

    # Twice, because a context manager as such serves only once.
    assert decorated(5) == decorated(5) == (5, ({2}, 2))


@pytest.mark.usefixtures("three")
def test_threads_are_given_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), limited_threads(), limited_threads():
        _ = 1 / 0


@pytest.mark.usefixtures("three")
def test_the_lowest_limit_holds() -> None:
    with limited_threads(7):
        assert counts() == ({3}, 3)
    with limited_threads(2):
        with limited_threads(1):
            assert counts() == ({1}, 1)
            with limited_threads(3):
                assert counts() == ({1}, 1)
        assert counts() == ({2}, 2)


@pytest.mark.usefixtures("three")
def test_two_python_threads_leave_no_limit_behind() -> None:
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with limited_threads():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait(10)
    with limited_threads():
        assert counts() == ({1}, 1)
        leave.set()
        thread.join()  # the one that came first goes first
    assert elsewhere(torch.get_num_threads) == 3


@pytest.mark.usefixtures("three")
def test_the_environment_may_allow_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGEL_THREADS", "2")
    with limited_threads():
        assert counts() == ({2}, 2)
    for nonsense in ("0", "-1", "two", "1.5"):
        monkeypatch.setenv("LOGEL_THREADS", nonsense)
        with pytest.raises(OptionError, match=f"LOGEL_THREADS.*{nonsense}"), limited_threads():
            pass
    monkeypatch.setenv("LOGEL_THREADS", "")
    with limited_threads():
        assert counts() == ({1}, 1)


PROGRAM = """
import sys, time
from logel import LearningHistory, TabularSoftmax, infer_reward

history = LearningHistory.load(sys.argv[1])
policy = TabularSoftmax(n_states=25, n_actions=4)
start = time.process_time()
estimate = infer_reward(history, policy, gamma=0.96)
print(time.process_time() - start, *estimate.weights)
"""


@pytest.mark.slow
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core has no use for threads anyway")
def test_inference_costs_the_same_whatever_the_environment_says_about_threads(
    tmp_path: Path,
) -> None:
    """`benchmarks/threads.py` measures it more exactly."""
    mdp = gridworld_mdp()
    weights = grid_weights(mdp.feature_names)
    watched = observe(mdp, SoftValueIteration(), weights=weights, n_steps=3, n_episodes=20, seed=5)
    watched.save(tmp_path / "history")
    seconds: dict[bool, list[float]] = {True: [], False: []}
    estimates = set()
    for limited in (True, False) * 2:
        kept = {name: value for name, value in os.environ.items() if name not in ONE_THREAD}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "history")],
            env={**kept, **(ONE_THREAD if limited else {})},
            capture_output=True,
            text=True,
            check=True,
        )
        took, *found = done.stdout.split()
        seconds[limited].append(float(took))
        estimates.add(tuple(found))
    # Unlimited it was 60 times as much; the margin is for a busy machine.
    assert min(seconds[False]) < 1.5 * min(seconds[True]), seconds
    assert len(estimates) == 1


@pytest.mark.usefixtures("three")
def test_training_has_one_thread_and_gives_the_others_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def learnt(*_: object) -> tuple[None, Float]:
        seen.append(counts())
        return None, np.array([0.0, 1.0])

    def trained(*_: object, **__: object) -> dict[str, list[float]]:
        seen.append(counts())
        return {"returns": [0.0, 1.0]}

    monkeypatch.setattr(mujoco, "recorded_learner", learnt)
    task = Task("hopper", {"size": "quick", "observer": "learner"}, seed=1000)
    assert mujoco.run(task, "Hopper-v5", lambda _: [])
    monkeypatch.setattr("logel.learners.train.train_on_estimate", trained)
    estimates.example().save(tmp_path / "estimate.json")
    done = logel("train", "--estimate", tmp_path / "estimate.json", "--env", "Hopper-v5")
    assert done.returncode == 0, done.stderr
    assert seen == [({1}, 1)] * 2
