"""The report page: what it says, what it refuses, and how it behaves in a real browser."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
import unittest.mock
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command_line import logel
from logel.data.history import LearningHistory
from logel.data.stage import Episode
from logel.errors import FormatError, OptionError
from logel.inference.estimate import RewardEstimate
from logel.inference.gauge import Fit, Gauge
from logel.inference.more_data import Planning
from logel.inference.regress import Status
from logel.report.page import estimate_page, write_report
from logel.report.page_data import page_data
from logel.report.page_parts import LARGEST_PAGE, asset
from logel.report.page_stages import policy_distance
from logel.report.page_words import headline, next_steps, verdicts
from logel.report.reward_maps import RewardMap, discrete_world, rbf_map, world_map
from logel.report.safe_text import clean, embed_json, escape
from logel.report.study_page import find_studies, parse_tables, study_page
from logel.rewards.features import ActionCost, Concatenate, RBFGrid

HOSTILE = ("<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", '" onload="x')
STUDY = Path(__file__).parents[2] / "docs" / "results" / "accuracy-random"
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f64540"
    "0000000049454e44ae426082"
)


def example(names: tuple[str, ...] = ("goal", "cliff", "grass"), **changes: Any) -> RewardEstimate:
    """Paid for the first feature, pays for the second, undecided about the third."""
    covariance = np.diag([0.01, 0.01, 0.04])
    base = RewardEstimate(
        weights=np.array([0.8, -0.6, 0.05]),
        feature_names=names,
        learning_rates=np.linspace(0.1, 0.3, 9),
        covariance=covariance,
        degrees_of_freedom=50,
        scale="unit norm",
        status=Status.OK,
        notes=(),
        gauge=Gauge(names, np.zeros((0, 3)), "", np.zeros((0, 3))),
        fit=Fit(np.linspace(0.2, 0.6, 9), np.linspace(0.5, 0.8, 9), 0.1),
        method="by hand",
        config={"gamma": 0.9, "clone": {"method": "mle"}},
        objective_trace=np.array([3.0, 2.0, 1.5]),
        rank=3,
        condition=3.5,
        models={"gradient": 12.0, "natural": -3.0},
        held_out=np.array([-1.0, np.nan, *np.linspace(-1.2, -1.1, 8)]),
        planning=Planning.proportional(covariance),
    )
    return replace(base, **changes)


def grid_history(
    *, columns: int = 4, rows: int = 3, n_stages: int = 10, names: tuple[str, ...] | None = None
) -> LearningHistory:
    """A walker on a grid whose actions are down, up, left, right; the last cell resets.

    Features: one-hot of three areas, the state arrived at modulo three.
    """
    rng = np.random.default_rng(0)
    moves = np.array([columns, -columns, -1, 1])
    n_states = rows * columns
    stages = []
    for t in range(n_stages):
        episodes = []
        for _ in range(30):
            state, states, actions = 0, [0], []
            for _ in range(15):
                biased = rng.random() < 0.8 * t / n_stages
                action = int(rng.choice([0, 3])) if biased else int(rng.integers(4))
                row, column = divmod(state, columns)
                inside = (row < rows - 1, row > 0, column > 0, column < columns - 1)[action]
                state = 0 if state == n_states - 1 else state + moves[action] * inside
                states.append(state)
                actions.append(action)
            features = np.eye(3)[np.array(states[1:]) % 3]
            episodes.append(Episode(np.array(states), np.array(actions), features))
        stages.append(episodes)
    return LearningHistory.from_episodes(
        stages, feature_names=names or ("goal", "cliff", "grass"), metadata={"n_states": n_states}
    )


@pytest.fixture(scope="module")
def history() -> LearningHistory:
    return grid_history()


class Tags(HTMLParser):
    """Every tag with its attributes, and the text of scripts by type."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def embedded(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found is not None
    return json.loads(found[1])


# --- words ------------------------------------------------------------------------------------


