"""A post office for tests of the data source and of replays: a file that executors load too."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matador import Matador
from matador.loading import load_application
from matador.model.message import StoredMessage
from matador.spark.lake import Lake
from matador.testing import wait_for
from matador.transports import SqliteTransport
from matador.transports.clock import SystemClock

_SOURCE = '''
"""An application for tests; the paths in it are those of one test."""

import os
import signal
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path

from matador import DontRetry, Envelope, Hooks, Matador, Schema, Topology, WorkQueue
from matador import event, subscriber
from matador.observe import Journal

FOLDER = Path({folder!r})


@event("parcel.sent", description="A parcel left.", aliases=["parcel.shipped"])
@dataclass(frozen=True)
class ParcelSent:
    number: int
    to: str = "ann"
    weight: Decimal | None = None
    at: datetime | None = None
    tags: list[str] = field(default_factory=list)
    extra: dict[str, int] = field(default_factory=dict)


@event("parcel.lost", description="A parcel was lost.")
@dataclass(frozen=True)
class ParcelLost:
    number: int


@subscriber(description="Tells the customer.", idempotent="yes")
async def tell(envelope: Envelope[ParcelSent]) -> None:
    if envelope.data.number % 10 == 0:
        raise DontRetry(f"nobody lives at number {{envelope.data.number}}")


@subscriber(description="Counts parcels.", idempotent="yes", queue="slow")
async def count(envelope: Envelope[ParcelSent]) -> None: ...


@subscriber(description="Pays.", idempotent="yes")
async def pay(envelope: Envelope[ParcelLost]) -> None: ...


class DiesOnce(Hooks):
    """Kills its process in the middle of the next write, if the test asks for it."""

    calls = 0

    def load_universal_metadata(self) -> dict[str, object]:
        wanted = FOLDER / "die"
        if wanted.exists():
            DiesOnce.calls += 1
            if DiesOnce.calls == 2:
                wanted.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return {{}}


schema = Schema({{ParcelSent: [tell, count], ParcelLost: [pay]}})
app = Matador(
    f"sqlite:///{{FOLDER / 'post.db'}}?synchronous=NORMAL",
    schema=schema,
    topology=Topology("post", queues=[WorkQueue("events", retention=600), "slow"]),
    hooks=[DiesOnce(), Journal(FOLDER / "journal", rotate_age=0.5)],
)
'''


@dataclass(frozen=True)
class Post:
    """A post office in a folder."""

    folder: Path
    file: Path

    @property
    def reference(self) -> str:
        """The application, for those who load it elsewhere."""
        return f"{self.file}:app"

    @property
    def url(self) -> str:
        """The broker."""
        return f"sqlite:///{self.folder / 'post.db'}"

    @property
    def journal(self) -> Path:
        """What the application recorded."""
        return self.folder / "journal"

    @property
    def app(self) -> Matador:
        """The application, loaded here."""
        return load_application(self.reference).app

    def parcel(self, number: int, **fields: Any) -> Any:
        """The event of a parcel."""
        return load_application(self.reference).module.ParcelSent(number, **fields)

    def send(self, numbers: range) -> None:
        """Send so many parcels."""
        with self.app.producer().sync() as app:
            for result in app.send_many([self.parcel(number) for number in numbers]):
                result.raise_for_errors()

    def handle(self, queue: str = "events") -> None:
        """Let a worker handle everything in a queue."""

        async def work() -> None:
            app = load_application(self.reference).app
            app.configure(consume_from=[queue])
            async with app:
                transport = app.transport
                assert isinstance(transport, SqliteTransport)

                async def empty() -> bool:
                    return (await transport.depth(f"post.{queue}")).total == 0

                await wait_for(empty, timeout=60)
                await app.wait_idle(10)

        asyncio.run(work())

    def messages(self, queue: str = "events") -> list[StoredMessage]:
        """What is in a queue and not finished."""

        async def look() -> list[StoredMessage]:
            transport = SqliteTransport(self.folder / "post.db")
            await transport.connect()
            try:
                return [one async for one in transport.browse(f"post.{queue}")]
            finally:
                await transport.disconnect()

        return asyncio.run(look())

    def envelopes(self, queue: str = "events") -> list[Any]:
        """The envelopes in a queue, their payloads still encoded."""
        codec, clock = self.app.codec, SystemClock()
        return [codec.decode(one.body, one.headers, clock) for one in self.messages(queue)]

    def purge(self, *queues: str) -> None:
        """Empty queues."""

        async def purge() -> None:
            transport = SqliteTransport(self.folder / "post.db")
            await transport.connect()
            try:
                for queue in queues:
                    await transport.purge(f"post.{queue}")
            finally:
                await transport.disconnect()

        asyncio.run(purge())


def open_post(folder: Path) -> Post:
    """Write the file of a post office; named after its folder, so that no two are alike."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"post_{abs(hash(folder))}.py"
    file.write_text(_SOURCE.format(folder=str(folder)))
    return Post(folder, file)


def lake_of(post: Post, spark: Any) -> Lake:
    """A lake with everything in the journal of a post office."""
    lake = Lake(post.folder / "lake", spark=spark)  # its file is no module of the executors
    lake.ingest(post.journal)
    return lake
