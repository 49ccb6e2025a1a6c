import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from logel.errors import OptionError
from logel.studies import gridworld, measures
from logel.studies.registry import STUDIES, select
from logel.studies.study import ALL_OBSERVERS, StudyOptions, reproduce


def test_every_study_writes_table_figure_and_claims(tmp_path: Path) -> None:
    options = StudyOptions(runs=2, observers=("authors", "lfl", "learner"))
    for study in select("gridworld"):
        result = reproduce(study, options, out=tmp_path, jobs=1)
        assert not result.run.failures
        folder = tmp_path / study.name
        table = pd.read_csv(folder / "table.csv")
        assert table.seed.nunique() == 2
        assert json.loads((folder / "claims.json").read_text())
        assert "**" in (folder / "summary.md").read_text()
        assert json.loads((folder / "made-by.json").read_text())["options"]["runs"] == 2
        assert (folder / f"{study.name}.png").read_bytes()[:4] == b"\x89PNG"
        assert "<svg" in (folder / f"{study.name}.svg").read_text()
        # What is done can be looked at while the rest is missing.
        files = sorted((folder / "tasks").glob("*.json"))
        for path in random.Random(0).sample(files, len(files) // 2):
            path.unlink()
        left = {path.name for path in (folder / "tasks").glob("*.json")}
        partial = reproduce(study, options, out=tmp_path, finished=True)
        assert partial.run.missing == len(files) // 2 and not partial.run.computed
        assert {path.name for path in (folder / "tasks").glob("*.json")} == left
        made = json.loads((folder / "made-by.json").read_text())
        assert made["missing tasks"] == len(files) // 2
        assert len(pd.read_csv(folder / "table.csv")) < len(table)


def test_learning_curves_rise_towards_the_optimum_and_not_beyond(tmp_path: Path) -> None:
    result = reproduce(STUDIES["gridworld-curves"], StudyOptions(runs=3), out=tmp_path, jobs=1)
    table = pd.DataFrame([dict(row) for row in result.run.rows])
    assert table.best_value.unique() == pytest.approx([3.189], abs=1e-3)
    assert (table.value <= table.best_value + 1e-9).all()
    for _, rows in table.groupby("learner"):
        mean = rows.groupby("stage")["return"].mean()
        # Twenty steps at random earn -16.1 on average.
        assert mean[0] == pytest.approx(-16.1, abs=1.5)
        assert mean.iloc[-3:].mean() > mean.iloc[:3].mean() + 3


def test_observers_watch_the_same_learner() -> None:
    options = StudyOptions(runs=1, observers=("lfl", "learner"))
    tasks = STUDIES["gridworld-learners"].tasks(options)
    chosen = [t for t in tasks if t.setting["learner"] == "svi"]
    seeds = {tuple(t.seed_sequence(ignoring=("observer",)).generate_state(4)) for t in chosen}
    assert len(chosen) == 2 and len(seeds) == 1


def test_stages_needed_is_where_the_regret_stays_small() -> None:
    wide = pd.DataFrame(
        [[0.5, 0.0, 0.0], [0.0, 0.3, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.3]], columns=[2, 4, 6]
    )
    np.testing.assert_array_equal(gridworld._stages_needed(wide), [4, 6, 2, 8])


def test_learners_that_know_the_optimum_have_no_regret() -> None:
    where = measures.world("", "code")
    assert where.best == pytest.approx(3.189, abs=1e-3)
    table = where.mdp.expected_features @ where.weights
    assert where.regret(where.value(measures.plan(where.mdp, table))) == pytest.approx(0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"runs": 0}, "runs"),
        ({"observers": ("magic",)}, "magic"),
        ({"weights": "light=1"}, "weight"),
        ({"map_text": "..x", "weights": "code"}, "x"),
        ({"weights": "light=1,orange=1,dark=1,blue=1,goal=1"}, "every policy earns the same"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], expected: str) -> None:
    with pytest.raises(OptionError, match=expected):
        StudyOptions(**options)  # type: ignore[arg-type]


def test_every_observer_can_be_chosen_and_some_may_be_left_out() -> None:
    assert {name for study in STUDIES.values() for name in study.observers} == set(ALL_OBSERVERS)

    def observers(study: str, *chosen: str) -> set[object]:
        tasks = STUDIES[study].tasks(StudyOptions(runs=1, observers=chosen))
        return {task.setting.get("observer") for task in tasks}

    assert observers("accuracy-random", "paper", "girl") == {"paper"}
    assert observers("accuracy-random", "girl") == set()
    # Where there is nothing to choose nothing is left out.
    assert observers("accuracy-null", "paper") == {"default"}
    assert observers("gridworld-curves", "paper") == {None}


@pytest.mark.parametrize("options", [{"weights": "paper-text"}, {"quick": True}])
def test_what_a_study_does_not_have_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(OptionError, match="accuracy-random"):
        STUDIES["accuracy-random"].tasks(StudyOptions(**options))  # type: ignore[arg-type]


def test_importing_the_studies_does_not_load_matplotlib() -> None:
    code = "import sys, logel.studies.registry; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_study_is_refused() -> None:
    with pytest.raises(OptionError, match="gridworld-known"):
        select("mars")


@pytest.mark.slow
def test_a_killed_study_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    def command(out: Path) -> list[str]:
        code = (
            "from pathlib import Path\n"
            "from logel.studies.registry import STUDIES\n"
            "from logel.studies.study import StudyOptions, reproduce\n"
            "options = StudyOptions(runs=3, observers=('lfl', 'learner'))\n"
            "study = STUDIES['gridworld-learners']\n"
            f"reproduce(study, options, out=Path({str(out)!r}), jobs=2)\n"
        )
        return [sys.executable, "-c", code]

    subprocess.run(command(tmp_path / "whole"), check=True)
    rng = random.Random(0)
    broken, killed = tmp_path / "broken", 0
    for _ in range(3):
        process = subprocess.Popen(command(broken), start_new_session=True)
        finished = len(list(broken.rglob("tasks/*.json")))
        deadline = time.monotonic() + 300
        # Wait until it is really at work, then strike at a random moment.
        while len(list(broken.rglob("tasks/*.json"))) <= finished and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.3))
        # On a quick machine the last of three may have finished by now.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        killed += process.returncode == -signal.SIGKILL
    assert killed >= 2
    subprocess.run(command(broken), check=True)
    name = STUDIES["gridworld-learners"].name
    for file in ("table.csv", "claims.json", f"{name}.png", f"{name}.svg"):
        whole = (tmp_path / "whole" / name / file).read_bytes()
        assert (broken / name / file).read_bytes() == whole, file
