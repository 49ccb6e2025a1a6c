"""Groups around a mean, and what differs between two: from learners, from files, by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from estimates import example
from logel.data.history import LearningHistory
from logel.envs.tabular import TabularMDP, random_mdp
from logel.errors import FormatError, OptionError
from logel.inference.answers import load_answer
from logel.inference.contrast import Contrast
from logel.inference.estimate import RewardEstimate
from logel.inference.gauge import Gauge
from logel.inference.gauge_sums import NOBODY, common_gauge, either_gauge
from logel.inference.group import GroupEstimate
from logel.inference.infer import Method, compare_groups, infer_group
from logel.learners.tabular import SoftPolicyIteration, observe
from logel.policies.softmax import TabularSoftmax

FAST = Method.named("joint", models=("soft-policy",))
POLICY = TabularSoftmax(6, 3)
WATER, FOOD = np.array([0.9, 0.3, -0.3]), np.array([-0.1, 0.9, -0.4])


def mdp() -> TabularMDP:
    rng = np.random.default_rng(0)
    return random_mdp(rng, n_states=6, n_actions=3, n_features=3, gamma=0.9, branching=3)


def animals(mean: Any, seed: int, n: int = 4) -> dict[str, LearningHistory]:
    rng = np.random.default_rng(seed)
    return {
        f"rat {i}": observe(
            *(mdp(), SoftPolicyIteration(1.0)),
            weights=mean + 0.1 * rng.standard_normal(3),
            n_steps=5,
            n_episodes=15,
            horizon=10,
            seed=10 * seed + i,
        )
        for i in range(n)
    }


@pytest.fixture(scope="module")
def thirsty() -> GroupEstimate:
    return infer_group(animals(WATER, 1), POLICY, gamma=0.9, method=FAST)


def test_a_group_has_a_mean_a_spread_and_its_learners(thirsty: GroupEstimate) -> None:
    true = WATER / np.linalg.norm(WATER)
    assert np.linalg.norm(thirsty.mean.weights - true) < 0.3
    low, high = thirsty.mean.interval(0.998).T
    assert ((low <= true) & (true <= high)).all()
    assert thirsty.names == ("rat 0", "rat 1", "rat 2", "rat 3")
    low, high = thirsty.spread_interval()
    assert 0 < low < thirsty.spread < high and low < 0.2
    for one in thirsty.learners.values():
        assert np.linalg.norm(one.weights - true) < 0.4
        assert np.linalg.norm(one.weights) == pytest.approx(1.0)
    assert "spread of single learners" in thirsty.summary() and "4 learners" in repr(thirsty)


def test_its_table_has_everyone(thirsty: GroupEstimate) -> None:
    frame = thirsty.to_frame()
    assert list(frame["learner"].unique()) == ["group mean", *thirsty.names]
    assert len(frame) == 5 * 3 and list(frame["feature"][:3]) == list(mdp().feature_names)


def test_groups_go_through_files(thirsty: GroupEstimate, tmp_path: Any) -> None:
    thirsty.save(tmp_path / "group.json")
    read = GroupEstimate.load(tmp_path / "group.json")
    assert read.summary() == thirsty.summary() and read.names == thirsty.names
    assert isinstance(load_answer(tmp_path / "group.json"), GroupEstimate)
    example().save(tmp_path / "one.json")
    assert isinstance(load_answer(tmp_path / "one.json"), RewardEstimate)
    with pytest.raises(FormatError, match="not a logel group estimate"):
        GroupEstimate.load(tmp_path / "one.json")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(FormatError, match=r"list\.json: this is not a logel estimate"):
        load_answer(tmp_path / "list.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"spreads": []}, "draws"),
        ({"spreads": [-1.0]}, "negative"),
        ({"spreads": "wide"}, "corrupted"),
        ({"learners": [{"name": "x"}]}, "corrupted"),
        ({"format_version": 9}, "upgrade logel"),
        ({"mean": {}}, "not a logel estimate"),
        ({"learners": [{"name": "x", "estimate": example().to_plain()}]}, "features of 'x'"),
    ],
)
def test_bent_groups_are_refused(thirsty: GroupEstimate, change: Any, said: str) -> None:
    raw = {**json.loads(thirsty.to_json()), **change}
    with pytest.raises(FormatError, match=said):
        GroupEstimate.from_json(json.dumps(raw))


def test_one_learner_is_no_group() -> None:
    with pytest.raises(OptionError, match="at least two learners"):
        infer_group(animals(WATER, 1, n=1), POLICY, gamma=0.9, method=FAST)


def test_groups_that_differ_and_groups_that_do_not() -> None:
    thirsty, hungry = animals(WATER, 1, 3), animals(FOOD, 2, 3)
    options: dict[str, Any] = {"gamma": 0.9, "method": FAST}
    contrast = compare_groups(thirsty, hungry, POLICY, names=("thirsty", "hungry"), **options)
    assert contrast.interval()[0, 0] > 0 and contrast.probability_exceeds()[0] > 0.975
    assert contrast.interval()[1, 1] < 0
    assert [one.name for one in contrast.first.learners] == list(thirsty)
    same = compare_groups(thirsty, animals(WATER, 3, 3), POLICY, **options)
    low, high = same.interval().T
    assert ((low < 0) & (high > 0)).all()
    with pytest.raises(OptionError, match="different names"):
        compare_groups(thirsty, thirsty, POLICY, names=("x", "x"), **options)


# --- contrasts by hand ----------------------------------------------------------------------------


def drawn(seed: int, mean: Any, spread: float = 0.1, **changes: Any) -> RewardEstimate:
    names = ("goal", "cliff", "grass")
    draws = mean + spread * np.random.default_rng(seed).standard_normal((4000, 3))
    draws = draws / np.linalg.norm(draws, axis=1, keepdims=True)
    gauge = Gauge(names, np.zeros((0, 3)), "", np.zeros((0, 3)))
    weights = np.asarray(mean) / np.linalg.norm(mean)
    return example(weights=weights, draws=draws, gauge=gauge, **changes)


def test_differences_of_known_posteriors() -> None:
    one, two = drawn(0, [0.0, 0.0, 1.0]), drawn(1, [0.3, 0.0, 0.954])
    contrast = Contrast.of(one, two, names=("a", "b"))
    assert contrast.weights == pytest.approx([-0.3, 0.0, 0.046], abs=1e-3)
    # Small deviations across: the variance of a difference is the sum of both.
    expected = 0.1 * np.sqrt(1 + 0.954**2)
    assert contrast.standard_errors[0] == pytest.approx(expected, rel=0.1)
    low, high = contrast.interval()[0]
    assert high - low == pytest.approx(2 * 1.96 * expected, rel=0.1)
    assert contrast.probability_exceeds()[0] < 0.05
    back = Contrast.of(two, one)
    assert back.weights == pytest.approx(-contrast.weights)
    assert back.probability_exceeds() == pytest.approx(1 - contrast.probability_exceeds(), abs=0.03)


def test_what_one_group_cannot_tell_is_not_compared() -> None:
    one, two = drawn(0, [0.6, 0.0, 0.8]), drawn(1, [0.6, 0.8, 0.0])
    blind = Gauge(
        one.feature_names, np.array([[0.0, 0.0, 1.0]]), "it is constant", np.zeros((0, 3))
    )
    contrast = Contrast.of(one, example(weights=two.weights, draws=two.draws, gauge=blind))
    assert contrast.weights[2] == 0 and contrast.gauge.n == 1
    assert contrast.interval()[2] == pytest.approx([0.0, 0.0], abs=1e-12)
    assert contrast.sides[0] == pytest.approx([1.0, 0.0, 0.0])


def test_estimates_without_draws_are_compared_too() -> None:
    contrast = Contrast.of(example(), drawn(1, [0.8, -0.6, 0.0]))
    assert np.isfinite(contrast.interval()).all()
    with pytest.raises(OptionError, match="no intervals"):
        _ = Contrast.of(example(covariance=None), example()).draws


def test_contrasts_go_through_files_and_tables(tmp_path: Any) -> None:
    contrast = Contrast.of(drawn(0, [0.6, 0.0, 0.8]), drawn(1, [1.0, 0.0, 0.0]), names=("a", "b"))
    contrast.save(tmp_path / "contrast.json")
    read = Contrast.load(tmp_path / "contrast.json")
    assert read.summary() == contrast.summary() and "a minus b" in read.summary()
    assert isinstance(load_answer(tmp_path / "contrast.json"), Contrast)
    frame = read.to_frame()
    assert frame["difference"].to_numpy() == pytest.approx(contrast.weights)
    raw = json.loads(contrast.to_json())
    for change in ({"names": ["a"]}, {"seed": -1}, {"first": 3}, {"seed": "x"}):
        with pytest.raises(FormatError):
            Contrast.from_json(json.dumps({**raw, **change}))


def test_doubtful_groups_are_doubted() -> None:
    from logel.inference.status import Status

    doubtful = drawn(0, [0.6, 0.0, 0.8], status=Status.UNEXPLAINED)
    contrast = Contrast.of(doubtful, drawn(1, [1.0, 0.0, 0.0]), names=("a", "b"))
    assert contrast.notes[0].startswith("the weights of 'a' are not to be trusted")


def test_other_features_cannot_be_compared() -> None:
    with pytest.raises(OptionError, match="different features"):
        names = ("a", "b", "c")
        gauge = Gauge(names, np.zeros((0, 3)), "", np.zeros((0, 3)))
        Contrast.of(example(), example(feature_names=names, gauge=gauge))


def test_gauges_of_several_learners() -> None:
    names = ("a", "b", "c")
    rows = np.eye(3)
    one = Gauge(names, rows[:2], ("x", "y"), np.zeros((0, 3)))
    two = Gauge(names, rows[1:], ("y", "z"), np.zeros((0, 3)))
    both, either = common_gauge([one, two]), either_gauge(one, two)
    assert np.abs(both.directions) == pytest.approx(rows[1:2]) and both.reasons == (NOBODY,)
    assert either.n == 3
    assert common_gauge([one, one]) is one and either_gauge(one, one) is one
