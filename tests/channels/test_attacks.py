"""Channels under attack: what others delete, what others write, and what consumers raise."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.channels.conftest import Bench
from tests.channels.test_service import Log, Order, dead_letters

from matador.channels import (
    ConfigurationError,
    Deduplication,
    MessageContext,
    QueueService,
    QueueSettings,
    RetrySettings,
    Settings,
    channel,
    consume,
)
from matador.errors import InvalidMessageError, QueueNotFoundError
from matador.model.message import Message, Properties
from matador.observe import Journal
from matador.testing import wait_for
from matador.transports.base import Measuring, Routing


async def test_the_same_id_in_two_queues_is_no_duplicate(bench: Bench) -> None:
    got: list[str] = []

    @channel(bench.name())
    class Orders:
        @consume("created")
        async def created(self, order: Order) -> None:
            got.append("created")

        @consume("paid")
        async def paid(self, order: Order) -> None:
            got.append("paid")

    service = QueueService(bench.settings(), channels=[Orders], deduplication=Deduplication())
    async with service:
        await service.send(bench.name(), "created", Order("1"), message_id="order-1")
        await service.send(bench.name(), "paid", Order("1"), message_id="order-1")
        await wait_for(lambda: service.metrics().messages_received == 2)
        await wait_for(lambda: sorted(got) == ["created", "paid"])
    assert service.metrics().duplicates == 0


async def test_a_queue_that_somebody_deleted_is_made_again(bench: Bench) -> None:
    queue = f"{bench.name()}.created"
    async with bench.service() as service, bench.service() as other:
        await service.send(bench.name(), "created", Order("1"))
        transport = other._broker.transport
        assert isinstance(transport, Routing)
        await transport.delete_queue(queue)
        await service.send(bench.name(), "created", Order("2"))
    log = Log(bench.name())
    async with bench.service(log.channel):
        await wait_for(lambda: log.ids == ["2"])


@pytest.mark.parametrize(
    "kind",
    [
        "memory",
        "sqlite",
        pytest.param("rabbitmq", marks=pytest.mark.broker),
        pytest.param("redis", marks=pytest.mark.broker),
    ],
)
async def test_dead_letters_that_somebody_deleted_are_made_again(
    on: Callable[[str], Bench], kind: str
) -> None:
    """Otherwise the settlements that need them are tried for ever, and hold up the consumer."""
    bench = on(kind)

    def fail(order: Order, ctx: MessageContext) -> None:
        if order.id == "bad":
            raise ValueError("never")

    log, queue = Log(bench.name(), fail), f"{bench.name()}.created"
    once = RetrySettings(enabled=False)
    async with bench.service(log.channel, retry=once) as service, bench.service() as other:
        transport = other._broker.transport
        assert isinstance(transport, Routing)
        assert isinstance(transport, Measuring)
        for _ in range(2):
            await transport.delete_queue(f"{queue}.dlq")
            for _ in range(5):  # more than a consumer may hold
                await service.send(bench.name(), "created", Order("bad"))
            assert await transport.send([Message("m", queue, b"{")]) == [None]
            await service.send(bench.name(), "created", Order("good"))

            async def are_kept() -> bool:
                try:
                    return (await transport.depth(f"{queue}.dlq")).ready == 6
                except QueueNotFoundError:
                    return False

            await wait_for(are_kept)
        await wait_for(lambda: log.ids.count("good") == 2)


async def test_a_published_message_that_fails_is_kept_after_its_service(bench: Bench) -> None:
    """It is kept with what was sent to the consumer, malformed ones included."""

    def fail(order: Order, ctx: MessageContext) -> None:
        if order.id == "bad":
            raise ValueError("never")

    log = Log(bench.name(), fail)
    async with bench.service(log.channel) as service:
        (queue,) = service._broadcasts
        await service.publish(bench.name(), "created", Order("bad"))
        await wait_for(lambda: service.metrics().messages_failed == 3)
        await service.publish(bench.name(), "created", Order("good"))
        await wait_for(lambda: "good" in log.ids)
        odd = Message("odd", "", b"{", properties=Properties(routing_key="created"))
        transport = service._broker.transport
        assert isinstance(transport, Routing)
        assert await transport.publish(bench.name(), [odd]) == [1]
        await wait_for(lambda: service.metrics().messages_dead_lettered == 2)
        with pytest.raises(Exception, match="no queue"):
            await transport.subscribe(f"{queue}.dlq", prefetch=1)
    consumer = f"{bench.name()}.created"
    async with bench.service() as service:
        letters = await dead_letters(service, consumer, 2)
    assert sorted(one.body for one in letters) == [b"{", b'{"id":"bad","amount":0}']
    assert {one.headers["x-matador-original-queue"] for one in letters} == {consumer}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("concurrency", 0),
        ("concurrency", -1),
        ("concurrency", "3"),
        ("concurrency", True),
        ("timeout", 0),
        ("timeout", -1.0),
        ("timeout", "5"),
        ("timeout", float("nan")),
    ],
)
def test_options_of_a_consumer_are_checked(option: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"consume\('created'\): {option} must be"):
        consume("created", **{option: value})


def test_a_timeout_may_be_a_timedelta() -> None:
    @channel("orders")
    class Orders:
        @consume("created", timeout=timedelta(milliseconds=50))
        async def created(self, order: Order) -> None: ...

    settings = Settings(QueueSettings(type="memory", url="memory://"))
    (route,) = QueueService(settings, channels=[Orders])._routes.values()
    assert route.timeout == 0.05


BOMB = gzip.compress(b'{"id": "' + b"0" * 20_000_000 + b'"}')

ODD: list[Callable[[str, str], Message]] = [
    lambda q, i: Message(i, q, b""),
    lambda q, i: Message(i, q, b"\0" * 10),
    lambda q, i: Message(i, q, b"[" * 100_000),
    lambda q, i: Message(i, q, b'{"id":' * 100_000),
    lambda q, i: Message(i, q, BOMB, {"content-encoding": "gzip"}),
    lambda q, i: Message(i, q, b'{"id": "x"}', {"content-encoding": "br"}),
    lambda q, i: Message(i, q, b'{"id": "x"}', {"content-encoding": 7}),
    lambda q, i: Message(i, q, b'{"id": "x"}', {"content-encoding": ""}),
    lambda q, i: Message(i, q, b'{"id": 1}', {"x-retry-count": 2**63 - 1}),
]


async def test_foreign_messages_and_their_neighbours(bench: Bench) -> None:
    log = Log(bench.name())
    queue = f"{bench.name()}.created"
    async with bench.service(log.channel, prefetch=3) as service:
        transport = service._broker.transport
        for place, make in enumerate(ODD):
            assert await transport.send([make(queue, f"odd-{place}")]) == [None]
            await service.send(bench.name(), "created", Order(f"good-{place}"))
        await dead_letters(service, queue, len(ODD))
        await wait_for(lambda: len(log.ids) == len(ODD))
        assert service.metrics().messages_dead_lettered == len(ODD)
    assert sorted(log.ids) == sorted(f"good-{place}" for place in range(len(ODD)))


class _Nameless(type):
    def __getattribute__(cls, name: str) -> Any:
        if name == "__name__":
            raise RuntimeError("it has no name")
        return super().__getattribute__(name)


class NamelessError(Exception, metaclass=_Nameless):
    """Too odd for whatever writes down the names of errors."""


async def test_an_error_that_cannot_be_recorded_ends_no_consumer(
    on: Callable[[str], Bench], tmp_path: Path
) -> None:
    bench = on("memory")

    def fail(order: Order, ctx: MessageContext) -> None:
        if order.id == "bad":
            raise NamelessError

    log, queue = Log(bench.name(), fail), f"{bench.name()}.created"
    service = QueueService(
        bench.settings(), channels=[log.channel], hooks=[Journal(tmp_path / "journal")]
    )
    async with service:
        await service.send(bench.name(), "created", Order("bad"))
        await service.send(bench.name(), "created", Order("good"))
        (letter,) = await dead_letters(service, queue, 1)
        await wait_for(lambda: "good" in log.ids)
    assert letter.body == b'{"id":"bad","amount":0}'


async def test_the_headers_of_a_message_may_be_passed_on(bench: Bench) -> None:
    """What says that it was compressed, and how often it has failed, is not true of the next."""
    got: list[MessageContext] = []

    @channel(bench.name())
    class Chain:
        @consume("first")
        async def first(self, order: Order, ctx: MessageContext, service: QueueService) -> None:
            if ctx.attempts < 3:
                raise ValueError("not yet")
            await service.send(bench.name(), "second", order, headers=ctx.headers)

        @consume("second")
        async def second(self, order: Order, ctx: MessageContext) -> None:
            got.append(ctx)

    async with bench.service(compression=True) as sender, bench.service(Chain):
        await sender.send(bench.name(), "first", Order("1"), headers={"tenant": "acme"})
        await wait_for(lambda: got)
    (context,) = got
    assert (context.attempts, context.first_failure) == (1, None)
    assert dict(context.headers) == {"tenant": "acme"}


ODD_PARTS: list[dict[str, Any]] = [
    {"message_id": 5},
    {"message_id": b"bytes"},
    {"correlation_id": 5},
    {"headers": {"a": object()}},
    {"headers": {5: "name"}},
]


@pytest.mark.parametrize("part", ODD_PARTS, ids=lambda part: str(part)[:30])
async def test_a_send_with_an_odd_part_fails_alone(bench: Bench, part: dict[str, Any]) -> None:
    log = Log(bench.name())
    async with bench.service(log.channel) as service:
        good, odd, last = await asyncio.gather(
            service.send(bench.name(), "created", Order("good")),
            service.send(bench.name(), "created", Order("odd"), **part),
            service.send(bench.name(), "created", Order("last")),
            return_exceptions=True,
        )
        await wait_for(lambda: {"good", "last"} <= {*log.ids})
    assert isinstance(odd, InvalidMessageError)
    assert isinstance(good, str)
    assert isinstance(last, str)
