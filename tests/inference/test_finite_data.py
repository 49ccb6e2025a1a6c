"""Finite numbers of any size give an answer that can be used, or a sentence that says why not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.estimates import example

from logel.data.history import LearningHistory
from logel.data.stage import Episode
from logel.errors import HistoryError, IdentificationError, LogelError
from logel.inference.answer import usable
from logel.inference.estimate import RewardEstimate
from logel.inference.extremes import Extremes, in_words
from logel.inference.infer import infer_reward
from logel.inference.observer import Observer
from logel.inference.status import Status
from logel.policies.base import Policy
from logel.policies.gaussian import LinearGaussian
from logel.policies.softmax import LinearSoftmax, TabularSoftmax

# Overflows on the way are what these tests provoke.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
FAMILIES: dict[str, Policy] = {
    "tabular": TabularSoftmax(3, 2),
    "linear": LinearSoftmax(2, 2),
    "gaussian": LinearGaussian(2, 1),
}


def history(
    family: str, *, observations: float = 1, actions: float = 1, features: Any = 1
) -> LearningHistory:
    """A learner that goes for the first feature ever more, with numbers in any units."""
    rng = np.random.default_rng(1)

    def episode(t: int) -> Episode:
        if family == "tabular":
            seen = rng.integers(0, 3, 7)
            near: Any = (seen == 1).astype(float)
            chosen: Any = (rng.random(6) < 0.2 + 0.06 * t * near[:-1]).astype(int)
        else:
            seen = rng.normal(size=(7, 2))
            near = seen[:, 0]
            seen = seen * observations
            chosen = (rng.random(6) < 1 / (1 + np.exp(-0.4 * t * near[:-1]))).astype(int)
        if family == "gaussian":
            chosen = (rng.normal(size=(6, 1)) + 0.4 * t * near[:-1, None]) * actions
        table = np.stack([near[1:] + near[:-1] * np.ravel(chosen != 0), rng.normal(size=6)], axis=1)
        return Episode(seen, chosen, table * features)

    stages = [[episode(t) for _ in range(8)] for t in range(8)]
    return LearningHistory.from_episodes(stages, feature_names=["near", "noise"])


def check_sound(estimate: RewardEstimate) -> None:
    """Never OK with zero, NaN or zero-width answers."""
    if estimate.status is Status.OK:
        assert np.isfinite(estimate.weights).all() and np.any(estimate.weights)
        if estimate.covariance is not None:
            low, high = estimate.interval().T
            assert (high > low).all()


@pytest.mark.parametrize("method", ["paper", "authors", "mirror"])
@pytest.mark.parametrize(
    ("family", "scales"),
    [
        ("linear", {"observations": 1e6}),
        ("linear", {"observations": 1e17}),
        ("gaussian", {"observations": 1e-6}),
        ("gaussian", {"actions": 1e12}),
        ("tabular", {"features": 1e17}),
        ("tabular", {"features": [1e15, 1e-15]}),
        ("gaussian", {"features": 1e-200}),
    ],
    ids=str,
)
def test_any_scale_gives_an_answer_or_a_sentence(
    family: str, method: str, scales: dict[str, Any]
) -> None:
    try:
        check_sound(
            infer_reward(history(family, **scales), FAMILIES[family], gamma=0.9, method=method)
        )
    except LogelError as error:
        assert len(str(error)) > 40


@pytest.mark.parametrize(
    ("method", "scales"),
    [
        ("two-step", {"observations": 1e6}),
        ("two-step", {"actions": 1e12}),
        ("joint", {"actions": 1e12}),
        ("joint", {"features": 1e17}),
    ],
)
def test_observations_times_a_million_and_the_like(method: str, scales: dict[str, Any]) -> None:
    try:
        found = infer_reward(
            history("gaussian", **scales), FAMILIES["gaussian"], gamma=0.9, method=method
        )
        check_sound(found)
    except LogelError as error:
        assert len(str(error)) > 40


@pytest.mark.parametrize("method", ["paper", "authors", "two-step", "mirror", "joint"])
@pytest.mark.parametrize(
    ("scales", "column"),
    [
        ({"observations": 1e200}, "observation 1 reaches"),
        ({"actions": 1e200}, "action 0 reaches"),
        ({"features": 1e200}, "feature 'n[a-z]*' reaches"),
        ({"features": [1.0, 1e200]}, "feature 'noise' reaches"),
    ],
    ids=str,
)
def test_numbers_beyond_computing_name_column_and_scale(
    method: str, scales: dict[str, Any], column: str
) -> None:
    with pytest.raises(
        HistoryError, match=rf"stage 0: {column} .*e\+200, too much to compute with"
    ):
        infer_reward(history("gaussian", **scales), FAMILIES["gaussian"], gamma=0.9, method=method)


@pytest.mark.parametrize("method", ["default", "mirror", "paper"])
@pytest.mark.parametrize("scale", [1e-320, 1e-160, 1e-70])
def test_features_too_small_for_their_squares_name_column_and_scale(
    method: str, scale: float
) -> None:
    made = history("tabular", features=[1, scale])
    with pytest.raises(HistoryError, match=r"feature 'noise' never exceeds .*e-.*multiply it"):
        infer_reward(made, FAMILIES["tabular"], gamma=0.9, method=method)
    live = Observer(FAMILIES["tabular"], gamma=0.9, feature_names=["near", "noise"])
    with pytest.raises(HistoryError, match=r"feature 'noise' never exceeds .*e-.*multiply it"):
        for stage in made:
            live.update(stage)


@pytest.mark.parametrize("method", ["default", "mirror", "paper"])
@pytest.mark.parametrize("scale", [1e20, 1e200])
def test_parameters_beyond_computing_are_named(method: str, scale: float) -> None:
    plain = history("tabular")
    known = [
        replace(stage, parameters=np.array([1.0, 2.0, scale if t == 3 else t]))
        for t, stage in enumerate(plain)
    ]
    made = LearningHistory.from_stages(known)
    with pytest.raises(HistoryError, match=r"parameter 2 of stage 3 is 1e\+20*, too much"):
        infer_reward(made, FAMILIES["tabular"], gamma=0.9, method=method)
    live = Observer(FAMILIES["tabular"], gamma=0.9)
    with pytest.raises(HistoryError, match=r"parameter 2 of stage 3 is 1e\+20*, too much"):
        for stage in known:
            live.update(stage)


@pytest.mark.parametrize("part", ["observations", "actions"])
def test_rows_without_numbers_are_refused(part: str) -> None:
    rows = {"observations": np.zeros((4, 2)), "actions": np.zeros((4, 1))}
    rows[part] = np.zeros((4, 0))
    with pytest.raises(HistoryError, match=rf"{part} must hold numbers, but have shape \(4, 0\)"):
        LearningHistory.from_episodes([[Episode(**rows)]])


@pytest.mark.parametrize("method", ["mirror", "paper"])
def test_features_in_tiny_units_are_answered(method: str) -> None:
    made = history("tabular", features=[1e-40, 1e-40])
    found = infer_reward(made, FAMILIES["tabular"], gamma=0.9, method=method)
    check_sound(found)
    assert np.isfinite(found.weights).all() and np.any(found.weights)


def test_an_observer_names_column_and_scale_too() -> None:
    observer = Observer(FAMILIES["gaussian"], gamma=0.9, feature_names=["near", "noise"])
    first, *others = history("gaussian")
    observer.update(first)
    with pytest.raises(HistoryError, match=r"stage 1: feature 'near' reaches .*e\+199"):
        stage = others[0]
        observer.update(replace(stage, features=np.multiply(stage.features, [1e199, 1])))
    assert observer.update(others[0]) is not None


@pytest.mark.parametrize("method", ["paper", "authors", "two-step", "mirror", "joint"])
def test_identical_stages_say_so(method: str) -> None:
    whole = history("linear")
    same = LearningHistory.from_stages([whole[0]] * 6)
    with pytest.raises(IdentificationError, match="every stage shows the same"):
        infer_reward(same, FAMILIES["linear"], gamma=0.9, method=method)


@pytest.mark.parametrize(
    "error",
    [
        np.linalg.LinAlgError("SVD did not converge"),
        ValueError("array must not contain infs or NaNs"),
        OverflowError("too large"),
        FloatingPointError("overflow"),
    ],
)
def test_broken_arithmetic_names_the_column_furthest_from_one(error: Exception) -> None:
    extremes = Extremes(["near", "noise"])
    extremes.add(history("gaussian", features=[1.0, 1e9])[0])
    with (
        pytest.raises(
            IdentificationError, match=r"broke down .* feature 'noise' .* reaches .*e\+09"
        ),
        in_words(extremes.furthest),
    ):
        raise error


def test_other_mistakes_are_not_taken_for_arithmetic() -> None:
    with pytest.raises(ValueError, match="operands"), in_words(lambda: ""):
        raise ValueError("operands could not be broadcast")


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": np.zeros(3)},
        {"weights": np.array([np.nan, 1.0, 0.0])},
        {"covariance": np.diag([0.01, 0.0, 0.0])},
        {"covariance": np.diag([0.01, np.nan, 0.0])},
        {"draws": np.tile([0.8, -0.6, 0.0], (10, 1)), "scale": "known learning rates"},
    ],
)
def test_answers_that_are_no_numbers_are_not_ok(changes: dict[str, Any]) -> None:
    found = usable(example(**changes), "feature 'goal' reaches 1e17")
    assert found.status is Status.OUT_OF_SCALE and found.notes[-1] == "feature 'goal' reaches 1e17"
    assert usable(example(), "").status is example().status
