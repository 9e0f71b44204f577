"""Channels under attack: what others delete, what others write, and what consumers raise."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.channels.conftest import Bench
from tests.channels.test_service import Log, Order, dead_letters

from matador.channels import (
    ConfigurationError,
    Deduplicator,
    MessageContext,
    QueueService,
    RetrySettings,
    channel,
    consume,
)
from matador.model.message import Message, Properties
from matador.testing import wait_for
from matador.transports.base import Routing


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

    service = QueueService(bench.settings(), channels=[Orders], deduplicator=Deduplicator())
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
        transport = other._connection.transport
        assert isinstance(transport, Routing)
        await transport.delete_queue(queue)
        await service.send(bench.name(), "created", Order("2"))
    log = Log(bench.name())
    async with bench.service(log.channel):
        await wait_for(lambda: log.ids == ["2"])


async def test_a_published_message_that_fails_leaves_nothing_behind(bench: Bench) -> None:
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
        assert service.metrics().messages_dead_lettered == 0, "it was deleted"
        with pytest.raises(Exception, match="no queue"):
            await service._connection.transport.subscribe(f"{queue}.dlq", prefetch=1)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("prefetch", 0),
        ("prefetch", -1),
        ("prefetch", "3"),
        ("prefetch", True),
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

    (declared,) = Orders.created.__matador_consumes__  # type: ignore[attr-defined] - of the decorator
    assert declared.timeout == 0.05


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
        transport = service._connection.transport
        for place, make in enumerate(ODD):
            assert await transport.send([make(queue, f"odd-{place}")]) == [None]
            await service.send(bench.name(), "created", Order(f"good-{place}"))
        await dead_letters(service, queue, len(ODD))
        await wait_for(lambda: len(log.ids) == len(ODD))
        assert service.metrics().messages_dead_lettered == len(ODD)
    assert sorted(log.ids) == sorted(f"good-{place}" for place in range(len(ODD)))


HEADERS: list[dict[str, str | int]] = [
    {"x-retry-count": 2**63 - 1},
    {"x-retry-count": -1},
    {"x-retry-count": "many"},
    {"x-retry-count": "9" * 5000},
    {"x-first-failure": 2**63 - 1},
    {"x-first-failure": -(2**63)},
    {"x-first-failure": "yesterday"},
    {"x-matador-last-error": "e" * 5000},
]


@pytest.mark.parametrize("headers", HEADERS, ids=lambda one: str(one)[:30])
async def test_odd_headers_end_in_a_dead_letter(bench: Bench, headers: dict[str, Any]) -> None:
    def fail(order: Order, ctx: MessageContext) -> None:
        _ = (ctx.first_failure, ctx.deadline)
        if order.id == "bad":
            raise ValueError("never")

    log = Log(bench.name(), fail)
    queue = f"{bench.name()}.created"
    async with bench.service(log.channel, retry=RetrySettings(initial_delay=0)) as service:
        odd = Message("odd", queue, b'{"id": "bad"}', headers, properties=Properties("k" * 255))
        assert await service._connection.transport.send([odd]) == [None]
        await service.send(bench.name(), "created", Order("good"))
        (letter,) = await dead_letters(service, queue, 1)
        await wait_for(lambda: "good" in log.ids)
    assert letter.body == b'{"id": "bad"}'
    assert 1 <= log.ids.count("bad") <= 3


@pytest.mark.parametrize(
    "error", [StopIteration(), GeneratorExit(), asyncio.CancelledError(), StopAsyncIteration()]
)
@pytest.mark.parametrize("how", ["async", "sync"])
async def test_odd_exceptions(on: Callable[[str], Bench], error: BaseException, how: str) -> None:
    bench = on("memory")
    seen: list[str] = []

    def work(order: Order) -> None:
        seen.append(order.id)
        if order.id == "bad":
            raise error

    @channel(bench.name())
    class Sync:
        @consume("created")
        def created(self, order: Order) -> None:
            work(order)

    @channel(bench.name())
    class Async:
        @consume("created")
        async def created(self, order: Order) -> None:
            await asyncio.sleep(0)
            work(order)

    async with bench.service(Sync if how == "sync" else Async) as service:
        await service.send(bench.name(), "created", Order("bad"))
        await service.send(bench.name(), "created", Order("good"))
        await wait_for(lambda: service.metrics().messages_dead_lettered == 1 and "good" in seen)
    assert seen.count("bad") == 3
