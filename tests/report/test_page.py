"""The report page of an estimate: what it says, and what it refuses."""

from __future__ import annotations

import json
import re
import time
import unittest.mock
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import HOSTILE, PIXEL, STUDY, Tags, embedded, example, grid_history

from command_line import logel
from logel.data.history import LearningHistory
from logel.data.stage import Episode
from logel.errors import FormatError
from logel.inference.estimate import RewardEstimate
from logel.inference.gauge import Fit, Gauge
from logel.inference.more_data import Planning
from logel.inference.status import Status
from logel.report.page import estimate_page, write_report
from logel.report.page_data import page_data
from logel.report.page_parts import LARGEST_PAGE
from logel.report.page_words import headline, next_steps, signs
from logel.report.safe_text import clean, embed_json, escape

# --- words ------------------------------------------------------------------------------------


def test_the_headline_sorts_features_by_their_intervals() -> None:
    found = signs(example())
    assert found == ((0,), (1,), (), (2,), ())
    assert headline(example()) == (
        "The learner is paid for goal (0.8, 95% 0.599 to 1) and pays for cliff (\u22120.6, 95% "
        "\u22120.801 to \u22120.399); the sign of grass is still open."
    )


def test_a_feature_inside_the_gauge_is_passed_over_in_silence() -> None:
    names = ("goal", "cliff", "grass")
    gauge = Gauge(names, np.array([[0.0, 0.0, 1.0]]), "it is constant", np.zeros((0, 3)))
    estimate = example(gauge=gauge, status=Status.RANK_DEFICIENT)
    assert headline(estimate).endswith("nothing can be said about grass.")
    assert any("Leave out grass" in step for step in next_steps(estimate))


@pytest.mark.parametrize("status", [Status.UNEXPLAINED, Status.RATES_AT_BOUND])
def test_an_untrustworthy_estimate_is_not_praised(status: Status) -> None:
    estimate = example(status=status)
    assert "should not be trusted" in headline(estimate)
    assert page_data(estimate)["verdict"]["mood"] == "bad"
    assert not any("fresh agent" in step for step in next_steps(estimate))


def test_movement_at_chance_level_is_called_so_unless_cosines_are_no_evidence() -> None:
    at_chance = Fit(np.zeros(9), np.full(9, 0.08), 0.1)
    assert "random direction" in example(fit=at_chance).verdict.reason
    few_parameters = Fit(np.zeros(9), np.full(9, 0.9), 1.0)
    assert "random direction" not in example(fit=few_parameters).verdict.reason


def test_without_intervals_no_sign_is_claimed() -> None:
    sentence = headline(example(covariance=None, planning=None))
    assert sentence.startswith("Without intervals") and "goal" not in sentence


def test_next_steps_name_what_cannot_be_told_apart_and_what_data_would_bring() -> None:
    names = ("goal", "cliff", "grass")
    pair = np.array([[np.sqrt(0.5), 0.0, -np.sqrt(0.5)]])
    estimate = example(gauge=Gauge(names, pair, "it is constant", np.zeros((0, 3))))
    steps = next_steps(estimate)
    assert steps[0].startswith("goal and grass cannot be told apart")
    now = float(np.diff(estimate.interval(0.95)[2])[0])
    # Half the variance leaves 1 / sqrt(2) of the width.
    assert any(f"from {now:.2g} to about {now / np.sqrt(2):.2g} wide" in step for step in steps)


# --- replay -----------------------------------------------------------------------------------


def replayed(n: int = 11, *, left: float = 0.1, noise: float = 0.04, **changes: Any) -> Any:
    """An estimate by replay: the prediction as long as the movement, a share left at each step."""
    moved = np.linspace(0.2, 0.1, n)
    cosines = np.full(n, 1 - left / 2)
    fit = Fit(np.full(n, 1 - left), cosines, 0.0, moved, moved, np.full(n, noise), "replay")
    fit = changes.pop("fit", fit)
    return example(**{"learning_rates": np.ones(n), "fit": fit, "held_out": None, **changes})


