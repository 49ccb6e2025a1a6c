"""The documentation is true: its code runs, its output is what it prints, its links lead somewhere.

The blocks of a page run in order, in one namespace and one empty folder:

* ```python blocks are executed;
* ```shell blocks hold `logel` commands, which go through the command line;
* a ```text block below `<!-- output -->` is what the block before it printed, numbers roughly;
* a block below `<!-- not run: REASON -->` is left alone, and one below `<!-- needs PACKAGE -->`
  where that is not installed.
"""

import itertools
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from logel.cli.main import app
from logel.rules.catalogue import RULES
from logel.worlds.table import TabularWorld

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# They train agents or fit jointly, more than once.
_LONG = {
    "README.md",
    *(f"docs/howto/{name}.md" for name in ("first-minutes", "sb3", "trajectories")),
    "docs/tutorial.md",
}
# Training runs, shorter: what the README's shows is measured by benchmarks/flagship.py, what others
# show was written down from whole ones.
_SHORTER = {
    "learn(128_000,": "learn(4_096,",
    "learn(20_000,": "learn(2_048,",
    "learn(98_304,": "learn(24_576,",
    "learn(100_000,": "learn(15_360,",
    "--episodes 500": "--episodes 20",
}
_BLOCK = re.compile(
    r"(?:^<!-- (?P<remark>[^\n]*?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?")
# Other machines round otherwise, and an estimate passes that on.
_RELATIVE, _ABSOLUTE = 0.1, 0.03


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    output: bool = False


def blocks_of(page: Path) -> Iterator[Block]:
    """The blocks to be run or compared, in order."""
    content = page.read_text()
    for whole, short in _SHORTER.items():
        content = content.replace(whole, short)
    for found in _BLOCK.finditer(content):
        remark = found["remark"] or ""
        line = content.count("\n", 0, found.start("text")) + 1
        if remark.startswith("not run"):
            assert re.fullmatch(r"not run: \w.+", remark), f"{page}:{line}: say why it is not run"
            continue
        if remark.startswith("needs ") and find_spec(remark.removeprefix("needs ")) is None:
            continue
        yield Block(found["language"], found["text"], line, output=remark == "output")


def run_commands(text: str, page: str) -> str:
    """Run `logel` commands, one per line, and return what they print."""
    printed = ""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        assert words[0] == "logel", f"{page}: only logel commands are run, not {line!r}"
        result = CliRunner().invoke(app, words[1:], catch_exceptions=False)
        assert result.exit_code == 0, f"{page}: {line!r} failed: {result.output}"
        printed += result.stdout
    return printed


def assert_alike(printed: str, shown: str, page: str) -> None:
    """The same words, and numbers that are about the same."""
    words = [" ".join(_NUMBER.sub(" # ", text).split()) for text in (printed, shown)]
    assert words[0] == words[1], f"{page} shows another output: {printed}"
    pairs = [[float(n) for n in _NUMBER.findall(text)] for text in (printed, shown)]
    assert pairs[0] == pytest.approx(pairs[1], rel=_RELATIVE, abs=_ABSOLUTE), page


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=[pytest.mark.slow] if _name(p) in _LONG else []) for p in PAGES],
    ids=_name,
)
# Pages may add rules; other tests must not see them.
@patch.dict(RULES)
@patch.object(TabularWorld, "offers", TabularWorld.offers)
def test_code_blocks_run(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "docs"}
    printed = ""
    for block in blocks_of(page):
        where = f"{_name(page)}:{block.line}"
        if block.output:
            assert_alike(printed, block.text, where)
        elif block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), names)
            printed = capsys.readouterr().out
        elif block.language == "shell":
            printed = run_commands(block.text, where)
            capsys.readouterr()


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose):
        assert (page.parent / target).exists(), target


def test_the_equations_are_where_they_are_said_to_be() -> None:
    page = (ROOT / "docs" / "method" / "equations.md").read_text()
    functions = re.findall(r"`(logel(?:\.\w+)+)`", page)
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert len(functions) > 30 and len(tests) > 40
    for name in functions:
        assert pkgutil.resolve_name(name) is not None
    for file, test in tests:
        assert f"def {test}(" in (ROOT / file).read_text(), f"{file} has no {test}"


def test_a_wrong_output_is_noticed() -> None:
    assert_alike("blue 0.512, 3 steps", "blue  0.50,\n3 steps", "page")
    with pytest.raises(AssertionError):
        assert_alike("blue 0.512", "blue 0.7", "page")
    with pytest.raises(AssertionError):
        assert_alike("blue 0.512", "green 0.512", "page")


def test_a_block_needs_a_reason_not_to_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- not run: needs a GPU -->\n```python\n1 / 0\n```\n```python\n1\n```\n")
    assert [(block.text, block.line) for block in blocks_of(page)] == [("1\n", 6)]
    page.write_text("<!-- not run -->\n```python\n1 / 0\n```\n")
    with pytest.raises(AssertionError, match="say why"):
        list(blocks_of(page))


def check_looks(pages: list[Path], folder: Path) -> None:
    """Nothing is cut off or lies on other text, and search works from the disk, in a browser."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None or find_spec("playwright") is None:
        return
    from playwright.sync_api import TimeoutError as PlaywrightTimeout
    from playwright.sync_api import sync_playwright

    sys.path.insert(0, str(ROOT / "tests" / "report"))
    from looks import WAYS, seen

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for page, way in itertools.product(pages, WAYS):
            picture = folder / f"{page.stem}-{way}.png"
            assert seen(browser, page.as_uri(), way, picture) == [], (page.stem, way)
            assert picture.stat().st_size > 10_000
        tab = browser.new_page()
        tab.goto(pages[0].as_uri())
        tab.wait_for_load_state("networkidle")
        for patience in (10_000, 20_000, 60_000):
            # What is typed before the index is there can be lost.
            tab.fill("[data-md-component=search-query]", "")
            tab.type("[data-md-component=search-query]", "gauge")
            with suppress(PlaywrightTimeout):
                tab.wait_for_selector(".md-search-result__item", timeout=patience)
                break
        assert "gauge" in tab.inner_text(".md-search-result__item").lower()
        browser.close()


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    # Without this, the theme advertises other software.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for page in tmp_path.rglob("*.html"):
        # Nothing is fetched from elsewhere when a page is read.
        fetched = r"""<(?:script|link|img|iframe)[^>]*(?:src|href)="https?://"""
        assert not re.search(fetched, page.read_text()), page
    check_looks([tmp_path / "index.html", tmp_path / "howto" / "first-minutes.html"], tmp_path)
    commands = (tmp_path / "reference" / "command-line.html").read_text()
    assert "logel record gridworld" in commands and "--learner" in commands
