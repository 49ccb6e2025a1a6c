"""How a page behaves in a real browser."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from looks import WAYS, seen
from pages import HOSTILE, STUDY, example

from logel.data.history import LearningHistory
from logel.inference.gauge import Fit
from logel.report.page import estimate_page, write_report
from logel.report.page_parts import asset

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("there is no chromium here: install it to test the page in a browser")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def page_file(history: LearningHistory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "page.html"
    return write_report(example(), file, history=history)


@contextlib.contextmanager
def opened(browser: Any, file: Path, **options: Any) -> Iterator[Any]:
    """The page in a fresh window; any complaint of the browser, or any request, is a failure."""
    options.setdefault("viewport", {"width": 1200, "height": 900})
    context = browser.new_context(**options)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith(("file:", "data:"))
            else complaints.append(f"asked for {request.url}")
        ),
    )
    page.goto(file.resolve().as_uri())
    page.wait_for_selector("html[data-ready]", timeout=60_000)
    yield page
    assert complaints == []
    context.close()


def test_every_figure_is_drawn(browser: Any, page_file: Path) -> None:
    with opened(browser, page_file) as page:
        drawn = page.eval_on_selector_all(
            "[data-plot]",
            "hosts => hosts.map(h => [h.dataset.plot, h.querySelectorAll('svg *').length, "
            "h.getBoundingClientRect().height, /NaN|undefined/.test(h.innerHTML)])",
        )
        assert len(drawn) == 13
        for name, marks, height, broken in drawn:
            assert marks > 8 and height > 60 and not broken, name


@pytest.mark.parametrize("n", [1, 5, 31, 199])
def test_movement_and_prediction_of_any_number_of_steps(
    browser: Any, tmp_path: Path, n: int
) -> None:
    explained = np.linspace(1.0, -0.5, n)
    moved = np.linspace(0.2, 0.1, n)
    predicted = np.where(np.arange(n) == 2, 9.0, 0.15)
    explained[1:2] = np.nan
    fit = Fit(explained, explained, 0.0, moved, predicted, np.full(n, 0.04), "replay")
    estimate = example(fit=fit, learning_rates=np.ones(n), held_out=None)
    file = write_report(estimate, tmp_path / "page.html")
    for width in (1200, 390):
        with opened(browser, file, viewport={"width": width, "height": 900}) as page:
            inside = "[data-plot=course] "
            assert page.locator(f"{inside}.went").count() == n + 1  # one in the legend
            assert page.locator(f"{inside}.band").count() == n + 1
            # Off the scale: shares below zero, and the prediction that is far too long.
            heads = int((explained < 0).sum()) + (n > 2)
            assert page.locator(f"{inside}polygon").count() == heads
            assert not page.locator("[data-plot=course]").inner_html().count("NaN")
            page.hover(f"{inside}.reader")
            told = page.inner_text("#tip")
            assert f"step {n // 2}" in told and "chance would change 4%" in told
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_slider_and_play_move_the_stage(browser: Any, page_file: Path) -> None:
    with opened(browser, page_file) as page:
        assert page.inner_text("#stage-name") == "stage 9 of 9"
        last = page.inner_html("[data-plot=visits]")
        page.locator("#stage").fill("2")
        assert page.inner_text("#stage-name") == "stage 2 of 9"
        assert page.inner_html("[data-plot=visits]") != last
        page.locator("#stage").press("ArrowRight")
        assert page.inner_text("#stage-name") == "stage 3 of 9"
        page.locator("#stage").fill("7")
        # Clicked and read in one go: a busy machine may be at the next stage a moment later.
        read = "id => { document.getElementById('play').click(); return document.querySelector(id)"
        read += ".outerHTML; }"
        assert 'aria-pressed="true"' in page.evaluate(read, "#play")
        page.wait_for_selector("#play[aria-pressed=false]", timeout=60_000)
        assert page.inner_text("#stage-name") == "stage 9 of 9"
        # At the end it starts over.
        assert ">stage 0 of 9<" in page.evaluate(read, "#stage-name")


def test_hovering_shows_values(browser: Any, page_file: Path) -> None:
    with opened(browser, page_file) as page:
        assert page.locator("#tip").is_hidden()
        page.hover("[data-plot=weights] [data-feature='1']")
        told = page.inner_text("#tip")
        assert "cliff" in told and "weight \u22120.6" in told and "95% interval" in told
        page.hover("[data-plot=cosines] .reader")
        assert "cosine" in page.inner_text("#tip")
        page.hover("[data-plot=map] rect >> nth=1")
        assert "reward \u22120.6" in page.inner_text("#tip")
        page.mouse.move(2, 2)
        assert page.locator("#tip").is_hidden()


def test_interval_and_order_can_be_chosen(browser: Any, page_file: Path) -> None:
    with opened(browser, page_file) as page:
        features = "rows => rows.map(r => r.dataset.feature)"
        rows = "[data-plot=weights] [data-feature]"
        assert page.eval_on_selector_all(rows, features) == ["0", "2", "1"]
        page.get_by_text("As given").click()
        assert page.eval_on_selector_all(rows, features) == ["0", "1", "2"]
        width = "line => line.x2.baseVal.value - line.x1.baseVal.value"
        lengths = []
        for level in ("50%", "80%", "95%"):
            page.get_by_text(level, exact=True).first.click()
            lengths.append(page.eval_on_selector("[data-plot=weights] .interval", width))
        assert lengths == sorted(lengths) and lengths[0] < 0.5 * lengths[2]


def test_dark_by_preference_and_by_hand(browser: Any, page_file: Path) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    with opened(browser, page_file, color_scheme="dark") as page:
        dark = page.evaluate(background)
        page.click("#theme")
        light = page.evaluate(background)
        assert sum(map(int, re.findall(r"\d+", dark))) < 150
        assert sum(map(int, re.findall(r"\d+", light))) > 700
    with opened(browser, page_file, color_scheme="light") as page:
        assert page.evaluate(background) == light
        page.click("#theme")
        assert page.evaluate(background) == dark


def test_a_phone_scrolls_one_way_only(browser: Any, page_file: Path, tmp_path: Path) -> None:
    study = write_report(STUDY, tmp_path / "study.html")
    for file in (page_file, study):
        with opened(browser, file, viewport={"width": 390, "height": 844}) as page:
            page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
            assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_cut_off_and_no_text_lies_on_another(
    browser: Any, page_file: Path, tmp_path: Path, way: str
) -> None:
    pages = [page_file, write_report({"a": example(), "b": example()}, tmp_path / "both.html")]
    for file in pages:
        picture = tmp_path / f"{way}.png"
        assert seen(browser, file.as_uri(), way, picture, ready="html[data-ready]") == []
        assert picture.stat().st_size > 10_000


def test_a_check_of_looks_sees_faults(browser: Any, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<div style='width:3em;overflow:hidden;white-space:nowrap'><p>cut somewhere here</p></div>"
        "<p style='margin:0'>one</p><p style='margin:-1em 0 0'>two</p>"
    )
    assert sorted(seen(browser, page.as_uri(), "desktop")) == [
        "cut off: cut somewhere here",
        "one | two",
    ]


def test_print_shows_every_row(browser: Any, page_file: Path) -> None:
    with opened(browser, page_file) as page:
        page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        page.emulate_media(media="print")
        cut = "boxes => boxes.filter(b => b.scrollHeight > b.clientHeight + 2).length"
        assert page.eval_on_selector_all(".scroll", cut) == 0


def test_the_claims_of_a_study_can_be_filtered(browser: Any, tmp_path: Path) -> None:
    with opened(browser, write_report(STUDY, tmp_path / "study.html")) as page:
        visible = "rows => rows.filter(r => !r.hidden).length"
        assert page.eval_on_selector_all("tr[data-verdict]", visible) == 13
        page.get_by_text("Hold", exact=True).click()
        assert page.eval_on_selector_all("tr[data-verdict]", visible) == 4
        assert page.evaluate("[...document.images].every(i => i.naturalWidth > 100)")


def test_hostile_names_run_nothing(browser: Any, history: LearningHistory, tmp_path: Path) -> None:
    hostile = example(names=HOSTILE, notes=HOSTILE, models={HOSTILE[0]: 1.0, HOSTILE[1]: 2.0})
    foreign = replace(history, feature_names=HOSTILE)
    file = write_report(hostile, tmp_path / "hostile.html", history=foreign)
    with opened(browser, file) as page:
        page.hover("[data-plot=weights] [data-feature='0']")
        assert HOSTILE[0] in page.inner_text("#tip")
        assert page.locator("img").count() == 0


def test_the_policy_stops_what_escaping_might_miss(browser: Any, tmp_path: Path) -> None:
    page = estimate_page(example()).replace(
        "</main>", "<script>document.title = 'run'</script><img src=x onerror='a'></main>"
    )
    file = tmp_path / "page.html"
    file.write_text(page)
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(file.as_uri())
    tab.wait_for_selector("html[data-ready]")
    assert tab.title() == "What the learner wants"
    context.close()


def test_the_script_never_writes_markup() -> None:
    script = asset("page.js")
    for unsafe in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert unsafe not in script
