"""The command `logel report`: one self-contained page about an estimate or a study."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from logel.cli.console import JsonOption, QuietOption, progress_bars, read_with_progress
from logel.errors import OptionError


def report(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_ESTIMATE",
            help="An estimate (`logel infer --out`), or a folder of `logel reproduce`.",
        ),
    ],
    history: Annotated[
        Path | None,
        typer.Option(help="Folder of the history behind the estimate: adds stages and maps."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    picture: Annotated[
        Path | None, typer.Option(help="A PNG of the reward to show as it is.")
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    json_output: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write one HTML page, readable offline, about an estimate or a study."""
    from logel.data.history import LearningHistory
    from logel.report.page import write_report

    if not run.exists():
        raise OptionError(f"there is no estimate and no study at {run}")
    loaded = None if history is None else LearningHistory.load(history)
    drawn = None if picture is None else picture.read_bytes()
    with progress_bars(quiet or json_output) as told:
        if loaded is not None:
            loaded = read_with_progress(loaded, told)
        page = write_report(run, out, history=loaded, picture=drawn)
    size = page.stat().st_size
    if json_output:
        typer.echo(json.dumps({"report": str(page), "bytes": size}))
    else:
        typer.echo(f"wrote {page} ({size / 1e3:.0f} kB)")
    if open_page:
        webbrowser.open(page.resolve().as_uri())
