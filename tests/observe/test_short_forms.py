"""Short forms of hooks do what the long ones do: the same counts, the same traces."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from tests.support.shop import QUEUE, TOPOLOGY, OrderPaid, OrderPlaced, settled, subscribed

from matador import DontRetry, Envelope, Hooks, Matador, Schema, event
from matador.codec import Codec, HeaderCodec, JsonCodec, MessagePackCodec
from matador.errors import LeaseLostError, MatadorError
from matador.events.hooks import EnqueueSuccess, HookSet, WorkerSuccess
from matador.model.message import Settlement
from matador.observe import PrometheusMetrics, Tracing
from matador.observe.counters import OutcomeCounter
from matador.transports.memory import MemoryTransport

EVENT = {"way": "event", "queue": QUEUE, "name": "order.placed", "subscriber": "handle"}


def make_app(
    callback: Callable[[Envelope[Any]], Awaitable[None]], hooks: Sequence[Hooks]
) -> Matador:
    """A shop whose callback is plain: it takes only the envelope."""
    return Matador(
        "memory://",
        schema=Schema({OrderPlaced: [subscribed(callback)], OrderPaid: [subscribed(callback)]}),
        topology=TOPOLOGY,
        consume_from=["events"],
        hooks=hooks,
    )


async def mixed(envelope: Envelope[Any]) -> None:
    """Waits, fails or returns at once."""
    if envelope.data.order_id == "bad":
        raise DontRetry("no")
    if envelope.data.order_id == "slow":
        await asyncio.sleep(0.03)


def sampling(ratio: float, exported: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider(ParentBased(TraceIdRatioBased(ratio)), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    return provider


class Told(Hooks):
    """Hears of each message, so that nothing is counted in the short form."""

    def on_worker_success(self, event: WorkerSuccess) -> None: ...

    def on_enqueue_success(self, event: EnqueueSuccess) -> None: ...


class Stricter(PrometheusMetrics):
    """Overrides what the short form would replace."""

    told = 0

    def on_worker_success(self, event: WorkerSuccess) -> None:
        self.told += 1
        super().on_worker_success(event)


@pytest.mark.parametrize("more", [[], [Told()]], ids=["short", "long"])
async def test_counts_are_the_same(more: list[Hooks]) -> None:
    metrics, counter = PrometheusMetrics(), OutcomeCounter()
    hooks = [metrics, counter, *more]
    is_short = HookSet(hooks).short_success is not None
    assert is_short == (HookSet(hooks).short_stored is not None) == (not more)
    async with make_app(mixed, hooks) as app:
        for name in ("good", "bad", "slow", "good"):
            await app.send(OrderPlaced(name))
        await app.send_many([OrderPlaced("good"), OrderPlaced("bad")])
        await settled(app)
    value = metrics.registry.get_sample_value
    assert value("matador_messages_sent_total", EVENT) == 6
    assert value("matador_attempts_total", EVENT | {"outcome": "success"}) == 4
    assert value("matador_attempts_total", EVENT | {"outcome": "dead-letter"}) == 2
    assert value("matador_attempt_duration_seconds_count", EVENT) == 6
    assert value("matador_attempt_duration_seconds_bucket", EVENT | {"le": "0.025"}) == 5
    assert (value("matador_attempt_duration_seconds_sum", EVENT) or 0) >= 0.03
    assert value("matador_wait_seconds_count", EVENT) == 6
    assert counter.total(QUEUE, "success") == 4
    assert counter.total(QUEUE, "dead-letter") == 2
    assert max(one.max_ms for one in counter.counts if one.outcome == "success") >= 30


async def test_what_a_subclass_or_an_object_overrides_is_called() -> None:
    metrics = Stricter()
    async with make_app(mixed, [metrics]) as app:
        await app.send(OrderPlaced("good"))
        await settled(app)
    assert metrics.told == 1
    assert HookSet([metrics]).short_success is None
    assert HookSet([metrics]).short_stored is not None
    patched = PrometheusMetrics()
    patched.on_worker_success = lambda event: None
    assert HookSet([patched]).short_success is None


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
    app = make_app(look, [Tracing(tracer_provider=provider), PrometheusMetrics()])
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
    assert parents["OrderPaid"].endswith("-00")


async def test_a_message_leaves_no_trace_in_the_next_one() -> None:
    seen: list[tuple[str, bool]] = []

    async def look(envelope: Envelope[Any]) -> None:
        current = trace.get_current_span().get_span_context()
        seen.append((f"{current.trace_id:032x}", current.trace_flags.sampled))

    provider = sampling(0.5, InMemorySpanExporter())
    async with make_app(look, [Tracing(tracer_provider=provider)]) as app:
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


async def test_all_applications_of_a_process_skip_spans() -> None:
    provider = sampling(0.0, InMemorySpanExporter())
    for _ in range(3):  # the SDK gives all of them the same tracer
        tracing = Tracing(tracer_provider=provider)
        async with make_app(mixed, [tracing]):
            assert type(tracing.short_send("order.placed", "memory")) is str


async def test_opentelemetrys_own_metrics_count_what_is_not_sampled() -> None:
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    provider = sampling(0.0, InMemorySpanExporter())
    tracing = Tracing(tracer_provider=provider, meter_provider=meters)
    async with make_app(mixed, [tracing]) as app:
        await app.send(OrderPlaced("good"))
        await settled(app)
    data = reader.get_metrics_data()
    assert data is not None
    found: set[str] = {
        metric.name
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert {"messaging.process.duration", "messaging.client.sent.messages"} <= found
    meters.shutdown()


async def test_a_short_form_that_fails_has_no_other_effect(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = InMemorySpanExporter()
    tracing = Tracing(tracer_provider=sampling(0.0, exported))
    done: list[str] = []

    async def handle(envelope: Envelope[Any]) -> None:
        done.append(envelope.data.order_id)

    def fail(*_: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(type(tracing), "short_send", fail)
    monkeypatch.setattr(type(tracing), "short_attempt", fail)
    async with make_app(handle, [tracing]) as app:
        await app.send(OrderPlaced("a"))
        await settled(app)
    assert done == ["a"]
    said = [record.getMessage() for record in caplog.records]
    assert sum("on_send_enter raised" in one for one in said) == 1
    assert sum("on_worker_enter raised" in one for one in said) == 1


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

    app = make_app(look, [Tracing(tracer_provider=sampling(ratio, exported))])
    async with app:
        order = await app.plan_send(OrderPlaced("o-1"))
        await app.transport.send([one.message for one in order.outgoing if one.message])
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


class Refusing(MemoryTransport):
    """Has lost the leases of some messages when they are settled."""

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[MatadorError | None]:
        outcomes = list(await super().settle(settlements))
        lost = LeaseLostError("it has another receiver")
        return [lost if number % 2 else one for number, one in enumerate(outcomes)]


async def test_only_what_is_settled_is_counted() -> None:
    metrics = PrometheusMetrics()
    app = Matador(
        Refusing(),
        schema=Schema({OrderPlaced: [subscribed(mixed)]}),
        topology=TOPOLOGY,
        consume_from=["events"],
        hooks=[metrics],
    )
    async with app:
        await app.send_many([OrderPlaced("good"), OrderPlaced("good")])
        await settled(app)
    counted = metrics.registry.get_sample_value
    number = counted("matador_attempts_total", EVENT | {"outcome": "success"})
    assert number == counted("matador_wait_seconds_count", EVENT) == 1
