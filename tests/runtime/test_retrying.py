"""What becomes of a message whose callback failed, and of one that came too often."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.support.faulty import FaultyTransport
from tests.support.shop import (
    QUEUE,
    Handler,
    Heard,
    OrderPlaced,
    dead,
    failing,
    make_app,
    memory,
    read,
    settled,
    subscribed,
)
from tests.support.taking import take_stored

from matador import (
    Context,
    DontRetry,
    DoRetry,
    Envelope,
    EventAssertionError,
    Hooks,
    JsonCodec,
    Matador,
    RetryQueues,
    StandardRetryPolicy,
    Subscriber,
    Topology,
    assert_event,
)
from matador.errors import MaybePoisonedError, NonIdempotentCannotRetryError
from matador.events.dead_letters import Selection
from matador.model.envelope import Docket
from matador.model.message import Complete, DeadLetter, Message, Properties, Release, Retry
from matador.policy.retry import Discard, RetryContext, RetryLater, SendToDeadLetters
from matador.testing import ManualClock, make_docket, make_envelope, wait_for
from matador.transports.memory import MemoryTransport


def timed(clock: ManualClock, *subscribers: Any, **options: Any) -> Matador:
    """An application whose time is the test's."""
    return make_app(MemoryTransport(clock=clock), *subscribers, clock=clock, **options)


# -- retries -----------------------------------------------------------------------------------


async def test_a_failure_is_retried_later_with_what_went_wrong(manual_clock: ManualClock) -> None:
    handler, heard = failing(ValueError("first"), ValueError("second")), Heard()
    async with timed(manual_clock, handler, hooks=heard) as app:
        await app.send(OrderPlaced("o-1"), correlation_id="c-1", metadata={"a": 1})
        for passed in (0, 1, 2):
            manual_clock.advance(passed)
            await settled(app)
        assert dead(app) == []
        assert memory(app).messages(QUEUE) == []
    first, second, third = [envelope.docket for envelope in handler.envelopes]
    assert [first.attempts, second.attempts, third.attempts] == [1, 2, 3]
    assert (second.first_error, second.last_error) == ("first", "first")
    assert (third.first_error, third.last_error) == ("first", "second")
    assert third.scheduled_for == third.created_at + timedelta(seconds=3)
    assert {envelope.id for envelope in handler.envelopes} == {handler.envelopes[0].id}
    assert (third.correlation_id, third.metadata) == ("c-1", {"a": 1})
    assert [event.decision.delay for event in heard.of("error")] == [1.0, 2.0]
    assert len(heard.of("success")) == 1


async def test_retries_dead_letters_and_redrives_keep_the_properties() -> None:
    sent = Properties(reply_to="answers", correlation_id="c-1", type="order", expires_at=1e10)
    handler = failing(*[ValueError("again and again")] * 4)
    retry = StandardRetryPolicy(max_attempts=2, base_delay=0)
    async with make_app(None, handler, retry=retry) as app:
        docket = make_docket(event_key="order.placed", subscriber="handle")
        raw = make_envelope(msgspec.Raw(b'{"order_id":"o-1"}'), id="m-1", docket=docket)
        body = JsonCodec().encode(raw).body
        assert await app.transport.send([Message("m-1", QUEUE, body, properties=sent)]) == [None]
        for runs in (2, 4):
            await wait_for(lambda: bool(dead(app)), message="the dead letter")
            assert handler.runs == runs
            (letter,) = dead(app)
            (taken,) = await take_stored(memory(app), letter.queue, [letter.position])
            assert taken.properties == sent
            assert await app.transport.settle([Release(taken.receipt)]) == [None]
            places = await app.dead_letters.choose(Selection())
            assert (await app.dead_letters.redrive(places)).done == 1
        await settled(app)
    assert handler.runs == 5


async def test_a_retry_keeps_its_priority_and_its_ordering_key(manual_clock: ManualClock) -> None:
    handler = failing(ValueError("once"))
    async with timed(manual_clock, handler) as app:
        await app.send(OrderPlaced("o-1"), ordering_key="customer-1")
        await settled(app)
        (waiting,) = memory(app).messages(QUEUE)
    assert (waiting.state, waiting.ordering_key) == ("delayed", "customer-1")