def test_replay_shows_where_the_learner_went_and_where_its_update_goes() -> None:
    page = estimate_page(replayed(models={}))
    tags, course = Tags(page), embedded(page)["course"]
    plots = {a["data-plot"]: a for a in tags.named("div") if "data-plot" in a}
    # Neither rates, which nobody estimated, nor the shares once more.
    assert set(plots) == {"weights", "course", "cosines", "trace", "planning"}
    assert course["moved"][0] == course["predicted"][0] == 0.2 and course["replayed"] is True
    assert plots["course"]["aria-label"] == (
        "11 steps; length moved 0.1 to 0.2, median 0.15; length predicted 0.1 to 0.2, median "
        "0.15; explained 90% to 90%, median 90%; chance would change 4% to 4%, median 4%."
    )
    for words in (
        "Where the learner went, and where its update goes with these weights",
        "The update explains 90% of the squared movement; another order of minibatches would "
        "change 4%.",
    ):
        assert words in tags.text


@pytest.mark.parametrize(
    ("changes", "name", "sentence"),
    [
        ({"status": Status.NOT_CONVERGED}, "Stuck", "Better weights may exist: the update"),
        ({"status": Status.UNEXPLAINED}, "Not explained", "No weights lead the learner's own"),
        ({"status": Status.UNEXPLAINED, "n": 5}, "Not explained", "5 steps are too few"),
    ],
)
def test_a_replay_that_went_wrong_says_so(changes: Any, name: str, sentence: str) -> None:
    estimate = replayed(left=0.9, **changes)
    data = page_data(estimate)
    assert data["course"]["ending"][:2] == ["bad", name]
    assert data["verdict"]["name"] == "Not shown"
    assert sentence in Tags(estimate_page(estimate)).text
    assert "should not be trusted" in headline(estimate)
    # Replay has no iterations to raise.
    assert "max_iterations" not in f"{next_steps(estimate)} {data['verdict']['sentence']}"


def test_an_answer_that_fell_back_names_the_rule_it_comes_from() -> None:
    fit = Fit(np.full(9, 0.2), np.full(9, 0.4), 0.1, np.ones(9), np.ones(9), rule="mirror")
    asked = {"config": {"coordinates": "replay"}, "status": Status.UNEXPLAINED}
    text = Tags(estimate_page(example(fit=fit, **asked))).text
    assert "Fell back" in text and "those of the rule 'mirror'" in text
    assert "where the rule goes with these weights" in text
    # Asked for by name, the same fit is nothing to explain.
    assert "Fell back" not in estimate_page(example(fit=fit))


def test_steps_that_were_not_replayed_are_left_out() -> None:
    whole = replayed(20)
    cut = {
        name: np.where(np.arange(20) < 8, values, np.nan)
        for name, values in vars(whole.fit).items()
        if isinstance(values, np.ndarray)
    }
    page = estimate_page(replace(whole, fit=replace(whole.fit, **cut)))
    assert len(embedded(page)["course"]["moved"]) == 8
    assert "These are the first 8 of 20 steps." in page


@pytest.mark.parametrize("rule", HOSTILE)
def test_hostile_rules_are_text(rule: str) -> None:
    fit = Fit(np.ones(9), np.ones(9), 0.1, np.ones(9), np.full(9, np.inf), rule=rule)
    tags = Tags(estimate_page(example(fit=fit, config={"coordinates": "replay"})))
    assert not tags.named("img") and len(tags.named("script")) == 2
    nothing = replace(fit, moved=np.full(9, np.nan))
    assert page_data(example(fit=nothing))["course"] is None


# --- the page ---------------------------------------------------------------------------------


