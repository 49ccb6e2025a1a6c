"""Controls: a learner passes them, what learns nothing does not, and outcomes follow by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import logel
from estimates import example
from logel import LearningHistory, TabularSoftmax, check_estimate
from logel.data.stage import Episode
from logel.envs.tabular import TabularMDP, random_mdp
from logel.errors import FormatError, OptionError
from logel.inference.check import Control, EstimateChecks
from logel.inference.controls import KINDS, Asked, Outcome, Variant, rearranged, variants_of
from logel.inference.gauge import Gauge
from logel.inference.status import Status
from logel.inference.verdict import Finding
from logel.learners.tabular import RandomWalk, SoftValueIteration, observe
from logel.report.page import estimate_page

WANTS = np.array([1.0, -0.6, 0.0])
POLICY = TabularSoftmax(6, 3)


def world() -> TabularMDP:
    rng = np.random.default_rng(7)
    return random_mdp(rng, n_states=6, n_actions=3, n_features=3, gamma=0.8, branching=2)


def watched(learner: Any, seed: int = 1000, n_steps: int = 6) -> LearningHistory:
    return observe(
        *(world(), learner), weights=WANTS, n_steps=n_steps, n_episodes=40, horizon=10, seed=seed
    )


@pytest.fixture(scope="module")
def learnt() -> EstimateChecks:
    return check_estimate(watched(SoftValueIteration()), POLICY, gamma=0.8)


# --- learners ---------------------------------------------------------------------------------


def test_a_learner_passes(learnt: EstimateChecks) -> None:
    outcomes = {control.kind: control.judged(learnt.estimate)[0] for control in learnt.controls}
    assert set(outcomes) == set(KINDS) - {"windows"} and learnt.complete
    assert Outcome.FAILED not in outcomes.values(), learnt.summary()
    for kind in ("reversed", "shuffled", "decoys", "halves", "stages"):
        assert outcomes[kind] is Outcome.PASSED, learnt.summary()
    assert learnt.verdict.shown and "none failed" in learnt.verdict.reason
    assert len(learnt.controls[-1].variants) == 7


@pytest.mark.parametrize("what", ["random walk", "read backwards", "shuffled"])
def test_what_does_not_learn_does_not_pass(what: str) -> None:
    if what == "random walk":
        history = watched(RandomWalk())
    else:
        order = {"read backwards": range(7)[::-1], "shuffled": [6, 2, 5, 0, 3, 1, 4]}[what]
        history = rearranged(watched(SoftValueIteration()), order)
    checks = check_estimate(history, POLICY, gamma=0.8, quick=True)
    assert not checks.verdict.shown, checks.summary()


# --- by hand ----------------------------------------------------------------------------------

NAMES = ("goal", "cliff", "grass")
NONE = np.zeros((0, 3))


def whole(**changes: Any) -> Any:
    """Goal and cliff are sure, grass is open."""
    base = {
        "covariance": np.diag([0.01, 0.01, 0.09]),
        "status": Status.OK,
        "gauge": Gauge(NAMES, NONE, (), NONE),
        "notes": (),
        "models": {"gradient": 30.0},
    }
    return example(**{**base, **changes})


def variant(weights: Any, reach: Any = 0.1, doubt: str = "", gain: float = 0.0) -> Variant:
    w = np.array(weights, dtype=float)
    return Variant("so", doubt, w, w - reach, w + reach, gain)


SAME, TURNED = [0.8, -0.6, 0.0], [-0.8, 0.6, 0.0]


def halves(second: Any, doubt: str = "") -> list[Variant]:
    """The first half is the same, and differences are known within +- 0.2."""
    difference = variant(np.subtract(SAME, second), 0.2, doubt)
    return [variant(SAME), variant(second, doubt=doubt), difference]


@pytest.mark.parametrize(
    ("kind", "variants", "wanted", "words"),
    [
        ("reversed", [variant(SAME, gain=29.0)], "FAILED", "goal and cliff"),
        ("reversed", [variant(SAME, gain=np.nan)], "FAILED", "as surely"),
        # Odds of twenty to one are 3.0 nats.
        ("reversed", [variant(SAME, gain=26.9)], "PASSED", "+30 nats against +27"),
        ("reversed", [variant(SAME, doubt="no")], "PASSED", "no reward is shown"),
        ("reversed", [variant(TURNED)], "PASSED", "another reward is shown in 1 of 1"),
        ("shuffled", [variant(SAME, gain=40), variant(TURNED), variant(TURNED)], "PASSED", ""),
        ("shuffled", [variant(SAME), variant(SAME, gain=40), variant(TURNED)], "FAILED", "goal"),
        ("decoys", [variant([*SAME, 0.0, 0.05])], "PASSED", "+0.05 (-0.05 to +0.15)"),
        ("decoys", [variant([*SAME, 0.0, 0.15])], "FAILED", "a decoy is wanted"),
        ("decoys", [variant([*SAME, 0.0, 0.15], doubt="no")], "SILENT", "nothing is shown"),
        ("decoys", [variant([*SAME, 0.0], reach=np.array([0.1, 0.1, 0.1, 0.0]))], "SILENT", ""),
        ("decoys", [variant([*SAME, 0.0], reach=np.array([0.1, 0.1, 0.1, 0.9]))], "SILENT", ""),
        ("decoys", [variant([*SAME, 0.0], reach=np.nan)], "SILENT", "do not tell"),
        ("halves", halves([0.8, -0.7, 0.1]), "PASSED", ""),
        ("halves", halves([0.8, -0.3, 0.0]), "FAILED", "in cliff"),
        # Too short for their status: only a sign that turns counts.
        ("halves", halves([0.8, -0.3, 0.0], doubt="short"), "PASSED", ""),
        ("halves", halves([0.8, 0.3, 0.0], doubt="short"), "FAILED", "in cliff"),
        ("halves", [variant(SAME, reach=1.0)] * 3, "SILENT", "no sign"),
        ("gammas", [variant(SAME), variant([0.1, -0.9, 0.0], reach=0.05)], "PASSED", "2 of 2"),
        ("gammas", [variant(SAME), variant([0.8, 0.6, 0.0])], "FAILED", "that of cliff"),
        ("gammas", [variant([0.8, 0.6, 0.0], doubt="no")], "SILENT", ""),
        ("windows", [variant(SAME), variant(TURNED)], "FAILED", "goal and cliff is another"),
        # Goal is 0.8 +- 0.226: outside of it, and 0.8 outside of the other's interval or not.
        ("windows", [variant([0.57, -0.6, 0.0], reach=0.24)], "PASSED", "within intervals"),
        ("windows", [variant([0.57, -0.6, 0.0], reach=0.22)], "FAILED", "of goal is another"),
        ("windows", [variant(TURNED, doubt="no")], "SILENT", ""),
        ("stages", [variant(SAME, reach=2.0), variant(SAME)], "PASSED", "of 2 stages"),
        # Not surely, but another sign.
        ("stages", [variant([0.8, 0.1, 0.0], reach=2.0), variant(SAME)], "FAILED", "cliff"),
    ],
)
def test_outcomes_by_hand(kind: str, variants: list[Variant], wanted: str, words: str) -> None:
    outcome, why = Control(kind, tuple(variants)).judged(whole())
    assert outcome is Outcome[wanted] and words in why, why


def test_halves_are_compared_in_what_both_can_tell() -> None:
    # A half that never saw grass knows the others against another mean: the same weights.
    level = Gauge(NAMES, np.ones((1, 3)) / np.sqrt(3), "constant", NONE)
    rows = np.array([[0.0, 0.0, 1.0], np.array([1.0, 1.0, 0.0]) / np.sqrt(2)])
    one = whole(weights=np.array([0.7, 0.0, -0.7]), gauge=level, covariance=np.eye(3) / 1e4)
    two = whole(
        weights=np.array([0.7, -0.7, 0.0]),
        gauge=Gauge(NAMES, rows, "constant", NONE),
        covariance=np.diag([1e-4, 1e-4, 0.0]),
    )
    variants = variants_of("halves", whole(), {"first half": one, "second half": two}, 2)
    assert [v.sure.tolist() for v in variants[:2]] == [[1, 0, -1], [1, -1, 0]]
    assert Control("halves", variants).judged(whole())[0] is Outcome.PASSED
    other = replace(two, weights=-two.weights)
    variants = variants_of("halves", whole(), {"first half": one, "second half": other}, 2)
    assert Control("halves", variants).judged(whole())[0] is Outcome.FAILED
    # And what has no answer cannot be compared.
    variants = variants_of("halves", whole(), {"first half": one, "second half": "no steps"}, 2)
    assert Control("halves", variants).judged(whole())[0] is Outcome.SILENT


def test_weights_of_other_gauges_are_no_turned_signs() -> None:
    level = Gauge(NAMES, np.ones((1, 3)) / np.sqrt(3), "constant", NONE)
    found = {"gamma 0": whole(weights=np.array([-0.8, 0.6, 0.2]), gauge=level)}
    for kind in ("gammas", "stages", "windows"):
        (variant,) = variants_of(kind, whole(), found, 2)
        assert "other combinations" in variant.doubt
        assert Control(kind, (variant,)).judged(whole())[0] is Outcome.SILENT


def test_where_nothing_is_claimed_nothing_can_be_lost() -> None:
    doubtful = whole(status=Status.UNEXPLAINED)
    for kind in ("reversed", "shuffled", "gammas", "windows", "stages"):
        outcome, _ = Control(kind, (variant(SAME), variant(TURNED))).judged(doubtful)
        assert outcome is Outcome.SILENT, kind


def test_the_verdict_of_a_check() -> None:
    passed, failed = (Control("gammas", (variant(SAME), variant(w))) for w in (SAME, TURNED))
    fine = EstimateChecks(whole(), (passed,))
    assert fine.verdict.finding is Finding.PARTLY
    assert fine.verdict.reason.endswith("controls passed: 1 of 1, none failed")
    halfway = EstimateChecks(whole(), (passed,), complete=False).verdict
    assert halfway.reason.endswith("the check was interrupted")
    bad = EstimateChecks(whole(), (replace(passed, kind="windows"), failed))
    assert bad.verdict.finding is Finding.NOT_SHOWN
    assert "a control fails. Other gammas: sure signs turn round" in str(bad.verdict)
    assert f"verdict: {bad.verdict}\n" in bad.summary()
    # Nor does the estimate say anything else then.
    assert bad.checked.verdict == (Finding.NOT_SHOWN, "a control fails")
    page = estimate_page(whole(), checks=bad)
    assert "<b>Not shown</b>" in page and "control failed: Other gammas" in bad.checked.summary()
    assert fine.checked is fine.estimate
    # No control makes an estimate better than it is.
    doubtful = whole(status=Status.NOT_CONVERGED)
    assert EstimateChecks(doubtful, (passed,)).verdict == doubtful.verdict


def test_stages_take_with_them_what_is_known_of_them() -> None:
    stages = [[Episode([0, 1], [0, 1], [[float(t)]] * 2)] for t in range(4)]
    history = LearningHistory.from_episodes(
        stages, parameters=np.arange(4.0)[:, None], learning_rates=[0.1, 0.2, 0.4]
    )
    history = replace(history, notes=({"n": 0}, {"n": 1}, {"n": 2}, {"n": 3}), own_episodes=True)
    found = rearranged(history, [2, 0, 3])
    assert [n["n"] for n in found.notes] == [2, 0, 3] and found.own_episodes is None
    np.testing.assert_array_equal(found.parameters(), [[2.0], [0.0], [3.0]])
    # From stage 2 to 0 are steps 0 and 1, from 0 to 3 all three.
    np.testing.assert_allclose(found.learning_rates, [0.3, 0.7])
    assert rearranged(history, range(4)).own_episodes is True


def test_decoys_depend_on_observation_and_action_alone() -> None:
    asked = Asked(watched(RandomWalk(), n_steps=2), 0.8, None, True, (), True, 2, None, 5)
    ((_, history, _),) = KINDS["decoys"].trials(asked)
    assert history.feature_names[-2:] == ("decoy 1", "decoy 2")
    seen: dict[tuple[int, int], Any] = {}
    for stage in history:
        assert stage.features is not None and stage.features.shape[1] == 5
        for s, a, row in zip(stage.observations, stage.actions, stage.features, strict=True):
            np.testing.assert_allclose(seen.setdefault((int(s), int(a)), row[3:]), row[3:])
    values = np.array(list(seen.values()))
    assert len(values) == 18 and np.abs(values).max() <= 1
    # Neither constant nor functions of each other.
    assert (values.std(axis=0) > 0.3).all() and abs(np.corrcoef(values.T)[0, 1]) < 0.7


def test_other_windows_are_tried_where_sessions_were_cut() -> None:
    episodes = [e for stage in watched(RandomWalk(), n_steps=2) for e in stage.episodes]
    cut = LearningHistory.from_sessions(episodes, windows=6)
    for history, windows, wanted in (
        (cut, None, ["3 windows", "12 windows"]),
        (cut, [4], ["4 windows"]),
        (watched(RandomWalk(), n_steps=2), None, []),
    ):
        asked = Asked(history, 0.8, None, True, (), False, 2, windows, 0)
        assert [name for name, *_ in KINDS["windows"].trials(asked)] == wanted


def test_mistakes_are_told() -> None:
    history = watched(RandomWalk(), n_steps=2)
    for wrong, words in (
        ({"intervals": False}, "leave out intervals"),
        ({"n_decoys": 0}, "at least 1"),
        ({"windows": [3]}, "not the 3 there are"),
        ({"controls": ["miracle"]}, "there is no control 'miracle'"),
    ):
        with pytest.raises(OptionError, match=words):
            check_estimate(history, POLICY, gamma=0.8, **wrong)
    with pytest.raises(OptionError, match="one learner"):
        check_estimate([history, history], POLICY, gamma=0.8)  # type: ignore[arg-type]


# --- files, pictures, pages, commands ---------------------------------------------------------


def test_checks_survive_and_no_file_can_claim_to_have_passed(learnt: EstimateChecks) -> None:
    raw = json.loads(learnt.to_json())
    assert EstimateChecks.from_json(json.dumps(raw)).summary() == learnt.summary()
    raw["verdict"] = {"finding": "found", "reason": "trust me"}
    reverse = raw["controls"][0]
    assert reverse["kind"] == "reversed" and reverse["outcome"] == "passed"
    same = dict.fromkeys(("weights", "low", "high"), learnt.estimate.weights.tolist())
    reverse["variants"] = [{"name": "so", "doubt": "", "gain": 1e9, **same}]
    assert not EstimateChecks.from_json(json.dumps(raw)).verdict.shown
    for spoilt in (
        {"controls": [{**reverse, "kind": "miracle"}]},
        {"controls": [reverse, reverse]},
        {"controls": [{**reverse, "variants": reverse["variants"] * 2}]},
        {"controls": [{**reverse, "variants": [{**reverse["variants"][0], "low": [1.0]}]}]},
        {"complete": "yes"},
        {"estimate": None},
    ):
        with pytest.raises(FormatError):
            EstimateChecks.from_json(json.dumps({**raw, **spoilt}))


def test_one_panel_for_each_weight_and_one_line_for_each_inference(learnt: EstimateChecks) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    axes = learnt.plot()
    n = 1 + sum(len(control.variants) for control in learnt.controls)
    assert len(axes) == 3 and len(axes[0].get_yticks()) == n
    assert {a.get_title(loc="left") for a in axes} == set(learnt.estimate.feature_names)
    pyplot.close("all")


def test_the_command_checks_draws_and_reports(learnt: EstimateChecks, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    watched(SoftValueIteration()).save(tmp_path / "history")
    out, picture = tmp_path / "checks.json", tmp_path / "checks.png"
    done = logel(
        *("check", tmp_path / "history", "--gamma", 0.8, "--quick"),
        *("--out", out, "--figure", picture, "--json"),
    )
    assert done.returncode == 0, done.stderr
    saved = EstimateChecks.load(out)
    assert json.loads(done.stdout) == json.loads(saved.to_json()) and saved.complete
    assert [control.kind for control in saved.controls] == [
        "reversed",
        "shuffled",
        "decoys",
        "halves",
    ]
    assert done.stderr == f"verdict: {saved.verdict}\n" and picture.read_bytes()[1:4] == b"PNG"
    saved.estimate.save(tmp_path / "estimate.json")
    page = tmp_path / "page.html"
    done = logel("report", tmp_path / "estimate.json", "--checks", out, "--out", page)
    assert done.returncode == 0, done.stderr
    for words in ("Stages reversed", "Weights inferred again", "none failed"):
        assert words in page.read_text()
    replace(saved.estimate, weights=-saved.estimate.weights).save(tmp_path / "other.json")
    done = logel("report", tmp_path / "other.json", "--checks", out, "--out", page)
    assert done.returncode == 2 and "checks are of another estimate" in done.stderr


def test_what_was_made_is_kept_when_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learnt: EstimateChecks
) -> None:
    watched(RandomWalk(), n_steps=2).save(tmp_path / "history")
    calls = 0

    def infer(*_: Any, **__: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return learnt.estimate

    monkeypatch.setattr("logel.inference.check.infer_reward", infer)
    out = tmp_path / "checks.json"
    command = ("check", tmp_path / "history", "--gamma", 0.8, "--quick", "--out", out)
    done = logel(*command)
    assert done.returncode == 130 and "has the 2 controls that were made" in done.stderr
    kept = EstimateChecks.load(out)
    assert not kept.complete
    assert [control.kind for control in kept.controls] == ["reversed", "shuffled"]
    calls = 3
    done = logel(*command[:-2])
    assert done.returncode == 130 and "nothing was written" in done.stderr