async def test_attempts_that_are_used_up_end_among_the_dead_letters(
    manual_clock: ManualClock,
) -> None:
    handler, heard = failing(*[ValueError(f"failure {n}") for n in range(9)]), Heard()
    async with timed(manual_clock, handler, hooks=heard) as app:
        await app.send(OrderPlaced("o-1"))
        for _ in range(5):
            await settled(app)
            manual_clock.advance(300)
        (letter,) = dead(app)
    assert handler.runs == 3
    docket = read(letter).docket
    assert (docket.first_error, docket.last_error) == ("failure 0", "failure 2")
    assert (docket.attempts, docket.original_queue) == (3, QUEUE)
    assert letter.reason == "max attempts exceeded (3)"
    assert letter.error_type == "ValueError"
    assert letter.traceback is not None
    assert letter.traceback.rstrip().endswith("ValueError: failure 2")
    assert isinstance(heard.of("error")[-1].decision, SendToDeadLetters)


async def test_a_message_of_another_queue_that_fails_here_keeps_its_home() -> None:
    docket = Docket(
        event_key="order.placed",
        target_subscriber="handle",
        created_at=datetime.now(UTC),
        attempts=1,
        importance="should-investigate",
        original_queue="shop.elsewhere",
    )
    raw = Envelope("m-1", msgspec.Raw(b'{"order_id":"o-1","amount":5}'), docket)
    async with make_app(None, failing(DontRetry("no"))) as app:
        await app.transport.send([Message("m-1", QUEUE, app.codec.encode(raw).body)])
        await settled(app)
        (letter,) = dead(app)
    assert read(letter).docket.original_queue == "shop.elsewhere"


async def test_an_error_that_cannot_be_printed_makes_a_dead_letter_all_the_same() -> None:
    class Unprintable(DontRetry):
        def __str__(self) -> str:
            raise RuntimeError("no")

    async with make_app(None, failing(Unprintable())) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
        (letter,) = dead(app)
    assert letter.error_type is not None
    assert letter.error_type.endswith("Unprintable")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DontRetry("the card was declined"), "the card was declined"),
        (EventAssertionError("no such order"), "assertion error: no such order"),
    ],
)
async def test_some_errors_are_not_worth_another_attempt(error: Exception, reason: str) -> None:
    handler = failing(error)
    async with make_app(None, handler) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
        (letter,) = dead(app)
    assert (handler.runs, letter.reason) == (1, reason)


async def test_assert_event_says_which_envelope() -> None:
    async def check(envelope: Envelope[OrderPlaced], ctx: Context) -> None:
        assert_event(envelope, envelope.data.amount > 0, "the amount must be positive")

    heard = Heard()
    async with make_app(None, check, hooks=heard) as app:
        await app.send(OrderPlaced("o-1", 0))
        await settled(app)
    error = heard.of("error")[0].error
    assert error.envelope.data == OrderPlaced("o-1", 0)


async def test_do_retry_is_retried_until_the_attempts_are_used_up(
    manual_clock: ManualClock,
) -> None:
    handler = failing(*[DoRetry("the gateway is down")] * 9)
    async with timed(manual_clock, subscribed(handler, idempotent="no")) as app:
        await app.send(OrderPlaced("o-1"))
        for _ in range(4):
            await settled(app)
            manual_clock.advance(300)
        (letter,) = dead(app)
    assert (handler.runs, letter.reason) == (3, "max attempts exceeded (3) with forced retry")


@pytest.mark.parametrize(
    "error", [KeyError("missing"), ValueError(""), RuntimeError("x" * 10_000), ValueError("\ud800")]
)
async def test_whatever_is_raised_can_be_kept(error: Exception, manual_clock: ManualClock) -> None:
    async with timed(manual_clock, failing(error)) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
        (waiting,) = memory(app).messages(QUEUE)
    text = read(waiting).docket.last_error
    assert text
    assert len(text) <= 4000


async def test_what_is_raised_but_no_exception_is_a_failure_too(manual_clock: ManualClock) -> None:
    class Odd(BaseException):
        pass

    heard = Heard()
    async with timed(manual_clock, failing(Odd("strange")), hooks=heard) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    (event,) = heard.of("error")
    assert "Odd: strange" in str(event.error)
    assert isinstance(event.decision, RetryLater)


