"""Without an extra, commands that need it say so in one sentence; the others work."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from estimates import example
from logel.cli.console import EXTRAS
from logel.envs.gridworld import grid_weights, gridworld_mdp
from logel.envs.mujoco import FEATURES
from logel.learners.tabular import SoftValueIteration, observe

ROOT = Path(__file__).parents[1]
# Refuses imports as if the packages were not there, and runs commands one after the other.
PROGRAM = """
import contextlib, io, json, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

BLOCKED, commands = json.loads(sys.argv[1])
sys.meta_path.insert(0, Refuse())
import logel
from logel.cli.main import main
answers = []
for command in commands:
    out, err, code = io.StringIO(), io.StringIO(), 0
    sys.argv = ["logel", *command]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    answers.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(answers))
"""


def without(
    packages: set[str], commands: list[list[str]], folder: Path
) -> list[tuple[int, str, str]]:
    """Exit code, standard output and standard error of each command."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([sorted(packages), commands])],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(answer) for answer in json.loads(done.stdout)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history, a table, and an estimate about Hopper."""
    path = tmp_path_factory.mktemp("extras")
    mdp = gridworld_mdp()
    weights = grid_weights(mdp.feature_names)
    history = observe(mdp, SoftValueIteration(), weights=weights, n_steps=2, n_episodes=5)
    history.save(path / "history")
    (path / "steps.csv").write_text("stage,episode,time,observation,action\n0,0,0,1,1\n")
    example(feature_names=tuple(FEATURES["Hopper-v5"].names)).save(path / "est.json")
    return path


TRAIN = ["train", "--estimate", "est.json", "--env", "Hopper-v5", "--out", "new"]


# Together in one process, since importing torch is what takes the time.
CASES: list[dict[str, list[str]]] = [
    {
        "matplotlib": ["demo", "--out", "new.png"],
        "pyarrow": ["import", "steps.csv", "--out", "new"],
        "minari": ["export", "history", "new", "--to", "minari"],
        "stable_baselines3": TRAIN,
    },
    {
        "pandas": ["reproduce", "gridworld-known", "--runs", "1", "--out", "new"],
        "h5py": ["export", "history", "new", "--to", "minari"],
        "fsspec": ["inspect", "s3://bucket/run"],
        "tensorboard": [*TRAIN, "--tensorboard", "new"],
    },
    {
        "libsumo": ["reproduce", "crossroad", "--quiet", "--runs", "1", "--out", "runs"],
        "Box2D": ["reproduce", "lunarlander", "--quiet", "--runs", "1", "--out", "runs"],
        "mujoco": [*TRAIN, "--updates", "1"],
        "aiohttp": ["infer", "https://127.0.0.1:9/run"],
        "ray": ["reproduce", "gridworld-known", "--quiet", "--backend", "ray", "--out", "runs"],
    },
]


@pytest.mark.slow
@pytest.mark.parametrize("cases", CASES)
def test_one_sentence_names_the_extra(cases: dict[str, list[str]], folder: Path) -> None:
    needed = ("matplotlib", "minari", "mujoco", "pandas", "stable_baselines3")
    if absent := [name for name in needed if find_spec(name) is None]:
        pytest.skip(f"{', '.join(absent)} not installed: any sentence would be about that")
    for (package, command), (code, out, err) in zip(
        cases.items(), without(set(cases), list(cases.values()), folder), strict=True
    ):
        assert code == 2 and out == "", (command, out, err)
        extra = f"pip install '{ROOT}[{EXTRAS[package]}]'"
        assert err.startswith("error: ") and err.strip().endswith(extra), err
        assert package in err.replace("-", "_"), err
        assert len(err.strip().splitlines()) == 1
        assert not list(folder.glob("new*")), "nothing was written"


@pytest.mark.slow
def test_without_any_extra_the_core_works(folder: Path) -> None:
    commands = [
        ["--help"],
        ["--version"],
        ["record", "gridworld", "recorded", "--steps", "2", "--episodes", "5"],
        ["inspect", "recorded"],
        ["infer", "recorded", "--method", "paper", "--out", "found.json", "--json"],
        ["report", "found.json", "--history", "recorded"],
    ]
    for command, (code, out, err) in zip(
        commands, without(set(EXTRAS), commands, folder), strict=True
    ):
        assert code == 0, (command, err)
        # An answer as JSON has its verdict beside it.
        assert out and (not err or ("--json" in command and err.startswith("verdict: "))), err
    assert (folder / "report.html").is_file()


def test_import_and_help_cost_little_without_any_extra(folder: Path) -> None:
    block = f"import sys\nfor name in {sorted(EXTRAS)}: sys.modules[name] = None\n"
    measure = "import time\nprint(time.process_time())"
    for program in (
        "import logel",
        "from logel import infer_reward",
        "sys.argv = ['logel', '--help']\nfrom logel.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass",
    ):
        times = []
        for _ in range(3):
            done = subprocess.run(
                [sys.executable, "-c", f"{block}{program}\n{measure}"],
                capture_output=True,
                text=True,
                check=True,
            )
            times.append(float(done.stdout.split()[-1]))
        assert min(times) < (2.0 if "infer_reward" in program else 1.0), times


def test_every_optional_package_has_an_extra_that_exists() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert set(EXTRAS.values()) <= extras.keys()
    (everything,) = extras["all"]
    listed = everything.removeprefix("logel[").removesuffix("]").split(",")
    assert set(listed) == extras.keys() - {"all", "dev", "docs"}