def test_every_section_and_figure_is_there(history: LearningHistory) -> None:
    page = estimate_page(example(notes=("mind the gap",)), history)
    tags = Tags(page)
    ids = {attributes.get("id") for _, attributes in tags.tags}
    sections = {"weights", "map", "identified", "stages", "fit", "planning", "next", "made"}
    assert sections | {"warnings"} <= ids
    plots = {a["data-plot"]: a for a in tags.named("div") if "data-plot" in a}
    wanted = "weights map visits returns expectations movement cosines explained rates held-out"
    assert set(wanted.split()) | {"models", "trace", "planning"} == set(plots)
    for name, attributes in plots.items():
        assert attributes["role"] == "img" and len(str(attributes["aria-label"])) > 10, name
    assert len(tags.named("figure")) == len(tags.named("details")) == len(plots)
    for text in ("Mind the gap", "The learner is paid for goal", "clone.method", "by hand"):
        assert text.lower() in tags.text.lower()


def test_an_estimate_alone_makes_a_page() -> None:
    page = estimate_page(example(planning=None, held_out=None, models={}))
    plots = {a["data-plot"] for a in Tags(page).named("div") if "data-plot" in a}
    assert plots == {"weights", "cosines", "explained", "rates", "trace"}


def test_what_is_unknown_is_shown_as_unknown() -> None:
    nothing = np.full(9, np.nan)
    estimate = example(
        covariance=None, planning=None, learning_rates=nothing, fit=Fit(nothing, nothing, 0.1)
    )
    data = embedded(estimate_page(estimate))
    assert data["weights"]["intervals"]["95"] == [[None, None]] * 3
    assert data["steps"]["cosines"] == [None] * 9


def test_the_page_is_offline_small_and_policed(history: LearningHistory) -> None:
    page = estimate_page(example(), history, picture=PIXEL)
    tags = Tags(page)
    for _, attributes in tags.tags:
        for key in ("src", "href", "srcset", "action", "data"):
            assert str(attributes.get(key, "#")).startswith(("#", "data:image/png;base64,"))
        assert not any(key.startswith("on") or key == "style" for key in attributes)
    assert "@import" not in page and "url(" not in page
    remote = re.findall(r"https?://[^\"'\s<]+", page)
    assert set(remote) <= {"http://www.w3.org/2000/svg"}  # a name, not an address to load
    policy = str(tags.named("meta")[1]["content"])
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert len(page.encode()) < 300_000 < LARGEST_PAGE
    with pytest.raises(FormatError, match="PNG"):
        estimate_page(example(), picture=b"<svg onload=alert(1)>")


def test_hostile_names_stay_text(history: LearningHistory) -> None:
    hostile = example(
        names=HOSTILE,
        notes=HOSTILE,
        config={HOSTILE[0]: HOSTILE[1]},
        method=HOSTILE[1],
        versions={HOSTILE[0]: HOSTILE[2]},
        models={HOSTILE[1]: 1.0},
    )
    page = estimate_page(hostile, replace(history, feature_names=HOSTILE))
    tags = Tags(page)
    assert len(tags.named("script")) == 2 and tags.named("img") == []
    assert embedded(page)["names"] == [clean(name) for name in HOSTILE]
    assert "<" not in embed_json({HOSTILE[1]: HOSTILE[0]})
    assert not any(set(attributes) & {"onerror", "onload"} for _, attributes in tags.tags)


@given(st.text(alphabet=st.characters(), max_size=60))
@settings(max_examples=200)
def test_any_text_survives_as_text(text: str) -> None:
    told = escape(text)
    told.encode()
    assert not set(told) & set("<>\"'")
    data = json.loads(embed_json({"name": text}))
    assert data["name"] == clean(text, longest=2000)
    assert "</" not in embed_json(text)


def test_lone_surrogates_and_overrides_do_not_reach_the_page() -> None:
    page = estimate_page(example(names=("\ud800", "a\u202eb", "c\x00d")))
    page.encode()
    assert embedded(page)["names"] == ["\ufffd", "a\ufffdb", "c\ufffdd"]


