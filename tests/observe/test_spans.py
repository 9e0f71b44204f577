"""Spans and metrics that facts become, in the words of OpenTelemetry's conventions."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import copy_context
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, Sampler
from opentelemetry.trace import SpanKind, StatusCode, get_current_span
from tests.observe.facts import attempt, job, received, sending, sent

from matador.observe import NotSent, Received, Tracing
from matador.runtime.hooks import HookSet, Sending

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE_ID}-{SPAN_ID}-01", f"00-{TRACE_ID}-{SPAN_ID}-00"


@pytest.fixture
def exported() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def tracing_to(exported: InMemorySpanExporter, sampler: Sampler | None = None) -> Tracing:
    provider = TracerProvider(sampler, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    return Tracing(tracer_provider=provider)


@pytest.fixture
def tracing(exported: InMemorySpanExporter) -> Tracing:
    return tracing_to(exported)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = otel_context.get_current()
    yield
    assert otel_context.get_current() == before


def send(tracing: Tracing, event: Sending, error: Exception | None = None) -> trace.SpanContext:
    """Surround a send, as the pipeline does. The context of the span that is current meanwhile."""
    around = HookSet([tracing]).send_around
    assert around is not None
    states = around.enter(event)
    current = get_current_span().get_span_context()
    around.exit(event, states, error)
    return current


def handle(
    tracing: Tracing, event: Received, error: Exception | None = None, do: Any = None
) -> trace.SpanContext:
    """Surround a handler, in context variables of its own."""
    around = HookSet([tracing]).around
    assert around is not None

    def run() -> trace.SpanContext:
        states = around.enter(event)
        if do is not None:
            do()
        current = get_current_span().get_span_context()
        around.exit(event, states, error)
        return current

    return copy_context().run(run)


def about(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


SENDS: list[tuple[Sending, str, SpanKind, str | None, dict[str, Any]]] = [
    (sending(), "send order.placed", SpanKind.PRODUCER, "order.placed", {}),
    (
        sending(names=("a", "b"), count=3),
        "send",
        SpanKind.PRODUCER,
        None,
        {"messaging.batch.message_count": 3, "matador.events": ("a", "b")},
    ),
    (
        sending(way="job", names=("welcome",), receiver="emails"),
        "send emails",
        SpanKind.PRODUCER,
        "emails",
        {"matador.way": "job", "matador.name": "welcome"},
    ),
    (
        sending(way="rpc", operation="call", names=("ADD",), receiver="maths"),
        "call maths",
        SpanKind.CLIENT,
        "maths",
        {"matador.way": "rpc", "matador.name": "ADD"},
    ),
    (
        sending(way="message", operation="publish", names=("a.b", "c.d"), receiver="news", count=2),
        "publish news",
        SpanKind.PRODUCER,
        "news",
        {
            "matador.way": "message",
            "messaging.batch.message_count": 2,
            "matador.names": ("a.b", "c.d"),
        },
    ),
]


@pytest.mark.parametrize(("event", "name", "kind", "destination", "more"), SENDS)
def test_sends(
    tracing: Tracing,
    exported: InMemorySpanExporter,
    event: Sending,
    name: str,
    kind: SpanKind,
    destination: str | None,
    more: dict[str, Any],
) -> None:
    event.metadata.clear()
    current = send(tracing, event)
    (span,) = exported.get_finished_spans()
    assert (span.name, span.kind, span.parent, span.context) == (name, kind, None, current)
    assert about(span) == {
        "messaging.system": "memory",
        "messaging.operation.name": event.operation,
        "messaging.operation.type": "send",
        **({} if destination is None else {"messaging.destination.name": destination}),
        **more,
    }
    expected = f"00-{current.trace_id:032x}-{current.span_id:016x}-{current.trace_flags:02x}"
    assert event.metadata == {"traceparent": expected}


HANDLED: list[tuple[Received, str, SpanKind, dict[str, Any]]] = [
    (
        received(correlation_id="c-1"),
        "shop.events",
        SpanKind.CONSUMER,
        {
            "matador.event": "order.placed",
            "matador.subscriber": "handle",
            "matador.attempt": 1,
            "messaging.message.conversation_id": "c-1",
        },
    ),
    (
        received(**job()),
        "bull:emails",
        SpanKind.CONSUMER,
        {"matador.way": "job", "matador.name": "welcome"},
    ),
    (
        received(way="rpc", name="ADD", receiver="maths", queue="maths"),
        "maths",
        SpanKind.SERVER,
        {"matador.way": "rpc", "matador.name": "ADD"},
    ),
]


@pytest.mark.parametrize(("event", "queue", "kind", "more"), HANDLED)
def test_attempts(
    tracing: Tracing,
    exported: InMemorySpanExporter,
    event: Received,
    queue: str,
    kind: SpanKind,
    more: dict[str, Any],
) -> None:
    current = handle(tracing, event)
    (span,) = exported.get_finished_spans()
    assert (span.name, span.kind, span.parent) == (f"process {queue}", kind, None)
    assert span.context == current
    assert about(span) == {
        "messaging.system": "memory",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": queue,
        "messaging.message.id": "m-1",
        **more,
    }


def test_an_attempt_is_in_the_trace_of_the_send_and_so_is_what_it_sends(
    tracing: Tracing, exported: InMemorySpanExporter
) -> None:
    first, second = sending(), sending(names=("order.paid",))
    outer = send(tracing, first)
    with trace.get_tracer("mine").start_as_current_span("another message's"):
        inner = handle(tracing, received(metadata=first.metadata), do=lambda: send(tracing, second))
    _, sent_inside, handled = exported.get_finished_spans()
    assert handled.parent is not None
    assert sent_inside.parent is not None
    assert (handled.parent.span_id, sent_inside.parent.span_id) == (outer.span_id, inner.span_id)
    assert {one.context.trace_id for one in (handled, sent_inside) if one.context} == {
        outer.trace_id
    }


def test_errors_are_recorded_without_secrets(
    tracing: Tracing, exported: InMemorySpanExporter
) -> None:
    error = ValueError("amqp://me:hunter2@host is down")
    send(tracing, sending(), error)
    handle(tracing, received(), error)
    tracing.on_attempted([attempt(error=error, outcome="dead-letter", ran=False)])
    spans = exported.get_finished_spans()
    assert len(spans) == 3
    for span in spans:
        assert span.status.status_code is StatusCode.ERROR
        assert about(span)["error.type"] == "ValueError"
        assert "hunter2" not in span.to_json()


def test_a_message_that_is_not_stored_is_noted_on_the_span_of_its_send(
    tracing: Tracing, exported: InMemorySpanExporter
) -> None:
    event = sending()
    state = tracing.on_send_enter(event)
    tracing.on_enqueue_error(NotSent(sent(), ValueError("full")))
    tracing.on_send_exit(event, state, None)
    (span,) = exported.get_finished_spans()
    assert about(span)["error.type"] == "ValueError"


def test_messages_that_never_ran_have_spans(
    tracing: Tracing, exported: InMemorySpanExporter
) -> None:
    error = ValueError("refused")
    carried = received(metadata={"traceparent": SAMPLED})
    tracing.on_attempted(
        [
            attempt(carried),
            attempt(carried, error=error, outcome="retry"),  # its own span says it
            attempt(carried, ran=False),  # a duplicate
            attempt(carried, ran=False, error=error, outcome="discard"),
            attempt(carried, ran=False, error=error, outcome="dead-letter", malformed=True),
        ]
    )
    refused, malformed = exported.get_finished_spans()
    assert refused.parent is not None
    assert f"{refused.parent.span_id:016x}" == SPAN_ID
    assert about(refused)["matador.event"] == "order.placed"
    assert malformed.parent is None
    assert "matador.event" not in about(malformed)


# -- sampling -------------------------------------------------------------------------------------


def test_a_trace_that_is_not_sampled_goes_on_without_spans(exported: InMemorySpanExporter) -> None:
    tracing = tracing_to(exported)
    event = sending(names=("order.paid",))
    message = received(metadata={"traceparent": UNSAMPLED})
    current = handle(tracing, message, do=lambda: send(tracing, event))
    refused = attempt(message, ran=False, error=ValueError("no"), outcome="discard")
    tracing.on_attempted([refused])
    assert exported.get_finished_spans() == ()
    assert (current.is_valid, current.is_remote, current.trace_flags) == (True, True, 0)
    assert event.metadata == {"traceparent": UNSAMPLED}


def test_the_sampler_decides_about_new_traces(exported: InMemorySpanExporter) -> None:
    tracing = tracing_to(exported, ParentBased(ALWAYS_OFF))
    event = sending()
    current = send(tracing, event)
    assert exported.get_finished_spans() == ()
    assert not int(event.metadata["traceparent"][-2:], 16) & 1
    assert f"{current.trace_id:032x}" in event.metadata["traceparent"]
    handled = handle(tracing, received(metadata=event.metadata))
    assert handled.trace_id == current.trace_id


def test_without_an_sdk_nothing_is_recorded_and_nothing_sent() -> None:
    tracing = Tracing(tracer_provider=trace.NoOpTracerProvider())
    event = sending()
    assert not send(tracing, event).is_valid
    assert event.metadata == {}
    assert not handle(tracing, received()).is_valid
    passed_on = sending()
    handle(
        tracing,
        received(metadata={"traceparent": SAMPLED}),
        do=lambda: send(tracing, passed_on),
    )
    assert passed_on.metadata == {"traceparent": SAMPLED}


def test_the_state_of_a_trace_is_passed_on(tracing: Tracing) -> None:
    for parent in (SAMPLED, UNSAMPLED):
        event = sending()
        carried = {"traceparent": parent, "tracestate": "vendor=1"}
        handle(tracing, received(metadata=carried), do=lambda one=event: send(tracing, one))
        assert event.metadata["tracestate"] == "vendor=1"
        assert event.metadata["traceparent"].split("-")[1] == TRACE_ID


@pytest.mark.parametrize(
    "parent",
    [
        *("", "nonsense", "00-" + "f" * 5000, 7, None, {"a": 1}, "00-0-0-00", "\udcff"),
        f"00-{'0' * 32}-{'0' * 16}-00",
        f"00-{TRACE_ID}-{SPAN_ID}-01-more",
    ],
)
def test_hostile_contexts_begin_a_new_trace(
    tracing: Tracing, exported: InMemorySpanExporter, parent: Any
) -> None:
    metadata = {"traceparent": parent, "tracestate": "x" * 600}
    handle(tracing, received(metadata=metadata))
    (span,) = exported.get_finished_spans()
    assert span.parent is None


def test_a_handler_does_not_see_what_the_slot_had(tracing: Tracing) -> None:
    seen: list[Any] = []
    token = otel_context.attach(baggage.set_baggage("tenant", "7"))
    try:
        handle(tracing, received(), do=lambda: seen.append(baggage.get_all()))
    finally:
        otel_context.detach(token)
    assert seen == [{}]


# -- metrics --------------------------------------------------------------------------------------


@pytest.mark.parametrize("parent", [SAMPLED, UNSAMPLED])
def test_metrics_of_the_conventions(parent: str) -> None:
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    tracing = Tracing(meter_provider=meters)
    message = received(metadata={"traceparent": parent})
    handle(tracing, message, ValueError("no"), do=lambda: send(tracing, sending(count=2)))
    data = reader.get_metrics_data()
    assert data is not None
    found = {
        metric.name: next(iter(metric.data.data_points))
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert found.keys() == {
        "messaging.process.duration",
        "messaging.client.operation.duration",
        "messaging.client.sent.messages",
    }
    number: Any = found["messaging.client.sent.messages"]
    assert number.value == 2
    assert number.attributes == {
        "messaging.system": "memory",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "order.placed",
    }
    assert (found["messaging.process.duration"].attributes or {})["error.type"] == "ValueError"
    meters.shutdown()
