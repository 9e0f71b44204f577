"""Talks with the person at the terminal: confirmations, progress bars, spinners."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from matador.cli.output import UsageError, err, note


def confirm(question: str, otherwise: str) -> None:
    """Ask for confirmation.

    Raises:
        typer.Exit: the answer was no. That is no failure.
        UsageError: there is no terminal to ask on; ``otherwise`` says what would have been done.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{otherwise}; add --yes to skip the confirmation")
    # An event loop would only note a Ctrl-C and keep waiting for the answer.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        err().print(f"{question}? [y/N] ", end="")
        answer = sys.stdin.readline()
    finally:
        signal.signal(signal.SIGINT, before)
    if answer.strip().lower() not in ("y", "yes"):
        note("nothing was changed")
        raise typer.Exit


def working(text: str) -> AbstractContextManager[object]:
    """A spinner on a terminal; nothing elsewhere."""
    console = err()
    return console.status(text) if console.is_terminal else nullcontext()


def progress_bar(*columns: ProgressColumn) -> Progress:
    """A progress display on a terminal, gone when it ends; nothing elsewhere."""
    console = err()
    return Progress(
        TextColumn("{task.description}"),
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextmanager
def counting_progress(verb: str) -> Generator[Callable[[int, int], None]]:
    """A bar that is told how many are done, of how many."""
    with progress_bar(BarColumn(), MofNCompleteColumn()) as bar:
        task = bar.add_task(verb, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
