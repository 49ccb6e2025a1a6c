"""A first look at a history: the numbers by hand, and every problem on data that have it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from logel.data.history import LearningHistory
from logel.data.inspection import inspect_history
from logel.data.stage import Episode


def noisy(
    rng: np.random.Generator, *, mean: float = 0.0, n: int = 20, columns: int = 2
) -> list[Episode]:
    return [
        Episode(rng.normal(size=11), rng.normal(size=10), mean + rng.normal(size=(10, columns)))
        for _ in range(n)
    ]


def learning(**options: Any) -> LearningHistory:
    """Two features whose means rise by half a standard deviation per stage: nothing is wrong."""
    rng = np.random.default_rng(0)
    stages = [noisy(rng, mean=0.5 * t) for t in range(3)]
    return LearningHistory.from_episodes(stages, feature_names=["a", "b"], **options)


def test_a_healthy_history_has_no_problems() -> None:
    overview = inspect_history(learning(metadata={"mean_returns": [1.0, 2.0, 3.0]}))
    assert overview.problems == ()
    assert overview.observations == "floats" and overview.n_parameters is None
    assert [stage.mean_return for stage in overview.stages] == [1.0, 2.0, 3.0]
    # The totals of 10 steps move by 5, with a standard error of sqrt(2 * 10 / 20) = 1.
    assert overview.stages[0].movement is None
    for stage in overview.stages[1:]:
        assert stage.movement == pytest.approx(5.0, abs=2.0)
    json.dumps(overview.to_dict(), allow_nan=False)


def test_the_numbers_of_a_stage_by_hand() -> None:
    stages = [
        [
            Episode([0, 1, 2], [0, 1], [[1.0], [3.0]], terminated=True),  # type: ignore[arg-type,list-item]
            Episode([0, 1], [1], [[2.0]]),  # type: ignore[arg-type,list-item]
        ],
        [Episode([0, 1], [0], [[5.0]]), Episode([0, 1], [0], [[6.0]])],  # type: ignore[arg-type,list-item]
    ]
    history = LearningHistory.from_episodes(stages, parameters=[[0.0, 0.0], [3.0, 4.0]])
    first, second = inspect_history(history).stages
    assert (first.episodes, first.steps, first.lengths) == (2, 3, (1, 1.5, 2))
    assert first.terminated == 0.5 and first.last_observations
    assert first.feature_means == (2.0,) and second.feature_means == (5.5,)
    assert first.movement is None and second.movement == 5.0
    # Without parameters: totals 4, 2 and 5, 6; mean 3 to 5.5, error sqrt(2/2 + .5/2).
    unknown = LearningHistory.from_episodes(stages)
    assert inspect_history(unknown).stages[1].movement == pytest.approx(2.5 / np.sqrt(1.25))


def changed(history: LearningHistory, change: Any) -> LearningHistory:
    stages = [[change(t, episode) for episode in stage.episodes] for t, stage in enumerate(history)]
    return LearningHistory.from_episodes(stages, feature_names=history.feature_names)


def with_features(make: Any) -> Any:
    def change(t: int, episode: Episode) -> Episode:
        assert episode.features is not None
        return Episode(episode.observations, episode.actions, make(episode.features.copy()))

    return change


def constant(features: Any) -> Any:
    features[:, 0] = 2.5
    return features


def collinear(features: Any) -> Any:
    features[:, 1] = 4.0 - 2.0 * features[:, 0]
    return features


def uneven(features: Any) -> Any:
    features[:, 1] *= 1e8
    return features


def outlier(t: int, episode: Episode) -> Episode:
    observations = episode.observations.copy()
    if t == 1 and episode.actions[0] == learning()[1].actions[30]:
        observations[4] = 1e9
    return Episode(observations, episode.actions, episode.features)


PROBLEMS = {
    "constant": (with_features(constant), "feature 'a' is 2.5 in every step"),
    "collinear": (with_features(collinear), "+1 a +0.5 b is the same in every step"),
    "uneven": (with_features(uneven), "feature 'b' varies 1e+08 times as much as 'a'"),
    "outlier": (outlier, "stage 1, episode 3, time 4: observation 0 is 1e+09, while 98%"),
    "last": (
        lambda t, e: Episode(e.observations[: len(e) + (t == 1)], e.actions, e.features),
        "stages 0 and 2 have no last observations",
    ),
    "whole": (
        lambda t, e: Episode(e.observations, np.rint(e.actions), e.features),
        "actions are floats, but all of them are whole",
    ),
    "no features": (
        lambda t, e: Episode(e.observations, e.actions),
        "no features are recorded",
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem_is_said_once(name: str) -> None:
    change, sentence = PROBLEMS[name]
    history = learning()
    if name == "no features":
        history = LearningHistory.from_stages(list(history))
    problems = inspect_history(changed(history, change)).problems
    assert len(problems) == 1 and sentence in problems[0], problems


def test_one_hot_features_and_several_combinations() -> None:
    rng = np.random.default_rng(1)

    def stage(n_areas: int) -> list[Episode]:
        areas = rng.integers(0, n_areas, (30, 10))
        hot = np.eye(n_areas)[areas]
        both = np.concatenate([hot, hot[..., ::-1]], axis=2)
        return [Episode(np.arange(11), np.arange(10) % 2, f) for f in both]

    history = LearningHistory.from_episodes([stage(3), stage(3)])
    (problem,) = (p for p in inspect_history(history).problems if "same in every step" in p)
    # Six columns; areas that sum to one leave two free, and the mirrored copies add none.
    assert problem.startswith("4 combinations of the features feature 0, feature 1")


def test_movement_and_stages() -> None:
    rng = np.random.default_rng(2)
    still = LearningHistory.from_episodes(
        [noisy(rng), noisy(rng), noisy(rng)], parameters=[[0.0, 1.0], [0.0, 1.0], [1.0, 1.0]]
    )
    assert "stage 1 has the parameters of the stage before" in inspect_history(still).problems[0]
    idle = LearningHistory.from_episodes([noisy(rng)] * 3)
    assert "no step changes the mean features" in inspect_history(idle).problems[0]
    single = LearningHistory.from_episodes([noisy(rng, n=1)] * 9)
    assert inspect_history(single).problems == (
        "stages 0, 1, 2, 3, 4 and 4 more have a single episode: nothing tells how much chance "
        "there is in it",
    )
    alone = inspect_history(LearningHistory.from_episodes([noisy(rng)]))
    assert alone.problems[0].startswith("there is one stage only")


def test_features_that_jump_without_noise_move_infinitely() -> None:
    def stage(value: float) -> list[Episode]:
        return [Episode([0, 1], [0], [[value]])] * 2  # type: ignore[arg-type,list-item]

    overview = inspect_history(LearningHistory.from_episodes([stage(0.0), stage(1.0)]))
    assert overview.stages[1].movement == np.inf
    assert overview.to_dict()["stages"][1]["movement"] is None


def test_returns_come_from_the_recorder_or_the_import_and_may_be_nonsense() -> None:
    noted = replace(learning(), notes=({"mean_return": 7}, {"mean_return": None}, {}))
    found = inspect_history(replace(noted, metadata={"mean_returns": [1.0, 2.0, 3.0]}))
    assert [stage.mean_return for stage in found.stages] == [7.0, 2.0, 3.0]
    odd = inspect_history(learning(metadata={"mean_returns": ["x", 10**400, True]}))
    assert [stage.mean_return for stage in odd.stages] == [None] * 3
    wild = learning(metadata={"mean_returns": [np.nan, 1.0, 2.0], "deep": [{"x": np.inf}]})
    plain = json.loads(json.dumps(inspect_history(wild).to_dict(), allow_nan=False))
    assert plain["stages"][0]["mean_return"] is None and plain["metadata"]["deep"] == [{"x": None}]
