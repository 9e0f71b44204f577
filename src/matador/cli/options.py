"""The arguments and options that many commands share."""

from __future__ import annotations

from typing import Annotated

import typer

App = Annotated[
    str,
    typer.Argument(
        metavar="APP",
        help="The application: module:attribute or file.py[:attribute] (attribute: app).",
        show_default=False,
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON on stdout, for machines, and nothing else there.")
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="More log lines; tracebacks with errors.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def examples(*lines: str) -> str:
    """The end of a command's help: how it is used."""
    listed = "\n\n".join(f"  [cyan]{line.replace('[', chr(92) + '[')}[/cyan]" for line in lines)
    return f"[bold]Example[/bold]\n\n{listed}"
