"""What becomes of a message whose callback failed, and of one that came too often."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
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
from matador.model.envelope import Docket
from matador.model.message import Complete, DeadLetter, Message, Properties, Release, Retry
from matador.policy.retry import Discard, RetryContext, RetryLater, SendToDeadLetters
from matador.runtime.dead_letters import Selection
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
    assert context.envelope is not None
    assert context.envelope.data == OrderPlaced("o-1")
    assert context.subscriber is not None
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


async def test_the_first_hook_with_an_answer_decides(manual_clock: ManualClock) -> None:
    heard = Heard()
    hooks = [Dynamic(), Dynamic(delay=ValueError("?")), Dynamic(delay=3), Dynamic(delay=9), heard]
    async with timed(manual_clock, failing(ValueError("once")), hooks=hooks) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    assert heard.of("error")[0].decision.delay == 3


# -- redelivered: checked before the callback runs ---------------------------------------------


async def test_a_retry_starts_counting_deliveries_anew(manual_clock: ManualClock) -> None:
    handler = failing(*[ValueError("x")] * 6)
    retry = StandardRetryPolicy(max_attempts=7)
    async with timed(manual_clock, subscribed(handler, idempotent="unknown"), retry=retry) as app:
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


async def test_the_pauses_between_receives_grow_and_begin_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    transport, handler = FaultyTransport(), Handler()
    transport.receive_errors.extend([OSError("cut"), OSError("cut"), OSError("cut")])
    async with make_app(transport, handler) as app:
        await app.send(OrderPlaced("o-1"))
        await wait_for(lambda: handler.runs == 1)
        transport.receive_errors.append(OSError("cut again"))
        await app.send(OrderPlaced("o-2"))
        await wait_for(lambda: "cut again" in caplog.text)
        await wait_for(lambda: handler.runs == 2)
    pauses = [float(text[1]) for text in re.finditer(r"trying again in ([\d.]+) s", caplog.text)]
    assert pauses == [0.05, 0.1, 0.2, 0.05]


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


async def test_the_delays_of_a_topology_are_those_of_the_standard_policy(
    manual_clock: ManualClock,
) -> None:
    handler = failing(*[ValueError("x")] * 2)
    retry = RetryQueues(default_delay=30, max_delay=40)
    topology = Topology("shop", queues=["events"], retry=retry)
    async with timed(manual_clock, handler, topology=topology) as app:
        await app.send(OrderPlaced("o-1"))
        for delay, runs in ((30, 1), (40, 2)):
            await settled(app)
            manual_clock.advance(delay - 1)
            await settled(app)
            assert handler.runs == runs
            manual_clock.advance(1)
            await wait_for(lambda: handler.runs > runs)  # noqa: B023 - called at once


async def test_the_delays_of_a_topology_do_not_cut_those_of_a_policy(
    manual_clock: ManualClock,
) -> None:
    handler, heard = failing(ValueError("once")), Heard()
    topology = Topology("shop", queues=["events"], retry=RetryQueues(max_delay=5))
    policy = StandardRetryPolicy(base_delay=60)
    async with timed(manual_clock, handler, topology=topology, retry=policy, hooks=heard) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    (error,) = heard.of("error")
    assert error.decision == RetryLater(60.0)


async def test_a_retry_waits_no_longer_than_the_transport_can_keep_it() -> None:
    handler, heard = failing(ValueError("once")), Heard()
    transport = MemoryTransport()
    transport._capabilities = replace(transport.capabilities, max_delay=900.0)
    retry = StandardRetryPolicy(base_delay=3600, max_delay=7200)
    async with make_app(transport, handler, retry=retry, hooks=heard) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    (error,) = heard.of("error")
    assert error.decision == RetryLater(900.0)
