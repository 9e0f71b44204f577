"""What ``send`` makes of an event: one envelope a subscriber, and a result that tells all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from operator import itemgetter
from pathlib import Path
from typing import Any, Required, TypedDict
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from tests.support.faulty import FaultyTransport
from tests.support.shop import (
    QUEUE,
    Handler,
    Heard,
    OrderNobody,
    OrderPlaced,
    dead,
    make_app,
    memory,
    read,
    settled,
    subscribed,
)

from matador import (
    CompressedCodec,
    Envelope,
    HeaderCodec,
    Hooks,
    JsonCodec,
    Matador,
    MessagePackCodec,
    Schema,
    SendOptions,
    SubscriberStub,
    Topology,
    event,
)
from matador.codec import Codec, Encoded, RawEnvelope
from matador.errors import (
    ConfigurationError,
    DelaysNotSupportedError,
    EventNotRegisteredError,
    InProcessCannotRunStubError,
    InvalidEventError,
    MatadorError,
    MessageTooLargeError,
    SendFailedError,
)
from matador.events.context import EventContext
from matador.model.capabilities import Capabilities
from matador.model.envelope import ROOM_FOR_ERRORS
from matador.model.event import EventType
from matador.model.message import Message
from matador.model.topology import WorkQueue
from matador.testing import ManualClock
from matador.transports.memory import MemoryTransport


def producer(*names: str, transport: MemoryTransport | None = None, **options: Any) -> Matador:
    """An application that only sends, with a subscriber of each name."""
    made = [subscribed(Handler(), name) for name in names or ["handle"]]
    everything: dict[str, Any] = {"consume_from": ()} | options
    return make_app(transport, *made, **everything)


def stored(app: Matador, queue: str = QUEUE) -> list[Envelope[Any]]:
    return [read(message) for message in memory(app).messages(queue)]


# -- fan-out -----------------------------------------------------------------------------------


async def test_every_subscriber_gets_an_envelope_of_its_own() -> None:
    async with producer("email", "bill") as app:
        result = await app.send(OrderPlaced("o-1", 5), correlation_id="c-1")
        first, second = stored(app)
    assert (result.event_key, result.sent, result.skipped) == ("order.placed", 2, 0)
    assert result.errors == ()
    assert result.ok
    assert [one.docket.target_subscriber for one in (first, second)] == ["email", "bill"]
    assert first.id != second.id
    assert [str(UUID(one.id)) for one in (first, second)] == [first.id, second.id]
    assert [one.id for one in result.messages] == [first.id, second.id]
    assert {one.docket.correlation_id for one in (first, second)} == {"c-1"}


@pytest.mark.parametrize("codec", [HeaderCodec(), JsonCodec(), MessagePackCodec()])
async def test_a_consumer_sees_the_description_of_its_event(codec: Codec) -> None:
    handler = Handler()
    async with make_app(None, subscribed(handler, "email"), codec=codec) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
    (envelope,) = handler.envelopes
    assert envelope.docket.event_description == "A customer placed an order."


async def test_the_docket_is_filled_in(manual_clock: ManualClock) -> None:
    stern = subscribed(Handler(), "stern", importance="must-investigate")
    app = make_app(None, stern, subscribed(Handler(), "plain"), clock=manual_clock, consume_from=())
    manual_clock.advance(0.123)
    async with app:
        await app.send(OrderPlaced("o-1"))
        first, second = stored(app)
    docket = first.docket
    assert (docket.event_key, docket.attempts) == ("order.placed", 1)
    assert docket.event_description == "A customer placed an order."
    assert docket.created_at == manual_clock.now()
    assert (docket.first_error, docket.last_error, docket.correlation_id) == (None, None, None)
    assert (docket.scheduled_for, docket.original_queue) == (None, None)
    assert docket.importance == "must-investigate"
    assert second.docket.importance == "should-investigate"


async def test_an_instance_and_class_with_data_are_the_same() -> None:
    async with producer() as app:
        await app.send(OrderPlaced("o-1", 5))
        await app.send(OrderPlaced, {"order_id": "o-1", "amount": 5})
        await app.send("order.placed", {"order_id": "o-1", "amount": 5})
        await app.send("order.created", {"order_id": "o-1", "amount": 5})
        sent = stored(app)
    assert {bytes(one.data) for one in sent} == {b'{"order_id":"o-1","amount":5}'}
    assert {one.docket.event_key for one in sent} == {"order.placed"}


async def test_a_typed_dict_is_sent_with_its_class() -> None:
    @event("note.taken", description="A note.")
    class NoteTaken(TypedDict):
        text: str

    handler = Handler()
    async with make_app(None, schema=Schema({NoteTaken: [subscribed(handler)]})) as app:
        await app.send(NoteTaken, {"text": "buy milk"})
        await settled(app)
    assert handler.data == [{"text": "buy milk"}]


async def test_an_event_nobody_listens_to_goes_nowhere_and_is_no_error() -> None:
    async with producer(schema=Schema({OrderNobody: []})) as app:
        result = await app.send(OrderNobody("o-1"))
        assert (result.sent, result.skipped, result.errors) == (0, 0, ())
        assert stored(app) == []


async def test_an_event_that_is_not_in_the_schema_is_an_error() -> None:
    async with producer() as app:
        for send in (
            lambda: app.send(OrderNobody("o-1")),
            lambda: app.send(OrderNobody, {"order_id": "o-1"}),
            lambda: app.send(OrderNobody("o-1"), correlation_id="c"),
            lambda: app.send_many([OrderPlaced("o-1"), OrderNobody("o-1")]),
        ):
            with pytest.raises(EventNotRegisteredError, match=r"'order\.nobody'"):
                await send()
        assert stored(app) == [], "nothing of a batch"
        assert app.state.is_idle


async def test_an_unknown_key_is_an_error_that_suggests_another() -> None:
    async with producer() as app:
        with pytest.raises(EventNotRegisteredError, match=r"did you mean 'order\.placed'"):
            await app.send("order.plced", {"order_id": "o-1"})


async def test_a_payload_that_does_not_fit_is_refused_by_its_field() -> None:
    async with producer() as app:
        with pytest.raises(InvalidEventError, match="amount"):
            await app.send(OrderPlaced("o-1", "five"))  # pyright: ignore[reportArgumentType] - the error tested
        with pytest.raises(InvalidEventError, match="order_id"):
            await app.send(OrderPlaced, {"amount": 5})
        with pytest.raises(InvalidEventError, match="is a class"):
            await app.send(OrderPlaced)
        with pytest.raises(InvalidEventError, match="not an event"):
            await app.send(object())
        assert stored(app) == []
        assert app.state.is_idle


async def test_a_subscriber_with_a_queue_receives_there() -> None:
    topology = Topology("shop", queues=["events", "billing", WorkQueue("old.orders", exact=True)])
    app = make_app(
        None,
        subscribed(Handler(), "bill", queue="billing"),
        subscribed(Handler(), "legacy", queue="old.orders"),
        subscribed(Handler(), "email"),
        topology=topology,
        consume_from=(),
    )
    async with app:
        result = await app.send(OrderPlaced("o-1"))
        assert [one.docket.target_subscriber for one in stored(app)] == ["email"]
        assert [one.docket.target_subscriber for one in stored(app, "shop.billing")] == ["bill"]
        assert [one.docket.target_subscriber for one in stored(app, "old.orders")] == ["legacy"]
    assert [one.queue for one in result.messages] == ["shop.billing", "old.orders", QUEUE]


# -- enabled() ---------------------------------------------------------------------------------


async def async_no() -> bool:
    return False


async def async_yes() -> bool:
    return True


def broken() -> bool:
    raise RuntimeError("the flag service is down")


@pytest.mark.parametrize(
    ("enabled", "sent"),
    [
        (None, 1),
        (lambda: True, 1),
        (lambda: False, 0),
        (async_yes, 1),
        (async_no, 0),
        (broken, 1),
    ],
    ids=["absent", "yes", "no", "async-yes", "async-no", "raises"],
)
async def test_enabled_is_asked_when_an_event_is_sent(enabled: object, sent: int) -> None:
    heard = Heard()
    one = subscribed(Handler(), enabled=enabled)
    async with make_app(None, one, hooks=heard, consume_from=()) as app:
        result = await app.send(OrderPlaced("o-1"))
        assert (result.sent, result.skipped) == (sent, 1 - sent)
        assert len(stored(app)) == sent
    assert len(heard.of("enqueue_success")) == sent


# -- metadata, before --------------------------------------------------------------------------


@event(
    "order.tagged", description="With metadata of its own.", metadata={"a": "event", "b": "event"}
)
@dataclass(frozen=True)
class OrderTagged:
    order_id: str


class Universal(Hooks):
    async def load_universal_metadata(self) -> dict[str, str]:
        return {"a": "universal", "b": "universal", "c": "universal", "d": "universal"}


class MoreUniversal(Hooks):
    def load_universal_metadata(self) -> dict[str, str]:
        return {"d": "the later hook"}


class BrokenUniversal(Hooks):
    def load_universal_metadata(self) -> dict[str, str]:
        raise RuntimeError("no metadata today")


async def test_metadata_merges_universal_then_event_then_send() -> None:
    hooks = [Universal(), BrokenUniversal(), MoreUniversal()]
    schema = Schema({OrderTagged: [subscribed(Handler())]})
    async with make_app(None, schema=schema, hooks=hooks, consume_from=()) as app:
        await app.send(OrderTagged("o-1"), metadata={"a": "send"})
        await app.send_many([(OrderTagged("o-1"), SendOptions(metadata={"a": "send"}))])
        (first,) = {tuple(sorted(one.docket.metadata.items())) for one in stored(app)}
    assert dict(first) == {"a": "send", "b": "event", "c": "universal", "d": "the later hook"}


async def test_metadata_of_the_event_travels_without_any_other() -> None:
    schema = Schema({OrderTagged: [subscribed(Handler())]})
    async with make_app(None, schema=schema, consume_from=()) as app:
        await app.send(OrderTagged("o-1"))
        await app.send_many([OrderTagged("o-1")])
        for one in stored(app):
            assert one.docket.metadata == {"a": "event", "b": "event"}


async def test_without_metadata_there_is_none() -> None:
    async with producer() as app:
        await app.send(OrderPlaced("o-1"))
        assert stored(app)[0].docket.metadata == {}


@pytest.mark.parametrize("codec", [None, HeaderCodec(), MessagePackCodec()])
@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (["a"], "metadata must be a mapping"),
        ({"b": 1, "a": object()}, r"metadata\['a'\] cannot be encoded"),
        ({"b": 1, "a": {"c": [object()]}}, r"metadata\['a'\] cannot be encoded"),
        ({"b": 1, "a": "\ud800"}, r"metadata\['a'\] cannot be encoded: a text "),
        ({"b": 1, "a": [float("nan")]}, r"\$\.a"),
    ],
    ids=["list", "object", "nested", "surrogate", "nan"],
)
async def test_metadata_that_cannot_be_kept_is_refused(
    metadata: object, said: str, codec: Any
) -> None:
    if isinstance(codec, MessagePackCodec) and said == r"\$\.a":
        pytest.skip("MessagePack keeps it")
    async with producer(codec=codec) as app:
        with pytest.raises(InvalidEventError, match=said):
            await app.send(OrderPlaced("o-1"), metadata=metadata)
        assert memory(app).messages(QUEUE) == []
        assert app.state.is_idle


# -- typed metadata ----------------------------------------------------------------------------


@dataclass(frozen=True)
class DataclassOrigin:
    tenant: str
    tries: int = 0


class StructOrigin(msgspec.Struct):
    tenant: str
    tries: int = 0


class PydanticOrigin(pydantic.BaseModel):
    tenant: str
    tries: int = 0


@attrs.define
class AttrsOrigin:
    tenant: str
    tries: int = 0


class DictOrigin(TypedDict, total=False):
    tenant: Required[str]
    tries: int


class StrictOrigin(msgspec.Struct, forbid_unknown_fields=True):
    tenant: str


ORIGINS = [DataclassOrigin, StructOrigin, PydanticOrigin, AttrsOrigin, DictOrigin]


class Tenant(Hooks):
    def load_universal_metadata(self) -> dict[str, str]:
        return {"tenant": "universal", "traceparent": "00-1-2-01"}


def traced(
    kind: type[Any], callback: Any = None, *hooks: Hooks, codec: Codec | None = None
) -> tuple[Matador, type[Any]]:
    """An application that sends an event with metadata of this type, and handles it."""

    @event("order.traced", description="With typed metadata.", metadata=kind)
    @dataclass(frozen=True)
    class OrderTraced:
        order_id: str

    schema = Schema({OrderTraced: [subscribed(callback or Handler())]})
    options: dict[str, Any] = {} if callback else {"consume_from": ()}
    return make_app(None, schema=schema, hooks=hooks, codec=codec, **options), OrderTraced


@pytest.mark.parametrize("codec", [None, HeaderCodec(), MessagePackCodec()])
@pytest.mark.parametrize("kind", ORIGINS)
async def test_typed_metadata_is_given_as_a_mapping_or_an_instance(
    kind: type[Any], codec: Codec | None
) -> None:
    found: list[Mapping[str, Any]] = []

    async def callback(envelope: Envelope[Any], ctx: EventContext) -> None:
        assert ctx.metadata == envelope.docket.metadata
        found.append(ctx.metadata)

    app, order = traced(kind, callback, Tenant(), codec=codec)
    given = [{"tries": 2}, kind(tenant="send", tries=3)]
    async with app:
        await app.send(order("1"), metadata=given[0])
        await app.send(order("2"), metadata=given[1])
        await app.send_many([(order("3"), SendOptions(metadata=one)) for one in given])
        await settled(app)
    trace = {"traceparent": "00-1-2-01"}
    expected = [
        {"tenant": "universal", "tries": 2, **trace},
        {"tenant": "send", "tries": 3, **trace},
    ]
    assert sorted(found, key=itemgetter("tries")) == [
        expected[0],
        expected[0],
        expected[1],
        expected[1],
    ]


@pytest.mark.parametrize("kind", ORIGINS)
@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (None, "tenant"),
        ({"tries": 1}, "tenant"),
        ({"tenant": 5}, r"\$\.tenant"),
        ({"tenant": "a", "tries": "many"}, r"\$\.tries"),
        ({"tenant": "a", "other": object()}, r"\['other'\]: "),
        ({"tenant": "\ud800"}, r"\['tenant'\]: the text has a lone surrogate"),
        (["a"], "must be a mapping or an instance of .*Origin"),
        (OrderPlaced("o-1"), "must be a mapping or an instance of .*Origin"),
    ],
    ids=["none", "missing", "type", "number", "object", "surrogate", "list", "other"],
)
async def test_metadata_that_does_not_match_its_type_is_refused(
    kind: type[Any], metadata: object, said: str
) -> None:
    app, order = traced(kind)
    async with app:
        with pytest.raises(InvalidEventError, match=rf"'order.traced': metadata.*{said}"):
            await app.send(order("1"), metadata=metadata)
        with pytest.raises(InvalidEventError, match=rf"'order.traced': metadata.*{said}"):
            await app.send_many([(order("1"), SendOptions(metadata=metadata))])
        assert stored(app) == []


async def test_a_type_may_forbid_keys_that_it_does_not_know() -> None:
    app, order = traced(StrictOrigin)
    async with app:
        await app.send(order("1"), metadata=StrictOrigin("a"))
        with pytest.raises(InvalidEventError, match=r"metadata: .*`other`"):
            await app.send(order("1"), metadata={"tenant": "a", "other": 1})
        assert [one.docket.metadata for one in stored(app)] == [{"tenant": "a"}]


async def test_before_travels_with_a_change_event_and_is_checked_too() -> None:
    handler = Handler()
    async with make_app(None, handler) as app:
        await app.send(OrderPlaced("o-1", 7), before=OrderPlaced("o-1", 5))
        with pytest.raises(InvalidEventError, match=r"'order.placed': before: .*amount"):
            await app.send(OrderPlaced("o-1", 7), before={"order_id": "o-1", "amount": "x"})
        await settled(app)
    (envelope,) = handler.envelopes
    assert (envelope.data, envelope.before) == (OrderPlaced("o-1", 7), OrderPlaced("o-1", 5))


# -- what cannot be sent, or not as asked ------------------------------------------------------


async def test_one_that_fails_does_not_keep_the_others_from_being_sent() -> None:
    heard = Heard()
    topology = Topology("shop", queues=["events", "billing"])
    transport = FaultyTransport()
    transport.refuse_queues = {"shop.billing"}
    app = make_app(
        transport,
        subscribed(Handler(), "bill", queue="billing"),
        subscribed(Handler(), "email"),
        topology=topology,
        hooks=heard,
        consume_from=(),
    )
    async with app:
        with pytest.raises(SendFailedError) as caught:
            await app.send(OrderPlaced("o-1"))
    result = caught.value.result
    (error,) = result.errors
    assert (result.sent, result.ok) == (1, False)
    assert isinstance(error, SendFailedError)
    assert (error.subscriber, error.queue) == ("bill", "shop.billing")
    assert "is full" in str(error)
    assert [one.envelope.docket.target_subscriber for one in heard.of("enqueue_error")] == ["bill"]
    (stored_one,) = heard.of("enqueue_success")
    assert (stored_one.queue, stored_one.transport) == (QUEUE, "memory")
    assert stored_one.envelope.data == OrderPlaced("o-1")


async def test_a_message_over_the_limit_is_refused_when_it_is_sent() -> None:
    async with producer(max_message_size=500) as app:
        for correlation_id in (None, "c-1"):
            with pytest.raises(SendFailedError, match="the limit is 500 bytes") as caught:
                await app.send(OrderPlaced("x" * 500), correlation_id=correlation_id)
            assert isinstance(caught.value.__cause__, MessageTooLargeError)
        assert (await app.send(OrderPlaced("x" * 50))).ok
        assert len(stored(app)) == 1


def size_of(event: object, **options: Any) -> int:
    async def measure() -> int:
        async with producer() as app:
            await app.send(event, **options)
            (message,) = memory(app).messages(QUEUE)
        return len(message.body)

    return asyncio.run(measure())


@pytest.mark.parametrize("options", [{}, {"correlation_id": "c-1"}], ids=["plain", "with-options"])
@pytest.mark.parametrize(
    ("ours", "brokers", "limit"),
    [
        (1_000_000, 1_000_000, 1_000_000 - ROOM_FOR_ERRORS),
        (1_000_000, 1_000_000 + ROOM_FOR_ERRORS, 1_000_000),
        (1_000_000, 1_000_000 + ROOM_FOR_ERRORS - 1, 999_999),
        (1_000_000, None, 1_000_000),
        (1_000_000, 2000, 1500),
    ],
)
def test_room_is_left_for_the_errors_that_a_retry_adds(
    ours: int, brokers: int | None, limit: int, options: dict[str, Any]
) -> None:
    class Small(MemoryTransport):
        @property
        def capabilities(self) -> Capabilities:
            return replace(super().capabilities, max_message_size=brokers)

    filling = limit - size_of(OrderPlaced(""), **options)

    async def send() -> None:
        async with producer(transport=Small(), max_message_size=ours) as app:
            assert (await app.send(OrderPlaced("x" * filling), **options)).ok
            with pytest.raises(SendFailedError, match=f"the limit is {limit:,} bytes") as caught:
                await app.send(OrderPlaced("x" * (filling + 1)), **options)
            assert len(stored(app)) == 1
        assert (limit < ours) == ("the broker accepts" in str(caught.value))

    asyncio.run(send())


async def test_what_a_codec_finds_too_large_is_refused_for_that_subscriber_alone() -> None:
    codec = CompressedCodec(JsonCodec(), threshold=0, max_size=1000)
    async with producer(codec=codec) as app:
        with pytest.raises(SendFailedError, match="before compression") as caught:
            await app.send(OrderPlaced("x" * 1000))
        assert isinstance(caught.value.__cause__, MessageTooLargeError)
        assert caught.value.result.sent == 0
        assert (await app.send(OrderPlaced("x"))).ok


async def test_a_stub_is_sent_to_by_a_transport_that_reaches_others(tmp_path: Path) -> None:
    stub = SubscriberStub("ship", description="Ship it.", queue="warehouse")
    app = make_app(
        f"sqlite:///{tmp_path}/shop.db",
        stub,
        topology=Topology("shop", queues=["events", "warehouse"]),
        consume_from=["events"],
    )
    async with app:
        result = await app.send(OrderPlaced("o-1"))
    assert [one.queue for one in result.messages] == ["shop.warehouse"]


async def test_a_stub_cannot_be_sent_to_in_process() -> None:
    stub = SubscriberStub("ship", description="Ship it.")
    async with make_app(None, stub, subscribed(Handler()), consume_from=()) as app:
        with pytest.raises(SendFailedError) as caught:
            await app.send(OrderPlaced("o-1"))
    assert caught.value.result.sent == 1
    assert isinstance(caught.value.__cause__, InProcessCannotRunStubError)


# -- delays, priorities, ordering keys ---------------------------------------------------------


@pytest.mark.parametrize("delay", [30, 30.0, timedelta(seconds=30)])
async def test_a_delay_is_kept_by_the_transport(
    delay: float | timedelta, manual_clock: ManualClock
) -> None:
    handler = Handler()
    transport = MemoryTransport(clock=manual_clock)
    async with make_app(transport, handler, clock=manual_clock) as app:
        due = manual_clock.now() + timedelta(seconds=30)
        await app.send(OrderPlaced("o-1"), delay=delay)
        manual_clock.advance(29)
        await settled(app)
        assert handler.runs == 0
        manual_clock.advance(1)
        await settled(app)
    (envelope,) = handler.envelopes
    assert envelope.docket.scheduled_for == due


@pytest.mark.parametrize(
    "delay",
    [
        -1,
        -1e-9,
        float("nan"),
        float("inf"),
        float("-inf"),
        1e300,
        1e12,
        10**400,
        10**5000,
        -(10**400),
        timedelta.max,
        timedelta.min,
        timedelta(days=8000 * 366),
        "soon",
        "1e300",
        True,
        None.__class__,
        Decimal(5),
    ],
    ids=lambda delay: delay.bit_length() if isinstance(delay, int) else str(delay)[:20],
)
async def test_a_delay_that_cannot_be_is_refused(delay: Any) -> None:
    async with producer("email", "bill") as app:
        with pytest.raises(ConfigurationError, match="delay must") as caught:
            await app.send(OrderPlaced("o-1"), delay=delay)
        assert len(str(caught.value)) < 500
        with pytest.raises(ConfigurationError, match="delay must"):
            await app.send_many([OrderPlaced("o-1"), (OrderPlaced("o"), SendOptions(delay=delay))])
        assert stored(app) == []
        assert app.state.is_idle


async def test_the_longest_delay_ends_with_the_last_year(manual_clock: ManualClock) -> None:
    left = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC) - manual_clock.now()
    async with producer(clock=manual_clock, transport=MemoryTransport(clock=manual_clock)) as app:
        await app.send(OrderPlaced("o-1"), delay=left)
        (one,) = stored(app)
    assert one.docket.scheduled_for is not None
    assert one.docket.scheduled_for.year == 9999


async def test_a_delay_the_transport_cannot_keep_is_an_error() -> None:
    async with producer(transport=MemoryTransport(without=["delays"])) as app:
        with pytest.raises(SendFailedError) as caught:
            await app.send(OrderPlaced("o-1"), delay=5)
        assert stored(app) == []
    assert isinstance(caught.value.__cause__, DelaysNotSupportedError)


async def test_or_is_delivered_at_once_with_a_warning() -> None:
    heard = Heard()
    transport = MemoryTransport(without=["delays"])
    options = {"unsupported_delays": "deliver-now", "hooks": heard}
    async with producer(transport=transport, **options) as app:
        result = await app.send(OrderPlaced("o-1"), delay=5)
    assert result.ok
    (warning,) = heard.of("enqueue_warning")
    assert "sent without the delay" in warning.text


async def test_a_delay_over_an_hour_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    async with producer() as app:
        await app.send(OrderPlaced("o-1"), delay=3600)
        assert "delayed by" not in caplog.text
        await app.send(OrderPlaced("o-1"), delay=timedelta(hours=2))
    assert "delayed by 2.0 hours" in caplog.text


async def test_a_priority_goes_first_where_the_queue_has_them() -> None:
    order: list[int] = []

    async def note(envelope: Envelope[OrderPlaced], ctx: object) -> None:
        order.append(envelope.data.amount)

    topology = Topology("shop", queues=[WorkQueue("events", priorities=True, concurrency=1)])
    sender = producer(topology=topology)
    async with sender:
        for amount in (1, 3, 2):
            await sender.send(OrderPlaced("o", amount), priority=amount)
    async with make_app(sender.transport, Handler(note), topology=topology) as app:
        await settled(app)
    assert order == [3, 2, 1]


@pytest.mark.parametrize(
    ("transport", "options", "text"),
    [
        (
            MemoryTransport,
            {"priority": 5},
            "sent without its priority: the queue does not support priorities",
        ),
        (
            lambda: MemoryTransport(without=["priorities"]),
            {"priority": 5},
            "sent without its priority: the transport does not support priorities",
        ),
        (
            lambda: MemoryTransport(without=["ordering"]),
            {"ordering_key": "customer-1"},
            "sent without its ordering key",
        ),
    ],
)
async def test_what_cannot_be_honoured_is_warned_of(
    transport: Callable[[], MemoryTransport], options: dict[str, Any], text: str
) -> None:
    heard = Heard()
    async with producer(transport=transport(), hooks=heard) as app:
        result = await app.send(OrderPlaced("o-1"), **options)
        (message,) = memory(app).messages(QUEUE)
    assert result.ok
    assert text in heard.of("enqueue_warning")[0].text
    assert (message.priority, message.ordering_key) == (None, None)


@pytest.mark.parametrize(
    "options",
    [
        {"priority": -1},
        {"priority": True},
        {"ordering_key": 7},
        {"ordering_key": "\ud800"},
        {"correlation_id": 7},
        {"correlation_id": "a\ud800"},
        {"id": "\ud800"},
        {"id": 7},
    ],
    ids=ascii,
)
async def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    async with producer() as app:
        with pytest.raises(ConfigurationError, match=next(iter(options))):
            await app.send_many([(OrderPlaced("o-1"), SendOptions(**options))])
        assert stored(app) == []


@event("note.kept", description="With a mapping.")
@dataclass(frozen=True)
class NoteKept:
    notes: dict[Any, Any]


@pytest.mark.parametrize(
    ("payload", "options"),
    [
        (NoteKept({1: "a", "1": "b"}), {}),
        (NoteKept({"deep": [{1: "a", "1": "b"}]}), {}),
        (NoteKept({}), {"before": NoteKept({1: "a", "1": "b"})}),
        (NoteKept({}), {"metadata": {1: "a", "1": "b"}}),
        (NoteKept({}), {"metadata": {"deep": {1: "a", "1": "b"}}}),
        (NoteKept({}), {"metadata": {"deep": [({1: "a"},)]}}),
        (NoteKept({"text": "\ud800"}), {}),
        (NoteKept({}), {"metadata": {"text": "\ud800"}}),
    ],
    ids=ascii,
)
async def test_what_json_would_change_is_refused(
    payload: NoteKept, options: dict[str, Any]
) -> None:
    schema = Schema({NoteKept: [subscribed(Handler())]})
    for codec in (JsonCodec(), HeaderCodec()):
        async with make_app(None, schema=schema, codec=codec, consume_from=()) as app:
            with pytest.raises(InvalidEventError, match=r"two keys|not a string|lone surrogate"):
                await app.send(payload, **options)
            assert memory(app).messages(QUEUE) == []


async def test_messages_with_one_ordering_key_are_handled_one_after_the_other() -> None:
    running = 0
    order: list[int] = []

    async def note(envelope: Envelope[OrderPlaced], ctx: object) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0)
        order.append(envelope.data.amount)
        running -= 1

    async with make_app(None, Handler(note)) as app:
        await app.send_many(
            (OrderPlaced("o", n), SendOptions(ordering_key="customer-1")) for n in range(50)
        )
        await settled(app)
        assert dead(app) == []
    assert order == list(range(50))


# -- many at once ------------------------------------------------------------------------------


async def test_many_are_sent_in_order_with_a_result_each() -> None:
    async with producer("email", "bill") as app:
        results = await app.send_many(OrderPlaced("o", n) for n in range(1200))
        amounts = [bytes(one.data) for one in stored(app)]
    assert [result.sent for result in results] == [2] * 1200
    assert amounts[:4] == [
        b'{"order_id":"o","amount":0}',
        b'{"order_id":"o","amount":0}',
        b'{"order_id":"o","amount":1}',
        b'{"order_id":"o","amount":1}',
    ]
    assert len(amounts) == 2400


async def test_of_many_none_is_sent_if_one_does_not_fit() -> None:
    async with producer() as app:
        with pytest.raises(InvalidEventError, match="amount"):
            await app.send_many([OrderPlaced("o", 1), OrderPlaced("o", None)])  # pyright: ignore[reportArgumentType] - the error tested
        assert stored(app) == []
        assert app.state.is_idle


async def test_as_many_batches_are_on_their_way_as_the_transport_likes() -> None:
    under_way = most = 0

    class Wide(MemoryTransport):
        sends_at_once = 3
        send_size = 2

        async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
            nonlocal under_way, most
            assert len(messages) <= 2
            under_way += 1
            most = max(most, under_way)
            for _ in range(5):
                await asyncio.sleep(0)
            under_way -= 1
            return await super().send(messages)

    async with producer(transport=Wide()) as app:
        await asyncio.gather(*(app.send(OrderPlaced("o", n)) for n in range(30)))
    assert most == 3


async def test_sends_side_by_side_travel_together() -> None:
    batches: list[int] = []

    class Counting(MemoryTransport):
        async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
            batches.append(len(messages))
            return await super().send(messages)

    async with producer(transport=Counting()) as app:
        await asyncio.gather(*(app.send(OrderPlaced("o", n)) for n in range(64)))
    assert sum(batches) == 64
    assert len(batches) <= 2


class Sealing(JsonCodec):
    """A codec of the user's own, made out of ours."""

    def encode(self, envelope: RawEnvelope) -> Encoded:
        encoded = super().encode(envelope)
        return Encoded(encoded.body, {**encoded.headers, "sealed": "yes"})


class Shouting(JsonCodec):
    def encode_payload(self, event: EventType, payload: Any) -> msgspec.Raw:
        raw = super().encode_payload(event, payload)
        return msgspec.Raw(bytes(raw).replace(b'"1"', b'"ONE"'))


async def test_what_a_codec_of_the_users_own_does_is_done_whatever_it_inherits() -> None:
    for codec, wanted in ((Sealing(), b"sealed"), (Shouting(), b'"ONE"')):
        transport = MemoryTransport()
        async with producer(transport=transport, codec=codec) as app:
            await app.send(OrderPlaced("1", 5))
            await app.send_many([OrderPlaced("1", 5)])
        for message in transport.messages(QUEUE):
            assert wanted in message.body + str(message.headers).encode()
        assert len(transport.messages(QUEUE)) == 2