def test_a_page_of_very_many_features_and_stages_stays_small() -> None:
    q, n_stages = 1500, 600
    names = tuple(f"feature number {j}" for j in range(q))
    rng = np.random.default_rng(4)
    weights = rng.standard_normal(q)
    m = n_stages - 1
    estimate = example(
        names=names,
        weights=weights,
        covariance=np.eye(q),
        gauge=Gauge(names, np.zeros((0, q)), "", np.linalg.qr(rng.random((q, 20)))[0].T),
        learning_rates=np.ones(m),
        fit=Fit(np.ones(m), np.ones(m), 0.1),
        held_out=None,
        planning=Planning.of(np.eye(q), np.zeros((q, q))),
        objective_trace=np.arange(5000.0),
    )
    episode = Episode(np.arange(4), np.arange(3), rng.random((3, q)).astype(np.float32))
    stage = LearningHistory.from_episodes([[episode]])[0]
    page = estimate_page(estimate, LearningHistory.from_stages([stage] * n_stages))
    assert len(page.encode()) < LARGEST_PAGE
    text = Tags(page).text
    assert "Only the 300 largest of 1500 weights" in text
    assert "of the 600 stages are shown" in text


def test_a_history_of_ten_stages_takes_less_than_five_seconds(tmp_path: Path) -> None:
    grid_history(n_stages=10).save(tmp_path / "history")
    example().save(tmp_path / "estimate.json")
    start = time.process_time()
    loaded = LearningHistory.load(tmp_path / "history")
    write_report(tmp_path / "estimate.json", tmp_path / "report.html", history=loaded)
    assert time.process_time() - start < 5


# --- the command ------------------------------------------------------------------------------


def command(*arguments: object) -> tuple[int, str, str]:
    done = logel(*arguments)
    return done.returncode, done.stdout, done.stderr


def test_the_command_writes_a_page_and_opens_it(history: LearningHistory, tmp_path: Path) -> None:
    example().save(tmp_path / "estimate.json")
    history.save(tmp_path / "history")
    page = tmp_path / "page.html"
    with unittest.mock.patch("webbrowser.open") as opened:
        code, out, _ = command(
            "report", tmp_path / "estimate.json", "--history", tmp_path / "history",
            "--out", page, "--open", "--json",
        )  # fmt: skip
    assert code == 0 and json.loads(out) == {"report": str(page), "bytes": page.stat().st_size}
    opened.assert_called_once_with(page.resolve().as_uri())
    assert command("report", STUDY, "--out", page)[0] == 0


def test_mistakes_cost_one_sentence_and_leave_nothing(
    history: LearningHistory, tmp_path: Path
) -> None:
    example().save(tmp_path / "estimate.json")
    history.save(tmp_path / "history")
    (tmp_path / "empty").mkdir()
    page = tmp_path / "page.html"
    for arguments, message in (
        ([tmp_path / "nowhere"], "no estimate and no study"),
        ([tmp_path / "empty"], "nothing to report"),
        ([tmp_path / "history"], "logel infer"),
        ([STUDY, "--history", tmp_path / "history"], "only an estimate of one history"),
        ([tmp_path / "estimate.json", "--out", tmp_path / "no" / "page.html"], "no folder"),
        ([tmp_path / "estimate.json", "--out", tmp_path / "empty"], "is a folder"),
        ([tmp_path / "estimate.json", "--out", tmp_path / "estimate.json"], "would replace"),
        ([tmp_path / "estimate.json", "--picture", tmp_path / "estimate.json"], "PNG"),
    ):
        code, _, err = command("report", "--out", page, *arguments)
        assert code == 2 and message in err and len(err.strip().splitlines()) == 1, err
    assert not page.exists()
    RewardEstimate.load(tmp_path / "estimate.json")  # still an estimate


def test_notebooks_show_an_escaped_table() -> None:
    told = example(names=HOSTILE, notes=("\ud800 <b>",))._repr_html_()
    told.encode()
    tags = Tags(told)
    assert {tag for tag, _ in tags.tags} == {"div", "b", "table", "tr", "th", "td"}
    assert (
        HOSTILE[0] in tags.text and "+0.8" in tags.text and "status: the fit converged" in tags.text
    )
