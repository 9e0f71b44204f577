"""Topics whose limits differ: nothing is refused that would fit, and nothing is tried for ever."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import ConfigResource, ResourceType  # pyright: ignore[reportPrivateImportUsage] - public
from tests.support.kafka import kafka_admin, make_topics, servers_of, set_topic
from tests.transports.kafka.conftest import Open

from matador.errors import MatadorError, MessageTooLargeError
from matador.model.message import Complete, DeadLetter, Delivery, Message
from matador.model.topology import Topology
from matador.testing import wait_for
from matador.transports.base import Subscription
from matador.transports.kafka.transport import KafkaTransport

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("kafka")]

SMALL = 20_000


def limit_of(url: str, topic: str) -> int:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = kafka_admin(url)  # it ends with its last reference
    (future,) = admin.describe_configs([resource]).values()
    return int(future.result()["max.message.bytes"].value)


def put(url: str, topic: str, *values: bytes) -> None:
    """Store records as another program would: of any size."""
    producer = Producer({"bootstrap.servers": servers_of(url), "message.max.bytes": 5_000_000})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


async def take(subscription: Subscription, number: int) -> list[Delivery]:
    taken: list[Delivery] = []

    async def enough() -> bool:
        taken.extend(await subscription.receive(number - len(taken)))
        return len(taken) == number

    await wait_for(enough, timeout=30)
    return taken


async def settle_each(transport: KafkaTransport, letters: Sequence[DeadLetter]) -> int:
    """Settle, again and again as a worker does; after how many times all of it was done."""
    left, tries = list(letters), 0
    while left:
        tries += 1
        assert tries < 20, "it is tried for ever"
        outcomes: Sequence[MatadorError | None] = await transport.settle(left)
        left = [one for one, outcome in zip(left, outcomes, strict=True) if outcome is not None]
    return tries


async def test_small_messages_are_not_refused_for_the_size_of_their_batch(
    url: str, open_transport: Open, topology: Topology
) -> None:
    queue = topology.full_name("events")
    make_topics(url, queue, max_message_bytes=SMALL)
    transport = await open_transport()
    sent = [Message(str(number), queue, b"x" * 300) for number in range(400)]
    assert await transport.send(sent) == [None] * 400
    assert (await transport.depth(queue)).ready == 400
    (refused,) = await transport.send([Message("large", queue, b"x" * 2 * SMALL)])
    assert isinstance(refused, MessageTooLargeError)
    assert "lower one: raise max.message.bytes there" in str(refused)


async def test_messages_with_one_key_stay_in_order_when_their_batch_is_refused(
    url: str, open_transport: Open, topology: Topology
) -> None:
    queue = topology.full_name("events")
    make_topics(url, queue, partitions=3, max_message_bytes=SMALL)
    transport = await open_transport()
    sent = [
        Message(str(number), queue, b"x" * 300, ordering_key=f"k{number % 3}")
        for number in range(150)
    ]
    outcomes = await transport.send(sent)
    stored = [one.id for one, outcome in zip(sent, outcomes, strict=True) if outcome is None]
    assert stored == [one.id for one in sent]
    subscription = await transport.subscribe(queue, prefetch=3)
    for _ in range(50):  # one of each key at a time
        taken = await take(subscription, 3)
        await transport.settle([Complete(one.receipt) for one in taken])
        for one in taken:
            key = one.receipt.ordering_key
            assert one.id == next(id_ for id_ in stored if f"k{int(id_) % 3}" == key)
            stored.remove(one.id)
    assert stored == []


async def test_delayed_messages_that_are_due_together_arrive(
    url: str, open_transport: Open, topology: Topology
) -> None:
    """None becomes a dead letter because all of them are larger than the limit of the queue."""
    queue = topology.full_name("events")
    make_topics(url, queue, max_message_bytes=SMALL)
    transport = await open_transport()
    sent = [Message(str(number), queue, b"x" * 300, delay=0.1) for number in range(200)]
    assert await transport.send(sent) == [None] * 200
    subscription = await transport.subscribe(queue, prefetch=200)
    taken = await take(subscription, 200)
    assert {one.id for one in taken} == {one.id for one in sent}
    await transport.settle([Complete(one.receipt) for one in taken])
    assert (await transport.depth(f"{queue}.undeliverable")).total == 0


async def test_topics_of_dead_letters_take_what_the_queue_of_somebody_else_takes(
    url: str, open_transport: Open, topology: Topology
) -> None:
    queue = topology.full_name("events")
    make_topics(url, queue, max_message_bytes=4_500_000)
    transport = await open_transport()
    assert limit_of(url, f"{queue}.undeliverable") == 4_500_000
    assert limit_of(url, f"{queue}.delayed") == 4_500_000
    put(url, queue, b"x" * 4_000_000)
    (large,) = await take(await transport.subscribe(queue, prefetch=1), 1)
    assert await transport.settle([DeadLetter(large.receipt, "undeliverable", "no")]) == [None]


@pytest.mark.parametrize("options", [{}, {"transactional": True}], ids=str)
async def test_a_dead_letter_that_does_not_fit_is_cut(
    url: str, open_transport: Open, topology: Topology, options: dict[str, object]
) -> None:
    queue = topology.full_name("events")
    letters = f"{queue}.undeliverable"
    make_topics(url, letters, max_message_bytes=SMALL)
    transport = await open_transport(partitions=1, **options)
    put(url, queue, b"y" * 900_000, *[b"small"] * 3)
    taken = await take(await transport.subscribe(queue, prefetch=4), 4)
    settlements = [DeadLetter(one.receipt, "undeliverable", "no", bare=True) for one in taken]
    assert await settle_each(transport, settlements) < 6

    async def stored() -> dict[bytes, str | None]:
        found = {one.body: one.reason async for one in transport.browse(letters)}
        return found if len(found) == 2 else {}

    await wait_for(stored)
    found = await stored()
    assert found.pop(b"small") == "no"
    ((body, reason),) = found.items()
    assert 1000 < len(body) < SMALL
    assert set(body) == set(b"y")
    assert reason is not None
    assert f"of 900,000 bytes fit here; the message is at {queue}/0/0" in reason


@pytest.mark.parametrize("options", [{}, {"transactional": True}], ids=str)
async def test_a_compacted_topic_of_dead_letters_takes_them_with_a_key(
    url: str, open_transport: Open, topology: Topology, options: dict[str, object]
) -> None:
    queue = topology.full_name("events")
    letters = f"{queue}.undeliverable"
    make_topics(url, letters, cleanup_policy="compact", max_message_bytes=SMALL)
    transport = await open_transport(partitions=1, **options)
    put(url, queue, b"a", b"", b"y" * 900_000)
    taken = await take(await transport.subscribe(queue, prefetch=3), 3)
    settlements = [DeadLetter(one.receipt, "undeliverable", "no", bare=True) for one in taken]
    assert await settle_each(transport, settlements) < 8

    async def sizes() -> list[int]:
        return sorted([len(one.body) async for one in transport.browse(letters)])

    await wait_for(lambda: _has(sizes, 3))
    empty, small, cut = await sizes()
    assert (empty, small) == (0, 1)
    assert 1000 < cut < SMALL


async def _has(sizes: Callable[[], Awaitable[list[int]]], number: int) -> bool:
    return len(await sizes()) == number


async def test_a_delayed_message_that_cannot_be_delivered_is_kept_in_a_compacted_topic(
    url: str, open_transport: Open, topology: Topology
) -> None:
    queue = topology.full_name("events")
    letters = f"{queue}.undeliverable"
    make_topics(url, letters, cleanup_policy="compact")
    transport = await open_transport()
    set_topic(url, queue, "max.message.bytes", str(SMALL))
    large = Message("large", queue, b"x" * 2 * SMALL, delay=0.1)
    assert await transport.send([large, Message("small", queue, b"x", delay=0.1)]) == [None, None]
    (small,) = await take(await transport.subscribe(queue, prefetch=2), 1)
    assert small.id == "small"

    async def kept() -> bool:
        return [len(one.body) async for one in transport.browse(letters)] == [2 * SMALL]

    await wait_for(kept, timeout=30)


async def test_the_doctor_sees_dead_letters_that_take_less_than_their_queue(
    url: str, open_transport: Open, topology: Topology
) -> None:
    letters = topology.full_name("events") + ".undeliverable"
    make_topics(url, letters, max_message_bytes=SMALL)
    transport = await open_transport()
    notes = [one.text for one in await transport.check_topology(topology) if one.queue == letters]
    assert any(text.startswith("max.message.bytes is 20,000, and 1,0") for text in notes)
