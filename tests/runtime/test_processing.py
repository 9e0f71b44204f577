"""The way of one message: decoded, looked up, validated, run, settled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Sequence
from contextvars import ContextVar
from typing import Any

import pytest
from tests.support.shop import (
    QUEUE,
    Handler,
    Heard,
    OrderPaid,
    OrderPlaced,
    dead,
    make_app,
    memory,
    read,
    settled,
    subscribed,
)

from matador import Context, Envelope, JsonCodec, Matador, Schema, SubscriberStub, Topology
from matador.errors import (
    DecodeError,
    EventNotRegisteredError,
    InvalidEventError,
    SubscriberIsStubError,
    SubscriberNotRegisteredError,
)
from matador.model.message import Message
from matador.model.topology import DeadLetters, WorkQueue
from matador.policy.retry import Discard, SendToDeadLetters
from matador.testing import ManualClock, make_message, wait_for
from matador.transports.memory import MemoryTransport


async def put(app: Matador, *bodies: bytes) -> Sequence[Message]:
    """Put raw bodies on the queue, as anybody could."""
    messages = [make_message(body, queue=QUEUE) for body in bodies]
    assert list(await app.transport.send(messages)) == [None] * len(bodies)
    return messages


def body(
    *,
    event: str = "order.placed",
    subscriber: str = "handle",
    data: str = '{"order_id":"o-1","amount":5}',
    rest: str = "",
) -> bytes:
    docket = (
        f'{{"eventKey":"{event}","targetSubscriber":"{subscriber}","attempts":1,'
        f'"createdAt":"2026-11-15T19:02:37.435Z","importance":"should-investigate"}}'
    )
    return f'{{"id":"m-1","data":{data},"docket":{docket}{rest}}}'.encode()


# -- success -----------------------------------------------------------------------------------


async def test_a_handled_message_is_acknowledged_and_then_reported(
    manual_clock: ManualClock,
) -> None:
    done_when_told: list[int] = []

    class Look(Heard):
        def on_worker_success(self, event: Any) -> None:
            super().on_worker_success(event)
            done_when_told.append(memory(app).completed(QUEUE))

    async def answer(envelope: Envelope[Any], ctx: Context) -> str:
        manual_clock.advance(0.25)
        return "a result"

    heard = Look()
    transport = MemoryTransport(clock=manual_clock)
    app = make_app(transport, subscribed(answer), hooks=heard, clock=manual_clock)
    began = manual_clock.time()
    async with app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    (success,) = heard.of("success")
    assert success.envelope.data == OrderPlaced("o-1")
    assert (success.result, success.queue, success.transport) == ("a result", QUEUE, "memory")
    assert success.subscriber.name == "handle"
    assert (success.started_at, success.duration) == (began, pytest.approx(0.25))
    assert success.duration_ms == pytest.approx(250)
    assert success.receipt.delivery_count == 1
    assert done_when_told == [1]


async def test_an_alias_leads_to_the_same_subscriber() -> None:
    handler = Handler()
    async with make_app(None, handler) as app:
        await put(app, body(event="order.created"))
        await settled(app)
    assert handler.data == [OrderPlaced("o-1", 5)]
    assert handler.envelopes[0].docket.event_key == "order.created"


async def test_events_a_callback_sends_keep_the_correlation_id() -> None:
    second = Handler()

    async def pass_on(envelope: Envelope[Any], ctx: Context) -> None:
        await ctx.send(OrderPaid(envelope.data.order_id))
        await ctx.send(OrderPaid, {"order_id": "other"}, correlation_id="its own")

    schema = Schema({OrderPlaced: [subscribed(pass_on)], OrderPaid: [subscribed(second)]})
    async with make_app(None, schema=schema) as app:
        await app.send(OrderPlaced("o-1"), correlation_id="c-1")
        await settled(app)
    assert {(one.data.order_id, one.docket.correlation_id) for one in second.envelopes} == {
        ("o-1", "c-1"),
        ("other", "its own"),
    }


async def test_the_context_knows_the_delivery_and_the_application() -> None:
    handler = Handler()
    async with make_app(None, handler) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    (ctx,) = handler.contexts
    assert ctx.app is app
    assert ctx.envelope is handler.envelopes[0]
    assert (ctx.queue, ctx.attempt, ctx.redelivered, ctx.lease_lost) == (QUEUE, 1, False, False)
    assert ctx.receipt.queue == QUEUE


async def test_a_callback_may_take_the_envelope_alone() -> None:
    seen: list[str] = []

    async def handle(envelope: Envelope[OrderPlaced]) -> None:
        seen.append(envelope.data.order_id)

    async with make_app(None, subscribed(handle)) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    assert seen == ["o-1"]


TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_what_a_callback_sets_in_a_context_variable_is_gone_for_the_next(kind: str) -> None:
    seen: list[str] = []

    def note(envelope: Envelope[OrderPlaced]) -> None:
        seen.append(TENANT.get())
        TENANT.set(envelope.data.order_id)

    async def note_async(envelope: Envelope[OrderPlaced]) -> None:
        note(envelope)
        await asyncio.sleep(0)
        assert TENANT.get() == envelope.data.order_id, "its own it keeps"

    topology = Topology("shop", queues=[WorkQueue("events", concurrency=1)])
    one = subscribed(note if kind == "sync" else note_async)
    async with make_app(None, one, topology=topology) as app:
        await app.send_many(OrderPlaced(f"o-{number}") for number in range(5))
        await settled(app)
    assert seen == ["nobody"] * 5


# -- look up -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (body(event="order.unheard-of"), EventNotRegisteredError),
        (body(subscriber="nobody"), SubscriberNotRegisteredError),
        (body(subscriber="ship"), SubscriberIsStubError),
    ],
)
async def test_what_nobody_here_knows_goes_straight_to_unhandled(
    raw: bytes, error: type[Exception]
) -> None:
    heard, handler = Heard(), Handler()
    stub = SubscriberStub("ship", description="Elsewhere.", queue="warehouse")
    topology = Topology("shop", queues=["events", "warehouse"])
    async with make_app(None, handler, stub, topology=topology, hooks=heard) as app:
        await put(app, raw)
        await settled(app)
        (letter,) = dead(app, "unhandled")
        assert dead(app) == []
    (event,) = heard.of("error")
    assert isinstance(event.error, error)
    assert (event.ran, event.decision.kind) == (False, "unhandled")
    docket = read(letter).docket
    assert (docket.attempts, docket.original_queue) == (1, QUEUE)
    assert docket.last_error == str(event.error) == letter.reason
    assert bytes(read(letter).data) == b'{"order_id":"o-1","amount":5}'
    assert handler.runs == 0


# -- validate ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (body(data='{"order_id":"o-1","amount":"five"}'), "amount"),
        (body(data='{"amount":5}'), "order_id"),
        (body(data="null"), "object"),
        (body(data="NaN"), "malformed"),
        (body(rest=',"before":{"order_id":7}'), "order_id"),
    ],
)
async def test_a_payload_that_does_not_fit_is_undeliverable_with_its_field(
    raw: bytes, field: str
) -> None:
    heard, handler = Heard(), Handler()
    async with make_app(None, handler, hooks=heard) as app:
        await put(app, raw)
        await settled(app)
        (letter,) = dead(app)
    assert letter.reason is not None
    assert field in letter.reason
    assert handler.runs == 0
    for event in heard.of("error"):
        assert isinstance(event.error, InvalidEventError)
        assert (event.ran, event.decision.kind) == (False, "undeliverable")


# -- malformed bytes ---------------------------------------------------------------------------

MALFORMED = {
    "empty": b"",
    "truncated": body()[:-5],
    "not-utf8": b"\xff\xfe{}",
    "not-json": b"hello",
    "not-an-object": b"[1,2,3]",
    "null-bytes": b"\x00\x00\x00",
    "no-docket": b'{"id":"1","data":{}}',
    "wrong-docket": b'{"id":"1","data":{},"docket":[]}',
    "wrong-attempts": body().replace(b'"attempts":1', b'"attempts":"x"'),
    "deep": b'{"id":"1","data":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "duplicate-key": body(data='{"order_id":"o-1","order_id":"o-2"}'),
    "duplicate-key-after-space": b" \n" + body(data='{"order_id":"o-1","order_id":"o-2"}'),
    "duplicate-docket": body(rest=',"docket":{}'),
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED.keys())
async def test_malformed_bytes_are_kept_as_they_are_and_hold_up_nobody(raw: bytes) -> None:
    heard, handler = Heard(), Handler()
    async with make_app(None, handler, hooks=heard) as app:
        await put(app, raw)
        await app.send(OrderPlaced("a good one"))
        await settled(app)
        (letter,) = dead(app)
    assert letter.body == raw
    assert letter.reason is not None
    assert letter.reason.startswith("malformed: ")
    assert [one.order_id for one in handler.data] == ["a good one"]
    (event,) = heard.of("decode_error")
    assert isinstance(event.error, DecodeError)
    assert (event.queue, event.transport, event.delivery.body) == (QUEUE, "memory", raw)
    assert isinstance(event.decision, SendToDeadLetters)
    assert heard.of("error") == []


async def test_a_body_over_the_limit_is_not_read() -> None:
    handler = Handler()
    async with make_app(None, handler, max_message_size=1000) as app:
        await put(app, body(data='{"order_id":"' + "x" * 1000 + '"}'))
        await settled(app)
        (letter,) = dead(app)
    assert handler.runs == 0
    assert "the limit is 1,000 bytes" in str(letter.reason)
    assert len(letter.body) > 1000


async def test_with_dead_letters_switched_off_they_are_discarded_and_the_hooks_say_so() -> None:
    heard = Heard()
    topology = Topology(
        "shop", queues=["events"], dead_letters=DeadLetters(unhandled=False, undeliverable=False)
    )
    async with make_app(None, Handler(), topology=topology, hooks=heard) as app:
        await put(app, b"hello", body(event="unheard-of"), body(data="7"))
        await settled(app)
        assert memory(app).completed(QUEUE) == 3
    decisions = [event.decision for event in heard.of("error") + heard.of("decode_error")]
    assert len(decisions) == 3
    for decision in decisions:
        assert isinstance(decision, Discard)
        assert "are disabled" in decision.reason


async def test_a_codec_that_breaks_costs_one_message_and_keeps_it() -> None:
    class Broken(JsonCodec):
        def decode(self, body: bytes, headers: Any, stamp: Any) -> Any:
            if b"bomb" in body:
                raise ZeroDivisionError("a bug")
            return super().decode(body, headers, stamp)

    handler = Handler()
    for strategy in ("dead-letter", "ignore"):
        async with make_app(None, handler, codec=Broken(), malformed=strategy) as app:
            await app.send_many([OrderPlaced("bomb"), OrderPlaced("fine")])
            await settled(app)
            (letter,) = dead(app)
            assert b"bomb" in letter.body, f"kept with malformed={strategy!r}: it is not malformed"
    assert [one.order_id for one in handler.data] == ["fine", "fine"]


# -- sync callbacks ----------------------------------------------------------------------------


async def test_a_sync_callback_does_not_block_the_loop() -> None:
    release, entered = threading.Event(), threading.Event()

    def handle(envelope: Envelope[OrderPlaced]) -> str:
        entered.set()
        assert release.wait(5), "the loop could not let it go on"
        return "done"

    heard = Heard()
    async with make_app(None, subscribed(handle), hooks=heard) as app:
        await app.send(OrderPlaced("o-1"))
        await wait_for(entered.is_set)
        release.set()
        await settled(app)
    assert [event.result for event in heard.of("success")] == ["done"]


async def test_a_sync_callback_that_returns_an_awaitable_is_awaited() -> None:
    async def later() -> str:
        return "later"

    def handle(envelope: Envelope[OrderPlaced]) -> Awaitable[str]:
        return later()

    heard = Heard()
    async with make_app(None, subscribed(handle), hooks=heard) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    assert [event.result for event in heard.of("success")] == ["later"]


# -- time limits -------------------------------------------------------------------------------


async def test_a_timeout_of_the_callbacks_own_is_an_ordinary_failure() -> None:
    async def impatient(envelope: Envelope[Any], ctx: Context) -> None:
        async with asyncio.timeout(0):
            await asyncio.sleep(1)

    heard = Heard()
    topology = Topology("shop", queues=[WorkQueue("events", consumer_timeout=5)])
    async with make_app(None, impatient, topology=topology, hooks=heard) as app:
        await app.send(OrderPlaced("o-1"))
        await wait_for(lambda: heard.of("error"))
    assert "its timeout of" not in str(heard.of("error")[0].error)


async def test_a_sync_callback_over_its_time_is_only_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = threading.Event()
    runs: list[int] = []

    def slow(envelope: Envelope[OrderPlaced]) -> None:
        runs.append(1)
        release.wait(5)

    heard = Heard()
    topology = Topology("shop", queues=[WorkQueue("events", consumer_timeout=0.01)])
    async with make_app(None, subscribed(slow), topology=topology, hooks=heard) as app:
        await app.send(OrderPlaced("o-1"))
        await wait_for(lambda: "runs for longer than" in caplog.text)
        release.set()
        await settled(app)
    assert runs == [1]
    assert len(heard.of("success")) == 1
