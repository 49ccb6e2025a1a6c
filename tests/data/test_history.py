"""Episodes, stages and histories: what is accepted, what is refused, and how it is packed."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logel.data.history import LearningHistory
from logel.data.stage import Episode, Stage
from logel.errors import HistoryError


def episode(length: int = 3, *, q: int | None = 2, terminated: bool = False, last: bool = True):
    """Distinguishable numbers: states 0, 1, ..., actions 10, 11, ..., features 100, 101, ..."""
    features = None if q is None else np.arange(length * q).reshape(length, q) + 100.0
    return Episode(np.arange(length + last), np.arange(length) + 10, features, terminated)


def stage_of(*lengths: int, **options: Any) -> Stage:
    return Stage.from_episodes([episode(length, **options) for length in lengths])


# --- episodes -------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [0, 1])
def test_the_last_state_may_be_missing(extra: int) -> None:
    assert len(Episode(np.zeros((4 + extra, 2)), np.zeros((4, 1)))) == 4


@pytest.mark.parametrize("rows", [2, 5])
def test_mismatched_observations_print_both_lengths(rows: int) -> None:
    with pytest.raises(HistoryError, match=rf"4 rows \(or 3 .*3 actions, but have {rows}"):
        Episode(np.zeros(rows), np.zeros(3))


@pytest.mark.parametrize("shape", [(2, 2), (3,), (3, 0), (4, 2), (3, 2, 1)])
def test_mismatched_features_print_their_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(HistoryError, match=r"shape \(3, q\).*3 actions") as caught:
        Episode(np.zeros(4), np.zeros(3), np.zeros(shape))
    assert str(shape) in str(caught.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("what", ["observations", "actions", "features"])
def test_values_that_are_not_finite_are_named(what: str, value: float) -> None:
    arrays = {
        "observations": np.zeros((4, 2)),
        "actions": np.zeros((3, 2)),
        "features": np.zeros((3, 2)),
    }
    arrays[what][2, 1] = value
    with pytest.raises(HistoryError, match=rf"{what} must be finite, .*\(2, 1\) is {value}"):
        Episode(**arrays)


def test_empty_scalar_ragged_and_text_episodes_are_refused() -> None:
    with pytest.raises(HistoryError, match="at least one action"):
        Episode(np.zeros(1), np.zeros(0))
    with pytest.raises(HistoryError, match="leading time axis"):
        Episode(np.zeros(1), np.float64(1.0))
    with pytest.raises(HistoryError, match="actions cannot be made an array"):
        Episode(np.zeros(3), [[1, 2], [3]])  # type: ignore[arg-type]
    with pytest.raises(HistoryError, match="observations must be numbers"):
        Episode(np.array(["a", "b"]), np.zeros(1))
    with pytest.raises(HistoryError, match="actions must be numbers"):
        Episode(np.zeros(2), np.array([1 + 2j]))
    with pytest.raises(HistoryError, match="features must be numbers"):
        Episode(np.zeros(2), np.zeros(1), np.array([[object()]]))


def test_kinds_are_kept_apart() -> None:
    # Integers and booleans are discrete, floats continuous; features are always real.
    made = Episode(np.array([True, False]), np.array([3], dtype=np.uint8), np.array([[1]]))
    assert made.observations.dtype == made.actions.dtype == np.int64
    assert made.features is not None and made.features.dtype == np.float64
    single = Episode(np.zeros(2, dtype=np.float32), np.zeros(1, dtype=np.float16))
    assert single.observations.dtype == np.float32 and single.actions.dtype == np.float64


def test_integers_too_large_to_store_are_refused_rather_than_wrapped() -> None:
    with pytest.raises(HistoryError, match="observations"):
        Episode(np.array([2**63, 0], dtype=np.uint64), np.zeros(1))


def test_data_are_copied_and_read_only() -> None:
    source = np.zeros((3, 1))
    made = Episode(np.zeros(4), source, source)
    source[:] = 7
    assert (made.actions == 0).all()
    with pytest.raises(ValueError, match="read-only"):
        made.actions[0] = 1
    with pytest.raises(FrozenInstanceError):
        made.terminated = True  # type: ignore[misc]
    stage = Stage.from_episodes([made])
    for name in ("observations", "actions", "lengths", "terminated", "features"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(stage, name)[0] = 1
    history = LearningHistory.from_stages([stage, stage], learning_rates=[0.5])
    with pytest.raises(ValueError, match="read-only"):
        history.learning_rates[0] = 1  # type: ignore[index]


# --- stages ---------------------------------------------------------------------------------


def test_packing_by_hand() -> None:
    stage = Stage.from_episodes([episode(2, terminated=True), episode(1), episode(3)])
    assert stage.n_episodes == 3 and stage.n_steps == 6
    np.testing.assert_array_equal(stage.lengths, [2, 1, 3])
    np.testing.assert_array_equal(stage.starts, [0, 2, 3])
    np.testing.assert_array_equal(stage.times, [0, 1, 0, 0, 1, 2])
    np.testing.assert_array_equal(stage.terminated, [True, False, False])
    np.testing.assert_array_equal(stage.observations, [0, 1, 0, 0, 1, 2])
    np.testing.assert_array_equal(stage.last_observations, [2, 1, 3])
    np.testing.assert_array_equal(stage.next_observations(), [1, 2, 1, 1, 2, 3])
    np.testing.assert_array_equal(stage.actions, [10, 11, 10, 10, 11, 12])


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=6), st.booleans())
def test_episodes_come_back_as_they_went_in(
    shapes: list[tuple[int, bool]], last_seen: bool
) -> None:
    rng = np.random.default_rng(len(shapes))
    given_episodes = [
        Episode(
            rng.normal(size=(n + last_seen, 2)), rng.normal(size=n), rng.normal(size=(n, 3)), end
        )
        for n, end in shapes
    ]
    returned = list(Stage.from_episodes(given_episodes).episodes)
    assert len(returned) == len(given_episodes)
    for one, two in zip(returned, given_episodes, strict=True):
        np.testing.assert_array_equal(one.observations, two.observations)
        np.testing.assert_array_equal(one.actions, two.actions)
        np.testing.assert_array_equal(one.features, two.features)
        assert one.terminated is two.terminated


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5).flatmap(
        lambda lengths: st.tuples(
            st.just(lengths),
            st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=8),
        )
    )
)
def test_take_is_picking_from_the_list_of_episodes(case: tuple[list[int], list[int]]) -> None:
    lengths, picked = case
    episodes = [
        Episode(np.arange(n + 1) + 10 * i, np.arange(n), np.full((n, 1), i), i % 2 == 0)
        for i, n in enumerate(lengths)
    ]
    taken = Stage.from_episodes(episodes, np.ones(2)).take(np.array(picked))
    direct = Stage.from_episodes([episodes[i] for i in picked])
    names = ("observations", "actions", "lengths", "terminated", "features", "last_observations")
    for name in names:
        np.testing.assert_array_equal(getattr(taken, name), getattr(direct, name))
    np.testing.assert_array_equal(taken.parameters, [1, 1])


def test_a_last_state_unseen_in_one_episode_is_unseen_in_the_stage() -> None:
    stage = Stage.from_episodes([episode(2), episode(2, last=False)])
    assert stage.last_observations is None
    with pytest.raises(HistoryError, match=r"last state: give observations of shape \(T \+ 1"):
        stage.next_observations()
    with pytest.raises(HistoryError, match="last state"):
        stage.with_features(lambda s, a, n: n[:, None])
    # Features that do not look there need no last state.
    made = stage.with_features(lambda s, a, n: np.stack([s, a], axis=1))
    np.testing.assert_array_equal(made.features[:, 0], stage.observations)


def test_features_from_a_callable_see_transitions_and_replace_recorded_ones() -> None:
    stage = stage_of(2, 3)
    made = stage.with_features(lambda s, a, n: np.stack([s, a, n], axis=1))
    np.testing.assert_array_equal(
        made.features, [[0, 10, 1], [1, 11, 2], [0, 10, 1], [1, 11, 2], [2, 12, 3]]
    )
    assert stage.features is not None and stage.features.shape == (5, 2)
    with pytest.raises(HistoryError, match="features must have 5 rows, but has 4"):
        stage.with_features(lambda s, a, n: np.ones((4, 2)))
    with pytest.raises(HistoryError, match=r"features must be finite, but entry \(1, 0\) is nan"):
        stage.with_features(lambda s, a, n: np.where(s == 1, np.nan, 0.0)[:, None])
    with pytest.raises(HistoryError, match=r"shape \(N, q\)"):
        stage.with_features(lambda s, a, n: np.ones(5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lengths": []}, "at least one episode"),
        ({"lengths": [3, 0]}, "episode 1 needs at least one action"),
        ({"lengths": [2, 2]}, "observations must have 4 rows, but has 3"),
        # These sum to 3, the number of rows, in wrapping 64-bit arithmetic.
        ({"lengths": [2**62] * 4 + [3], "terminated": [False] * 5}, "lengths must sum to"),
        ({"lengths": [1.5, 1.5]}, "lengths must be whole numbers"),
        ({"lengths": [np.nan, 3]}, "lengths must be finite"),
        ({"actions": np.zeros(2)}, "actions must have 3 rows, but has 2"),
        ({"actions": np.float64(1)}, "actions must have 3 rows, but has a scalar"),
        ({"terminated": [True]}, "terminated must have 2 rows, but has 1"),
        ({"last_observations": [1]}, "last_observations must have 2 rows, but has 1"),
        ({"last_observations": [[1.0], [2.0]]}, r"shape \(1,\), but the others \(\)"),
        ({"features": np.zeros((2, 1))}, "features must have 3 rows, but has 2"),
        ({"features": np.zeros((3, 0))}, r"shape \(N, q\)"),
        ({"parameters": np.zeros((2, 2))}, r"flat, but have shape \(2, 2\)"),
        ({"parameters": [np.nan]}, "parameters must be finite"),
    ],
)
def test_malformed_stages_are_refused(change: dict[str, Any], message: str) -> None:
    good = {
        "observations": [0, 1, 0],
        "actions": [0, 0, 1],
        "lengths": [2, 1],
        "terminated": [False, True],
    }
    Stage(**good)  # type: ignore[arg-type]
    with pytest.raises(HistoryError, match=message):
        Stage(**{**good, **change})


# --- histories ------------------------------------------------------------------------------


def test_an_empty_stage_is_named() -> None:
    with pytest.raises(HistoryError, match=r"^stage 1: a stage needs at least one episode"):
        LearningHistory.from_episodes([[episode()], []])
    with pytest.raises(HistoryError, match="at least one stage"):
        LearningHistory.from_episodes([])


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (episode(q=3), "n_features 3 instead of 2"),
        (episode(q=None), "n_features None instead of 2"),
        (
            Episode(np.zeros(4), np.arange(3), np.zeros((3, 2))),
            "discrete_observations False instead of True",
        ),
        (
            Episode(np.arange(4), np.zeros(3), np.zeros((3, 2))),
            "discrete_actions False instead of True",
        ),
        (
            Episode(np.zeros((4, 2), int), np.arange(3), np.zeros((3, 2))),
            r"observation_shape \(2,\) instead of \(\)",
        ),
        (
            Episode(np.arange(4), np.zeros((3, 2), int), np.zeros((3, 2))),
            r"action_shape \(2,\) instead of \(\)",
        ),
    ],
)
def test_episodes_and_stages_that_disagree_are_named(other: Episode, difference: str) -> None:
    with pytest.raises(HistoryError, match=f"^stage 1: episode 2 disagrees .*{difference}"):
        LearningHistory.from_episodes([[episode()], [episode(), episode(), other]])
    with pytest.raises(HistoryError, match=f"^stage 1 disagrees with the history: .*{difference}"):
        LearningHistory.from_episodes([[episode()], [other]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parameters": np.zeros(2)}, r"shape \(2, d\), one row per stage, but have \(2,\)"),
        ({"parameters": np.zeros((3, 4))}, r"but have \(3, 4\)"),
        ({"parameters": [[1.0], [np.nan]]}, r"parameters must be finite, but entry \(1, 0\)"),
        ({"learning_rates": [0.1, 0.1]}, r"each of the 1 steps between 2 stages.*\(2,\)"),
        ({"learning_rates": [0.0]}, r"must be positive, but step 0 has 0\.0"),
        ({"learning_rates": [-0.5]}, r"must be positive, but step 0 has -0\.5"),
        ({"learning_rates": [np.inf]}, "learning rates must be finite"),
        ({"feature_names": ["a"]}, "2 features, but 1 feature_names"),
        ({"feature_names": ["a", "a"]}, "must differ from each other"),
        ({"own_episodes": 1}, "own_episodes must be True, False or None, but is 1"),
    ],
)
def test_malformed_extras_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(HistoryError, match=message):
        LearningHistory.from_episodes([[episode()], [episode()]], **options)


def test_stages_must_agree_on_parameters() -> None:
    def with_parameters(values: Any) -> Stage:
        return Stage.from_episodes([episode()], values)

    for other in (None, np.zeros(2)):
        with pytest.raises(HistoryError, match="stage 1: parameters must be like those of stage 0"):
            LearningHistory.from_stages([with_parameters(np.zeros(3)), with_parameters(other)])


def test_a_history_by_hand() -> None:
    parameters = np.arange(6.0).reshape(3, 2)
    history = LearningHistory.from_episodes(
        [[episode(1)], [episode(2), episode(3)], [episode(4)]],
        parameters=parameters,
        learning_rates=[0.1, 0.2],
        feature_names=["near", "far"],
        metadata={"learner": "by hand"},
    )
    assert len(history) == 3 and history.n_steps == 2 and history.complete
    np.testing.assert_array_equal(history.parameters(), parameters)
    assert [stage.n_steps for stage in history] == [1, 5, 4]
    assert history[-1].n_steps == 4
    for index in (3, -4):
        with pytest.raises(IndexError, match="history with 3 stages"):
            history[index]
    assert history.feature_names == ("near", "far")
    assert LearningHistory.from_episodes([[episode()]]).parameters() is None


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.integers(-n, n), st.none())))
def test_slices_follow_lists(case: tuple[int, int, None]) -> None:
    n, start, stop = case
    history = LearningHistory.from_episodes(
        [[episode(t + 1)] for t in range(n)], learning_rates=np.arange(1, n)
    )
    expected = list(range(1, n + 1))[start:stop]
    if not expected:
        with pytest.raises(HistoryError, match="leave none"):
            history.slice(start, stop)
        return
    part = history.slice(start, stop)
    assert [stage.n_steps for stage in part] == expected
    # The rate of a step is kept only if both of its stages are.
    np.testing.assert_array_equal(part.learning_rates, expected[:-1])
    assert part[-1].n_steps == expected[-1]


def test_a_slice_of_a_slice() -> None:
    stages = [[episode(t + 1)] for t in range(6)]
    history = LearningHistory.from_episodes(stages, own_episodes=True)
    assert history.own_episodes is True and history.slice(1, 5).own_episodes is True
    assert LearningHistory.from_stages(list(history)).own_episodes is None
    assert [stage.n_steps for stage in history.slice(1, 5).slice(1, -1)] == [3, 4]
