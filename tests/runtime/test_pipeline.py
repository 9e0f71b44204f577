"""The pipeline by itself, with the smallest way in: each outcome, and the fact that tells it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from matador import Deduplication, Hooks, MemoryCheckpointStore
from matador.errors import (
    DecodeError,
    DontRetry,
    DoRetry,
    InvalidEventError,
    JobTimeoutError,
    StoreUnavailableError,
    TimeoutError,
)
from matador.model.message import (
    DELIVERIES_HEADER,
    Complete,
    DeadLetter,
    Delivery,
    Message,
    Receipt,
    Release,
    Retry,
)
from matador.model.topology import DeadLetterKind
from matador.policy.retry import (
    RetryLater,
    RetryPolicy,
    SendToDeadLetters,
    StandardRetryPolicy,
)
from matador.runtime.calls import Calls
from matador.runtime.dedup import Deduplicator
from matador.runtime.facts import Attempt, Received
from matador.runtime.hooks import HookSet
from matador.runtime.interruption import Interruption
from matador.runtime.metrics import Counters
from matador.runtime.pipeline import Pipeline
from matador.runtime.settle import Outcome
from matador.runtime.threads import Threads
from matador.runtime.way import Call, Failure, Refusal, RefusalKind, Route, Scope, WayIn, Work
from matador.testing import ManualClock

QUEUE = "q"


class Attempted(Hooks):
    """Wants to be told, which makes the pipeline describe its outcomes."""

    def on_attempted(self, batch: Any) -> None: ...


class Tiny(WayIn):
    """Messages whose body says what is wrong with them; all others go to one handler."""

    def __init__(self, handler: Callable[[Any], Any], **route: Any) -> None:
        self.handler = handler
        self.route = Route(handler="handle", **route)
        self.retry: RetryPolicy = StandardRetryPolicy()
        self.keeps = True
        self.deadline: float | None = None
        self.called: list[str] = []
        self.open = self._opened

    def read(self, delivery: Delivery) -> Work | Refusal:
        self.called.append("read")
        work = Work(delivery, self.route, "m-1", 1, self.deadline)
        if delivery.body == b"malformed":
            return Refusal(delivery, DecodeError("no message"), "malformed")
        if delivery.body == b"unhandled":
            return Refusal(delivery, DontRetry("nobody"), "unhandled", work)
        return work

    def _opened(self, work: Work) -> Refusal | None:
        self.called.append("open")
        if work.delivery.body == b"ambiguous":
            return Refusal(work.delivery, DecodeError("twice"), "malformed", work)
        if work.delivery.body == b"invalid":
            return Refusal(work.delivery, InvalidEventError("no number"), "undeliverable", work)
        return None

    def call(self, work: Work, scope: Scope | None) -> Call:
        self.called.append("call")
        if self.route.is_async:
            return self.handler(scope)
        return lambda: self.handler(scope)

    def policy(self, work: Work) -> RetryPolicy:
        return self.retry

    def successor(self, work: Work, failure: Failure) -> Message:
        delay = failure.decision.delay if isinstance(failure.decision, RetryLater) else 0.0
        return Message(work.id, QUEUE, work.delivery.body, {"error": str(failure.error)}, delay)

    def fact(self, work: Work) -> Received:
        return Received(
            "message", work.id, "name", "handle", "memory", work.delivery, work.attempt, 0.0
        )

    def unread(self, delivery: Delivery) -> Received:
        return Received("message", "", "", "", "memory", delivery, 1, 0.0, known=False)

    def label(self, work: Work) -> str:
        return "handle of name"

    def dead_letters(self, queue: str, kind: RefusalKind) -> DeadLetterKind | None:
        if not self.keeps:
            return None
        return "unhandled" if kind == "unhandled" else "undeliverable"


class Line:
    """A pipeline, and what it needs."""

    def __init__(self, way: Tiny, hooks: Any = None, **options: Any) -> None:
        self.interruption = Interruption()
        self.threads = Threads(10)
        self.counters = Counters()
        self.clock = ManualClock()
        self.way = way
        self.pipeline = Pipeline(
            way,
            Calls(self.threads, self.interruption),
            hooks=HookSet([Attempted(), *([] if hooks is None else [hooks])]),
            counters=self.counters,
            clock=self.clock,
            **options,
        )

    async def process(self, body: bytes = b"fine", **receipt: Any) -> Outcome:
        try:
            return await self.pipeline.process(
                Delivery(body, {"x": 1}, Receipt(QUEUE, 1, **receipt))
            )
        finally:
            self.threads.close()


async def succeed(scope: object) -> str:
    return "done"


def fail(error: BaseException) -> Callable[[object], Awaitable[None]]:
    async def handler(scope: object) -> None:
        raise error

    return handler


def counts(line: Line) -> dict[str, int]:
    """The counters that are not 0."""
    metrics = line.counters.snapshot()
    fields = {name: getattr(metrics, name) for name in metrics.__dataclass_fields__}
    return {name.removeprefix("messages_"): number for name, number in fields.items() if number}


def told(outcome: Outcome) -> Attempt:
    assert outcome.attempt is not None
    return outcome.attempt


# -- handled -------------------------------------------------------------------------------------


@pytest.mark.parametrize("takes_context", [False, True])
async def test_success(takes_context: bool) -> None:
    line = Line(Tiny(succeed, takes_context=takes_context))
    outcome = await line.process()
    assert isinstance(outcome.settlement, Complete)
    attempt = told(outcome)
    assert (attempt.outcome, attempt.error, attempt.decision) == ("success", None, None)
    assert (attempt.result, attempt.ran, attempt.malformed) == ("done", True, False)
    assert (attempt.id, attempt.queue, attempt.attempt) == ("m-1", QUEUE, 1)
    assert attempt.started_at == line.clock.time()
    assert counts(line) == {"succeeded": 1}
    assert line.way.called == ["read", "open", "call"]


async def test_the_duration_is_that_of_the_handler() -> None:
    line: Line

    async def slow(scope: object) -> None:
        line.clock.advance(1.5)

    line = Line(Tiny(slow))
    line.clock.advance(100)
    began = line.clock.time()
    attempt = told(await line.process())
    assert (attempt.started_at, attempt.duration) == (began, 1.5)


async def test_without_anybody_who_listens_no_fact_is_made() -> None:
    way = Tiny(succeed)
    pipeline = Pipeline(
        way,
        Calls(Threads(1), Interruption()),
        hooks=HookSet(),
        counters=Counters(),
        clock=ManualClock(),
    )
    for body in (b"fine", b"malformed", b"invalid"):
        assert (await pipeline.process(Delivery(body, {}, Receipt(QUEUE, 1)))).attempt is None


async def test_a_sync_handler_runs_in_a_thread() -> None:
    def handler(scope: object) -> str:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return "done"

    line = Line(Tiny(handler, is_async=False))
    assert told(await line.process()).result == "done"


# -- failed --------------------------------------------------------------------------------------


async def test_retry() -> None:
    line = Line(Tiny(fail(ValueError("once"))))
    outcome = await line.process()
    assert isinstance(outcome.settlement, Retry)
    assert (outcome.settlement.message.delay, outcome.settlement.message.id) == (1.0, "m-1")
    attempt = told(outcome)
    assert (attempt.outcome, attempt.error_text, attempt.ran) == ("retry", "once", True)
    assert attempt.decision == RetryLater(1.0)
    assert counts(line) == {"failed": 1, "retried": 1}
    assert line.counters.last_error == "ValueError: once"


async def test_dead_letter() -> None:
    line = Line(Tiny(fail(DontRetry("never"))))
    outcome = await line.process()
    assert isinstance(outcome.settlement, DeadLetter)
    assert (outcome.settlement.kind, outcome.settlement.reason) == ("undeliverable", "never")
    attempt = told(outcome)
    assert (attempt.outcome, attempt.reason, attempt.ran) == ("dead-letter", "never", True)
    assert attempt.dead_letter_kind == "undeliverable"
    assert counts(line) == {"failed": 1, "dead_lettered": 1}


async def test_a_policy_that_fails_costs_no_message(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(StandardRetryPolicy):
        def decide(self, context: Any) -> Any:
            raise RuntimeError("a bug")

    line = Line(Tiny(fail(ValueError("x"))))
    line.way.retry = Broken()
    attempt = told(await line.process())
    assert attempt.decision == SendToDeadLetters("undeliverable", "the retry policy failed: a bug")
    assert "the retry policy raised an error" in caplog.text


@pytest.mark.parametrize(("longest", "delay"), [(None, 60.0), (5.0, 5.0), (900.0, 60.0), (0, 0)])
async def test_no_delay_is_longer_than_the_transport_can_keep(
    longest: float | None, delay: float
) -> None:
    line = Line(Tiny(fail(DoRetry("x", delay=60))), longest_delay=longest)
    assert told(await line.process()).decision == RetryLater(delay, "retry requested")


async def test_a_timeout_that_the_handler_raised_itself_is_an_ordinary_error() -> None:
    async def other(scope: object) -> None:
        raise TimeoutError("of a database")

    line = Line(Tiny(other, timeout=60, idempotent="unknown"))
    assert told(await line.process()).outcome == "retry"


async def test_a_result_that_cannot_be_encoded_is_a_failure() -> None:
    way = Tiny(succeed)
    way.encode = lambda work, result: msgspec.json.encode(object())
    line = Line(way)
    attempt = told(await line.process())
    assert (attempt.outcome, attempt.error_type) == ("retry", "TypeError")
    assert counts(line) == {"failed": 1, "retried": 1}


async def test_what_has_to_happen_before_the_settlement_happens_before_it() -> None:
    way, seen = Tiny(succeed), list[Any]()

    async def finish(body: bytes | None, failure: Failure | None) -> bytes:
        seen.append((body, failure and str(failure.error)))
        return b"stored"

    way.encode = lambda work, result: str(result).encode()
    way.finished = lambda work, body, failure: finish(body, failure)
    outcome = await Line(way).process()
    assert outcome.settlement == Complete(outcome.receipt, b"stored")
    way.handler = fail(ValueError("x"))
    await Line(way).process()
    await Line(way).process(b"invalid")
    assert seen == [(b"done", None), (None, "x"), (None, "no number")]


async def test_a_result_that_can_never_be_stored_has_failed() -> None:
    way = Tiny(succeed)
    way.encode = lambda work, result: b"x" * 1000
    line = Line(way)
    outcome = await line.process()
    assert outcome.simpler is not None
    instead = outcome.simpler()
    assert isinstance(instead.settlement, DeadLetter)
    assert "result of 1,000 bytes cannot be stored" in instead.settlement.reason
    assert told(instead).outcome == "dead-letter"
    assert counts(line) == {"failed": 1, "dead_lettered": 1}, "it is not counted as a success, too"


# -- what hooks are asked ------------------------------------------------------------------------


# -- not run -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "kind", "reason"),
    [(b"unhandled", "unhandled", "nobody"), (b"invalid", "undeliverable", "no number")],
)
async def test_unhandled_and_invalid(body: bytes, kind: str, reason: str) -> None:
    line = Line(Tiny(succeed))
    outcome = await line.process(body)
    assert isinstance(outcome.settlement, DeadLetter)
    assert (outcome.settlement.kind, outcome.settlement.reason) == (kind, reason)
    assert outcome.settlement.message is not None
    attempt = told(outcome)
    assert (attempt.outcome, attempt.ran, attempt.malformed) == ("dead-letter", False, False)
    assert counts(line) == {"failed": 1, "dead_lettered": 1}
    assert "call" not in line.way.called


async def test_a_broker_that_does_not_count_gets_a_copy_that_does() -> None:
    line = Line(Tiny(succeed))
    outcome = await line.process(delivery_count=2, redelivered=True, exact_count=False)
    assert isinstance(outcome.settlement, Retry)
    again = outcome.settlement.message
    assert (again.body, again.delay) == (b"fine", 0.0)
    assert again.headers == {"x": 1, DELIVERIES_HEADER: 1}
    assert outcome.attempt is None, "it has not been attempted"
    assert (line.way.called, counts(line)) == (["read"], {})


@pytest.mark.parametrize(("minds", "later"), [(True, 1.0), (False, -1.0)])
async def test_not_expired(minds: bool, later: float) -> None:
    line = Line(Tiny(succeed), minds_deadlines=minds)
    line.way.deadline = line.clock.time() + later
    assert told(await line.process()).outcome == "success"


# -- neither handled nor failed ------------------------------------------------------------------


async def test_a_store_that_is_unavailable_costs_no_attempt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    line = Line(Tiny(fail(StoreUnavailableError("away"))))
    outcome = await line.process()
    assert outcome.settlement == Release(outcome.receipt)
    assert (outcome.attempt, counts(line)) == (None, {})
    assert "handle of name goes back to its queue, uncounted: away" in caplog.text


@pytest.mark.parametrize(
    ("idempotent", "released"),
    [("yes", True), ("resumable", True), ("no", False), ("unknown", False)],
)
async def test_interrupted(idempotent: Any, released: bool) -> None:
    started = asyncio.Event()

    async def hang(scope: object) -> None:
        started.set()
        await asyncio.Event().wait()

    line = Line(Tiny(hang, idempotent=idempotent))
    processing = asyncio.create_task(line.process())
    await started.wait()
    line.interruption.force()
    processing.cancel()
    outcome = await processing
    assert outcome.settlement == (Release(outcome.receipt) if released else None)
    assert (outcome.attempt, counts(line)) == (None, {})


async def test_a_handler_that_was_cancelled_by_something_else_has_failed() -> None:
    line = Line(Tiny(fail(asyncio.CancelledError())))
    attempt = told(await line.process())
    assert (attempt.outcome, attempt.error_type) == ("retry", "RuntimeError")


@pytest.mark.parametrize("part", ["read", "_opened", "call", "policy"])
async def test_an_error_in_the_way_in_itself_makes_a_dead_letter(
    part: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> Any:
        raise RuntimeError("a bug")

    way = Tiny(fail(ValueError("x")))
    way.malformed = "ignore"  # which does not mean this
    if part == "_opened":
        way.open = broken
    else:
        setattr(way, part, broken)
    line = Line(way)
    outcome = await line.process(delivery_count=2, redelivered=True)
    assert isinstance(outcome.settlement, DeadLetter)
    assert "a bug" in outcome.settlement.reason
    assert told(outcome).outcome == "dead-letter"
    assert "could not be processed" in caplog.text or "retry policy" in caplog.text


# -- at most once --------------------------------------------------------------------------------


class Settled:
    """Settles at once, or refuses."""

    def __init__(self, refused: Exception | None = None) -> None:
        self.refused = refused
        self.settlements: list[Any] = []

    async def settle_now(self, settlement: Any) -> Exception | None:
        self.settlements.append(settlement)
        return self.refused


async def test_at_most_once_does_not_run_if_it_is_not_acknowledged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settler = Settled(DecodeError("no"))
    line = Line(Tiny(succeed, at_most_once=True), settler=settler)
    outcome = await line.process()
    assert (outcome.settlement, outcome.attempt) == (None, None)
    assert "call" not in line.way.called
    assert "could not be acknowledged, so it was not run" in caplog.text


# -- duplicates, manual acknowledgement, steps ---------------------------------------------------


async def test_a_duplicate_is_not_run_and_told_as_a_success() -> None:
    runs = 0

    async def handler(scope: object) -> int:
        nonlocal runs
        runs += 1
        return runs

    way = Tiny(handler)
    way.encode = lambda work, result: msgspec.json.encode(result)
    dedup = Deduplicator(Deduplication())
    first, second = Line(way, dedup=dedup), Line(way, dedup=dedup)
    outcomes = [await first.process(), await second.process()]
    assert runs == 1
    for outcome in outcomes:
        assert outcome.settlement == Complete(outcome.receipt, b"1")
        assert (told(outcome).outcome, told(outcome).result) == ("success", 1)
    assert counts(first) == {"succeeded": 1}
    assert counts(second) == {"succeeded": 1, "duplicates": 1}


async def test_the_steps_of_a_success_are_deleted_and_those_of_a_dead_letter_kept() -> None:
    store = MemoryCheckpointStore()

    async def steps(scope: Any) -> None:
        scope.steps.claim("a")
        await scope.steps.record("a", 1)

    async def steps_and_fail(scope: Any) -> None:
        await steps(scope)
        raise DontRetry("no")

    line = Line(Tiny(steps_and_fail, idempotent="resumable"), checkpoints=store)
    outcome = await line.process()
    assert outcome.then is not None
    await outcome.then()
    assert list(store) == ["m-1"]
    line = Line(Tiny(succeed, idempotent="resumable"), checkpoints=store)
    outcome = await line.process()
    assert len(store) == 1, "not before it is settled"
    assert outcome.then is not None
    await outcome.then()
    assert len(store) == 0


# -- hooks around a handler ----------------------------------------------------------------------


async def test_hooks_around_a_handler_see_its_error_and_change_nothing() -> None:
    seen: list[Any] = []

    class Wraps(Hooks):
        async def on_worker_wrap(self, event: Received, proceed: Any) -> None:
            seen.append(event.id)
            seen.append(str(await proceed()))
            raise RuntimeError("of the hook")

    line = Line(Tiny(fail(ValueError("x"))), Wraps())
    assert told(await line.process()).error_text == "x"
    assert seen == ["m-1", "x"]


# -- poison in the payload -----------------------------------------------------------------------


# -- what must not happen twice, and time in between ----------------------------------------------


async def test_at_most_once_is_acknowledged_before_the_handler_and_not_again() -> None:
    settler = Settled()

    async def handle(scope: object) -> None:
        assert [type(one) for one in settler.settlements] == [Complete]

    line = Line(Tiny(handle, at_most_once=True), settler=settler)
    outcome = await line.process()
    assert (outcome.settlement, told(outcome).outcome) == (None, "success")
    assert len(settler.settlements) == 1


async def test_the_way_in_names_the_error_of_a_handler_that_took_too_long() -> None:
    class Named(Tiny):
        def late(self, work: Any, limit: float) -> TimeoutError | None:
            return JobTimeoutError(f"took longer than {limit} s")

    async def hang(scope: object) -> None:
        await asyncio.Event().wait()

    attempt = told(await Line(Named(hang, timeout=0.01)).process())
    assert isinstance(attempt.error, JobTimeoutError)
    assert attempt.outcome != "success"
    attempt = told(await Line(Tiny(hang, timeout=0.01)).process())
    assert isinstance(attempt.error, TimeoutError)
