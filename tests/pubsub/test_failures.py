"""Several handlers of one message, of which some fail. ``tests/ways`` has what one handler does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.pubsub import Place, pipeline

from matador.errors import DontRetry, DoRetry, MatadorError
from matador.model.message import (
    ERROR_TYPE_HEADER,
    REASON_HEADER,
    DeadLetter,
    Delivery,
    Message,
    Properties,
    Retry,
    Settlement,
)
from matador.policy.retry import CustomRetryPolicy
from matador.pubsub import (
    AckStrategy,
    MessageContext,
    Subscriber,
)
from matador.pubsub.way import FAILED_HANDLERS
from matador.runtime.messages import ERROR, GIVEN_UP_HANDLERS, RETRY_COUNT
from matador.testing import wait_for
from matador.transports import MemoryTransport
from matador.transports.base import Routing

ONCE = AckStrategy(max_retries=1)


@dataclass
class Order:
    id: int


class Odd(BaseException):
    """Neither an ``Exception`` nor anything that ends a process."""


async def publish_raw(place: Place, key: str, body: bytes, **headers: str | int) -> None:
    """A message as somebody else may have written it."""
    transport = await place.transport()
    assert isinstance(transport, Routing)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    message = Message("raw", "", body, given, properties=Properties(routing_key=key))
    assert await transport.publish(place.exchange, [message]) == [1]


def reason(letter: Delivery) -> str:
    return str(letter.headers[REASON_HEADER])


# -- retries and dead letters ---------------------------------------------------------------------


@pipeline
async def test_requeue_and_delay_may_be_functions(place: Place) -> None:
    asked: list[tuple[str, int]] = []

    def requeue(error: Exception, attempt: int) -> bool:
        asked.append((str(error), attempt))
        return str(error) != "final"

    def delay(attempt: int) -> float:
        return 0.01 * attempt

    sub = place.subscriber("orders", ack=AckStrategy(requeue=requeue, retry_delay=delay))

    @sub.on("#")
    async def handle(message: str, ctx: MessageContext) -> None:
        raise ValueError("final" if ctx.attempts == 2 else message)

    async with sub, place.publisher() as publisher:
        await publisher.publish("a", "first")
        (letter,) = await place.letters("orders")
    assert asked == [("first", 1), ("final", 2)]
    assert letter.headers["x-retry-count"] == 2


# -- several handlers -----------------------------------------------------------------------------


@pipeline
async def test_only_the_handlers_that_failed_run_again(place: Place) -> None:
    sub = place.subscriber("orders")
    runs: list[str] = []

    @sub.on("orders.*")
    async def good(message: int) -> None:
        runs.append("good")

    @sub.on("orders.*")
    def flaky(message: int, ctx: MessageContext) -> None:
        runs.append("flaky")
        if ctx.attempts == 1:
            raise ValueError("not yet")

    @sub.on("#")
    async def broken(message: int) -> None:
        runs.append("broken")
        raise ValueError("never")

    @sub.on("#")
    async def final(message: int) -> None:
        runs.append("final")
        raise DontRetry("not mine")

    @sub.on("*.made")
    async def mistyped(message: Order) -> None:
        runs.append("mistyped")

    async with sub, place.publisher() as publisher:
        await publisher.publish("orders.made", 1)
        (letter,) = await place.letters("orders")
    assert sorted(runs) == ["broken"] * 3 + ["final", "flaky", "flaky", "good"]
    names = str(letter.headers[FAILED_HANDLERS]).split(",")
    assert sorted(name.rpartition(".")[2] for name in names) == ["broken", "final", "mistyped"]
    assert letter.headers[ERROR_TYPE_HEADER] == "ValueError"


@pipeline
async def test_what_failed_for_good_is_kept_though_the_others_succeed(place: Place) -> None:
    sub = place.subscriber("orders")
    runs: list[str] = []

    @sub.on("#")
    async def flaky(message: int, ctx: MessageContext) -> None:
        runs.append("flaky")
        if ctx.attempts == 1:
            raise ValueError("not yet")

    @sub.on("#")
    async def final(message: int) -> None:
        runs.append("final")
        raise DontRetry("not mine")

    async with sub, place.publisher() as publisher:
        await publisher.publish("orders.made", 1)
        (letter,) = await place.letters("orders")
    assert runs == ["flaky", "final", "flaky"]
    assert str(letter.headers[FAILED_HANDLERS]).endswith("final")
    assert "not mine" in reason(letter)


@pipeline
async def test_retries_of_others_and_of_earlier_versions_run_all_handlers(place: Place) -> None:
    sub = place.subscriber("orders")
    runs: list[tuple[str, int]] = []

    @sub.on("#")
    async def one(message: int, ctx: MessageContext) -> None:
        runs.append(("one", ctx.attempts))

    @sub.on("#")
    async def two(message: int, ctx: MessageContext) -> None:
        runs.append(("two", ctx.attempts))

    async with sub:
        await publish_raw(place, "a", b"1", x_retry_count=1)
        await wait_for(lambda: len(runs) == 2)
        renamed = f"{two.__qualname__},renamed"
        await publish_raw(place, "a", b"1", x_retry_count=1, x_matador_failed_handlers=renamed)
        await wait_for(lambda: len(runs) == 4)
        known = two.__qualname__
        await publish_raw(place, "a", b"1", x_retry_count=1, x_matador_failed_handlers=known)
        await wait_for(lambda: sub.metrics().messages_succeeded == 3)
    assert sorted(runs) == [("one", 2)] * 2 + [("two", 2)] * 3


@pipeline
async def test_handlers_of_a_message_run_side_by_side(place: Place) -> None:
    sub = place.subscriber("orders")
    meet = asyncio.Barrier(2)

    @sub.on("#")
    async def one(message: int) -> None:
        await meet.wait()

    @sub.on("#")
    async def two(message: int) -> None:
        await meet.wait()

    async with sub, place.publisher() as publisher:
        await publisher.publish("a", 1)
        await wait_for(lambda: sub.metrics().messages_succeeded == 1)


@pipeline
async def test_continue_on_error(place: Place) -> None:
    told: list[tuple[str, str]] = []

    async def tell(error: Exception, ctx: MessageContext) -> None:
        told.append((str(error), ctx.routing_key))
        raise RuntimeError("an error handler that fails changes nothing")

    sub = place.subscriber("orders", continue_on_error=True, error_handler=tell)
    runs: list[str] = []

    @sub.on("#")
    async def broken(message: int) -> None:
        raise ValueError("over")

    @sub.on("many.#")
    async def good(message: int) -> None:
        runs.append("good")

    async with sub, place.publisher() as publisher:
        await publisher.publish("many.handlers", 1)
        await publisher.publish("one", 1)
        await wait_for(lambda: sub.metrics().messages_succeeded == 2)
    assert runs == ["good"]
    assert sorted(told) == [("over", "many.handlers"), ("over", "one")]
    counted = sub.metrics()
    assert (counted.messages_failed, counted.messages_retried, counted.messages_dead_lettered) == (
        2,
        0,
        0,
    )


@pipeline
async def test_the_error_handler_is_told_of_every_failure(place: Place) -> None:
    told: list[tuple[str, int, str]] = []

    def tell(error: Exception, ctx: MessageContext) -> None:
        told.append((str(error), ctx.attempts, threading.current_thread().name))

    sub = place.subscriber("orders", ack=AckStrategy(max_retries=2), error_handler=tell)

    @sub.on("#")
    async def broken(message: int) -> None:
        raise ValueError("over")

    async with sub, place.publisher() as publisher:
        await publisher.publish("a", 1)
        await place.letters("orders")
    assert [one[:2] for one in told] == [("over", 1), ("over", 2)]
    assert told[0][2] != threading.current_thread().name


ODD: list[Callable[[], BaseException]] = [
    lambda: StopAsyncIteration("odd"),
    lambda: GeneratorExit("odd"),
    lambda: asyncio.CancelledError("odd"),
    lambda: Odd("odd"),
    lambda: BaseExceptionGroup("odd", [Odd("one"), GeneratorExit()]),
]


@pytest.mark.parametrize("odd", ODD)
async def test_whatever_one_of_several_handlers_raises_is_a_failure(
    odd: Callable[[], BaseException],
) -> None:
    sub = Subscriber("memory://", exchange="e", queue="odd", concurrency=1, ack=ONCE)
    runs: list[Any] = []

    @sub.on("#")
    async def handle(message: str) -> None:
        runs.append(message)
        if message == "bad":
            await asyncio.sleep(0)
            raise odd()

    @sub.on("#")
    async def good(message: str) -> None:
        await asyncio.sleep(0)

    place = Place("memory", "memory://")
    async with sub, place.publisher(exchange="e") as publisher:
        await publisher.publish("a", "bad")
        await publisher.publish("a", "good")
        (letter,) = await place.take("odd.dlq")
        await wait_for(lambda: runs == ["bad", "good"])
        assert letter.body == b'"bad"'
        await wait_for(lambda: sub.metrics().messages_succeeded == 1)


# -- time limits ----------------------------------------------------------------------------------


@pipeline
async def test_a_slow_handler_beside_a_quick_one(place: Place) -> None:
    sub = place.subscriber("orders", timeout=0.05, ack=AckStrategy(max_retries=2))
    runs: list[str] = []

    @sub.on("#")
    async def slow(message: int) -> None:
        runs.append("slow")
        await asyncio.Event().wait()

    @sub.on("#")
    async def quick(message: int) -> None:
        runs.append("quick")

    async with sub, place.publisher() as publisher:
        await publisher.publish("a", 1)
        await place.letters("orders")
    assert sorted(runs) == ["quick", "slow", "slow"]


# -- malformed messages ---------------------------------------------------------------------------


# -- manual mode ----------------------------------------------------------------------------------

MANUAL = AckStrategy(mode="manual", max_retries=2)


@pipeline
async def test_manual_mode_with_several_handlers(place: Place) -> None:
    sub = place.subscriber("orders", ack=MANUAL)
    runs: list[str] = []

    @sub.on("#")
    async def acks(message: int, ctx: MessageContext) -> None:
        runs.append("acks")
        ctx.ack()

    @sub.on("#")
    def nacks(message: int, ctx: MessageContext) -> None:
        runs.append("nacks")
        ctx.nack(requeue=True)

    async with sub, place.publisher() as publisher:
        await publisher.publish("a", 1)
        (letter,) = await place.letters("orders")
    assert sorted(runs) == ["acks", "nacks", "nacks"]
    assert str(letter.headers[FAILED_HANDLERS]).endswith("nacks")


# -- what travels along, and what is decided ------------------------------------------------------


class Stored(MemoryTransport):
    """Notes the retries and dead letters that are stored."""

    def __init__(self) -> None:
        super().__init__()
        self.retries: list[Message] = []
        self.letters: list[DeadLetter] = []

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        self.retries += [one.message for one in settlements if isinstance(one, Retry)]
        self.letters += [one for one in settlements if isinstance(one, DeadLetter)]
        return await super().settle(settlements)


async def handled(sub: Subscriber, transport: Stored, **headers: str | int) -> None:
    """Have a message with these headers handled until it is done or a dead letter."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    message = Message("m-1", "", b"1", given, properties=Properties(routing_key="a"))
    metrics = sub.metrics()
    before = metrics.messages_succeeded + metrics.messages_dead_lettered
    assert await transport.publish("e", [message]) == [1]

    def done() -> bool:
        metrics = sub.metrics()
        return metrics.messages_succeeded + metrics.messages_dead_lettered > before

    await wait_for(done)
    await sub.wait_idle()


