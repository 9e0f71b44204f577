"""The tap: on the disk first, acknowledged after."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.observe.disk_spy import DiskSpy
from tests.observe.subscriptions import Changed

from matador import JsonCodec, Matador, MessagePackCodec, Schema, SubscriberStub, Topology, event
from matador.codec.base import Codec, RawEnvelope, Stamp
from matador.errors import ConfigurationError, MatadorError, QueuePausedError
from matador.model.message import Delivery, Headers, Message, Settlement
from matador.observe import Tap
from matador.observe.journal.records import MalformedRecord, SentRecord, decode_record
from matador.observe.journal.segments import finished
from matador.testing import wait_for
from matador.transports import SqliteTransport


@event("order.placed", description="An order was placed.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str


_STUB = SubscriberStub("lake", description="Lands in the lake.", queue="lake")


def _app(path: Path, codec: Codec | None = None) -> Matador:
    return Matador(
        SqliteTransport(path / "shop.db", lease=30),
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


async def test_a_paused_queue_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    async with _app(tmp_path) as app:
        transport = app.transport
        assert isinstance(transport, SqliteTransport)
        await transport.pause_queue("shop.lake")
        tap = Tap(transport, "shop.lake", tmp_path / "journal", codec=app.codec)
        assert await tap.run(stop=asyncio.Event(), until_empty=True) == 0
        await app.send(OrderPlaced("1"))
        with pytest.raises(QueuePausedError, match=r"messages are waiting in shop\.lake"):
            await tap.run(stop=asyncio.Event(), until_empty=True)
        await transport.resume_queue("shop.lake")
        assert await tap.run(stop=asyncio.Event(), until_empty=True) == 1


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


class _Telling(SqliteTransport):
    """Notes when it is told that messages are done."""

    spy: DiskSpy

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        self.spy.steps.append(("settle", ""))
        return await super().settle(settlements)


async def test_a_message_and_its_file_are_on_the_disk_before_it_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _app(tmp_path) as app:
        await app.send(OrderPlaced("1"))
    transport = _Telling(tmp_path / "shop.db", lease=30)
    transport.spy = spy = DiskSpy(monkeypatch)
    await transport.connect()
    tap = Tap(transport, "shop.lake", tmp_path / "journal", codec=JsonCodec())
    await tap.run(stop=asyncio.Event(), until_empty=True)
    await transport.disconnect()
    (path,) = finished(tmp_path / "journal")
    assert spy.steps == [
        ("fsync", f".open-{path.name}"),
        ("fsync", "journal"),
        ("settle", ""),
        ("fsync", f".open-{path.name}"),
        ("rename", path.name),
        ("fsync", "journal"),
    ]


async def test_what_cannot_be_made_durable_is_not_acknowledged_and_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with _app(tmp_path) as app:
        await app.send(OrderPlaced("1"))
    sync = os.fsync

    def fails_once(file: int) -> None:
        monkeypatch.setattr(os, "fsync", sync)
        raise OSError(errno.EIO, "no luck")

    monkeypatch.setattr(os, "fsync", fails_once)
    transport = SqliteTransport(tmp_path / "shop.db", lease=0.2)
    await transport.connect()
    tap = Tap(transport, "shop.lake", tmp_path / "journal", codec=JsonCodec())
    stop = asyncio.Event()
    running = asyncio.create_task(tap.run(stop=stop))
    await wait_for(lambda: tap.landed >= 1)

    async def settled() -> bool:  # in a second turn, if a busy machine outlasts the lease
        return (await transport.depth("shop.lake")).total == 0

    await wait_for(settled)
    stop.set()
    await running
    await transport.disconnect()
    assert "the tap pauses for 0.1 s" in caplog.text
    assert "no luck" in caplog.text
    ids = {one.id for one in _records(tmp_path / "journal") if isinstance(one, SentRecord)}
    assert len(ids) == 1


def _unread(delivery: Delivery) -> Delivery:
    if delivery.body != b"unread":
        return delivery
    problem = "header 'x-y': a timestamp out of range \udcff"
    return msgspec.structs.replace(delivery, problem=problem)


class _Foreign(SqliteTransport):
    """Has a delivery that it could not read."""

    async def subscribe(self, queue: str, *, prefetch: int = 1) -> Any:
        return Changed(await super().subscribe(queue, prefetch=prefetch), change=_unread)


class _Poisonous(JsonCodec):
    """Raises what no codec should."""

    def decode(self, body: bytes, headers: Headers, stamp: Stamp) -> RawEnvelope:
        if b"poison" in body:
            raise RecursionError("\udcff")
        return super().decode(body, headers, stamp)


async def test_nothing_that_arrives_stops_the_tap(tmp_path: Path) -> None:
    async with _app(tmp_path) as app:
        for n, body in enumerate((b"unread", b"poison", b"more poison")):
            await app.send(OrderPlaced(str(n)))
            await app.transport.send([Message(str(n), "shop.lake", body)])
    transport = _Foreign(tmp_path / "shop.db", lease=30)
    await transport.connect()
    tap = Tap(transport, "shop.lake", tmp_path / "journal", codec=_Poisonous())
    assert await tap.run(stop=asyncio.Event(), until_empty=True) == 6
    assert (await transport.depth("shop.lake")).total == 0
    await transport.disconnect()
    assert tap.malformed == 3
    found = _records(tmp_path / "journal")
    reasons = sorted(one.reason for one in found if isinstance(one, MalformedRecord))
    assert reasons == ["?", "?", "header 'x-y': a timestamp out of range ?"]
    assert sum(isinstance(one, SentRecord) for one in found) == 3


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Tap: folder: s3a:// is not supported"):
        Tap(SqliteTransport(tmp_path / "x.db"), "q", "s3a://bucket/journal", codec=JsonCodec())
