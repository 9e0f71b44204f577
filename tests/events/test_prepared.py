"""Events of a kind are prepared once, and become the same messages as any others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from matador import (
    Envelope,
    Hooks,
    JsonCodec,
    Matador,
    MessagePackCodec,
    Schema,
    Topology,
    event,
    subscriber,
)
from matador.codec.base import Codec, DecodedPayload, Encoded, RawEnvelope
from matador.errors import ConfigurationError, InvalidEventError, MatadorError, MessageTooLargeError
from matador.events.fanout import FanOut
from matador.events.hooks import EnqueueSuccess
from matador.model.message import Message, Once
from matador.model.sending import SendOptions
from matador.testing import ManualClock
from matador.transports.memory import MemoryTransport


@event("price.changed", description="A price changed.", metadata={"team": "prices", "kept": 1})
@dataclass(frozen=True)
class PriceChanged:
    price: int
    note: str = ""


@event("price.seen", description="Somebody saw a price.")
@dataclass(frozen=True)
class PriceSeen:
    price: int


on = True


@subscriber(description="Tells the customer.", idempotent="yes")
async def tell(envelope: Envelope[Any]) -> None: ...


@subscriber(description="Counts.", idempotent="yes", queue="slow", importance="can-ignore")
async def count(envelope: Envelope[Any]) -> None: ...


@subscriber(description="Is sometimes off.", idempotent="yes", enabled=lambda: on)
async def watch(envelope: Envelope[Any]) -> None: ...


SCHEMA = Schema({PriceChanged: [tell, count], PriceSeen: [tell, watch]})
CHANGED, SEEN = SCHEMA.event(PriceChanged), SCHEMA.event(PriceSeen)
TOPOLOGY = Topology("shop", queues=["events", "slow"])
BOTH = tuple(f"shop.{queue}" for queue in ("events", "slow"))


class Notes(Hooks):
    """Adds metadata, and notes what was stored."""

    def __init__(self, universal: Mapping[str, Any]) -> None:
        self.universal = universal
        self.stored: list[Envelope[Any]] = []

    def load_universal_metadata(self) -> Mapping[str, Any]:
        return self.universal

    def on_enqueue_success(self, event: EnqueueSuccess) -> None:
        self.stored.append(event.envelope)


def open_app(*hooks: Hooks, codec: Codec | None = None, **options: Any) -> Matador:
    return Matador(
        MemoryTransport(),
        schema=SCHEMA,
        topology=TOPOLOGY,
        clock=ManualClock(),
        hooks=hooks,
        codec=codec,
        **options,
    )


def stored(app: Matador) -> list[tuple[str, str, bytes, Mapping[str, Any]]]:
    transport = app.transport
    assert isinstance(transport, MemoryTransport)
    found = [one for queue in BOTH for one in transport.messages(queue)]
    return [(one.id, one.queue, one.body, one.headers) for one in found]


OPTIONS = {
    "an id": SendOptions(id="one"),
    "no id": SendOptions(correlation_id="c-1"),
    "one subscriber": SendOptions(id="one", subscribers=("tell",)),
    "the same subscriber twice": SendOptions(id="one", subscribers=("tell", "tell")),
    "a queue": SendOptions(id="one", queue="slow"),
    "metadata": SendOptions(id="one", metadata={"team": "mine", "nested": {"a": [1, "ü", None]}}),
    "before": SendOptions(id="one", before=PriceChanged(4), metadata={"a": "b"}),
    "everything": SendOptions(
        id="one",
        before=PriceChanged(4, "é"),
        correlation_id='c"1',
        metadata={"a": "\n"},
        subscribers=("count",),
        queue="events",
    ),
    "text that is not ASCII": SendOptions(id="ünï", correlation_id="çà"),
    "an ordering key": SendOptions(id="one", ordering_key="k"),
}


@pytest.mark.parametrize("universal", [{}, {"host": "a", "kept": 2}], ids=["bare", "universal"])
@pytest.mark.parametrize("codec", [JsonCodec(), MessagePackCodec()], ids=["json", "msgpack"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
async def test_the_messages_are_those_of_the_fan_out(
    options: SendOptions, codec: Codec, universal: dict[str, Any]
) -> None:
    plan = await open_app(Notes(universal), codec=codec).plan_send(PriceChanged(5), options=options)
    notes = Notes(universal)
    async with open_app(notes, codec=codec) as app:
        await app.publish([(CHANGED, PriceChanged(5), options)])
        expected = [one.message for one in plan.outgoing if one.message is not None]
        assert sorted(stored(app), key=lambda one: one[1]) == sorted(
            [(one.id, one.queue, one.body, one.headers) for one in expected],
            key=lambda one: one[1],
        )
    assert notes.stored == [one.envelope for one in plan.outgoing]


async def test_events_of_a_kind_need_no_fan_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object) -> None:
        raise AssertionError("it was not prepared")

    monkeypatch.setattr(FanOut, "make", never)
    text = msgspec.Raw(b'{"price": 7}')
    common: dict[str, Any] = {
        "correlation_id": "c",
        "metadata": {"a": "b"},
        "subscribers": ("tell",),
    }
    events = [
        (CHANGED, DecodedPayload(PriceChanged(7), text), SendOptions(id=str(number), **common))
        for number in range(100)
    ]
    async with open_app() as app:
        await app.publish(events, once=Once("replay"))
        await app.send_many((PriceChanged(1), options) for _, _, options in events)
        found = stored(app)
    assert [one[0] for one in found] == [str(number) for number in range(100)] * 2
    assert all(bytes(text) in body for _, _, body, _ in found[:100])


async def test_a_subscriber_that_may_be_off_is_asked_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_app() as app:
        counts: list[tuple[int, int]] = []
        for enabled in (True, False, True):
            monkeypatch.setattr(f"{__name__}.on", enabled)
            (result,) = await app.publish([(SEEN, PriceSeen(1), SendOptions(id="one"))])
            counts.append((result.sent, result.skipped))
    assert counts == [(2, 0), (1, 1), (2, 0)]


async def test_a_codec_that_encodes_otherwise_is_asked_each_time() -> None:
    class Marked(JsonCodec):
        def encode(self, envelope: RawEnvelope) -> Encoded:
            return Encoded(super().encode(envelope).body, {"marked": 1})

    async with open_app(codec=Marked()) as app:
        await app.publish([(CHANGED, PriceChanged(1), SendOptions(id="one"))])
        assert [headers for *_, headers in stored(app)] == [{"marked": 1}] * 2


async def test_another_event_of_the_same_key_is_not_mistaken_for_it() -> None:
    other = replace(CHANGED, description="Another text.", metadata={})
    options = SendOptions(id="one", subscribers=("tell",))
    async with open_app() as app:
        await app.publish([(one, PriceChanged(1), options) for one in (CHANGED, other, CHANGED)])
        texts = [b"Another text." in body for _, _, body, _ in stored(app)]
    assert texts == [False, True, False]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (SendOptions(metadata={"a": float("nan")}), InvalidEventError, "metadata"),
        (SendOptions(metadata={"a": "\ud800"}), InvalidEventError, "metadata"),
        (SendOptions(metadata={"a": object()}), InvalidEventError, "metadata"),
        (SendOptions(metadata=5), InvalidEventError, "must be a mapping"),  # pyright: ignore[reportArgumentType] - as users may
        (SendOptions(id="\ud800"), ConfigurationError, "id has"),
        (SendOptions(correlation_id=5), ConfigurationError, "must be a string"),  # pyright: ignore[reportArgumentType] - as users may
        (SendOptions(before={"price": "x"}), InvalidEventError, "price"),
        (SendOptions(priority=-1), ConfigurationError, "priority"),
    ],
)
async def test_what_is_wrong_is_said_as_ever(
    options: SendOptions, error: type[MatadorError], text: str
) -> None:
    with pytest.raises(error, match=text) as planned:
        await open_app().plan_send(PriceChanged(1), options=options)
    async with open_app() as app:
        with pytest.raises(error) as raised:
            await app.publish([(CHANGED, PriceChanged(1), options)])
        assert stored(app) == []
    assert str(raised.value) == str(planned.value)


async def test_one_that_is_too_large_fails_alone() -> None:
    events = [
        (CHANGED, PriceChanged(1, "x" * size), SendOptions(id=str(size), subscribers=("tell",)))
        for size in (1, 2000, 2)
    ]
    async with open_app(max_message_size=1000, send_errors="report") as app:
        results = await app.publish(events)
        assert [result.ok for result in results] == [True, False, True]
        assert isinstance(results[1].errors[0].__cause__, MessageTooLargeError)
        assert [one[0] for one in stored(app)] == ["1", "2"]


async def test_a_transport_gets_more_at_a_time_only_where_it_stores_each_once() -> None:
    sizes: list[int] = []

    class Counting(MemoryTransport):
        async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
            sizes.append(len(messages))
            return await super().send(messages)

        async def send_once(
            self, messages: Sequence[Message], once: Once
        ) -> Sequence[MatadorError | None]:
            sizes.append(len(messages))
            return await super().send_once(messages, once)

    events = [
        (CHANGED, PriceChanged(1), SendOptions(id=str(number), subscribers=("tell",)))
        for number in range(3000)
    ]
    for once, expected in ((Once("replay"), [2500, 500]), (None, [500] * 6)):
        sizes.clear()
        async with Matador(Counting(), schema=SCHEMA, topology=TOPOLOGY) as app:
            await app.publish(events, once=once)
        assert sizes == expected