async def test_a_callback_whose_own_task_was_cancelled_has_failed(
    manual_clock: ManualClock,
) -> None:

    heard = Heard()
    async with timed(manual_clock, failing(asyncio.CancelledError()), hooks=heard) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    (event,) = heard.of("error")
    assert "cancelled" in str(event.error)


# -- policies ----------------------------------------------------------------------------------


class Policy:
    """Does what the test says."""

    max_deliveries = 5

    def __init__(self, decide: Callable[[RetryContext], Any]) -> None:
        self.seen: list[RetryContext] = []
        self._decide = decide

    def decide(self, context: RetryContext) -> Any:
        self.seen.append(context)
        return self._decide(context)


async def test_a_policy_is_told_all_there_is_to_know() -> None:
    policy = Policy(lambda context: Discard("not needed"))
    error, heard = ValueError("broken"), Heard()
    async with make_app(None, failing(error), retry=policy, hooks=heard) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
        assert memory(app).completed(QUEUE) == 1
        assert dead(app) == []
    (context,) = policy.seen
    assert context.error is error
    assert context.envelope.data == OrderPlaced("o-1")
    assert (context.subscriber.name, context.receipt.queue) == ("handle", QUEUE)
    assert 0 <= context.random < 1
    assert heard.of("error")[0].decision == Discard("not needed")


async def test_a_policy_may_choose_the_kind_of_dead_letter() -> None:
    policy = Policy(lambda context: SendToDeadLetters("unhandled", "nobody wants it"))
    async with make_app(None, failing(ValueError("x")), retry=policy) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
        assert [letter.reason for letter in dead(app, "unhandled")] == ["nobody wants it"]


@pytest.mark.parametrize("answer", [None, "later", ZeroDivisionError("a bug")])
async def test_a_policy_that_breaks_loses_nothing(answer: object) -> None:
    def decide(context: RetryContext) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    handler = failing(ValueError("x"))
    async with make_app(None, handler, retry=Policy(decide)) as app:
        await app.send_many([OrderPlaced("o-1"), OrderPlaced("o-2")])
        await settled(app)
        (letter,) = dead(app)
        assert b"o-1" in letter.body
    assert handler.runs == 2


# -- dynamic hooks -----------------------------------------------------------------------------


class Dynamic(Hooks):
    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def _answer(self, name: str) -> Any:
        answer = self.answers.get(name)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def get_retry_delay(self, envelope: Envelope[Any]) -> Any:
        return self._answer("delay")

    def get_attempts(self, envelope: Envelope[Any]) -> Any:
        return self._answer("attempts")

    def get_max_deliveries(self, envelope: Envelope[Any]) -> Any:
        return self._answer("deliveries")


@pytest.mark.parametrize(
    ("delay", "expected"),
    [
        (7, 7.0),
        (0.5, 0.5),
        (timedelta(minutes=2), 120.0),
        (0, 0.0),
        (None, 1.0),
        (RuntimeError("no idea"), 1.0),
        (-1, 1.0),
        ("soon", 1.0),
    ],
)
async def test_a_hook_may_decide_the_delay(
    delay: object, expected: float, manual_clock: ManualClock
) -> None:
    heard = Heard()
    hooks = [Dynamic(delay=delay), heard]
    async with timed(manual_clock, failing(ValueError("once")), hooks=hooks) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
        assert dead(app) == []
    assert heard.of("error")[0].decision.delay == expected


@pytest.mark.parametrize(("attempts", "runs"), [(1, 1), (5, 5), (None, 3), (ValueError("?"), 3)])
async def test_a_hook_may_decide_the_attempts(
    attempts: object, runs: int, manual_clock: ManualClock
) -> None:
    handler = failing(*[ValueError("x")] * 9)
    async with timed(manual_clock, handler, hooks=Dynamic(attempts=attempts)) as app:
        await app.send(OrderPlaced("o-1"))
        for _ in range(7):
            await settled(app)
            manual_clock.advance(300)
        assert len(dead(app)) == 1
    assert handler.runs == runs


