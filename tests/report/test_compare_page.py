"""Several estimates on one page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pages
import pytest

from command_line import logel
from logel.errors import OptionError
from logel.report.page import write_report


def test_several_estimates_stand_side_by_side(tmp_path: Path) -> None:
    one, other = pages.example(), pages.example(weights=np.array([0.8, 0.6, 0.0]))
    page = write_report({"one": one, "other": other}, tmp_path / "page.html").read_text()
    data = pages.embedded(page)
    assert data["headline"] == (
        "All agree on the sign of goal; they contradict each other on cliff."
    )
    assert [row["name"] for row in data["forest"]["blocks"][0]["rows"]] == ["one", "other"]
    assert data["verdicts"][1][0] == "cliff" and data["verdicts"][1][2].startswith("paid for")
    for name, estimate in (("a", one), ("b", other)):
        estimate.save(tmp_path / f"{name}.json")
    files = tmp_path / "a.json", tmp_path / "b.json"
    done = logel("report", *files, "--out", tmp_path / "both.html")
    assert done.returncode == 0, done.stderr
    assert ">a<" in (tmp_path / "both.html").read_text()
    refused = logel("report", *files, "--history", tmp_path, "--out", tmp_path / "no.html")
    assert refused.returncode == 2 and "without a history" in refused.stderr
    with pytest.raises(OptionError, match="estimates of the same features"):
        write_report(
            {"one": one, "two": pages.example(names=("a", "b", "c"))}, tmp_path / "no.html"
        )
