"""Rollouts of hand-written training loops become stages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logel import Episode, HistoryWriter, LearningHistory, Rollout, Stage, record_stage
from logel.data.rollout import grid_of
from logel.errors import HistoryError


@given(st.integers(1, 6), st.integers(1, 4), st.randoms(use_true_random=False))
def test_every_step_lands_in_the_right_piece(n_steps: int, n_envs: int, random: object) -> None:
    """Against a loop over environments and times that cuts pieces one step at a time."""
    rng = np.random.default_rng(random.getrandbits(32))  # type: ignore[attr-defined]
    terminated = rng.random((n_steps, n_envs)) < 0.3
    truncated = ~terminated & (rng.random((n_steps, n_envs)) < 0.3)
    observations = rng.standard_normal((n_steps, n_envs, 2))
    following = rng.standard_normal((n_steps, n_envs, 2))
    actions = rng.integers(3, size=(n_steps, n_envs))
    features = rng.standard_normal((n_steps, n_envs, 1))
    pieces = []
    for i in range(n_envs):
        start = 0
        for t in range(n_steps):
            if terminated[t, i] or truncated[t, i] or t == n_steps - 1:
                rows = slice(start, t + 1)
                seen = np.vstack([observations[rows, i], following[t, i]])
                pieces.append(
                    Episode(seen, actions[rows, i], features[rows, i], bool(terminated[t, i]))
                )
                start = t + 1
    expected = Stage.from_episodes(pieces)
    found = Rollout(observations, actions, terminated, truncated, following, features).stage()
    for name in (
        "observations",
        "actions",
        "lengths",
        "terminated",
        "last_observations",
        "features",
    ):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), name)
    ended = terminated | truncated
    grid = grid_of(found, n_envs, (~ended[-1]).tolist())
    np.testing.assert_array_equal(found.observations[grid.rows], observations)
    np.testing.assert_array_equal(found.features[grid.rows], features)
    np.testing.assert_array_equal(grid.dones, ended)
    np.testing.assert_array_equal(grid.timeouts, truncated)
    assert found.last_observations is not None
    last = found.last_observations[grid.episodes]
    np.testing.assert_array_equal(last[ended], following[ended])
    # Untold, what is not terminated goes on.
    untold = grid_of(found, n_envs)
    np.testing.assert_array_equal(untold.dones[:-1], ended[:-1])
    np.testing.assert_array_equal(untold.dones[-1], terminated[-1])


def test_three_ways_to_record_the_same_stage(tmp_path: Path) -> None:
    observations = np.arange(6.0).reshape(3, 2, 1)
    rollout = Rollout(
        observations,
        np.zeros((3, 2), dtype=int),
        terminated=np.array([[0, 0], [1, 0], [0, 0]]),
        next_observations=observations + 2,
    )
    theta = np.array([1.0, 2.0])
    with HistoryWriter(tmp_path / "h") as writer:
        stage = record_stage(writer, rollout, parameters=theta, notes={"mean_return": 1.5})
        record_stage(writer, stage, learning_rate=0.1)
        record_stage(writer, list(stage.episodes), parameters=theta + 1)
    history = LearningHistory.load(tmp_path / "h")
    assert history.notes == ({"mean_return": 1.5}, {}, {})
    for written in history:
        np.testing.assert_array_equal(written.lengths, [2, 1, 3])
        np.testing.assert_array_equal(written.terminated, [True, False, False])
        np.testing.assert_array_equal(written.last_observations[:, 0], [4, 6, 7])
    np.testing.assert_array_equal(history.parameters()[:, 0], [1, 1, 2])


def test_shapes_that_disagree_are_refused(tmp_path: Path) -> None:
    good = np.zeros((3, 2))
    with pytest.raises(HistoryError, match=r"actions of a rollout must have shape"):
        Rollout(good, np.zeros(3), good)
    with pytest.raises(HistoryError, match=r"terminated must have shape \(3, 2\)"):
        Rollout(good, good, np.zeros((3, 2, 1)))
    with pytest.raises(HistoryError, match=r"features must start with the shape"):
        Rollout(good, good, good, features=np.zeros((2, 3, 1)))
    with pytest.raises(HistoryError, match="notes must be JSON"):
        record_stage(HistoryWriter(tmp_path / "h"), Rollout(good, good, good), notes={"x": good})


def test_a_stage_that_is_no_rollout_has_no_grid() -> None:
    ends = {2: False, 1: False, 3: True}
    pieces = [
        Episode(np.zeros((n + 1, 1)), np.zeros(n, dtype=int), terminated=end)
        for n, end in ends.items()
    ]
    stage = Stage.from_episodes(pieces)
    np.testing.assert_array_equal(grid_of(stage, 2).rows, [[0, 3], [1, 4], [2, 5]])
    np.testing.assert_array_equal(grid_of(stage, 2).episodes, [[0, 2], [0, 2], [1, 2]])
    np.testing.assert_array_equal(grid_of(stage, 2).dones, [[0, 0], [1, 0], [0, 1]])
    for n_envs in (-1, 0, 3, 4, 6, 7, 10**30):
        with pytest.raises(HistoryError, match=f"no rollout of {n_envs} environments"):
            grid_of(stage, n_envs)
    for wrong in ([True], [0, 1], "no", [[True, False]], [None, True], [[], [True]], 3):
        with pytest.raises(HistoryError, match="for each of 2 environments"):
            grid_of(stage, 2, wrong)  # type: ignore[arg-type]
    with pytest.raises(HistoryError, match="environment 1 is said to go on"):
        grid_of(stage, 2, [True, True])
