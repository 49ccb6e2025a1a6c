"""`logel check`: whether an answer is gone where it should be, and the same where it should be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer import Option

from logel.cli.console import (
    Clone,
    Discount,
    FamilyName,
    HistoryFolder,
    Json,
    MethodName,
    NumberOfWorkers,
    Quiet,
    RayAddress,
    Resume,
    Seed,
    StageRange,
    Verbose,
    WorldFile,
    cut,
    progress_bars,
    workers_of,
)
from logel.cli.features import FeaturesName, named_features
from logel.cli.reward import check_target, known_world
from logel.errors import harmless, printed

if TYPE_CHECKING:
    from logel.inference.check import EstimateChecks

_COLOURS = {"passed": "green", "failed": "red", "says nothing": "yellow"}


def check(
    history: HistoryFolder,
    gamma: Discount = None,
    method: MethodName = "default",
    policy: FamilyName = "auto",
    clone: Clone = False,
    features: FeaturesName = None,
    stages: StageRange = None,
    world: WorldFile = None,
    quick: Annotated[
        bool, Option("--quick", help="Leave out other gammas, windows and single stages.")
    ] = False,
    decoys: Annotated[int, Option(min=1, help="Features that nobody can want, to add.")] = 2,
    out: Annotated[
        Path | None,
        Option(help="Save estimate and controls as JSON, after every control; for `logel report`."),
    ] = None,
    figure: Annotated[Path | None, Option(help="Draw them: a .png, .svg or .pdf file.")] = None,
    device: Annotated[str, Option(help="Where to compute: cpu or cuda.")] = "cpu",
    seed: Seed = 0,
    workers: NumberOfWorkers = 1,
    ray: RayAddress = None,
    resume: Resume = False,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Infer the reward, and again where it should be gone, or the same: is it to be believed?"""
    from logel.data.history import LearningHistory

    for target in (out, figure):
        if target is not None:
            check_target(target)
    loaded = cut(LearningHistory.load(history), stages)
    from logel.inference.check import check_estimate
    from logel.policies.choose import choose_common_policy

    family = choose_common_policy({"history": loaded}, policy, known=not clone, device=device)
    options: dict[str, Any] = {
        "gamma": gamma,
        "method": method,
        "features": named_features(features),
        "use_parameters": not clone,
        "seed": seed,
        "world": None if world is None else known_world(world, family),
        "workers": workers_of(workers, ray, resume=resume),
    }
    kept = 0

    def keep(checks: EstimateChecks) -> None:
        nonlocal kept
        if out is not None:
            checks.save(out)
            kept = len(checks.controls)

    try:
        with progress_bars(quiet or json_output, verbose=verbose) as report:
            checks = check_estimate(
                loaded, family, quick=quick, n_decoys=decoys, progress=report, keep=keep, **options
            )
    except KeyboardInterrupt:
        if not kept:
            raise
        raise KeyboardInterrupt(f"Stopped: {out} has the {kept} controls that were made.") from None
    if figure is not None:
        checks.plot()[0].figure.savefig(figure)
    if json_output:
        typer.echo(checks.to_json())
        typer.echo(printed([f"verdict: {checks.verdict}"]), err=True)
    else:
        _print(checks)


def _print(checks: EstimateChecks) -> None:
    """The estimate, and a table of its controls."""
    typer.echo(checks.checked.summary())
    table = Table(box=SIMPLE_HEAD, title="Controls", title_justify="left")
    for heading in ("control", "outcome", "in words"):
        table.add_column(heading, justify="left")
    for title, outcome, why in checks.rows():
        # Names of features are strangers' text.
        told = escape(harmless(why))
        table.add_row(title, f"[{_COLOURS[outcome]}]{outcome}[/{_COLOURS[outcome]}]", told)
    console = Console(emoji=False)
    console.print(table)
    console.print(f"verdict: {escape(harmless(str(checks.verdict)))}", highlight=False)
