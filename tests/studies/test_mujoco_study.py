"""The MuJoCo studies: the whole pipeline at its quick size, resumed, and its judgements."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("mujoco", reason="needs the extra mujoco")
pytest.importorskip("stable_baselines3", reason="needs the extra mujoco")

from typer.testing import CliRunner

from logel.cli.main import app
from logel.envs.mujoco import reacher_bumps
from logel.studies import hopper, mujoco, reacher
from logel.studies.plots import save_figure
from logel.studies.registry import STUDIES
from logel.studies.study import StudyOptions, reproduce


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.slow
@pytest.mark.parametrize("study", ["hopper", "reacher"])
def test_the_quick_version_runs_from_learner_to_figures(
    study: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGEL_CACHE", str(cache))
    command = ["reproduce", study, "--quick", "--runs", "1", "--jobs", "1", "--json"]
    result = CliRunner().invoke(app, [*command, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    folder = tmp_path / study
    table = pd.read_csv(folder / "table.csv")
    assert set(table.observer) == {"learner", *mujoco.OBSERVERS}
    size = mujoco.SIZES["quick"]
    lengths = table[table.part == "curve"].groupby("observer")["update"].nunique()
    assert lengths["learner"] == size.updates
    assert (lengths.drop("learner") == size.observer_updates).all()
    ends = mujoco.curves(table, "learner")
    assert ends.iloc[0, 0] == 0 and ends.iloc[0, -1] == 1
    weights = mujoco.weights(table, "default").weight.to_numpy()
    assert len(weights) == (3 if study == "hopper" else 26)
    assert np.linalg.norm(weights) == pytest.approx(1)
    made = json.loads((folder / "made-by.json").read_text())
    assert made["options"]["quick"] and "mujoco" in made["packages"]
    for name in (f"{study}.png", f"{study}.svg", "claims.json", "summary.md"):
        assert (folder / name).stat().st_size > 0
    # Asked again, nothing is trained again.
    options = StudyOptions(runs=1, quick=True)
    again = reproduce(STUDIES[study], options, out=tmp_path, jobs=1)
    assert again.run.computed == 0 and again.run.reused == 5
    # An observer that is not done yet is left out, and not computed.
    (missing,) = (folder / "tasks").glob("*observer=paper*.json")
    missing.unlink()
    result = CliRunner().invoke(app, [*command, "--out", str(tmp_path), "--finished"])
    assert result.exit_code == 0, result.output
    assert not missing.exists()
    table = pd.read_csv(folder / "table.csv")
    assert set(table.observer) == {"learner", *mujoco.OBSERVERS} - {"paper"}


@pytest.mark.slow
def test_a_learner_that_was_stopped_is_trained_again_and_the_same(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGEL_CACHE", str(cache))
    size = mujoco.SIZES["quick"]
    history, returns = mujoco.recorded_learner("Hopper-v5", 0, size)
    parameters = history.parameters()
    (folder,) = cache.glob("Hopper-v5-seed0-*")
    # What a kill leaves: a history without its last stage, and no returns.
    (folder / "returns.json").unlink()
    (folder / "history" / f"stage-{size.updates - 1:05d}.safetensors").unlink()
    again, same = mujoco.recorded_learner("Hopper-v5", 0, size)
    np.testing.assert_array_equal(same, returns)
    np.testing.assert_array_equal(again.parameters(), parameters)


def test_the_heat_map_peaks_where_its_weights_say() -> None:
    centres = reacher_bumps().centres
    weights = np.zeros(26)
    weights[17] = 1.0
    values, peak = reacher.heat_map(weights)
    np.testing.assert_allclose(peak, centres[17], atol=1e-9)
    assert values.max() == pytest.approx(1.0) and values.shape == (81, 81)
    # A bump of deviation .05, .1 away along one axis.
    index = round((peak[0] + 0.2) / 0.005) - 20
    column = round((peak[1] + 0.2) / 0.005)
    assert values[index, column] == pytest.approx(np.exp(-0.5 * (0.1 / 0.05) ** 2))


def made_up(scores: dict[str, list[float]], study: str) -> pd.DataFrame:
    """Runs whose agents end with the given scores, and weights with known intervals."""
    rows = []
    for observer, ends in scores.items():
        for seed, end in enumerate(ends):
            for update, score in enumerate((0.0, end)):
                row = {"part": "curve", "update": update, "score": score}
                rows.append({"observer": observer, "seed": seed, **row})
            if observer in ("default", "paper") and study == "hopper":
                for feature, low, truth in (("distance", 0.9, 0.999), ("alive", 0.0, 0.008)):
                    # In the first run, "alive" misses the truth.
                    low = 0.01 if feature == "alive" and seed == 0 else low
                    row = {"part": "weight", "feature": feature, "weight": low + 0.01}
                    ends_ = {"low": low, "high": low + 0.2, "truth": truth}
                    rows.append({"observer": observer, "seed": seed, **row, **ends_})
            elif observer in ("default", "paper"):
                row = {"part": "fit", "peak distance": 0.02 * (1 + seed), "seconds": 1.0}
                rows.append({"observer": observer, "seed": seed, **row})
    return pd.DataFrame(rows)


def test_claims_are_judged_by_the_runs() -> None:
    scores = {
        "learner": [1.0] * 4,
        "default": [1.2, 1.3, 1.25, 1.22],
        "paper": [1.0, 0.2, 1.4, 0.4],
        "lfl": [0.1, 0.2, 0.15, 0.12],
        "trex": [0.8, 0.9, 0.85, 0.88],
    }
    verdicts = {(c.observer, c.claim): c.verdict for c in hopper.claims(made_up(scores, "hopper"))}
    assert verdicts["default", "comes as far as the learner"] == "holds"
    assert verdicts["default", "does better than lfl"] == "holds"
    assert verdicts["paper", "comes as far as the learner"] == "undecided"
    assert verdicts["lfl", "LfL fails"] == "holds"
    assert verdicts["trex", "T-REX is decent"] == "holds"
    honest = next(
        c
        for c in hopper.claims(made_up(scores, "hopper"))
        if c.claim == "intervals are honest" and c.observer == "default"
    )
    assert honest.value == pytest.approx(0.75)
    reached = {(c.observer, c.claim): c for c in reacher.claims(made_up(scores, "reacher"))}
    assert reached["trex", "T-REX fails"].verdict == "does not hold"
    assert reached["default", "the recovered reward peaks at the target"].value == pytest.approx(
        0.05
    )
    assert reached["default", "learns slower than the learner"].value == pytest.approx(
        0.5 * (1 - np.mean(scores["default"]))
    )


@pytest.mark.parametrize("study", ["hopper", "reacher"])
@pytest.mark.parametrize("observer", ["paper", "lfl"])
def test_one_observer_alone_is_drawn_and_summed_up(
    study: str, observer: str, tmp_path: Path
) -> None:
    table = made_up({"learner": [1.0] * 3, observer: [0.5, 0.6, 0.7]}, study)
    if study == "hopper" or observer == "lfl":
        extra = {"part": "fit", "observer": observer, "seed": 0, "seconds": 1.0}
        table = pd.concat([table, pd.DataFrame([extra])], ignore_index=True)
    assert observer in mujoco.summary(table)
    figure = STUDIES[study].figure(table)
    if (study, observer) == ("hopper", "paper"):
        ticks = [label.get_text() for label in figure.axes[1].get_xticklabels()]
        assert ticks == ["distance", "alive"]
    save_figure(figure, tmp_path / "figure.png")
