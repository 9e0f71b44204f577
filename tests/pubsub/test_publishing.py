"""A publisher by itself: the messages as they travel, and what it does when some are not stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from matador import Hooks
from matador.errors import (
    ConfigurationError,
    InvalidMessageError,
    MatadorError,
    NotConnectedError,
    QueueNotFoundError,
    StorageFullError,
)
from matador.model.message import Message, Properties
from matador.model.topology import Exchange
from matador.policy.circuit import CircuitBreaker
from matador.policy.recovery import Recovery
from matador.pubsub import Published, Publisher, PublishError, Subscriber
from matador.pubsub.publisher import DEFAULT_EXCHANGE, SyncPublisher, exchanges_of
from matador.runtime.facts import Sent
from matador.testing import ManualClock
from matador.transports import MemoryTransport


class Noting(MemoryTransport):
    """Notes what is published, and refuses what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.published: list[tuple[str, Message]] = []
        self.refuses: dict[str, MatadorError] = {}
        self.calls = 0

    async def publish(
        self, exchange: str, messages: Sequence[Message]
    ) -> Sequence[int | MatadorError]:
        self.calls += 1
        self.published += [(exchange, one) for one in messages]
        found = await super().publish(exchange, messages)
        keys = [one.properties and one.properties.routing_key for one in messages]
        pairs = zip(keys, found, strict=True)
        return [
            self.refuses.get(exchange) or self.refuses.get(key or "") or one for key, one in pairs
        ]


class Told(Hooks):
    def __init__(self) -> None:
        self.sent: list[Sent] = []

    def on_sent(self, batch: Sequence[Sent]) -> None:
        self.sent += batch


@asynccontextmanager
async def publishing(
    *exchanges: Any, **options: Any
) -> AsyncGenerator[tuple[Publisher, Noting, list[Any]]]:
    """A publisher, its transport, and what a subscriber to its first exchange gets."""
    transport, got = Noting(), list[Any]()
    given = exchanges or ("events",)
    subscriber = Subscriber(transport, exchange=given[0], queue="q")

    @subscriber.on("orders.#")
    async def note(data: Any) -> None:
        got.append(data)

    options = {"clock": ManualClock()} | options
    async with subscriber, Publisher(transport, exchange=given, **options) as publisher:
        yield publisher, transport, got
        await subscriber.wait_idle()
    await transport.disconnect()


async def test_a_message_travels_with_all_that_was_said_of_it() -> None:
    told = Told()
    async with publishing(hooks=told) as (publisher, transport, got):
        published = await publisher.publish(
            "orders.created",
            {"id": 1},
            metadata={"tenant": "t", "x-matador-a": 1, "ratio": 0.5, "none": None},
            correlation_id="c-1",
            message_id="m-1",
            persistent=False,
            priority=5,
            ttl=60,
        )
        assert published == Published("m-1", "orders.created", ("events",), 1)
        ((exchange, message),) = transport.published
        assert (exchange, message.id, message.body) == ("events", "m-1", b'{"id":1}')
        assert message.headers == {"tenant": "t", "ratio": "0.5"}
        assert (message.priority, message.delay, message.queue) == (5, 0.0, "")
        until = publisher._clock.time() + 60
        assert message.properties == Properties(
            "orders.created", None, "c-1", None, until, transient=True
        )
        (fact,) = told.sent
        assert (fact.way, fact.name, fact.receiver) == ("message", "orders.created", "events")
        assert (fact.id, fact.data, fact.correlation_id) == ("m-1", b'{"id":1}', "c-1")
        assert (fact.metadata, fact.due_at, fact.transport) == (message.headers, None, "memory")
        assert fact.created_at == publisher._clock.time()
    assert got == [{"id": 1}]


async def test_a_message_has_an_id_and_traces_itself_unless_told_otherwise() -> None:
    async with publishing() as (publisher, transport, _):
        first = await publisher.publish("orders.a", 1)
        await publisher.publish("orders.b", 2, message_id="m-2")
        await publisher.publish_many([("orders.c", 3)], correlation_id="c-3")
        messages = [message for _, message in transport.published]
        assert [one.properties for one in messages] == [
            Properties("orders.a", correlation_id=first.message_id),
            Properties("orders.b", correlation_id="m-2"),
            Properties("orders.c", correlation_id="c-3"),
        ]
        assert messages[0].id == first.message_id
        assert len({one.id for one in messages}) == 3
        assert [one.priority for one in messages] == [None] * 3
        assert publisher.exchange == "events"


async def test_many_are_published_together_and_in_order() -> None:
    async with publishing() as (publisher, transport, got):
        given = [("orders.created", 1), ("bills.created", 2), ["orders.paid", 3]]
        found = await publisher.publish_many(given, metadata={"a": 1}, persistent=False)  # type: ignore[arg-type] - JSON has no tuples
        assert [(one.routing_key, one.queues) for one in found] == [
            ("orders.created", 1),
            ("bills.created", 0),
            ("orders.paid", 1),
        ]
        assert transport.calls == 1
        for _, message in transport.published:
            assert message.headers == {"a": 1}
            assert message.properties is not None
            assert message.properties.transient
        assert await publisher.publish_many([]) == []
        assert publisher.metrics().messages_sent == 3
    assert got == [1, 3]


