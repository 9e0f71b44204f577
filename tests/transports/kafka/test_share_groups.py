"""Share groups: single messages are acknowledged, by more workers than there are partitions."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from signal import SIGKILL
from typing import Any
from uuid import uuid4

import confluent_kafka
import pytest
import pytest_asyncio
from tests.support.kafka import SHARE_SETTINGS, OwnKafka
from tests.transports.kafka.conftest import Open

from matador.errors import ConfigurationError, LeaseLostError, UnsupportedError
from matador.model.message import Complete, Delivery, Message, Release
from matador.model.topology import Topology
from matador.transports.base import Subscription
from matador.transports.kafka import KafkaTransport

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("kafka-share")]

PATIENCE = 60.0
LIMIT = 5  # deliveries after which this broker drops a message; see SHARE_SETTINGS


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnKafka]:
    own = OwnKafka(tmp_path_factory.mktemp("kafka"), *SHARE_SETTINGS)
    own.start()
    yield own
    own.kill()


@pytest.fixture
def topology() -> Topology:
    return Topology(f"k{uuid4().hex[:10]}", queues=["events"])


@pytest_asyncio.fixture
async def open_transport(server: OwnKafka, topology: Topology) -> AsyncIterator[Open]:
    opened: list[KafkaTransport] = []

    async def open_one(**options: Any) -> KafkaTransport:
        given: dict[str, Any] = {"groups": "share", "partitions": 1, "members": 1, **options}
        transport = KafkaTransport(server.url, **given)
        opened.append(transport)
        await transport.connect()
        await transport.apply_topology(topology)
        return transport

    yield open_one
    for transport in opened:
        await transport.disconnect()


async def send(transport: KafkaTransport, topology: Topology, *bodies: str, **more: Any) -> None:
    queue = topology.full_name("events")
    for body in bodies:  # each is stored alone, and so delivered alone
        assert await transport.send([Message(body, queue, body.encode(), {}, **more)]) == [None]


async def subscribe(transport: KafkaTransport, topology: Topology) -> Subscription:
    return await transport.subscribe(topology.full_name("events"), prefetch=1)


async def receive(subscription: Subscription) -> Delivery:
    async with asyncio.timeout(PATIENCE):
        (delivery,) = await subscription.receive(1)
    return delivery


async def test_more_workers_than_partitions(open_transport: Open, topology: Topology) -> None:
    workers = [await open_transport() for _ in range(3)]
    await send(workers[0], topology, "a", "b", "c")
    held = await asyncio.gather(*[receive(await subscribe(worker, topology)) for worker in workers])
    assert sorted(one.body for one in held) == [b"a", b"b", b"c"]
    for worker, one in zip(workers, held, strict=True):
        assert await worker.settle([Complete(one.receipt)]) == [None]


async def test_what_takes_longer_than_the_lock_is_somebody_elses(
    open_transport: Open, topology: Topology
) -> None:
    slow, quick = await open_transport(lock=2), await open_transport(lock=2)
    await send(slow, topology, "a")
    first = await receive(await subscribe(slow, topology))
    second = await receive(await subscribe(quick, topology))
    assert (second.body, second.receipt.delivery_count) == (b"a", 2)
    assert second.receipt.redelivered
    (late,) = await slow.settle([Complete(first.receipt)])
    assert isinstance(late, LeaseLostError)
    assert await quick.settle([Complete(second.receipt)]) == [None]


async def test_the_member_of_a_handler_that_never_ends_reads_on(
    open_transport: Open, topology: Topology
) -> None:
    transport = await open_transport(lock=2)
    await send(transport, topology, "a", "b")
    subscription = await subscribe(transport, topology)
    found = [await receive(subscription) for _ in range(3)]
    assert {one.body for one in found[1:]} == {b"a", b"b"}, "and the first came back"


async def test_the_broker_never_drops_what_nobody_finishes(
    open_transport: Open, topology: Topology
) -> None:
    await send(await open_transport(), topology, "a")
    for count in range(1, 2 * LIMIT + 1):
        transport = await open_transport()
        delivery = await receive(await subscribe(transport, topology))
        assert (delivery.body, delivery.receipt.delivery_count) == (b"a", count)
        await transport.disconnect()  # as if it had died


async def test_a_release_is_not_counted_and_never_the_last(
    open_transport: Open, topology: Topology
) -> None:
    transport = await open_transport()
    await send(transport, topology, "a", ordering_key="k")
    subscription = await subscribe(transport, topology)
    for _ in range(2 * LIMIT):
        delivery = await receive(subscription)
        assert (delivery.receipt.delivery_count, delivery.receipt.redelivered) == (1, False)
        assert delivery.receipt.ordering_key == "k"
        assert await transport.settle([Release(delivery.receipt)]) == [None]


PROGRAM = """
import asyncio, os, signal, sys
from matador.model.message import Complete
from matador.transports.kafka import KafkaTransport

