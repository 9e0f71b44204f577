"""One of several processes that share the folder of a journal: ``folder_program.py ROLE FOLDER N``.

``tap``: a queue of N messages is landed. ``hook``: an application sends N. ``recover``: what a
process does when it starts, again and again until its input is closed. Every
write is a segment of its own.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from tests.observe.subscriptions import Changed

from matador import Envelope, Matador, Schema, event, subscriber
from matador.observe import Journal, Tap
from matador.observe.journal.segments import recover
from matador.transports import MemoryTransport
from matador.transports.base import Subscription


@event("n.counted", description="A number.")
@dataclass
class Counted:
    n: int


def _app(transport: MemoryTransport, name: str, *hooks: Journal) -> Matador:
    @subscriber(name=name, description="Nothing runs here.")
    async def nobody(envelope: Envelope[Counted]) -> None: ...

    return Matador(
        transport, schema=Schema({Counted: [nobody]}), consume_from=[], hooks=list(hooks)
    )


class _Slowly(MemoryTransport):
    async def subscribe(self, queue: str, *, prefetch: int = 1) -> Subscription:
        return Changed(await super().subscribe(queue, prefetch=prefetch), most=3)


async def tap(folder: Path, count: int) -> None:
    transport = _Slowly()
    async with _app(transport, "tap") as app:
        await app.send_many([Counted(n) for n in range(count)])
        landing = Tap(transport, "matador.events", folder, codec=app.codec, rotate_size=1)
        assert await landing.run(stop=asyncio.Event(), until_empty=True) == count
        assert transport.completed("matador.events") == count


async def hook(folder: Path, count: int) -> None:
    journal = Journal(folder, rotate_size=1)
    async with _app(MemoryTransport(), "hook", journal) as app:
        for n in range(count):
            await app.send(Counted(n))
            await journal.flush()
    assert journal.dropped == 0


def recovering(folder: Path) -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    folder.mkdir(exist_ok=True)
    while not ended.is_set():
        recover(folder)


if __name__ == "__main__":
    role, where, number = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if role == "recover":
        recovering(where)
    else:
        asyncio.run((tap if role == "tap" else hook)(where, number))