def named(*functions: Callable[..., Any]) -> str:
    return ",".join(one.__qualname__ for one in functions)


async def test_headers_say_which_handlers_run_again_and_which_were_given_up() -> None:
    transport, runs = Stored(), list[str]()
    sub = Subscriber(transport, exchange="e", queue="q", ack=AckStrategy(retry_delay=0))

    @sub.on("#")
    async def good(data: int) -> None:
        runs.append("good")

    @sub.on("#")
    async def first(data: int, ctx: MessageContext) -> None:
        runs.append("first")
        raise DontRetry("never of first")

    @sub.on("#")
    async def second(data: int, ctx: MessageContext) -> None:
        runs.append("second")
        if ctx.attempts < 3:
            raise ValueError(f"not yet {ctx.attempts}")
        raise DontRetry("never of second")

    async with sub:
        await handled(sub, transport)
    assert runs == ["good", "first", "second", "second", "second"]
    found = [
        (one.headers[FAILED_HANDLERS], one.headers[GIVEN_UP_HANDLERS], one.headers[RETRY_COUNT])
        for one in transport.retries
    ]
    assert found == [(named(second), named(first), 1), (named(second), named(first), 2)]
    (letter,) = transport.letters
    assert letter.reason == "never of second"
    assert letter.message is not None
    headers = letter.message.headers
    assert headers[FAILED_HANDLERS] == named(first, second)
    assert headers[GIVEN_UP_HANDLERS] == ""
    assert headers[ERROR] == "never of second"
    assert headers[RETRY_COUNT] == 3


