"""Queues that refuse messages while they are full: their delays harm nobody, and nothing is lost.

On a server of the tests' own, which tries every second, and not every three minutes, to forward
what was refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pika.exceptions
import pytest
from tests.support.rabbitmq import Raw, ctl
from tests.transports.rabbitmq.conftest import OwnServer

from matador.model.message import Complete, Delivery, Message, Release
from matador.model.topology import Topology, WorkQueue
from matador.testing import wait_for
from matador.transports.base import Subscription
from matador.transports.rabbitmq import RabbitMQTransport, delays

MANY = 40  # RabbitMQ forwards 32 at a time


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("queue", ["shop.invoices", "q" * 255, "ü" * 127, "."])
@pytest.mark.parametrize("prefix", ["matador.delay", "p" * 240])
def test_the_name_of_an_own_hop_fits_and_its_last_part_is_its_mark(queue: str, prefix: str) -> None:
    hops = delays.with_own_end(prefix, delays.path(90), queue)
    assert hops[0] == delays.path(90)[0], "the others are shared"
    assert hops[1].name.startswith("30s-")
    name = f"{delays.hop_exchange(prefix, 1)}.{hops[1].name}"
    assert len(name.encode()) <= 255
    assert name.rpartition(".")[2] == delays.marks(hops)["matador-delay-1"]


def test_the_name_of_an_own_hop_says_whose_it_is() -> None:
    (hop,) = delays.with_own_end("p", delays.path(5), "shop.invoices")
    assert hop == delays.Hop(1, "5s-shop:invoices", 5000)


# -- on the server ---------------------------------------------------------------------------------


@pytest.fixture
def url(server: OwnServer) -> str:
    return server.url()


@pytest.fixture
async def transport(url: str) -> AsyncIterator[RabbitMQTransport]:
    transport = RabbitMQTransport(url)
    await transport.connect()
    yield transport
    await transport.disconnect()


def fill(raw: Raw, queue: str) -> None:
    """Until the queue takes no more."""
    try:
        for number in range(1000):
            raw.publish("", queue, b"%d" % number, {}, delivery_mode=2)
    except pika.exceptions.NackError:
        return
    raise AssertionError(f"{queue} is never full")


async def received(subscription: Subscription) -> Delivery:
    async with asyncio.timeout(60):
        (delivery,) = await subscription.receive(1)
    return delivery


async def next_body(subscription: Subscription, transport: RabbitMQTransport) -> bytes:
    delivery = await received(subscription)
    assert await transport.settle([Complete(delivery.receipt)]) == [None]
    return delivery.body


async def drained(transport: RabbitMQTransport, queue: str, awaited: set[bytes]) -> None:
    """Consume until all of these have come."""
    subscription = await transport.subscribe(queue, prefetch=10)
    missing = set(awaited)
    while missing:
        missing.discard(await next_body(subscription, transport))
    await subscription.close()


CLASSIC: dict[str, Any] = {"x-max-length": 3, "x-overflow": "reject-publish"}
QUORUM: dict[str, Any] = {**CLASSIC, "x-queue-type": "quorum"}


@pytest.mark.parametrize(
    ("existing", "declared"),
    [
        pytest.param(CLASSIC, None, id="somebody else's, classic"),
        pytest.param(QUORUM, None, id="somebody else's, quorum"),
        pytest.param(CLASSIC, {}, id="ours, used as it is"),
        pytest.param(None, CLASSIC, id="ours, declared so"),
    ],
)
async def test_what_a_full_queue_refuses_holds_up_nobody_and_arrives(
    transport: RabbitMQTransport,
    url: str,
    existing: dict[str, Any] | None,
    declared: dict[str, Any] | None,
) -> None:
    namespace = f"r{uuid4().hex[:10]}"
    queue = f"{namespace}.full"
    with Raw(url) as raw:
        if existing is not None:
            raw.channel.queue_declare(queue, durable=True, arguments=existing)
        full = (
            WorkQueue(queue, exact=True)
            if declared is None
            else WorkQueue("full", type="classic", arguments=declared)
        )
        await transport.apply_topology(Topology(namespace, queues=[full, "other"]))
        fill(raw, queue)
        refused = [Message(f"{n}", queue, b"refused %d" % n, delay=0.3) for n in range(MANY)]
        assert await transport.send(refused) == [None] * MANY
        # Two hops, of which only the last is its own.
        assert await transport.send([Message("two", queue, b"two", delay=1.3)]) == [None]
        neighbours = await transport.subscribe(f"{namespace}.other", prefetch=1)
        for delay in (0.3, 1.3):
            neighbour = Message("n", f"{namespace}.other", b"neighbour", delay=delay)
            assert await transport.send([neighbour]) == [None]
            assert await next_body(neighbours, transport) == b"neighbour"
    await drained(transport, queue, {b"two", *(one.body for one in refused)})


async def test_nothing_is_lost_if_the_server_restarts_while_messages_are_refused(
    transport: RabbitMQTransport, url: str, server: OwnServer
) -> None:
    namespace = f"r{uuid4().hex[:10]}"
    queue = f"{namespace}.full"
    with Raw(url) as raw:
        raw.channel.queue_declare(queue, durable=True, arguments=CLASSIC)
        topology = Topology(namespace, queues=[WorkQueue(queue, exact=True), "other"])
        await transport.apply_topology(topology)
        fill(raw, queue)
    refused = [Message(f"{n}", queue, b"refused %d" % n, delay=0.2) for n in range(MANY)]
    assert await transport.send(refused) == [None] * MANY
    neighbours = await transport.subscribe(f"{namespace}.other", prefetch=1)
    neighbour = [Message("n", f"{namespace}.other", b"neighbour", delay=0.2)]
    assert await transport.send(neighbour) == [None]
    assert await next_body(neighbours, transport) == b"neighbour"
    await asyncio.to_thread(server.stop)
    await asyncio.to_thread(server.start)
    await wait_for(lambda: transport.state.status == "connected", timeout=60, message="back")
    assert await transport.send(neighbour) == [None]
    assert await next_body(neighbours, transport) == b"neighbour", "nobody waits afterwards, either"
    await drained(transport, queue, {one.body for one in refused})


async def test_what_waits_in_a_shared_hop_arrives_and_no_shared_hop_is_declared_anew(
    transport: RabbitMQTransport, url: str
) -> None:
    """As an earlier version has declared it and put a message into it."""
    namespace = f"r{uuid4().hex[:10]}"
    queue = f"{namespace}.full"
    with Raw(url) as raw:
        raw.channel.queue_declare(queue, durable=True, arguments=CLASSIC)
        topology = Topology(namespace, queues=[WorkQueue(queue, exact=True), "other"])
        await transport.apply_topology(topology)
        other = Message("o", f"{namespace}.other", b"other", delay=0.13)
        assert await transport.send([other]) == [None]
        raw.publish("matador.delay.hops.1", queue, b"old", {"matador-delay-1": "130ms"})
        assert raw.get(queue)[2] == b"old"
        new = Message("m", queue, b"new", {"mine": 1}, delay=0.13)
        assert await transport.send([new]) == [None]
        raw.count(f"matador.delay.hops.1.130ms-{namespace}:full")  # fails if there is none
    subscription = await transport.subscribe(queue, prefetch=1)
    delivery = await received(subscription)
    assert (delivery.body, dict(delivery.headers)) == (b"new", {"mine": 1}), "no attempt was used"


async def test_a_queue_that_refuses_by_policy_has_own_hops_if_its_arguments_say_so(
    transport: RabbitMQTransport, url: str, server: OwnServer
) -> None:
    namespace = f"r{uuid4().hex[:10]}"
    policy = '{"max-length": 3, "overflow": "reject-publish"}'
    pattern = f"^{namespace}[.]full$"
    await asyncio.to_thread(ctl, server, "set_policy", namespace, pattern, policy)
    queue = f"{namespace}.full"
    with Raw(url) as raw:
        raw.channel.queue_declare(queue, durable=True)
        full = WorkQueue("full", arguments={"x-overflow": "reject-publish"})
        await transport.apply_topology(Topology(namespace, queues=[full]))
        assert await transport.send([Message("m", queue, b"x", delay=0.05)]) == [None]
        raw.count(f"matador.delay.hops.1.50ms-{namespace}:full")  # fails if there is none
        assert raw.get(queue)[2] == b"x"


async def test_asking_about_a_queue_creates_none(transport: RabbitMQTransport, url: str) -> None:
    namespace = f"r{uuid4().hex[:10]}"
    missing = WorkQueue(f"{namespace}:missing", exact=True)
    notes = await transport.apply_topology(Topology(namespace, queues=[missing]))
    assert ["does not exist" in note.text for note in notes] == [True]
    with Raw(url) as raw, pytest.raises(pika.exceptions.ChannelClosedByBroker):
        raw.count(f"{namespace}:missing")


async def test_a_queue_that_may_not_be_asked_about_is_used_as_before(
    url: str, server: OwnServer
) -> None:
    namespace = f"r{uuid4().hex[:10]}"
    queue = f"{namespace}:theirs"

    await asyncio.to_thread(ctl, server, "add_user", namespace, "secret")
    mine = rf"^({namespace}\.|{queue}\.|matador)"  # but not the queue itself
    await asyncio.to_thread(ctl, server, "set_permissions", namespace, mine, ".*", ".*")
    with Raw(url) as raw:
        raw.channel.queue_declare(queue, durable=True, arguments=CLASSIC)
    address = url.replace("guest:guest", f"{namespace}:secret")
    transport = RabbitMQTransport(address)
    await transport.connect()
    topology = Topology(namespace, queues=[WorkQueue(queue, exact=True)])
    assert await transport.apply_topology(topology) == []
    assert await transport.send([Message("m", queue, b"x", delay=0.05)]) == [None]
    subscription = await transport.subscribe(queue, prefetch=1)
    assert await next_body(subscription, transport) == b"x"
    await transport.disconnect()


# -- giving back -----------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [CLASSIC, QUORUM], ids=["classic", "quorum"])
async def test_what_is_given_back_to_a_full_queue_is_not_counted_and_arrives(
    transport: RabbitMQTransport, url: str, arguments: dict[str, Any]
) -> None:
    """Counted, it would be a dead letter for a subscriber that must not run twice."""
    namespace = f"r{uuid4().hex[:10]}"
    queue = f"{namespace}.full"
    with Raw(url) as raw:
        raw.channel.queue_declare(queue, durable=True, arguments=arguments)
        await transport.apply_topology(Topology(namespace, queues=[WorkQueue(queue, exact=True)]))
        # One of its sender has been delivered before, and says so.
        raw.publish("", queue, b"first", {"mine": 1, "x-matador-deliveries": 1}, priority=3)
        raw.publish("", queue, b"second", {})
        subscription = await transport.subscribe(queue, prefetch=2)
        held = [await received(subscription) for _ in range(2)]
        fill(raw, queue)
        assert await transport.settle([Release(one.receipt) for one in held]) == [None, None]
        await subscription.close()
    again = await transport.subscribe(queue, prefetch=1)
    found: dict[bytes, Delivery] = {}
    while not {b"first", b"second"} <= found.keys():
        delivery = await received(again)
        found[delivery.body] = delivery
        assert await transport.settle([Complete(delivery.receipt)]) == [None]
    first, second = found[b"first"], found[b"second"]
    assert (dict(first.headers), first.receipt.priority) == ({"mine": 1}, 3)
    assert (first.receipt.delivery_count, second.receipt.delivery_count) == (2, 1)
    assert second.receipt.redelivered is False
    assert second.receipt.exact_count


@pytest.mark.parametrize(
    ("overflow", "expiration"),
    [("reject-publish", "60000"), ("reject-publish-dlx", None)],
    ids=["it expires", "the queue makes dead letters of what it refuses"],
)
async def test_what_cannot_wait_for_room_goes_back_to_its_place(
    transport: RabbitMQTransport, url: str, overflow: str, expiration: str | None
) -> None:
    namespace = f"r{uuid4().hex[:10]}"
    queue = f"{namespace}.full"
    with Raw(url) as raw:
        raw.channel.queue_declare(
            queue, durable=True, arguments={"x-max-length": 3, "x-overflow": overflow}
        )
        await transport.apply_topology(Topology(namespace, queues=[WorkQueue(queue, exact=True)]))
        raw.publish("", queue, b"mine", {}, expiration=expiration)
        subscription = await transport.subscribe(queue, prefetch=1)
        delivery = await received(subscription)
        fill(raw, queue)
        assert await transport.settle([Release(delivery.receipt)]) == [None]
        await subscription.close()
        method, found, body = raw.get(queue)
        assert (body, method.redelivered, found.expiration) == (b"mine", True, expiration)
