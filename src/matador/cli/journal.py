"""``matador journal``: writes the messages of a queue to a journal, and ships journals."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Annotated

from rich.progress import TextColumn

from matador.cli.commands import (
    App,
    Commands,
    Common,
    Connecting,
    JournalFolder,
    UntilEmpty,
    a_location,
    flag,
    option,
)
from matador.cli.completion import names_of
from matador.cli.connection import connected, stopped_by_signals
from matador.cli.output import UsageError, note, plural, progress_bar, show_logs, wrong_usage
from matador.cli.store_options import StorageOption, storage_options
from matador.errors import ObjectStoreError, QueueNotFoundError, StorageLockedError
from matador.events.app import Matador
from matador.observe.journal import Tap
from matador.observe.journal.ship import Shipper, ShipResult
from matador.storage import open_storage
from matador.storage.options import impatient

journal = Commands("Write the messages of a queue to a journal, or ship one to an object store.")

_LOOK_EVERY = 2.0  # seconds between looks for new segments


@journal.add(
    "matador journal tap shop.py --queue lake --journal journal/",
    "matador journal tap shop.py --queue lake --journal journal/ --until-empty",
)
def tap(
    app: App,
    *,
    queue: Annotated[
        str, option("QUEUE", "The queue to consume.", autocompletion=names_of("queues"))
    ],
    journal: JournalFolder,
    until_empty: UntilEmpty = False,
    rotate: Annotated[
        float, option("SECONDS", "Start a new segment after this many seconds.", min=0.1)
    ] = 60.0,
    common: Connecting,
) -> None:
    """Move the messages of a queue into a journal, until Ctrl-C.

    Each message is on disk before it is acknowledged. Use a queue that no worker consumes: a
    message goes either to the journal or to a worker.
    """
    target = common.load(app).app
    with wrong_usage(QueueNotFoundError):
        name = target.topology.full_name(target.topology.queue(queue).name)
    if journal.exists() and not journal.is_dir():
        raise UsageError(f"{journal} is a file; the journal must be a folder")
    made = asyncio.run(_tap(target, name, journal, until_empty, rotate, common.wait))
    malformed = f", {made.malformed:,} of them undecodable" if made.malformed else ""
    common.show(
        {"queue": name, "landed": made.landed, "malformed": made.malformed},
        remark=f"{plural(made.landed, 'message')} of {name} written to {journal}{malformed}",
    )


@journal.add(
    "matador journal ship --journal journal/ --to s3://shop/journal",
    "matador journal ship --journal journal/ --to s3://shop/journal --follow --delete-after",
)
def ship(
    *,
    journal: JournalFolder,
    to: Annotated[
        str, option("PLACE", "Where to: s3://bucket/journal, or a folder.", parser=a_location)
    ],
    follow: Annotated[bool, flag("Keep running until Ctrl-C.", "--follow")] = False,
    delete_after: Annotated[
        bool, flag("Delete segments here once their copies are confirmed.", "--delete-after")
    ] = False,
    storage_option: StorageOption = None,
    common: Common,
) -> None:
    """Copy finished segments of a journal to an object store, where an ingest can read them.

    What is there already is not copied again. If interrupted, run it again.
    """
    show_logs(common.level())
    target = open_storage(to, "--to", impatient(to, storage_options(storage_option)))
    if not journal.is_dir():
        raise UsageError(f"there is no journal in {journal}")
    shipper = Shipper(journal, target, delete=delete_after)
    done = ShipResult()
    with stopped_by_signals() as stop, progress_bar(TextColumn("{task.completed:,} done")) as bar:
        task = bar.add_task("shipping", total=None)
        while True:
            try:
                more = shipper.run(stop.is_set, lambda: bar.advance(task))
            except (ObjectStoreError, StorageLockedError) as error:
                if not follow:
                    raise
                note(f"trying again: {error}", style="yellow")
            else:
                done = ShipResult(
                    *(a + b for a, b in zip(astuple(done), astuple(more), strict=True))
                )
            if not follow or stop.wait(_LOOK_EVERY):
                break
    deleted = f", {done.deleted:,} deleted here" if delete_after else ""
    remark = f"{plural(done.shipped, 'segment')} shipped to {target.root}{deleted}"
    common.show(asdict(done), remark=remark)


async def _tap(
    app: Matador, queue: str, folder: Path, until_empty: bool, rotate: float, wait: float | None
) -> Tap:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with connected([app], wait):
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
