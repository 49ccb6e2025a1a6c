"""Writes the command line reference from the commands themselves when the site is built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from logel.cli.main import app

MARKER = "<!-- all commands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the reference in place of the marker (called by mkdocs for every page)."""
    return markdown.replace(MARKER, reference()) if MARKER in markdown else markdown


def reference() -> str:
    """One section per command: what it does, its arguments, its options."""
    group: Any = typer.main.get_command(app)
    return "\n\n".join(_section(name, command) for name, command in _commands(group, "logel"))


def _commands(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """All commands with their full names; groups by way of their members."""
    for name, command in sorted(group.commands.items()):
        full = f"{prefix} {name}"
        if hasattr(command, "commands"):
            yield from _commands(command, full)
        else:
            yield full, command


def _section(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    usage = " ".join([name, *(_metavar(p) for p in arguments), "[OPTIONS]"])
    rows = [f"| `{_metavar(p)}` | {_cell(p.help)} | |" for p in arguments]
    rows += [f"| {_names(p)} | {_cell(p.help)} | {_default(p)} |" for p in options]
    table = "\n".join(["| | | default |", "|---|---|---|", *rows])
    return f"## {name}\n\n{command.help}\n\n```text\n{usage}\n```\n\n{table}"


def _metavar(parameter: Any) -> str:
    shown = (parameter.metavar or parameter.name).upper()
    return f"{shown}..." if parameter.nargs == -1 else shown


def _names(option: Any) -> str:
    return ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])


def _default(option: Any) -> str:
    if option.default is None or isinstance(option.default, bool):
        return "required" if option.required else ""
    return f"`{option.default}`"


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|")
