"""What a study is, and how one is run from start to figures: the body of `logel reproduce`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logel.data.folder import package_versions
from logel.data.store import write_atomically
from logel.errors import MissingExtraError, OptionError
from logel.studies.claims import Claim, markdown_claims, markdown_table, write_claims
from logel.studies.measures import world
from logel.studies.plots import require_matplotlib, save_figure
from logel.studies.run.files import write_table
from logel.studies.run.runner import StudyRun, collect, run_tasks
from logel.studies.run.tasks import Scalar, Task, TaskFunction, grid

try:
    import pandas as pd
except ImportError:  # pragma: no cover - depends on what is installed
    raise MissingExtraError("pandas", "report") from None

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Settings = Mapping[str, Sequence[Scalar]]
# The default of every study: each takes those it knows.
ALL_OBSERVERS = (
    *("default", "paper", "authors", "lfl", "girl", "trex", "learner"),
    *("replay", "mirror"),
)
# Raised whenever a change to the code changes results, so that old task files are not mixed in.
VERSION = 3


@dataclass(frozen=True)
class StudyOptions:
    """Everything a user may choose about a study (see `logel reproduce`); saved beside it."""

    runs: int = 20
    seed: int = 0
    observers: tuple[str, ...] = ALL_OBSERVERS
    weights: str = "code"
    # The world's rows joined by "/"; empty for the paper's.
    map_text: str = ""
    quick: bool = False

    def __post_init__(self) -> None:
        if self.runs < 1:
            raise OptionError(f"runs must be at least 1, but is {self.runs}")
        if unknown := set(self.observers) - set(ALL_OBSERVERS):
            raise OptionError(
                f"unknown observers {sorted(unknown)}: choose from {sorted(ALL_OBSERVERS)}"
            )
        world(self.map_text, self.weights)


@dataclass(frozen=True)
class Study:
    """One question, usually a figure of the paper: what is run, what is claimed, what is drawn.

    Attributes:
        name: What the command line calls it.
        cases: Grids of settings to run, each setting with its values.
        run: Turns a task into rows; a function at the top level of a module.
        claims: Judges the claims from the table.
        figure: Draws the table.
        observers: Those of the setting "observer" that the user may leave out; empty if there is
            nothing to choose.
        own_world: Whether the user may choose map and reward.
        quick: Whether there is a short version (the setting "size").
        summary: Boils the table down to Markdown.
        more_figures: Further figures, by file name.
        packages: Packages beside the usual ones that shape its results.
        require: Raises if what the study needs is not installed: one sentence rather than a
            failure per task.
    """

    name: str
    cases: Sequence[Settings]
    run: TaskFunction
    claims: Callable[[pd.DataFrame], Iterable[Claim]]
    figure: Callable[[pd.DataFrame], Figure]
    observers: tuple[str, ...] = ()
    own_world: bool = False
    quick: bool = False
    summary: Callable[[pd.DataFrame], str] = markdown_table
    more_figures: Mapping[str, Callable[[pd.DataFrame], Figure]] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    require: Callable[[], None] = lambda: None

    def tasks(self, options: StudyOptions) -> list[Task]:
        """Every case and seed, for the chosen observers."""
        self._check(options)
        left_out = set(self.observers) - set(options.observers)
        if self.observers and left_out == set(self.observers):
            return []
        shared = {"map": [options.map_text], "weights": [options.weights]} if self.own_world else {}
        if self.quick:
            shared["size"] = ["quick" if options.quick else "full"]
        seeds = range(options.seed, options.seed + options.runs)
        return [
            task
            for case in self.cases
            for task in grid(self.name, {**shared, **case}, seeds=seeds)
            if task.setting.get("observer") not in left_out
        ]

    def _check(self, options: StudyOptions) -> None:
        if not self.own_world and (options.map_text or options.weights != "code"):
            raise OptionError(
                f"{self.name} draws its own worlds and rewards: leave out map and weights"
            )
        if options.quick and not self.quick:
            raise OptionError(f"{self.name} has no quick version: lower --runs instead")
        self.require()


@dataclass(frozen=True, eq=False)
class StudyResult:
    """A finished study."""

    run: StudyRun
    claims: list[Claim]
    folder: Path


def reproduce(
    study: Study,
    options: StudyOptions,
    *,
    out: Path,
    finished: bool = False,
    **workers: Any,
) -> StudyResult:
    """Run a study (or what is left of it) and write table, figure and claims to `out/study`.

    With `finished`, compute nothing: report on the tasks that are done, even while others run.
    `workers` are the arguments of `run_tasks` that say how and where.
    """
    require_matplotlib()
    folder = out / study.name
    tasks = study.tasks(options)
    if not tasks:
        raise OptionError(f"{study.name} has nothing to do for observers {options.observers}")
    config = {"version": VERSION}
    if finished:
        run = collect(tasks, study.run, out=folder, config=config)
    else:
        run = run_tasks(tasks, study.run, out=folder, config=config, **workers)
    return StudyResult(run, _write(study, options, run, folder) if run.rows else [], folder)


def _write(study: Study, options: StudyOptions, run: StudyRun, folder: Path) -> list[Claim]:
    """Write everything that follows from the rows, and return the claims."""
    table = pd.DataFrame([dict(row) for row in run.rows])
    claims = list(study.claims(table))
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
    return claims


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
