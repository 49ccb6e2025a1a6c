"""The `logel` command. Heavy imports happen inside the commands, so that --help answers at once."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.markup import escape

from logel.cli.check import check
from logel.cli.compare import GroupsCommand, compare
from logel.cli.console import Commands, Stopped, options_of_all
from logel.cli.data import export_history, import_history, inspect
from logel.cli.plan import plan
from logel.cli.record import record, record_gridworld
from logel.cli.reward import infer, report, train, unexplained
from logel.cli.studies import build_networks, demo, reproduce
from logel.errors import LogelError, one_line, printed

app = typer.Typer(
    cls=Commands,
    callback=options_of_all,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="New here? `logel demo` shows it at work, `logel COMMAND --help` explains a command.",
)
recorders = typer.Typer(callback=record, invoke_without_command=True, no_args_is_help=True)
recorders.command("gridworld")(record_gridworld)
# Panels of --help, and commands in them, stand in the order of use.
FIRST, THEN, PAPER = "From a run to its reward", "With what came out", "The paper"
app.add_typer(recorders, name="record", rich_help_panel=FIRST)
app.command("import", rich_help_panel=FIRST)(import_history)
for command in (inspect, plan, infer, check, unexplained, report):
    app.command(rich_help_panel=FIRST)(command)
app.command(rich_help_panel=THEN)(train)
app.command(cls=GroupsCommand, rich_help_panel=THEN)(compare)
app.command("export", rich_help_panel=THEN)(export_history)
for from_paper in (demo, reproduce, build_networks):
    app.command(rich_help_panel=PAPER)(from_paper)


def main() -> None:
    """Run the command line; a mistake of the user costs one sentence and exit code 2."""
    # Messages quote files: `a:b: not found` must not become an emoji.
    errors = Console(stderr=True, soft_wrap=True, emoji=False)
    try:
        app(prog_name="logel")
    except (LogelError, OSError) as error:
        errors.print(f"[red]error:[/red] {escape(printed(str(error).splitlines()))}")
        sys.exit(2)
    except (MemoryError, RecursionError, OverflowError) as error:
        errors.print(f"[red]error:[/red] too much for this machine: {escape(one_line(error))}")
        sys.exit(2)
    except Stopped as stop:
        errors.print(escape(str(stop)), highlight=False)
        sys.exit(130)
