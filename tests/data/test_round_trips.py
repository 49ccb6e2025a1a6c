"""What goes out comes in again: frames, CSV, Parquet and Minari, to the last bit and type."""

from __future__ import annotations

import json
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logel.data.history import LearningHistory
from logel.data.stage import Episode, Stage
from logel.errors import FormatError

NAMES = st.lists(
    st.text(max_size=5).filter(str.isprintable),
    min_size=3,
    max_size=3,
    unique=True,
).filter(lambda names: names != ["0", "1", "2"])


def assert_same_stages(
    one: LearningHistory, two: LearningHistory, *, exact_types: bool = True
) -> None:
    assert len(one) == len(two)
    assert one.signature == two.signature and one.feature_names == two.feature_names
    for left_stage, right_stage in zip(one, two, strict=True):
        for name in (f.name for f in fields(Stage) if f.name != "parameters"):
            left, right = getattr(left_stage, name), getattr(right_stage, name)
            assert (left is None) == (right is None), name
            if left is not None:
                np.testing.assert_array_equal(left, right)
                assert not exact_types or left.dtype == right.dtype, name


@st.composite
def histories(draw: st.DrawFn, *, wide: bool = True) -> LearningHistory:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    action_shape = draw(st.sampled_from([(), (2,)]))
    discrete_states, discrete_actions = draw(st.booleans()), draw(st.booleans())
    with_features, last_seen = draw(st.booleans()), draw(st.booleans())
    dtype = draw(st.sampled_from([np.float64, np.float32] if wide else [np.float64]))
    lengths = draw(
        st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=4)
    )

    def values(discrete: bool, size: tuple[int, ...]) -> Any:
        if discrete:
            return rng.integers(-(2**62), 2**62, size)
        kind = rng.integers(3)
        if kind == 0:
            return rng.integers(-3, 3, size).astype(dtype)  # whole floats must stay floats
        return (rng.normal(size=size) * 10.0 ** rng.integers(-30, 30)).astype(dtype)

    def episode(n: int) -> Episode:
        return Episode(
            values(discrete_states, (n + last_seen, *shape)),
            values(discrete_actions, (n, *action_shape)),
            values(False, (n, 3)) if with_features else None,
            bool(rng.integers(2)),
        )

    m = len(lengths)
    return LearningHistory.from_episodes(
        [[episode(n) for n in stage] for stage in lengths],
        parameters=rng.normal(size=(m, 5)).astype(dtype) if draw(st.booleans()) else None,
        learning_rates=rng.random(m - 1) + 1e-9 if m > 1 and draw(st.booleans()) else None,
        feature_names=draw(NAMES) if with_features and draw(st.booleans()) else None,
    )


@st.composite
def frames(draw: st.DrawFn) -> pd.DataFrame:
    """A table written down from its definition, without the code under test."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    observation_kind, action_kind = (
        draw(st.sampled_from(["int64", "float64", "float32"])) for _ in range(2)
    )
    n_observed, n_acted = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    names = draw(NAMES.map(lambda names: names[: rng.integers(4)]))
    final = draw(st.booleans())
    rows = []
    for stage, n_episodes in enumerate(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))):
        for episode in range(n_episodes):
            length = int(rng.integers(1, 4))
            ended = bool(rng.integers(2))
            for time in range(length + final):
                step = time < length
                row: dict[str, Any] = {"stage": stage, "episode": episode, "time": time}
                for column in names_of("observation", n_observed):
                    row[column] = (
                        rng.integers(-5, 5) if observation_kind[0] == "i" else rng.normal()
                    )
                for column in names_of("action", n_acted):
                    value = rng.integers(-5, 5) if action_kind[0] == "i" else rng.normal()
                    row[column] = value if step else None
                for name in names:
                    row[f"feature_{name}"] = rng.normal() if step else None
                row["terminated"] = ended and time == length - 1 if step else None
                rows.append(row)
    kinds = {"stage": "int64", "episode": "int64", "time": "int64"}
    kinds |= dict.fromkeys(names_of("observation", n_observed), observation_kind)
    nullable = "Int64" if final and action_kind == "int64" else action_kind
    kinds |= dict.fromkeys(names_of("action", n_acted), nullable)
    kinds |= {f"feature_{name}": "float64" for name in names}
    kinds["terminated"] = "boolean" if final else "bool"
    return pd.DataFrame(
        {name: pd.array([row[name] for row in rows], dtype=kind) for name, kind in kinds.items()}
    ).astype(kinds)


def names_of(kind: str, n: int) -> list[str]:
    return [kind] if n == 0 else [f"{kind}_{k}" for k in range(n)]


def recorded() -> LearningHistory:
    """A history with all that is no table."""
    rng = np.random.default_rng(0)
    stages = [
        [
            Episode(
                rng.normal(size=(4, 2)).astype(np.float32),
                rng.integers(3, size=3),
                rng.normal(size=(3, 2)).astype(np.float32),
            )
        ]
        for _ in range(3)
    ]
    made = LearningHistory.from_episodes(
        stages,
        parameters=rng.normal(size=(3, 4)),
        learning_rates=[0.1, 0.2],
        feature_names=["a", "b"],
        metadata={"gamma": 0.9, "learner": "PPO", "policy": {"hidden": [8]}},
        own_episodes=True,
    )
    return replace(made, notes=({"update": 0}, {}, {"update": 2}), complete=False)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables_keep_what_is_no_table(kind: str, tmp_path: Path) -> None:
    history, path = recorded(), tmp_path / f"steps.{kind}"
    read = getattr(LearningHistory, f"from_{kind}")
    written = getattr(history, f"to_{kind}")(path)
    assert [p.name for p in written] == [
        f"steps.{kind}",
        f"steps-stages.{kind}",
        f"steps.{kind}.about.json",
    ]
    back = read(path)
    assert_same_stages(back, history)
    for name in ("metadata", "notes", "own_episodes", "complete", "gamma"):
        assert getattr(back, name) == getattr(history, name), name
    np.testing.assert_array_equal(back.parameters(), history.parameters())
    np.testing.assert_array_equal(back.learning_rates, history.learning_rates)
    # What is said now counts more than what was said then.
    assert read(path, metadata={"gamma": 0.5}).gamma == 0.5
    (tmp_path / f"steps-stages.{kind}").unlink()
    assert read(path).parameters() is None and read(path).gamma == 0.9


def test_what_lies_beside_a_table_is_utf8_or_refused(tmp_path: Path) -> None:
    """JSON's own guess would load what decodes UTF-16, as spoilt files had it do."""
    path = tmp_path / "steps.csv"
    *_, about = recorded().to_csv(path)
    about.write_bytes(about.read_text().encode("utf-16-be"))
    with pytest.raises(FormatError, match=r"about\.json is corrupted"):
        LearningHistory.from_csv(path)


