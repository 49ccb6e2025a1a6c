"""Thirty-one mistakes that newcomers make: each costs one sentence that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import logel
from logel import (
    Episode,
    HistoryRecorder,
    LearningHistory,
    LinearGaussian,
    LogelError,
    RewardEstimate,
    TabularSoftmax,
    infer_reward,
)
from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.learners.tabular import SoftValueIteration, observe
from logel.report.page import write_report
from logel.rewards.features import FunctionFeatures

TABLE = TabularSoftmax(25, 4)


@cache
def grid() -> LearningHistory:
    """A short history of a table."""
    world = gridworld_mdp()
    weights = grid_weights(world.feature_names)
    return observe(world, SoftValueIteration(), weights=weights, n_steps=3, n_episodes=10)


@cache
def estimate() -> RewardEstimate:
    """What a method that takes no time makes of it."""
    return infer_reward(grid(), TABLE, method="paper")


def episode(width: int = 2) -> Episode:
    """Of vectors and real actions."""
    return Episode(np.zeros((4, width)), np.zeros((3, 1)), np.ones((3, 2)))


def vectors(*, features: bool = True) -> LearningHistory:
    """A history of those."""
    one = episode() if features else Episode(np.zeros((4, 2)), np.zeros((3, 1)))
    return LearningHistory.from_episodes([[one]] * 3, metadata={"gamma": 0.9})


def train(features: Any, *, algorithm: str = "A2C", **options: Any) -> None:
    """A little training that is recorded."""
    sb3 = pytest.importorskip("stable_baselines3")
    learner = getattr(sb3, algorithm)("MlpPolicy", "CartPole-v1", seed=0)
    learner.learn(16, callback=HistoryRecorder("new", features, **options))


def wide(observations: Any, actions: Any, following: Any) -> Any:
    """Three columns."""
    return np.ones((len(actions), 3))


def recorder_class() -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    sb3.A2C("MlpPolicy", "CartPole-v1").learn(8, callback=HistoryRecorder)


def model_as_policy() -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    infer_reward(grid(), sb3.A2C("MlpPolicy", "CartPole-v1"))  # type: ignore[arg-type]


def shuffled() -> None:
    pd = pytest.importorskip("pandas")
    grid().to_csv("steps.csv")
    pd.read_csv("steps.csv").sample(frac=1, random_state=0).to_csv("mixed.csv", index=False)
    LearningHistory.from_csv("mixed.csv")


def twice() -> None:
    grid().save("folder")
    grid().save("folder")


infer: Callable[..., Any] = infer_reward
episodes = LearningHistory.from_episodes
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "class as policy": (lambda: infer(grid(), TabularSoftmax), "pass an instance"),
    "text as policy": (lambda: infer(grid(), "tabular"), "pass a policy family"),
    "model as policy": (model_as_policy, r"pass SB3Policy\.from_model"),
    "nothing for policy": (lambda: infer(vectors()), "pass policy, such as"),
    "flat list": (lambda: infer([episode(), episode()], TABLE), "from_sessions"),
    "lists of episodes": (lambda: infer([[episode()]] * 2, TABLE), "from_episodes"),
    "tuple of arrays": (lambda: infer((np.zeros(3), np.zeros(2)), TABLE), "from_arrays"),
    "text as history": (lambda: infer("run", TABLE), r"pass LearningHistory\.load\('run'\)"),
    "path as history": (lambda: infer(Path("run"), TABLE), r"pass LearningHistory\.load"),
    "swapped": (lambda: infer(TABLE, grid()), "pass the history first"),
    "gamma of one": (lambda: infer(grid(), TABLE, gamma=1.0), r"must be in \[0, 1\)"),
    "gamma as text": (lambda: infer(grid(), TABLE, gamma="0.9"), "must be a number"),
    "method misspelt": (lambda: infer(grid(), TABLE, method="papr"), "choose one of paper"),
    "too few states": (lambda: infer(grid(), TabularSoftmax(5, 4)), r"is outside 0\.\.4"),
    "too few actions": (lambda: infer(grid(), TabularSoftmax(25, 3)), r"is outside 0\.\.2"),
    "family of others": (lambda: infer(grid(), LinearGaussian(1, 1)), "needs continuous actions"),
    "width of others": (lambda: infer(vectors(), LinearGaussian(3, 1)), "has 3 state features"),
    "no features": (
        lambda: infer(vectors(features=False), LinearGaussian(2, 1)),
        "pass features=, a callable",
    ),
    "names for features": (
        lambda: infer(vectors(), LinearGaussian(2, 1), features=["a", "b"]),
        "must be a function of transitions",
    ),
    "two arguments": (
        lambda: infer(vectors(), LinearGaussian(2, 1), features=lambda o, a: a),
        "takes 2 arguments",
    ),
    "flat episodes": (lambda: episodes([episode(), episode()]), "one list of episodes per stage"),
    "tuples for episodes": (lambda: episodes([[(1, 2)]]), r"Episode\(observations, actions"),
    "observations too long": (lambda: Episode(np.zeros(9), np.zeros(2)), "must have 3 rows"),
    "not a number": (lambda: Episode(np.full(3, np.nan), np.zeros(2)), "must be finite"),
    "names too few": (lambda: episodes([[episode()]], feature_names=["a"]), "2 features, but 1"),
    "recorder's names": (
        lambda: train(FunctionFeatures(wide, ("a", "b"))),
        r"must return 2 columns \(a, b\).*returned shape",
    ),
    "recorder as class": (recorder_class, "pass callback=HistoryRecorder"),
    "off-policy learner": (lambda: train("none", algorithm="DQN"), "record PPO, A2C, TRPO"),
    "shuffled rows": (shuffled, "out of order; sort the rows by stage, episode and time"),
    "folder that exists": (twice, "already exists: choose another path or remove it"),
    "report of another": (
        lambda: write_report(estimate(), history=vectors()),
        "give the history that the estimate was made from",
    ),
}


def test_there_are_as_many_as_we_say() -> None:
    assert len(MISTAKES) == 31


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_costs_one_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mistake, says = MISTAKES[name]
    with pytest.raises(LogelError, match=says) as caught:
        mistake()
    said = str(caught.value)
    assert "\n" not in said and len(said) < 400, said


def test_so_does_one_on_the_command_line(tmp_path: Path) -> None:
    estimate().save(tmp_path / "estimate.json")
    vectors().save(tmp_path / "other")
    options = ["--history", tmp_path / "other", "--out", tmp_path / "page.html"]
    done = logel("report", tmp_path / "estimate.json", *options)
    assert done.returncode == 2 and done.stderr.startswith("error: the estimate has 5 features")
    assert len(done.stderr.strip().splitlines()) == 1


def moving(deviation: float | None) -> LearningHistory:
    """A learner that shifts its mean, and its deviation where none is given."""
    rng, stages = np.random.default_rng(0), []
    for t in range(6):
        spread = 0.5 * 0.8**t if deviation is None else deviation
        stage = []
        for _ in range(40):
            seen = rng.normal(size=(11, 1))
            acts = 0.1 * t * seen[:-1] + spread * rng.normal(size=(10, 1))
            stage.append(Episode(seen, acts, -np.hstack([seen[1:] ** 2, acts**2])))
        stages.append(stage)
    return LearningHistory.from_episodes(stages, metadata={"gamma": 0.9})


@pytest.mark.parametrize(
    "true, told, says",
    [
        (0.3, None, "if the learner's deviation is fixed, pass sigma=0."),
        (0.3, 0.5, "where sigma says 0.5"),
        (0.3, 0.3, None),
        (None, None, None),
    ],
    ids=["left out", "wrong", "right", "learnt"],
)
def test_a_deviation_that_the_data_contradict_is_noted(
    true: float | None, told: float | None, says: str | None
) -> None:
    policy = LinearGaussian(1, 1, sigma=told)
    notes = infer_reward(moving(true), policy, method="two-step", intervals=False).notes
    about = [note for note in notes if "deviat" in note]
    assert about == [] if says is None else (len(about) == 1 and says in about[0])