async def main(url, queue):
    transport = KafkaTransport(url, groups="share", members=1)
    await transport.connect()
    subscription = await transport.subscribe(queue, prefetch=1)
    while True:
        for one in await subscription.receive(1):
            if one.body == b"deadly":
                os.kill(os.getpid(), signal.SIGKILL)
            await transport.settle([Complete(one.receipt)])
            print(one.body.decode(), one.receipt.delivery_count, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_message_that_kills_takes_no_other_along(
    server: OwnKafka, open_transport: Open, topology: Topology
) -> None:
    """They are read together once. Afterwards each comes alone, so the others are not counted."""
    queue = topology.full_name("events")
    transport = await open_transport()
    batch = [Message(body, queue, body.encode(), {}) for body in ("a", "b", "deadly", "c")]
    assert await transport.send(batch) == [None] * 4
    handled: dict[str, int] = {}
    for _ in range(3 * LIMIT):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, server.url, queue, stdout=PIPE
        )
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            async for line in process.stdout:
                body, count = line.decode().split()
                assert body not in handled, "each is handled once"
                handled[body] = int(count)
            assert await process.wait() == -SIGKILL
        if len(handled) == 3:
            break
    assert handled == {"a": 1, "b": 1, "c": 2}
    deadly = await receive(await subscribe(transport, topology))
    assert deadly.body == b"deadly"
    assert deadly.receipt.delivery_count > 2
    assert await transport.settle([Complete(deadly.receipt)]) == [None]


async def test_a_delay_in_its_place_is_kept(open_transport: Open, topology: Topology) -> None:
    """A sender that knows nothing of share groups leaves it to who reads the queue."""
    ordered = await open_transport(groups="consumer")
    shared = await open_transport()
    await send(ordered, topology, "late", ordering_key="k", delay=3.0)
    await send(ordered, topology, "now", ordering_key="k")
    subscription = await subscribe(shared, topology)
    found: list[bytes] = []
    for _ in range(2):
        delivery = await receive(subscription)
        found.append(delivery.body)
        assert await shared.settle([Complete(delivery.receipt)]) == [None]
    assert found == [b"now", b"late"]


async def test_a_queue_of_a_consumer_group_is_not_handled_again(
    open_transport: Open, topology: Topology
) -> None:
    before = await open_transport(groups="consumer")
    await send(before, topology, "a")
    subscription = await subscribe(before, topology)
    await before.settle([Complete((await receive(subscription)).receipt)])
    await subscription.close()
    with pytest.raises(ConfigurationError, match="consumer group"):
        await subscribe(await open_transport(), topology)


async def test_what_the_client_library_does_not_say(
    open_transport: Open, topology: Topology
) -> None:
    transport = await open_transport()
    queue = topology.full_name("events")
    can = transport.capabilities
    assert (can.ordering, can.depth, can.purge, can.replay) == ("none", False, False, False)
    for call in (transport.depth, transport.purge, transport.read):
        with pytest.raises(UnsupportedError, match=r"kafka-share-groups\.sh"):
            await call(queue)


async def test_the_settings_of_the_group_are_checked(
    open_transport: Open, topology: Topology
) -> None:
    transport = await open_transport()
    assert not any("share" in note.text for note in await transport.check_topology(topology))
    other = Topology(topology.namespace, queues=["others"])
    noted = [note.text for note in await transport.check_topology(other)]
    assert any("share.auto.offset.reset=latest" in text for text in noted)
    with pytest.raises(ConfigurationError, match="lock must be from 1 to 60 s"):
        await open_transport(lock=120)


async def test_a_client_without_share_groups(
    server: OwnKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(confluent_kafka, "ShareConsumer")
    transport = KafkaTransport(server.url, groups="share")
    with pytest.raises(ConfigurationError, match=r"confluent-kafka 2\.16"):
        await transport.connect()
    assert transport.state.status == "disconnected"


async def test_a_setting_that_share_groups_do_not_have(
    open_transport: Open, topology: Topology
) -> None:
    transport = await open_transport(config={"session.timeout.ms": 9000})
    with pytest.raises(ConfigurationError, match=r"session\.timeout\.ms"):
        await subscribe(transport, topology)


def test_it_excludes_transactions() -> None:
    with pytest.raises(ConfigurationError, match="exclude each other"):
        KafkaTransport("kafka://localhost", groups="share", transactional=True)


async def test_a_broker_on_which_they_are_turned_off(tmp_path: Path) -> None:
    own = OwnKafka(tmp_path, features="share.version=0")
    own.start()
    try:
        transport = KafkaTransport(own.url, groups="share", members=1)
        await transport.connect()
        topology = Topology("shop", queues=["events"])
        await transport.apply_topology(topology)
        with pytest.raises(ConfigurationError, match="turned off"):
            await receive(await subscribe(transport, topology))
        await transport.disconnect()
    finally:
        own.kill()
