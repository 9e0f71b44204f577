"""Who gets a message: patterns, several queues, members of one queue, broadcasts, types."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypedDict

import attrs
import msgspec
import pydantic
import pytest
from tests.support.pubsub import Place, pipeline

from matador import WorkQueue
from matador.errors import (
    ConfigurationError,
    InvalidMessageError,
    InvalidTopologyError,
    LifecycleError,
    NotStartedError,
    QueueNotFoundError,
    UnsupportedError,
)
from matador.pubsub import (
    AckStrategy,
    Exchange,
    MessageContext,
    Published,
    Publisher,
    Subscriber,
)
from matador.testing import wait_for
from matador.transports.base import Measuring
from matador.transports.memory import MemoryTransport


async def test_a_handler_gets_what_matches_its_pattern(place: Place) -> None:
    sub = place.subscriber("orders")
    star: list[str] = []
    hash_: list[str] = []

    @sub.on("orders.*")
    async def one_word(message: dict[str, Any], ctx: MessageContext) -> None:
        star.append(ctx.routing_key)

    @sub.on("orders.#")
    async def any_words(message: dict[str, Any], ctx: MessageContext) -> None:
        hash_.append(ctx.routing_key)

    keys = ["orders", "orders.created", "orders.created.eu", "invoices.created"]
    async with sub, place.publisher() as publisher:
        found = await publisher.publish_many([(key, {"key": key}) for key in keys])
        await wait_for(lambda: len(hash_) == 3)
    assert star == ["orders.created"]
    assert sorted(hash_) == keys[:3]
    assert [one.queues for one in found] == [1, 1, 1, place.unwanted]


@pytest.mark.parametrize("queue", ["orders", "orders.created", "orders.created.emails", None])
async def test_a_routing_key_may_be_the_name_of_the_queue_or_its_beginning(
    place: Place, queue: str | None
) -> None:
    sub = place.subscriber(queue, ack=AckStrategy(retry_delay=0.01))
    begins = [f"{place.name}.orders", f"{place.name}.orders.created", place.exchange]
    keys = [*begins, place.name, sub.queue]
    seen: list[tuple[str, str, int]] = []

    @sub.on(*keys)
    async def handle(message: str, ctx: MessageContext) -> None:
        seen.append((message, ctx.routing_key, ctx.attempts))
        if ctx.attempts == 1:
            raise ValueError("once")

    async with sub, place.publisher() as publisher:
        await publisher.publish_many([(key, key) for key in keys])
        await wait_for(lambda: len(seen) == 2 * len(keys))
        assert sub.metrics().messages_dead_lettered == sub.metrics().messages_discarded == 0
    assert sorted(seen) == sorted((key, key, attempt) for key in keys for attempt in (1, 2))


async def test_the_context_of_a_message(place: Place) -> None:
    sub = place.subscriber("orders")
    seen: list[tuple[Any, MessageContext]] = []

    @sub.on("orders.*")
    async def handle(message: dict[str, Any], ctx: MessageContext) -> None:
        seen.append((message, ctx))

    async with sub, place.publisher() as publisher:
        published = await publisher.publish(
            "orders.created",
            {"id": 1, "name": "Zoë"},
            metadata={"tenant": "acme", "x-retry-count": 9, "X-Hermes-Old": "1", "n": 7},
            correlation_id="trace-1",
            message_id="message-1",
            ttl=60,
        )
        await wait_for(lambda: seen)
    ((message, ctx),) = seen
    assert published == Published("message-1", "orders.created", (place.exchange,), 1)
    assert message == {"id": 1, "name": "Zoë"}
    assert (ctx.message_id, ctx.correlation_id) == ("message-1", "trace-1")
    assert (ctx.routing_key, ctx.exchange) == ("orders.created", place.exchange)
    assert ctx.queue == place.queue("orders")
    assert {**ctx.headers} == {"tenant": "acme", "n": 7}
    assert (ctx.attempts, ctx.first_failure) == (1, None)
    assert ctx.deadline is not None
    assert 50 < (ctx.deadline - datetime.now(UTC)).total_seconds() <= 60


async def test_every_queue_gets_every_message_and_its_members_share(place: Place) -> None:
    names = ["analytics", "analytics", "billing"]
    subs = [place.subscriber(name, concurrency=1) for name in names]
    got: list[Counter[int]] = [Counter() for _ in subs]

    for sub, counts in zip(subs, got, strict=True):

        @sub.on("orders.#")
        async def handle(message: int, counts: Counter[int] = counts) -> None:
            counts[message] += 1
            await asyncio.sleep(0)

    async with place.publisher() as publisher:
        for sub in subs:
            await sub.start()
        found = await publisher.publish_many([("orders.made", n) for n in range(100)])
        await wait_for(lambda: (got[0] + got[1]).total() == 100 and got[2].total() == 100)
        for sub in subs:
            await sub.shutdown()
    assert got[0] + got[1] == Counter(range(100)) == got[2]
    assert {one.queues for one in found} <= {1, 2}


async def test_a_named_queue_keeps_what_is_published_while_nobody_listens(place: Place) -> None:
    got: list[int] = []

    def made() -> Subscriber:
        sub = place.subscriber("orders", concurrency=1)

        @sub.on("orders.*")
        async def handle(message: int) -> None:
            got.append(message)

        return sub

    async with place.publisher() as publisher:
        async with made():
            pass
        await publisher.publish_many([("orders.made", n) for n in range(20)])
        async with made():
            await wait_for(lambda: len(got) == 20)
    assert got == list(range(20))


async def test_broadcasts_go_to_all_and_their_queues_vanish(place: Place) -> None:
    subs = [place.subscriber() for _ in range(2)]
    got: list[list[int]] = [[], []]
    for sub, mine in zip(subs, got, strict=True):

        @sub.on("news.#")
        async def handle(message: int, mine: list[int] = mine) -> None:
            mine.append(message)

    async with place.publisher() as publisher:
        assert (await publisher.publish("news.old", 0)).queues == place.unwanted
        async with subs[0], subs[1]:
            await publisher.publish("news.new", 1)
            await wait_for(lambda: got == [[1], [1]])
        assert (await publisher.publish("news.late", 2)).queues == place.unwanted
    assert subs[0].queue.startswith(f"{place.exchange}.")
    assert subs[0].queue != subs[1].queue
    transport = await place.transport()
    for sub in subs:
        with pytest.raises(QueueNotFoundError):
            await transport.subscribe(sub.queue, prefetch=1)
        with pytest.raises(QueueNotFoundError):
            await transport.subscribe(f"{sub.queue}.dlq", prefetch=1)


@pipeline
async def test_a_handler_of_several_patterns_runs_once_a_message(place: Place) -> None:
    sub = place.subscriber("orders")
    runs: list[int] = []

    async def handle(message: int) -> None:
        runs.append(message)

    assert sub.on("orders.*", "orders.#")(handle) is handle
    sub.on("*.made")(handle)
    async with sub, place.publisher() as publisher:
        await publisher.publish("orders.made", 1)
        await publisher.publish("other.made", 2)
        await wait_for(lambda: sub.metrics().messages_succeeded == 2)
    assert sorted(runs) == [1, 2]


async def test_unroutable_messages_are_reported(place: Place) -> None:
    told: list[Published] = []

    def tell(published: Published) -> None:
        told.append(published)
        raise RuntimeError("a callback that fails changes nothing")

    async with place.publisher(on_unroutable=tell) as publisher:
        published = await publisher.publish("nobody.listens", 1)
        await publisher.publish_many([("nobody.either", 1)])
    assert published.queues == place.unwanted
    if place.unwanted:
        assert told == []
        return
    assert [one.routing_key for one in told] == ["nobody.listens", "nobody.either"]


async def test_several_exchanges(place: Place) -> None:
    second = f"{place.exchange}.2"
    subs = [
        place.subscriber("first"),
        Subscriber(place.url, exchange=second, queue=place.queue("second")),
    ]
    got: list[tuple[str, int]] = []
    for sub in subs:

        @sub.on("#")
        async def handle(message: int, ctx: MessageContext) -> None:
            got.append((ctx.exchange, message))

    async with subs[0], subs[1], place.publisher(exchange=[place.exchange, second]) as publisher:
        assert (await publisher.publish("a", 1)).exchanges == (place.exchange,)
        await publisher.publish("a", 2, exchange=second)
        both = await publisher.publish("a", 3, exchange=[place.exchange, second])
        await wait_for(lambda: len(got) == 4)
    assert both.queues == 2
    assert sorted(got) == sorted(
        [(place.exchange, 1), (second, 2), (place.exchange, 3), (second, 3)]
    )


async def test_an_exchange_of_another_type(place: Place) -> None:
    exchange = Exchange(place.exchange, "fanout")
    sub = Subscriber(place.url, exchange=exchange, queue=place.queue("all"))
    got: list[str] = []

    @sub.on("whatever")
    async def handle(message: int, ctx: MessageContext) -> None:
        got.append(ctx.routing_key)

    async with sub, place.publisher(exchange=exchange) as publisher:
        await publisher.publish("another.key", 1)
        await wait_for(lambda: got == ["another.key"])


# -- types of data --------------------------------------------------------------------------------


@dataclass
class AsDataclass:
    id: int


class AsStruct(msgspec.Struct):
    id: int


@attrs.define
class AsAttrs:
    id: int


class AsModel(pydantic.BaseModel):
    id: int


class AsDict(TypedDict):
    id: int


@pipeline
async def test_typed_data_of_every_kind_and_none(place: Place) -> None:
    sub = place.subscriber("orders")
    got: dict[str, Any] = {}

    @sub.on("#")
    async def as_dataclass(order: AsDataclass) -> None:
        got["dataclass"] = order

    @sub.on("#")
    async def as_struct(order: AsStruct, ctx: MessageContext) -> None:
        got["struct"] = order

    @sub.on("#")
    def as_attrs(ctx: MessageContext, order: AsAttrs) -> None:
        got["attrs"] = order

    @sub.on("#")
    async def as_model(*, order: AsModel) -> None:
        got["model"] = order

    @sub.on("#")
    def as_dict(order: AsDict) -> None:
        got["dict"] = order

    @sub.on("#")
    async def untyped(order) -> None:  # type: ignore[no-untyped-def]
        got["untyped"] = order

    @sub.on("#")
    async def without_data(ctx: MessageContext) -> None:
        got["context"] = ctx.routing_key

    async with sub, place.publisher() as publisher:
        await publisher.publish("made", AsModel(id=7))
        await wait_for(lambda: sub.metrics().messages_succeeded == 1)
    assert got == {
        "dataclass": AsDataclass(7),
        "struct": AsStruct(7),
        "attrs": AsAttrs(7),
        "model": AsModel(id=7),
        "dict": {"id": 7},
        "untyped": {"id": 7},
        "context": "made",
    }


# -- life and mistakes ----------------------------------------------------------------------------


async def test_handlers_are_added_before_the_start() -> None:
    sub = Subscriber("memory://", exchange="e", queue="q")
    with pytest.raises(ConfigurationError, match="no handlers"):
        await sub.start()
    await sub.shutdown()  # idempotent, also before the start

    @sub.on("orders.*")
    async def handle(message: int) -> None: ...

    async with sub:
        with pytest.raises(LifecycleError, match="before its start"):
            sub.on("late")(handle)


async def test_a_publisher_connects_when_it_is_used(place: Place) -> None:
    publisher = place.publisher()
    assert not publisher.is_ready
    assert publisher.health().status == "unhealthy"
    await asyncio.gather(*(publisher.publish("a", n) for n in range(10)))
    assert publisher.is_ready
    assert publisher.metrics().messages_sent == 10
    assert publisher.health().last_message_at is not None
    await publisher.shutdown()
    await publisher.shutdown()
    assert not publisher.is_ready
    await publisher.publish("a", 11)  # again
    await publisher.shutdown()


async def test_stale_bindings(place: Place) -> None:
    """A message that no handler wants any more is kept, until the binding is removed."""
    if place.broker == "kafka":
        pytest.skip("there are none: bindings are those of who consumes; see the next test")
    old = place.subscriber("orders")

    @old.on("orders.*", "invoices.*")
    async def handle(message: int) -> None: ...

    async with old:
        pass
    new = place.subscriber("orders")
    new.on("orders.*")(handle)
    async with new, place.publisher() as publisher:
        await publisher.publish("invoices.sent", 1)
        (letter,) = await place.letters("orders")
        assert "no handler" in str(letter.headers["x-matador-dead-letter-reason"])
        assert letter.properties is not None
        assert letter.properties.routing_key == "invoices.sent"
        with pytest.raises(ConfigurationError, match="has a handler"):
            await new.unbind("orders.*")
        await new.unbind("invoices.*", "never-there.*")
        assert (await publisher.publish("invoices.sent", 2)).queues == 0
    with pytest.raises(NotStartedError):
        await new.unbind("invoices.*")


async def test_bindings_of_who_is_gone_mean_nothing_on_kafka(place: Place) -> None:
    if place.broker != "kafka":
        return
    old, new = place.subscriber("orders"), place.subscriber("orders")
    got: list[int] = []

    @old.on("orders.*", "invoices.*")
    async def handle(message: int) -> None:
        got.append(message)

    async with old:
        pass
    new.on("orders.*")(handle)
    async with new, place.publisher() as publisher:
        await publisher.publish("invoices.sent", 1)
        await publisher.publish("orders.sent", 2)
        await wait_for(lambda: got == [2], timeout=30)
    transport = await place.transport()
    assert isinstance(transport, Measuring)
    assert (await transport.depth(f"{place.queue('orders')}.dlq")).total == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"exchange": ""}, "exchange"),
        ({"exchange": 7}, "exchange"),
        ({"exchange": "not valid"}, "invalid name"),
        ({"queue": ""}, "queue"),
        ({"queue": "has spaces"}, "invalid name"),
        ({"concurrency": 0}, "concurrency"),
        ({"timeout": -1}, "timeout"),
        ({"error_handler": 7}, "error_handler"),
        ({"url": "nonsense://"}, "nonsense"),
        ({"url": 7}, "URL"),
    ],
)
def test_a_wrong_argument_is_an_error_at_once(arguments: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"url": "memory://", "exchange": "e", "queue": "q", **arguments}
    with pytest.raises((ConfigurationError, InvalidTopologyError), match=text):
        Subscriber(**given)


def test_a_wrong_handler_is_an_error_at_once() -> None:
    sub = Subscriber("memory://", exchange="e")

    async def two(a: int, b: int) -> None: ...

    async def yields(a: int) -> Any:
        yield a

    async def unknown(a: Nowhere) -> None: ...  # type: ignore[name-defined] # noqa: F821

    handlers: list[tuple[Any, str]] = [
        (two, "nothing fills the parameter 'b'"),
        (yields, "yield"),
        (unknown, "'Nowhere' of the parameter 'a'"),
        (7, "must be a function"),
    ]
    for handler, text in handlers:
        with pytest.raises(ConfigurationError, match=text):
            sub.on("a")(handler)
    for pattern in ("", 7, "x" * 256, "\ud800"):
        with pytest.raises(ConfigurationError, match="pattern"):
            sub.on(pattern)(two)  # type: ignore[arg-type] - on purpose
    with pytest.raises(ConfigurationError, match="takes patterns"):
        sub.on(two)  # type: ignore[arg-type] - on purpose
    with pytest.raises(ConfigurationError, match="takes patterns"):
        sub.on()


async def test_a_wrong_message_is_an_error_at_once() -> None:
    async with Publisher("memory://") as publisher:
        for key in ("", 7, "x" * 256):
            with pytest.raises(InvalidMessageError, match="routing key"):
                await publisher.publish(key, 1)  # type: ignore[arg-type] - on purpose
        for data in (object(), float("nan"), {1, "a", object()}):
            with pytest.raises(InvalidMessageError, match="JSON"):
                await publisher.publish("a", data)
        with pytest.raises(InvalidMessageError, match="metadata"):
            await publisher.publish("a", 1, metadata={"a": []})
        with pytest.raises(InvalidMessageError, match="at least one"):
            await publisher.publish("a", 1, exchange=[])
        with pytest.raises(InvalidMessageError, match="message 1 must be a pair"):
            await publisher.publish_many([("a", 1), "b"])  # type: ignore[list-item] - on purpose
        assert await publisher.publish_many([]) == []
    for exchange in ([], [7]):
        with pytest.raises(ConfigurationError, match="exchange"):
            Publisher("memory://", exchange=exchange)  # type: ignore[arg-type] - on purpose


async def test_a_transport_without_exchanges_is_refused() -> None:
    transport = MemoryTransport(without=["routing"])
    with pytest.raises(UnsupportedError, match="no exchanges"):
        await Publisher(transport).start()
    sub = Subscriber(transport, exchange="e", queue="q")

    @sub.on("#")
    async def handle(message: int) -> None: ...

    with pytest.raises(UnsupportedError, match="no exchanges"):
        await sub.start()
    assert not sub.is_running


@pytest.mark.parametrize(
    ("queue", "options", "concurrency", "timeout"),
    [
        ("q", {}, 10, None),
        ("q", {"concurrency": 4, "timeout": 7}, 4, 7.0),
        (WorkQueue("q", concurrency=3, consumer_timeout=5), {}, 3, 5.0),
        (WorkQueue("q", concurrency=3, consumer_timeout=5), {"timeout": 7}, 3, 7.0),
        (None, {}, 10, None),
    ],
)
def test_a_subscriber_creates_its_queue_its_exchange_and_their_bindings(
    queue: Any, options: Any, concurrency: int, timeout: float | None
) -> None:
    exchange = Exchange("events", "topic")
    sub = Subscriber("memory://", exchange=exchange, queue=queue, **options)

    @sub.on("a.*", "b", timeout=2)
    async def first(data: int) -> None: ...

    @sub.on("b", idempotent="no")
    async def second(data: int) -> None: ...

    topology = sub.topology
    (made,) = topology.queues
    assert (made.name, made.concurrency) == (sub.queue, concurrency)
    assert made.expires == (300.0 if queue is None else None)
    assert sub.is_broadcast == (queue is None)
    assert topology.exchanges == (exchange,)
    assert sub.exchange is exchange
    assert [(one.exchange, one.queue, one.pattern) for one in topology.bindings] == [
        ("events", sub.queue, "a.*"),
        ("events", sub.queue, "b"),
    ]
    assert len(list(topology.dead_letter_names())) == (0 if queue is None else 1)
    routes = [(pattern, one.timeout, one.idempotent) for pattern, one in sub.bindings]
    assert routes == [("a.*", 2.0, "yes"), ("b", 2.0, "yes"), ("b", timeout, "no")]
    assert repr(sub) == f"Subscriber(exchange='events', queue={sub.queue!r})"
    if queue is None:
        other = Subscriber("memory://", exchange=exchange)
        assert other.queue != sub.queue
        assert other.queue.startswith("events.")
