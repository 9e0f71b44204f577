"""``Tracing``: spans and metrics for OpenTelemetry, with the context of the trace in each message.

Names and attributes are those of OpenTelemetry's conventions for messaging. The context travels in
the metadata of a message, as ``traceparent`` and ``tracestate`` of W3C Trace Context. So it stays
with the message through retries, dead letters and redrives, and programs in other languages can
read it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from matador.errors import MissingExtraError
from matador.model.text import SHORT_TEXT, error_text, storable_text
from matador.runtime.facts import Attempt, NotSent, Received
from matador.runtime.hooks import Hooks, Sending
from matador.transports.credentials import without_secrets

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

SCOPE = "matador"
"""The name of the instrumentation."""

_HEADERS = ("traceparent", "tracestate")
_LONGEST_HEADER = 512
_MOST_NAMES = 10  # of the messages of one send, in its attributes
_SYSTEMS = {"sqs": "aws_sqs", "bullmq": "redis"}


class _Open(NamedTuple):
    """A send or an attempt that has begun.

    ``span`` is None if the trace is not sampled. ``about``: the attributes for metrics.
    """

    span: Span | None
    about: Mapping[str, Any]
    began: float
    token: Any = None


class Tracing(Hooks):
    """Spans for sends and attempts, in one trace across processes. Needs the extra ``otel``.

    A send is a span of kind PRODUCER. Each attempt to handle one of its messages is a span of kind
    CONSUMER and a child of it; the operations of the handler, sends included, are children of that.
    A call is a span of kind CLIENT, and its handling one of kind SERVER. A message that is refused
    or cannot be read has a span, too. Also records the metrics ``messaging.process.duration``,
    ``messaging.client.operation.duration`` and ``messaging.client.sent.messages``.

    The package needs only OpenTelemetry's API. The SDK that your program sets up decides where
    spans go and which traces are sampled; without one, nothing is recorded. A send or an attempt
    inside a trace that is not sampled makes no span: it only passes on the context.

    Args:
        tracer_provider: creates the tracer; None: the global one.
        meter_provider: creates the meter; None: the global one.

    Raises:
        MissingExtraError: ``opentelemetry-api`` is not installed.

    Example:
        >>> from matador.observe import Tracing
        >>> app = Matador("sqlite:///shop.db", schema=schema, hooks=[Tracing()])
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        try:
            from opentelemetry import context, metrics, trace
        except ImportError as error:
            raise MissingExtraError("Tracing", "otel") from error
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._context, self._trace = context, trace
        self._kinds = trace.SpanKind
        self._w3c = TraceContextTextMapPropagator()
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
        meter = metrics.get_meter(SCOPE, meter_provider=meter_provider)
        self._process_seconds = meter.create_histogram("messaging.process.duration", "s")
        self._send_seconds = meter.create_histogram("messaging.client.operation.duration", "s")
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}")

    # -- sending ----------------------------------------------------------------------------------

    def on_send_enter(self, event: Sending) -> _Open:
        """Start a span and put its context into the messages."""
        single = event.names[0] if len(event.names) == 1 else ""
        destination = single if event.way == "event" else event.receiver
        about = _attributes(event.transport, destination, "send")
        about["messaging.operation.name"] = event.operation
        current = self._context.get_current()
        if self._is_unsampled(current):
            self._w3c.inject(event.metadata, current)
            return _Open(None, about, time.perf_counter())
        more = dict(about)
        if event.way != "event":
            more["matador.way"] = event.way
            if single:
                more["matador.name"] = single
        if event.count > 1:
            more["messaging.batch.message_count"] = event.count
            names = "matador.events" if event.way == "event" else "matador.names"
            more[names] = event.names[:_MOST_NAMES]
        kinds = self._kinds
        kind = kinds.CLIENT if event.operation == "call" else kinds.PRODUCER
        title = f"{event.operation} {destination}" if destination else event.operation
        span = self._tracer.start_span(title, current, kind, more)
        inside = self._trace.set_span_in_context(span, current)
        self._w3c.inject(event.metadata, inside)
        return _Open(span, about, time.perf_counter(), self._context.attach(inside))

    def on_send_exit(self, event: Sending, state: _Open, error: BaseException | None) -> None:
        if state.token is not None:
            self._context.detach(state.token)
        about = self._end(state, error)
        self._send_seconds.record(time.perf_counter() - state.began, about)
        self._sent.add(event.count, about)

    def on_enqueue_error(self, event: NotSent) -> None:
        """Record on the span of the current send that a message could not be stored."""
        if event.error is not None:
            self._record_error(self._trace.get_current_span(), event.error)

    # -- handling ---------------------------------------------------------------------------------

    def on_worker_enter(self, event: Received) -> _Open:
        """Start a span in the trace of the send, and make it the current span of the handler."""
        about = _attributes(event.transport, event.queue, "process")
        context = self._extracted(event.metadata)
        span = None
        if not self._is_unsampled(context):
            span = self._start(event, about, context, _about_message(event))
            context = self._trace.set_span_in_context(span, self._context.Context())
        self._context.attach(context)  # ends with the handler: it need not be detached
        return _Open(span, about, time.perf_counter())

    def on_worker_exit(self, event: Received, state: _Open, error: BaseException | None) -> None:
        about = self._end(state, error)
        self._process_seconds.record(time.perf_counter() - state.began, about)

    def on_attempted(self, batch: Sequence[Attempt]) -> None:
        """Create spans for refused messages, whose handlers did not run."""
        for attempt in batch:
            error = attempt.error
            if attempt.ran or error is None:
                continue
            message = attempt.message
            malformed = attempt.malformed and message.way == "event"  # so its trace is unknown
            context = self._extracted(None if malformed else message.metadata)
            if not self._is_unsampled(context):
                about = _attributes(message.transport, message.queue, "process")
                more = _id_of(message) if malformed else _about_message(message)
                span = self._start(message, about, context, more)
                self._record_error(span, error)
                span.end()

    # -- internals --------------------------------------------------------------------------------

    def _start(
        self, message: Received, about: dict[str, Any], context: Context, more: dict[str, Any]
    ) -> Span:
        kind = self._kinds.SERVER if message.way == "rpc" else self._kinds.CONSUMER
        return self._tracer.start_span(f"process {message.queue}", context, kind, about | more)

    def _end(self, state: _Open, error: BaseException | None) -> Mapping[str, Any]:
        """End the span; return the attributes for metrics."""
        span, about = state.span, state.about
        if error is not None:
            if span is not None:
                self._record_error(span, error)
            about = {**about, "error.type": type(error).__name__}
        if span is not None:
            span.end()
        return about

    def _is_unsampled(self, context: Context) -> bool:
        known = self._trace.get_current_span(context).get_span_context()
        return known.is_valid and not known.trace_flags.sampled

    def _extracted(self, metadata: Mapping[str, Any] | None) -> Context:
        """The context that a message carries. Never the current one, which belongs to the slot."""
        carrier = {
            name: value
            for name in _HEADERS
            if metadata and isinstance(value := metadata.get(name), str)
            if len(value) <= _LONGEST_HEADER
        }
        return self._w3c.extract(carrier, self._context.Context())

    def _record_error(self, span: Span, error: BaseException) -> None:
        """Record an error on a span, without secrets."""
        if span.is_recording():
            text, kind = without_secrets(error_text(error)), type(error).__name__
            span.add_event("exception", {"exception.type": kind, "exception.message": text})
            span.set_attribute("error.type", kind)
            span.set_status(self._trace.StatusCode.ERROR, text)


def _attributes(transport: str, destination: str, operation: str) -> dict[str, Any]:
    about = {
        "messaging.system": _SYSTEMS.get(transport, transport),
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
    if destination:
        about["messaging.destination.name"] = destination
    return about


def _id_of(message: Received) -> dict[str, Any]:
    if not message.id:
        return {}
    return {"messaging.message.id": storable_text(message.id, SHORT_TEXT)}


def _about_message(message: Received) -> dict[str, Any]:
    """The attributes of one message."""
    name = storable_text(message.name, SHORT_TEXT)
    about = _id_of(message)
    if message.way != "event":
        return about | {"matador.way": message.way, "matador.name": name}
    about |= {
        "matador.event": name,
        "matador.subscriber": storable_text(message.receiver, SHORT_TEXT),
        "matador.attempt": message.attempt,
    }
    if message.correlation_id is not None:
        about["messaging.message.conversation_id"] = message.correlation_id
    return about
