"""`logel import`, `logel export` and `logel inspect`: data in, data out, and a first look."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

from logel.cli.console import (
    HistoryFolder,
    Json,
    Quiet,
    StageRange,
    answer,
    cut,
    progress_bars,
    read_with_progress,
)
from logel.errors import OptionError, check_gamma, harmless

if TYPE_CHECKING:
    from logel.data.history import LearningHistory
    from logel.data.inspection import HistoryOverview

_FORMATS = ("csv", "parquet", "minari")
_SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}
# What fits in a terminal; --json has everything.
_SHOWN_STAGES, _SHOWN_FEATURES = 6, 30


def import_history(
    sources: Annotated[
        list[Path],
        Argument(help="One table with a column stage; or tables or Minari folders, one per stage."),
    ],
    out: Annotated[Path, Option(help="Folder of the new history.")],
    file_format: Annotated[
        str | None, Option("--format", help="csv, parquet or minari; by default told by the names.")
    ] = None,
    stages: Annotated[
        Path | None,
        Option(
            help="Second table: stage, learning_rate, parameter_0, parameter_1, ...; what "
            "`logel export` wrote beside a table is found by itself."
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None, Option(help="A column to leave out; may be repeated.")
    ] = None,
    gamma: Annotated[float | None, Option(help="Discount factor, to be noted.")] = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a learning history of tables of steps or of Minari datasets."""
    from logel.data.folder import write_into
    from logel.data.store import new_folder

    chosen = _format(file_format, sources, "--format")
    metadata = {} if gamma is None else {"gamma": check_gamma(gamma)}
    read = _reader(chosen, stages, ignore or ())
    # The folder is taken before the work, which may take long.
    with new_folder(out) as reserved, progress_bars(quiet or json_output) as report:
        history = read(sources, metadata=metadata, progress=report)
        write_into(reserved, history, report)
    made = _size(history)
    sentence = (
        f"imported {made['stages']} stages, {made['episodes']} episodes, {made['steps']} steps "
        f"to {out}; look at it with: logel inspect {out}"
    )
    answer({**made, "history": str(out)}, sentence, json_output=json_output)


def _reader(
    file_format: str, stages: Path | None, ignore: Sequence[str]
) -> Callable[..., LearningHistory]:
    from logel.data.history import LearningHistory

    if file_format != "minari":
        read = LearningHistory.from_csv if file_format == "csv" else LearningHistory.from_parquet
        return partial(read, stages=stages, ignore=ignore)
    if stages is not None or ignore:
        raise OptionError("--stages and --ignore are for tables, not for Minari datasets")
    return LearningHistory.from_minari


def export_history(
    history: HistoryFolder,
    out: Annotated[Path, Argument(help="New file, or new folder for Minari.")],
    to: Annotated[
        str | None, Option(help="csv, parquet or minari; by default told by the name.")
    ] = None,
    stages: StageRange = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a history as a table of steps, or as one Minari dataset per stage."""
    from logel.data.history import LearningHistory

    chosen = _format(to, [out], "--to")
    loaded = cut(LearningHistory.load(history), stages)
    if chosen == "minari":
        with progress_bars(quiet or json_output) as report:
            written = loaded.to_minari(out, progress=report)
    else:
        written = loaded.to_csv(out) if chosen == "csv" else loaded.to_parquet(out)
    if json_output:
        typer.echo(json.dumps({**_size(loaded), "written": [str(path) for path in written]}))
        return
    shown = ", ".join(map(str, written[:3])) + (", ..." if len(written) > 3 else "")
    typer.echo(f"exported {len(loaded)} stages to {shown}")
    if chosen != "minari":
        typer.echo(f"to read it back: logel import {out} --out FOLDER")


def _size(history: LearningHistory) -> dict[str, int]:
    sizes = [(stage.n_episodes, stage.n_steps) for stage in history]
    episodes, steps = map(sum, zip(*sizes, strict=True))
    return {"stages": len(sizes), "episodes": episodes, "steps": steps}


def _format(name: str | None, paths: Sequence[Path], option: str) -> str:
    """The format asked for, else the one the names tell: paths without a suffix are Minari's."""
    if name:
        if name not in _FORMATS:
            raise OptionError(f"unknown format {name!r}: choose one of {', '.join(_FORMATS)}")
        return name
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


def inspect(
    history: HistoryFolder,
    stages: StageRange = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what is in a history, and what looks wrong, before you infer anything from it."""
    from logel.data.folder import recorded_versions
    from logel.data.history import LearningHistory
    from logel.data.inspection import inspect_history

    with progress_bars(quiet or json_output) as report:
        overview = inspect_history(
            read_with_progress(cut(LearningHistory.load(history), stages), report)
        )
    versions = recorded_versions(history)
    if json_output:
        found = {**overview.to_dict(), "versions": versions}
        typer.echo(json.dumps(found, indent=1, allow_nan=False))
    else:
        _print_overview(overview, versions, str(history))


def _print_overview(overview: HistoryOverview, versions: Mapping[str, str], name: str) -> None:
    # Names and notes are strangers' text: `:b:` in them is no emoji.
    console = Console(emoji=False)
    console.print(f"[bold]{escape(name)}[/bold]")
    for key, value in _facts(overview, versions).items():
        console.print(f"{key:>15}  {_plain(value)}", highlight=False, soft_wrap=True)
    console.print(_stage_table(overview))
    if overview.feature_names is not None:
        console.print(_feature_table(overview, overview.feature_names))
    if not overview.problems:
        console.print("Nothing looks wrong.")
    for problem in overview.problems:
        console.print(f"[yellow]![/yellow] {_plain(problem)}", highlight=False, soft_wrap=True)


def _facts(overview: HistoryOverview, versions: Mapping[str, str]) -> dict[str, str]:
    noted = {key: overview.metadata.get(key) for key in ("environment", "learner", "gamma")}
    steps = sum(stage.steps for stage in overview.stages)
    n_parameters = overview.n_parameters
    return {
        **{key: str(value) for key, value in noted.items() if isinstance(value, str | float)},
        "stages": f"{len(overview.stages)}, {steps} steps in all",
        "observations": overview.observations,
        "actions": overview.actions,
        "features": ", ".join(overview.feature_names or ("not recorded",)),
        "parameters": "unknown" if n_parameters is None else f"known, {n_parameters} per stage",
        "learning rates": "known" if overview.learning_rates_known else "unknown",
        "movement": overview.movement,
        "recorded with": ", ".join(f"{key} {value}" for key, value in versions.items()),
    }


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
    """A stranger's text, neither markup nor control characters."""
    return escape(harmless(text))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
