"""A shop for tests of subscribers on Spark: a file that executors load, and what it leaves behind.

Handlers note what they do in a log file, so that a checker can count it whoever ran them.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from matador import Matador
from matador.transports import SqliteTransport

_SOURCE = '''
"""An application for tests; the paths in it are those of one test."""

import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from matador import DontRetry, Envelope, Matador, Schema, Topology, event, subscriber

FOLDER = Path({folder!r})


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    number: int
    customer: str = "ann"


def note(what: str, number: int) -> None:
    with (FOLDER / "log.txt").open("a") as log:
        log.write(f"{{what}} {{number}}\\n")


async def work(name: str, number: int) -> None:
    note(f"{{name}}-begin", number)
    await asyncio.sleep({seconds})
    note(f"{{name}}-end", number)


@subscriber(description="May run again.", idempotent="yes")
async def again(envelope: Envelope[OrderPlaced]) -> None:
    await work("again", envelope.data.number)


@subscriber(description="Must not run twice.", idempotent="no")
async def once(envelope: Envelope[OrderPlaced]) -> None:
    await work("once", envelope.data.number)


@subscriber(description="Takes no tens.", idempotent="yes")
async def picky(envelope: Envelope[OrderPlaced]) -> None:
    if envelope.data.number % 10 == 0:
        raise DontRetry("no tens")


@subscriber(description="Kills its process the first time.", idempotent="yes")
async def deadly(envelope: Envelope[OrderPlaced]) -> None:
    mark = FOLDER / "killed"
    if envelope.data.number == 5 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    note("deadly", envelope.data.number)


schema = Schema({{OrderPlaced: [{subscribers}]}})
app = Matador(
    f"sqlite:///{{FOLDER / 'queue.db'}}?lease=2",
    schema=schema,
    topology=Topology("shop", queues=["events"]),
    consume_from=["events"],
)
'''


@dataclass(frozen=True)
class Shop:
    """A shop in a folder: the file of its application, and the module made of it here."""

    folder: Path
    file: Path
    module: ModuleType

    @property
    def reference(self) -> str:
        """For those who load it elsewhere."""
        return f"{self.file}:app"

    def send(self, numbers: range, *hooks: Any) -> None:
        """Send an order of each number."""
        with self.sender(*hooks).sync() as app:
            app.send_many(self.module.OrderPlaced(number) for number in numbers)

    def sender(self, *hooks: Any) -> Matador:
        """An application that only sends."""
        app: Matador = self.module.app
        queue = SqliteTransport(self.folder / "queue.db")
        return Matador(queue, schema=app.schema, topology=app.topology, hooks=list(hooks))

    def log(self) -> Counter[tuple[str, int]]:
        """What handlers noted, and how often."""
        file = self.folder / "log.txt"
        lines = file.read_text().splitlines() if file.exists() else []
        return Counter((what, int(number)) for what, number in map(str.split, lines))

    async def depth(self, queue: str = "shop.events") -> tuple[int, int]:
        """How many messages wait, now or later, and how many somebody holds."""
        transport = SqliteTransport(self.folder / "queue.db")
        await transport.connect()
        try:
            found = await transport.depth(queue)
        finally:
            await transport.disconnect()
        return found.ready + found.delayed, found.in_flight

    async def pause(self, paused: bool = True, queue: str = "shop.events") -> None:
        """Pause a queue, or resume it."""
        transport = SqliteTransport(self.folder / "queue.db")
        await transport.connect()
        try:
            await (transport.pause_queue(queue) if paused else transport.resume_queue(queue))
        finally:
            await transport.disconnect()


def open_shop(folder: Path, name: str, *subscribers: str, seconds: float = 0.0) -> Shop:
    """Write the file of a shop. A name is used once: Python remembers modules by it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.py"
    file.write_text(
        _SOURCE.format(folder=str(folder), subscribers=", ".join(subscribers), seconds=seconds)
    )
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return Shop(folder, file, module)
