"""Traces: one over processes and a broker, in the words of OpenTelemetry's conventions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode, get_current_span
from tests.cli.conftest import wait
from tests.support.brokers import broker_url
from tests.support.rabbitmq import Raw
from tests.support.shop import (
    QUEUE,
    TOPOLOGY,
    Handler,
    OrderPaid,
    OrderPlaced,
    dead,
    failing,
    make_app,
    read,
    settled,
    subscribed,
)

from matador import (
    DontRetry,
    Envelope,
    Hooks,
    JsonCodec,
    Matador,
    Schema,
    StandardRetryPolicy,
    Topology,
    event,
)
from matador.codec import Codec, HeaderCodec, MessagePackCodec
from matador.model.message import Message
from matador.observe import Metrics, Tracing
from matador.runtime.dead_letters import Selection
from matador.testing import make_docket, make_envelope, wait_for

PROGRAM = Path(__file__).with_name("tracing_shop.py")


@pytest.fixture
def exported() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exported: InMemorySpanExporter) -> Tracing:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    return Tracing(tracer_provider=provider)


def named(exported: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exported.get_finished_spans() if span.name == name]


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


async def test_attempts_are_children_of_the_send(
    tracing: Tracing, exported: InMemorySpanExporter
) -> None:
    handler = failing(ValueError("amqp://me:hunter2@host is down"), None)
    retry = StandardRetryPolicy(base_delay=0)
    async with make_app(None, handler, hooks=tracing, retry=retry) as app:
        await app.send(OrderPlaced("o-1"), correlation_id="c-1")
        await settled(app)
    (sent,) = named(exported, "send order.placed")
    first, second = named(exported, f"process {QUEUE}")
    assert (sent.kind, first.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert parent_of(sent) is None
    assert sent.context is not None
    assert parent_of(first) == parent_of(second) == sent.context.span_id
    assert dict(sent.attributes or {}) == {
        "messaging.system": "memory",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "order.placed",
    }
    about = dict(first.attributes or {})
    assert about["messaging.message.conversation_id"] == "c-1"
    assert (about["error.type"], about["matador.attempt"]) == ("ValueError", 1)
    assert (about["messaging.destination.name"], about["matador.subscriber"]) == (QUEUE, "handle")
    assert (first.status.status_code, second.status.status_code) == (
        StatusCode.ERROR,
        StatusCode.UNSET,
    )
    assert "hunter2" not in first.to_json()


async def test_dead_letters_and_redrives_stay_in_the_trace(
    tracing: Tracing, exported: InMemorySpanExporter
) -> None:
    seen: list[int] = []

    async def look(*_: Any) -> None:
        seen.append(get_current_span().get_span_context().trace_id)
        if len(seen) == 1:
            raise DontRetry("not now")

    async with make_app(None, Handler(look), hooks=tracing) as app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
        (letter,) = dead(app)
        trace_id = format(seen[0], "032x")
        assert read(letter).docket.metadata["traceparent"].split("-")[1] == trace_id
        places = await app.dead_letters.choose(Selection())
        assert (await app.dead_letters.redrive(places)).done == 1
        await wait_for(lambda: len(seen) == 2, message="the second attempt")
    assert seen[0] == seen[1] != 0


async def test_a_batch_is_one_span_and_what_fails_to_send_is_told(
    tracing: Tracing, exported: InMemorySpanExporter
) -> None:
    app = make_app(None, failing(), hooks=tracing, send_errors="report", consume_from=[])
    async with app:
        await app.send_many([OrderPlaced("o-1"), OrderPlaced("o-2")])
        (batch,) = exported.get_finished_spans()
        assert (batch.attributes or {})["messaging.batch.message_count"] == 2
        exported.clear()
        await app.transport.disconnect()
        await app.send(OrderPlaced("o-3"))
    (failed,) = exported.get_finished_spans()
    assert failed.status.status_code == StatusCode.ERROR
    assert (failed.attributes or {})["error.type"] == "SendFailedError"


@pytest.mark.parametrize(
    "traceparent", ["", "nonsense", "00-" + "f" * 5000, 7, None, {"a": 1}, "00-0-0-00", "\udcff"]
)
async def test_hostile_contexts_begin_a_new_trace(
    tracing: Tracing, exported: InMemorySpanExporter, traceparent: Any
) -> None:
    handler = failing()
    async with make_app(None, handler, hooks=tracing) as app:
        given = "?" if traceparent == "\udcff" else traceparent
        metadata = {"traceparent": given, "tracestate": "x" * 600}
        docket = make_docket(event_key="order.placed", subscriber="handle", metadata=metadata)
        made = JsonCodec().encode(
            make_envelope(msgspec.Raw(b'{"order_id":"o-1"}'), id="m-1", docket=docket)
        )
        await app.transport.send([Message("m-1", QUEUE, made.body, made.headers)])
        await settled(app)
    assert handler.runs == 1
    (span,) = named(exported, f"process {QUEUE}")
    assert parent_of(span) is None


async def test_what_is_refused_has_a_span(tracing: Tracing, exported: InMemorySpanExporter) -> None:
    async with make_app(None, failing(), hooks=tracing) as app:
        await app.transport.send([Message("m-1", QUEUE, b"not an envelope")])
        await settled(app)
    (span,) = named(exported, f"process {QUEUE}")
    assert span.status.status_code == StatusCode.ERROR


@pytest.mark.parametrize("url", ["sqlite", pytest.param("rabbitmq", marks=pytest.mark.broker)])
def test_one_trace_over_a_producer_a_broker_and_a_worker(url: str, tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/shop.db" if url == "sqlite" else broker_url(url)
    done = tmp_path / "done.txt"
    env = {
        **os.environ,
        "SHOP_URL": address,
        "SHOP_NAME": f"trace-{uuid4().hex[:8]}",
        "SHOP_DONE": str(done),
    }
    files = {mode: tmp_path / f"{mode}.jsonl" for mode in ("produce", "work")}
    command = [sys.executable, str(PROGRAM)]
    subprocess.run([*command, "produce", str(files["produce"])], env=env, check=True, timeout=120)
    worker = subprocess.Popen([*command, "work", str(files["work"])], env=env)
    try:
        wait(done.exists, lambda: "the order to be shipped")
        worker.terminate()
        assert worker.wait(60) == 0
    finally:
        worker.kill()
        worker.wait()
        if url == "rabbitmq":
            with Raw(address) as raw:
                raw.delete([Topology(env["SHOP_NAME"], queues=["events"])])
    spans: list[dict[str, Any]] = [
        {**json.loads(line), "process": mode}
        for mode, file in files.items()
        for line in file.read_text().splitlines()
    ]
    assert len({span["context"]["trace_id"] for span in spans}) == 1, "one trace"
    by_id = {span["context"]["span_id"]: span for span in spans}

    def ancestry(span: dict[str, Any]) -> list[str]:
        parent = span["parent_id"]
        above = [] if parent is None else ancestry(by_id[str(parent)])
        return [*above, f"{span['process']}: {span['name'].split()[0]}"]

    chains = sorted(ancestry(span) for span in spans)
    assert chains == [
        ["produce: send"],
        ["produce: send", "work: process"],
        ["produce: send", "work: process"],
        ["produce: send", "work: process", "work: send"],
        ["produce: send", "work: process", "work: send", "work: process"],
    ]


@pytest.mark.parametrize("ratio", [0.0, 0.25, 1.0])
async def test_the_sampler_of_the_application_decides_how_many_traces_there_are(
    ratio: float, exported: InMemorySpanExporter
) -> None:
    provider = TracerProvider(ParentBased(TraceIdRatioBased(ratio)), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    tracing = Tracing(tracer_provider=provider)
    handler, number = failing(), 2000
    async with make_app(None, handler, hooks=tracing) as app:
        for start in range(number):
            await app.send(OrderPlaced(str(start)))
        await settled(app, timeout=60)
    sent = named(exported, "send order.placed")
    assert len(sent) == len(named(exported, f"process {QUEUE}"))
    assert abs(len(sent) - ratio * number) <= 5 * (ratio * (1 - ratio) * number) ** 0.5
    parents = [one.docket.metadata["traceparent"] for one in handler.envelopes]
    assert len({parent.split("-")[1] for parent in parents}) == number
    sampled = {parent.split("-")[1] for parent in parents if int(parent[-2:], 16) & 1}
    assert sampled == {f"{one.context.trace_id:032x}" for one in sent if one.context}
    bound = TraceIdRatioBased.get_bound_for_rate(ratio)
    for parent in parents:  # other services decide the same by the id alone
        trace_id = parent.split("-")[1]
        below = int(trace_id, 16) & TraceIdRatioBased.TRACE_ID_LIMIT < bound
        assert below == (trace_id in sampled)


async def test_a_send_inside_an_unsampled_trace_is_not_sampled(
    exported: InMemorySpanExporter,
) -> None:
    provider = TracerProvider(ParentBased(ALWAYS_OFF), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    always = TracerProvider(shutdown_on_exit=False)
    always.add_span_processor(SimpleSpanProcessor(exported))
    handler = failing()
    async with make_app(None, handler, hooks=Tracing(tracer_provider=always)) as app:
        with provider.get_tracer("mine").start_as_current_span("unsampled") as span:
            await app.send(OrderPlaced("o-1"))
        await settled(app)
    assert exported.get_finished_spans() == ()
    parent = handler.envelopes[0].docket.metadata["traceparent"]
    assert parent.split("-")[1] == f"{span.get_span_context().trace_id:032x}"


def plain_app(
    callback: Callable[[Envelope[Any]], Awaitable[None]], hooks: Sequence[Hooks]
) -> Matador:
    """A shop whose callback takes only the envelope."""
    return Matador(
        "memory://",
        schema=Schema({OrderPlaced: [subscribed(callback)], OrderPaid: [subscribed(callback)]}),
        topology=TOPOLOGY,
        consume_from=["events"],
        hooks=hooks,
    )


def sampling(ratio: float, exported: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider(ParentBased(TraceIdRatioBased(ratio)), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    return provider


async def test_a_trace_that_is_not_sampled_goes_on_without_spans() -> None:
    exported = InMemorySpanExporter()
    seen: dict[str, trace.SpanContext] = {}
    parents: dict[str, str] = {}

    async def look(envelope: Envelope[Any]) -> None:
        name = type(envelope.data).__name__
        seen[name] = trace.get_current_span().get_span_context()
        parents[name] = envelope.docket.metadata["traceparent"]
        if name == "OrderPlaced":
            await app.send(OrderPaid("o-1"))

    provider = sampling(0.0, exported)
    app = plain_app(look, [Tracing(tracer_provider=provider), Metrics()])
    async with app:
        await app.send(OrderPlaced("o-1"))
        await settled(app)
        # What the callback is called with, others who make spans see as well.
        assert not provider.get_tracer("mine").start_span("mine").is_recording()
    assert exported.get_finished_spans() == ()
    placed = seen["OrderPlaced"]
    assert (placed.is_valid, placed.is_remote, placed.trace_flags.sampled) == (True, True, False)
    assert f"{placed.trace_id:032x}-{placed.span_id:016x}" in parents["OrderPlaced"]
    assert parents["OrderPaid"] == parents["OrderPlaced"]
    assert parents["OrderPaid"].endswith(("-00", "-02"))


async def test_a_message_leaves_no_trace_in_the_next_one() -> None:
    seen: list[tuple[str, bool]] = []

    async def look(envelope: Envelope[Any]) -> None:
        current = trace.get_current_span().get_span_context()
        seen.append((f"{current.trace_id:032x}", current.trace_flags.sampled))

    provider = sampling(0.5, InMemorySpanExporter())
    async with plain_app(look, [Tracing(tracer_provider=provider)]) as app:
        await app.send_many([OrderPlaced("a"), OrderPlaced("b")])
        for number in range(50):
            await app.send(OrderPlaced(str(number)))
        await settled(app)
    assert len(seen) == 52
    assert len({one for one, _ in seen}) == 51  # a batch is one send
    assert {sampled for _, sampled in seen} == {True, False}


@pytest.mark.parametrize("codec", [JsonCodec(), HeaderCodec(), MessagePackCodec()], ids=repr)
@pytest.mark.parametrize("ratio", [0.0, 1.0])
async def test_every_codec_carries_the_context(codec: Codec, ratio: float) -> None:
    seen: list[tuple[str, str]] = []

    async def look(envelope: Envelope[Any]) -> None:
        current = trace.get_current_span().get_span_context()
        seen.append((f"{current.trace_id:032x}", envelope.docket.metadata["traceparent"]))

    @event("order.odd", description=f"Like a trace: 00-{'f' * 32}-{'f' * 16}-ff.")
    @dataclass(frozen=True)
    class Odd:
        number: int

    app = Matador(
        "memory://",
        schema=Schema({OrderPlaced: [subscribed(look)], Odd: [subscribed(look)]}),
        topology=TOPOLOGY,
        consume_from=["events"],
        codec=codec,
        hooks=[Tracing(tracer_provider=sampling(ratio, InMemorySpanExporter()))],
    )
    async with app:
        await app.send(OrderPlaced("o-1"))
        await app.send(Odd(1))
        await settled(app)
    assert len(seen) == 2
    for trace_id, parent in seen:
        assert parent.split("-")[1] == trace_id
        assert int(parent.split("-")[3], 16) & 1 == ratio


@pytest.mark.parametrize("ratio", [0.0, 1.0])
async def test_a_message_whose_sender_does_not_trace_begins_a_trace(ratio: float) -> None:
    exported = InMemorySpanExporter()
    seen: dict[str, trace.SpanContext] = {}
    parents: dict[str, str | None] = {}

    async def look(envelope: Envelope[Any]) -> None:
        name = type(envelope.data).__name__
        seen[name] = trace.get_current_span().get_span_context()
        parents[name] = envelope.docket.metadata.get("traceparent")
        if name == "OrderPlaced":
            await app.send(OrderPaid("o-1"))

    app = plain_app(look, [Tracing(tracer_provider=sampling(ratio, exported))])
    async with app:
        order = await app.plan_send(OrderPlaced("o-1"))
        await app.transport.send([one.message for one in order.outgoing])
        await settled(app)
    assert parents["OrderPlaced"] is None
    assert seen["OrderPlaced"].is_valid
    assert seen["OrderPaid"].trace_id == seen["OrderPlaced"].trace_id
    assert seen["OrderPlaced"].trace_flags.sampled == seen["OrderPaid"].trace_flags.sampled == ratio
    spans = sorted(exported.get_finished_spans(), key=lambda one: one.start_time or 0)
    assert len(spans) == (3 if ratio else 0)
    if ratio:
        first, sent, second = spans
        assert first.parent is None
        assert sent.parent == first.context
        assert second.parent is not None
        assert sent.context is not None
        assert second.parent.span_id == sent.context.span_id
        assert (first.attributes or {})["matador.event"] == "order.placed"
