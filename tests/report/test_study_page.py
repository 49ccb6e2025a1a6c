"""The page of studies: strangers' folders, shown and checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import HOSTILE, PIXEL, STUDY, Tags

from logel.errors import FormatError, OptionError
from logel.report.page import write_report
from logel.report.page_parts import LARGEST_PAGE
from logel.report.study_page import find_studies, parse_tables, study_page


def test_a_study_shows_claims_figures_and_provenance(tmp_path: Path) -> None:
    out = write_report(STUDY, tmp_path / "study.html")
    page = out.read_text()
    tags = Tags(page)
    claims = json.loads((STUDY / "claims.json").read_text())
    rows = [a for a in tags.named("tr") if "data-verdict" in a]
    assert len(rows) == len(claims) == 13
    holds = sum(claim["verdict"] == "holds" for claim in claims)
    assert sum(a["data-verdict"] == "holds" for a in rows) == holds
    assert f"Of 13 claims, {holds} hold, {13 - holds} remain open." in tags.text
    assert len(tags.named("img")) == 1 and "35d5d8739d8b" in tags.text
    assert "logel reproduce accuracy-random --runs 40" in tags.text
    assert "0.0864 ± 0.11" in tags.text and len(page) < LARGEST_PAGE


def test_several_studies_share_a_page_of_bounded_size(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "claims.json").write_text("[]")
        (tmp_path / name / "figure.png").write_bytes(PIXEL)
    page = study_page(find_studies(tmp_path))
    assert len(Tags(page).named("img")) == 2 and "no claims" in Tags(page).text
    (tmp_path / "two" / "figure.png").write_bytes(PIXEL + bytes(LARGEST_PAGE))
    with pytest.raises(OptionError, match="report fewer studies"):
        study_page(find_studies(tmp_path))


def test_a_hostile_study_is_text_too(tmp_path: Path) -> None:
    bad = HOSTILE[1]
    claim = dict.fromkeys(("claim", "source", "observer", "statistic", "wanted", "verdict"), bad)
    numbers = {"value": 1e308, "low": -1e308, "high": 1e308, "threshold": None, "runs": bad}
    # The last one is a whole number that no float can hold.
    claims = [claim | numbers, {}, claim | numbers | {"threshold": 10**400}]
    (tmp_path / "claims.json").write_text(json.dumps(claims))
    (tmp_path / "made-by.json").write_text(json.dumps({"study": bad, "options": {bad: bad}}))
    (tmp_path / "summary.md").write_text(f"| a |\n|---|\n\n| b | {bad} |\n| --- | --- |\n| c |\n")
    (tmp_path / "x.png").write_bytes(PIXEL)
    tags = Tags(study_page([tmp_path]))
    assert len(tags.named("script")) == 2 and len(tags.named("img")) == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("claims.json", "{", "corrupted"),
        ("claims.json", "[1]", "not a list of claims"),
        ("made-by.json", "[]", "does not say"),
        ("x.png", "GIF89a", "not a PNG"),
        ("x.png", None, "not a plain file"),
    ],
)
def test_a_broken_study_costs_one_sentence(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    (tmp_path / "claims.json").write_text("[]")
    if content is None:
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(FormatError, match=message):
        study_page([tmp_path])


@given(st.lists(st.lists(st.text("ab *", min_size=1), min_size=2, max_size=4), min_size=2))
def test_tables_in_markdown_round_trip(cells: list[list[str]]) -> None:
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    wanted = [tuple(cell.strip().strip("*") for cell in row) for row in cells]
    rule = "| --- | --- |"
    text = "\n".join(["words", lines[0], rule, *lines[1:], "", "more words"])
    assert parse_tables(text) == [tuple(wanted)]
