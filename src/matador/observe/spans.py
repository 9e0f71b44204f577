"""Spans of OpenTelemetry for messages, and the context of a trace in their metadata.

The context is that of W3C Trace Context, as ``traceparent`` and ``tracestate``. Most messages of a
busy system are in traces that are not sampled: these are recognised without asking the SDK, which
takes several times as long.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Generator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from matador.errors import MissingExtraError
from matador.model.text import error_text
from matador.transports.credentials import without_secrets

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanKind, TracerProvider

SCOPE = "matador"
"""The name of the instrumentation."""

HEADERS = ("traceparent", "tracestate")
"""Where the context of a trace is, in the metadata or headers of a message."""

_LONGEST_HEADER = 512
_SYSTEMS = {"sqs": "aws_sqs", "bullmq": "redis"}
_UNSAMPLED = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-(0[02])")  # 2: the id is random
_FOLLOWS = "remoteParentNotSampled:AlwaysOffSampler"
_RATIO = re.compile(r"ParentBased\{root:TraceIdRatioBased\{([\d.e-]+)\},.*\}")
_IDS = 1 << 64  # the ratio is taken of this many trace ids


class _GivenIds:
    """The ids of new spans: those of another generator, or a trace id that was chosen before."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._given = threading.local()
        self.generate_span_id: Callable[[], int] = inner.generate_span_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def generate_trace_id(self) -> int:
        """The id that was given in this thread, or a new one."""
        given: int = getattr(self._given, "id", 0)
        return given or self._inner.generate_trace_id()

    @contextlib.contextmanager
    def given(self, trace_id: int) -> Generator[None]:
        """Have the next trace use this id."""
        self._given.id = trace_id
        try:
            yield
        finally:
            self._given.id = 0


class Spans:
    """Makes spans, and carries their contexts in messages.

    Raises:
        MissingExtraError: ``opentelemetry-api`` is not installed.
    """

    def __init__(self, provider: TracerProvider | None) -> None:
        try:
            from opentelemetry import context, trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise MissingExtraError("Tracing", "otel") from error
        self._provider = provider
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=provider)
        self._global_provider = trace.get_tracer_provider
        self._span_context, self._no_span = trace.SpanContext, trace.NonRecordingSpan
        self._flags = {"00": trace.TraceFlags(0), "02": trace.TraceFlags(2)}
        self._failed = trace.StatusCode.ERROR
        self._w3c = TraceContextTextMapPropagator()
        self._ids: _GivenIds | None = None
        self._bound = 0
        self.follows = False
        self.nothing = context.Context()
        self.attach, self.detach = context.attach, context.detach
        self.in_context = trace.set_span_in_context
        self.current = trace.get_current_span
        self.producer, self.consumer = trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER
        self.client, self.server = trace.SpanKind.CLIENT, trace.SpanKind.SERVER

    def prepare(self) -> None:
        """Find out what the SDK drops anyway. It is set up by now. Idempotent."""
        if self._ids is not None:
            return
        provider: Any = self._global_provider() if self._provider is None else self._provider
        sampler: Any = getattr(provider, "sampler", None)
        describe = getattr(sampler, "get_description", None)
        if type(sampler).__module__ != "opentelemetry.sdk.trace.sampling" or describe is None:
            return  # a sampler of your own is asked for each span
        said = str(describe())
        self.follows = _FOLLOWS in said
        tracer: Any = self._tracer if self._provider is not None else provider.get_tracer(SCOPE)
        ratio = _RATIO.fullmatch(said)
        if ratio is None or not hasattr(tracer, "id_generator"):
            return
        self._tracer, self._ids = tracer, _GivenIds(tracer.id_generator)
        tracer.id_generator = self._ids  # of our own tracer: nobody else has it
        self._bound = round(float(ratio[1]) * _IDS)  # as TraceIdRatioBased does it

    def start(
        self,
        name: str,
        kind: SpanKind,
        about: Mapping[str, Any],
        context: Context | None = None,
    ) -> Span:
        """Begin a span. Without a context, its parent is the current one.

        A new trace that the sampler would not sample, by its id, begins without the SDK. One that
        it would sample gets that id.
        """
        ids = self._ids
        if ids is not None and context is None and not self.current().get_span_context().is_valid:
            trace_id = ids.generate_trace_id()
            if trace_id & (_IDS - 1) >= self._bound:
                known = self._span_context(
                    trace_id, ids.generate_span_id(), False, self._flags["00"]
                )
                return self._no_span(known)
            with ids.given(trace_id):
                return self._tracer.start_span(name, context, kind, about)
        return self._tracer.start_span(name, context, kind, about)

    def inject(self, span: Span, carrier: MutableMapping[str, Any]) -> None:
        """Write the context of a span into the metadata of a message."""
        known = span.get_span_context()
        if known.is_valid:
            ids = f"{known.trace_id:032x}-{known.span_id:016x}"
            carrier["traceparent"] = f"00-{ids}-{int(known.trace_flags):02x}"
            if known.trace_state:
                carrier["tracestate"] = known.trace_state.to_header()

    def extracted(self, metadata: Mapping[str, Any] | None) -> Context:
        """The context that a message brings. Never that of the slot, which is another message's."""
        if not metadata or "traceparent" not in metadata:
            return self.nothing
        carrier = {
            name: value
            for name in HEADERS
            if isinstance(value := metadata.get(name), str) and len(value) <= _LONGEST_HEADER
        }
        return self._w3c.extract(carrier, self.nothing)

    def unsampled(self, metadata: Mapping[str, Any] | None) -> Span | None:
        """The span of a message whose trace is not sampled; None if it may be."""
        parent = metadata.get("traceparent") if metadata else None
        if not isinstance(parent, str) or metadata is None or "tracestate" in metadata:
            return None
        found = _UNSAMPLED.fullmatch(parent)
        if found is None:
            return None
        trace_id, span_id = int(found[1], 16), int(found[2], 16)
        if not trace_id or not span_id:
            return None
        return self._no_span(self._span_context(trace_id, span_id, True, self._flags[found[3]]))

    def record_error(self, span: Span, error: BaseException) -> None:
        """Note on a span that it failed, without secrets."""
        if not span.is_recording():
            return
        text = without_secrets(error_text(error))
        kind = type(error).__name__
        span.add_event("exception", {"exception.type": kind, "exception.message": text})
        span.set_attribute("error.type", kind)
        span.set_status(self._failed, text)


def attributes(transport: str, destination: str, operation: str) -> dict[str, Any]:
    """What a span says about a message, in the words of OpenTelemetry's conventions."""
    about: dict[str, Any] = {
        "messaging.system": _SYSTEMS.get(transport, transport),
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
    if destination:
        about["messaging.destination.name"] = destination
    return about