async def test_the_first_hook_with_an_answer_decides(manual_clock: ManualClock) -> None:
    heard = Heard()
    hooks = [Dynamic(), Dynamic(delay=ValueError("?")), Dynamic(delay=3), Dynamic(delay=9), heard]
    async with timed(manual_clock, failing(ValueError("once")), hooks=hooks) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    assert heard.of("error")[0].decision.delay == 3


# -- redelivered: checked before the callback runs ---------------------------------------------


async def delivered_before(app: Matador, times: int) -> None:
    """Send one message and have it delivered that often without an outcome."""
    transport = app.transport
    await transport.connect()
    await app.apply_topology()
    async with make_app(transport, subscribed(Handler()), consume_from=()) as sender:
        await sender.send(OrderPlaced("o-1"))
    for _ in range(times):
        await transport.connect()
        subscription = await transport.subscribe(QUEUE, prefetch=1)
        assert len(await subscription.receive(1)) == 1
        await transport.disconnect()


@pytest.mark.parametrize(
    ("idempotent", "runs"), [("yes", 1), ("resumable", 1), ("no", 0), ("unknown", 0)]
)
async def test_a_redelivered_message_runs_only_if_that_is_safe(idempotent: str, runs: int) -> None:
    handler, heard = Handler(), Heard()
    app = make_app(None, subscribed(handler, idempotent=idempotent), hooks=heard)
    await delivered_before(app, 1)
    async with app:
        await settled(app)
        assert len(dead(app)) == 1 - runs
    assert handler.runs == runs
    for event in heard.of("error"):
        assert isinstance(event.error, NonIdempotentCannotRetryError)
        assert event.ran is False
    if runs:
        assert handler.contexts[0].redelivered


@pytest.mark.parametrize(
    ("times", "options", "runs"),
    [
        (3, {}, 1),
        (4, {}, 0),
        (1, {"retry": StandardRetryPolicy(max_deliveries=2)}, 0),
        (1, {"hooks": Dynamic(deliveries=2)}, 0),
        (8, {"hooks": Dynamic(deliveries=10)}, 1),
        (4, {"hooks": Dynamic(deliveries=ValueError("?"))}, 0),
    ],
)
async def test_a_message_that_came_too_often_does_not_run(
    times: int, options: dict[str, Any], runs: int
) -> None:
    handler, heard = Handler(), Heard()
    options = dict(options)
    hooks = [heard, options.pop("hooks")] if "hooks" in options else [heard]
    app = make_app(None, handler, hooks=hooks, **options)
    await delivered_before(app, times)
    async with app:
        await settled(app)
        letters = dead(app)
    assert (handler.runs, len(letters)) == (runs, 1 - runs)
    if not runs:
        assert isinstance(heard.of("error")[0].error, MaybePoisonedError)
        assert "possibly poisoned" in str(letters[0].reason)


async def test_a_retry_starts_counting_deliveries_anew(manual_clock: ManualClock) -> None:
    handler = failing(*[ValueError("x")] * 6)
    retry = StandardRetryPolicy(max_attempts=7)
    async with timed(manual_clock, subscribed(handler, idempotent="no"), retry=retry) as app:
        await app.send(OrderPlaced("o-1"))
        for _ in range(7):
            await settled(app)
            manual_clock.advance(300)
        assert dead(app) == []
    assert handler.runs == 7


# -- settling ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [(None, Complete), (ValueError("x"), Retry), (DontRetry("x"), DeadLetter)],
)
async def test_a_settlement_that_fails_is_tried_again_and_nothing_runs_twice(
    error: Exception | None, kind: type, manual_clock: ManualClock
) -> None:
    transport = FaultyTransport(clock=manual_clock)
    handler, heard = failing(error), Heard()
    async with make_app(transport, handler, hooks=heard, clock=manual_clock) as app:
        transport.settle_errors.extend([ConnectionResetError("lost"), OSError("lost again")])
        await app.send(OrderPlaced("o-1"))
        await wait_for(lambda: transport.settled)
        await settled(app)
    assert handler.runs == 1
    assert [type(settlement) for settlement in transport.settled] == [kind]
    assert len(heard.of("success") + heard.of("error")) == 1, "told once, when it is safe"