async def test_one_that_was_given_up_is_kept_with_its_error_when_the_others_are_done() -> None:
    transport, told = Stored(), list[str]()
    sub = Subscriber(
        transport,
        exchange="e",
        queue="q",
        ack=AckStrategy(retry_delay=0),
        error_handler=lambda error, ctx: told.append(str(error)),
    )

    @sub.on("#")
    async def flaky(data: int, ctx: MessageContext) -> None:
        if ctx.attempts == 1:
            raise ValueError("not yet")

    @sub.on("#")
    async def final(data: int) -> None:
        raise DontRetry("never")

    async with sub:
        await handled(sub, transport)
    (letter,) = transport.letters
    assert letter.reason.startswith("failed in an earlier attempt: ")
    assert "never" in letter.reason
    assert letter.message is not None
    assert letter.message.headers[FAILED_HANDLERS] == named(final)
    assert letter.message.headers[ERROR] == transport.retries[0].headers[ERROR]
    assert told == ["not yet", "never"], "the second attempt had no error of its own"


async def test_the_longest_delay_counts_and_each_reason_once() -> None:
    transport = Stored()
    sub = Subscriber(transport, exchange="e", queue="q", ack=AckStrategy(max_retries=2))

    @sub.on("#")
    async def short(data: int, ctx: MessageContext) -> None:
        raise DoRetry("short", delay=0.01) if ctx.attempts == 1 else DontRetry("same")

    @sub.on("#")
    async def long(data: int, ctx: MessageContext) -> None:
        raise DoRetry("long", delay=0.02) if ctx.attempts == 1 else DontRetry("same")

    @sub.on("#")
    async def other(data: int, ctx: MessageContext) -> None:
        raise DoRetry("other", delay=0) if ctx.attempts == 1 else DontRetry("another")

    async with sub:
        await handled(sub, transport)
    assert [one.delay for one in transport.retries] == [0.02]
    assert [one.reason for one in transport.letters] == ["same; another"]


