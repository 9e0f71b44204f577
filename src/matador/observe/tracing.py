"""``Tracing``: spans and metrics for OpenTelemetry, with the context of a trace in each message.

Names and attributes are those of OpenTelemetry's conventions for messaging. The context travels in
the metadata of an envelope, as ``traceparent`` and ``tracestate`` of W3C Trace Context: so it stays
with the message through retries, dead letters and redrives, and programs in other languages can
read it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from matador.errors import MissingExtraError
from matador.events.hooks import (
    DecodeFailure,
    EnqueueError,
    Hooks,
    Proceed,
    Processing,
    Sending,
    WorkerError,
)
from matador.model.text import SHORT_TEXT, error_text, storable_text
from matador.transports.credentials import without_secrets

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

_SCOPE = "matador"
_HEADERS = ("traceparent", "tracestate")
_LONGEST_HEADER = 512
_SYSTEMS = {"sqs": "aws_sqs", "bullmq": "redis"}
_MOST_KEYS = 10  # of events in one send, in its attributes


class Tracing(Hooks):
    """Spans for sends and attempts, in one trace across processes. Needs the extra ``otel``.

    A send is a span of kind PRODUCER. Each attempt to handle one of its messages is a span of kind
    CONSUMER and a child of it; what your callback does, sends included, are children of that. A
    message that is refused or cannot be read has a span, too. Also records the metrics
    ``messaging.process.duration``, ``messaging.client.operation.duration`` and
    ``messaging.client.sent.messages``.

    The package needs only OpenTelemetry's API. Where spans go is decided by the SDK that your
    program sets up; without one, nothing is recorded.

    Args:
        tracer_provider: makes the tracer; None: the global one.
        meter_provider: makes the meter; None: the global one.

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
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise MissingExtraError("Tracing", "otel") from error
        self._tracer = trace.get_tracer(_SCOPE, tracer_provider=tracer_provider)
        meter = metrics.get_meter(_SCOPE, meter_provider=meter_provider)
        self._process_seconds = meter.create_histogram("messaging.process.duration", "s")
        self._send_seconds = meter.create_histogram("messaging.client.operation.duration", "s")
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}")
        self._producer, self._consumer = trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER
        self._failed = trace.StatusCode.ERROR
        self._current = trace.get_current_span
        self._in_context = trace.set_span_in_context
        self._attach, self._detach = context.attach, context.detach
        self._no_context = context.Context()
        self._w3c = TraceContextTextMapPropagator()

    # -- sending ----------------------------------------------------------------------------------

    async def on_send_wrap(self, event: Sending, proceed: Proceed) -> None:
        """A span around a send, whose context goes into the messages."""
        single = len(event.event_keys) == 1
        about: dict[str, Any] = {
            "messaging.system": _system(event.transport),
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
        }
        if single:
            about["messaging.destination.name"] = event.event_keys[0]
        span = self._tracer.start_span(
            f"send {event.event_keys[0]}" if single else "send",
            kind=self._producer,
            attributes=about,
        )
        if span.is_recording() and event.count > 1:
            span.set_attribute("messaging.batch.message_count", event.count)
            span.set_attribute("matador.events", event.event_keys[:_MOST_KEYS])
        context = self._in_context(span)
        self._w3c.inject(event.metadata, context)
        token, began = self._attach(context), time.perf_counter()
        try:
            await proceed()
        except BaseException as error:
            self._record(span, error)
            about["error.type"] = type(error).__name__
            raise
        finally:
            self._detach(token)
            span.end()
            self._send_seconds.record(time.perf_counter() - began, about)
            self._sent.add(event.count, about)

    def on_enqueue_error(self, event: EnqueueError) -> None:
        """A message of the send that goes on could not be stored."""
        span = self._current()
        if span.is_recording():
            self._record(span, event.error)

    # -- handling ---------------------------------------------------------------------------------

    async def on_worker_wrap(self, event: Processing, proceed: Proceed) -> None:
        """A span around an attempt, in the trace of the send."""
        about = _about(event.queue, event.transport)
        docket = event.envelope.docket
        context = self._extracted(docket.metadata)
        span = self._tracer.start_span(
            f"process {event.queue}",
            context,
            self._consumer,
            {
                **about,
                "messaging.message.id": event.envelope.id,
                "matador.event": docket.event_key,
                "matador.subscriber": docket.target_subscriber,
                "matador.attempt": docket.attempts,
            },
        )
        if docket.correlation_id is not None and span.is_recording():
            span.set_attribute("messaging.message.conversation_id", docket.correlation_id)
        token, began = self._attach(self._in_context(span, context)), time.perf_counter()
        try:
            error = await proceed()
            if error is not None:
                self._record(span, error)
                about["error.type"] = type(error).__name__
        except BaseException as error:  # it was interrupted
            self._record(span, error)
            about["error.type"] = type(error).__name__
            raise
        finally:
            self._detach(token)
            span.end()
            self._process_seconds.record(time.perf_counter() - began, about)

    def on_worker_error(self, event: WorkerError) -> None:
        """A message that was refused: its callback did not run, so nothing else has told it."""
        if event.ran:
            return
        envelope = event.envelope
        self._refused(
            event.queue, event.transport, event.error, envelope.id, envelope.docket.metadata
        )

    def on_decode_error(self, event: DecodeFailure) -> None:
        """A message that could not be read, and so belongs to no trace."""
        self._refused(event.queue, event.transport, event.error, event.delivery.id, None)

    # -- internals --------------------------------------------------------------------------------

    def _refused(
        self,
        queue: str,
        transport: str,
        error: BaseException,
        message_id: str,
        metadata: Mapping[str, Any] | None,
    ) -> None:
        about = _about(queue, transport)
        if message_id:
            about["messaging.message.id"] = storable_text(message_id, SHORT_TEXT)
        context = self._extracted(metadata)
        span = self._tracer.start_span(f"process {queue}", context, self._consumer, about)
        self._record(span, error)
        span.end()

    def _extracted(self, metadata: Mapping[str, Any] | None) -> Context:
        """The context that a message brings. Never that of the slot, which is another message's."""
        if not metadata or "traceparent" not in metadata:
            return self._no_context
        carrier = {
            name: value
            for name in _HEADERS
            if isinstance(value := metadata.get(name), str) and len(value) <= _LONGEST_HEADER
        }
        return self._w3c.extract(carrier, self._no_context)

    def _record(self, span: Span, error: BaseException) -> None:
        if not span.is_recording():
            return
        text = without_secrets(error_text(error))
        kind = type(error).__name__
        span.add_event("exception", {"exception.type": kind, "exception.message": text})
        span.set_attribute("error.type", kind)
        span.set_status(self._failed, text)


def _about(queue: str, transport: str) -> dict[str, Any]:
    return {
        "messaging.system": _system(transport),
        "messaging.destination.name": queue,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
    }


def _system(transport: str) -> str:
    return _SYSTEMS.get(transport, transport)
