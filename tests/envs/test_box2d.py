"""LunarLander's features against what the environment itself pays."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest

from logel.data.stage import Episode, Stage
from logel.envs.box2d import FEATURES, LANDER_TRUE_WEIGHTS
from logel.rewards.linear import LinearReward

LANDER = "LunarLander-v3"


def by_hand(rows: list[list[float]]) -> np.ndarray:
    return np.array(rows, dtype=np.float32)


def test_features_by_hand() -> None:
    before = by_hand([[0.3, 0.4, 0, 0, -0.1, 0, 0, 0]] * 3)
    after = by_hand(
        [[0, 0.4, 0.6, 0.8, 0.2, 1, 1, 0], [0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0.3, 0, 1, 1]]
    )
    found = FEATURES[LANDER](
        before, np.array([2, 1, 3]), after, terminated=np.array([False, True, True])
    )
    # .1 nearer, 1 faster, .1 less upright, one leg down, main engine; then one that turns when it
    # ends, and one at rest: paid for the ending alone.
    np.testing.assert_allclose(found[0], [10, -1 / 0.03, -10, 5, 2, 0], rtol=1e-5)
    np.testing.assert_allclose(found[1], [0, 0, 0, 0, 0, -10])
    np.testing.assert_allclose(found[2], [0, 0, 0, 0, 0, 10])
    side = FEATURES[LANDER](before, np.array([0, 1, 3]), before, terminated=np.zeros(3, dtype=bool))
    np.testing.assert_allclose(side[:, 4], [0, 0.2, 0.2])


def test_the_environment_pays_just_this() -> None:
    pytest.importorskip("Box2D")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Box2D and pygame have old ways of importing.
        from gymnasium.envs.box2d.lunar_lander import heuristic

        env = gymnasium.make(LANDER, disable_env_checker=True)
    rng, rewards, endings, episodes = np.random.default_rng(0), [], [], []
    # The environment's own pilot lands; one who errs crashes; full thrust to a side flies away.
    pilots = [
        lambda seen: heuristic(env.unwrapped, seen),
        lambda seen: int(rng.integers(4)),
        lambda seen: 2 if seen[4] < -0.3 else 3,
    ]
    for k in range(9):
        observation, _ = env.reset(seed=k)
        seen, actions, over = [observation], [], False
        while not over:
            actions.append(int(pilots[k % 3](seen[-1])))
            observation, paid, terminated, truncated, _ = env.step(actions[-1])
            seen.append(observation)
            rewards.append(paid)
            over = terminated or truncated
        endings.append((terminated, paid, abs(observation[0]) >= 1))
        episodes.append(Episode(np.array(seen), np.array(actions), terminated=terminated))
    assert {ending[1] for ending in endings if ending[0]} == {-100, 100}
    assert any(away for *_, away in endings)
    stage = Stage.from_episodes(episodes).with_features(FEATURES[LANDER])
    reward = LinearReward(np.array(LANDER_TRUE_WEIGHTS))
    # Observations are rounded to 32 bits, and differences of theirs are paid a hundredfold.
    np.testing.assert_allclose(reward.from_features(stage.features), rewards, atol=5e-5)
