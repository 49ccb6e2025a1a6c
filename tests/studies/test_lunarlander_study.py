"""LunarLander's study: it runs small, its measures by hand, and claims fail when they should."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from estimates import example
from logel.envs.box2d import FEATURES, LANDER_TRUE_WEIGHTS
from logel.inference.gauge import Gauge
from logel.studies import lunarlander
from logel.studies.claims import FAILS, HOLDS
from logel.studies.study import StudyOptions, reproduce

NAMES = FEATURES[lunarlander.WORLD].names
TRUTH = np.array(LANDER_TRUE_WEIGHTS)
Q = len(TRUTH)
DEVIATIONS = np.array([1.0, 2.0, 1.5, 0.5, 1.0, 1.0])


def judged(weights: Any, deviation: float = 0.01) -> list[dict[str, Any]]:
    estimate = example(
        weights=np.asarray(weights) / np.linalg.norm(weights),
        feature_names=NAMES,
        covariance=deviation**2 * np.eye(Q),
        gauge=Gauge(NAMES, np.zeros((0, Q)), "", np.zeros((0, Q))),
    )
    return lunarlander.judged(estimate, DEVIATIONS)


def test_measures_by_hand() -> None:
    whole, *weights = judged(TRUTH)
    assert whole["signs"] == whole["order"] == 1.0 and whole["error"] < 1e-12
    assert whole["coverage"] == 1.0 and whole["sure"] < 1  # fuel's interval is on both sides
    # In units of each feature's share: 1, 6, 1.5, 1, -.15, 10.
    expected = TRUTH * DEVIATIONS / np.linalg.norm(TRUTH * DEVIATIONS)
    np.testing.assert_allclose([row["weight"] for row in weights], expected)
    np.testing.assert_allclose([row["truth"] for row in weights], expected)
    found = weights[3]
    # Half of the weight's interval, in the same units.
    width = (found["high"] - found["low"]) / (weights[0]["high"] - weights[0]["low"])
    assert width == pytest.approx(0.5)
    assert judged([-1, *TRUTH[1:]])[0]["signs"] == pytest.approx(5 / 6)
    # Sizes 1, 6, 1.5, 1, .15 and 10 truly differ but for 1 and 1; here only 6 and 10 change places.
    assert whole["pairs"] == 1.0
    swapped = judged(TRUTH * [1, 2, 1, 1, 1, 1])[0]
    assert swapped["pairs"] == pytest.approx(13 / 14) and swapped["order"] < 1


def test_claims_hold_for_the_truth_and_fail_for_its_opposite() -> None:
    for weights, verdict in ((TRUTH, HOLDS), (-TRUTH[[1, 5, 0, 4, 3, 2]], FAILS)):
        table = pd.DataFrame([{**judged(weights)[0], "seed": seed} for seed in range(3)])
        assert [claim.verdict for claim in lunarlander.claims(table)] == [verdict] * 3


@pytest.mark.slow
def test_the_study_runs_from_learner_to_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("stable_baselines3", reason="needs the extra box2d")
    pytest.importorskip("Box2D", reason="needs the extra box2d")
    monkeypatch.setenv("LOGEL_CACHE", str(tmp_path / "cache"))
    options = StudyOptions(runs=1, seed=1000, quick=True)
    result = reproduce(lunarlander.STUDY, options, out=tmp_path, jobs=1)
    assert not result.run.failures
    folder = tmp_path / "lunarlander"
    table = pd.read_csv(folder / "table.csv")
    assert list(table[table.part == "weight"].feature) == list(NAMES)
    fit = table[table.part == "fit"].iloc[0]
    assert fit.stages == 8 and 0 <= fit.signs <= 1 and fit.seconds > 0
    for name in ("lunarlander.png", "lunarlander.svg", "claims.json"):
        assert (folder / name).stat().st_size > 0
    assert "| 1000 | ending |" in (folder / "summary.md").read_text()
    assert "box2d" in json.loads((folder / "made-by.json").read_text())["packages"]
    assert reproduce(lunarlander.STUDY, options, out=tmp_path, jobs=1).run.computed == 0
