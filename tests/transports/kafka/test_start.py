"""Where a consumer group that has committed nothing yet begins."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka.admin import NewPartitions  # pyright: ignore[reportPrivateImportUsage] - public
from tests.support.kafka import kafka_admin
from tests.transports.kafka.conftest import Open

from matador.model.message import Complete, Message
from matador.model.topology import Topology
from matador.transports.base import Subscription
from matador.transports.kafka import KafkaTransport

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("kafka")]


async def _send(transport: KafkaTransport, queue: str, *names: str) -> None:
    """Each with a key of its own, so that they are spread over the partitions."""
    messages = [Message(name, queue, name.encode(), ordering_key=name) for name in names]
    assert await transport.send(messages) == [None] * len(names)


async def _handled(transport: KafkaTransport, subscription: Subscription, count: int) -> set[str]:
    """The bodies of the next messages, which are completed."""
    bodies: set[str] = set()
    async with asyncio.timeout(60):
        while len(bodies) < count:
            deliveries = await subscription.receive(10)
            assert await transport.settle([Complete(one.receipt) for one in deliveries]) == [
                None for _ in deliveries
            ]
            bodies |= {one.body.decode() for one in deliveries}
    return bodies


async def test_by_default_a_group_begins_at_the_beginning(
    open_transport: Open, topology: Topology
) -> None:
    queue = topology.full_name("events")
    await _send(await open_transport(), queue, "before")
    worker = await open_transport()
    subscription = await worker.subscribe(queue, prefetch=10)
    assert await _handled(worker, subscription, 1) == {"before"}


async def test_from_the_end_a_group_gets_what_is_sent_once_it_has_subscribed(
    open_transport: Open, topology: Topology
) -> None:
    queue = topology.full_name("events")
    sender = await open_transport()
    await _send(sender, queue, *(f"before-{n}" for n in range(20)))
    worker = await open_transport(start="end")
    subscription = await worker.subscribe(queue, prefetch=10)
    assert (await sender.depth(queue)).total == 0
    await _send(sender, queue, "after")  # before the worker has any partition
    assert await _handled(worker, subscription, 1) == {"after"}


async def test_what_is_sent_while_no_worker_runs_is_not_skipped(
    open_transport: Open, topology: Topology
) -> None:
    """A worker that never had anything to commit stops, is killed, or starts beside another."""
    queue = topology.full_name("events")
    sender = await open_transport()
    await _send(sender, queue, "before")
    first = await open_transport(start="end")
    await first.subscribe(queue, prefetch=10)
    await first.disconnect()
    names = {f"meanwhile-{n}" for n in range(20)}
    await _send(sender, queue, *names)
    workers = [await open_transport(start="end") for _ in range(2)]
    found: set[str] = set()

    async def work(worker: KafkaTransport) -> None:
        subscription = await worker.subscribe(queue, prefetch=10)
        while True:
            found.update(await _handled(worker, subscription, 1))

    tasks = [asyncio.create_task(work(worker)) for worker in workers]
    try:
        async with asyncio.timeout(60):
            while found != names:
                await asyncio.wait(tasks, timeout=0.05)
                assert found <= names
                assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_a_partition_that_is_added_later_is_read_from_its_beginning(
    url: str, open_transport: Open, topology: Topology
) -> None:
    queue = topology.full_name("events")
    seldom = {"topic.metadata.refresh.interval.ms": 60_000}  # so that it is noticed late
    first = await open_transport(start="end", partitions=1, config=seldom)
    subscription = await first.subscribe(queue, prefetch=10)
    admin = kafka_admin(url)
    (added,) = admin.create_partitions([NewPartitions(queue, 8)]).values()
    added.result()
    names = {f"later-{n}" for n in range(40)}
    await _send(await open_transport(), queue, *names)
    second = await open_transport(start="end")
    await subscription.close()
    again = await second.subscribe(queue, prefetch=10)
    assert await _handled(second, again, len(names)) == names


async def test_dead_letters_are_always_read_from_the_beginning(
    open_transport: Open, topology: Topology
) -> None:
    letters = topology.full_name("events") + ".undeliverable"
    await _send(await open_transport(), letters, "letter")
    worker = await open_transport(start="end")
    subscription = await worker.subscribe(letters, prefetch=10)
    assert await _handled(worker, subscription, 1) == {"letter"}