async def test_each_handler_has_its_own_policy_limit_and_idempotency() -> None:
    transport, runs = Stored(), list[str]()
    sub = Subscriber(transport, exchange="e", queue="q", ack=ONCE, timeout=600)

    @sub.on("#", retry=CustomRetryPolicy(3, delays=lambda _: 0.0))
    async def patient(data: int) -> None:
        runs.append("patient")
        raise ValueError("no")

    @sub.on("#")
    async def impatient(data: int) -> None:
        runs.append("impatient")
        raise ValueError("no")

    @sub.on("#", timeout=0.01)
    async def slow(data: int) -> None:
        runs.append("slow")
        await asyncio.Event().wait()

    async with sub:
        await handled(sub, transport)
    assert sorted(runs) == ["impatient", *["patient"] * 3, "slow"]
    (letter,) = transport.letters
    assert letter.message is not None
    assert letter.message.headers[FAILED_HANDLERS] == named(impatient, slow, patient)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, ["one", "two"]),
        ({"x_matador_failed_handlers": "two"}, ["two"]),
        ({"x_matador_failed_handlers": "two,"}, ["two"]),
        ({"x_matador_failed_handlers": "two", "x_matador_given_up_handlers": "one"}, ["two"]),
        ({"x_matador_failed_handlers": "two", "x_matador_given_up_handlers": "x"}, ["one", "two"]),
        ({"x_matador_failed_handlers": "two,x"}, ["one", "two"]),
        ({"x_matador_failed_handlers": ""}, ["one", "two"]),
        ({"x_matador_failed_handlers": 7}, ["one", "two"]),
        ({"x_matador_given_up_handlers": "one"}, ["one", "two"]),
    ],
)
async def test_the_headers_of_a_message_choose_its_handlers(
    headers: dict[str, str | int], expected: list[str]
) -> None:
    transport, runs = Stored(), list[str]()
    sub = Subscriber(transport, exchange="e", queue="q")

    async def one(data: int) -> None:
        runs.append("one")

    async def two(data: int) -> None:
        runs.append("two")

    for function in (one, two):
        function.__qualname__ = function.__name__
        sub.on("#")(function)
    async with sub:
        await handled(sub, transport, **headers)
    assert runs == expected
    kept = [str(one.reason) for one in transport.letters]
    given_up = headers.get("x_matador_given_up_handlers") == "one" and expected == ["two"]
    assert kept == (["failed in an earlier attempt: unknown error"] if given_up else [])


