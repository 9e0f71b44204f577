"""What becomes of messages whose handlers fail, hang, or cannot read them."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.pubsub import Place

from matador.errors import DontRetry
from matador.model.message import ERROR_TYPE_HEADER, REASON_HEADER, Delivery, Message, Properties
from matador.pubsub import (
    AckStrategy,
    DeadLetterOptions,
    MessageContext,
    Subscriber,
    Validation,
)
from matador.pubsub.handler import FAILED_HANDLERS
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


async def test_a_failed_message_is_tried_again_and_then_kept(place: Place) -> None:
    sub = place.subscriber("orders", ack=AckStrategy(max_retries=3, retry_delay=0.1))
    seen: list[tuple[int, bool, str, float]] = []

    @sub.on("orders.*")
    async def handle(message: dict[str, Any], ctx: MessageContext) -> None:
        at = time.monotonic()
        seen.append((ctx.attempts, ctx.first_failure is None, ctx.routing_key, at))
        raise ValueError("no money")

    before = time.time()
    async with sub, place.publisher() as publisher:
        await publisher.publish(
            "orders.made", {"id": 1}, message_id="m-1", correlation_id="c-1", metadata={"a": "b"}
        )
        (letter,) = await place.letters("orders")
    assert [one[:3] for one in seen] == [
        (1, True, "orders.made"),
        (2, False, "orders.made"),
        (3, False, "orders.made"),
    ]
    assert seen[1][3] - seen[0][3] >= 0.09
    assert json.loads(letter.body) == {"id": 1}
    assert letter.id == "m-1"
    assert letter.properties is not None
    assert letter.properties.correlation_id == "c-1"
    headers = letter.headers
    assert reason(letter) == "max attempts exceeded (3)"
    assert headers["x-retry-count"] == 3
    assert before - 1 <= int(headers["x-first-failure"]) / 1000 <= time.time() + 1
    assert headers["x-matador-original-queue"] == place.queue("orders")
    assert headers["x-matador-last-error"] == "no money"
    assert headers[ERROR_TYPE_HEADER] == "ValueError"
    assert int(headers["x-first-failure"]) <= int(headers["x-matador-failed-at"])
    assert headers["a"] == "b"
    counters = sub.counters
    assert (counters.failed, counters.retried, counters.dead_lettered) == (3, 2, 1)
    assert counters.last_error == "ValueError: no money"


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


async def test_dont_retry_is_a_dead_letter_at_once(place: Place) -> None:
    sub = place.subscriber("orders")

    @sub.on("#")
    async def handle(message: int) -> None:
        raise DontRetry("there is no such order")

    async with sub, place.publisher() as publisher:
        await publisher.publish("a", 1)
        (letter,) = await place.letters("orders")
    assert reason(letter) == "there is no such order"
    assert letter.headers["x-retry-count"] == 1


async def test_without_dead_letters_failed_messages_are_deleted(place: Place) -> None:
    sub = place.subscriber("orders", ack=ONCE, dead_letters=False)

    @sub.on("#")
    async def handle(message: int) -> None:
        raise ValueError(message)

    async with sub, place.publisher() as publisher:
        await publisher.publish("a", 1)
        await publish_raw(place, "a", b"{")
        await wait_for(lambda: sub.counters.discarded == 2)


async def test_a_function_processes_the_dead_letters(place: Place) -> None:
    processed: list[tuple[Any, str, int]] = []

    async def process(data: Any, ctx: MessageContext) -> None:
        if data == "fails" and ctx.attempts < 2:
            raise ValueError("not yet")
        processed.append((data, str(ctx.headers[REASON_HEADER]), ctx.attempts))

    options = DeadLetterOptions(handler=process)
    sub = place.subscriber("orders", ack=ONCE, dead_letters=options)

    @sub.on("#")
    async def handle(message: str) -> None:
        raise ValueError("over")

    async with sub, place.publisher() as publisher:
        await publisher.publish("a", "text", ttl=30)
        await publisher.publish("a", "fails")
        await publish_raw(place, "a", b"\xff{")
        await wait_for(lambda: len(processed) == 3, timeout=15)
    by_data = {repr(data): (why, attempt) for data, why, attempt in processed}
    assert by_data["'text'"] == ("max attempts exceeded (1)", 1)
    assert by_data["'fails'"] == ("max attempts exceeded (1)", 2)
    assert "not valid JSON" in by_data[repr(b"\xff{")][0]


# -- several handlers -----------------------------------------------------------------------------


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
        await wait_for(lambda: sub.counters.succeeded == 3)
    assert sorted(runs) == [("one", 2)] * 2 + [("two", 2)] * 3


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
        await wait_for(lambda: sub.counters.succeeded == 1)


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
        await wait_for(lambda: sub.counters.succeeded == 2)
    assert runs == ["good"]
    assert sorted(told) == [("over", "many.handlers"), ("over", "one")]
    counters = sub.counters
    assert (counters.failed, counters.retried, counters.dead_lettered) == (2, 0, 0)


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


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a good one"])
@pytest.mark.parametrize("odd", ODD)
async def test_whatever_a_handler_raises_is_a_failure(
    odd: Callable[[], BaseException], beside: bool
) -> None:
    sub = Subscriber("memory://", exchange="e", queue="odd", concurrency=1, ack=ONCE)
    runs: list[Any] = []

    @sub.on("#")
    async def handle(message: str) -> None:
        runs.append(message)
        if message == "bad":
            await asyncio.sleep(0)
            raise odd()

    if beside:

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
        await wait_for(lambda: sub.counters.succeeded == 1)


# -- time limits ----------------------------------------------------------------------------------


async def test_a_handler_that_takes_too_long_has_failed(place: Place) -> None:
    sub = place.subscriber("orders", ack=ONCE, handler_timeout=0.05, concurrency=1)
    done: list[int] = []
    release = threading.Event()

    @sub.on("slow")
    async def slow(message: int) -> None:
        await asyncio.Event().wait()

    @sub.on("thread")
    def in_thread(message: int) -> None:
        assert release.wait(20)  # cannot be ended: it is waited for
        done.append(message)

    async with sub, place.publisher() as publisher:
        await publisher.publish("slow", 1)
        (letter,) = await place.letters("orders")
        assert "0.05 s" in str(letter.headers["x-matador-last-error"])
        assert str(letter.headers[ERROR_TYPE_HEADER]).endswith("TimeoutError")
        await publisher.publish("thread", 2)
        await wait_for(lambda: sub.counters.received == 2)
        release.set()
        await wait_for(lambda: done == [2] and sub.counters.succeeded == 1)


async def test_a_slow_handler_beside_a_quick_one(place: Place) -> None:
    sub = place.subscriber("orders", handler_timeout=0.05, ack=AckStrategy(max_retries=2))
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

BAD = [b"", b"{", b"null", b"\xff", b'{"a": "\x00"}', b"[" * 100_000, b'"' + b"x" * 2000 + b'"']


async def test_malformed_messages_become_dead_letters_unchanged(place: Place) -> None:
    sub = place.subscriber("orders", validation=Validation(max_size=1000))

    @sub.on("#")
    async def handle(order: Order) -> None:
        raise AssertionError("it must not be called")

    async with sub:
        for body in BAD:
            await publish_raw(place, "a", body)
        await publish_raw(place, "a", b'{"id": "no number"}')
        letters = await place.letters("orders", len(BAD) + 1)
    assert {one.body for one in letters} == {*BAD, b'{"id": "no number"}'}
    assert all(reason(one) for one in letters)
    assert sub.counters.malformed == len(BAD) + 1
    by_body = {one.body: reason(one) for one in letters}
    assert by_body[BAD[-1]] == "2002 bytes, but at most 1000 are allowed"
    assert "`int`" in by_body[b'{"id": "no number"}']


@pytest.mark.parametrize("strategy", ["reject", "ignore"])
async def test_malformed_messages_are_deleted(
    place: Place, strategy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sub = place.subscriber("orders", validation=Validation(malformed=strategy))
    got: list[int] = []

    @sub.on("#")
    async def handle(message: int) -> None:
        got.append(message)

    async with sub:
        await publish_raw(place, "a", b"{")
        await publish_raw(place, "a", b'"text"')
        await publish_raw(place, "a", b"1")
        await wait_for(lambda: got == [1] and sub.counters.discarded == 2)
    assert sub.counters.dead_lettered == 0
    assert ("cannot be handled and was deleted" in caplog.text) is (strategy == "reject")


async def test_hostile_headers_do_no_harm(place: Place) -> None:
    sub = place.subscriber("orders", concurrency=1)
    attempts: list[int] = []

    @sub.on("#")
    async def handle(message: int, ctx: MessageContext) -> None:
        attempts.append(ctx.attempts)
        if message == 1:
            raise ValueError("over")

    odd: list[dict[str, str | int]] = [
        {"x_retry_count": -5},
        {"x_retry_count": "many"},
        {"x_retry_count": 1 << 62},
        {"x_retry_count": 2, "x_first_failure": 1 << 62},
        {"x_first_failure": "yesterday", "x_matador_failed_handlers": ",,,"},
        {"x_matador_failed_handlers": 7, "x_matador_given_up_handlers": "x"},
    ]
    async with sub:
        for headers in odd:
            await publish_raw(place, "a", b"1", **headers)
        letters = await place.letters("orders", len(odd))
        await publish_raw(place, "a", b"2")
        await wait_for(lambda: sub.counters.succeeded == 1)
    assert len(letters) == len(odd)
    assert max(attempts) <= 3
    assert all(int(one.headers["x-retry-count"]) <= 3 for one in letters)


# -- manual mode ----------------------------------------------------------------------------------

MANUAL = AckStrategy(mode="manual", max_retries=2)


async def test_manual_mode(place: Place) -> None:
    sub = place.subscriber("orders", ack=MANUAL)
    seen: list[tuple[str, int]] = []
    later: list[MessageContext] = []

    @sub.on("#")
    async def handle(message: str, ctx: MessageContext) -> None:
        seen.append((message, ctx.attempts))
        match message:
            case "ack":
                await ctx.ack()  # may be awaited
            case "ack, then fail":
                ctx.ack()
                raise ValueError("too late")
            case "nack":
                ctx.nack()
            case "again":
                ctx.nack(requeue=True)
            case "later":
                later.append(ctx)
            case _:
                raise ValueError("a failure like in auto mode")

    async with sub, place.publisher() as publisher:
        for message in ("ack", "ack, then fail", "nack", "again", "later", "fail"):
            await publisher.publish("a", message)
        letters = await place.letters("orders", 3)
        assert {json.loads(one.body) for one in letters} == {"nack", "again", "fail"}
        await wait_for(lambda: later)
        assert sub.counters.succeeded == 2
        await asyncio.to_thread(later[0].ack)
        await wait_for(lambda: sub.counters.succeeded == 3)
        later[0].nack()  # only the first counts
    assert seen.count(("again", 2)) == seen.count(("fail", 2)) == 1
    assert ("nack", 2) not in seen


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


async def test_a_handler_that_never_acknowledges(place: Place) -> None:
    sub = place.subscriber("orders", ack=MANUAL, handler_timeout=0.1, concurrency=1)

    @sub.on("#")
    async def forgets(message: int, ctx: MessageContext) -> None: ...

    async with sub, place.publisher() as publisher:
        await publisher.publish("a", 1)
        (letter,) = await place.letters("orders")
    assert reason(letter) == "the handler called neither ack() nor nack() in 0.1 s"


async def test_acknowledging_in_auto_mode(place: Place) -> None:
    sub = place.subscriber("orders", ack=ONCE)

    @sub.on("#")
    async def handle(message: str, ctx: MessageContext) -> None:
        ctx.ack()  # harmless
        if message == "nack":
            ctx.nack()

    async with sub, place.publisher() as publisher:
        await publisher.publish("a", "ack")
        await publisher.publish("a", "nack")
        (letter,) = await place.letters("orders")
        await wait_for(lambda: sub.counters.succeeded == 1)
    assert "mode='manual'" in str(letter.headers["x-matador-last-error"])
