"""Group commit: those who come together share one transaction, and fail alone."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

from tests.transports.sqlite.conftest import Make, Open

from matador.errors import QueueNotFoundError
from matador.testing import wait_for
from matador.transports.sqlite import SqliteTransport
from matador.transports.sqlite.session import WriterSession


async def trace(transport: SqliteTransport) -> Counter[str]:
    """Counts the statements of the writer from now on, by their first word."""
    seen: Counter[str] = Counter()

    def count(statement: str) -> None:
        seen[statement.split(maxsplit=1)[0]] += 1

    def start(session: WriterSession) -> None:
        session.connection.set_trace_callback(count)

    await transport._connected.write(start)
    return seen


async def test_concurrent_callers_share_transactions(connect: Open, make: Make) -> None:
    transport = await connect()
    seen = await trace(transport)
    outcomes = await asyncio.gather(*[transport.send([make()]) for _ in range(1000)])
    assert all(list(outcome) == [None] for outcome in outcomes)
    assert seen["COMMIT"] < 100


async def test_the_order_of_sending_is_kept(connect: Open, make: Make) -> None:
    transport = await connect()
    messages = [make() for _ in range(777)]
    await asyncio.gather(*[transport.send(messages[i : i + 7]) for i in range(0, 777, 7)])
    assert [m.id async for m in transport.browse("t.q")] == [m.id for m in messages]


async def test_an_operation_that_fails_leaves_its_group_alone(connect: Open, make: Make) -> None:
    transport = await connect()
    writer = transport._connected.writer

    def fail(session: WriterSession, items: object) -> list[None]:
        session.connection.execute("INSERT INTO queues (name) VALUES (NULL)")
        return [None]

    def hold(session: WriterSession, items: object) -> list[None]:
        release.wait(10)
        return [None]

    release = threading.Event()
    held = writer.submit(hold, [None])
    good = [transport.send([make()]) for _ in range(3)]
    tasks = [asyncio.ensure_future(send) for send in good]
    failing = writer.submit(fail, [None])
    unknown = asyncio.ensure_future(transport.send([make(queue="t.nowhere"), make()]))
    await asyncio.sleep(0)
    release.set()
    await held
    assert [list(outcome) for outcome in await asyncio.gather(*tasks)] == [[None]] * 3
    (failure,) = await failing
    assert "NOT NULL" in str(failure)
    first, second = await unknown
    assert isinstance(first, QueueNotFoundError)
    assert second is None
    assert (await transport.depth("t.q")).ready == 4


async def test_disconnect_finishes_what_was_submitted(connect: Open, make: Make) -> None:
    transport = await connect()
    sends = [asyncio.ensure_future(transport.send([make()])) for _ in range(200)]
    await asyncio.sleep(0)
    await transport.disconnect()
    assert [list(outcome) for outcome in await asyncio.gather(*sends)] == [[None]] * 200
    await transport.connect()
    assert (await transport.depth("t.q")).ready == 200


async def test_what_came_in_with_the_order_to_stop_is_finished_too(
    connect: Open, make: Make
) -> None:
    transport = await connect()
    writer = transport._connected.writer
    release = threading.Event()

    def hold(session: WriterSession, items: object) -> list[None]:
        release.wait(10)
        return [None]

    held = writer.submit(hold, [None])
    send = asyncio.ensure_future(transport.send([make()]))
    await asyncio.sleep(0)
    stopping = asyncio.ensure_future(writer.stop())
    await asyncio.sleep(0)
    release.set()
    async with asyncio.timeout(10):
        await asyncio.gather(held, stopping)
        assert list(await send) == [None]
    await transport.disconnect()
    await transport.connect()
    assert (await transport.depth("t.q")).ready == 1


async def test_a_caller_that_gives_up_harms_nobody(connect: Open, make: Make) -> None:
    transport = await connect()
    sends = [asyncio.ensure_future(transport.send([make()])) for _ in range(20)]
    await asyncio.sleep(0)
    for send in sends[::2]:
        send.cancel()
    outcomes = await asyncio.gather(*sends[1::2])
    assert [list(outcome) for outcome in outcomes] == [[None]] * 10


async def test_idle_means_idle(connect: Open) -> None:
    """Nothing is written and no lock is taken while a subscription waits for messages."""
    transport = await connect()
    subscription = await transport.subscribe("t.q", prefetch=1)
    receiving = asyncio.ensure_future(subscription.receive(1))
    seen = await trace(transport)

    async def nothing_is_done() -> bool:
        seen.clear()
        await asyncio.sleep(0.3)
        return seen["UPDATE"] == 0 and seen["BEGIN"] <= 1  # the caretaker's look

    await wait_for(nothing_is_done, message="a subscription that waits")
    receiving.cancel()
