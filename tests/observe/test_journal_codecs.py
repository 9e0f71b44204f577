"""The journal records the same whatever the codec, and whatever other hooks there are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler

from matador import DontRetry, Envelope, Hooks, Matador, Schema, event
from matador.codec import Codec, HeaderCodec, JsonCodec, MessagePackCodec
from matador.errors import MatadorError
from matador.model.message import Message
from matador.model.sending import SendOptions
from matador.model.subscriber import Subscriber
from matador.observe import Journal, Metrics, Tracing
from matador.observe.journal.records import REPLAY_ID
from matador.observe.journal.segments import finished
from matador.testing import ManualClock, wait_for
from matador.transports import MemoryTransport


@event("order.placed", description="An order was placed.", aliases=["order.created"])
@dataclass
class OrderPlaced:
    order_id: str


@event("order.paid", description="An order was paid.")
@dataclass
class OrderPaid:
    order_id: str


class Calls:
    """Counts how often a subscriber is called."""

    def __init__(self) -> None:
        self.number = 0

    async def handle(self, envelope: Envelope[Any]) -> None:
        self.number += 1
        order = getattr(envelope.data, "order_id", "")
        if order == "bad":
            raise DontRetry("no")
        if order == "waits":
            await asyncio.sleep(0)


def schema(calls: Calls) -> Schema:
    def subscribed(name: str) -> Subscriber[Any]:
        return Subscriber(name, callback=calls.handle, description="Handles it.", idempotent="yes")

    return Schema(
        {
            OrderPlaced: [subscribed("email")],
            OrderPaid: [subscribed("bill"), subscribed("ship")],
        }
    )


def lines(folder: Path) -> list[bytes]:
    return [one for path in finished(folder) for one in path.read_bytes().splitlines()]


def plain(line: bytes) -> dict[str, Any]:
    """A record without what differs from run to run."""
    found = msgspec.json.decode(line, type=dict[str, Any])
    found.pop("worker", None)
    if "traceparent" in (found.get("metadata") or {}):
        found["metadata"]["traceparent"] = "a trace"
    return found


async def recorded(
    journal: Journal, codec: Codec | None = None, more: Sequence[Hooks] = ()
) -> list[dict[str, Any]]:
    """The records of an application that sends in many ways."""
    clock, calls = ManualClock(), Calls()
    app = Matador(
        MemoryTransport(clock=clock),
        schema=schema(calls),
        consume_from=["events"],
        codec=codec,
        hooks=[journal, *more],
        clock=clock,
    )
    async with app:
        for order in ("good", "waits", "bad"):
            await app.send(OrderPlaced(order))
            await app.send(OrderPaid(order))
        await app.send(OrderPaid("o"), correlation_id="c-1", metadata={REPLAY_ID: "r", "a": 1})
        await app.send(OrderPlaced("o"), before=OrderPlaced("p"))
        await app.send_many([OrderPlaced("a"), OrderPaid("b")])
        options = SendOptions(correlation_id="c-2", before=OrderPlaced("p"))
        await app.send_many([(OrderPlaced("c"), options), OrderPlaced("d")])
        await app.send(OrderPlaced("late"), delay=5)
        await wait_for(lambda: calls.number == 17)
        clock.advance(7)
        await wait_for(lambda: calls.number == 18)
    return sorted(map(plain, lines(journal.folder)), key=repr)


CODECS = [JsonCodec(), HeaderCodec(), MessagePackCodec()]


async def test_every_codec_gives_the_same_records(tmp_path: Path) -> None:
    first, *others = [
        await recorded(Journal(tmp_path / str(number), clock=ManualClock()), codec)
        for number, codec in enumerate(CODECS)
    ]
    assert all(other == first for other in others)
    assert [one["kind"] for one in first].count("sent") == 18
    assert [one["kind"] for one in first].count("delivery") == 18


@pytest.mark.parametrize("sampler", [ALWAYS_ON, ALWAYS_OFF], ids=["sampled", "not sampled"])
async def test_the_same_is_recorded_beside_metrics_and_traces(
    tmp_path: Path, sampler: Sampler
) -> None:
    provider = TracerProvider(sampler, shutdown_on_exit=False)
    others = [Metrics(), Tracing(tracer_provider=provider)]
    alone = await recorded(Journal(tmp_path / "alone", clock=ManualClock()))
    found = await recorded(Journal(tmp_path / "beside", clock=ManualClock()), None, others)
    for one in found:
        if one["kind"] == "sent":
            assert one["metadata"].pop("traceparent") == "a trace"
            if not one["metadata"]:
                del one["metadata"]
    assert sorted(found, key=repr) == alone


async def test_the_payload_is_recorded_as_it_was_sent(tmp_path: Path) -> None:
    """Its owner may change it while the broker stores it."""
    payload = OrderPlaced("before")

    class Slow(MemoryTransport):
        async def send(self, messages: Sequence[Message]) -> Sequence[MatadorError | None]:
            payload.order_id = "after"
            return await super().send(messages)

    app = Matador(Slow(), schema=schema(Calls()), hooks=[Journal(tmp_path)])
    async with app:
        await app.send(payload)
    (line,) = lines(tmp_path)
    assert plain(line)["data"] == {"order_id": "before"}