async def test_of_many_some_may_not_be_stored() -> None:
    async with publishing() as (publisher, transport, got):
        full = transport.refuses["orders.b"] = StorageFullError("no room")
        with pytest.raises(PublishError, match="1 of 3 messages were not published") as caught:
            await publisher.publish_many([("orders.a", 1), ("orders.b", 2), ("orders.c", 3)])
        first, second, third = caught.value.outcomes
        assert isinstance(first, Published)
        assert isinstance(third, Published)
        assert second is full
        assert caught.value.__cause__ is full
        assert "StorageFullError: no room" in str(caught.value)
        assert "no room" in (publisher.health().last_error or "")
    assert 1 in got


async def test_one_message_goes_to_several_exchanges() -> None:
    async with publishing("events", Exchange("audit", "fanout")) as (publisher, transport, got):
        exchanges = ("events", "audit")
        published = await publisher.publish("orders.a", 1, exchange=exchanges, message_id="m-1")
        assert published == Published("m-1", "orders.a", exchanges, 1)
        assert [(to, one.id) for to, one in transport.published] == [
            ("events", "m-1"),
            ("audit", "m-1"),
        ]
        full = transport.refuses["audit"] = StorageFullError("no room")
        with pytest.raises(PublishError, match="not published to 1 of 2 exchanges") as caught:
            await publisher.publish("orders.a", 2, exchange=exchanges)
        assert caught.value.outcomes == [1, full]
        with pytest.raises(InvalidMessageError, match="exchange is empty"):
            await publisher.publish("orders.a", 3, exchange=[])
        with pytest.raises(InvalidMessageError, match="takes one exchange"):
            await publisher.publish_many([("orders.a", 3)], exchange=exchanges)  # type: ignore[arg-type] - users
        (one,) = await publisher.publish_many([("orders.a", 4)], exchange="audit-2")
        assert one.exchanges == ("audit-2",), "it was created"
    assert got == [1, 2]


@pytest.mark.parametrize("how", ["publish", "publish_many", "several"])
async def test_an_exchange_that_was_deleted_is_there_for_the_next_message(how: str) -> None:
    async with publishing("events", "audit") as (publisher, transport, _):
        transport.refuses["orders.gone"] = QueueNotFoundError("no exchange")
        applied: list[list[str]] = []
        apply = transport.apply_topology

        async def noted(topology: Any) -> Any:
            applied.append([one.name for one in topology.exchanges])
            return await apply(topology)

        transport.apply_topology = noted
        sending: Awaitable[object]
        match how:
            case "publish":
                sending = publisher.publish("orders.gone", 1)
            case "publish_many":
                sending = publisher.publish_many([("orders.gone", 1)])
            case _:
                sending = publisher.publish("orders.gone", 1, exchange=["events", "audit"])
        with pytest.raises(QueueNotFoundError if how == "publish" else PublishError):
            await sending
        assert applied == [["events", "audit"] if how == "several" else ["events"]]
        assert "no exchange" in (publisher.health().last_error or "")
        transport.refuses["orders.full"] = StorageFullError("no room")
        with pytest.raises(StorageFullError):
            await publisher.publish("orders.full", 1)
        assert len(applied) == 1, "it is still there"
        assert "no room" in (publisher.health().last_error or "")


async def test_what_no_queue_wants_is_told(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Published] = []

    def note(published: Published) -> None:
        told.append(published)
        if published.routing_key == "odd":
            raise ValueError("a bug")

    async with publishing(on_unroutable=note) as (publisher, _, _):
        assert (await publisher.publish("orders.a", 1)).queues == 1
        assert (await publisher.publish("nobody", 1)).queues == 0
        assert (await publisher.publish("odd", 1)).queues == 0
    assert [one.routing_key for one in told] == ["nobody", "odd"]
    assert "on_unroutable of a publisher failed" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"routing_key": ""}, "routing key must be a text"),
        ({"routing_key": 7}, "routing key must be a text"),
        ({"routing_key": "k" * 256}, "longer than 255 bytes"),
        ({"routing_key": "\N{SNOWMAN}" * 86}, "longer than 255 bytes"),
        ({"priority": -1}, "priority"),
        ({"ttl": -1}, "ttl"),
        ({"message_id": 7}, "message_id must be text"),
        ({"correlation_id": 7}, "correlation_id must be text"),
        ({"metadata": {"a": [1]}}, "metadata 'a' must be text or a number"),
        ({"metadata": {1: "a"}}, "names of metadata must be text"),
        ({"metadata": ["a"]}, "metadata must be a mapping"),
        ({"data": object()}, "the data"),
    ],
)
async def test_a_message_that_cannot_travel_is_refused(arguments: Any, said: str) -> None:
    given: dict[str, Any] = {"routing_key": "orders.a", "data": 1} | arguments
    async with publishing() as (publisher, transport, _):
        with pytest.raises(MatadorError, match=said):
            await publisher.publish(**given)
        assert transport.published == []


