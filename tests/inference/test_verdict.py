"""The verdict: what it says by hand, and that everyone who tells it says the same."""

from __future__ import annotations

import html
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import logel.inference.infer as logel_infer
from command_line import logel
from estimates import example
from logel.cli.console import save_and_show
from logel.data.history import LearningHistory
from logel.data.stage import Episode
from logel.inference.contrast import Contrast
from logel.inference.estimate import RewardEstimate
from logel.inference.gauge import Fit, Gauge
from logel.inference.group import GroupEstimate
from logel.inference.status import Status
from logel.inference.verdict import Finding, signs_of
from logel.report.page import estimate_page
from logel.report.page_forest import contrast_page
from logel.report.page_words import headline

NAMES = ("goal", "cliff", "grass")
OPEN = np.zeros((0, 3))


def sure(
    weights: Any = (0.8, -0.6, 0.0), errors: Any = (0.05, 0.05, 0.01), **changes: Any
) -> RewardEstimate:
    """Every direction identified; two signs sure, the third weight within +- 0.023."""
    base = {
        "weights": np.array(weights),
        "covariance": np.diag(np.square(errors)),
        "status": Status.OK,
        "notes": (),
        "gauge": Gauge(NAMES, OPEN, (), OPEN),
    }
    return example(**{**base, **changes})


# --- by hand ----------------------------------------------------------------------------------


def test_found_needs_every_sign_or_that_it_hardly_matters() -> None:
    assert str(sure().verdict) == ("found: the sign of goal and cliff is sure, grass surely small")
    # A tenth of the least that the largest may be, 0.8 - 2.262 * 0.05 = 0.687; half-width 0.0679.
    assert sure(errors=(0.05, 0.05, 0.030)).verdict.finding is Finding.FOUND
    # Half-width 0.0724.
    wider = sure(errors=(0.05, 0.05, 0.032)).verdict
    assert str(wider) == (
        "partly determined: the sign of goal and cliff is sure, but that of grass is open"
    )
    assert sure(weights=(0.8, -0.6, 0.03), errors=(0.05, 0.05, 0.01)).verdict.reason == (
        "the sign of goal, cliff and grass is sure"
    )


@pytest.mark.parametrize(
    "status", [s for s in Status if s not in (Status.OK, Status.RANK_DEFICIENT)]
)
@pytest.mark.parametrize("replay", [False, True])
def test_a_status_that_warns_shows_nothing(status: Status, replay: bool) -> None:
    estimate = sure(status=status, config={"coordinates": "replay"} if replay else {})
    assert estimate.verdict.finding is Finding.NOT_SHOWN
    assert signs_of(estimate, doubt=estimate.verdict.reason).sure == ()
    assert ("replaying" in estimate.verdict.reason) == (
        replay and status in (Status.UNEXPLAINED, Status.NOT_CONVERGED)
    )


def test_no_intervals_and_no_sign_show_nothing() -> None:
    assert str(sure(covariance=None).verdict).startswith("not shown: without intervals")
    assert str(sure(errors=(1, 1, 1)).verdict) == (
        "not shown: no weight's 95% interval tells its sign"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"gauge": Gauge(NAMES, np.eye(3)[2:], "constant", OPEN)},
            "a combination of weights is not",
        ),
        ({"gauge": Gauge(NAMES, OPEN, (), np.eye(3)[1:])}, "2 combinations of weights are hardly"),
        ({"status": Status.RANK_DEFICIENT}, "some directions of the weights are not determined"),
        ({"fit": Fit(np.zeros(9), np.full(9, 0.08), 0.1)}, "no better than by a random direction"),
    ],
)
def test_what_else_is_open_makes_it_partly(changes: Any, words: str) -> None:
    verdict = sure(**changes).verdict
    assert verdict.finding is Finding.PARTLY and words in verdict.reason


def test_numbers_that_are_no_measurements_tell_no_sign() -> None:
    # No width; and a weight outside its own interval, which only an edited file has.
    assert sure(errors=(0, 0, 0)).verdict.finding is Finding.NOT_SHOWN
    draws = np.random.default_rng(0).normal([-0.8, -0.6, 0.0], 0.01, (200, 3))
    assert sure(draws=draws).verdict.reason.startswith("the sign of cliff is sure, but")
    # Of a single direction only the sign is open: unit norm leaves no width.
    one = Gauge(NAMES, np.eye(3)[1:], "constant", OPEN)
    alone = sure(weights=(1.0, 0, 0), errors=(0, 0, 0), gauge=one, status=Status.RANK_DEFICIENT)
    assert alone.verdict.reason.startswith("the sign of goal is sure, but")


def test_the_verdict_of_a_group_is_its_means_and_of_a_contrast_its_sides() -> None:
    group = GroupEstimate(sure(), {"a": sure(covariance=None)}, np.ones(3))
    assert group.verdict == sure().verdict
    assert json.loads(group.to_json())["verdict"] == sure().verdict.to_plain()
    other = sure(weights=(-0.6, 0.8, 0.0))
    contrast = Contrast.of(group, other, names=("wet", "dry"))
    assert contrast.verdict.reason.startswith("the sign of goal and cliff is sure")
    assert f"verdict: {contrast.verdict}\n" in contrast.summary()
    assert json.loads(contrast.to_json())["verdict"] == contrast.verdict.to_plain()
    for bad in (sure(status=Status.UNEXPLAINED), sure(status=Status.RATES_AT_BOUND)):
        doubtful = Contrast.of(group, bad, names=("wet", "dry"))
        assert (
            not doubtful.verdict.shown and "'dry' are not to be trusted" in doubtful.verdict.reason
        )
        page = contrast_page(doubtful)
        assert "show no difference" in page and "wants more of" not in page


