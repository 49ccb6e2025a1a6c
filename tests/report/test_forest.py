"""Forest plots on the pages of shared weights, groups and contrasts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from estimates import example
from logel.errors import OptionError
from logel.inference.contrast import Contrast
from logel.inference.estimate import RewardEstimate
from logel.inference.gauge import Gauge
from logel.inference.group import GroupEstimate
from logel.inference.shares import LearnerShare
from logel.report.page import estimate_page, write_report
from logel.report.page_forest import contrast_page, forest_data

NAMES = ("goal", "cliff", "<b>grass</b>")


def one(mean: Any, seed: int, **changes: Any) -> RewardEstimate:
    draws = np.asarray(mean) + 0.05 * np.random.default_rng(seed).standard_normal((400, 3))
    draws /= np.linalg.norm(draws, axis=1, keepdims=True)
    gauge = Gauge(NAMES, np.zeros((0, 3)), "", np.zeros((0, 3)))
    return example(feature_names=NAMES, weights=np.array(mean), draws=draws, gauge=gauge, **changes)


def share(name: str, part: float, agreement: float) -> LearnerShare:
    weights = np.array([0.6, -0.8, 0.0])
    return LearnerShare(
        *(name, 5, "gradient", 2.0, part, agreement, False),
        *(weights, weights - 0.3, weights + 0.3, weights),
    )


def together() -> RewardEstimate:
    learners = share("rat <1>", 0.75, 3.25), share("rat 2", 0.25, -4.5)
    return one([0.6, -0.8, 0.0], 0, learners=learners)


def group() -> GroupEstimate:
    learners = {"rat <1>": one([0.8, -0.6, 0.0], 1), "rat 2": one([0.6, -0.8, 0.0], 2)}
    return GroupEstimate(together(), learners, np.array([0.1, 0.2, 0.3]))


def drawn(page: str) -> Any:
    """The forest in the page's own data."""
    found = re.search(r'<script[^>]*id="data"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])["forest"]


def test_everyone_is_drawn_and_told() -> None:
    page = estimate_page(together())
    forest = drawn(page)
    assert [block["name"] for block in forest["blocks"]] == list(NAMES)
    goal = forest["blocks"][0]["rows"]
    assert [row["name"] for row in goal] == ["rat <1>", "rat 2", "shared by all"]
    assert [row["whole"] for row in goal] == [False, False, True]
    assert goal[0]["low"] == pytest.approx(0.3) and goal[0]["high"] == pytest.approx(0.9)
    assert "What the learners want" in page and "These learners are paid for" in page
    assert 'data-plot="forest"' in page and "rat &lt;1&gt;" in page and "<b>grass" not in page
    # In the table of shares.
    assert "75%" in page and "+3.2" in page and "contradicts" in page


def test_a_group_shows_pooled_learners_and_their_spread() -> None:
    page = estimate_page(group().mean, group=group())
    rows = drawn(page)["blocks"][0]["rows"]
    assert [row["name"] for row in rows] == ["rat <1>", "rat 2", "group mean"]
    assert rows[0]["weight"] == pytest.approx(0.8)
    assert "stray by 0.2 of the mean" in page


def test_one_learner_has_no_forest() -> None:
    assert forest_data(example(), None) is None
    assert 'data-plot="forest"' not in estimate_page(example())


def test_many_learners_and_features_are_cut() -> None:
    names = tuple(f"feature {j}" for j in range(20))
    gauge = Gauge(names, np.zeros((0, 20)), "", np.zeros((0, 20)))
    weights = np.linspace(1, 0.1, 20)
    rest = (5, "gradient", 2.0, 0.1, 1.0, False, *([weights] * 4))
    many = example(
        feature_names=names, weights=weights, covariance=np.eye(20), gauge=gauge,
        learners=tuple(LearnerShare(f"x {i}", *rest) for i in range(50)),
    )  # fmt: skip
    forest = forest_data(many, None)
    assert forest is not None and len(forest["blocks"]) == 12
    assert len(forest["blocks"][0]["rows"]) == 41 and forest["hidden"] == [10, 8]


def test_a_contrast_says_who_wants_more() -> None:
    contrast = Contrast.of(one([1, 0, 0], 1), one([0, 1, 0], 2), names=("wet", "<i>dry"))
    page = contrast_page(contrast)
    assert "Beside &lt;i&gt;dry, wet wants more of goal and less of cliff." in page
    rows = drawn(page)["blocks"][0]["rows"]
    assert [row["name"] for row in rows] == ["wet", "<i>dry", "difference"]
    assert rows[2]["weight"] == pytest.approx(1.0) and rows[2]["low"] > 0
    none = Contrast.of(one([1, 0, 0], 1), one([1, 0, 0], 2))
    assert "no difference between first and second" in contrast_page(none)


def test_all_kinds_of_answers_are_reported_from_files(tmp_path: Path) -> None:
    answers: dict[str, Any] = {
        "group": group(),
        "contrast": Contrast.of(group(), together()),
        "shared": together(),
    }
    for name, answer in answers.items():
        answer.save(tmp_path / f"{name}.json")
        page = write_report(tmp_path / f"{name}.json", tmp_path / f"{name}.html")
        assert 'data-plot="forest"' in page.read_text()
        assert 'data-plot="forest"' in write_report(answer, tmp_path / "again.html").read_text()
    history: Any = object()
    with pytest.raises(OptionError, match="leave it out"):
        write_report(answers["contrast"], tmp_path / "x.html", history=history)
