"""Looking after the file with messages in hands, and with errors in the middle of it."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.taking import take_stored
from tests.transports.sqlite.conftest import Make, Open

from matador.model.message import Complete, DeadLetter, Delivery
from matador.model.topology import DeadLetterQueue, DeadLetters, Topology, WorkQueue
from matador.testing import ManualClock, wait_for
from matador.transports.sqlite import SqliteTransport, sweep
from matador.transports.sqlite.session import WriterSession

LETTERS = "t.q.undeliverable"


def topology(**limits: Any) -> Topology:
    letters = DeadLetters(undeliverable=DeadLetterQueue(**limits))
    return Topology("t", queues=[WorkQueue("q", retention=100)], dead_letters=letters)


async def receive(transport: SqliteTransport, queue: str, count: int) -> list[Delivery]:
    subscription = await transport.subscribe(queue, prefetch=count)
    deliveries = list(await subscription.receive(count))
    await subscription.close()
    assert len(deliveries) == count
    return deliveries


async def bury(transport: SqliteTransport, make: Make, *bodies: str) -> None:
    await transport.send([make(body) for body in bodies])
    letters = [
        DeadLetter(one.receipt, "undeliverable", "r")
        for one in await receive(transport, "t.q", len(bodies))
    ]
    assert await transport.settle(letters) == [None] * len(bodies)


async def sweep_all(transport: SqliteTransport) -> None:
    def work(session: WriterSession) -> None:
        for queue in session.queues.values():
            sweep.sweep_expired(session, queue)
            sweep.sweep_forgotten(session, queue)

    await transport._connected.write(work)


def stored(file: Path) -> list[bytes]:
    """What is really in the file, whatever anybody can see."""
    with closing(sqlite3.connect(file)) as connection:
        return [body for (body,) in connection.execute("SELECT body FROM messages ORDER BY seq")]


async def test_a_letter_that_somebody_holds_does_not_expire(
    file: Path, connect: Open, make: Make
) -> None:
    clock = ManualClock()
    transport = await connect(topology(ttl=60), clock=clock, lease=1000)
    await bury(transport, make, "held", "free")
    (held,) = await receive(transport, LETTERS, 1)
    assert held.body == b"held"
    clock.advance(61)
    await sweep_all(transport)
    assert stored(file) == [b"held"]
    # A claim sweeps, too.
    await bury(transport, make, "new")
    assert [one.body for one in await receive(transport, LETTERS, 1)] == [b"new"]
    assert await transport.settle([Complete(held.receipt)]) == [None]


async def test_letters_that_somebody_holds_do_not_make_room(
    file: Path, connect: Open, make: Make
) -> None:
    transport = await connect(topology(max_length=2))
    await bury(transport, make, "held", "also held")
    held = await receive(transport, LETTERS, 2)
    await bury(transport, make, "third")
    await bury(transport, make, "fourth")
    assert stored(file)[:2] == [b"held", b"also held"]
    assert await transport.settle([Complete(one.receipt) for one in held]) == [None, None]


async def test_what_is_retained_stays_to_the_last_moment(
    file: Path, connect: Open, make: Make
) -> None:
    clock = ManualClock()
    transport = await connect(topology(), clock=clock)
    await transport.send([make("done")])
    (delivery,) = await receive(transport, "t.q", 1)
    await transport.settle([Complete(delivery.receipt)])
    clock.advance(99)
    await sweep_all(transport)
    assert stored(file) == [b"done"]
    clock.advance(2)
    await sweep_all(transport)
    assert stored(file) == []


async def test_a_purge_leaves_what_is_finished_for_those_who_read_it_again(
    connect: Open, make: Make
) -> None:
    transport = await connect(topology())
    await transport.send([make("done"), make("ready"), make("held")])
    (delivery,) = await receive(transport, "t.q", 1)
    await transport.settle([Complete(delivery.receipt)])
    positions = [one.position async for one in transport.browse("t.q") if one.body == b"held"]
    (held,) = await take_stored(transport, "t.q", positions)
    assert await transport.purge("t.q") == 1
    assert [one.body for one in await transport.read("t.q")] == [b"done", b"held"]
    assert await transport.settle([Complete(held.receipt)]) == [None]


async def test_the_caretaker_sweeps_by_itself(
    file: Path, connect: Open, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_INTERVAL", 0.05)
    monkeypatch.setattr(sweep, "_QUIET", 0.05)
    clock = ManualClock()
    transport = await connect(topology(ttl=60), clock=clock)
    await bury(transport, make, "letter")
    await transport.send([make("done")])
    (delivery,) = await receive(transport, "t.q", 1)
    await transport.settle([Complete(delivery.receipt)])
    assert len(stored(file)) == 2
    clock.advance(101)
    await wait_for(lambda: stored(file) == [], timeout=10, message="both to be swept")


async def test_an_error_while_sweeping_holds_up_nobody(
    file: Path,
    connect: Open,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(sweep, "_INTERVAL", 0.05)
    clock = ManualClock()
    transport = await connect(topology(ttl=60), clock=clock)
    await bury(transport, make, "letter")
    failed = 0

    def fail(session: WriterSession, queue: object) -> int:
        nonlocal failed
        failed += 1
        raise sqlite3.OperationalError("in the middle of it")

    with caplog.at_level(logging.WARNING), monkeypatch.context() as patch:
        patch.setattr(sweep, "sweep_forgotten", fail)
        clock.advance(61)
        await wait_for(lambda: failed, timeout=10, message="a sweep to fail")
        await wait_for(lambda: "tried again" in caplog.text)
        # Nothing is left open: another process can write at once.
        with closing(sqlite3.connect(file, isolation_level=None, timeout=0)) as other:

            async def locked() -> bool:
                try:
                    other.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError:
                    return False  # just now it tries again
                return True

            await wait_for(locked)
            assert other.execute("SELECT count(*) FROM messages").fetchone() == (1,)
    assert await transport.send([make()]) == [None]
    await wait_for(lambda: b"letter" not in stored(file), timeout=10, message="the next sweep")


def last_time(file: Path) -> int:
    with closing(sqlite3.connect(file)) as connection:
        found = connection.execute("SELECT last_time FROM meta").fetchone()
    return int(found[0])


async def test_the_time_is_noted_when_something_is_swept_and_at_the_end(
    file: Path, connect: Open, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a reboot with a clock that is behind, this is all that tells how late it was."""
    monkeypatch.setattr(sweep, "_INTERVAL", 0.05)
    clock = ManualClock()
    transport = await connect(topology(ttl=60), clock=clock)
    await bury(transport, make, "letter")
    clock.advance(61)
    await wait_for(lambda: last_time(file), timeout=10, message="the time to be noted")
    swept = last_time(file)
    clock.advance(500)
    await transport.disconnect()
    assert last_time(file) >= swept + 500_000
