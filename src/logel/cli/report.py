"""The command `logel report`: one self-contained page about an estimate or a study."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from logel.cli.console import Json, Quiet, answer, progress_bars, read_with_progress
from logel.errors import OptionError


def report(
    run: Annotated[
        Path,
        Argument(
            metavar="RUN_OR_ESTIMATE",
            help="An estimate (`logel infer --out`), or a folder of `logel reproduce`.",
        ),
    ],
    history: Annotated[
        Path | None, Option(help="Folder of the history behind the estimate: adds stages and maps.")
    ] = None,
    out: Annotated[Path, Option(help="The page to write.")] = Path("report.html"),
    picture: Annotated[Path | None, Option(help="A PNG of the reward to show as it is.")] = None,
    open_page: Annotated[bool, Option("--open", help="Show it in the browser.")] = False,
    json_output: Json = False,
    quiet: Quiet = False,
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
    sentence = f"wrote {page} ({size / 1e3:.0f} kB)"
    answer({"report": str(page), "bytes": size}, sentence, json_output=json_output)
    if open_page:
        webbrowser.open(page.resolve().as_uri())