def test_the_headline_sorts_features_by_their_intervals() -> None:
    found = verdicts(example())
    assert (found.paid, found.pays, found.open, found.silent) == ((0,), (1,), (2,), ())
    assert headline(example()) == (
        "The learner is paid for goal and pays for cliff; the sign of grass is still open."
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
    assert page_data(estimate)["status"]["mood"] == "bad"
    assert not any("fresh agent" in step for step in next_steps(estimate))


def test_movement_at_chance_level_is_called_so_unless_cosines_are_no_evidence() -> None:
    at_chance = Fit(np.zeros(9), np.full(9, 0.08), 0.1)
    assert "random direction" in headline(example(fit=at_chance))
    few_parameters = Fit(np.zeros(9), np.full(9, 0.9), 1.0)
    assert headline(example(fit=few_parameters)).startswith("The learner is paid for goal")


def test_without_intervals_no_sign_is_claimed() -> None:
    sentence = headline(example(covariance=None, planning=None))
    assert "without intervals" in sentence and "goal" in sentence


def test_next_steps_name_what_cannot_be_told_apart_and_what_data_would_bring() -> None:
    names = ("goal", "cliff", "grass")
    pair = np.array([[np.sqrt(0.5), 0.0, -np.sqrt(0.5)]])
    estimate = example(gauge=Gauge(names, pair, "it is constant", np.zeros((0, 3))))
    steps = next_steps(estimate)
    assert steps[0].startswith("goal and grass cannot be told apart")
    now = float(np.diff(estimate.interval(0.95)[2])[0])
    # Half the variance leaves 1 / sqrt(2) of the width.
    assert any(f"from {now:.2g} to about {now / np.sqrt(2):.2g} wide" in step for step in steps)


# --- maps and stages --------------------------------------------------------------------------


def test_the_layout_of_a_grid_is_read_off_its_transitions(history: LearningHistory) -> None:
    world = discrete_world(history)
    assert world is not None and world.columns == 4 and world.shape == (3, 4)
    assert world.moves == ((1, 0), (-1, 0), (0, -1), (0, 1))
    drawn = world_map(world, np.array([1.0, 2.0, 3.0]), ("a", "b", "c"))
    assert drawn is not None
    np.testing.assert_array_equal(drawn.values, 1 + (np.arange(12) % 3).reshape(3, 4))
    assert drawn.labels[:4] == ("a", "b", "c", "a")


def test_a_world_without_places_is_drawn_without_arrows() -> None:
    rng = np.random.default_rng(1)
    episodes = [
        Episode(rng.integers(7, size=31), rng.integers(3, size=30), rng.random((30, 3)))
        for _ in range(20)
    ]
    world = discrete_world(LearningHistory.from_episodes([episodes, episodes]))
    assert world is not None and world.columns is None and world.moves == ()
    assert not world.exact


@pytest.mark.parametrize("top", [401, 2**40])
def test_large_worlds_are_left_alone(top: int) -> None:
    episode = Episode(np.array([0, top]), np.array([0]), np.ones((1, 3)))
    assert discrete_world(LearningHistory.from_episodes([[episode], [episode]])) is None


def test_bumps_are_summed_over_the_plane() -> None:
    grid = RBFGrid(-1.0, 1.0, 5, (0, 1))
    features = Concatenate((grid, ActionCost()))
    weights = np.random.default_rng(2).standard_normal(26)
    drawn = rbf_map(features.names, weights)
    assert drawn is not None and drawn.extent == (-1.25, 1.25, -1.25, 1.25)
    rows, columns = np.indices(drawn.values.shape)
    x = -1.25 + 2.5 * (columns.ravel() + 0.5) / drawn.values.shape[1]
    y = 1.25 - 2.5 * (rows.ravel() + 0.5) / drawn.values.shape[0]
    points = np.stack([x, y], axis=1)
    direct = grid(points, points, points) @ weights[:-1]
    np.testing.assert_allclose(drawn.values.ravel(), direct, atol=1e-9)


def test_names_that_only_look_like_bumps_draw_nothing() -> None:
    assert rbf_map(["rbf(1, e)", "rbf(.., 1)", "rbf(1e999, 1)", "rbf(1, 2)"], np.ones(4)) is None
    assert rbf_map(["rbf(0, 0)", "rbf(0, 1)", "rbf(1, 0)"], np.ones(3)) is None


def test_distance_of_policies_and_of_their_noise() -> None:
    policies = np.array([[[1.0, 0.0], [0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]]])
    counts = np.array([[30.0, 10.0], [30.0, 10.0]])
    moved, noise = policy_distance(policies, counts)
    np.testing.assert_allclose(moved, [0.75 * 0.5])
    spread = [np.sqrt(2 / np.pi * p * (1 - p) * 2 / n) for p, n in ((0.75, 30), (0.5, 10))]
    np.testing.assert_allclose(noise, [0.75 * spread[0] + 0.25 * spread[1]])


def test_noise_of_a_learner_that_stands_still_matches_its_movement() -> None:
    rng = np.random.default_rng(3)
    counts = rng.multinomial(40, [0.25] * 4, size=(300, 5))
    moved, noise = policy_distance(counts / 40, np.full((300, 5), 40.0))
    assert abs(moved.mean() / noise.mean() - 1) < 0.05


def test_returns_and_expectations_by_hand() -> None:
    features = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    episode = Episode(np.array([0, 1, 2]), np.array([0, 0]), features)
    still = LearningHistory.from_episodes([[episode, episode]] * 10)
    views = page_data(example(), still)["stages"]
    np.testing.assert_allclose(views["expectations"][0], [1.0, 0.9, 0.0])
    np.testing.assert_allclose(views["returns"], 0.8 - 0.9 * 0.6)
    np.testing.assert_allclose(views["return_errors"], 0.0, atol=1e-12)


def test_a_foreign_history_is_refused_or_remarked_upon(history: LearningHistory) -> None:
    with pytest.raises(OptionError, match="features are goal, cliff, grass, but"):
        page_data(example(names=("a", "b", "c")), history)
    few = Episode(np.zeros(3), np.zeros(2), np.ones((2, 2)))
    with pytest.raises(OptionError, match="3 features, but the history 2"):
        page_data(example(), LearningHistory.from_episodes([[few], [few]]))
    warnings = page_data(example(), history.slice(0, 5))["warnings"]
    assert any("4 steps, but the estimate was made from 9" in line for line in warnings)


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
    page = estimate_page(hostile, replace(history, feature_names=HOSTILE), title=HOSTILE[1])
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
        planning=Planning.proportional(np.eye(q)),
        objective_trace=np.arange(5000.0),
    )
    episode = Episode(np.arange(4), np.arange(3), rng.random((3, q)).astype(np.float32))
    stage = LearningHistory.from_episodes([[episode]])[0]
    page = estimate_page(estimate, LearningHistory.from_stages([stage] * n_stages))
    assert len(page.encode()) < LARGEST_PAGE
    text = Tags(page).text
    assert "Only the 300 largest of 1500 weights" in text
    assert "of the 600 stages are shown" in text


