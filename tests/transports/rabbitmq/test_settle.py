"""Every settlement ends: what does not fit is said beforehand, what is gone is made again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from struct import pack
from typing import Any, cast

import pika.exceptions
import pytest
from tests.support.brokers import broker_url
from tests.support.rabbitmq import Raw, eventually
from tests.support.raw_rabbitmq import RawRabbitMQ, field, long, nested, properties, short

from matador.errors import (
    LeaseLostError,
    MatadorError,
    MessageTooLargeError,
    NotConnectedError,
    QueueNotFoundError,
    UnstorableError,
)
from matador.model.message import (
    DeadLetter,
    Delivery,
    Message,
    Release,
    Retry,
    Settlement,
)
from matador.model.text import SHORT_TEXT
from matador.model.topology import Topology, WorkQueue
from matador.testing import wait_for
from matador.transports.base import Subscription
from matador.transports.rabbitmq import RabbitMQTransport, deliveries, wire
from matador.transports.rabbitmq.connection import AmqpChannel
from matador.transports.rabbitmq.publisher import Publication

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("rabbitmq")]

Make = Callable[..., RabbitMQTransport]
LONG_ID = "ü" * 200


@pytest.fixture
async def queue(transport: RabbitMQTransport, namespace: str) -> str:
    await transport.apply_topology(Topology(namespace, queues=["events"]))
    return f"{namespace}.events"


@pytest.fixture
async def own_delays(
    make: Callable[..., RabbitMQTransport], namespace: str, raw: Raw
) -> AsyncIterator[RabbitMQTransport]:
    """Has exchanges and queues for delays that no other test uses, or deletes."""
    prefix = f"{namespace}.delay"
    transport = make(f"delay_prefix={prefix}&delays=levels")
    await transport.connect()
    await transport.apply_topology(Topology(namespace, queues=["events"]))
    yield transport
    for name in ("lost", "due", "hops.1"):
        raw.channel.exchange_delete(f"{prefix}.{name}")
    raw.delete([], [f"{prefix}.{name}" for name in ("lost", "hops.1.70ms", "hops.1.300ms")])


async def receive(subscription: Subscription) -> Delivery:
    async with asyncio.timeout(20):
        (delivery,) = await subscription.receive(1)
    return delivery


async def one_of(transport: RabbitMQTransport, queue: str, odd: bytes, body: bytes) -> Delivery:
    """An entry as a foreign program writes it, delivered."""
    writer = RawRabbitMQ(broker_url("rabbitmq"))
    await writer.publish(queue, odd, body)
    await writer.close()
    return await receive(await transport.subscribe(queue, prefetch=1))


def is_connected(transport: RabbitMQTransport) -> bool:
    return transport.state.status == "connected"


# -- what does not fit -----------------------------------------------------------------------------


async def test_an_id_longer_than_amqp_takes_is_sent_retried_and_dead_lettered(
    transport: RabbitMQTransport, queue: str, raw: Raw
) -> None:
    assert await transport.send([Message(LONG_ID, queue, b"1")]) == [None]
    subscription = await transport.subscribe(queue, prefetch=1)
    first = await receive(subscription)
    again = Message(LONG_ID, queue, b"2", delay=0.01)
    assert await transport.settle([Retry(first.receipt, again)]) == [None]
    second = await receive(subscription)
    letter = DeadLetter(second.receipt, "undeliverable", "why", Message(LONG_ID, queue, b"3"))
    assert await transport.settle([letter]) == [None]
    _, found, body = raw.get(f"{queue}.undeliverable")
    assert body == b"3"
    assert found.message_id.startswith("sha256:")
    assert found.message_id == wire.id_property(LONG_ID) != wire.id_property(LONG_ID + "x")


def too_long(delivery: Delivery) -> Settlement:
    return DeadLetter(delivery.receipt, "undeliverable", "w" * 200_000)


def surrogate(delivery: Delivery) -> Settlement:
    return DeadLetter(delivery.receipt, "undeliverable", "\udcff")


def full_letter(delivery: Delivery) -> Settlement:
    message = Message("m", "q", b"", {"h": "v" * 140_000})
    return DeadLetter(delivery.receipt, "undeliverable", "why", message)


def full_retry(delivery: Delivery) -> Settlement:
    message = Message("m", delivery.receipt.queue, b"", {"h": "v" * 140_000})
    return Retry(delivery.receipt, message)


def surrogate_retry(delivery: Delivery) -> Settlement:
    return Retry(delivery.receipt, Message("m", delivery.receipt.queue, b"", {"h": "\ud800"}))


@pytest.mark.parametrize(
    "settlement", [too_long, surrogate, full_letter, full_retry, surrogate_retry]
)
async def test_what_can_never_be_stored_is_said_and_the_message_is_still_ours(
    transport: RabbitMQTransport, queue: str, raw: Raw, settlement: Callable[[Delivery], Settlement]
) -> None:
    delivery = await one_of(transport, queue, properties(), b"\xff")
    (outcome,) = await transport.settle([settlement(delivery)])
    assert isinstance(outcome, UnstorableError)
    assert is_connected(transport)
    short_ = DeadLetter(delivery.receipt, "undeliverable", "malformed")
    assert await transport.settle([short_]) == [None]
    assert raw.get(f"{queue}.undeliverable")[2] == b"\xff"


async def test_the_bare_form_fits_where_no_other_does(
    transport: RabbitMQTransport, queue: str, raw: Raw
) -> None:
    full = properties(
        field(b"h", b"S", long(b"x" * 130_900)), content_type=short(b"text/plain"), type=short(b"T")
    )
    delivery = await one_of(transport, queue, full, b"\xff")
    letter = DeadLetter(delivery.receipt, "undeliverable", "malformed " + "y" * 200)
    (outcome,) = await transport.settle([letter])
    assert isinstance(outcome, MessageTooLargeError), "and not a 501 that ends the connection"
    bare = DeadLetter(delivery.receipt, "undeliverable", "y" * 200_000, bare=True)
    assert await transport.settle([bare]) == [None]
    _, found, body = raw.get(f"{queue}.undeliverable")
    assert (body, found.delivery_mode, found.content_type) == (b"\xff", 2, "text/plain")
    assert list(found.headers) == ["x-matador-dead-letter-reason"]
    assert found.type is None


async def test_what_is_too_full_for_a_copy_is_given_back_counted(
    transport: RabbitMQTransport, queue: str
) -> None:
    # With what the copy has to say about deliveries it would be over the size of a frame.
    deliveries = field(b"x-matador-deliveries", b"B", b"\1")
    full = properties(deliveries + field(b"h", b"S", long(b"x" * 131_014)))
    subscription = await transport.subscribe(queue, prefetch=1)
    writer = RawRabbitMQ(broker_url("rabbitmq"))
    await writer.publish(queue, full, b"full")
    await writer.close()
    first = await receive(subscription)
    assert await transport.settle([Release(first.receipt)]) == [None]
    second = await receive(subscription)
    assert (second.body, second.receipt.delivery_count) == (b"full", 3)


async def test_what_a_send_takes_can_be_retried_and_dead_lettered(
    transport: RabbitMQTransport, queue: str
) -> None:
    largest = await largest_header(transport, queue)
    (refused,) = await transport.send([Message("m", queue, b"", {"id": "c" * (largest + 1)})])
    assert isinstance(refused, MessageTooLargeError)
    assert "header of the message" in str(refused)
    given = {"id": "c" * largest}
    assert await transport.send([Message("m", queue, b"", given)]) == [None]
    subscription = await transport.subscribe(queue, prefetch=1)
    error = "😀" * SHORT_TEXT
    more = {
        **given,
        "x-matador-first-error": error,
        "x-matador-last-error": error,
        "x-matador-original-queue": "q" * 255,
        "x-matador-scheduled-for": "2026-11-15T19:02:37.435Z",
    }
    delivery = await receive(subscription)
    retry = Retry(delivery.receipt, Message("m", queue, b"", more, delay=0.01))
    assert await transport.settle([retry]) == [None]
    delivery = await receive(subscription)
    letter = DeadLetter(delivery.receipt, "undeliverable", error, Message("m", queue, b"", more))
    assert await transport.settle([letter]) == [None]


async def largest_header(transport: RabbitMQTransport, queue: str) -> int:
    """How long one header may be, found by trying."""
    low, high = 0, 1 << 20
    while high - low > 1:
        middle = (low + high) // 2
        try:
            transport._outgoing.publication(Message("m", queue, b"", {"id": "c" * middle}))
            low = middle
        except MessageTooLargeError:
            high = middle
    return low


# -- what is gone ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["queue", "exchange", "both"])
async def test_deleted_dead_letters_are_made_again(
    transport: RabbitMQTransport, queue: str, namespace: str, raw: Raw, kind: str
) -> None:
    # Deep headers come back with the message that no queue takes: they must harm nobody, either.
    odd = properties(field(b"deep", b"F", nested(3_000)), message_id=short(b"\xff"))
    delivery = await one_of(transport, queue, odd, b"\xff" * 200_000)
    if kind in ("queue", "both"):
        raw.channel.queue_delete(f"{queue}.undeliverable")
    if kind in ("exchange", "both"):
        raw.channel.exchange_delete(f"{namespace}.dlx")
    letter = DeadLetter(delivery.receipt, "undeliverable", "malformed")
    assert await transport.settle([letter]) == [None]
    assert is_connected(transport)
    for _ in range(2):  # a look takes nothing away
        (stored,) = [one async for one in transport.browse(f"{queue}.undeliverable")]
        assert (stored.body, stored.reason) == (b"\xff" * 200_000, "malformed")


@pytest.mark.parametrize("delay", [0.0, 0.3])
async def test_a_deleted_exchange_is_made_again_and_neighbours_get_through(
    own_delays: RabbitMQTransport, namespace: str, raw: Raw, delay: float
) -> None:
    queue = f"{namespace}.events"
    raw.declare_queue(f"{namespace}-other")
    await own_delays.send([Message("0", queue, b"0", delay=0.3)])  # its queues are known
    eventually(lambda: raw.count(queue) == 1, "the first")
    raw.channel.queue_purge(queue)
    exchange = f"{namespace}.exchange" if not delay else f"{namespace}.delay.hops.1"
    raw.channel.exchange_delete(exchange)
    messages = [
        Message("1", queue, b"1", delay=delay),
        Message("2", f"{namespace}-other", b"2"),
        Message("3", queue, b"3", delay=delay),
        Message("4", f"{namespace}-other", b"4"),
    ]
    assert await own_delays.send(messages) == [None] * 4
    eventually(lambda: raw.count(queue) == raw.count(f"{namespace}-other") == 2, "each once")
    raw.channel.queue_delete(f"{namespace}-other")


async def test_a_deleted_queue_of_a_delay_is_made_again(
    own_delays: RabbitMQTransport, namespace: str, raw: Raw
) -> None:
    queue = f"{namespace}.events"
    first = [Message("1", queue, b"1", delay=0.07)]
    assert await own_delays.send(first) == [None]
    eventually(lambda: raw.count(queue) == 1, "the first")
    raw.channel.queue_delete(f"{namespace}.delay.hops.1.70ms")
    assert await own_delays.send(first) == [None]
    eventually(lambda: raw.count(queue) == 2, "the second")


async def test_a_deleted_work_queue_is_made_again_for_a_retry(
    transport: RabbitMQTransport, queue: str, raw: Raw
) -> None:
    assert await transport.send([Message("1", queue, b"1")]) == [None]
    subscription = await transport.subscribe(queue, prefetch=1)
    delivery = await receive(subscription)
    raw.channel.queue_delete(queue)
    retry = Retry(delivery.receipt, Message("1", queue, b"2"))
    started = time.monotonic()
    assert await transport.settle([retry]) == [None]
    # Made at once, the broker would not tell other consumers that their queue is gone.
    assert time.monotonic() - started >= 0.3
    assert (await receive(subscription)).body == b"2"


async def test_somebody_elses_queue_is_not_looked_after_at_every_send(
    transport: RabbitMQTransport, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = Topology(namespace, queues=["events", WorkQueue(f"{namespace}:x", exact=True)])
    await transport.apply_topology(topology)
    applied: list[object] = []
    apply = transport._topologies._apply

    async def counted(session: Any, topology: Topology) -> Any:
        applied.append(topology)
        return await apply(session, topology)

    monkeypatch.setattr(transport._topologies, "_apply", counted)
    for _ in range(20):
        (outcome,) = await transport.send([Message("m", f"{namespace}:x", b"")])
        assert isinstance(outcome, QueueNotFoundError)
    assert 1 <= len(applied) <= 5


async def test_many_who_find_it_gone_make_it_once(
    transport: RabbitMQTransport, queue: str, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied: list[object] = []
    apply = transport._topologies._apply

    async def counted(session: Any, topology: Topology) -> Any:
        applied.append(topology)
        return await apply(session, topology)

    monkeypatch.setattr(transport._topologies, "_apply", counted)
    raw.channel.queue_delete(queue)
    sending = [transport.send([Message(str(n), queue, b"")]) for n in range(20)]
    assert await asyncio.gather(*sending) == [[None]] * 20
    assert len(applied) == 1
    eventually(lambda: raw.count(queue) == 20, "all of them")


async def test_a_successor_that_fails_unexpectedly_leaves_the_message_ours(
    transport: RabbitMQTransport, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivery = await one_of(transport, queue, properties(), b"x")
    publisher = cast("Any", transport._supervisor.connection.publisher)

    async def broken(_: object) -> list[MatadorError | None]:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(publisher, "publish", broken)
        with pytest.raises(RuntimeError):
            await transport.settle([Release(delivery.receipt)])
    (outcome,) = await transport.settle([Release(delivery.receipt)])
    assert not isinstance(outcome, LeaseLostError)


async def test_a_message_that_cannot_be_read_by_a_bug_of_ours_is_delivered_all_the_same(
    transport: RabbitMQTransport, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = deliveries.IncomingProperties

    def broken(given: bytes, redelivered: bool, routing_key: str | None = None) -> Any:
        if given != b"\0\0":
            raise RecursionError("a bug")
        return real(given, redelivered)

    monkeypatch.setattr(deliveries, "IncomingProperties", broken)
    delivery = await one_of(transport, queue, properties(b""), b"x")
    assert (delivery.body, dict(delivery.headers)) == (b"x", {})
    assert delivery.problem == "the properties cannot be read: RecursionError"
    assert is_connected(transport)


# -- what the broker closes a channel for ----------------------------------------------------------


async def test_messages_behind_one_that_closes_the_channel_are_published_again(
    transport: RabbitMQTransport, queue: str, raw: Raw
) -> None:
    publisher = transport._supervisor.connection.publisher
    good = Publication("", queue, "m", properties(), b"good")
    bad = Publication("no such exchange", queue, "m", properties(), b"bad")
    outcomes = await publisher.publish([good, bad, good, bad, good])
    assert [type(one) for one in outcomes[1:]] == [
        QueueNotFoundError,
        type(None),
        QueueNotFoundError,
        type(None),
    ]
    stored = 2 + (outcomes[0] is None)  # confirmed before the channel was closed, or nobody knows
    eventually(lambda: raw.count(queue) >= stored, "the good ones")
    await wait_for(lambda: not publisher._flights)


async def test_calls_end_with_their_connection_even_if_nobody_closes_the_channel(
    transport: RabbitMQTransport,
) -> None:
    closed = list[BaseException]()
    connection = transport._supervisor.connection.consuming
    channel = await AmqpChannel.open(connection)
    channel.on_closed = closed.append
    waiting = asyncio.create_task(channel.wait(asyncio.Future(), "an answer"))
    await asyncio.sleep(0)
    reason = pika.exceptions.StreamLostError("cut")
    connection.lost.set_result(reason)  # as on_close says it; the channel itself hears nothing
    with pytest.raises(NotConnectedError):
        await asyncio.wait_for(waiting, 60)
    assert closed == [reason]


# -- letters of the broker's own -------------------------------------------------------------------


async def test_what_the_broker_threw_out_says_why_and_when(
    transport: RabbitMQTransport, queue: str, raw: Raw
) -> None:
    given = {"x-matador-event-key": "a"}
    raw.publish("", queue, b"x", given, expiration="1", timestamp=1, message_id="m")
    letters = f"{queue}.undeliverable"
    eventually(lambda: raw.count(letters) == 1, "expired")
    (stored,) = [one async for one in transport.browse(letters)]
    assert stored.reason == f"expired by the broker in queue {queue}"
    assert stored.stored_at is not None
    assert stored.stored_at.year >= 2025, "when it died, and not when it was sent"


@pytest.mark.parametrize(
    ("death", "told"),
    [
        ({"reason": "maxlen", "queue": "q"}, "queue q was over its length limit"),
        ({"reason": "delivery_limit", "queue": "q"}, "more often than queue q allows"),
        ({"reason": "rejected", "queue": "q"}, "rejected by a consumer of queue q"),
        ({"reason": "new", "queue": "q"}, "removed by the broker from queue q: new"),
        ({}, "from queue ?: no reason given"),
        ({"reason": "{x}", "queue": "{y}" * 300}, "{y}"),
    ],
)
def test_every_death_is_told(death: dict[str, Any], told: str) -> None:
    assert told in wire.death_reason(death)
    assert len(wire.death_reason(death)) <= SHORT_TEXT


@pytest.mark.parametrize("when", [(b"S", long(b"noon")), (b"T", b"\xff" * 8), (b"V", b"")])
async def test_a_forged_death_is_no_reason_to_fail(
    transport: RabbitMQTransport, queue: str, when: tuple[bytes, bytes]
) -> None:
    death = long(field(b"time", *when) + field(b"count", b"l", pack(">q", -7)))
    odd = properties(field(b"x-death", b"A", long(b"F" + death)))
    writer = RawRabbitMQ(broker_url("rabbitmq"))
    await writer.publish(f"{queue}.undeliverable", odd, b"x")
    await writer.close()
    (stored,) = [one async for one in transport.browse(f"{queue}.undeliverable")]
    assert stored.stored_at is None
    assert stored.reason == "removed by the broker from queue ?: no reason given"
