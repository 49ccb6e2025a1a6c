"""Recorded masks: checked as they come, kept in every format that has room for them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from logel import Episode, LearningHistory, Rollout, Stage
from logel.errors import FormatError, HistoryError

MASKS = np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1]], dtype=bool)


def history(*, last: bool = True) -> LearningHistory:
    observations = np.array([0, 1, 2, 0]) if last else np.array([0, 1, 2])
    rows = np.array([[0.5], [1.0], [2.0]])
    episode = Episode(observations, np.array([1, 2, 0]), rows, False, MASKS)
    return LearningHistory.from_episodes([[episode, episode], [episode]])


def same(one: LearningHistory, two: LearningHistory) -> None:
    assert one.signature == two.signature
    for left, right in zip(one, two, strict=True):
        assert right.action_masks is not None and right.action_masks.dtype == bool
        np.testing.assert_array_equal(left.action_masks, right.action_masks)


@pytest.mark.parametrize("last", [True, False])
def test_masks_go_out_and_come_in(tmp_path: Path, last: bool) -> None:
    made = history(last=last)
    made.save(tmp_path / "folder")
    same(made, LearningHistory.load(tmp_path / "folder"))
    made.to_csv(tmp_path / "steps.csv")
    same(made, LearningHistory.from_csv(tmp_path / "steps.csv"))
    made.to_parquet(tmp_path / "steps.parquet")
    same(made, LearningHistory.from_parquet(tmp_path / "steps.parquet"))
    same(made, LearningHistory.from_dataframe(made.to_dataframe()))
    with pytest.raises(HistoryError, match="no room for action_masks"):
        made.to_minari(tmp_path / "minari")


def test_masks_of_flat_arrays_rollouts_and_parts() -> None:
    flat = LearningHistory.from_arrays(
        np.array([0, 1, 2] * 2),
        np.array([1, 2, 0] * 2),
        stages=np.repeat([0, 1], 3),
        episodes=np.zeros(6, dtype=int),
        action_masks=np.concatenate([MASKS, MASKS]),
    )
    np.testing.assert_array_equal(flat[1].action_masks, MASKS)
    stage = history()[0]
    np.testing.assert_array_equal(stage.take(np.array([1])).action_masks, MASKS)
    assert [e.action_masks is not None for e in stage.episodes] == [True, True]
    rollout = Rollout(
        np.array([[0, 0], [1, 1], [2, 2]]),
        np.array([[1, 1], [2, 2], [0, 0]]),
        np.zeros((3, 2), dtype=bool),
        action_masks=np.stack([MASKS, MASKS], axis=1),
    )
    np.testing.assert_array_equal(rollout.stage().action_masks, np.concatenate([MASKS, MASKS]))


def test_illegal_actions_name_where_they_are() -> None:
    with pytest.raises(HistoryError, match=r"time 1: action 0 was taken, but by .* \[1, 2\] were"):
        Episode(np.array([0, 1, 2]), np.array([1, 0, 0]), action_masks=MASKS)
    with pytest.raises(HistoryError, match="episode 1, time 0: action 0 was taken"):
        Stage(np.array([0, 1]), np.array([1, 0]), np.ones(2, dtype=int), np.zeros(2),
              action_masks=MASKS[:2])  # fmt: skip
    for masks, told in (
        (MASKS[:2], r"shape \(3, n_actions\)"),
        (MASKS * 0.5, "booleans"),
        (MASKS[:, :1], "time 0: action 1"),
    ):
        with pytest.raises(HistoryError, match=told):
            Episode(np.array([0, 1, 2]), np.array([1, 2, 0]), action_masks=masks)
    with pytest.raises(HistoryError, match="need discrete actions"):
        Episode(np.zeros((3, 1)), np.zeros((3, 1)), action_masks=MASKS)


def test_stages_have_masks_all_or_none() -> None:
    made = history()
    bare = replace(made[1], action_masks=None)
    with pytest.raises(HistoryError, match="n_masked_actions None instead of 3"):
        LearningHistory.from_stages([made[0], bare])


def test_bad_columns_and_old_folders(tmp_path: Path) -> None:
    frame = history(last=False).to_dataframe()
    with pytest.raises(HistoryError, match="must have a column legal_1"):
        LearningHistory.from_dataframe(frame.drop(columns="legal_1"))
    frame["legal_0"] = frame["legal_0"].astype(int) * 2
    with pytest.raises(HistoryError, match="column legal_0: must be true or false, but is 2"):
        LearningHistory.from_dataframe(frame)
    plain = LearningHistory.from_stages([replace(s, action_masks=None) for s in history()])
    plain.save(tmp_path / "old")
    path = tmp_path / "old" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["signature"]["n_masked_actions"]  # as it was before there were masks
    path.write_text(json.dumps(manifest))
    assert LearningHistory.load(tmp_path / "old")[0].action_masks is None
    manifest["signature"]["n_masked_actions"] = 3
    path.write_text(json.dumps(manifest))
    with pytest.raises(FormatError, match="n_masked_actions"):
        _ = LearningHistory.load(tmp_path / "old")[0]
