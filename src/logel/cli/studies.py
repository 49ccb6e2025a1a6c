"""`logel demo`, `logel reproduce` and `logel build-networks`: the paper, run again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer import Argument, Option

from logel.cli.console import Json, Quiet, Seed, one_of, progress_bars
from logel.cli.record import MapOption, read_map

if TYPE_CHECKING:
    from logel.studies.demo import DemoResult
    from logel.studies.study import StudyResult


# Named here, since the studies themselves are slow to import.
STUDY_NAMES = (
    *("gridworld", "gridworld-known", "gridworld-learners", "gridworld-curves"),
    *("accuracy", "accuracy-random", "accuracy-paper", "accuracy-known", "accuracy-null"),
    *("accuracy-coverage", "accuracy-worlds", "accuracy-control", "accuracy-bound"),
    *("accuracy-jacobians", "crossroad", "mujoco", "hopper", "reacher"),
    *("audit", "audit-fresh", "audit-wrong", "foragers", "lunarlander", "cohort"),
    *("nulls", "misspecified"),
)


def demo(
    out: Annotated[Path, Option(help="Where to save the picture.")] = Path("demo.png"),
    steps: Annotated[int, Option(help="Updates of the learner to watch.")] = 30,
    seed: Seed = 0,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """A learner learns in the gridworld; watching only its trajectories, recover its reward."""
    from logel.studies.plots import picture_format, require_matplotlib, save_figure

    require_matplotlib()

    picture_format(out)
    from logel.studies.demo import demo_figure, run_demo

    with progress_bars(quiet or json_output) as report:
        result = run_demo(n_steps=steps, seed=seed, progress=report)
    save_figure(demo_figure(result), out)
    if json_output:
        typer.echo(json.dumps({**result.to_dict(), "picture": str(out)}, indent=1))
        return
    console = Console()
    console.print(_weight_table(result, steps))
    console.print(
        f"Both scaled to unit length; only differences between areas can be seen.\n"
        f"True discounted reward from the start, without end: planning for the recovered reward "
        f"earns {result.value:.3f} of at most {result.best_value:.3f}; the learner's last policy "
        f"{result.learner_value:.3f}, acting at random {result.uniform_value:.3f}.\n"
        f"verdict: {result.estimate.verdict}\n"
        f"Picture: {out}"
    )


def _weight_table(result: DemoResult, steps: int) -> Table:
    title = f"What the learner wants, after watching {steps} updates"
    table = Table(title=title, title_justify="left")
    table.add_column("area", justify="left")
    for column in ("true weight", "recovered", "95% interval"):
        table.add_column(column, justify="right")
    found = result.estimate
    rows = zip(
        found.feature_names, result.true_weights, found.weights, found.interval(0.95), strict=True
    )
    for name, true, weight, (low, high) in rows:
        table.add_row(name, f"{true:+.3f}", f"{weight:+.3f}", f"[{low:+.3f}, {high:+.3f}]")
    return table


def reproduce(
    study: Annotated[
        str,
        Argument(
            autocompletion=one_of(STUDY_NAMES),
            help="gridworld (-known, -learners, -curves), accuracy (-random, -paper, -known, "
            "-null, -coverage, -worlds, -control, -bound, -jacobians), crossroad, mujoco (hopper, "
            "reacher), audit, audit-fresh, audit-wrong, foragers, lunarlander, cohort, nulls, "
            "or misspecified.",
        ),
    ],
    runs: Annotated[int, Option(help="Number of seeds.")] = 20,
    seed: Annotated[int, Option(min=0, help="The first seed.")] = 0,
    jobs: Annotated[int, Option(help="Worker processes.")] = 2,
    out: Annotated[Path, Option(help="Folder of the results.")] = Path("runs"),
    observers: Annotated[
        str,
        Option(
            help="Comma-separated: default, paper, authors, lfl, girl, trex, learner, replay, "
            "mirror."
        ),
    ] = "default,paper,authors,lfl,girl,trex,learner,replay,mirror",
    weights: Annotated[
        str, Option(help="True reward: code, paper-text, or name=value,name=value,...")
    ] = "code",
    map_file: MapOption = None,
    quick: Annotated[
        bool, Option("--quick", help="A short version to try the pipeline (mujoco).")
    ] = False,
    finished: Annotated[
        bool,
        Option(
            "--finished", help="Compute nothing: report on what is done, even while others run."
        ),
    ] = False,
    backend: Annotated[str, Option(help="joblib, or ray.")] = "joblib",
    address: Annotated[str | None, Option(help="Address of a Ray cluster.")] = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Reproduce a study of the paper: table, figure, claims. Stop it and run it again at will."""
    from logel.studies.claims import claims_table
    from logel.studies.registry import select
    from logel.studies.study import StudyOptions
    from logel.studies.study import reproduce as run_study

    chosen = select(study)
    options = StudyOptions(
        runs=runs,
        seed=seed,
        observers=tuple(name.strip() for name in observers.split(",")),
        weights=weights,
        map_text="" if map_file is None else "/".join(read_map(map_file).rows),
        quick=quick,
    )
    # JSON has standard output for itself.
    console, told, n_failures = Console(quiet=json_output), [], 0
    for part in chosen:
        if not quiet:
            console.print(f"[bold]{part.name}[/bold]")
        with progress_bars(quiet or json_output) as report:
            result = run_study(
                part,
                options,
                out=out,
                jobs=jobs,
                backend=backend,
                address=address,
                progress=report,
                finished=finished,
            )
        n_failures += len(result.run.failures)
        told.append({"study": part.name, **_account(result)})
        console.print(result.run.summary())
        console.print(claims_table(result.claims))
        console.print(f"Table, figure and claims: {result.folder}")
    if json_output:
        typer.echo(json.dumps(told, indent=1, default=str))
    if n_failures:
        raise typer.Exit(1)


def _account(result: StudyResult) -> dict[str, Any]:
    return {
        "folder": str(result.folder),
        "failures": [failure.error for failure in result.run.failures],
        "claims": [{**vars(c), "verdict": c.verdict} for c in result.claims],
    }


def build_networks(
    out: Annotated[Path, Option(help="Folder of the networks.")] = Path("networks"),
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Build the crossroad's road networks again, with netconvert (pip install eclipse-sumo)."""
    from logel.envs.crossroad.network import N_ROADS, build_network, find_netconvert, network_path

    if find_netconvert() is not None:
        out.mkdir(parents=True, exist_ok=True)
    built: list[str] = []
    with progress_bars(quiet or json_output) as report:
        for n_roads in N_ROADS:
            path = out / network_path(n_roads).name
            build_network(n_roads, path)
            built.append(str(path))
            report("networks", len(built), len(N_ROADS))
    typer.echo(json.dumps(built) if json_output else f"built {', '.join(built)}")
