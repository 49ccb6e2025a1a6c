"""Every mistake in a table is one sentence that names file, row, column and what was expected."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logel.data.history import LearningHistory
from logel.data.limits import Limits
from logel.errors import FormatError, HistoryError, LogelError, MissingExtraError, OptionError

GOOD = """stage,episode,time,observation_0,observation_1,action,feature_a,terminated
0,0,0,0.5,1.5,1,2.0,False
0,0,1,0.25,1.0,0,2.5,True
0,0,2,0.125,1.0,,,
0,1,0,0.5,1.0,1,0.5,False
0,1,1,0.5,2.0,,,
1,0,0,0.5,2.0,1,0.0,False
1,0,1,0.5,2.0,,,
"""


def edit(line: int, column: str, value: str) -> str:
    """The good table with one field replaced; lines count from 1, the header."""
    rows = [row.split(",") for row in GOOD.splitlines()]
    rows[line - 1][rows[0].index(column)] = value
    return "\n".join(",".join(row) for row in rows) + "\n"


def without_line(line: int) -> str:
    rows = GOOD.splitlines()
    return "\n".join(rows[: line - 1] + rows[line:]) + "\n"


def without_column(name: str) -> str:
    rows = [row.split(",") for row in GOOD.splitlines()]
    at = rows[0].index(name)
    return "\n".join(",".join(row[:at] + row[at + 1 :]) for row in rows) + "\n"


def renamed(old: str, new: str) -> str:
    return GOOD.replace(old, new, 1)


def test_the_good_table_is_good(tmp_path: Path) -> None:
    (tmp_path / "good.csv").write_text(GOOD)
    history = LearningHistory.from_csv(tmp_path / "good.csv")
    assert [stage.n_episodes for stage in history] == [2, 1]
    np.testing.assert_array_equal(history[0].lengths, [2, 1])
    np.testing.assert_array_equal(history[0].terminated, [True, False])
    assert history.feature_names == ("a",) and history[1].last_observations is not None


BAD = {
    "no stage": (without_column("stage"), r"bad\.csv must have a column stage"),
    "no episode": (without_column("episode"), r"bad\.csv must have a column episode"),
    "no time": (without_column("time"), r"bad\.csv must have a column time"),
    "no action": (without_column("action"), r"bad\.csv must have a column action"),
    "observation skips": (
        renamed("observation_1", "observation_2"),
        "must have a column observation_1, because it has observation_2",
    ),
    "absurd index": (
        renamed("observation_1", "observation_999999999"),
        "must have a column observation_1,",
    ),
    "mixed kinds": (renamed("observation_1", "observation"), "mix kinds of observation"),
    "unknown column": (renamed("feature_a", "features_a"), "'features_a' means nothing here"),
    "twice": (
        renamed("observation_1", "observation_0"),
        "line 1: .*'observation_0' is there twice",
    ),
    "text": (
        edit(3, "observation_0", "left"),
        r"bad\.csv, line 3, column observation_0: must be a number, but is 'left'",
    ),
    "date": (
        edit(4, "observation_1", "2020-01-01"),
        r"bad\.csv, line 4, column observation_1: must be a number",
    ),
    "fractional stage": (edit(7, "stage", "1.5"), "column stage: must be whole numbers"),
    "missing stage": (edit(7, "stage", ""), r"line 7, column stage: is missing"),
    "missing observation": (
        edit(4, "observation_1", ""),
        r"line 4, column observation_1: is missing \(empty or NaN\), but every row needs it",
    ),
    "nan observation": (edit(3, "observation_1", "nan"), r"line 3, column observation_1: is miss"),
    "infinite observation": (
        edit(3, "observation_1", "-inf"),
        r"line 3, column observation_1: must be finite, but is -inf",
    ),
    "infinite feature": (edit(3, "feature_a", "inf"), r"line 3, column feature_a: must be finite"),
    "missing action": (edit(2, "action", ""), r"line 2, column action: is missing; only the row"),
    "missing feature": (edit(5, "feature_a", "NA"), r"line 5, column feature_a: is missing; only"),
    "half a final row": (edit(6, "action", "1"), r"line 6, column feature_a: is missing"),
    "gap in time": (
        without_line(3).replace("True", "False"),
        r"line 3, column time: 2 leaves a gap after the row before it",
    ),
    "starts late": (without_line(2), r"line 2, column time: 1, but an episode must start with"),
    "time back": (edit(4, "time", "0"), r"line 4, column time: 0 comes after a later time; sort"),
    "duplicate": (
        edit(4, "time", "1"),
        r"line 4, column time: 1 is there twice \(a duplicate row",
    ),
    "episode back": (
        edit(2, "episode", "3"),
        r"line 3, column episode: 0 comes after a later episode; sort the rows",
    ),
    "stage skips": (
        edit(7, "stage", "2").replace("\n1,0,1", "\n2,0,1"),
        r"line 7, column stage: 2 skips a stage; number the stages 0, 1, \.\.\.",
    ),
    "stages from 1": (
        GOOD.replace("\n1,", "\n2,").replace("\n0,", "\n1,"),
        r"line 2, column stage: 1 skips a stage",
    ),
    "stage back": (
        GOOD + "0,2,0,1.0,1.0,1,1.0,False\n",
        r"line 9, column stage: 0 comes after a later stage; sort the rows",
    ),
    "continues": (
        edit(2, "terminated", "True"),
        r"line 2, column terminated: true, but the episode continues after it",
    ),
    "no flag": (edit(2, "terminated", ""), r"line 2, column terminated: is missing"),
    "odd flag": (
        GOOD.replace("False", "0").replace("True", "7"),
        r"line 3, column terminated: must be true or false, but is 7",
    ),
    "no action at all": (
        without_line(5).replace("0,1,1,", "0,1,0,"),
        r"line 5, column action: is missing, but an episode needs at least one action",
    ),
    "too many fields": (GOOD.replace("2.5,True", "2.5,True,1"), "line 3: has 9 fields, .* 8"),
    "too few fields": (GOOD.replace(",2.5,True", ""), "line 3: has 6 fields, but .* names 8"),
    "blank line": (GOOD.replace("\n1,", "\n\n1,", 1), "line 7: is empty"),
    "only a header": (GOOD.splitlines()[0], r"bad\.csv must have at least one row"),
    "semicolons": (GOOD.replace(",", ";"), "line 1: is split by ';'; save it with commas"),
    "control characters": (
        renamed("feature_a", "\x1b[31mbad" + "d" * 200),
        r"column '\?\[31mbadd{52}\.\.\.' means nothing here",
    ),
    "nothing": ("", r"bad\.csv is empty"),
    "large whole numbers beside floats": (
        GOOD.replace("1.5,1", "9007199254740993,1").replace("1.0", "1").replace("2.0", "2"),
        r"line 2, column observation_1: 9007199254740993 does not fit in a float",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_named(name: str, tmp_path: Path) -> None:
    text, message = BAD[name]
    assert text != GOOD
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(LogelError, match=message) as caught:
        LearningHistory.from_csv(tmp_path / "bad.csv")
    assert "bad.csv" in str(caught.value)


def test_parquet_names_file_row_and_column(tmp_path: Path) -> None:
    path = tmp_path / "bad.parquet"
    frame = pd.DataFrame(
        {"stage": 0, "episode": 0, "time": [0, 1, 3], "observation": 0, "action": [0, 1, 1]}
    )
    frame.to_parquet(path)
    with pytest.raises(HistoryError, match=r"bad\.parquet, row 2, column time: 3 leaves a gap"):
        LearningHistory.from_parquet(path)
    frame.assign(time=["0", "1", "2"]).to_parquet(tmp_path / "text.parquet")
    with pytest.raises(HistoryError, match=r"text\.parquet, column time: must be numbers, but has"):
        LearningHistory.from_parquet(tmp_path / "text.parquet")
    nested = frame.assign(time=[0, 1, 2], observation=[[0.0, 1.0]] * 3)
    nested.to_parquet(tmp_path / "nested.parquet")
    with pytest.raises(HistoryError, match=r"column observation: must be numbers"):
        LearningHistory.from_parquet(tmp_path / "nested.parquet")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.assign(action=["a", "b"]), "the frame, column action: must be numbers"),
        (lambda f: f.assign(action=[1j, 2j]), "the frame, column action: must be numbers"),
        (
            lambda f: f.assign(action=pd.Series([0, object()], dtype=object)),
            "column action: must be numbers, but has type object",
        ),
        (lambda f: f.assign(time=[0.0, 1.0]), "row 0, column time: must be whole numbers"),
        (lambda f: f.assign(time=[0, 2]), "the frame, row 1, column time: 2 leaves a gap"),
        (lambda f: f.assign(observation=[0.0, np.nan]), "row 1, column observation: is missing"),
        (
            lambda f: f.assign(action=np.array([0, 2**63], dtype=np.uint64)),
            "column action: must fit in 64-bit integers, but reaches 9223372036854775808",
        ),
        (lambda f: f.rename(columns={"time": 3}), "the column name 3 is not a text"),
        (lambda f: pd.concat([f, f[["time"]]], axis=1), "'time' is there twice"),
        (lambda f: f.iloc[:0], "must have at least one row"),
        (lambda f: f.to_dict(), "must be a pandas DataFrame, not dict"),
    ],
)
def test_a_bad_frame_is_named(change: Callable[[pd.DataFrame], Any], message: str) -> None:
    good = pd.DataFrame(
        {"stage": 0, "episode": 0, "time": [0, 1], "observation": [4, 5], "action": [0, 1]}
    )
    assert LearningHistory.from_dataframe(good)[0].n_steps == 2
    with pytest.raises(HistoryError, match=message):
        LearningHistory.from_dataframe(change(good))


def test_columns_can_be_ignored(tmp_path: Path) -> None:
    text = GOOD.replace("observation_0", "name,observation_0", 1)
    rows = [text.splitlines()[0]] + [
        ",".join([*row.split(",")[:3], "rat", *row.split(",")[3:]]) for row in GOOD.splitlines()[1:]
    ]
    (tmp_path / "named.csv").write_text("\n".join(rows))
    with pytest.raises(HistoryError, match=r"ignore=\['name'\]"):
        LearningHistory.from_csv(tmp_path / "named.csv", ignore=["other"])
    assert len(LearningHistory.from_csv(tmp_path / "named.csv", ignore=["name"])) == 2


def test_files_of_stages_must_go_together(tmp_path: Path) -> None:
    header = "episode,time,observation,action"
    (tmp_path / "0.csv").write_text(f"{header}\n0,0,1,1\n")
    (tmp_path / "1.csv").write_text(f"{header},feature_x\n0,0,1,1,0.5\n")
    with pytest.raises(
        HistoryError, match=r"1\.csv must have the columns of .*0\.csv, but adds fe"
    ):
        LearningHistory.from_csv([tmp_path / "0.csv", tmp_path / "1.csv"])
    (tmp_path / "1.csv").write_text(f"{header}\n0,0,1,1\n0,2,1,1\n")
    with pytest.raises(HistoryError, match=r"1\.csv, line 3, column time: 2 leaves a gap"):
        LearningHistory.from_csv([tmp_path / "0.csv", tmp_path / "1.csv"])
    (tmp_path / "1.csv").write_text(f"stage,{header}\n2,0,0,1,1\n")
    with pytest.raises(HistoryError, match=r"1\.csv, line 2, column stage: 2, but this is file 1"):
        LearningHistory.from_csv([tmp_path / "0.csv", tmp_path / "1.csv"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stage,parameter_0\n0,1.0\n", r"stages\.csv must have 2 rows, one per stage, but has 1"),
        ("stage,parameter_0\n1,1.0\n0,2.0\n", r"stages\.csv, line 2, column stage: 1 is out of"),
        ("parameter_0\n1.0\n2.0\n", "must have a column stage"),
        ("stage,parameter_1\n0,1.0\n1,2.0\n", "must have a column parameter_0"),
        ("stage,theta\n0,1.0\n1,2.0\n", "column 'theta' is no parameter_0"),
        ("stage,parameter_0\n0,1.0\n1,\n", r"line 3, column parameter_0: is missing"),
        ("stage,learning_rate\n0,\n1,\n", r"line 3, column learning_rate: is missing"),
        ("stage,learning_rate\n0,\n1,-1\n", "learning rates must be positive, but step 0 has -1"),
    ],
)
def test_a_bad_table_of_stages_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "good.csv").write_text(GOOD)
    (tmp_path / "stages.csv").write_text(text)
    with pytest.raises(HistoryError, match=message):
        LearningHistory.from_csv(tmp_path / "good.csv", stages=tmp_path / "stages.csv")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stages": [0, 0, 2]}, "stages, row 2: 2 after 0 skips a stage"),
        ({"stages": [0, 1, 0]}, "stages, row 2: 0 after 1 goes back"),
        ({"stages": [1, 1, 1]}, "stages, row 0: 1, but stages are numbered 0"),
        ({"stages": [0.0, 0.0, 1.0]}, "stages must be one whole number per row, not float64"),
        (
            {"episodes": [0, 1, 0], "stages": [0, 0, 0]},
            "episodes, row 2: episode 0 of stage 0 comes",
        ),
        ({"actions": [0, 1]}, "observations must have 2 rows like actions, but has 3"),
        ({"observations": [0.0, np.nan, 1.0]}, "observations, row 1: must be finite, but is nan"),
        ({"features": [[1.0, 2.0], [np.inf, 1.0], [1.0, 1.0]]}, "features, row 1, column 0: must"),
        ({"terminated": [True, False, False]}, "terminated, row 0: true, but the episode continu"),
        ({"terminated": [0, 3, 0]}, "terminated must be one true or false per row"),
        ({"last_observations": [0.0]}, "last_observations must have 2 rows, one per episode"),
        ({"parameters": np.zeros((3, 2))}, r"parameters must have shape \(2, d\)"),
        ({"observations": [[1, 2], [1], [2]]}, "observations cannot be made an array"),
        ({"actions": np.array([None, 1, 2])}, "actions must be numbers, not object"),
        (
            {"observations": [], "actions": [], "stages": [], "episodes": []},
            "must be one whole|one row",
        ),
        ({"features": np.zeros(3)}, "stage 0: features must have shape"),
    ],
)
def test_bad_arrays_are_named(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "observations": [0.0, 1.0, 2.0],
        "actions": [0, 1, 2],
        "stages": [0, 0, 1],
        "episodes": [5, 5, 5],
    }
    assert len(LearningHistory.from_arrays(**good)) == 2
    with pytest.raises(HistoryError, match=message):
        LearningHistory.from_arrays(**{**good, **change})


def test_limits_make_sense() -> None:
    with pytest.raises(OptionError, match="limit on cells must be positive"):
        Limits(cells=0)


def test_exports_do_not_overwrite(tmp_path: Path) -> None:
    (tmp_path / "good.csv").write_text(GOOD)
    history = LearningHistory.from_csv(tmp_path / "good.csv")
    for write in (history.to_csv, history.to_parquet):
        with pytest.raises(FormatError, match="already exists"):
            write(tmp_path / "good.csv")
        with pytest.raises(FormatError, match="there is no folder"):
            write(tmp_path / "nowhere" / "good.csv")
    assert (tmp_path / "good.csv").read_text() == GOOD


@pytest.mark.parametrize(
    ("package", "call", "extra"),
    [
        ("pandas", lambda h, p: h.to_dataframe(), "tables"),
        ("pyarrow", lambda h, p: h.to_csv(p / "x.csv"), "tables"),
        ("pyarrow", lambda h, p: LearningHistory.from_csv(p / "good.csv"), "tables"),
        ("minari", lambda h, p: h.to_minari(p / "x"), "minari"),
        ("h5py", lambda h, p: LearningHistory.from_minari([p]), "minari"),
    ],
)
def test_missing_packages_name_their_extra(
    package: str, call: Any, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "good.csv").write_text(GOOD)
    (tmp_path / "metadata.json").write_text("{}")
    history = LearningHistory.from_csv(tmp_path / "good.csv")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"{package} is not .*\[{extra}\]'"):
        call(history, tmp_path)


FIELDS = st.sampled_from(
    ["0", "1", "-1", "2", "0.5", "", "nan", "inf", "True", "x", "1e400", "9" * 25, '"', "\x00", "é"]
)


@given(st.data())
@settings(max_examples=150)
def test_any_table_is_a_history_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    rows = [row.split(",") for row in GOOD.splitlines()]
    for _ in range(data.draw(st.integers(1, 3))):
        row = rows[data.draw(st.integers(0, len(rows) - 1))]
        row[data.draw(st.integers(0, len(row) - 1))] = data.draw(FIELDS)
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_text("\n".join(",".join(row) for row in rows))
    try:
        assert len(LearningHistory.from_csv(path)) > 0
    except LogelError as error:
        assert "any.csv" in str(error) and len(str(error)) < 600


@given(st.binary(max_size=300))
@settings(max_examples=100)
def test_any_bytes_are_a_sentence(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.bin"
    path.write_bytes(data)
    for read in (LearningHistory.from_csv, LearningHistory.from_parquet):
        with pytest.raises(LogelError, match=r"any\.bin"):
            read(path)
