"""What the guide "Coming from other libraries" says about the behavior of Matador is true."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from matador import (
    DontRetry,
    DoRetry,
    Envelope,
    Matador,
    Schema,
    event,
    subscriber,
)
from matador.channels import QueueService, QueueSettings, Settings, channel, consume
from matador.errors import (
    DelaysNotSupportedError,
    InvalidJobError,
    InvalidSchemaError,
    NotConnectedError,
    RemoteError,
    SendFailedError,
    ShuttingDownError,
)
from matador.jobs import ActiveJob, Queue, Worker
from matador.model.subscriber import Idempotency
from matador.pubsub import DeadLetterOptions, Publisher, Subscriber, Validation
from matador.rpc import RpcServer
from matador.testing import make_message, running, wait_for
from matador.transports import MemoryTransport


@event("order.placed", description="A customer placed an order.")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str


@event("order.paid", description="A customer paid an order.")
@dataclass(frozen=True)
class OrderPaid:
    amount: int


# -- Matador for TypeScript -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("idempotent", "error", "runs"),
    [
        ("unknown", ValueError("broken"), 3),
        ("no", ValueError("broken"), 1),
        ("no", DoRetry("again"), 3),
    ],
)
async def test_an_error_that_a_function_raises(
    idempotent: Idempotency, error: Exception, runs: int
) -> None:
    @subscriber(description="Fails.", idempotent=idempotent)
    async def fails(envelope: Envelope[OrderPlaced]) -> None:
        raise error

    async with running(Schema({OrderPlaced: [fails]})) as harness:
        await harness.send(OrderPlaced("1"))
        await harness.drain()
        assert len(harness.attempts(fails)) == runs


async def test_an_event_without_subscribers_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Matador("memory://", schema=Schema({OrderPlaced: []})) as app:
        assert (await app.send(OrderPlaced("1"))).sent == 0
    assert "event 'order.placed' has no subscribers" in caplog.text


async def test_the_named_error_is_the_cause() -> None:
    @subscriber(description="Is never called.")
    async def receipt(envelope: Envelope[OrderPlaced]) -> None: ...

    transport = MemoryTransport(without=["delays"])
    app = Matador(transport, schema=Schema({OrderPlaced: [receipt]}), consume_from=["events"])
    async with app:
        with pytest.raises(SendFailedError) as caught:
            await app.send(OrderPlaced("1"), delay=5)
    assert isinstance(caught.value.__cause__, DelaysNotSupportedError)
    (found,) = caught.value.result.errors
    assert isinstance(found.__cause__, DelaysNotSupportedError)


async def test_what_is_used_after_it_was_closed_says_so() -> None:
    async with Matador("memory://", schema=Schema({OrderPlaced: []})) as app:
        transport = app.transport
    with pytest.raises(ShuttingDownError):
        await app.send(OrderPlaced("1"))
    with pytest.raises(NotConnectedError):
        await transport.send([make_message()])
    async with app:
        assert (await app.send(OrderPlaced("1"))).ok


async def test_the_start_checks_that_a_subscriber_fits_its_event() -> None:
    @subscriber(description="Takes another event.")
    async def other(envelope: Envelope[OrderPaid]) -> None: ...

    app = Matador("memory://", schema=Schema({OrderPlaced: [other]}), consume_from=["events"])
    with pytest.raises(InvalidSchemaError, match="takes Envelope"):
        await app.start()


# -- @satoshibits/queue ---------------------------------------------------------------------------


async def test_a_completed_job_is_kept_for_an_hour() -> None:
    async def handle(job: ActiveJob[Any]) -> None: ...

    async with running(Worker("emails", handle)) as harness:
        job = await harness.add("welcome")
        await harness.drain()
        await harness.advance(3500)
        assert await harness.queue.get(job.id) is not None
        await harness.advance(200)
        assert await harness.queue.get(job.id) is None


async def test_the_highest_priority_comes_first() -> None:
    seen: list[int] = []

    async def handle(job: ActiveJob[int]) -> None:
        seen.append(job.data)

    async with Queue("emails") as queue:
        for number in (1, 3, 2):
            await queue.add("welcome", number, priority=number)
        async with Worker(queue, handle, concurrency=1):
            await wait_for(lambda: len(seen) == 3)
    assert seen == [3, 2, 1]


async def test_a_backoff_in_milliseconds_is_refused() -> None:
    async with Queue("emails") as queue:
        with pytest.raises(InvalidJobError, match="backoff must be"):
            await queue.add("a", backoff={"type": "exponential", "delay": 1000})  # pyright: ignore[reportArgumentType]


# -- cmmv/queue -----------------------------------------------------------------------------------


async def test_the_time_of_the_last_message_is_set_by_a_failed_one() -> None:
    @channel("orders")
    class Orders:
        @consume("created")
        async def created(self, order: dict[str, int]) -> None:
            raise DontRetry("refused")

    settings = Settings(QueueSettings(type="memory", url="memory://"))
    async with running(QueueService(settings, channels=[Orders])) as harness:
        await harness.send("orders", "created", {"id": 1})
        await harness.drain()
        health = harness.service.health_check()
        assert health.last_message_at is not None
        assert health.last_error == "DontRetry: refused"
        assert len(harness.dead_letters("orders.created")) == 1


# -- Hermes MQ ------------------------------------------------------------------------------------


async def test_a_failed_call_is_answered_and_a_failed_notification_retried() -> None:
    server = RpcServer("memory://", queue="maths")

    @server.handler("FAIL")
    async def fail(_: Any) -> None:
        raise ValueError("always")

    @server.handler("REFUSE")
    async def refuse(_: Any) -> None:
        raise RemoteError("NO_MONEY", "not enough money")

    async with running(server) as harness:
        for command in ("FAIL", "REFUSE", "UNKNOWN"):
            with pytest.raises(RemoteError):
                await harness.call(command, 1)
        assert len(harness.attempts()) == len(harness.sent) == 3
        assert len(harness.dead_letters()) == len(harness.dead_letters("FAIL")) == 1
        await harness.notify("FAIL", 2)
        await harness.drain()
        assert len(harness.attempts("FAIL")) == 1 + 3


async def test_a_handler_that_succeeded_does_not_run_again() -> None:
    sub = Subscriber("memory://", exchange="shop", queue="books")
    good: list[int] = []

    @sub.on("orders.*")
    async def fine(number: int) -> None:
        good.append(number)

    @sub.on("orders.created")
    async def broken(number: int) -> None:
        raise ValueError("always")

    async with running(sub) as harness:
        await harness.publish("orders.created", 1)
        await harness.drain()
    assert good == [1]


@pytest.mark.parametrize("malformed", ["reject", "dead-letter", "ignore"])
async def test_a_message_without_a_handler_becomes_a_dead_letter(malformed: Any) -> None:
    validation = Validation(malformed=malformed)
    before = Subscriber("memory://", exchange="shop", queue="books")
    now = Subscriber("memory://", exchange="shop", queue="books", validation=validation)

    @before.on("orders.created")
    async def old(number: int) -> None: ...

    @now.on("invoices.*")
    async def new(number: int) -> None: ...

    async with Publisher("memory://", exchange="shop") as publisher:
        async with before:
            await before.pause()
            await publisher.publish("orders.created", 1)
        async with now:
            assert await wait_for(now.dead_letters.count) == 1


async def test_a_handler_of_dead_letters_gets_three_attempts() -> None:
    tries: list[int] = []

    def handle(number: int) -> None:
        tries.append(number)
        raise ConnectionError("away")

    options = DeadLetterOptions(handler=handle)
    sub = Subscriber("memory://", exchange="shop", queue="books", dead_letters=options)

    @sub.on("orders.*")
    async def broken(number: int) -> None:
        raise DontRetry("never")

    async with running(sub) as harness:
        await harness.publish("orders.created", 1)
        await harness.drain()
    assert tries == [1, 1, 1]
