"""A handler that fails: when it runs again, how often, and what is kept of its message."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest
from msgspec.structs import replace
from tests.ways.ways import (
    PIPELINE,
    PLAIN,
    THOROUGH,
    Call,
    Events,
    Facts,
    Failed,
    Jobs,
    Notify,
    PubSub,
    Way,
    number_of,
    over,
)

from matador import DontRetry, DoRetry, MemoryCheckpointStore, StandardRetryPolicy
from matador.model.message import REASON_HEADER
from matador.rpc import AckStrategy, DeadLetterOptions, RemoteError
from matador.testing import wait_for

QUICK = StandardRetryPolicy(base_delay=0.01)
BAD, GOOD = 1, 2


class Handler:
    """Fails for the bad message, as it is told, and handles its neighbor."""

    def __init__(self, *errors: BaseException | None) -> None:
        self.errors: list[BaseException | None] = list(errors)
        self.attempts: list[int] = []
        self.neighbors: list[int] = []

    async def __call__(self, n: int, ctx: Any) -> int:
        if n == GOOD:
            self.neighbors.append(ctx.attempt)
            return n
        self.attempts.append(ctx.attempt)
        error = self.errors.pop(0) if len(self.errors) > 1 else self.errors[0]
        if error is not None:
            raise error
        return n


@over(ways=PLAIN, transports=THOROUGH)
async def test_what_travels_with_a_message_is_in_its_next_attempt(way: Way) -> None:
    """Its id, headers, priority, deadline and correlation id, not only its body."""
    handler, facts = Handler(ValueError("again"), None), Facts()
    async with way.receiving(handler, retry=QUICK, hooks=facts) as service:
        deadline = float(round(service._clock.time() + 600))
        made = way.message(BAD, expires_at=deadline, correlation_id="trace-1")
        made = replace(made, headers={**made.headers, "tenant": "acme", "n": 7}, priority=5)
        await way.store(made)
        await wait_for(lambda: facts.outcomes(BAD) == ["retry", "success"], timeout=60)
    first, second = (one.message for one in facts.of(BAD))
    for one in (first, second):
        properties = one.delivery.properties
        assert one.id == made.id
        assert (one.delivery.headers["tenant"], one.delivery.headers["n"]) == ("acme", 7)
        assert properties is not None
        assert made.properties is not None
        assert properties.expires_at == pytest.approx(deadline, abs=1)
        assert properties.correlation_id == one.correlation_id == "trace-1"
        assert properties.routing_key == made.properties.routing_key
        assert properties.type == made.properties.type
    assert first.receipt.priority == second.receipt.priority == 5
    assert second.delivery.body == first.delivery.body == made.body
    assert (second.delivery.headers["x-retry-count"], second.attempt) == (1, 2)


async def sent(way: Way) -> None:
    """Both messages."""
    await way.send(BAD)
    await way.send(GOOD)


async def ended(facts: Facts, outcome: str, n: int = BAD) -> None:
    """Wait until the outcome of a message is stored, and its neighbor was handled."""
    await wait_for(lambda: outcome in facts.outcomes(n), message=f"{outcome} of {n}")
    await wait_for(lambda: facts.outcomes(GOOD) == ["success"], message="the neighbor")


@over(transports=THOROUGH)
async def test_a_failure_is_retried_until_it_succeeds(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    """Scenario: message processing fails with retry enabled."""
    handler, facts = Handler(ValueError("not yet"), ValueError("not yet"), None), Facts()
    async with way.receiving(handler, retry=QUICK, hooks=facts) as receiver:
        await sent(way)
        await ended(facts, "success")
        assert receiver.metrics().messages_retried == 2
    assert handler.attempts == [1, 2, 3]
    assert facts.outcomes(BAD) == ["retry", "retry", "success"]
    assert [one.decision.delay for one in facts.of(BAD)[:2]] == [0.01, 0.02]  # type: ignore[union-attr]
    logged = [one.getMessage() for one in caplog.records if "retrying" in one.getMessage()]
    assert ["attempt 1" in logged[0], "attempt 2" in logged[1]] == [True, True]
    assert ["0.01 s" in logged[0], "0.02 s" in logged[1]] == [True, True]
    assert await way.dead_letters() == []


async def test_attempts_used_up_are_a_dead_letter(way: Way) -> None:
    """Scenarios: message exceeds max retry attempts; failed message routing to DLQ; Kafka dead
    letter topic.

    What was sent with a message comes back in every attempt, and is in its dead letter.
    """
    facts, seen = Facts(), list[Any]()

    async def handle(n: int, ctx: Any) -> None:
        if n == BAD:
            seen.append((ctx.attempt, ctx.id, ctx.metadata, ctx.correlation_id))
            raise ValueError({1: "first", 2: "second"}.get(ctx.attempt, "last"))

    async with way.receiving(handle, retry=QUICK, hooks=facts) as receiver:
        await way.send(BAD, metadata={"tenant": "acme"}, correlation_id="trace-1")
        await way.send(GOOD)
        await ended(facts, "dead-letter")
        letter = await way.take_letter()
        counted, health = receiver.metrics(), receiver.health()
    trace = None if isinstance(way, Jobs) else "trace-1"
    id_ = facts.of(BAD)[0].id
    assert seen == [(n, id_, {"tenant": "acme"}, trace) for n in (1, 2, 3)]
    assert facts.outcomes(BAD) == ["retry", "retry", "dead-letter"]
    assert (counted.messages_failed, counted.messages_retried) == (3, 2)
    assert counted.messages_dead_lettered == 1
    assert health.last_error == "ValueError: last"
    reason = way.because("max attempts exceeded (3)", "last")
    assert (number_of(letter.body), letter.headers[REASON_HEADER]) == (BAD, reason)
    assert way.failed(letter) == Failed(
        id_,
        attempts=3,
        last_error="last",
        first_error="first" if isinstance(way, Events) else None,
        error_type=None if isinstance(way, Jobs) else "ValueError",
        queue=None if isinstance(way, Jobs) else way.queue,
        metadata={"tenant": "acme"},
        correlation_id=trace,
    )


@over(expires=True, transports=PIPELINE)
async def test_a_retry_knows_when_the_first_attempt_failed_and_its_deadline(way: Way) -> None:
    facts, seen = Facts(), list[Any]()
    began, expires_at = time.time() - 1, round(time.time() + 60, 3)

    async def handle(n: int, ctx: Any) -> None:
        seen.append((ctx.first_failure, ctx.deadline))
        raise ValueError("no")

    async with way.receiving(handle, retry=QUICK, hooks=facts):
        await way.store(way.message(BAD, expires_at=expires_at))
        await wait_for(lambda: "dead-letter" in facts.outcomes(BAD))
        letter = await way.take_letter()
    (first, *later), deadlines = zip(*seen, strict=True)
    assert first is None
    assert later[0] == later[1]
    failed = later[0].timestamp()
    assert began < failed < time.time() + 1
    assert letter.headers["x-first-failure"] == round(failed * 1000)
    assert round(failed * 1000) <= int(letter.headers["x-matador-failed-at"])
    assert [round(one.timestamp(), 3) for one in deadlines] == [expires_at] * 3


async def test_dont_retry_is_a_dead_letter_at_once(way: Way) -> None:
    handler, facts = Handler(DontRetry("never")), Facts()
    async with way.receiving(handler, hooks=facts):
        await sent(way)
        await ended(facts, "dead-letter")
        (letter,) = await way.dead_letters()
    assert handler.attempts == [1]
    assert (letter.number, letter.reason) == (BAD, "never")


@over(transports=PIPELINE)
async def test_do_retry_is_retried_though_it_must_not_run_twice(way: Way) -> None:
    handler, facts = Handler(DoRetry("busy", delay=0.01), None), Facts()
    async with way.receiving(handler, idempotent="no", hooks=facts):
        await sent(way)
        await ended(facts, "success")
    assert handler.attempts == [1, 2]
    assert facts.of(BAD)[0].decision.delay == 0.01  # type: ignore[union-attr]
    assert await way.dead_letters() == []


@over(transports=PIPELINE)
async def test_a_failure_that_must_not_run_twice_does_not(way: Way) -> None:
    handler, facts = Handler(ValueError("half done")), Facts()
    async with way.receiving(handler, idempotent="no", retry=QUICK, hooks=facts):
        await sent(way)
        await ended(facts, "dead-letter")
        (letter,) = await way.dead_letters()
    assert handler.attempts == [1]
    assert letter.number == BAD
    assert way.because("idempotent='no'", "half done") in letter.reason


@over(transports=PIPELINE)
@pytest.mark.parametrize("idempotent", ["yes", "resumable", "no", "unknown"])
async def test_a_timeout_is_retried_only_if_that_is_safe(way: Way, idempotent: Any) -> None:
    facts, attempts, safe = Facts(), list[int](), idempotent in ("yes", "resumable")

    async def handle(n: int, ctx: Any) -> None:
        if n == BAD:
            attempts.append(ctx.attempt)
            if len(attempts) == 1:
                await asyncio.Event().wait()

    options: dict[str, Any] = {"timeout": 0.05, "retry": QUICK, "hooks": facts}
    if idempotent == "resumable":
        options["checkpoints"] = MemoryCheckpointStore()
    async with way.receiving(handle, idempotent=idempotent, **options):
        await sent(way)
        await ended(facts, "success" if safe else "dead-letter")
        letters = await way.dead_letters()
    first = facts.of(BAD)[0]
    assert "timeout" in str(first.error)
    if safe:
        assert (attempts, letters) == ([1, 2], [])
    else:
        assert attempts == [1]
        (letter,) = letters
        assert letter.number == BAD
        assert way.because("interrupted", "longer than its timeout") in letter.reason


class Odd(BaseException):
    """Neither an ``Exception`` nor anything that ends a process."""


class Silent(Exception):
    """What it says cannot be found out: its ``__str__`` raises something."""

    def __init__(self, raises: type[BaseException]) -> None:
        self.raises = raises

    def __str__(self) -> str:
        raise self.raises


class Strict(logging.Formatter):
    """Needs the text of an exception, as the formatter of PySpark does."""

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info:
            str(record.exc_info[1])
        return super().format(record)


ODD = (
    StopIteration(),
    StopAsyncIteration(),
    GeneratorExit(),
    asyncio.CancelledError(),
    Odd("odd"),
    Silent(ValueError),
    Silent(asyncio.CancelledError),
    Silent(GeneratorExit),
    ValueError("\ud800\0" * 100_000),
    ExceptionGroup("several", [ValueError("one"), ExceptionGroup("more", [KeyError("two")])]),
    BaseExceptionGroup("several", [Odd("one"), GeneratorExit()]),
)


@over(also=[Call], transports=PIPELINE)
async def test_whatever_a_handler_raises_is_a_failure(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    """The only slot handles what comes after it."""
    caplog.handler.setFormatter(Strict())  # pytest's handler raises what a formatter raises
    facts, odd = Facts(), dict(enumerate(ODD, GOOD + 1))

    async def handle(n: int, ctx: Any) -> int:
        await asyncio.sleep(0)
        if n in odd:
            raise odd[n]
        return n

    retry = StandardRetryPolicy(max_attempts=2, base_delay=0.01)
    async with way.receiving(handle, concurrency=1, retry=retry, hooks=facts):
        for n in odd:
            if isinstance(way, Call):
                with pytest.raises(RemoteError):
                    await way.send(n)
            else:
                await way.send(n)
        await way.send(GOOD)
        for n in odd:
            await ended(facts, "dead-letter", n)
        letters = await way.dead_letters()
    assert sorted(one.number or 0 for one in letters) == list(odd)
    retried = [] if isinstance(way, Call) else ["retry"]
    assert [facts.outcomes(n) for n in odd] == [[*retried, "dead-letter"]] * len(odd)


@over(keeping_is_chosen=True, transports=THOROUGH)
async def test_without_dead_letters_a_failed_message_is_deleted(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    """Malformed ones, too: there is nowhere to keep them."""
    handler, facts = Handler(ValueError("broken")), Facts()
    options: dict[str, Any] = {"malformed": "reject", "dead_letters": False}
    async with way.receiving(handler, retry=QUICK, hooks=facts, **options) as receiver:
        await sent(way)
        await way.store(way.message(body=b"not json"))
        await ended(facts, "discard")
        await wait_for(lambda: facts.of(None))
        assert receiver.metrics().messages_dead_lettered == 0
        assert receiver.metrics().messages_discarded == 2
    assert facts.outcomes(BAD) == ["retry", "retry", "discard"]
    assert facts.outcomes(None) == ["discard"]
    assert "dead letters are disabled" in str(facts.of(BAD)[-1].reason)
    assert "cannot be handled and was deleted" in caplog.text


@over(ways=[Call])
async def test_a_call_at_most_once_is_answered(way: Way) -> None:
    handler, facts = Handler(None), Facts()
    async with way.receiving(handler, delivery="at-most-once", hooks=facts):
        assert await way.send(BAD) == BAD
        await wait_for(lambda: facts.of(BAD))
    assert facts.outcomes(BAD) == ["success"]


async def test_at_most_once_is_acknowledged_before_it_runs(way: Way) -> None:
    facts, left = Facts(), list[int]()

    async def handle(n: int, ctx: Any) -> None:
        if n == BAD:
            left.append(await way.left())
            raise ValueError("once is enough")

    async with way.receiving(handle, delivery="at-most-once", retry=QUICK, hooks=facts) as one:
        await way.send(BAD)
        await wait_for(lambda: left)
        await way.send(GOOD)
        await ended(facts, "discard")
        assert one.metrics().messages_discarded == 1
    assert left == [0], "it ran before it was acknowledged"
    assert await way.dead_letters() == []
    if way.outlives:  # nothing of it is left in the queue
        async with way.receiving(handle, hooks=facts):
            await way.send(3)
            await wait_for(lambda: facts.of(3))
    assert facts.outcomes(BAD) == ["discard"]


# -- defaults -------------------------------------------------------------------------------------


@over(also=[Call], transports=PIPELINE)
async def test_what_is_the_same_everywhere_by_default(way: Way) -> None:
    """Three attempts, one second after the first, two after the second; dead letters are kept."""
    handler, facts = Handler(DoRetry("again")), Facts()
    async with way.receiving(handler, hooks=facts):
        sending = asyncio.create_task(way.send(BAD))
        await wait_for(lambda: facts.of(BAD))
        await way.send(GOOD)
        await ended(facts, "retry")
        sending.cancel()
        await asyncio.wait([sending])
    first = facts.of(BAD)[0]
    assert first.decision.delay == 1.0  # type: ignore[union-attr]


# -- handlers that acknowledge by themselves ------------------------------------------------------


@over(ways=[Notify, PubSub], transports=PIPELINE)
async def test_a_handler_acknowledges_by_itself(way: Way) -> None:
    ack, fail_late, nack, again, later, fail = range(1, 7)
    seen: list[tuple[int, int]] = []
    kept: list[Any] = []

    async def handle(n: int, ctx: Any) -> None:
        seen.append((n, ctx.attempt))
        if n == ack:
            await ctx.ack()  # may be awaited
        elif n == fail_late:
            ctx.ack()
            raise ValueError("too late")
        elif n in (nack, again):
            ctx.nack(requeue=n == again)
        elif n == later:
            kept.append(ctx)
        else:
            raise ValueError("a failure like in auto mode")

    manual = AckStrategy(mode="manual", max_retries=2, retry_delay=0.01)
    facts = Facts()
    async with way.receiving(handle, ack=manual, hooks=facts, concurrency=6) as receiver:
        for n in (ack, fail_late, nack, again, later, fail):
            await way.send(n)
        dead = (nack, again, fail)
        await wait_for(lambda: kept and all("dead-letter" in facts.outcomes(n) for n in dead))
        await wait_for(lambda: receiver.metrics().messages_succeeded == 2)
        assert sorted(one.number or 0 for one in await way.dead_letters()) == [*dead]
        await asyncio.to_thread(kept[0].ack)
        await wait_for(lambda: receiver.metrics().messages_succeeded == 3)
        kept[0].nack()  # only the first counts
    again_too = [(again, 1), (again, 2), (fail, 1), (fail, 2)]
    assert sorted(seen) == sorted([(ack, 1), (fail_late, 1), (nack, 1), (later, 1), *again_too])


@over(ways=[Notify, PubSub], transports=PIPELINE)
@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("manual", "the handler called neither ack() nor nack() in 0.1 s"),
        ("auto", "nack() is for AckStrategy(mode='manual'); in auto mode, raise an error instead"),
    ],
)
async def test_a_handler_that_acknowledges_wrongly_has_failed(
    way: Way, mode: Any, error: str
) -> None:
    async def handle(n: int, ctx: Any) -> None:
        if mode == "auto":
            ctx.ack()  # harmless
            if n == BAD:
                ctx.nack()
        elif n == GOOD:
            ctx.ack()

    facts, strategy = Facts(), AckStrategy(mode=mode, max_retries=1)
    options: dict[str, Any] = {"timeout": 0.1, "concurrency": 1} if mode == "manual" else {}
    async with way.receiving(handle, ack=strategy, hooks=facts, **options):
        await sent(way)
        await ended(facts, "dead-letter")
    assert error in str(facts.of(BAD)[0].error)


@over(ways=[Notify, PubSub], transports=PIPELINE)
async def test_a_function_processes_the_dead_letters(way: Way) -> None:
    processed: list[tuple[Any, str, int]] = []

    async def process(data: Any, ctx: Any) -> None:
        if data == {"n": 3} and ctx.attempts < 2:
            raise ValueError("not yet")
        processed.append((data, str(ctx.headers[REASON_HEADER]), ctx.attempts))

    options: dict[str, Any] = {"retry": StandardRetryPolicy(max_attempts=1)}
    letters = DeadLetterOptions(exchange=f"{way.tag}.dlx", handler=process)
    handler, facts = Handler(ValueError("over")), Facts()
    async with way.receiving(handler, dead_letters=letters, hooks=facts, **options):
        await sent(way)
        await way.send(3)
        await way.store(way.message(body=b"\xff{"))
        await wait_for(lambda: len(processed) == 3)
    by_data = {repr(data): (why, attempt) for data, why, attempt in processed}
    assert by_data["{'n': 1}"] == ("max attempts exceeded (1)", 1)
    assert by_data["{'n': 3}"] == ("max attempts exceeded (1)", 2)
    assert "not valid JSON" in by_data[repr(b"\xff{")][0]
    assert await way.dead_letters() == []


# -- callers that wait ----------------------------------------------------------------------------


@over(ways=[Call], transports=THOROUGH)
async def test_a_caller_waits_for_the_attempt_that_its_handler_asks_for(way: Way) -> None:
    busy, facts = DoRetry("busy", delay=0.01), Facts()
    handler = Handler(busy, busy, None)
    async with way.receiving(handler, hooks=facts):
        assert await way.send(BAD) == BAD
        assert handler.attempts == [1, 2, 3]
        handler.errors = [busy]
        with pytest.raises(RemoteError, match="busy"):
            await way.send(3)
        await wait_for(lambda: facts.outcomes(3)[-1:] == ["dead-letter"])
        assert [one.number for one in await way.dead_letters()] == [3]


@over(ways=[Call], transports=PIPELINE)
@pytest.mark.parametrize(
    ("error", "letters"), [(RemoteError("NO", "no"), 0), (ValueError("oops"), 1)]
)
async def test_a_caller_is_told_at_once(way: Way, error: Exception, letters: int) -> None:
    """What the handler tells its caller on purpose is no dead letter; a surprise is one."""
    handler, facts = Handler(error), Facts()
    async with way.receiving(handler, hooks=facts):
        with pytest.raises(RemoteError):
            await way.send(BAD)
        assert await way.send(GOOD) == GOOD
        await ended(facts, "dead-letter" if letters else "discard")
        assert len(await way.dead_letters()) == letters
    assert handler.attempts == [1]
