"""What a file says is checked when it is loaded, and refused in a sentence that can be printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.command_line import logel
from tests.estimates import example

from logel.data.folder import FORMAT_VERSION, MANIFEST, STAGES, HistoryWriter
from logel.data.history import LearningHistory
from logel.data.limits import parse_json
from logel.data.stage import Episode, Stage
from logel.errors import FormatError, HistoryError, LogelError, PolicyError, check_gamma
from logel.inference.estimate import RewardEstimate
from logel.inference.infer import infer_reward
from logel.policies.choose import choose_policy

ESCAPE = "\x1b[31mred\x07"


def stage(n_parameters: int) -> Stage:
    return Stage.from_episodes(
        [Episode(np.arange(3), np.arange(2), np.ones((2, 1)))], np.zeros(n_parameters)
    )


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))) + "\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with HistoryWriter(tmp_path / "h", feature_names=["one"], metadata={"gamma": 0.9}) as writer:
        for _ in range(3):
            writer.append(stage(2))
    return tmp_path / "h"


# --- histories ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, FORMAT_VERSION])
def test_stages_of_unequal_parameter_lengths(folder: Path, tmp_path: Path, version: int) -> None:
    with HistoryWriter(tmp_path / "other") as writer:
        writer.append(stage(3))
    named = "stage-00001.safetensors"
    (folder / named).write_bytes((tmp_path / "other" / "stage-00000.safetensors").read_bytes())
    lines = [json.loads(line) for line in (folder / STAGES).read_text().splitlines()]
    (line, *_) = (tmp_path / "other" / STAGES).read_text().splitlines()
    lines[1] = {**json.loads(line), "file": named}
    if version == 1:
        edit(folder / MANIFEST, lambda m: {**m, "format_version": 1, "stages": lines[:-1]})
        edit(folder / MANIFEST, lambda m: {**m, "complete": True})
    (folder / STAGES).write_text("".join(json.dumps(line) + "\n" for line in lines))
    opened = LearningHistory.load(folder)
    with pytest.raises(FormatError, match=r"stage 1: parameters must be like those of stage 0.* 3"):
        opened[1]
    assert opened[2].n_parameters == 2
    done = logel("inspect", folder)
    assert done.returncode == 2 and "stage 1" in done.stderr


def test_nesting(folder: Path) -> None:
    def nested(depth: int) -> bytes:
        return b'{"a":' * depth + b"[]" + b"}" * depth

    assert parse_json(nested(90), "this")
    for depth in (120, 900, 10**5):
        with pytest.raises(FormatError, match="this is corrupted or truncated"):
            parse_json(nested(depth), "this")
    edit(folder / MANIFEST, lambda m: {**m, "metadata": {"deep": json.loads(nested(500))}})
    with pytest.raises(FormatError, match=r"manifest\.json is corrupted.* nested more than 100"):
        LearningHistory.load(folder)


def test_control_characters_in_names_of_features(folder: Path) -> None:
    edit(folder / MANIFEST, lambda m: {**m, "feature_names": [ESCAPE]})
    done = logel("inspect", folder)
    assert done.returncode == 2 and "has control characters" in done.stderr
    assert done.stderr.rstrip("\n").isprintable() and done.stdout == ""


def test_control_characters_elsewhere_are_not_printed(folder: Path) -> None:
    edit(folder / MANIFEST, lambda m: {**m, "metadata": {"environment": ESCAPE}})
    edit(folder / MANIFEST, lambda m: {**m, "packages": {ESCAPE: ESCAPE}})
    done = logel("inspect", folder)
    assert done.returncode == 0 and "?[31mred?" in done.stdout
    assert not set(done.stdout) & {"\x1b", "\x07"}


@pytest.mark.parametrize("gamma", [10**400, -(10**400), 10**4000, float("nan"), True])
def test_a_gamma_of_400_digits(folder: Path, gamma: Any) -> None:
    edit(folder / MANIFEST, lambda m: {**m, "metadata": {"gamma": gamma}})
    done = logel("infer", folder)
    assert done.returncode == 2 and "gamma must be in [0, 1), but is" in done.stderr
    assert len(done.stderr) < 400
    with pytest.raises(LogelError, match="gamma must be in"):
        check_gamma(gamma)


@pytest.mark.parametrize("rate", [10**400, "1e999", "nan", -1, [1]])
def test_rates_that_are_no_numbers(folder: Path, rate: Any) -> None:
    lines = [json.loads(line) for line in (folder / STAGES).read_text().splitlines()]
    for line in lines[1:3]:
        line["learning_rate"] = rate
    (folder / STAGES).write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(FormatError, match=r"learning rates|stages\.jsonl is corrupted"):
        LearningHistory.load(folder)


@pytest.mark.parametrize("what", ["states", "actions"])
def test_negative_states(what: str, tmp_path: Path) -> None:
    values = np.array([-1, 0, 1])
    states, actions = (values, np.arange(2)) if what == "states" else (np.arange(3), values[:2])
    history = LearningHistory.from_episodes([[Episode(states, actions, np.ones((2, 1)))]] * 3)
    with pytest.raises(PolicyError, match=rf"(state|observation|action)s? -1 .*0\.\.|{what[:-1]}"):
        infer_reward(history, choose_policy(history, "auto"), gamma=0.5)


def test_messages_are_cut_and_printable(tmp_path: Path) -> None:
    with pytest.raises(HistoryError) as caught:
        LearningHistory.from_episodes(
            [[Episode([0, 1], [0], np.ones((1, 5000)))]],  # type: ignore[arg-type]
            feature_names=["a"] * 5000,
        )
    assert len(str(caught.value)) < 700
    assert str(FormatError(f"one\n{ESCAPE}")) == "one\n?[31mred?"
    assert str(FormatError("x" * 10**6 + "the end")).endswith("the end")


@pytest.mark.parametrize("error", [MemoryError, RecursionError, OverflowError])
def test_errors_of_the_machine_become_sentences(
    error: type[Exception], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error("x" * 10**4)

    monkeypatch.setattr("logel.data.inspection.inspect_history", fail)
    done = logel("inspect", folder)
    assert done.returncode == 2 and len(done.stderr) < 400
    assert done.stderr.startswith("error: too much for this machine: xxx")


# --- estimates ----------------------------------------------------------------------------------


def changed(**fields: Any) -> str:
    return json.dumps({**json.loads(example().to_json()), **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"draws": []}, "at least one feature and, if any, two draws"),
        ({"draws": [[None, 1.0, 1.0]] * 3}, "draws must be numbers"),
        (
            {"gauge": {"directions": [[None] * 3], "weak": [], "reasons": ["why"]}},
            "the gauge's dir",
        ),
        ({"gauge": {"directions": [], "weak": [[None] * 3], "reasons": []}}, "the gauge's weak"),
        ({"gauge": None}, "corrupted or truncated"),
        ({"weights": [None, 1.0, 1.0]}, "weights must be numbers"),
        ({"feature_names": ["a", "b", ESCAPE]}, "has control characters"),
        ({"feature_names": ["a", "b", "b"]}, "must differ from each other"),
        ({"format_version": 10**400}, "upgrade logel"),
        ({"format_version": -1}, "must be a positive integer"),
        ({"format_version": "4"}, "must be a positive integer"),
        ({"degrees_of_freedom": 1e999}, "corrupted or truncated"),
        ({"degrees_of_freedom": 10**400, "draws": None}, r"freedom must lie within 2\*\*53"),
        ({"rank": 10**400}, r"the rank must lie within 2\*\*53"),
        ({"config": [1, 2]}, "corrupted or truncated"),
    ],
)
def test_estimates_that_make_no_sense(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        RewardEstimate.from_json(changed(**fields))


def test_estimates_with_no_features() -> None:
    nothing = {"directions": [], "weak": [], "reasons": []}
    bare = {"weights": [], "feature_names": [], "gauge": nothing, "covariance": [], "draws": None}
    with pytest.raises(FormatError, match="at least one feature"):
        RewardEstimate.from_json(changed(**bare, planning=None))


def test_an_estimate_is_printed_without_control_characters() -> None:
    estimate = RewardEstimate.from_json(changed(method=ESCAPE, notes=[ESCAPE], scale=ESCAPE))
    assert all(line.isprintable() for line in estimate.summary().split("\n"))
