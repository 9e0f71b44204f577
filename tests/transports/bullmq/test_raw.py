"""Odd jobs among good ones, through a whole application: every neighbour is handled."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.raw_bullmq import RawBullMQ
from tests.support.redis import OwnServer
from tests.support.shop import QUEUE, Handler, Heard, OrderPlaced, make_app

from matador.model.message import DeadLetter
from matador.testing.compliance.bench import collect
from matador.testing.wait import wait_for
from matador.transports.bullmq import BullMQTransport

if TYPE_CHECKING:
    from tests.transports.bullmq.conftest import Open

pytestmark = pytest.mark.broker

STATES = ("wait", "active", "delayed", "prioritized", "paused")


async def left_over(client: Any, prefix: str) -> dict[str, int]:
    """How many jobs are in which state, those that are finished aside."""
    counts: dict[str, int] = {}
    for state in STATES:
        key = f"{prefix}:{QUEUE}:{state}"
        kind = await client.type(key)
        counts[state] = await (client.llen(key) if kind == b"list" else client.zcard(key))
    return {state: count for state, count in counts.items() if count}


async def test_thousands_of_odd_jobs_stop_nobody(
    server: OwnServer, prefix: str, client: Any
) -> None:
    url = f"bullmq://127.0.0.1:{server.port}/0?prefix={prefix}&lease=30"
    raw, handler, heard = RawBullMQ(server.url, prefix), Handler(), Heard()
    written: list[str] = []
    async with make_app(url, handler, hooks=[heard]) as app:
        for number in range(2_000):
            written.append(await raw.write(QUEUE, Random(f"1/{number}")))
            if number % 10 == 0:
                await app.send(OrderPlaced(str(number)))
        await raw.close()
        neighbours = {str(number) for number in range(0, 2_000, 10)}

        async def all_done() -> bool:
            failed = await client.zcard(f"{prefix}:{QUEUE}:failed")
            return failed + handler.runs >= len(written) + len(neighbours)

        await wait_for(all_done, timeout=90, message="every job to be handled or to fail")
        await wait_for(lambda: app.state.is_idle, message="the worker to be idle")
        assert await left_over(client, prefix) == {}
        assert {one.order_id for one in handler.data} == neighbours
        states = {event.state.status for event in heard.of("connection")}
        assert states <= {"connecting", "connected"}
        letters = f"{QUEUE}.undeliverable"
        assert isinstance(app.transport, BullMQTransport)
        found = await collect(app.transport.browse(letters))
        handled = handler.runs - len(neighbours)
        assert len(found) + handled == len(written)
        assert await app.transport.purge(letters) == len(found)
        assert not await collect(app.transport.browse(letters))


async def test_every_odd_job_can_be_buried(
    open_bench: Open, server: OwnServer, prefix: str
) -> None:
    bench = await open_bench(lease=30)
    raw = RawBullMQ(server.url, prefix)
    for number in range(300):
        await raw.write(QUEUE, Random(f"2/{number}"))
    await raw.close()
    subscription = await bench.subscribe()
    done = 0
    while done < 300:
        found = await subscription.receive(100)
        reason = "no\udcff\ud800 good" + "!" * 20_000
        letters = [
            DeadLetter(one.receipt, "undeliverable", reason, bare=number % 2 == 0)
            for number, one in enumerate(found)
        ]
        await bench.settle(*letters)
        done += len(found)
    assert await bench.count(bench.dead_letters()) == 300
