"""`logel import`, `logel export` and `logel inspect`: data in, data out, and a first look."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from logel.cli.console import JsonOption, QuietOption, progress_bars, read_with_progress
from logel.errors import FormatError, OptionError

if TYPE_CHECKING:
    from logel.data.history import LearningHistory
    from logel.data.inspection import HistoryOverview

_FORMATS = ("csv", "parquet", "minari")
_SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}
# What fits in a terminal; --json has everything.
_SHOWN_STAGES, _SHOWN_FEATURES = 6, 30


def register_data_commands(app: typer.Typer) -> None:
    """Add the commands of this module to the command line."""
    app.command("import")(import_history)
    app.command("export")(export_history)
    app.command("inspect")(inspect)


def import_history(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="One table with a column stage; or tables or Minari folders, one per stage."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the new history.")],
    file_format: Annotated[
        str | None,
        typer.Option("--format", help="csv, parquet or minari; by default told by the names."),
    ] = None,
    stages: Annotated[
        Path | None,
        typer.Option(help="Second table: stage, learning_rate, parameter_0, parameter_1, ..."),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(help="A column to leave out; may be repeated.")
    ] = None,
    gamma: Annotated[float | None, typer.Option(help="Discount factor, to be noted.")] = None,
    json_output: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Make a learning history of tables of steps or of Minari datasets."""
    from logel.data.history import LearningHistory

    chosen = _check_format(file_format) if file_format else _guess_format(sources, "--format")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FormatError(f"{out} already exists: choose another path or remove it first")
    if gamma is not None and not 0 <= gamma < 1:
        raise OptionError(f"gamma must be in [0, 1), but is {gamma}")
    metadata = {} if gamma is None else {"gamma": gamma}
    if chosen == "minari":
        if stages is not None or ignore:
            raise OptionError("--stages and --ignore are for tables, not for Minari datasets")
        with progress_bars(quiet or json_output) as report:
            history = LearningHistory.from_minari(sources, metadata=metadata, progress=report)
    else:
        read = LearningHistory.from_csv if chosen == "csv" else LearningHistory.from_parquet
        with progress_bars(quiet or json_output) as report:
            history = read(
                sources, stages=stages, ignore=ignore or (), metadata=metadata, progress=report
            )
    with progress_bars(quiet or json_output) as report:
        history.save(out, progress=report)
    made = {**_made(history), "history": str(out)}
    if json_output:
        typer.echo(json.dumps(made))
    else:
        typer.echo(
            f"imported {made['stages']} stages, {made['episodes']} episodes, {made['steps']} steps "
            f"to {out}; look at it with: logel inspect {out}"
        )
        left = _stages_beside(sources[0])
        if chosen != "minari" and stages is None and len(sources) == 1 and left.is_file():
            typer.echo(
                f"note: {left} was not read; if it holds the parameters, pass --stages {left}",
                err=True,
            )


