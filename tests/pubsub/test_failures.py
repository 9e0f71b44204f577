"""Several handlers of one message, of which some fail. ``tests/ways`` has what one handler does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.pubsub import Place, pipeline

from matador.errors import DontRetry
from matador.model.message import ERROR_TYPE_HEADER, REASON_HEADER, Delivery, Message, Properties
from matador.pubsub import (
    AckStrategy,
    MessageContext,
    Subscriber,
)
from matador.pubsub.way import FAILED_HANDLERS
from matador.testing import wait_for
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
