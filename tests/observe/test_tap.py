"""The tap: on the disk first, acknowledged after."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from matador import JsonCodec, Matador, MessagePackCodec, Schema, SubscriberStub, Topology, event
from matador.codec.base import Codec
from matador.errors import MatadorError
from matador.model.message import Message, Settlement
from matador.observe import Tap
from matador.observe.journal.records import MalformedRecord, SentRecord, decode_record
from matador.observe.journal.segments import finished
from matador.transports import SqliteTransport


@event("order.placed", description="An order was placed.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str


_STUB = SubscriberStub("lake", description="Lands in the lake.", queue="lake")


def _app(path: Path, codec: Codec | None = None) -> Matador:
    return Matador(
        SqliteTransport(path / "shop.db", lease=1),
        schema=Schema({OrderPlaced: [_STUB]}),
        topology=Topology("shop", queues=["events", "lake"]),
        codec=codec,
    )


def _records(folder: Path) -> list[object]:
    return [
        decode_record(line) for path in finished(folder) for line in path.read_bytes().splitlines()
    ]


async def test_messages_land_in_the_journal_and_leave_the_queue(tmp_path: Path) -> None:
    for codec in (JsonCodec(), MessagePackCodec()):
        folder = tmp_path / type(codec).__name__
        async with _app(tmp_path, codec) as app:
            await app.send_many(OrderPlaced(str(n)) for n in range(2500))
            await app.transport.send([Message("x", "shop.lake", b"\xff")])
            tap = Tap(app.transport, "shop.lake", folder, codec=app.codec)
            assert await tap.run(stop=asyncio.Event(), until_empty=True) == 2501
            assert tap.malformed == 1
            transport = app.transport
            assert isinstance(transport, SqliteTransport)
            assert (await transport.depth("shop.lake")).total == 0
        found = _records(folder)
        sent = [one for one in found if isinstance(one, SentRecord)]
        assert [msgspec.json.decode(one.data)["order_id"] for one in sent] == [
            str(n) for n in range(2500)
        ]
        assert {one.source for one in sent} == {"tap"}
        assert sum(isinstance(one, MalformedRecord) for one in found) == 1


class _Unable(SqliteTransport):
    """Cannot acknowledge."""

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        return [MatadorError("not now")] * len(settlements)


async def test_what_is_not_acknowledged_is_in_the_journal_already(tmp_path: Path) -> None:
    async with _app(tmp_path) as app:
        await app.send(OrderPlaced("1"))
    transport = _Unable(tmp_path / "shop.db", lease=30)
    await transport.connect()
    tap = Tap(transport, "shop.lake", tmp_path / "journal", codec=JsonCodec())
    await tap.run(stop=asyncio.Event(), until_empty=True)
    assert (await transport.depth("shop.lake")).total == 1
    await transport.disconnect()
    assert len(_records(tmp_path / "journal")) == 1