# --- everywhere the same ----------------------------------------------------------------------


def drawn(seed: int) -> RewardEstimate:
    """An estimate of any kind."""
    rng = np.random.default_rng([17, seed])
    q, m = int(rng.integers(1, 8)), int(rng.integers(1, 12))
    names = tuple(f"feature <{j}> & co" for j in range(q))
    weights = rng.standard_normal(q) * rng.choice([0.01, 1.0], q)
    weights /= np.linalg.norm(weights)
    rows = np.linalg.qr(rng.standard_normal((q, q)))[0]
    silent, weak = (int(rng.choice([0, 0, 0, 1])) if q > 1 else 0 for _ in range(2))
    gauge = Gauge(names, rows[:silent], "it is constant", rows[silent : silent + weak])
    weights = gauge.project(weights)
    errors = rng.choice([0.003, 0.03, 0.3]) * rng.random(q)
    uncertain = rng.choice(["covariance", "draws", "none"], p=[0.5, 0.4, 0.1])
    draws = weights + errors * rng.standard_normal((200, q)) if uncertain == "draws" else None
    rule = str(rng.choice(["replay", "mirror", "soft-value"]))
    statuses = [*Status, *[Status.OK] * 6, *[Status.RANK_DEFICIENT] * 3]
    return example(
        weights=weights,
        feature_names=names,
        learning_rates=np.ones(m),
        covariance=None if uncertain == "none" else np.diag(errors**2),
        draws=draws,
        status=statuses[rng.integers(len(statuses))],
        notes=("mind the gap",) * int(rng.integers(2)),
        gauge=gauge,
        fit=Fit(
            rng.normal(0.0, 40.0, m), rng.uniform(-0.2, 0.9, m), rng.choice([0.1, 0.8]), rule=rule
        ),
        config={"coordinates": "replay"} if rng.random() < 0.3 else {},
        models={"gradient": float(rng.normal(50, 50))} if rng.random() < 0.5 else {},
        held_out=None,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    stages = [[Episode(np.arange(3) % 2, rng.integers(0, 2, 3), rng.random((3, 2)))]] * 2
    path = tmp_path_factory.mktemp("any") / "history"
    LearningHistory.from_episodes(stages, metadata={"gamma": 0.5}).save(path)
    return path


def test_two_hundred_verdicts_are_the_same_in_five_places(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = []
    for seed in range(200):
        estimate = drawn(seed)
        verdict = estimate.verdict
        findings.append(verdict.finding)
        finding, reason = verdict.finding.value, html.escape(verdict.reason, quote=True)
        summary, notebook, page = (
            estimate.summary(),
            estimate._repr_html_(),
            estimate_page(estimate),
        )
        raw = json.loads(estimate.to_json())
        save_and_show(estimate, None, json_output=True)
        out, err = capsys.readouterr()
        # Summary, notebook, report, JSON and the command line's last words.
        assert summary.splitlines()[1] == f"verdict: {verdict}"
        assert f"<b>{finding}</b>: {reason}</div>" in notebook
        shown = f"<b>{finding.capitalize()}</b> <span>{reason[:1].upper()}{reason[1:]}."
        assert page.count(shown) == 1 == page.count('<header class="hero">')
        assert raw["verdict"] == {"finding": finding, "reason": verdict.reason}
        assert err == f"verdict: {verdict}\n" and json.loads(out) == raw
        if seed % 20 == 0:  # the command itself, which takes its time
            monkeypatch.setattr(logel_infer, "infer_reward", lambda *_, found=estimate, **__: found)
            done = logel("infer", folder, "--json")
            assert (done.stdout, done.stderr) == (out, err)
        assert repr(estimate).endswith(f" {finding})")
        # Whatever else is said goes with it.
        told = f"{summary} {notebook} {headline(estimate)}"
        assert "solved" not in told.lower() and " OK" not in told
        trusted = "not be trusted" not in told and "not trust these" not in told
        assert trusted == verdict.shown == ("Put the reward to the test" in page)
        assert ("explained movement: median" in summary) == (np.median(estimate.explained) > 0)
    assert min(findings.count(finding) for finding in Finding) >= 25, "an idle comparison"


def test_no_file_can_claim_what_its_numbers_do_not_say() -> None:
    for seed in range(40):
        estimate = drawn(seed)
        raw = json.loads(estimate.to_json())
        for verdict in ({"finding": "found", "reason": "trust me"}, "found", None, [[]]):
            back = RewardEstimate.from_json(json.dumps({**raw, "verdict": verdict}))
            assert back.verdict == estimate.verdict
        # Files from before there were verdicts.
        del raw["verdict"]
        assert RewardEstimate.from_json(json.dumps(raw)).verdict == estimate.verdict
        if estimate.status not in (Status.OK, Status.RANK_DEFICIENT):
            claimed = replace(estimate, notes=("found", "solved"), method="found")
            assert not claimed.verdict.shown
