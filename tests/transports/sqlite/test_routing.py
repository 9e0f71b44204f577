"""Exchanges, temporary queues and replies in a file that several processes share."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.transports.sqlite.conftest import Open

from matador.errors import ConfigurationError, QueueNotFoundError
from matador.model.message import Message, Properties
from matador.model.topology import Binding, Exchange, Topology, WorkQueue
from matador.testing import ManualClock, wait_for
from matador.transports.sqlite import SqliteTransport

ROUTED = Topology(
    "t",
    queues=["q", WorkQueue("mine", expires=60)],
    exchanges=["e"],
    bindings=[Binding("e", "q", "a.#"), Binding("e", "mine", "#")],
)


def message(key: str = "a", body: bytes = b"x") -> Message:
    return Message("m", "", body, properties=Properties(routing_key=key))


def rows(file: Path, table: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(f"SELECT * FROM {table}").fetchall()


async def sweep(transport: SqliteTransport) -> None:
    await transport._connected.write(lambda session: session.keep_temporary())


async def test_a_file_without_exchanges_has_none_to_publish_to(connect: Open) -> None:
    transport = await connect()
    await sweep(transport)
    (outcome,) = await transport.publish("e", [message()])
    assert isinstance(outcome, QueueNotFoundError)
    await transport.unbind("e", "t.q", "#")


async def test_a_temporary_queue_is_deleted_with_all_that_is_its_own(
    file: Path, connect: Open, manual_clock: ManualClock
) -> None:
    transport = await connect(ROUTED, clock=manual_clock)
    subscription = await transport.subscribe("t.mine", prefetch=1)
    assert list(await transport.publish("e", [message(), message("b")])) == [2, 1]
    for _ in range(5):
        manual_clock.advance(59)
        await sweep(transport)
    assert list(await transport.publish("e", [message("b")])) == [1], "it is consumed"
    await subscription.close()
    manual_clock.advance(59)
    await sweep(transport)
    assert list(await transport.publish("e", [message("b")])) == [1]
    manual_clock.advance(2)
    await sweep(transport)
    assert list(await transport.publish("e", [message("b"), message("a")])) == [0, 1]
    assert rows(file, "bindings") == [("t.q", "e", "a.#")]
    assert rows(file, "temporary_queues") == []
    names = {name for _, name, *_ in rows(file, "queues")}
    assert names == {"t.q", "t.q.unhandled", "t.q.undeliverable"}
    assert len(rows(file, "messages")) == 2, "those of the other queue"


async def test_a_consumed_temporary_queue_comes_back_with_its_bindings(
    file: Path, connect: Open
) -> None:
    transport = await connect(ROUTED)
    subscription = await transport.subscribe("t.mine", prefetch=1)
    other = await connect()
    await other.delete_queue("t.mine")  # as if this process had been asleep for too long
    receiving = asyncio.create_task(subscription.receive(1))

    async def routed() -> bool:
        return list(await other.publish("e", [message("b")])) == [1]

    await wait_for(routed, message="the queue to be back")
    assert (await receiving)[0].body == b"x"


async def test_a_queue_that_was_deleted_on_purpose_is_not_put_back(connect: Open) -> None:
    transport, other = await connect(ROUTED), await connect(ROUTED)
    await transport.delete_queue("t.q")
    for one in (transport, other, other):
        (outcome,) = await one.send([Message("m", "t.q", b"")])
        assert isinstance(outcome, QueueNotFoundError)
    await other.apply_topology(ROUTED)
    for one in (transport, other):
        assert list(await one.publish("e", [message()])) == [2]


async def test_a_queue_of_jobs_cannot_be_deleted_as_others_can(connect: Open) -> None:
    transport = await connect()
    await transport.open_jobs("jobs")
    with pytest.raises(ConfigurationError, match="jobs"):
        await transport.delete_queue("jobs")
    assert (await transport.count_jobs("jobs")).waiting == 0


async def test_an_exchange_keeps_its_type(connect: Open) -> None:
    await connect(ROUTED)
    other = await connect()
    (note,) = await other.apply_topology(Topology("u", exchanges=[Exchange("e", "fanout")]))
    assert "'topic'" in note.text
    assert list(await other.publish("e", [message("b")])) == [1]


async def test_rows_of_others_do_no_harm(file: Path, connect: Open) -> None:
    transport = await connect(ROUTED)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("INSERT INTO exchanges VALUES (CAST(x'ff' AS TEXT), 'topic')")
        connection.execute("INSERT INTO bindings VALUES ('t.q', 'gone', '#'), (1, 2, 3)")
        connection.execute("INSERT INTO bindings VALUES ('no.such.queue', 'e', '#')")
        connection.execute("INSERT INTO temporary_queues VALUES (CAST(x'ff' AS TEXT), 5, 5)")
        connection.execute("INSERT INTO temporary_queues VALUES (7, 9223372036854775807, -1)")
        connection.execute("UPDATE meta SET routes = -5")
    await sweep(transport)
    assert list(await transport.publish("e", [message()])) == [2]
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("DELETE FROM meta")
    await transport.apply_topology(Topology("u", exchanges=["more"]))
    assert list(await transport.publish("more", [message()])) == [0]


async def test_the_replies_of_a_killed_process_are_swept(
    file: Path, connect: Open, manual_clock: ManualClock
) -> None:
    program = f"""
import asyncio, os
from matador.transports.sqlite import SqliteTransport
async def main():
    transport = SqliteTransport({str(file)!r})
    await transport.connect()
    print(await transport.reply_address(), flush=True)
    await transport.replies()
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    address = (await process.communicate())[0].decode().strip()
    assert address.startswith("matador.reply.")
    transport = await connect(clock=manual_clock)
    reply = Message("", address, b"late", properties=Properties(correlation_id="c"))
    assert list(await transport.send([reply])) == [None]
    assert len(rows(file, "messages")) == 1, "it may still be there"
    manual_clock.advance(3600)
    await sweep(transport)
    assert rows(file, "messages") == []
    assert rows(file, "temporary_queues") == []
    assert list(await transport.send([reply])) == [None], "dropped"
    assert rows(file, "messages") == []