@pytest.mark.parametrize(
    "text, says",
    [
        ("{", "corrupted"),
        ("[]", "is not about a table of steps"),
        ('{"format": "logel-table", "format_version": 9}', "upgrade logel"),
        ('{"format": "logel-table", "format_version": 1}', "corrupted"),
        ("other stages", "is about 7 stages, but the table has 3"),
        ("bad notes", "notes must be a list of tables"),
    ],
)
def test_a_broken_file_beside_a_table_is_refused(text: str, says: str, tmp_path: Path) -> None:
    *_, about = recorded().to_csv(tmp_path / "steps.csv")
    if text == "other stages":
        text = about.read_text().replace('"n_stages": 3', '"n_stages": 7')
    if text == "bad notes":
        text = json.dumps({**json.loads(about.read_text()), "notes": ["x"]})
    about.write_text(text)
    with pytest.raises(FormatError, match=says):
        LearningHistory.from_csv(tmp_path / "steps.csv")


@given(frames())
@settings(max_examples=60)
def test_a_frame_comes_back_exactly(frame: pd.DataFrame) -> None:
    back = LearningHistory.from_dataframe(frame).to_dataframe()
    pd.testing.assert_frame_equal(back, frame, check_exact=True)


@given(histories())
@settings(max_examples=60)
def test_a_history_comes_back_from_its_frames(history: LearningHistory) -> None:
    stages = history.stages_to_dataframe()
    back = LearningHistory.from_dataframe(history.to_dataframe(), stages=stages)
    assert_same_stages(back, history)
    for left, right in (
        (back.parameters(), history.parameters()),
        (back.learning_rates, history.learning_rates),
    ):
        np.testing.assert_array_equal(left, right)


