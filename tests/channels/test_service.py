"""A queue service on every broker: to one consumer, to all, retries, dead letters, shutdown."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.channels.conftest import Bench
from tests.support.ports import free_ports

from matador.channels import (
    Envelope,
    MessageContext,
    QueueError,
    QueueService,
    QueueSettings,
    RetrySettings,
    Settings,
    channel,
    consume,
)
from matador.errors import (
    InvalidMessageError,
    NotStartedError,
    ShuttingDownError,
    UnstorableError,
    UnsupportedError,
)
from matador.model.message import REASON_HEADER, Complete
from matador.testing import wait_for
from matador.transports.base import Browsing, Transport
from matador.transports.redis import RedisListTransport, pubsub


@dataclass(frozen=True)
class Order:
    id: str
    amount: int = 0


class Log:
    """A channel whose consumer writes down what it gets, and may fail."""

    def __init__(self, name: str, fail: Callable[[Order, MessageContext], Any] | None = None):
        self.seen: list[tuple[str, int]] = []
        self.contexts: list[MessageContext] = []
        log = self

        @channel(name)
        class Orders:
            @consume("created")
            async def created(self, order: Order, ctx: MessageContext) -> None:
                log.seen.append((order.id, ctx.attempts))
                log.contexts.append(ctx)
                if fail is not None:
                    result = fail(order, ctx)
                    if asyncio.iscoroutine(result):
                        await result

        self.channel = Orders

    @property
    def ids(self) -> list[str]:
        return [one for one, _ in self.seen]


async def dead_letters(service: QueueService, queue: str, count: int) -> list[Any]:
    """So many dead letters, once they are stored."""
    transport = service._broker.transport
    assert isinstance(transport, Browsing)
    found: list[Any] = []

    async def are_there() -> bool:
        found[:] = [one async for one in transport.browse(f"{queue}.dlq")]
        return len(found) >= count

    await wait_for(are_there)
    return found


class TestToOneConsumer:
    async def test_a_message_reaches_one_of_the_services(self, bench: Bench) -> None:
        first, second = Log(bench.name()), Log(bench.name())
        async with bench.service(first.channel) as one, bench.service(second.channel):
            ids = [str(number) for number in range(20)]
            for id_ in ids:
                await one.send(bench.name(), "created", Order(id_))
            await wait_for(lambda: len(first.seen) + len(second.seen) >= 20)
        assert sorted(first.ids + second.ids, key=int) == ids

    async def test_a_sender_that_consumes_nothing_may_come_first(self, bench: Bench) -> None:
        async with bench.service() as sender:
            sent = await sender.send(bench.name(), "created", Order("1"), correlation_id="c-1")
        log = Log(bench.name())
        async with bench.service(log.channel):
            await wait_for(lambda: log.seen)
        (context,) = log.contexts
        assert log.seen == [("1", 1)]
        assert (context.message_id, context.correlation_id) == (sent, "c-1")

    async def test_headers_arrive(self, bench: Bench) -> None:
        log = Log(bench.name())
        async with bench.service(log.channel) as service:
            await service.send(bench.name(), "created", Order("1"), headers={"tenant": "acme"})
            await wait_for(lambda: log.contexts)
        assert log.contexts[0].headers["tenant"] == "acme"

    async def test_a_delay_is_kept(self, bench: Bench) -> None:
        log = Log(bench.name())
        async with bench.service(log.channel, prefetch=1) as service:
            await service.send(bench.name(), "created", Order("late"), delay=0.3)
            await service.send(bench.name(), "created", Order("soon"))
            await wait_for(lambda: len(log.seen) == 2)
        assert log.ids == ["soon", "late"]


class TestToAll:
    async def test_every_running_service_gets_a_published_message(self, bench: Bench) -> None:
        first, second = Log(bench.name()), Log(bench.name())
        async with bench.service(first.channel) as one, bench.service(second.channel):
            await one.publish(bench.name(), "created", Order("1"))
            await wait_for(lambda: first.seen and second.seen)
        assert first.ids == second.ids == ["1"]
        assert first.contexts[0].routing_key == "created"

    async def test_a_consumer_may_have_the_name_of_its_channel(self, bench: Bench) -> None:
        name = bench.name()
        seen: list[tuple[str, str]] = []

        @channel(name)
        class Same:
            @consume(name)
            async def handle(self, order: Order, ctx: MessageContext) -> None:
                seen.append((order.id, ctx.routing_key))

        async with bench.service(Same) as service:
            await service.publish(name, name, Order("1"))
            await service.send(name, name, Order("2"))
            await wait_for(lambda: len(seen) == 2)
            assert service.metrics().messages_failed == 0
        assert sorted(seen) == [("1", name), ("2", name)]

    async def test_nobody_listens(self, bench: Bench) -> None:
        async with bench.service() as service:
            await service.publish(bench.name(), "created", Order("1"))
            assert service.metrics().messages_sent == 1

    async def test_what_was_published_before_is_not_delivered(self, bench: Bench) -> None:
        log = Log(bench.name())
        async with bench.service() as service:
            await service.publish(bench.name(), "created", Order("early"))
            async with bench.service(log.channel):
                await service.publish(bench.name(), "created", Order("later"))
                await wait_for(lambda: log.seen)
        assert log.ids == ["later"]

    async def test_the_queue_of_a_service_goes_with_it(self, bench: Bench) -> None:
        log = Log(bench.name())
        service = bench.service(log.channel)
        async with bench.service() as other:
            await service.start()
            (queue,) = service._broadcasts
            await service.shutdown()
            transport = other._broker.transport
            with pytest.raises(Exception, match="no queue"):
                await transport.subscribe(queue, prefetch=1)


class TestParameters:
    async def test_parameters_are_filled_by_type(self, bench: Bench) -> None:
        got: list[Any] = []

        @channel(bench.name())
        class Orders:
            @consume("created")
            def created(
                self,
                ctx: MessageContext,
                envelope: Envelope[Order],
                connection: Transport,
                service: QueueService,
            ) -> None:
                got.append((ctx, envelope, connection, service))

        async with bench.service(Orders) as service:
            sent = await service.send(bench.name(), "created", Order("1", 5))
            await wait_for(lambda: got)
            transport = service._broker.transport
        ctx, envelope, connection, same = got[0]
        assert envelope.data == Order("1", 5)
        assert envelope.id == ctx.message_id == sent
        assert envelope.docket.event_key == f"{bench.name()}.created"
        assert (connection, same) == (transport, service)

    async def test_plain_data_without_a_type(self, on: Callable[[str], Bench]) -> None:
        """Scenario: API compatibility: new types are optional."""
        got: list[Any] = []
        bench = on("memory")

        @channel(bench.name())
        class Plain:
            @consume("created")
            async def created(self, order: Any, ctx: Any) -> None:
                got.append((order, ctx.attempts))

        async with bench.service(Plain) as service:
            await service.send(bench.name(), "created", {"id": 1})
            await wait_for(lambda: got)
        assert got == [({"id": 1}, 1)]

    async def test_a_consumer_may_have_a_concurrency_of_its_own(
        self, on: Callable[[str], Bench]
    ) -> None:
        bench, running, go_on = on("memory"), Counter[str](), asyncio.Event()

        @channel(bench.name())
        class Orders:
            @consume("many", concurrency=3)
            async def many(self, order: Order) -> None:
                running["many"] += 1
                await go_on.wait()

            @consume("one")
            async def one(self, order: Order) -> None:
                running["one"] += 1
                await go_on.wait()

        async with bench.service(Orders) as service:
            for n in range(5):
                await service.send(bench.name(), "many", Order(str(n)))
                await service.send(bench.name(), "one", Order(str(n)))
            await wait_for(lambda: running == {"many": 3, "one": 1})
            assert service.metrics().messages_received == 4
            go_on.set()
            await wait_for(lambda: running == {"many": 5, "one": 5})


class TestFailures:
    async def test_a_consumer_that_takes_too_long_has_failed(
        self, on: Callable[[str], Bench]
    ) -> None:
        bench, started = on("memory"), list[str]()

        @channel(bench.name())
        class Slow:
            @consume("created", timeout=0.05)
            async def created(self, order: Order) -> None:
                started.append(order.id)
                await asyncio.Event().wait()

        retry = RetrySettings(enabled=False)
        async with bench.service(Slow, retry=retry) as service:
            await service.send(bench.name(), "created", Order("1"))
            await wait_for(lambda: service.metrics().messages_dead_lettered == 1)
            assert "TimeoutError" in (service.health_check().last_error or "")
        assert started == ["1"]


class TestSettingsAtWork:
    async def test_compressed_messages(self, bench: Bench) -> None:
        """Scenario: message compression."""
        log = Log(bench.name())
        queue = f"{bench.name()}.created"
        order = Order("x" * 1000)

        def fail(given: Order, ctx: MessageContext) -> None:
            if given != order or ctx.attempts == 1:
                raise ValueError("once")

        log = Log(bench.name(), fail)
        async with bench.service(log.channel, compression=True) as service:
            await service.send(bench.name(), "created", order)
            await wait_for(lambda: len(log.seen) == 2)
            await service.publish(bench.name(), "created", order)
            await wait_for(lambda: len(log.seen) == 4)
        assert set(log.ids) == {order.id}
        if bench.kind == "kafka":
            return  # a work queue cannot be browsed there
        async with bench.service(compression=True) as sender:
            await sender.send(bench.name(), "created", order)
            transport = sender._broker.transport
            assert isinstance(transport, Browsing)
            (stored,) = [one async for one in transport.browse(queue)]
        assert len(stored.body) < 100
        assert set(log.ids) == {order.id}

    async def test_a_service_without_compression_reads_compressed_messages(
        self, on: Callable[[str], Bench]
    ) -> None:
        bench = on("memory")
        log = Log(bench.name())
        async with bench.service(log.channel), bench.service(compression=True) as sender:
            await sender.send(bench.name(), "created", Order("1"))
            await wait_for(lambda: log.seen)


class TestLife:
    async def test_nothing_can_be_sent_before_the_start_or_after_the_end(
        self, on: Callable[[str], Bench]
    ) -> None:
        service = on("memory").service()
        with pytest.raises(NotStartedError, match="async with"):
            await service.send("orders", "created", {})
        async with service:
            await service.send("orders", "created", {})
        with pytest.raises(ShuttingDownError):
            await service.publish("orders", "created", {})


class TestErrors:
    async def test_an_operation_that_fails_raises_a_queue_error(
        self, on: Callable[[str], Bench], caplog: pytest.LogCaptureFixture
    ) -> None:
        """Scenarios: custom QueueError class; structured error logging."""
        async with on("sqlite").service() as service:
            with pytest.raises(QueueError) as caught:
                await service.send("orders", "created", {}, headers={"odd": "half \ud800"})
        error = caught.value
        assert (error.queue_type, error.operation) == ("sqlite", "send")
        assert (error.queue, error.message_id is not None) == ("orders.created", True)
        assert isinstance(error.__cause__, UnstorableError)
        (record,) = [one for one in caplog.records if one.name == "matador.channels"][-1:]
        assert record.levelname == "ERROR"
        assert record.__dict__["matador_queue"] == "orders.created"

    async def test_a_server_that_is_not_there(self) -> None:
        url = f"amqp://ada:s3cret@127.0.0.1:{free_ports()}"
        service = QueueService(Settings(QueueSettings(type="rabbitmq", url=url)))
        with pytest.raises(QueueError, match="rabbitmq: connect failed") as caught:
            await service.start()
        assert caught.value.operation == "connect"
        assert "s3cret" not in str(caught.value)
        assert service.health_check().status == "unhealthy"
        assert service.health_check().last_error is not None

    async def test_data_that_cannot_be_written(self, on: Callable[[str], Bench]) -> None:
        async with on("memory").service() as service:
            with pytest.raises(InvalidMessageError, match=r"'orders\.created'"):
                await service.send("orders", "created", object())

    @pytest.mark.broker
    async def test_redis_lists_cannot_publish(self, on: Callable[[str], Bench]) -> None:
        """Scenario: Redis list mode for point-to-point."""
        bench = on("redis")
        log = Log(bench.name())
        async with bench.service(log.channel, mode="list") as service:
            await service.send(bench.name(), "created", Order("1"))
            await wait_for(lambda: log.seen)
            with pytest.raises(QueueError, match='mode = "stream"') as caught:
                await service.publish(bench.name(), "created", Order("2"))
            assert isinstance(caught.value.__cause__, UnsupportedError)
        assert log.ids == ["1"]

    @pytest.mark.broker
    async def test_redis_pubsub_keeps_delays_and_dead_letters(
        self, on: Callable[[str], Bench]
    ) -> None:
        bench = on("redis")
        name = bench.name()
        times: list[float] = []

        @channel(name)
        class Fails:
            @consume("created")
            async def created(self, order: Order) -> None:
                times.append(time.monotonic())
                raise ValueError("always")

        retry = RetrySettings(max_attempts=3, initial_delay=0.1)
        async with bench.service(Fails, mode="pubsub", retry=retry) as service:
            await service.publish(name, "created", Order("1"))
            await wait_for(lambda: service.metrics().messages_dead_lettered == 1)
            assert service.metrics().messages_discarded == 0
        first, second, third = times
        assert second - first >= 0.09
        assert third - second >= 0.19
        lists = RedisListTransport(bench.queue().url or "")
        await lists.connect()
        letters = await lists.subscribe(f"{name}.created.dlq", prefetch=1)
        async with asyncio.timeout(60):
            (letter,) = await letters.receive(1)
        assert letter.body == b'{"id":"1","amount":0}'
        assert letter.headers[REASON_HEADER] == "max attempts exceeded (3)"
        await lists.settle([Complete(letter.receipt)])
        await lists.disconnect()

    @pytest.mark.broker
    async def test_what_redis_pubsub_drops_is_counted(
        self, on: Callable[[str], Bench], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Messages that come faster than they are handled, and retries that wait at the end."""
        monkeypatch.setattr(pubsub, "_MOST", 3)
        bench, gate = on("redis"), asyncio.Event()
        begun: list[str] = []

        @channel(bench.name())
        class Slow:
            @consume("created")
            async def created(self, order: Order) -> None:
                begun.append(order.id)
                await gate.wait()
                raise ValueError("later")

        retry = RetrySettings(max_attempts=3, initial_delay=600)
        made = bench.service(Slow, mode="pubsub", retry=retry)
        async with made as service, bench.service(mode="pubsub") as other:
            await other.send(bench.name(), "created", Order("0"))
            await wait_for(lambda: begun)
            for number in range(1, 8):
                await other.send(bench.name(), "created", Order(str(number)))
            await wait_for(lambda: service.metrics().messages_discarded == 4)
            gate.set()
            await wait_for(lambda: service.metrics().messages_retried == 4)
            assert begun == ["0", "5", "6", "7"]
            await service.shutdown()
        assert made.metrics().messages_discarded == 4 + 4
        assert other.metrics().messages_discarded == 0, "it does not receive them"

    @pytest.mark.broker
    async def test_redis_pubsub_refuses_to_delay_a_send(self, on: Callable[[str], Bench]) -> None:
        bench = on("redis")
        log = Log(bench.name())
        async with bench.service(log.channel, mode="pubsub") as service:
            with pytest.raises(QueueError, match="cannot delay"):
                await service.send(bench.name(), "created", Order("1"), delay=1)

    @pytest.mark.broker
    async def test_redis_pubsub_reaches_everybody(self, on: Callable[[str], Bench]) -> None:
        """Scenario: Redis pub/sub mode for broadcast."""
        bench = on("redis")
        first, second = Log(bench.name()), Log(bench.name())
        async with (
            bench.service(first.channel, mode="pubsub") as one,
            bench.service(second.channel, mode="pubsub"),
        ):
            await one.publish(bench.name(), "created", Order("1"))
            await wait_for(lambda: first.seen and second.seen)
        assert first.ids == second.ids == ["1"]
