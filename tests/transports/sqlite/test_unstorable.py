"""What no file can hold is refused for good and alone, and one form always fits."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.raw_sqlite import SqliteEntries
from tests.transports.sqlite.conftest import Make, Open

from matador.errors import (
    MatadorError,
    StorageFullError,
    StorageLockedError,
    UnstorableError,
)
from matador.model.message import REASON_HEADER, Complete, DeadLetter, Delivery, Message, Retry
from matador.transports.sqlite import SqliteTransport
from matador.transports.sqlite.session import WriterSession

LIMIT = 100_000


async def limited(connect: Open) -> SqliteTransport:
    """A transport whose rows can have 100,000 bytes instead of a thousand million."""
    transport = await connect()

    def limit(session: WriterSession) -> None:
        session.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LIMIT)

    await transport._connected.write(limit)
    return transport


async def receive(transport: SqliteTransport, count: int) -> Sequence[Delivery]:
    subscription = await transport.subscribe("t.q", prefetch=count)
    async with asyncio.timeout(10):
        deliveries = await subscription.receive(count)
    await subscription.close()
    assert len(deliveries) == count
    return deliveries


async def test_a_body_over_the_limit_of_sqlite_is_refused_for_good(
    connect: Open, make: Make
) -> None:
    transport = await limited(connect)
    first, large, last = await transport.send([make(), make("x" * LIMIT), make()])
    assert (first, last) == (None, None)
    assert isinstance(large, UnstorableError)
    assert "too big" in str(large)


ODD: dict[str, dict[str, Any]] = {
    "a surrogate in the id": {"id": "\udcff"},
    "no id": {"id": None},
    "an id of another type": {"id": object()},
    "a surrogate in a header": {"headers": {"a": "\udcff"}},
    "a header that is no value": {"headers": {"a": object()}},
    "a large number": {"priority": 2**64},
    "a surrogate in the key": {"ordering_key": "\udcff"},
    "a large body": {"body": b"x" * LIMIT},
    "no body": {"body": None},
    "a delay without end": {"delay": float("inf")},
    "an absurd delay": {"delay": 1e300},
}


@pytest.mark.parametrize("odd", ODD)
async def test_one_odd_settlement_leaves_its_group_alone(
    connect: Open, make: Make, odd: str
) -> None:
    transport = await limited(connect)
    await transport.send([make() for _ in range(5)])
    one, two, three, four, five = await receive(transport, 5)
    given: dict[str, Any] = {"id": "m", "queue": "t.q", "body": b"b", **ODD[odd]}
    retry = Retry(three.receipt, Message(**given))
    settling = [
        transport.settle([Complete(one.receipt)]),
        transport.settle([DeadLetter(two.receipt, "undeliverable", "r"), retry]),
        transport.settle([Complete(four.receipt)]),
        transport.settle([Retry(five.receipt, make("again"))]),
    ]
    (first,), (second, outcome), (fourth,), (fifth,) = await asyncio.gather(*settling)
    assert (first, second, fourth, fifth) == (None, None, None, None)
    assert isinstance(outcome, UnstorableError)
    bare = DeadLetter(three.receipt, "undeliverable", "fixed", bare=True)
    assert await transport.settle([bare]) == [None]
    letters = [one.body async for one in transport.browse("t.q.undeliverable")]
    assert letters == [b"2", b"3"]
    assert [one.body async for one in transport.browse("t.q")] == [b"again"]


async def test_it_does_not_cost_the_group_its_transaction(connect: Open, make: Make) -> None:
    """Or a hundred of them would cost a sync for each of their neighbours."""
    transport = await connect()
    await transport.send([make() for _ in range(50)])
    deliveries = await receive(transport, 50)
    seen: list[str] = []

    def trace(session: WriterSession) -> None:
        session.connection.set_trace_callback(seen.append)

    await transport._connected.write(trace)
    odd = Message("\udcff", "t.q", b"")
    outcomes = await transport.settle(
        [Retry(deliveries[0].receipt, odd), *[Complete(one.receipt) for one in deliveries[1:]]]
    )
    assert isinstance(outcomes[0], UnstorableError)
    assert not any(outcomes[1:])
    assert seen.count("ROLLBACK") == 0
    assert seen.count("COMMIT") <= 2  # with the one of the trace itself


@pytest.mark.parametrize("spare", [400, 100, 60])
async def test_a_bare_dead_letter_fits_even_if_the_body_fills_the_row(
    file: Path, connect: Open, make: Make, spare: int
) -> None:
    transport = await limited(connect)
    entries = SqliteEntries(file)
    body = b"x" * (LIMIT - spare)
    entries.insert("t.q", {"state": 0, "id": "", "stored_at": 0, "body": body})
    await entries.close()
    (delivery,) = await receive(transport, 1)
    raw = DeadLetter(delivery.receipt, "undeliverable", "r" * 500)
    (outcome,) = await transport.settle([raw])
    assert isinstance(outcome, UnstorableError)
    bare = DeadLetter(delivery.receipt, "undeliverable", "fixed", bare=True)
    assert await transport.settle([bare]) == [None]
    (letter,) = [one async for one in transport.browse("t.q.undeliverable")]
    assert letter.body == body
    assert letter.headers in ({REASON_HEADER: "fixed"}, {})
    assert (await transport.depth("t.q")).total == 0


async def test_a_full_disk_and_a_lock_may_pass(file: Path, connect: Open, make: Make) -> None:
    transport = await connect(busy_timeout=0.05)
    await transport.send([make("x" * 3000)])
    (delivery,) = await receive(transport, 1)
    retry = Retry(delivery.receipt, make("y" * 300_000))

    async def outcome() -> MatadorError | None:
        return (await transport.settle([retry]))[0]

    def fill(session: WriterSession) -> None:
        (pages,) = session.connection.execute("PRAGMA page_count").fetchone()
        session.connection.execute(f"PRAGMA max_page_count = {pages + 2}")

    def make_room(session: WriterSession) -> None:
        session.connection.execute("PRAGMA max_page_count = 1000000")

    await transport._connected.write(fill)
    full = await outcome()
    assert isinstance(full, StorageFullError)
    await transport._connected.write(make_room)
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    locked = await outcome()
    assert isinstance(locked, StorageLockedError)
    other.close()
    assert not isinstance(full, UnstorableError)
    assert await outcome() is None


async def test_what_the_file_itself_refuses_may_pass(file: Path, connect: Open, make: Make) -> None:
    """A trigger or a check that somebody added is no fault of the message."""
    transport = await connect()
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute(
            "CREATE TRIGGER no BEFORE INSERT ON messages BEGIN SELECT RAISE(ABORT, 'not now'); END"
        )
        (outcome,) = await transport.send([make()])
        assert outcome is not None
        assert not isinstance(outcome, UnstorableError)
        other.execute("DROP TRIGGER no")
    assert await transport.send([make()]) == [None]
