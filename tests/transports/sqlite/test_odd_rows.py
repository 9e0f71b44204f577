"""Rows that another program wrote: read as far as they can be, in nobody's way, never lost."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.raw_sqlite import SqliteEntries, Text
from tests.support.taking import take_stored
from tests.transports.sqlite.conftest import Make, Open

from matador.errors import LeaseLostError
from matador.model.message import (
    REASON_HEADER,
    Complete,
    DeadLetter,
    Delivery,
    Release,
    StoredMessage,
)
from matador.model.topology import DeadLetterQueue, DeadLetters, Topology, WorkQueue
from matador.transports.sqlite import SqliteTransport, sweep
from matador.transports.sqlite.clock import DatabaseClock, Machine
from matador.transports.sqlite.database import DELAYED, DONE, IN_FLIGHT, READY
from matador.transports.sqlite.session import WriterSession

DEEP = b'{"deep":' + b'{"a":' * 3000 + b"1" + b"}" * 3001


@pytest.fixture
def rows(file: Path, connect: Open) -> Iterator[Rows]:
    made = Rows(file)
    yield made
    made.close()


class Rows:
    """Writes rows as a foreign program would."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._entries: SqliteEntries | None = None

    def insert(self, queue: str = "t.q", **columns: Any) -> None:
        if self._entries is None:
            self._entries = SqliteEntries(self._file)
        row = {"state": READY, "id": "foreign", "stored_at": 0, "body": b"foreign", **columns}
        self._entries._insert(queue, row)

    def close(self) -> None:
        if self._entries is not None:
            self._entries._connection.close()


async def receive(transport: SqliteTransport, count: int, queue: str = "t.q") -> list[Delivery]:
    subscription = await transport.subscribe(queue, prefetch=count)
    deliveries: list[Delivery] = []
    async with asyncio.timeout(10):
        while len(deliveries) < count:
            deliveries += await subscription.receive(count - len(deliveries))
    await subscription.close()
    return deliveries


async def browse(transport: SqliteTransport, queue: str) -> list[StoredMessage]:
    return [message async for message in transport.browse(queue)]


ODD: dict[str, tuple[dict[str, Any], str | None]] = {
    "headers are no JSON": ({"headers": b"{"}, "headers: "),
    "headers are no object": ({"headers": b"[]"}, "headers: "),
    "headers are a number": ({"headers": 5}, "headers: a number instead of a JSON object"),
    "a header is no UTF-8": ({"headers": b'{"a": "\xff"}'}, "header 'a': "),
    "headers are nested": ({"headers": DEEP}, "headers: "),
    "one header is out of range": ({"headers": b'{"a": 1e999}'}, "header 'a': "),
    "the key is a blob": ({"ordering_key": b"\0"}, "ordering key: bytes instead of text"),
    "the key is no UTF-8": ({"ordering_key": Text(b"\xff")}, "ordering key: bytes instead of text"),
    "the priority is text": ({"priority": "high"}, "priority: text instead of a whole number"),
    "the body is a number": ({"body": 1.5}, "body: a number instead of bytes"),
    "the body is text": ({"body": "foreign"}, None),
    "the id is a blob": ({"id": b"\xff"}, None),
    "the count is text": ({"deliveries": "often"}, None),
    "the count is below zero": ({"deliveries": -1000}, None),
    "the time is no date": ({"stored_at": 2**62}, None),
    "the time is text": ({"stored_at": "yesterday"}, None),
    "the rank is text": ({"rank": "first"}, None),
    "the token is a blob": ({"token": b"\xff"}, None),
}


