"""``Tracing``: spans and metrics for OpenTelemetry, with the context of a trace in each message.

Names and attributes are those of OpenTelemetry's conventions for messaging. The context travels in
the metadata of an envelope, as ``traceparent`` and ``tracestate`` of W3C Trace Context: so it stays
with the message through retries, dead letters and redrives, and programs in other languages can
read it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, MutableMapping
from contextvars import Context as Variables
from typing import TYPE_CHECKING, Any, NamedTuple

from matador.events.hooks import (
    DecodeFailure,
    EnqueueError,
    Hooks,
    Processing,
    Sending,
    WorkerError,
)
from matador.events.short_forms import Surrounding
from matador.model.envelope import Docket
from matador.model.text import SHORT_TEXT, storable_text
from matador.observe.sampling import DrawnIds
from matador.observe.span_content import KeptContent, about_message, attributes, record_error
from matador.observe.spans import SCOPE, Spans
from matador.observe.trace_context import NOT_SAMPLED, TRACEPARENT_LENGTH, is_sampled, is_valid
from matador.runtime.recorder import AttemptedMessage, SentMessage, Way

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, SpanContext, TracerProvider

_MOST_KEYS = 10  # of events in one send, in its attributes


class _Open(NamedTuple):
    """A span that has begun."""

    span: Span
    about: Mapping[str, Any]
    began: float
    token: Any


class Tracing(Hooks):
    """Spans for sends and attempts, in one trace across processes. Needs the extra ``otel``.

    A send is a span of kind PRODUCER. Each attempt to handle one of its messages is a span of kind
    CONSUMER and a child of it; what your callback does, sends included, are children of that. A
    message that is refused or cannot be read has a span, too. Also records the metrics
    ``messaging.process.duration``, ``messaging.client.operation.duration`` and
    ``messaging.client.sent.messages``.

    For jobs, RPC, pub/sub and channels, pass it as ``journal=``; ``Recorders(journal, tracing)`` is
    for both. There, the context is in the metadata of a job, or in the headers of a message. A call
    is a span of kind CLIENT, and its handling one of kind SERVER.

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
        self._spans = Spans(tracer_provider)
        from opentelemetry import metrics

        self._meter_provider = (
            metrics.get_meter_provider if meter_provider is None else (lambda: meter_provider)
        )
        self._measures = True
        # What the short forms use: looked up once.
        self._sends_short = self._takes_short = False
        self._drawn: DrawnIds | None = None
        contexts = self._spans.contexts
        self._get, self._set = contexts.get, contexts.set
        self._key, self._nothing = contexts.key, contexts.nothing
        self._no_parent, self._unsampled_context = contexts.no_parent, contexts.unsampled_context
        self._unsampled = (contexts.unsampled_context, contexts.unsampled_span)
        self._new_context: Any = dict.__new__
        meter = metrics.get_meter(SCOPE, meter_provider=meter_provider)
        self._process_seconds = meter.create_histogram("messaging.process.duration", "s")
        self._send_seconds = meter.create_histogram("messaging.client.operation.duration", "s")
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}")
        self._content = KeptContent()

    def on_start(self) -> None:
        """See ``Hooks``. The SDK is set up by now."""
        self._spans.prepare()
        # That of the API does nothing.
        home = type(self._meter_provider()).__module__
        self._measures = not home.startswith("opentelemetry.metrics")
        short = not self._measures
        self._sends_short = short and self._spans.decides
        self._takes_short = short and self._spans.follows
        self._drawn = self._spans.drawn

    # -- sending ----------------------------------------------------------------------------------

    def on_send_enter(self, event: Sending) -> _Open:
        """A span around a send, whose context goes into the messages."""
        keys = event.event_keys
        single = len(keys) == 1
        name, about = self._content.send(event.transport, keys[0] if single else "")
        spans, contexts = self._spans, self._spans.contexts
        span = spans.start(name, spans.producer, about)
        if event.count > 1 and span.is_recording():
            span.set_attribute("messaging.batch.message_count", event.count)
            span.set_attribute("matador.events", keys[:_MOST_KEYS])
        contexts.inject(span, event.metadata)
        token = contexts.attach_with(span)
        return _Open(span, about, time.perf_counter(), token)

    def on_send_exit(self, event: Sending, state: _Open, error: BaseException | None) -> None:
        """The end of the span."""
        self._spans.contexts.detach(state.token)
        about = self._end(state, error)
        if self._measures:
            self._send_seconds.record(time.perf_counter() - state.began, about)
            self._sent.add(event.count, about)

    def short_send(self, event_key: str | None, transport: str) -> str | Surrounding | None:
        """See ``SkipsMessages``. A trace that is not sampled needs no span."""
        if not self._sends_short:
            return None
        context: Any = self._get(self._nothing)
        span: Any
        if type(context) is self._unsampled_context:
            span = context  # which has the text of its span
        else:
            span = context.get(self._key) if context else None
        if type(span) in self._unsampled:
            if is_valid(span.text):
                return span.text
            span = None
        found: str | SpanContext | None
        if span is None or span is self._no_parent:
            drawn = self._drawn
            if drawn is None:
                return None
            try:
                found = drawn.traces.pop()
            except IndexError:
                found = drawn.more_traces()
        else:
            found = self._spans.below(span)
        if found is None or (isinstance(found, str) and len(found) == TRACEPARENT_LENGTH):
            return found
        if event_key is None:
            self._spans.keep(found)
            return None
        name, about = self._content.send(transport, event_key)
        return self._spans.light_send(name, about, found)

    def on_enqueue_error(self, event: EnqueueError) -> None:
        """A message of the send that goes on could not be stored."""
        span = self._spans.contexts.current()
        if span is not None:
            record_error(span, event.error)

    # -- handling ---------------------------------------------------------------------------------

    def on_worker_enter(self, event: Processing) -> _Open:
        """A span around an attempt, in the trace of the send."""
        name, about = self._content.process(event.queue, event.transport)
        docket = event.envelope.docket
        spans, contexts = self._spans, self._spans.contexts
        span = spans.unsampled(docket.metadata)
        if span is None:
            context = contexts.extracted(docket.metadata)
            more = about_message(about, event.envelope.id, docket)
            span = spans.start(name, spans.consumer, more, context)
        # The context variables end with the callback: nothing need be detached.
        contexts.attach(contexts.with_only(span))
        return _Open(span, about, time.perf_counter(), None)

    def on_worker_exit(self, event: Processing, state: _Open, error: BaseException | None) -> None:
        """The end of the span."""
        about = self._end(state, error)
        if self._measures:
            self._process_seconds.record(time.perf_counter() - state.began, about)

    def short_attempt(
        self, variables: Variables, message_id: str, docket: Docket, queue: str, transport: str
    ) -> Surrounding | bool:
        """See ``SkipsMessages``. What the callback sends is in the same trace."""
        if not self._takes_short:
            return False
        metadata = docket.metadata
        text: Any = metadata.get("traceparent")
        if "tracestate" in metadata:
            return False
        if text is None and self._drawn is not None:  # whoever sent it does not trace
            text = self._drawn.trace()
        elif type(text) is not str:
            return False
        if len(text) == TRACEPARENT_LENGTH and text.endswith(NOT_SAMPLED):
            context = self._new_context(self._unsampled_context)
            context.text = text
            variables.run(self._set, context)
            return True
        if "traceparent" in metadata and not is_sampled(text):
            return False
        name, about = self._content.process(queue, transport)
        spans = self._spans
        return spans.light_attempt(variables, name, about, message_id, docket, text) or False

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

    # -- jobs, calls and messages -----------------------------------------------------------------

    async def on_stop(self) -> None:
        """See ``Hooks`` and ``Recorder``."""

    def record_sent(self, message: SentMessage) -> None:
        """See ``Recorder``. The span of the send says it."""

    def record_attempt(self, attempt: AttemptedMessage) -> None:
        """See ``Recorder``. The span of the attempt says it."""

    def begin_send(
        self,
        way: Way,
        operation: str,
        name: str,
        receiver: str,
        transport: str,
        carrier: MutableMapping[str, Any],
    ) -> _Open:
        """A span around an add, a call or a publish. See ``TracesMessages``."""
        spans, contexts = self._spans, self._spans.contexts
        about: dict[str, Any] = {
            **attributes(transport, receiver, "send"),
            "messaging.operation.name": operation,
        }
        kind = spans.client if operation == "call" else spans.producer
        more = {**about, "matador.way": way, "matador.name": name}
        span = spans.start(f"{operation} {receiver}", kind, more)
        contexts.inject(span, carrier)
        token = contexts.attach_with(span)
        return _Open(span, about, time.perf_counter(), token)

    def end_send(self, span: _Open | None, error: BaseException | None) -> None:
        """The end of the span."""
        if span is not None:
            self._spans.contexts.detach(span.token)
            about = self._end(span, error)
            if self._measures:
                self._send_seconds.record(time.perf_counter() - span.began, about)
                self._sent.add(1, about)

    def begin_attempt(
        self,
        way: Way,
        name: str,
        queue: str,
        transport: str,
        message_id: str,
        carrier: Mapping[str, Any],
    ) -> _Open:
        """A span around an attempt, in the trace of the send. See ``TracesMessages``."""
        spans, contexts = self._spans, self._spans.contexts
        title, about = self._content.process(queue, transport)
        span = spans.unsampled(carrier)
        if span is None:
            context = contexts.extracted(carrier)
            more: dict[str, Any] = {
                **about,
                "matador.way": way,
                "matador.name": storable_text(name, SHORT_TEXT),
            }
            if message_id:
                more["messaging.message.id"] = storable_text(message_id, SHORT_TEXT)
            kind = spans.server if way == "rpc" else spans.consumer
            span = spans.start(title, kind, more, context)
        token = contexts.attach(contexts.with_only(span))
        return _Open(span, about, time.perf_counter(), token)

    def end_attempt(self, span: _Open | None, error: BaseException | None) -> None:
        """The end of the span."""
        if span is not None:
            self._spans.contexts.detach(span.token)
            about = self._end(span, error)
            if self._measures:
                self._process_seconds.record(time.perf_counter() - span.began, about)

    # -- internals --------------------------------------------------------------------------------

    def _end(self, state: _Open, error: BaseException | None) -> Mapping[str, Any]:
        """End a span. The attributes for metrics."""
        about = state.about
        if error is not None:
            record_error(state.span, error)
            about = {**about, "error.type": type(error).__name__}
        state.span.end()
        return about

    def _refused(
        self,
        queue: str,
        transport: str,
        error: BaseException,
        message_id: str,
        metadata: Mapping[str, Any] | None,
    ) -> None:
        name, known = self._content.process(queue, transport)
        about = dict(known)
        if message_id:
            about["messaging.message.id"] = storable_text(message_id, SHORT_TEXT)
        spans = self._spans
        span = spans.start(name, spans.consumer, about, spans.contexts.extracted(metadata))
        record_error(span, error)
        span.end()
