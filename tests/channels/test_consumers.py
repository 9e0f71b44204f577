"""What one consumer says for itself: a function, its concurrency, its queue, its dead letters."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from tests.channels.conftest import Bench
from tests.channels.test_service import Order, dead_letters

from matador import KeyedMessage, WorkQueue
from matador.channels import (
    ConfigurationError,
    DeadLetterOptions,
    Deduplication,
    MessageContext,
    QueueService,
    RetrySettings,
    channel,
    consume,
)
from matador.errors import DontRetry
from matador.observe import JsonFormatter
from matador.testing import wait_for

NO_RETRY = RetrySettings(enabled=False)


class Gate:
    """Holds up consumers until it is opened, and counts how many wait in it."""

    def __init__(self) -> None:
        self.running = self.done = 0
        self.opened = asyncio.Event()

    async def pass_through(self) -> None:
        self.running += 1
        await self.opened.wait()
        self.running -= 1
        self.done += 1


class TestFunctions:
    async def test_a_function_is_a_consumer(self, bench: Bench) -> None:
        seen: list[tuple[str, str, str]] = []

        @consume("created", channel=bench.name())
        async def created(order: Order, ctx: MessageContext, service: QueueService) -> None:
            assert service.is_running
            seen.append((order.id, ctx.routing_key, ctx.exchange))

        async with bench.service(created) as service:
            await service.send(bench.name(), "created", Order("1"))
            await service.publish(bench.name(), "created", Order("2"))
            await wait_for(lambda: len(seen) == 2, timeout=60)
        assert sorted(seen) == [("1", "created", ""), ("2", "created", bench.name())]

    async def test_beside_a_class(self, on: Callable[[str], Bench]) -> None:
        bench, seen = on("memory"), list[str]()

        @consume("paid", channel=bench.name())
        def paid(order: Order) -> None:
            seen.append(f"paid {order.id}")

        @channel(bench.name())
        class Orders:
            @consume("created")
            async def created(self, order: Order) -> None:
                seen.append(f"created {order.id}")

        async with bench.service(paid, Orders) as service:
            await service.send(bench.name(), "created", Order("1"))
            await service.send(bench.name(), "paid", Order("1"))
            await wait_for(lambda: len(seen) == 2)
        assert sorted(seen) == ["created 1", "paid 1"]

    def test_it_says_its_channel(self, on: Callable[[str], Bench]) -> None:
        @consume("created")
        def created(order: Order) -> None: ...

        with pytest.raises(ConfigurationError, match=r"consume\('created', channel=…\)"):
            on("memory").service(created)

    def test_it_is_declared(self, on: Callable[[str], Bench]) -> None:
        def created(order: Order) -> None: ...

        with pytest.raises(ConfigurationError, match="created consumes nothing"):
            on("memory").service(created)

    def test_a_method_has_the_channel_of_its_class(self) -> None:
        with pytest.raises(ConfigurationError, match="leave out channel="):

            @channel("orders")
            class Orders:
                @consume("created", channel="others")
                async def created(self, order: Order) -> None: ...


class TestPublished:
    async def test_as_many_at_once_as_the_consumer_says(self, bench: Bench) -> None:
        gate = Gate()

        @consume("created", channel=bench.name(), concurrency=3)
        async def created(order: Order) -> None:
            await gate.pass_through()

        async with bench.service(created) as service:
            for number in range(5):
                await service.publish(bench.name(), "created", Order(str(number)))
            await wait_for(lambda: gate.running == 3, timeout=60)
            gate.opened.set()
            await wait_for(lambda: gate.done == 5, timeout=60)

    async def test_a_slow_consumer_holds_up_no_other_of_its_channel(self, bench: Bench) -> None:
        gate, seen = Gate(), list[str]()

        @channel(bench.name())
        class Orders:
            @consume("created")
            async def created(self, order: Order) -> None:
                await gate.pass_through()

            @consume("paid")
            async def paid(self, order: Order) -> None:
                seen.append(order.id)

        async with bench.service(Orders) as service:
            await service.publish(bench.name(), "created", Order("1"))
            await wait_for(lambda: gate.running, timeout=60)
            await service.publish(bench.name(), "paid", Order("2"))
            await wait_for(lambda: seen, timeout=60)
            gate.opened.set()

    async def test_one_at_a_time_is_one(self, bench: Bench) -> None:
        gate = Gate()

        @consume("created", channel=bench.name())
        async def created(order: Order) -> None:
            assert gate.running == 0
            await gate.pass_through()

        async with bench.service(created) as service:
            for number in range(3):
                await service.publish(bench.name(), "created", Order(str(number)))
            await wait_for(lambda: gate.running == 1, timeout=60)
            gate.opened.set()
            await wait_for(lambda: gate.done == 3, timeout=60)
            assert service.metrics().messages_failed == 0


class TestDeadLetters:
    async def test_each_consumer_says_whether_they_are_kept(self, bench: Bench) -> None:
        failed: list[str] = []

        @channel(bench.name())
        class Orders:
            @consume("created")
            async def created(self, order: Order) -> None:
                raise DontRetry("no")

            @consume("paid", dead_letters=False)
            async def paid(self, order: Order) -> None:
                failed.append(order.id)
                raise DontRetry("no")

        async with bench.service(Orders) as service:
            await service.send(bench.name(), "paid", Order("1"))
            await service.publish(bench.name(), "paid", Order("2"))
            await wait_for(lambda: service.metrics().messages_discarded == 2, timeout=60)
            await service.send(bench.name(), "created", Order("3"))
            await dead_letters(service, f"{bench.name()}.created", 1)
            assert service.metrics().messages_dead_lettered == 1
        assert sorted(failed) == ["1", "2"]

    async def test_a_function_processes_those_of_one_consumer(self, bench: Bench) -> None:
        letters: list[str] = []

        def process(order: Order) -> None:
            letters.append(order.id)

        @channel(bench.name())
        class Orders:
            @consume("created", dead_letters=DeadLetterOptions(handler=process))
            async def created(self, order: Order) -> None:
                raise DontRetry("no")

            @consume("paid")
            async def paid(self, order: Order) -> None:
                raise DontRetry("no")

        async with bench.service(Orders) as service:
            await service.send(bench.name(), "created", Order("1"))
            await service.publish(bench.name(), "created", Order("2"))
            await service.send(bench.name(), "paid", Order("3"))
            await wait_for(lambda: len(letters) == 2, timeout=60)
            (kept,) = await dead_letters(service, f"{bench.name()}.paid", 1)
        assert sorted(letters) == ["1", "2"]
        assert b'"3"' in kept.body

    async def test_their_number_may_be_limited(self, on: Callable[[str], Bench]) -> None:
        bench = on("sqlite")

        @consume("created", channel=bench.name(), dead_letters=DeadLetterOptions(max_length=2))
        async def created(order: Order) -> None:
            raise DontRetry("no")

        async with bench.service(created) as service:
            for number in range(4):
                await service.send(bench.name(), "created", Order(str(number)))
            await wait_for(lambda: service.metrics().messages_dead_lettered == 4)
            await service.wait_idle()
            found = await dead_letters(service, f"{bench.name()}.created", 2)
        assert [json.loads(one.body)["id"] for one in found] == ["2", "3"]

    def test_a_wrong_function_is_an_error_at_once(self, on: Callable[[str], Bench]) -> None:
        def wrong(order: Order, more: int, most: int) -> None: ...

        @consume("created", channel="orders", dead_letters=DeadLetterOptions(handler=wrong))
        async def created(order: Order) -> None: ...

        with pytest.raises(ConfigurationError, match="nothing fills the parameter"):
            on("memory").service(created)


class TestDuplicates:
    async def test_the_key_may_be_in_a_header(self, bench: Bench) -> None:
        seen, keyed = list[str](), list[KeyedMessage]()

        @consume("created", channel=bench.name())
        async def created(order: Order) -> None:
            seen.append(order.id)

        def key(message: KeyedMessage) -> str:
            keyed.append(message)
            return message.headers["x-request"]

        service = QueueService(
            bench.settings(), channels=[created], deduplication=Deduplication(key=key)
        )
        async with service:
            for id_, request in (("1", "a"), ("2", "a"), ("3", "b")):
                await service.send(
                    bench.name(), "created", Order(id_), headers={"x-request": request}
                )
            await wait_for(lambda: service.metrics().messages_succeeded == 3, timeout=60)
        assert len(seen) == 2
        assert service.metrics().duplicates == 1
        first = min(keyed, key=lambda one: one.data["id"])
        assert (first.name, first.queue) == ("created", f"{bench.name()}.created")
        assert first.data == {"id": "1", "amount": 0}


class TestLogs:
    async def test_a_failure_names_its_consumer(
        self, on: Callable[[str], Bench], caplog: pytest.LogCaptureFixture
    ) -> None:
        bench = on("sqlite")

        @consume("created", channel=bench.name())
        async def takes_orders(order: Order) -> None:
            raise ValueError("no room")

        retry = RetrySettings(max_attempts=2, initial_delay=0)
        with caplog.at_level(logging.WARNING):
            async with (
                bench.service(takes_orders, retry=retry) as service,
                bench.service() as other,
            ):
                id_ = await service.send(bench.name(), "created", Order("1"))
                wrong = await other.send(bench.name(), "created", {"id": 2})
                await dead_letters(service, f"{bench.name()}.created", 2)
        lines = [
            json.loads(JsonFormatter().format(one))
            for one in caplog.records
            if one.name == "matador.worker"
        ]
        again, final = [one for one in lines if one.get("message_id") == id_]
        assert (again["level"], "traceback" in again) == ("WARNING", False)
        assert (final["level"], "ValueError: no room" in final["traceback"]) == ("ERROR", True)
        (unreadable,) = [one for one in lines if one.get("message_id") == wrong]
        assert unreadable["level"] == "ERROR"
        for one in (again, final, unreadable):
            assert one["consumer"].endswith("takes_orders")
            assert (one["queue"], one["transport"]) == (f"{bench.name()}.created", "sqlite")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queue": 3}, "queue must be a non-empty text or a WorkQueue"),
        ({"queue": WorkQueue("created", concurrency=2), "concurrency": 3}, "give one of them"),
        ({"dead_letters": DeadLetterOptions(), "channel": "a b"}, "the name must start"),
    ],
)
def test_mistakes(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        consume("created", **options)