def export_history(
    history: Annotated[Path, typer.Argument(help="Folder of a learning history.")],
    out: Annotated[Path, typer.Argument(help="New file, or new folder for Minari.")],
    to: Annotated[
        str | None, typer.Option(help="csv, parquet or minari; by default told by the name.")
    ] = None,
    json_output: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write a history as a table of steps, or as one Minari dataset per stage."""
    from logel.data.history import LearningHistory

    chosen = _check_format(to) if to else _guess_format([out], "--to")
    loaded = LearningHistory.load(history)
    if chosen == "minari":
        with progress_bars(quiet or json_output) as report:
            written = loaded.to_minari(out, progress=report)
    else:
        written = _export_tables(loaded, out, chosen)
    if json_output:
        typer.echo(json.dumps({**_made(loaded), "written": [str(path) for path in written]}))
    else:
        shown = ", ".join(map(str, written[:2])) + (", ..." if len(written) > 2 else "")
        typer.echo(f"exported {len(loaded)} stages to {shown}")
        if chosen != "minari":
            typer.echo(f"to read it back: {_way_back(loaded, written)}")


def _export_tables(history: LearningHistory, out: Path, file_format: str) -> list[Path]:
    from logel.data.table_files import write_table
    from logel.data.tables import table_of_stages, table_of_steps

    beside = _stages_beside(out)
    if beside.exists():
        raise FormatError(f"{beside} already exists: choose another path or remove it first")
    written = [write_table(table_of_steps(history), out, file_format)]
    second = table_of_stages(history)
    return written if second is None else [*written, write_table(second, beside, file_format)]


def _stages_beside(table: Path) -> Path:
    """Where the second table, of parameters and learning rates, goes."""
    return table.with_name(f"{table.stem}-stages{table.suffix}")


def _way_back(history: LearningHistory, written: list[Path]) -> str:
    """The command that reads exported tables again with all that they hold."""
    gamma = history.metadata.get("gamma")
    return " ".join(
        [
            f"logel import {written[0]}",
            *(f"--stages {second}" for second in written[1:]),
            *([f"--gamma {gamma}"] if isinstance(gamma, int | float) else []),
            "--out FOLDER",
        ]
    )


def inspect(
    history: Annotated[Path, typer.Argument(help="Folder of a learning history.")],
    json_output: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Say what is in a history, and what looks wrong, before you infer anything from it."""
    from logel.data.folder import recorded_versions
    from logel.data.history import LearningHistory
    from logel.data.inspection import inspect_history

    with progress_bars(quiet or json_output) as report:
        loaded = read_with_progress(LearningHistory.load(history), report)
        overview = inspect_history(loaded)
    versions = recorded_versions(history)
    if json_output:
        found = {**overview.to_dict(), "versions": versions}
        typer.echo(json.dumps(found, indent=1, allow_nan=False))
        return
    _print_overview(overview, versions, str(history))


def _print_overview(overview: HistoryOverview, versions: dict[str, str], name: str) -> None:
    console = Console()
    steps = sum(stage.steps for stage in overview.stages)
    noted = {key: overview.metadata.get(key) for key in ("environment", "learner", "gamma")}
    facts = {
        **{key: str(value) for key, value in noted.items() if isinstance(value, str | float)},
        "stages": f"{len(overview.stages)}, {steps} steps in all",
        "observations": overview.observations,
        "actions": overview.actions,
        "features": ", ".join(overview.feature_names or ()) or "not recorded",
        "parameters": "unknown"
        if overview.n_parameters is None
        else f"known, {overview.n_parameters} per stage",
        "learning rates": "known" if overview.learning_rates_known else "unknown",
        "movement": overview.movement,
        "recorded with": ", ".join(f"{key} {value}" for key, value in versions.items()),
    }
    console.print(f"[bold]{escape(name)}[/bold]")
    for key, value in facts.items():
        console.print(f"{key:>15}  {_plain(value)}", highlight=False, soft_wrap=True)
    console.print(_stage_table(overview))
    if overview.feature_names is not None:
        console.print(_feature_table(overview, overview.feature_names))
    if not overview.problems:
        console.print("Nothing looks wrong.")
    for problem in overview.problems:
        console.print(f"[yellow]![/yellow] {_plain(problem)}", highlight=False, soft_wrap=True)


def _stage_table(overview: HistoryOverview) -> Table:
    returns = any(stage.mean_return is not None for stage in overview.stages)
    headings = ["stage", "episodes", "length", "terminated", "movement"]
    table = _table([*headings, *(["return"] if returns else [])])
    for t, stage in enumerate(overview.stages):
        shortest, mean, longest = stage.lengths
        table.add_row(
            str(t),
            str(stage.episodes),
            str(shortest) if shortest == longest else f"{mean:.1f} ({shortest} to {longest})",
            f"{stage.terminated:.0%}",
            _number(stage.movement),
            *([_number(stage.mean_return)] if returns else []),
        )
    return table


def _feature_table(overview: HistoryOverview, names: Sequence[str]) -> Table:
    """Mean per step of every feature, for stages from the first to the last."""
    last = len(overview.stages) - 1
    shown = sorted({round(k * last / (_SHOWN_STAGES - 1)) for k in range(_SHOWN_STAGES)})
    table = _table(["mean per step", *(f"stage {t}" for t in shown)])
    for k, name in enumerate(names[:_SHOWN_FEATURES]):
        means = [overview.stages[t].feature_means for t in shown]
        table.add_row(_plain(name), *(_number(mean[k]) for mean in means if mean is not None))
    if len(names) > _SHOWN_FEATURES:
        table.caption = f"{len(names) - _SHOWN_FEATURES} more features in --json"
    return table


def _table(headings: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, caption_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _plain(text: str) -> str:
    """A stranger's text without markup and control characters."""
    return escape("".join(c if c.isprintable() else "?" for c in text))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _made(history: LearningHistory) -> dict[str, Any]:
    sizes = [(stage.n_episodes, stage.n_steps) for stage in history]
    return {
        "stages": len(sizes),
        "episodes": sum(episodes for episodes, _ in sizes),
        "steps": sum(steps for _, steps in sizes),
    }


def _check_format(name: str) -> str:
    if name not in _FORMATS:
        raise OptionError(f"unknown format {name!r}: choose one of {', '.join(_FORMATS)}")
    return name


def _guess_format(paths: list[Path], option: str) -> str:
    """The format the names tell: folders (and new paths without a suffix) are Minari's."""
    found = {
        "minari" if path.is_dir() or not path.suffix else _SUFFIXES.get(path.suffix.lower())
        for path in paths
    }
    if len(found) != 1 or (only := found.pop()) is None:
        shown = ", ".join(str(path) for path in paths[:3])
        raise OptionError(
            f"cannot tell the format of {shown}: pass {option} csv, parquet or minari, the same "
            "for all"
        )
    return only
