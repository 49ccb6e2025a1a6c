"""How the command line speaks while it works: progress bars, log lines, and what Ctrl-C says.

All of it goes to standard error, so that standard output holds the result and nothing else.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer import Argument, Option
from typer.core import TyperGroup

from logel import __version__
from logel.errors import LogelError, MissingExtraError, OptionError, StorageError, harmless, printed

if TYPE_CHECKING:
    from logel.data.history import LearningHistory
    from logel.types import Progress
    from logel.workers import Workers

# The packages that an extra installs and that we import.
_PACKAGES = {
    "arviz": ("arviz",),
    "box2d": ("Box2D",),
    "minari": ("h5py", "minari"),
    "mujoco": ("mujoco",),
    "ray": ("ray",),
    "remote": ("aiohttp", "fsspec", "gcsfs", "s3fs"),
    "report": ("matplotlib", "pandas", "plotly"),
    "sb3": ("sb3_contrib", "stable_baselines3", "tensorboard"),
    "sumo": ("libsumo",),
    "tables": ("pyarrow",),
}
EXTRAS = {package: extra for extra, packages in _PACKAGES.items() for package in packages}
STOPPED = "Stopped: nothing was written. Run the same command again to start over."


def history_at(text: str) -> Path | str:
    """Where a history is: a path, or an address, which no path may shorten."""
    from logel.data.remote import is_address

    return text if is_address(text) else Path(text)


HistoryFolder = Annotated[
    Any,
    Argument(metavar="HISTORY", parser=history_at, help="Folder or address of a learning history."),
]
Json = Annotated[bool, Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="No progress bars.")]
OwnWorlds = Annotated[
    bool, Option("--own-worlds", help="Learners do not live in one world: pool nothing.")
]
Discount = Annotated[
    float | None, Option(help="Discount factor; by default the one that was recorded.")
]
METHODS = ("default", "joint", "two-step", "replay", "mirror", "paper", "authors")
FAMILIES = ("auto", "tabular", "linear", "mlp")


def workers_of(workers: int, ray: str | None, *, resume: bool = False) -> Workers:
    """Workers as asked for on the command line."""
    from logel.data.cache import Cache
    from logel.workers import Workers

    return Workers(workers, ray, Cache.usual() if resume else None)


def one_of(names: Sequence[str]) -> Callable[[str], list[str]]:
    """What a shell may complete the beginning of a name to."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


MethodName = Annotated[
    str,
    Option(
        help="default, joint, two-step, replay, mirror, paper or authors.",
        autocompletion=one_of(METHODS),
    ),
]
FamilyName = Annotated[
    str,
    Option(
        help="auto, tabular, linear or mlp: the family of the policies.",
        autocompletion=one_of(FAMILIES),
    ),
]
StageRange = Annotated[
    str | None,
    Option("--stages", metavar="FROM:TO", help="Only these stages, counted from 0; TO is not one."),
]
NumberOfWorkers = Annotated[
    int, Option("--workers", help="Processes that compute at a time; the answer is the same.")
]
RayAddress = Annotated[
    str | None,
    Option(
        "--ray", metavar="ADDRESS", help="Compute on a Ray cluster: its address, auto, or local."
    ),
]
Resume = Annotated[
    bool,
    Option("--resume", help="Keep what is done (in LOGEL_CACHE), and go on from what was kept."),
]
Clone = Annotated[bool, Option("--clone", help="Clone even if the parameters are recorded.")]
WorldFile = Annotated[
    Path | None,
    Option(help="What is known of the world: a .npz or .csv file of transitions (tables)."),
]
Seed = Annotated[int, Option(min=0, help="Seed of all random numbers.")]
Verbose = Annotated[
    bool, Option("--verbose", "-v", help="Say on standard error what every stage gave.")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"logel {__version__}")
        raise typer.Exit


def options_of_all(
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Recover the reward an agent is optimising by watching it learn."""


class Stopped(Exception):  # noqa: N818 (stopping on request is no error)
    """Ctrl-C was pressed; the message says what is kept and how to go on."""


class Commands(TyperGroup):
    """Commands that end on Ctrl-C with `Stopped`, and without a package by naming its extra.

    Typer would end without a word. A command that keeps something, or knows more, says so by
    raising KeyboardInterrupt with a sentence.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order of use: Typer puts what has sub-commands last, but recording is first."""
        return sorted(super().list_commands(ctx), key=lambda name: name != "record")

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            raise Stopped(str(stop) or STOPPED) from None
        except ModuleNotFoundError as missing:
            package = (missing.name or "").partition(".")[0]
            if isinstance(missing, LogelError) or package not in EXTRAS:
                raise
            raise MissingExtraError(package, EXTRAS[package]) from None


def answer(result: object, sentence: str, *, json_output: bool) -> None:
    """Print what a command made: as JSON for programs, or as a sentence for people."""
    typer.echo(json.dumps(result) if json_output else sentence)


def save_and_show(found: Any, out: Path | None, *, json_output: bool) -> None:
    """Save an answer, if that is asked for, and print it; also when the disk is full.

    The last words, on standard error, are the verdict.
    """
    shown = found.to_json() if json_output else found.summary()
    try:
        if out is not None:
            found.save(out)
    except StorageError:
        typer.echo(shown)
        raise
    typer.echo(shown)
    typer.echo(printed([f"verdict: {found.verdict}"]), err=True)


@contextmanager
def progress_bars(quiet: bool, *, verbose: bool = False) -> Iterator[Progress]:
    """A progress bar per activity with the time left and, if asked for, log lines above them."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description:>14}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    # A task may take many minutes: rich's own speed estimate forgets after 30 seconds.
    with (
        _log_lines(console) if verbose else nullcontext(),
        Bars(
            *columns,
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
            speed_estimate_period=24 * 3600.0,
        ) as bars,
    ):
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                # What was done before says nothing about the speed.
                tasks[what] = bars.add_task(what, total=total, completed=done, rate="")
            speed = bars.tasks[tasks[what]].speed
            rate = (
                "" if not speed else f"{speed:.3g}/s" if speed >= 1 else f"{1 / speed:.3g} s each"
            )
            bars.update(tasks[what], completed=done, total=total, rate=rate)

        yield report


def cut(history: LearningHistory, stages: str | None) -> LearningHistory:
    """The stages that `--stages` asks for; all without it."""
    if stages is None:
        return history
    found = re.fullmatch(r"(-?\d{0,9}):(-?\d{0,9})", stages)
    if found is None:
        raise OptionError(f"--stages must be FROM:TO, such as 5:20, but is {stages!r}")
    start, stop = (int(text) if text not in ("", "-") else None for text in found.groups())
    return history.slice(start or 0, stop)


def read_with_progress(history: LearningHistory, report: Progress) -> LearningHistory:
    """The same history, which says how far it has been read."""
    from logel.data.contents import View

    return replace(history, source=View(history.source, range(len(history)), report))


class _ConsoleHandler(logging.Handler):
    """Prints through the console of the bars, which keeps lines above them."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.INFO)
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        # Names come from files: no markup, no control characters.
        text = harmless(record.getMessage())
        self.console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)


@contextmanager
def _log_lines(console: Console) -> Iterator[None]:
    """Show what logel logs while the context lasts."""
    logger, handler = logging.getLogger("logel"), _ConsoleHandler(console)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
