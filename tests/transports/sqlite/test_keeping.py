"""What is kept, for how long and how much of it: dead letters, retention, and the file itself."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from pathlib import Path

import pytest
from tests.transports.sqlite.conftest import Make, Open

from matador.model.message import REASON_HEADER, Complete, DeadLetter, StoredMessage
from matador.model.topology import DeadLetterQueue, DeadLetters, Topology, WorkQueue
from matador.testing import ManualClock, wait_for
from matador.transports.sqlite import SqliteTransport, sweep
from matador.transports.sqlite.clock import DatabaseClock, Machine
from matador.transports.sqlite.database import open_for_writing
from matador.transports.sqlite.session import WriterSession


async def bury(transport: SqliteTransport, count: int) -> None:
    subscription = await transport.subscribe("t.q", prefetch=count)
    while count:
        deliveries = await subscription.receive(count)
        count -= len(deliveries)
        settlements = [DeadLetter(d.receipt, "undeliverable", "failed") for d in deliveries]
        assert not any(await transport.settle(settlements))
    await subscription.close()


async def browse(transport: SqliteTransport, queue: str) -> list[StoredMessage]:
    return [message async for message in transport.browse(queue)]


async def test_the_oldest_dead_letters_make_room_and_one_warning_says_so(
    connect: Open, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    limit = DeadLetters(undeliverable=DeadLetterQueue(max_length=3))
    transport = await connect(Topology("t", queues=["q"], dead_letters=limit))
    await transport.send([make() for _ in range(7)])
    with caplog.at_level(logging.WARNING):
        for _ in range(7):
            await bury(transport, 1)
    left = await browse(transport, "t.q.undeliverable")
    assert [message.body for message in left] == [b"5", b"6", b"7"]
    assert [record.message for record in caplog.records if "max_length" in record.message] == [
        "t.q.undeliverable has reached max_length=3 messages: dropping the oldest from now on"
    ]


async def test_dead_letters_expire(connect: Open, make: Make) -> None:
    clock = ManualClock()
    short = DeadLetters(undeliverable=DeadLetterQueue(ttl=60))
    transport = await connect(Topology("t", queues=["q"], dead_letters=short), clock=clock)
    await transport.send([make(), make()])
    await bury(transport, 1)
    clock.advance(40)
    await bury(transport, 1)
    clock.advance(30)
    assert [m.body for m in await browse(transport, "t.q.undeliverable")] == [b"2"]
    assert (await transport.depth("t.q.undeliverable")).ready == 1
    subscription = await transport.subscribe("t.q.undeliverable", prefetch=2)
    (delivery,) = await subscription.receive(2)
    assert delivery.body == b"2"


async def test_a_dead_letter_keeps_raw_bytes_and_headers_and_blocks_nobody(
    connect: Open, make: Make
) -> None:
    transport = await connect()
    raw = make("\x00not an envelope", headers={"n": 1, "s": "x"}, ordering_key="k", priority=3)
    await transport.send([raw, raw])
    await bury(transport, 2)
    first, second = await browse(transport, "t.q.undeliverable")
    assert first.body == raw.body
    assert first.headers == {"n": 1, "s": "x", REASON_HEADER: "failed"}
    assert (first.reason, first.id, first.ordering_key) == ("failed", raw.id, None)
    subscription = await transport.subscribe("t.q.undeliverable", prefetch=2)
    assert len(await subscription.receive(2)) == 2
    assert second.body == raw.body


async def test_finished_messages_are_read_again_until_the_retention_is_over(
    connect: Open, make: Make
) -> None:
    clock = ManualClock()
    transport = await connect(Topology("t", queues=[WorkQueue("q", retention=100)]), clock=clock)
    await transport.send([make(headers={"n": 1}, ordering_key="k") for _ in range(5)])
    subscription = await transport.subscribe("t.q", prefetch=5)
    for _ in range(3):
        (delivery,) = await subscription.receive(5)
        await transport.settle([Complete(delivery.receipt)])
    first = await transport.read("t.q", limit=2)
    assert [(m.body, m.state) for m in first] == [(b"1", "done"), (b"2", "done")]
    rest = await transport.read("t.q", after=first[-1].position)
    assert [m.state for m in rest] == ["done", "ready", "ready"]
    assert await transport.read("t.q", limit=2) == first
    assert len(await browse(transport, "t.q")) == 2
    assert (await transport.depth("t.q")).total == 2
    clock.advance(101)
    assert [m.body for m in await transport.read("t.q")] == [b"4", b"5"]
    # A position never comes again, so that a reader does not miss what follows.
    await transport.purge("t.q")
    await transport._connected.write(_sweep)
    await transport.send([make("new")])
    assert [m.body for m in await transport.read("t.q", after=rest[-1].position)] == [b"new"]


def size(file: Path) -> int:
    return file.stat().st_size


def _sweep(session: WriterSession) -> None:
    for queue in session.queues.values():
        while sweep.sweep_expired(session, queue) or sweep.sweep_forgotten(session, queue):
            pass


async def test_browse_pages_through_large_queues_and_large_bodies(
    connect: Open, make: Make
) -> None:
    transport = await connect()
    await transport.send([make() for _ in range(1200)])
    await transport.send([make("x" * 1_000_000) for _ in range(12)])
    found = await browse(transport, "t.q")
    assert [message.id for message in found] == [str(number) for number in range(1, 1213)]
    after = found[600].position
    some = [m.id async for m in transport.browse("t.q", after=after, limit=510)]
    assert some == [str(number) for number in range(602, 1112)]


async def test_settings_change_for_other_processes_too(connect: Open, make: Make) -> None:
    one = await connect()
    other = await connect()
    await other.apply_topology(Topology("t", queues=[WorkQueue("q", retention=60), "new"]))
    assert await one.send([make(), make(queue="t.new")]) == [None, None]
    subscription = await one.subscribe("t.q", prefetch=1)
    (delivery,) = await subscription.receive(1)
    await one.settle([Complete(delivery.receipt)])
    assert [message.state for message in await one.read("t.q")] == ["done"]


@pytest.mark.slow
async def test_the_file_stays_compact(
    file: Path, connect: Open, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200,000 messages of 500 bytes pass through; then a backlog of 40,000 is note_work off."""
    monkeypatch.setattr(sweep, "_INTERVAL", 0.05)
    monkeypatch.setattr(sweep, "_QUIET", 0.2)
    log = file.with_name(file.name + "-wal")
    transport = await connect(synchronous="NORMAL")
    subscription = await transport.subscribe("t.q", prefetch=1000)
    largest = 0
    body = "x" * 500

    async def send(count: int) -> None:
        for _ in range(0, count, 1000):
            await transport.send([make(body) for _ in range(1000)])

    async def consume(count: int) -> None:
        nonlocal largest
        while count:
            deliveries = await subscription.receive(1000)
            await transport.settle([Complete(delivery.receipt) for delivery in deliveries])
            count -= len(deliveries)
            largest = max(largest, size(file) + size(log))

    async with asyncio.timeout(100):
        await asyncio.gather(send(200_000), consume(200_000))
        assert largest < 100 << 20
        await send(40_000)
        assert size(file) + size(log) > 20 << 20
        await consume(40_000)

    async def compact() -> bool:
        return size(log) == 0 and size(file) < 12 << 20

    await wait_for(compact, timeout=100, message="free pages to be given back")


def test_a_caretaker_that_finds_the_file_locked_comes_back_later(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_QUIET", 0.0)
    connection = open_for_writing(file, synchronous="NORMAL", busy_timeout=1)
    session = WriterSession(connection, file, DatabaseClock(Machine()), busy_timeout=0)
    session.anchor()
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    maintenance = sweep.Maintenance()
    maintenance.note_work()
    assert maintenance.seconds_to_wait(session) == 0
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        maintenance.run_if_due(session)
    assert maintenance.seconds_to_wait(session) > 1
    other.close()
    connection.close()