async def test_data_that_one_handler_cannot_take_is_its_failure_alone() -> None:
    transport, runs = Stored(), list[str]()
    sub = Subscriber(transport, exchange="e", queue="q")

    @sub.on("#")
    async def number(data: int) -> None:
        runs.append("number")

    @sub.on("#")
    async def order(data: Order) -> None:
        runs.append("order")

    @sub.on("only.#")
    async def nothing() -> None:
        runs.append("nothing")

    async with sub:
        await handled(sub, transport)
        (letter,) = transport.letters
        assert "order" in letter.reason
        assert letter.message is not None
        assert letter.message.headers[FAILED_HANDLERS] == named(order)
        for body in (b'"text"', b"{", b""):
            raw = Message("m-2", "", body, properties=Properties(routing_key="a"))
            await transport.publish("e", [raw])
        await wait_for(lambda: len(transport.letters) == 4)
        reasons = [one.reason for one in transport.letters[1:]]
        assert all(one.startswith("malformed: ") for one in reasons)
        assert "not valid JSON" in reasons[1]
        assert "the body is empty" in reasons[2]
    assert runs == ["number"]


async def test_what_continue_on_error_ignores_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    transport = Stored()
    sub = Subscriber(transport, exchange="e", queue="q", continue_on_error=True, ack=MANUAL)

    @sub.on("#")
    async def broken(data: int) -> None:
        raise ValueError("over")

    @sub.on("#")
    async def expected(data: int) -> None:
        raise DontRetry("on purpose")

    async with sub:
        await handled(sub, transport)
        assert sub.health().last_error is not None
    first, second = [one for one in caplog.records if "continue_on_error" in one.message]
    assert first.message == (
        f"the handler {named(broken)} of message m-1 of q failed (ValueError: over); "
        f"continue_on_error is set, so the message is done"
    )
    assert first.exc_info is not None
    assert "on purpose" in second.message
    assert not second.exc_info
    assert (transport.retries, transport.letters) == ([], [])


async def test_handlers_that_may_run_once_only_run_in_the_first_delivery() -> None:
    transport, runs = Stored(), list[str]()
    sub = Subscriber(transport, exchange="e", queue="q")

    @sub.on("#", idempotent="no")
    async def once(data: int) -> None:
        runs.append("once")

    @sub.on("#", idempotent="unknown")
    async def unknown(data: int) -> None:
        runs.append("unknown")

    async with sub:
        await handled(sub, transport)
    assert (runs, transport.letters) == (["once", "unknown"], [])
