"""A reward that nobody named: by hand, in tables under several methods, and on disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from logel import LearningHistory, TabularSoftmax, infer_reward
from logel.cli.main import app
from logel.data.stage import Episode, Stage
from logel.envs.gridworld import GridMap, gridworld_mdp
from logel.envs.tabular import TabularMDP
from logel.errors import FormatError
from logel.inference.dictionary import Dictionary, arrivals
from logel.inference.estimate import RewardEstimate
from logel.inference.single import judged
from logel.inference.unexplained import Unexplained
from logel.learners.tabular import (
    NaturalGradientAscent,
    SoftValueIteration,
    TabularLearner,
    observe,
)
from logel.policies.networks import MLPGaussian
from logel.report.page import write_report
from logel.types import Float

CELL = 7


def steps_of(
    rng: np.random.Generator, hidden: float, *, m: int = 12, k: int = 5, noise: float = 0.1
) -> tuple[Float, Float]:
    """Information and pulls of steps in which one named weight and element 3 are paid."""
    design = rng.standard_normal((m, 40, 1 + k))
    moved = design[:, :, 0] + hidden * design[:, :, 4] + noise * rng.standard_normal((m, 40))
    return np.einsum("tdi,tdj->tij", design, design), np.einsum("tdi,td->ti", design, moved)


def test_the_hidden_element_is_found_with_its_amount() -> None:
    found = judged(*steps_of(np.random.default_rng(0), 0.5), np.eye(1))
    assert int(np.argmax(found.shares)) == 3
    assert found.shares[3] > 0.99
    assert abs(found.amounts[3] - 0.5) < 4 * found.errors[3]
    assert found.errors[3] < 0.02
    assert found.gain > np.log(20)


def test_of_nothing_hidden_nothing_is_found() -> None:
    gains = [judged(*steps_of(np.random.default_rng(s), 0.0), np.eye(1)).gain for s in range(200)]
    # One in twenty may pass the turned steps alone; the odds ask for more.
    assert np.mean(np.array(gains) >= np.log(20)) <= 0.05


def test_what_does_not_repeat_from_step_to_step_is_not_hidden() -> None:
    """One step that goes an element's way is no reward, however far it goes."""
    information, pulls = steps_of(np.random.default_rng(1), 0.0)
    pulls = pulls.copy()
    pulls[4] += information[4, :, 4] * 5.0
    assert judged(information, pulls, np.eye(1)).gain < np.log(20)


def test_too_few_steps_never_convince() -> None:
    information, pulls = steps_of(np.random.default_rng(2), 1.0, m=5)
    assert judged(information, pulls, np.eye(1)).gain <= 0


def test_what_named_features_do_as_well_is_not_told() -> None:
    """An element with the named feature's own effect says nothing and gets no amount."""
    rng = np.random.default_rng(3)
    design = rng.standard_normal((12, 40, 1))
    design = np.concatenate([design, design], axis=2)
    moved = design[:, :, 0] + 0.1 * rng.standard_normal((12, 40))
    information = np.einsum("tdi,tdj->tij", design, design)
    found = judged(information, np.einsum("tdi,td->ti", design, moved), np.eye(1))
    assert found.amounts[0] == 0
    assert found.entangled[0] == pytest.approx(1)
    assert found.alike[0, 0] == pytest.approx(1)


def test_elements_of_a_table_and_of_a_plane_by_hand() -> None:
    table = Stage.from_episodes([Episode(np.array([0, 2, 2, 5]), np.array([0, 1, 2]))])
    elements = Dictionary.of([table], TabularSoftmax(6, 3))
    assert elements.names == ("state 2", "state 5", "action 0", "action 1", "action 2")
    assert elements(table.actions, arrivals(table)).tolist() == [
        [1, 0, 1, 0, 0],
        [1, 0, 0, 1, 0],
        [0, 1, 0, 0, 1],
    ]
    rng = np.random.default_rng(0)
    where, did = rng.uniform(-1, 1, (201, 2)), rng.standard_normal((200, 1))
    plane = Stage.from_episodes([Episode(where, did)])
    elements = Dictionary.of([plane], MLPGaussian(2, 1))
    assert elements.placed.sum() == 36 and elements.names[-2:] == ("action[0]", "action[0] squared")
    values = elements(plane.actions, arrivals(plane))
    away = (where[6] - elements.centres[10]) / elements.widths
    assert values[5, 10] == pytest.approx(np.exp(-0.5 * away @ away))
    assert values[:, -1] == pytest.approx((did[:, 0] / np.sqrt(np.mean(did**2))) ** 2)


