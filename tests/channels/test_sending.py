"""A queue service that sends: the messages as they travel, what it creates, and what it refuses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from matador import Hooks, WorkQueue
from matador.channels import (
    ConfigurationError,
    MessageContext,
    QueueError,
    QueueService,
    QueueSettings,
    RetrySettings,
    Settings,
    channel,
    consume,
)
from matador.channels.declare import Consumer, check_name, consumers_of
from matador.channels.settings import DeadLetterQueueSettings, ShutdownSettings
from matador.errors import InvalidMessageError, MatadorError, QueueNotFoundError, StorageFullError
from matador.model.message import Message, Properties
from matador.model.topology import Topology
from matador.policy.ack import DeadLetterOptions
from matador.runtime.facts import Sent
from matador.runtime.hooks import Sending
from matador.runtime.messages import ENCODING
from matador.testing import ManualClock, wait_for
from matador.transports import MemoryTransport


@dataclass(frozen=True)
class Order:
    id: str


class Noting(MemoryTransport):
    """Notes what is stored and created, and refuses what it is told to."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.sent: list[Message] = []
        self.published: list[tuple[str, Message]] = []
        self.applied: list[Topology] = []
        self.deleted: list[str] = []
        self.refuses: list[MatadorError] = []

    async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
        self.sent += messages
        if self.refuses:
            return [self.refuses.pop(0) for _ in messages]
        return await super().send(messages)

    async def publish(
        self, exchange: str, messages: Sequence[Message]
    ) -> Sequence[int | MatadorError]:
        self.published += [(exchange, one) for one in messages]
        return await super().publish(exchange, messages)

    async def apply_topology(self, topology: Topology) -> Any:
        self.applied.append(topology)
        return await super().apply_topology(topology)

    async def delete_queue(self, queue: str) -> None:
        self.deleted.append(queue)
        await super().delete_queue(queue)

    @property
    def created(self) -> list[str]:
        """The queues and exchanges that were created, in order."""
        return [
            one.name for topology in self.applied for one in (*topology.queues, *topology.exchanges)
        ]


class Told(Hooks):
    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.sending: list[Sending] = []

    def on_send_enter(self, event: Sending) -> None:
        self.sending.append(event)

    def on_sent(self, batch: Sequence[Sent]) -> None:
        self.sent += batch


def settings(**queue: Any) -> Settings:
    return Settings(QueueSettings(type="memory", url="memory://", **queue))


@asynccontextmanager
async def serving(
    *channels: object, compression: bool = False, transport: Noting | None = None, **options: Any
) -> AsyncGenerator[tuple[QueueService, Noting]]:
    transport = transport or Noting()
    given = settings(compression=compression)
    options = {"clock": ManualClock()} | options
    service = QueueService(given, channels=channels, transport=transport, **options)
    async with service:
        yield service, transport
    await transport.disconnect()


@consume("created", channel="orders")
async def created(order: Order) -> None: ...


async def test_a_message_travels_with_all_that_was_said_of_it() -> None:
    told = Told()
    async with serving(hooks=told) as (service, transport):
        sent = await service.send(
            "orders",
            "created",
            Order("1"),
            headers={"tenant": "t", "x-matador-a": 1, "x-death": "x", ENCODING: "br"},
            correlation_id="c-1",
            message_id="m-1",
            delay=timedelta(minutes=1),
            priority=4,
        )
        assert sent == "m-1"
        message = transport.sent[-1]
        assert (message.id, message.queue, message.body) == (
            *("m-1", "orders.created", b'{"id":"1"}'),
        )
        assert (message.headers, message.delay, message.priority) == ({"tenant": "t"}, 60.0, 4)
        assert message.properties == Properties(routing_key="created", correlation_id="c-1")
        (fact,) = told.sent
        assert (fact.way, fact.name, fact.receiver) == ("message", "created", "orders.created")
        assert (fact.id, fact.data, fact.correlation_id) == ("m-1", b'{"id":"1"}', "c-1")
        now = service._clock.time()
        assert (fact.created_at, fact.due_at) == (now, now + 60)

        first = await service.send("orders", "created", 1)
        plain = transport.sent[-1]
        assert (plain.id, plain.delay, plain.priority, plain.headers) == (first, 0.0, None, {})
        assert plain.properties == Properties(routing_key="created", correlation_id=first)
        assert told.sent[-1].due_at is None
        assert service.metrics().messages_sent == 2
        sending = told.sending[0]
        assert (sending.operation, sending.names, sending.receiver) == (
            *("send", ("created",), "orders.created"),
        )


