"""Topics: what is made, what is used as it is, and what becomes of one that was deleted."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka.admin import ConfigResource, ResourceType  # pyright: ignore[reportPrivateImportUsage] - public
from tests.support.kafka import delete_topics, kafka_admin, make_topics
from tests.transports.kafka.conftest import Open

from matador.errors import MatadorError, QueueNotFoundError
from matador.model.message import Complete, Delivery, Message
from matador.model.topology import Topology, WorkQueue
from matador.testing import wait_for
from matador.transports.base import Subscription
from matador.transports.kafka import KafkaTransport

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("kafka")]


async def test_partitions_follow_concurrency_unless_told(
    url: str, open_transport: Open, topology: Topology
) -> None:
    namespace = topology.namespace
    queues = [WorkQueue("two", concurrency=2), WorkQueue("default")]
    await (await open_transport(apply=False)).apply_topology(Topology(namespace, queues=queues))
    told = Topology(namespace, queues=["told"])
    await (await open_transport(apply=False, partitions=7)).apply_topology(told)
    topics = kafka_admin(url).list_topics(timeout=10).topics
    found = {
        name: len(topics[f"{namespace}.{name}"].partitions) for name in ("two", "default", "told")
    }
    assert found == {"two": 2, "default": 4, "told": 7}
    assert len(topics[f"{namespace}.two.undeliverable"].partitions) == 1


async def test_topics_are_not_compacted_whatever_the_default_of_the_brokers_is(
    url: str, open_transport: Open, topology: Topology
) -> None:
    """Compaction deletes messages that were not handled, and refuses those without a key."""
    await open_transport()
    queue = topology.full_name("events")
    admin = kafka_admin(url)
    for topic in (queue, f"{queue}.delayed", f"{queue}.undeliverable"):
        (future,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        policy = future.result()["cleanup.policy"]
        assert (policy.value, policy.is_default) == ("delete", False)


async def test_missing_topics_are_an_error_if_they_may_not_be_made(
    open_transport: Open, topology: Topology
) -> None:
    transport = await open_transport(apply=False, create=False)
    with pytest.raises(QueueNotFoundError):
        await transport.apply_topology(topology)


async def test_the_doctor_sees_what_can_lose_messages(
    url: str, open_transport: Open, topology: Topology
) -> None:
    queue = topology.full_name("events")
    make_topics(url, queue)
    transport = await open_transport()
    notes = [note.text for note in await transport.check_topology(topology) if note.queue == queue]
    assert any("one replica" in text for text in notes)
    findings = {finding.subject for finding in await transport.examine()}
    assert findings >= {"server", "replication"}


async def test_a_topic_that_was_deleted_is_missed_by_who_knew_it(
    url: str, open_transport: Open, topology: Topology
) -> None:
    queue = topology.full_name("events")
    await open_transport()
    other = await open_transport(apply=False)
    assert (await other.depth(queue)).total == 0
    await other.disconnect()
    delete_topics(url, queue)
    await other.connect()

    async def is_missing() -> bool:
        try:
            await other.depth(queue)
        except QueueNotFoundError:
            return True
        except MatadorError:  # for a moment it has no leader, and is not gone yet
            return False
        return False

    await wait_for(is_missing, timeout=30)


async def test_a_topic_that_was_made_again_is_read_from_its_beginning(
    url: str, open_transport: Open, topology: Topology
) -> None:
    queue = topology.full_name("events")
    transport = await open_transport(partitions=1)
    subscription = await transport.subscribe(queue, prefetch=10)
    await transport.send([Message(str(number), queue, b"old") for number in range(5)])
    await _handle(transport, subscription, 5)
    delete_topics(url, queue)

    async def sent() -> bool:
        return await transport.send([Message("1", queue, b"new")]) == [None]

    await wait_for(sent, timeout=30)
    bodies = [one.body for one in await _handle(transport, subscription, 1)]
    assert bodies == [b"new"]


async def test_one_that_was_made_again_and_is_as_long_is_noticed(
    url: str, open_transport: Open, topology: Topology
) -> None:
    """Kafka does not say so: the place where we want to read on is there."""
    queue = topology.full_name("events")
    transport = await open_transport(partitions=1)
    subscription = await transport.subscribe(queue, prefetch=10)
    await transport.send([Message("0", queue, b"old")])
    await _handle(transport, subscription, 1)
    delete_topics(url, queue)
    make_topics(url, queue)
    other = await open_transport(apply=False)

    async def sent() -> bool:
        return await other.send([Message("1", queue, b"new")]) == [None]

    await wait_for(sent, timeout=30)
    bodies = [one.body for one in await _handle(transport, subscription, 1)]
    assert bodies == [b"new"]


async def _handle(
    transport: KafkaTransport, subscription: Subscription, count: int
) -> list[Delivery]:
    handled: list[Delivery] = []
    async with asyncio.timeout(60):
        while len(handled) < count:
            taken = await subscription.receive(count)
            outcomes = await transport.settle([Complete(one.receipt) for one in taken])
            handled += [one for one, outcome in zip(taken, outcomes, strict=True) if not outcome]
    return handled
