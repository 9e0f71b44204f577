"""The journal's short forms write the same records as the hooks they stand in for."""

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
from matador.events.hooks import EnqueueSuccess, HookSet, WorkerSuccess
from matador.model.message import Message
from matador.model.sending import SendOptions
from matador.model.subscriber import Subscriber
from matador.observe import Journal, PrometheusMetrics, Tracing
from matador.observe.journal import hook
from matador.observe.journal.records import REPLAY_ID, SentRecord, decode_record
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


@event("report.made", description="A report was made.")
class ReportMade(msgspec.Struct):
    content: msgspec.Raw


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
            ReportMade: [subscribed("print")],
        }
    )


class Long(Journal):
    """Overrides the hooks that have short forms, so that they are called."""

    def on_enqueue_success(self, event: EnqueueSuccess) -> None:
        super().on_enqueue_success(event)

    def on_worker_success(self, event: WorkerSuccess) -> None:
        super().on_worker_success(event)


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


@pytest.mark.parametrize("codec", [JsonCodec(), HeaderCodec(), MessagePackCodec()], ids=repr)
async def test_the_same_is_recorded(tmp_path: Path, codec: Codec) -> None:
    short, long = (
        Journal(tmp_path / "short", clock=ManualClock()),
        Long(tmp_path / "long", clock=ManualClock()),
    )
    assert HookSet([short]).short_stored is not None
    assert HookSet([short]).short_success is not None
    assert HookSet([long]).short_stored is HookSet([long]).short_success is None
    found = await recorded(short, codec)
    assert found == await recorded(long, codec)
    assert [one["kind"] for one in found].count("sent") == 18
    assert [one["kind"] for one in found].count("delivery") == 18


@pytest.mark.parametrize("sampler", [ALWAYS_ON, ALWAYS_OFF], ids=["sampled", "not sampled"])
async def test_the_same_is_recorded_beside_metrics_and_traces(
    tmp_path: Path, sampler: Sampler
) -> None:
    def others() -> list[Hooks]:
        provider = TracerProvider(sampler, shutdown_on_exit=False)
        return [PrometheusMetrics(), Tracing(tracer_provider=provider)]

    found = await recorded(Journal(tmp_path / "short", clock=ManualClock()), None, others())
    assert found == await recorded(Long(tmp_path / "long", clock=ManualClock()), None, others())
    sent = [one for one in found if one["kind"] == "sent"]
    assert all(one["metadata"]["traceparent"] == "a trace" for one in sent)


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


@pytest.mark.parametrize("kind", [Journal, Long])
async def test_json_that_a_payload_contains_as_it_is_stays_on_one_line(
    tmp_path: Path, kind: type[Journal]
) -> None:
    calls = Calls()
    app = Matador(
        "memory://", schema=schema(calls), consume_from=["events"], hooks=[kind(tmp_path)]
    )
    async with app:
        await app.send(OrderPlaced("1"))
        await app.send(ReportMade(msgspec.Raw(b'{\n  "rows": [\n1, 2]\n}')))
        await app.send(OrderPlaced("2"))
        await wait_for(lambda: calls.number == 3)
    records = [decode_record(line) for line in lines(tmp_path)]
    data = [msgspec.json.decode(one.data) for one in records if isinstance(one, SentRecord)]
    assert data == [{"order_id": "1"}, {"content": {"rows": [1, 2]}}, {"order_id": "2"}]


async def test_a_record_that_cannot_be_made_is_left_out_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(payload: object) -> bytes:
        raise TypeError("no")

    monkeypatch.setattr(hook, "as_json", refuse)
    metrics, calls = PrometheusMetrics(), Calls()
    app = Matador(
        "memory://",
        schema=schema(calls),
        consume_from=["events"],
        codec=MessagePackCodec(),
        hooks=[Journal(tmp_path), metrics],
    )
    async with app:
        result = await app.send(OrderPlaced("1"))
        await wait_for(lambda: calls.number == 1)
    assert result.sent == 1
    assert "the journal could not encode a record; it is left out" in caplog.text
    labels = {
        "way": "event",
        "queue": "matador.events",
        "name": "order.placed",
        "subscriber": "email",
    }
    assert metrics.registry.get_sample_value("matador_messages_sent_total", labels) == 1
    assert [plain(line)["kind"] for line in lines(tmp_path)] == ["delivery"]
