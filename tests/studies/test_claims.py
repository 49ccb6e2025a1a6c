import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from logel.studies.claims import (
    FAILS,
    HOLDS,
    UNDECIDED,
    claims_table,
    judge,
    mean_interval,
    share_interval,
    write_claims,
)


def claim(values: list[float], wanted: str = "above", threshold: float = 0.0):
    return judge(
        "it rises",
        values,
        statistic="difference",
        observer="paper",
        **{wanted: threshold},
    )


def test_verdicts_follow_the_interval() -> None:
    assert claim([1.0, 1.1, 0.9]).verdict == HOLDS
    assert claim([1.0, 1.1, 0.9], wanted="below").verdict == FAILS
    assert claim([-1.0, 1.1, 0.2]).verdict == UNDECIDED
    assert claim([0.0, 0.0]).verdict == FAILS
    assert claim([1.0]).verdict == UNDECIDED


def test_interval_covers_the_mean_98_times_in_100() -> None:
    rng = np.random.default_rng(0)
    draws = rng.exponential(size=(4000, 20)) - 1.0
    ends = np.array([mean_interval(row) for row in draws])
    covered = ((ends[:, 1] < 0) & (ends[:, 2] > 0)).mean()
    # Skewed data cost the t interval some of its 98%.
    assert 0.93 < covered < 0.985
    normal = np.array([mean_interval(row) for row in rng.standard_normal((4000, 20))])
    covered = ((normal[:, 1] < 0) & (normal[:, 2] > 0)).mean()
    assert covered == pytest.approx(0.98, abs=0.008)


def test_shares_of_runs_have_exact_intervals() -> None:
    # All of n: the lower end p solves p^n = 1%.
    for n in (1, 2, 10, 40):
        assert share_interval([True] * n) == pytest.approx((1.0, 0.01 ** (1 / n), 1.0))
    rng = np.random.default_rng(0)
    for share in (0.8, 0.9, 0.97):
        ends = [share_interval(row) for row in (rng.random((2000, 10)) < share).tolist()]
        inside = np.mean([low <= share <= high for _, low, high in ends])
        assert inside >= 0.975
    two = judge("c", [True, True], statistic="s", above=0.5, observer="o")
    assert two.verdict == "undecided" and (two.low, two.high) == (pytest.approx(0.1), 1.0)
    many = judge("c", [True] * 20, statistic="s", above=0.5, observer="o")
    assert many.verdict == "holds"
    assert judge("c", [], statistic="s", above=0.5, observer="o").runs == 0


def test_claims_are_written_and_printed(tmp_path: Path) -> None:
    claims = [claim([1.0, 1.1, 0.9]), claim([1.0])]
    write_claims(claims, tmp_path / "claims.json")
    rows = json.loads((tmp_path / "claims.json").read_text())
    assert [row["verdict"] for row in rows] == [HOLDS, UNDECIDED]
    assert rows[1]["low"] is None
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(claims_table(claims))
    assert "holds" in console.export_text()


def test_what_is_said_of_the_papers_observer_is_the_papers() -> None:
    assert claim([1.0]).source == "paper"
    ours = judge("c", [1.0], statistic="s", below=0.5)
    assert (ours.source, ours.observer, ours.wanted) == ("logel", "default", "below")
    assert judge("c", [1.0], statistic="s", below=0.5, source="paper").source == "paper"


def test_failed_runs_are_left_out() -> None:
    judged = claim([1.0, float("nan"), 1.1, 0.9])
    assert judged.runs == 3 and judged.verdict == HOLDS
    assert claim([float("nan")]).verdict == UNDECIDED
