import inspect
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from logel.data.history import LearningHistory
from logel.envs.crossroad.driver import (
    START,
    CloneFeatures,
    RuleDriver,
    drive,
    even_clone,
    plain_clone,
)
from logel.envs.crossroad.network import network_path
from logel.envs.crossroad.simulation import SimulationBusyError
from logel.envs.crossroad.world import (
    FEATURE_NAMES,
    GO,
    OBSERVATION_NAMES,
    WEIGHTS,
    YIELD,
    Crossroad,
)
from logel.errors import MissingExtraError, OptionError
from logel.inference.infer import Method, infer_reward

libsumo = pytest.importorskip("libsumo", reason="libsumo is not installed: logel[sumo]")


@pytest.fixture
def env() -> Iterator[Crossroad]:
    made = Crossroad()
    yield made
    made.close()


def finish(env: Crossroad, action: int) -> dict[str, Any]:
    while True:
        _, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            return info


def fingerprint(env: Crossroad, seed: int) -> str:
    observation, _ = env.reset(seed=seed)
    text, done = [], False
    while not done:
        action = int(min(observation[3:6]) >= 1.0)
        observation, reward, terminated, truncated, info = env.step(action)
        text.append(observation.tobytes().hex() + reward.hex() + info["outcome"])
        done = terminated or truncated
    return f"{seed} {' '.join(text)}"


def test_gymnasium_has_nothing_to_complain_about(env: Crossroad) -> None:
    check_env(env, skip_render_check=True)


def test_the_same_seed_gives_the_same_episode_in_any_order(env: Crossroad) -> None:
    first = {seed: fingerprint(env, seed) for seed in (0, 1, 2, 3)}
    assert {seed: fingerprint(env, seed) for seed in (3, 1, 0, 2)} == first
    assert len({text.split(" ", 1)[1] for text in first.values()}) == 4
    env.reset(seed=9)  # an unfinished episode, and a simulation closed and opened again
    env.close()
    assert fingerprint(env, 2) == first[2]


