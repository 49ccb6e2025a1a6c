"""The study of foragers runs small, and its claims fail when they should."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from logel.studies import foragers
from logel.studies.claims import FAILS, HOLDS
from logel.studies.run.tasks import Task


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(foragers.SIZES, "quick", (2, 60, 4))


def test_it_runs_small(small: None) -> None:
    names, rows = foragers.maze_of("quick").names, []
    for seed in (0, 1):
        for way in ("forwards", "backwards"):
            task = Task("foragers", {"time": way, "size": "quick"}, seed)
            (row,) = foragers.run(task)
            rows.append({"seed": seed, **task.setting, **row})
    table = pd.DataFrame(rows)
    assert list(table.thirsty) == [True, True, False, False]
    assert len(list(foragers.claims(table))) == 3
    assert "surely negative" in foragers.summary(table)
    foragers.figure(table)
    mean, covariance = foragers.moments(dict(rows[0]), names)
    assert (
        mean[0] == pytest.approx(rows[0]["water"])
        and (np.linalg.eigvalsh(covariance) > -1e-12).all()
    )
    _, history = foragers.watched(0, "quick")
    back = foragers.backwards(history)
    np.testing.assert_array_equal(back[0].actions, history[3].actions)
    np.testing.assert_array_equal(foragers.watched(0, "quick")[1][2].actions, history[2].actions)


def made_up(water: Any, *, low: float) -> pd.DataFrame:
    """240 animals each way; every other one is thirsty."""
    rows = [
        {"time": way, "thirsty": i % 2 == 0, "water": water(i), "low": low, "status": "OK"}
        for way in ("forwards", "backwards")
        for i in range(240)
    ]
    return pd.DataFrame(rows)


def test_claims_fail_when_they_should() -> None:
    good = [c.verdict for c in foragers.claims(made_up(lambda i: float(i % 2 == 0), low=-0.1))]
    bad = [c.verdict for c in foragers.claims(made_up(lambda i: float(i), low=0.1))]
    assert good[1:] == [HOLDS, HOLDS] and bad[1:] == [FAILS, FAILS]
    areas = [
        next(foragers.claims(made_up(f, low=0.0))).value
        for f in (lambda i: 1.0, lambda i: -(i % 2))
    ]
    assert areas == [0.5, 1.0]
