"""Since when the oldest message of a queue waits, although Kafka does not show the messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer
from tests.support.kafka import servers_of, set_topic
from tests.transports.kafka.conftest import Open

from matador.errors import QueueNotFoundError
from matador.model.message import Complete, DeadLetter, Delivery, Message
from matador.model.topology import Topology
from matador.observe.oldest import oldest_age
from matador.testing import wait_for
from matador.transports.base import Aging, Subscription

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("kafka")]


async def test_it_is_the_oldest_of_all_partitions_that_is_not_finished(
    url: str, open_transport: Open, topology: Topology
) -> None:
    queue = topology.full_name("events")
    transport = await open_transport(partitions=3)
    assert isinstance(transport, Aging)
    assert await transport.oldest_due(queue) is None
    now = int(time.time()) * 1000
    times = [now - 50_000, now - 90_000, now - 70_000]
    _write(url, queue, [(number, when) for number, when in enumerate(times)])
    assert await transport.oldest_due(queue) == _moment(times[1])
    age = await oldest_age(transport, queue)
    assert age is not None
    assert 90 <= age < 600

    subscription = await transport.subscribe(queue, prefetch=10)
    taken = {one.body: one for one in await _receive(subscription, 3)}
    for done, left in ((1, times[2]), (2, times[0]), (0, None)):
        await transport.settle([Complete(taken[str(done).encode()].receipt)])
        await wait_for(lambda left=left: _is(transport, queue, left), timeout=30)


async def test_finished_ones_in_front_are_passed_over(
    url: str, open_transport: Open, topology: Topology
) -> None:
    queue = topology.full_name("events")
    transport = await open_transport(partitions=1)
    start = int(time.time()) * 1000 - 100_000
    times = [start + 1000 * number for number in range(4)]
    _write(url, queue, [(0, when) for when in times])
    subscription = await transport.subscribe(queue, prefetch=10)
    taken = await _receive(subscription, 4)
    await transport.settle([Complete(taken[number].receipt) for number in (1, 2)])
    assert await transport.oldest_due(queue) == _moment(times[0])
    await transport.settle([Complete(taken[0].receipt)])
    await wait_for(lambda: _is(transport, queue, times[3]), timeout=30)


async def test_what_is_not_due_yet_does_not_wait(open_transport: Open, topology: Topology) -> None:
    queue = topology.full_name("events")
    transport = await open_transport(partitions=1)
    later = Message("1", queue, b"x", delay=3600, ordering_key="k")
    assert await transport.send([later]) == [None]
    assert (await transport.depth(queue)).total == 1
    assert await transport.oldest_due(queue) is None
    assert await oldest_age(transport, queue) == 0


async def test_times_that_no_calendar_knows_do_no_harm(
    url: str, open_transport: Open, topology: Topology
) -> None:
    queue = topology.full_name("events")
    transport = await open_transport(partitions=2)
    letters = f"{queue}.undeliverable"
    for topic in (queue, letters):
        set_topic(url, topic, "message.timestamp.after.max.ms", str(2**63 - 1))
    then = int(time.time()) * 1000 - 60_000
    _write(url, queue, [(0, 2**62), (1, then)])
    _write(url, letters, [(0, 2**62), (0, then)])
    assert await transport.oldest_due(queue) == _moment(then)
    shown = [(one.body, one.stored_at) async for one in transport.browse(letters)]
    assert sorted(shown) == [(b"0", None), (b"1", _moment(then))]

    subscription = await transport.subscribe(queue, prefetch=10)
    taken = await _receive(subscription, 2)
    settled = await transport.settle([DeadLetter(taken[0].receipt, "unhandled", "why")])
    assert settled == [None]


async def test_a_missing_queue_is_an_error(open_transport: Open, topology: Topology) -> None:
    transport = await open_transport()
    with pytest.raises(QueueNotFoundError):
        await transport.oldest_due(topology.full_name("nothing"))


# -- support ---------------------------------------------------------------------------------------


def _write(url: str, topic: str, records: Sequence[tuple[int, int]]) -> None:
    """Partitions and times, in milliseconds; each is stored before the next."""
    set_topic(url, topic, "message.timestamp.type", "CreateTime")  # ours have that of the broker
    producer = Producer({"bootstrap.servers": servers_of(url), "acks": "all"})
    for number, (partition, when) in enumerate(records):
        producer.produce(topic, str(number).encode(), partition=partition, timestamp=when)
        assert producer.flush(30) == 0


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


async def _is(transport: Aging, queue: str, milliseconds: int | None) -> bool:
    found = await transport.oldest_due(queue)
    return found == (None if milliseconds is None else _moment(milliseconds))


async def _receive(subscription: Subscription, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found += await subscription.receive(count)
    return found