def test_a_map_of_ones_own_is_drawn_and_checked() -> None:
    drawn = RewardMap(np.array([[1.0, np.nan]]), labels=("home", "away"), caption="My world.")
    data = embedded(estimate_page(example(), reward_map=drawn))
    assert data["map"]["values"] == [[1.0, None]] and data["map"]["labels"] == ["home", "away"]
    with pytest.raises(OptionError, match="2 cells, but 1 labels"):
        RewardMap(np.ones((1, 2)), labels=("a",))
    with pytest.raises(OptionError, match="rows, columns"):
        RewardMap(np.ones(3))


def test_a_history_of_ten_stages_takes_less_than_five_seconds(tmp_path: Path) -> None:
    grid_history(n_stages=10).save(tmp_path / "history")
    example().save(tmp_path / "estimate.json")
    start = time.process_time()
    loaded = LearningHistory.load(tmp_path / "history")
    write_report(tmp_path / "estimate.json", tmp_path / "report.html", history=loaded)
    assert time.process_time() - start < 5


# --- studies ----------------------------------------------------------------------------------


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


def test_several_studies_share_a_page_and_large_figures_are_shrunk(tmp_path: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(5)
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "claims.json").write_text("[]")
        # Noise is what no compression makes smaller.
        noise = rng.integers(256, size=(700, 800, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / "figure.png", compress_level=0)
    assert sum(p.stat().st_size for p in tmp_path.rglob("*.png")) > LARGEST_PAGE
    page = study_page(find_studies(tmp_path))
    assert len(page.encode()) < LARGEST_PAGE and len(Tags(page).named("img")) == 2
    assert "no claims" in Tags(page).text


def test_a_hostile_study_is_text_too(tmp_path: Path) -> None:
    bad = HOSTILE[1]
    claim = dict.fromkeys(("claim", "source", "observer", "statistic", "wanted", "verdict"), bad)
    numbers = {"value": 1e308, "low": -1e308, "high": 1e308, "threshold": None, "runs": bad}
    # The last one is a whole number that no float can hold.
    claims = [claim | numbers, {}, claim | numbers | {"threshold": 10**400}]
    (tmp_path / "claims.json").write_text(json.dumps(claims))
    (tmp_path / "made-by.json").write_text(json.dumps({"study": bad, "options": {bad: bad}}))
    (tmp_path / "summary.md").write_text(f"| a |\n|---|\n\n| b | {bad} |\n| --- | --- |\n| c |\n")
    (tmp_path / "table.csv").write_text(f"{bad},b\n1\n")
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
        ([STUDY, "--history", tmp_path / "history"], "leave out the history"),
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
    assert HOSTILE[0] in tags.text and "+0.8" in tags.text and "OK: solved" in tags.text


# --- in a browser -----------------------------------------------------------------------------

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
