"""The studies of what must not be believed: what they run, judge and draw."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from logel.inference.infer import infer_reward
from logel.inference.status import Status
from logel.studies.nulls import GAMMA, watched
from logel.studies.registry import STUDIES
from logel.studies.run.tasks import Task
from logel.studies.study import StudyOptions


def table_of(name: str, tasks: list[Task]) -> pd.DataFrame:
    study: Any = STUDIES[name]
    return pd.DataFrame(
        [{"seed": task.seed, **task.setting, **row} for task in tasks for row in study.run(task)]
    )


@pytest.mark.parametrize("family", ["table", "network-softmax"])
def test_a_null_and_a_learner(family: str) -> None:
    study: Any = STUDIES["nulls"]
    tasks = [
        task
        for task in study.tasks(StudyOptions(runs=1, seed=1000))
        if task.setting["family"] == family
        and task.setting["known"]
        and task.setting["kind"] in ("steady", "backwards", "real")
    ]
    table = table_of("nulls", tasks)
    assert set(table.method) >= {"two-step", "mirror", "paper"}
    assert table[table.kind != "real"].warns.mean() > 0.8
    assert len(list(study.claims(table))) == 2 * len(table[table.kind != "real"])
    assert "| real |" in study.summary(table) and study.figure(table).axes


def test_three_weights_cannot_be_told_in_two_functions() -> None:
    task = Task("nulls", {"family": "network-gaussian", "known": True, "kind": "outside"}, 1006)
    case = watched(task)
    estimate = infer_reward(case.history, case.policy, gamma=GAMMA, method="mirror")
    assert estimate.status is Status.UNEXPLAINED
    assert any("3 weights explain whatever" in note for note in estimate.notes)


def test_wrong_assumptions_are_rows() -> None:
    study: Any = STUDIES["misspecified"]
    tasks = [
        task
        for task in study.tasks(StudyOptions(runs=1, seed=1000))
        if task.setting["case"] in ("nothing wrong", "missing feature", "partial observation")
    ]
    table = table_of("misspecified", tasks)
    assert len(table) == 5 and len(list(study.claims(table))) == 5
    assert "| nothing wrong | known | 1 |" in study.summary(table) and study.figure(table).axes
