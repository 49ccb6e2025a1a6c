"""Learners of the audits, and their runs retold: fresh episodes, drift, backwards, wrongly."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="needs the extra mujoco")
pytest.importorskip("sb3_contrib", reason="needs the extra mujoco")

from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from logel.data.history import LearningHistory
from logel.envs.audit import WORLDS
from logel.errors import HistoryError, OptionError
from logel.learners import audit
from logel.learners.array_vec_env import ArrayVecEnv
from logel.learners.audit import LEARNERS, AuditLearner, Trained
from logel.policies.networks import MLPGaussian


@pytest.mark.parametrize("name", WORLDS)
def test_arrays_step_as_a_dummy_around_a_monitor_does(name: str) -> None:
    world = WORLDS[name]
    weights = world.random_weights(np.random.default_rng(1000))
    ours = ArrayVecEnv(world, weights, 1)
    theirs = DummyVecEnv([lambda: Monitor(world.make(weights))])
    for env in (ours, theirs):
        env.seed(1000)
    np.testing.assert_array_equal(ours.reset(), theirs.reset())
    world.dynamics.action_space.seed(1000)
    ends = 0
    for _ in range(2 * world.horizon + 10):
        action = np.array([world.dynamics.action_space.sample()])
        found, expected = ours.step(action), theirs.step(action)
        for mine, other in zip(found[:3], expected[:3], strict=True):
            assert isinstance(mine, np.ndarray) and mine.dtype == other.dtype  # type: ignore[union-attr]
            np.testing.assert_array_equal(mine, other)
        (info,), (other_info,) = found[3], expected[3]
        assert info["TimeLimit.truncated"] == other_info["TimeLimit.truncated"]
        assert ("terminal_observation" in info) == ("terminal_observation" in other_info)
        if found[2][0]:
            ends += 1
            np.testing.assert_array_equal(
                info["terminal_observation"], other_info["terminal_observation"]
            )
            assert info["episode"]["l"] == other_info["episode"]["l"]
            assert info["episode"]["r"] == pytest.approx(other_info["episode"]["r"], abs=2e-5)
    assert ends >= 2


def test_copies_end_each_at_its_own_time() -> None:
    env = ArrayVecEnv(WORLDS["cartpole"], np.ones(5), 8)
    env.seed(1000)
    env.reset()
    lengths, running = [], np.zeros(8, dtype=int)
    for _ in range(150):
        _, _, dones, infos = env.step(np.ones(8, dtype=int))
        running += 1
        for i in np.flatnonzero(dones):
            assert infos[i]["episode"]["l"] == running[i]
            lengths.append(running[i])
            running[i] = 0
    # Pushed to one side all the time, every pole falls, sooner or later.
    assert len(set(lengths)) > 1 and max(lengths) < 100


def test_seeds_count_once_and_other_seeds_begin_elsewhere() -> None:
    env = ArrayVecEnv(WORLDS["room"], np.ones(5), 4)
    env.seed(1000)
    first = env.reset()
    assert not np.array_equal(first, env.reset())
    env.seed(1000)
    np.testing.assert_array_equal(first, env.reset())


def test_rollouts_are_cheap() -> None:
    env = ArrayVecEnv(WORLDS["pendulum"], np.ones(5), 16)
    env.reset()
    actions = np.zeros((16, 1), dtype=np.float32)
    started = time.process_time()
    for _ in range(200):
        env.step(actions)
    assert time.process_time() - started < 0.2


def test_weights_of_another_world_are_refused() -> None:
    with pytest.raises(OptionError, match="room has 5 features, but weights have shape"):
        ArrayVecEnv(WORLDS["room"], np.ones(4), 2)


SMALL = replace(LEARNERS["A2C"], n_envs=16, n_steps=60, updates=5)


def trained(world: str, folder: Path, learner: AuditLearner = SMALL) -> Trained:
    weights = WORLDS[world].random_weights(np.random.default_rng(1000))
    return audit.train(WORLDS[world], learner, weights, seed=1000, path=folder / "history")


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained("room", tmp_path_factory.mktemp("room"))


@pytest.mark.parametrize("name", ["room", "cartpole"])
def test_the_recorder_sees_what_was_paid(name: str, tmp_path: Path) -> None:
    world = WORLDS[name]
    weights = world.random_weights(np.random.default_rng(1000))
    history = trained(name, tmp_path).history
    assert len(history) == 5 and history.own_episodes
    assert history.feature_names == world.features.names
    assert history.metadata["environment"] == name
    whole: list[float] = []
    for stage, note in zip(history, history.notes, strict=True):
        assert stage.n_steps == 16 * 60 and stage.features is not None
        taken = stage.actions
        if stage.actions.ndim > 1:
            assert np.abs(taken).max() > 2
            taken = np.clip(taken, -2, 2)
        expected = world.features(stage.observations, taken, stage.next_observations())
        np.testing.assert_allclose(stage.features, expected)
        assert note["episodes_finished"] > 0
        whole.append(note["mean_return"])
    # Of the first rollout the first episodes are whole: their returns were summed by the world.
    stage = history[0]
    assert stage.features is not None
    paid = stage.features @ weights
    ends = np.cumsum(stage.lengths)
    sums = np.array([paid[e - n : e].sum() for e, n in zip(ends, stage.lengths, strict=True)])
    # The rollout's end cuts the last episode of every copy; none ended by itself just there.
    cut = ends % 60 == 0
    assert cut.sum() == 16 and not stage.terminated[cut].any()
    assert sums[~cut].mean() == pytest.approx(whole[0], rel=1e-4)


@pytest.mark.parametrize("name", WORLDS)
def test_the_family_is_the_models(name: str, tmp_path: Path) -> None:
    found = trained(name, tmp_path, replace(SMALL, updates=2, n_envs=4, n_steps=25))
    family = audit.family(WORLDS[name])
    assert family == found.policy
    assert found.history[0].n_parameters == family.n_parameters


@pytest.mark.parametrize("name", ["PPO", "TRPO"])
def test_the_other_learners_are_recorded_as_well(name: str, tmp_path: Path) -> None:
    learner = LEARNERS[name].smaller()
    history = trained("grid", tmp_path, learner).history
    assert len(history) == learner.updates == 4
    assert history.metadata["learner"] == name
    parameters = history.parameters()
    assert parameters is not None and (np.abs(np.diff(parameters, axis=0)).max(axis=1) > 0).all()


def test_fresh_episodes_are_the_same_policies_in_other_ones(room: Trained) -> None:
    history, world = room.history, WORLDS["room"]
    fresh = audit.rolled_out_again(history, world, SMALL, room.policy, np.random.default_rng(1000))
    np.testing.assert_array_equal(fresh.parameters(), history.parameters())
    assert fresh.own_episodes is False and fresh.metadata == history.metadata
    assert fresh.signature == history.signature and fresh.feature_names == history.feature_names
    assert [note["learning_rate"] for note in fresh.notes] == [3e-3] * 5
    assert not any("mean_return" in note for note in fresh.notes)
    for ours, theirs in zip(fresh, history, strict=True):
        assert ours.n_steps == theirs.n_steps
        assert not np.array_equal(ours.observations, theirs.observations)
    # In the first stage both begin all episodes anew: the same distribution. Copies are
    # independent: their means over sixty steps give the standard error.
    assert fresh[0].features is not None and history[0].features is not None
    means = [s.features.reshape(16, 60, -1).mean(axis=1) for s in (fresh[0], history[0])]
    error = np.sqrt(sum(m.var(axis=0, ddof=1) / 16 for m in means))
    assert (np.abs(means[0].mean(axis=0) - means[1].mean(axis=0)) < 4 * error).all()


def test_fresh_episodes_end_where_the_world_ends_them(tmp_path: Path) -> None:
    found = trained("cartpole", tmp_path)
    world = WORLDS["cartpole"]
    fresh = audit.rolled_out_again(
        found.history, world, SMALL, found.policy, np.random.default_rng(1000)
    )
    stage = fresh[0]
    assert stage.last_observations is not None
    ended = stage.terminated.astype(bool)
    place, _, angle, _ = np.abs(stage.last_observations).T
    assert 0 < ended.sum() < len(ended)
    np.testing.assert_array_equal(ended, (place > 2.4) | (angle > 0.5))
    # Whose last episode fell in the last step does not go on; no time limit is near.
    last = np.cumsum(stage.lengths) % 60 == 0
    assert fresh.notes[0]["continues"] == (~ended[last]).tolist()


def test_episodes_cut_by_a_time_limit_at_the_rollouts_end_do_not_go_on(room: Trained) -> None:
    rng = np.random.default_rng(1000)
    for n_steps, on in ((50, False), (51, True), (100, False)):
        learner = replace(SMALL, n_steps=n_steps, n_envs=3)
        fresh = audit.rolled_out_again(room.history, WORLDS["room"], learner, room.policy, rng)
        assert [note["continues"] for note in fresh.notes] == [[on] * 3] * 5
        assert not fresh[0].terminated.any()


def test_step_sizes_by_hand() -> None:
    policy = MLPGaussian(2, 2, hidden=(4,))
    theta = policy.initial(np.random.default_rng(1000))
    theta[-2:] = np.log([0.5, 2.0])
    seen = np.zeros((3, 2))
    wider, shifted = np.zeros_like(theta), np.zeros_like(theta)
    wider[-2:] = 0.1, -0.2
    # Information about a log-deviation is 2; about a mean, one over the variance.
    assert audit.step_size(policy, theta, wider, seen) == pytest.approx(np.sqrt(2 * 0.05))
    shifted[-4:-2] = 0.1, 0.2
    assert audit.step_size(policy, theta, shifted, seen) == pytest.approx(np.sqrt(0.05))


def test_drift_moves_as_far_as_the_learner_but_nowhere(room: Trained) -> None:
    history, world = room.history, WORLDS["room"]
    drift = audit.drifted(history, world, SMALL, room.policy, np.random.default_rng(1000))
    real, other = history.parameters(), drift.parameters()
    assert real is not None and other is not None
    np.testing.assert_array_equal(real[0], other[0])
    assert drift.own_episodes is True and drift.metadata == history.metadata
    for t in range(4):
        seen = history[t].observations
        wanted = audit.step_size(room.policy, real[t], real[t + 1] - real[t], seen)
        moved = audit.step_size(room.policy, other[t], other[t + 1] - other[t], seen)
        assert moved == pytest.approx(wanted, rel=0.02)
        ours, theirs = other[t + 1] - other[t], real[t + 1] - real[t]
        cosine = ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs)
        # Thousands of coin flips.
        assert abs(cosine) < 0.15


def test_a_run_read_backwards(room: Trained) -> None:
    back = audit.backwards(room.history)
    forth = room.history.parameters()
    assert forth is not None
    np.testing.assert_array_equal(back.parameters(), forth[::-1])
    assert [note["update"] for note in back.notes] == [4, 3, 2, 1, 0]
    np.testing.assert_array_equal(back[0].observations, room.history[4].observations)


@pytest.mark.parametrize(
    ("wrong", "name", "value"),
    [("epochs", "n_epochs", 4), ("rate", "learning_rate", 6e-4), ("gamma", "gamma", 0.9)],
)
def test_one_setting_is_said_wrongly(room: Trained, wrong: str, name: str, value: float) -> None:
    settings = {"algorithm": "PPO", "n_epochs": 10, "learning_rate": 3e-4, "gamma": 0.95}
    metadata = {**room.history.metadata, "gamma": 0.95, "learner_settings": settings}
    notes = tuple({"learning_rate": 3e-4, "update": t} for t in range(5))
    history = replace(room.history, metadata=metadata, notes=notes)
    found = audit.misreported(history, wrong)
    assert found.metadata["learner_settings"] == {**settings, name: pytest.approx(value)}
    assert found.metadata["gamma"] == (0.9 if wrong == "gamma" else 0.95)
    assert {note["learning_rate"] for note in found.notes} == {6e-4 if wrong == "rate" else 3e-4}
    # The original is as it was.
    assert history.metadata["learner_settings"]["n_epochs"] == 10


def test_what_is_not_said_cannot_be_said_wrongly(room: Trained) -> None:
    silent = replace(room.history, metadata={})
    with pytest.raises(HistoryError, match="does not say its learner's n_epochs"):
        audit.misreported(silent, "epochs")
    with pytest.raises(OptionError, match="unknown wrong setting 'seed'"):
        audit.misreported(silent, "seed")


def test_policies_that_nobody_kept_cannot_act_again(room: Trained) -> None:
    stages = [replace(stage, parameters=None) for stage in room.history]
    silent = LearningHistory.from_stages(stages)
    rng = np.random.default_rng(1000)
    for retold in (audit.rolled_out_again, audit.drifted):
        with pytest.raises(HistoryError, match="no policy parameters"):
            retold(silent, WORLDS["room"], SMALL, room.policy, rng)
