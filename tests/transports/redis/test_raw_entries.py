"""Thousands of odd entries among good neighbours, through a whole application, in every mode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast

import pytest
from tests.support.raw_redis import RawLists, RawPubSub, RawStreams
from tests.support.redis import OwnServer
from tests.support.shop import QUEUE, TOPOLOGY, Handler, Heard, OrderPlaced, make_app, subscribed
from tests.support.taking import take_stored

from matador import Matador
from matador.model.message import REASON_HEADER, Delivery, Release, StoredMessage
from matador.model.topology import dead_letter_name
from matador.testing import wait_for
from matador.testing.compliance.bench import collect
from matador.testing.compliance.connection import StateRecorder
from matador.testing.compliance.raw import RawEntries
from matador.transports.base import Browsing, Measuring, Transport
from matador.transports.redis import RedisListTransport, RedisPubSubTransport, RedisTransport

pytestmark = pytest.mark.broker

_ODD = 2000
_EVERY = 10
_SEED = "raw-redis"
_KINDS = TOPOLOGY.dead_letters.enabled_kinds


class Run:
    """An application that handles orders while somebody else writes into its queue."""

    def __init__(self, transport: Transport, **options: Any) -> None:
        self.handler = Handler()
        self.heard = Heard()
        self.states = StateRecorder()
        self.transport = transport
        subscriber = subscribed(self.handler, "handle")
        self.app: Matador = make_app(transport, subscriber, hooks=self.heard, **options)
        self.sent: list[str] = []
        self.written: list[int] = []

    async def mix(self, raw: RawEntries, count: int = _ODD) -> None:
        """Write odd entries, and a good one after every few of them."""
        try:
            for start in range(0, count, _EVERY):
                numbers = range(start, start + _EVERY)
                writes = [raw.write(QUEUE, Random(f"{_SEED}/{number}")) for number in numbers]
                self.sent.append(f"o-{start}")
                await asyncio.gather(*writes, self.app.send(OrderPlaced(self.sent[-1])))
                self.written += numbers
        finally:
            await raw.close()

    @property
    def refused(self) -> int:
        return len(self.heard.of("decode_error")) + len(self.heard.of("error"))

    async def finish(self) -> None:
        """Every neighbour is handled, once; every odd one has ended; no connection was lost."""

        def ended() -> bool:
            return self.handler.runs + self.refused >= len(self.sent) + len(self.written)

        await wait_for(ended, timeout=60, message="everything to end")
        assert sorted(one.order_id for one in self.handler.data) == sorted(self.sent)
        assert self.refused == len(self.written)
        assert self.states.statuses == []


@asynccontextmanager
async def running(transport: Transport, **options: Any) -> AsyncGenerator[Run]:
    run = Run(transport, **options)
    async with run.app:
        transport.observe(run.states)
        yield run


async def letters(transport: Transport) -> list[StoredMessage]:
    assert isinstance(transport, Browsing)
    found: list[StoredMessage] = []
    for kind in _KINDS:
        found += await collect(transport.browse(dead_letter_name(QUEUE, kind)))
    return found


async def receive_letters(transport: Transport, count: int) -> list[Delivery]:
    """All dead letters, whoever wrote them."""
    found: list[Delivery] = []
    async with asyncio.timeout(20):
        for kind in _KINDS:
            name = dead_letter_name(QUEUE, kind)
            waiting = (await cast("Measuring", transport).depth(name)).ready
            subscription = await transport.subscribe(name, prefetch=count)
            while waiting:
                received = await subscription.receive(waiting)
                waiting -= len(received)
                found += received
            await subscription.close()
    assert len(found) == count
    return found


@pytest.mark.parametrize("mode", ["streams", "lists"])
async def test_every_odd_entry_is_a_dead_letter_and_every_neighbour_is_handled(
    server: OwnServer, prefix: str, mode: str
) -> None:
    if mode == "streams":
        transport: Any = RedisTransport(server.url, prefix=prefix, lease=30)
        raw: RawEntries = RawStreams(server.url, prefix=prefix)
    else:
        transport = RedisListTransport(server.url, prefix=prefix, lease=30)
        raw = RawLists(server.url, prefix=prefix)
    async with running(transport) as run:
        await run.mix(raw)
        await run.finish()

        async def empty() -> bool:
            return (await transport.depth(QUEUE)).total == 0

        await wait_for(empty)
        received = await receive_letters(transport, len(run.written))
        assert all(one.headers[REASON_HEADER] for one in received)
        await transport.settle([Release(one.receipt) for one in received])
        if transport.capabilities.browse:
            found = await letters(transport)
            assert len(found) == len(run.written)
            assert all(letter.reason for letter in found)
            # They can be taken out and put back, too, whatever they are.
            name = dead_letter_name(QUEUE, "undeliverable")
            taken = await take_stored(transport, name, [letter.position for letter in found[:100]])
            assert len(taken) == 100


async def test_looking_at_odd_entries_before_they_are_handled(
    server: OwnServer, prefix: str
) -> None:
    transport = RedisTransport(server.url, prefix=prefix)
    raw = RawStreams(server.url, prefix=prefix)
    await transport.connect()
    await transport.apply_topology(TOPOLOGY)
    for number in range(300):
        await raw.write(QUEUE, Random(f"{_SEED}/{number}"))
    await raw.close()
    seen = await collect(transport.browse(QUEUE))
    assert len(seen) == 300
    taken = await take_stored(transport, QUEUE, [one.position for one in seen])
    assert len(taken) == 300
    assert {one.body for one in taken} == {one.body for one in seen}
    await transport.disconnect()


async def test_what_somebody_else_publishes_is_published_among_the_dead_letters(
    server: OwnServer, prefix: str
) -> None:
    listener = RedisPubSubTransport(server.url, prefix=prefix)
    await listener.connect()
    await listener.apply_topology(TOPOLOGY)
    heard: list[str | None] = []

    async def listen(kind: Any) -> None:
        subscription = await listener.subscribe(dead_letter_name(QUEUE, kind), prefetch=100)
        started.release()
        while deliveries := await subscription.receive(100):
            heard.extend(str(one.headers["x-matador-dead-letter-reason"]) for one in deliveries)

    started = asyncio.Semaphore(0)
    listening = [asyncio.create_task(listen(kind)) for kind in _KINDS]
    for _ in listening:
        await started.acquire()
    transport = RedisPubSubTransport(server.url, prefix=prefix)
    async with running(transport, delivery="at-most-once") as run:
        await run.mix(RawPubSub(server.url, prefix=prefix))
        await run.finish()
        await wait_for(lambda: len(heard) == len(run.written))
    await listener.disconnect()
    await asyncio.gather(*listening)
