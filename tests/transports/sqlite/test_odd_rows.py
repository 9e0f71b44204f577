"""Rows that another program wrote: refused by the file, or delivered with what can be read."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.raw_sqlite import REFUSED, SqliteEntries, Text
from tests.support.taking import take_stored
from tests.transports.sqlite.conftest import Make, Open

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
from matador.transports.sqlite.database import (
    BLOCKED,
    DELAYED,
    DONE,
    IN_FLIGHT,
    LATEST,
    PARKED,
    READY,
)
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
        self._opened: SqliteEntries | None = None

    @property
    def _entries(self) -> SqliteEntries:
        if self._opened is None:
            self._opened = SqliteEntries(self._file)
        return self._opened

    def insert(self, queue: str = "t.q", **columns: Any) -> None:
        self._entries.insert(queue, self._row(columns))

    def refused(self, **columns: Any) -> None:
        self._entries.refused("t.q", self._row(columns))

    def _row(self, columns: dict[str, Any]) -> dict[str, Any]:
        return {"state": READY, "id": "foreign", "stored_at": 0, "body": b"foreign", **columns}

    def close(self) -> None:
        if self._opened is not None:
            self._opened._connection.close()


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


# -- what the file refuses -------------------------------------------------------------------------


@pytest.mark.parametrize("column", REFUSED)
async def test_the_file_refuses_values_that_a_column_cannot_have(
    connect: Open, rows: Rows, column: str
) -> None:
    transport = await connect()
    for value in REFUSED[column]:
        rows.refused(**{column: value})
    assert (await transport.depth("t.q")).total == 0


@pytest.mark.parametrize(
    "columns",
    [
        {"state": DELAYED},
        {"state": DELAYED, "due": -5},
        {"state": DELAYED, "due": "soon"},
        {"state": DELAYED, "due": 1, "token": 1},
        {"state": IN_FLIGHT, "token": 1, "deliveries": 1},
        {"state": IN_FLIGHT, "due": 1, "deliveries": 1},
        {"state": IN_FLIGHT, "due": 1, "token": 1, "deliveries": 0},
        {"state": DONE, "due": 1, "token": 1},
        {"state": BLOCKED, "ordering_key": b"k", "token": 1},
        {"state": PARKED, "job": 0},
        {"state": PARKED, "limit_key": b"k", "due": 1},
    ],
)
async def test_the_file_refuses_a_state_without_what_belongs_to_it(
    connect: Open, rows: Rows, columns: dict[str, Any]
) -> None:
    await connect()
    rows.refused(**columns)


@pytest.mark.parametrize("token", ["'text'", "x'ff'", "NULL", "1.5"])
async def test_the_file_refuses_to_overwrite_a_claim(
    file: Path, connect: Open, make: Make, token: str
) -> None:
    transport = await connect()
    await transport.send([make()])
    (delivery,) = await receive(transport, 1)
    with closing(sqlite3.connect(file)) as connection, pytest.raises(sqlite3.IntegrityError):
        connection.execute(f"UPDATE messages SET token = {token}")
    assert await transport.renew([delivery.receipt]) == [True]
    assert await transport.settle([Release(delivery.receipt)]) == [None]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE queues SET max_length = 'few'",
        "UPDATE queues SET ttl = x'ff'",
        "UPDATE queues SET retention = -1",
        "UPDATE queues SET paused = 'maybe'",
        "UPDATE queues SET jobs = 3",
        "INSERT INTO queues (name, dead_letters, priorities) VALUES (x'ff', 0, 0)",
        "INSERT INTO job_rates VALUES (1, 'soon', 1)",
        "INSERT INTO job_keys VALUES (1, x'ff', 'id', NULL)",
        "INSERT INTO job_children VALUES (1, 'p', 'c', 2, NULL)",
        "INSERT INTO schedules VALUES (1, 'k', 'soon', x'00')",
        "INSERT INTO exchanges VALUES ('odd', 'odd')",
        "INSERT INTO bindings VALUES (x'ff', 'e', '#')",
        "INSERT INTO temporary_queues VALUES ('t', 'a', 1)",
        "INSERT INTO temporary_queues VALUES ('t', 0, 1)",
        "INSERT INTO once_ids VALUES (1, 1, x'ff')",
        "INSERT INTO meta (id) VALUES (2)",
        "UPDATE meta SET clock_offset = 9e999",
        "UPDATE meta SET last_time = 'late'",
        "UPDATE meta SET routes = 'rubbish'",
    ],
)
async def test_the_file_refuses_odd_values_in_its_other_tables(
    file: Path, connect: Open, statement: str
) -> None:
    await connect()
    with closing(sqlite3.connect(file)) as connection, pytest.raises(sqlite3.IntegrityError):
        connection.execute(statement)


# -- what is odd all the same ----------------------------------------------------------------------

ODD: dict[str, tuple[dict[str, Any], str | None]] = {
    "headers are no JSON": ({"headers": b"{"}, "headers: "),
    "headers are no object": ({"headers": b"[]"}, "headers: "),
    "a header is no UTF-8": ({"headers": b'{"a": "\xff"}'}, "header 'a': "),
    "headers are nested": ({"headers": DEEP}, "headers: "),
    "one header is out of range": ({"headers": b'{"a": 1e999}'}, "header 'a': "),
    "the key is no UTF-8": ({"ordering_key": b"\xff"}, "ordering key: not UTF-8"),
    "the key is empty": ({"ordering_key": b""}, None),
    "the id is no UTF-8": ({"id": Text(b"\xff")}, None),
    "the time is the last date": ({"stored_at": LATEST}, None),
    "the time is no date": ({"stored_at": 2**63 - 1}, None),
    "the priority is large": ({"priority": 2**63 - 1, "rank": -(2**63)}, None),
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
    if good.body == b"foreign":
        strange, good = good, strange
    assert good.body == b"neighbour"
    assert (strange.problem is None) == (problem is None)
    assert str(strange.problem).startswith(str(problem))
    assert strange.body == b"foreign"
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
    (taken,) = await take_stored(transport, "t.q", [stored.position])
    assert taken.body == stored.body


async def test_a_delivery_count_as_large_as_it_can_be_is_one_that_goes_on(
    connect: Open, rows: Rows
) -> None:
    transport = await connect(lease=0.1)
    rows.insert(deliveries=2**63 - 1)
    deliveries = [(await receive(transport, 1))[0] for _ in range(3)]
    assert all(one.receipt.delivery_count > 1_000_000 for one in deliveries)
    assert await transport.settle([Complete(deliveries[-1].receipt)]) == [None]


@pytest.mark.parametrize("state", [DELAYED, IN_FLIGHT])
@pytest.mark.parametrize("due", [0, 1, 2**40])
async def test_a_row_that_is_due_is_delivered(
    connect: Open, rows: Rows, state: int, due: int
) -> None:
    transport = await connect()
    held: dict[str, Any] = {"token": -1, "deliveries": 1} if state == IN_FLIGHT else {}
    rows.insert(state=state, due=due, stored_at=LATEST, **held)
    assert (await transport.depth("t.q")).ready == 1
    (delivery,) = await receive(transport, 1)
    assert await transport.settle([Complete(delivery.receipt)]) == [None]


async def test_a_row_that_is_never_due_is_in_nobody_s_way(
    connect: Open, make: Make, rows: Rows
) -> None:
    transport = await connect()
    rows.insert(state=DELAYED, due=2**63 - 1)
    rows.insert(state=IN_FLIGHT, due=2**63 - 1, token=1, deliveries=1)
    (delayed, _) = await browse(transport, "t.q")
    assert delayed.due_at is None, "it is after the year 9999"
    await transport.send([make("neighbour")])
    assert [one.body for one in await receive(transport, 1)] == [b"neighbour"]


async def test_those_behind_an_odd_key_are_not_held_up(
    connect: Open, make: Make, rows: Rows
) -> None:
    transport = await connect(lease=0.1)
    for _ in range(3):
        rows.insert(ordering_key=b"\xff")
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
    rows.insert(ordering_key=b"\xff", state=BLOCKED)
    (first,) = await receive(transport, 1)
    retried = DeadLetter(first.receipt, "undeliverable", "malformed")
    assert await transport.settle([retried]) == [None]
    (second,) = await receive(transport, 1)
    assert await transport.settle([Complete(second.receipt)]) == [None]


async def test_sweeping_copes_with_odd_rows(connect: Open, rows: Rows, make: Make) -> None:
    short = DeadLetters(undeliverable=DeadLetterQueue(ttl=60, max_length=10))
    topology = Topology("t", queues=[WorkQueue("q", retention=60)], dead_letters=short)
    transport = await connect(topology)
    for stored_at in (0, 2**63 - 1):
        rows.insert("t.q.undeliverable", stored_at=stored_at)
        rows.insert(state=DONE, due=stored_at)

    def sweep_all(session: WriterSession) -> Sequence[str]:
        for queue in session.queues.values():
            sweep.sweep_expired(session, queue)
            sweep.sweep_forgotten(session, queue)
        return list(session.queues)

    assert await transport._connected.write(sweep_all)
    assert await transport.send([make()]) == [None]
    assert (await receive(transport, 1))[0].body == b"1"
    assert len(await receive(transport, 1, "t.q.undeliverable")) == 1


async def test_a_name_that_is_no_utf8_is_in_nobody_s_way(
    file: Path, connect: Open, make: Make
) -> None:
    transport = await connect()
    with sqlite3.connect(file) as connection:
        connection.execute(
            "INSERT INTO queues (name, dead_letters, priorities) VALUES (CAST(x'ff' AS TEXT), 0, 0)"
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


@pytest.mark.parametrize(
    ("stored_at", "now"),
    [(0, 1_000_000), (5_000_000, 5_000_000), (LATEST, LATEST), (2**62, 1_000_000)],
)
async def test_the_clock_goes_on_from_the_newest_row_if_that_is_a_date(
    connect: Open, rows: Rows, stored_at: int, now: int
) -> None:
    transport = await connect()
    rows.insert(stored_at=stored_at)

    def reboot(session: WriterSession) -> int:
        clock = DatabaseClock(_AfterReboot())
        clock.anchor(session.connection)
        return clock.now()

    assert await transport._connected.write(reboot) == now