async def test_a_compressed_message_says_so_and_hooks_see_what_it_was() -> None:
    told = Told()
    async with serving(compression=True, hooks=told) as (service, transport):
        await service.send("orders", "created", "x" * 1000, headers={"a": 1, ENCODING: "br"})
        message = transport.sent[-1]
        assert message.headers == {"a": 1, ENCODING: "gzip"}
        assert message.body[:2] == b"\x1f\x8b"
        assert len(message.body) < 100
        assert told.sent[0].data == b'"' + b"x" * 1000 + b'"'


async def test_what_is_published_goes_through_the_exchange_of_its_channel() -> None:
    told = Told()
    async with serving(hooks=told) as (service, transport):
        published = await service.publish(
            "orders",
            "created",
            1,
            headers={"a": 1},
            correlation_id="c-1",
            message_id="m-1",
            priority=4,
        )
        assert published == "m-1"
        ((exchange, message),) = transport.published
        assert (exchange, message.headers, message.priority) == ("orders", {"a": 1}, 4)
        assert message.properties == Properties(routing_key="created", correlation_id="c-1")
        assert (told.sent[0].receiver, told.sent[0].name) == ("orders", "created")
        sending = told.sending[0]
        assert (sending.operation, sending.names, sending.receiver) == (
            *("publish", ("created",), "orders"),
        )
        await service.publish("orders", "created", 2)
        assert transport.created == ["orders"], "it is made once"
        assert transport.sent == []


async def test_a_queue_of_another_service_is_made_only_if_it_is_missing() -> None:
    async with serving() as (service, transport):
        assert transport.created == []
        for number in range(2):
            await service.send("orders", "created", number)
        assert transport.created == ["orders.created"]
        assert [one.body for one in transport.sent] == [b"0", b"0", b"1"], "the first was refused"
        (topology,) = transport.applied
        assert topology.namespace == "channels"
        await transport.delete_queue("orders.created")
        await service.send("orders", "created", 3)
        assert transport.created == ["orders.created"] * 2
        assert (await transport.depth("orders.created")).ready == 1


