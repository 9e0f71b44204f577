"""``matador journal``: writes the messages of a queue to a folder that Spark can read."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

from rich.progress import TextColumn

from matador.cli.commands import App, Commands, Common, JournalFolder, UntilEmpty, option
from matador.cli.connection import connected, known_queue
from matador.cli.interaction import progress_bar
from matador.cli.output import UsageError, plural
from matador.events.app import Matador
from matador.observe.journal import Tap

journal = Commands("Write the messages of a queue to a journal, for the data pipeline.")


@journal.add(
    "matador journal tap shop.py --queue lake --journal journal/",
    "matador journal tap shop.py --queue lake --journal journal/ --until-empty",
)
def tap(
    app: App,
    *,
    queue: Annotated[str, option("QUEUE", "The queue to consume.")],
    journal: JournalFolder,
    until_empty: UntilEmpty = False,
    rotate: Annotated[
        float, option("SECONDS", "Start a new segment after this many seconds.", min=0.1)
    ] = 60.0,
    common: Common,
) -> None:
    """Move the messages of a queue into a journal, until Ctrl-C.

    Each message is on disk before it is acknowledged. Use a queue that no worker consumes: a
    message goes either to the journal or to a worker.
    """
    target = common.load(app).app
    name = target.topology.full_name(known_queue(target, queue).name)
    if journal.exists() and not journal.is_dir():
        raise UsageError(f"{journal} is a file; the journal must be a folder")
    made = asyncio.run(_tap(target, name, journal, until_empty, rotate))
    malformed = f", {made.malformed:,} of them undecodable" if made.malformed else ""
    common.show(
        {"queue": name, "landed": made.landed, "malformed": made.malformed},
        remark=f"{plural(made.landed, 'message')} of {name} written to {journal}{malformed}",
    )


async def _tap(app: Matador, queue: str, folder: Path, until_empty: bool, rotate: float) -> Tap:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with connected(app):
        with progress_bar(TextColumn("{task.completed:,} written")) as progress:
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
