"""All studies by name, and how one is run from start to figures: the body of `logel reproduce`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from logel.data.folder import package_versions, write_atomically
from logel.errors import MissingExtraError, OptionError
from logel.studies.claims import Claim, write_claims
from logel.studies.run.backends import Backend
from logel.studies.run.files import write_table
from logel.studies.run.runner import StudyRun, collect, run_tasks
from logel.studies.run.tasks import Task, TaskFunction
from logel.studies.summary import markdown_claims, markdown_table

try:
    import pandas as pd
except ImportError:  # pragma: no cover - depends on what is installed
    raise MissingExtraError("pandas", "report") from None

from logel.studies import (
    accuracy,
    coverage,
    crossroad,
    crossroad_figures,
    gridworld,
    jacobian_accuracy,
    mujoco,
    mujoco_claims,
    mujoco_figures,
    other_worlds,
    paper_reward,
    study_figures,
)
from logel.studies.plots import save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TaskLister = Callable[[dict[str, str], Sequence[str], range], list[Task]]
ClaimJudge = Callable[[pd.DataFrame], list[Claim]]
ALL_OBSERVERS = ("default", "paper", "authors", "lfl", "girl", "trex", "learner")
# Raised whenever a change to the code changes results, so that old task files are not mixed in.
VERSION = 3


@dataclass(frozen=True)
class StudyOptions:
    """Everything a user may choose about a study; saved beside its results.

    Attributes:
        runs: Number of seeds.
        seed: The first of them.
        observers: Which observers to run.
        weights: The true reward: "code", "paper-text", or name=value pairs.
        map_text: The world's rows joined by "/"; empty for the paper's.
        quick: The whole pipeline in a short version, whose numbers mean nothing.
    """

    runs: int = 20
    seed: int = 0
    observers: tuple[str, ...] = ALL_OBSERVERS
    weights: str = "code"
    map_text: str = ""
    quick: bool = False

    def __post_init__(self) -> None:
        if self.runs < 1:
            raise OptionError(f"runs must be at least 1, but is {self.runs}")
        known = {*gridworld.OBSERVERS, *gridworld.KNOWN_OBSERVERS, *mujoco.OBSERVERS}
        if unknown := set(self.observers) - known:
            raise OptionError(f"unknown observers {sorted(unknown)}: choose from {sorted(known)}")
        gridworld.world(self.map_text, self.weights)


@dataclass(frozen=True)
class Study:
    """One figure of the paper.

    Attributes:
        name: What the command line calls it.
        tasks: Lists the tasks for the options, observers and seeds.
        run: Turns a task into rows.
        claims: Judges the claims from the table.
        figure: Draws the table.
    """

    name: str
    tasks: TaskLister
    run: TaskFunction
    claims: ClaimJudge
    figure: Callable[[pd.DataFrame], Figure]
    own_world: bool = True
    """Whether the user may choose map and reward."""
    quick: bool = False
    """Whether there is a short version."""
    summary: Callable[[pd.DataFrame], str] = markdown_table
    """Boils the table down to Markdown."""
    more_figures: Mapping[str, Callable[[pd.DataFrame], Figure]] = field(default_factory=dict)
    """Further figures, by file name."""
    packages: tuple[str, ...] = ()
    """Packages beside the usual ones that shape its results."""


_QUALITY = {"regret": "relative regret", "error": "direction error", "coverage": "coverage"}


def _accuracy_study(
    name: str,
    parts: tuple[TaskLister, TaskFunction, ClaimJudge],
    cases: list[str],
    measures: dict[str, str],
) -> Study:
    """A study against known truth, drawn as bars per case."""
    tasks, run, claims = parts
    return Study(
        name,
        tasks,
        run,
        claims,
        lambda table: study_figures.case_bars(table, cases, measures),
        own_world=False,
    )


STUDIES = {
    study.name: study
    for study in (
        Study(
            "gridworld-known",
            gridworld.known_tasks,
            gridworld.run_known,
            gridworld.known_claims,
            study_figures.known_figure,
        ),
        Study(
            "gridworld-learners",
            gridworld.learners_tasks,
            gridworld.run_learners,
            gridworld.learners_claims,
            study_figures.learners_figure,
        ),
        Study(
            "gridworld-curves",
            gridworld.curves_tasks,
            gridworld.run_curves,
            gridworld.curves_claims,
            study_figures.curves_figure,
        ),
        _accuracy_study(
            "accuracy-random",
            (accuracy.random_tasks, accuracy.run_random, accuracy.random_claims),
            ["learner", "steps"],
            _QUALITY,
        ),
        _accuracy_study(
            "accuracy-paper",
            (paper_reward.tasks, paper_reward.run, paper_reward.claims),
            ["learner", "steps"],
            {"value": "value (best 3.189)", "error": "direction error", "coverage": "coverage"},
        ),
        Study(
            "accuracy-known",
            accuracy.known_tasks,
            accuracy.run_known,
            accuracy.known_claims,
            study_figures.accuracy_known_figure,
            own_world=False,
        ),
        _accuracy_study(
            "accuracy-null",
            (accuracy.null_tasks, accuracy.run_null, accuracy.null_claims),
            ["world", "walk", "known"],
            {"significant": "weights called significant"},
        ),
        _accuracy_study(
            "accuracy-coverage",
            (coverage.tasks, coverage.run, coverage.claims),
            ["world", "known"],
            {"coverage": "coverage", "width": "median width", "error": "direction error"},
        ),
        _accuracy_study(
            "accuracy-worlds",
            (other_worlds.tasks, other_worlds.run, other_worlds.claims),
            ["world", "learner"],
            _QUALITY,
        ),
        _accuracy_study(
            "accuracy-bound",
            (accuracy.bound_tasks, accuracy.run_bound, accuracy.bound_claims),
            ["steps"],
            {"error": "direction error"},
        ),
        Study(
            "accuracy-jacobians",
            jacobian_accuracy.tasks,
            jacobian_accuracy.run,
            jacobian_accuracy.claims,
            study_figures.jacobian_figure,
            own_world=False,
        ),
        Study(
            "crossroad",
            crossroad.crossroad_tasks,
            crossroad.run_crossroad,
            crossroad.crossroad_claims,
            crossroad_figures.crossroad_figure,
            own_world=False,
            summary=crossroad.crossroad_summary,
            more_figures={"before-and-after": crossroad_figures.strip_figure},
            packages=("libsumo",),
        ),
        *(
            Study(
                name,
                tasks,
                mujoco.run,
                claims,
                figure,
                own_world=False,
                quick=True,
                summary=mujoco_claims.summary,
                packages=mujoco.PACKAGES,
            )
            for name, tasks, claims, figure in (
                (
                    "hopper",
                    mujoco.hopper_tasks,
                    mujoco_claims.hopper_claims,
                    mujoco_figures.hopper_figure,
                ),
                (
                    "reacher",
                    mujoco.reacher_tasks,
                    mujoco_claims.reacher_claims,
                    mujoco_figures.reacher_figure,
                ),
            )
        ),
    )
}
GROUPS = {
    "gridworld": ("gridworld-known", "gridworld-learners", "gridworld-curves"),
    "accuracy": tuple(name for name in STUDIES if name.startswith("accuracy-")),
    "mujoco": ("hopper", "reacher"),
}


def source_commit() -> str | None:
    """Commit of the source tree the code runs from, with "+changes" if it was edited since."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(here.parent))
        return git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


