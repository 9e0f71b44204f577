"""Pub/sub: everybody who listens hears it, nobody keeps it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias, cast

import pytest
import pytest_asyncio
from tests.support.redis import OwnServer
from tests.transports.redis.test_connection import kill_clients

from matador.model.message import DeadLetter, Retry
from matador.model.topology import Topology
from matador.testing import wait_for
from matador.testing.compliance.bench import Bench, bodies
from matador.testing.compliance.connection import StateRecorder
from matador.transports import transport_from_url
from matador.transports.redis import RedisListTransport, RedisPubSubTransport, pubsub

pytestmark = pytest.mark.broker

OpenPubSub: TypeAlias = Callable[[], Awaitable[Bench]]


@pytest_asyncio.fixture
async def open_pubsub(server: OwnServer, prefix: str) -> AsyncIterator[OpenPubSub]:
    opened: list[RedisPubSubTransport] = []

    async def open_() -> Bench:
        transport = RedisPubSubTransport(server.url, prefix=prefix)
        opened.append(transport)
        await transport.connect()
        topology = Topology("shop", queues=["events"])
        notes = await transport.apply_topology(topology)
        return Bench(transport, topology, notes, patience=10, quiet=0.1)

    yield open_
    for transport in opened:
        await transport.disconnect()


def test_the_address_asks_for_pubsub_and_promises_little() -> None:
    transport = transport_from_url("redis://h?mode=pubsub")
    assert isinstance(transport, RedisPubSubTransport)
    can = transport.capabilities
    assert can.delivery_modes == {"at-most-once"}
    assert (can.durable, can.delays, can.dead_letters, can.lease) == (
        False,
        False,
        "manual",
        None,
    )
    assert can.delays_retries


async def test_every_process_hears_it_and_each_handles_it_once(open_pubsub: OpenPubSub) -> None:
    first, second, sender = [await open_pubsub() for _ in range(3)]
    mine = [await first.subscribe(), await first.subscribe()]
    theirs = await second.subscribe()
    await sender.send("a", "b")
    assert bodies(await second.receive(theirs, 2)) == ["a", "b"]
    received = await asyncio.gather(*(first.receive_one(one) for one in mine))
    assert sorted(bodies(received)) == ["a", "b"]


async def test_what_is_sent_while_nobody_listens_is_gone(open_pubsub: OpenPubSub) -> None:
    bench = await open_pubsub()
    await bench.send("gone")
    subscription = await bench.subscribe()
    await bench.send("heard")
    assert bodies([await bench.receive_one(subscription)]) == ["heard"]
    await bench.nothing_comes(subscription)


async def test_a_retry_stays_in_the_process(open_pubsub: OpenPubSub) -> None:
    first, second = await open_pubsub(), await open_pubsub()
    mine, theirs = await first.subscribe(), await second.subscribe()
    await first.send("a")
    delivery = await first.receive_one(mine)
    await second.receive_one(theirs)
    await first.settle(Retry(delivery.receipt, first.message("again")))
    again = await first.receive_one(mine)
    assert bodies([again]) == ["again"]
    began = time.monotonic()
    await first.settle(Retry(again.receipt, first.message("later", delay=0.2)))
    assert bodies([await first.receive_one(mine)]) == ["later"]
    assert time.monotonic() - began >= 0.19
    await second.nothing_comes(theirs)


async def test_a_retry_that_waits_when_nobody_listens_any_more_is_logged(
    open_pubsub: OpenPubSub, caplog: pytest.LogCaptureFixture
) -> None:
    bench = await open_pubsub()
    subscription = await bench.subscribe()
    await bench.send("a")
    delivery = await bench.receive_one(subscription)
    await bench.settle(Retry(delivery.receipt, bench.message("later", delay=60)))
    await subscription.close()
    assert "messages dropped: 1" in caplog.text


async def test_dead_letters_are_lists(
    open_pubsub: OpenPubSub, server: OwnServer, prefix: str
) -> None:
    bench, other = await open_pubsub(), await open_pubsub()
    mine, theirs = await bench.subscribe(), await other.subscribe()
    await bench.send("a")
    for place, subscription in ((bench, mine), (other, theirs)):
        delivery = await place.receive_one(subscription)
        await place.settle(DeadLetter(delivery.receipt, "undeliverable", "broken"))
    lists = RedisListTransport(server.url, prefix=prefix)
    await lists.connect()
    assert (await lists.depth(bench.dead_letters())).ready == 2, "one of each process"
    await lists.disconnect()


async def test_it_listens_again_after_a_cut(open_pubsub: OpenPubSub, client: Any) -> None:
    bench, sender = await open_pubsub(), await open_pubsub()
    states = StateRecorder()
    bench.transport.observe(states)
    subscription = await bench.subscribe()
    await kill_clients(client)
    await wait_for(lambda: states.statuses[-1:] == ["connected"])
    await wait_for(lambda: sender.transport.state.status == "connected")
    await sender.send("after")
    assert bodies([await bench.receive_one(subscription)]) == ["after"]


async def test_a_slow_process_drops_the_oldest_and_says_so(
    open_pubsub: OpenPubSub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pubsub, "_MOST", 10)
    caplog.set_level(logging.WARNING)
    bench = await open_pubsub()
    subscription = await bench.subscribe()
    await bench.send(*map(str, range(25)))
    await wait_for(lambda: "dropping the oldest" in caplog.text)
    received = await bench.receive(subscription, 10)
    assert bodies(received)[-1] == "24"
    await bench.nothing_comes(subscription)


async def all_heard(bench: Bench, last: str) -> None:
    """Wait until the last message that was sent has arrived, and waits to be handled."""
    waiting = cast("Any", bench.transport)._queues[bench.name()]._waiting
    await wait_for(lambda: waiting and waiting[-1].message.body == last.encode())


async def test_a_slow_process_holds_no_more_bytes_than_it_may(
    open_pubsub: OpenPubSub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pubsub, "_MOST_BYTES", 1000)
    bench = await open_pubsub()
    subscription = await bench.subscribe()
    few = [f"{number}".ljust(400, ".") for number in range(5)]
    await bench.send(*few)
    await all_heard(bench, few[-1])
    assert bodies(await bench.receive(subscription, 2)) == few[-2:]
    await bench.send("small", "x" * 5000)  # more than it may hold, and still heard
    await all_heard(bench, "x" * 5000)
    assert bodies([await bench.receive_one(subscription)]) == ["x" * 5000]
    await bench.nothing_comes(subscription)
    assert caplog.text.count("dropping the oldest") == 2


async def test_each_time_that_messages_are_dropped_is_logged_with_their_number(
    open_pubsub: OpenPubSub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pubsub, "_MOST", 10)
    bench = await open_pubsub()
    subscription = await bench.subscribe()
    for times in (1, 2):
        await bench.send(*map(str, range(25)))
        await all_heard(bench, "24")
        assert bodies(await bench.receive(subscription, 10)) == list(map(str, range(15, 25)))
        assert caplog.text.count("dropping the oldest until it has caught up") == times
        assert caplog.text.count("has caught up; messages dropped: 15") == times
