"""A queue that another program deletes is made again; one that is not empty cannot be deleted."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.transports.sqlite.conftest import Make, Open

from matador.model.message import Complete, DeadLetter, Delivery
from matador.model.topology import DeadLetterQueue, DeadLetters, Topology, WorkQueue
from matador.testing import wait_for
from matador.transports.sqlite import SqliteTransport, sweep
from matador.transports.sqlite.session import load_queues
from matador.transports.sqlite.subscription import SqliteSubscription

TOPOLOGY = Topology(
    "t",
    queues=[WorkQueue("q", priorities=True, retention=60), "other"],
    dead_letters=DeadLetters(undeliverable=DeadLetterQueue(max_length=2, ttl=60)),
)


def by_hand(file: Path, statement: str) -> None:
    with closing(sqlite3.connect(file, isolation_level=None, timeout=10)) as connection:
        connection.execute(statement)


def queues(file: Path) -> object:
    """All queues with their settings, whatever their numbers."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        return [replace(one, id=0) for _, one in sorted(load_queues(connection).items())]


@pytest.fixture(autouse=True)
def _nobody_else_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caretaker would, some seconds later."""
    monkeypatch.setattr(sweep, "_INTERVAL", 1000.0)
    monkeypatch.setattr(sweep, "_QUIET", 1000.0)


async def waiting(
    transport: SqliteTransport, subscription: SqliteSubscription
) -> asyncio.Future[Sequence[Delivery]]:
    """A receive that has found nothing and sleeps."""
    receiving = asyncio.ensure_future(subscription.receive(1))
    await wait_for(lambda: transport._connected.watcher._waiting)
    return receiving


async def test_a_waiting_worker_notices_and_makes_it_again(
    file: Path, connect: Open, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    transport = await connect(TOPOLOGY)
    before = queues(file)
    subscription = await transport.subscribe("t.q", prefetch=1)
    receiving = await waiting(transport, subscription)
    with caplog.at_level(logging.WARNING):
        by_hand(file, "DELETE FROM queues WHERE name = 't.q'")
        await wait_for(lambda: queues(file) == before)
    assert "queue t.q was deleted; creating it again" in caplog.text
    sender = await connect(TOPOLOGY)
    assert await sender.send([make()]) == [None]
    async with asyncio.timeout(10):
        (delivery,) = await receiving
    assert delivery.body == b"1"


async def test_a_queue_with_messages_cannot_be_deleted(
    file: Path, connect: Open, make: Make
) -> None:
    transport = await connect(TOPOLOGY)
    await transport.send([make("kept")])
    with pytest.raises(sqlite3.IntegrityError, match="the queue is not empty"):
        by_hand(file, "DELETE FROM queues")
    await transport.send([make("new")])
    assert [one.body async for one in transport.browse("t.q")] == [b"kept", b"new"]


async def test_a_queue_that_was_deleted_and_made_again_by_another_process_is_used(
    file: Path, connect: Open, make: Make
) -> None:
    transport = await connect(TOPOLOGY)
    subscription = await transport.subscribe("t.q", prefetch=1)
    receiving = await waiting(transport, subscription)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DELETE FROM queues WHERE name = 't.q'")
        connection.execute(
            "INSERT INTO queues (id, name, dead_letters, priorities) VALUES (77, 't.q', 0, 0)"
        )
        connection.execute("COMMIT")
    # From another process, so that only the watcher can tell.
    other = await connect(TOPOLOGY)
    await other.send([make("new")])
    async with asyncio.timeout(10):
        (delivery,) = await receiving
    assert delivery.body == b"new"
    assert await transport.settle([Complete(delivery.receipt)]) == [None]
    assert len(await transport.read("t.q")) == 1


async def test_a_number_that_was_given_to_another_queue_is_left_to_it(
    file: Path, connect: Open, make: Make
) -> None:
    transport = await connect(Topology("t", queues=["q"]))
    by_hand(
        file,
        "UPDATE queues SET name = 'theirs' WHERE name = 't.q'",
    )
    assert await transport.send([make(), make(queue="theirs")]) == [None, None]
    assert (await transport.depth("t.q")).total == 1
    assert (await transport.depth("theirs")).total == 1


async def test_deleted_dead_letters_are_made_again_with_their_limits(
    file: Path, connect: Open, make: Make
) -> None:
    transport = await connect(TOPOLOGY)
    before = queues(file)
    await transport.send([make() for _ in range(3)])
    subscription = await transport.subscribe("t.q", prefetch=3)
    deliveries = await subscription.receive(3)
    by_hand(file, "DELETE FROM queues WHERE dead_letters")
    letters = [DeadLetter(one.receipt, "undeliverable", "r") for one in deliveries]
    assert await transport.settle(letters) == [None] * 3
    assert len([one async for one in transport.browse("t.q.undeliverable")]) == 2
    assert queues(file) == before