# --- tables ---------------------------------------------------------------------------------------


def watched(learner: TabularLearner, bonus: float, *, m: int, known: bool = False):
    """The paper's gridworld, in which one light cell pays a bonus that has no name."""
    mdp = gridworld_mdp(GridMap.parse())
    arrived = np.broadcast_to((np.arange(25) == CELL)[:, None], (25, 4, 25, 1))
    paid = TabularMDP(
        mdp.transitions,
        np.concatenate([mdp.features, arrived], axis=3),
        mdp.initial,
        mdp.gamma,
        (*mdp.feature_names, "hidden"),
    )
    weights = np.array([0.1, -0.5, -0.6, 0.2, 0.5, bonus])
    seen = observe(paid, learner, weights=weights, n_steps=m, seed=4, parameters=known)
    stages = [replace(s, features=s.features[:, :-1]) for s in seen]
    return LearningHistory.from_stages(
        stages, feature_names=mdp.feature_names, metadata=seen.metadata
    )


@pytest.mark.parametrize(
    ("learner", "m", "method", "known"),
    [
        (SoftValueIteration(), 6, "joint", False),
        (NaturalGradientAscent(), 10, "joint", True),
        (NaturalGradientAscent(), 10, "mirror", True),
    ],
)
def test_a_hidden_cell_is_flagged_and_an_honest_learner_is_not(
    learner: TabularLearner, m: int, method: str, known: bool
) -> None:
    for bonus in (1.0, 0.0):
        history = watched(learner, bonus, m=m, known=known)
        estimate = infer_reward(history, TabularSoftmax(25, 4), method=method, intervals=False)
        found = estimate.unexplained(history, TabularSoftmax(25, 4))
        assert found.found == bool(bonus), found.summary()
        if bonus:
            assert found.place == [CELL] and found.names[found.best] == f"state {CELL}"
            assert found.amounts[found.best] > 0
            assert "a hidden reward" in found.summary()
        else:
            assert "nothing that was not named" in found.summary()


# --- files, page, command line --------------------------------------------------------------------


@pytest.fixture(scope="module")
def found_and_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Unexplained, Path]:
    folder = tmp_path_factory.mktemp("hidden")
    history = watched(SoftValueIteration(), 1.0, m=6)
    history.save(folder / "history")
    infer_reward(history, intervals=False).save(folder / "estimate.json")
    arguments = ["unexplained", str(folder / "history"), str(folder / "estimate.json"), "--quiet"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(folder / "hidden.json"), "--json"])
    assert result.exit_code == 0, result.output
    found = Unexplained.load(folder / "hidden.json")
    assert json.loads(result.stdout)["best"] == found.best
    return found, folder


def test_it_is_read_as_it_was_written(found_and_files: tuple[Unexplained, Path]) -> None:
    found, _ = found_and_files
    again = Unexplained.from_json(found.to_json())
    assert again.summary() == found.summary()
    assert again.to_json() == found.to_json()
    assert found.found and found.names[found.best] == f"state {CELL}"


@pytest.mark.parametrize(
    "spoilt",
    [
        {"shares": [0.5, 0.5]},
        {"centres": []},
        {"alike": [None]},
        {"format": "else"},
        {"feature_names": []},
        {"gain": "much"},
    ],
)
def test_spoilt_files_are_refused(
    found_and_files: tuple[Unexplained, Path], spoilt: dict[str, object]
) -> None:
    raw = {**found_and_files[0].to_plain(), **spoilt}
    with pytest.raises(FormatError):
        Unexplained.from_json(json.dumps(raw))


def test_the_report_has_a_section(found_and_files: tuple[Unexplained, Path]) -> None:
    found, folder = found_and_files
    estimate = RewardEstimate.load(folder / "estimate.json")
    page = write_report(estimate, folder / "page.html", unexplained=found).read_text()
    assert "What nobody named" in page and f"state {CELL}" in page and "<svg" in page
    plane = replace(
        found,
        names=tuple(f"<b>{i}</b>" for i in range(16)),
        centres=np.stack(np.meshgrid(range(4), range(4)), axis=-1).reshape(-1, 2).astype(float),
        discrete=False,
        **{name: np.full(16, 1 / 16) for name in ("shares", "amounts", "errors")},
    )
    page = write_report(estimate, folder / "page.html", unexplained=plane).read_text()
    assert "Where it would pay" in page and "<b>0</b>" not in page
    assert "What nobody named" not in write_report(estimate, folder / "page.html").read_text()
