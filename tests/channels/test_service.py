"""A queue service on every broker: to one consumer, to all, retries, dead letters, shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from tests.channels.conftest import Bench
from tests.support.ports import free_ports

from matador.channels import (
    DeadLetterQueueSettings,
    Deduplicator,
    Envelope,
    MessageContext,
    QueueError,
    QueueService,
    QueueSettings,
    RetrySettings,
    Settings,
    ShutdownSettings,
    Validation,
    channel,
    consume,
)
from matador.errors import (
    InvalidMessageError,
    NotStartedError,
    UnstorableError,
    UnsupportedError,
)
from matador.model.message import Message
from matador.testing import wait_for
from matador.transports.base import Browsing, Transport


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
    transport = service._connection.transport
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
            transport = other._connection.transport
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
            transport = service._connection.transport
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


class TestFailures:
    async def test_a_failed_message_is_retried_with_growing_delays(
        self, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Scenario: message processing fails with retry enabled."""

        def fail(order: Order, ctx: MessageContext) -> None:
            if ctx.attempts < 3:
                raise OSError("not yet")

        log = Log(bench.name(), fail)
        async with bench.service(log.channel) as service:
            await service.send(bench.name(), "created", Order("1"))
            await wait_for(lambda: service.metrics().messages_retried == 2 and len(log.seen) == 3)
        assert log.seen == [("1", 1), ("1", 2), ("1", 3)]
        assert log.contexts[0].first_failure is None
        assert log.contexts[1].first_failure == log.contexts[2].first_failure is not None
        retries = [one.getMessage() for one in caplog.records if "retrying" in one.getMessage()]
        assert ["attempt 1" in retries[0], "attempt 2" in retries[1]] == [True, True]
        assert "0.02 s" in retries[0]
        assert "0.04 s" in retries[1]

    async def test_a_message_that_keeps_failing_becomes_a_dead_letter(self, bench: Bench) -> None:
        """Scenarios: message exceeds max retry attempts; failed message routing to DLQ."""

        def fail(order: Order, ctx: MessageContext) -> None:
            if order.id == "bad":
                raise ValueError("never")

        log = Log(bench.name(), fail)
        queue = f"{bench.name()}.created"
        async with bench.service(log.channel) as service:
            await service.send(bench.name(), "created", Order("bad"))
            await service.send(bench.name(), "created", Order("good"))
            (letter,) = await dead_letters(service, queue, 1)
            assert service.metrics().messages_failed == 3
        assert log.ids.count("bad") == 3
        assert log.ids.count("good") == 1
        assert letter.reason == "max attempts exceeded (3)"
        assert letter.headers["x-retry-count"] == 3
        assert letter.headers["x-matador-last-error"] == "never"
        assert letter.headers["x-matador-original-queue"] == queue
        assert letter.error_type == "ValueError"
        assert msgspec.json.decode(letter.body) == {"id": "bad", "amount": 0}

    async def test_without_dead_letters_it_is_logged_and_deleted(
        self, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Scenario: message exceeds max retry attempts (no DLQ)."""

        def fail(order: Order, ctx: MessageContext) -> None:
            raise ValueError("never")

        log = Log(bench.name(), fail)
        dead = DeadLetterQueueSettings(enabled=False)
        async with bench.service(log.channel, dead_letter_queue=dead) as service:
            await service.send(bench.name(), "created", Order("1"))
            await wait_for(lambda: service.metrics().messages_failed == 3)
            await wait_for(lambda: any("it is deleted" in one.message for one in caplog.records))
            assert service.metrics().messages_dead_lettered == 0

    async def test_without_retries_one_failure_is_enough(self, bench: Bench) -> None:
        def fail(order: Order, ctx: MessageContext) -> None:
            raise ValueError("never")

        log = Log(bench.name(), fail)
        async with bench.service(log.channel, retry=RetrySettings(enabled=False)) as service:
            await service.send(bench.name(), "created", Order("1"))
            await wait_for(lambda: service.metrics().messages_dead_lettered == 1)
        assert log.seen == [("1", 1)]

    async def test_data_of_another_type_and_garbage_become_dead_letters(self, bench: Bench) -> None:
        log = Log(bench.name())
        queue = f"{bench.name()}.created"
        async with bench.service(log.channel) as service:
            transport = service._connection.transport
            odd = [b"", b"{", b"null", b"\0", b"[1]", b'{"id": 5}', b"\xff"]
            raw = [Message(f"odd-{place}", queue, body) for place, body in enumerate(odd)]
            assert await transport.send(raw) == [None] * len(odd)
            packed = Message("packed", queue, b"no gzip", {"content-encoding": "gzip"})
            assert await transport.send([packed]) == [None]
            await service.send(bench.name(), "created", Order("good"))
            letters = await dead_letters(service, queue, len(odd) + 1)
        assert log.ids == ["good"]
        assert sorted(one.body for one in letters) == sorted([*odd, b"no gzip"])

    async def test_a_message_that_is_too_large(self, bench: Bench) -> None:
        log = Log(bench.name())
        service = QueueService(
            bench.settings(), channels=[log.channel], validation=Validation(max_size=50)
        )
        async with service:
            await service.send(bench.name(), "created", Order("x" * 60))
            await service.send(bench.name(), "created", Order("small"))
            await wait_for(lambda: service.metrics().messages_dead_lettered == 1 and log.seen)
        assert log.ids == ["small"]

    async def test_a_consumer_that_takes_too_long_has_failed(self, bench: Bench) -> None:
        started: list[str] = []

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

    async def test_duplicates_run_once(self, bench: Bench) -> None:
        log = Log(bench.name())
        service = QueueService(
            bench.settings(), channels=[log.channel], deduplicator=Deduplicator()
        )
        async with service:
            for _ in range(3):
                await service.send(bench.name(), "created", Order("1"), message_id="same")
            await wait_for(lambda: service.metrics().duplicates == 2)
        assert log.ids == ["1"]


class TestSettingsAtWork:
    @pytest.mark.parametrize("prefetch", [1, 3])
    async def test_prefetch_limits_what_runs_at_once(self, bench: Bench, prefetch: int) -> None:
        """Scenario: RabbitMQ prefetch configuration; the default is 1."""
        running, most, go = 0, 0, asyncio.Event()

        async def work(order: Order, ctx: MessageContext) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await go.wait()
            running -= 1

        log = Log(bench.name(), work)
        given = {} if prefetch == 1 else {"prefetch": prefetch}
        async with bench.service(log.channel, **given) as service:
            for number in range(8):
                await service.send(bench.name(), "created", Order(str(number)))
            await wait_for(lambda: running == prefetch)
            go.set()
            await wait_for(lambda: len(log.seen) == 8)
        assert most == prefetch

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
            transport = sender._connection.transport
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
    async def test_a_shutdown_waits_for_what_runs(self, bench: Bench) -> None:
        """Scenario: shutdown with pending messages; graceful shutdown of each broker."""
        started, go = asyncio.Event(), asyncio.Event()
        done: list[str] = []

        async def work(order: Order, ctx: MessageContext) -> None:
            started.set()
            await go.wait()
            done.append(order.id)

        log = Log(bench.name(), work)
        service = bench.service(log.channel)
        told: list[object] = []
        service.on("shutdown", told.append)
        await service.start()
        await service.send(bench.name(), "created", Order("1"))
        await started.wait()
        ending = asyncio.create_task(service.shutdown())
        worker = service._worker
        assert worker is not None
        await wait_for(lambda: not worker.consumers[0]._subscription.active)
        assert not ending.done()
        go.set()
        await ending
        assert done == ["1"]
        assert told == [None]
        assert service.health_check().connection_state == "disconnected"

    async def test_after_its_timeout_a_shutdown_gives_messages_back(self, bench: Bench) -> None:
        """Scenario: shutdown respects its timeout."""
        started = asyncio.Event()

        async def hang(order: Order, ctx: MessageContext) -> None:
            started.set()
            await asyncio.Event().wait()

        first = Log(bench.name(), hang)
        service = bench.service(first.channel, shutdown=ShutdownSettings(timeout=0.05))
        async with service:
            await service.send(bench.name(), "created", Order("1"))
            await started.wait()
        second = Log(bench.name())
        async with bench.service(second.channel):
            await wait_for(lambda: second.seen)
        assert second.seen == [("1", 1)], "no attempt was used up"

    async def test_it_can_be_started_again(self, bench: Bench) -> None:
        log = Log(bench.name())
        service = bench.service(log.channel)
        for number in (1, 2):
            async with service:
                await service.start()  # a second start does nothing
                await service.send(bench.name(), "created", Order(str(number)))
                await wait_for(lambda: str(number) in log.ids)  # noqa: B023 - awaited here
            await service.shutdown()  # nor does a second shutdown

    async def test_nothing_can_be_sent_before_the_start_or_after_the_end(
        self, on: Callable[[str], Bench]
    ) -> None:
        service = on("memory").service()
        with pytest.raises(NotStartedError, match="async with service"):
            await service.send("orders", "created", {})
        async with service:
            await service.send("orders", "created", {})
        with pytest.raises(NotStartedError):
            await service.publish("orders", "created", {})


class TestHealthAndMetrics:
    async def test_health_while_connected_and_after(self, bench: Bench) -> None:
        """Scenarios: health check for active connection, health check for disconnected state."""
        log = Log(bench.name())
        service = bench.service(log.channel)
        assert service.health_check().status == "unhealthy"
        states: list[Any] = []
        service.on("state", states.append)
        async with service:
            await service.send(bench.name(), "created", Order("1"))
            await wait_for(lambda: log.seen)
            health = service.health_check()
            assert (health.status, health.connection_state) == ("healthy", "connected")
            assert health.last_message_at is not None
            assert health.disconnected_since is None
            assert health.circuit == "closed"
        after = service.health_check()
        assert (after.status, after.connection_state) == ("unhealthy", "disconnected")
        if bench.kind != "memory":  # which all services share
            assert after.disconnected_since is not None
            assert [one.status for one in states][-2:] == ["connected", "disconnected"]

    async def test_metrics_count_what_happens(self, bench: Bench) -> None:
        """Scenario: metrics collection."""

        def fail(order: Order, ctx: MessageContext) -> None:
            if order.id == "bad":
                raise ValueError("never")

        log = Log(bench.name(), fail)
        async with bench.service(log.channel) as service:
            await service.send(bench.name(), "created", Order("good"))
            await service.send(bench.name(), "created", Order("bad"))
            await wait_for(lambda: service.metrics().messages_dead_lettered == 1)
            found = service.metrics()
        assert (found.messages_sent, found.messages_received) == (2, 4)
        assert (found.messages_failed, found.messages_retried) == (3, 2)

    async def test_a_listener_that_raises_does_no_harm(
        self, on: Callable[[str], Bench], caplog: pytest.LogCaptureFixture
    ) -> None:
        service = on("sqlite").service()

        def broken(_: object) -> None:
            raise RuntimeError("broken listener")

        off = service.on("state", broken)
        async with service:
            await service.send("orders", "created", {})
        assert "a listener of 'state' failed" in caplog.text
        off()
        off()
        caplog.clear()
        async with service:
            pass
        assert "a listener" not in caplog.text


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