def test_the_same_seed_gives_the_same_episode_in_another_process(env: Crossroad) -> None:
    code = (
        "from __future__ import annotations\n"
        "from logel.envs.crossroad.world import Crossroad\n"
        f"{inspect.getsource(fingerprint)}"
        "env = Crossroad()\n"
        "print(*(fingerprint(env, seed) for seed in (5, 4)), sep='\\n')\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [fingerprint(env, seed) for seed in (5, 4)]


def test_the_features_function_agrees_with_info_and_reward(env: Crossroad) -> None:
    observation, _ = env.reset(seed=3)
    rewards = []
    for time in range(200):
        after, reward, terminated, truncated, info = env.step(time % 3 > 0)
        expected = env.features(observation[None], [0], after[None])[0]
        np.testing.assert_array_equal(info["features"], expected)
        assert reward == pytest.approx(np.dot(WEIGHTS, expected))
        rewards.append(reward)
        observation = after
        if terminated or truncated:
            break
    assert terminated or truncated
    assert env.features.names == FEATURE_NAMES and max(rewards) < 0


def test_jerk_and_slowness_are_what_they_say(env: Crossroad) -> None:
    observation, _ = env.reset(seed=0)
    for _ in range(30):
        before, start = observation, observation[1]
        observation, _, _, _, info = env.step(YIELD)
        assert observation[2] == pytest.approx((observation[1] - start) / 0.5)
        jerk = abs(observation[2] - before[2]) / 0.5
        slow = float(observation[1] < 2)
        np.testing.assert_allclose(info["features"], [-1, -jerk, -slow, 0])
    assert info["features"][2] == -1


def test_yielding_stops_at_the_line_and_ends_late(env: Crossroad) -> None:
    env.reset(seed=1)
    info = finish(env, YIELD)
    assert info["outcome"] == "late"
    observation = env._observe()
    assert 0 < observation[0] < 1.5 and observation[1] == 0


def test_an_empty_crossroad_is_passed_without_a_crash() -> None:
    env = Crossroad(density=(0.0, 0.0))
    observation, _ = env.reset(seed=0)
    np.testing.assert_array_equal(observation[3:9], [10] * 3 + [100] * 3)
    assert finish(env, GO)["outcome"] == "arrived"
    env.close()


def test_dense_traffic_punishes_those_who_never_yield() -> None:
    env = Crossroad(density=(0.3, 0.3))
    outcomes = []
    for seed in range(20):
        env.reset(seed=seed)
        outcomes.append(finish(env, GO))
    crashes = [info for info in outcomes if info["outcome"] in ("conflict", "collision")]
    assert len(crashes) > 10
    assert all(info["features"][3] == -1 for info in crashes)
    env.close()


def test_beyond_the_line_the_action_has_no_effect(env: Crossroad) -> None:
    trails = []
    for late_action in (GO, YIELD):
        observation, info = env.reset(seed=6)
        trail, done = [], False
        while not done:
            action = GO if info["decides"] else late_action
            observation, _, terminated, truncated, info = env.step(action)
            trail.append(observation)
            done = terminated or truncated
        trails.append(np.stack(trail))
    np.testing.assert_array_equal(*trails)


@pytest.mark.parametrize(("n_roads", "target"), [(4, "left"), (5, "right"), (6, "left")])
def test_more_roads_and_both_targets_work(n_roads: int, target: str) -> None:
    env = Crossroad(n_roads=n_roads, target=target, period=0.2, time_limit=30.0)
    for seed in range(3):
        episode = drive(env, (3, 3, 3, 10, 40), seed)
        assert len(episode) > 10
        for observation in episode.observations:
            assert env.observation_space.contains(observation)
    env.close()


def test_a_second_simulation_in_one_process_is_refused(env: Crossroad) -> None:
    env.reset(seed=0)
    other = Crossroad()
    with pytest.raises(SimulationBusyError, match="one simulation per process"):
        other.reset(seed=0)
    env.step(GO)  # the first goes on undisturbed
    env.close()
    other.reset(seed=0)
    other.close()


def test_a_simulation_started_by_hand_is_not_replaced(env: Crossroad) -> None:
    libsumo.start(["sumo", "-n", str(network_path(3)), "--no-step-log", "true"])
    try:
        with pytest.raises(SimulationBusyError, match=r"libsumo\.close"):
            env.reset(seed=0)
    finally:
        libsumo.close()


def test_a_forgotten_environment_frees_the_simulation() -> None:
    forgotten = Crossroad()
    forgotten.reset(seed=0)
    del forgotten
    env = Crossroad()
    env.reset(seed=0)
    env.close()


def test_without_libsumo_one_sentence_says_what_installs_it(
    env: Crossroad, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "libsumo", None)
    with pytest.raises(MissingExtraError, match=r"pip install '.*\[sumo\]'"):
        env.reset(seed=0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"n_roads": 7}, "3 to 6"),
        ({"n_roads": 3.5}, "whole number"),
        ({"target": "up"}, "'left' or 'right'"),
        ({"density": (0.3, 0.1)}, "density"),
        ({"density": (0.1, 0.9)}, "density"),
        ({"period": 0.25}, "multiple of 0.1"),
        ({"time_limit": 0.0}, "time_limit"),
        ({"weights": (1.0, 2.0)}, "4 finite"),
        ({"render_mode": "human"}, "render_mode"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(OptionError, match=expected):
        Crossroad(**options)


def test_steps_need_an_episode_and_an_action_that_exists(env: Crossroad) -> None:
    with pytest.raises(OptionError, match="reset"):
        env.step(GO)
    env.reset(seed=0)
    with pytest.raises(OptionError, match="yield"):
        env.step(2)


def test_the_picture_shows_roads_zones_and_cars() -> None:
    env = Crossroad(render_mode="rgb_array", density=(0.2, 0.2))
    env.reset(seed=2)
    for _ in range(6):
        env.step(GO)
    image = env.render()
    assert image is not None and image.shape == (400, 400, 3) and image.dtype == np.uint8
    middle = image[200, 200]
    assert abs(int(middle[0]) - int(middle[1])) < 60  # asphalt or a zone's tint, no grass
    blue = (image == (0, 114, 178)).all(axis=2)
    dark = (image == (50, 50, 55)).all(axis=2)
    # A car is 5 m by 1.8 m, a pixel .225 m; a part of it is drawn in another shade.
    assert blue.sum() == pytest.approx(9 / 0.225**2, rel=0.2)
    assert dark.sum() > blue.sum() / 2
    # It drives north on the right-hand side: below the middle, right of it.
    rows, columns = np.nonzero(blue)
    assert rows.mean() > 200 and 200 < columns.mean() < 220
    assert isinstance(env, gymnasium.Env)
    env.close()


def test_the_rules_look_at_gaps_only_when_near() -> None:
    driver = RuleDriver.from_parameters((1.0, 2.0, 3.0, 5.0, 40.0))
    clear = np.array([30.0, 10, 0, 1.5, 2.5, 3.5, 50, 50, 50, 0])
    assert driver.act(clear) == GO
    for entry, value in ((3, 0.9), (4, 1.9), (5, 2.9), (6, 4.0), (8, 4.9)):
        tight = clear.copy()
        tight[entry] = value
        assert driver.act(tight) == YIELD
        tight[0] = 41.0
        assert driver.act(tight) == GO
    with pytest.raises(OptionError, match="5 finite"):
        RuleDriver.from_parameters((1.0, 2.0))


def test_forced_actions_carry_no_score(env: Crossroad) -> None:
    episode = drive(env, START, 0)
    features = CloneFeatures(np.eye(6))(episode.observations)
    beyond = episode.observations[:, 0] <= 0
    assert beyond.any() and not beyond.all()
    assert not features[beyond].any() and (features[~beyond, 0] == 1).all()
    assert (episode.actions[beyond[:-1]] == GO).all()
    assert len(OBSERVATION_NAMES) == episode.observations.shape[1]


def test_the_even_clone_is_equally_informed_in_all_directions(env: Crossroad) -> None:
    from logel.policies.cloned_path import clone

    stages = [
        [drive(env, (gap, gap, gap, 5, 40), seed) for seed in range(20)] for gap in (0.5, 1.5)
    ]
    history = LearningHistory.from_episodes(stages, feature_names=FEATURE_NAMES)
    spreads = []
    for policy in (plain_clone(), even_clone(history)):
        fisher = sum(c.fisher.dense() for c in clone(history, policy).clones)
        values = np.linalg.eigvalsh(fisher)
        spreads.append(values[-1] / values[0])
    assert spreads[0] > 100 and spreads[1] < 3


def test_time_and_slow_are_named_when_they_cannot_be_told_apart(env: Crossroad) -> None:
    stages = []
    for gap in (0.5, 1.5):
        episodes = [drive(env, (gap, gap, gap, 5, 40), seed) for seed in range(8)]
        for n, episode in enumerate(episodes):
            assert episode.features is not None
            # A driver who is never faster than walking pace: every decision is a slow one.
            features = episode.features.copy()
            features[:, 2] = features[:, 0]
            episodes[n] = replace(episode, features=features)
        stages.append(episodes)
    history = LearningHistory.from_episodes(stages, feature_names=FEATURE_NAMES)
    method = Method(nonnegative=True, n_groups=0)
    estimate = infer_reward(history, plain_clone(), gamma=0.999, method=method)
    (sentence,) = [s for s in estimate.gauge.describe() if "not identified" in s]
    assert "time" in sentence and "slow" in sentence and "crash" not in sentence