@given(histories(), st.sampled_from(["csv", "parquet"]))
@settings(max_examples=60)
def test_a_history_comes_back_from_files(history: LearningHistory, kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"steps.{kind}"
        getattr(history, f"to_{kind}")(path)
        back = getattr(LearningHistory, f"from_{kind}")(path)
        assert_same_stages(back, history, exact_types=kind == "parquet")


@given(histories())
@settings(max_examples=25)
def test_a_history_comes_back_from_minari(history: LearningHistory) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = history.to_minari(Path(folder) / "history")
        back = LearningHistory.from_minari(paths)
        assert_same_stages(back, history)
        np.testing.assert_array_equal(back.parameters(), history.parameters())
        np.testing.assert_array_equal(back.learning_rates, history.learning_rates)
        again = back.to_minari(Path(folder) / "again")
        assert_same_stages(LearningHistory.from_minari(again), history)


@given(histories())
@settings(max_examples=40)
def test_a_history_comes_back_from_flat_arrays(history: LearningHistory) -> None:
    stages = list(history)
    flat = {
        name: np.concatenate([getattr(stage, name) for stage in stages])
        for name in ("observations", "actions", "features", "last_observations")
        if getattr(stages[0], name) is not None
    }
    terminated = []
    for stage in stages:
        flags = np.zeros(stage.n_steps, dtype=bool)
        flags[stage.starts + stage.lengths - 1] = stage.terminated
        terminated.append(flags)
    back = LearningHistory.from_arrays(
        flat.pop("observations"),
        flat.pop("actions"),
        stages=np.repeat(np.arange(len(stages)), [stage.n_steps for stage in stages]),
        # Any numbers that differ inside a stage will do.
        episodes=np.concatenate([7 - np.repeat(range(s.n_episodes), s.lengths) for s in stages]),
        terminated=np.concatenate(terminated),
        parameters=history.parameters(),
        learning_rates=history.learning_rates,
        feature_names=history.feature_names,
        **flat,
    )
    assert_same_stages(back, history)
    np.testing.assert_array_equal(back.parameters(), history.parameters())


def test_one_file_per_stage_is_the_same_as_a_column(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    history = LearningHistory.from_episodes(
        [[Episode(rng.normal(size=4), rng.integers(0, 3, 3))] for _ in range(3)]
    )
    frame = history.to_dataframe()
    paths = []
    for t, part in frame.groupby("stage"):
        paths.append(tmp_path / f"{t}.csv")
        part.drop(columns="stage").to_csv(paths[-1], index=False)
    assert_same_stages(LearningHistory.from_csv(paths), history)


def test_a_file_of_whole_observations_does_not_change_the_kind_of_the_others(
    tmp_path: Path,
) -> None:
    (tmp_path / "0.csv").write_text("episode,time,observation,action\n0,0,1,0\n0,1,2,1\n")
    (tmp_path / "1.csv").write_text("episode,time,observation,action\n0,0,1.5,0\n0,1,2,1\n")
    history = LearningHistory.from_csv([tmp_path / "0.csv", tmp_path / "1.csv"])
    assert not history.signature.discrete_observations and history.signature.discrete_actions


def test_a_dataset_opened_with_minari_gives_the_same_history(tmp_path: Path) -> None:
    minari = pytest.importorskip("minari")
    history = LearningHistory.from_episodes(
        [[Episode([0.0, 0.5, 1.0], [0, 1], [[1.0], [2.0]], terminated=True)]] * 2,  # type: ignore[arg-type,list-item]
        parameters=np.ones((2, 3), dtype=np.float32),
        learning_rates=[0.5],
        feature_names=["closeness"],
        metadata={"gamma": 0.9, "n_actions": 4},
        own_episodes=True,
    )
    paths = history.to_minari(tmp_path / "my history")
    opened = [minari.MinariDataset(path / "data") for path in paths]
    assert opened[0].action_space.n == 4 and opened[0].total_episodes == 1
    for source in (opened, paths, [path / "data" for path in paths]):
        back = LearningHistory.from_minari(source)
        assert_same_stages(back, history)
        assert dict(back.metadata) == dict(history.metadata) and back.own_episodes is True
        parameters = back.parameters()
        assert parameters is not None and parameters.dtype == np.float32
        np.testing.assert_array_equal(back.learning_rates, [0.5])


def test_datasets_of_minari_itself_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its collector writes them: infos start with the reset's, rewards are known."""
    minari = pytest.importorskip("minari")
    from gymnasium import spaces
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    buffer = EpisodeBuffer(
        observations=np.arange(8, dtype=np.float32).reshape(4, 2),
        actions=np.array([1, 0, 1]),
        rewards=[1.0, 2.0, 4.0],
        terminations=[False, False, True],
        truncations=[False, False, False],
        infos={"features": np.arange(4.0)[:, None], "other": {"x": np.zeros(4)}},
    )
    with pytest.warns(UserWarning):
        dataset = minari.create_dataset_from_buffers(
            "group/test-v0",
            [buffer, buffer],
            observation_space=spaces.Box(-1e3, 1e3, (2,), np.float32),
            action_space=spaces.Discrete(2),
        )
    for source in (tmp_path / "group" / "test-v0", dataset):
        stage = LearningHistory.from_minari([source])[0]
        assert stage.n_episodes == 2 and stage.terminated.all()
        np.testing.assert_array_equal(stage.features, [[1.0], [2.0], [3.0]] * 2)
        assert stage.observations.dtype == np.float32
        assert LearningHistory.from_minari([source]).metadata["mean_returns"] == [7.0]


def test_rewards_are_kept_as_mean_returns() -> None:
    frame = pd.DataFrame(
        {
            "stage": [0, 0, 0, 1],
            "episode": [0, 0, 1, 0],
            "time": [0, 1, 0, 0],
            "observation": [0, 1, 2, 3],
            "action": [0, 0, 1, 1],
            "reward": [1.0, 2.0, 5.0, -1.0],
        }
    )
    history = LearningHistory.from_dataframe(frame, metadata={"gamma": 0.5})
    assert history.metadata == {"gamma": 0.5, "mean_returns": [4.0, -1.0]}


def test_either_place_of_the_flag_terminates() -> None:
    frame = pd.DataFrame(
        {
            "stage": 0,
            "episode": [0, 0, 1, 1],
            "time": [0, 1, 0, 1],
            "observation": [0, 1, 2, 3],
            "action": pd.array([0, None, 1, None], dtype="Int64"),
            "terminated": [True, False, False, True],
        }
    )
    stage = LearningHistory.from_dataframe(frame)[0]
    assert stage.terminated.all() and stage.last_observations is not None
