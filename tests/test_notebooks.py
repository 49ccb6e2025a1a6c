"""The notebooks are what any Jupyter opens, and their cells run in order."""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples" / "notebooks").glob("*.ipynb"))


def cells(path: Path) -> list[dict[str, Any]]:
    """Of a notebook, in order."""
    found: list[dict[str, Any]] = json.loads(path.read_text())["cells"]
    return found


def run(path: Path) -> tuple[str, list[Any]]:
    """What the cells print, and what those show that end in an expression."""
    space: dict[str, Any] = {"__name__": "notebook"}
    printed, shown = io.StringIO(), []
    for cell in cells(path):
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, str(path), "exec"), space)
            if isinstance(last, ast.Expr):
                shown.append(eval(compile(ast.Expression(last.value), str(path), "eval"), space))
    return printed.getvalue(), shown


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_in_the_format_that_jupyter_reads(path: Path) -> None:
    notebook = json.loads(path.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        assert cell.keys() >= {"cell_type", "id", "metadata", "source"}
        assert (cell["cell_type"] == "code") == ("outputs" in cell)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    if path.stem == "audit_sb3":
        pytest.importorskip("stable_baselines3")
    printed, shown = run(path)
    pyplot.close("all")
    assert any(hasattr(value, "_repr_html_") for value in shown)
    if path.stem == "audit_sb3":
        assert "alive" in printed and printed.count("paid") == 1
    if path.stem == "behaviour":
        assert "goal before blue: 0.9" in printed


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["audit_sb3", "behaviour", "own_data"]