@dataclass(frozen=True, eq=False)
class StudyResult:
    """A finished study."""

    run: StudyRun
    claims: list[Claim]
    folder: Path


def select(name: str) -> list[Study]:
    """The studies a name stands for."""
    if name in GROUPS:
        return [STUDIES[member] for member in GROUPS[name]]
    if name not in STUDIES:
        choices = ", ".join([*GROUPS, *STUDIES])
        raise OptionError(f"unknown study {name!r}: choose one of {choices}")
    return [STUDIES[name]]


def reproduce(
    study: Study,
    options: StudyOptions,
    *,
    out: Path,
    jobs: int = 2,
    backend: Backend = "joblib",
    address: str | None = None,
    progress: bool = True,
    finished: bool = False,
) -> StudyResult:
    """Run a study (or what is left of it) and write table, figure and claims to `out/study`.

    Args:
        study: One of `STUDIES`.
        options: What to run.
        out: Folder of the results.
        jobs: See `run_tasks`, as for `backend`, `address` and `progress`.
        backend: Where tasks run.
        address: Of a Ray cluster.
        progress: Whether to show a progress bar.
        finished: Compute nothing: report on the tasks that are done, even while others run.

    Raises:
        OptionError: No task is left by the chosen observers.
        FormatError: No task is finished, but only finished ones are asked for.
    """
    if not study.own_world and (options.map_text or options.weights != "code"):
        raise OptionError(
            f"{study.name} draws its own worlds and rewards: leave out map and weights"
        )
    if options.quick and not study.quick:
        raise OptionError(f"{study.name} has no quick version: lower --runs instead")
    folder = out / study.name
    world = {"map": options.map_text, "weights": options.weights}
    world |= {"quick": "yes"} if options.quick else {}
    seeds = range(options.seed, options.seed + options.runs)
    tasks = study.tasks(world, options.observers, seeds)
    if not tasks:
        raise OptionError(f"{study.name} has nothing to do for observers {options.observers}")
    config = {"version": VERSION}
    if finished:
        run = collect(tasks, study.run, out=folder, config=config)
    else:
        run = run_tasks(
            tasks,
            study.run,
            out=folder,
            config=config,
            jobs=jobs,
            backend=backend,
            address=address,
            progress=progress,
        )
    if not run.rows:
        return StudyResult(run, [], folder)
    table = pd.DataFrame([dict(row) for row in run.rows])
    claims = study.claims(table)
    write_table(run.rows, folder / "table.csv")
    write_claims(claims, folder / "claims.json")
    summary = f"{markdown_claims(claims)}\n{study.summary(table)}"
    write_atomically(folder / "summary.md", summary.encode())
    made = {
        "study": study.name,
        "options": asdict(options),
        **({"missing tasks": run.missing} if run.missing else {}),
        "commit": source_commit(),
        "packages": package_versions() | package_versions(study.packages),
    }
    write_atomically(folder / "made-by.json", (json.dumps(made, indent=1) + "\n").encode())
    figure = study.figure(table)
    for suffix in ("png", "svg"):
        save_figure(figure, folder / f"{study.name}.{suffix}")
    for name, draw in study.more_figures.items():
        save_figure(draw(table), folder / f"{name}.png")
    return StudyResult(run, claims, folder)