async def test_an_operation_that_fails_says_which_and_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(created) as (service, transport):
        full = StorageFullError("no room")
        transport.refuses.append(full)
        with pytest.raises(QueueError) as caught:
            await service.send("orders", "created", Order("1"), message_id="m-1")
        error = caught.value
        assert str(error) == "memory: send to 'orders.created' failed: no room"
        assert (error.queue_type, error.operation) == ("memory", "send")
        assert (error.queue, error.message_id, error.__cause__) == ("orders.created", "m-1", full)
        assert "no room" in (service.health().last_error or "")
        (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
        assert record.message == str(error)
        assert record.__dict__["matador_operation"] == "send"
        assert record.__dict__["matador_message_id"] == "m-1"


@pytest.mark.parametrize("how", ["send", "publish"])
async def test_names_and_data_of_what_is_declared_here_are_checked(how: str) -> None:
    async with serving(created) as (service, transport):
        call = service.send if how == "send" else service.publish
        with pytest.raises(ConfigurationError, match=r"'creatd', only created.*did you"):
            await call("orders", "creatd", Order("1"))
        with pytest.raises(InvalidMessageError, match=r"the data of 'orders\.created'"):
            await call("orders", "created", {"id": 1})
        with pytest.raises(InvalidMessageError, match="written as JSON"):
            await call("orders", "created", object())
        for odd in ("", "a.b", "-a", "a b", None, 7):
            with pytest.raises(ConfigurationError, match=how):
                await call(odd, "created", 1)  # type: ignore[arg-type] - users
            with pytest.raises(ConfigurationError, match=how):
                await call("orders", odd, 1)  # type: ignore[arg-type] - users
        for odd_option in ({"priority": -1}, {"message_id": 7}, {"correlation_id": 7}):
            with pytest.raises(MatadorError):
                await call("orders", "created", Order("1"), **odd_option)  # type: ignore[arg-type] - users
        assert (transport.sent, transport.published) == ([], [])
        await call("bills", "anything", 1)
        with pytest.raises(MatadorError, match="delay"):
            await service.send("orders", "created", Order("1"), delay=-1)


# -- what a service with channels creates --------------------------------------------------------


async def test_a_service_creates_its_queues_and_its_own_for_what_is_published() -> None:
    seen: list[tuple[str, str]] = []

    @channel("orders")
    class Orders:
        @consume("created", queue=WorkQueue("created", retention=60))
        async def created(self, order: Order, ctx: MessageContext) -> None:
            seen.append((ctx.exchange, ctx.queue))

    async with serving(Orders, clock=ManualClock()) as (service, transport):
        first, second = transport.applied
        (own,) = first.queues
        assert (own.name, own.retention, own.expires) == ("orders.created", 60, None)
        (made,) = second.queues
        assert made.name.startswith("orders.created.")
        assert (made.expires, made.retention) == (60.0, None)
        (binding,) = second.bindings
        assert (binding.exchange, binding.queue, binding.pattern) == (
            *("orders", made.name, "created"),
        )
        assert list(second.dead_letter_names()) == []
        await service.send("orders", "created", Order("1"))
        await service.publish("orders", "created", Order("2"))
        await wait_for(lambda: len(seen) == 2)
        assert sorted(seen) == [("", "orders.created"), ("orders", made.name)]
        assert repr(service) == "QueueService('memory', consumers=1)"
        topology = service.topology
        assert topology is not None
        assert [one.name for one in topology.queues] == ["orders.created"]
        assert [one.name for one in topology.exchanges] == ["orders"]
        await service.publish("orders", "created", Order("3"))
        await service.send("orders", "created", Order("4"))
        await wait_for(lambda: len(seen) == 4)
        assert transport.created[3:] == ["orders"], "its first publish looks at the exchange"
    assert transport.deleted == [made.name]


async def test_settings_are_those_of_its_consumers() -> None:
    given = Settings(
        QueueSettings(type="memory", url="memory://", prefetch=3, batch_size=5),
        RetrySettings(max_attempts=4, initial_delay=0.5, backoff_multiplier=3),
        DeadLetterQueueSettings(enabled=False),
        ShutdownSettings(timeout=7),
    )

    @channel("orders")
    class Orders:
        @consume("one")
        async def one(self, order: Order) -> None: ...

        @consume("own", concurrency=9, dead_letters=True, timeout=4)
        async def own(self, order: Order) -> None: ...

        @consume("many")
        async def many(self, orders: list[Order]) -> None: ...

        @consume("few", batch_size=2, concurrency=2)
        async def few(self, orders: list[Order]) -> None: ...

        @consume("queued", queue=WorkQueue("queued", consumer_timeout=8, concurrency=6))
        async def queued(self, order: Order) -> None: ...

    service = QueueService(given, channels=[Orders])
    routes = service._routes
    slots = {name.partition(".")[2]: one.slots for name, one in routes.items()}
    assert slots == {"one": 3, "own": 9, "many": 15, "few": 4, "queued": 6}
    assert (routes["orders.own"].timeout, routes["orders.queued"].timeout) == (4.0, 8.0)
    assert (routes["orders.many"].batch_size, routes["orders.one"].batch_size) == (5, None)
    assert not service._letters_of("orders.one").enabled
    assert service._letters_of("orders.own").enabled
    assert [service._policy.max_deliveries, service._policy.max_attempts] == [5, 4]  # type: ignore[attr-defined] - of this policy
    assert service._shutdown_options.timeout == 7
    assert [service._reads_ahead(name) for name in ("orders.one", "orders.many")] == [True, False]
    more = QueueService(given, channels=[Orders], concurrency=2, shutdown=1)
    assert more._routes["orders.one"].slots == 2
    assert more._routes["orders.own"].slots == 9
    assert more._shutdown_options.timeout == 1
    never = Settings(given.queue, RetrySettings(enabled=False))
    assert QueueService(never)._policy.max_deliveries


# -- declarations --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": 0}, "concurrency must be at least 1"),
        ({"concurrency": 65_536}, "concurrency must be at most 65535"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"batch_size": 65_536}, "batch_size must be at most 65535"),
        ({"timeout": 0}, "timeout"),
        ({"idempotent": "maybe"}, "idempotent"),
        ({"channel": "a.b"}, "channel: the name must start"),
        ({"queue": WorkQueue("paid")}, "got the name 'paid'"),
        ({"queue": WorkQueue("created", concurrency=3), "concurrency": 4}, "give one of them"),
        ({"tiemout": 1}, "unknown option 'tiemout'"),
    ],
)
def test_options_of_a_consumer_are_checked_when_it_is_declared(options: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        consume("created", **options)


def test_limits_of_options_are_allowed() -> None:
    consume("created", concurrency=65_535, batch_size=65_535, timeout=0.001)
    for name in ("a", "0", "A-b_c", "9-"):
        assert check_name(name, "here") == name
    for name in ("", "-a", "_a", "a.b", "a b", "é", None, 7, "a\n"):
        with pytest.raises(ConfigurationError, match="here: the name must start"):
            check_name(name, "here")


def test_a_consumer_says_what_was_declared() -> None:
    @consume("a", channel="one", concurrency=3, batch_size=4, dead_letters=False, timeout=5)
    @consume("b", channel="two")
    async def both(orders: list[Order]) -> None: ...

    second, first = consumers_of(both)
    assert first == Consumer(
        "a",
        3,
        {"timeout": 5},
        "one",
        both,
        batch_size=4,
        dead_letters=DeadLetterOptions(False),
    )
    assert (first.queue, second.queue) == ("one.a", "two.b")
    assert (second.concurrency, second.batch_size, second.dead_letters) == (None, None, None)


async def test_a_service_that_failed_to_connect_says_so() -> None:
    class Refusing(Noting):
        async def connect(self) -> None:
            raise QueueNotFoundError("nobody is there")

    service = QueueService(settings(), transport=Refusing())
    with pytest.raises(QueueError, match="memory: connect failed: nobody is there") as caught:
        await service.start()
    assert (caught.value.operation, caught.value.queue) == ("connect", None)
    assert not service.is_running


async def test_dead_letters_that_are_gone_are_made_again_once() -> None:
    async def fail(order: Order) -> None:
        raise ValueError("never")

    failing = consume("failed", channel="orders")(fail)
    retry = RetrySettings(enabled=False)
    given = Settings(QueueSettings(type="memory", url="memory://"), retry)
    transport = Noting()
    async with QueueService(given, channels=[failing], transport=transport) as service:
        before = len(transport.applied)
        await transport.delete_queue("orders.failed.dlq")
        await service.send("orders", "failed", Order("1"))
        await wait_for(lambda: service.metrics().messages_dead_lettered == 1)

        async def kept() -> bool:
            try:
                return (await transport.depth("orders.failed.dlq")).ready == 1
            except QueueNotFoundError:
                return False

        await wait_for(kept)
        assert [one.name for one in transport.applied[before].queues] == ["orders.failed"]
        await asyncio.gather(*service._remaking.values())
        assert service._remaking == {}
    await transport.disconnect()