@pytest.mark.parametrize("odd", ODD)
async def test_an_odd_row_is_delivered_with_its_problem_and_kept_as_it_is(
    connect: Open, make: Make, rows: Rows, odd: str
) -> None:
    transport = await connect()
    columns, problem = ODD[odd]
    rows.insert(**columns)
    await transport.send([make("neighbour")])
    strange, good = await receive(transport, 2)
    assert good.body == b"neighbour"
    assert (strange.problem is None) == (problem is None)
    assert str(strange.problem).startswith(str(problem))
    assert strange.body == (b"1.5" if columns.get("body") == 1.5 else b"foreign")
    assert strange.receipt.delivery_count == 1
    raw = DeadLetter(strange.receipt, "undeliverable", "malformed")
    assert await transport.settle([raw, Complete(good.receipt)]) == [None, None]
    (letter,) = await browse(transport, "t.q.undeliverable")
    assert letter.body == strange.body
    assert letter.headers == {**strange.headers, REASON_HEADER: "malformed"}
    (delivered,) = await receive(transport, 1, "t.q.undeliverable")
    assert delivered.body == strange.body
    assert (await transport.depth("t.q")).total == 0


async def test_what_can_be_read_of_the_headers_is(connect: Open, rows: Rows) -> None:
    transport = await connect()
    rows.insert(headers=b'{"good": "kept", "bad": 1e999, "also": 5}')
    (delivery,) = await receive(transport, 1)
    assert delivery.headers == {"good": "kept", "also": 5}
    assert delivery.problem is not None
    assert "'bad'" in delivery.problem


@pytest.mark.parametrize("odd", ODD)
async def test_looking_at_an_odd_row_does_not_fail(connect: Open, rows: Rows, odd: str) -> None:
    transport = await connect(Topology("t", queues=[WorkQueue("q", retention=60)]))
    rows.insert(**ODD[odd][0])
    (stored,) = await browse(transport, "t.q")
    assert list(await transport.read("t.q")) == [stored]
    assert list(await transport.split("t.q", 2)) == [stored.position]
    assert (await transport.depth("t.q")).ready == 1
    assert isinstance(stored.id, str)
    assert stored.delivery_count >= 0
    (taken,) = await take_stored(transport, "t.q", [stored.position])
    assert taken.body == stored.body


async def test_deliveries_are_counted_from_zero_whatever_was_written(
    connect: Open, rows: Rows
) -> None:
    """Or a foreign entry could kill its worker a thousand times before it counts as poison."""
    transport = await connect(lease=0.1)
    rows.insert(deliveries=-1000)
    counts = [(await receive(transport, 1))[0].receipt.delivery_count for _ in range(3)]
    assert counts == [1, 2, 3]


@pytest.mark.parametrize(
    ("state", "due"),
    [
        *[(state, due) for state in (DELAYED, IN_FLIGHT) for due in (None, "soon", b"\0", -5)],
        *[(state, None) for state in (-1, 0.5, 1.5, 2.5, 3.5, 5, "ready", b"\0")],
    ],
)
async def test_a_row_in_no_state_is_delivered_all_the_same(
    connect: Open, rows: Rows, monkeypatch: pytest.MonkeyPatch, state: Any, due: Any
) -> None:
    monkeypatch.setattr(sweep, "_QUIET", 0.05)
    transport = await connect()
    rows.insert(state=state, due=due)
    (delivery,) = await receive(transport, 1)
    assert delivery.body == b"foreign"


