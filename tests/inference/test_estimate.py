"""The estimate: questions it answers, and its life as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from estimates import example
from logel.errors import FormatError, OptionError
from logel.inference.estimate import RewardEstimate
from logel.inference.gauge import Fit, Gauge
from logel.inference.more_data import Planning
from logel.inference.status import Status

_NONE = np.zeros((0, 3))
ARRAYS = ("weights", "learning_rates", "covariance", "objective_trace", "held_out")


def assert_same(one: RewardEstimate, two: RewardEstimate) -> None:
    for name in ARRAYS:
        left, right = getattr(one, name), getattr(two, name)
        assert (left is None) == (right is None), name
        if right is not None:
            np.testing.assert_array_equal(left, right)
    for name in ("feature_names", "degrees_of_freedom", "scale", "status", "notes", "method"):
        assert getattr(one, name) == getattr(two, name), name
    assert (one.rank, one.condition) == (two.rank, two.condition)
    assert dict(one.config) == dict(two.config) and dict(one.versions) == dict(two.versions)
    np.testing.assert_array_equal(one.gauge.directions, two.gauge.directions)
    np.testing.assert_array_equal(one.gauge.weak, two.gauge.weak)
    assert tuple(one.gauge.reasons) == tuple(two.gauge.reasons)
    assert (one.fit.chance, one.fit.rule) == (two.fit.chance, two.fit.rule)
    for name in ("explained", "cosines", "moved", "predicted", "noise"):
        left, right = getattr(one.fit, name), getattr(two.fit, name)
        assert (left is None) == (right is None), name
        if right is not None:
            np.testing.assert_array_equal(left, right)
    assert (one.planning is None) == (two.planning is None)
    if one.planning is not None and two.planning is not None:
        for name, values in vars(one.planning).items():
            np.testing.assert_array_equal(values, vars(two.planning)[name])
    assert one.summary() == two.summary()


# --- questions ------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.999])
def test_intervals_are_students(level: float) -> None:
    estimate = example()
    reach = scipy.stats.t(9).interval(level)[1]
    np.testing.assert_allclose(
        estimate.interval(level),
        [
            [0.8 - 0.1 * reach, 0.8 + 0.1 * reach],
            [-0.6 - 0.2 * reach, -0.6 + 0.2 * reach],
            [0, 0],
        ],
        atol=1e-12,
    )
    assert estimate.interval(level).shape == (3, 2)


def test_the_default_interval_by_hand() -> None:
    # The 97.5% quantile of Student's t with 9 degrees of freedom is 2.262.
    np.testing.assert_allclose(example().interval()[0], [0.8 - 0.2262, 0.8 + 0.2262], atol=1e-4)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.5, 95, float("nan")])
def test_levels_outside_their_range_are_refused(level: float) -> None:
    with pytest.raises(OptionError, match="confidence level"):
        example().interval(level)


def test_without_covariance_intervals_are_unknown_not_zero() -> None:
    estimate = example(covariance=None, degrees_of_freedom=0)
    assert np.isnan(estimate.interval()).all() and np.isnan(estimate.standard_errors).all()
    assert "nan" in estimate.summary()


def test_the_summary_says_what_matters() -> None:
    text = example().summary(0.9)
    for part in (
        "goal",
        "cliff",
        "grass",
        "0.8000",
        "-0.6000",
        "90% interval",
        "unit norm",
        "2 steps",
        Status.RANK_DEFICIENT.value,
        "rank 2 of 3",
        "the weight of grass is not identified: it is constant",
        "note: mind the gap",
        "chance level 0.100",
        "held-out log-likelihood -1.1000",
    ):
        assert part in text, part
    assert "held-out" not in example(held_out=None).summary()
    assert "held-out" not in example(held_out=np.full(3, np.nan)).summary()
    assert repr(example()) == (
        "RewardEstimate(goal=0.8, cliff=-0.6, grass=0; unit norm, 2 steps, partly determined)"
    )
    np.testing.assert_array_equal(example().explained, [0.5, 0.7])


# --- JSON -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"covariance": None, "degrees_of_freedom": 0},
        {"held_out": None},
        {"planning": Planning.of(np.diag([0.01, 0.04, 0.0]), np.zeros((3, 3)))},
        {"planning": Planning(np.eye(3), np.full((3, 3), np.nan), np.eye(3) / 3)},
        {"condition": float("inf")},
        {"covariance": np.full((3, 3), np.nan)},
        {"fit": Fit(np.array([np.nan, 0.1]), np.array([0.2, np.nan]), 0.3)},
        {"fit": Fit(*np.full((2, 2), 0.5), 0.3, *np.array([[1, 2], [3, np.nan]]), rule="mirror")},
        {"fit": Fit(*np.full((2, 2), 0.5), 0.0, *np.array([[1, 2], [3, 4], [0, 0.1]]), "replay")},
        {"notes": (), "status": Status.OK},
        {"feature_names": ("ä", '"', " ")},
    ],
)
def test_round_trip(changes: dict[str, Any], tmp_path: Path) -> None:
    if "feature_names" in changes:
        gauge = replace(example().gauge, feature_names=changes["feature_names"])
        changes = {**changes, "gauge": gauge}
    estimate = example(**changes)
    assert_same(RewardEstimate.from_json(estimate.to_json()), estimate)
    estimate.save(tmp_path / "estimate.json")
    assert_same(RewardEstimate.load(tmp_path / "estimate.json"), estimate)
    assert [p.name for p in tmp_path.iterdir()] == ["estimate.json"]


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(hnp.arrays(float, 3, elements=finite), hnp.arrays(float, 2, elements=finite))
def test_numbers_survive_exactly(weights: Any, rates: Any) -> None:
    back = RewardEstimate.from_json(example(weights=weights, learning_rates=rates).to_json())
    np.testing.assert_array_equal(back.weights, weights)
    np.testing.assert_array_equal(back.learning_rates, rates)


square = hnp.arrays(float, (3, 3), elements=finite)


@given(square, square, square)
def test_planning_survives_exactly(now: Any, episodes: Any, stages: Any) -> None:
    estimate = example(planning=Planning(now, episodes, stages))
    back = RewardEstimate.from_json(estimate.to_json()).planning
    assert back is not None
    np.testing.assert_array_equal(back.covariance, now)
    np.testing.assert_array_equal(back.twice_episodes, episodes)
    np.testing.assert_array_equal(back.twice_stages, stages)


def test_files_of_the_first_version_still_load() -> None:
    raw = json.loads(example(planning=Planning.of(np.eye(3), np.zeros((3, 3)))).to_json())
    del raw["planning"]
    raw["format_version"] = 1
    assert_same(RewardEstimate.from_json(json.dumps(raw)), example())


@pytest.mark.parametrize("version", [1, 2])
def test_one_reason_stood_for_all_directions_before_the_third_version(version: int) -> None:
    raw = json.loads(example().to_json())
    raw["format_version"] = version
    directions = np.eye(3)[1:].tolist()
    raw["gauge"] = {"directions": directions, "reason": "it is constant", "weak": []}
    estimate = RewardEstimate.from_json(json.dumps(raw))
    assert estimate.gauge.reasons == ("it is constant", "it is constant")
    assert json.loads(estimate.to_json())["gauge"]["reasons"] == ["it is constant"] * 2


def test_fits_without_lengths_still_load() -> None:
    raw = json.loads(example(fit=replace(example().fit, moved=np.ones(2), rule="x")).to_json())
    for later in ("moved", "predicted", "noise", "rule"):
        del raw["fit"][later]
    assert_same(RewardEstimate.from_json(json.dumps(raw)), example())


def test_the_json_is_standard() -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    estimate = example(covariance=np.full((3, 3), np.nan), condition=float("inf"))
    raw = json.loads(estimate.to_json(), parse_constant=refuse)
    assert raw["condition"] is None and raw["covariance"][0] == [None] * 3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", "logel-history"),
        ("format_version", 5),
        ("format_version", "1"),
        ("format_version", None),
        ("weights", [1.0, 2.0]),
        ("weights", [1.0, 2.0, "x"]),
        ("weights", {"a": 1}),
        ("weights", [[1.0], [2.0], [3.0, 4.0]]),
        ("weights", [10**400, 0, 0]),
        ("covariance", [[1.0]]),
        ("degrees_of_freedom", "many"),
        ("degrees_of_freedom", float("inf")),
        ("status", "FINE"),
        ("status", []),
        ("gauge", None),
        ("gauge", {"directions": [[1.0]], "reasons": [""], "weak": []}),
        ("gauge", {"directions": [[1.0, 0.0, 0.0]], "reasons": [], "weak": []}),
        ("gauge", {"directions": [[1.0, 0.0, 0.0]], "weak": []}),
        ("fit", {"explained": [1.0], "cosines": [1.0], "chance": 1.0}),
        ("fit", {"explained": [1, 1], "cosines": [1, 1], "chance": 10**400}),
        ("fit", {"explained": [1, 1], "cosines": [1, 1], "chance": 0, "moved": [1]}),
        ("fit", {"explained": [1, 1], "cosines": [1, 1], "chance": 0, "predicted": [[1], ["x"]]}),
        ("fit", {"explained": [1, 1], "cosines": [1, 1], "chance": 0, "noise": [0.1, -0.1]}),
        ("rank", None),
        ("rank", float("-inf")),
        ("versions", []),
        ("config", 5),
        ("held_out", [1.0]),
        ("feature_names", 3),
        ("learning_rates", 3),
        ("notes", 3),
        ("planning", 3),
        ("planning", {"covariance": [[1.0]], "twice_episodes": [[1.0]], "twice_stages": [[1.0]]}),
        ("planning", {"covariance": np.eye(3).tolist()}),
    ],
)
def test_hostile_json_is_a_format_error(field: str, value: Any) -> None:
    raw = {**json.loads(example().to_json()), field: value}
    with pytest.raises(FormatError):
        RewardEstimate.from_json(json.dumps(raw))
    del raw[field]
    with pytest.raises(FormatError):
        RewardEstimate.from_json(json.dumps(raw))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
TEMPLATE = json.loads(example().to_json())


@given(st.sampled_from(sorted(TEMPLATE)), json_values)
@settings(max_examples=200)
def test_fuzzed_json_is_read_or_a_format_error(field: str, value: Any) -> None:
    raw = {**TEMPLATE, field: value}
    try:
        estimate = RewardEstimate.from_json(json.dumps(raw))
    except FormatError as error:
        assert len(str(error)) > 10
        return
    assert estimate.weights.shape == (len(estimate.feature_names),)


@pytest.mark.parametrize(
    "text", ["", "nonsense", "[]", "null", "[" * 100_000, b"\xff\xfe", "1" * 9999]
)
def test_text_that_is_no_estimate_is_a_format_error(text: str | bytes) -> None:
    with pytest.raises(FormatError):
        RewardEstimate.from_json(text)


def test_loading_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"there is no estimate at .*nowhere"):
        RewardEstimate.load(tmp_path / "nowhere")
    (tmp_path / "bad.json").write_text(example().to_json()[:-20])
    with pytest.raises(FormatError, match=r"bad\.json: .*corrupted or truncated"):
        RewardEstimate.load(tmp_path / "bad.json")
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(2**29)
    with pytest.raises(FormatError, match="the estimate would take"):
        RewardEstimate.load(tmp_path / "huge.json")


def test_an_interval_can_contain_a_reward_of_a_single_feature() -> None:
    rng = np.random.default_rng(0)
    draws = np.array([1.0, 0.02]) + 0.05 * rng.standard_normal((2000, 2))
    draws /= np.linalg.norm(draws, axis=1, keepdims=True)
    weights = draws.mean(axis=0) / np.linalg.norm(draws.mean(axis=0))
    names = ("a", "b")
    estimate = replace(
        example(),
        weights=weights,
        feature_names=names,
        gauge=Gauge(names, np.zeros((0, 2)), (), np.zeros((0, 2))),
        draws=draws,
        scale="unit norm",
    )
    ends = estimate.interval(0.95)
    assert ends[0, 0] < 1.0 and ends[0, 1] == 1.0
    assert ends[1, 0] < 0 < ends[1, 1] < 0.5
    assert estimate.probability_positive()[0] == 1.0


def test_certain_weights_have_certain_signs() -> None:
    estimate = replace(
        example(),
        weights=np.array([-8.0, 0.0, 1.0])[: len(example().weights)],
        covariance=np.zeros((len(example().weights),) * 2),
        draws=None,
    )
    np.testing.assert_array_equal(
        estimate.probability_positive(), [0.0, 0.5, 1.0][: len(estimate.weights)]
    )


def test_intervals_go_no_further_than_what_is_identified() -> None:
    rng = np.random.default_rng(3)
    names = ("a", "b", "silent")
    gauge = Gauge(names, np.array([[0.6, 0.8, 0.0], [0.0, 0.0, 1.0]]), "it is constant", _NONE)
    axis = np.array([0.8, -0.6, 0.0])
    draws = np.sign(rng.normal(0.5, 1, size=(500, 1))) * axis
    estimate = example(weights=axis, draws=draws, gauge=gauge)
    np.testing.assert_allclose(estimate.interval(), [[-0.8, 0.8], [-0.6, 0.6], [0, 0]], atol=1e-9)
    sure = example(weights=axis, draws=np.tile(axis, (500, 1)), gauge=gauge)
    np.testing.assert_allclose(sure.interval(), [[0.8, 0.8], [-0.6, -0.6], [0, 0]], atol=1e-9)
    free = example(weights=axis, draws=draws, gauge=replace(gauge, directions=_NONE, reasons=()))
    np.testing.assert_allclose(free.interval(), [[-0.8, 1], [-1, 0.6], [-1, 1]], atol=1e-9)