async def test_the_pauses_between_settlements_grow() -> None:
    transport = FaultyTransport()
    async with make_app(transport, Handler()) as app:
        transport.settle_errors.extend(OSError("down") for _ in range(3))
        await app.send(OrderPlaced("o-1"))
        await wait_for(lambda: transport.settled)
    first, second, third, fourth = transport.tried[:4]
    # At least: a busy machine makes any of them longer.
    assert second - first > 0.04
    assert third - second > 0.09
    assert fourth - third > 0.19


async def test_a_worker_that_cannot_settle_takes_no_more_than_it_can_hold() -> None:
    transport, handler = FaultyTransport(), Handler()
    async with make_app(transport, handler) as app:
        transport.settle_errors.extend(OSError("down") for _ in range(4))
        await app.send_many(OrderPlaced(f"o-{n}") for n in range(200))
        await wait_for(lambda: len(transport.tried) >= 3)
        assert handler.runs <= 3 * 10 + 10
        await settled(app)
        assert memory(app).completed(QUEUE) == 200
    assert handler.runs == 200


async def test_a_receive_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    transport, handler = FaultyTransport(), Handler()
    transport.receive_errors.extend([OSError("cut"), OSError("cut")])
    async with make_app(transport, handler) as app:
        await app.send(OrderPlaced("o-1"))
        await wait_for(lambda: handler.runs == 1)
    assert "could not receive from shop.events, trying again" in caplog.text


# -- delivery modes ----------------------------------------------------------------------------


@pytest.mark.parametrize("whose", ["application", "subscriber"])
async def test_at_most_once_acknowledges_before_it_runs(whose: str) -> None:
    done: list[int] = []

    async def look(envelope: Envelope[Any], ctx: Context) -> None:
        done.append(memory(app).completed(QUEUE))
        raise ValueError("too late for a retry")

    heard = Heard()
    if whose == "application":
        app = make_app(None, look, delivery="at-most-once", hooks=heard)
    else:
        app = make_app(None, subscribed(look, delivery="at-most-once"), hooks=heard)
    async with app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
        assert (memory(app).messages(QUEUE), dead(app)) == ([], [])
    assert done == [1]
    (event,) = heard.of("error")
    assert isinstance(event.decision, Discard)


async def test_a_subscriber_may_differ_from_the_application() -> None:
    done: list[int] = []

    async def look(envelope: Envelope[Any], ctx: Context) -> None:
        done.append(memory(app).completed(QUEUE))

    careful: Subscriber[Any] = subscribed(look, delivery="at-least-once")
    app = make_app(None, careful, delivery="at-most-once")
    async with app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    assert done == [0]


async def test_at_most_once_does_not_run_what_it_cannot_acknowledge() -> None:
    transport, handler = FaultyTransport(), Handler()
    async with make_app(transport, handler, delivery="at-most-once") as app:
        transport.settle_errors.append(OSError("down"))
        await app.send(OrderPlaced("o-1"))
        await wait_for(lambda: transport.tried)
        await app.wait_idle(5)
    assert handler.runs == 0
    assert len(memory(app).messages(QUEUE)) == 1


# -- what the transport and the topology allow ----------------------------------------------------


async def test_without_delays_a_failure_is_retried_at_once() -> None:
    handler = failing(ValueError("once"))
    async with make_app(MemoryTransport(without=["delays"]), handler) as app:
        await app.send(OrderPlaced("o-1"))
        await wait_for(lambda: handler.runs == 2)
        await settled(app)
    assert dead(app) == []


async def test_a_topology_without_waiting_retries_at_once() -> None:
    handler = failing(ValueError("once"))
    topology = Topology("shop", queues=["events"], retry=RetryQueues(enabled=False))
    async with make_app(None, handler, topology=topology) as app:
        await app.send(OrderPlaced("o-1"))
        await wait_for(lambda: handler.runs == 2)


async def test_a_retry_waits_no_longer_than_the_topology_says(manual_clock: ManualClock) -> None:
    handler = failing(ValueError("once"))
    topology = Topology("shop", queues=["events"], retry=RetryQueues(max_delay=5))
    policy = StandardRetryPolicy(base_delay=60)
    async with timed(manual_clock, handler, topology=topology, retry=policy) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
        manual_clock.advance(5)
        await wait_for(lambda: handler.runs == 2)