async def test_times_that_are_none_do_not_keep_others_from_being_claimed(
    connect: Open, make: Make, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_INTERVAL", 1000.0)
    monkeypatch.setattr(sweep, "_QUIET", 1000.0)
    transport = await connect()
    for state in (DELAYED, IN_FLIGHT):
        rows.insert(state=state, due="soon")
    await transport.send([make("neighbour")])
    assert [one.body for one in await receive(transport, 1)] == [b"neighbour"]
    assert await transport.renew([]) == []


@pytest.mark.parametrize("token", ["'text'", "x'ff'", "NULL", "1.5"])
async def test_a_hold_that_was_overwritten_is_lost_alone(
    file: Path, connect: Open, make: Make, token: str
) -> None:
    transport = await connect()
    await transport.send([make("odd"), make("neighbour")])
    odd, neighbour = await receive(transport, 2)
    with sqlite3.connect(file) as connection:
        connection.execute(f"UPDATE messages SET token = {token} WHERE body = x'6f6464'")
    connection.close()
    assert await transport.renew([odd.receipt, neighbour.receipt]) == [False, True]
    outcomes = await transport.settle([Release(odd.receipt), Complete(neighbour.receipt)])
    assert [type(outcome) for outcome in outcomes] == [LeaseLostError, type(None)]


async def test_those_behind_an_odd_key_are_not_held_up(
    connect: Open, make: Make, rows: Rows
) -> None:
    transport = await connect(lease=0.1)
    for _ in range(3):
        rows.insert(ordering_key=Text(b"\xff"))
    # The leases pass: the three are put back in line, one behind the other.
    assert len(await receive(transport, 3)) == 3
    for _ in range(3):
        (delivery,) = await receive(transport, 1)
        assert await transport.settle([Complete(delivery.receipt)]) == [None]
    assert (await transport.depth("t.q")).total == 0


async def test_a_follower_that_was_blocked_behind_an_odd_key_is_let_through(
    connect: Open, rows: Rows
) -> None:
    transport = await connect()
    rows.insert(ordering_key=b"\xff")
    rows.insert(ordering_key=b"\xff", state=DELAYED, due=1)
    first, second = [(await receive(transport, 1))[0] for _ in range(2)]
    assert await transport.settle([Release(first.receipt), Complete(second.receipt)]) == [
        None,
        None,
    ]


async def test_sweeping_copes_with_odd_rows(connect: Open, rows: Rows, make: Make) -> None:
    short = DeadLetters(undeliverable=DeadLetterQueue(ttl=60, max_length=10))
    topology = Topology("t", queues=[WorkQueue("q", retention=60)], dead_letters=short)
    transport = await connect(topology)
    for stored_at in ("yesterday", b"\0", 2**62, -(2**62), 1e308):
        rows.insert("t.q.undeliverable", stored_at=stored_at)
        rows.insert(state=DONE, due=stored_at)

    def sweep_all(session: WriterSession) -> Sequence[str]:
        for queue in session.queues.values():
            sweep.sweep_expired(session, queue)
            sweep.sweep_forgotten(session, queue)
            sweep.take_in_strays(session, queue)
        return list(session.queues)

    assert await transport._connected.write(sweep_all)
    assert await transport.send([make()]) == [None]
    assert (await receive(transport, 1))[0].body == b"1"
    assert len(await receive(transport, 1, "t.q.undeliverable")) == 1


async def test_odd_settings_of_a_queue_are_no_settings(
    file: Path, connect: Open, make: Make
) -> None:
    transport = await connect()
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE queues SET max_length = 'few', ttl = x'ff', retention = 'long'")
        connection.execute(
            "INSERT INTO queues (name, dead_letters, priorities) VALUES (x'ff', 0, 0)"
        )
    connection.close()
    assert await transport.send([make()]) == [None]
    (delivery,) = await receive(transport, 1)
    assert await transport.settle([DeadLetter(delivery.receipt, "undeliverable", "r")]) == [None]
    assert len(await browse(transport, "t.q.undeliverable")) == 1


class _AfterReboot(Machine):
    def __init__(self) -> None:
        super().__init__()
        self.boot_id = "another"

    def wall(self) -> float:
        return 1000.0

    def uptime(self) -> float:
        return 1.0


@pytest.mark.parametrize("stored_at", ["yesterday", b"\0", 2**62, -5])
async def test_the_clock_does_not_believe_an_odd_row(
    connect: Open, rows: Rows, make: Make, stored_at: Any
) -> None:
    transport = await connect()
    rows.insert(stored_at=stored_at)

    def reboot(session: WriterSession) -> int:
        clock = DatabaseClock(_AfterReboot())
        clock.anchor(session.connection)
        return clock.now()

    assert await transport._connected.write(reboot) < 10**13
