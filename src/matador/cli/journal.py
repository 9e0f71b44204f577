"""``matador journal``: lands what a broker would forget in a folder that Spark can read."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from matador.cli.connecting import connected
from matador.cli.loading import load
from matador.cli.options import App, AsJson, Verbose, examples
from matador.cli.output import UsageError, err, note, plural, reported, say_json, show_logs
from matador.errors import ConfigurationError, QueueNotFoundError
from matador.events.app import Matador
from matador.observe.journal import Tap
from matador.observe.paths import local_path

journal = typer.Typer(
    no_args_is_help=True, help="Land the messages of a queue in a journal, for the data pipeline."
)


def a_path(text: str) -> Path:
    """The path that an option gives."""
    try:
        return local_path(text, "the path")
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from error


JournalFolder = Annotated[
    Path,
    typer.Option("--journal", metavar="FOLDER", parser=a_path, help="Where the segments are."),
]


@journal.callback()
def _group() -> None:
    """A group, though it has one command so far."""


@journal.command(
    epilog=examples(
        "matador journal tap shop.py --queue lake --journal journal/",
        "matador journal tap shop.py --queue lake --journal journal/ --until-empty",
    )
)
@reported
def tap(
    app: App,
    *,
    queue: Annotated[str, typer.Option(metavar="QUEUE", help="The queue, by its name.")],
    journal: JournalFolder,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="Stop once there is nothing left.")
    ] = False,
    rotate: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="The longest a segment stays open.")
    ] = 60.0,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Take the messages of a queue and keep them in a journal, until Ctrl-C.

    Each is on the disk before it is acknowledged. The queue should be one that nobody else
    consumes: what the tap takes, no worker gets.
    """
    target = load(app).app
    show_logs(logging.DEBUG if verbose else logging.WARNING)
    try:
        name = target.topology.full_name(queue)
    except QueueNotFoundError as unknown:
        raise UsageError(str(unknown)) from None
    if journal.exists() and not journal.is_dir():
        raise UsageError(f"{journal} is a file; the journal must be a folder")
    made = asyncio.run(_tap(target, name, journal, until_empty, rotate))
    if as_json:
        say_json({"queue": name, "landed": made.landed, "malformed": made.malformed})
    else:
        malformed = f", {made.malformed:,} of them not envelopes" if made.malformed else ""
        note(f"{plural(made.landed, 'message')} of {name} landed in {journal}{malformed}")


async def _tap(app: Matador, queue: str, folder: Path, until_empty: bool, rotate: float) -> Tap:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    console = err()
    async with connected(app):
        with Progress(
            TextColumn("{task.description}"),
            TextColumn("{task.completed:,} landed"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        ) as progress:
            task = progress.add_task(queue, total=None)
            made = Tap(
                app.transport,
                queue,
                folder,
                codec=app.codec,
                rotate_age=rotate,
                progress=lambda landed, _: progress.update(task, completed=landed),
            )
            await made.run(stop=stop, until_empty=until_empty)
    return made
