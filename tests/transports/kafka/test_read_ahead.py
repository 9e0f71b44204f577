"""Messages that are counted as delivered before somebody asks for them."""

from __future__ import annotations

import asyncio

import pytest
from tests.transports.kafka.conftest import Open

from matador.model.message import Complete, Delivery, Message
from matador.model.topology import Topology
from matador.testing import wait_for
from matador.transports.kafka import KafkaTransport
from matador.transports.kafka.consumer import KafkaSubscription, QueueConsumer

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("kafka")]


async def _opened(
    open_transport: Open, topology: Topology
) -> tuple[KafkaTransport, KafkaSubscription, list[Delivery]]:
    """One of ten messages is received, and four of those behind it are counted."""
    queue = topology.full_name("events")
    transport = await open_transport(partitions=1)
    await transport.send([Message(str(number), queue, b"%d" % number) for number in range(10)])
    subscription = await transport.subscribe(queue, prefetch=10)
    first: list[Delivery] = []
    async with asyncio.timeout(30):
        while not first:
            first += await subscription.receive(1)
        subscription.read_ahead(4)
        first += await subscription.receive(1)

    async def counted() -> bool:
        return (await transport.depth(queue)).in_flight == 6

    await wait_for(counted, timeout=10, message="four that are counted beside two")
    return transport, subscription, first


async def test_a_pause_gives_back_what_was_not_received(
    open_transport: Open, topology: Topology
) -> None:
    transport, subscription, taken = await _opened(open_transport, topology)
    await subscription.pause()
    assert (await transport.depth(topology.full_name("events"))).in_flight == len(taken)
    async with asyncio.timeout(30):
        while len(taken) < 10:
            taken += await subscription.receive(10)
    assert sorted(one.body for one in taken) == [b"%d" % number for number in range(10)]
    assert {one.receipt.delivery_count for one in taken} == {1}
    settled = await transport.settle([Complete(one.receipt) for one in taken])
    assert settled == [None] * 10


async def test_closing_gives_it_back_uncounted(open_transport: Open, topology: Topology) -> None:
    queue = topology.full_name("events")
    transport, subscription, taken = await _opened(open_transport, topology)
    await transport.settle([Complete(one.receipt) for one in taken])
    await subscription.close()
    assert (await transport.depth(queue)).in_flight == 0
    again = await (await open_transport()).subscribe(queue, prefetch=10)
    rest: list[Delivery] = []
    async with asyncio.timeout(30):
        while len(rest) < 8:
            rest += await again.receive(8)
    assert {one.receipt.delivery_count for one in rest} == {1}


async def test_what_nobody_asks_for_is_given_back_after_a_while(
    open_transport: Open, topology: Topology
) -> None:
    transport, _, taken = await _opened(open_transport, topology)

    async def given_back() -> bool:
        return (await transport.depth(topology.full_name("events"))).in_flight == len(taken)

    await wait_for(given_back)


async def test_of_large_messages_few_are_held(open_transport: Open, topology: Topology) -> None:
    """Memory is bounded by bytes, too: two of a megabyte each."""
    queue = topology.full_name("events")
    transport = await open_transport(partitions=1)
    large = b"x" * 900_000
    for number in range(8):
        assert await transport.send([Message(str(number), queue, large)]) == [None]
    subscription = await transport.subscribe(queue, prefetch=8)
    async with asyncio.timeout(30):
        await subscription.receive(1)
    subscription.read_ahead(6)
    (consumer,) = subscription._consumers
    assert isinstance(consumer, QueueConsumer)
    assert consumer.buffer.ahead == 2