@pytest.mark.parametrize("key", ["k" * 255, "\N{SNOWMAN}" * 85])
async def test_a_key_may_have_255_bytes(key: str) -> None:
    async with publishing() as (publisher, _, _):
        assert (await publisher.publish(key, 1)).routing_key == key
        with pytest.raises(InvalidMessageError, match="message 1 must be a pair"):
            await publisher.publish_many([("a", 1), "ab"])  # type: ignore[list-item] - users
        with pytest.raises(InvalidMessageError, match="message 0 must be a pair"):
            await publisher.publish_many([("a", 1, 2)])  # type: ignore[list-item] - users
        with pytest.raises(InvalidMessageError, match="the data of message 1"):
            await publisher.publish_many([("a", 1), ("b", object())])


def test_exchanges_are_names_or_exchanges() -> None:
    fanout = Exchange("all", "fanout")
    assert exchanges_of("events", "here") == [Exchange("events")]
    assert exchanges_of([fanout, "events"], "here") == [fanout, Exchange("events")]
    for odd in ([], "", [""], 7, ["events", None], ("a b\n",)):
        with pytest.raises(MatadorError):
            exchanges_of(odd, "here")
    publisher = Publisher("memory://")
    assert publisher.exchange == DEFAULT_EXCHANGE
    assert repr(publisher) == "Publisher(exchange='amq.topic')"
    with pytest.raises(ConfigurationError, match="on_unroutable must be a function"):
        Publisher("memory://", on_unroutable=7)  # type: ignore[arg-type] - users


async def test_a_publisher_is_ready_while_it_is_connected() -> None:
    transport = MemoryTransport()
    publisher = Publisher(transport, exchange="events")
    assert not publisher.is_ready
    async with publisher:
        assert publisher.is_ready
        await transport.disconnect()
        assert not publisher.is_ready
        await transport.connect()
        assert publisher.is_ready
    assert not publisher.is_ready
    await transport.disconnect()


async def test_a_publisher_that_was_shut_down_connects_again_when_it_is_used() -> None:
    transport = MemoryTransport()
    publisher = Publisher(transport, exchange="events")
    for _ in range(2):
        assert not publisher.is_running
        await publisher.publish("a", 1)
        assert publisher.is_running
        assert publisher._at_loop_end is not None
        await publisher.shutdown()
        assert publisher._at_loop_end is None
    await transport.disconnect()


def test_a_publisher_that_is_not_shut_down_ends_with_its_event_loop() -> None:
    publisher, transport = Publisher("memory://", exchange="events"), list[Any]()

    async def publish() -> None:
        await publisher.publish("a", 1)
        await publisher.publish("b", 1)
        transport.append(publisher.transport)

    asyncio.run(publish())
    assert not publisher.is_running
    asyncio.run(publish())
    assert transport[0] is not transport[1], "each loop has a memory of its own"


async def test_a_publisher_without_a_buffer_fails_at_once() -> None:
    transport = MemoryTransport()
    options: dict[str, Any] = {"recovery": Recovery(buffer=False), "circuit_breaker": None}
    async with Publisher(transport, exchange="events", **options) as publisher:
        await transport.disconnect()
        with pytest.raises(NotConnectedError):
            await publisher.publish("a", 1)
        assert publisher.sender_health.circuit is None
    opening = CircuitBreaker(threshold=1)
    await transport.connect()
    async with Publisher(
        transport, recovery=Recovery(buffer=False), circuit_breaker=opening
    ) as one:
        await transport.disconnect()
        with pytest.raises(NotConnectedError):
            await one.publish("a", 1)
        assert one.sender_health.circuit == "open"


async def test_exchanges_are_created_once_in_each_run() -> None:
    transport, applied = Noting(), list[list[str]]()
    apply = transport.apply_topology

    async def noted(topology: Any) -> Any:
        applied.append([one.name for one in topology.exchanges])
        return await apply(topology)

    transport.apply_topology = noted
    publisher = Publisher(transport, exchange=["events", "audit"])
    assert [one.name for one in publisher.topology.exchanges] == ["events", "audit"]
    for _ in range(2):
        applied.clear()
        async with publisher:
            for _ in range(2):
                await publisher.publish("a", 1, exchange="more")
                await publisher.publish("a", 1, exchange=["events", "audit"])
        assert applied == [["events", "audit"], ["more"]]
    await transport.disconnect()


def test_a_publisher_has_a_blocking_form_of_its_own() -> None:
    publisher = Publisher("memory://", exchange="events")
    other = publisher.another()
    assert isinstance(publisher.sync(), SyncPublisher)
    assert publisher.sync() is publisher.sync()
    assert other is not publisher
    assert other._declared is not publisher._declared
    with publisher.sync() as events:
        assert events.publish("a", 1).queues == 0
        assert len(events.publish_many([("a", 1), ("b", 2)])) == 2
    assert not publisher.is_running
